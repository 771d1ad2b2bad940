"""Asks and tells through the public gateway of a fenced endpoint, beside the floor of a blocking socket ping-pong.

The endpoint is an actor in a process of its own. It is called from a plain thread (`ActorClient`) and from a coroutine
(`RpcService`), over the Unix socket, then over TCP. Floor and asks alternate in short rounds, so that the machine's
noise hits both; figures are medians of rounds.

Where two processes run decides more than what they do: a ping-pong on one core is two context switches (5 us), on two
cores it is two wake-ups of another core (30 us and more). The kernel chooses by chance, so both are measured with the
processes pinned: the figures without ``one_core`` have the two sides on different cores, in the floor as in the asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil

from actors.client import ActorClient
from actors.process.host import HostSpec
from actors.process.logs import LogConfig
from actors.process.system import HostedActor, ProcessActorSystem
from actors.rpc.service import RpcConfig, RpcService
from tests.bench import actors as many_actors
from tests.bench import peers
from tests.bench.echo import TOKEN, EchoGateway
from tests.bench.floor import Floor

Figures = dict[str, float]
Rows = list[tuple[str, str]]
SMALL, LARGE = b"x" * 100, b"x" * 65536
OUTSTANDING = 100
CLIENTS = 16
SERIAL = 400
IDLE_S = 3.0


def run(rounds: int) -> tuple[Figures, Rows]:
    """Run all parts; returns the figures and the table's rows."""
    figures: Figures = {}
    rows: Rows = []
    for part in PARTS:
        part_figures, part_rows = part(rounds)
        figures.update(part_figures)
        rows += part_rows
    return figures, rows


class Samples:
    """Values by name, a round each."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def note(self, name: str, value: float) -> None:
        """Add one round's value."""
        self._values.setdefault(name, []).append(value)

    def times(self, name: str, seconds: list[float], p99: str | None = None) -> None:
        """Add one round's p50 (and p99), in microseconds."""
        ordered = sorted(seconds)
        self.note(name, ordered[len(ordered) // 2] * 1e6)
        if p99 is not None:
            self.note(p99, ordered[len(ordered) * 99 // 100] * 1e6)

    def medians(self) -> Figures:
        """The median of each."""
        return {name: statistics.median(values) for name, values in self._values.items()}


@contextlib.contextmanager
def on_cores(pid: int, theirs: int, ours: int) -> Iterator[None]:
    """Pin process *pid*, and this thread, to one core each (numbered among those that we may use)."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {allowed[theirs % len(allowed)]})
    os.sched_setaffinity(0, {allowed[ours % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        os.sched_setaffinity(pid, allowed)


# ------------------------------------------------------------------ calls


def calls(rounds: int) -> tuple[Figures, Rows]:
    """Asks and tells, over both kinds of sockets; and what an idle system costs."""
    samples = Samples()
    with tempfile.TemporaryDirectory(prefix="us-rpc-") as scratch:
        directory, secret = Path(scratch), secrets.token_hex(32).encode()
        (directory / "secret").write_bytes(secret)
        (directory / "secret").chmod(0o600)
        floors = {kind: Floor(kind, directory) for kind in ("uds", "tcp")}  # forked before there are threads
        system = ProcessActorSystem()
        try:
            config = RpcConfig(socket_dir=directory)
            spec = HostSpec(
                "echo", "tests.bench.echo:create", {}, config, directory / "secret", LogConfig(directory / "log")
            )
            actor = system.start(spec)
            for _ in range(rounds):
                for kind, client in (("uds", config), ("tcp", RpcConfig())):
                    _serial(samples, floors[kind], actor, secret, client, kind)
                    _threads(samples, actor, secret, client, kind)
                    with on_cores(actor.pid, 0, 1):
                        samples.times(f"{kind}.await_p50_us", asyncio.run(_awaits(actor, secret, client)))
            samples.note("idle_core_percent", _idle(actor, secret, config))
        finally:
            system.shutdown()
            for floor in floors.values():
                floor.close()
    figures = samples.medians()
    return figures, _table(figures)


def _serial(samples: Samples, floor: Floor, actor: HostedActor, secret: bytes, config: RpcConfig, kind: str) -> None:
    with ActorClient(secret, config) as client:
        gateway = client.gateway(actor.address, EchoGateway, TOKEN, timeout_s=60)
        for prefix, theirs in ((kind, 0), (f"{kind}.one_core", 1)):
            for _ in range(5):
                with on_cores(floor.pid, theirs, 1):
                    samples.times(f"{prefix}.floor_p50_us", floor.times(SERIAL))
                with on_cores(actor.pid, theirs, 1):
                    samples.times(f"{prefix}.ask_p50_us", _asks(gateway, SERIAL), f"{prefix}.ask_p99_us")


def _asks(gateway: EchoGateway, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        gateway.echo(SMALL).result()
        times.append(time.perf_counter() - began)
    return times


def _threads(samples: Samples, actor: HostedActor, secret: bytes, config: RpcConfig, kind: str) -> None:
    """What one plain thread gets through; the kernel places it."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ActorClient(secret, config)) for _ in range(CLIENTS)]
        gateways = [client.gateway(actor.address, EchoGateway, TOKEN, timeout_s=60) for client in clients]
        for gateway in gateways:
            gateway.noted().result()
        samples.note(f"{kind}.pipelined_asks_per_s", _pipelined(gateways[:1], SMALL, 40_000))
        samples.note(f"{kind}.clients16_asks_per_s", _pipelined(gateways, SMALL, 40_000))
        samples.note(f"{kind}.64k.pipelined_asks_per_s", _pipelined(gateways[:1], LARGE, 4_000))
        samples.note(f"{kind}.tells_per_s", _tells(gateways[0], 200_000))


def _pipelined(gateways: list[EchoGateway], data: bytes, count: int) -> float:
    """Asks per second with 100 outstanding in all: as the oldest is answered, the next goes out."""
    under_way = deque(gateways[index % len(gateways)].echo(data) for index in range(OUTSTANDING))
    began = time.perf_counter()
    for index in range(count):
        under_way.popleft().result()
        under_way.append(gateways[index % len(gateways)].echo(data))
    took = time.perf_counter() - began
    for ask in under_way:
        ask.result()
    return count / took


def _tells(gateway: EchoGateway, count: int) -> float:
    before = gateway.noted().result()
    began = time.perf_counter()
    for _ in range(count):
        gateway.note(SMALL)
    counted = gateway.noted().result()  # comes after the tells, in their order
    if counted != before + count:
        raise RuntimeError(f"{before + count - counted} tells were lost")
    return count / (time.perf_counter() - began)


async def _awaits(actor: HostedActor, secret: bytes, config: RpcConfig) -> list[float]:
    service = RpcService(asyncio.get_running_loop(), secret, config)
    gateway = service.gateway(actor.address, EchoGateway, TOKEN, timeout_s=60)
    times = []
    for _ in range(3 * SERIAL):
        began = time.perf_counter()
        await gateway.echo(SMALL)
        times.append(time.perf_counter() - began)
    await service.close()
    return times[SERIAL:]


def _idle(actor: HostedActor, secret: bytes, config: RpcConfig) -> float:
    """Per cent of a core that the system's processes, and a connected client, take while nobody calls."""
    with ActorClient(secret, config) as client:
        client.gateway(actor.address, EchoGateway, TOKEN).noted().result()
        own = psutil.Process()
        processes = [own, *own.children(recursive=True)]

        def spent() -> float:
            return sum(used.user + used.system for used in (process.cpu_times() for process in processes))

        before = spent()
        time.sleep(IDLE_S)
        return (spent() - before) / IDLE_S * 100


def _table(figures: Figures) -> Rows:
    rows = []
    for kind in ("uds", "tcp"):
        for prefix, where in ((kind, "two cores"), (f"{kind}.one_core", "one core")):
            floor, ask = figures[f"{prefix}.floor_p50_us"], figures[f"{prefix}.ask_p50_us"]
            rows.append((f"{kind} floor p50, {where}", f"{floor:12.1f} us"))
            rows.append((f"{kind} ask p50, {where}", f"{ask:12.1f} us   {ask / floor:.2f} x the floor"))
            late = figures[f"{prefix}.ask_p99_us"]
            rows.append((f"{kind} ask p99, {where}", f"{late:12.1f} us   {late / ask:.2f} x the p50"))
        rows.append((f"{kind} await p50, two cores", f"{figures[f'{kind}.await_p50_us']:12.1f} us"))
        rows += [
            (f"{kind} {name.removesuffix('_per_s')}", f"{figures[f'{kind}.{name}']:12,.0f} /s")
            for name in ("pipelined_asks_per_s", "clients16_asks_per_s", "64k.pipelined_asks_per_s", "tells_per_s")
        ]
    rows.append(("idle system", f"{figures['idle_core_percent']:12.2f} % of a core"))
    return rows


# ------------------------------------------------------------------ raw Thespian


def thespian(_rounds: int) -> tuple[Figures, Rows]:
    """An ask over Thespian's own messages, on its own (hardened) TCP base."""
    system = ProcessActorSystem()
    try:
        address = system._system.createActor("tests.bench.thespian_echo.ThespianEcho")
        times = []
        for _ in range(600):
            began = time.perf_counter()
            system._system.ask(address, SMALL, timedelta(seconds=5))
            times.append(time.perf_counter() - began)
    finally:
        system.shutdown()
    value = sorted(times[100:])[250] * 1e6
    return {"thespian.ask_p50_us": value}, [("raw Thespian ask p50", f"{value:12.1f} us")]


PARTS: list[Callable[[int], tuple[Figures, Rows]]] = [calls, thespian, many_actors.run, peers.measure]
"""What the benchmark consists of: each part returns its figures and the rows of its table."""
