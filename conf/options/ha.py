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
    """Store of leader latches and handles (Flink's ``HighAvailabilityMode``)."""

    REDIS = "redis"
    NONE = "none"


class HighAvailabilityOptions:
    """Leader latches and the recovery of jobs. Redis keeps latches, handles and small states; files keep the others."""

    TYPE = option(
        "high-availability.type",
        Choice(HighAvailabilityMode),
        "redis",
        "`redis`: latches and handles are in Redis, and outlive every process of the cluster. `none`: the master keeps "
        "them in memory, without Redis. Any other process is still replaced transparently for its jobs. But if the "
        "master fails, all jobs are lost, and the cluster can have only one master.",
    )

    REDIS_URL = option(
        "high-availability.redis.url",
        SecretUrl(
            ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"), "redis://:password@127.0.0.1:6379/0"
        ),
        None,
        "URL of the Redis to use. Unset: the cluster starts its own redis-server, which only its user can reach. With "
        "Sentinel: `redis+sentinel://:password@host:26379,other:26379/service/0`. A password of the Sentinels "
        "themselves is `?sentinel-password=...`. Understudy never shows a password in it. Set it in a file of mode "
        "0600, not with `-D`, which every user of the machine can see.",
    )
    STORAGE_DIR = computed_option(
        "high-availability.storageDir",
        FilePath("/mnt/shared/understudy/ha"),
        _storage_dir,
        "<cluster.shared-dir>/ha",
        "Directory of the states whose handles are in Redis. Masters on several machines need a shared directory.",
    )
    MEMORY_THRESHOLD = option(
        "high-availability.memory-threshold",
        MemorySize("20 kb", maximum=1 << 20),
        "20 kb",
        "Largest job graphs, execution states and checkpoints that Redis keeps with their handles. That takes one disk "
        "flush, where a file takes three (as with Flink's `state.storage.fs.memory-threshold`). `0 b`: all are in "
        "files below `high-availability.storageDir`.",
    )
    LEASE = option(
        "high-availability.lease",
        Duration("3 s", minimum=0.1),
        "3 s",
        "Time after which an unrenewed leader latch expires. It takes at most this time to replace a dead leader.",
    )
