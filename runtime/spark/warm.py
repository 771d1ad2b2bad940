"""Warms a fresh driver by running the package's own job on it, through the zygote, both ways."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, VertexDescriptor, VertexInput
from runtime.spark.driver import SparkDriver
from runtime.spark.errors import SparkError
from runtime.spark.masters import is_local
from runtime.spark.spec import TaskSpec
from runtime.spark.zygote_client import Zygote

logger = logging.getLogger(__name__)

QUERIES_AT_A_TIME = 10  # some 2 s: a task that comes meanwhile shares the cores with them for so long

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
        await _pipeline(driver, zygote, directory, "warm_pipeline", {"directory": str(directory / "pipeline.parquet")})
        await _script(driver, zygote, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    took = time.monotonic() - started
    logger.info("the Spark driver %d is warm after %.1f s", driver.info.pid, took)
    return took


async def keep_warming(
    driver: SparkDriver, zygote: Zygote, directory: Path, queries: int, rest: Callable[[float], Awaitable[None]]
) -> None:
    """Run so many small queries, so that Java has compiled what every job needs before there are jobs.

    Args:
        driver: where.
        zygote: forks the process that asks for them.
        directory: of the working directory.
        queries: how many.
        rest: called before each `QUERIES_AT_A_TIME`, with the seconds that the last ones took; waits as long as it
            wants the driver to itself.
    """
    took = 0.0
    for begun in range(0, queries, QUERIES_AT_A_TIME):
        await rest(took)
        started = time.monotonic()
        number = min(QUERIES_AT_A_TIME, queries - begun)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await _pipeline(driver, zygote, directory, "small_queries", {"queries": number})
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        took = time.monotonic() - started
    logger.info("the Spark driver %d has run %d small queries more", driver.info.pid, queries)


async def _pipeline(
    driver: SparkDriver, zygote: Zygote, directory: Path, sink: str, parameters: dict[str, Any]
) -> None:
    session = driver.new_session()
    first, last = JobVertexID.of("warm-up", "source"), JobVertexID.of("warm-up", "sink")
    source = VertexDescriptor(first, "source", "source")
    vertices = source, VertexDescriptor(last, "sink", sink, (VertexInput(first),))
    task = TaskDeploymentDescriptor.internal("warm-up", JobKind.PIPELINE, *vertices, parameters=parameters)
    spec = TaskSpec(task, _FILE, str(directory / "pipeline"), connect=session)
    try:
        await _run(zygote, spec)
    finally:
        await driver.release_session(session)


async def _script(driver: SparkDriver, zygote: Zygote, directory: Path) -> None:
    endpoint = await driver.open_classic(f"warm-up-{uuid.uuid4().hex}")
    vertex = VertexDescriptor(JobVertexID.of("warm-up", "script"), "script")
    argv = (str(directory / "script.parquet"),)
    task = TaskDeploymentDescriptor.internal("warm-up", JobKind.SCRIPT, vertex, argv=argv)
    spec = TaskSpec(task, _FILE, str(directory / "script"), classic=endpoint)
    try:
        await _run(zygote, spec)
    finally:
        await driver.close_classic(endpoint)


async def _run(zygote: Zygote, spec: TaskSpec) -> None:
    try:
        task = await zygote.fork(spec)
    except SparkError as error:
        logger.warning("the warm-up of the Spark driver could not run: %s", error)
        return
    try:
        async for message in task.messages():
            if message["type"] == "failed":
                logger.warning("the warm-up of the Spark driver failed: %s", message["error"]["traceback"])
        await task.wait()
    except asyncio.CancelledError:
        task.kill()
        raise
    finally:
        task.close()
