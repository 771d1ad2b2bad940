"""Messages between a task process and its TaskExecutor, over the task's control socket. Importable without pyspark.

A message is a dataclass here, and on the wire a map of its fields with its ``type`` (`pack`, `unpack_from_task`). The
job's code runs in the task process and could send anything. A TaskExecutor checks only the form of a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from actors.errors import WireError as UnfitError
from actors.rpc.codec import from_plain, prepare, to_plain
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import WireError
from runtime.spark.spec import TaskSpec
from runtime.spark.wire import Message


@dataclass(frozen=True, slots=True)
class ErrorDescription:
    """An error of the task's code.

    Args:
        type: its class, with the module unless that is Python's or the job's own.
        message: its text.
        traceback: as Python prints it, without Understudy's frames.
        error_class: PySpark's condition, such as TABLE_OR_VIEW_NOT_FOUND; None for another error.
        lost_result: the vertex whose materialised result is missing; None for another error.
        exit_status: exit status with which the script ended itself; None for another error.
    """

    type: str
    message: str
    traceback: str
    error_class: str | None = None
    lost_result: str | None = None
    exit_status: int | None = None


# ------------------------------------------------------------------ from the task


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has connected to Spark, and waits for its task; or it has received the task, and starts it."""


@dataclass(frozen=True, slots=True)
class Running:
    """The task's code is about to run."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State and Spark's counts of each vertex, by its id: see `TaskProgress.snapshot`."""

    vertices: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class QueryStarts:
    """A streaming query is about to start.

    Args:
        query: its location.
        batch: the last batch that it has committed.
        note: the state that was restored for it, and why; empty where it resumes from its own files.
    """

    query: QueryLocation
    batch: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class QueryRestores:
    """State may be about to be restored for a streaming query; `QueryStarts` follows.

    Args:
        name: of the query.
        has_failed: whether that has failed, and the query does not start.
    """

    name: str
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Text to add to the failure of the task, if it fails."""

    text: str


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """The task requests the lease of a checkpointLocation, to be its only writer; `LeaseAnswer` has the same number.

    *is_running*: a query runs there already. It keeps running if it is unknown who else writes there.
    """

    number: int
    location: str
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class StandsBy:
    """The task's code is at the start of its first streaming query, and waits for the end of the former job."""


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A streaming query has failed, and the task's code does not handle it.

    Without an *error* the query is lost: it was stopped, but not by the task's code.
    """

    name: str
    error: ErrorDescription | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's code has ended without an error.

    Args:
        partitions: the results that it wrote, each as the fields of a `ResultPartitionInfo`.
        streaming: whether it has started streaming queries, or may have.
        lost_queries: names of the queries that are lost.
        queries: last reports of its queries: see `QuerySupervisor.last_progress`.
    """

    partitions: list[dict[str, Any]] = field(default_factory=list)
    streaming: bool = True
    lost_queries: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """The task's code has failed."""

    error: ErrorDescription


@dataclass(frozen=True, slots=True)
class Canceled:
    """The task's code has ended because it was cancelled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the `Ask` of the same number."""

    number: int
    values: list[Any]


# ------------------------------------------------------------------ to the task


@dataclass(frozen=True, slots=True)
class Run:
    """The task for a ready process, or for a program."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class Cancel:
    """Order to end the task: its Spark jobs end, then `TaskCancelled` is raised in its code."""


@dataclass(frozen=True, slots=True)
class EndSession:
    """Order to a task that keeps a session open for a client: finish."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """The task has the lease that it requested; or *error* is the reason why not."""

    number: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EndHold:
    """The starts of streaming queries that `Question.HOLD_STARTS` has held are decided.

    Args:
        number: of the last `Ask` before: holds up to it end.
        stops: whether the job is stopped, so that no query may start; else the held ones start now.
    """

    number: int
    stops: bool = False


class Question(Enum):
    """A question of a TaskExecutor to a task process."""

    THREADS = "threads"
    """Name and stack of each of its threads."""
    FAILED_QUERIES = "failed queries"
    """Run id, name and error of each streaming query that has failed and was not started again."""
    HOLD_STARTS = "hold starts"
    """Names of the streaming queries that are being started. If there are none, further starts wait for `EndHold`."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `Answer` has the same number."""

    number: int
    question: Question


FromTask = (
    Ready
    | Running
    | Progress
    | StandsBy
    | QueryRestores
    | QueryStarts
    | Note
    | LeaseRequest
    | QueryFailed
    | Finished
    | Failed
    | Canceled
    | Answer
)
ToTask = Run | Cancel | EndSession | LeaseAnswer | EndHold | Ask

_FROM_TASK: dict[str, type] = {kind.__name__: kind for kind in FromTask.__args__}
_TO_TASK: dict[str, type] = {kind.__name__: kind for kind in ToTask.__args__}


def pack(message: FromTask | ToTask) -> Message:
    """Return a message in the form that travels."""
    return {"type": type(message).__name__, **to_plain(message)}


def unpack_from_task(message: Message) -> FromTask:
    """Return the message that a task process has sent. Raises `WireError`."""
    found: FromTask = _unpack(message, _FROM_TASK)
    return found


def unpack_to_task(message: Message) -> ToTask:
    """Return the message that a TaskExecutor has sent. Raises `WireError`."""
    found: ToTask = _unpack(message, _TO_TASK)
    return found


def _unpack(message: Message, kinds: dict[str, type]) -> Any:
    kind = kinds.get(str(message.get("type")))
    if kind is None:
        raise WireError(f"a control message is of the type {message.get('type')!r}, which is unknown")
    try:
        return from_plain({name: value for name, value in message.items() if name != "type"}, kind)
    except UnfitError as error:
        raise WireError(f"a control message is not a valid {kind.__name__}: {error}") from error


def prepare_messages() -> None:
    """Compile the code that reads and writes messages now, so that processes forked from this one have it."""
    prepare(*_FROM_TASK.values(), *_TO_TASK.values())
