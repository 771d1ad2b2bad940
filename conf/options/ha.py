"""Options of high availability."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import ClusterOptions
from conf.values import Choice, Duration, FilePath, MemorySize, SecretUrl

if TYPE_CHECKING:
    from conf.configuration import Configuration


def _storage_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.SHARED_DIR) / "ha"


class HighAvailabilityMode(Enum):
    """Who keeps leader latches and handles (Flink's ``HighAvailabilityMode``)."""

    REDIS = "redis"
    NONE = "none"


class HighAvailabilityOptions:
    """Leader latches and the recovery of jobs. Redis holds latches, handles and small states; others lie in files."""

    TYPE = option(
        "high-availability.type",
        Choice(HighAvailabilityMode),
        "redis",
        "`redis`: latches and handles are in Redis, and outlive every process of the cluster. `none`: no Redis at all, "
        "the master keeps them in memory; any other process is still replaced without its jobs noticing, but with the "
        "master all jobs are lost, and there can be only one master.",
    )

    REDIS_URL = option(
        "high-availability.redis.url",
        SecretUrl(
            ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"), "redis://:password@127.0.0.1:6379/0"
        ),
        None,
        "The Redis to use. Unset: the cluster starts a redis-server of its own, reachable only by its user. With "
        "Sentinel: `redis+sentinel://:password@host:26379,other:26379/service/0`; the Sentinels' own password, if they "
        "have one, is `?sentinel-password=...`. A password "
        "in it is never shown; give it in a file of mode 0600, not with `-D`, which every user of the machine can see.",
    )
    STORAGE_DIR = computed_option(
        "high-availability.storageDir",
        FilePath("/mnt/shared/understudy/ha"),
        _storage_dir,
        "<cluster.shared-dir>/ha",
        "The directory for the state whose handles are in Redis. Masters on several machines need a shared one.",
    )
    MEMORY_THRESHOLD = option(
        "high-availability.memory-threshold",
        MemorySize("20 kb", maximum=1 << 20),
        "20 kb",
        "Job graphs, execution states and checkpoints of at most this size are kept in Redis with their handles, which "
        "takes one flush of a disk where a file takes three (as Flink's `state.storage.fs.memory-threshold`). `0 b`: "
        "all are in files below `high-availability.storageDir`.",
    )
    LEASE = option(
        "high-availability.lease",
        Duration("3 s", minimum=0.1),
        "3 s",
        "How long a leader's latch holds without being renewed: how long it takes at most to replace a dead one.",
    )
