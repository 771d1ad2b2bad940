"""Rehearses a new version of a job over batches that the present one has committed: what, and with what verdict. Pure.

*Blue* is the present version and *green* the new one. Both start from private copies of one savepoint of the running
job, and run the batches after it. Spark takes the input of each batch from blue's offset log. The rows that a query
would write go to private files. So the outputs can be compared batch by batch.

A `Plan` travels to the task that runs a version, and a `RehearsedQuery` for each query comes back, as JSON files.

A function of ``foreachBatch`` may have effects that cannot be recorded. It is called only if it has a parameter
``colour=None``, by which it learns the version: it can then write elsewhere.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.rpc.codec import from_plain, to_plain
from runtime.checkpoint.errors import CheckpointError

BLUE, GREEN = "blue", "green"
"""Colours of the versions."""

BATCHES = 3
"""Default number of batches that are rehearsed."""
MOST_BATCHES = 50
"""Spark keeps the offsets of the last 100 batches (``spark.sql.streaming.minBatchesToRetain``)."""
SAMPLES = 3
"""Rows that are shown of those that only one version has, for each batch."""
FIRST_S = 60.0
"""Seconds that the first batch after the savepoint is waited for."""
SETTLE_S = 5.0
"""Seconds without a batch after which no more are waited for, once there is one."""

REPLAYED = ("file", "rate", "rate-micro-batch", "kafka", "python")
"""Kinds of sources that give the same rows for the same offsets, as `runtime.spark.task.sources` names them.

Spark itself reads a planned batch of them once more after each failure. It does not know of a batch that is repeated
after its commit: a source that removes its input then is refused.
"""
_DESCRIBED = {"Python data source": "python", "RatePerMicroBatchStream": "rate-micro-batch", "TextSocket": "socket"}
"""Kinds of sources by how their descriptions in the progress of a query begin."""


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """One query of a rehearsal.

    Args:
        name: of the query.
        before: the last batch in the savepoint.
        last: the last batch to run.
        location: a private copy of its checkpointLocation as of *before*.
        offsets: directory with blue's offset log of the batches to run.
        rows: directory for the rows of each batch.
        result: file for the `RehearsedQuery`.
    """

    name: str
    before: int
    last: int
    location: str
    offsets: str
    rows: str
    result: str

    @property
    def batches(self) -> range:
        """Return the batches to run."""
        return range(self.before + 1, self.last + 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The rehearsal of one version.

    Args:
        colour: `BLUE` or `GREEN`.
        code: the job file.
        queries: the queries to run.
        blue: blue's queries, which have run, to compare with; none in the rehearsal of blue.
    """

    colour: str
    code: str
    queries: tuple[PlannedQuery, ...]
    blue: tuple[PlannedQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedQuery:
    """A query as the code of a job starts it.

    Args:
        name: of the query.
        sink: its format, such as ``parquet`` or ``foreachbatch``.
        trigger: ``once``, ``repeated``, or ``continuous``.
        sources: the kinds of its sources; an empty text is a kind that is not known yet.
        problem: why one of its sources cannot be read again, as `source_problem` says; empty if there is no reason.
    """

    name: str
    sink: str
    trigger: str
    sources: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RehearsedBatch:
    """One batch of one version.

    Args:
        batch_id: of the batch.
        rows: number of rows that the query would have written.
        digest: checksum of these rows, which does not depend on their order.
        duration_ms: of the batch, as Spark reports it; None if it does not.
        only_blue: rows of blue that green does not have; 0 in the rehearsal of blue.
        only_green: rows of green that blue does not have; 0 in the rehearsal of blue.
        blue_samples: some rows that only blue has, as JSON texts.
        green_samples: some rows that only green has, as JSON texts.
    """

    batch_id: int
    rows: int
    digest: str
    duration_ms: int | None = None
    only_blue: int = 0
    only_green: int = 0
    blue_samples: tuple[str, ...] = ()
    green_samples: tuple[str, ...] = ()

    def is_same(self, other: RehearsedBatch) -> bool:
        """Return whether both versions have the same rows."""
        return (self.rows, self.digest) == (other.rows, other.digest)


@dataclass(frozen=True, slots=True)
class RehearsedState:
    """The state of one stateful operator after the last batch.

    Args:
        operator: its id.
        store: name of its store.
        rows: number of keys.
        digest: checksum of keys and values, which does not depend on their order.
    """

    operator: int
    store: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class RehearsedQuery:
    """One query of one version.

    Args:
        name: of the query.
        columns: of its output, with their types, as Spark's DDL text.
        batches: in their order.
        state: of its stateful operators after the last batch.
        unread: why the state of other operators is not in `state`.
        is_called: whether its function of ``foreachBatch`` was called; None if it has none, or no batch.
    """

    name: str
    columns: str
    batches: tuple[RehearsedBatch, ...]
    state: tuple[RehearsedState, ...] = ()
    unread: tuple[str, ...] = ()
    is_called: bool | None = None


def encode(value: Plan | RehearsedQuery) -> bytes:
    """Return the JSON form of a plan or a result."""
    return json.dumps(to_plain(value)).encode()


def decode_plan(content: bytes) -> Plan:
    """Return a plan from its JSON form; raises ValueError or WireError."""
    found: Plan = from_plain(json.loads(content), Plan)
    return found


def decode_result(content: bytes) -> RehearsedQuery:
    """Return a result from its JSON form; raises ValueError or WireError."""
    found: RehearsedQuery = from_plain(json.loads(content), RehearsedQuery)
    return found


@dataclass(frozen=True, slots=True)
class Position:
    """The batches of a query of blue since the savepoint.

    Args:
        before: the last one in the savepoint.
        committed: the last committed one.
        planned: the last planned one.
    """

    before: int
    committed: int
    planned: int


def has_enough(queries: Mapping[str, Position], wanted: int, quiet_s: float, *, is_over: bool) -> bool:
    """Return whether blue has committed the batches to rehearse, or will commit no more soon.

    Args:
        queries: its queries, by name.
        wanted: number of batches of each query.
        quiet_s: seconds since a batch was last planned or committed.
        is_over: whether the job has ended.
    """
    found = queries.values()
    if is_over or all(query.committed - query.before >= wanted for query in found):
        return True
    if any(query.planned > query.committed for query in found):
        return False
    has_any = any(query.committed > query.before for query in found)
    return quiet_s >= (SETTLE_S if has_any else FIRST_S)


def last_batches(queries: Mapping[str, Position], wanted: int) -> dict[str, int]:
    """Return the last batch to rehearse of each query; a query without a new one has that of the savepoint.

    Raises:
        CheckpointError: no query has committed a batch since the savepoint.
    """
    found = {name: max(query.before, min(query.committed, query.before + wanted)) for name, query in queries.items()}
    if all(last == queries[name].before for name, last in found.items()):
        raise CheckpointError(
            "the job has committed no batch since the savepoint, so there is none to rehearse",
            "try again when its sources have data; the job runs on",
        )
    return found


def takes_colour(function: object) -> bool:
    """Return whether a function of ``foreachBatch`` takes part in rehearsals: it has a parameter ``colour=None``."""
    try:
        found = inspect.signature(function).parameters.get("colour")  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not callable, or a callable of another language without a signature
        return False
    return (
        found is not None
        and found.default is None
        and found.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    )


def source_problem(kind: str, options: Mapping[str, object]) -> str:
    """Return why the options of a source forbid to read its batches again; empty if they do not.

    Args:
        kind: of the source.
        options: of the reader.
    """
    found = {key.lower(): str(value).lower() for key, value in options.items() if value is not None}
    if found.get("cleansource", "off") != "off":
        return "reads files with cleanSource, which removes the input of its batches"
    if kind.partition(":")[0] == "kafka":
        if "kafka.group.id" in found:
            return "reads Kafka with kafka.group.id: the rehearsal would take messages from the running job"
        if found.get("failondataloss", "true") == "false":
            return "reads Kafka with failOnDataLoss=false: messages that Kafka has removed would be missing unnoticed"
    return ""


def kind_of_running(kind: str, description: str | None) -> str:
    """Return the kind of a source of a running query; empty if it is not known.

    Args:
        kind: as its offsets show it (`runtime.checkpoint.description.source_kind`).
        description: Spark's, in the progress of the query; None if it is not known.
    """
    if kind == "file":
        return kind
    if description is None:
        return ""
    found = next((exact for start, exact in _DESCRIBED.items() if description.startswith(start)), kind)
    return "" if found == "unknown" else found


def refusal(query: StartedQuery) -> str:
    """Return why a query cannot be rehearsed; empty if it can."""
    for number, kind in enumerate(query.sources):
        if reason := source_refusal(kind):
            return f"source {number} of query {query.name!r} is {reason}"
    if query.trigger == "continuous":
        return f"query {query.name!r} has a continuous or real-time trigger, and so no batches to repeat"
    if query.sink == "memory":
        return f"query {query.name!r} writes to a memory sink, whose table would be missing in the rehearsal"
    return f"query {query.name!r} {query.problem}" if query.problem else ""


def source_refusal(kind: str) -> str:
    """Return why the batches of a source of a kind cannot be repeated; empty if they can, or the kind is empty."""
    if not kind or kind.partition(":")[0] in REPLAYED:
        return ""
    shown = {"other": "of another kind", "unknown": "of an unknown kind"}.get(kind, kind)
    return (
        f"{shown}: only files, Kafka, rate sources and Python data sources are known to give the same rows for the "
        "same batch again"
    )


def refuse(blue: Sequence[StartedQuery], green: Sequence[StartedQuery]) -> None:
    """Check that both versions can be rehearsed.

    Args:
        blue: the queries of the savepoint.
        green: the queries of the new version.

    Raises:
        CheckpointError: one cannot.
    """
    for query in (*blue, *green):
        if reason := refusal(query):
            raise CheckpointError(f"the job cannot be rehearsed: {reason}", _WITHOUT)
    known = {query.name for query in blue}
    for query in green:
        if query.name not in known:
            raise CheckpointError(
                f"the job cannot be rehearsed: query {query.name!r} is new, and the present version has no batches of "
                "it",
                _WITHOUT,
            )


_WITHOUT = "`understudy job upgrade` without --shadow replaces the code without a rehearsal; the job runs on"


@dataclass(frozen=True, slots=True)
class ComparedBatch:
    """One batch of a query, run by both versions.

    Attributes:
        batch: number of the batch.
        rows: number of rows that the present version would have written.
        new_rows: number of rows that the new version would have written; null if it has not run the batch.
        duration_ms: of the batch in the present version, in milliseconds; null if Spark has not reported it.
        new_duration_ms: the same of the new version.
        is_equal: whether both have the same rows.
        only_present: number of rows that only the present version has.
        only_new: number of rows that only the new version has.
        present_samples: some rows that only the present version has, as JSON texts.
        new_samples: some rows that only the new version has, as JSON texts.
    """

    batch: int
    rows: int
    new_rows: int | None
    duration_ms: int | None
    new_duration_ms: int | None
    is_equal: bool
    only_present: int
    only_new: int
    present_samples: tuple[str, ...]
    new_samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedQuery:
    """One query, run by both versions.

    Attributes:
        query: its name.
        is_equal: whether output, columns and state are the same.
        problems: other differences than those of rows, such as those of columns or state.
        batches: in their order.
        notes: parts that were not compared, with the reason.
    """

    query: str
    is_equal: bool
    problems: tuple[str, ...]
    batches: tuple[ComparedBatch, ...]
    notes: tuple[str, ...] = ()


def compare(blue: RehearsedQuery, green: RehearsedQuery | None) -> ComparedQuery:
    """Compare the results of both versions.

    Args:
        blue: the present version.
        green: the new version; None if it has not run all batches of the query.
    """
    if green is None:
        batches = tuple(_compared(batch, None) for batch in blue.batches)
        return ComparedQuery(blue.name, False, ("the new version has not run its batches",), batches)
    problems = []
    if blue.columns != green.columns:
        problems.append(f"its columns were {blue.columns} and are {green.columns}")
    notes = (*_uncalled(blue.is_called, green.is_called), *sorted({*blue.unread, *green.unread}))
    before = {(state.operator, state.store): state for state in blue.state}
    after = {(state.operator, state.store): state for state in green.state}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new:
            problems.append(_state_problem(key, old, new))
    found = {batch.batch_id: batch for batch in green.batches}
    batches = tuple(_compared(batch, found.get(batch.batch_id)) for batch in blue.batches)
    is_equal = not problems and all(batch.is_equal for batch in batches)
    return ComparedQuery(blue.name, is_equal, tuple(problems), batches, notes)


def _uncalled(blue: bool | None, green: bool | None) -> tuple[str, ...]:
    """Return a line about functions of ``foreachBatch`` that were not called."""
    versions = [name for name, is_called in (("present", blue), ("new", green)) if is_called is False]
    if not versions:
        return ()
    which = "either" if len(versions) == 2 else f"the {versions[0]}"
    return (f"the function of foreachBatch of {which} version was not called: it has no parameter colour=None",)


def _state_problem(key: tuple[int, str], old: RehearsedState | None, new: RehearsedState | None) -> str:
    operator, store = key
    what = f"the state of operator {operator}" + ("" if store == "default" else f", store {store},")
    if old is None or new is None:
        return f"{what} is only in the {'new' if old is None else 'present'} version"
    if old.rows == new.rows:
        return f"{what} has the same number of keys ({old.rows}) and other keys or values"
    return f"{what} had {old.rows} keys and has {new.rows}"


def _compared(blue: RehearsedBatch, green: RehearsedBatch | None) -> ComparedBatch:
    if green is None:
        return ComparedBatch(blue.batch_id, blue.rows, None, blue.duration_ms, None, False, blue.rows, 0, (), ())
    return ComparedBatch(
        blue.batch_id,
        blue.rows,
        green.rows,
        blue.duration_ms,
        green.duration_ms,
        blue.is_same(green),
        green.only_blue,
        green.only_green,
        green.blue_samples,
        green.green_samples,
    )
