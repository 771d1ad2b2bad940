"""Claims of masters on the processes of this machine: one file lock for each process.

A master supervises the processes that it has claimed. The kernel frees a lock when its holder ends, so another master
takes over the processes of a killed one. The file names the process: the new master finds it running, and does not
start another.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

from runtime.environment.descriptor import ProcessRecord


class Claim:
    """The right to supervise one process.

    Neither forked nor spawned children of the holder inherit it.

    Args:
        path: the lock file; `try_acquire` creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._is_released_by_forks = False

    @property
    def held(self) -> bool:
        """True if this process holds the claim."""
        return self._descriptor is not None

    def try_acquire(self) -> bool:
        """Take the claim unless another process holds it; return whether this process holds it. Raises OSError."""
        if self._descriptor is not None:
            return True
        if not self._is_released_by_forks:  # here, because Python keeps every registered object for ever
            os.register_at_fork(after_in_child=self.release)
            self._is_released_by_forks = True
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if _is_at(descriptor, self.path):
                self._descriptor = descriptor
                return True
            os.close(descriptor)  # its former holder has removed the file: another process locks the next one

    def note(self, process: ProcessRecord, address: str = "") -> None:
        """Write the claimed process and its address into the file. Raises OSError."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not held by this process")
        data = json.dumps({"process": asdict(process), "address": address}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def living(self) -> tuple[ProcessRecord, str] | None:
        """Return the claimed process and its address; None if it does not run."""
        found = self.noted()
        return found if found is not None and found[0].is_alive() else None

    def noted(self) -> tuple[ProcessRecord, str] | None:
        """Return the process and the address that `note` has written, running or not; None if there is no note."""
        try:
            values = json.loads(self.path.read_bytes())
            return ProcessRecord(**values["process"]), str(values["address"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        """Empty the file, since the process has ended, and release the claim."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
        self.release()

    def release(self) -> None:
        """Release the claim; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_claimed(path: Path) -> bool:
    """Return whether a process holds the claim of this file, which need not exist. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
