"""Simulated TCP and Unix sockets: the product's own code runs over them, on asyncio loops and in blocking threads.

    network = Network(kernel)                 # before patches.installed, which then replaces `socket.socket`
    network.partition(one, two)               # both ways; one_way=True: only what `one` sends is lost
    network.heal()
    network.reset(network.connections[3])     # both ends learn of it
    network.cut(network.connections[4])       # half-open: neither end learns of it
    network.delay(process, 3.0)               # what it sends in this time arrives at its end
    network.break_after(5)                    # resets the connection of the fifth delivery from now: its reply is lost

What is like TCP: data arrive in order within one connection, and in any order between connections. A partition loses
nothing by itself: data that could not be delivered arrive some time after it has healed, as retransmissions do. A full
receiver stops the sender. A process that ends closes its connections; a host that loses power says nothing, and refuses
later data when it is up again. The kernel of an end that was cut off notices it as Linux does: by keep-alive where the
process asked for that and has nothing under way, and else after 15 minutes. `tcp_info` tells the process before.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.kernel import (
    SECOND,
    Event,
    Kernel,
    ProcessKilled,
    SimFile,
    SimHost,
    SimProcess,
    SimSelector,
    SimThread,
    SimulationError,
)
from tests.simulation.patches import Patch, add_patches

WINDOW = 256 * 1024
"""Bytes under way or unread in one direction of a connection, above which its sender has to wait."""
CONNECT_TIMEOUT_S = 127.0
RETRANSMISSION_TIMEOUT_S = 924.0
_CREDENTIALS = struct.Struct("@iII")
_TIMEVAL = struct.Struct("@ll")
_TCP_INFO = struct.Struct("=xxBB52xI")
"""Fields of Linux's `tcp_info`: repeated packets, probes without an answer, milliseconds since the last answer.

The product has its own copy: if it read other places than the kernel writes, both would have to be wrong alike.
"""
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 7200, socket.TCP_KEEPINTVL: 75, socket.TCP_KEEPCNT: 9}
"""Linux's defaults."""


class Link:
    """What one host sends to another: its delay, and whether it arrives."""

    def __init__(self, network: Network, source: SimHost, target: SimHost) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.is_local = source is target
        self.random = network.kernel.random(f"link {source.name} {target.name}")
        self.blocked = False
        self.slow_s = 0.0
        self.bytes_per_s = 0.0
        self._held: dict[Pipe | Channel, None] = {}
        self._blocked_at = 0

    def delay(self, size: int) -> int:
        """Draw the time that *size* bytes take, in nanoseconds."""
        draw = self.random.random()
        if self.is_local:
            return 20_000 + int(draw * draw * 100_000)
        network = self.network
        low, high = network.delay_s
        # Most take little time, and some a lot.
        spread = draw**4 if self.slow_s == 0 else draw
        seconds = low + (high - low) * spread + self.slow_s * (0.5 + draw)
        if self.bytes_per_s:
            seconds += size / self.bytes_per_s
        return int(seconds * SECOND)

    @property
    def passes(self) -> bool:
        """Whether data arrive now."""
        return not self.blocked and self.target.up

    def hold(self, pipe: Pipe | Channel) -> None:
        """Keep the data of a pipe until the link passes again."""
        self._held[pipe] = None

    def block(self) -> None:
        """Lose all, from now on."""
        if not self.blocked and not self.is_local:
            self.blocked = True
            self._blocked_at = self.network.kernel.now

    def unblock(self) -> None:
        """Deliver again; what was held arrives with the next retransmission."""
        self.blocked = False
        outage = (self.network.kernel.now - self._blocked_at) / SECOND
        self.release(min(outage, 30.0))

    def release(self, longest_s: float) -> None:
        """Deliver what was held, within *longest_s* seconds."""
        held, self._held = self._held, {}
        for pipe in held:
            self.network.kernel.after(0.001 + self.random.random() * longest_s, pipe.pump)


class Pipe:
    """One direction of a connection."""

    def __init__(self, link: Link, connection: Connection, mark: str) -> None:
        self.link = link
        self.connection = connection
        self.kernel = link.network.kernel
        self.mark = mark
        self.under_way: deque[tuple[int, bytes | None]] = deque()
        """Arrival time and data of each segment; None is the end of the data."""
        self.size = 0
        self.unread = bytearray()
        self.ended = False
        self.sender: SimSocket | None = None
        self.receiver: SimSocket | None = None
        self.late_until = 0
        """When what is sent now arrives at the earliest."""
        self._last = 0
        self._pumping: Event | None = None
        self._stuck_since: int | None = None

    @property
    def room(self) -> int:
        """Bytes that the sender may add."""
        return WINDOW - self.size - len(self.unread)

    def put(self, data: bytes | None, lag: int = 0) -> None:
        """Send a segment."""
        arrival = self.kernel.now + lag + self.link.delay(0 if data is None else len(data))
        self._last = arrival = max(self._last + 1, self.late_until, arrival)
        self.under_way.append((arrival, data))
        self.size += 0 if data is None else len(data)
        if len(self.under_way) == 1:
            self._pumping = self.kernel.at(arrival, self.pump)

    def pump(self) -> None:
        """Deliver the first segment, if the link passes."""
        if not self.under_way or self.connection.is_cut:
            return
        arrival, data = self.under_way[0]
        if arrival > self.kernel.now:
            self._schedule(arrival)
            return
        if not self.link.passes:
            self.link.hold(self)
            if self._stuck_since is None:
                self._stuck_since = self.kernel.now
                self.kernel.after(RETRANSMISSION_TIMEOUT_S, self._give_up, self._stuck_since)
            return
        self._stuck_since = None
        self.under_way.popleft()
        if data is not None:
            self.size -= len(data)
        if self.under_way:
            self._schedule(max(self.under_way[0][0], self.kernel.now + 1))
        network = self.link.network
        receiver = self.receiver
        if receiver is None or receiver.state == "closed":
            # The other end has gone: its host refuses what still comes.
            if data is not None and self.sender is not None:
                network.refuse(self.connection, self.sender)
            return
        network.delivered += 1
        self.kernel.trace("net", self.connection.number, self.mark, "fin" if data is None else "")
        if data is None:
            self.ended = True
        else:
            self.unread += data
        receiver.changed()
        network.check_break(self.connection)

    def _schedule(self, when: int) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
        self._pumping = self.kernel.at(when, self.pump)

    def _give_up(self, since: int) -> None:
        if self._stuck_since == since and self.sender is not None:
            self.sender.fail(errno.ETIMEDOUT)

    def read(self, size: int, peek: bool = False) -> bytes:
        """Take up to *size* unread bytes."""
        was_full = self.room <= 0
        data = bytes(self.unread[:size])
        if not peek:
            del self.unread[:size]
            if was_full and self.room > 0 and self.sender is not None:
                self.sender.changed()
        return data


class Channel:
    """Calls that arrive at another host, in order: a connection of a modelled client.

    Args:
        link: from the sender to the receiver.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.kernel = link.network.kernel
        self._under_way: deque[tuple[int, Callable[[], object]]] = deque()
        self._last = 0

    def send(self, arrive: Callable[[], object], lag: int = 0) -> None:
        """Call *arrive* at the other host when what was sent before has arrived."""
        self._last = max(self._last + 1, self.kernel.now + lag + self.link.delay(0))
        self._under_way.append((self._last, arrive))
        if len(self._under_way) == 1:
            self.kernel.at(self._last, self.pump)

    def pump(self) -> None:
        """Deliver, if the link passes."""
        while self._under_way:
            at, arrive = self._under_way[0]
            if at > self.kernel.now:
                self.kernel.at(at, self.pump)
                return
            if not self.link.passes:
                self.link.hold(self)
                return
            self._under_way.popleft()
            arrive()


class Connection:
    """A connection between two sockets."""

    def __init__(self, network: Network, client: SimSocket, source: SimHost, target: SimHost) -> None:
        self.network = network
        self.number = network.next_number()
        self.client = client
        self.server: SimSocket | None = None
        self.hosts = source, target
        self.is_cut = False
        self.cut_at = 0
        self.there = Pipe(network.link(source, target), self, ">")
        self.back = Pipe(network.link(target, source), self, "<")

    def other(self, sock: SimSocket) -> SimSocket | None:
        """Return the other end."""
        return self.server if sock is self.client else self.client

    def __repr__(self) -> str:
        return f"connection {self.number} of {self.client.process} and {self.server and self.server.process}"


class Network:
    """All links and connections, and the faults of both.

    Args:
        kernel: the world.
        delay_s: least and largest delay of a segment between hosts.

    Attributes:
        delivered: number of segments that have arrived.
        connections: present connections, oldest first.
    """

    def __init__(self, kernel: Kernel, delay_s: tuple[float, float] = (0.0002, 0.01)) -> None:
        self.kernel = kernel
        self.delay_s = delay_s
        self.delivered = 0
        self.connections: dict[Connection, None] = {}
        self.listeners: dict[tuple[str, object], SimSocket] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._breaks: list[int] = []
        self._numbers = 0
        self._ports: dict[str, int] = {}
        kernel.devices["network"] = self
        add_patches(_patches)

    def next_number(self) -> int:
        """Return the number of a new connection."""
        self._numbers += 1
        return self._numbers

    def link(self, source: SimHost, target: SimHost) -> Link:
        """Return the link from one host to another."""
        key = source.name, target.name
        found = self._links.get(key)
        if found is None:
            found = self._links[key] = Link(self, source, target)
        return found

    def host_of(self, address: str, caller: SimHost) -> SimHost | None:
        """Return the host of an address, as *caller* sees it."""
        if address in ("", "localhost", "0.0.0.0", "::1") or address.startswith("127."):
            return caller
        for host in self.kernel.hosts.values():
            if address in (host.address, host.name):
                return host
        return None

    def new_port(self, host: SimHost) -> int:
        """Return a port of a host that was never used."""
        port = self._ports.get(host.name, 40_000) + 1
        self._ports[host.name] = port
        return port

    # ------------------------------------------------------------------ faults

    def partition(self, one: SimHost, other: SimHost, *, one_way: bool = False) -> None:
        """Lose what *one* sends to *other*, and the reverse."""
        self.link(one, other).block()
        if not one_way:
            self.link(other, one).block()

    def isolate(self, host: SimHost) -> None:
        """Cut a host off from all others."""
        for other in self.kernel.hosts.values():
            if other is not host:
                self.partition(host, other)

    def heal(self) -> None:
        """End all partitions and slowness."""
        for link in self._links.values():
            link.slow_s = 0.0
            link.bytes_per_s = 0.0
            if link.blocked:
                link.unblock()

    def host_is_up(self, host: SimHost) -> None:
        """Deliver what was sent to a host while it was down; call it after `SimHost.boot`."""
        for link in self._links.values():
            if link.target is host:
                link.release(2.0)

    def reset(self, connection: Connection) -> None:
        """Break a connection; both ends learn of it."""
        self.connections.pop(connection, None)
        for end in (connection.client, connection.server):
            if end is not None:
                end.fail(errno.ECONNRESET)
        connection.is_cut = True

    def delay(self, process: SimProcess, seconds: float) -> bool:
        """Hold back what a process sends to other hosts over its present connections; return whether it has any."""
        pipes = [
            pipe
            for connection in self.connections
            for pipe in (connection.there, connection.back)
            if pipe.sender is not None and pipe.sender.process is process and not pipe.link.is_local
        ]
        for pipe in pipes:
            pipe.late_until = self.kernel.now + int(seconds * SECOND)
        return bool(pipes)

    def cut(self, connection: Connection) -> None:
        """Break a connection; neither end learns of it, until its kernel misses the answers of the other."""
        if connection.is_cut:
            return
        connection.is_cut, connection.cut_at = True, self.kernel.now
        for end in (connection.client, connection.server):
            if end is not None:
                end.begin_probes()

    def break_after(self, count: int) -> None:
        """Reset the connection of the *count*-th delivery from now, right after it: a reply to it is lost."""
        self._breaks.append(self.delivered + count)

    def check_break(self, connection: Connection) -> None:
        """Break a connection after a delivery, if that was ordered."""
        if self._breaks and self.delivered in self._breaks:
            self._breaks.remove(self.delivered)
            server = connection.server
            if server is not None and server.process.alive and connection.hosts[0] is not connection.hosts[1]:
                # The receiver still handles what has arrived: only what it sends is lost.
                self.kernel.at(self.kernel.now + 1, self._lose, connection)

    def _lose(self, connection: Connection) -> None:
        connection.is_cut = True
        self.kernel.after(0.002, self.reset, connection)

    def refuse(self, connection: Connection, sender: SimSocket) -> None:
        """Answer data for an end that is gone with a reset."""
        self.connections.pop(connection, None)
        if sender.state != "closed":
            self.kernel.after(0.001, sender.fail, errno.ECONNRESET)


class SimSocket(SimFile):
    """A stream socket of a simulated process, with the interface of `socket.socket`."""

    def __init__(
        self, family: int = socket.AF_INET, type: int = socket.SOCK_STREAM, proto: int = 0, fileno: Any = None
    ) -> None:
        kernel = _network().kernel
        if kernel.current is None:
            raise SimulationError("a socket is made outside of a simulated process")
        self._begin(kernel.current, family, type)

    def _begin(self, process: SimProcess, family: int, kind: int) -> None:
        super().__init__(process)
        self.network = _network()
        self.host = process.host
        self.family = socket.AddressFamily(family) if family != -1 else socket.AF_INET
        self.type = socket.SocketKind(kind) if kind != -1 else socket.SOCK_STREAM
        self.proto = 0
        self.state = "new"
        self.name: Any = ("0.0.0.0", 0) if family != socket.AF_UNIX else ""
        self.peer: Any = None
        self.connection: Connection | None = None
        self.inbound: Pipe | None = None
        self.outbound: Pipe | None = None
        self.error = 0
        self.timeout: float | None = None
        self._accepting: deque[SimSocket] = deque()
        self._backlog = 0
        self._shut_write = False
        self._shut_read = False
        self._receive_timeout: float | None = None
        self._send_timeout: float | None = None
        self._keeps_alive = False
        self._keep_alive = dict(KEEP_ALIVE)

    @classmethod
    def _of(cls, process: SimProcess, family: int) -> SimSocket:
        made = cls.__new__(cls)
        made._begin(process, family, socket.SOCK_STREAM)
        return made

    # ------------------------------------------------------------------ readiness

    def readable(self) -> bool:
        if self._accepting or self.error or self._shut_read:
            return True
        pipe = self.inbound
        return pipe is not None and (bool(pipe.unread) or pipe.ended)

    def writable(self) -> bool:
        if self.error:
            return True
        pipe = self.outbound
        return self.state == "connected" and pipe is not None and pipe.room > 0

    # ------------------------------------------------------------------ addresses, options

    def fileno(self) -> int:
        """Return its descriptor; -1 after `close`."""
        return -1 if self.state == "closed" else self.fd

    def setsockopt(self, level: int, option: int, value: Any, *_: Any) -> None:
        """Take the time limits and what keep-alive needs, and ignore all else."""
        if level == socket.SOL_SOCKET and option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            seconds, microseconds = _TIMEVAL.unpack(value)
            limit = seconds + microseconds / 1e6 or None
            if option == socket.SO_RCVTIMEO:
                self._receive_timeout = limit
            else:
                self._send_timeout = limit
        elif (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            self._keeps_alive = bool(value)
        elif level == socket.IPPROTO_TCP and option in self._keep_alive:
            self._keep_alive[option] = value

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """Return and clear the pending error; or the other end's credentials; or what the kernel hears of it."""
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO) and size:
            return self._tcp_info()
        if option == socket.SO_PEERCRED and size:
            other = self.connection and self.connection.other(self)
            return _CREDENTIALS.pack(other.process.pid if other else 0, os.geteuid(), os.getegid())
        if option == socket.SO_ERROR:
            error, self.error = self.error, 0
            return error
        return bytes(size) if size else WINDOW

    def _tcp_info(self) -> bytes:
        connection = self.connection
        if connection is None or not connection.cut_at or self.outbound is None:
            return _TCP_INFO.pack(0, 0, 0)
        silent_s = (self.kernel.now - connection.cut_at) // SECOND
        repeats = min(255, silent_s) if self.outbound.size else 0
        since_first = silent_s - self._keep_alive[socket.TCP_KEEPIDLE]
        is_probing = self._keeps_alive and not repeats and since_first >= 0
        probes = min(255, since_first // self._keep_alive[socket.TCP_KEEPINTVL] + 1) if is_probing else 0
        return _TCP_INFO.pack(repeats, probes, silent_s * 1000)

    def begin_probes(self) -> None:
        """Let the kernel notice later that the connection is cut."""
        idle, interval, count = self._keep_alive.values()
        if self._keeps_alive:
            self.kernel.after(idle + interval * count, self._probed_in_vain)
        self.kernel.after(RETRANSMISSION_TIMEOUT_S, self._sent_in_vain)

    def _probed_in_vain(self) -> None:
        if self.outbound is not None and not self.outbound.size:
            self.fail(errno.ETIMEDOUT)

    def _sent_in_vain(self) -> None:
        if self.outbound is not None and self.outbound.size:
            self.fail(errno.ETIMEDOUT)

    def setblocking(self, flag: bool) -> None:
        """Wait in calls, or not."""
        self.timeout = None if flag else 0.0

    def settimeout(self, value: float | None) -> None:
        """Set the seconds that a call may wait."""
        self.timeout = value

    def gettimeout(self) -> float | None:
        """Return the seconds that a call may wait."""
        return self.timeout

    def getblocking(self) -> bool:
        """Return whether calls wait."""
        return self.timeout != 0.0

    def getsockname(self) -> Any:
        """Return the own address."""
        return self.name

    def getpeername(self) -> Any:
        """Return the address of the other end."""
        if self.peer is None or self.state != "connected":
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.peer

    # ------------------------------------------------------------------ listening

    def bind(self, address: Any) -> None:
        """Take an address."""
        self._effect()
        if self.family == socket.AF_UNIX:
            self.name = os.fspath(address)
            if (self.host.name, self.name) in self.network.listeners:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            return
        host, port = address[:2]
        where = self.network.host_of(host, self.host)
        if where is not self.host:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        port = port or self.network.new_port(self.host)
        if (self.host.name, port) in self.network.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.name = (host or "0.0.0.0", port)

    def listen(self, backlog: int = 128) -> None:
        """Accept connections from now on."""
        self._effect()
        if self.name in (("0.0.0.0", 0), ""):
            self.bind(("0.0.0.0", 0))
        self.network.listeners[self._key] = self
        self._backlog = backlog
        self.state = "listening"

    @property
    def _key(self) -> tuple[str, object]:
        return self.host.name, self.name if self.family == socket.AF_UNIX else self.name[1]

    def accept(self) -> tuple[SimSocket, Any]:
        """Return the next connection."""
        self._effect()
        self._wait(lambda: bool(self._accepting) or self.state != "listening", "accept()")
        if self.state != "listening" or not self._accepting:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sock = self._accepting.popleft()
        return sock, sock.peer

    # ------------------------------------------------------------------ connecting

    def connect(self, address: Any) -> None:
        """Connect; without blocking it raises BlockingIOError, and the outcome shows as `SO_ERROR`."""
        self._effect()
        if self.state == "connected":
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        if self.state == "new":
            self._dial(address)
        if self.timeout == 0.0:
            if self.state == "connected":
                return
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        try:
            self._wait(lambda: self.state != "connecting", "connect()")
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        self._raise_error()

    def connect_ex(self, address: Any) -> int:
        """Connect as `connect`, and return the number of the error."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _dial(self, address: Any) -> None:
        network, kernel = self.network, self.kernel
        self.peer = address
        if self.family == socket.AF_UNIX:
            listener = network.listeners.get((self.host.name, os.fspath(address)))
            if listener is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            if len(listener._accepting) > listener._backlog:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            connection = Connection(network, self, self.host, self.host)
            listener._greet(connection)
            self._established(connection)
            return
        target = network.host_of(address[0], self.host)
        if target is None:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        if self.name[1] == 0:
            self.name = (self.host.address if address[0] == target.address else address[0], network.new_port(self.host))
        self.state = "connecting"
        connection = self.connection = Connection(network, self, self.host, target)
        link = connection.there.link
        kernel.at(kernel.now + self.process.lag + link.delay(0), self._syn, connection, address[1], kernel.now, 1.0)

    def _syn(self, connection: Connection, port: int, since: int, pause: float) -> None:
        """Let the request for a connection arrive."""
        if self.state != "connecting":
            return
        kernel, (source, target) = self.kernel, connection.hosts
        if not connection.there.link.passes or not self.network.link(target, source).passes:
            if kernel.now - since > CONNECT_TIMEOUT_S * SECOND:
                self.fail(errno.ETIMEDOUT)
            else:
                kernel.after(pause, self._syn, connection, port, since, min(pause * 2, 32.0))
            return
        listener = self.network.listeners.get((target.name, port))
        back = connection.back.link.delay(0)
        if listener is None or not listener.process.alive:
            kernel.at(kernel.now + back, self.fail, errno.ECONNREFUSED)
        elif len(listener._accepting) > listener._backlog:
            kernel.after(pause, self._syn, connection, port, since, min(pause * 2, 32.0))
        else:
            listener._greet(connection)
            kernel.at(kernel.now + back, self._established, connection)

    def _greet(self, connection: Connection) -> None:
        sock = SimSocket._of(self.process, self.family)
        client = connection.client
        sock.name = client.peer if self.family != socket.AF_UNIX else self.name
        sock.peer = client.name
        sock.state = "connected"
        sock.connection, connection.server = connection, sock
        sock.inbound, sock.outbound = connection.there, connection.back
        connection.there.receiver = connection.back.sender = sock
        self._accepting.append(sock)
        self.network.connections[connection] = None
        self.changed()

    def _established(self, connection: Connection) -> None:
        if self.state == "closed":
            if connection.server is not None:
                connection.server.fail(errno.ECONNRESET)
            return
        if self.error:
            return
        self.state = "connected"
        self.connection = connection
        self.outbound, self.inbound = connection.there, connection.back
        connection.there.sender = connection.back.receiver = self
        self.changed()
        connection.back.pump()

    # ------------------------------------------------------------------ data

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return bytes that have arrived; b"" at the end, and at once for no bytes, as Python does."""
        process = self.process
        if not process.alive:
            raise ProcessKilled(-9)
        if not size:
            return b""
        pipe = self.inbound
        if pipe is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if not pipe.unread and not pipe.ended and not self.error and not self._shut_read:
            if self.timeout == 0.0 or flags & socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._wait(self.readable, "recv()", self._receive_timeout)
        if flags & socket.MSG_WAITALL and self.timeout != 0.0 and len(pipe.unread) < size:
            return self._recv_all(pipe, size)
        if pipe.unread:
            return pipe.read(size, bool(flags & socket.MSG_PEEK))
        self._raise_error()
        return b""

    def _recv_all(self, pipe: Pipe, size: int) -> bytes:
        """Take bytes as they come, which makes room for more, until there are *size*, or the data pause or end."""
        data = bytearray(pipe.read(size))
        while len(data) < size and not pipe.ended and not self.error and not self._shut_read:
            try:
                self._wait(self.readable, "recv()", self._receive_timeout)
            except OSError:
                if not data:
                    raise
                break
            data += pipe.read(size - len(data))
        if not data:
            self._raise_error()
        return bytes(data)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer."""
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as many bytes as there is room for."""
        self._effect()
        self._raise_error()
        pipe = self.outbound
        if pipe is None or self._shut_write or self.state != "connected":
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if not len(data):
            return 0
        if pipe.room <= 0:
            if self.timeout == 0.0 or flags & socket.MSG_DONTWAIT:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._wait(self.writable, "send()", self._send_timeout)
            self._raise_error()
        view = memoryview(data).cast("B")
        sent = min(len(view), pipe.room)
        if self.connection is not None and not self.connection.is_cut:
            pipe.put(bytes(view[:sent]), self.process.lag)
        else:  # nobody takes it, and the sender does not know
            pipe.size += sent
        return sent

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of it."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view, flags) :]

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        """Send several buffers."""
        return self.send(b"".join(bytes(one) for one in buffers))

    def shutdown(self, how: int) -> None:
        """End one direction, or both."""
        self._effect()
        if self.state == "listening":
            self._unlisten()
            self.state = "shut"
            self.changed()
            return
        if self.state != "connected" or self.outbound is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if how in (socket.SHUT_WR, socket.SHUT_RDWR) and not self._shut_write:
            self._shut_write = True
            self.outbound.put(None, self.process.lag)
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._shut_read = True
            self.changed()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close it: the other end sees the end of the data, or a reset if there was unread data."""
        if self.state == "closed":
            return
        if self.process.alive and not self.kernel.closed:
            self._effect()
        self._close(silent=False)

    def _close(self, *, silent: bool) -> None:
        was, self.state = self.state, "closed"
        if was in ("listening", "shut"):
            self._unlisten()
            for sock in self._accepting:
                sock._close(silent=silent)
        connection = self.connection
        if connection is not None and was == "connected":
            other = connection.other(self)
            if not silent and not connection.is_cut and self.outbound is not None:
                if self.inbound is not None and self.inbound.unread and other is not None:
                    self.kernel.at(
                        self.kernel.now + self.outbound.link.delay(0), self._reset_other, other, self.outbound.link
                    )
                elif not self._shut_write:
                    self.outbound.put(None, self.process.lag)
            if other is None or other.state == "closed":
                self.network.connections.pop(connection, None)
        self.forget()
        self.changed()

    def _reset_other(self, other: SimSocket, link: Link) -> None:
        if link.passes:
            other.fail(errno.ECONNRESET)
        # else the reset is lost: the other end learns of it when it sends

    def _unlisten(self) -> None:
        if self.network.listeners.get(self._key) is self:
            del self.network.listeners[self._key]

    def owner_died(self, silent: bool) -> None:
        self._close(silent=silent)

    def detach(self) -> int:
        """Return the descriptor and leave it open."""
        return self.fd

    def fail(self, number: int) -> None:
        """Note an error of the connection."""
        if self.state != "closed":
            self.error = number
            if self.state == "connecting":
                self.state = "new"
            self.changed()

    def _raise_error(self) -> None:
        if self.error:
            number = self.error
            if self.state != "connected":
                self.error = 0
            raise OSError(number, os.strerror(number))

    def _effect(self) -> None:
        if not self.process.alive:
            raise ProcessKilled(-9)
        if self.state == "closed":
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self.process.effect()

    def _wait(
        self,
        ready: Callable[[], bool],
        reason: str,
        limit: float | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        if ready():
            return
        if self.timeout == 0.0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        where = f"{reason} of {self.connection or self.name}"
        if not self.wait(ready, where, self.timeout if self.timeout is not None else limit):
            if enough is not None and enough():
                return
            if self.timeout is not None:
                raise TimeoutError("timed out")
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SimSocket {self.fd} {self.state} {self.name} {self.peer}>"


class SimEvent(SimFile):
    """An eventfd."""

    def __init__(self, process: SimProcess, value: int) -> None:
        super().__init__(process)
        self.value = value

    def readable(self) -> bool:
        return self.value > 0

    def writable(self) -> bool:
        return True


class SimPoll:
    """`select.poll` over simulated files."""

    def __init__(self) -> None:
        self._kernel = _network().kernel
        self._masks: dict[int, int] = {}

    def register(self, fileobj: Any, mask: int = select.POLLIN | select.POLLOUT) -> None:
        """Watch a file."""
        self._masks[fileobj if isinstance(fileobj, int) else fileobj.fileno()] = mask

    modify = register

    def unregister(self, fileobj: Any) -> None:
        """Stop watching a file."""
        del self._masks[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for fd, mask in self._masks.items():
            file = self._kernel.files.get(fd)
            if file is None:
                found.append((fd, select.POLLNVAL))
                continue
            events = mask & ((select.POLLIN if file.readable() else 0) | (select.POLLOUT if file.writable() else 0))
            if isinstance(file, SimSocket) and (file.error or file.state == "shut"):
                events |= select.POLLERR if file.error else select.POLLHUP
            if events:
                found.append((fd, events))
        return found

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait for events, at most *timeout* milliseconds."""
        ready = self._ready()
        if ready or (timeout is not None and timeout == 0):
            return ready
        thread = self._kernel.thread
        if thread is None:
            raise SimulationError("poll() would block on a loop that the kernel drives")
        deadline = None if timeout is None or timeout < 0 else thread.deadline(timeout / 1000)
        while not ready:
            files = [file for fd in self._masks if (file := self._kernel.files.get(fd)) is not None]
            for file in files:
                file.waiters.append(thread)
            woken = thread.park(f"poll() of {len(files)} files", deadline)
            _forget_waiter(files, thread)
            ready = self._ready()
            if not woken:
                break
        return ready


def _forget_waiter(files: list[SimFile], thread: SimThread) -> None:
    for file in files:
        if thread in file.waiters:
            file.waiters.remove(thread)


# ------------------------------------------------------------------ patches


def _network() -> Network:
    from tests.simulation.kernel import installed_kernel

    network: Network = installed_kernel().devices["network"]
    return network


def _patches(kernel: Kernel) -> list[Patch]:
    if "network" not in kernel.devices:
        return []
    network: Network = kernel.devices["network"]

    def create_connection(
        address: tuple[str, int], timeout: float | None = None, source_address: Any = None, **_: Any
    ) -> SimSocket:
        sock = SimSocket()
        try:
            sock.settimeout(timeout)
            sock.connect(address)
        except BaseException:
            sock._close(silent=False)
            raise
        return sock

    def create_server(address: tuple[str, int], *, backlog: int | None = None, **_: Any) -> SimSocket:
        sock = SimSocket()
        sock.bind(address)
        sock.listen(backlog or 128)
        return sock

    def socketpair(*_: Any) -> tuple[SimSocket, SimSocket]:
        one, other = SimSocket(socket.AF_UNIX), SimSocket(socket.AF_UNIX)
        connection = Connection(network, one, one.host, one.host)
        one._established(connection)
        other.state = "connected"
        other.connection, connection.server = connection, other
        other.inbound, other.outbound = connection.there, connection.back
        connection.there.receiver = connection.back.sender = other
        return one, other

    real_getaddrinfo = socket.getaddrinfo

    def getaddrinfo(
        host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, ...]]:
        process = kernel.current
        if process is None:
            return real_getaddrinfo(host, port, family, type, proto, flags)
        found = network.host_of(host or "", process.host)
        numeric = bool(host) and host.replace(".", "").isdigit()
        if (found is None and not numeric) or (flags & socket.AI_NUMERICHOST and not numeric):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        address = host if numeric else (found.address if found is not process.host else "127.0.0.1")  # type: ignore[union-attr]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    def eventfd(value: int, flags: int = 0) -> int:
        assert kernel.current is not None
        return SimEvent(kernel.current, value).fd

    def event(fd: int) -> SimEvent:
        file = kernel.files.get(fd)
        if not isinstance(file, SimEvent):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def eventfd_write(fd: int, value: int) -> None:
        file = event(fd)
        file.value += value
        file.changed()

    def eventfd_read(fd: int) -> int:
        file = event(fd)
        if not file.value:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        value, file.value = file.value, 0
        return value

    real_close = os.close

    def close(fd: int) -> None:
        file = kernel.files.get(fd)
        if file is None:
            real_close(fd)
        elif isinstance(file, SimSocket):
            file.close()
        else:
            closing = getattr(file, "close", file.forget)
            closing()

    def gethostname() -> str:
        return "simulator" if kernel.current is None else kernel.current.host.name

    import selectors

    return [
        (socket, "socket", SimSocket),
        (socket, "create_connection", create_connection),
        (socket, "create_server", create_server),
        (socket, "socketpair", socketpair),
        (socket, "getaddrinfo", getaddrinfo),
        (socket, "gethostname", gethostname),
        (socket, "getfqdn", lambda name="": name or gethostname()),
        (select, "poll", SimPoll),
        (selectors, "DefaultSelector", SimSelector),
        (os, "eventfd", eventfd),
        (os, "eventfd_write", eventfd_write),
        (os, "eventfd_read", eventfd_read),
        (os, "close", close),
    ]
