"""Options of checkpoints, savepoints and the state of streaming queries."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import ClusterOptions
from conf.values import Choice, Duration, FilePath, Integer, Text

if TYPE_CHECKING:
    from conf.configuration import Configuration


class StateBackend(Enum):
    """Store of the state of stateful operators while a query runs."""

    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


class ExternalizedCheckpointRetention(Enum):
    """Treatment of a job's completed checkpoints at its end (Flink's enumeration of that name)."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"


def _checkpoints_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.SHARED_DIR) / "checkpoints"


def _savepoints_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.SHARED_DIR) / "savepoints"


class CheckpointingOptions:
    """Checkpoints and savepoints of streaming queries.

    A failed checkpoint does not affect a running query, whose live state is complete without it. So, unlike in Flink,
    failed checkpoints do not fail a job by default.
    """

    INTERVAL = option(
        "execution.checkpointing.interval",
        Duration("30 s", minimum=0.1),
        None,
        "Time between two periodic checkpoints of a job with streaming queries. Unset: checkpoints only on request.",
    )
    MIN_PAUSE = option(
        "execution.checkpointing.min-pause",
        Duration("5 s"),
        "0 s",
        "Least time from the end of a checkpoint to the start of the next periodic one. Unless it is 0, only one "
        "checkpoint runs at a time.",
    )
    TIMEOUT = option(
        "execution.checkpointing.timeout",
        Duration("10 min", minimum=0.1),
        "10 min",
        "Time after which an incomplete checkpoint or savepoint fails.",
    )
    MAX_CONCURRENT = option(
        "execution.checkpointing.max-concurrent-checkpoints",
        Integer(1, 100, example="1"),
        "1",
        "Most checkpoints of a job that run at once, not counting savepoints.",
    )
    TOLERABLE_FAILURES = option(
        "execution.checkpointing.tolerable-failed-checkpoints",
        Integer(0, example="3"),
        None,
        "Number of successive checkpoints that may fail before the job fails. Unset: any number (Flink's default is "
        "0).",
    )
    NUM_RETAINED = option(
        "execution.checkpointing.num-retained",
        Integer(1, 1000, example="3"),
        "1",
        "Number of completed checkpoints to keep for each job; older ones are removed.",
        fallback_keys=("state.checkpoints.num-retained",),
    )
    RETENTION = option(
        "execution.checkpointing.externalized-checkpoint-retention",
        Choice(ExternalizedCheckpointRetention),
        "NO_EXTERNALIZED_CHECKPOINTS",
        "Completed checkpoints to keep after the end of their job, for `understudy job run --from`. "
        "`RETAIN_ON_CANCELLATION` keeps those of cancelled and failed jobs, `DELETE_ON_CANCELLATION` those of failed "
        "jobs, `NO_EXTERNALIZED_CHECKPOINTS` none. Checkpoints of finished jobs are always removed.",
    )
    CHECKPOINTS_DIR = computed_option(
        "execution.checkpointing.dir",
        FilePath("/data/checkpoints"),
        _checkpoints_dir,
        "<cluster.shared-dir>/checkpoints",
        "Directory of checkpoints. On the file system of the queries' checkpointLocations they are hard links, which "
        "take no space; elsewhere they are copies.",
        fallback_keys=("state.checkpoints.dir",),
    )
    SAVEPOINT_DIR = computed_option(
        "execution.checkpointing.savepoint-dir",
        FilePath("/data/savepoints"),
        _savepoints_dir,
        "<cluster.shared-dir>/savepoints",
        "Directory of savepoints that are requested without a directory.",
        fallback_keys=("state.savepoints.dir",),
    )
    SAVEPOINT_URL = option(
        "execution.checkpointing.savepoint-url",
        Text(
            "s3://bucket/savepoints",
            r"(?!file:|local:)[a-z][a-z0-9+.-]*://([^\s/?#:@]+@)?[^\s/?#@]+(/[^\s?#]*)?",
            "a URL with its scheme and its host or bucket, and no password, such as s3://bucket/savepoints",
        ),
        None,
        "URL of a directory in a file system that fsspec knows (`s3://`, `hdfs://`, `ftp://`, ...). Savepoints that "
        "are requested without a directory are made there. Requests over HTTP may name URLs below it, and no "
        "others. Its plug-in must be installed on every machine; credentials are not part of it. Unset: "
        "`execution.checkpointing.savepoint-dir`.",
    )
    STATE_BACKEND = option(
        "state.backend.type",
        Choice(StateBackend),
        "hashmap",
        "Store of the state of streaming queries. `hashmap` keeps it in the driver's heap (Spark's "
        "`HDFSBackedStateStoreProvider`). `rocksdb` keeps it on the driver's disk, with changelogs as incremental "
        "checkpoints (`RocksDBStateStoreProvider`), and can be rescaled and edited. A query keeps its first store; "
        "`understudy savepoint convert` moves its state into RocksDB. Settings under "
        "`spark.sql.streaming.stateStore` take precedence.",
        fallback_keys=("state.backend",),
    )
