"""Tries whether a driver still runs jobs, with a script in a process of its own, as any other job."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from pathlib import Path

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, VertexDescriptor
from runtime.spark.driver import SparkDriver
from runtime.spark.errors import SparkError, ZygoteError
from runtime.spark.spec import TaskSpec
from runtime.spark.zygote_client import Zygote

_FILE = str(Path(__file__).with_name("trial_job.py"))


async def try_driver(driver: SparkDriver, zygote: Zygote, directory: Path) -> str:
    """Run the trial job; return the message of its failure, or nothing where it has ended well.

    It waits for a free core as any job does: its caller decides how long that may take.

    Args:
        driver: to be tried.
        zygote: forks the process.
        directory: the process's working directory, which is removed.

    Raises:
        ZygoteError: no process could be forked, or it ended before its job; that is no fault of the driver's.
        SparkError: the driver refuses the job.
    """
    endpoint = await driver.open_classic(f"trial-{uuid.uuid4().hex}")
    vertex = VertexDescriptor(JobVertexID.of("trial", "trial"), "trial")
    task = TaskDeploymentDescriptor.internal("trial", JobKind.SCRIPT, vertex)
    spec = TaskSpec(task, _FILE, str(directory), classic=endpoint)
    failure: str | None = None
    try:
        process = await zygote.fork(spec)
        try:
            async for message in process.messages():
                if message["type"] == "failed":
                    failure = str(message["error"]["message"])
                elif message["type"] == "finished":
                    failure = ""
            await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        finally:
            process.close()
    finally:
        with contextlib.suppress(SparkError):  # a driver that is lost can give nothing up
            await driver.close_classic(endpoint)
        shutil.rmtree(directory, ignore_errors=True)
    if failure is None:
        raise ZygoteError("the process of the trial has ended before its job")
    return failure
