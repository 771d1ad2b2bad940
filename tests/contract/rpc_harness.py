"""What the RPC contract tests share: a probe endpoint, services on loops of their own, raw peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from actors.address import ActorAddress
from actors.rpc import wire
from actors.rpc.codec import wire_error
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import Ask, FencedRpcGateway, RpcGateway, rpc, rpc_sync, rpc_tell
from actors.rpc.security import ClientHandshake
from actors.rpc.service import RpcConfig, RpcService
from tests.handshakes import Records, authenticate_client_socket
from tests.waiting import PATIENCE_S

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER_SECRET = b"fedcba9876543210fedcba9876543210"
DEADLINE_S = PATIENCE_S

T = TypeVar("T")


def patient_config(**options: Any) -> RpcConfig:
    """Settings with which no call ends because the machine is busy; *options* are others."""
    return RpcConfig(**{"ask_timeout_s": DEADLINE_S, "connect_timeout_s": DEADLINE_S, **options})


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    count: int = 0


@wire_error
class ProbeError(Exception):
    """Known on both sides."""


class HiddenError(Exception):
    """Registered nowhere: the asking side gets a RemoteError."""


class ProbeGateway(RpcGateway):
    def echo(self, value: bytes) -> Ask[bytes]: ...

    def rename(self, item: Item, name: str = "default") -> Ask[Item]: ...

    def add(self, number: int) -> None: ...

    def add_sync(self, number: int) -> Ask[int]: ...

    def add_async(self, number: int) -> Ask[int]: ...

    def numbers(self) -> Ask[list[int]]: ...

    def meet(self, parties: int) -> Ask[int]: ...

    def never(self) -> Ask[None]: ...

    def release(self) -> None: ...

    def fail_sync(self, kind: str, text: str) -> Ask[None]: ...

    def fail_async(self, kind: str, text: str) -> Ask[None]: ...

    def fail_tell(self, text: str) -> None: ...

    def wrong_result(self) -> Ask[Item]: ...

    def zeros(self, size: int) -> Ask[bytes]: ...


ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ValueError, KeyError, PermissionError, TimeoutError, ProbeError, HiddenError)
}


class Probe(RpcEndpoint, ProbeGateway):
    """Does what the tests ask for."""

    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.added: list[int] = []
        self.waiting = 0
        self.gate = asyncio.Event()
        self.cancelled = 0

    @rpc_sync
    def echo(self, value: bytes) -> bytes:
        return value

    @rpc
    async def rename(self, item: Item, name: str = "default") -> Item:
        return Item(name, item.count + 1)

    @rpc_tell
    def add(self, number: int) -> None:
        self.added.append(number)

    @rpc_sync
    def add_sync(self, number: int) -> int:
        self.added.append(number)
        return number

    @rpc
    async def add_async(self, number: int) -> int:
        self.added.append(number)
        await asyncio.sleep(0)
        return number

    @rpc_sync
    def numbers(self) -> list[int]:
        return self.added

    @rpc
    async def meet(self, parties: int) -> int:
        """Answers only when *parties* calls are in it at once."""
        self.waiting += 1
        if self.waiting >= parties:
            self.gate.set()
        await self.gate.wait()
        return self.waiting

    @rpc
    async def never(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @rpc_tell
    def release(self) -> None:
        self.gate.set()

    @rpc_sync
    def fail_sync(self, kind: str, text: str) -> None:
        raise ERRORS[kind](text)

    @rpc
    async def fail_async(self, kind: str, text: str) -> None:
        await asyncio.sleep(0)
        raise ERRORS[kind](text)

    @rpc_tell
    def fail_tell(self, text: str) -> None:
        raise HiddenError(text)

    @rpc_sync
    def wrong_result(self) -> Item:
        return object()  # type: ignore[return-value]

    @rpc_sync
    def zeros(self, size: int) -> bytes:
        return bytes(size)


class LeaderGateway(FencedRpcGateway):
    def lead(self) -> Ask[str]: ...

    def note(self, text: str) -> None: ...

    def notes(self) -> Ask[list[str]]: ...


class Leader(FencedRpcEndpoint, LeaderGateway):
    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.noted: list[str] = []

    @rpc
    async def lead(self) -> str:
        return "led"

    @rpc_tell
    def note(self, text: str) -> None:
        self.noted.append(text)

    @rpc_sync
    def notes(self) -> list[str]:
        return self.noted


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="test-loop")
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        async def run() -> T:
            return function(*args)

        return self.do(run())

    def end(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(DEADLINE_S)


class ProbeServer(LoopThread):
    """A listening service with a `Probe` and a `Leader`, as another process would be."""

    def __init__(self, socket_dir: Path | None, secret: bytes = SECRET, **options: Any) -> None:
        super().__init__()
        self.config = patient_config(socket_dir=socket_dir, **options)
        self.service: RpcService
        self.probe: Probe
        self.leader: Leader
        try:
            self.do(self._start(secret))
        except BaseException:
            self.end()
            raise

    async def _start(self, secret: bytes) -> None:
        self.service = RpcService(self.loop, secret, self.config)
        await self.service.listen()
        self.probe, self.leader = Probe(self.service, "probe"), Leader(self.service, "leader")
        await self.service.start_server(self.probe)
        await self.service.start_server(self.leader)

    @property
    def port(self) -> int:
        return self.service.port

    @property
    def address(self) -> ActorAddress:
        return self.service.address_of("/user/probe")

    def close(self) -> None:
        if self.thread.is_alive():
            self.do(self.service.close())
            self.end()

    @contextlib.contextmanager
    def closing(self) -> Iterator[ProbeServer]:
        try:
            yield self
        finally:
            self.close()

    def break_connections(self) -> None:
        """What a client sees of a SIGKILLed process, as far as its connections go."""

        def abort() -> None:
            for connection in list(self.service.connections):
                connection.drop()

        self.call(abort)


class RawPeer:
    """A connection of plain bytes; `authenticated` ones have shaken hands."""

    def __init__(self, port: int, secret: bytes | None = SECRET) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._decoder = wire.FrameDecoder(1 << 30)
        self._received: list[list[Any]] = []
        self.records: Records | None = None
        if secret is not None:
            self.authenticated(authenticate_client_socket(self.sock, secret, "rpc"))

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def authenticated(self, handshake: ClientHandshake) -> None:
        """From here on what is said goes into records."""
        self.records = Records.of_client(handshake, self.sock)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data if self.records is None else self.records.seal(data))

    def send_message(self, message: Any) -> None:
        self.send(frame(msgpack.packb(message)))

    def message(self) -> list[Any]:
        while not self._received:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            if self.records is not None:
                data = self.records.feed(data)
            self._received.extend(self._decoder.feed(data))
        return self._received.pop(0)

    def is_cut_off(self) -> bool:
        """Whether the connection ends without an answer; raises TimeoutError when it stays open."""
        with contextlib.suppress(ConnectionError):
            return self.sock.recv(1 << 16) == b""
        return True


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition from a plain thread, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {DEADLINE_S:g} s"
        time.sleep(0.002)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition on a loop, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {DEADLINE_S:g} s"
        await asyncio.sleep(0.002)
