"""Guards of an upgrade: whose slots a drained TaskExecutor gives, and when its tasks move."""

from __future__ import annotations

from tests.mutants.model import Mutant

_SLOTS = "runtime/resourcemanager/slot_manager.py"
_PLAN = "runtime/cluster/upgrade_plan.py"

_ZYGOTE = "runtime/spark/task/zygote.py"
_CLIENT = "runtime/spark/task/zygote_client.py"
_HANDED = "contract/test_zygote_hand_over.py"

MUTANTS = (
    Mutant(
        "drained-slots-allocated",
        "No job gets a slot of a drained TaskExecutor.",
        _SLOTS,
        "            self._draining[instance_id] = until\n            self.release_task_manager(instance_id)",
        "            self._draining[instance_id] = until",
        (
            "unit/test_slot_manager.py::test_a_drained_task_executor_is_given_to_nobody_unless_the_drain_is_not_repeated",
        ),
    ),
    Mutant(
        "drain-for-ever",
        "A drain that nobody repeats ends.",
        _SLOTS,
        "if until <= now]:\n            del self._draining[instance_id]",
        "if False and until <= now]:\n            del self._draining[instance_id]",
        (
            "unit/test_slot_manager.py::test_a_drained_task_executor_is_given_to_nobody_unless_the_drain_is_not_repeated",
        ),
    ),
    Mutant(
        "requests-fail-during-an-exchange",
        "Requests wait for the only TaskExecutor while it is exchanged.",
        _SLOTS,
        "not self._expected_back() and not self._in_exchange()",
        "not self._expected_back()",
        ("unit/test_slot_manager.py::test_requests_wait_for_the_only_task_executor_while_it_is_exchanged",),
    ),
    Mutant(
        "slot-kept-on-a-vacated-task-executor",
        "The next task of a job does not run on a TaskExecutor that the job leaves.",
        "runtime/jobmaster/slot_pool.py",
        "if self._vacated.get(held.slot.slot_id.resource_id, now) > now:",
        "if False:",
        ("unit/test_slot_pool.py::test_slots_of_a_vacated_task_executor_are_returned_at_once_and_others_kept",),
    ),
    Mutant(
        "batch-tasks-end-with-their-task-executor",
        "Batch tasks may finish before their TaskExecutor is exchanged.",
        _PLAN,
        "if waited_s < timeout_s and (found.batch or not found.streaming):",
        "if False:",
        ("unit/test_upgrade_plan.py::test_batch_tasks_may_finish_and_streaming_queries_move_last",),
    ),
    Mutant(
        "workers-kept-by-a-release-that-starts-its-own",
        "The process of 0.1.0 that keeps the TaskExecutors of a host never continues beside those that run.",
        _PLAN,
        "return state.is_part and (not target.adopts or any(",
        "return state.is_part and (any(",
        ("unit/test_upgrade_plan.py::test_the_task_executors_of_a_host_are_restarted_together_by_the_release_0_1_0",),
    ),
    Mutant(
        "undrained-downgrade-unasked",
        "Tasks fail in a downgrade only if the operator accepts that.",
        _PLAN,
        "if worker.jobs and not target.drains]:",
        "if False]:",
        ("unit/test_upgrade_plan.py::test_to_a_release_that_cannot_drain_the_operator_accepts_failed_tasks",),
    ),
    # ------------------------------------------------------------------ a hand-over
    Mutant(
        "tasks-left-to-another-user",
        "A zygote answers processes of its own user alone.",
        _ZYGOTE,
        "            check_peer_is_us(candidate)\n",
        "            pass\n",
        (f"{_HANDED}::test_another_users_process_gets_nothing",),
    ),
    Mutant(
        "tasks-adopted-from-another-user",
        "Tasks are adopted from this user's zygote alone.",
        _CLIENT,
        "                check_peer_is_us(sock)\n",
        "                pass\n",
        (f"{_HANDED}::test_nothing_is_adopted_from_another_users_process",),
    ),
    Mutant(
        "tasks-without-an-owner-for-ever",
        "Tasks end if no successor adopts them in time.",
        _ZYGOTE,
        "while (left := held.until - boottime()) > 0 and held.driver is not None:",
        "while (left := held.until - boottime()) and held.driver is not None:",
        (f"{_HANDED}::test_when_the_time_is_over_the_driver_ends_too",),
    ),
    Mutant(
        "tasks-kept-by-an-owner-that-stands-still",
        "Tasks end in time although the TaskExecutor that has left them has not ended.",
        _ZYGOTE,
        "            return False  # the owner stands still, and its jobs count it as lost\n",
        "            pass\n",
        (f"{_HANDED}::test_when_the_time_is_over_the_driver_ends_too",),
    ),
    Mutant(
        "driver-without-an-owner",
        "The Spark driver ends with the tasks that no successor has adopted.",
        _ZYGOTE,
        "            held.driver.send_signal(signal.SIGKILL)\n",
        "            pass\n",
        (f"{_HANDED}::test_when_the_time_is_over_the_driver_ends_too",),
    ),
    Mutant(
        "successor-without-tasks-trusted",
        "A TaskExecutor of the same name that has adopted nothing has lost the tasks.",
        "runtime/jobmaster/deployment.py",
        "address not in (registration.address, *registration.predecessors)",
        "address not in (registration.address, *registration.predecessors) and not self._succeeded",
        (
            "unit/test_job_master_clock.py"
            "::test_a_task_executor_is_awaited_until_its_successor_registers_or_the_time_is_over",
        ),
    ),
    Mutant(
        "awaited-successor-forgotten",
        "The next JobMaster knows that tasks run on without a TaskExecutor.",
        "runtime/jobmaster/endpoint.py",
        "                self._look_for_successor(resource_id, until_ms)\n                continue\n",
        "                self._look_for_successor(resource_id, until_ms)\n",
        ("unit/test_job_master_clock.py::test_the_next_job_master_awaits_the_successor_too",),
    ),
    Mutant(
        "successor-forgotten-by-the-next",
        "The next JobMaster looks for adopted tasks at the TaskExecutor that has adopted them.",
        "runtime/jobmaster/endpoint.py",
        "            await self._written()  # otherwise the next JobMaster would look for the predecessor\n",
        "            pass\n",
        (
            "unit/test_job_master_clock.py"
            "::test_an_adopting_task_executor_is_answered_once_the_next_job_master_would_know_its_address",
        ),
    ),
    Mutant(
        "task-left-in-the-middle-of-a-checkpoint",
        "No task is handed over while a snapshot of it is taken.",
        "runtime/taskexecutor/hand_over.py",
        "    if task.takes_checkpoint:\n",
        "    if False:\n",
        ("unit/test_hand_over.py::test_a_task_is_left_only_while_it_runs_and_nothing_of_it_is_under_way",),
    ),
    Mutant(
        "registration-with-a-number-that-was-used",
        "A JobMaster that has registered a TaskExecutor anew is told from one that waits for its successor.",
        "runtime/taskexecutor/connections.py",
        "            connection.registration = next(self._numbers)\n",
        "            connection.registration += 1\n",
        ("unit/test_hand_over.py::test_each_registration_with_a_job_has_another_number",),
    ),
    Mutant(
        "tasks-left-although-a-job-master-does-not-wait",
        "A TaskExecutor whose JobMaster has registered it anew after the order keeps its tasks.",
        "runtime/taskexecutor/hand_over.py",
        "            if self.waiting.get(job_id) != number:\n",
        "            if job_id not in self.waiting:\n",
        ("unit/test_hand_over.py::test_what_passes_is_waited_for_and_whatever_else_comes_in_between_ends_the_order",),
    ),
)
