"""Who of several masters looks after which process of this machine: one file lock for each.

A lock is free the moment its holder ends, however that comes, so that a living master takes over what a killed one
looked after. The file says which process it is about: the successor finds that one running, and does not start another.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

from runtime.environment.descriptor import ProcessRecord


class Claim:
    """The right to look after one process.

    A forked child of the holder does not keep it, and neither does a spawned one.

    Args:
        path: the file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        os.register_at_fork(after_in_child=self.release)

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._descriptor is not None

    def try_acquire(self) -> bool:
        """Take it unless another process has it; returns whether it is ours now. Raises OSError."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def note(self, process: ProcessRecord, address: str = "") -> None:
        """Write down which process it is about, and where that is reached. Raises OSError."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        data = json.dumps({"process": asdict(process), "address": address}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def living(self) -> tuple[ProcessRecord, str] | None:
        """The process that it is about, and its address; None where that does not run."""
        try:
            values = json.loads(self.path.read_bytes())
            record = ProcessRecord(**values["process"])
            return (record, str(values["address"])) if record.is_alive() else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        """Write down that there is no such process any more, and give it up."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
        self.release()

    def release(self) -> None:
        """Give it up; doing it twice does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
