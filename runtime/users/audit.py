"""The audit log: one line of JSON for each request that changes something, and for each that was refused.

The file has mode 0600 and is only appended to. All web endpoints of one runtime directory write the same file; a lock
orders their lines and its rotation. No line holds a token, an argument of a job or a body.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conf.files import make_private

MOST_BYTES = 16 * 1024 * 1024
"""Size at which the file becomes ``<name>.1``."""
MOST_FILES = 20
"""How many files there are; the oldest is deleted at the next rotation."""
MOST_TEXT = 300
REFUSALS_PER_MINUTE = 60
"""How many unauthenticated requests get lines, so that they cannot push other lines out of the log within days."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line.

    Args:
        at_ms: when the request ended, in milliseconds since the epoch.
        user: name of the user; empty for one of the cluster's own tokens, and for an unauthenticated request.
        role: of the user; empty for an unauthenticated request.
        token: id of the user's token.
        action: method and path of the route, or component and method of the call.
        target: what it was about: the id of a job, a user, a path.
        source: address of the client.
        outcome: ``done``, ``refused`` (not allowed), ``rejected`` (wrong or impossible) or ``failed``.
        status: HTTP status of the answer; 0 if the client was gone.
        reason: why it was not done, on one line.
        suppressed: how many unauthenticated requests before this one have no line.
    """

    at_ms: int
    user: str
    role: str
    token: str
    action: str
    target: str
    source: str
    outcome: str
    status: int
    reason: str = ""
    suppressed: int = 0

    def to_json(self) -> str:
        """Return the line, without its end; long texts are cut."""
        return json.dumps({key: _cut(value) for key, value in asdict(self).items()})


def _cut(value: Any) -> Any:
    return value[:MOST_TEXT] if isinstance(value, str) else value


def outcome_of(status: int) -> str:
    """Return the outcome that an HTTP status stands for."""
    if status in (401, 403):
        return "refused"
    if 200 <= status < 400:
        return "done"
    return "rejected" if 400 <= status < 500 else "failed"


class Flood:
    """Limit of lines for unauthenticated requests. Pure.

    Args:
        per_minute: how many get lines.
    """

    def __init__(self, per_minute: int = REFUSALS_PER_MINUTE) -> None:
        self._most = per_minute
        self._minute = -1
        self._passed = 0
        self._suppressed = 0

    def admit(self, now_ms: int) -> int | None:
        """Return how many requests were suppressed before this one; None if this one is suppressed too."""
        minute = now_ms // 60_000
        if minute != self._minute:
            self._minute, self._passed = minute, 0
        if self._passed >= self._most:
            self._suppressed += 1
            return None
        self._passed += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


class AuditLog:
    """The file.

    Args:
        path: of the file; its directory is made if needed, with mode 0700.
        most_bytes: size at which it is rotated.
        most_files: how many files are kept, the current one included.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._most_files = most_files

    def write(self, entry: AuditEntry) -> None:
        """Append a line. Raises OSError."""
        line = entry.to_json().encode() + b"\n"
        make_private(self._path.parent)
        while True:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                status = os.fstat(descriptor)
                if not self._is_current(status):  # another process has rotated it
                    continue
                if status.st_size and status.st_size + len(line) > self._most_bytes:
                    self._rotate()
                    continue
                while line:
                    line = line[os.write(descriptor, line) :]
                return
            finally:
                os.close(descriptor)

    def _is_current(self, status: os.stat_result) -> bool:
        try:
            named = self._path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)

    def _rotate(self) -> None:
        for number in range(self._most_files - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
