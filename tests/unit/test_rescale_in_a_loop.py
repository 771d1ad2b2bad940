"""A rescale that is called where an event loop runs, as in a notebook."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from runtime.checkpoint.manifest import Savepoint, SavepointJob
from runtime.checkpoint.rescale import RescalePlan
from runtime.spark import rescale as spark_rescale
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import DriverStartError
from runtime.spark.rescale import rescale

SAVEPOINT = Savepoint(SavepointJob("ab" * 16, "job"), 1, (), {}, "4.3.0", "0.1.0")
PLAN = RescalePlan(SAVEPOINT, (), 3, Path("/to"))


def test_a_rescale_runs_in_this_thread_or_beside_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    async def run(*_: object) -> Savepoint:
        threads.append(threading.current_thread())
        return SAVEPOINT

    async def in_a_loop() -> Savepoint:
        return rescale(PLAN)

    monkeypatch.setattr(spark_rescale, "_run", run)
    assert rescale(PLAN) is asyncio.run(in_a_loop()) is SAVEPOINT
    assert threads[0] is threading.current_thread() is not threads[1]
    assert not threads[1].is_alive()


def test_an_interrupt_beside_a_loop_ends_the_rescale(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def run(*_: object) -> Savepoint:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return SAVEPOINT

    class Interrupted(spark_rescale.ThreadPoolExecutor):
        """A Ctrl-C while the calling thread waits."""

        def submit(self, *args: object, **kwargs: object):  # type: ignore[no-untyped-def, override]
            future = super().submit(*args, **kwargs)  # type: ignore[arg-type]

            def result(timeout: float | None = None) -> None:
                begun.wait()
                raise KeyboardInterrupt

            future.result = result  # type: ignore[method-assign, assignment]
            return future

    async def in_a_loop() -> None:
        with pytest.raises(KeyboardInterrupt):
            rescale(PLAN)

    monkeypatch.setattr(spark_rescale, "_run", run)
    monkeypatch.setattr(spark_rescale, "ThreadPoolExecutor", Interrupted)
    asyncio.run(in_a_loop())
    assert ended.is_set()


async def test_a_driver_that_dies_with_its_parent_needs_a_thread_that_stays(tmp_path: Path) -> None:
    options = DriverOptions(work_dir=tmp_path / "d", log_file=tmp_path / "log", java_home=None, die_with_parent=True)
    with pytest.raises(DriverStartError, match="must be started from its main thread"):
        await asyncio.to_thread(lambda: asyncio.run(LocalDriver.start(options)))
