"""The simulated network: the RPC layer, asyncio's transports and blocking sockets run over it, and its faults show."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from typing import Any

import pytest

from actors.errors import ActorError, AskTimeout, RecipientUnreachable
from actors.rpc.config import RpcConfig
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc_sync
from actors.rpc.service import RpcService
from tests.simulation.kernel import Kernel, SimHost
from tests.simulation.network import WINDOW, Network
from tests.simulation.patches import installed

SECRET = b"s" * 32


class CounterGateway(RpcGateway):
    """Counts."""

    def add(self, number: int) -> Ask[int]:
        """Add, and return the sum."""
        raise NotImplementedError


class Counter(RpcEndpoint, CounterGateway):
    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "counter")
        self.sum = 0

    @rpc_sync
    def add(self, number: int) -> int:
        self.sum += number
        return self.sum


def rpc_service(kernel: Kernel, port: int = 0) -> RpcService:
    assert kernel.current is not None
    loop = asyncio.get_running_loop()
    return RpcService(loop, SECRET, RpcConfig(bind_host=kernel.current.host.address, port=port, ask_timeout_s=5.0))


async def serve(kernel: Kernel, counters: list[Counter]) -> None:
    service = rpc_service(kernel, 7000)
    await service.listen()
    counters.append(Counter(service))
    await service.start_server(counters[-1])
    await asyncio.Event().wait()


async def count(kernel: Kernel, target: SimHost, seen: list[Any], times: int, pause_s: float = 0.1) -> None:
    service = rpc_service(kernel)
    gateway = service.gateway(f"akka.tcp://understudy@{target.address}:7000/user/counter", CounterGateway)
    for _ in range(times):
        try:
            seen.append(await gateway.add(1))
        except ActorError as error:
            seen.append(type(error))
        await asyncio.sleep(pause_s)


class World:
    """Two hosts, a server on the second one."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.counters: list[Counter] = []
        self.seen: list[Any] = []

    def __enter__(self) -> World:
        self._installed = installed(self.kernel)
        self._installed.__enter__()
        self.one, self.two = self.kernel.add_host("one"), self.kernel.add_host("two")
        self.server = self.two.start("server", serve, self.kernel, self.counters)
        self.kernel.run(until_s=0.1)
        return self

    def client(self, times: int, pause_s: float = 0.1) -> None:
        self.one.start("client", count, self.kernel, self.two, self.seen, times, pause_s)

    def __exit__(self, *error: Any) -> None:
        self._installed.__exit__(*error)


def test_the_rpc_layer_runs_over_it() -> None:
    hashes = []
    for seed in (3, 3, 4):
        with World(seed) as world:
            world.client(50)
            world.kernel.run(until_s=60)
            assert world.seen == list(range(1, 51))
            assert world.kernel.complaints == []
            hashes.append(world.kernel.trace_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_killed_server_breaks_its_connections_and_a_new_one_takes_its_port() -> None:
    with World(1) as world:
        world.client(30)
        world.kernel.after(1.0, world.server.kill)
        world.kernel.after(1.5, world.two.start, "server", serve, world.kernel, world.counters)
        world.kernel.run(until_s=60)
        assert RecipientUnreachable in world.seen
        assert world.seen[-1] == world.counters[1].sum > 5


def test_a_partition_delays_and_loses_nothing() -> None:
    with World(1) as world:
        world.client(10, 1.0)
        world.kernel.after(2.5, world.network.partition, world.one, world.two)
        world.kernel.after(5.0, world.network.heal)
        world.kernel.run(until_s=120)
        assert world.seen == list(range(1, 11))


def test_a_long_partition_is_a_timeout_and_the_effect_comes_later() -> None:
    with World(1) as world:
        world.client(5, 1.0)
        world.kernel.after(1.5, world.network.partition, world.one, world.two)
        world.kernel.after(30.0, world.network.heal)
        world.kernel.run(until_s=120)
        assert AskTimeout in world.seen
        assert world.counters[0].sum == 5


def test_replies_are_lost_one_way_after_the_effect() -> None:
    with World(1) as world:
        world.client(3, 1.0)
        world.kernel.after(1.5, lambda: world.network.partition(world.two, world.one, one_way=True))
        world.kernel.run(until_s=8)
        assert world.seen[-1] is AskTimeout
        assert world.counters[0].sum > len([one for one in world.seen if one is not AskTimeout])


def test_a_connection_that_is_reset_after_a_delivery_loses_the_reply_but_not_the_effect() -> None:
    with World(1) as world:
        world.client(5, 1.0)
        world.kernel.after(1.5, world.network.break_after, 1)
        world.kernel.run(until_s=60)
        assert world.seen.count(RecipientUnreachable) == 1
        assert world.counters[0].sum == 5


def test_what_a_process_sends_can_be_late_although_it_has_ended() -> None:
    with World(1) as world:
        world.client(3, 1.0)

        def end() -> None:
            client = world.one.processes[0]
            assert world.network.delay(client, 5.0)
            world.kernel.after(1.0, client.kill)

        world.kernel.after(1.5, end)
        world.kernel.run(until_s=6.0)
        assert world.counters[0].sum == 2
        world.kernel.run(until_s=20.0)
        assert world.counters[0].sum == 3


def test_a_half_open_connection_is_silent() -> None:
    with World(1) as world:
        world.client(3, 1.0)
        world.kernel.after(1.5, lambda: world.network.cut(next(iter(world.network.connections))))
        world.kernel.run(until_s=20)
        assert world.seen[-1] is AskTimeout


@pytest.mark.parametrize("asks", [3, 60])
def test_a_half_open_connection_is_given_up_after_half_a_minute(asks: int) -> None:
    """By the kernel's keep-alive where nothing is under way, else by what the kernel says of it."""
    with World(1) as world:
        world.client(asks, 1.0)
        connections = world.network.connections
        world.kernel.after(1.5, lambda: world.network.cut(next(iter(connections))))
        world.kernel.run(until_s=31)
        assert [connection.is_cut for connection in connections] == [True]
        world.kernel.run(until_s=37)
        assert not any(connection.is_cut for connection in connections)
        world.kernel.run(until_s=80)
        assert AskTimeout in world.seen
        assert (world.seen[-1] is AskTimeout) == (asks == 3)


def test_a_host_without_power_says_nothing_and_refuses_when_it_is_back() -> None:
    with World(1) as world:
        world.client(20, 1.0)
        world.kernel.after(1.5, world.two.crash)

        def boot() -> None:
            world.two.boot()
            world.network.host_is_up(world.two)
            world.two.start("server", serve, world.kernel, world.counters)

        world.kernel.after(20.0, boot)
        world.kernel.run(until_s=120)
        assert AskTimeout in world.seen
        assert RecipientUnreachable in world.seen
        assert world.counters[1].sum == world.seen[-1]


def test_asyncio_streams_and_back_pressure() -> None:
    total = 4 * WINDOW
    log: list[str] = []

    async def receive() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(10)
            data = await reader.readexactly(total)
            writer.write(str(len(data)).encode())
            writer.close()

        server = await asyncio.start_server(handle, kernel.hosts["two"].address, 9000)
        async with server:
            await server.serve_forever()

    async def send() -> None:
        reader, writer = await asyncio.open_connection("two", 9000)
        writer.write(b"x" * total)
        began = kernel.seconds
        await writer.drain()
        log.append(f"drained after {kernel.seconds - began > 5}")
        log.append((await reader.read()).decode())

    kernel = Kernel(1)
    Network(kernel)
    with installed(kernel):
        one, two = kernel.add_host("one"), kernel.add_host("two")
        two.start("receiver", receive)
        kernel.after(1, one.start, "sender", send)
        kernel.run(until_s=100)
        assert kernel.complaints == []
    assert log == ["drained after True", str(total)]


def test_blocking_sockets_poll_and_time_limits() -> None:
    log: list[object] = []

    def serve_blocking() -> None:
        listener = socket.create_server((kernel.hosts["two"].address, 9000))

        def handle(sock: socket.socket) -> None:
            while data := sock.recv(100):
                sock.sendall(data.upper())
            sock.close()

        while True:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.poll()
            sock, _ = listener.accept()
            threading.Thread(target=handle, args=(sock,)).start()

    def call() -> None:
        sock = socket.create_connection(("two", 9000), timeout=3.0)
        sock.sendall(b"hello")
        log.append(sock.recv(5, socket.MSG_WAITALL))
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.shutdown(socket.SHUT_WR)
        log.append(sock.recv(1))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("two", 9001), timeout=3.0)
        network.partition(kernel.hosts["one"], kernel.hosts["two"])
        with pytest.raises(TimeoutError):
            socket.create_connection(("two", 9000), timeout=3.0)

    kernel = Kernel(1)
    network = Network(kernel)
    with installed(kernel):
        one, two = kernel.add_host("one"), kernel.add_host("two")
        two.start("server", serve_blocking)
        kernel.run(until_s=1)
        client = one.start("client", call)
        kernel.run(until_s=100)
        assert client.exit_code == 0, kernel.complaints
    assert log == [b"HELLO", b""]


@pytest.mark.parametrize("flags", [0, socket.MSG_WAITALL])
def test_no_bytes_are_received_and_sent_without_a_wait(flags: int) -> None:
    done: list[object] = []

    def serve() -> None:
        listener = socket.create_server((kernel.hosts["two"].address, 9000))
        sock, _ = listener.accept()
        time.sleep(50.0)  # it neither reads nor sends
        done.append("closed")
        sock.close()

    def call() -> None:
        sock = socket.create_connection(("two", 9000))
        done.append(sock.recv(0, flags))
        done.append(sock.recv_into(bytearray(), 0, flags))
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(WINDOW))
        sock.setblocking(True)
        done.append(sock.send(b""))
        done.append(kernel.seconds < 10.0)

    kernel = Kernel(1)
    Network(kernel)
    with installed(kernel):
        one, two = kernel.add_host("one"), kernel.add_host("two")
        two.start("server", serve)
        kernel.run(until_s=1)
        client = one.start("client", call)
        kernel.run(until_s=100)
        assert client.exit_code == 0, kernel.complaints
    assert done == [b"", 0, 0, True, "closed"]
