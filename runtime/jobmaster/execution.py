"""One attempt to run a task (Flink's `Execution`), and the task with all its attempts (`ExecutionVertex`)."""

from __future__ import annotations

from collections import deque

from runtime.ids import ExecutionAttemptID, JobVertexID, ResourceID, SlotRequestID
from runtime.job_logs import KeptLog
from runtime.jobgraph.topology import Chain
from runtime.jobmaster.descriptor import ResultPartitionInfo, VertexProgress
from runtime.jobmaster.execution_state import ErrorInfo, ExecutionState, check_execution_transition
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.jobmaster.streaming_query import StreamingQuery

ATTEMPT_HISTORY = 16
"""How many attempts of a task are kept (Flink's ``jobmanager.execution.attempts-history-size``)."""


class Execution:
    """One attempt: its state, when it entered each, its slot, its end.

    Args:
        attempt_id: its id.
        number: 0 for the first attempt of the task.
        now_ms: when it was created, in milliseconds since the epoch.
    """

    __slots__ = (
        "attempt_id",
        "error",
        "exit_status",
        "logs",
        "number",
        "partitions",
        "progress",
        "queries",
        "request_id",
        "slot",
        "state",
        "timestamps",
        "waiting_for",
    )

    def __init__(self, attempt_id: ExecutionAttemptID, number: int, now_ms: int) -> None:
        self.attempt_id = attempt_id
        self.number = number
        self.state = ExecutionState.CREATED
        self.timestamps: dict[ExecutionState, int] = {ExecutionState.CREATED: now_ms}
        self.request_id: SlotRequestID | None = None
        self.slot: AllocatedSlot | None = None
        self.error: ErrorInfo | None = None
        self.exit_status: int | None = None
        self.logs: tuple[KeptLog, ...] = ()
        self.partitions: tuple[ResultPartitionInfo, ...] = ()
        self.waiting_for = ""
        self.progress: dict[JobVertexID, VertexProgress] = {}
        self.queries: tuple[StreamingQuery, ...] = ()

    def transition(self, target: ExecutionState, now_ms: int) -> None:
        """Enter *target*; raises `IllegalStateTransition` when it cannot follow the present state."""
        check_execution_transition(self.state, target)
        self.state = target
        self.timestamps[target] = now_ms

    def was_seen_at(self, resource_id: ResourceID) -> bool:
        """Whether that TaskExecutor has reported the attempt, and its end has not been reported."""
        started = ExecutionState.INITIALIZING in self.timestamps or ExecutionState.RUNNING in self.timestamps
        here = self.slot is not None and self.slot.slot_id.resource_id == resource_id
        return here and started and not self.state.is_terminal

    def is_expected_at(self, resource_id: ResourceID) -> bool:
        """Whether a former JobMaster had decided to deploy it there, and nothing was heard of it since."""
        here = self.slot is not None and self.slot.slot_id.resource_id == resource_id
        awaited = self.state is ExecutionState.RECONCILING or (
            self.state is ExecutionState.CANCELING and ExecutionState.RECONCILING in self.timestamps
        )
        return here and awaited


class Task:
    """A chain of vertices that runs as one, with its present attempt and the former ones.

    Args:
        chain: its vertices.
        first: its first attempt.
    """

    __slots__ = ("attempts", "chain", "consumers", "restarting", "retried")

    def __init__(self, chain: Chain, first: Execution) -> None:
        self.chain = chain
        self.attempts: deque[Execution] = deque([first], maxlen=ATTEMPT_HISTORY)
        self.consumers: tuple[JobVertexID, ...] = ()
        self.restarting = False
        """It belongs to a region whose restart is scheduled: what it has made does not count, nor is it deployed."""
        self.retried = 0
        """How many of its vertices' own retries are used up."""

    @property
    def current(self) -> Execution:
        """The present attempt."""
        return self.attempts[-1]

    @property
    def is_finished(self) -> bool:
        """Its result is there and stays."""
        return not self.restarting and self.current.state is ExecutionState.FINISHED

    @property
    def is_active(self) -> bool:
        """Its present attempt has begun and has not ended."""
        state = self.current.state
        return state is not ExecutionState.CREATED and not state.is_terminal
