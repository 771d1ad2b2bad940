"""Both sides of authenticated connections on an event loop: handshake first, then frames.

They do without asyncio's transports: a transport and its protocol cost some 20 us per message and side. A connection
reads and writes its non-blocking socket itself when a `Poller` calls it. On an actor's loop (`actors.process.loops`)
the loop's selector calls directly; on any other loop `add_reader` and `add_writer` do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.errors import ActorError, AuthenticationError, FrameTooLarge, RecipientUnreachable, RemoteError, WireError
from actors.process.loops import DirectLoop
from actors.rpc import codec, wire
from actors.rpc.security import MAC_SIZE, ClientHandshake, ServerHandshake, far_end, near_end, peer_process
from actors.rpc.tls import TlsStream
from actors.rpc.wire import RecordReader, Tags, seal

if TYPE_CHECKING:
    from actors.rpc.service import RpcService

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
DISMISS_S = 1.0
REMEDY = "send it as a blob, or raise rpc.frame-size on every process of the cluster"

READ_SIZE = 64 * 1024
LARGE_READ_SIZE = 256 * 1024
BATCH_SIZE = 64 * 1024
HIGH_WATER, LOW_WATER = 64 * 1024, 16 * 1024

CUT_OFF_S = 30
"""Seconds without a sign of life from the peer's kernel after which a TCP connection is given up."""
CUT_OFF_CHECK_S = 5.0
"""Seconds between two checks."""
KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S = 10, 5
_TCP_INFO = struct.Struct("=xxBB52xI")
"""Fields of Linux's `tcp_info`: repeated packets, probes without an answer, milliseconds since the last answer."""
Callback = Callable[[], object]


class Poller:
    """Calls back when a descriptor can be read or written.

    Args:
        loop: the loop of the thread that uses it.
    """

    __slots__ = ("add_reader", "add_writer", "remove_reader", "remove_writer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if isinstance(loop, DirectLoop):
            self.add_reader: Callable[[int, Callback], object] = loop.add_direct_reader
            self.add_writer: Callable[[int, Callback], object] = loop.add_direct_writer
            self.remove_reader: Callable[[int], object] = loop.remove_direct_reader
            self.remove_writer: Callable[[int], object] = loop.remove_direct_writer
        else:
            self.add_reader = loop.add_reader
            self.add_writer = loop.add_writer
            self.remove_reader = loop.remove_reader
            self.remove_writer = loop.remove_writer


def set_tcp_options(sock: socket.socket) -> None:
    """Send each small frame at once, and probe an idle peer; do nothing to a Unix socket."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_S)
        probes = max(1, (CUT_OFF_S - KEEP_ALIVE_IDLE_S) // KEEP_ALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)


def is_cut_off(sock: socket.socket) -> bool:
    """Return whether the other end of a TCP connection has acknowledged nothing for `CUT_OFF_S` seconds.

    Its host is gone, or the network drops the packets. The kernel's keep-alive notices that of an idle connection only:
    while it repeats data, or asks whether the peer takes data again, it would try for 15 minutes. TCP_USER_TIMEOUT does
    not fit: it also ends the connection to a live peer that reads nothing for that long, because a mailbox is full.
    """
    repeats: int
    probes: int
    heard_ms: int
    repeats, probes, heard_ms = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    # A live peer that takes nothing answers each probe at once, but two minutes may pass between two probes.
    return (repeats > 0 or probes > 1) and heard_ms >= CUT_OFF_S * 1000


class PendingAsk(NamedTuple):
    """An ask under way: its future, the decoder of its reply, its deadline (on the loop's clock), its timeout error."""

    future: asyncio.Future[Any]
    decode: Callable[[Any], Any]
    deadline: float
    on_timeout: Callable[[], Exception]


class PendingAsks:
    """Asks by correlation id.

    A timer for each ask would cost as much as sending it. So one timer runs for the earliest deadline. It is armed
    again only when it fires, or when an ask with an earlier deadline comes.

    Args:
        loop: source of the time and the timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asks: dict[int, PendingAsk] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, correlation: int, ask: PendingAsk) -> None:
        """Add an ask that waits for its reply."""
        self._asks[correlation] = ask
        if self._timer is None or ask.deadline < self._timer.when():
            self._arm(ask.deadline)

    def take(self, correlation: int) -> PendingAsk | None:
        """Remove and return the ask of a reply; None when it has timed out."""
        return self._asks.pop(correlation, None)

    def fail_all(self, make_error: Callable[[], Exception]) -> None:
        """Fail all asks with errors from *make_error*."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asks, self._asks = self._asks, {}
        for ask in asks.values():
            if not ask.future.done():
                ask.future.set_exception(make_error())

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for correlation in [key for key, ask in self._asks.items() if ask.deadline <= now]:
            ask = self._asks.pop(correlation)
            if not ask.future.done():
                ask.future.set_exception(ask.on_timeout())
        if self._asks:
            self._arm(min(ask.deadline for ask in self._asks.values()))


class _Connection:
    """Base of both sides. All frames that are sent while one read is handled leave in one write.

    Args:
        service: its RPC service.
    """

    _handshake: ClientHandshake | ServerHandshake

    def __init__(self, service: RpcService) -> None:
        self.loop = service.loop
        self.sock: socket.socket | None = None
        self.paused = False
        self._service = service
        self._poller = service.poller
        self._fd = -1
        self._tls: TlsStream | None = None
        self._sends: Tags | None = None
        self._records: RecordReader | None = None
        self._early = bytearray()
        """Bytes of the handshake that have come so far."""
        self._decoder = wire.FrameDecoder(service.config.frame_size)
        self._untaken: Iterator[list[Any]] | None = None
        """Messages that were read before the pause."""
        self._deadline: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None
        self._read_size = READ_SIZE
        self._out: list[bytes] = []
        self._out_size = 0
        self._corked = False
        self._may_flush = False
        self._backlog: deque[bytes | memoryview] = deque()
        self._backlog_size = 0
        self._write_full = False
        self._ending = False
        self._dismissed = False

    # ------------------------------------------------------------------ hooks of the two sides

    def established(self) -> None:
        """Handle the end of the handshake: the peer has proved that it holds the secret."""

    def message_received(self, message: list[Any]) -> None:
        """Handle one well-formed message."""
        raise NotImplementedError

    def pressure_changed(self) -> None:
        """Handle that the backlog has risen above its high water, or fallen below its low water."""

    def lost(self, error: OSError | None) -> None:
        """Handle the end of the connection; *error* is None for an ordinary end."""
        raise NotImplementedError

    def fail(self, error: ActorError) -> None:
        """Close the connection because of *error*."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the beginning and the end

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        """Take over a connected, non-blocking socket, with or without TLS."""
        self._deadline = self.loop.call_later(HANDSHAKE_TIMEOUT_S, self._handshake_late)
        set_tcp_options(sock)
        if sock.family != socket.AF_UNIX:
            self._check = self.loop.call_later(CUT_OFF_CHECK_S, self._check_cut_off)
        self.sock, self._fd = sock, sock.fileno()
        self._receive, self._transmit = sock.recv, sock.send
        self._tls = tls
        self._poller.add_reader(self._fd, self._readable)
        if tls is not None:
            self._put(tls.outgoing())

    def _check_cut_off(self) -> None:
        if self.sock is None:
            return
        if is_cut_off(self.sock):
            self.lost(OSError(errno.ETIMEDOUT, f"{os.strerror(errno.ETIMEDOUT)}; the peer is cut off"))
        else:
            self._check = self.loop.call_later(CUT_OFF_CHECK_S, self._check_cut_off)

    def drop(self) -> None:
        """Close the connection at once."""
        for timer in (self._deadline, self._check):
            if timer is not None:
                timer.cancel()
        self._deadline = self._check = None
        self._untaken = None
        if self.sock is None:
            return
        self._poller.remove_reader(self._fd)
        self._poller.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self.sock.close()
        self.sock = None
        self._may_flush = False
        self._out.clear()
        self._backlog.clear()
        self._out_size = self._backlog_size = 0

    def dismiss(self) -> None:
        """Write queued data and shut down writing; read and discard the peer's further data.

        Closing with unread input would reset the connection, and could lose the last data sent.
        """
        self.flush()
        if self.sock is None:
            return
        self._ending = self._dismissed = True
        self._poller.remove_reader(self._fd)
        self._poller.add_reader(self._fd, self._discard)
        if not self._backlog:
            _finish(self.sock)

    def _discard(self) -> None:
        try:
            if self._receive(READ_SIZE):
                return
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        self.lost(None)

    # ------------------------------------------------------------------ the handshake

    def _handshake_late(self) -> None:
        # On the client this means a hung process, not a wrong secret: callers that retry must keep retrying.
        late = RecipientUnreachable if isinstance(self._handshake, ClientHandshake) else AuthenticationError
        self.fail(late(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"))

    def _shake_hands(self, data: bytes) -> bytes:
        self._early += data
        while not self._handshake.done and len(self._early) >= self._handshake.expects:
            wanted = self._handshake.expects
            part = bytes(self._early[:wanted])
            del self._early[:wanted]
            answer = self._handshake.receive(part)
            if answer:
                self.write(answer)
        rest = bytes(self._early) if self._handshake.done else b""
        if self._handshake.done:
            self._early.clear()
        return rest

    def _tag(self) -> None:
        """Use records from now on, unless a Unix socket or TLS makes them unnecessary."""
        if self._tls is None and self.sock is not None and self.sock.family != socket.AF_UNIX:
            to_server, to_client = self._handshake.tags()
            serves = isinstance(self._handshake, ServerHandshake)
            self._sends, receives = (to_client, to_server) if serves else (to_server, to_client)
            self._records = RecordReader(receives)

    # ------------------------------------------------------------------ reading

    def _readable(self) -> None:
        try:
            data = self._receive(self._read_size)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        if not data:
            self.lost(None)
            return
        if len(data) == self._read_size:
            self._read_size = LARGE_READ_SIZE
        corked, self._corked = self._corked, True
        try:
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if data:
                self._received(data)
        except BaseException:
            self.lost(None)  # part of a message may be lost, so later data cannot be trusted
            raise
        finally:
            self._corked = corked
        if self._out:
            self.flush()

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes:
        try:
            plain = tls.receive(data)
        except ActorError as error:
            self._put(tls.outgoing())  # an alert with the reason
            self.fail(error)
            return b""
        self._put(tls.outgoing())
        return plain

    def _received(self, data: bytes) -> None:
        if not self._handshake.done:
            try:
                data = self._shake_hands(data)
                if not self._handshake.done:
                    return
            except ActorError as error:
                self.fail(error)
                return
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self._tag()
            self._may_flush = True
            self.established()
        if self._records is not None:
            try:
                data = self._records.feed(data)
            except ActorError as error:
                self.fail(error)
                return
        self._take(self._decoder.feed(data))

    def _take(self, messages: Iterator[list[Any]]) -> None:
        """Handle messages until none is left, or until the connection is paused or closed."""
        handle = self.message_received
        try:
            for message in messages:
                handle(message)
                if self.paused:
                    self._untaken = messages
                    return
                if self.sock is None:
                    return
        except ActorError as error:
            self.fail(error)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume reading, and the handling of messages that were read before."""
        if paused == self.paused or self.sock is None or self._ending:
            return
        self.paused = paused
        if paused:
            self._poller.remove_reader(self._fd)
            return
        corked, self._corked = self._corked, True
        try:
            untaken, self._untaken = self._untaken, None
            if untaken is not None:
                self._take(untaken)
        finally:
            self._corked = corked
        if self._out:
            self.flush()
        if self.sock is not None and not self.paused and not self._ending:
            self._poller.add_reader(self._fd, self._readable)

    # ------------------------------------------------------------------ writing

    @property
    def unsent(self) -> int:
        """Number of bytes that wait in this process."""
        return self._out_size + self._backlog_size

    def send(self, frame: bytes) -> None:
        """Queue a frame.

        The first frame of a turn of the loop leaves at once, because the peer may wait for it. The other frames of that
        turn leave together, and so do frames that are sent while a read is handled.
        """
        self._out.append(frame)
        self._out_size += len(frame)
        if self._corked:
            if self._out_size > BATCH_SIZE:
                self.flush()
        else:
            self._corked = True
            self.loop.call_soon(self._uncork)
            self.flush()

    def _uncork(self) -> None:
        self._corked = False
        self.flush()

    def flush(self) -> None:
        """Pass queued frames to the kernel, or to the backlog."""
        if self._out and self._may_flush:
            out, self._out, self._out_size = self._out, [], 0
            data = out[0] if len(out) == 1 else b"".join(out)
            self.write(data if self._sends is None else seal(self._sends, data))

    def write(self, data: bytes) -> None:
        """Send *data* after all data that was sent before."""
        if self._tls is None:
            self._put(data)
        else:
            self._tls.send(data)
            self._put(self._tls.outgoing())

    def _put(self, data: bytes) -> None:
        if self.sock is None or not data:
            return
        if not self._backlog:
            try:
                sent = self._transmit(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.lost(error)
                return
            if sent == len(data):
                return
            self._backlog.append(memoryview(data)[sent:])
            self._backlog_size = len(data) - sent
            self._poller.add_writer(self._fd, self._writable)
        else:
            self._backlog.append(data)
            self._backlog_size += len(data)
        if self._backlog_size > HIGH_WATER and not self._write_full:
            self._write_full = True
            self.pressure_changed()

    def _writable(self) -> None:
        while self._backlog:
            piece = self._backlog[0]
            try:
                sent = self._transmit(piece)
            except BlockingIOError:
                break
            except OSError as error:
                self.lost(error)
                return
            self._backlog_size -= sent
            if sent < len(piece):
                self._backlog[0] = memoryview(piece)[sent:]
                break
            self._backlog.popleft()
        if not self._backlog and self.sock is not None:
            self._poller.remove_writer(self._fd)
            if self._dismissed:
                _finish(self.sock)
            elif self._ending:
                self.lost(None)
            if self._ending:
                return
        if self._write_full and self._backlog_size <= LOW_WATER:
            self._write_full = False
            self.pressure_changed()


class ServerConnection(_Connection):
    """The accepting side: messages go to the service's dispatch; a peer that violates the protocol is disconnected.

    Args:
        service: its RPC service.
        peer: the other side's name, for the log.
    """

    def __init__(self, service: RpcService, peer: str) -> None:
        super().__init__(service)
        self._peer = peer
        self._dispatch = service.dispatch
        self.fetches_results = False
        """Whether the peer accepts offloaded results."""
        self.caller = ""
        """Name that the peer has announced."""
        self.source = peer
        """Address of the peer, or its process if it is on this machine."""
        self.recorder = service.recorder
        """Records the peer's calls; None if nothing does, or if the peer is a component."""
        self._handlers = 0
        self._handlers_limit = service.config.handlers_in_flight
        self._held = 0

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        if self.recorder is not None and sock.family == socket.AF_UNIX:
            self.source = f"unix:{peer_process(sock)}"
        self._service.connections.add(self)
        self._service.unauthenticated[self] = None
        self._handshake = ServerHandshake(self._service.secret, "rpc", near_end(sock))
        super().attach(sock, tls)

    def established(self) -> None:
        self._service.unauthenticated.pop(self, None)

    def message_received(self, message: list[Any]) -> None:
        if message[0] == wire.OFFLOADED and message[1] == 0:
            announced = wire.Announcement.of(message)
            self.fetches_results = announced.fetches
            self.caller = announced.caller
            if announced.is_component:
                self.recorder = None
            return
        self._dispatch(message, self)

    def pressure_changed(self) -> None:
        # Stop reading from a peer that asks faster than it reads the replies. Also stop serving messages that were read
        # already, because a few bytes may request megabytes. So memory stays bounded.
        self.set_paused(self._write_full or self._held > 0 or self._handlers >= self._handlers_limit)

    def hold(self) -> None:
        """Stop reading from this peer until `release` has been called as often as this, because a mailbox is full."""
        self._held += 1
        self.pressure_changed()

    def release(self) -> None:
        """Undo one `hold`."""
        self._held -= 1
        if self.paused:
            self.pressure_changed()

    def handler_started(self) -> None:
        """Count a coroutine handler that has started for this peer."""
        self._handlers += 1
        if self._handlers >= self._handlers_limit:
            self.pressure_changed()

    def handler_ended(self) -> None:
        """Count a coroutine handler of this peer that has ended."""
        self._handlers -= 1
        if self.paused:
            self.pressure_changed()

    def fail(self, error: ActorError) -> None:
        logger.warning("refused %s: %s", self._peer, error)
        if self._handshake.done and self.sock is not None:
            # The peer holds the secret, so it gets the reason; correlation 0 means the whole connection, not an ask.
            told = type(error)(f"{error}; {REMEDY}") if isinstance(error, FrameTooLarge) else error
            self.send(self._service.encoder.encode([wire.ERROR, 0, *codec.encode_error(told)]))
        elif isinstance(self._handshake, ServerHandshake) and self._handshake.refusal:
            self.write(self._handshake.refusal)
        else:
            self.drop()
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(DISMISS_S, self.drop)
        self.dismiss()

    def make_way(self) -> None:
        """Close this connection, the oldest of too many that are in their handshake."""
        if self._ending:
            self.drop()
        else:
            self.fail(AuthenticationError("too many connections are in their handshake at once; this was the oldest"))

    def lost(self, error: OSError | None) -> None:
        if self.sock is not None and self._handshake.expects == MAC_SIZE:
            # It saw our proof and left: a client with another secret notices that first, and does not answer.
            logger.warning("refused %s: it left during the handshake; does it hold this cluster's secret?", self._peer)
        self.drop()

    def drop(self) -> None:
        super().drop()
        self._service.connections.discard(self)
        self._service.unauthenticated.pop(self, None)

    def close(self) -> None:
        """Write queued data, then close."""
        self.flush()
        self._ending = True
        if self.sock is not None and not self._backlog:
            self.lost(None)


class ClientConnection(_Connection):
    """The asking side: correlates replies with asks; frames that are sent before the end of the handshake wait for it.

    Args:
        service: its RPC service.
        on_closed: called once with the reason when the connection has ended.
    """

    def __init__(self, service: RpcService, on_closed: Callable[[ActorError], None]) -> None:
        super().__init__(service)
        self._on_closed = on_closed
        self._closed = False
        self._pending = PendingAsks(service.loop)
        self._next_id = 0
        is_component, fetches = service.recorder is not None, service.offload.offloader is not None
        if is_component or fetches:
            self.send(service.encoder.encode(wire.Announcement("", is_component, fetches).message()))

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        """Take over a connected socket; raises OSError when the connection has already broken."""
        self._handshake = handshake = ClientHandshake(self._service.secret, "rpc", far_end(sock))
        super().attach(sock, tls)
        self.write(handshake.hello())

    def established(self) -> None:
        self.flush()

    def ask(
        self,
        message: list[Any],
        decode: Callable[[Any], Any],
        future: asyncio.Future[Any],
        timeout_s: float,
        on_timeout: Callable[[], Exception],
    ) -> None:
        """Send an ASK, with its correlation id filled in, and resolve *future* with the decoded reply."""
        self._next_id += 1
        correlation = self._next_id
        message[1] = correlation
        frame = self._service.encoder.encode(message)
        self._pending.add(correlation, PendingAsk(future, decode, self.loop.time() + timeout_s, on_timeout))
        self.send(frame)

    def message_received(self, message: list[Any]) -> None:
        kind = message[0]
        if kind not in (wire.REPLY, wire.ERROR, wire.OFFLOADED):
            raise WireError(f"the server sent a message of kind {kind}")
        ask = self._pending.take(message[1])
        if ask is None or ask.future.done():
            if kind == wire.ERROR and message[1] == 0:
                self.fail(connection_error(message))
            return  # else the reply to an ask that has timed out already
        future = ask.future
        if kind == wire.ERROR:
            future.set_exception(codec.decode_error(message[2], message[3], message[4]))
            return
        if kind == wire.OFFLOADED:
            if type(message[2]) is not str:
                raise WireError("malformed frame: the key of an offloaded result has to be a text")
            self._service.offload.spawn(self._service.offload.fetch_result(ask, message[2]))
            return
        try:
            future.set_result(ask.decode(message[2]))
        except WireError as error:
            future.set_exception(error)

    def lost(self, error: OSError | None) -> None:
        if not self._handshake.done:
            # Not a wrong secret: the server sends its proof first, so this side would have noticed that.
            self.fail(
                RecipientUnreachable(
                    "the connection broke during the handshake: the process ended, or only one side has TLS"
                )
            )
        else:
            self.fail(RecipientUnreachable(f"the connection broke{f': {error}' if error else ''}"))

    def fail(self, error: ActorError) -> None:
        self.drop()
        if self._closed:
            return
        self._closed = True
        self._pending.fail_all(lambda: again(error))
        self._on_closed(error)

    def close(self) -> None:
        """Close; pending asks end in `RecipientUnreachable`."""
        self.fail(RecipientUnreachable("the RPC service was closed"))


def connection_error(message: list[Any]) -> ActorError:
    """Return the error in an ERROR of correlation 0, by which the server rejects the whole connection."""
    error = codec.decode_error(message[2], message[3], message[4])
    return error if isinstance(error, ActorError) else WireError(f"the server refused the connection: {error}")


def again(error: ActorError) -> ActorError:
    """Return a copy of an error, because one exception object must not be raised in several places."""
    if isinstance(error, RemoteError):
        return RemoteError(error.type_name, error.message, error.remote_traceback, error.kinds)
    return type(error)(str(error))


def _finish(sock: socket.socket) -> None:
    """Shut down writing; the peer's further data can still be read."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
