"""Settings of a job's checkpoints (Flink's `CheckpointCoordinatorConfiguration`)."""

from __future__ import annotations

from dataclasses import dataclass

from conf.configuration import Configuration
from conf.options import CheckpointingOptions
from conf.options.checkpointing import ExternalizedCheckpointRetention
from runtime.protocol.execution_state import JobStatus


@dataclass(frozen=True, slots=True)
class CheckpointCoordinatorConfiguration:
    """Settings of a job's checkpoints; durations are in seconds.

    Args:
        interval_s: time between the beginnings of two periodic checkpoints; None for no periodic checkpoints.
        min_pause_s: the least time from the end of a checkpoint to the next periodic one.
        timeout_s: a checkpoint that takes longer is aborted.
        max_concurrent: how many checkpoints may be in progress at a time; savepoints are not counted.
        tolerable_failures: how many checkpoints may fail in a row before the job fails; None for any number.
        retention: which completed checkpoints outlive the job.
    """

    interval_s: float | None = None
    min_pause_s: float = 0.0
    timeout_s: float = 600.0
    max_concurrent: int = 1
    tolerable_failures: int | None = None
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    @classmethod
    def of(cls, configuration: Configuration) -> CheckpointCoordinatorConfiguration:
        """Read the settings from the cluster's configuration."""
        get = configuration.get
        interval_s = get(CheckpointingOptions.INTERVAL)
        min_pause_s = get(CheckpointingOptions.MIN_PAUSE)
        return cls(
            interval_s or None,
            min_pause_s,
            get(CheckpointingOptions.TIMEOUT),
            # A pause after each checkpoint leaves room for one at a time only, as in Flink.
            1 if min_pause_s else get(CheckpointingOptions.MAX_CONCURRENT),
            get(CheckpointingOptions.TOLERABLE_FAILURES),
            get(CheckpointingOptions.RETENTION),
        )

    def retains(self, status: JobStatus) -> bool:
        """Return whether completed checkpoints outlive a job that ends so (Flink's `CheckpointProperties`)."""
        if status is JobStatus.CANCELED:
            return self.retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        return (
            status is JobStatus.FAILED
            and self.retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        )
