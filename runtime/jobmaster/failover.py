"""What is restarted together, and which restarts are to come (Flink's `RestartPipelinedRegionFailoverStrategy`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from runtime.ids import JobVertexID, RestartID
from runtime.jobmaster.execution import Task
from runtime.jobmaster.execution_state import ErrorInfo, FailureKind


def region_to_restart(tasks: Mapping[JobVertexID, Task], failed: Iterable[JobVertexID]) -> set[JobVertexID]:
    """The failed tasks and, transitively, their consumers that have not finished and producers of what is released."""
    region: set[JobVertexID] = set()
    todo = list(failed)
    while todo:
        key = todo.pop()
        if key not in region:
            region.add(key)
            todo += [consumer for consumer in tasks[key].consumers if not tasks[consumer].is_finished]
            todo += [producer for producer in tasks[key].chain.inputs if is_released(tasks, producer)]
    return region


def is_released(tasks: Mapping[JobVertexID, Task], key: JobVertexID) -> bool:
    """Whether nobody needs the results of a task any more: it and all that read them have FINISHED.

    (Flink's `RegionPartitionGroupReleaseStrategy`.) It follows from the tasks' states alone, so that a JobMaster's
    successor knows it too: before such a consumer runs again, its producer does.
    """
    consumers = tasks[key].consumers
    return tasks[key].is_finished and bool(consumers) and all(tasks[item].is_finished for item in consumers)


def use_retry(failed: Sequence[Task], cause: ErrorInfo) -> bool:
    """Whether the vertices' own retries cover a failure; if so, one of them is used up."""
    own = cause.kind in (FailureKind.USER_CODE, FailureKind.TASK_PROCESS_LOST)
    if not own or any(task.retried >= task.chain.retries for task in failed):
        return False
    for task in failed:
        task.retried += 1
    return True


class PendingRestarts:
    """Restarts that are scheduled: each a set of tasks; a task belongs to the last one that it was put into."""

    def __init__(self) -> None:
        self._regions: dict[RestartID, set[JobVertexID]] = {}
        self._due: set[RestartID] = set()

    def __bool__(self) -> bool:
        return bool(self._regions)

    def add(self, restart_id: RestartID, region: set[JobVertexID]) -> None:
        """Schedule a restart; tasks that wait for an earlier one now wait for this."""
        for earlier in list(self._regions):
            self._regions[earlier] -= region
            if not self._regions[earlier]:
                del self._regions[earlier]
        self._regions[restart_id] = set(region)
        self._due &= self._regions.keys()

    def mark_due(self, restart_id: RestartID) -> None:
        """The delay of a restart is over; one that is not scheduled (any more) is ignored."""
        if restart_id in self._regions:
            self._due.add(restart_id)

    def take_ready(self, is_ended: Callable[[JobVertexID], bool]) -> list[set[JobVertexID]]:
        """Remove and return the restarts that are due and of which no task runs any more."""
        ready = [item for item in self._regions if item in self._due and all(map(is_ended, self._regions[item]))]
        self._due.difference_update(ready)
        return [self._regions.pop(restart_id) for restart_id in ready]

    def clear(self) -> None:
        """Schedule nothing any more."""
        self._regions.clear()
        self._due.clear()
