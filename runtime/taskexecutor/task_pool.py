"""Task processes that are ready: the pool of `TaskPoolPolicy`, with real processes and sessions."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from actors.rpc.endpoint import RpcEndpoint
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.diagnostics import TaskPoolReport
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import SparkError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint, PreparedSpec, TaskSpec
from runtime.spark.task.zygote_client import TaskProcess, Zygote
from runtime.taskexecutor.task_pool_policy import Miss, Preparation, TaskPoolPolicy

PREPARATION_TIMEOUT_S = 180.0


@dataclass(slots=True)
class ReadyProcess:
    """A process that is ready for one task, its way into Spark, and where Spark prints what a script makes it print."""

    process: TaskProcess
    endpoint: ClassicEndpoint | ConnectEndpoint
    output: Path | None = None


class TakenProcess:
    """A process that a task has taken: it runs that task, or is ended."""

    def __init__(self, pool: TaskPool, ready: ReadyProcess) -> None:
        self._pool = pool
        self._ready = ready

    @property
    def endpoint(self) -> ClassicEndpoint | ConnectEndpoint:
        """Its way into Spark."""
        return self._ready.endpoint

    async def run(self, spec: TaskSpec) -> TaskProcess | None:
        """Let it run a task; None where it, or its session, had ended: nothing was begun, and what is left is ended."""
        process, output = self._ready.process, self._ready.output
        try:
            if output is not None:
                output.rename(Path(spec.work_dir) / "stdout")  # Spark has it open
                self._ready.output = None
            is_open = True
            if isinstance(self.endpoint, ConnectEndpoint):
                is_open = await self._pool.configure(self.endpoint, spec.conf)
                spec = replace(spec, conf={})
            if is_open and await process.run(spec):
                return process
        except BaseException:
            await self._pool.end(self._ready)
            raise
        await self._pool.taken_was_dead(self._ready)
        return None


def private_file(path: Path) -> Path:
    """An empty file that nobody else may read: one that the JVM made itself, others could."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return path


class TaskPool:
    """Processes forked and Spark sessions opened ahead of the tasks; each is used once: nothing of a job stays.

    Args:
        endpoint: the TaskExecutor.
        driver: the Spark driver.
        zygote: forks the processes; None: none are kept ready.
        directory: its own, for output; emptied. On the file system of the attempts' directories.
        size: most processes that are kept ready; 0 keeps none.
    """

    def __init__(
        self, endpoint: RpcEndpoint, driver: SparkDriver, zygote: Zygote | None, directory: Path, size: int
    ) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        self._directory = directory
        self._endpoint = endpoint
        self._driver = driver
        self._zygote = zygote
        self._policy = TaskPoolPolicy(0 if zygote is None else size)
        self._ready: dict[int, ReadyProcess] = {}
        self._changed = asyncio.Event()
        self._stopped = False

    def take(self, kind: JobKind, *, own_environment: bool) -> TakenProcess | None:
        """A process for a task of that kind of job; None where there is none.

        Args:
            kind: of the job.
            own_environment: whether the job brings what its code imports: its session has to be made for it.
        """
        found = self._policy.take(kind, own_environment, time.monotonic())
        self._changed.set()
        if isinstance(found, Miss):
            if found is not Miss.OFF:
                self._endpoint.log.info("no task process was ready for a %s: %s", kind.value, found.value)
            return None
        return TakenProcess(self, self._ready.pop(found))

    def report(self) -> TaskPoolReport:
        """Return what the pool did since it started."""
        return self._policy.report()

    async def fill(self) -> None:
        """Keep processes ready, until `stop`."""
        while not self._stopped:
            self._changed.clear()
            for number in self._policy.surplus(time.monotonic()):
                await self.end(self._ready.pop(number))
            preparation = self._policy.next_preparation(time.monotonic())
            if preparation is not None:
                await self._prepare(preparation)
                continue
            wake_at = self._policy.wake_at()
            try:
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """End all processes that wait, and make no more."""
        self._stopped = True
        self._changed.set()
        for number in self._policy.drain():
            ready = self._ready.pop(number, None)
            if ready is not None:
                await self.end(ready)

    async def end(self, ready: ReadyProcess) -> None:
        """End a process, and what it has in Spark."""
        ready.process.kill()
        ready.process.close()
        if ready.output is not None:
            ready.output.unlink(missing_ok=True)
        try:
            await self._driver.release(ready.endpoint)
        except SparkError as error:
            self._endpoint.log.info("the session of a task process is left to Spark: %s", error)

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Set configuration of the session of a process that a task has taken; whether it is open."""
        return await self._driver.configure(endpoint, conf)

    async def taken_was_dead(self, ready: ReadyProcess) -> None:
        """A process, or its session, had ended when it was to run a task."""
        self._policy.taken_was_dead()
        self._endpoint.log.warning("task process %d, or its session, had ended: it runs no task", ready.process.pid)
        await self.end(ready)

    async def _prepare(self, preparation: Preparation) -> None:
        number = preparation.number
        try:
            async with asyncio.timeout(PREPARATION_TIMEOUT_S):
                ready = await self._make_ready(preparation.kind)
        except (SparkError, OSError, TimeoutError) as error:
            self._policy.failed(number, time.monotonic())
            self._endpoint.log.warning("no task process could be made ready: %s: %s", type(error).__name__, error)
            return
        if self._stopped:
            await self.end(ready)
            return
        self._ready[number] = ready
        self._policy.prepared(number, time.monotonic())
        ready.process.on_exit(lambda: self._process_ended(number))

    async def _make_ready(self, kind: JobKind) -> ReadyProcess:
        """Open the way into Spark, fork a process, wait until it has gone that way once."""
        name, output = f"ready-{uuid.uuid4().hex}", None
        if kind is JobKind.SCRIPT:
            output = private_file(self._directory / name)
        endpoint = await self._driver.open(kind, name, output=output)
        if isinstance(endpoint, ClassicEndpoint):
            spec = PreparedSpec(classic=endpoint)
        else:
            spec = PreparedSpec(connect=endpoint)
        process: TaskProcess | None = None
        try:
            assert self._zygote is not None  # or the policy asks for nothing
            process = await self._zygote.prepare(spec)
            if await process.ready():
                return ReadyProcess(process, endpoint, output)
            raise SparkError("the process ended before it was ready; see zygote.log of the TaskExecutor")
        except BaseException:
            if process is None:
                if output is not None:
                    output.unlink(missing_ok=True)
                await self._driver.release(endpoint)
            else:
                await self.end(ReadyProcess(process, endpoint, output))
            raise

    def _process_ended(self, number: int) -> None:
        """A process has ended; it is news if it was waiting."""
        ready = self._ready.pop(number, None)
        if ready is None:
            return
        self._policy.died(number, time.monotonic())
        self._endpoint.log.warning("task process %d, which was ready, has ended", ready.process.pid)
        self._endpoint.spawn(self.end(ready), "ending what a task process left")
        self._changed.set()
