"""A checkpoint that is under way (Flink's `PendingCheckpoint`). Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from runtime.checkpoint.messages import AcknowledgeCheckpoint, CheckpointMetadata, CheckpointTrigger, TaskSnapshot
from runtime.checkpoint.model import QuerySnapshot
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID
from runtime.jobmaster.execution_state import Instant


@dataclass(frozen=True, slots=True)
class CheckpointTask:
    """A task that runs and takes part in checkpoints.

    Args:
        attempt_id: its present attempt.
        key: of the task.
        name: of the task.
        resource_id: the TaskExecutor where it runs.
    """

    attempt_id: ExecutionAttemptID
    key: JobVertexID
    name: str
    resource_id: ResourceID


@dataclass(frozen=True, slots=True)
class RunningTasks:
    """The tasks of a job at one moment.

    Args:
        tasks: those that run.
        are_ready: whether all that are deployed run; a checkpoint has to include them all.
        are_stateful: whether one of them has a streaming query, so that there is something to checkpoint.
    """

    tasks: tuple[CheckpointTask, ...] = ()
    are_ready: bool = False
    are_stateful: bool = False


class PendingCheckpoint:
    """One checkpoint until it is stored or aborted.

    Args:
        job_id: of the job.
        checkpoint_id: its number.
        trigger: what was wished for.
        tasks: who has to acknowledge it.
        directory: where its snapshots go.
        at: when it was triggered.
        since: when it was wished for.
    """

    def __init__(
        self,
        job_id: JobID,
        checkpoint_id: int,
        trigger: CheckpointTrigger,
        tasks: Collection[CheckpointTask],
        directory: str,
        at: Instant,
        since: Instant,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.trigger = trigger
        self.directory = directory
        self.triggered = at
        self.since = since
        self.notes: list[str] = []
        self.drained = True
        self.is_being_stored = False
        self._job_id = job_id
        self._tasks = {task.attempt_id: task for task in tasks}
        self._acknowledged: dict[ExecutionAttemptID, tuple[QuerySnapshot, ...]] = {}

    @property
    def tasks(self) -> tuple[CheckpointTask, ...]:
        """Who takes part."""
        return tuple(self._tasks.values())

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether all have acknowledged it."""
        return len(self._acknowledged) == len(self._tasks)

    @property
    def queries(self) -> tuple[QuerySnapshot, ...]:
        """What has been acknowledged so far."""
        return tuple(query for queries in self._acknowledged.values() for query in queries)

    def expects(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether that attempt takes part and has not acknowledged it yet."""
        return attempt_id in self._tasks and attempt_id not in self._acknowledged

    def takes_part(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether that attempt takes part."""
        return attempt_id in self._tasks

    def key_of(self, attempt_id: ExecutionAttemptID) -> JobVertexID:
        """The task of an attempt that takes part."""
        return self._tasks[attempt_id].key

    def missing_of(self, running: Collection[ExecutionAttemptID]) -> list[CheckpointTask]:
        """Those who have not acknowledged it and are not among *running* any more."""
        return [task for key, task in self._tasks.items() if key not in self._acknowledged and key not in running]

    def acknowledge(self, ack: AcknowledgeCheckpoint) -> None:
        """One has done its part."""
        self._acknowledged[ack.attempt_id] = ack.queries
        self.notes += ack.notes
        self.drained = self.drained and ack.drained

    def problem(self) -> str:
        """Why it cannot be completed although all have acknowledged it; empty where it can."""
        names = [query.name for query in self.queries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names:
            return "the job has no streaming query whose state could be kept"
        if twice:
            return (
                f"two tasks have a streaming query named {twice[0]!r}: give each a name of its own with queryName(), "
                "by which its state is found again"
            )
        return ""

    def metadata(self, completed_ms: int) -> CheckpointMetadata:
        """It as it is stored; to be called when all have acknowledged it."""
        tasks = tuple(
            TaskSnapshot(task.key, task.name, self._acknowledged[attempt]) for attempt, task in self._tasks.items()
        )
        return CheckpointMetadata(
            self._job_id, self.checkpoint_id, self.directory, self.triggered.epoch_ms, completed_ms, tasks
        )
