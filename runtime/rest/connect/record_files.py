"""Files of the records of named sessions, shared by all masters: private, locked for each change, removed with the
session.

Each user has a directory, and each record one in it. Their names are digests of user and name. The record is in
`record.json`. Each recorded call has a file, whose name is the digest of its content. A record is written after the
files that it refers to. All methods block.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conf.files import make_private, remove_tree, write_private
from runtime.rest.connect.record import Entry, RecordError, SessionRecord, decode_record

_RECORD = "record.json"
_LOCK = "lock"
_REBUILDING = ".rebuilding"
MOST_SESSIONS = 100
"""Most named sessions of a user."""


class RecordFiles:
    """The records of a cluster.

    Args:
        directory: of the records; made (0700) at the first write.
        idle_timeout_s: seconds without a call after which a record is removed.
    """

    def __init__(self, directory: Path, idle_timeout_s: float) -> None:
        self._directory = directory
        self._idle_timeout_s = idle_timeout_s

    def read(self, user: str, name: str) -> SessionRecord | None:
        """Return the record of a session; None if there is none, or if the session has been idle for too long.

        Raises:
            RecordError: the file is damaged, or is another user's.
        """
        place = self._place(user, name)
        try:
            if self._left_s(place, time.time()) <= 0:
                return None
            text = (place / _RECORD).read_text()
        except FileNotFoundError:
            return None
        try:
            record = decode_record(text)
            if (record.user, record.name) != (user, name):
                raise RecordError("it is the record of another session")
        except RecordError as error:
            raise RecordError(
                f"{place / _RECORD} is not a record of the named session {name}: {error}; spark.stop() removes it"
            ) from None
        return record

    def change(
        self,
        user: str,
        name: str,
        to: Callable[[SessionRecord | None], SessionRecord | None],
        content: bytes | None = None,
    ) -> SessionRecord | None:
        """Replace a record by what *to* makes of it, and return that. Other processes wait for this change.

        Args:
            user: owner of the session.
            name: of the session.
            to: pure; returns None to leave the record as it is.
            content: of an entry that *to* adds.

        Raises:
            RecordError: as in `read`, or *to* raises it, or the user has too many sessions.
            OSError: the files cannot be written.
        """
        place = self._place(user, name)
        with self._locked():
            before = self.read(user, name)
            after = to(before)
            if after is None or after == before:
                return before
            if before is None:
                remove_tree(place)  # of an idle session
                if place.parent.is_dir() and len(list(place.parent.iterdir())) >= MOST_SESSIONS:
                    raise RecordError(
                        f"the named session {name} cannot begin: its user has {MOST_SESSIONS} others; end one with "
                        "spark.stop()"
                    )
            make_private(place, durable=True)
            if content is not None:
                digest = hashlib.sha256(content).hexdigest()
                if not (place / digest).exists():
                    write_private(place / digest, content)
            write_private(place / _RECORD, after.to_json().encode())
            kept = {_RECORD, *(entry.digest for entry in after.entries)}
            for path in place.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)
            return after

    def content(self, record: SessionRecord, entry: Entry) -> bytes:
        """Return the content of an entry; raises `RecordError` if it is not what was recorded."""
        path = self._place(record.user, record.name) / entry.digest
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecordError(f"the content of {entry.shown} cannot be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != entry.digest:
            raise RecordError(f"the content of {entry.shown} is not what was recorded")
        return content

    def touch(self, user: str, name: str) -> None:
        """Note that a session is in use."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._place(user, name) / _RECORD)

    def remove(self, user: str, name: str, session_id: str = "") -> None:
        """Remove a record with its files.

        Args:
            user: owner of the session.
            name: of the session.
            session_id: if given, a record with another one stays.
        """
        if not self._directory.is_dir():
            return
        with self._locked():
            record = self.read(user, name) if session_id else None
            if record is None or record.session_id == session_id:
                self._remove(self._place(user, name))

    def sweep(self) -> float:
        """Remove records of sessions that have been idle for too long; return the seconds until the next one is."""
        wait_s = self._idle_timeout_s
        if not self._directory.is_dir():
            return wait_s
        with self._locked():
            now = time.time()
            for place in list(self._directory.glob("*/*")):
                with contextlib.suppress(FileNotFoundError):
                    left_s = self._left_s(place, now)
                    if left_s > 0:
                        wait_s = min(wait_s, left_s)
                        continue
                self._remove(place)
        return wait_s

    @contextlib.contextmanager
    def rebuilding(self, user: str, name: str) -> Iterator[bool]:
        """Return, as a context, whether this caller may rebuild a session; one caller at a time may."""
        path = self._directory / (_digest(f"{user}\0{name}") + _REBUILDING)
        descriptor = self._lock(path, wait=False)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                path.unlink(missing_ok=True)
                os.close(descriptor)

    def _place(self, user: str, name: str) -> Path:
        return self._directory / _digest(user) / _digest(name)

    @staticmethod
    def _remove(place: Path) -> None:
        remove_tree(place)
        with contextlib.suppress(OSError):  # the user has other sessions, or never had one
            place.parent.rmdir()

    def _left_s(self, place: Path, now: float) -> float:
        return (place / _RECORD).stat().st_mtime + self._idle_timeout_s - now

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = self._lock(self._directory / _LOCK, wait=True)
        assert descriptor is not None
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, path: Path, *, wait: bool) -> int | None:
        """Return the descriptor of a locked file; None if another one has the lock and this is not to *wait*."""
        make_private(path.parent, durable=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.fstat(descriptor).st_ino == path.stat().st_ino:  # else its holder has removed it
                        return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
