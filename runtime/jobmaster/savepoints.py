"""The savepoints of one job: written, found again, and read. Everything here blocks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from conf.configuration import Configuration
from conf.options import CheckpointingOptions
from runtime.checkpoint.files import rename_durably
from runtime.checkpoint.messages import CheckpointMetadata, CheckpointTrigger, JobManagerTaskRestore
from runtime.checkpoint.names import savepoint_name
from runtime.checkpoint.retained import is_checkpoint, open_checkpoint
from runtime.checkpoint.savepoint import SavepointJob, open_savepoint, read_savepoint, write_savepoint
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings

_PART = ".part"


class SavepointWriter:
    """Savepoints by their triggers: the directory's name is made of the trigger id, so that one that was written by a
    JobMaster that did not live to say so is found by its successor.

    Args:
        job: the job.
        configuration: the cluster's.
    """

    def __init__(self, job: JobGraph, configuration: Configuration) -> None:
        self._job = job
        self._default = configuration.get(CheckpointingOptions.SAVEPOINT_DIR)

    def path_of(self, trigger: CheckpointTrigger) -> Path:
        """The directory that a savepoint gets."""
        parent = Path(trigger.target) if trigger.target else self._default
        return parent / savepoint_name(self._job.job_id, trigger.trigger_id)

    def find(self, trigger: CheckpointTrigger) -> str:
        """Where the savepoint of that trigger lies, whole; empty where there is none."""
        path = self.path_of(trigger)
        if not trigger.type.is_savepoint:
            return ""
        try:
            if not path.is_dir():
                return ""
        except OSError:  # nobody may look there, or the name is too long: what writes it says so
            return ""
        read_savepoint(path)
        return str(path)

    def copy(
        self, trigger: CheckpointTrigger, metadata: CheckpointMetadata, epoch: int, wanted: Callable[[], bool]
    ) -> Path:
        """Copy what has been snapshotted into a directory that `publish` makes the savepoint.

        Its name has the epoch, so that JobMasters of several epochs never touch each other's. What earlier ones were
        writing for the same trigger is taken away first: whoever of them stands still cannot publish it any more.

        Args:
            trigger: of the savepoint.
            metadata: of the checkpoint that was taken for it.
            epoch: of the JobMaster.
            wanted: whether it still is when all is copied; otherwise it is removed.

        Returns:
            the directory; hidden, beside the place of the savepoint.

        Raises:
            CheckpointError, OSError: it cannot be written. Nothing is left of it.
        """
        path = self.path_of(trigger)
        part = path.with_name(f".{path.name}.{epoch}{_PART}")
        for other in path.parent.glob(f".{path.name}.*{_PART}"):
            number = other.name.removeprefix(f".{path.name}.").removesuffix(_PART)
            if number.isdecimal() and int(number) <= epoch:
                _take_away(other)
        try:
            made = Path(write_savepoint(part, SavepointJob(self._job.job_id, self._job.name), metadata.queries).path)
        except BaseException:
            _remove(part)
            raise
        if not wanted():
            _remove(part)
        return made

    def publish(self, trigger: CheckpointTrigger, made: Path) -> str:
        """Make a savepoint of what `copy` has returned, in one step; only while the JobMaster leads. Raises OSError."""
        path = self.path_of(trigger)
        try:
            rename_durably(made, path)
        finally:
            self.discard(made)
        return str(path)

    @staticmethod
    def discard(made: Path) -> None:
        """Remove what `copy` has returned."""
        _remove(made.parent)

    @staticmethod
    def read(settings: SavepointRestoreSettings) -> tuple[JobID, JobManagerTaskRestore]:
        """Return what a job begins from, verified, and the job that it was taken of.

        Raises:
            CheckpointError: it is neither savepoint nor checkpoint, or a damaged one.
        """
        path = Path(settings.path)
        checkpoint_id = 0
        if is_checkpoint(path):
            kept = open_checkpoint(path)
            owner, checkpoint_id, queries = kept.job_id, kept.checkpoint_id, kept.queries
        else:
            savepoint = open_savepoint(path)
            owner, queries = JobID(savepoint.job.id), tuple(query.snapshot for query in savepoint.queries)
        return owner, JobManagerTaskRestore(
            checkpoint_id,
            queries,
            settings.path,
            settings.allow_non_restored_state,
            new_query_id=settings.new_query_id,
        )


def _take_away(part: Path) -> None:
    """Remove a directory that another process may be writing into, or about to rename: its name goes in one step."""
    gone = part.with_name(f"{part.name}.{os.urandom(4).hex()}")
    try:
        part.rename(gone)
    except FileNotFoundError:
        return
    _remove(gone)


def _remove(directory: Path) -> None:
    """As far as that is possible: what is left is hidden, and is no savepoint."""
    shutil.rmtree(directory, ignore_errors=True)
