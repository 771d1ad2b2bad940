"""Limits and statistics of a blob server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlobServerOptions:
    """The server's limits.

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

    max_connections: int = 50
    backlog: int = 1000
    timeout: float = 30.0
    transient_ttl: float = 3600.0
    cleanup_interval: float = 60.0
    max_bytes: int | None = None
    max_bytes_per_job: int | None = None
    disk_reserve: int = 256 * 1024 * 1024
    orphan_age: float = 3600.0
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
