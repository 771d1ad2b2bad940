"""One location, one writer: who has the lease of a checkpointLocation, and what whoever wants it has to do.

The lease is a file lock beside the location, held by the Spark driver that commits there: nothing else lives exactly as
long as something can commit. An entry in the high-availability store would have to be renewed by somebody who may be
alive while the driver is not, and the other way round; and a driver asks no store before it commits. The file says who
the holder is; the kernel says whether it still holds, and which process that is.

The decisions are pure; `read_holder`, `lock_holder` and `may_be_written_to` look at the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from runtime.checkpoint.errors import CheckpointError

SETTLE_S = 5.0
"""Seconds that another job's lease is waited for: its holder may be about to end."""


_FLOCK = "hhqqi0q"
"""The kernel's ``struct flock``: type, whence, start, length, process."""


class LocationInUseError(CheckpointError):
    """Another job, or another attempt of this one, writes to a checkpointLocation."""


class LeaseUnknownError(CheckpointError):
    """Whether somebody else writes to a checkpointLocation could not be found out."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """An attempt that has, or wants, a lease.

    Args:
        job_id: its job.
        job_name: name of the job.
        task_key: its task.
        attempt_id: its id.
        attempt_number: of the attempt, from 0.
        driver_pid: process of its Spark driver.
        host: address of its machine; empty in files of former versions.
    """

    job_id: str
    job_name: str
    task_key: str
    attempt_id: str
    attempt_number: int
    driver_pid: int
    host: str = ""

    def encode(self) -> bytes:
        """As it is in the file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> LeaseHolder | None:
        """Whom a file names; None where it names nobody, or is being written."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None


class LeaseDecision(Enum):
    """What is to be done about a lease that another one has."""

    GRANTED = "GRANTED"
    WAIT = "WAIT"
    FENCE = "FENCE"
    REFUSED = "REFUSED"


def decide(
    wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int | None, waited_s: float, patience_s: float
) -> LeaseDecision:
    """What an attempt that wants a lease does.

    An earlier attempt of the same task is over, as far as the JobMaster knows. So its driver is given time to see that
    too, and is ended then (FENCE): one that comes back from wherever it was must not commit. Another job's is never
    touched. Nor is one on another machine, whose processes cannot be ended from here: it ends its tasks itself when it
    is cut off, and its file system gives the lock back.

    Args:
        wanted: who wants it.
        named: whom the file names.
        locked_by: the process that has it; None where nobody has.
        waited_s: seconds for which it has been wanted.
        patience_s: seconds that an earlier attempt has to end.
    """
    if locked_by is None or (named is not None and named.attempt_id == wanted.attempt_id):
        return LeaseDecision.GRANTED
    ours = named is not None and (named.job_id, named.task_key) == (wanted.job_id, wanted.task_key)
    is_remote = named is not None and named.host != wanted.host
    # What the kernel says of a lock that another machine holds is no process of this one.
    if named is None or not ours or (named.driver_pid != locked_by and not is_remote):
        return LeaseDecision.WAIT if waited_s < SETTLE_S else LeaseDecision.REFUSED
    if named.attempt_number > wanted.attempt_number:
        return LeaseDecision.REFUSED
    if waited_s < patience_s:
        return LeaseDecision.WAIT
    if is_remote:
        return LeaseDecision.REFUSED
    # Of one's own driver the rest of the earlier attempt is ended by the TaskExecutor, or the driver with it.
    return LeaseDecision.REFUSED if locked_by == wanted.driver_pid else LeaseDecision.FENCE


def refusal(location: str, wanted: LeaseHolder, named: LeaseHolder | None, locked_by: int) -> LocationInUseError:
    """The error of a lease that is not to be had."""
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
    """The file whose lock is the lease: beside the location, which may be exchanged as a whole by a restore."""
    resolved = Path(location).resolve()
    return resolved.with_name(f".{resolved.name}.lease")


def read_holder(path: Path) -> LeaseHolder | None:
    """Return whom a lease's file names; raises OSError."""
    return LeaseHolder.decode(path.read_bytes())


def lock_holder(path: Path) -> int | None:
    """Return the process that has a file locked, if it is not this one; None where none has. Raises OSError."""
    with path.open("rb") as file:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else pid


def may_be_written_to(location: str) -> bool:
    """Return whether another process holds the lease of a location; True also where that cannot be found out."""
    try:
        return lock_holder(lease_file(location)) is not None
    except FileNotFoundError:
        return False  # no job of Understudy has ever written there, or what it wrote is gone
    except OSError:
        return True
