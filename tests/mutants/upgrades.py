"""Guards of an upgrade: whose slots a drained TaskExecutor gives, and when its tasks move."""

from __future__ import annotations

from tests.mutants.model import Mutant

_SLOTS = "runtime/resourcemanager/slot_manager.py"
_PLAN = "runtime/cluster/upgrade_plan.py"

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
        "undrained-downgrade-unasked",
        "Tasks fail in a downgrade only if the operator accepts that.",
        _PLAN,
        "if worker.jobs and not target.drains]:",
        "if False]:",
        ("unit/test_upgrade_plan.py::test_to_a_release_that_cannot_drain_the_operator_accepts_failed_tasks",),
    ),
)
