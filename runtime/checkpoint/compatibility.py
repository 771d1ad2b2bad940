"""Compare a job's queries with the state in a savepoint: which of them can continue from it? Pure.

Spark checks a part of this when a query starts (``OperatorStateMetadataValidator``,
``StateSchemaCompatibilityChecker``), and drops or keeps the rest silently. This module reports both before anything
runs, query by query. (Flink's ``TypeSerializerSchemaCompatibility``.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription
from runtime.checkpoint.edit import OPERATORS
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION
from runtime.checkpoint.state_schema import ColumnFamily, type_name

_PARTITIONS = "spark.sql.shuffle.partitions"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_HDFS_BACKED = ".HDFSBackedStateStoreProvider"
_ROCKSDB = ".RocksDBStateStoreProvider"
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_KEPT = (
    _PARTITIONS,
    _ENCODING,
    _PROVIDER,
    "spark.sql.streaming.stateStore.compression.codec",
)
"""Settings that a query keeps from its first batch on; those of the session have no effect on it."""

_INTO_ROCKSDB = "; `understudy savepoint convert` moves the state of a savepoint into RocksDB"
_NAME_SOURCES = (
    "`understudy savepoint name-sources` gives the sources of a savepoint names, by which Spark finds their offsets; "
    "name them in the job, too"
)
_NAMES_BACK = "give the sources the names {} in the job, by `readStream.name()`, and set {}=true"
_OTHER_SOURCE = "give the new source another name: it is read from its start, and the former one no more"
_NEW_QUERY = (
    "keep the operators, or start the query without state: under another queryName and checkpointLocation, with "
    "`understudy job run --from ... --allow-non-restored-state`"
)
_EVOLVE = (
    "`understudy savepoint edit --schemas-from` writes its state in the form of the new version, by a function of yours"
)
_CONVERT_FIRST = "; first `understudy savepoint convert` moves it into RocksDB"
_SAME_TYPE = "before the operator, cast the column that it is made of to the former type; declare a state as before"
_NEVER_NULL = "before the operator, make it a column that is never null: `coalesce(column, lit(...))`"
ALL_NULLABLE = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"
"""Setting of Spark 4.3 under which all columns of a state count as nullable. Older queries keep it off."""

_BUFFER = ("buf", "binary")
"""Name and type of the column in which Spark keeps a ``TypedImperativeAggregate``, whatever its input is."""


class Fit(StrEnum):
    """The verdict on a query."""

    FITS = "fits"
    FITS_WITH_LOSS = "fits with loss"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one query.

    Args:
        query: its name.
        fit: the worst finding.
        reasons: differences because of which the query does not fit.
        losses: state and positions that the query loses.
        notes: harmless differences that users should know.
        remedies: commands and changes of the code that make the query fit, or how it starts without its state.
        is_left_behind: whether only the savepoint has the query.
    """

    query: str
    fit: Fit
    reasons: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    is_left_behind: bool = False


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules by which the columns of a state are compared.

    Args:
        is_evolving: whether values are in Avro, and may gain and lose columns.
        knows_nulls: whether the columns of both states say if they can be null under the setting that the query keeps.
    """

    is_evolving: bool
    knows_nulls: bool


class _Findings:
    def __init__(self, evolution: str = "") -> None:
        self._evolution = evolution
        self.reasons: list[str] = []
        self.losses: list[str] = []
        self.notes: list[str] = []
        self._remedies: dict[str, None] = {}

    def refuse(self, reason: str, remedy: str, *, of_state: bool = False) -> None:
        """Add a reason why the query does not fit, and a remedy.

        Args:
            reason: why.
            remedy: a command, or a change of the code.
            of_state: whether other operators or other schemas are the reason.
        """
        self.reasons.append(reason)
        self._remedies[remedy] = None
        if of_state and self._evolution:
            self._remedies[self._evolution] = None

    def verdict(self, query: str) -> Verdict:
        fit = Fit.DOES_NOT_FIT if self.reasons else Fit.FITS_WITH_LOSS if self.losses else Fit.FITS
        return Verdict(query, fit, tuple(self.reasons), tuple(self.losses), tuple(self.notes), tuple(self._remedies))


def check_job(kept: Iterable[QueryDescription], job: Iterable[QueryDescription]) -> list[Verdict]:
    """Compare all queries of a savepoint with those of a job, by their names.

    Args:
        kept: the queries of the savepoint.
        job: the queries as the job has them now.

    Returns:
        a verdict for each query of the job, in their order, then one for each query that only the savepoint has.
    """
    by_name = {query.name: query for query in kept}
    verdicts = []
    for query in job:
        old = by_name.pop(query.name, None)
        if old is None:
            verdicts.append(Verdict(query.name, Fit.FITS, notes=("it is new, and begins without state",)))
        else:
            verdicts.append(check_query(old, query))
    losses = ("the job has no such query: its state and position are left behind",)
    return verdicts + [Verdict(name, Fit.FITS_WITH_LOSS, losses=losses, is_left_behind=True) for name in by_name]


def left_behind(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return the names of the queries that only the savepoint has, by the verdicts of `check_job`."""
    return tuple(verdict.query for verdict in verdicts if verdict.is_left_behind)


def check_query(kept: QueryDescription, query: QueryDescription) -> Verdict:
    """Compare a query of a savepoint with the query as it is now."""
    found = _Findings(_evolution(kept, query))
    if kept.sources:  # without them the query never began a batch, and has no state to continue from
        _check_sources(kept, query, found)
        _check_operators(kept, query, found)
        for key in _KEPT:
            old, new = kept.conf.get(key), query.conf.get(key)
            if old is not None and new is not None and old != new:
                note = f"{key} stays {old}, as it was when the query began, and does not become {new}"
                found.notes.append(note + _INTO_ROCKSDB if key == _PROVIDER and old.endswith(_HDFS_BACKED) else note)
    return found.verdict(query.name)


def _evolution(kept: QueryDescription, now: QueryDescription) -> str:
    """Return the command that writes the state of a query in the form of its new version; empty if none can."""
    if now.conf.get(_ENCODING) == "avro" or not {one.name for one in now.operators} <= {*OPERATORS}:
        return ""
    if not kept.operators or kept.conf.get(_PROVIDER, "").endswith(_ROCKSDB):
        return _EVOLVE
    return _EVOLVE + _CONVERT_FIRST if kept.conf.get(_PROVIDER, "").endswith(_HDFS_BACKED) else ""


def _check_sources(kept: QueryDescription, now: QueryDescription, found: _Findings) -> None:
    if kept.source_names and now.source_names:
        _check_named_sources(kept, now, found)
    elif kept.source_names:
        names = ", ".join(kept.source_names)
        found.refuse(f"its sources had the names {names}, and have none", _NAMES_BACK.format(names, SOURCE_EVOLUTION))
    elif now.source_names:
        found.refuse(
            f"its sources have the names {', '.join(now.source_names)}, and had none when the state was written",
            _NAME_SOURCES,
        )
    elif len(kept.sources) != len(now.sources):
        found.refuse(
            f"it had {len(kept.sources)} sources and has {len(now.sources)}; offsets belong to sources by their order",
            _NAME_SOURCES,
        )
    else:
        for number, (old, new) in enumerate(zip(kept.sources, now.sources, strict=True)):
            _check_source(f"source {number}", old, new, found, _NAME_SOURCES)


def _check_named_sources(kept: QueryDescription, now: QueryDescription, found: _Findings) -> None:
    old = dict(zip(kept.source_names, kept.sources, strict=True))
    new = dict(zip(now.source_names, now.sources, strict=True))
    for name, kind in old.items():
        if name in new:
            _check_source(f"source {name}", kind, new[name], found, _OTHER_SOURCE)
        else:
            found.losses.append(
                f"source {name} is not there any more; if it comes back after more than one batch, it is read from its"
                " start"
            )
    found.notes.extend(f"source {name} is new, and is read from its start" for name in new if name not in old)


def _check_source(which: str, old: str, new: str, found: _Findings, remedy: str) -> None:
    if "unknown" in (old, new):
        return
    old_kind, _, old_topics = old.partition(":")
    new_kind, _, new_topics = new.partition(":")
    if old_kind != new_kind:
        found.refuse(f"{which} was {old_kind} and is {new_kind}", remedy)
        return
    gone = sorted(set(old_topics.split(",")) - set(new_topics.split(",")))
    more = sorted(set(new_topics.split(",")) - set(old_topics.split(",")))
    if gone:
        found.losses.append(f"{which} forgets where it was in {', '.join(gone)}")
    if more:
        found.notes.append(f"{which} begins to read {', '.join(more)}")


def _check_operators(kept: QueryDescription, query: QueryDescription, found: _Findings) -> None:
    old = {operator.id: operator for operator in kept.operators}
    new = {operator.id: operator for operator in query.operators}
    rules = _Rules(
        is_evolving=kept.conf.get(_ENCODING) == "avro",
        knows_nulls=_is_on(kept, ALL_NULLABLE) or not _is_on(query, ALL_NULLABLE),
    )
    for number in sorted(old.keys() | new.keys()):
        if number not in new:
            found.refuse(
                f"stateful operator {number} ({old[number].name}) is not there any more", _NEW_QUERY, of_state=True
            )
        elif number not in old:
            found.refuse(
                f"stateful operator {number} ({new[number].name}) is new; the savepoint has no state for it",
                _NEW_QUERY,
                of_state=True,
            )
        elif old[number].name != new[number].name:
            found.refuse(
                f"stateful operator {number} was {old[number].name} and is {new[number].name}",
                _NEW_QUERY,
                of_state=True,
            )
        else:
            _check_stores(old[number], new[number], found, rules)


def _check_stores(kept: OperatorDescription, now: OperatorDescription, found: _Findings, rules: _Rules) -> None:
    old = {store.name: store for store in kept.stores}
    new = {store.name: store for store in now.stores}
    if old.keys() != new.keys():
        found.refuse(
            f"{_named(kept)} had the stores {', '.join(sorted(old))} and has {', '.join(sorted(new))}",
            _NEW_QUERY,
            of_state=True,
        )
        return
    for name, store in old.items():
        if store.partitions != new[name].partitions:
            found.notes.append(
                f"{_named(kept)} keeps its {store.partitions} partitions; the job asks for {new[name].partitions}"
            )
        where = _named(kept) if name == "default" else f"store {name} of {_named(kept)}"
        _check_families(where, store, new[name], found, rules)


def _check_families(where: str, kept: StoreDescription, now: StoreDescription, found: _Findings, rules: _Rules) -> None:
    if not kept.families or not now.families:
        return  # Spark has not written the schemas of one of them
    new = {family.name: family for family in now.families}
    for family in kept.families:
        if family.name not in new:
            found.losses.append(f"the state variable {family.name} of {where} is not there any more")
        else:
            _check_family(where, family, new.pop(family.name), found, rules)
    found.notes.extend(f"the state variable {name} of {where} is new, and begins empty" for name in sorted(new))


def _check_family(where: str, kept: ColumnFamily, now: ColumnFamily, found: _Findings, rules: _Rules) -> None:
    variable = "" if kept.name == "default" else f" of state variable {kept.name}"
    for part, old_schema, new_schema in (("key", kept.key, now.key), ("value", kept.value, now.value)):
        what = f"the {part}{variable} of {where}"
        old, new = json.loads(old_schema)["fields"], json.loads(new_schema)["fields"]
        if part == "value" and rules.is_evolving:
            _check_evolution(what, old, new, found, rules)
            continue
        if len(old) != len(new):
            found.refuse(
                f"{what} had {len(old)} columns ({_shown(old)}) and has {len(new)} ({_shown(new)})",
                _NEW_QUERY,
                of_state=True,
            )
            continue
        for before, after in zip(old, new, strict=True):
            if _check_column(what, before, after, found, rules):
                continue
            if before["name"] != after["name"]:
                found.notes.append(f"{what}: column {before['name']} is called {after['name']} now")


def _check_evolution(what: str, old: list[Any], new: list[Any], found: _Findings, rules: _Rules) -> None:
    """Compare values in Avro: they may gain and lose columns, which Spark finds by their names."""
    after = {field["name"]: field for field in new}
    for field in old:
        if field["name"] not in after:
            found.losses.append(f"{what}: column {field['name']} is not there any more")
        else:
            _check_column(what, field, after[field["name"]], found, rules)
    more = [name for name in after if name not in {field["name"] for field in old}]
    found.notes.extend(f"{what}: column {name} is new, and null at first" for name in more)


def _check_column(what: str, old: Any, new: Any, found: _Findings, rules: _Rules) -> bool:
    """Record why Spark would reject a changed column, and return whether it does.

    Names of nested fields do not count.
    """
    column = f"{what}: column {old['name']}"
    if _bare(old["type"]) != _bare(new["type"]):
        found.refuse(
            f"{column} was {type_name(old['type'])} and is {type_name(new['type'])}", _SAME_TYPE, of_state=True
        )
        return True
    if (old["name"], old["type"]) == _BUFFER:
        found.notes.append(
            f"{column} has the rows of a function such as collect_list in a form of its own; if their type is another"
            " one, Spark reads them wrongly, without an error"
        )
    if old["nullable"] or not new["nullable"]:
        return False
    if rules.knows_nulls:
        found.refuse(f"{column} could not be null and can be now", _NEVER_NULL, of_state=True)
        return True
    found.notes.append(
        f"{column} could not be null; whether it can be now is only known with {ALL_NULLABLE}=false, which the query"
        " keeps"
    )
    return False


def _is_on(query: QueryDescription, key: str) -> bool:
    return query.conf.get(key) == "true"


def _bare(kind: Any) -> Any:
    """Return a type without names and metadata."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return ["struct", *(_bare(field["type"]) for field in kind["fields"])]
    return [_bare(value) for name, value in sorted(kind.items()) if name != "metadata"]


def _named(operator: OperatorDescription) -> str:
    return f"operator {operator.id} ({operator.name})"


def _shown(fields: list[Any]) -> str:
    return ", ".join(f"{field['name']} {type_name(field['type'])}" for field in fields)
