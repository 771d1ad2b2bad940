"""Guards of queues: limits, order, what is counted when."""

from __future__ import annotations

from tests.mutants.model import Mutant

_SCHEDULING = "runtime/queues/scheduling.py"
_ADMISSION = "runtime/queues/admission.py"
_FILE = "runtime/queues/configuration.py"
_DISPATCHER = "runtime/dispatcher/endpoint.py"
_SLOTS = "runtime/resourcemanager/slot_manager.py"
_MANAGER = "runtime/resourcemanager/endpoint.py"

_PASSED_OVER = "unit/test_queues_scheduling.py::test_a_request_beyond_a_limit_is_passed_over_and_says_which"
_AT_ONCE = "unit/test_dispatcher_queues.py::test_two_submissions_at_once_do_not_exceed_a_limit"

MUTANTS = (
    Mutant(
        "slots-over-the-limit",
        "A user, group or queue holds no slot beyond its limit.",
        _SCHEDULING,
        "use.slots >= limits.slots:",
        "use.slots > limits.slots:",
        (_PASSED_OVER,),
    ),
    Mutant(
        "small-tasks-overtake-a-large-one",
        "Small tasks do not overtake a large one that waits for memory of the same limit.",
        _SCHEDULING,
        "kept.isdisjoint(self._scopes(member)) and not",
        "not",
        ("unit/test_queues_scheduling.py::test_a_large_request_is_not_passed_by_smaller_ones_of_the_same_limit",),
    ),
    Mutant(
        "blobs-counted-late",
        "The blobs of a job count while it is being stored.",
        _ADMISSION,
        "{**held_bytes, **self._under_way_bytes}",
        "held_bytes",
        ("unit/test_dispatcher_queues.py::test_two_submissions_at_once_do_not_exceed_a_limit_of_blobs",),
    ),
    Mutant(
        "running-jobs-over-the-limit",
        "No job runs beyond the limit of running jobs.",
        _SCHEDULING,
        "if begins and limits.running_jobs is not None",
        "if False and limits.running_jobs is not None",
        (_PASSED_OVER,),
    ),
    Mutant(
        "a-blocked-request-holds-up-its-line",
        "A request beyond a limit is passed over.",
        _SCHEDULING,
        "            if allowed:\n                begins",
        "            if not allowed:\n                return\n            if allowed:\n                begins",
        (_PASSED_OVER,),
    ),
    Mutant(
        "slots-without-a-price",
        "Slots that become free at one moment do not all go to one user.",
        _SCHEDULING,
        "cost = GRANT_S if allowed else 0.0",
        "cost = 0.0",
        (
            "unit/test_queues_scheduling.py::test_users_take_turns_and_each_user_s_own_jobs_are_in_the_order_of_their_requests",
        ),
    ),
    Mutant(
        "use-is-never-forgotten",
        "A slot-second counts half after the half-life.",
        _SCHEDULING,
        "return self.value * left + self.slots * (1.0 - left) * half_life_s / math.log(2.0)",
        "return self.value + self.slots * max(now - self.at, 0.0)",
        ("unit/test_queues_scheduling.py::test_who_has_used_less_is_next_and_use_is_forgotten",),
    ),
    Mutant(
        "an-ended-job-s-slots-are-nobody-s",
        "The slots of an ended job count until they are free.",
        _SCHEDULING,
        "if self._slots[job_id] <= 0 and (",
        "if (",
        ("unit/test_slot_manager_queues.py::test_a_job_that_has_ended_holds_its_slots_until_they_are_free",),
    ),
    Mutant(
        "submissions-counted-late",
        "A submission is counted with its check, so that another one that comes while it is stored finds it.",
        _ADMISSION,
        "        self._under_way[job_id] = member\n",
        "",
        (_AT_ONCE, "unit/test_queues_admission.py::test_a_job_that_is_being_stored_waits_too"),
    ),
    Mutant(
        "submissions-never-settled",
        "A job that could not be stored does not count as waiting.",
        _DISPATCHER,
        "            self._admission.settle(job_id)\n",
        "",
        ("unit/test_dispatcher_queues.py::test_a_job_that_could_not_be_stored_does_not_wait",),
    ),
    Mutant(
        "uploads-announced-and-no-more",
        "An upload counts with its files where they are more than what the client has announced.",
        _ADMISSION,
        "return max(announced, sum(sizes.values()) - announced)",
        "return announced or sum(sizes.values())",
        ("unit/test_queues_admission.py::test_no_more_is_uploaded_than_was_announced_and_checked",),
    ),
    Mutant(
        "uploads-forgotten-before-they-are-deleted",
        "An upload counts until its files are deleted.",
        _DISPATCHER,
        "            return False\n        self._admission.end_upload(job_id)\n",
        "            self._admission.end_upload(job_id)\n            return False\n",
        ("unit/test_dispatcher_queues.py::test_files_that_are_not_deleted_yet_count_until_they_expire",),
    ),
    Mutant(
        "uploads-ended-while-a-file-is-on-its-way",
        "A file counts after it is stored too: the user may have ended its upload meanwhile.",
        "runtime/rest/handlers/gateways.py",
        "        await rest.backend.end_upload(owner, principal_of(request).name)\n        return _refused(error)\n",
        "        pass\n",
        ("unit/test_rest_uploads.py::test_a_file_whose_upload_was_ended_meanwhile_is_deleted_if_it_is_over_the_limit",),
    ),
    Mutant(
        "rate-unchecked",
        "No more jobs per minute are accepted than the limit.",
        _ADMISSION,
        "if len(times) >= most:",
        "if len(times) > most:",
        ("unit/test_queues_admission.py::test_so_many_submissions_are_accepted_within_a_minute",),
    ),
    Mutant(
        "any-queue-for-anybody",
        "A job is only in a queue that its user may use.",
        _FILE,
        "return queue.is_open or self._is_named(user, queue)",
        "return True",
        (
            "unit/test_queues_file.py::"
            "test_a_job_is_in_the_queue_that_it_names_or_that_names_its_user_or_in_the_default_one",
            "unit/test_dispatcher_queues.py::test_a_queue_that_the_job_may_not_use_is_refused",
        ),
    ),
    Mutant(
        "unknown-keys-of-queues",
        "An unknown key in the file of queues is an error.",
        _FILE,
        "            if key not in known:\n",
        "            if False:\n",
        ("unit/test_queues_file.py::test_what_is_wrong_is_said_on_one_line_with_its_place_and_a_remedy",),
    ),
    Mutant(
        "a-wrong-file-of-queues-lifts-all-limits",
        "A wrong file leaves the last right one in use.",
        _FILE,
        "                self._problem = str(error)\n",
        "                self._problem, self._queues = str(error), Queues()\n",
        (
            "unit/test_queues_file.py::"
            "test_the_file_is_read_again_when_it_has_changed_and_a_wrong_one_leaves_the_last_in_use",
            "unit/test_dispatcher_queues.py::test_no_job_is_accepted_while_the_file_has_never_been_right",
        ),
    ),
    Mutant(
        "workers-for-requests-over-a-limit",
        "No worker is started for a request that a limit holds back.",
        _SLOTS,
        "return sum(1 for _ in self._order()) if self._share.queues.is_set else self._all_waiting",
        "return self._all_waiting",
        ("unit/test_slot_manager_queues.py::test_a_user_gets_no_slot_beyond_the_limit_and_others_get_the_free_ones",),
    ),
    Mutant(
        "turns-time-out",
        "A request that waits for its turn has no time-out.",
        _SLOTS,
        "if self._share.queues.is_set and self._slots:",
        "if False:",
        (
            "unit/test_slot_manager_queues.py::"
            "test_a_request_waits_for_its_turn_without_a_time_out_but_not_for_a_cluster_without_slots",
        ),
    ),
    Mutant(
        "no-file-of-queues-is-one",
        "The page shows queues only of a cluster with a file of queues.",
        _MANAGER,
        "has_file=self._queues.is_set",
        "has_file=True",
        ("unit/test_resource_manager_queues.py::test_a_cluster_without_a_file_says_so",),
    ),
    Mutant(
        "problems-of-the-file-are-secret",
        "A wrong file of queues is reported.",
        _MANAGER,
        "self._slots.queues(self._queues.problem, ",
        'self._slots.queues("", ',
        (
            "unit/test_resource_manager_queues.py::"
            "test_a_wrong_file_is_a_problem_and_its_last_right_content_is_reported",
        ),
    ),
)
