"""How the process of an attempt comes to be: one that is ready already, or a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.librarycache.environment import PythonEnvironment
from runtime.spark import SparkDriver, TaskProcess
from runtime.spark.spec import SCHEDULER_POOL, ClassicEndpoint, ConnectEndpoint, StreamingSpec, TaskSpec
from runtime.taskexecutor.control_groups import ControlGroup
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.task_pool import private_file
from runtime.taskexecutor.task_spec import task_spec

log = logging.getLogger(__name__)

SparkEndpoint = ClassicEndpoint | ConnectEndpoint
Files = Mapping[ArtifactRole, list[Path]]


class TaskStarter:
    """Starts the process of one attempt.

    Args:
        descriptor: the attempt.
        directory: its own directory.
        services: see `TaskServices`.
        release: ends what a way into Spark has begun, where no process came to use it.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        directory: Path,
        services: TaskServices,
        release: Callable[[SparkEndpoint], Awaitable[None]],
    ) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._services = services
        self._release = release
        self._group: ControlGroup | None = None

    async def start(
        self, driver: SparkDriver, files: Files, environment: PythonEnvironment | None, scheduler_pool: str
    ) -> tuple[TaskProcess, SparkEndpoint]:
        """A process that runs the attempt, ready before or started now, and its way into Spark.

        Raises:
            SparkVehicleError: there can be none.
            OSError: it cannot have a control group.
        """
        descriptor = self._descriptor
        limits = self._services.limits
        if self._services.groups is not None:
            self._group = self._services.groups.create(descriptor.attempt_id)
            limits = replace(limits, group=self._group.entries)

        def spec(endpoint: SparkEndpoint) -> TaskSpec:
            conf = {SCHEDULER_POOL: scheduler_pool}
            made = task_spec(descriptor, self._directory, dict(files), environment, endpoint, limits, conf)
            return replace(
                made,
                streaming=None if driver.info.remote else self._streaming(driver),
                shipping_dir=driver.info.shipping_dir,
                env=self._services.task_env,
            )

        taken = None  # those that are ready are attached to the shared driver
        if driver is self._services.driver:
            taken = self._services.pool.take(descriptor.kind, own_environment=environment is not None)
        if taken is not None and (process := await taken.run(spec(taken.endpoint))):
            return process, taken.endpoint
        endpoint: SparkEndpoint
        if descriptor.kind is JobKind.SCRIPT:
            endpoint = await driver.open_classic(descriptor.attempt_id, private_file(self._directory / "stdout"))
        else:
            endpoint = await driver.open_session(isolated=environment is not None)
        try:
            return await self._services.zygote.fork(spec(endpoint)), endpoint
        except BaseException:
            await self._release(endpoint)
            raise

    async def end_group(self) -> str:
        """End what the attempt has left running in its group; returns why the kernel ended some of it, if it did."""
        if self._group is None or self._services.groups is None:
            return ""
        why = f"the task's processes together have reached {self._services.groups.limits}"
        try:
            by_kernel = self._group.out_of_memory()
            await asyncio.get_running_loop().run_in_executor(None, self._group.remove)
        except OSError as error:
            log.warning("the control group of %s stays: %s", self._descriptor.task_name, error)
            return ""
        return why if by_kernel else ""

    def _streaming(self, driver: SparkDriver) -> StreamingSpec:
        directory = self._services.checkpoints_dir / self._descriptor.job_id / "tasks" / self._descriptor.task_key
        return StreamingSpec(
            str(directory),
            str(Path(f"/proc/{driver.info.pid}/cwd").readlink()),
            self._descriptor.restore,
            self._services.query_failure_grace_s,
        )
