"""RPC over TLS: the same calls, the same secret inside it, and nobody without a certificate."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from actors.client import ActorClient
from actors.errors import ActorSystemError, AuthenticationError, FrameTooLarge
from actors.rpc.security import TARGET_SIZE
from actors.rpc.service import RpcService
from actors.rpc.tls import TlsConfig
from tests.contract.rpc_harness import (
    DEADLINE_S,
    OTHER_SECRET,
    SECRET,
    Item,
    ProbeGateway,
    ProbeServer,
    patient_config,
    until,
    wait_until,
)
from tests.fakes.certificates import CertificateAuthority
from tests.handshakes import authenticate_client_socket

FRAME_SIZE = 8 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(authority: CertificateAuthority) -> Iterator[ProbeServer]:
    server = ProbeServer(None, frame_size=FRAME_SIZE, tls=authority.issue())
    yield server
    server.close()


@contextlib.asynccontextmanager
async def calling(
    tls: TlsConfig | None, secret: bytes = SECRET, socket_dir: Path | None = None
) -> AsyncIterator[RpcService]:
    config = patient_config(frame_size=FRAME_SIZE, ask_timeout_s=DEADLINE_S, tls=tls, socket_dir=socket_dir)
    service = RpcService(asyncio.get_running_loop(), secret, config)
    try:
        yield service
    finally:
        await service.close()


async def test_calls_over_tls(server: ProbeServer, authority: CertificateAuthority) -> None:
    async with calling(authority.issue()) as client:
        probe = client.gateway(server.address, ProbeGateway)
        assert await probe.echo(b"x") == b"x"
        assert await probe.rename(Item("a", 1), "b") == Item("b", 2)
        with pytest.raises(ValueError, match="wrong"):
            await probe.fail_async("ValueError", "wrong")
        for number in range(100):
            probe.add(number)
        assert await probe.numbers() == list(range(100))
        asks = [probe.echo(b"%d" % number) for number in range(1000)]
        assert [await ask for ask in asks] == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("size", [100, 16 * 1024, 64 * 1024, 5 << 20])
async def test_large_messages_over_tls(server: ProbeServer, authority: CertificateAuthority, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with calling(authority.issue()) as client:
        probe = client.gateway(server.address, ProbeGateway)
        for ask in [probe.echo(value) for _ in range(4)]:
            assert await ask == value
        with pytest.raises(FrameTooLarge):
            await probe.echo(bytes(FRAME_SIZE))


def test_plain_threads_over_tls(server: ProbeServer, authority: CertificateAuthority) -> None:
    config = patient_config(frame_size=FRAME_SIZE, ask_timeout_s=DEADLINE_S, tls=authority.issue())
    with ActorClient(SECRET, config) as client:
        probe = client.gateway(server.address, ProbeGateway)
        failures: list[BaseException] = []

        def work(own: bytes) -> None:
            try:
                for number in range(100):
                    value = own + b"%d" % number
                    assert probe.echo(value).result() == value
                asks = [probe.echo(own * 5000) for _ in range(20)]
                assert [ask.result() for ask in asks] == [own * 5000] * 20
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(bytes([65 + n]),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert failures == []
        probe.add(7)
        assert probe.numbers().result() == [7]


@pytest.mark.parametrize("threads", [False, True], ids=["loop", "threads"])
async def test_the_secret_is_asked_for_inside_tls(
    server: ProbeServer, authority: CertificateAuthority, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tls = authority.issue()
    if threads:
        with ActorClient(OTHER_SECRET, patient_config(tls=tls)) as client:
            ask = client.gateway(server.address, ProbeGateway).echo(b"x")
            with pytest.raises(AuthenticationError, match="server does not hold this cluster's secret"):
                await asyncio.to_thread(ask.result)
    else:
        async with calling(tls, OTHER_SECRET) as service:
            with pytest.raises(AuthenticationError, match="server does not hold this cluster's secret"):
                await service.gateway(server.address, ProbeGateway).echo(b"x")
    await until(lambda: "does it hold this cluster's secret?" in caplog.text, "the line in the log")


def test_what_travels_is_tls_1_3_and_shows_nothing(
    server: ProbeServer, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay in between sees every byte."""
    monkeypatch.setattr("actors.rpc.security._target", lambda *_: bytes(TARGET_SIZE))  # else it would be refused
    seen = bytearray()

    def relay(listening: socket.socket) -> None:
        near, _ = listening.accept()
        far = socket.create_connection(("127.0.0.1", server.port))

        def carry(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    seen.extend(data)
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=carry, args=(far, near))
        back.start()
        carry(near, far)
        back.join(DEADLINE_S)
        near.close()
        far.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        context = authority.issue().contexts()[1]
        with (
            socket.create_connection(listening.getsockname(), timeout=DEADLINE_S) as sock,
            context.wrap_socket(sock) as secure,
        ):
            assert secure.version() == "TLSv1.3"
            authenticate_client_socket(secure, SECRET, "rpc")
        config = patient_config(tls=authority.issue(), ask_timeout_s=DEADLINE_S)
        thread.join(DEADLINE_S)
        assert b"UNDR" not in seen
        seen.clear()
        thread = threading.Thread(target=relay, args=(listening,))
        thread.start()
        with ActorClient(SECRET, config) as client:
            through = server.address.__class__("s", "127.0.0.1", listening.getsockname()[1], "/user/probe")
            assert client.gateway(through, ProbeGateway).echo(b"confidential" * 10).result() == b"confidential" * 10
        thread.join(DEADLINE_S)
    assert len(seen) > 240
    for text in (b"UNDR", b"confidential", b"/user/probe", b"echo"):
        assert text not in seen


async def test_a_unix_socket_goes_without(tmp_path: Path, authority: CertificateAuthority) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    with ProbeServer(directory, tls=authority.issue()).closing() as server:
        async with calling(authority.issue(), socket_dir=directory) as client:
            assert await client.gateway(server.address, ProbeGateway).echo(b"x") == b"x"
            (connection,) = server.call(lambda: list(server.service.connections))
            assert connection.sock is not None
            assert connection.sock.family == socket.AF_UNIX
            assert connection._tls is None
        async with calling(authority.issue()) as client:
            assert await client.gateway(server.address, ProbeGateway).echo(b"x") == b"x"


async def test_replies_that_outgrow_the_buffers_come_all_the_same(
    server: ProbeServer, authority: CertificateAuthority
) -> None:
    async with calling(authority.issue()) as client:
        probe = client.gateway(server.address, ProbeGateway)
        asks = [probe.zeros(1 << 20) for _ in range(60)]
        assert [len(await ask) for ask in asks] == [1 << 20] * 60
        assert server.call(lambda: all(not one.paused for one in server.service.connections))


async def test_a_server_that_ends_is_noticed_and_the_next_one_found(authority: CertificateAuthority) -> None:
    tls = authority.issue()
    server = ProbeServer(None, tls=tls)
    port = server.port
    async with calling(authority.issue()) as client:
        probe = client.gateway(server.address, ProbeGateway, timeout_s=DEADLINE_S)
        assert await probe.echo(b"x") == b"x"
        waiting = probe.never()
        await until(lambda: server.probe.waiting == 1, "the call")
        server.break_connections()
        with pytest.raises(ConnectionError, match="the connection broke"):
            await waiting
        assert await probe.echo(b"y") == b"y"
        await asyncio.to_thread(server.close)
        with ProbeServer(None, tls=tls, port=port).closing():
            assert await probe.echo(b"z") == b"z"


async def test_a_mute_server_does_not_hold_a_client_up(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.rpc.connection.HANDSHAKE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with calling(authority.issue()) as client:
            address = f"akka.tcp://s@127.0.0.1:{mute.getsockname()[1]}/user/probe"
            with pytest.raises(ConnectionError, match="no handshake within"):
                await client.gateway(address, ProbeGateway).echo(b"x")


def test_a_service_with_wrong_files_does_not_start(authority: CertificateAuthority, tmp_path: Path) -> None:
    good = authority.issue()
    with pytest.raises(ActorSystemError, match=r"security\.ssl\.internal\.key: .* cannot be read"):
        ProbeServer(None, tls=TlsConfig(good.certificate, tmp_path / "missing", good.ca))
    with pytest.raises(ActorSystemError, match=r"security\.ssl\.internal\.key: .* cannot be read"):
        ActorClient(SECRET, patient_config(tls=TlsConfig(good.certificate, tmp_path / "missing", good.ca)))


def test_many_that_do_not_speak_tls_disturb_nobody(
    server: ProbeServer, authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ActorClient(SECRET, patient_config(tls=authority.issue(), ask_timeout_s=DEADLINE_S)) as client:
        probe = client.gateway(server.address, ProbeGateway)
        assert probe.echo(b"x").result() == b"x"
        for data in (
            b"",
            b"\x16\x03\x01",
            bytes(5000),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + bytes(70000),
        ):
            for _ in range(5):
                with (
                    contextlib.suppress(OSError),  # it hangs up when it pleases
                    socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as sock,
                ):
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass
                assert probe.echo(data).result() == data
    wait_until(lambda: not server.service.connections, "the end of the connections")
    assert [record for record in caplog.records if record.name == "asyncio"] == []
