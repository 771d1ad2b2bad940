"""One attempt of a task inside a TaskExecutor: from its descriptor to its final state (Flink's `Task`).

The job's code runs in a process of its own, forked from the zygote; this object prepares it, follows it, and cleans up
after it, so that a final state is only told when nothing of the attempt runs any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blob.cache import BlobCache
from blob.errors import BlobError
from blob.key import BlobKey
from runtime.ids import JobVertexID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobKind
from runtime.jobmaster.descriptor import (
    ExecutionReport,
    TaskDeploymentDescriptor,
    TaskExecutionState,
    TaskProgress,
    VertexProgress,
)
from runtime.jobmaster.execution_state import ErrorInfo, ExecutionState, FailureKind
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.errors import LibraryCacheError
from runtime.librarycache.manager import EnvironmentLease, LibraryCacheManager
from runtime.spark import SparkDriver, SparkVehicleError, TaskProcess, Zygote
from runtime.spark.spec import (
    ClassicEndpoint,
    ConnectEndpoint,
    ShipStrategy,
    TaskKind,
    TaskSpec,
    VertexInput,
    VertexSpec,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What tasks are run with.

    Args:
        driver: the Spark driver.
        zygote: forks task processes.
        blobs: the job's files.
        libraries: the jobs' Python environments.
        cancellation_timeout_s: seconds that a cancelled process may take before it is killed.
    """

    driver: SparkDriver
    zygote: Zygote
    blobs: BlobCache
    libraries: LibraryCacheManager
    cancellation_timeout_s: float


_LIBRARIES = {
    ArtifactRole.PY_FILE: LibraryKind.PY_FILE,
    ArtifactRole.PACKAGE: LibraryKind.PACKAGE,
    ArtifactRole.REQUIREMENTS: LibraryKind.REQUIREMENTS,
    ArtifactRole.ARCHIVE: LibraryKind.ARCHIVE,
    ArtifactRole.JAR: LibraryKind.JAR,
}


class Task:
    """Runs one attempt.

    Args:
        descriptor: what to run.
        directory: the attempt's own directory.
        services: see `TaskServices`.
        on_state: told each state that the attempt enters, the last one when nothing of it runs any more.
        on_progress: told Spark's counts.
        keep_logs: puts the logs of the attempt, which has ended, where they outlive this TaskExecutor.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        directory: Path,
        services: TaskServices,
        on_state: Callable[[TaskExecutionState], None],
        on_progress: Callable[[TaskProgress], None],
        keep_logs: Callable[[], Awaitable[tuple[KeptLog, ...]]],
    ) -> None:
        self.descriptor = descriptor
        self._directory = directory
        self._services = services
        self._on_state = on_state
        self._on_progress = on_progress
        self._keep_logs = keep_logs
        self._process: TaskProcess | None = None
        self._cancelled = asyncio.Event()
        self._failure: ErrorInfo | None = None
        self._finished = False
        self.state = TaskExecutionState(descriptor.attempt_id, ExecutionState.DEPLOYING)
        self.since_ms = time.time_ns() // 1_000_000

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants it to end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End it: in good order first, by force after ``task.cancellation.timeout``."""
        self._cancelled.set()

    async def run(self) -> None:
        """Run the attempt to its end. Never raises: what goes wrong is the attempt's failure."""
        self._enter(TaskExecutionState(self.descriptor.attempt_id, ExecutionState.INITIALIZING))
        status: int | None = None
        try:
            status = await self._run()
        except LibraryCacheError as error:
            # Its files are the job's own: another attempt would find the same.
            self._fail(FailureKind.USER_CODE, type(error).__name__, str(error))
        except (BlobError, SparkVehicleError, OSError) as error:
            kind = FailureKind.RUNTIME if self._services.driver.alive else FailureKind.SPARK_LOST
            self._fail(kind, type(error).__name__, str(error))
        except Exception as error:  # a defect of ours must end this attempt only, and be seen
            log.exception("%s: the attempt could not be run", self.descriptor.task_name)
            self._fail(FailureKind.RUNTIME, type(error).__name__, str(error))
        await self._blame_a_lost_driver()
        state = self._final_state(status)
        # Before the end is told: from then on nobody asks this TaskExecutor for them.
        self._enter(replace(state, logs=await self._keep_logs()))

    async def _blame_a_lost_driver(self) -> None:
        """The job's code sees its driver's sockets close before anybody else sees it end: that is no fault of its."""
        failure, driver = self._failure, self._services.driver
        if failure is None or failure.kind is not FailureKind.USER_CODE:
            return
        try:
            await driver.ping()
        except SparkVehicleError as error:
            log.info("%s failed with its Spark driver: %s", self.descriptor.task_name, error)
            message = f"the Spark driver (process {driver.info.pid}) has ended: {failure.type}: {failure.message}"
            self._failure = replace(
                failure, kind=FailureKind.SPARK_LOST, type="SparkDriverLostException", message=message
            )

    def _enter(self, state: TaskExecutionState) -> None:
        self.state, self.since_ms = state, time.time_ns() // 1_000_000
        self._on_state(state)

    def report(self) -> ExecutionReport:
        """What is to be told of it to a JobMaster that did not deploy it."""
        return ExecutionReport(self.state, self.since_ms, self.descriptor.task_key, self.descriptor.allocation_id)

    async def _run(self) -> int | None:
        if self.cancelled:
            return None
        lease = self._services.libraries.register_lease(self.descriptor.job_id)
        try:
            files, environment = await asyncio.get_running_loop().run_in_executor(None, self._prepare, lease)
            return await self._run_process(files, environment)
        finally:
            lease.release()

    async def _run_process(self, files: dict[ArtifactRole, list[Path]], environment: PythonEnvironment | None) -> int:
        descriptor, driver = self.descriptor, self._services.driver
        endpoint: ClassicEndpoint | ConnectEndpoint
        if descriptor.kind is JobKind.SCRIPT:
            endpoint = await driver.open_classic(descriptor.attempt_id)
        else:
            endpoint = await driver.open_session(isolated=environment is not None)
        try:
            self._process = process = await self._services.zygote.fork(self._spec(files, environment, endpoint))
            try:
                status = await self._follow(process)
            finally:
                process.close()
        finally:
            await self._release(endpoint)
        return status

    async def _release(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> None:
        """End what the process may have left running in Spark."""
        driver = self._services.driver
        if not driver.alive:
            return
        if isinstance(endpoint, ClassicEndpoint):
            await driver.close_classic(endpoint)
        else:
            await driver.release_session(endpoint)

    async def _follow(self, process: TaskProcess) -> int:
        canceller = asyncio.create_task(self._cancel_when_asked(process))
        watcher = asyncio.create_task(self._end_with_driver(process))
        try:
            async for message in process.messages():
                self._received(message)
            return await process.wait()
        finally:
            for task in (canceller, watcher):
                task.cancel()
            await asyncio.gather(canceller, watcher, return_exceptions=True)

    async def _cancel_when_asked(self, process: TaskProcess) -> None:
        await self._cancelled.wait()
        await process.cancel()
        await asyncio.sleep(self._services.cancellation_timeout_s)
        log.warning(
            "%s did not end within task.cancellation.timeout (%g s): killed",
            self.descriptor.task_name,
            self._services.cancellation_timeout_s,
        )
        process.kill()

    async def _end_with_driver(self, process: TaskProcess) -> None:
        driver = self._services.driver
        await driver.wait_dead()
        message = f"the Spark driver (process {driver.info.pid}) has ended; its log is {driver.info.log_file}"
        self._fail(FailureKind.SPARK_LOST, "SparkDriverLostException", message)
        process.kill()

    def _received(self, message: dict[str, Any]) -> None:
        attempt_id = self.descriptor.attempt_id
        match message.get("type"):
            case "running":
                self._enter(TaskExecutionState(attempt_id, ExecutionState.RUNNING))
            case "progress":
                self._on_progress(TaskProgress(attempt_id, _progress(message["vertices"])))
            case "finished":
                self._finished = True
            case "failed":
                error = message["error"]
                self._fail(FailureKind.USER_CODE, error["type"], error["message"], error["traceback"])

    def _fail(self, kind: FailureKind, name: str, message: str, traceback: str = "") -> None:
        if self._failure is None:
            now_ms = time.time_ns() // 1_000_000
            self._failure = ErrorInfo(kind, name, message, traceback, self.descriptor.task_name, now_ms)

    def _final_state(self, status: int | None) -> TaskExecutionState:
        attempt_id = self.descriptor.attempt_id
        if self.cancelled:
            return TaskExecutionState(attempt_id, ExecutionState.CANCELED, exit_status=status)
        if self._failure is None and not self._finished:
            self._fail(FailureKind.TASK_PROCESS_LOST, "TaskProcessLostException", _describe_exit(status))
        if self._failure is not None:
            return TaskExecutionState(attempt_id, ExecutionState.FAILED, self._failure, status)
        return TaskExecutionState(attempt_id, ExecutionState.FINISHED, exit_status=status)

    # --------------------------------------------------------------- preparation

    def _prepare(self, lease: EnvironmentLease) -> tuple[dict[ArtifactRole, list[Path]], PythonEnvironment | None]:
        """The job's files, and what its code imports; the latter is None where it brings nothing."""
        libraries = {
            Library(artifact.name, _LIBRARIES[artifact.role], BlobKey.parse(artifact.blob_key).digest.hex()): artifact
            for artifact in self.descriptor.artifacts
            if artifact.role in _LIBRARIES
        }
        files = self._fetch_artifacts()
        if not libraries:
            return files, None
        spec = EnvironmentSpec(tuple(libraries))
        return files, lease.get_or_resolve(
            spec, lambda library: self._cached(libraries[library]), lambda: self.cancelled
        )

    def _cached(self, artifact: Artifact) -> Path:
        return self._services.blobs.get_file(self.descriptor.job_id, BlobKey.parse(artifact.blob_key))

    def _fetch_artifacts(self) -> dict[ArtifactRole, list[Path]]:
        """The job's files under the names that the user knows, linked from the cache into the attempt's directory."""
        files: dict[ArtifactRole, list[Path]] = {role: [] for role in ArtifactRole}
        for artifact in self.descriptor.artifacts:
            if artifact.role in _LIBRARIES:
                continue
            cached = self._cached(artifact)
            target = self._directory / "files" / Path(artifact.name).name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if not target.exists():
                os.link(cached, target)
            files[artifact.role].append(target)
        return files

    def _spec(
        self,
        files: dict[ArtifactRole, list[Path]],
        environment: PythonEnvironment | None,
        endpoint: ClassicEndpoint | ConnectEndpoint,
    ) -> TaskSpec:
        descriptor = self.descriptor
        return TaskSpec(
            job_id=descriptor.job_id,
            job_name=descriptor.job_name,
            attempt_id=descriptor.attempt_id,
            task_name=descriptor.task_name,
            kind=TaskKind.SCRIPT if descriptor.kind is JobKind.SCRIPT else TaskKind.PIPELINE,
            file=str(files[ArtifactRole.MAIN][0]),
            work_dir=str(self._directory),
            vertices=_vertices(descriptor),
            attempt_number=descriptor.attempt_number,
            argv=descriptor.argv,
            parameters=descriptor.parameters,
            py_files=() if environment is None else environment.import_files,
            jars=() if environment is None else tuple(str(path) for path in environment.jars),
            classic=endpoint if isinstance(endpoint, ClassicEndpoint) else None,
            connect=endpoint if isinstance(endpoint, ConnectEndpoint) else None,
        )


def _vertices(descriptor: TaskDeploymentDescriptor) -> tuple[VertexSpec, ...]:
    return tuple(
        VertexSpec(
            id=vertex.id,
            name=vertex.name,
            function=vertex.function or "",
            inputs=tuple(
                VertexInput(
                    item.source, item.path, ShipStrategy(item.ship_strategy.value), item.keys, vertex.parallelism
                )
                for item in vertex.inputs
            ),
            result_path=vertex.result_path,
        )
        for vertex in descriptor.vertices
    )


def _progress(vertices: dict[str, dict[str, int]]) -> tuple[VertexProgress, ...]:
    return tuple(
        VertexProgress(
            JobVertexID(vertex_id),
            stages=counts.get("stages", 0),
            stages_completed=counts.get("stages_completed", 0),
            tasks_total=counts.get("tasks_total", 0),
            tasks_completed=counts.get("tasks_completed", 0),
            tasks_active=counts.get("tasks_active", 0),
        )
        for vertex_id, counts in vertices.items()
    )


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "the task process was not started"
    if status < 0:
        return f"the task process was killed by {signal.Signals(-status).name}"
    return f"the task process ended with status {status} before its code had finished"
