"""Lines of the audit log for calls by RPC with the cluster's secret: local commands, `connect()`, embedding programs.

The process that serves a call writes its line. Whether a method changes something is declared at its gateway (`reads`),
so a method without a declaration gets lines. The components announce themselves, and their calls to each other get no
line. Neither do those of the web endpoint, which writes lines for the requests of its users.

Nothing but the secret vouches for a client: it gives its user's name itself, and may claim to be a component.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from actors.errors import FencingError, WireError
from actors.rpc.dispatch import RecordedCall
from runtime.environment.statuses import status_of
from runtime.ids import JobID
from runtime.users.audit import (
    FREQUENT,
    LOCAL,
    AuditEntry,
    AuditLog,
    Floods,
    changed_nothing,
    named_by,
    outcome_of,
)
from runtime.users.roles import CALLS

MOST_PENDING = 10_000
"""Lines that may wait for the disk."""
UNNAMED = "unnamed"
"""Name of clients that give none."""

logger = logging.getLogger(__name__)


class CallAudit:
    """Writes a line for each call that changes something; a `CallRecorder`. A thread of its own writes.

    Args:
        path: of the audit log.
        now_ms: the time, in milliseconds since the epoch.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._log = AuditLog(path)
        self._now_ms = now_ms
        self._floods = Floods()
        self._writer: ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(MOST_PENDING)

    def record(self, call: RecordedCall) -> None:
        """Have the line of a call written; a failure is only logged."""
        if not is_recorded(call):
            return
        at_ms, suppressed = self._now_ms(), 0
        status = status_of_call(call)
        if changed_nothing(status):
            admitted = self._floods.admit(call.caller, at_ms)
            if admitted is None:
                return
            suppressed = admitted
        entry = entry_of(call, at_ms, status, suppressed)
        if not self._room.acquire(blocking=False):
            logger.error("the audit log misses %r of %s: the disk does not take its lines", entry.action, entry.user)
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        try:
            self._writer.submit(self._write, entry)
        except RuntimeError as error:  # the process ends
            logger.error("the audit log misses %r of %s: %s", entry.action, entry.user, error)

    def _write(self, entry: AuditEntry) -> None:
        try:
            self._log.write(entry)
        except OSError as error:
            logger.error("the audit log misses %r of %s: %s", entry.action, entry.user, error)
        finally:
            self._room.release()

    def close(self) -> None:
        """Wait until all lines are written."""
        if self._writer is not None:
            self._writer.shutdown()


def action_of(call: RecordedCall) -> str:
    """Return the name of a call in the table of roles: component and method."""
    return f"{call.component}/{call.method}"


def is_recorded(call: RecordedCall) -> bool:
    """Return whether a call that changes something gets a line. Pure.

    Components of earlier releases announce nothing. So of unnamed callers only calls in the table of roles get lines.
    An upgrade does not fill the log with the calls of components to each other.
    """
    action = action_of(call)
    return action not in FREQUENT and (bool(call.caller) or action in CALLS)


def status_of_call(call: RecordedCall) -> int:
    """Return the HTTP status that stands for the outcome of a call. Pure."""
    match call.error:
        case None:
            return 200
        case FencingError():  # a method for leaders alone; see `actors.rpc.dispatch`
            return 403
        case WireError():
            return 400
        case error:
            return status_of(error)


def entry_of(call: RecordedCall, at_ms: int, status: int, suppressed: int = 0) -> AuditEntry:
    """Return the line of a call. Pure.

    Args:
        call: the call.
        at_ms: when it ended.
        status: its outcome.
        suppressed: how many calls before it have no line.
    """
    lines = "" if call.error is None else str(call.error).strip()
    return AuditEntry(
        at_ms,
        f"{LOCAL}:{call.caller or UNNAMED}",
        LOCAL,
        "",
        action_of(call),
        _target(call),
        call.source,
        outcome_of(status),
        status,
        lines.partition("\n")[0],
        suppressed,
    )


def _target(call: RecordedCall) -> str:
    """Return what a call was about: the actor, if there are several such, and what the first argument or result names.

    A submission names its job in the result alone.
    """
    actor = call.path.rpartition("/")[2]
    of_several = "" if actor == call.component else actor.removeprefix(f"{call.component}-")
    named = named_by(call.arguments[0]) if call.arguments else ""
    if not named and isinstance(call.result, JobID):
        named = call.result
    return " ".join(filter(None, (of_several, named)))
