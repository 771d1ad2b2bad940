"""Cuts the connections between processes of this machine: nothing passes any more, or they break.

The components of a cluster on one machine talk over Unix sockets, and blobs go over TCP on the loopback interface. A
firewall knows neither Unix sockets nor processes, and many machines have no iptables and no nft; ``ss -K`` breaks
connections only, and many kernels are built without it. A relay before each socket would have to be there before
anybody dials, for the whole run. So sockets are taken from the processes that have them (`pidfd_getfd`):

- A TCP connection gets a filter on both sides that drops all that comes in (`SO_ATTACH_FILTER`). The kernel
  retransmits, neither side sees more than silence, and what was on its way arrives afterwards: as with a cable that is
  pulled. What listens gets one too.
- Unix sockets know no filters. The connections are shut down, and in the place of what listens stands a socket that
  accepts nothing: whoever dials again waits for an answer in vain.

What listens on either side takes no new connections meanwhile, from anybody, since nobody can tell who dials. All other
connections go on.

Needs Linux 5.6 and the right to trace the processes: root's, or their own user's where Yama does not forbid it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import lives

_PIDFD_GETFD = 438  # the same on all architectures
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)
_LISTENS, _CONNECTED = "0A", "01"
CALLS = "rpc-"
"""What the names of the Unix sockets begin with that components call each other by (`RpcConfig.unix_socket`)."""
BACKLOG = 100
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class _Tcp:
    """A TCP socket of a process, with its addresses as the kernel shows them."""

    pid: int
    descriptor: int
    local: str
    remote: str
    state: str


def why_not(pid: int) -> str:
    """Why no socket can be taken from that process; empty where it can."""
    try:
        os.close(_take(pid, 0))
    except (OSError, AttributeError) as error:
        return f"no descriptor can be taken from another process (pidfd_getfd): {error}"
    return ""


class Cut:
    """Two groups of processes that cannot talk to each other; a context manager.

    Args:
        ones: process ids.
        others: process ids. One that is in both groups is in the first.

    Attributes:
        connections: how many there were between them when it began.
    """

    def __init__(self, ones: Iterable[int], others: Iterable[int]) -> None:
        self._ones = frozenset(ones)
        self._others = frozenset(others) - self._ones
        self._silenced: list[socket.socket] = []
        self._holes: list[_Hole] = []
        self.connections = 0

    def __enter__(self) -> Cut:
        try:
            pids = self._ones | self._others
            self._silence(item for item in _tcp_sockets(pids) if item.state == _LISTENS)
            self._holes += [_Hole(pid, path) for pid, path in _unix_listeners(pids)]
            pairs = _tcp_pairs(self._ones, self._others)  # none is added any more
            self._silence(item for pair in pairs for item in pair)
            self.connections = len(pairs) + _shut_unix_down(self._ones, self._others)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def _silence(self, sockets: Iterable[_Tcp]) -> None:
        code = ctypes.create_string_buffer(_RETURN_NOTHING)
        program = struct.pack("@HP", 1, ctypes.addressof(code))
        for item in sockets:
            with contextlib.suppress(OSError):  # it has gone
                taken = socket.socket(fileno=_take(item.pid, item.descriptor))
                self._silenced.append(taken)
                taken.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _end(self) -> None:
        for item in self._silenced:
            with contextlib.suppress(OSError):  # it never had one
                item.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            item.close()
        for hole in self._holes:
            hole.close()
        self._silenced.clear()
        self._holes.clear()


class _Hole:
    """Stands in the place of a process's Unix socket, and accepts nothing."""

    def __init__(self, pid: int, path: Path) -> None:
        self._pid = pid
        self._path = path
        self._aside = path.with_name(f"aside-{path.name}")
        hole = path.with_name(f"hole-{path.name}")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(hole))
        self._socket.listen(BACKLOG)
        try:
            os.link(path, self._aside)
            hole.rename(path)
        except FileNotFoundError:  # its process has ended meanwhile
            hole.unlink()

    def close(self) -> None:
        """Put the process's own back; who waits here is told that it was in vain."""
        with contextlib.suppress(FileNotFoundError):
            if lives(self._pid):
                self._aside.rename(self._path)
            else:
                self._aside.unlink()
                self._path.unlink()
        self._socket.close()


def disconnect(ones: Iterable[int], others: Iterable[int]) -> int:
    """Break the connections between two groups of processes, as a reset does; they may be made again at once.

    Returns:
        how many there were.
    """
    first = frozenset(ones)
    second = frozenset(others) - first
    pairs = _tcp_pairs(first, second)
    for pair in pairs:
        for item in pair:
            with contextlib.suppress(OSError), socket.socket(fileno=_take(item.pid, item.descriptor)) as taken:
                taken.shutdown(socket.SHUT_RDWR)
    return len(pairs) + _shut_unix_down(first, second)


# ---------------------------------------------------------------------- Unix


def _unix_sockets(pids: Iterable[int]) -> Iterator[tuple[int, socket.socket]]:
    """The Unix stream sockets of processes, duplicated as long as they are looked at."""
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    for pid, descriptor, inode in _descriptors(pids):
        if inode in inodes:
            with contextlib.suppress(OSError), socket.socket(fileno=_take(pid, descriptor)) as taken:
                yield pid, taken


def _unix_listeners(pids: Iterable[int]) -> list[tuple[int, Path]]:
    """Where processes listen for calls."""
    found = {}
    for pid, item in _unix_sockets(pids):
        if item.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _is_of_calls(item.getsockname()):
            found[Path(item.getsockname())] = pid
    return [(pid, path) for path, pid in found.items()]


def _shut_unix_down(ones: frozenset[int], others: frozenset[int]) -> int:
    """Break the connections between two groups; returns how many there were. Each is found at the side that dialled."""
    count = 0
    for pid, item in _unix_sockets(ones | others):
        with contextlib.suppress(OSError):  # it is not connected
            if _is_of_calls(item.getpeername()):
                (peer,) = struct.unpack_from("i", item.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if (pid in ones and peer in others) or (pid in others and peer in ones):
                    item.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _is_of_calls(name: object) -> bool:
    return isinstance(name, str) and Path(name).name.startswith(CALLS)


# ----------------------------------------------------------------------- TCP


def _tcp_pairs(ones: frozenset[int], others: frozenset[int]) -> list[tuple[_Tcp, _Tcp]]:
    """The connections that have an end in each group."""
    connected = [item for item in _tcp_sockets(ones | others) if item.state == _CONNECTED]
    far = {(item.local, item.remote): item for item in connected if item.pid in others}
    near = {(item.remote, item.local): item for item in connected if item.pid in ones}
    return [(near[key], far[key]) for key in near.keys() & far.keys()]


def _tcp_sockets(pids: Iterable[int]) -> list[_Tcp]:
    table = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        table[fields[9]] = fields[1], fields[2], fields[3]
    return [_Tcp(pid, number, *table[inode]) for pid, number, inode in _descriptors(pids) if inode in table]


def _descriptors(pids: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Process, descriptor and inode of all sockets."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # it was closed
                    target = str(entry.readlink())
                    if target.startswith("socket:["):
                        yield pid, int(entry.name), target[len("socket:[") : -1]


def _take(pid: int, descriptor: int) -> int:
    """A duplicate of another process's descriptor."""
    process = os.pidfd_open(pid)
    try:
        taken: int = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if taken < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return taken
