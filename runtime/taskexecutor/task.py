"""One attempt of a task inside a TaskExecutor: from its descriptor to its final state (Flink's `Task`).

The job's code runs in a process of its own, forked from the zygote. `Task` prepares this process, follows it, and
cleans up after it. It reports a final state only when nothing of the attempt runs any more. There is one exception: if
an attempt has FINISHED without streaming queries, its process has ended, but its session is closed after the report.

`Task` is composed of its start (`TaskFiles`, `TaskStarter`), its end (`TaskOutcome`, pure), and its part in
checkpoints (`runtime.taskexecutor.task_checkpoints`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blob.cache import BlobCache
from blob.errors import BlobError
from blob.key import BlobKey
from conf.errors import ConfigurationError
from conf.options import CheckpointingOptions, ClusterOptions, JobOptions, SparkDriverChoice, StreamingOptions
from runtime.checkpoint.names import TASKS
from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobKind
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.librarycache.environment import EnvironmentSpec, Library, LibraryKind, PythonEnvironment
from runtime.librarycache.errors import LibraryCacheError
from runtime.librarycache.manager import EnvironmentLease
from runtime.protocol.descriptor import (
    EndedSparkJob,
    ExecutionReport,
    ResultPartitionInfo,
    SparkWork,
    StageProgress,
    TaskDeploymentDescriptor,
    TaskExecutionState,
    TaskProgress,
    VertexProgress,
)
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind
from runtime.protocol.session import SessionAddress, own_network
from runtime.protocol.streaming_query import StreamingQuery
from runtime.spark.driver.api import QueryFailure, SparkDriver, StoppedQueries
from runtime.spark.driver.gateway import operation_tag
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import (
    DriverCallError,
    DriverLostError,
    PackagesError,
    SparkError,
    StillRunningError,
    UnsupportedByEndpointError,
    ZygoteError,
)
from runtime.spark.messages import (
    Canceled,
    ErrorDescription,
    Failed,
    Finished,
    FromTask,
    LeaseRequest,
    Note,
    Progress,
    QueryFailed,
    QueryRestores,
    QueryStarts,
    Running,
    StandsBy,
)
from runtime.spark.spec import (
    CONNECT_USER,
    ENVIRONMENT_FILE,
    NEVER_HOLD,
    SCHEDULER_POOL,
    ClassicEndpoint,
    ConnectEndpoint,
    JobPlace,
    ResourceLimits,
    StreamingSpec,
    TaskSpec,
    has_own_workers,
    ignored_setting,
)
from runtime.spark.task.progress import MOST_JOBS
from runtime.spark.task.result_partition import discard_unfinished
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.control_groups import ControlGroup
from runtime.taskexecutor.driver_choice import (
    START_SETTINGS,
    missing_settings,
    own_driver_reason,
    session_settings,
    settings_in,
)
from runtime.taskexecutor.driver_health import DriverWatch, is_python_late, is_storage_away, kind_of, may_be_sparks
from runtime.taskexecutor.hand_over import HeldTask, TaskFacts
from runtime.taskexecutor.location_leases import LocationLeases, lease_holder
from runtime.taskexecutor.logs import AttemptLogKeeper
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.spark_options import job_settings, resolves_paths, task_environment, task_limits
from runtime.taskexecutor.streaming import ProgressWatchdog, SeenQueries, watch_queries
from runtime.taskexecutor.task_checkpoints import (
    CheckpointResponder,
    DrainFailedError,
    NotStoppedError,
    StopOutcome,
    StopReport,
    TaskCheckpoints,
)
from runtime.taskexecutor.task_pool import private_file

logger = logging.getLogger(__name__)

ANSWER_OF_PROCESS_S = 10.0
"""Longest time in seconds that a task process may take for an answer about its queries."""

ANSWER_S = 60.0
"""Longest time in seconds that a Spark driver may be silent, beyond what it is given to end a task."""

_COPY = "working"
"""Name of an attempt's copy of the directory that its job ships."""
TABLES_S = 5.0
"""Longest time in seconds that only the driver knows a table that a running task has made."""

_QUERY_LOST = "StreamingQueryLostException"

SparkEndpoint = ClassicEndpoint | ConnectEndpoint
Files = Mapping[ArtifactRole, list[Path]]

_LIBRARIES = {
    ArtifactRole.PY_FILE: LibraryKind.PY_FILE,
    ArtifactRole.PACKAGE: LibraryKind.PACKAGE,
    ArtifactRole.REQUIREMENTS: LibraryKind.REQUIREMENTS,
    ArtifactRole.ARCHIVE: LibraryKind.ARCHIVE,
    ArtifactRole.JAR: LibraryKind.JAR,
    ArtifactRole.WORKING_DIRECTORY: LibraryKind.WORKING_DIRECTORY,
}

_IN_PLACE = {ArtifactRole.WORKING_DIRECTORY}
"""Roles of artifacts that a job does not need where it runs in its caller's directory."""


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
        """Return the job's files, and the environment that its code imports from; None if the job brings no library.

        Raises:
            BlobError, OSError: a file cannot be fetched.
            LibraryCacheError: a library of the job cannot be installed.
        """
        libraries = {
            Library(artifact.name, _LIBRARIES[artifact.role], BlobKey.parse(artifact.blob_key).digest.hex()): artifact
            for artifact in self._descriptor.job.artifacts
            if artifact.role in _LIBRARIES and not (artifact.role in _IN_PLACE and self._sees_caller())
        }
        files = self._fetch_artifacts()
        if not libraries:
            return files, None
        spec = EnvironmentSpec(tuple(libraries))
        return files, lease.get_or_resolve(spec, lambda library: self._cached(libraries[library]), cancelled)

    def _sees_caller(self) -> bool:
        wanted = self._descriptor.job.working_directory
        return wanted is not None and wanted.caller is not None and wanted.caller.is_here()

    def place(self, files: Files, environment: PythonEnvironment | None, *, resolves_paths: bool) -> JobPlace | None:
        """Return where the job's code runs; None: in the attempt's own directory. Blocks.

        Args:
            files: as `prepare` has returned them.
            environment: likewise.
            resolves_paths: see `JobPlace`.

        Raises:
            OSError: the directory that the job ships cannot be copied.
        """
        wanted, main = self._descriptor.job.working_directory, files[ArtifactRole.MAIN][0]
        if wanted is None:
            return None
        if wanted.caller is not None and self._sees_caller():
            return _place_of_caller(wanted, wanted.caller.path, main, resolves_paths)
        if environment is not None and environment.working_directory is not None:
            copy = self._directory / _COPY
            shutil.copytree(environment.working_directory, copy, symlinks=True)
            return _place_of_copy(wanted, copy, main, resolves_paths)
        if wanted.caller is not None:
            self.tell_user(
                f"the directory in which the job was submitted, {wanted.caller.path}, cannot be used here: the job "
                f"runs in a private directory, {self._directory}; --working-dir DIR brings its files along"
            )
        return None

    def tell_user(self, text: str) -> None:
        """Append a line to the attempt's standard error, which its process shares; log it if that is not possible."""
        try:
            descriptor = os.open(self._directory / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text + "\n")
        except OSError as error:
            logger.warning("the user was not told (%s): %s", error, text)

    def _cached(self, artifact: Artifact) -> Path:
        return self._blobs.get_file(self._descriptor.job.job_id, BlobKey.parse(artifact.blob_key))

    def _fetch_artifacts(self) -> dict[ArtifactRole, list[Path]]:
        """Return the job's files under the names that the user knows: linked from the cache, or written."""
        files: dict[ArtifactRole, list[Path]] = {role: [] for role in ArtifactRole}
        for artifact in self._descriptor.job.artifacts:
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


def _place_of_caller(wanted: WorkingDirectory, directory: str, main: Path, resolves_paths: bool) -> JobPlace:
    """Return the place of a job in its caller's directory. Its file is there too, or else *main*."""
    if wanted.script is None or not wanted.script.is_here():
        return JobPlace(directory, str(main), str(main), (str(main.parent),), (), resolves_paths)
    beside = (wanted.script.path,)
    file = str(Path(directory, wanted.file))  # not normalized, as in Python: `..` after a link is not its own parent
    return JobPlace(directory, file, wanted.file, beside, beside if wanted.imports_beside else (), resolves_paths)


def _place_of_copy(wanted: WorkingDirectory, copy: Path, main: Path, resolves_paths: bool) -> JobPlace:
    """Return the place of a job in a copy of the directory that it ships. Its file is there too, or else *main*."""
    file = copy / wanted.shipped_file if wanted.shipped_file else main
    import_path = tuple(dict.fromkeys((str(file.parent), str(copy))))
    argv0 = wanted.shipped_file or str(main)
    return JobPlace(str(copy), str(file), argv0, import_path, import_path, resolves_paths)


class TaskStarter:
    """Starts the process of one attempt, or takes one that is ready.

    Args:
        descriptor: the attempt.
        directory: its own directory.
        services: see `TaskServices`.
        release: ends what was opened in Spark, if no process came to use it.
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
        self,
        driver: SparkDriver,
        files: Files,
        environment: PythonEnvironment | None,
        scheduler_pool: str,
        place: JobPlace | None,
        settings: Mapping[str, str],
    ) -> tuple[TaskProcess, SparkEndpoint]:
        """Return a process that runs the attempt, taken from the pool or started now, and its way into Spark.

        Args:
            driver: the driver that it runs on.
            files: the job's.
            environment: what its code imports; None if the job brings no library.
            scheduler_pool: the job's pool.
            place: where the job's code runs; None: in the attempt's own directory.
            settings: the job's own that can be set now.

        Raises:
            SparkError: the process cannot be started.
            OSError: it cannot have a control group.
        """
        await driver.load_tables()
        descriptor = self._descriptor
        configuration = self._services.configuration
        limits = task_limits(configuration)
        if self._services.groups is not None:
            self._group = self._services.groups.create(descriptor.attempt.attempt_id)
            limits = replace(limits, group=self._group.entries)

        def spec(endpoint: SparkEndpoint) -> TaskSpec:
            return TaskSpec(
                replace(descriptor, job=replace(descriptor.job, artifacts=())),
                str(files[ArtifactRole.MAIN][0]),
                str(self._directory),
                py_files=() if environment is None else environment.import_files,
                jars=() if environment is None else tuple(str(path) for path in environment.jars),
                classic=endpoint if isinstance(endpoint, ClassicEndpoint) else None,
                connect=endpoint if isinstance(endpoint, ConnectEndpoint) else None,
                env=task_environment(configuration),
                conf=session_settings(descriptor.job.kind, settings) | {SCHEDULER_POOL: scheduler_pool},
                limits=limits,
                streaming=self._streaming(driver) if driver.has_streaming else None,
                shipping_dir=driver.info.shipping_dir,
                place=place,
            )

        # A script requests workers of its own later; a session has to be made with them.
        session_id = descriptor.job.session_id
        is_isolated = environment is not None or (
            descriptor.job.kind is JobKind.PIPELINE and has_own_workers(descriptor.job, place)
        )
        taken = None  # processes that are ready are attached to the shared driver, each to a session of its own
        if driver is self._services.driver and not session_id:
            taken = self._services.pool.take(descriptor.job.kind, own_environment=is_isolated)
        if taken is not None and (process := await taken.run(spec(taken.endpoint))):
            return process, taken.endpoint
        endpoint: SparkEndpoint
        if session_id:
            endpoint = await driver.open_for_client(session_id, descriptor.job.owner or CONNECT_USER)
        else:
            endpoint = await driver.open(
                descriptor.job.kind,
                descriptor.attempt.attempt_id,
                output=private_file(self._directory / "stdout"),
                isolated=is_isolated,
            )
        try:
            return await self._services.task_host.fork(spec(endpoint)), endpoint
        except BaseException:
            await self._release(endpoint)
            raise

    def adopt_group(self) -> None:
        """Take the control group in which an adopted process runs. Raises OSError."""
        if self._services.groups is not None:
            self._group = self._services.groups.create(self._descriptor.attempt.attempt_id)

    async def end_group(self) -> str:
        """End what the attempt has left in its control group; return why the kernel ended part of it, if it did."""
        if self._group is None or self._services.groups is None:
            return ""
        why = f"the task's processes together have reached {self._services.groups.limits}"
        try:
            by_kernel = self._group.out_of_memory()
            await asyncio.get_running_loop().run_in_executor(None, self._group.remove)
        except OSError as error:
            logger.warning("the control group of %s stays: %s", self._descriptor.attempt.task_name, error)
            return ""
        return why if by_kernel else ""

    def _streaming(self, driver: SparkDriver) -> StreamingSpec:
        get = self._services.configuration.overlaid(self._descriptor.job.streaming_conf, "the job").get
        job_directory = get(CheckpointingOptions.CHECKPOINTS_DIR) / self._descriptor.job.job_id
        return StreamingSpec(
            str(job_directory / TASKS / self._descriptor.attempt.task_key),
            str(Path(f"/proc/{driver.info.pid}/cwd").readlink()),
            get(StreamingOptions.FAILURE_GRACE),
            get(StreamingOptions.QUERY_RESTARTS),
            get(StreamingOptions.QUERY_RESTART_DELAY),
        )


class TaskOutcome:
    """Collects what is known of one attempt, and decides how it has ended; the first failure counts. Pure.

    Args:
        descriptor: the attempt.
        limits: limits of its process, which may have ended it.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, limits: ResourceLimits) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._partitions: tuple[ResultPartitionInfo, ...] = ()
        self.failure: ErrorInfo | None = None
        self.finished = False
        """True once its code has run to its end."""
        self.was_refused = False
        """True once its code has ended because of a cancel, or because none of its queries may start any more."""
        self.explanation = ""
        """Likely cause of its failure, if more is known than the failure itself shows."""

    def finish(self, partitions: Iterable[ResultPartitionInfo]) -> None:
        """Note that its code has run to its end; *partitions* are its results."""
        self.finished = True
        self._partitions = tuple(partitions)

    def fail(
        self,
        kind: FailureKind,
        name: str,
        message: str,
        traceback: str = "",
        lost_result: str | None = None,
        exit_status: int | None = None,
        *,
        now_ms: int,
    ) -> None:
        """Note a failure, and that it was seen at *now_ms*, in milliseconds since the epoch."""
        if self.failure is None:
            lost = None if lost_result is None else JobVertexID(lost_result)
            task = self._descriptor.attempt.task_name
            self.failure = ErrorInfo(kind, name, message, traceback, task, now_ms, lost, exit_status)

    def blame(self, kind: FailureKind, name: str, message: str) -> None:
        """Replace the cause of the noted failure by the real one."""
        assert self.failure is not None
        self.failure = replace(self.failure, kind=kind, type=name, message=message)

    def final_state(self, status: int | None, stop: StopOutcome, cancelled: bool, *, now_ms: int) -> TaskExecutionState:
        """Return the attempt's last state.

        Args:
            status: exit status of its process; None: there was no process.
            stop: outcome of a stop-with-savepoint.
            cancelled: whether it was cancelled.
            now_ms: time of a failure that shows only now, in milliseconds since the epoch.
        """
        attempt_id = self._descriptor.attempt.attempt_id
        if stop is StopOutcome.COMPLETED or (stop is StopOutcome.COMPLETED_BY_OTHERS and self.was_refused):
            # The job is over, and its state kept; errors of its code that the end of its queries causes do not count.
            return TaskExecutionState(
                attempt_id, ExecutionState.FINISHED, exit_status=status, partitions=self._partitions
            )
        if cancelled:
            return TaskExecutionState(attempt_id, ExecutionState.CANCELED, exit_status=status)
        if stop is StopOutcome.FAILED:
            # Its queries were stopped, but their state was not kept: the job has to continue.
            self.failure = None
            message = "the job was to be stopped with a savepoint, which failed after its queries had been stopped"
            self.fail(FailureKind.RUNTIME, "StopWithSavepointStoppingException", message, now_ms=now_ms)
        if self.failure is None and not self.finished and not self._ended_itself_well(status):
            text = describe_exit(status, self._limits)
            own = status if self._is_script and status is not None and status > 0 else None
            kind = FailureKind.TASK_PROCESS_LOST
            self.fail(kind, "TaskProcessLostException", text, exit_status=own, now_ms=now_ms)
        if self.failure is not None:
            if self.explanation:
                self.failure = replace(self.failure, message=f"{self.failure.message} ({self.explanation})")
            return TaskExecutionState(attempt_id, ExecutionState.FAILED, self.failure, status)
        return TaskExecutionState(attempt_id, ExecutionState.FINISHED, exit_status=status, partitions=self._partitions)

    def _ended_itself_well(self, status: int | None) -> bool:
        """Return whether a script has left by `os._exit(0)`: only its exit status says how a program has ended."""
        return status == 0 and self._is_script

    @property
    def _is_script(self) -> bool:
        return self._descriptor.job.kind is JobKind.SCRIPT


def describe_exit(status: int | None, limits: ResourceLimits) -> str:
    """Return how a task process ended that did not report its end."""
    if status is None:
        return "the task process was not started"
    if status < 0:
        perhaps = f"; it may have reached {limits}" if str(limits) else ""
        return f"the task process was killed by {signal.Signals(-status).name}{perhaps}"
    return f"the task process ended with status {status} before its code had finished"


def lost_query(name: str) -> str:
    """Return the message for a query that has ended, though neither the job's code nor the cluster has stopped it."""
    return (
        f"streaming query {name} has ended, but neither the job's code nor the cluster has stopped it. A restart of "
        "the task resumes it from its last batch"
    )


def stop_notes(stopped: StoppedQueries) -> list[str]:
    """Return notes on a job's stopped queries, for the user who has stopped them."""
    return [
        *(f"query {name} did not process all data of its sources in time" for name in stopped.undrained),
        *(
            f"query {name} was stopped by force in the middle of a batch, which is done again from there"
            for name in stopped.forced
        ),
    ]


class Task:
    """Runs one attempt.

    Args:
        descriptor: what to run.
        directory: the attempt's own directory.
        services: see `TaskServices`.
        on_state: called with each state that the attempt enters; the last one when nothing of it runs any more.
        on_progress: called with Spark's counts.
        logs: uploads the logs of the attempt, which then outlive this TaskExecutor.
        responder: reports to the JobMaster on checkpoints.
        epoch: of the JobMaster that has deployed it.
        adopted: what a predecessor has left of it, with its process, which runs already; None: it is started.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        directory: Path,
        services: TaskServices,
        on_state: Callable[[TaskExecutionState], None],
        on_progress: Callable[[TaskProgress], None],
        logs: AttemptLogKeeper,
        responder: CheckpointResponder,
        epoch: int,
        adopted: tuple[HeldTask, TaskProcess] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self._job, self._attempt = descriptor.job, descriptor.attempt
        self._directory = directory
        self._services = services
        self._on_state = on_state
        self._on_progress = on_progress
        self._logs = logs
        self._epoch = epoch
        self._process: TaskProcess | None = None
        self._cancelled = asyncio.Event()
        self._given_up = asyncio.Event()
        self._heard_all = asyncio.Event()
        self._note = ""
        self._leasing: set[asyncio.Task[None]] = set()
        self._is_batch = False
        self._get = services.configuration.get
        self._patience_s = self._get(JobOptions.CANCELLATION_TIMEOUT)
        self._outcome = TaskOutcome(descriptor, task_limits(services.configuration))
        self._left: ConnectEndpoint | None = None
        self._driver = services.driver
        self._progress: tuple[VertexProgress, ...] = ()
        self._queries: tuple[StreamingQuery, ...] = ()
        self._stands_by = False
        self._seen_queries = SeenQueries()
        self._scheduler_pool = ""
        self._place: JobPlace | None = None
        self._endpoint: ClassicEndpoint | ConnectEndpoint | None = None
        self._files = TaskFiles(descriptor, directory, services.blobs)
        self._starter = TaskStarter(descriptor, directory, services, self._release)
        self.checkpoints = TaskCheckpoints(
            descriptor.attempt,
            responder,
            self._stop_queries,
            lambda: {query.id: query.name for query in self._queries if query.batch is not None},
            self._hold_starts,
            self._end_hold,
        )
        self.state = TaskExecutionState(descriptor.attempt.attempt_id, ExecutionState.DEPLOYING)
        self.since_ms = _now_ms()
        self._adopted = adopted
        if adopted is not None:
            self._take_over(*adopted)

    def _take_over(self, held: HeldTask, process: TaskProcess) -> None:
        self.state, self.since_ms = held.state, held.since_ms
        self._process, self._endpoint, self._place = process, held.endpoint, held.place
        process.can_hold = held.can_hold
        self._note, self._progress, self._queries = held.note, held.progress, held.queries
        self._stands_by, self._scheduler_pool = held.stands_by, held.scheduler_pool
        self._seen_queries.add(held.seen_queries)
        self.checkpoints.take_over(held.checkpoints)

    @property
    def facts(self) -> TaskFacts:
        """The facts that decide whether it can be handed over."""
        process = self._process
        has_ended = process is not None and process.has_ended
        gone = self._outcome.finished or self._outcome.failure is not None or self._given_up.is_set()
        return TaskFacts(
            self._job.job_id,
            self.state.state,
            has_own_driver=self._driver is not self._services.driver,
            is_ending=self._is_ending or gone or has_ended,
            is_talking=bool(self._leasing) or (process is not None and process.has_questions),
            takes_checkpoint=not self.checkpoints.is_quiet,
        )

    def held(self) -> HeldTask:
        """Return what a successor has to know of it, while nothing of `facts` prevents a hand-over."""
        process, endpoint = self._process, self._endpoint
        assert process is not None  # it is RUNNING
        return HeldTask(
            self.descriptor,
            self.state,
            self.since_ms,
            process.pid,
            process.unread,
            self._scheduler_pool,
            self._epoch,
            classic=endpoint if isinstance(endpoint, ClassicEndpoint) else None,
            connect=endpoint if isinstance(endpoint, ConnectEndpoint) else None,
            place=self._place,
            note=self._note,
            progress=self._progress,
            queries=self._queries,
            seen_queries=self._seen_queries.all,
            stands_by=self._stands_by,
            logs=self._logs.starts,
            checkpoints=self.checkpoints.held(),
            can_hold=process.can_hold,
        )

    @property
    def process(self) -> TaskProcess | None:
        """Its process; None before there is one."""
        return self._process

    @property
    def progress(self) -> TaskProgress:
        """Progress of its Spark stages and of its streaming queries."""
        return TaskProgress(self._attempt.attempt_id, self._progress, self._queries, self._stands_by)

    @property
    def cancelled(self) -> bool:
        """Return whether the attempt was cancelled."""
        return self._cancelled.is_set()

    @property
    def session(self) -> SessionAddress | None:
        """Address of the session that it keeps for a client; None while that is not open, and for other tasks."""
        endpoint, is_running = self._endpoint, self.state.state is ExecutionState.RUNNING
        if not self._job.session_id or not isinstance(endpoint, ConnectEndpoint) or not is_running or self.cancelled:
            return None
        return SessionAddress(endpoint.port, endpoint.token, endpoint.session_id, endpoint.user_id, own_network())

    async def end_session(self) -> None:
        """End it as FINISHED, if it keeps a session open for a client."""
        if self._process is not None and self._job.session_id:
            await self._process.end_session()

    def cancel(self) -> None:
        """End it: in good order first, by force after ``task.cancellation.timeout``."""
        self._cancelled.set()

    async def run(self) -> None:
        """Run the attempt to its end. Never raises: each error becomes the attempt's failure."""
        if self._adopted is None:
            self._enter(TaskExecutionState(self._attempt.attempt_id, ExecutionState.INITIALIZING))
        status: int | None = None
        try:
            status = await self._run()
        except (LibraryCacheError, PackagesError, UnsupportedByEndpointError) as error:
            # The cause is the job itself: another attempt would fail likewise.
            self._fail(FailureKind.USER_CODE, type(error).__name__, str(error))
        except (BlobError, SparkError, OSError) as error:
            kind = await kind_of(error, self._driver, self._watch)
            message = f"{self._driver.loss}: {error}" if kind is FailureKind.SPARK_LOST else str(error)
            self._fail(kind, type(error).__name__, message)
        except Exception as error:  # a defect of ours must end this attempt only, and be logged
            logger.exception("%s: the attempt could not be run", self._attempt.task_name)
            self._fail(FailureKind.RUNTIME, type(error).__name__, str(error))
        self._outcome.explanation = await self._starter.end_group() or self._note
        state = self._outcome.final_state(status, await self.checkpoints.end(), self.cancelled, now_ms=_now_ms())
        if state.state is not ExecutionState.FINISHED:
            await self._discard_unfinished()
        if self._seen_queries.all:  # none of them is active any more, but their figures are kept
            self._queries = self._seen_queries.all
            self._tell_progress()
        # Before the end is reported: afterwards no client requests them from this TaskExecutor.
        self._enter(replace(state, logs=await self._logs.keep(state.state is ExecutionState.FINISHED)))
        if self._left is not None:
            await self._close_behind(self._left)

    async def _blame_others(self) -> None:
        """Blame Spark or storage for a failure of the job's code that is not its own, so that a restart may help.

        Its code notices the end of a lost driver first. Spark gives up a Python process that starts slowly. The file
        system with the state of a query may not answer.
        """
        failure, driver = self._outcome.failure, self._driver
        if failure is None or failure.kind is not FailureKind.USER_CODE:
            return
        try:
            if may_be_sparks(failure) and await self._examine():
                raise DriverLostError(driver.loss)
            await driver.ping()
        except SparkError as error:
            logger.info("%s failed with its Spark driver: %s", self._attempt.task_name, error)
            message = f"{driver.loss}: {failure.type}: {failure.message}"
            self._outcome.blame(FailureKind.SPARK_LOST, "SparkDriverLostException", message)
            return
        if is_python_late(failure):
            why = "Spark gave up a Python process that had not started within 10 s (is the machine overloaded?)"
            logger.warning("%s: %s", self._attempt.task_name, why)
            self._outcome.blame(FailureKind.TASK_PROCESS_LOST, failure.type, f"{why}: {failure.message}")
        elif is_storage_away(failure):
            self._outcome.blame(FailureKind.RUNTIME, failure.type, failure.message)

    @property
    def _watch(self) -> DriverWatch | None:
        """Watch of its driver, if tasks share that; else None."""
        return self._services.watch if self._driver is self._services.driver else None

    async def _examine(self) -> str:
        return "" if self._watch is None else await self._watch.examine()

    async def _discard_unfinished(self) -> None:
        """Remove its unfinished results. No task reads them, so a failure to remove them is only logged."""
        paths = list(self._attempt.blocking_outputs.values())
        try:
            await asyncio.get_running_loop().run_in_executor(None, discard_unfinished, paths)
        except OSError as error:
            logger.warning("%s: what it was writing is left until the job ends: %s", self._attempt.task_name, error)

    def _enter(self, state: TaskExecutionState) -> None:
        if (endpoint := self._endpoint) is not None and self._driver.info.application:
            tag = endpoint.tag if isinstance(endpoint, ClassicEndpoint) else operation_tag(endpoint)
            state = replace(state, spark=SparkWork(self._driver.info.application, tag))
        self.state, self.since_ms = state, _now_ms()
        self._on_state(state)

    def report(self) -> ExecutionReport:
        """Report of this attempt to a JobMaster that did not deploy it."""
        return ExecutionReport(self.state, self.since_ms, self._attempt.task_key, self._attempt.allocation_id)

    async def _run(self) -> int | None:
        adopted = self._adopted
        if self.cancelled and adopted is None:
            return None
        job_id = self._job.job_id
        lease = self._services.libraries.register_lease(job_id)
        self._scheduler_pool = self._services.fair_pools.enter(job_id, self._scheduler_pool)
        try:
            if adopted is not None:
                return await self._continue(adopted[1], adopted[0].endpoint, lease)
            files, environment = await asyncio.get_running_loop().run_in_executor(
                None, self._files.prepare, lease, self._cancelled.is_set
            )
            self._place = await asyncio.to_thread(
                self._files.place, files, environment, resolves_paths=resolves_paths(self._services.configuration)
            )
            return await self._run_process(files, environment)
        finally:
            (self._directory / ENVIRONMENT_FILE).unlink(missing_ok=True)
            await asyncio.to_thread(shutil.rmtree, self._directory / _COPY, ignore_errors=True)
            self._services.fair_pools.leave(job_id)
            lease.release()

    async def _continue(self, process: TaskProcess, endpoint: SparkEndpoint, lease: EnvironmentLease) -> int:
        """Attend to a process that runs already. Its files are there; its environment is leased for it again."""
        try:
            self._starter.adopt_group()
            _, environment = await asyncio.get_running_loop().run_in_executor(
                None, self._files.prepare, lease, self._cancelled.is_set
            )
        except BaseException:
            process.kill()
            process.close()
            await self._release(endpoint)
            raise
        return await self._attend(self._driver, process, endpoint, environment)

    async def _run_process(
        self, files: dict[ArtifactRole, list[Path]], environment: PythonEnvironment | None
    ) -> int | None:
        is_script = self._job.kind is JobKind.SCRIPT
        text = files[ArtifactRole.MAIN][0].read_text("utf-8", "replace") if is_script else ""
        jars = environment.jars if environment is not None and is_script else ()
        try:
            runtime_dir = self._get(ClusterOptions.RUNTIME_DIR)
            given = job_settings(self._job.spark_conf, runtime_dir)
            settings = job_settings({**settings_in(text), **self._job.spark_conf}, runtime_dir)
        except ConfigurationError as error:
            raise LibraryCacheError(f"the job's settings are not valid: {error}") from error
        at_start = await self._driver.start_settings(settings) if settings else {}
        missing = missing_settings(at_start)
        needed = {key for key in missing if key in given or key in START_SETTINGS}
        choice = self._driver_choice()
        reason = own_driver_reason(choice, text, [path.name for path in jars], needed) if self._driver.is_ours else ""
        if not reason:
            for key in sorted(missing & given.keys()):
                self._files.tell_user(ignored_setting(key, given[key], is_alone=False))
            at_runtime = {key: value for key, value in given.items() if key not in at_start}
            return await self._run_in(self._driver, files, environment, at_runtime)
        logger.info("%s %s: it gets a Spark driver of its own", self._attempt.task_name, reason)
        wanted = {key: value for key, value in settings.items() if key not in NEVER_HOLD}
        options = self._own_driver_options(wanted, jars)
        current_dir = None if self._place is None else Path(self._place.directory)
        options = replace(options, current_dir=current_dir, variables=self._job.environment)
        for key in given.keys() & NEVER_HOLD.keys():
            self._files.tell_user(ignored_setting(key, given[key], is_alone=True))
        driver = await self._start_driver(options)
        if driver is None:
            return None
        self._driver = driver
        try:
            self._files.tell_user(
                f"the {self._job.kind.value} {reason}: it runs on a Spark driver of its own, process {driver.info.pid}"
            )
            return await self._run_in(driver, files, environment, {})
        finally:
            await driver.stop()

    def _driver_choice(self) -> SparkDriverChoice:
        """Return ``task.spark-driver``, which is for scripts; a pipeline is alone only if its settings need it."""
        own = self._job.spark_driver
        choice = SparkDriverChoice(own) if own else self._get(JobOptions.SPARK_DRIVER)
        is_wider = self._job.kind is not JobKind.SCRIPT and choice is SparkDriverChoice.OWN
        return SparkDriverChoice.AUTO if is_wider else choice

    def _own_driver_options(self, settings: Mapping[str, str], jars: Sequence[Path]) -> DriverOptions:
        """Return the options of the task's own driver. Raises LibraryCacheError if a setting is not valid."""
        try:
            return self._services.own_driver(self._directory / "spark", jars, settings)
        except ConfigurationError as error:
            raise LibraryCacheError(f"the job's settings are not valid: {error}") from error

    async def _start_driver(self, options: DriverOptions) -> LocalDriver | None:
        """Start the task's own driver; return None if the task is cancelled before. Then no process is left.

        Raises:
            SparkError: it cannot be started, or its packages cannot be fetched.
        """
        start = asyncio.ensure_future(LocalDriver.start(options, alone=True, tell=self._files.tell_user))
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait({start, cancelled}, return_when=asyncio.FIRST_COMPLETED)
            return start.result() if start.done() else None
        finally:
            cancelled.cancel()
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)  # a cancelled start ends its processes

    async def _run_in(
        self,
        driver: SparkDriver,
        files: dict[ArtifactRole, list[Path]],
        environment: PythonEnvironment | None,
        settings: Mapping[str, str],
    ) -> int:
        process, endpoint = await self._starter.start(
            driver, files, environment, self._scheduler_pool, self._place, settings
        )
        return await self._attend(driver, process, endpoint, environment)

    async def _attend(
        self,
        driver: SparkDriver,
        process: TaskProcess,
        endpoint: SparkEndpoint,
        environment: PythonEnvironment | None,
    ) -> int:
        """Attend to the process until nothing of the attempt runs; return its exit status."""
        try:
            self._process, self._endpoint = process, endpoint
            try:
                status = await self._follow(process, endpoint)
            finally:
                process.close()
            with contextlib.suppress(DriverLostError):  # which `_end_with_driver` reports
                await driver.save_tables()
            if self._attempt.traceparent and isinstance(endpoint, ConnectEndpoint):
                await self._note_spark_jobs(driver, endpoint)
            await self._blame_others()
        except BaseException:
            await self._release(endpoint)
            raise
        # A session with its own libraries has workers that read them: they must end before the lease of these does.
        is_shared = environment is None and not self._job.session_id and not has_own_workers(self._job, self._place)
        if isinstance(endpoint, ConnectEndpoint) and is_shared and status == 0 and self._is_done:
            self._left = endpoint
        else:
            await self._release(endpoint)
        return status

    async def _note_spark_jobs(self, driver: SparkDriver, endpoint: ConnectEndpoint) -> None:
        """Report the last Spark jobs of a pipeline's task, for its trace, before its session is closed.

        Which of its functions has run a job is not known, so they are reported with the first.
        """
        try:
            jobs = tuple(await driver.ended_jobs(endpoint, MOST_JOBS))
        except (DriverLostError, DriverCallError) as error:
            logger.info("the trace of %s has no Spark jobs: %s", self._attempt.task_name, error)
            return
        if jobs:
            first, *others = self._progress or (VertexProgress(self._attempt.vertices[0].id),)
            self._progress = (replace(first, latest_jobs=jobs), *others)
            self._tell_progress()

    @property
    def _is_done(self) -> bool:
        """Return whether its work is done: its functions have returned, and have started no streaming query.

        Then its end is reported before its session is closed, so that tasks that wait for its results start at once.
        """
        return self._outcome.finished and self._is_batch and not self.cancelled

    async def _hold_starts(self) -> list[str]:
        """See `HoldStarts`. A process that does not answer, or has ended, has none: `_stop_queries` reports it."""
        process = self._process
        if process is None or not process.can_hold:
            return []
        try:
            async with asyncio.timeout(ANSWER_OF_PROCESS_S):
                return await process.hold_starts()
        except (TimeoutError, OSError, ZygoteError) as error:
            logger.info("%s may start queries while it is stopped: %s", self._attempt.task_name, error)
            return []

    async def _end_hold(self, stops: bool) -> None:
        process = self._process
        if process is not None and process.can_hold and not process.has_ended:
            await process.end_hold(stops=stops)

    async def _stop_queries(self, drain: bool) -> StopReport:
        process, endpoint, driver = self._process, self._endpoint, self._driver
        if process is None or endpoint is None or not driver.alive:
            raise NotStoppedError(f"{self._attempt.task_name} has no Spark driver any more")
        active = await driver.active_queries(endpoint)
        # Only now: a query that has failed by now is either among the active ones, or its process reports the failure.
        failed, notes = await self._failed_queries(process)
        # The process may have started a failed query again before its answer; it starts none after that.
        active = [*active, *await driver.active_queries(endpoint)]
        stopped = await driver.stop_streaming_queries(active, drain=drain, timeout_s=self._patience_s)
        known = {failure.run_id for failure in stopped.failures}
        failures = [*(failure for failure in failed if failure.run_id not in known), *stopped.failures]
        texts = [f"streaming query {failure.name} has failed: {failure.error}" for failure in failures]
        if drain and failures:
            text = f"not drained: {'; '.join(texts)}"
            self._fail(FailureKind.USER_CODE, "StreamingQueryException", text)
            self._given_up.set()
            raise DrainFailedError(text)
        is_known = not notes
        return StopReport((*notes, *texts, *stop_notes(stopped)), not drain or (is_known and not stopped.undrained))

    async def _failed_queries(self, process: TaskProcess) -> tuple[list[QueryFailure], list[str]]:
        """Return the queries that have failed by now, and a note if the process does not answer.

        Raises:
            NotStoppedError: the task has ended by itself.
        """
        failed, notes, ended = [], [], None
        try:
            async with asyncio.timeout(ANSWER_OF_PROCESS_S):
                failed = [QueryFailure(*each) for each in await process.failed_queries()]
        except TimeoutError:
            notes.append("whether a query had failed before is not known: the task process does not answer")
        except (OSError, ZygoteError) as error:
            ended = error
            await self._heard_all.wait()  # the process's last message, with the cause of its end, may be on its way
        if self._outcome.failure is not None:
            raise NotStoppedError(f"{self._attempt.task_name} has failed: {self._outcome.failure.cause}")
        if self._outcome.finished:
            raise NotStoppedError(f"{self._attempt.task_name} has finished by itself")
        if ended is not None:
            raise NotStoppedError(f"{self._attempt.task_name} has ended by itself: {ended}") from ended
        return failed, notes

    async def _release(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> None:
        """End what the process may have left running in Spark.

        If something cannot be ended, this kills the driver, and so ends the TaskExecutor (as Flink ends its
        TaskManager). Otherwise the reported end of the task would not be true.
        """
        driver = self._driver
        if not driver.alive:
            return
        patience, interrupted = self._patience_s, not self._outcome.finished
        if self._watch is not None:
            self._watch.task_ended()
        try:
            async with asyncio.timeout(patience + ANSWER_S):
                await driver.release(endpoint, interrupted=interrupted, patience=patience)
                await driver.unlock_files(self._attempt.attempt_id)
        except (StillRunningError, TimeoutError) as error:
            logger.critical(
                "%s still runs in Spark, task.cancellation.timeout (%g s) after its process has ended (%s): the Spark "
                "driver (process %d) is killed",
                self._attempt.task_name,
                patience,
                str(error) or "the driver does not answer",
                driver.info.pid,
            )
            driver.kill()
            await driver.wait_dead()
        except DriverCallError:
            if not await self._examine():
                raise
            await driver.wait_dead()  # what the task has left there stops with the driver

    async def _close_behind(self, endpoint: ConnectEndpoint) -> None:
        """Release the session of a FINISHED attempt: no failure here changes that state."""
        try:
            await self._release(endpoint)
        except SparkError as error:
            if self._driver.alive:  # else the session has ended with its driver, whose loss is reported elsewhere
                logger.warning("%s has finished, but its Spark session stays open: %s", self._attempt.task_name, error)

    async def _follow(self, process: TaskProcess, endpoint: ClassicEndpoint | ConnectEndpoint) -> int:
        watchers = [
            asyncio.create_task(self._end_on(self._cancelled, process)),
            asyncio.create_task(self._end_on(self._given_up, process)),
            asyncio.create_task(self._end_when_stopped(process)),
            asyncio.create_task(self._end_with_driver(process)),
            asyncio.create_task(self._watch_queries(endpoint)),
            asyncio.create_task(self._keep_tables()),
        ]
        try:
            async for message in process.messages():
                self._received(process, message)
            return await process.wait()
        finally:
            self._heard_all.set()
            watchers += self._leasing
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _end_on(self, reason: asyncio.Event, process: TaskProcess) -> None:
        await reason.wait()
        await self._end(process)

    async def _end_when_stopped(self, process: TaskProcess) -> None:
        """End the process after a stop-with-savepoint, if its code does not end by itself after its queries."""
        await self.checkpoints.stopped.wait()
        await asyncio.sleep(self._patience_s)
        self._files.tell_user(
            f"the job was stopped with a savepoint, but its code kept running for {self._patience_s:g} "
            "s after its queries had ended (task.cancellation.timeout). It is ended by force"
        )
        await self._end(process)

    async def _end(self, process: TaskProcess) -> None:
        await process.cancel()
        await asyncio.sleep(self._patience_s)
        logger.warning(
            "%s did not end within task.cancellation.timeout (%g s): killed",
            self._attempt.task_name,
            self._patience_s,
        )
        process.kill()

    async def _end_with_driver(self, process: TaskProcess) -> None:
        driver = self._driver
        await driver.wait_dead()
        message = f"{driver.loss}; its log is {driver.info.log_file}"
        self._fail(FailureKind.SPARK_LOST, "SparkDriverLostException", message)
        process.kill()

    def _received(self, process: TaskProcess, message: FromTask) -> None:
        match message:
            case Running():
                self._enter(TaskExecutionState(self._attempt.attempt_id, ExecutionState.RUNNING))
            case StandsBy():
                self._stands_by = True
                self._tell_progress()
            case QueryRestores(name, has_failed):
                self.checkpoints.query_restores(name, is_over=has_failed)
            case QueryStarts():
                self._stands_by = False
                self.checkpoints.query_started(message.query, message.batch, was_restored=bool(message.note))
                if message.note:
                    logger.warning("task %s: %s", self._attempt.task_name, message.note)
            case Note():
                self._note = message.text
                logger.warning("task %s: %s", self._attempt.task_name, self._note)
            case LeaseRequest():
                self._leasing.add(asking := asyncio.create_task(self._lease(process, message)))
                asking.add_done_callback(self._leasing.discard)
            case QueryFailed(name, None):
                self._give_up(FailureKind.RUNTIME, _QUERY_LOST, lost_query(name))
            case QueryFailed(name, ErrorDescription() as error):
                text = f"streaming query {name} has failed, and the job's code keeps running: {error.message}"
                self._give_up(FailureKind.USER_CODE, error.type, text, error.traceback)
            case Progress():
                self._progress = _vertex_progress(message.vertices)
                self._tell_progress()
            case Finished():
                if message.lost_queries and not self._is_ending:
                    self._fail(FailureKind.RUNTIME, _QUERY_LOST, lost_query(message.lost_queries[0]))
                self._outcome.finish(ResultPartitionInfo(**each) for each in message.partitions)
                self._seen_queries.add_reports(message.queries)
                self._is_batch = not message.streaming
                if self._is_done:
                    self._logs.begin()
            case Canceled():
                self._outcome.was_refused = True
            case Failed(error):
                kind = FailureKind.USER_CODE if error.lost_result is None else FailureKind.RESULT_LOST
                self._fail(kind, error.type, error.message, error.traceback, error.lost_result, error.exit_status)

    async def _keep_tables(self) -> None:
        """Save the tables that its code makes while it runs, in case the driver is lost before the task ends."""
        while True:
            await asyncio.sleep(TABLES_S)
            await self._driver.save_tables()

    async def _lease(self, process: TaskProcess, asked: LeaseRequest) -> None:
        holder = lease_holder(self.descriptor, self._driver, self._get(ClusterOptions.HOST), self._epoch)
        give_up = self._files.tell_user if asked.is_running else self._has_no_lease
        leases = LocationLeases(self._driver, holder, self._patience_s, self._files.tell_user, give_up)
        await process.answer_lease(asked.number, await leases.request(asked.location))

    def _has_no_lease(self, why: str) -> None:
        self._give_up(FailureKind.RUNTIME, "LeaseUnknownException", why)

    async def _watch_queries(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> None:
        timeout_s = self._get(StreamingOptions.NO_PROGRESS_TIMEOUT)
        watchdog = None if timeout_s is None else ProgressWatchdog(timeout_s)
        stuck = await watch_queries(self._driver, endpoint, self._queries_changed, watchdog)
        if stuck is not None:
            message = (
                f"streaming query {stuck.name or stuck.id} has made no progress for {timeout_s:g} s "
                "(task.streaming.no-progress-timeout)"
            )
            self._give_up(FailureKind.RUNTIME, "NoProgressException", message)

    def _fail(
        self,
        kind: FailureKind,
        name: str,
        message: str,
        traceback: str = "",
        lost_result: str | None = None,
        exit_status: int | None = None,
    ) -> None:
        self._outcome.fail(kind, name, message, traceback, lost_result, exit_status, now_ms=_now_ms())

    def _give_up(self, kind: FailureKind, name: str, message: str, traceback: str = "") -> None:
        """End the attempt because one of its queries has failed or is stuck, while its code keeps running."""
        if self._is_ending:
            return
        self._fail(kind, name, message, traceback)
        self._given_up.set()

    @property
    def _is_ending(self) -> bool:
        """Return whether its queries are being stopped, and may fail because of that."""
        return self.cancelled or self.checkpoints.is_stopping

    def _queries_changed(self, queries: tuple[StreamingQuery, ...]) -> None:
        self._queries = queries
        self._seen_queries.add(queries)
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._on_progress(self.progress)


def _vertex_progress(vertices: dict[str, dict[str, Any]]) -> tuple[VertexProgress, ...]:
    """Read Spark's counts as the task process sends them."""
    return tuple(
        VertexProgress(
            JobVertexID(vertex_id),
            stages=counts.get("stages", 0),
            stages_completed=counts.get("stages_completed", 0),
            tasks_total=counts.get("tasks_total", 0),
            tasks_completed=counts.get("tasks_completed", 0),
            tasks_active=counts.get("tasks_active", 0),
            latest_stages=tuple(StageProgress(**stage) for stage in counts.get("latest_stages", ())),
            latest_jobs=tuple(EndedSparkJob(**job) for job in counts.get("latest_jobs", ())),
        )
        for vertex_id, counts in vertices.items()
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
