"""The audit log: one line of JSON for each request that changes something, and for each that was refused.

The file has mode 0600 and is only appended to. All processes of one runtime directory write the same file; a lock
orders their lines and its rotation. The web endpoints write lines for requests by HTTP. Each process of the cluster
writes lines for the calls that it gets from clients with the secret (`runtime.environment.call_audit`). No line holds a
token, an argument of a job or a body.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conf.files import append_line
from runtime.users.identities import ApiToken, User

MOST_BYTES = 16 * 1024 * 1024
"""Size at which the file becomes ``<name>.1``."""
MOST_FILES = 20
"""How many files there are; the oldest is deleted at the next rotation."""
MOST_TEXT = 300
"""Bytes of a text in a line, with its escapes."""
MOST_READ = 8 * 1024 * 1024
"""Bytes that one page of the log is looked for in."""
LATE_MS = 60_000
"""How much later than its time a line may be written: lines are in the order of their ends, of several processes."""
LOCAL = "local"
"""Role in the lines of calls with the secret, which allows everything. Nothing proves who has made them."""
_PIECE = 64 * 1024
_LONGEST = 1024 * 1024
"""Maximum length of a line of the audit log, in bytes; a longer piece without a line feed is skipped."""
_TEXTS = ("user", "role", "token", "action", "target", "source", "outcome", "reason")
REFUSALS_PER_MINUTE = 60
"""How many requests that changed nothing get lines: of each user, and of all unauthenticated clients together.

So they cannot push other lines out of the log within days.
"""
FREQUENT = frozenset({"dispatcher/report_job_client_heartbeat"})
"""Calls that come all the time and only prolong what another call began. They have lines only when refused."""
MOST_CALLERS = 1024
"""How many users' refused requests are counted; the one whose last refusal is the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line.

    Args:
        at_ms: when the request ended, in milliseconds since the epoch.
        user: name of the user; empty for one of the cluster's own tokens, and for an unauthenticated request. For a
            call with the secret ``local:`` and the name that the client gives itself; no user's name has a colon.
        role: of the user; empty for an unauthenticated request, and `LOCAL` for a call with the secret.
        token: id of the user's token.
        action: method and path of the route, or component and method of the call.
        target: what it was about: the id of a job, a user, a path.
        source: address of the client.
        outcome: ``done``, ``refused`` (not allowed), ``rejected`` (wrong or impossible) or ``failed``.
        status: HTTP status of the answer; 0 if the client was gone.
        reason: why it was not done, on one line.
        suppressed: how many requests before this one have no line: those of its user that changed nothing, or
            unauthenticated ones.
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

    @classmethod
    def parse(cls, line: bytes) -> AuditEntry:
        """Read a line; unknown fields are ignored, and missing ones empty. Raises ValueError."""
        found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("at_ms"), int):
            raise ValueError("a line of the audit log is not an object with at_ms")
        text = {name: str(found.get(name, "")) for name in _TEXTS}
        status, suppressed = (_whole(found.get(name)) for name in ("status", "suppressed"))
        return cls(found["at_ms"], status=status, suppressed=suppressed, **text)

    def to_json(self) -> str:
        """Return the line, without its end; long texts are cut."""
        return json.dumps({key: _cut(value) for key, value in asdict(self).items()})


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _cut(value: Any) -> Any:
    """Return a text of which the escaped form has at most `MOST_TEXT` bytes; other values as they are."""
    if not isinstance(value, str):
        return value
    cut = value[:MOST_TEXT]
    if _escaped(cut) <= MOST_TEXT:
        return cut
    left = MOST_TEXT
    for place, character in enumerate(cut):
        left -= _escaped(character)
        if left < 0:
            return cut[:place]
    return cut


def _escaped(text: str) -> int:
    """Return the number of bytes of a text in JSON, without its quotes."""
    return len(json.dumps(text)) - 2


def outcome_of(status: int) -> str:
    """Return the outcome that an HTTP status stands for."""
    if status in (401, 403):
        return "refused"
    if 200 <= status < 400:
        return "done"
    return "rejected" if 400 <= status < 500 else "failed"


class Flood:
    """Limit of lines for requests of one kind. Pure.

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


class Floods:
    """Limits of lines for requests that changed nothing: one for each user, one for unauthenticated clients. Pure.

    Args:
        per_minute: how many get lines, of each.
        most: how many users are kept in memory.
    """

    def __init__(self, per_minute: int = REFUSALS_PER_MINUTE, most: int = MOST_CALLERS) -> None:
        self._per_minute = per_minute
        self._most = most
        self._unauthenticated = Flood(per_minute)
        self._by_user: OrderedDict[str, Flood] = OrderedDict()

    def admit(self, user: str | None, now_ms: int) -> int | None:
        """Return the same as `Flood.admit`, for a user's name; None stands for an unauthenticated client."""
        if user is None:
            return self._unauthenticated.admit(now_ms)
        flood = self._by_user.setdefault(user, Flood(self._per_minute))
        self._by_user.move_to_end(user)
        if len(self._by_user) > self._most:
            self._by_user.popitem(last=False)
        return flood.admit(now_ms)


def named_by(argument: object) -> str:
    """Return what an argument of a call names; nothing of a token's digest, and nothing of a job's content."""
    match argument:
        case User():
            return f"{argument.name} {argument.role.value}"
        case ApiToken():
            return f"{argument.user} {argument.token_id}"
        case str():
            return str(argument)
        case _:
            return ""


def changed_nothing(status: int) -> bool:
    """Return whether an HTTP status means that a request had no effect: it was refused or wrong."""
    return 400 <= status < 500


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
        append_line(self._path, entry.to_json().encode(), self._most_bytes, self._rotate)

    def _rotate(self) -> None:
        for number in range(self._most_files - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


# ------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Choice of lines; an empty text and None choose all.

    Args:
        user: name of the user.
        job: a word of the target, such as the id of a job.
        since_ms: the first time, in milliseconds since the epoch.
        until_ms: the last time.
    """

    user: str = ""
    job: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def admits(self, entry: AuditEntry) -> bool:
        """Return whether an entry is chosen."""
        return (
            (not self.user or entry.user == self.user)
            and (not self.job or self.job in entry.target.split())
            and (self.since_ms is None or entry.at_ms >= self.since_ms)
            and (self.until_ms is None or entry.at_ms <= self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some lines of an audit log, the newest first.

    Args:
        entries: the chosen ones.
        next: where the next page begins; empty at the end of the log.
        damaged: number of lines that cannot be read.
    """

    entries: tuple[AuditEntry, ...]
    next: str
    damaged: int


class AuditPlaceError(Exception):
    """A page begins at a place that the audit log does not have (any more)."""


def read_audit(path: Path, chosen: AuditFilter, most: int, after: str = "", most_bytes: int = MOST_READ) -> AuditPage:
    """Read an audit log and its rotated files backwards.

    Args:
        path: the file.
        chosen: which lines.
        most: most entries of the page.
        after: the `next` of the page before; empty for the first page.
        most_bytes: most bytes to look through; a page may therefore be empty and not the last.

    Raises:
        AuditPlaceError: *after* is no place in the log.
        OSError: a file cannot be read.
    """
    entries, damaged, left = list[AuditEntry](), 0, most_bytes
    files = list[int]()
    try:
        for descriptor in _open_files(path):
            files.append(descriptor)  # those that are open are closed if the next one cannot be
        first, end = _place(after, files)
        for number, descriptor in enumerate(files[first:]):
            status = os.fstat(descriptor)
            begin = status.st_size if end is None or number else min(end, status.st_size)
            for at, line in _lines_before(descriptor, begin):
                left -= len(line) + 1
                try:
                    entry = AuditEntry.parse(line)
                except ValueError:
                    damaged += bool(line.strip())
                else:
                    if chosen.since_ms is not None and entry.at_ms < chosen.since_ms - LATE_MS:
                        return AuditPage(tuple(entries), "", damaged)
                    if chosen.admits(entry):
                        entries.append(entry)
                if len(entries) == most or left <= 0:
                    is_last = at == 0 and descriptor == files[-1]
                    return AuditPage(tuple(entries), "" if is_last else f"{status.st_ino}-{at}", damaged)
        return AuditPage(tuple(entries), "", damaged)
    finally:
        for descriptor in files:
            os.close(descriptor)


def _open_files(path: Path) -> Iterator[int]:
    """Open the files, the newest first; each stays readable after a rotation."""
    known = set[int]()
    for number in range(MOST_FILES + 1):
        name = path if number == 0 else path.with_name(f"{path.name}.{number}")
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        inode = os.fstat(descriptor).st_ino
        if inode in known:  # it was rotated between two opens
            os.close(descriptor)
            continue
        known.add(inode)
        yield descriptor


def _place(after: str, files: list[int]) -> tuple[int, int | None]:
    """Return the file, by its number, and the end of the part that a page has. Raises AuditPlaceError."""
    if not after:
        return 0, None
    inode, _, offset = after.partition("-")
    if inode.isascii() and inode.isdigit() and offset.isascii() and offset.isdigit():
        for number, descriptor in enumerate(files):
            if os.fstat(descriptor).st_ino == int(inode):
                return number, int(offset)
    raise AuditPlaceError("this place of the audit log is not there (any more); begin at its end again")


def _lines_before(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that end before a byte, the last first, each with the place of its first byte."""
    tail, at = b"", end  # tail: the part behind *at* of a line whose beginning is not read yet
    while at > 0:
        size = min(_PIECE, at)
        at -= size
        piece = os.pread(descriptor, size, at) + tail
        tail, *lines = piece.split(b"\n")
        place = at + len(piece)
        for line in reversed(lines):
            place -= len(line)
            if line:
                yield place, line
            place -= 1
        if len(tail) > _LONGEST:
            yield at, tail
            tail = b""
    if tail:
        yield 0, tail
