"""The savepoints of one job: written, found again, and read. Everything here blocks."""

from __future__ import annotations

import shutil
from pathlib import Path

from conf.configuration import Configuration
from conf.options import CheckpointingOptions
from runtime.checkpoint.messages import CheckpointMetadata, CheckpointTrigger, JobManagerTaskRestore
from runtime.checkpoint.retained import is_checkpoint, open_checkpoint
from runtime.checkpoint.savepoint import SavepointJob, open_savepoint, read_savepoint, write_savepoint
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings


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
        return parent / f"savepoint-{self._job.job_id[:6]}-{trigger.trigger_id[:12]}"

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

    def write(self, trigger: CheckpointTrigger, metadata: CheckpointMetadata) -> str:
        """Make a savepoint of what has been snapshotted; returns its directory. Raises CheckpointError, OSError."""
        path = self.path_of(trigger)
        part = path.with_name(f".{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a JobMaster that was killed in it
        try:
            made = write_savepoint(part, SavepointJob(self._job.job_id, self._job.name), metadata.queries)
            Path(made.path).rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return str(path)

    @staticmethod
    def read(settings: SavepointRestoreSettings) -> JobManagerTaskRestore:
        """What a job begins from, verified; raises CheckpointError where it is neither savepoint nor checkpoint, or a
        damaged one."""
        if is_checkpoint(Path(settings.path)):
            kept = open_checkpoint(Path(settings.path))
            return JobManagerTaskRestore(
                kept.checkpoint_id, kept.queries, settings.path, settings.allow_non_restored_state
            )
        savepoint = open_savepoint(Path(settings.path))
        queries = tuple(query.snapshot for query in savepoint.queries)
        return JobManagerTaskRestore(0, queries, settings.path, settings.allow_non_restored_state)
