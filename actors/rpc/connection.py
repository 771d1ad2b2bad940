"""One authenticated connection, seen from either side: handshake first, then frames, written in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from actors.errors import ActorError, AuthenticationError, RecipientUnreachable, WireError
from actors.rpc import wire
from actors.rpc.pending import PendingAsk, PendingAsks
from actors.rpc.security import MAC_SIZE, ClientHandshake, ServerHandshake

if TYPE_CHECKING:
    from actors.rpc.service import RpcService

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
BATCH_SIZE = 64 * 1024


class _Connection(asyncio.Protocol):
    """What both sides share: the handshake's bytes are cut off the stream first, output is written once per turn."""

    def __init__(self, service: RpcService, handshake: ClientHandshake | ServerHandshake) -> None:
        self._service = service
        self._handshake = handshake
        self._early = bytearray()
        self._decoder = wire.FrameDecoder(service.frame_size)
        self._out: list[bytes] = []
        self._out_size = 0
        self._paused = False
        self._untaken: Iterator[list[Any]] | None = None
        self._flush_due = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream transport, by the way it was made
        self._deadline = self._service.loop.call_later(HANDSHAKE_TIMEOUT_S, self._handshake_late)

    def _handshake_late(self) -> None:
        # On the client this is a hung process, not a wrong secret: who retries on an unreachable peer has to go on.
        late = RecipientUnreachable if isinstance(self._handshake, ClientHandshake) else AuthenticationError
        self.fail(late(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"))

    def data_received(self, data: bytes) -> None:
        try:
            if not self._handshake.done:
                data = self._shake_hands(data)
                if not self._handshake.done:
                    return
                if self._deadline is not None:
                    self._deadline.cancel()
                    self._deadline = None
                self.established()
        except ActorError as error:
            self.fail(error)
        else:
            self._take(self._decoder.feed(data))

    def _take(self, messages: Iterator[list[Any]]) -> None:
        """Handle messages until there are no more, or until the peer must first read what it has been sent."""
        try:
            for message in messages:
                self.message_received(message)
                if self._paused:
                    self._untaken = messages
                    break
        except ActorError as error:
            self.fail(error)
        if self._out:
            self.flush()

    def _shake_hands(self, data: bytes) -> bytes:
        self._early += data
        while not self._handshake.done and len(self._early) >= self._handshake.expects:
            wanted = self._handshake.expects
            part = bytes(self._early[:wanted])
            del self._early[:wanted]
            answer = self._handshake.receive(part)
            if answer and self._transport is not None:
                self._transport.write(answer)
        rest = bytes(self._early) if self._handshake.done else b""
        if self._handshake.done:
            self._early.clear()
        return rest

    def established(self) -> None:
        """The peer has proved that it holds the secret."""

    def message_received(self, message: list[Any]) -> None:
        """One well-formed message came."""
        raise NotImplementedError

    def fail(self, error: ActorError) -> None:
        """Close the connection because of *error*."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Queue a frame; what is queued in one turn of the loop leaves in one write, or a few where it is much."""
        self._out.append(frame)
        self._out_size += len(frame)
        if self._out_size > BATCH_SIZE:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._service.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        if self._out and self._transport is not None:
            out, self._out, self._out_size = self._out, [], 0
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _drop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._untaken = None


class ServerConnection(_Connection):
    """The accepting side: messages go to the service's dispatch; a peer that misbehaves is cut off with a log line."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, ServerHandshake(service.secret, "rpc"))
        self._peer = "a local peer"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self._peer = f"{name[0]}:{name[1]}"
        self._service.connections.add(self)

    def message_received(self, message: list[Any]) -> None:
        self._service.dispatch(message, self)

    def pause_writing(self) -> None:
        # A peer that asks faster than it reads the replies is not read from until it does, nor is served what has been
        # read already (a few bytes may ask for megabytes): memory stays bounded.
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        untaken, self._untaken = self._untaken, None
        if untaken is not None:
            self._take(untaken)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    def fail(self, error: ActorError) -> None:
        log.warning("refused %s: %s", self._peer, error)
        self._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None and self._handshake.expects == MAC_SIZE:
            # It saw our proof and left: a client with another secret finds that out first, and does not answer.
            log.warning("refused %s: it left during the handshake; does it hold this cluster's secret?", self._peer)
        self._drop()
        self._service.connections.discard(self)

    def close(self) -> None:
        """Write what is queued and close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
            self._transport = None


class ClientConnection(_Connection):
    """The asking side: correlates replies with asks; what is sent before the handshake ends waits for it.

    Args:
        service: the RPC service it belongs to.
        on_closed: called once with the reason when the connection is gone.
    """

    def __init__(self, service: RpcService, on_closed: Callable[[ActorError], None]) -> None:
        super().__init__(service, ClientHandshake(service.secret, "rpc"))
        self._on_closed = on_closed
        self._error: ActorError | None = None
        self._closed = False
        self._pending = PendingAsks(service.loop)
        self._next_id = 0
        self._corked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(self._handshake, ClientHandshake) and self._transport is not None:
            self._transport.write(self._handshake.hello())

    def established(self) -> None:
        self.flush()

    def flush(self) -> None:
        if self._handshake.done:
            super().flush()
        else:
            self._flush_due = False

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
        self.send(self._service.encoder.encode(message))
        self._pending.add(correlation, PendingAsk(future, decode, self._service.loop.time() + timeout_s, on_timeout))

    def send(self, frame: bytes) -> None:
        """The first frame of a turn leaves at once, for a serial asker waits for it; the others together."""
        if self._corked or self._out or not self._handshake.done or self._transport is None:
            super().send(frame)
            return
        self._corked = True
        self._service.loop.call_soon(self._uncork)
        self._transport.write(frame)

    def _uncork(self) -> None:
        self._corked = False

    def message_received(self, message: list[Any]) -> None:
        kind = message[0]
        if kind not in (wire.REPLY, wire.ERROR):
            raise WireError(f"the server sent a message of kind {kind}")
        ask = self._pending.take(message[1])
        if ask is None or ask.future.done():
            return  # the reply to an ask that has timed out: its asker has been told
        future = ask.future
        if kind == wire.ERROR:
            future.set_exception(self._service.decode_error(message[2], message[3], message[4]))
            return
        try:
            future.set_result(ask.decode(message[2]))
        except WireError as error:
            future.set_exception(error)

    def fail(self, error: ActorError) -> None:
        self._error = error
        self._drop()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        if self._closed:
            return
        self._closed = True
        if self._error is not None:
            reason: ActorError = self._error
        elif not self._handshake.done:
            # Not a wrong secret: the server proves first, so that it is this side that finds that out.
            reason = RecipientUnreachable(
                "the connection broke during the handshake: the process ended, or is none of this version"
            )
        else:
            reason = RecipientUnreachable(f"the connection broke{f': {exc}' if exc else ''}")
        self._pending.fail_all(lambda: type(reason)(str(reason)))
        self._on_closed(reason)

    def close(self) -> None:
        """Close; pending asks end in `RecipientUnreachable`."""
        self.fail(RecipientUnreachable("the RPC service was closed"))
