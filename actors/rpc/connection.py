"""One authenticated connection on an event loop, seen from either side: handshake first, then frames."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from actors.errors import ActorError, AuthenticationError, FrameTooLarge, RecipientUnreachable, RemoteError, WireError
from actors.rpc import codec, wire
from actors.rpc.pending import PendingAsk, PendingAsks
from actors.rpc.records import RecordReader
from actors.rpc.security import MAC_SIZE, ClientHandshake, ServerHandshake, far_end, near_end
from actors.rpc.stream import Stream

if TYPE_CHECKING:
    from actors.rpc.service import RpcService
    from actors.rpc.tls import TlsStream

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
DISMISS_S = 1.0
REMEDY = "send it as a blob, or raise rpc.frame-size on every process of the cluster"


class _Connection(Stream):
    """What both sides share: the handshake's bytes are cut off the stream first."""

    _handshake: ClientHandshake | ServerHandshake

    def __init__(self, service: RpcService) -> None:
        super().__init__(service.loop, service.poller)
        self._service = service
        self._early = bytearray()
        self._decoder = wire.FrameDecoder(service.config.frame_size)
        self._untaken: Iterator[list[Any]] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        self._deadline = self.loop.call_later(HANDSHAKE_TIMEOUT_S, self._handshake_late)
        super().attach(sock, tls)

    def _tag(self) -> None:
        """From here on both sides send records, unless kernel or TLS make them unnecessary."""
        if self._tls is None and self.sock is not None and self.sock.family != socket.AF_UNIX:
            to_server, to_client = self._handshake.tags()
            serves = isinstance(self._handshake, ServerHandshake)
            self._sends, receives = (to_client, to_server) if serves else (to_server, to_client)
            self._records = RecordReader(receives)

    def _handshake_late(self) -> None:
        # On the client this is a hung process, not a wrong secret: who retries on an unreachable peer has to go on.
        late = RecipientUnreachable if isinstance(self._handshake, ClientHandshake) else AuthenticationError
        self.fail(late(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"))

    def received(self, data: bytes) -> None:
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
        """Handle messages until there are no more, or until the peer must first read what it has been sent."""
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

    def resumed(self) -> None:
        untaken, self._untaken = self._untaken, None
        if untaken is not None:
            self._take(untaken)

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

    def established(self) -> None:
        """The peer has proved that it holds the secret."""

    def message_received(self, message: list[Any]) -> None:
        """One well-formed message came."""
        raise NotImplementedError

    def drop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._untaken = None
        super().drop()


class ServerConnection(_Connection):
    """The accepting side: messages go to the service's dispatch; a peer that misbehaves is cut off with a log line.

    Args:
        service: the RPC service it belongs to.
        peer: the other side's name, for the log.
    """

    def __init__(self, service: RpcService, peer: str) -> None:
        super().__init__(service)
        self._peer = peer
        self._dispatch = service.dispatch
        self.fetches_results = False
        """Whether the peer has said that a result may travel apart."""
        self._handlers = 0
        self._handlers_limit = service.config.handlers_in_flight
        self._held = 0

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        self._service.connections.add(self)
        self._service.unauthenticated[self] = None
        self._handshake = ServerHandshake(self._service.secret, "rpc", near_end(sock))
        super().attach(sock, tls)

    def established(self) -> None:
        self._service.unauthenticated.pop(self, None)

    def message_received(self, message: list[Any]) -> None:
        if message[0] == wire.OFFLOADED and message[1] == 0:
            self.fetches_results = True
            return
        self._dispatch(message, self)

    def pressure_changed(self) -> None:
        # A peer that asks faster than it reads the replies is not read from until it does, nor is served what has been
        # read already (a few bytes may ask for megabytes): memory stays bounded.
        self.set_paused(self._write_full or self._held > 0 or self._handlers >= self._handlers_limit)

    def hold(self) -> None:
        """Take nothing more from this peer before as many calls of `release`: what it sends finds no room here."""
        self._held += 1
        self.pressure_changed()

    def release(self) -> None:
        """Take back one `hold`."""
        self._held -= 1
        if self.paused:
            self.pressure_changed()

    def handler_started(self) -> None:
        """A coroutine handler runs for this peer."""
        self._handlers += 1
        if self._handlers >= self._handlers_limit:
            self.pressure_changed()

    def handler_ended(self) -> None:
        """A coroutine handler of this peer has ended."""
        self._handlers -= 1
        if self.paused:
            self.pressure_changed()

    def fail(self, error: ActorError) -> None:
        logger.warning("refused %s: %s", self._peer, error)
        if self._handshake.done and self.sock is not None:
            # The peer holds the secret, so it is told: correlation 0 belongs to no ask, but to the connection.
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
        """Too many connections are in their handshake; this one is the oldest of them."""
        if self._ending:
            self.drop()
        else:
            self.fail(AuthenticationError("too many connections are in their handshake at once; this was the oldest"))

    def lost(self, error: OSError | None) -> None:
        if self.sock is not None and self._handshake.expects == MAC_SIZE:
            # It saw our proof and left: a client with another secret finds that out first, and does not answer.
            logger.warning("refused %s: it left during the handshake; does it hold this cluster's secret?", self._peer)
        self.drop()

    def drop(self) -> None:
        super().drop()
        self._service.connections.discard(self)
        self._service.unauthenticated.pop(self, None)

    def close(self) -> None:
        """Write what is queued and close."""
        self.end()


class ClientConnection(_Connection):
    """The asking side: correlates replies with asks; what is sent before the handshake ends waits for it.

    Args:
        service: the RPC service it belongs to.
        on_closed: called once with the reason when the connection is gone.
    """

    def __init__(self, service: RpcService, on_closed: Callable[[ActorError], None]) -> None:
        super().__init__(service)
        self._on_closed = on_closed
        self._closed = False
        self._pending = PendingAsks(service.loop)
        self._next_id = 0
        if service.offload.offloader is not None:
            self.send(service.encoder.encode([wire.OFFLOADED, 0, "", 0]))

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        """As `Stream.attach`; raises OSError when the connection broke as soon as it was made."""
        self._handshake = ClientHandshake(self._service.secret, "rpc", far_end(sock))
        super().attach(sock, tls)

    def started(self) -> None:
        if isinstance(self._handshake, ClientHandshake):
            self.write(self._handshake.hello())

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
        """Send an ASK (its correlation id is filled in here) and resolve *future* with the decoded reply."""
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
            return  # else the reply to an ask that has timed out: its asker has been told
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
            # Not a wrong secret: the server proves first, so that it is this side that finds that out.
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
    """What an ERROR of correlation 0 says: the server refuses the whole connection."""
    error = codec.decode_error(message[2], message[3], message[4])
    return error if isinstance(error, ActorError) else WireError(f"the server refused the connection: {error}")


def again(error: ActorError) -> ActorError:
    """The same error once more: one exception object must not be raised in several places."""
    if isinstance(error, RemoteError):
        return RemoteError(error.type_name, error.message, error.remote_traceback, error.kinds)
    return type(error)(str(error))
