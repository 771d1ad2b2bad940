"""Decides what an edit of a savepoint's state may change: which parts of it fit, and whether the new state is right.

A user's function gets the keys and values of each part as a DataFrame. What it returns is the state of another
savepoint. `runtime.spark.state_edit` does this with Spark; this module needs none. `plan_edit` reads files,
the rest is pure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointQuery
from runtime.checkpoint.rescale import FamilyState, into_rocksdb, is_rocksdb, unfit
from runtime.checkpoint.savepoint import open_savepoint
from runtime.checkpoint.state_choice import choose_query
from runtime.checkpoint.state_layout import OperatorInfo
from runtime.checkpoint.state_rows import RowEncoder, UnsupportedTypeError, unique_names
from runtime.checkpoint.state_schema import DEFAULT_FAMILY, ColumnFamily, type_name
from runtime.checkpoint.stored_snapshot import check_snapshot

_PROCESSOR = "transformWithStateInPandasExec"
_SESSIONS = "sessionWindowStateStoreSaveExec"
_JOIN = "symmetricHashJoin"
_SESSION_MARK = "spark.sessionWindow"

OPERATORS = (
    "stateStoreSave",
    "dedupe",
    "dedupeWithinWatermark",
    _SESSIONS,
    _JOIN,
    "applyInPandasWithState",
    _PROCESSOR,
)
"""Spark's names of the operators whose state `tests/integration/test_savepoint_edit.py` edits."""


class PartKind(StrEnum):
    """Relation of the rows that a function gets to those of Spark's store.

    | kind | key | value |
    |---|---|---|
    | `ROWS` | the store's | the store's |
    | `SESSIONS` | the store's: the columns of the group, and the start of the session | the store's, with the window |
    | `MAP` | the store's: ``key`` for the group, and ``userKey`` | the store's |
    | `LIST` | the store's | the array of all values that the store has of the key; another family has their number |
    | `JOIN` | the store's without its last column, the number of the row | the same; a row ends with ``matched`` |
    """

    ROWS = "rows"
    SESSIONS = "sessions"
    MAP = "map"
    LIST = "list"
    JOIN = "join"


_KIND_OF_VARIABLE = {"ValueState": PartKind.ROWS, "MapState": PartKind.MAP, "ListState": PartKind.LIST}
_TIMERS = "TimerState"
_COUNTER = "$rowCounter_"
_EXPIRIES = ("$ttl_", "$min_", "$count_")
"""Spark's prefixes of the families that say when the values of a variable with a time to live expire."""


@dataclass(frozen=True, slots=True)
class StateVariable:
    """A state variable of a transformWithState.

    Args:
        kind: Spark's name of it, such as ``ValueState``; timers are of the kind ``TimerState``.
        expires: whether its values have a time to live.
    """

    kind: str
    expires: bool

    @property
    def has_times(self) -> bool:
        """Return whether Spark keeps the times of it twice, by key and by time: timers, and values that expire."""
        return self.expires or self.kind == _TIMERS


@dataclass(frozen=True, slots=True)
class Counter:
    """The store and the column family in which Spark keeps how many values a key has."""

    store: str
    family: ColumnFamily


@dataclass(frozen=True, slots=True)
class StatePart:
    """A part of a savepoint's state: one map of keys to values.

    Args:
        query: name of the query.
        operator: id of the operator in the query.
        name: Spark's name of the operator's kind, as ``stateStoreSave``.
        store: name of the operator's store.
        variable: the state variable of a transformWithState; None for all other operators.
        family: its column family, with the schemas.
        side: ``left`` or ``right``, the side of a join; None for all other operators.
        kind: how its rows relate to those of the store.
        counter: where the number of a key's values is; None if the key has one.
    """

    query: str
    operator: int
    name: str
    store: str
    variable: str | None
    family: ColumnFamily
    side: str | None = None
    kind: PartKind = PartKind.ROWS
    counter: Counter | None = None

    @property
    def key_type(self) -> dict[str, Any]:
        """Return the type of the keys that the function gets, in Spark's JSON; see `named_schema`."""
        key = named_schema(self.family.key)
        return {**key, "fields": key["fields"][:-1]} if self.kind is PartKind.JOIN else key

    @property
    def value_type(self) -> dict[str, Any]:
        """Return the type of the values that the function gets, in the same form."""
        value = named_schema(self.family.value)
        return value if self.counter is None else {"type": "array", "elementType": value, "containsNull": True}

    def __str__(self) -> str:
        variable = f", state variable {self.variable!r}" if self.variable else ""
        side = f", {self.side} side" if self.side else ""
        return f"query {self.query!r}, operator {self.operator} ({self.name}){variable}{side}"


@dataclass(frozen=True, slots=True)
class EditPlan:
    """An edit that was checked: the savepoint, the parts that the function gets, and where the result goes."""

    savepoint: Savepoint
    parts: tuple[StatePart, ...]
    target: Path

    def of_query(self, name: str) -> list[StatePart]:
        """Return the parts of a query."""
        return [part for part in self.parts if part.query == name]


def parts_of(
    query: QueryDescription,
    operators: Iterable[OperatorInfo],
    operator: int | None = None,
    variable: str | None = None,
    *,
    times_stay: bool = False,
) -> tuple[StatePart, ...]:
    """Return the parts of a query's state that can be edited.

    Args:
        query: the query.
        operators: metadata of its operators.
        operator: id of the only operator to edit; None for all.
        variable: name of the only state variable to edit; None for all.
        times_stay: whether timers and variables with a time to live are left out, instead of refused.

    Raises:
        SavepointError: one of them cannot be edited, or there is none. Spark writes all state of a query again, so the
            operators that are not edited have to fit `unfit`.
    """
    properties = {one.id: one.properties for one in operators}
    if not is_rocksdb(query):
        raise SavepointError(
            f"query {query.name!r} cannot be edited: its state store is not RocksDB, and Spark can only write that",
            into_rocksdb(query),
        )
    for one in query.operators:
        if why := unfit(one, properties.get(one.id, ""), query.conf):
            raise SavepointError(
                f"query {query.name!r} cannot be edited: operator {one.id} ({one.name}) {why}",
                "edit another query by --query",
            )
    chosen = [one for one in query.operators if operator in (None, one.id)]
    if not chosen:
        there = ", ".join(f"{one.id} ({one.name})" for one in query.operators)
        raise SavepointError(f"query {query.name!r} has no operator {operator} with state", f"there is: {there}")
    found = [
        part
        for one in chosen
        for part in _parts_of_operator(
            query.name, one, properties.get(one.id, ""), variable, lambda known: times_stay and known.has_times
        )
    ]
    if not found and not times_stay:
        raise SavepointError(
            f"query {query.name!r} has no state variable {variable!r}", "see `understudy savepoint info`"
        )
    for part in found:
        try:
            RowEncoder(part.family.key, is_key=True)
            RowEncoder(part.family.value)
            if part.counter is not None:
                RowEncoder(part.counter.family.value).encode((1,))
        except UnsupportedTypeError as error:
            raise _refused(part, f"{error}, which Understudy cannot write") from error
        if part.counter is not None and any(map(is_void, json.loads(part.family.value)["fields"])):
            raise _refused(part, "its values have a field that is always null")
        if part.kind is PartKind.SESSIONS and session_field(part.family) is None:
            raise _refused(part, "its values do not name the key and the session window as Spark 4.3 does")
    return tuple(found)


def readable_parts(query: QueryDescription, operators: Iterable[OperatorInfo]) -> tuple[StatePart, ...]:
    """Return the parts of a query's state that a function can read, also those that it could not edit.

    Args:
        query: the query.
        operators: metadata of its operators.
    """
    properties = {one.id: one.properties for one in operators}
    found: list[StatePart] = []
    for one in query.operators:
        known = properties.get(one.id, "")
        if not unfit(one, known, query.conf):
            with contextlib.suppress(SavepointError):
                found += list(_parts_of_operator(query.name, one, known, None, _is_timers, reads=True))
    return tuple(found)


def can_encode(part: StatePart) -> bool:
    """Return whether Understudy can write rows of the types of a part."""
    try:
        RowEncoder(part.family.key, is_key=True)
        RowEncoder(part.family.value)
    except UnsupportedTypeError:
        return False
    return True


def _is_timers(variable: StateVariable) -> bool:
    return variable.kind == _TIMERS


def _parts_of_operator(
    query: str,
    operator: OperatorDescription,
    properties: str,
    variable: str | None,
    left_out: Callable[[StateVariable], bool],
    *,
    reads: bool = False,
) -> Iterator[StatePart]:
    if operator.name == _JOIN:
        if variable is None:
            yield from _sides(query, operator)
        return
    variables = variables_of(operator, properties)
    for store in operator.stores:
        for family in store.families:
            name = family.name if operator.name == _PROCESSOR else None
            if variable not in (None, name) or (name is not None and name not in variables):
                continue  # another variable, or a family that only Spark uses
            part = StatePart(query, operator.id, operator.name, store.name, name, family)
            if operator.name not in OPERATORS:
                raise _refused(part, "no test edits state of this operator")
            if name is None:
                yield replace(part, kind=PartKind.SESSIONS if operator.name == _SESSIONS else PartKind.ROWS)
                continue
            known = variables[name]
            if left_out(known):
                continue
            if known.kind not in _KIND_OF_VARIABLE or (known.expires and not reads):
                raise _refused(part, _why_not(known), "--variable")
            kind = _KIND_OF_VARIABLE[known.kind]
            yield replace(part, kind=kind, counter=_counter(part, store) if kind is PartKind.LIST else None)


def _sides(query: str, operator: OperatorDescription) -> Iterator[StatePart]:
    """Yield the sides of a join. In format 2 each of its maps is a store, in format 3 a column family."""
    maps = {
        store.name if family.name == DEFAULT_FAMILY else family.name: (store.name, family)
        for store in operator.stores
        for family in store.families
    }
    for side in ("left", "right"):
        rows, counts = (maps.get(f"{side}-{name}") for name in ("keyWithIndexToValue", "keyToNumValues"))
        if rows is None or counts is None or not _fit_together(rows[1], counts[1]):
            raise SavepointError(
                f"query {query!r} cannot be edited: operator {operator.id} ({operator.name}) does not keep the rows of"
                f" its {side} side as Spark 4.3 does",
                "edit only the others, by --operator; nothing was written",
            )
        part = StatePart(query, operator.id, operator.name, rows[0], None, rows[1], side)
        yield replace(part, kind=PartKind.JOIN, counter=Counter(*counts))


def _fit_together(rows: ColumnFamily, counts: ColumnFamily) -> bool:
    """Return whether the keys of a join's rows are those of its counts, and an index."""
    *key, index = list(schema_types(rows.key))
    *_, matched = list(schema_types(rows.value))
    is_counted = [kind for _, kind in schema_types(counts.value)] == ["long"]
    return (
        is_counted
        and key == list(schema_types(counts.key))
        and (index, matched) == (("index", "long"), ("matched", "boolean"))
    )


def schema_types(schema: str) -> Iterator[tuple[str, str]]:
    """Yield name and type of each field of a struct in Spark's JSON; inner fields stay in their type."""
    for field in json.loads(schema)["fields"]:
        yield field["name"], type_name(field["type"])


def _counter(part: StatePart, store: StoreDescription) -> Counter:
    """Return where Spark counts the values of a list, and check that they can be counted there."""
    named = f"{_COUNTER}{part.variable}"
    found = next((family for family in store.families if family.name == named), None)
    if found is None or found.key != part.family.key:
        raise _refused(part, f"Spark 4.3 counts the values of a list in {named}, which is not there", "--variable")
    return Counter(store.name, found)


def _why_not(variable: StateVariable) -> str:
    if variable.kind == _TIMERS:
        return "Spark keeps each timer twice; timers stay as they are while the state variables are edited"
    if variable.expires:
        return "it has a time to live, and Spark keeps each time twice; it stays as it is while the others are edited"
    return f"it is a {variable.kind}, and only {', '.join(_KIND_OF_VARIABLE)} can be edited"


def variables_of(operator: OperatorDescription, properties: str) -> dict[str, StateVariable]:
    """Return the state variables of a transformWithState by their names; none of another operator.

    Args:
        operator: the operator, whose state fits `unfit`.
        properties: Spark's description of it, in JSON.
    """
    if operator.name != _PROCESSOR:
        return {}
    return {
        one["stateName"]: StateVariable(one.get("stateVariableType", "?"), one["ttlEnabled"])
        for one in json.loads(properties)["stateVariables"]
    }


def families_of_variable(name: str) -> tuple[str, ...]:
    """Return the names of all column families in which Spark keeps a state variable."""
    return name, *(f"{prefix}{name}" for prefix in (_COUNTER, *_EXPIRIES))


def _refused(part: StatePart, why: str, option: str = "--operator") -> SavepointError:
    return SavepointError(f"{part} cannot be edited: {why}", f"edit only the others, by {option}; nothing was written")


def plan_edit(
    path: Path, target: Path, query: str | None = None, operator: int | None = None, variable: str | None = None
) -> EditPlan:
    """Verify a savepoint, and choose the parts of its state to edit; needs no Spark, and writes nothing.

    Args:
        path: of the savepoint.
        target: directory of the result, which must not exist.
        query: name of the only query to edit; None for all with state.
        operator: id of the only operator to edit; None for all.
        variable: name of the only state variable of a transformWithState to edit; None for all.

    Raises:
        SavepointError: a chosen part cannot be edited, there is none, or *target* exists.
    """
    savepoint = open_savepoint(path)
    chosen: list[SavepointQuery] = (
        [one for one in savepoint.queries if one.description.operators]
        if query is None
        else [choose_query(savepoint, query)]
    )
    if not any(one.description.operators for one in chosen):
        raise SavepointError(f"{path} has no state to edit" if query is None else f"query {query!r} has no state")
    if target.exists() or target.is_symlink():
        raise SavepointError(f"{target} exists already", "name a directory that does not exist")
    parts = [
        part
        for one in chosen
        for part in parts_of(
            one.description, check_snapshot(one.snapshot, contents=False).operators, operator, variable
        )
    ]
    return EditPlan(savepoint, tuple(parts), target.absolute())


def named_schema(schema: str) -> dict[str, Any]:
    """Return a struct in Spark's JSON, where each field has a name of its own; see `unique_names`."""
    named: dict[str, Any] = _named(json.loads(schema))
    return named


def _named(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "array":
        return {**kind, "elementType": _named(kind["elementType"])}
    if kind["type"] == "struct":
        names = unique_names(field["name"] for field in kind["fields"])
        fields = [
            {"name": name, "type": _named(field["type"]), "nullable": field["nullable"], "metadata": {}}
            for name, field in zip(names, kind["fields"], strict=True)
        ]
        return {"type": "struct", "fields": fields}
    return kind


def session_field(family: ColumnFamily) -> int | None:
    """Return the position of the session window in the values of session windows; None if it is not known.

    A key has the columns of the group, then the start of the session. A value begins with the same columns, and has the
    window in the place where the query names it.
    """
    keys, values = (json.loads(schema)["fields"] for schema in (family.key, family.value))
    marked = [number for number, field in enumerate(values) if field.get("metadata", {}).get(_SESSION_MARK)]
    if len(marked) != 1 or marked[0] >= len(keys):
        return None
    [position] = marked
    grouped = [field for number, field in enumerate(values[: len(keys)]) if number != position]
    same = [(one["name"], type_name(one["type"])) for one in grouped]
    is_known = same == [(one["name"], type_name(one["type"])) for one in keys[:-1]]
    window = values[position]["type"]
    times = [field["type"] for field in window["fields"]] if isinstance(window, dict) and "fields" in window else []
    return position if is_known and times == [keys[-1]["type"]] * 2 else None


def is_void(field: Any) -> bool:
    """Return whether a field of a schema is always null. Parquet has no such columns."""
    return bool(field["type"] == "void")


def schema_problem(wanted: Any, found: Any, name: str) -> str:
    """Return how the schema of an edited DataFrame differs from that of the state; empty if it does not.

    Args:
        wanted: type of the state, as `named_schema` returns it.
        found: type of the DataFrame, in Spark's JSON.
        name: of the column.
    """
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted["type"] == found["type"] == "struct":
        names = [[field["name"] for field in one["fields"]] for one in (wanted, found)]
        if names[0] != names[1]:
            return f"{name} has the fields {', '.join(names[1])}; the state has {', '.join(names[0])}"
        pairs = zip(wanted["fields"], found["fields"], strict=True)
        return next(filter(None, (schema_problem(a["type"], b["type"], f"{name}.{a['name']}") for a, b in pairs)), "")
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted["type"] == found["type"] == "array":
        return schema_problem(wanted["elementType"], found["elementType"], f"{name}.element")
    return "" if wanted == found else f"{name} is {type_name(found)}; the state has {type_name(wanted)}"


def partition_paths(part: StatePart, partition_key: str) -> list[tuple[int, ...]] | None:
    """Return where the fields of a part's key are by which Spark chooses the partition; None if they are not known.

    Args:
        part: the part.
        partition_key: schema of what is hashed, in Spark's JSON.

    Returns:
        of each field the positions that lead to it; several if the key has inner structs.
    """
    if part.kind is PartKind.MAP:
        group = json.dumps(json.loads(part.family.key)["fields"][0]["type"])
        found = partition_fields(group, partition_key)
        return None if found is None else [(0, number) for number in found]
    found = partition_fields(part.family.key, partition_key)
    return None if found is None else [(number,) for number in found]


def partition_fields(key: str, partition_key: str) -> list[int] | None:
    """Return the positions of the fields of a key by which Spark chooses the partition; None if they are not known.

    Args:
        key: schema of the key, in Spark's JSON.
        partition_key: schema of what is hashed, in the same form.
    """
    keys, hashed = list(schema_types(key)), list(schema_types(partition_key))
    if hashed and [kind for _, kind in keys] == [kind for _, kind in hashed]:
        return list(range(len(keys)))
    if hashed and keys[: len(hashed)] == hashed:  # the other fields tell the sessions of a key apart
        return list(range(len(hashed)))
    found = []
    for field in hashed:
        fitting = [number for number, one in enumerate(keys) if one == field]
        if len(fitting) != 1:
            return None
        found += fitting
    return found or None


def expected(before: Iterable[FamilyState], edited: Sequence[FamilyState]) -> list[FamilyState]:
    """Return what all stores must hold after an edit: the edited families, and all others as they were."""
    changed = {(one.operator, one.store, one.family) for one in edited}
    kept = [one for one in before if (one.operator, one.store, one.family) not in changed]
    return [*kept, *edited]
