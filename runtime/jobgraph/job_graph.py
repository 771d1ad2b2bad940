"""The JobGraph: a job as the client submits it, plain data that travels and is kept (Flink's `JobGraph`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import UnknownVertexError
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.working_directory import WorkingDirectory

FORMAT_VERSION = 2
"""Of the structure below. To be raised whenever it changes: readers refuse what they do not know."""
DEFAULT_SLOT_SHARING_GROUP = "default"


class JobKind(Enum):
    """What the job's main file is."""

    SCRIPT = "script"
    """An unchanged PySpark program, run as ``__main__`` in one task."""
    PIPELINE = "pipeline"
    """Vertices built with `runtime.api.Pipeline`."""


class VertexRole(Enum):
    """Where a vertex stands in the graph."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"
    SCRIPT = "script"


class ShipStrategy(Enum):
    """How rows are divided among the partitions of the consumer (Flink's stream partitioners)."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"


class ExchangeMode(Enum):
    """Whether producer and consumer share one lazy Spark plan, or the result is materialised between them."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"


class ArtifactRole(Enum):
    """What an artifact of a job is for."""

    MAIN = "main"
    PY_FILE = "py-file"
    """A module or archive that is imported as it is."""
    PACKAGE = "package"
    """A wheel or source distribution, installed for the job."""
    REQUIREMENTS = "requirements"
    """A requirements file, installed for the job."""
    ARCHIVE = "archive"
    """A packed virtual environment, or an archive of modules, unpacked for the job."""
    JAR = "jar"
    WORKING_DIRECTORY = "working-directory"
    """A directory that the job runs in a copy of, as a zip file."""
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the job: in the job graph itself where it is small, else a PERMANENT blob.

    Args:
        name: its file name.
        role: what it is for.
        blob_key: the text of the blob's key; empty where there is none.
        content: the file's bytes; None where they are in the blob.
    """

    name: str
    role: ArtifactRole
    blob_key: str = ""
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobVertex:
    """One step of the job.

    Args:
        id: see `JobVertexID.of`.
        name: unique in the graph; shown to the user.
        function: ``module:qualname`` of the vertex's function; None for a script.
        role: source, operator, sink, or script.
        parallelism: partitions that HASH and REBALANCE edges into this vertex make; 0 leaves it to Spark.
        slot_sharing_group: vertices of one group may share a slot; those of one chain are of one group.
        retries: how many failures of the vertex's own code, or losses of its process, restart its task before the job's
            restart strategy is asked.
        memory_bytes: how much its task process may take beyond what it begins with; 0 for no limit.
    """

    id: JobVertexID
    name: str
    function: str | None
    role: VertexRole
    parallelism: int = 0
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP
    retries: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobEdge:
    """One input of *target*; a vertex's inputs are passed to its function in the order of the graph's edges.

    Args:
        source: the vertex that is read.
        target: the vertex that reads.
        ship_strategy: how rows are divided; HASH needs *keys*.
        exchange: PIPELINED edges chain both vertices into one task; BLOCKING ones materialise the source's result.
        keys: column names of a HASH edge.
    """

    source: JobVertexID
    target: JobVertexID
    ship_strategy: ShipStrategy = ShipStrategy.FORWARD
    exchange: ExchangeMode = ExchangeMode.PIPELINED
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SavepointRestoreSettings:
    """The savepoint, or another job's checkpoint, that a job begins from (Flink's `SavepointRestoreSettings`).

    Args:
        path: its directory.
        allow_non_restored_state: whether the job may begin although it does not claim all of the state.
        new_query_id: whether its streaming queries get new ids. None: only those that begin in another place, while
            the job that they are of runs, or their former place may still be written to.
    """

    path: str
    allow_non_restored_state: bool = False
    new_query_id: bool | None = None


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A job to be run. Check it with `runtime.jobgraph.validation.validate`.

    Args:
        job_id: chosen by the client: submission is idempotent by it.
        name: shown to the user; with the vertex names it determines the vertex ids.
        kind: script or pipeline.
        vertices: in the order in which the user named them.
        edges: in input order for each target.
        artifacts: the job's files; exactly one of them is MAIN once the client has uploaded them.
        parameters: JSON-like values that the vertices see as ``ctx.parameters``.
        argv: arguments after the file on the command line; a script's ``sys.argv[1:]``.
        restart_strategy: None for the cluster's default.
        created_ms: when the client made it, in milliseconds since the epoch.
        format_version: of this structure; readers refuse versions that they do not know.
        priority: slots go to jobs of a higher one first.
        savepoint: what its streaming queries begin from; None: they begin without state.
        configuration: what it sets for itself, of `conf.options.JOB_OPTIONS`, by key.
        submitter: name of the user who submitted it, as the client says; empty where that is not known.
        working_directory: where its code runs; None: in the private directory of each attempt.
        environment: environment variables of its task processes. Their values may be secrets: they are never shown.
        client_heartbeat_timeout_s: of an attached job: it is cancelled when its client has not been heard of for so
            many seconds (Flink's ``initialClientHeartbeatTimeout``). None: it needs no client.
        is_function: whether the script was made of a function that a Python program submitted; only shown.
    """

    job_id: JobID
    name: str
    kind: JobKind
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    restart_strategy: RestartStrategyConfig | None = None
    created_ms: int = 0
    format_version: int = FORMAT_VERSION
    priority: int = 0
    savepoint: SavepointRestoreSettings | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    submitter: str = ""
    working_directory: WorkingDirectory | None = None
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    client_heartbeat_timeout_s: float | None = None
    is_function: bool = False

    @classmethod
    def for_script(
        cls,
        name: str,
        *,
        job_id: JobID | None = None,
        argv: tuple[str, ...] = (),
        restart_strategy: RestartStrategyConfig | None = None,
        created_ms: int = 0,
    ) -> JobGraph:
        """The graph of an unchanged PySpark script: one vertex that bears the job's name."""
        vertex = JobVertex(JobVertexID.of(name, name), name, None, VertexRole.SCRIPT)
        return cls(
            job_id or JobID.random(),
            name,
            JobKind.SCRIPT,
            (vertex,),
            argv=argv,
            restart_strategy=restart_strategy,
            created_ms=created_ms,
        )

    def with_artifacts(self, *artifacts: Artifact) -> JobGraph:
        """A copy that carries *artifacts* in place of its own."""
        return replace(self, artifacts=artifacts)

    def vertex(self, vertex_id: JobVertexID) -> JobVertex:
        """The vertex of that id.

        Raises:
            UnknownVertexError: there is none.
        """
        for vertex in self.vertices:
            if vertex.id == vertex_id:
                return vertex
        raise UnknownVertexError(f"job {self.name!r} has no vertex {vertex_id}")

    def inputs_of(self, vertex_id: JobVertexID) -> tuple[JobEdge, ...]:
        """The edges into a vertex, in the order of its function's arguments."""
        return tuple(edge for edge in self.edges if edge.target == vertex_id)

    def outputs_of(self, vertex_id: JobVertexID) -> tuple[JobEdge, ...]:
        """The edges out of a vertex."""
        return tuple(edge for edge in self.edges if edge.source == vertex_id)
