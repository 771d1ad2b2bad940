"""The state that a TaskExecutor leaves to its successor when it is exchanged while its tasks run.

The task processes, and the zygote that has forked them, stay as they are. The zygote keeps their control sockets and
the state below while no TaskExecutor lives (`runtime.spark.task.zygote`). The Spark driver stays with the worker's
process, which becomes that of the other release by `exec`. So neither has another parent for a moment.

`HandOver`, `obstacle_of` and `Leaving` are pure. `Predecessor` does the input and output of the successor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from actors.errors import WireError
from runtime.ids import AllocationID, JobID, SlotID
from runtime.jobgraph.codec import decode, encode
from runtime.protocol.descriptor import TaskDeploymentDescriptor, TaskExecutionState, VertexProgress
from runtime.protocol.execution_state import ExecutionState
from runtime.protocol.hand_over import READABLE, VERSION, Obstacle
from runtime.protocol.messages import LeaderAddress
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from runtime.protocol.streaming_query import StreamingQuery
from runtime.spark.driver.api import DriverInfo
from runtime.spark.errors import WireError as ControlError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint, JobPlace
from runtime.spark.task.zygote_client import HeldZygote, TaskProcess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldCheckpoints:
    """The part of an attempt in the checkpoints of its job; see `TaskCheckpoints`.

    Args:
        queries: that it has started.
        began_at: the last batch that each had committed when it started, by name.
        previous: the snapshot that the next one of each query builds upon.
        taken: snapshots of checkpoints whose outcome is not known, by number.
        restoring: names of queries whose state is being restored.
    """

    queries: tuple[QueryLocation, ...] = ()
    began_at: dict[str, int] = field(default_factory=dict)
    previous: tuple[QuerySnapshot, ...] = ()
    taken: dict[int, tuple[QuerySnapshot, ...]] = field(default_factory=dict)
    restoring: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldTask:
    """One running attempt.

    Args:
        descriptor: what it runs.
        state: that it has entered last.
        since_ms: when it entered that, in milliseconds since the epoch.
        pid: of its process.
        unread: bytes that its process has sent and no TaskExecutor has acted on.
        scheduler_pool: its job's pool in the fair scheduler of the driver.
        epoch: of the JobMaster that has deployed it.
        classic: its way into Spark, if it is a script.
        connect: its way into Spark, if it is a pipeline or a session.
        place: where its code runs; None: in the attempt's own directory.
        note: likely cause of a later failure.
        progress: Spark's counts.
        queries: that are active.
        seen_queries: all that it has had, with their last figures.
        stands_by: whether its code waits for the end of the job in whose place it starts.
        logs: sizes of the TaskExecutor's own logs when the attempt began, by name.
        checkpoints: its part in checkpoints.
        can_hold: see `TaskProcess.can_hold`.
    """

    descriptor: TaskDeploymentDescriptor
    state: TaskExecutionState
    since_ms: int
    pid: int
    unread: bytes
    scheduler_pool: str
    epoch: int
    classic: ClassicEndpoint | None = None
    connect: ConnectEndpoint | None = None
    place: JobPlace | None = None
    note: str = ""
    progress: tuple[VertexProgress, ...] = ()
    queries: tuple[StreamingQuery, ...] = ()
    seen_queries: tuple[StreamingQuery, ...] = ()
    stands_by: bool = False
    logs: dict[str, int] = field(default_factory=dict)
    checkpoints: HeldCheckpoints = HeldCheckpoints()  # frozen
    can_hold: bool = False

    @property
    def endpoint(self) -> ClassicEndpoint | ConnectEndpoint:
        """Return its way into Spark."""
        endpoint = self.classic or self.connect
        assert endpoint is not None  # as `Task.held` has made it
        return endpoint


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot that a job holds."""

    slot_id: SlotID
    job_id: JobID
    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class HandOver:
    """Everything that a successor has to know.

    Args:
        predecessors: addresses of the TaskExecutors that had these tasks, the last one last.
        driver_pid: process id of the Spark driver on which the tasks run.
        driver_start_time: start time of that process; with the pid it names the process.
        slots: those that jobs hold.
        job_masters: of the jobs that have slots.
        tasks: all of them.
        version: of this format.
    """

    predecessors: tuple[str, ...]
    driver_pid: int
    driver_start_time: int
    slots: tuple[HeldSlot, ...]
    job_masters: dict[JobID, LeaderAddress]
    tasks: tuple[HeldTask, ...]
    version: int = VERSION

    def encode(self) -> bytes:
        """Return it in the form in which it travels."""
        return encode(self)

    @classmethod
    def decode(cls, data: bytes) -> HandOver:
        """Return what a predecessor has left. Raises WireError: this release does not read it."""
        version = decode(data, _Versioned).version
        if version not in READABLE:
            raise WireError(f"it has version {version}, this release reads {', '.join(map(str, READABLE))}")
        return decode(data, cls)


@dataclass(frozen=True, slots=True)
class _Versioned:
    version: int


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Facts on which the decision about one task depends.

    Args:
        job_id: its job.
        state: that it has entered last.
        has_own_driver: whether it has a Spark driver to itself, which ends with the TaskExecutor.
        is_ending: whether it was cancelled or stopped, or has failed or finished.
        is_talking: whether an answer to its process, or of it, is outstanding.
        takes_checkpoint: whether a snapshot of it is being taken or acknowledged.
    """

    job_id: JobID
    state: ExecutionState
    has_own_driver: bool = False
    is_ending: bool = False
    is_talking: bool = False
    takes_checkpoint: bool = False


def obstacle_of(task: TaskFacts) -> Obstacle | None:
    """Return what keeps a task from being handed over; None for nothing."""

    def passing(reason: str) -> Obstacle:
        return Obstacle(reason, passes=True, job_id=task.job_id)

    if task.has_own_driver:
        return Obstacle("it has a Spark driver of its own, which ends with its TaskExecutor", job_id=task.job_id)
    if task.is_ending:
        return passing("a task of it is ending")
    if task.state is not ExecutionState.RUNNING:
        return passing(f"a task of it is {task.state.value}")
    if task.takes_checkpoint:
        return passing("it takes a checkpoint")
    if task.is_talking:
        return passing("a task of it waits for an answer")
    return None


@dataclass(frozen=True, slots=True)
class Leaving:
    """An order to leave all tasks to a successor, which a TaskExecutor has accepted.

    Args:
        waiting: the jobs whose JobMaster waits for the successor, each with the number of the registration that it
            had made when it was asked.
        tasks_end: when the tasks end without a successor, in seconds of the clock that runs through suspend.
        given_up: when the TaskExecutor keeps its tasks after all, in seconds of the same clock.
    """

    waiting: Mapping[JobID, int]
    tasks_end: float
    given_up: float

    def obstacle(self, found: Sequence[Obstacle], registrations: Mapping[JobID, int], now: float) -> Obstacle | None:
        """Return what keeps the TaskExecutor from leaving now; None for nothing.

        An obstacle that passes is worth another look. After any other one, the TaskExecutor keeps its tasks.

        Args:
            found: obstacles at this moment.
            registrations: those of all jobs that have slots. A JobMaster that has registered the TaskExecutor after the
                order does not wait.
            now: the time, of the clock of `tasks_end`.
        """
        for job_id, number in registrations.items():
            if self.waiting.get(job_id) != number:
                return Obstacle("its JobMaster does not wait for a successor", job_id=job_id)
        first = next((each for each in found if not each.passes), next(iter(found), None))
        return first if first is None or now < self.given_up else replace(first, passes=False)


class Predecessor:
    """The tasks that the former TaskExecutor of this worker has left. Call the methods that block on another thread.

    Args:
        directory: of the worker.
        driver: the Spark driver that the worker has now.
    """

    def __init__(self, directory: Path, driver: DriverInfo) -> None:
        self._directory = directory
        self._driver = driver
        self._held: list[HeldZygote] = []
        self.left: HandOver | None = None
        """State that it has left; None if there is none that fits."""

    def look(self) -> None:
        """Find what it has left, and end what cannot be adopted. Blocks."""
        for held in HeldZygote.find(self._directory):
            try:
                found = HandOver.decode(held.state)
                if (found.driver_pid, found.driver_start_time) != (self._driver.pid, self._driver.start_time):
                    raise WireError("their Spark driver has ended")
                if self.left is not None and found != self.left:
                    raise WireError("they were left before the others")
            except WireError as error:
                logger.warning("tasks of a predecessor end, they cannot be adopted: %s", error)
                held.discard()
            else:
                self.left = found
                self._held.append(held)

    def adopt(self) -> list[HeldZygote]:
        """Become the owner of its zygotes, and return them; the tasks of one that has ended have ended too. Blocks."""
        adopted = []
        for held in self._held:
            try:
                held.adopt()
            except (OSError, ControlError) as error:
                logger.warning("tasks of a predecessor end: %s", error)
                held.end()
            else:
                adopted.append(held)
        return adopted


def tasks_of(left: HandOver, processes: dict[int, TaskProcess]) -> Iterator[tuple[HeldTask, TaskProcess]]:
    """Yield the tasks whose process was adopted, which continues with what it has sent before."""
    for task in left.tasks:
        if (process := processes.get(task.pid)) is not None:
            process.feed(task.unread)
            yield task, process
