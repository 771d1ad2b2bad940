"""Where a task would like to run: near what it reads (Flink's `LocationPreferenceSlotSelectionStrategy`). Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlsplit

from runtime.ids import ResourceID


@dataclass(frozen=True, slots=True)
class TaskManagerLocation:
    """A TaskExecutor and the host that it is reached at (Flink's `TaskManagerLocation`)."""

    resource_id: ResourceID
    host: str

    @classmethod
    def of(cls, resource_id: ResourceID, address: str) -> TaskManagerLocation:
        """The location of a TaskExecutor whose gateway has that address; one without a host is near to nothing."""
        return cls(resource_id, urlsplit(address).hostname or "")


class Locality(IntEnum):
    """How near a slot is to what its task reads; the greater, the nearer."""

    NON_LOCAL = 0
    HOST_LOCAL = 1
    LOCAL = 2


def locality_of(candidate: TaskManagerLocation, preferred: Collection[TaskManagerLocation]) -> Locality:
    """How near *candidate* is to the nearest of *preferred*; NON_LOCAL where nothing is preferred."""
    if any(candidate.resource_id == location.resource_id for location in preferred):
        return Locality.LOCAL
    if candidate.host and any(candidate.host == location.host for location in preferred):
        return Locality.HOST_LOCAL
    return Locality.NON_LOCAL
