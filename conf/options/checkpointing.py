"""Options of checkpoints, savepoints and the state of streaming queries."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import ClusterOptions
from conf.values import Choice, Duration, FilePath, Integer

if TYPE_CHECKING:
    from conf.configuration import Configuration


class StateBackend(Enum):
    """What keeps the state of stateful operators while a query runs."""

    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


class ExternalizedCheckpointRetention(Enum):
    """What becomes of a job's completed checkpoints at its end (Flink's enumeration of that name)."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"


def _checkpoints_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.SHARED_DIR) / "checkpoints"


def _savepoints_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.SHARED_DIR) / "savepoints"


class CheckpointingOptions:
    """Checkpoints and savepoints of streaming queries. A checkpoint that fails costs a running query nothing: its live
    state is whole without it; so, unlike in Flink, no number of failed ones fails a job unless that is set."""

    INTERVAL = option(
        "execution.checkpointing.interval",
        Duration("30 s", minimum=0.1),
        None,
        "How often a job with streaming queries is checkpointed; unset: only when somebody asks for it.",
    )
    MIN_PAUSE = option(
        "execution.checkpointing.min-pause",
        Duration("5 s"),
        "0 s",
        "The least time from the end of a checkpoint to the beginning of the next periodic one; where it is not 0, one "
        "checkpoint is under way at a time.",
    )
    TIMEOUT = option(
        "execution.checkpointing.timeout",
        Duration("10 min", minimum=0.1),
        "10 min",
        "A checkpoint or savepoint that is not complete after this time is given up.",
    )
    MAX_CONCURRENT = option(
        "execution.checkpointing.max-concurrent-checkpoints",
        Integer(1, 100, example="1"),
        "1",
        "How many checkpoints of a job may be under way at once; savepoints are not counted.",
    )
    TOLERABLE_FAILURES = option(
        "execution.checkpointing.tolerable-failed-checkpoints",
        Integer(0, example="3"),
        None,
        "How many checkpoints in a row may fail before the job fails; unset: any number (Flink's default is 0).",
    )
    NUM_RETAINED = option(
        "execution.checkpointing.num-retained",
        Integer(1, 1000, example="3"),
        "1",
        "How many completed checkpoints of a job are kept; beyond it the oldest are removed.",
        fallback_keys=("state.checkpoints.num-retained",),
    )
    RETENTION = option(
        "execution.checkpointing.externalized-checkpoint-retention",
        Choice(ExternalizedCheckpointRetention),
        "NO_EXTERNALIZED_CHECKPOINTS",
        "Which completed checkpoints outlive their job, for `understudy job run --from`: with `RETAIN_ON_CANCELLATION` "
        "those of a job that was cancelled or failed, with `DELETE_ON_CANCELLATION` of one that failed, otherwise "
        "none. Those of a job that finished are removed.",
    )
    CHECKPOINTS_DIR = computed_option(
        "execution.checkpointing.dir",
        FilePath("/data/checkpoints"),
        _checkpoints_dir,
        "<cluster.shared-dir>/checkpoints",
        "Where checkpoints are. On the file system of the queries' checkpointLocations they are hard links and cost no "
        "room; elsewhere they are copies.",
        fallback_keys=("state.checkpoints.dir",),
    )
    SAVEPOINT_DIR = computed_option(
        "execution.checkpointing.savepoint-dir",
        FilePath("/data/savepoints"),
        _savepoints_dir,
        "<cluster.shared-dir>/savepoints",
        "Where savepoints are made that are asked for without a directory.",
        fallback_keys=("state.savepoints.dir",),
    )
    STATE_BACKEND = option(
        "state.backend.type",
        Choice(StateBackend),
        "hashmap",
        "What keeps the state of streaming queries: `hashmap`, in the driver's heap (Spark's "
        "`HDFSBackedStateStoreProvider`), or `rocksdb`, on its disk, with changelogs as incremental checkpoints "
        "(`RocksDBStateStoreProvider`). Settings under `spark.sql.streaming.stateStore` come first.",
        deprecated_keys=("state.backend",),
    )
