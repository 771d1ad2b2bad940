"""Peers without the secret, peers that speak nonsense, peers that do not read: none of them disturbs the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import (
    ActorError,
    AuthenticationError,
    FrameTooLarge,
    RecipientUnreachable,
    WireError,
)
from actors.rpc import connection as rpc_connection
from actors.rpc import wire
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
from actors.rpc.service import RpcConfig, RpcService
from tests.contract.rpc_harness import (
    DEADLINE_S,
    OTHER_SECRET,
    SECRET,
    ProbeGateway,
    ProbeServer,
    RawPeer,
    frame,
    patient_config,
    until,
    wait_until,
)
from tests.handshakes import Records, serve_handshake
from tests.logged import logged

FRAME_SIZE = 1 << 20
TELL = frame(msgpack.packb([wire.TELL, "/user/probe", "add", [1], None]))


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer(None, frame_size=FRAME_SIZE)
    yield server
    server.close()


@contextlib.asynccontextmanager
async def calling(secret: bytes = SECRET) -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), secret, patient_config(frame_size=FRAME_SIZE))
    try:
        yield service
    finally:
        await service.close()


class SteadyClient:
    """Asks one thing after another in a loop of its own; `check` is the proof that it was never disturbed."""

    def __init__(self, server: ProbeServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.answers = 0
        self.error: BaseException | None = None

    async def _run(self) -> None:
        async with calling() as service:
            gateway = service.gateway(self._server.address, ProbeGateway)
            try:
                while not self._stop.is_set():
                    value = str(self.answers).encode()
                    assert await gateway.echo(value) == value
                    self.answers += 1
            except BaseException as error:
                self.error = error

    def __enter__(self) -> SteadyClient:
        self._thread.start()
        wait_until(lambda: self.answers > 0 or self.error is not None, "the first answer")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)

    def check(self) -> None:
        before = self.answers
        wait_until(lambda: self.answers > before + 10 or self.error is not None, "further answers")
        if self.error is not None:
            raise self.error


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return logged(caplog, "actors")


def no_surprises(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logs what escapes a protocol or a task; nothing may."""
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


# ------------------------------------------------------------------ the secret


async def test_a_client_with_another_secret_is_refused_on_both_sides(
    server: ProbeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with SteadyClient(server) as steady:
        async with calling(OTHER_SECRET) as intruder:
            gateway = intruder.gateway(server.address, ProbeGateway)
            gateway.add(1)
            asks = [gateway.echo(b"x") for _ in range(3)]
            for ask in asks:
                with pytest.raises(AuthenticationError, match="server does not hold this cluster's secret"):
                    await ask
        await until(lambda: bool(refusals(caplog)), "the log line")
        steady.check()
    assert server.probe.added == []
    (line,) = refusals(caplog)
    assert line.startswith("refused 127.0.0.1:")
    assert "secret" in line
    assert SECRET.decode() not in line
    no_surprises(caplog)


async def test_each_try_with_another_secret_is_refused_anew(server: ProbeServer) -> None:
    async with calling(OTHER_SECRET) as intruder:
        gateway = intruder.gateway(server.address, ProbeGateway)
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await gateway.echo(b"x")


def test_an_impostor_that_answers_all_the_same_is_cut_off(
    server: ProbeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RawPeer(server.port, None) as peer:
        peer.send(ClientHandshake(OTHER_SECRET, "rpc", far_end(peer.sock)).hello())
        assert len(peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL)) == PROOF_SIZE
        tell = frame(msgpack.packb([wire.TELL, "/user/probe", "add", [1], None]))
        peer.send(os.urandom(MAC_SIZE) + tell)
        assert peer.is_cut_off()
    wait_until(lambda: bool(refusals(caplog)), "the log line")
    (line,) = refusals(caplog)
    assert "the peer does not hold this cluster's secret" in line
    assert server.probe.added == []


def test_nothing_is_served_before_the_handshake(server: ProbeServer) -> None:
    tell = frame(msgpack.packb([wire.TELL, "/user/probe", "add", [1], None]))
    with RawPeer(server.port, None) as peer:
        peer.send(tell * 10)
        assert peer.is_cut_off()
    with RawPeer(server.port, None) as peer:
        peer.send(ClientHandshake(SECRET, "rpc", far_end(peer.sock)).hello() + tell * 10)
        assert len(peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL)) == PROOF_SIZE
        assert peer.is_cut_off()
    assert server.call(lambda: server.probe.added) == []


def test_a_recorded_connection_played_back_is_refused(server: ProbeServer) -> None:
    with RawPeer(server.port, None) as peer:
        handshake = ClientHandshake(SECRET, "rpc", far_end(peer.sock))
        peer.send(handshake.hello())
        answer = handshake.receive(peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL))
        tell = Records.of_client(handshake, peer.sock).seal(TELL)
        peer.send(answer + tell)
        wait_until(lambda: server.probe.added == [1], "the genuine tell")
    with RawPeer(server.port, None) as peer:
        peer.send(handshake.hello() + answer + tell)
        assert len(peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL)) == PROOF_SIZE
        assert peer.is_cut_off()
    assert server.call(lambda: server.probe.added) == [1]


async def test_a_client_shows_an_impostor_server_nothing_of_its_messages() -> None:
    received = bytearray()
    ended = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handshake = ServerHandshake(OTHER_SECRET, "rpc", near_end(writer.get_extra_info("socket")))
        hello = await reader.readexactly(HELLO_SIZE)
        received.extend(hello)
        handshake.receive(hello[:GREETING_SIZE])
        writer.write(handshake.receive(hello[GREETING_SIZE:]))
        with contextlib.suppress(ConnectionError):
            received.extend(await reader.read())
        writer.close()
        ended.set()

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as listening, calling() as client:
        address = ActorAddress("s", "127.0.0.1", listening.sockets[0].getsockname()[1], "/user/probe")
        gateway = client.gateway(address, ProbeGateway, FencingToken(1, "a-secret-session"))
        gateway.add(4711)
        with pytest.raises(AuthenticationError, match="server does not hold"):
            await gateway.echo(b"confidential")
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
    assert len(received) == HELLO_SIZE


@pytest.mark.parametrize("left", ["nothing", "a dead socket"])
@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_who_shares_a_socket_directory_is_never_reached_by_tcp(
    tmp_path: Path, kind: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has bound the TCP port that a component left behind with its Unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0)
        port = taken.getsockname()[1]
        if left == "a dead socket":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(tmp_path / f"rpc-{port}"))  # bound, not listened to: as after a SIGKILL
        address = ActorAddress(RpcConfig().system, "127.0.0.1", port, "/user/probe")

        def ask(config: RpcConfig) -> None:
            async def ask_on_a_loop() -> None:
                service = RpcService(asyncio.get_running_loop(), SECRET, config)
                try:
                    await service.gateway(address, ProbeGateway).echo(b"x")
                finally:
                    await service.close()

            if kind == "loop":
                asyncio.run(ask_on_a_loop())
            else:
                with ActorClient(SECRET, config) as client:
                    client.gateway(address, ProbeGateway).echo(b"x").result()

        with pytest.raises(RecipientUnreachable, match="nothing can be reached"):
            ask(patient_config(socket_dir=tmp_path))
        with pytest.raises(BlockingIOError):
            taken.accept()
        monkeypatch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
        with pytest.raises(RecipientUnreachable, match="no handshake"):  # the control: without a directory it is asked
            ask(patient_config())
        taken.accept()[0].close()


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
@pytest.mark.parametrize("kind", ["server", "loop", "thread"])
def test_a_unix_socket_takes_this_users_processes_alone(
    tmp_path: Path, kind: str, guard: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other end is another user's, as far as one of the three that may ask for that can see."""

    def refuse(_: socket.socket) -> None:
        raise AuthenticationError("the other end of the Unix socket is a process of user 4711")

    if guard == "guarded":
        module = {"server": "service", "loop": "service", "thread": "blocking"}[kind]
        monkeypatch.setattr(f"actors.rpc.{module}.check_peer_is_us", refuse)
    config = patient_config(socket_dir=tmp_path)

    async def ask_on_a_loop(address: ActorAddress) -> bytes:
        service = RpcService(asyncio.get_running_loop(), SECRET, config)
        try:
            return await service.gateway(address, ProbeGateway).echo(b"x")
        finally:
            await service.close()

    with ProbeServer(tmp_path).closing() as server:

        def ask() -> bytes:
            if kind == "loop":
                return asyncio.run(ask_on_a_loop(server.address))
            with ActorClient(SECRET, config) as client:
                return client.gateway(server.address, ProbeGateway).echo(b"x").result()

        if guard == "unguarded":
            assert ask() == b"x"
        elif kind == "server":
            with pytest.raises(RecipientUnreachable):
                ask()
            told = "refused a local peer: the other end of the Unix socket is a process of user 4711"
            wait_until(lambda: told in caplog.text, "the line of the server's thread")
        else:
            with pytest.raises(AuthenticationError, match="of user 4711"):
                ask()


# ------------------------------------------------------------------ nonsense


UNAUTHENTICATED = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
    "random": random.Random(1).randbytes(4096),
    "zeros": bytes(1 << 20),
    "another version": ClientHandshake(
        OTHER_SECRET, "rpc", LOCAL, Versions(SPOKEN.newest + 1, SPOKEN.newest + 1)
    ).hello(),
}

AUTHENTICATED: dict[str, bytes] = {
    "oversized": struct.pack(">I", FRAME_SIZE + 1),
    "enormous": b"\xff" * 64,
    "not MessagePack": frame(b"\xc1"),
    "empty frame": frame(b""),
    "no array": frame(msgpack.packb({"a": 1})),
    "unknown kind": frame(msgpack.packb([9, 1, 2])),
    "a reply": frame(msgpack.packb([wire.REPLY, 1, 2])),
    "an error": frame(msgpack.packb([wire.ERROR, 1, "T", "m", ""])),
    "too few fields": frame(msgpack.packb([wire.ASK, 1, "/user/probe"])),
    "extension": frame(msgpack.packb([wire.TELL, "/user/probe", "add", [msgpack.ExtType(1, b"")], None])),
    "no correlation id": frame(msgpack.packb([wire.ASK, None, "/user/probe", "numbers", [], None])),
}


@pytest.mark.parametrize("name", UNAUTHENTICATED)
def test_another_protocol_is_cut_off_with_one_log_line(
    server: ProbeServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SteadyClient(server) as steady:
        with RawPeer(server.port, None) as peer:
            with contextlib.suppress(ConnectionError):
                peer.send(UNAUTHENTICATED[name])
            if name == "another version":
                assert peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL) == refusal(SPOKEN)
            assert peer.is_cut_off()
        steady.check()
    wait_until(lambda: bool(refusals(caplog)), "the log line")
    (line,) = refusals(caplog)
    assert line.startswith("refused 127.0.0.1:")
    no_surprises(caplog)


@pytest.mark.parametrize("name", AUTHENTICATED)
def test_an_authenticated_peer_that_breaks_the_protocol_is_cut_off(
    server: ProbeServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SteadyClient(server) as steady:
        with RawPeer(server.port) as peer:
            peer.send(AUTHENTICATED[name])
            kind, correlation, error_type, text, _ = peer.message()
            assert (kind, correlation) == (wire.ERROR, 0), "it holds the secret, so it is told"
            assert error_type.endswith("FrameTooLarge" if name in ("oversized", "enormous") else "WireError")
            assert ("rpc.frame-size" in text) == (name in ("oversized", "enormous"))
            assert peer.is_cut_off()
        steady.check()
    assert len(refusals(caplog)) == 1
    no_surprises(caplog)


WELL_FORMED_NONSENSE: dict[str, list[Any]] = {
    "path is a list": [wire.ASK, 5, ["/user/probe"], "numbers", [], None],
    "path is nil": [wire.ASK, 5, None, "numbers", [], None],
    "method is a map": [wire.ASK, 5, "/user/probe", {"a": 1}, [], None],
    "method is dunder": [wire.ASK, 5, "/user/probe", "__class__", [], None],
    "arguments are text": [wire.ASK, 5, "/user/probe", "numbers", "abc", None],
    "arguments are nil": [wire.ASK, 5, "/user/probe", "numbers", None, None],
    "too many arguments": [wire.ASK, 5, "/user/probe", "numbers", [1, 2, 3], None],
    "token is a number": [wire.ASK, 5, "/user/leader", "lead", [], 7],
    "token is empty": [wire.ASK, 5, "/user/leader", "lead", [], []],
    "token is a map": [wire.ASK, 5, "/user/leader", "lead", [], {"epoch": 7}],
    "epoch is text": [wire.ASK, 5, "/user/leader", "lead", [], ["7", "s"]],
    "epoch is infinite": [wire.ASK, 5, "/user/leader", "lead", [], [float("inf"), "s"]],
    "epoch is a float": [wire.ASK, 5, "/user/leader", "lead", [], [7.9, "s"]],
    "epoch is true": [wire.ASK, 5, "/user/leader", "lead", [], [True, "s"]],
    "token too long": [wire.ASK, 5, "/user/leader", "lead", [], [7, "s", "t"]],
    "a deep argument": [wire.ASK, 5, "/user/probe", "rename", [{"name": [[[[]]]]}], None],
}


@pytest.mark.parametrize("name", WELL_FORMED_NONSENSE)
def test_a_well_formed_message_of_nonsense_gets_an_error_and_the_connection_goes_on(
    server: ProbeServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.leader.fencing_token = FencingToken(1 if name == "epoch is true" else 7, "s")  # True == 1, and int(7.9) == 7
    with RawPeer(server.port) as peer:
        peer.send_message(WELL_FORMED_NONSENSE[name])
        kind, correlation, *_ = peer.message()
        assert (kind, correlation) == (wire.ERROR, 5)
        peer.send_message([wire.TELL, *WELL_FORMED_NONSENSE[name][2:]])
        peer.send_message([wire.ASK, 6, "/user/probe", "echo", [b"x"], None])
        assert peer.message() == [wire.REPLY, 6, b"x"]
    no_surprises(caplog)


def test_frames_may_come_in_any_pieces(server: ProbeServer) -> None:
    choose = random.Random(3)
    asks = [[wire.ASK, number, "/user/probe", "echo", [bytes(choose.randrange(300))], None] for number in range(50)]
    stream = b"".join(frame(msgpack.packb(ask)) for ask in asks)
    with RawPeer(server.port) as peer:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while stream:
            size = choose.choice([1, 2, 3, 5, 100, 1000])
            peer.send(stream[:size])
            stream = stream[size:]
        assert [peer.message() for _ in asks] == [[wire.REPLY, ask[1], ask[4][0]] for ask in asks]


def test_a_handshake_may_come_byte_by_byte_and_with_the_first_frames(server: ProbeServer) -> None:
    with RawPeer(server.port, None) as peer:
        handshake = ClientHandshake(SECRET, "rpc", far_end(peer.sock))
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in handshake.hello():
            peer.send(bytes([byte]))
        answer = handshake.receive(peer.sock.recv(PROOF_SIZE, socket.MSG_WAITALL))
        records = Records.of_client(handshake, peer.sock)
        ask = frame(msgpack.packb([wire.ASK, 1, "/user/probe", "echo", [b"x"], None]))
        first, second = records.seal(ask), records.seal(ask)
        peer.send(answer + first + second[:7])
        peer.send(second[7:])
        peer.records = records
        assert [peer.message(), peer.message()] == [[wire.REPLY, 1, b"x"]] * 2


@pytest.mark.parametrize("sent", [b"", MAGIC, MAGIC + bytes([SPOKEN.newest]) + bytes(10)], ids=["nothing", "4", "15"])
def test_a_peer_that_does_not_finish_its_handshake_is_cut_off(
    server: ProbeServer, sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
    with RawPeer(server.port, None) as peer:
        peer.send(sent)
        assert peer.is_cut_off()
    wait_until(lambda: bool(refusals(caplog)), "the log line")
    assert "no handshake within 0.1 s" in refusals(caplog)[0]
    wait_until(lambda: not server.service.connections, "the end of the connection")


def test_a_look_at_the_port_is_not_worth_a_log_line(server: ProbeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        with RawPeer(server.port, None):
            pass
    with RawPeer(server.port) as peer:
        peer.send_message([wire.ASK, 1, "/user/probe", "echo", [b"x"], None])
        assert peer.message() == [wire.REPLY, 1, b"x"]
    wait_until(lambda: not server.service.connections, "the end of the connections")
    assert refusals(caplog) == []


def test_many_silent_peers_disturb_nobody(server: ProbeServer) -> None:
    with contextlib.ExitStack() as stack, SteadyClient(server) as steady:
        for _ in range(100):
            stack.enter_context(RawPeer(server.port, None))
        steady.check()
        wait_until(lambda: len(server.service.connections) == 101, "all connections")
    wait_until(lambda: not server.service.connections, "the end of the connections")


def test_clients_that_vanish_with_asks_outstanding_leave_nothing(
    server: ProbeServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with RawPeer(server.port) as peer:
            peer.send_message([wire.ASK, 1, "/user/probe", "never", [], None])
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    wait_until(lambda: not server.service.connections, "the end of the connections")
    server.call(server.probe.gate.set)
    wait_until(lambda: not server.service._dispatcher.served["/user/probe"].tasks, "the end of the handlers")
    assert refusals(caplog) == []
    no_surprises(caplog)


# ------------------------------------------------------------------ a server gone mad


MAD_SERVER: dict[str, tuple[bytes, type[ActorError]]] = {
    "an ask": (frame(msgpack.packb([wire.ASK, 1, "/user/a", "m", [], None])), WireError),
    "a tell": (frame(msgpack.packb([wire.TELL, "/user/a", "m", [], None])), WireError),
    "garbage": (frame(b"\xc1\xc1"), WireError),
    "too large": (b"\xff\xff\xff\xff", FrameTooLarge),
    "a correlation id that is none": (frame(msgpack.packb([wire.REPLY, [1], 2])), WireError),
    "a value of the wrong type": (frame(msgpack.packb([wire.REPLY, 1, "text"])), WireError),
}


@pytest.mark.parametrize("name", MAD_SERVER)
async def test_a_client_survives_a_server_that_breaks_the_protocol(name: str, caplog: pytest.LogCaptureFixture) -> None:
    answer, error_type = MAD_SERVER[name]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        records = await serve_handshake(reader, writer, SECRET)
        await reader.read(10)
        unasked = frame(msgpack.packb([wire.REPLY, 99, "an answer to nothing"]))
        writer.write(records.seal(unasked + answer))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, calling() as client:
        address = ActorAddress("s", "127.0.0.1", listening.sockets[0].getsockname()[1], "/user/probe")
        with pytest.raises(error_type) as caught:
            await client.gateway(address, ProbeGateway).echo(b"x")
        assert type(caught.value) is error_type
    no_surprises(caplog)


# ------------------------------------------------------------------ back-pressure


def peak_memory_kb() -> int:
    """The largest resident size of this process since `reset_peak_memory_kb`."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def reset_peak_memory_kb() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory_kb()


def test_a_peer_that_does_not_read_is_not_read_from(server: ProbeServer) -> None:
    reply_size, asked = 64 * 1024, 4000  # 250 MB of replies
    ask = frame(msgpack.packb([wire.ASK, 1, "/user/probe", "echo", [bytes(reply_size)], None]))
    before = reset_peak_memory_kb()
    with SteadyClient(server) as steady, RawPeer(server.port) as peer:
        sent = 0

        def flood() -> None:
            nonlocal sent
            for _ in range(asked):
                peer.send(ask)
                sent += 1

        sender = threading.Thread(target=flood)
        sender.start()

        def reading_is_paused() -> bool:
            return any(connection.paused for connection in list(server.service.connections))

        wait_until(reading_is_paused, "the pause of the server's reading")
        stuck_at = -1
        while stuck_at != sent:  # the kernel's buffers take some more
            stuck_at = sent
            steady.check()
        assert sent < asked
        buffered = server.call(lambda: sum(one.unsent for one in server.service.connections))
        assert buffered < 4 << 20
        grown_kb = peak_memory_kb() - before
        assert grown_kb < 64 * 1024
        for _ in range(asked):  # once it reads, it gets every reply
            assert peer.message()[:2] == [wire.REPLY, 1]
        sender.join(DEADLINE_S)
        assert sent == asked


def test_small_asks_for_large_replies_are_bounded_too(server: ProbeServer) -> None:
    reply_size, asked = 512 * 1024, 1000  # half a gigabyte of replies for 50 KB of asks, all of it in one read
    ask = frame(msgpack.packb([wire.ASK, 1, "/user/probe", "zeros", [reply_size], None]))
    before = reset_peak_memory_kb()
    with RawPeer(server.port) as peer:
        peer.send(ask * asked)
        for _ in range(asked):
            assert peer.message()[:2] == [wire.REPLY, 1]
    grown_kb = peak_memory_kb() - before
    assert grown_kb < 128 * 1024
