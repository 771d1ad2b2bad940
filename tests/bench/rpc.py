"""Asks and tells through the public gateway of a fenced endpoint, beside the floor of a blocking socket ping-pong.

The endpoint is an actor in a process of its own, the client an asyncio program; both speak over the Unix socket, then
over TCP. The floor is two blocking sockets that send each other frames of the same sizes. Raw Thespian is asked in the
same run. Rounds alternate; figures are medians of rounds.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from actors.host import HostSpec
from actors.logs import LogConfig
from actors.rpc.service import RpcConfig, RpcService
from actors.system import HostedActor, ProcessActorSystem
from tests.bench.echo import TOKEN, EchoGateway

SMALL, LARGE = b"x" * 100, b"x" * 65536
OUTSTANDING = 100


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="us-rpc-") as scratch:
        directory, secret = Path(scratch), secrets.token_hex(32).encode()
        (directory / "secret").write_bytes(secret)
        system = ProcessActorSystem(secret)
        try:
            config = RpcConfig(socket_dir=directory)
            actor = system.start(
                HostSpec(
                    "echo", "tests.bench.echo:create", {}, config, directory / "secret", LogConfig(directory / "log")
                )
            )
            for _ in range(rounds):
                for kind, client in (("uds", config), ("tcp", RpcConfig())):
                    _note(samples, f"{kind}.floor_p50_us", _floor(kind, directory))
                    for name, value in asyncio.run(_measure(actor, secret, client, kind)).items():
                        _note(samples, name, value)
            began = time.perf_counter()
            other = system.start(
                HostSpec(
                    "other", "tests.bench.echo:create", {}, config, directory / "secret", LogConfig(directory / "log")
                )
            )
            created = time.perf_counter() - began
            system.stop(other)
        finally:
            system.shutdown()
    figures = {name: statistics.median(values) for name, values in samples.items()}
    figures["process_actor_create_s"] = created
    figures["thespian.ask_p50_us"] = _thespian()
    return figures, _table(figures)


def _note(samples: dict[str, list[float]], name: str, value: float) -> None:
    samples.setdefault(name, []).append(value)


async def _measure(actor: HostedActor, secret: bytes, config: RpcConfig, kind: str) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    services = [RpcService(loop, secret, config) for _ in range(16)]
    gateways = [service.gateway(actor.address, EchoGateway, TOKEN, timeout_s=60) for service in services]
    gateway = gateways[0]
    try:
        serial = []
        for _ in range(3000):
            began = time.perf_counter()
            await gateway.echo(SMALL)
            serial.append(time.perf_counter() - began)
        serial = sorted(serial[500:])
        figures = {
            f"{kind}.ask_p50_us": serial[len(serial) // 2] * 1e6,
            f"{kind}.ask_p99_us": serial[len(serial) * 99 // 100] * 1e6,
            f"{kind}.pipelined_asks_per_s": await _pipelined([gateway], SMALL, 40_000),
            f"{kind}.clients16_asks_per_s": await _pipelined(gateways, SMALL, 40_000),
            f"{kind}.64k.pipelined_asks_per_s": await _pipelined([gateway], LARGE, 4_000),
            f"{kind}.tells_per_s": await _tells(gateway, 100_000),
        }
    finally:
        for service in services:
            await service.close()
    return figures


async def _pipelined(gateways: list[EchoGateway], data: bytes, count: int) -> float:
    """Asks per second with 100 outstanding in all: as a reply comes, the next ask goes out."""
    left = count

    async def asker(gateway: EchoGateway) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await gateway.echo(data)

    began = time.perf_counter()
    await asyncio.gather(*(asker(gateways[index % len(gateways)]) for index in range(OUTSTANDING)))
    return count / (time.perf_counter() - began)


async def _tells(gateway: EchoGateway, count: int) -> float:
    before = await gateway.noted()
    began = time.perf_counter()
    for index in range(count):
        gateway.note(SMALL)
        if index % 200 == 0:
            await asyncio.sleep(0)
    counted = await gateway.noted()  # comes after the tells, in their order
    if counted != before + count:
        raise RuntimeError(f"{before + count - counted} tells were lost")
    return count / (time.perf_counter() - began)


def _floor(kind: str, directory: Path) -> float:
    """p50 in microseconds of a ping-pong of frames of the same size between two processes with blocking sockets."""
    listener = socket.socket(socket.AF_UNIX if kind == "uds" else socket.AF_INET)
    listener.bind(str(directory / f"floor-{secrets.token_hex(4)}") if kind == "uds" else ("127.0.0.1", 0))
    listener.listen()
    size = 4 + len(SMALL) + 40  # header, argument, and what else is in an ASK frame
    pid = os.fork()
    if pid == 0:
        peer, _ = listener.accept()
        _no_delay(peer)
        while data := peer.recv(65536):
            peer.sendall(data)
        os._exit(0)
    with socket.socket(listener.family) as sock:
        sock.connect(listener.getsockname())
        _no_delay(sock)
        times = []
        for _ in range(3000):
            began = time.perf_counter()
            sock.sendall(b"x" * size)
            received = 0
            while received < size:
                received += len(sock.recv(65536))
            times.append(time.perf_counter() - began)
    listener.close()
    os.waitpid(pid, 0)
    return sorted(times[500:])[1250] * 1e6


def _no_delay(sock: socket.socket) -> None:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _thespian() -> float:
    """p50 in microseconds of an ask over Thespian's own messages, on its own (hardened) TCP base."""
    system = ProcessActorSystem(secrets.token_hex(32).encode())
    try:
        address = system._system.createActor("tests.bench.thespian_echo.ThespianEcho")
        times = []
        for _ in range(600):
            began = time.perf_counter()
            system._system.ask(address, SMALL, timedelta(seconds=5))
            times.append(time.perf_counter() - began)
        return sorted(times[100:])[250] * 1e6
    finally:
        system.shutdown()


def _table(figures: dict[str, float]) -> list[tuple[str, str]]:
    rows = []
    for kind in ("uds", "tcp"):
        ratio = figures[f"{kind}.ask_p50_us"] / figures[f"{kind}.floor_p50_us"]
        rows += [(f"{kind} floor p50", f"{figures[f'{kind}.floor_p50_us']:12.1f} us")]
        rows += [(f"{kind} ask p50", f"{figures[f'{kind}.ask_p50_us']:12.1f} us   {ratio:.2f} x the floor")]
        rows += [(f"{kind} ask p99", f"{figures[f'{kind}.ask_p99_us']:12.1f} us")]
        for name in ("pipelined_asks_per_s", "clients16_asks_per_s", "64k.pipelined_asks_per_s", "tells_per_s"):
            rows.append((f"{kind} {name.removesuffix('_per_s')}", f"{figures[f'{kind}.{name}']:12,.0f} /s"))
    rows.append(("raw Thespian ask p50", f"{figures['thespian.ask_p50_us']:12.1f} us"))
    rows.append(("an actor's process, start to running", f"{figures['process_actor_create_s'] * 1e3:12.1f} ms"))
    return rows
