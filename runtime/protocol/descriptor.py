"""Messages between JobMaster and TaskExecutor about a task (Flink's `TaskDeploymentDescriptor` and its replies)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blob.offload import Inline, Offloaded
from conf.options import JobOptions
from conf.registry import SPARK_PREFIX
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
        path: where the source's result lies, which a BLOCKING edge leaves there; None for a PIPELINED edge, by which
            the function gets the DataFrame that the source's function has returned in this task.
        ship_strategy: how rows are divided.
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
        result_path: directory of the `ResultPartition` to make where a BLOCKING edge leaves the vertex; None otherwise.
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

    Its bytes are the same every time, so that large ones are uploaded once; Flink does so with the serialized
    `JobInformation` of its `TaskDeploymentDescriptor`.

    Args:
        job_id: of the job.
        job_name: of the job.
        kind: script or pipeline.
        artifacts: the job's files.
        argv: a script's arguments.
        parameters: ``ctx.parameters``.
        spark_driver: the job's own ``task.spark-driver``; empty where the cluster's holds.
        working_directory: where its code runs; None: in the private directory of each attempt.
        environment: environment variables of its task processes; never shown.
        spark_conf: the job's own settings of Spark; may hold secrets.
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

    @classmethod
    def of(cls, graph: JobGraph) -> JobInformation:
        """Return that of a job."""
        driver = graph.configuration.get(JobOptions.SPARK_DRIVER.key, "")
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
        )


@dataclass(frozen=True, slots=True)
class AttemptInformation:
    """The part of a deployment that is one attempt's own.

    Args:
        attempt_id: of this attempt; deploying one twice is deploying it once.
        attempt_number: 0 for the first attempt of the task.
        allocation_id: the slot to run in.
        task_key: `runtime.jobgraph.topology.Chain.key`.
        task_name: of the chain.
        vertices: in the order in which they run; a script has exactly one.
        memory_bytes: what the task process may take beyond what it begins with; 0 for no limit.
        restore: the state that its streaming queries begin with; None: they begin without.
    """

    attempt_id: ExecutionAttemptID
    attempt_number: int
    allocation_id: AllocationID
    task_key: JobVertexID
    task_name: str
    vertices: tuple[VertexDescriptor, ...]
    memory_bytes: int = 0
    restore: JobManagerTaskRestore | None = None

    @property
    def blocking_outputs(self) -> dict[JobVertexID, str]:
        """Results that this task materialises, by vertex."""
        return {vertex.id: vertex.result_path for vertex in self.vertices if vertex.result_path is not None}


@dataclass(frozen=True, slots=True)
class TaskDeploymentDescriptor:
    """All that a TaskExecutor, and the process of the task, need to run one attempt of a task."""

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
        """Return that of a task of the runtime's own, such as a warm-up, which belongs to no submitted job."""
        return cls(
            JobInformation(JobID.from_name(name), name, kind, argv=argv, parameters=parameters or {}),
            AttemptInformation(
                ExecutionAttemptID.random(), 0, AllocationID.random(), JobVertexID.of(name, name), name, vertices
            ),
        )


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """A descriptor as it travels.

    Args:
        job: the encoded `JobInformation`, as a blob when it is large.
        attempt: the encoded `AttemptInformation`, as a blob when it is large.
    """

    job: Inline | Offloaded
    attempt: Inline | Offloaded


@dataclass(frozen=True, slots=True)
class ResultPartitionInfo:
    """What is announced of a materialised result (Flink's `ResultPartitionBytes`).

    Args:
        vertex_id: the vertex that made it.
        path: directory; it is there when the result is complete, and not before.
        subpartitions: how many files it consists of: one for each partition of the producer's Spark plan.
        bytes: their sizes together.
    """

    vertex_id: JobVertexID
    path: str
    subpartitions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TaskExecutionState:
    """A TaskExecutor's report on an attempt (Flink's `TaskExecutionState`).

    Args:
        attempt_id: which attempt.
        state: the state that it has entered.
        error: with FAILED: why.
        exit_status: with a terminal state: the exit status of the task process, negative for a signal.
        logs: with a terminal state: what is kept of the attempt's logs; none where they could not be put.
        partitions: with FINISHED: the results that it has materialised.
    """

    attempt_id: ExecutionAttemptID
    state: ExecutionState
    error: ErrorInfo | None = None
    exit_status: int | None = None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """What a TaskExecutor holds of one attempt.

    Args:
        state: the state that it entered last; a terminal one is kept until a JobMaster has acknowledged it.
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
    """A TaskExecutor's offer of one slot: the allocation it was made for, and which slot it is."""

    allocation_id: AllocationID
    slot_id: SlotID


@dataclass(frozen=True, slots=True)
class JobReport:
    """All that a TaskExecutor holds of one job (Flink's `ExecutionDeploymentReport`, and the slots).

    Args:
        executions: the attempts.
        slots: the slots that are this job's.
    """

    executions: tuple[ExecutionReport, ...]
    slots: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One Spark stage.

    Args:
        stage_id: Spark's number of it.
        name: Spark's: the call that made it.
        tasks: how many it has.
        completed: how many of these are done.
        active: how many run.
        state: ``PENDING``, ``ACTIVE``, ``COMPLETE``, ``FAILED`` or ``SKIPPED``, as Spark's own page has it.
    """

    stage_id: int
    name: str
    tasks: int
    completed: int
    active: int
    state: str


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """Spark's own counts for one vertex: stages seen and completed, tasks in all, completed and active.

    `latest_stages` are the newest stages of a script, the newest last; none are told of a pipeline's vertex.
    """

    vertex_id: JobVertexID
    stages: int = 0
    stages_completed: int = 0
    tasks_total: int = 0
    tasks_completed: int = 0
    tasks_active: int = 0
    latest_stages: tuple[StageProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """A TaskExecutor's report on how far an attempt is; the last one counts.

    Args:
        attempt_id: which attempt.
        vertices: Spark's counts.
        queries: its active streaming queries.
    """

    attempt_id: ExecutionAttemptID
    vertices: tuple[VertexProgress, ...]
    queries: tuple[StreamingQuery, ...] = ()


def result_path(results_dir: str, vertex_id: JobVertexID, attempt_number: int) -> str:
    """Return where an attempt materialises a vertex's result: each attempt in a directory of its own."""
    return f"{results_dir}/{vertex_id}/attempt-{attempt_number}"


def describe_vertices(
    graph: JobGraph, chain: Chain, attempt_number: int, results_dir: str, results: dict[JobVertexID, str]
) -> tuple[VertexDescriptor, ...]:
    """Return the vertices of a chain as an attempt runs them.

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
    """Return the descriptor that `pack` was given; raises WireError where the bytes are none."""
    return TaskDeploymentDescriptor(decode(job, JobInformation), decode(attempt, AttemptInformation))
