"""Simulated pipes, and ``splice`` and ``sendfile`` between sockets, pipes and simulated files."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any

from tests.simulation.disk import Files
from tests.simulation.kernel import Kernel, SimFile, SimProcess
from tests.simulation.network import SimSocket
from tests.simulation.patches import Patch, add_patches


class SimPipe(SimFile):
    """One end of a pipe within a process; it never blocks, because its users write only what fits."""

    def __init__(self, process: SimProcess, content: bytearray) -> None:
        super().__init__(process)
        self.content = content

    def readable(self) -> bool:
        return bool(self.content)

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Close this end."""
        self.forget()


class Splice:
    """The system calls that move bytes between descriptors; make it before `patches.installed`.

    Args:
        kernel: the world.

    Attributes:
        files: the file systems; set them when they exist.
        capacity: of a pipe, in bytes.
    """

    def __init__(self, kernel: Kernel, capacity: int) -> None:
        self.kernel = kernel
        self.capacity = capacity
        self.files: Files | None = None
        kernel.devices["splice"] = self
        add_patches(_patches)

    def pipe(self, flags: int = 0) -> tuple[int, int]:
        """`os.pipe2`."""
        process, content = self.kernel.current, bytearray()
        assert process is not None
        return SimPipe(process, content).fd, SimPipe(process, content).fd

    def splice(self, source: int, target: int, count: int, *_others: Any, **_more: Any) -> int:
        """`os.splice`, from a socket to a pipe and from a pipe to a file."""
        into = self.kernel.files.get(target)
        if isinstance(into, SimPipe):
            data = self._socket(source).recv(min(count, self.capacity - len(into.content)))
            into.content += data
            return len(data)
        pipe = self.kernel.files.get(source)
        if not isinstance(pipe, SimPipe) or self.files is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        written = self.files.write(target, bytes(pipe.content[:count]))
        del pipe.content[:written]
        return written

    def read(self, descriptor: int, size: int) -> bytes | None:
        """`os.read` of a pipe; None for anything else."""
        pipe = self.kernel.files.get(descriptor)
        if not isinstance(pipe, SimPipe):
            return None
        data = bytes(pipe.content[:size])
        del pipe.content[:size]
        return data

    def send(self, target: int, data: bytes) -> int:
        """Send the part of a file that a socket takes, for `Files.sendfile`."""
        return self._socket(target).send(data) if data else 0

    def _socket(self, descriptor: int) -> SimSocket:
        file = self.kernel.files.get(descriptor)
        if not isinstance(file, SimSocket):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file


def _patches(kernel: Kernel) -> list[Patch]:
    if "splice" not in kernel.devices:
        return []
    device: Splice = kernel.devices["splice"]
    real_fcntl, real_read = fcntl.fcntl, os.read

    def control(file: Any, command: int, argument: Any = 0) -> Any:
        descriptor = file if isinstance(file, int) else file.fileno()
        return 0 if descriptor in kernel.files else real_fcntl(descriptor, command, argument)

    def read(descriptor: int, size: int) -> bytes:
        data = device.read(descriptor, size)
        return real_read(descriptor, size) if data is None else data

    return [
        (os, "pipe2", device.pipe),
        (os, "splice", device.splice),
        (os, "read", read),
        (fcntl, "fcntl", control),
    ]
