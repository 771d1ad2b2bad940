"""Leases of checkpointLocations: only one Spark driver at a time commits to a location.

The lease is a file lock beside the location, held by the Spark driver that commits there. Only such a lock lasts
exactly as long as the process that can commit. An entry in the high-availability store would need another process to
renew it, which may outlive the driver or die before it. And a driver asks no store before it commits. The file names
the holder; the kernel knows whether the lock is still held, and by which process.

The decisions are pure; `read_holder`, `lock_holder` and `may_be_written_to` read the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain
from conf.files import user_cache
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.remote_files import is_remote

SETTLE_S = 5.0
"""Seconds to wait for another job's lease: its holder may be about to end."""


_FLOCK = "hhqqi0q"
"""The kernel's ``struct flock``: type, whence, start, length, process."""


class LocationInUseError(CheckpointError):
    """Another job, or another attempt of this one, writes to a checkpointLocation."""


class LeaseUnknownError(CheckpointError):
    """Another process may write to a checkpointLocation: reading its lease has failed."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """An attempt that holds or wants a lease.

    Args:
        job_id: its job.
        job_name: name of the job.
        task_key: its task.
        attempt_id: its id.
        attempt_number: of the attempt, from 0.
        driver_pid: process id of its Spark driver.
        host: address of its machine; empty in files of earlier versions.
        epoch: of the JobMaster that has deployed it; 0 if that is not known. It tells jobs apart that had one id in
            turn, whose attempts are counted anew.
    """

    job_id: str
    job_name: str
    task_key: str
    attempt_id: str
    attempt_number: int
    driver_pid: int
    host: str = ""
    epoch: int = 0

    def encode(self) -> bytes:
        """Return the content of the lease's file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> LeaseHolder | None:
        """Return the holder that a file names; None if it names none, or is being written."""
        try:
            holder: LeaseHolder = from_plain(json.loads(content), cls)
        except (ValueError, WireError):
            return None
        return holder


class LeaseDecision(Enum):
    """Answer to an attempt that wants a lease: take it, wait, end the holder's driver first, or give up."""

    GRANTED = "GRANTED"
    WAIT = "WAIT"
    FENCE = "FENCE"
    REFUSED = "REFUSED"


def is_replaced(wanted: LeaseHolder, named: LeaseHolder | None) -> bool:
    """Return whether a later attempt of the same task has had the lease.

    Then the JobMaster has given up the attempt that wants it, which may have stood still since before. Its state is
    older than what the later attempt has committed.
    """
    return (
        named is not None
        and (named.job_id, named.task_key) == (wanted.job_id, wanted.task_key)
        and 0 not in (named.epoch, wanted.epoch)
        and (named.epoch, named.attempt_number) > (wanted.epoch, wanted.attempt_number)
    )


def decide(
    wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int | None, waited_s: float, patience_s: float
) -> LeaseDecision:
    """Decide how an attempt that wants a lease proceeds.

    - An earlier attempt of the same task has ended, as far as the JobMaster knows. Its driver gets *patience_s* to end
      by itself. After that it has to be ended (FENCE), so that it cannot commit when it wakes up again.
    - An attempt that was replaced by a later one is refused, even if the later one has ended.
    - A driver of another job is never ended.
    - Nor is a driver on another machine, whose processes cannot be ended from here. Its TaskExecutor ends its tasks
      when it is cut off, and its file system then releases the lock.

    Args:
        wanted: the attempt that wants the lease.
        named: the holder that the file names; None if it names none.
        locked_by: the process that holds the lock; None if no process does.
        waited_s: seconds that the attempt has waited.
        patience_s: seconds that an earlier attempt has to end.
    """
    if is_replaced(wanted, named):
        return LeaseDecision.REFUSED
    if locked_by is None or (named is not None and named.attempt_id == wanted.attempt_id):
        return LeaseDecision.GRANTED
    ours = named is not None and (named.job_id, named.task_key) == (wanted.job_id, wanted.task_key)
    is_remote = named is not None and named.host != wanted.host
    # For a lock that another machine holds, the kernel's process id is none of this machine.
    if named is None or not ours or (named.driver_pid != locked_by and not is_remote):
        return LeaseDecision.WAIT if waited_s < SETTLE_S else LeaseDecision.REFUSED
    if named.attempt_number > wanted.attempt_number:
        return LeaseDecision.REFUSED
    if waited_s < patience_s:
        return LeaseDecision.WAIT
    if is_remote:
        return LeaseDecision.REFUSED
    # If the attempt's own driver holds it, the TaskExecutor ends the rest of the earlier attempt, or that driver too.
    return LeaseDecision.REFUSED if locked_by == wanted.driver_pid else LeaseDecision.FENCE


def refusal(location: str, wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int | None) -> LocationInUseError:
    """Return the error for a lease that another driver holds, or that a later attempt has had."""
    if named is not None and is_replaced(wanted, named):
        return LocationInUseError(
            f"the checkpointLocation {location} is no longer for attempt {wanted.attempt_number} of this job: attempt "
            f"{named.attempt_number} has replaced it"
        )
    is_remote = named is not None and named.host != wanted.host
    place = f" on {named.host}" if named is not None and is_remote else ""
    if named is None or (named.driver_pid != locked_by and not is_remote):
        who, remedy = f"process {locked_by}", "give the query a checkpointLocation of its own"
    elif named.job_id == wanted.job_id:
        who = f"attempt {named.attempt_number} of this job (Spark driver: process {named.driver_pid}{place})"
        remedy = "two tasks, or two attempts of one, cannot share it"
    else:
        who = f"job {named.job_id} ({named.job_name}; Spark driver: process {named.driver_pid}{place})"
        remedy = "give the query a checkpointLocation of its own, or end that job first"
    return LocationInUseError(f"the checkpointLocation {location} is written to by {who}: {remedy}")


def lease_file(location: str) -> Path:
    """Return the file whose lock is the lease: beside the location, since a restore exchanges the whole location.

    The lease of a remote location is a file of this user on this machine.
    """
    if is_remote(location):
        return user_cache("leases") / f"{hashlib.sha256(location.rstrip('/').encode()).hexdigest()}.lease"
    resolved = Path(location).resolve()
    return resolved.with_name(f".{resolved.name}.lease")


def read_holder(path: Path) -> LeaseHolder | None:
    """Return the holder that a lease's file names; raises OSError."""
    return LeaseHolder.decode(path.read_bytes())


def lock_holder(path: Path) -> int | None:
    """Return the other process that has a file locked; None if there is none. Raises OSError."""
    with path.open("rb") as file:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def may_be_written_to(location: str) -> bool:
    """Return whether another process holds the lease of a location; True also if that cannot be determined."""
    try:
        return lock_holder(lease_file(location)) is not None
    except FileNotFoundError:
        return False  # no job of Understudy has ever written there, or its files were removed
    except OSError:
        return True
