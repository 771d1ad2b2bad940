"""What is bounded, and what stands where a bound is reached; futures as answers; the end of an endpoint; TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import EndpointStateError, FrameTooLarge, RecipientUnreachable
from actors.process.loops import DirectLoop, EmbeddedLoop
from actors.rpc import wire
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc, rpc_sync
from actors.rpc.service import RpcService
from actors.rpc.tls import TlsConfig
from tests.contract.rpc_harness import (
    SECRET,
    LoopThread,
    Probe,
    ProbeError,
    ProbeGateway,
    ProbeServer,
    RawPeer,
    frame,
    patient_config,
    until,
    wait_until,
)
from tests.handshakes import serve_handshake
from tests.logged import logged
from tests.waiting import LONGER_THAN_PATIENCE_S


@contextlib.asynccontextmanager
async def calling(**options: Any) -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), SECRET, patient_config(**options))
    try:
        yield service
    finally:
        await service.close()


# ------------------------------------------------------------------ bounds


async def test_coroutine_handlers_of_one_connection_are_bounded_and_the_others_go_on() -> None:
    with ProbeServer(None, handlers_in_flight=10).closing() as server:
        async with calling() as greedy, calling() as modest:
            asks = [greedy.gateway(server.address, ProbeGateway).never() for _ in range(50)]
            await until(lambda: server.probe.waiting == 10, "the first ten")
            probe = modest.gateway(server.address, ProbeGateway)
            for _ in range(20):
                assert await probe.echo(b"x") == b"x"
            assert server.probe.waiting == 10
            assert sum(connection.paused for connection in server.call(lambda: list(server.service.connections))) == 1
            probe.release()  # by another connection: the first is not read from
            for ask in asks:
                assert await ask is None
            assert server.probe.waiting == 50


def test_connections_without_a_handshake_are_bounded_and_the_oldest_gives_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ProbeServer(None, unauthenticated=10).closing() as server, contextlib.ExitStack() as stack:
        steady = stack.enter_context(RawPeer(server.port))
        peers = []
        for count in range(1, 16):
            peers.append(stack.enter_context(RawPeer(server.port, None)))
            wait_until(lambda count=count: len(server.service.unauthenticated) == min(count, 10), "the peer")  # type: ignore[misc]
        assert all(peer.is_cut_off() for peer in peers[:5])
        steady.send_message([wire.ASK, 1, "/user/probe", "echo", [b"x"], None])
        assert steady.message() == [wire.REPLY, 1, b"x"], "who has shaken hands does not count"
        wait_until(lambda: len(logged(caplog, "actors")) >= 5, "the lines in the log")
        lines = logged(caplog, "actors")
        assert len(lines) == 5
        assert all("too many connections are in their handshake" in line for line in lines)


@contextlib.asynccontextmanager
async def deaf_server() -> AsyncIterator[ActorAddress]:
    """Shakes hands, and reads nothing after that."""
    over, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_handshake(reader, writer, SECRET)
        await over.wait()
        writer.transport.abort()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024) as listening:
        yield ActorAddress("s", "127.0.0.1", listening.sockets[0].getsockname()[1], "/user/probe")
        over.set()
        await ended.wait()


async def test_what_waits_for_a_peer_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    data = bytes(256 * 1024)
    async with deaf_server() as address, calling(outbox_size=4 << 20, ask_timeout_s=LONGER_THAN_PATIENCE_S) as service:
        gateway = service.gateway(address, ProbeGateway)
        asks = []
        for _ in range(100):
            asks.append(gateway.echo(data))
            await asyncio.sleep(0)
        refused = [ask for ask in asks if ask.done()]
        assert 10 < len(refused) < 95
        with pytest.raises(RecipientUnreachable, match=r"takes nothing: [0-9]+ bytes wait for it already"):
            await refused[0]
        for ask in refused[1:]:
            with pytest.raises(RecipientUnreachable):
                await ask
        for number in range(1000):
            gateway.add(number)
        (peer,) = service._peers.values()
        assert peer.dropped == 1000
        assert len([record for record in caplog.records if "were dropped so far" in record.getMessage()]) == 1
        for ask in asks:
            if ask not in refused:
                ask.add_done_callback(lambda done: done.exception())


def test_a_frame_too_large_is_answered_before_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with ProbeServer(None, frame_size=1 << 16).closing() as server:
        with RawPeer(server.port) as peer:
            peer.send_message([wire.ASK, 1, "/user/probe", "echo", [b"x"], None])
            peer.send(frame(msgpack.packb([wire.ASK, 2, "/user/probe", "echo", [bytes(1 << 20)], None])))
            assert peer.message() == [wire.REPLY, 1, b"x"]
            kind, correlation, error_type, text, _ = peer.message()
            assert (kind, correlation, error_type) == (wire.ERROR, 0, "actors.errors.FrameTooLarge")
            assert "over 65536; send it as a blob, or raise rpc.frame-size" in text
            assert peer.is_cut_off()
        wait_until(lambda: not server.service.connections, "the end of the connection")
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 1


async def test_a_clients_error_names_the_remedy_when_its_frame_is_too_large() -> None:
    with ProbeServer(None, frame_size=1 << 16).closing() as server:
        async with calling() as service:
            gateway = service.gateway(server.address, ProbeGateway)
            waiting = gateway.never()
            with pytest.raises(FrameTooLarge, match=r"over 65536; .*rpc\.frame-size"):
                await gateway.echo(bytes(1 << 20))
            with pytest.raises(FrameTooLarge):
                await waiting
            assert await gateway.echo(b"x") == b"x"


# ------------------------------------------------------------------ futures as answers


class PromiseGateway(RpcGateway):
    def later(self, text: str) -> Ask[str]: ...

    def pending(self) -> Ask[int]: ...

    def keep(self) -> Ask[None]: ...

    def break_all(self) -> Ask[None]: ...

    def wait(self) -> Ask[None]: ...

    def finish(self) -> Ask[None]: ...


class Promising(RpcEndpoint, PromiseGateway):
    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.promised: list[asyncio.Future[str]] = []

    @rpc_sync
    def later(self, text: str) -> asyncio.Future[str]:
        future: asyncio.Future[str] = self.service.loop.create_future()
        self.promised.append(future)
        if text == "already":
            future.set_result("kept at once")
        return future

    @rpc_sync
    def pending(self) -> int:
        return len(self.promised)

    @rpc_sync
    def keep(self) -> None:
        for number, future in enumerate(self.promised):
            future.set_result(f"kept {number}")
        self.promised.clear()

    @rpc_sync
    def break_all(self) -> None:
        for future in self.promised:
            future.set_exception(ProbeError("broken"))
        self.promised.clear()

    @rpc
    async def wait(self) -> None:
        await asyncio.Event().wait()

    @rpc
    async def finish(self) -> None:
        await self.service.stop_server(self)


@contextlib.asynccontextmanager
async def promising() -> AsyncIterator[tuple[Promising, PromiseGateway]]:
    async with calling() as server, calling() as client:
        await server.listen()
        endpoint = Promising(server, "promising")
        address = await server.start_server(endpoint)
        yield endpoint, client.gateway(address, PromiseGateway)


async def test_a_plain_handler_may_answer_with_a_future() -> None:
    async with promising() as (endpoint, gateway):
        assert await gateway.later("already") == "kept at once"
        endpoint.promised.clear()
        asks = [gateway.later(str(number)) for number in range(100)]
        assert await gateway.pending() == 100, "they hold up nobody, and make no tasks"
        assert not any(ask.done() for ask in asks)
        await gateway.keep()
        assert [await ask for ask in asks] == [f"kept {number}" for number in range(100)]


async def test_a_futures_failure_is_the_askers() -> None:
    async with promising() as (endpoint, gateway):
        ask = gateway.later("x")
        await gateway.break_all()
        with pytest.raises(ProbeError, match="broken"):
            await ask
        ask = gateway.later("x")
        await until(lambda: bool(endpoint.promised), "the ask")
        endpoint.promised[0].cancel()
        with pytest.raises(EndpointStateError, match=r"before it had answered later\(\)"):
            await ask


async def test_the_stop_of_an_endpoint_answers_all_who_wait_and_leaves_the_others_alone() -> None:
    async with promising() as (endpoint, gateway):
        service = endpoint.service
        other = Probe(service, "other")
        await service.start_server(other)
        async with calling() as client:
            unconcerned = client.gateway(other.address, ProbeGateway).never()
            waiting = [gateway.wait() for _ in range(3)] + [gateway.later("x") for _ in range(3)]
            await until(lambda: len(endpoint.promised) == 3 and other.waiting == 1, "the asks")
            fresh = gateway.wait()  # perhaps cancelled before its first step
            await gateway.finish()
            for ask in [*waiting, fresh]:
                with pytest.raises(EndpointStateError):
                    await ask
            assert not unconcerned.done()
            endpoint.promised[0].set_result("too late, and nobody's")
            other.gate.set()
            assert await unconcerned is None


# ------------------------------------------------------------------ the loop of an actor


class EmbeddedServer(LoopThread):
    """A probe on the loop that actors have, in a thread that plays Thespian."""

    def __init__(self, socket_dir: Path | None, **options: Any) -> None:
        import select
        import threading

        self.embedded = EmbeddedLoop()
        self.loop = self.embedded.loop
        self.over = threading.Event()
        self.poll = select.poll()
        self.poll.register(self.embedded.fileno(), select.POLLIN)
        self.options = patient_config(socket_dir=socket_dir, **options)
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        self.started.wait()

    def _serve(self) -> None:
        async def start() -> None:
            self.service = RpcService(self.loop, SECRET, self.options)
            await self.service.listen()
            self.probe = Probe(self.service, "probe")
            await self.service.start_server(self.probe)

        asyncio.set_event_loop(self.loop)
        with self.embedded.outside_thespian():
            self.loop.run_until_complete(start())
        self.started.set()
        while not self.over.is_set():
            if self.poll.poll(1000):
                self.embedded.turn()
        with self.embedded.outside_thespian():
            self.loop.run_until_complete(self.service.close())
        self.embedded.close()
        asyncio.set_event_loop(None)

    def close(self) -> None:
        self.over.set()
        self.loop.call_soon_threadsafe(lambda: None)
        self.thread.join()


@pytest.fixture(params=["tcp", "uds"])
def embedded(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    directory = Path(tempfile.mkdtemp(prefix="us-"))
    server = EmbeddedServer(directory if request.param == "uds" else None)
    yield server
    server.close()
    shutil.rmtree(directory)


def test_an_actors_loop_serves_directly(embedded: EmbeddedServer) -> None:
    assert isinstance(embedded.loop, DirectLoop)
    address = embedded.service.address_of("/user/probe")
    with ActorClient(SECRET, embedded.options) as client:
        probe = client.gateway(address, ProbeGateway)
        for number in range(200):
            probe.add(number)
            assert probe.add_sync(number).result() == number
        assert probe.add_async(7).result() == 7
        late = probe.meet(2)
        assert probe.echo(bytes(1 << 20)).result() == bytes(1 << 20)
        assert probe.meet(2).result() == 2
        assert late.result() == 2
        asks = [probe.echo(bytes(64 * 1024)) for _ in range(300)]
        assert all(len(ask.result()) == 64 * 1024 for ask in asks)
        with pytest.raises(ProbeError):
            probe.fail_async("ProbeError", "x").result()


def test_an_actors_loop_calls_others_directly(embedded: EmbeddedServer) -> None:
    with ProbeServer(embedded.options.socket_dir).closing() as other:

        async def work() -> list[bytes]:
            gateway = embedded.service.gateway(other.address, ProbeGateway)
            return [await gateway.echo(b"%d" % number) for number in range(100)]

        assert embedded.do(work()) == [b"%d" % number for number in range(100)]
        other.break_connections()
        assert embedded.do(work()) == [b"%d" % number for number in range(100)]


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def certificates() -> Iterator[TlsConfig]:
    directory = Path(tempfile.mkdtemp(prefix="us-tls-"))
    make = [
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca"
        " -keyout ca.key -out ca.pem",
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=process"
        " -keyout process.key -out process.csr",
        "openssl x509 -req -in process.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out process.pem",
    ]
    for command in make:
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    (directory / "process.key").chmod(0o600)
    yield TlsConfig(directory / "process.pem", directory / "process.key", directory / "ca.pem")
    shutil.rmtree(directory)


async def test_calls_over_tls(certificates: TlsConfig) -> None:
    with ProbeServer(None, tls=certificates).closing() as server:
        async with calling(tls=certificates) as service:
            probe = service.gateway(server.address, ProbeGateway)
            assert await asyncio.gather(*(probe.echo(b"%d" % n) for n in range(100))) == [b"%d" % n for n in range(100)]
            large = bytes(3 << 20)
            assert await asyncio.gather(*(probe.echo(large) for _ in range(10))) == [large] * 10


def test_threads_call_over_tls(certificates: TlsConfig) -> None:
    with (
        ProbeServer(None, tls=certificates).closing() as server,
        ActorClient(SECRET, patient_config(tls=certificates)) as client,
    ):
        probe = client.gateway(server.address, ProbeGateway)
        for number in range(200):
            probe.add(number)
            assert probe.echo(b"%d" % number).result() == b"%d" % number
        assert probe.numbers().result() == list(range(200))
        large = bytes(1 << 20)
        asks = [probe.echo(large) for _ in range(20)]
        assert [ask.result() for ask in asks] == [large] * 20
        waiting = probe.never()
        waiting.add_done_callback(lambda _: None)
        assert probe.echo(b"x").result() == b"x"
        probe.release()
        assert waiting.result() is None


async def test_a_client_without_tls_is_refused_by_a_server_with_it(
    certificates: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with ProbeServer(None, tls=certificates).closing() as server:
        async with calling() as service:
            with pytest.raises(RecipientUnreachable, match="during the handshake"):
                await service.gateway(server.address, ProbeGateway).echo(b"x")
        with (
            ActorClient(SECRET, patient_config()) as client,
            pytest.raises(Exception, match=r"during the handshake|protocol"),
        ):
            client.gateway(server.address, ProbeGateway).echo(b"x").result()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(sock) as wrapped:
                wrapped.recv(1)  # it has no certificate of its own
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
