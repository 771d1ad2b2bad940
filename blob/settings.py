"""Limits and statistics of a blob server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from conf.option import ConfigOption
from conf.options import BlobOptions

T = TypeVar("T")


def _default(option: ConfigOption[T]) -> T:
    """Return the default of an option that has one."""
    assert option.default is not None
    return option.default


@dataclass(frozen=True, slots=True)
class BlobServerOptions:
    """The server's limits; the defaults are those of the cluster's options.

    Args:
        max_connections: connections served at once; further ones wait until one ends or has idled for a second.
        backlog: connections that may wait.
        timeout: seconds without a byte, or between two requests, after which the server drops a client.
        transient_ttl: seconds after its last use when a transient blob is deleted.
        cleanup_interval: seconds between two checks for expired blobs.
        max_bytes: most bytes held in total; None for no limit.
        max_bytes_per_job: most bytes held of one job; None for no limit.
        disk_reserve: bytes that stay free on the disk.
        orphan_age: seconds after their last use when the blobs of an unknown job may be swept.
        resume_window: seconds for which an interrupted upload of 4 MiB or more can resume where it broke.
    """

    max_connections: int = _default(BlobOptions.MAX_CONNECTIONS)
    backlog: int = 1000
    timeout: float = _default(BlobOptions.SERVER_SOCKET_TIMEOUT)
    transient_ttl: float = _default(BlobOptions.CLEANUP_TTL)
    cleanup_interval: float = _default(BlobOptions.CLEANUP_INTERVAL)
    max_bytes: int | None = BlobOptions.SERVER_MAX_SIZE.default
    max_bytes_per_job: int | None = BlobOptions.JOB_MAX_SIZE.default
    disk_reserve: int = _default(BlobOptions.DISK_RESERVE)
    orphan_age: float = _default(BlobOptions.CLEANUP_TTL)
    resume_window: float = 60.0


@dataclass(frozen=True, slots=True)
class BlobServerStats:
    """Statistics since the start of the server, and present values.

    Present values are *connections*, *total_bytes* (including running uploads), *owners* (jobs with blobs; all blobs
    without a job count as one), and *parked_uploads* (interrupted uploads that can still resume).
    """

    connections: int
    total_bytes: int
    owners: int
    parked_uploads: int
    puts: int
    gets: int
    deletes: int
    refusals: int
    bytes_received: int
    bytes_sent: int
