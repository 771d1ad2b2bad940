"""Runs the package's own jobs on a driver, through the zygote: to warm it, and to try whether it still runs jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.api import SparkDriver
from runtime.spark.driver.launch import is_local
from runtime.spark.errors import SparkError, ZygoteError
from runtime.spark.messages import ErrorDescription, Failed, Finished
from runtime.spark.spec import ClassicEndpoint, TaskSpec, VertexInput, VertexSpec
from runtime.spark.task.zygote_client import TaskProcess, Zygote

logger = logging.getLogger(__name__)

QUERIES_AT_A_TIME = 10  # some 2 s: a task that comes meanwhile shares the cores with them for so long

_FILE = str(Path(__file__).with_name("warm_jobs.py"))


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
        parameters = {"directory": str(directory / "pipeline.parquet")}
        await _warm(_run_pipeline(driver, zygote, directory / "pipeline", "warm_pipeline", parameters))
        await _warm(_run_script(driver, zygote, "warm-up", directory / "script", str(directory / "script.parquet")))
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
        parameters = {"queries": min(QUERIES_AT_A_TIME, queries - begun)}
        try:
            await _warm(_run_pipeline(driver, zygote, directory / "pipeline", "small_queries", parameters))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        took = time.monotonic() - started
    logger.info("the Spark driver %d has run %d small queries more", driver.info.pid, queries)


async def try_driver(driver: SparkDriver, zygote: Zygote, directory: Path) -> str:
    """Run the trial job, a script; return the message of its failure, or nothing where it has ended well.

    It waits for a free core as any job does: its caller decides how long that may take.

    Args:
        driver: to be tried.
        zygote: forks the process.
        directory: the process's working directory, which is removed.

    Raises:
        ZygoteError: no process could be forked, or it ended before its job; that is no fault of the driver's.
        SparkError: the driver refuses the job.
    """
    try:
        failure = await _run_script(driver, zygote, "trial", directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return "" if failure is None else failure.message


async def _warm(job: Awaitable[ErrorDescription | None]) -> None:
    try:
        failure = await job
    except ZygoteError as error:
        logger.warning("the warm-up of the Spark driver could not run: %s", error)
        return
    if failure is not None:
        logger.warning("the warm-up of the Spark driver failed: %s", failure.traceback)


async def _run_pipeline(
    driver: SparkDriver, zygote: Zygote, directory: Path, sink: str, parameters: dict[str, Any]
) -> ErrorDescription | None:
    vertices = (VertexSpec("source", "source", "source"), VertexSpec("sink", "sink", sink, (VertexInput("source"),)))
    return await _run(driver, zygote, JobKind.PIPELINE, "warm-up", directory, vertices, parameters=parameters)


async def _run_script(
    driver: SparkDriver, zygote: Zygote, name: str, directory: Path, *argv: str
) -> ErrorDescription | None:
    return await _run(driver, zygote, JobKind.SCRIPT, name, directory, (VertexSpec(name, name),), argv=argv)


async def _run(
    driver: SparkDriver,
    zygote: Zygote,
    kind: JobKind,
    name: str,
    directory: Path,
    vertices: tuple[VertexSpec, ...],
    **more: Any,
) -> ErrorDescription | None:
    """Run a task of the package's own jobs; return the error with which its code failed, None where it ended well.

    Raises:
        ZygoteError: no process could be forked, or it ended before its job.
        SparkError: the driver refuses the job.
    """
    attempt_id = f"{name}-{uuid.uuid4().hex}"
    endpoint = await driver.open(kind, attempt_id)
    way = {"classic": endpoint} if isinstance(endpoint, ClassicEndpoint) else {"connect": endpoint}
    spec = TaskSpec(name, name, attempt_id, name, kind, _FILE, str(directory), vertices, **way, **more)
    try:
        return await _follow(await zygote.fork(spec))
    finally:
        with contextlib.suppress(SparkError):  # a driver that is lost can give nothing up
            await driver.release(endpoint)


async def _follow(process: TaskProcess) -> ErrorDescription | None:
    end: Finished | Failed | None = None
    try:
        async for message in process.messages():
            if isinstance(message, Finished | Failed):
                end = message
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
    finally:
        process.close()
    if end is None:
        raise ZygoteError(f"the process of {process.spec.task_name} has ended before its job")
    return end.error if isinstance(end, Failed) else None
