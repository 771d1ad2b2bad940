"""What each malformed thing gets for an answer: one test for each row of the table in docs/actors/wire.md."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.core import dead_letters
from actors.errors import (
    ActorError,
    AuthenticationError,
    FencingError,
    FrameTooLarge,
    ProtocolVersionMismatch,
    RecipientUnreachable,
    UnknownActor,
    WireError,
)
from actors.rpc import blocking, wire
from actors.rpc import connection as rpc_connection
from actors.rpc.gateway import FencingToken
from actors.rpc.security import (
    GREETING_SIZE,
    HELLO_SIZE,
    LOCAL,
    MAC_SIZE,
    MAGIC,
    PROOF_SIZE,
    SPOKEN,
    ClientHandshake,
    ServerHandshake,
    Versions,
    far_end,
    near_end,
    refusal,
)
from actors.rpc.service import RpcService
from actors.rpc.tls import TlsConfig
from tests.contract.rpc_harness import (
    DEADLINE_S,
    OTHER_SECRET,
    SECRET,
    LeaderGateway,
    ProbeGateway,
    ProbeServer,
    RawPeer,
    frame,
    patient_config,
    wait_until,
)
from tests.fakes.certificates import CertificateAuthority
from tests.handshakes import serve_handshake
from tests.logged import logged

FRAME_SIZE = 1 << 20
PATH = "/user/probe"
TELL = frame(msgpack.packb([wire.TELL, PATH, "add", [1], None]))
PAGE = Path(__file__).parents[2] / "docs" / "actors" / "wire.md"

Row = Callable[["Stage"], Awaitable[None]]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def register(function: Row) -> Row:
        ROWS[name] = function
        return function

    return register


class Stage:
    """A server, its log, and what the rows have in common."""

    def __init__(
        self, server: ProbeServer, authority: CertificateAuthority, caplog: pytest.LogCaptureFixture, directory: Path
    ) -> None:
        self.server = server
        self.authority = authority
        self.directory = directory
        self._caplog = caplog

    def refusals(self) -> list[str]:
        return logged(self._caplog, "actors")

    async def one_refusal(self, reason: str) -> None:
        """One line in the log, and nothing was served."""
        await asyncio.to_thread(wait_until, lambda: bool(self.refusals()), "the line in the log")
        (line,) = self.refusals()
        assert re.match(r"refused (127\.0\.0\.1:\d+|a local peer): ", line)
        assert reason in line
        assert self.server.probe.added == []

    async def cut_off(self, sent: bytes, reason: str, answer: bytes = b"", secret: bytes | None = None) -> None:
        with RawPeer(self.server.port, secret) as peer:
            peer.send(sent)
            if answer:
                assert await asyncio.to_thread(peer.sock.recv, len(answer), socket.MSG_WAITALL) == answer
            assert await asyncio.to_thread(peer.is_cut_off)
        await self.one_refusal(reason)

    async def connection_refused(self, sent: bytes, error_type: type[WireError], reason: str) -> None:
        """An authenticated peer is told why before it is cut off, and a client makes the error of it."""
        with RawPeer(self.server.port) as peer:
            peer.send(sent)
            kind, correlation, name, text, _ = await asyncio.to_thread(peer.message)
            assert (kind, correlation) == (wire.ERROR, 0)
            assert name == f"{error_type.__module__}.{error_type.__qualname__}"
            assert reason in text
            assert ("raise rpc.frame-size" in text) == (error_type is FrameTooLarge), "the remedy"
            assert await asyncio.to_thread(peer.is_cut_off)
        await self.one_refusal(reason)
        with pytest.raises(error_type) as caught:
            await self._ask_of_one_that_says([wire.ERROR, 0, name, text, ""])
        assert type(caught.value) is error_type

    async def answered(self, message: list[Any], error_type: type[ActorError]) -> None:
        """An ask gets an ERROR, a tell a line in the log; those for nobody are dead letters. The connection goes on."""
        with RawPeer(self.server.port) as peer:
            peer.send_message([wire.ASK, 5, *message])
            kind, correlation, name, *_ = await asyncio.to_thread(peer.message)
            assert (kind, correlation) == (wire.ERROR, 5)
            assert name == f"{error_type.__module__}.{error_type.__qualname__}"
            peer.send_message([wire.TELL, *message])
            peer.send_message([wire.ASK, 6, PATH, "echo", [b"x"], None])
            assert await asyncio.to_thread(peer.message) == [wire.REPLY, 6, b"x"]
        if error_type is UnknownActor:
            # The actor system of the contract tests, in this process too, may have some of its own.
            here = f"@127.0.0.1:{self.server.port}/"
            lines = [
                text
                for record in self._caplog.records
                if record.name == dead_letters.__name__ and here in (text := record.getMessage())
            ]
            assert len(lines) == 2, "a dead letter for the ask, and one for the tell"
        else:
            lines = self.refusals()
            assert len(lines) == 1
            assert "failed" in lines[0]
        assert all(len(line) < 4000 for line in lines)

    async def _ask_of_one_that_says(self, message: list[Any]) -> None:
        async with self.impostor(SECRET, frame(msgpack.packb(message))) as port, self.client() as client:
            await client.gateway(ActorAddress("s", "127.0.0.1", port, PATH), ProbeGateway).echo(b"x")

    @contextlib.asynccontextmanager
    async def client(self, secret: bytes = SECRET, tls: TlsConfig | None = None) -> AsyncIterator[RpcService]:
        config = patient_config(frame_size=FRAME_SIZE, ask_timeout_s=DEADLINE_S, tls=tls)
        service = RpcService(asyncio.get_running_loop(), secret, config)
        try:
            yield service
        finally:
            await service.close()

    def probe(self, client: RpcService) -> ProbeGateway:
        return client.gateway(self.server.address, ProbeGateway)

    @contextlib.asynccontextmanager
    async def impostor(self, secret: bytes, after: bytes, service: str = "rpc") -> AsyncIterator[int]:
        """A server that shakes hands with another secret or for another service, and then says *after*."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                records = await serve_handshake(reader, writer, secret, service)
                await reader.readexactly(10)
                writer.write(records.seal(after) if after else b"")
                await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            yield listening.sockets[0].getsockname()[1]


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer(None, frame_size=FRAME_SIZE)
    yield server
    server.close()


@pytest.fixture
def stage(server: ProbeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Stage:
    return Stage(server, CertificateAuthority(tmp_path), caplog, tmp_path)


# ------------------------------------------------------------------ the handshake


@row("truncated handshake")
async def truncated_handshake(stage: Stage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
        await stage.cut_off(MAGIC + bytes([SPOKEN.newest]) + bytes(10), "no handshake within 0.1 s")
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = ActorAddress("s", *mute.getsockname(), PATH)
            async with stage.client() as client:
                with pytest.raises(RecipientUnreachable, match=r"no handshake within 0\.1 s"):
                    await client.gateway(address, ProbeGateway).echo(b"x")
            with (
                ActorClient(SECRET, patient_config()) as plain,
                pytest.raises(RecipientUnreachable, match=r"no handshake within 0\.1 s"),
            ):
                await asyncio.to_thread(plain.gateway(address, ProbeGateway).echo(b"x").result)


@row("wrong protocol")
async def wrong_protocol(stage: Stage) -> None:
    await stage.cut_off(
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(64), "does not speak the Understudy protocol"
    )


@row("no common version")
async def no_common_version(stage: Stage) -> None:
    later = Versions(SPOKEN.newest + 1, SPOKEN.newest + 2)
    hello = ClientHandshake(SECRET, "rpc", LOCAL, later).hello()
    await stage.cut_off(hello, f"version {later}, this side speaks {SPOKEN}", refusal(SPOKEN))
    with pytest.MonkeyPatch.context() as patch:
        for user in (rpc_connection, blocking):
            patch.setattr(user, "ClientHandshake", partial(ClientHandshake, spoken=later))
        told = f"the peer speaks protocol version {SPOKEN}, this side speaks {later}: install the same release"
        async with stage.client() as client:
            with pytest.raises(ProtocolVersionMismatch, match=told):
                await stage.probe(client).echo(b"x")
        with ActorClient(SECRET, patient_config()) as plain, pytest.raises(ProtocolVersionMismatch, match=told):
            await asyncio.to_thread(plain.gateway(stage.server.address, ProbeGateway).echo(b"x").result)


@row("wrong service")
async def wrong_service(stage: Stage) -> None:
    async with stage.impostor(SECRET, b"", "blob") as port, stage.client() as client:
        with pytest.raises(AuthenticationError, match="server does not hold"):
            await client.gateway(ActorAddress("s", "127.0.0.1", port, PATH), ProbeGateway).echo(b"x")
    with RawPeer(stage.server.port, None) as peer:
        handshake = ClientHandshake(SECRET, "blob", far_end(peer.sock))
        peer.send(handshake.hello())
        proof = await asyncio.to_thread(peer.sock.recv, PROOF_SIZE, socket.MSG_WAITALL)
        handshake._server_nonce = proof[5:GREETING_SIZE]
        peer.send(handshake._mac(b"client") + TELL)
        assert await asyncio.to_thread(peer.is_cut_off)
    await stage.one_refusal("does not hold this cluster's secret")


@row("wrong secret of the client")
async def wrong_secret_of_the_client(stage: Stage) -> None:
    async with stage.client(OTHER_SECRET) as client:
        with pytest.raises(AuthenticationError, match="server does not hold this cluster's secret"):
            await stage.probe(client).echo(b"x")
    await stage.one_refusal("does it hold this cluster's secret?")


@row("wrong secret of the server")
async def wrong_secret_of_the_server(stage: Stage) -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = ServerHandshake(OTHER_SECRET, "rpc", near_end(writer.get_extra_info("socket")))
        received.extend(await reader.readexactly(HELLO_SIZE))
        server.receive(bytes(received[:GREETING_SIZE]))
        writer.write(server.receive(bytes(received[GREETING_SIZE:])))
        with contextlib.suppress(ConnectionError):
            received.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, stage.client() as client:
        address = ActorAddress("s", *listening.sockets[0].getsockname(), PATH)
        with pytest.raises(AuthenticationError, match="server does not hold this cluster's secret"):
            await client.gateway(address, ProbeGateway).echo(b"confidential")
    assert len(received) == HELLO_SIZE


@row("unauthenticated frames")
async def unauthenticated_frames(stage: Stage) -> None:
    await stage.cut_off(TELL * 10, "does not speak the Understudy protocol")


@row("replayed handshake")
async def replayed_handshake(stage: Stage) -> None:
    with RawPeer(stage.server.port, None) as peer:
        handshake = ClientHandshake(SECRET, "rpc", far_end(peer.sock))
        peer.send(handshake.hello())
        answer = handshake.receive(await asyncio.to_thread(peer.sock.recv, PROOF_SIZE, socket.MSG_WAITALL))
        peer.send(answer)
        peer.authenticated(handshake)
        peer.send_message([wire.ASK, 1, PATH, "echo", [b"x"], None])
        assert await asyncio.to_thread(peer.message) == [wire.REPLY, 1, b"x"]
    with RawPeer(stage.server.port, None) as peer:
        peer.send(handshake.hello() + answer + TELL)
        assert len(await asyncio.to_thread(peer.sock.recv, PROOF_SIZE, socket.MSG_WAITALL)) == PROOF_SIZE
        assert await asyncio.to_thread(peer.is_cut_off)
    await stage.one_refusal("does not hold this cluster's secret")


@row("reordered handshake")
async def reordered_handshake(stage: Stage) -> None:
    await stage.cut_off(os.urandom(MAC_SIZE) + ClientHandshake(SECRET, "rpc", LOCAL).hello(), "does not speak")


@row("duplicated handshake")
async def duplicated_handshake(stage: Stage) -> None:
    with RawPeer(stage.server.port, None) as peer:
        peer.send(ClientHandshake(SECRET, "rpc", far_end(peer.sock)).hello() * 2)
        assert len(await asyncio.to_thread(peer.sock.recv, PROOF_SIZE, socket.MSG_WAITALL)) == PROOF_SIZE
        assert await asyncio.to_thread(peer.is_cut_off)
    await stage.one_refusal("does not hold this cluster's secret")


# ------------------------------------------------------------------ frames


@row("truncated frame")
async def truncated_frame(stage: Stage) -> None:
    with RawPeer(stage.server.port) as peer:
        peer.send(TELL[:-1])
        peer.sock.shutdown(socket.SHUT_WR)
        assert await asyncio.to_thread(peer.is_cut_off)
    assert stage.server.call(lambda: stage.server.probe.added) == []
    assert stage.refusals() == []
    reply = frame(msgpack.packb([wire.REPLY, 1, b"x" * 100]))
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records = await serve_handshake(reader, writer, SECRET)
        await reader.readexactly(10)
        writer.write(records.seal(reply[:-1]))
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, stage.client() as client:
        address = ActorAddress("s", *listening.sockets[0].getsockname(), PATH)
        with pytest.raises(RecipientUnreachable, match="the connection broke"):
            await client.gateway(address, ProbeGateway).echo(b"x")
        await ended.wait()


@row("oversized frame")
async def oversized_frame(stage: Stage) -> None:
    await stage.connection_refused(
        struct.pack(">I", FRAME_SIZE + 1), FrameTooLarge, f"a frame of {FRAME_SIZE + 1} bytes"
    )


@row("oversized argument")
async def oversized_argument(stage: Stage) -> None:
    async with stage.client() as client:
        gateway = stage.probe(client)
        with pytest.raises(FrameTooLarge, match=r"exceeds rpc\.frame-size"):
            await gateway.echo(bytes(FRAME_SIZE))
        assert await gateway.echo(b"x") == b"x"
    assert len(stage.server.call(lambda: list(stage.server.service.connections))) <= 1
    assert stage.refusals() == []


@row("reordered frames")
async def reordered_frames(stage: Stage) -> None:
    with RawPeer(stage.server.port) as peer:
        for number in (3, 1, 2):
            peer.send_message([wire.ASK, number, PATH, "add_sync", [number], None])
        assert [(await asyncio.to_thread(peer.message))[1] for _ in range(3)] == [3, 1, 2]
    assert stage.server.call(lambda: stage.server.probe.added) == [3, 1, 2]
    replies = b"".join(frame(msgpack.packb([wire.REPLY, number, b"%d" % number])) for number in (2, 1))
    async with stage.impostor(SECRET, replies) as port, stage.client() as client:
        gateway = client.gateway(ActorAddress("s", "127.0.0.1", port, PATH), ProbeGateway)
        first, second = gateway.echo(b""), gateway.echo(b"")
        assert (await first, await second) == (b"1", b"2")


@row("duplicated ask")
async def duplicated_ask(stage: Stage) -> None:
    with RawPeer(stage.server.port) as peer:
        for _ in range(2):
            peer.send_message([wire.ASK, 1, PATH, "add_sync", [7], None])
        assert [await asyncio.to_thread(peer.message) for _ in range(2)] == [[wire.REPLY, 1, 7]] * 2
    assert stage.server.call(lambda: stage.server.probe.added) == [7, 7]
    replies = frame(msgpack.packb([wire.REPLY, 1, b"a"])) * 3 + frame(msgpack.packb([wire.REPLY, 2, b"b"]))
    async with stage.impostor(SECRET, replies) as port, stage.client() as client:
        gateway = client.gateway(ActorAddress("s", "127.0.0.1", port, PATH), ProbeGateway)
        first, second = gateway.echo(b""), gateway.echo(b"")
        assert (await first, await second) == (b"a", b"b")


@row("unknown kind of frame")
async def unknown_kind_of_frame(stage: Stage) -> None:
    await stage.connection_refused(frame(msgpack.packb([9, 1, 2])) + TELL, WireError, "unknown kind 9")


@row("malformed MessagePack")
async def malformed_messagepack(stage: Stage) -> None:
    await stage.connection_refused(frame(b"\xc1") + TELL, WireError, "malformed frame")


@row("extension type")
async def extension_type(stage: Stage) -> None:
    message = [wire.TELL, PATH, "add", [msgpack.ExtType(5, b"")], None]
    await stage.connection_refused(frame(msgpack.packb(message)), WireError, "extension type 5")


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


WRONG_TYPES: dict[str, list[Any]] = {
    "path": [["/user/probe"], "numbers", [], None],
    "deep path": [_nested(480), "numbers", [], None],
    "long path": [b"x" * 100_000, "numbers", [], None],
    "method": [PATH, {"a": 1}, [], None],
    "arguments": [PATH, "numbers", "abc", None],
    "argument": [PATH, "add", ["1"], None],
    "long argument": [PATH, "add", ["1" * 100_000], None],
    "too many arguments": [PATH, "add", [1, 2], None],
    "token": ["/user/leader", "lead", [], "7"],
    "deep token": ["/user/leader", "lead", [], _nested(480)],
}


@row("wrong type of a field")
async def wrong_type_of_a_field(stage: Stage) -> None:
    for message in WRONG_TYPES.values():
        stage._caplog.clear()
        await stage.answered(message, WireError)
    assert stage.server.probe.added == []


@row("unknown actor or method")
async def unknown_actor_or_method(stage: Stage) -> None:
    for message in (
        [PATH, "nothing", [], None],
        [PATH, "__class__", [], None],
        ["/user/x" * 9000, "echo", [b""], None],
    ):
        stage._caplog.clear()
        await stage.answered(message, UnknownActor)


@row("wrong fencing token")
async def wrong_fencing_token(stage: Stage) -> None:
    stage.server.leader.fencing_token = FencingToken(7, "session")
    for token in ([6, "session"], [7, "another"], [2**63, ""], None):
        stage._caplog.clear()
        await stage.answered(["/user/leader", "lead", [], token], FencingError)
    async with stage.client() as client:
        gateway = client.gateway(
            stage.server.service.address_of("/user/leader"), LeaderGateway, FencingToken(6, "session")
        )
        with pytest.raises(FencingError):
            await gateway.lead()


@row("frames after a malformed one")
async def frames_after_a_malformed_one(stage: Stage) -> None:
    with RawPeer(stage.server.port) as peer:
        peer.send(frame(b"\xc1") + TELL * 5)
        assert (await asyncio.to_thread(peer.message))[:2] == [wire.ERROR, 0]
        with contextlib.suppress(ConnectionError):
            peer.send(TELL)
        assert await asyncio.to_thread(peer.is_cut_off)
    await stage.one_refusal("malformed frame")


# ------------------------------------------------------------------ TLS


@contextlib.contextmanager
def _over_tls(stage: Stage) -> Iterator[None]:
    plain = stage.server
    stage.server = ProbeServer(None, frame_size=FRAME_SIZE, tls=stage.authority.issue())
    try:
        yield
    finally:
        stage.server.close()
        stage.server = plain


@row("plain client, TLS server")
async def plain_client_tls_server(stage: Stage) -> None:
    with _over_tls(stage):
        async with stage.client() as client:
            with pytest.raises(RecipientUnreachable, match=r"broke during the handshake.*TLS"):
                await stage.probe(client).echo(b"x")
        await stage.one_refusal("does not speak TLS 1.3")


@row("TLS client, plain server")
async def tls_client_plain_server(stage: Stage) -> None:
    async with stage.client(tls=stage.authority.issue()) as client:
        with pytest.raises(RecipientUnreachable, match=r"broke during the handshake.*TLS"):
            await stage.probe(client).echo(b"x")
    await stage.one_refusal("does not speak the Understudy protocol")


@row("TLS client without a certificate")
async def tls_client_without_a_certificate(stage: Stage) -> None:
    with _over_tls(stage):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(stage.authority.issue().ca)

        def talk() -> None:
            with (
                socket.create_connection(("127.0.0.1", stage.server.port), timeout=DEADLINE_S) as sock,
                context.wrap_socket(sock) as secure,
            ):
                secure.sendall(ClientHandshake(SECRET, "rpc", far_end(secure)).hello())
                secure.recv(PROOF_SIZE)

        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await asyncio.to_thread(talk)
        await stage.one_refusal("has shown no certificate")


@row("certificate of another authority")
async def certificate_of_another_authority(stage: Stage) -> None:
    other = stage.directory / "other"
    other.mkdir()
    stranger = CertificateAuthority(other).issue()
    with _over_tls(stage):
        async with stage.client(tls=stranger) as client:
            with pytest.raises(AuthenticationError, match="the peer's certificate is not accepted"):
                await stage.probe(client).echo(b"x")
        await stage.one_refusal("does not accept this side's certificate")
        stage._caplog.clear()
        # One that trusts this cluster's authority as well finds out only from the server.
        both = other / "both.pem"
        both.write_bytes(stranger.ca.read_bytes() + stage.authority.issue().ca.read_bytes())
        trusting = TlsConfig(stranger.certificate, stranger.key, both)
        async with stage.client(tls=trusting) as client:
            with pytest.raises(AuthenticationError, match="the peer does not accept this side's certificate"):
                await stage.probe(client).echo(b"x")
        with ActorClient(SECRET, patient_config(tls=trusting)) as plain:
            ask = plain.gateway(stage.server.address, ProbeGateway).echo(b"x")
            with pytest.raises(AuthenticationError, match="the peer does not accept this side's certificate"):
                await asyncio.to_thread(ask.result)
        await asyncio.to_thread(wait_until, lambda: len(stage.refusals()) == 2, "both lines in the log")
        assert all("the peer's certificate is not accepted" in line for line in stage.refusals())


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", ROWS)
async def test_the_documented_answer(stage: Stage, name: str) -> None:
    await ROWS[name](stage)


def test_the_table_and_the_tests_are_of_the_same_rows() -> None:
    section = PAGE.read_text().partition("## What malformed things get")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[1:]
    assert documented == list(ROWS)
