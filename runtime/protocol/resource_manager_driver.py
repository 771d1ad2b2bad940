"""Where workers come from (Flink's `ResourceManagerDriver` and `ResourceEventHandler`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from runtime.ids import ResourceID

OnTerminated = Callable[[ResourceID, str], None]
"""Told that a worker has ended that was not released, and why, in one line."""


class DriverError(Exception):
    """A worker could not be started, stopped or looked for: the thing, the cause, the remedy, in one line."""


class NoWorkerLeft(DriverError):
    """The driver has a fixed number of workers, and all are started."""


class ResourceManagerDriver(ABC):
    """Starts and stops workers, for the one ResourceManager that leads. All workers of a cluster are alike.

    A worker's name is its TaskExecutor's `ResourceID`. Whether the TaskExecutor has come is not the driver's concern.
    """

    @abstractmethod
    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Begin, and find the workers that an earlier leader left (Flink's ``onPreviousAttemptWorkersRecovered``).

        May be called again after it failed, and after `stop`.

        Raises:
            DriverError: they cannot be known now.
        """

    @abstractmethod
    async def request_resource(self) -> ResourceID:
        """Begin to start a worker, and return its name without waiting for its TaskExecutor.

        Raises:
            NoWorkerLeft: there is no other.
            DriverError: it could not be started.
        """

    @abstractmethod
    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Stop a worker; idempotent. Returns whether it is stopped: False for one that this driver did not start.

        Raises:
            DriverError: it is not known whether it is stopped.
        """

    def hindrance(self) -> str:
        """Why a worker that was asked for takes long, where that is known; otherwise empty."""
        return ""

    @abstractmethod
    async def stop(self) -> None:
        """Watch the workers no more, and leave them to the next leader."""
