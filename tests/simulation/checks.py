"""Checkers over the history of a run: what was written and acknowledged, and what was read.

Each checker is told of events as they happen, and calls *fail* with the name of a check and what is wrong. Times are
virtual nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Fail = Callable[[str, str], None]
Version = tuple[int, int]
"""A write's place in the order of all writes: the epoch of its leader, and its number within the term."""
NONE: Version = (0, 0)


@dataclass
class Write:
    """One write of a register."""

    version: Version
    value: object
    began: int
    ended: int | None = None
    refused: bool = False
    unknown: bool = False
    seen: bool = False


class Register:
    """A value that only leaders write, each in its term.

    Every later read finds an acknowledged write, unless a later write has replaced it. No read finds a write that was
    refused, nor something older than an earlier read has found.

    Args:
        name: shown in failures.
        fail: see the module.
    """

    def __init__(self, name: str, fail: Fail) -> None:
        self.name = name
        self._fail = fail
        self.writes: dict[Version, Write] = {}
        self._lost_at = -1
        self._floors: list[tuple[int, Version]] = []
        """The oldest version that reads after a time may find, as (time, version); both rise."""

    def begin(self, version: Version, value: object, now: int) -> Write:
        """Note the begin of a write; None is a removal. A repeated write has the version of the first attempt."""
        write = self.writes.get(version)
        if write is None:
            write = self.writes[version] = Write(version, value, now)
        return write

    def acknowledged(self, write: Write, now: int) -> None:
        """Note that a write has succeeded."""
        if write.refused:
            self._fail("no refused write", f"{self.name}: {write.version} was refused before it succeeded")
        write.ended = now
        if write.began > self._lost_at:
            self._raise_floor(now, write.version)

    def refused(self, write: Write, now: int) -> None:
        """Note that a write was refused, and that nothing was changed."""
        if not write.unknown:
            write.refused = True
            if write.seen:
                self._fail("no refused write", f"{self.name}: {write.version} was refused, and had been read")

    def unknown(self, write: Write) -> None:
        """Note that a write may have taken effect, now or later."""
        write.unknown = True

    def lost(self, since: int, now: int) -> None:
        """Forget what reads must find if it was noted after *since*: the store is allowed to have lost it *now*."""
        self._lost_at = now
        self._floors = [floor for floor in self._floors if floor[0] < since]

    def read(self, began: int, now: int, version: Version | None, value: object) -> None:
        """Note what a read has found; *version* None: nothing was there."""
        floor = NONE
        for at, wanted in reversed(self._floors):
            if at < began:
                floor = wanted
                break
        if version is None:
            removed = [w for w in self.writes.values() if w.value is None and w.version >= floor and not w.refused]
            if floor != NONE and not removed:
                self._fail("acknowledged writes stay", f"{self.name}: {floor} was written, and nothing is there")
            return
        write = self.writes.get(version)
        if write is None or write.value != value:
            self._fail("only what was written is read", f"{self.name}: {version} {value!r} was never written")
            return
        write.seen = True
        if write.refused:
            self._fail("no refused write", f"{self.name}: {version} was read, and had been refused")
        if version < floor:
            self._fail("acknowledged writes stay", f"{self.name}: {version} was read after {floor} was written or read")
        if began > self._lost_at:
            self._raise_floor(now, version)

    def _raise_floor(self, now: int, version: Version) -> None:
        if not self._floors or version > self._floors[-1][1]:
            self._floors.append((now, version))
            del self._floors[:-200]


class Leaders:
    """The leaders: at most one at a time by the clocks of the contenders; each term has an epoch and a session."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._sessions: dict[int, str] = {}
        self._epochs: dict[str, int] = {}
        self._refused: set[str] = set()
        self.highest = 0

    def granted(self, who: str, epoch: int, session: str) -> None:
        """Note a grant."""
        known = self._sessions.setdefault(epoch, session)
        if known != session:
            self._fail("one leader for each epoch", f"epoch {epoch} was granted to two sessions, now to {who}")
        if session in self._epochs:
            self._fail("each term has a session", f"{session} has epoch {self._epochs[session]}, and now {epoch}")
        self._epochs[session] = epoch
        self.highest = max(self.highest, epoch)

    def session(self, epoch: int) -> str | None:
        """Return the session of an epoch that was granted."""
        return self._sessions.get(epoch)

    def renews(self, session: str) -> None:
        """Note that a leader asks for another lease; it does not, once it was refused one."""
        if session in self._refused:
            self._fail("a refused leader asks no more", f"{session} was refused, and asks again")

    def refused(self, session: str) -> None:
        """Note that a leader knows that it was refused another lease."""
        self._refused.add(session)

    def was_refused(self, session: str) -> bool:
        """Return whether a leader knows that it was refused another lease."""
        return session in self._refused

    def holding(self, holders: list[tuple[str, int]]) -> None:
        """Note who holds its leadership, by its own clock, at one moment."""
        if len(holders) > 1:
            self._fail("one leader at a time", f"all of these hold their leases: {holders}")


class Once:
    """Values of which each is handed out once."""

    def __init__(self, name: str, fail: Fail) -> None:
        self._name = name
        self._fail = fail
        self._seen: dict[Any, int] = {}
        self._lost_at = -1

    def handed_out(self, value: Any, began: int, now: int) -> None:
        """Note a value that was asked for at *began*; a loss since then may have taken what was written for it."""
        if began <= self._lost_at:
            return
        if value in self._seen:
            self._fail("each number once", f"{self._name}: {value} was handed out twice")
        self._seen[value] = now

    def lost(self, since: int, now: int) -> None:
        """Forget values of after *since*: the store is allowed to have lost them *now*."""
        self._lost_at = now
        self._seen = {value: at for value, at in self._seen.items() if at < since}
