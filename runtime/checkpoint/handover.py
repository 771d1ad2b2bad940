"""The state that a job takes over from another one, which ends with a savepoint: a file that both kinds of process see.

The new job may be submitted while the former one works. Its code runs to the start of its first streaming query, and
waits there for this file. Its JobMaster writes the file once the former job has ended, and no process of it runs any
more. Writing it again changes nothing, so the next JobMaster may do so.

All functions block.
"""

from __future__ import annotations

import json
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from conf.files import make_private, write_private
from runtime.checkpoint.errors import SnapshotError
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QuerySnapshot

SOON_S = 600.0
"""Seconds within which the former job is expected to end. If the command was killed, it may be repeated days later."""

LATER_S = 1.0
"""Seconds between two looks after that."""

_LOOK_S = 0.02


def pause_s(waited_s: float, look_s: float = _LOOK_S) -> float:
    """Return the seconds until the next look at what the former job leaves, after so many seconds of waiting."""
    return look_s if waited_s < SOON_S else LATER_S


def handover_file(job_directory: Path) -> Path:
    """Return the file, in the directory of a job's checkpoints."""
    return job_directory / "taken-over" / "state.json"


def start_file(job_directory: Path) -> Path:
    """Return the file, beside that of `handover_file`, with the state that a job starts from without a former job."""
    return job_directory / "started-from" / "state.json"


def pending_state(savepoint: str, former: str, file: Path) -> JobManagerTaskRestore:
    """Return the state of a task that starts before the former job has left its savepoint.

    A TaskExecutor of release 0.1.0 does not know `JobManagerTaskRestore.pending`. This
    state has one query that the job does not have, so such a TaskExecutor refuses to start the job's queries.

    Args:
        savepoint: the directory in which the former job will leave its savepoint.
        former: the former job.
        file: as `handover_file` returns it.
    """
    nothing = QuerySnapshot(f"<job {former} has not ended>", "", "", None, "", NOTHING_COMMITTED)
    return JobManagerTaskRestore(0, (nothing,), savepoint, pending=str(file))


def encode_handover(restore: JobManagerTaskRestore) -> bytes:
    """Return the stored form of a state."""
    return json.dumps(to_plain(restore)).encode()


def decode_handover(content: bytes) -> JobManagerTaskRestore:
    """Return a state from its stored form; raises ValueError or WireError."""
    found: JobManagerTaskRestore = from_plain(json.loads(content), JobManagerTaskRestore)
    return found


def write_handover(file: Path, restore: JobManagerTaskRestore) -> None:
    """Write the file durably; raises OSError."""
    make_private(file.parent, durable=True)
    write_private(file, encode_handover(restore))


def read_handover(file: Path) -> JobManagerTaskRestore | None:
    """Return the state; None if the file is not there yet.

    Raises:
        SnapshotError: it cannot be read.
    """
    try:
        return decode_handover(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, WireError) as error:
        raise SnapshotError(f"the state that the job starts from cannot be read from {file}: {error}") from error
