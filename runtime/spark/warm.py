"""Warms a fresh driver by running the package's own job on it, through the zygote, both ways."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from pathlib import Path

from .driver import SparkDriver
from .errors import SparkVehicleError
from .masters import is_local
from .spec import TaskKind, TaskSpec, VertexInput, VertexSpec
from .zygote_client import Zygote

_log = logging.getLogger(__name__)

_FILE = str(Path(__file__).with_name("warmup.py"))


async def warm_up(driver: SparkDriver, zygote: Zygote, directory: Path) -> float:
    """Run the warm-up jobs in `directory`, which is removed; return the seconds it took, 4 to 10 in a cold JVM.

    Jobs may run beside it: they warm the JVM as well. A warm-up that fails is logged and does no harm.
    """
    started = time.monotonic()
    await driver.warm_up()
    if not is_local(driver.info.master):  # the jobs write files, which executors elsewhere would leave there
        return time.monotonic() - started
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        await _pipeline(driver, zygote, directory)
        await _script(driver, zygote, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    took = time.monotonic() - started
    _log.info("the Spark driver %d is warm after %.1f s", driver.info.pid, took)
    return took


async def _pipeline(driver: SparkDriver, zygote: Zygote, directory: Path) -> None:
    session = driver.new_session()
    vertices = (
        VertexSpec("source", "source", "source"),
        VertexSpec("sink", "sink", "warm_pipeline", (VertexInput("source"),)),
    )
    parameters = {"directory": str(directory / "pipeline.parquet")}
    spec = TaskSpec(
        job_id="warm-up",
        job_name="warm-up",
        attempt_id="warm-up-pipeline",
        task_name="warm-up",
        kind=TaskKind.PIPELINE,
        file=_FILE,
        work_dir=str(directory / "pipeline"),
        vertices=vertices,
        parameters=parameters,
        connect=session,
    )
    try:
        await _run(zygote, spec)
    finally:
        await driver.release_session(session)


async def _script(driver: SparkDriver, zygote: Zygote, directory: Path) -> None:
    endpoint = await driver.open_classic(f"warm-up-{uuid.uuid4().hex}")
    spec = TaskSpec(
        job_id="warm-up",
        job_name="warm-up",
        attempt_id=endpoint.name,
        task_name="warm-up",
        kind=TaskKind.SCRIPT,
        file=_FILE,
        work_dir=str(directory / "script"),
        vertices=(VertexSpec("script", "script"),),
        argv=(str(directory / "script.parquet"),),
        classic=endpoint,
    )
    try:
        await _run(zygote, spec)
    finally:
        await driver.close_classic(endpoint)


async def _run(zygote: Zygote, spec: TaskSpec) -> None:
    try:
        task = await zygote.fork(spec)
    except SparkVehicleError as error:
        _log.warning("the warm-up of the Spark driver could not run: %s", error)
        return
    try:
        async for message in task.messages():
            if message["type"] == "failed":
                _log.warning("the warm-up of the Spark driver failed: %s", message["error"]["traceback"])
        await task.wait()
    except asyncio.CancelledError:
        task.kill()
        raise
    finally:
        task.close()
