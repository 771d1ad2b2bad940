"""Other Python actor libraries, where they are installed (none is a dependency): the same trivial ask of 100 bytes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

DATA = b"x" * 100
OUTSTANDING = 100

Outcome = tuple[float, float]


def measure(_rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Serial p50 and pipelined asks per second of each library that is installed."""
    figures: dict[str, float] = {}
    rows = []
    for name, ask in LIBRARIES.items():
        if importlib.util.find_spec(name) is None:
            continue
        p50, per_s = ask()
        figures |= {f"{name}.ask_p50_us": p50, f"{name}.asks_per_s": per_s}
        rows += [(f"{name} ask p50", f"{p50:12.1f} us"), (f"{name} pipelined asks", f"{per_s:12,.0f} /s")]
    return figures, rows


def _outcome(send: Callable[[], Any], wait: Callable[[Any], Any], count: int) -> Outcome:
    times = []
    for _ in range(count // 10):
        began = time.perf_counter()
        wait(send())
        times.append(time.perf_counter() - began)
    under_way = deque(send() for _ in range(OUTSTANDING))
    began = time.perf_counter()
    for _ in range(count):
        wait(under_way.popleft())
        under_way.append(send())
    per_s = count / (time.perf_counter() - began)
    for one in under_way:
        wait(one)
    return sorted(times)[len(times) // 2] * 1e6, per_s


def _pykka() -> Outcome:
    """Actors are threads of this process: nothing is encoded, nothing leaves it."""
    import pykka

    class Echo(pykka.ThreadingActor):  # type: ignore[misc, unused-ignore]  # not installed where this is checked
        def on_receive(self, message: bytes) -> bytes:
            return message

    actor = Echo.start()
    try:
        return _outcome(lambda: actor.ask(DATA, block=False), lambda future: future.get(), 20_000)
    finally:
        actor.stop()


def _ray() -> Outcome:
    """An actor in a process of its own."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing of it leaves this machine
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:

        class Echo:
            def echo(self, data: bytes) -> bytes:
                return data

        actor = ray.remote(Echo).remote()
        ray.get(actor.echo.remote(DATA))
        return _outcome(lambda: actor.echo.remote(DATA), ray.get, 5_000)
    finally:
        ray.shutdown()


def _xoscar() -> Outcome:
    """An actor in a sub-pool, which is a process of its own."""
    return asyncio.run(_xoscar_asks())


async def _xoscar_asks() -> Outcome:
    import xoscar

    from tests.bench.xoscar_echo import XoscarEcho

    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=1)
    async with pool:
        actor = await xoscar.create_actor(
            XoscarEcho,
            address=pool.external_address,
            uid="echo",
            allocate_strategy=xoscar.allocate_strategy.RandomSubPool(),
        )
        times = []
        for _ in range(2_000):
            began = time.perf_counter()
            await actor.echo(DATA)
            times.append(time.perf_counter() - began)
        left = 10_000

        async def asker() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await actor.echo(DATA)

        began = time.perf_counter()
        await asyncio.gather(*(asker() for _ in range(OUTSTANDING)))
        return sorted(times)[len(times) // 2] * 1e6, 10_000 / (time.perf_counter() - began)


LIBRARIES: dict[str, Callable[[], Outcome]] = {"pykka": _pykka, "xoscar": _xoscar, "ray": _ray}
