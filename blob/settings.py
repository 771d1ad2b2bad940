"""The limits of a blob server, and its figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlobServerOptions:
    """The server's limits.

    Args:
        max_connections: connections served at once; further ones wait until one ends or has idled for a second.
        backlog: connections that may wait.
        timeout: seconds without a byte, or between two requests, after which a client is dropped.
        transient_ttl: seconds after its last use at which a transient blob is deleted.
        cleanup_interval: seconds between two looks for such.
        max_bytes: most bytes held in all; None for no limit.
        max_bytes_per_job: most bytes held of one job; None for no limit.
        disk_reserve: bytes that stay free on the disk.
        orphan_age: seconds after its last use at which a job's blobs may be swept if nobody knows the job.
        resume_window: seconds for which an interrupted upload of 4 MiB or more may go on where it broke.
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
    """Figures since the start of the server, and of now.

    Of now: *connections*; *total_bytes*, with uploads under way; *owners*, the jobs that hold something, blobs without
    a job counted as one; *parked_uploads*, interrupted ones that may still go on.
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
