"""What is restarted together, and which restarts are to come (Flink's `RestartPipelinedRegionFailoverStrategy`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runtime.ids import JobVertexID, RestartID
from runtime.jobmaster.execution import Task


def region_to_restart(tasks: Mapping[JobVertexID, Task], failed: Iterable[JobVertexID]) -> set[JobVertexID]:
    """The failed tasks and, transitively, their consumers that have not finished."""
    region: set[JobVertexID] = set()
    todo = list(failed)
    while todo:
        key = todo.pop()
        if key not in region:
            region.add(key)
            todo += [consumer for consumer in tasks[key].consumers if not tasks[consumer].is_finished]
    return region


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
