"""Runs the package's own jobs on a driver, through the zygote: to warm it up, and to check that it still runs jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, VertexDescriptor, VertexInput
from runtime.spark.driver.api import SparkDriver
from runtime.spark.driver.launch import is_local
from runtime.spark.errors import SparkError, ZygoteError
from runtime.spark.messages import ErrorDescription, Failed, Finished
from runtime.spark.spec import ClassicEndpoint, TaskSpec
from runtime.spark.task.zygote_client import TaskProcess, Zygote

logger = logging.getLogger(__name__)

RELEASE_S = 60.0
"""Longest time in seconds that a session of a job of our own may take to be released."""
QUERIES_AT_A_TIME = 10  # some 2 s, during which a task that arrives shares the cores with them

_FILE = str(Path(__file__).with_name("warm_jobs.py"))


async def warm_up(driver: SparkDriver, zygote: Zygote, directory: Path) -> float:
    """Run the warm-up jobs in `directory`, and remove it; return the seconds that they took, 4 to 10 in a cold JVM.

    Users' jobs may run at the same time, and warm the JVM as well. A failed warm-up is only logged.
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
    """Run small queries, so that Java has compiled the code that every job needs before the first job.

    Args:
        driver: the driver that runs them.
        zygote: forks the process that starts them.
        directory: the working directory of that process.
        queries: number of queries.
        rest: called before each `QUERIES_AT_A_TIME`, with the seconds that the last ones took. It returns when the
            next ones may run.
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
    """Run the trial job, a script; return the message of its failure, or an empty text if it succeeded.

    The job waits for a free core as any job does; the caller decides how long that may take.

    Args:
        driver: the driver to check.
        zygote: forks the process.
        directory: the process's working directory, which is removed.

    Raises:
        ZygoteError: no process could be forked, or it ended before its job; the driver is not the cause.
        SparkError: the driver rejects the job.
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
    first, last = JobVertexID.of("warm-up", "source"), JobVertexID.of("warm-up", "sink")
    source = VertexDescriptor(first, "source", "source")
    vertices = source, VertexDescriptor(last, "sink", sink, (VertexInput(first),))
    task = TaskDeploymentDescriptor.internal("warm-up", JobKind.PIPELINE, *vertices, parameters=parameters)
    return await _run(driver, zygote, task, directory)


async def _run_script(
    driver: SparkDriver, zygote: Zygote, name: str, directory: Path, *argv: str
) -> ErrorDescription | None:
    vertex = VertexDescriptor(JobVertexID.of(name, name), name)
    task = TaskDeploymentDescriptor.internal(name, JobKind.SCRIPT, vertex, argv=argv)
    return await _run(driver, zygote, task, directory)


async def _run(
    driver: SparkDriver, zygote: Zygote, task: TaskDeploymentDescriptor, directory: Path
) -> ErrorDescription | None:
    """Run a task of the package's own jobs; return the error of its code, None if it succeeded.

    Raises:
        ZygoteError: no process could be forked, or it ended before its job.
        SparkError: the driver rejects the job.
    """
    endpoint = await driver.open(task.job.kind, task.attempt.attempt_id)
    classic = endpoint if isinstance(endpoint, ClassicEndpoint) else None
    connect = None if isinstance(endpoint, ClassicEndpoint) else endpoint
    spec = TaskSpec(task, _FILE, str(directory), classic=classic, connect=connect)
    try:
        return await _follow(await zygote.fork(spec))
    finally:
        # A lost driver cannot release anything, and one that hangs is found out by the next look at it.
        with contextlib.suppress(SparkError, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
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
        raise ZygoteError(f"the process of {process.spec.descriptor.attempt.task_name} has ended before its job")
    return end.error if isinstance(end, Failed) else None
