"""Somebody without the secret between client and server, as in the place of a component that has ended.

He passes the handshake on to a live port, and then says what he likes. Two guards stand in his way: the handshake is
bound to the port that was dialled, and what follows it carries tags. Each attack is tried with its guard, which has to
stop it, and without, where it has to succeed: else the test would show nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import msgpack
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import AuthenticationError, RecipientUnreachable
from actors.rpc import wire
from actors.rpc.config import RpcConfig
from actors.rpc.security import HELLO_SIZE, LOCAL, MAC_SIZE, PROOF_SIZE, ClientHandshake
from actors.rpc.service import RpcService
from actors.rpc.wire import TAG_SIZE, Tags
from blob.client import BlobClient
from blob.errors import BlobAuthenticationError, BlobConnectionError, DigestMismatch
from blob.key import BlobType, TransientBlobKey
from blob.protocol import REQUEST_SIZE, Operation, Request
from tests.contract import blob_harness
from tests.contract.rpc_harness import DEADLINE_S, SECRET, ProbeGateway, ProbeServer, frame, wait_until
from tests.logged import logged

Tamper = Callable[[bytes], bytes]


def unbound() -> contextlib.AbstractContextManager[object]:
    """Take the first guard away: the handshake does not say what was dialled."""
    return mock.patch("actors.rpc.security._target", return_value=LOCAL)


def untagged() -> contextlib.AbstractContextManager[object]:
    """Take the second guard away: every tag is good."""
    return mock.patch.object(Tags, "fits", return_value=True)


class Relay:
    """Passes connections on to a live port; the bytes after the handshake go through *upstream* and *downstream*.

    They get what has come and was not passed on yet, and return what is to be passed on; they may keep it (`kept`).
    """

    def __init__(self, port: int, upstream: Tamper = bytes, downstream: Tamper = bytes) -> None:
        self._port = port
        self._ways = (upstream, HELLO_SIZE + MAC_SIZE), (downstream, PROOF_SIZE)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for source, sink, way in ((near, far, 0), (far, near, 1)):
                    threading.Thread(target=self._carry, args=(source, sink, way), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, way: int) -> None:
        tamper, shaking = self._ways[way]
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if way == 0:
                    self.heard += data
                hands, data = data[:shaking], data[shaking:]
                shaking -= len(hands)
                sink.sendall(hands + (tamper(data) if data else b""))
        with contextlib.suppress(OSError):  # the end, or a reset, which ends the other half as well
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    with ProbeServer(None).closing() as made:
        yield made


def address_of(port: int) -> ActorAddress:
    return ActorAddress("s", "127.0.0.1", port, "/user/probe")


# ------------------------------------------------------------------ the handshake


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_a_relayed_handshake_is_refused_and_nothing_is_said(
    server: ProbeServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask_on_a_loop(port: int) -> bytes:
        service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(ask_timeout_s=DEADLINE_S))
        try:
            return await service.gateway(address_of(port), ProbeGateway).echo(b"confidential")
        finally:
            await service.close()

    def ask(port: int) -> bytes:
        if kind == "loop":
            return asyncio.run(ask_on_a_loop(port))
        with ActorClient(SECRET, RpcConfig(ask_timeout_s=DEADLINE_S)) as client:
            return client.gateway(address_of(port), ProbeGateway).echo(b"confidential").result()

    with Relay(server.port) as relay:
        with pytest.raises(AuthenticationError, match=f"not at 127.0.0.1:{relay.port}, which was dialled"):
            ask(relay.port)
        assert len(relay.heard) == HELLO_SIZE
        wait_until(lambda: bool(logged(caplog, "actors")), "the line of the server's thread")
        (line,) = logged(caplog, "actors")
        assert f"has dialled 127.0.0.1:{relay.port}, and this is 127.0.0.1:{server.port}" in line
        with unbound():
            assert ask(relay.port) == b"confidential", "without the guard it passes"
        assert b"confidential" in relay.heard


def test_a_relayed_blob_handshake_is_refused_and_nothing_is_said(tmp_path: Path) -> None:
    with blob_harness.Served(tmp_path) as served, Relay(served.server.address[1]) as relay:

        def put() -> None:
            with BlobClient(("127.0.0.1", relay.port), blob_harness.SECRET, retries=0) as client:
                client.put_bytes(b"confidential", TransientBlobKey)

        with pytest.raises(BlobAuthenticationError, match="which was dialled"):
            put()
        assert len(relay.heard) == HELLO_SIZE
        with unbound():
            put()
        assert b"confidential" in relay.heard


def test_an_impostor_cannot_answer_for_another_port_than_his(server: ProbeServer) -> None:
    """He greets the live server with its own address, and the client's nonce: neither believes the other's proof."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        outcome: list[bytes] = []

        def impostor() -> None:
            near, _ = listening.accept()
            with near, socket.create_connection(("127.0.0.1", server.port)) as far:
                hello = near.recv(HELLO_SIZE, socket.MSG_WAITALL)
                own = ClientHandshake(
                    b"a secret that is another", "rpc", bytes(10) + b"\xff\xff\x7f\0\0\1" + server.port.to_bytes(2)
                ).hello()
                far.sendall(hello[:37] + own[37:])
                near.sendall(far.recv(PROOF_SIZE, socket.MSG_WAITALL))
                outcome.append(near.recv(MAC_SIZE))

        thread = threading.Thread(target=impostor)
        thread.start()
        with (
            ActorClient(SECRET, RpcConfig(ask_timeout_s=DEADLINE_S)) as client,
            pytest.raises(AuthenticationError, match="server does not hold"),
        ):
            client.gateway(address_of(listening.getsockname()[1]), ProbeGateway).echo(b"confidential").result()
        thread.join(DEADLINE_S)
    assert outcome == [b""]


# ------------------------------------------------------------------ what follows it


class Records:
    """Cuts what the client says into records, and gives each, by its number, to the attack."""

    def __init__(self, attack: Callable[[int, bytes], bytes]) -> None:
        self._attack = attack
        self._waiting = b""
        self._count = 0

    def __call__(self, data: bytes) -> bytes:
        self._waiting += data
        passed = b""
        while len(self._waiting) >= 4:
            size = 4 + int.from_bytes(self._waiting[:4]) + TAG_SIZE
            if len(self._waiting) < size:
                break
            record, self._waiting = self._waiting[:size], self._waiting[size:]
            passed += self._attack(self._count, record)
            self._count += 1
        return passed


FORGED = frame(msgpack.packb([wire.TELL, "/user/probe", "add", [666], None]))
_kept: list[bytes] = []


def _inject(number: int, record: bytes) -> bytes:
    return record + len(FORGED).to_bytes(4) + FORGED + bytes(TAG_SIZE) if number == 1 else record


def _replay(number: int, record: bytes) -> bytes:
    return record * 2 if number == 1 else record


def _reorder(number: int, record: bytes) -> bytes:
    if number == 1:
        _kept.append(record)
        return b""
    return record + _kept.pop() if number == 2 else record


def _remove(number: int, record: bytes) -> bytes:
    return b"" if number == 1 else record


def _truncate(number: int, record: bytes) -> bytes:
    """Take a frame off the end of what was sent at once, with a length that fits."""
    if number != 2:
        return record
    size = 4 + int.from_bytes(record[4:8])
    return size.to_bytes(4) + record[4 : 4 + size] + record[-TAG_SIZE:]


def _change(number: int, record: bytes) -> bytes:
    return record.replace(b"\x91\x01\xc0", b"\x91\x07\xc0") if number == 1 else record


RPC_ATTACKS: dict[str, tuple[Callable[[int, bytes], bytes], list[int], list[int]]] = {
    # name: the attack, what the server has taken with the guard, and without
    "injection": (_inject, [1], [1, 666, 2, 3]),
    "replay": (_replay, [1], [1, 1, 2, 3]),
    "reordering": (_reorder, [], [2, 3, 1]),
    "removal": (_remove, [], [2, 3]),
    "truncation": (_truncate, [1], [1, 2]),
    "change": (_change, [], [7, 2, 3]),
}


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
@pytest.mark.parametrize("name", RPC_ATTACKS)
async def test_what_is_done_to_records_ends_the_connection(server: ProbeServer, name: str, guard: str) -> None:
    attack, with_guard, without = RPC_ATTACKS[name]
    service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(ask_timeout_s=DEADLINE_S))
    with (
        unbound(),
        untagged() if guard == "unguarded" else contextlib.nullcontext(),
        Relay(server.port, Records(attack)) as relay,
    ):
        probe = service.gateway(address_of(relay.port), ProbeGateway)
        await probe.echo(b"x")
        if guard == "unguarded":  # some are not answered
            probe = service.gateway(address_of(relay.port), ProbeGateway, timeout_s=1.0)
        asks = [probe.add_sync(number) for number in (1, 2, 3)]  # the first alone, the others together
        if guard == "unguarded":
            expected = without
            await asyncio.to_thread(wait_until, lambda: len(server.probe.added) == len(expected), "what gets through")
        else:
            expected = with_guard
            with pytest.raises(RecipientUnreachable):
                await asks[-1]
        await asyncio.gather(*asks, return_exceptions=True)
        added = server.call(lambda: list(server.probe.added))
        assert added == expected if guard == "unguarded" else added == expected[: len(added)]
        await service.close()


@pytest.mark.parametrize("kind", ["loop", "thread"])
@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
async def test_a_reply_that_was_put_in_is_not_believed(server: ProbeServer, kind: str, guard: str) -> None:
    forged = frame(msgpack.packb([wire.REPLY, 2, b"forged"]))
    answers = Records(
        lambda number, record: (len(forged).to_bytes(4) + forged + bytes(TAG_SIZE) if number else b"") + record
    )
    with (
        unbound(),
        untagged() if guard == "unguarded" else contextlib.nullcontext(),
        Relay(server.port, downstream=answers) as relay,
    ):

        async def ask(probe: ProbeGateway) -> None:
            assert await probe.echo(b"x") == b"x"
            if guard == "unguarded":
                assert await probe.echo(b"genuine") == b"forged"
            else:
                with pytest.raises(RecipientUnreachable, match="has not sent there"):
                    await probe.echo(b"genuine")

        if kind == "loop":
            service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(ask_timeout_s=DEADLINE_S))
            await ask(service.gateway(address_of(relay.port), ProbeGateway))
            await service.close()
        else:
            client = ActorClient(SECRET, RpcConfig(ask_timeout_s=DEADLINE_S))
            await ask(client.gateway(address_of(relay.port), ProbeGateway))
            await asyncio.to_thread(client.close)


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
def test_what_the_server_has_said_is_no_word_of_the_clients(server: ProbeServer, guard: str) -> None:
    """Reflection: a reply that holds a whole message is sent back to the server."""
    reflected: list[bytes] = []

    def keep(number: int, record: bytes) -> bytes:
        # A server's record whose payload begins with a frame that would do harm, were it the client's.
        reflected.append(len(FORGED).to_bytes(4) + FORGED + record[-TAG_SIZE:])
        return record

    def put_in(number: int, record: bytes) -> bytes:
        return (reflected[0] if number == 1 else b"") + record

    with (
        unbound(),
        untagged() if guard == "unguarded" else contextlib.nullcontext(),
        Relay(server.port, Records(put_in), Records(keep)) as relay,
        ActorClient(SECRET, RpcConfig(ask_timeout_s=DEADLINE_S)) as client,
    ):
        probe = client.gateway(address_of(relay.port), ProbeGateway)
        probe.echo(b"x").result()
        ask = probe.add_sync(1)
        if guard == "unguarded":
            ask.result()
        else:
            with pytest.raises(RecipientUnreachable):
                ask.result()
        assert server.call(lambda: list(server.probe.added)) == ([666, 1] if guard == "unguarded" else [])


# ------------------------------------------------------------------ blobs

CONTENT, OTHER = b"the genuine content", b"the altered content"


class Upload:
    """Changes the content of an upload, and its digest, and what the server says that it has stored."""

    def __init__(self) -> None:
        self._waiting = b""

    def up(self, data: bytes) -> bytes:
        self._waiting += data
        if len(self._waiting) < REQUEST_SIZE + len(CONTENT) + 32 + 2 * TAG_SIZE:
            return b""
        data, self._waiting = self._waiting, b""
        return data.replace(CONTENT, OTHER).replace(hashlib.sha256(CONTENT).digest(), hashlib.sha256(OTHER).digest())

    def down(self, data: bytes) -> bytes:
        return data.replace(hashlib.sha256(OTHER).digest(), hashlib.sha256(CONTENT).digest())


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
def test_an_upload_cannot_be_changed_unseen(tmp_path: Path, guard: str, caplog: pytest.LogCaptureFixture) -> None:
    attack = Upload()
    with (
        unbound(),
        untagged() if guard == "unguarded" else contextlib.nullcontext(),
        blob_harness.Served(tmp_path) as served,
        Relay(served.server.address[1], attack.up, attack.down) as relay,
        BlobClient(("127.0.0.1", relay.port), blob_harness.SECRET, retries=0) as client,
    ):
        if guard == "unguarded":
            client.put_bytes(CONTENT, TransientBlobKey)
            assert [(tmp_path / name).read_bytes() for name in served.files()] == [OTHER]
        else:
            with pytest.raises(BlobConnectionError):
                client.put_bytes(CONTENT, TransientBlobKey)
            assert served.files() == []
            wait_until(lambda: "has not sent there" in "".join(logged(caplog, "blob")), "the server's line")


def test_a_download_cannot_be_changed_unseen(tmp_path: Path) -> None:
    with unbound(), blob_harness.Served(tmp_path) as served:
        key = served.client().put_bytes(CONTENT, TransientBlobKey)
        with (
            Relay(served.server.address[1], downstream=lambda data: data.replace(CONTENT, OTHER)) as relay,
            BlobClient(("127.0.0.1", relay.port), blob_harness.SECRET, retries=0) as client,
            pytest.raises(DigestMismatch),
        ):
            client.get_bytes(key)


def _delete(key: TransientBlobKey) -> bytes:
    return Request.of_key(Operation.DELETE, None, key).encode() + bytes(TAG_SIZE)


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
@pytest.mark.parametrize("attack", ["injection", "replay", "reflection", "truncation"])
def test_requests_cannot_be_added_repeated_or_cut(
    tmp_path: Path, attack: str, guard: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ThreadPoolExecutor(1) as pool,  # the client, which waits in some cases until the server is closed
        unbound(),
        untagged() if guard == "unguarded" else contextlib.nullcontext(),
        blob_harness.Served(tmp_path) as served,
        contextlib.ExitStack() as until_the_end,
    ):
        victim = served.client().put_bytes(OTHER, TransientBlobKey)
        seen: list[bytes] = []
        said: list[bytes] = []

        def keep(data: bytes) -> bytes:
            said.append(data)
            return data

        def tamper(data: bytes) -> bytes:
            seen.append(data)
            if attack == "injection":
                return data + _delete(victim)
            if attack == "reflection":  # a request of his own, with the tag of what the server has said
                return data if not said else _delete(victim)[:-TAG_SIZE] + said[-1][-TAG_SIZE:]
            if attack == "replay":
                return data * 2
            # The content is made shorter in the request, and what is left over is a request of his own.
            head = Request.decode(data[:REQUEST_SIZE])
            shorter = Request(head.operation, BlobType.TRANSIENT, None, head.random, length=0).encode()
            return shorter + bytes(TAG_SIZE) + hashlib.sha256(b"").digest() + bytes(TAG_SIZE)

        relay = until_the_end.enter_context(Relay(served.server.address[1], tamper, keep))

        def put() -> None:
            with BlobClient(("127.0.0.1", relay.port), blob_harness.SECRET, retries=0) as client:
                client.put_bytes(CONTENT, TransientBlobKey)
                if attack == "reflection":
                    client.put_bytes(CONTENT, TransientBlobKey)

        pool.submit(put)  # what the client makes of it is not what is looked at here

        def done() -> tuple[int, int]:
            stats = served.server.stats()
            return stats.puts, stats.deletes

        guarded = {"injection": (2, 0), "replay": (2, 0), "reflection": (2, 0), "truncation": (1, 0)}
        unguarded = {"injection": (2, 1), "replay": (3, 0), "reflection": (2, 1), "truncation": (2, 0)}
        expected = (guarded if guard == "guarded" else unguarded)[attack]
        if guard == "guarded":
            blob_harness.wait_until(lambda: "has not sent there" in caplog.text)
        blob_harness.wait_until(lambda: done() == expected)
        assert seen
