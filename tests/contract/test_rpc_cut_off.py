"""A peer that is cut off without a reset: its host is gone, or the network drops all packets.

The kernel drops the packets for real: a socket filter that lets nothing pass works before TCP sees a packet. So nothing
is acknowledged either, and no privilege is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.client import ActorClient
from actors.errors import AskTimeout, RecipientUnreachable
from actors.rpc import connection as module
from actors.rpc.service import RpcService
from tests.contract.rpc_harness import (
    SECRET,
    LoopThread,
    ProbeGateway,
    ProbeServer,
    RawPeer,
    patient_config,
    wait_until,
)
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S

SO_ATTACH_FILTER = 26
NEVER = 10**6
CONTROL_S = 4.0
"""Long enough for the mechanism, if it is on."""

Asks = tuple[ProbeGateway, Callable[[], list[socket.socket | None]]]
"""A gateway whose asks have the time that was asked for, connected; and what returns the sockets of its side."""


def cut(*socks: socket.socket | None) -> None:
    """Drop all packets that arrive for these sockets."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
    for sock in socks:
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(drop_all)))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CUT_OFF_S", 2)
    monkeypatch.setattr(module, "CUT_OFF_CHECK_S", 0.1)
    monkeypatch.setattr(module, "KEEP_ALIVE_IDLE_S", 1)
    monkeypatch.setattr(module, "KEEP_ALIVE_INTERVAL_S", 1)


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    with ProbeServer(None).closing() as server:
        yield server


def heard_ms(sock: socket.socket) -> int:
    """The age of the last acknowledgement."""
    info = module._TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, module._TCP_INFO.size))
    return int(info[2])


def cut_off(server: ProbeServer, ours: Callable[[], list[socket.socket | None]]) -> None:
    cut(*[connection.sock for connection in server.service.connections], *ours())


def cut_once_asked(server: ProbeServer, ours: Callable[[], list[socket.socket | None]]) -> None:
    wait_until(lambda: server.probe.waiting > 0, "the ask")
    cut_off(server, ours)


def asks_of_threads(server: ProbeServer, timeout_s: float, socket_dir: Path | None = None) -> Iterator[Asks]:
    with ActorClient(SECRET, patient_config(socket_dir=socket_dir)) as client:
        assert client.gateway(server.address, ProbeGateway).echo(b"before").result() == b"before"
        gateway = client.gateway(server.address, ProbeGateway, timeout_s=timeout_s)
        yield gateway, lambda: [one.sock for one in client._connections.values()]


def asks_of_a_loop(server: ProbeServer, timeout_s: float) -> Iterator[Asks]:
    there = LoopThread()

    async def start() -> RpcService:
        service = RpcService(there.loop, SECRET, patient_config())
        assert await service.gateway(server.address, ProbeGateway).echo(b"before") == b"before"
        return service

    service = there.do(start())
    try:
        yield (
            _OnLoop(there, service.gateway(server.address, ProbeGateway, timeout_s=timeout_s)),  # type: ignore[misc]
            lambda: [peer._connection.sock for peer in service._peers.values()],
        )
    finally:
        there.do(service.close())
        there.end()


class _OnLoop:
    """Makes the calls of a gateway on its loop; `result` waits for the answer from here."""

    def __init__(self, there: LoopThread, gateway: ProbeGateway) -> None:
        self._there = there
        self._gateway = gateway

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            async def ask() -> Any:
                return await getattr(self._gateway, name)(*args)

            return _Result(self._there, ask())

        return call


class _Result:
    def __init__(self, there: LoopThread, asked: Any) -> None:
        self._there, self._asked = there, asked

    def result(self, _timeout: float = PATIENCE_S) -> Any:
        return self._there.do(self._asked)  # within `DEADLINE_S`


SIDES = pytest.mark.parametrize("side", [asks_of_threads, asks_of_a_loop])


@SIDES
def test_an_ask_to_a_peer_that_is_cut_off_ends_and_the_next_one_opens_a_new_connection(
    server: ProbeServer, side: Callable[[ProbeServer, float], Iterator[Asks]]
) -> None:
    for probe, ours in side(server, LONGER_THAN_PATIENCE_S):
        cut_off(server, ours)
        with pytest.raises(RecipientUnreachable, match=r"the connection broke.*cut off"):
            probe.echo(b"while it is cut off").result(PATIENCE_S)
        assert probe.echo(b"after").result() == b"after"


@SIDES
def test_without_the_check_the_ask_would_wait_for_its_timeout(
    server: ProbeServer, side: Callable[[ProbeServer, float], Iterator[Asks]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CUT_OFF_CHECK_S", NEVER)
    for probe, ours in side(server, CONTROL_S):
        cut_off(server, ours)
        with pytest.raises(AskTimeout):
            probe.echo(b"while it is cut off").result()


@SIDES
def test_an_ask_whose_reply_cannot_come_any_more_ends(
    server: ProbeServer, side: Callable[[ProbeServer, float], Iterator[Asks]]
) -> None:
    for probe, ours in side(server, LONGER_THAN_PATIENCE_S):
        cutting = threading.Thread(target=cut_once_asked, args=(server, ours))
        cutting.start()
        with pytest.raises(RecipientUnreachable, match="the connection broke"):
            probe.never().result(PATIENCE_S)
        cutting.join()


@SIDES
def test_a_peer_that_lives_and_takes_long_is_waited_for(
    server: ProbeServer, side: Callable[[ProbeServer, float], Iterator[Asks]]
) -> None:
    for probe, _ours in side(server, LONGER_THAN_PATIENCE_S):
        server.call(server.loop.call_later, CONTROL_S, server.probe.gate.set)
        assert probe.meet(2).result() == 1


def test_a_unix_socket_is_not_checked(tmp_path: Path) -> None:
    with ProbeServer(tmp_path).closing() as server:
        for probe, _ in asks_of_threads(server, PATIENCE_S, tmp_path):
            assert probe.echo(b"here").result() == b"here"
            assert [connection._check for connection in server.service.connections] == [None]


def test_the_server_closes_an_idle_connection_whose_client_is_cut_off(server: ProbeServer) -> None:
    with RawPeer(server.port) as peer:
        wait_until(lambda: len(server.service.connections) == 1, "the connection")
        cut(peer.sock, *[connection.sock for connection in server.service.connections])
        wait_until(lambda: not server.service.connections, "its end")


def test_a_live_peer_that_reads_nothing_is_not_cut_off_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP_USER_TIMEOUT would end this connection: a full mailbox holds its peer back for as long as it is full."""
    monkeypatch.setattr(module, "CUT_OFF_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
        reader, _ = listener.accept()
    with sender, reader:
        module.set_tcp_options(sender)
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(65536))
        wait_until(lambda: heard_ms(sender) > 1200, "a pause between two probes")
        assert not module.is_cut_off(sender)
        cut(sender, reader)
        wait_until(lambda: module.is_cut_off(sender), "the notice")
