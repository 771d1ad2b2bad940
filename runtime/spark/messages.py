"""Messages between a task process and its TaskExecutor, over the task's control socket. Importable without pyspark.

A message is a dataclass here, and on the wire a map of its fields with its ``type``: `pack` and `unpack`. The job's
code runs in the task process and could send anything: what a TaskExecutor unpacks is of the right form, and no more.
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
        traceback: as Python prints it, without our frames.
        error_class: PySpark's condition, such as TABLE_OR_VIEW_NOT_FOUND; None for another error.
        lost_result: the vertex whose materialised result is not there (any more); None for another error.
        exit_status: with which the script ended itself; None for another error.
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
    """The process has opened its way into Spark, and waits for its task; or it has got that, and begins."""


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
        query: where it is.
        batch: the last batch that it has committed.
        note: what state was put back for it, and why; empty where it goes on from its own files.
    """

    query: QueryLocation
    batch: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Text to be added to the failure of the task, if it fails."""

    text: str


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """The task asks that nobody else writes to a checkpointLocation; `LeaseAnswer` has the same number.

    *is_running*: a query runs there already, which does not end where nobody knows who else writes there.
    """

    number: int
    location: str
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A streaming query has failed, and the task's code does nothing about it.

    Without an *error* it is lost: somebody else has stopped it.
    """

    name: str
    error: ErrorDescription | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The task's code has come to its end.

    Args:
        partitions: what is announced of the results that it wrote: the fields of a `ResultPartitionInfo` each.
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
    """The task's code has ended because it was told to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the `Ask` of the same number."""

    number: int
    values: list[Any]


# ------------------------------------------------------------------ to the task


@dataclass(frozen=True, slots=True)
class Run:
    """The task of a process that is ready, or of a program."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class Cancel:
    """The task is to end: its Spark jobs end, then `TaskCancelled` is raised in its code."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """The task has the lease that it asked for; or the error says why not."""

    number: int
    error: str | None = None


class Question(Enum):
    """A question of a TaskExecutor's to a task process."""

    THREADS = "threads"
    """Name and stack of each of its threads."""
    FAILED_QUERIES = "failed queries"
    """Run id, name and error of each streaming query that has failed and was not started again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `Answer` has the same number."""

    number: int
    question: Question


FromTask = (
    Ready | Running | Progress | QueryStarts | Note | LeaseRequest | QueryFailed | Finished | Failed | Canceled | Answer
)
ToTask = Run | Cancel | LeaseAnswer | Ask

_FROM_TASK: dict[str, type] = {kind.__name__: kind for kind in FromTask.__args__}
_TO_TASK: dict[str, type] = {kind.__name__: kind for kind in ToTask.__args__}


def pack(message: FromTask | ToTask) -> Message:
    """Return a message as it goes over the wire."""
    return {"type": type(message).__name__, **to_plain(message)}


def unpack_from_task(message: Message) -> FromTask:
    """Return what a task process has sent. Raises `WireError`."""
    found: FromTask = _unpack(message, _FROM_TASK)
    return found


def unpack_to_task(message: Message) -> ToTask:
    """Return what a TaskExecutor has sent. Raises `WireError`."""
    found: ToTask = _unpack(message, _TO_TASK)
    return found


def _unpack(message: Message, kinds: dict[str, type]) -> Any:
    kind = kinds.get(str(message.get("type")))
    if kind is None:
        raise WireError(f"a control message is of the type {message.get('type')!r}, which is unknown")
    try:
        return from_plain({name: value for name, value in message.items() if name != "type"}, kind)
    except UnfitError as error:
        raise WireError(f"a control message is no {kind.__name__}: {error}") from error


def prepare_messages() -> None:
    """Compile now what reads and writes them: the processes that are forked from this one find it done."""
    prepare(*_FROM_TASK.values(), *_TO_TASK.values())
