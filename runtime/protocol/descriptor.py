"""Messages between JobMaster and TaskExecutor about a task (Flink's `TaskDeploymentDescriptor` and its replies)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blob.offload import Inline, Offloaded
from conf.options import JobOptions
from conf.options.streaming import STREAMING_PREFIX
from conf.registry import SPARK_PREFIX, by_own_key
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, JobVertexID, SlotID
from runtime.job_logs import KeptLog
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import Artifact, ExchangeMode, JobGraph, JobKind, ShipStrategy
from runtime.jobgraph.topology import Chain
from runtime.jobgraph.working_directory import WorkingDirectory
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.execution_state import ErrorInfo, ExecutionState
from runtime.protocol.streaming_query import StreamingQuery


@dataclass(frozen=True, slots=True)
class VertexInput:
    """One argument of a vertex's function.

    Args:
        source: the vertex that is read.
        path: the directory of the source's result for a BLOCKING edge. None for a PIPELINED edge: the function gets the
            DataFrame that the source's function has returned in this task.
        ship_strategy: how rows are distributed.
        keys: columns of a HASH exchange.
    """

    source: JobVertexID
    path: str | None = None
    ship_strategy: ShipStrategy = ShipStrategy.FORWARD
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VertexDescriptor:
    """One vertex of the task.

    Args:
        id: of the vertex.
        name: of the vertex.
        function: `qualname` in the job's file, or ``module:qualname``; empty for a script.
        inputs: in the order of the function's arguments.
        result_path: directory of the `ResultPartition` to make for a vertex with an outgoing BLOCKING edge; else None.
        parallelism: partitions of HASH and REBALANCE inputs; 0 leaves it to Spark.
    """

    id: JobVertexID
    name: str
    function: str = ""
    inputs: tuple[VertexInput, ...] = ()
    result_path: str | None = None
    parallelism: int = 0


@dataclass(frozen=True, slots=True)
class JobInformation:
    """The part of a deployment that is the same for all tasks of a job, whichever JobMaster deploys them.

    Its bytes are the same every time, so a large one is uploaded once. Flink does the same with the serialized
    `JobInformation` of its `TaskDeploymentDescriptor`.

    Args:
        job_id: of the job.
        job_name: of the job.
        kind: script or pipeline.
        artifacts: the job's files.
        argv: a script's arguments.
        parameters: ``ctx.parameters``.
        spark_driver: the job's own ``task.spark-driver``; empty where the cluster's applies.
        working_directory: the directory in which its code runs. Default: the private directory of each attempt.
        environment: environment variables of its task processes; never shown.
        spark_conf: the job's own settings of Spark; may hold secrets.
        session_id: as in `JobGraph`.
        owner: as in `JobGraph`; only of a job that has a session, whose user it is in Spark.
        streaming_conf: the job's own settings ``task.streaming.*``.
    """

    job_id: JobID
    job_name: str
    kind: JobKind
    artifacts: tuple[Artifact, ...] = ()
    argv: tuple[str, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    spark_driver: str = ""
    working_directory: WorkingDirectory | None = None
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    spark_conf: dict[str, str] = field(default_factory=dict, repr=False)
    session_id: str = ""
    owner: str = ""
    streaming_conf: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: JobGraph) -> JobInformation:
        """Return the `JobInformation` of a job."""
        driver = by_own_key(graph.configuration).get(JobOptions.SPARK_DRIVER.key, "")
        conf = {key: value for key, value in graph.configuration.items() if key.startswith(SPARK_PREFIX)}
        return cls(
            graph.job_id,
            graph.name,
            graph.kind,
            graph.artifacts,
            graph.argv,
            graph.parameters,
            driver,
            graph.working_directory,
            graph.environment,
            conf,
            graph.session_id,
            graph.owner if graph.session_id else "",
            {key: value for key, value in graph.configuration.items() if key.startswith(STREAMING_PREFIX)},
        )


@dataclass(frozen=True, slots=True)
class AttemptInformation:
    """The part of a deployment that belongs to one attempt.

    Args:
        attempt_id: of this attempt; a TaskExecutor runs it once, even if it is deployed twice.
        attempt_number: 0 for the first attempt of the task.
        allocation_id: the slot to run in.
        task_key: `runtime.jobgraph.topology.Chain.key`.
        task_name: of the chain.
        vertices: in the order in which they run; a script has exactly one.
        memory_bytes: bytes that the task process may take in addition to those at its start; 0 for no limit.
        restore: the state that its streaming queries start from; None if they start without state.
        traceparent: the span under which its code runs, as W3C's trace context writes it; empty if there is none.
    """

    attempt_id: ExecutionAttemptID
    attempt_number: int
    allocation_id: AllocationID
    task_key: JobVertexID
    task_name: str
    vertices: tuple[VertexDescriptor, ...]
    memory_bytes: int = 0
    restore: JobManagerTaskRestore | None = None
    traceparent: str = ""

    @property
    def blocking_outputs(self) -> dict[JobVertexID, str]:
        """Return the paths of the results that this task materialises, by vertex."""
        return {vertex.id: vertex.result_path for vertex in self.vertices if vertex.result_path is not None}


@dataclass(frozen=True, slots=True)
class TaskDeploymentDescriptor:
    """Everything that a TaskExecutor and the task process need to run one attempt of a task."""

    job: JobInformation
    attempt: AttemptInformation

    @classmethod
    def internal(
        cls,
        name: str,
        kind: JobKind,
        *vertices: VertexDescriptor,
        argv: tuple[str, ...] = (),
        parameters: dict[str, Any] | None = None,
    ) -> TaskDeploymentDescriptor:
        """Return the descriptor of an internal task of the runtime, such as a warm-up, which belongs to no job."""
        return cls(
            JobInformation(JobID.from_name(name), name, kind, argv=argv, parameters=parameters or {}),
            AttemptInformation(
                ExecutionAttemptID.random(), 0, AllocationID.random(), JobVertexID.of(name, name), name, vertices
            ),
        )


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """A descriptor in the form in which it travels.

    Args:
        job: the encoded `JobInformation`, as a blob when it is large.
        attempt: the encoded `AttemptInformation`, as a blob when it is large.
    """

    job: Inline | Offloaded
    attempt: Inline | Offloaded


@dataclass(frozen=True, slots=True)
class ResultPartitionInfo:
    """A materialised result as its producer announces it (Flink's `ResultPartitionBytes`).

    Args:
        vertex_id: the vertex that made it.
        path: its directory, which exists only once the result is complete.
        subpartitions: number of its files: one for each partition of the producer's Spark plan.
        bytes: their total size.
    """

    vertex_id: JobVertexID
    path: str
    subpartitions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SparkWork:
    """Names by which Spark's own pages show an attempt's work.

    Args:
        application: id of the Spark application of its driver, which other jobs may share.
        tag: the tag, or the beginning of the tags, that each of its Spark jobs bears.
    """

    application: str
    tag: str


@dataclass(frozen=True, slots=True)
class TaskExecutionState:
    """A TaskExecutor's report on an attempt (Flink's `TaskExecutionState`).

    Args:
        attempt_id: which attempt.
        state: the state that it has entered.
        error: the cause; only with FAILED.
        exit_status: the exit status of the task process, negative for a signal; only with a terminal state.
        logs: the attempt's kept logs, only with a terminal state; none where they could not be uploaded.
        partitions: the results that it has materialised; only with FINISHED.
        spark: its work in Spark, from RUNNING on; None where it is not known.
    """

    attempt_id: ExecutionAttemptID
    state: ExecutionState
    error: ErrorInfo | None = None
    exit_status: int | None = None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()
    spark: SparkWork | None = None


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """One attempt as its TaskExecutor reports it.

    Args:
        state: the state that it entered last; the TaskExecutor keeps a terminal one until a JobMaster acknowledges it.
        since_ms: when it entered that state, in milliseconds since the epoch.
        task_key: of its task.
        allocation_id: of its slot.
    """

    state: TaskExecutionState
    since_ms: int
    task_key: JobVertexID
    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """A TaskExecutor's offer of one slot: the allocation that it answers, and the slot."""

    allocation_id: AllocationID
    slot_id: SlotID


@dataclass(frozen=True, slots=True)
class JobReport:
    """All attempts and slots of one job at a TaskExecutor (Flink's `ExecutionDeploymentReport`, and the slots).

    Args:
        executions: the attempts.
        slots: the slots that are allocated to this job.
    """

    executions: tuple[ExecutionReport, ...]
    slots: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One Spark stage.

    Args:
        stage_id: its number in Spark.
        name: its name in Spark: the call that made it.
        tasks: number of its tasks.
        completed: number of tasks that are done.
        active: number of tasks that run.
        state: ``PENDING``, ``ACTIVE``, ``COMPLETE``, ``FAILED`` or ``SKIPPED``, as Spark's own page shows it.
        parents: numbers of the stages of its Spark job whose output it reads.
    """

    stage_id: int
    name: str
    tasks: int
    completed: int
    active: int
    state: str
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedSparkJob:
    """A Spark job that has ended.

    Args:
        job_id: its number in Spark.
        name: its name in Spark: the call that made it.
        start_ms: when it was submitted, in milliseconds since the epoch.
        end_ms: when it ended.
        failed: whether it failed.
    """

    job_id: int
    name: str
    start_ms: int
    end_ms: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """Spark's own counts for one vertex: stages in all and completed; tasks in all, completed and active.

    `latest_stages` are the newest stages of a script, the newest last; a pipeline's vertex reports none. `latest_jobs`
    are the last Spark jobs that have ended; only an attempt in a trace reports them. Those of a pipeline's task are all
    with its first vertex, and are reported at its end.
    """

    vertex_id: JobVertexID
    stages: int = 0
    stages_completed: int = 0
    tasks_total: int = 0
    tasks_completed: int = 0
    tasks_active: int = 0
    latest_stages: tuple[StageProgress, ...] = ()
    latest_jobs: tuple[EndedSparkJob, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """A TaskExecutor's report on the progress of an attempt; each replaces the one before.

    Args:
        attempt_id: which attempt.
        vertices: Spark's counts.
        queries: its active streaming queries.
        stands_by: whether its code waits at the start of a streaming query for the end of the former job.
    """

    attempt_id: ExecutionAttemptID
    vertices: tuple[VertexProgress, ...]
    queries: tuple[StreamingQuery, ...] = ()
    stands_by: bool = False


def result_path(results_dir: str, vertex_id: JobVertexID, attempt_number: int) -> str:
    """Return the directory in which an attempt materialises a vertex's result; each attempt has its own."""
    return f"{results_dir}/{vertex_id}/attempt-{attempt_number}"


def describe_vertices(
    graph: JobGraph, chain: Chain, attempt_number: int, results_dir: str, results: dict[JobVertexID, str]
) -> tuple[VertexDescriptor, ...]:
    """Return the descriptors of a chain's vertices for one attempt.

    Args:
        graph: the job.
        chain: the task.
        attempt_number: of the attempt.
        results_dir: the directory of the job's materialised results.
        results: paths of the results of finished vertices in other tasks.
    """
    own = set(chain.vertices)

    def path_of(vertex_id: JobVertexID) -> str:
        return result_path(results_dir, vertex_id, attempt_number) if vertex_id in own else results[vertex_id]

    described = []
    for vertex_id in chain.vertices:
        vertex = graph.vertex(vertex_id)
        inputs = tuple(
            VertexInput(
                edge.source,
                path_of(edge.source) if edge.exchange is ExchangeMode.BLOCKING else None,
                edge.ship_strategy,
                edge.keys,
            )
            for edge in graph.inputs_of(vertex_id)
        )
        is_materialised = any(edge.exchange is ExchangeMode.BLOCKING for edge in graph.outputs_of(vertex_id))
        path = path_of(vertex_id) if is_materialised else None
        described.append(
            VertexDescriptor(vertex_id, vertex.name, vertex.function or "", inputs, path, vertex.parallelism)
        )
    return tuple(described)


def pack(descriptor: TaskDeploymentDescriptor) -> tuple[bytes, bytes]:
    """Encode the two parts of a descriptor: the job's, and the attempt's."""
    return encode(descriptor.job), encode(descriptor.attempt)


def unpack(job: bytes, attempt: bytes) -> TaskDeploymentDescriptor:
    """Return the descriptor that `pack` has encoded; raises WireError where the bytes are none."""
    return TaskDeploymentDescriptor(decode(job, JobInformation), decode(attempt, AttemptInformation))
