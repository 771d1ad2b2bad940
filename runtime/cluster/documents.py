"""The JSON that commands print with ``--json``: its models, and the models of each command.

Users' programs read it. `output.SCHEMA` names its version: within a version fields are added, and none is renamed,
removed or given another meaning. All models use the same words: ``state``, ``task_executor`` and ``job_id``. A field
``..._ms`` is a moment (milliseconds since 1970); ``duration_ms`` is a length of time.

Values of the runtime are used directly if their fields have these words; other values are renamed here.
``docs/json.md`` and ``docs/understudy-v1.schema.json`` are written from these classes
(`runtime.cluster.document_reference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from runtime.checkpoint.compatibility import Verdict
from runtime.checkpoint.manifest import EditedFrom, RescaledFrom, Savepoint, SavepointFile, SavepointQuery
from runtime.checkpoint.rehearsal import ComparedQuery
from runtime.cluster.upgrade_plan import PlannedJob, PlannedProcess
from runtime.job_logs import LogPiece
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails, TaskInfo, VertexInfo
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsSnapshot,
    StatsSummary,
)
from runtime.protocol.checkpoints import OperationStatus
from runtime.protocol.descriptor import ResultPartitionInfo, SparkWork
from runtime.protocol.diagnostics import ComponentLog, TaskPoolReport
from runtime.protocol.execution_state import ErrorInfo
from runtime.protocol.messages import ClusterOverview, ClusterStatus, ProcessView, TaskLog, TaskManagerView
from runtime.protocol.processes import LogLevelChange
from runtime.protocol.queues import QueuesOverview
from runtime.protocol.rescales import Advice, Rescale
from runtime.protocol.streaming_query import StreamingQuery
from runtime.users.identities import ApiToken, User

if TYPE_CHECKING:  # only some commands need these modules
    from runtime.checkpoint.savepoint import ListedSavepoint
    from runtime.cluster.preflight import CheckResult
    from runtime.cluster.roles import StartedRole
    from runtime.cluster.ssh import Outcome
    from runtime.cluster.upgrade_hosts import HostResult

T = TypeVar("T")


def _of(model: type[T], source: object, **others: Any) -> T:
    """Return a model with *others*, and for the rest with the attributes of *source* of the same names."""
    same = {field.name for field in fields(model)} - others.keys()  # type: ignore[arg-type]
    return model(**{name: getattr(source, name) for name in same}, **others)


# ------------------------------------------------------------------------ jobs


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job in a list.

    Attributes:
        job_id: of the job.
        name: of the job.
        kind: `script` or `pipeline`.
        streams: whether a streaming query was seen in one of its attempts.
        submitter: name of the user who submitted it, as the client says; empty if it is not known.
        owner: name of the user whose token submitted it; empty if it was submitted with one of the cluster's secrets.
        state: of the job.
        start_ms: when it was accepted.
        end_ms: when it ended; null before that.
        tasks_total: number of its tasks.
        tasks_per_state: number of tasks in each state; only states that occur.
        error: why it failed, on one line; empty otherwise.
        waiting_for: the slot that it waits for, its place in its queue and the limit, with a file of queues or with
            users; else empty.
    """

    job_id: str
    name: str
    kind: str
    streams: bool
    submitter: str
    owner: str
    state: str
    start_ms: int
    end_ms: int | None
    tasks_total: int
    tasks_per_state: dict[str, int]
    error: str
    waiting_for: str

    @classmethod
    def of(cls, details: JobDetails) -> JobLine:
        """Return the document of a job in a list."""
        return _of(cls, details, kind=details.kind.value, state=details.status.value)


@dataclass(frozen=True, slots=True)
class KeptLogFile:
    """A kept log of an attempt that has ended; `job logs` prints its text.

    Attributes:
        name: `stdout`, `stderr`, `taskexecutor` or `spark`.
        size: bytes that were written.
        kept: bytes that are kept; fewer if the log was too long.
    """

    name: str
    size: int
    kept: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a task.

    Attributes:
        attempt_id: of the attempt.
        number: from 0.
        state: of the attempt.
        task_executor: name of its TaskExecutor; empty before it had a slot.
        timestamps: when it entered each of its states, in milliseconds since 1970.
        error: why it failed; null otherwise.
        exit_status: of its process, negative for a signal; null while it runs, or if it is not known.
        logs: its kept logs; empty while it runs.
        partitions: results that it has materialised.
        queries: its active streaming queries, or after its end those that it had.
        spark: its work in Spark; null before it ran, or if it is not known.
    """

    attempt_id: str
    number: int
    state: str
    task_executor: str
    timestamps: dict[str, int]
    error: ErrorInfo | None
    exit_status: int | None
    logs: tuple[KeptLogFile, ...]
    partitions: tuple[ResultPartitionInfo, ...]
    queries: tuple[StreamingQuery, ...]
    spark: SparkWork | None


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a job.

    Attributes:
        id: of the task.
        name: of the task.
        state: of its present attempt.
        waiting_for: what it waits for before it runs, in words; empty if nothing.
        vertices: ids of the vertices that run in it.
        attempts: the present one last.
    """

    id: str
    name: str
    state: str
    waiting_for: str
    vertices: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @classmethod
    def of(cls, task: TaskInfo) -> Task:
        """Return the document of a task."""
        attempts = tuple(
            _of(
                Attempt,
                attempt,
                state=attempt.state.value,
                logs=tuple(_of(KeptLogFile, log) for log in attempt.logs),
            )
            for attempt in task.attempts
        )
        return _of(cls, task, id=task.key, state=task.state.value, attempts=attempts)


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """The part of a task in a checkpoint.

    Attributes:
        task: id of the task.
        acknowledged_ms: when it acknowledged; null before that.
        bytes: of its snapshots.
        new_bytes: of these, bytes that no earlier checkpoint had.
        duration_ms: how long its snapshots took while its queries ran; 0 if it is not known.
    """

    task: str
    acknowledged_ms: int | None
    bytes: int
    new_bytes: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint or savepoint of a job.

    Attributes:
        id: its number.
        state: `IN_PROGRESS`, `COMPLETED` or `FAILED`.
        type: `CHECKPOINT`, or the kind of savepoint.
        path: its directory; empty before it is completed.
        start_ms: when it was triggered.
        acknowledged_ms: when the last task so far acknowledged it; null before the first.
        failed_ms: when it failed; null otherwise.
        duration_ms: from the start to the end, or until now.
        bytes: of all snapshots together.
        new_bytes: of these, bytes that no earlier checkpoint had.
        discarded: whether its files have been removed since.
        error: why it failed; empty otherwise.
        tasks_total: number of tasks that take part.
        tasks_acknowledged: number of them that have acknowledged it.
        tasks: the part of each task.
    """

    id: int
    state: str
    type: str
    path: str
    start_ms: int
    acknowledged_ms: int | None
    failed_ms: int | None
    duration_ms: int
    bytes: int
    new_bytes: int
    discarded: bool
    error: str
    tasks_total: int
    tasks_acknowledged: int
    tasks: tuple[TaskCheckpoint, ...]

    @classmethod
    def of(cls, stats: CheckpointStats | None) -> Checkpoint | None:
        """Return the document of a checkpoint."""
        if stats is None:
            return None
        return cls(
            id=stats.id,
            state=stats.status.value,
            type=stats.type.value,
            path=stats.external_path,
            start_ms=stats.trigger_timestamp,
            acknowledged_ms=stats.latest_ack_timestamp,
            failed_ms=stats.failure_timestamp,
            duration_ms=stats.end_to_end_duration,
            bytes=stats.state_size,
            new_bytes=stats.checkpointed_size,
            discarded=stats.discarded,
            error=stats.failure_message,
            tasks_total=stats.num_tasks,
            tasks_acknowledged=stats.num_acknowledged_tasks,
            tasks=tuple(
                TaskCheckpoint(
                    part.task_key, part.ack_timestamp, part.state_size, part.checkpointed_size, part.duration
                )
                for part in stats.tasks
            ),
        )


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """The checkpoint or savepoint that a job's state was restored from.

    Attributes:
        id: number of the checkpoint; 0 for a savepoint.
        restored_ms: when it was restored.
        is_savepoint: whether it is a savepoint.
        path: its directory.
    """

    id: int
    restored_ms: int
    is_savepoint: bool
    path: str


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of a job.

    Attributes:
        counts: numbers of checkpoints.
        bytes: bytes of the completed ones.
        new_bytes: their new bytes.
        duration_ms: their durations.
        latest_completed: the last completed checkpoint.
        latest_savepoint: the last completed savepoint.
        latest_failed: the last that failed.
        latest_restored: the checkpoint or savepoint that was restored last.
        history: the last ones, the newest first.
        operations: outcomes of requests for checkpoints, savepoints and rollbacks.
    """

    counts: CheckpointStatsCounts
    bytes: StatsSummary
    new_bytes: StatsSummary
    duration_ms: StatsSummary
    latest_completed: Checkpoint | None
    latest_savepoint: Checkpoint | None
    latest_failed: Checkpoint | None
    latest_restored: RestoredCheckpoint | None
    history: tuple[Checkpoint, ...]
    operations: tuple[OperationStatus, ...]

    @classmethod
    def of(cls, figures: CheckpointStatsSnapshot) -> Checkpoints:
        """Return the document of a job's checkpoints."""
        restored = figures.latest_restored
        return cls(
            counts=figures.counts,
            bytes=figures.summary_state_size,
            new_bytes=figures.summary_checkpointed_size,
            duration_ms=figures.summary_duration,
            latest_completed=Checkpoint.of(figures.latest_completed),
            latest_savepoint=Checkpoint.of(figures.latest_savepoint),
            latest_failed=Checkpoint.of(figures.latest_failed),
            latest_restored=None
            if restored is None
            else RestoredCheckpoint(
                restored.id, restored.restore_timestamp, restored.is_savepoint, restored.external_path
            ),
            history=tuple(one for one in map(Checkpoint.of, figures.history) if one is not None),
            operations=figures.operations,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its tasks.

    Attributes:
        job_id: of the job.
        name: of the job.
        kind: `script` or `pipeline`.
        streams: whether a streaming query was seen in one of its attempts.
        submitter: name of the user who submitted it, as the client says; empty if it is not known.
        owner: name of the user whose token submitted it; empty if it was submitted with one of the cluster's secrets.
        upgraded_from: id of the job whose place it took, by `job upgrade`; empty for any other job.
        trace_id: of its OpenTelemetry trace; empty if it has none.
        state: of the job.
        start_ms: when it was accepted.
        end_ms: when it ended; null before that.
        timestamps: when it last entered each of its states, in milliseconds since 1970.
        restarts: number of restarts of some of its tasks.
        restart_strategy: in words.
        failure: the error that made the job fail; null otherwise.
        canceled_because: why the cluster cancelled it; empty if a user did, or if it was not cancelled.
        failure_history: the last failures, including those that led to a restart, the newest last.
        failure_counts: number of failures of each kind; only kinds that occurred.
        tasks: each after those that it reads from.
        vertices: in topological order.
        checkpoints: of the job.
        rescales: the last changes of the number of partitions of its state, the oldest first.
        advice: the autoscaler's last decision about each of its queries; empty without one, and after the job's end.
    """

    job_id: str
    name: str
    kind: str
    streams: bool
    submitter: str
    owner: str
    upgraded_from: str
    trace_id: str
    state: str
    start_ms: int
    end_ms: int | None
    timestamps: dict[str, int]
    restarts: int
    restart_strategy: str
    failure: ErrorInfo | None
    canceled_because: str
    failure_history: tuple[ErrorInfo, ...]
    failure_counts: dict[str, int]
    tasks: tuple[Task, ...]
    vertices: tuple[VertexInfo, ...]
    checkpoints: Checkpoints
    rescales: tuple[Rescale, ...]
    advice: tuple[Advice, ...]

    @classmethod
    def of(cls, job: ArchivedExecutionGraph) -> Job:
        """Return the document of a job."""
        return _of(
            cls,
            job,
            kind=job.kind.value,
            state=job.status.value,
            canceled_because=job.cancelled_because,
            tasks=tuple(map(Task.of, job.tasks)),
            checkpoints=Checkpoints.of(job.checkpoints),
        )


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was submitted, with `--detach`.

    Attributes:
        job_id: of the job.
        web_page: its address on the cluster's web page; empty if there is none.
    """

    job_id: str
    web_page: str


@dataclass(frozen=True, slots=True)
class SubmittedApplication:
    """An application that was started, with `--target application --detach`.

    Attributes:
        application_id: of the application.
        web_page: of its cluster; empty if there is none.
    """

    application_id: str
    web_page: str


@dataclass(frozen=True, slots=True)
class Application:
    """An application that has ended.

    Attributes:
        application_id: of the application.
        state: `SUCCEEDED`, `FAILED`, `CANCELED` or `UNKNOWN`.
        error: why it failed; empty otherwise.
        traceback: of main(); empty if it did not fail.
        jobs: the jobs that it has submitted.
    """

    application_id: str
    state: str
    error: str
    traceback: str
    jobs: tuple[JobLine, ...]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that is cancelled.

    Attributes:
        job_id: of the job.
        state: of the job; `CANCELLING` with `--no-wait`.
    """

    job_id: str
    state: str


@dataclass(frozen=True, slots=True)
class JobFailures:
    """Why a job failed.

    Attributes:
        job_id: of the job.
        name: of the job.
        state: of the job.
        failures: the newest first, including those that led to a restart.
    """

    job_id: str
    name: str
    state: str
    failures: tuple[ErrorInfo, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """A log, of an attempt or of a TaskExecutor.

    Attributes:
        name: `stdout` or `stderr` of an attempt; `taskexecutor` or `spark`.
        size: bytes that were written.
        text: its text; of a long log only head and tail, with a line between them that says so.
        job_id: of the job; null for the log of a TaskExecutor.
        task: name of the task; null for the log of a TaskExecutor.
        attempt: number of the attempt, from 0; null for the log of a TaskExecutor.
        attempt_id: of the attempt; null for the log of a TaskExecutor.
        task_executor: name of the TaskExecutor; null for the log of an attempt.
    """

    name: str
    size: int
    text: str
    job_id: str | None = None
    task: str | None = None
    attempt: int | None = None
    attempt_id: str | None = None
    task_executor: str | None = None

    @classmethod
    def of(cls, log: TaskLog | ComponentLog, content: bytes) -> Log:
        """Return the document of a log."""
        text = content.decode(errors="replace")
        if isinstance(log, ComponentLog):
            return cls(log.name, log.size, text, task_executor=log.resource_id)
        return _of(cls, log, text=text, task_executor=None)


@dataclass(frozen=True, slots=True)
class PlanInput:
    """An input of a vertex.

    Attributes:
        id: of the vertex that is read.
        ship_strategy: how rows are divided: `forward`, `hash`, `rebalance` or `broadcast`.
        keys: columns of `hash`.
        exchange: `pipelined`, or `blocking` if the result is materialised.
    """

    id: str
    ship_strategy: str
    keys: list[str]
    exchange: str


@dataclass(frozen=True, slots=True)
class PlanVertex:
    """A vertex of a pipeline that is explained.

    Attributes:
        id: of the vertex.
        name: of the vertex.
        role: `source`, `operator`, `sink` or `script`.
        function: `module:name` of its function; null for a script.
        task: id of the task that it runs in.
        parallelism: number of partitions that edges into it make; 0 leaves it to Spark.
        slot_sharing_group: tasks of one group may share a slot.
        retries: number of failures after which its task is restarted alone.
        memory_bytes: most memory of its task; 0 for no limit.
        inputs: in the order of the arguments of its function.
    """

    id: str
    name: str
    role: str
    function: str | None
    task: str
    parallelism: int
    slot_sharing_group: str
    retries: int
    memory_bytes: int
    inputs: list[PlanInput]


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A task of a pipeline that is explained.

    Attributes:
        id: of the task.
        name: of the task.
        vertices: ids of the vertices that run in it.
        inputs: ids of the tasks whose results it reads.
        slot_sharing_group: tasks of one group may share a slot.
    """

    id: str
    name: str
    vertices: list[str]
    inputs: list[str]
    slot_sharing_group: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that is explained, not run.

    Attributes:
        name: of the job.
        kind: `script` or `pipeline`.
        format_version: of its job graph.
        parameters: parameters that its vertices see.
        tasks: in an order in which they may run.
        vertices: of all tasks.
    """

    name: str
    kind: str
    format_version: int
    parameters: dict[str, Any]
    tasks: list[PlanTask]
    vertices: list[PlanVertex]


# ---------------------------------------------------------------- the cluster


@dataclass(frozen=True, slots=True)
class StartedCluster:
    """A cluster that was started.

    Attributes:
        cluster_id: of the cluster.
        address: of its Dispatcher.
        web_pages: addresses of its web pages, one for each master; none with `rest.enabled: false`.
        directory: its runtime directory.
        logs: directory of its logs.
        task_executors: number of TaskExecutors.
        slots: number of slots.
    """

    cluster_id: str
    address: str
    web_pages: list[str]
    directory: str
    logs: str
    task_executors: int
    slots: int


@dataclass(frozen=True, slots=True)
class StartedHost:
    """This host's part of a cluster, after `start --role`.

    Attributes:
        role: `master` or `task-executor`.
        host: the address of this machine.
        directory: its runtime directory.
        waiting: why its TaskExecutors are not registered yet; empty if they are.
    """

    role: str
    host: str
    directory: str
    waiting: str

    @classmethod
    def of(cls, started: StartedRole) -> StartedHost:
        """Return the document of a host's part."""
        return _of(cls, started, role=started.role.value)


@dataclass(frozen=True, slots=True)
class StartedMaster:
    """A master that was started.

    Attributes:
        cluster_id: of the cluster.
        address: of the master's actor system.
    """

    cluster_id: str
    address: str


@dataclass(frozen=True, slots=True)
class StoppedCluster:
    """A cluster that was stopped.

    Attributes:
        cluster_id: of the cluster.
        stopped: true.
    """

    cluster_id: str
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class StoppedHost:
    """This host's part of a cluster, after `stop --role`.

    Attributes:
        role: `master` or `task-executor`.
        stopped: true.
    """

    role: str
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """The outcome for one role of a host.

    Attributes:
        host: as ssh takes it.
        role: `master` or `task-executor`.
        ok: whether it was started or stopped.
        detail: the last line that the host printed, or why it failed.
    """

    host: str
    role: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class HostOutcomes:
    """The outcomes for the roles of all hosts, with `--hosts`.

    Attributes:
        ok: whether all were started or stopped.
        hosts: one for each role of a host.
    """

    ok: bool
    hosts: tuple[HostOutcome, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> HostOutcomes:
        """Return the document of all hosts."""
        hosts = tuple(_of(HostOutcome, outcome, role=outcome.role.value) for outcome in outcomes)
        return cls(all(host.ok for host in hosts), hosts)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and its processes.

    Attributes:
        cluster_id: of the cluster.
        version: of Understudy.
        address: of the actor system of the master that answers.
        start_ms: when that master was started.
        processes: of all masters, and the TaskExecutors that they have started.
        masters: addresses of all masters.
    """

    cluster_id: str
    version: str
    address: str
    start_ms: int
    processes: tuple[ProcessView, ...]
    masters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts of a cluster.

    Attributes:
        task_executors: registered TaskExecutors.
        slots: all their slots.
        free_slots: slots that no job has.
        pending_requests: requests for a slot that wait.
        jobs_running: jobs that are not over, including waiting ones.
        jobs_finished: remembered jobs that are FINISHED.
        jobs_canceled: remembered jobs that are CANCELED.
        jobs_failed: remembered jobs that are FAILED.
        feature_level: of the cluster; decides the formats that it writes.
        newest_feature_level: the newest that the leading master supports; `cluster finalize` raises the level to it.
    """

    task_executors: int
    slots: int
    free_slots: int
    pending_requests: int
    jobs_running: int
    jobs_finished: int
    jobs_canceled: int
    jobs_failed: int
    feature_level: int
    newest_feature_level: int


@dataclass(frozen=True, slots=True)
class FinalizedLevel:
    """A cluster's feature level after `cluster finalize`.

    Attributes:
        cluster_id: of the cluster.
        feature_level: the level now.
        feature_level_before: the level before the command; the same if there was nothing to raise.
        held_by: the components that support no higher level, if others do.
    """

    cluster_id: str
    feature_level: int
    feature_level_before: int
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterUpgrade:
    """The processes that `cluster upgrade` has exchanged, or with `--dry-run` would exchange.

    Attributes:
        cluster_id: of the cluster.
        target_version: of Understudy, that they run after the upgrade.
        python: the interpreter that runs it.
        is_dry_run: whether nothing was changed.
        steps: the exchanged processes, in their order.
        kept: the processes that stay as they are.
        jobs: the jobs that have not ended, and what they notice.
        warning: what the cluster's users notice; empty for nothing.
        to_do: the work that is left to the operator after the last step.
    """

    cluster_id: str
    target_version: str
    python: str
    is_dry_run: bool
    steps: tuple[PlannedProcess, ...]
    kept: tuple[PlannedProcess, ...]
    jobs: tuple[PlannedJob, ...]
    warning: str
    to_do: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostUpgrade:
    """The upgrade of one role of a host.

    Attributes:
        host: as ssh takes it.
        role: `master` or `task-executor`.
        ok: whether it runs the other release, or with `is_dry_run` whether the host answers.
        detail: the outcome, or why it failed; empty if the steps would be done.
        steps: the processes that were or would be exchanged.
    """

    host: str
    role: str
    ok: bool
    detail: str
    steps: tuple[PlannedProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class HostUpgrades:
    """The upgrade of all hosts, with `--hosts`.

    Attributes:
        ok: whether all are.
        is_dry_run: whether nothing was changed.
        hosts: one for each role of a host, in the order of the upgrade.
    """

    ok: bool
    is_dry_run: bool
    hosts: tuple[HostUpgrade, ...]

    @classmethod
    def of(cls, results: Sequence[HostResult], *, is_dry_run: bool) -> HostUpgrades:
        """Return the document of all hosts."""
        hosts = tuple(
            HostUpgrade(each.plan.target.host, each.plan.target.role.value, each.ok, each.detail, each.plan.steps)
            for each in results
        )
        return cls(all(each.ok for each in hosts), is_dry_run, hosts)


@dataclass(frozen=True, slots=True)
class TaskExecutor:
    """A registered TaskExecutor.

    Attributes:
        task_executor: its name; stays the same when its process is replaced.
        instance_id: of its registration.
        address: its RPC address.
        pid: its process.
        slots: number of slots.
        free_slots: number of free slots.
        start_ms: when it was registered.
        last_heartbeat_ms: when its last heartbeat arrived.
        memory_bytes: heap limit of its Spark driver.
        spark_master: master URL of its Spark driver.
        spark_pid: process of its Spark driver.
        spark_version: of Spark.
        spark_loss: when and why its Spark driver was last replaced; empty if it was not.
        java_version: of its Java.
        version: of Understudy.
        shared_directory: the cluster's mark in `cluster.shared-dir`, as it sees it; empty if there is none.
        user: the user whose jobs alone it serves at present; empty if there is none.
    """

    task_executor: str
    instance_id: str
    address: str
    pid: int
    slots: int
    free_slots: int
    start_ms: int
    last_heartbeat_ms: int
    memory_bytes: int
    spark_master: str
    spark_pid: int
    spark_version: str
    spark_loss: str
    java_version: str
    version: str
    shared_directory: str
    user: str

    @classmethod
    def of(cls, view: TaskManagerView) -> TaskExecutor:
        """Return the document of a TaskExecutor."""
        return _of(
            cls,
            view.registration,
            task_executor=view.registration.resource_id,
            instance_id=view.instance_id,
            free_slots=view.free_slots,
            start_ms=view.registered_ms,
            last_heartbeat_ms=view.last_heartbeat_ms,
            user=view.user,
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A cluster as `status` shows it.

    Attributes:
        cluster: its masters and processes.
        overview: its counts.
        task_executors: the registered TaskExecutors.
        task_pools: counts of ready task processes, by TaskExecutor; only TaskExecutors that have answered.
        jobs: running and finished ones, the newest first.
    """

    cluster: Cluster
    overview: Overview
    task_executors: tuple[TaskExecutor, ...]
    task_pools: dict[str, TaskPoolReport]
    jobs: tuple[JobLine, ...]

    @classmethod
    def of(
        cls,
        cluster: ClusterStatus,
        overview: ClusterOverview,
        task_managers: Sequence[TaskManagerView],
        task_pools: Mapping[Any, TaskPoolReport],
        jobs: Sequence[JobDetails],
    ) -> Status:
        """Return the document of a cluster."""
        return cls(
            _of(Cluster, cluster, start_ms=cluster.started_ms),
            _of(Overview, overview, task_executors=overview.task_managers, jobs_canceled=overview.jobs_cancelled),
            tuple(map(TaskExecutor.of, task_managers)),
            dict(task_pools),
            tuple(map(JobLine.of, jobs)),
        )


@dataclass(frozen=True, slots=True)
class Check:
    """A check of this machine.

    Attributes:
        name: the thing that is checked.
        ok: whether it passed.
        detail: the finding.
        remedy: what to do; empty if the check passed. A check that passed with a remedy is a warning.
    """

    name: str
    ok: bool
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Examination:
    """Results of `doctor`.

    Attributes:
        ok: whether all checks passed.
        checks: each check.
    """

    ok: bool
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, results: Sequence[CheckResult]) -> Examination:
        """Return the document of all checks."""
        return cls(all(result.ok for result in results), tuple(_of(Check, result) for result in results))


@dataclass(frozen=True, slots=True)
class LogLevel:
    """The level of a logger in a process.

    Attributes:
        process: its name.
        logger: `root`, or the name of a logger.
        level: its level.
    """

    process: str
    logger: str
    level: str


# ----------------------------------------------------------------- savepoints


@dataclass(frozen=True, slots=True)
class SavepointLine:
    """A savepoint in a list. Fields that are read from the savepoint are null if it cannot be read.

    Attributes:
        path: its directory.
        ok: whether all of it is unchanged since it was written.
        problems: each difference, or missing file, in words.
        job_id: id of its job.
        job_name: of that job.
        created_ms: when it was written.
        queries: names of its queries.
        bytes: of all its files.
    """

    path: str
    ok: bool
    problems: list[str]
    job_id: str | None
    job_name: str | None
    created_ms: int | None
    queries: list[str]
    bytes: int | None

    @classmethod
    def of(cls, listed: ListedSavepoint) -> SavepointLine:
        """Return the document of a savepoint in a list."""
        found = listed.savepoint
        return cls(
            path=listed.path,
            ok=not listed.problems,
            problems=listed.problems,
            job_id=found.job.id if found else None,
            job_name=found.job.name if found else None,
            created_ms=found.created_ms if found else None,
            queries=[query.snapshot.name for query in found.queries] if found else [],
            bytes=found.bytes if found else None,
        )


@dataclass(frozen=True, slots=True)
class SavepointContent:
    """A savepoint with its queries and files.

    Attributes:
        path: its directory.
        job_id: id of its job.
        job_name: of that job.
        owner: name of the user who submitted that job; empty if it had none.
        created_ms: when it was written.
        bytes: of all its files.
        queries: of the job.
        files: all files except the manifest, by their path below the savepoint.
        spark_version: version of the Spark that has written the state.
        version: version of the Understudy that has written the savepoint.
        format_version: of its manifest.
        rescaled: the savepoint that it was rescaled from; null if it was taken of a job.
        edited: the savepoint that it was edited from; null if it was taken of a job.
    """

    path: str
    job_id: str
    job_name: str
    owner: str
    created_ms: int
    bytes: int
    queries: tuple[SavepointQuery, ...]
    files: dict[str, SavepointFile]
    spark_version: str
    version: str
    format_version: int
    rescaled: RescaledFrom | None
    edited: EditedFrom | None

    @classmethod
    def of(cls, savepoint: Savepoint) -> SavepointContent:
        """Return the document of a savepoint."""
        job = savepoint.job
        return _of(cls, savepoint, job_id=job.id, job_name=job.name, owner=job.owner)


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of verifying that a savepoint or checkpoint is unchanged since it was written.

    Attributes:
        path: its directory.
        ok: whether it is unchanged.
        problems: each difference, or missing file, in words.
    """

    path: str
    ok: bool
    problems: list[str]


@dataclass(frozen=True, slots=True)
class DisposedSavepoint:
    """A savepoint that was removed.

    Attributes:
        path: its directory.
        disposed: true.
    """

    path: str
    disposed: bool = True


@dataclass(frozen=True, slots=True)
class RescaledJob:
    """A running job whose state has got another number of partitions.

    Attributes:
        job_id: of the job.
        partitions: the new number.
        savepoint: directory of the savepoint from which the job's tasks restart. It is the rescaled one; after an undo
            it may be the one from before the rescale.
        original: directory of the savepoint with the former number of partitions.
    """

    job_id: str
    partitions: int
    savepoint: str
    original: str


@dataclass(frozen=True, slots=True)
class UpgradedJob:
    """A job whose code was replaced, or whose former code was put back.

    Attributes:
        job_id: of the job that works now.
        upgraded_from: id of the job whose place it took.
        outcome: `upgraded`: the new version has committed a batch; `waiting`: it runs, and its sources have no data yet
            for a first batch; `returned`: the former version works again.
        because: why the former version works again; empty otherwise.
        savepoint: directory of the savepoint from which the job began.
        batches: by the name of each query in the savepoint, the last batch that the former version has committed.
    """

    job_id: str
    upgraded_from: str
    outcome: str
    because: str
    savepoint: str
    batches: dict[str, int]


@dataclass(frozen=True, slots=True)
class RehearsedJob:
    """A rehearsal of a new version of a job, over batches that the job has committed.

    Attributes:
        job_id: of the job, which runs on.
        is_equal: whether both versions have the same output, columns and state in all batches.
        failure: why the new version has not run all batches; empty if it has.
        queries: of the job.
    """

    job_id: str
    is_equal: bool
    failure: str
    queries: tuple[ComparedQuery, ...]


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of the state of an operator.

    Attributes:
        query: name of the query.
        operator: id of the operator.
        store: name of its store.
        rows: with the columns that Spark's state reader has, such as `key`, `value` and `partition_id`.
    """

    query: str
    operator: int
    store: str
    rows: list[dict[str, Any]]


# ----------------------------------------------------------------------- queues


@dataclass(frozen=True, slots=True)
class CheckedQueues:
    """A file of queues without an error.

    Attributes:
        file: its path.
        queues: names of the queues, in their order.
    """

    file: str
    queues: tuple[str, ...]


# ------------------------------------------------------------------------ users


@dataclass(frozen=True, slots=True)
class UserLine:
    """A user.

    Attributes:
        name: of the user.
        role: `metrics`, `viewer`, `user`, `operator` or `admin`.
        created_ms: when the user was added.
    """

    name: str
    role: str
    created_ms: int

    @classmethod
    def of(cls, user: User) -> UserLine:
        """Return the document of a user."""
        return _of(cls, user, role=user.role.value)


@dataclass(frozen=True, slots=True)
class TokenLine:
    """A token, without its secret.

    Attributes:
        token_id: of the token.
        user: name of its user.
        name: where it is used.
        created_ms: when it was issued.
        expires_ms: when it ends to be valid; null for never.
        state: `valid` or `expired`.
    """

    token_id: str
    user: str
    name: str
    created_ms: int
    expires_ms: int | None
    state: str

    @classmethod
    def of(cls, token: ApiToken, now_ms: int) -> TokenLine:
        """Return the document of a token."""
        return _of(cls, token, state="expired" if token.has_expired(now_ms) else "valid")


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was issued.

    Attributes:
        token_id: of the token.
        user: name of its user.
        token: the token itself, which is shown only now.
        expires_ms: when it ends to be valid; null for never.
    """

    token_id: str
    user: str
    token: str
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class ChangedIdentity:
    """A user, token or login that was added, changed, removed or revoked.

    Attributes:
        name: of the user, id of the token, or URLs of the cluster of a login.
        changed: whether anything was changed.
    """

    name: str
    changed: bool


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """A login that was stored, without its tokens.

    Attributes:
        cluster: URLs of the web endpoints for which it is used.
        issuer: URL of the OpenID Connect provider.
        file: path of the file that holds it.
        expires_ms: when its present token expires.
        is_renewed: whether the client renews the token by itself.
    """

    cluster: str
    issuer: str
    file: str
    expires_ms: int
    is_renewed: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """The user whom the cluster takes a client for.

    Attributes:
        user: name of the user; empty for a holder of one of the cluster's own secrets.
        role: of the user.
        token_id: of the token that was shown; empty for one of the cluster's own secrets.
        issuer: URL of the OpenID Connect provider that has identified the user; empty for the cluster's own users.
        expires_ms: when the issuer's token expires; null without an issuer.
    """

    user: str
    role: str
    token_id: str
    issuer: str
    expires_ms: int | None


DOCUMENTS: dict[str, tuple[Any, ...]] = {
    "start": (StartedCluster, StartedHost, HostOutcomes),
    "start-master": (StartedMaster,),
    "stop": (StoppedCluster, StoppedHost, HostOutcomes),
    "status": (Status,),
    "cluster finalize": (FinalizedLevel,),
    "cluster upgrade": (ClusterUpgrade, HostUpgrades),
    "doctor": (Examination,),
    "log-level": (list[LogLevel], list[LogLevelChange]),
    "job run": (Job, SubmittedJob, Application, SubmittedApplication),
    "job explain": (Plan,),
    "job list": (list[JobLine],),
    "job info": (Job,),
    "job cancel": (JobState,),
    "job logs": (list[Log], LogPiece),
    "job exceptions": (JobFailures,),
    "job checkpoint": (OperationStatus,),
    "job savepoint": (OperationStatus,),
    "job stop": (OperationStatus,),
    "job rollback": (OperationStatus,),
    "job rescale": (RescaledJob, SubmittedJob),
    "job autoscale": (list[Advice],),
    "job upgrade": (UpgradedJob, RehearsedJob),
    "job check": (list[Verdict],),
    "savepoint list": (list[SavepointLine],),
    "savepoint info": (SavepointContent,),
    "savepoint convert": (SavepointContent,),
    "savepoint rescale": (SavepointContent,),
    "savepoint edit": (SavepointContent,),
    "savepoint name-sources": (SavepointContent,),
    "savepoint set-offsets": (SavepointContent,),
    "savepoint verify": (Verification,),
    "savepoint copy": (SavepointContent,),
    "savepoint dispose": (DisposedSavepoint,),
    "savepoint check": (list[Verdict],),
    "savepoint state": (StateRows,),
    "queue list": (QueuesOverview,),
    "queue check": (CheckedQueues,),
    "user add": (ChangedIdentity,),
    "user list": (list[UserLine],),
    "user remove": (ChangedIdentity,),
    "token add": (IssuedToken,),
    "token list": (list[TokenLine],),
    "token revoke": (ChangedIdentity,),
    "login": (StoredLogin,),
    "logout": (ChangedIdentity,),
    "whoami": (Identity,),
}
"""Models of each command, by its words; a command prints one of them."""
