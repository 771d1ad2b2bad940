"""The start of an attempt: the job's files, its environment, and a process, ready already or new."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from blob.cache import BlobCache
from blob.key import BlobKey
from runtime.jobgraph.job_graph import Artifact, ArtifactRole
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.manager import EnvironmentLease
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.spark.driver.api import SparkDriver
from runtime.spark.spec import (
    SCHEDULER_POOL,
    ClassicEndpoint,
    ConnectEndpoint,
    ResourceLimits,
    StreamingSpec,
    TaskSpec,
    VertexInput,
    VertexSpec,
)
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.control_groups import ControlGroup
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.task_pool import private_file

logger = logging.getLogger(__name__)

SparkEndpoint = ClassicEndpoint | ConnectEndpoint
Files = Mapping[ArtifactRole, list[Path]]

_LIBRARIES = {
    ArtifactRole.PY_FILE: LibraryKind.PY_FILE,
    ArtifactRole.PACKAGE: LibraryKind.PACKAGE,
    ArtifactRole.REQUIREMENTS: LibraryKind.REQUIREMENTS,
    ArtifactRole.ARCHIVE: LibraryKind.ARCHIVE,
    ArtifactRole.JAR: LibraryKind.JAR,
}


class TaskFiles:
    """The job's files, and the environment that its code imports from. Fetching them blocks.

    Args:
        descriptor: the attempt.
        directory: its own directory.
        blobs: the job's files.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, directory: Path, blobs: BlobCache) -> None:
        self._descriptor = descriptor
        self._directory = directory
        self._blobs = blobs

    def prepare(
        self, lease: EnvironmentLease, cancelled: Callable[[], bool]
    ) -> tuple[dict[ArtifactRole, list[Path]], PythonEnvironment | None]:
        """The job's files, and what its code imports; the latter is None where it brings nothing.

        Raises:
            BlobError, OSError: a file cannot be had.
            LibraryCacheError: what the job brings cannot be installed.
        """
        libraries = {
            Library(artifact.name, _LIBRARIES[artifact.role], BlobKey.parse(artifact.blob_key).digest.hex()): artifact
            for artifact in self._descriptor.artifacts
            if artifact.role in _LIBRARIES
        }
        files = self._fetch_artifacts()
        if not libraries:
            return files, None
        spec = EnvironmentSpec(tuple(libraries))
        return files, lease.get_or_resolve(spec, lambda library: self._cached(libraries[library]), cancelled)

    def tell_user(self, text: str) -> None:
        """A line in the standard error of the attempt, which its process goes on with."""
        descriptor = os.open(self._directory / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")

    def _cached(self, artifact: Artifact) -> Path:
        return self._blobs.get_file(self._descriptor.job_id, BlobKey.parse(artifact.blob_key))

    def _fetch_artifacts(self) -> dict[ArtifactRole, list[Path]]:
        """The job's files under the names that the user knows: linked from the cache, or written down."""
        files: dict[ArtifactRole, list[Path]] = {role: [] for role in ArtifactRole}
        for artifact in self._descriptor.artifacts:
            if artifact.role in _LIBRARIES:
                continue
            target = self._directory / "files" / Path(artifact.name).name
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if not target.exists():
                if artifact.content is None:
                    os.link(self._cached(artifact), target)
                else:
                    target.touch(mode=0o600)
                    target.write_bytes(artifact.content)
            files[artifact.role].append(target)
        return files


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
            SparkError: there can be none.
            OSError: it cannot have a control group.
        """
        descriptor = self._descriptor
        limits = self._services.limits
        if self._services.groups is not None:
            self._group = self._services.groups.create(descriptor.attempt_id)
            limits = replace(limits, group=self._group.entries)

        def spec(endpoint: SparkEndpoint) -> TaskSpec:
            conf = {SCHEDULER_POOL: scheduler_pool}
            made = _task_spec(descriptor, self._directory, dict(files), environment, endpoint, limits, conf)
            return replace(
                made,
                streaming=self._streaming(driver) if driver.has_streaming else None,
                shipping_dir=driver.info.shipping_dir,
                env=self._services.task_env,
            )

        taken = None  # those that are ready are attached to the shared driver
        if driver is self._services.driver:
            taken = self._services.pool.take(descriptor.kind, own_environment=environment is not None)
        if taken is not None and (process := await taken.run(spec(taken.endpoint))):
            return process, taken.endpoint
        endpoint = await driver.open(
            descriptor.kind,
            descriptor.attempt_id,
            output=private_file(self._directory / "stdout"),
            isolated=environment is not None,
        )
        try:
            return await self._services.task_host.fork(spec(endpoint)), endpoint
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
            logger.warning("the control group of %s stays: %s", self._descriptor.task_name, error)
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


def _task_spec(
    descriptor: TaskDeploymentDescriptor,
    directory: Path,
    files: dict[ArtifactRole, list[Path]],
    environment: PythonEnvironment | None,
    endpoint: ClassicEndpoint | ConnectEndpoint,
    limits: ResourceLimits,
    conf: dict[str, str],
) -> TaskSpec:
    """Return what the process of an attempt is to run (pure).

    Args:
        descriptor: the attempt.
        directory: its own directory.
        files: the job's files, by their role.
        environment: what the job brings to import; None where it brings nothing.
        endpoint: where it reaches Spark.
        limits: what its process may take.
        conf: settings of its Spark session.
    """
    return TaskSpec(
        job_id=descriptor.job_id,
        job_name=descriptor.job_name,
        attempt_id=descriptor.attempt_id,
        task_name=descriptor.task_name,
        kind=descriptor.kind,
        file=str(files[ArtifactRole.MAIN][0]),
        work_dir=str(directory),
        vertices=_vertices(descriptor),
        attempt_number=descriptor.attempt_number,
        argv=descriptor.argv,
        parameters=descriptor.parameters,
        py_files=() if environment is None else environment.import_files,
        jars=() if environment is None else tuple(str(path) for path in environment.jars),
        classic=endpoint if isinstance(endpoint, ClassicEndpoint) else None,
        connect=endpoint if isinstance(endpoint, ConnectEndpoint) else None,
        memory_bytes=descriptor.memory_bytes,
        limits=limits,
        conf=conf,
    )


def _vertices(descriptor: TaskDeploymentDescriptor) -> tuple[VertexSpec, ...]:
    return tuple(
        VertexSpec(
            id=vertex.id,
            name=vertex.name,
            function=vertex.function or "",
            inputs=tuple(
                VertexInput(item.source, item.path, item.ship_strategy, item.keys, vertex.parallelism)
                for item in vertex.inputs
            ),
            result_path=vertex.result_path,
        )
        for vertex in descriptor.vertices
    )
