"""Going back: a running job is restarted from one of its checkpoints or savepoints, in its own place.

What Flink does by cancelling a job and running it again from an older checkpoint is here one step, which is written
down before anything of it happens: from then on the tasks' attempts begin from there, whoever leads, until a
checkpoint is complete that was taken after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.files import list_files, remove_tree, take_files
from runtime.checkpoint.messages import CheckpointMetadata, JobManagerTaskRestore
from runtime.checkpoint.model import QuerySnapshot
from runtime.checkpoint.restore import check_sink
from runtime.checkpoint.retained import PREFIX, is_checkpoint, open_checkpoint, read_checkpoint
from runtime.checkpoint.savepoint import open_savepoint, read_savepoint
from runtime.ids import JobID, JobVertexID, TriggerID

_NUMBER = re.compile(rf"(?:{PREFIX})?([0-9]{{1,18}})")
_PINNED = "rollback-"


@dataclass(frozen=True, slots=True)
class Rollback:
    """That a job has gone back.

    Args:
        trigger_id: of the wish.
        path: the directory that keeps what it has gone back to.
        shown: where that was when it was asked for.
        new_query_id: whether the queries get new ids.
        after: the number of the last checkpoint that may have been taken before: a later one stands for itself.
    """

    trigger_id: TriggerID
    path: str
    shown: str
    new_query_id: bool
    after: int = 0


@dataclass(frozen=True, slots=True)
class _TakenUp:
    """A rollback, and the queries by their tasks; those of a savepoint, which does not know the tasks, under None."""

    rollback: Rollback
    checkpoint_id: int = 0
    queries: dict[JobVertexID | None, tuple[QuerySnapshot, ...]] = field(default_factory=dict)


class JobRollbacks:
    """The last rollback of one job, and what its tasks are given for it.

    Args:
        job_id: the job.
        directory: of the job's checkpoints.
    """

    def __init__(self, job_id: JobID, directory: Path) -> None:
        self._job_id = job_id
        self._directory = directory
        self._taken_up: _TakenUp | None = None

    @property
    def last(self) -> Rollback | None:
        """What a successor has to know."""
        return None if self._taken_up is None else self._taken_up.rollback

    def prepare(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> Rollback:
        """See that the job can go back there, and see to it that what it goes back to stays. Blocks.

        Args:
            trigger_id: of the wish.
            target: ``chk-<number>`` or the number of one of the job's checkpoints, or a savepoint's directory.
            new_query_id: see `Rollback`.

        Raises:
            CheckpointError: it is no such thing, not whole, cannot be kept, or the file sink has lost files that it
                counts on.
        """
        number = _NUMBER.fullmatch(target)
        path = self._directory / f"{PREFIX}{number[1]}" if number else Path(target)
        if is_checkpoint(path):
            state = open_checkpoint(path)
            owner, queries = state.job_id, state.queries
        else:
            savepoint = open_savepoint(path)
            owner, queries = JobID(savepoint.job.id), tuple(query.snapshot for query in savepoint.queries)
        if owner != self._job_id:
            raise SavepointError(
                f"{path} is of job {owner}, and not of job {self._job_id}",
                "a job goes back to what is its own; begin another one with `job run --from`",
            )
        for query in queries:
            if query.sink is not None:
                check_sink(query, Path(query.sink), Path(query.sink))
        return Rollback(trigger_id, str(self._pin(path, trigger_id)), str(path), new_query_id)

    def _pin(self, path: Path, trigger_id: TriggerID) -> Path:
        """Links to it: it may be subsumed, or disposed of, before all tasks have gone back."""
        pinned = self._directory / f"{_PINNED}{trigger_id[:12]}"
        try:
            remove_tree(pinned)
            take_files(path, list_files(path), pinned)
        except OSError as error:
            raise SnapshotError(f"{path} cannot be kept for going back to it: {error}") from error
        if is_checkpoint(pinned):
            open_checkpoint(pinned)  # it may have been subsumed a moment ago, and be on its way out
        return pinned

    def take_up(self, rollback: Rollback, latest_id: int = 0) -> None:
        """It has been decided on, here or by a former JobMaster. Blocks; raises CheckpointError, OSError.

        *latest_id* is the number of the last completed checkpoint: of what it stands for nothing is needed any more.
        """
        path = Path(rollback.path)
        if latest_id > rollback.after:
            self._taken_up = _TakenUp(rollback)
        elif is_checkpoint(path):
            state = read_checkpoint(path)
            queries: dict[JobVertexID | None, tuple[QuerySnapshot, ...]] = {
                task.task_key: task.queries for task in state.tasks
            }
            self._taken_up = _TakenUp(rollback, state.checkpoint_id, queries)
        else:
            kept = tuple(query.snapshot for query in read_savepoint(path).queries)
            self._taken_up = _TakenUp(rollback, 0, {None: kept})

    def forget_former(self) -> None:
        """Remove the links of former rollbacks, once the last one is written down. Blocks; raises OSError."""
        for pinned in self._directory.glob(f"{_PINNED}*"):
            if self.last is not None and pinned != Path(self.last.path):
                remove_tree(pinned)

    def restore(self, task_key: JobVertexID, latest: CheckpointMetadata | None) -> JobManagerTaskRestore | None:
        """What a task begins with for the last rollback; None where a checkpoint stands for itself since.

        Args:
            task_key: the task.
            latest: the last completed checkpoint. It says whose the queries of a savepoint are.
        """
        taken_up, rollback = self._taken_up, self.last
        if taken_up is None or rollback is None or (latest is not None and latest.checkpoint_id > rollback.after):
            return None
        queries = taken_up.queries.get(task_key, ())
        if None in taken_up.queries:
            own = [task.queries for task in latest.tasks if task.task_key == task_key] if latest else []
            names = {query.name for of_task in own for query in of_task}
            queries = tuple(query for query in taken_up.queries[None] if latest is None or query.name in names)
        return JobManagerTaskRestore(
            taken_up.checkpoint_id,
            queries,
            rollback.path,
            allow_non_restored_state=True,
            rollback=rollback.trigger_id,
            new_query_id=rollback.new_query_id,
        )
