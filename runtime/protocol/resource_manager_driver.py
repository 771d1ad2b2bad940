"""The interface that starts and stops workers (Flink's `ResourceManagerDriver` and `ResourceEventHandler`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from runtime.ids import ResourceID

OnTerminated = Callable[[ResourceID, str], None]
"""Called with the name of a worker that has ended without being released, and the reason in one line."""


class DriverError(Exception):
    """A worker could not be started, stopped or looked for. The text names the worker, the cause and the remedy."""


class NoWorkerLeft(DriverError):
    """The driver has a fixed number of workers, and all are started."""


class ResourceManagerDriver(ABC):
    """Starts and stops workers for the leading ResourceManager. All workers of a cluster are alike.

    A worker's name is its TaskExecutor's `ResourceID`. The driver does not check whether the TaskExecutor registers.
    """

    @abstractmethod
    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Start, and return the workers that an earlier leader left (Flink's ``onPreviousAttemptWorkersRecovered``).

        May be called again after it failed, and after `stop`.

        Raises:
            DriverError: they cannot be determined now.
        """

    @abstractmethod
    async def request_resource(self) -> ResourceID:
        """Begin to start a worker, and return its name without waiting for its TaskExecutor.

        Raises:
            NoWorkerLeft: all workers are started already.
            DriverError: it could not be started.
        """

    @abstractmethod
    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Stop a worker; idempotent. Returns whether it is stopped: False for one that this driver did not start.

        Raises:
            DriverError: it is unknown whether the worker is stopped.
        """

    def hindrance(self) -> str:
        """Return why a requested worker takes long to start; empty where that is not known."""
        return ""

    @abstractmethod
    async def stop(self) -> None:
        """Stop watching the workers, and leave them to the next leader."""
