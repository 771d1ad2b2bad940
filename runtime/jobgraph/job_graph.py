"""The JobGraph: a job as the client submits it; plain data that is sent and stored (Flink's `JobGraph`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from runtime.feature_level import Format, oldest_version
from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import UnknownVertexError
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.working_directory import WorkingDirectory

DEFAULT_SLOT_SHARING_GROUP = "default"


class JobKind(Enum):
    """Kind of the job's main file."""

    SCRIPT = "script"
    """An unchanged PySpark program, run as ``__main__`` in one task."""
    PIPELINE = "pipeline"
    """Vertices built with `runtime.api.Pipeline`."""


class VertexRole(Enum):
    """Role of a vertex in the graph."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"
    SCRIPT = "script"


class ShipStrategy(Enum):
    """Distribution of rows among the partitions of the consumer (Flink's stream partitioners)."""

    FORWARD = "forward"
    HASH = "hash"
    REBALANCE = "rebalance"
    BROADCAST = "broadcast"


class ExchangeMode(Enum):
    """Connection of producer and consumer: one lazy Spark plan, or a materialised result between them."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"


class ArtifactRole(Enum):
    """Purpose of an artifact of a job."""

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
    """A directory as a zip file; the job runs in a copy of it."""
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the job: in the job graph itself if it is small, else a PERMANENT blob.

    Args:
        name: its file name.
        role: its purpose.
        blob_key: the text of the blob's key; empty if there is none.
        content: the file's bytes; None if they are in the blob.
        size: bytes of the blob, as the Dispatcher found it when it accepted the job; 0 if it did not look.
    """

    name: str
    role: ArtifactRole
    blob_key: str = ""
    content: bytes | None = None
    size: int = 0


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
            restart strategy decides.
        memory_bytes: how much its task process may take in addition to its memory at the start; 0 for no limit.
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
    """The savepoint, or another job's checkpoint, from which a job starts (Flink's `SavepointRestoreSettings`).

    Args:
        path: its directory.
        allow_non_restored_state: whether the job may start although it does not use all of the state.
        new_query_id: whether its streaming queries get new ids. None: only a query that starts in another
            checkpointLocation while a Spark driver may still write to the former one.
        after: id of the job that ends with this savepoint. The new job may be submitted before: its code runs to the
            start of its first streaming query, and waits there for that end. Empty: the savepoint is there.
        dropped: names of queries whose state the job leaves on purpose. Savepoints of the job carry over the state of
            all others that it has not started yet. None: *allow_non_restored_state* decides for all queries.
    """

    path: str
    allow_non_restored_state: bool = False
    new_query_id: bool | None = None
    after: str = ""
    dropped: tuple[str, ...] | None = None

    def drops(self, name: str) -> bool:
        """Return whether the job leaves the state of a query on purpose if it does not start the query."""
        return self.allow_non_restored_state if self.dropped is None else name in self.dropped


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A job to be run. Check it with `runtime.jobgraph.validation.validate`.

    Args:
        job_id: chosen by the client; a second submission with the same id changes nothing.
        name: shown to the user; with the vertex names it determines the vertex ids.
        kind: script or pipeline.
        vertices: in the order in which the user named them.
        edges: in input order for each target.
        artifacts: the job's files; exactly one of them is MAIN once the client has uploaded them.
        parameters: JSON-like values that the vertices see as ``ctx.parameters``.
        argv: arguments after the file on the command line; a script's ``sys.argv[1:]``.
        restart_strategy: None for the cluster's default.
        created_ms: when the client made it, in milliseconds since the epoch.
        format_version: of this structure (`runtime.feature_level`); readers refuse unknown versions.
        priority: jobs with a higher one get slots first.
        savepoint: the state from which its streaming queries start; None: they start without state.
        configuration: the job's own settings, by key: `conf.options.JOB_OPTIONS` and Spark's.
        submitter: name of the user who submitted it, as the client reports it; empty if unknown.
        working_directory: where its code runs; None: in the private directory of each attempt.
        environment: environment variables of its task processes. Their values may be secrets: they are never shown.
        client_heartbeat_timeout_s: for an attached job: seconds without a heartbeat of its client after which it is
            cancelled (Flink's ``initialClientHeartbeatTimeout``). None: it needs no client.
        is_function: whether the script was made of a function that a Python program submitted; only for display.
        owner: name of the user whose token submitted it, set by the web endpoint; empty for a client with one of the
            cluster's own secrets.
        session_id: id of the Spark Connect session that the job keeps open for a client (`runtime.rest.connect`);
            empty for any other job.
        upgraded_from: id of the job whose place it took: `understudy job upgrade` has stopped that one with the
            savepoint from which this one began. Empty for any other job.
        traceparent: the client's span, as W3C's trace context writes it; empty if there is none.
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
    format_version: int = oldest_version(Format.JOB_GRAPH)
    priority: int = 0
    savepoint: SavepointRestoreSettings | None = None
    configuration: dict[str, str] = field(default_factory=dict)
    submitter: str = ""
    working_directory: WorkingDirectory | None = None
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    client_heartbeat_timeout_s: float | None = None
    is_function: bool = False
    owner: str = ""
    session_id: str = ""
    upgraded_from: str = ""
    traceparent: str = ""

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
        """Return the graph of an unchanged PySpark script: one vertex with the job's name."""
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

    @property
    def largest_memory(self) -> int:
        """Bytes of memory of the vertex that may take most; 0 if none has a limit."""
        return max((vertex.memory_bytes for vertex in self.vertices), default=0)

    @property
    def blob_bytes(self) -> int:
        """Bytes of the job's blobs, as far as they are known."""
        return sum(artifact.size for artifact in self.artifacts)

    @property
    def blobs_text(self) -> str:
        """Name the job's blobs for a refusal; see `files_text`."""
        return files_text((artifact.name, artifact.role, artifact.size) for artifact in self.artifacts)

    def with_artifacts(self, *artifacts: Artifact) -> JobGraph:
        """Return a copy with *artifacts* instead of its own."""
        return replace(self, artifacts=artifacts)

    def vertex(self, vertex_id: JobVertexID) -> JobVertex:
        """Return the vertex of that id.

        Raises:
            UnknownVertexError: there is none.
        """
        for vertex in self.vertices:
            if vertex.id == vertex_id:
                return vertex
        raise UnknownVertexError(f"job {self.name!r} has no vertex {vertex_id}")

    def inputs_of(self, vertex_id: JobVertexID) -> tuple[JobEdge, ...]:
        """Return the edges into a vertex, in the order of its function's arguments."""
        return tuple(edge for edge in self.edges if edge.target == vertex_id)

    def outputs_of(self, vertex_id: JobVertexID) -> tuple[JobEdge, ...]:
        """Return the edges out of a vertex."""
        return tuple(edge for edge in self.edges if edge.source == vertex_id)


_NAMED = 3
_MB = 1 << 20


def files_text(files: Iterable[tuple[str, ArtifactRole, int]]) -> str:
    """Name the largest files of a job, for the refusal of a job that ships too much; empty if all are empty.

    The copy of a working directory is named as such, with what makes it smaller. A client makes this copy of its own
    accord if TaskExecutors do not see the current directory.

    Args:
        files: name, role and bytes of each.
    """
    largest = sorted((one for one in files if one[2]), key=lambda one: (-one[2], one[0]))
    if not largest:
        return ""
    names = [
        f"{'a copy of the working directory' if role is ArtifactRole.WORKING_DIRECTORY else name} {_size(size)}"
        for name, role, size in largest[:_NAMED]
    ]
    if rest := largest[_NAMED:]:
        names.append(
            f"{len(rest)} smaller {'file' if len(rest) == 1 else 'files'} {_size(sum(one[2] for one in rest))}"
        )
    text = f"it ships {', '.join(names)}"
    if any(role is ArtifactRole.WORKING_DIRECTORY for _, role, _ in largest):
        text += "; --working-dir DIRECTORY ships another directory, even an empty one, and .gitignore leaves files out"
    return text


def _size(size: int) -> str:
    return f"({size / _MB:.1f} MB)" if size >= _MB / 10 else f"({size} bytes)"
