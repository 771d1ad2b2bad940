"""State handles and their files: written completely or not at all, never changed, verified at every read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from conf.files import make_private, name_when_whole, write_private
from runtime.ha.errors import StateCorruptedError
from runtime.protocol.leader import LeaderTerm, checked_name

_FILE = re.compile(r"(?P<name>[^@/]+)@(?P<component>[^@/]+)\.e(?P<epoch>\d+)\.[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StateHandle:
    """Reference to a stored state (Flink's ``RetrievableStateHandle``).

    A small state is in its handle (Flink's ``ByteStreamStateHandle``).

    Args:
        path: name of the file, in the directory for states of one kind. It is unique to this handle, even if there is
            no file.
        size: in bytes.
        sha256: hex digest of the content.
        created: seconds since 1970.
        content: the state itself, base64; None if it is in the file.
    """

    path: str
    size: int
    sha256: str
    created: float
    content: str | None = None

    @classmethod
    def of(cls, name: str, data: bytes, term: LeaderTerm, *, inline: bool) -> StateHandle:
        """Return a new handle of a state.

        Args:
            name: of the state.
            data: the state.
            term: in which it is written.
            inline: whether to store the state in the handle.
        """
        path = f"{checked_name('state', name)}@{term.component}.e{term.epoch}.{uuid4().hex}"
        content = base64.b64encode(data).decode() if inline else None
        return cls(path, len(data), hashlib.sha256(data).hexdigest(), time.time(), content)

    def to_json(self) -> str:
        """Return the text to store."""
        fields = asdict(self)
        if self.content is None:
            del fields["content"]
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StateHandle:
        """Return the handle of such a text.

        Raises:
            StateCorruptedError: it is not the text of a handle.
        """
        try:
            raw = json.loads(text)
            content = str(raw["content"]) if "content" in raw else None
            handle = cls(str(raw["path"]), int(raw["size"]), str(raw["sha256"]), float(raw["created"]), content)
        except (ValueError, KeyError, TypeError) as error:
            raise StateCorruptedError(f"not a state handle: {text[:200]!r} ({error})") from None
        if not _FILE.fullmatch(handle.path):
            raise StateCorruptedError(f"a state handle points outside its directory: {handle.path[:200]!r}")
        return handle

    def describes(self, data: bytes) -> bool:
        """Return whether this is the handle of ``data``."""
        return self.size == len(data) and self.sha256 == hashlib.sha256(data).hexdigest()

    def decode(self) -> bytes:
        """Return the state that is in the handle.

        Raises:
            StateCorruptedError: it is not what was stored.
        """
        try:
            data = base64.b64decode(self.content or "", validate=True)
        except ValueError:
            data = b""
        if not self.describes(data):
            raise StateCorruptedError(f"the state in the handle {self.path} is not what was stored")
        return data


class StateFiles:
    """The state files of one kind (a directory). All methods block: call them on an executor.

    A file's name contains the term in which it was written, so that a later leader can find files without an owner.

    Args:
        directory: created (0700) at the first write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, name: str, data: bytes, term: LeaderTerm) -> StateHandle:
        """Write a new file durably (0600).

        Raises:
            OSError: the disk is full, or the directory is not writable; nothing is left behind.
        """
        make_private(self.directory, durable=True)
        handle = StateHandle.of(name, data, term, inline=False)
        write_private(self.directory / handle.path, data)
        return handle

    def read(self, handle: StateHandle) -> bytes:
        """Return the content of the file.

        Raises:
            FileNotFoundError: there is no such file.
            StateCorruptedError: its size or digest is not the handle's.
        """
        path = self.directory / handle.path
        data = path.read_bytes()
        if not handle.describes(data):
            raise StateCorruptedError(
                f"{path} is not what was stored: it has {len(data)} bytes where the handle says {handle.size}, "
                "or another digest"
            )
        return data

    def delete(self, handle: StateHandle) -> None:
        """Delete the file; do nothing if it is not there."""
        (self.directory / handle.path).unlink(missing_ok=True)

    def older_than(self, term: LeaderTerm) -> list[str]:
        """Return the names of all files written in earlier terms of the same component, including incomplete ones."""
        if not self.directory.is_dir():
            return []
        names = (entry.name for entry in self.directory.iterdir())
        matches = ((name, _FILE.fullmatch(name_when_whole(name))) for name in names)
        return sorted(
            name
            for name, match in matches
            if match and match["component"] == term.component and int(match["epoch"]) < term.epoch
        )

    def of_name(self, name: str) -> list[str]:
        """Return the names of all files of one state, including incomplete ones."""
        if not self.directory.is_dir():
            return []
        prefix = f"{checked_name('state', name)}@"
        names = (entry.name for entry in self.directory.iterdir())
        return sorted(name for name in names if name_when_whole(name).startswith(prefix))

    def delete_named(self, names: list[str]) -> None:
        """Delete files by name."""
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def delete_all(self) -> None:
        """Delete all state files, and the directory unless other files are in it."""
        if not self.directory.is_dir():
            return
        for entry in self.directory.iterdir():
            if _FILE.fullmatch(name_when_whole(entry.name)):
                entry.unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()
