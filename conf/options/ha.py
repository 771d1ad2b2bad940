"""Options of high availability."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.options.cluster import ClusterOptions
from conf.values import Duration, FilePath, SecretUrl

if TYPE_CHECKING:
    from conf.configuration import Configuration


def _storage_dir(configuration: Configuration) -> Path:
    return configuration.get(ClusterOptions.RUNTIME_DIR) / "ha"


class HighAvailabilityOptions:
    """Leader latches and the recovery of jobs. Redis holds the latches and small handles; state lies in files."""

    REDIS_URL = option(
        "high-availability.redis.url",
        SecretUrl(("redis", "rediss", "unix"), "redis://:password@127.0.0.1:6379/0"),
        None,
        "The Redis to use. Unset: the cluster starts a redis-server of its own, reachable only by its user. A password "
        "in it is never shown; give it in a file of mode 0600, not with `-D`, which every user of the machine can see.",
    )
    STORAGE_DIR = computed_option(
        "high-availability.storageDir",
        FilePath("/mnt/shared/understudy/ha"),
        _storage_dir,
        "<cluster.runtime-dir>/ha",
        "The directory for the state whose handles are in Redis. Masters on several machines need a shared one.",
    )
    LEASE = option(
        "high-availability.lease",
        Duration("3 s", minimum=0.1),
        "3 s",
        "How long a leader's latch holds without being renewed: how long it takes at most to replace a dead one.",
    )
