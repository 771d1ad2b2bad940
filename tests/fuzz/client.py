"""Both kinds of client under a server gone mad: every ask ends in an answer or in a documented error, in time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import threading
import time
import tracemalloc
from typing import Any

import msgpack

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError
from actors.rpc import wire
from actors.rpc.config import RpcConfig
from actors.rpc.security import GREETING_SIZE, MAC_SIZE, ServerHandshake, near_end
from actors.rpc.service import RpcService
from tests.fuzz import decoder
from tests.fuzz.live_server import FRAME_SIZE, SECRET, TargetGateway
from tests.fuzz.source import ByteSource
from tests.handshakes import Records

ASKS_AT_ONCE = 4
DEADLINE_S = 120.0
HANGS_AFTER_S = 120.0
ASK_WITHIN_S = 0.5
GROWTH_LIMIT = 1 << 20
_READ_WITHIN_S = 0.05


class MadServer(threading.Thread):
    """Proves that it holds the secret, mostly, and then says whatever comes to its mind."""

    def __init__(self, seed: int) -> None:
        super().__init__(name="mad-server")
        self._random = random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.address = ActorAddress("s", *self._listening.getsockname(), "/user/target")
        self.stopping = threading.Event()
        self.connections = 0

    def run(self) -> None:
        with self._listening:
            while not self.stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    sock, _ = self._listening.accept()
                    self.connections += 1
                    with sock, contextlib.suppress(OSError, ActorError):
                        sock.settimeout(DEADLINE_S)
                        self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        source = ByteSource(self._random.randbytes(500))
        handshake = ServerHandshake(SECRET, "rpc", near_end(sock))
        handshake.receive(sock.recv(GREETING_SIZE, socket.MSG_WAITALL))
        proof = handshake.receive(sock.recv(handshake.expects, socket.MSG_WAITALL))
        match source.number(12):
            case 0:
                sock.sendall(source.take(100))
                return
            case 1:
                changed = bytearray(proof)
                changed[source.number(len(changed))] ^= 1
                sock.sendall(bytes(changed))
                return
            case _:
                sock.sendall(proof)
                handshake.receive(sock.recv(MAC_SIZE, socket.MSG_WAITALL))
        sock.settimeout(_READ_WITHIN_S)
        sock.recv(65536)
        stream = decoder.stream_of(source) if source.number(2) else self._replies(source)
        records = Records.of_server(handshake)
        for piece in source.pieces(stream) if source.number(2) else [stream]:
            sock.sendall(records.seal(piece) if piece and source.number(20) else piece)  # mostly with its tag
        with contextlib.suppress(TimeoutError):
            sock.recv(1)

    def _replies(self, source: ByteSource) -> bytes:
        """Replies to the asks there are, right and wrong, in any order."""
        parts = []
        if source.number(2):
            right = [decoder.frame(msgpack.packb([wire.REPLY, 1 + n, b"right"])) for n in range(ASKS_AT_ONCE)]
            self._random.shuffle(right)
            parts.extend(right)
        for _ in range(source.number(8)):
            correlation = source.number(ASKS_AT_ONCE + 2)
            value = source.choose((b"right", "wrong", None, [[]], 2**63, {"a": b"b"}))
            message: list[Any] = source.choose(
                (
                    [wire.REPLY, correlation, value],
                    [wire.ERROR, correlation, "builtins.ValueError", "text", ""],
                    [wire.ERROR, correlation, value, value, value],
                    [wire.ERROR, correlation, "actors.errors.RemoteError", "text", ""],
                    [wire.ERROR, 0, "actors.errors.WireError", "no more", ""],
                    [wire.ASK, correlation, "/user/a", "m", [], None],
                )
            )
            parts.append(decoder.frame(msgpack.packb(message)))
        return b"".join(parts)


class _Tally:
    """How the asks have ended."""

    def __init__(self) -> None:
        self.answers = 0
        self.errors: dict[str, int] = {}
        self.found = ""

    def take(self, outcome: Any, began: float) -> None:
        if isinstance(outcome, (ActorError, ValueError)):
            name = type(outcome).__name__
            self.errors[name] = self.errors.get(name, 0) + 1
        elif isinstance(outcome, BaseException):
            self.found = self.found or f"an ask ended in {type(outcome).__name__}: {outcome}"
        else:
            self.answers += 1
        took = time.monotonic() - began
        if took > HANGS_AFTER_S:
            self.found = self.found or f"an ask took {took:.1f} s"


async def _ask_on_a_loop(server: MadServer, until: float, tally: _Tally) -> None:
    def escaped(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tally.found = tally.found or f"reached the event loop: {context}"

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(escaped)
    service = RpcService(loop, SECRET, RpcConfig(frame_size=FRAME_SIZE, ask_timeout_s=ASK_WITHIN_S))
    gateway = service.gateway(server.address, TargetGateway)
    while time.monotonic() < until and not tally.found:
        began = time.monotonic()
        asks = [gateway.echo(b"x") for _ in range(ASKS_AT_ONCE)]
        for outcome in await asyncio.gather(*asks, return_exceptions=True):
            tally.take(outcome, began)
    await service.close()


def _ask_from_a_thread(server: MadServer, until: float, tally: _Tally) -> None:
    with ActorClient(SECRET, RpcConfig(frame_size=FRAME_SIZE, ask_timeout_s=ASK_WITHIN_S)) as client:
        gateway = client.gateway(server.address, TargetGateway)
        while time.monotonic() < until and not tally.found:
            began = time.monotonic()
            asks = [gateway.echo(b"x") for _ in range(ASKS_AT_ONCE)]
            for ask in asks:
                try:
                    tally.take(ask.result(), began)
                except Exception as error:
                    tally.take(error, began)


def run_client(kind: str, seconds: float, seed: int) -> dict[str, Any]:
    """Have a client (``loop`` or ``threads``) ask a mad server for *seconds* seconds.

    Returns:
        How many connections and answers there were, which errors, the growth of memory; ``found``: what went wrong.
    """
    server, tally = MadServer(seed), _Tally()
    server.start()

    def ask_for(time_s: float) -> None:
        until = time.monotonic() + time_s
        if kind == "loop":
            asyncio.run(_ask_on_a_loop(server, until, tally))
        else:
            _ask_from_a_thread(server, until, tally)

    try:
        ask_for(0.3 * seconds)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        ask_for(0.7 * seconds)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        server.stopping.set()
        server.join(DEADLINE_S)
    if grown > GROWTH_LIMIT:
        tally.found = tally.found or f"the client grew by {grown} bytes"
    return {
        "target": f"client-{kind}",
        "seconds": seconds,
        "executions": server.connections,
        "answers": tally.answers,
        "errors": tally.errors,
        "grown_bytes": grown,
        "found": tally.found,
    }
