"""Decides how the state of a query gets the operators and types that a new version of the job has.

Only the plan of a query knows the names, types and nullabilities of its state. A savepoint that the new version has
written knows them too, for example after one batch without rows. So the state of the former savepoint is written again
in the form of that one (Flink's state schema evolution). Its query id, offsets, sink and watermark stay.

`runtime.spark.state_evolution` does this with Spark; this module needs none. `plan_evolution` and `prepare` read and
write files, the rest is pure.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.files import remove_tree
from runtime.checkpoint.description import OperatorDescription, QueryDescription
from runtime.checkpoint.edit import (
    StatePart,
    families_of_variable,
    parts_of,
    readable_parts,
    variables_of,
)
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION, read_offsets
from runtime.checkpoint.rescale import FamilyState, into_rocksdb, is_rocksdb, unfit
from runtime.checkpoint.restore import restore_snapshot, rewrite
from runtime.checkpoint.savepoint import open_savepoint
from runtime.checkpoint.state_choice import choose_query
from runtime.checkpoint.state_layout import OperatorInfo, described
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.checkpoint.stored_snapshot import CHECKPOINT, check_snapshot
from runtime.protocol.query_snapshot import NOTHING_COMMITTED

_PARTITIONS = "spark.sql.shuffle.partitions"
_STORE = "spark.sql.streaming.stateStore."
_ENCODING = f"{_STORE}encodingFormat"
_FORMAT = f"{_STORE}checkpointFormatVersion"
_UNSAFE = "unsaferow"

Place = tuple[int, str, str]
"""Where rows are: operator, store, column family."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """A query whose state is written in the form that a new version of the job has.

    Args:
        query: the query with its present state.
        schemas: the query of the new version: its operators, and the schemas of their state. Its rows are not used.
        parts: of the new state; the function makes their rows.
        former: the parts of the present state that the function can read.
        kept: the column families that no function makes and that both have with the same schemas. These are timers and
            state variables with a time to live. Their rows stay.
    """

    query: SavepointQuery
    schemas: SavepointQuery
    parts: tuple[StatePart, ...]
    former: tuple[StatePart, ...]
    kept: tuple[Place, ...] = ()

    def former_of(self, part: StatePart) -> StatePart | None:
        """Return the part of the present state with the same operator and state variable; None if there is none."""
        return next((one for one in self.former if _identity(one) == _identity(part)), None)

    def dropped(self, before: Iterable[FamilyState], read: Iterable[StatePart]) -> tuple[str, ...]:
        """Return, in words, the present state that is in no part which was read.

        Args:
            before: all present state.
            read: the parts that the function got or has read.
        """
        used = {*self.kept, *(place for part in read for place in (*places_of(part), *_expiries_of(part)))}
        names = {one.id: one.name for one in self.query.description.operators}
        found = []
        for one in before:
            if one.rows and (one.operator, one.store, one.family) not in used:
                what = "" if one.family == "default" else f", {one.family}"
                store = "" if one.store == "default" else f", store {one.store}"
                found.append(
                    f"query {self.query.snapshot.name!r}, operator {one.operator} ({names.get(one.operator, '?')})"
                    f"{store}{what}: {one.rows} rows of its state are not in the result, because nothing has read them"
                )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class EvolutionPlan:
    """An evolution that was checked: the savepoint, that of the new version, their queries, and the result's place."""

    savepoint: Savepoint
    schemas: Savepoint
    queries: tuple[Evolution, ...]
    target: Path

    def of_query(self, name: str) -> Evolution | None:
        """Return the evolution of a query; None if its state stays as it is."""
        return next((one for one in self.queries if one.query.snapshot.name == name), None)


def _identity(part: StatePart) -> tuple[int, str, str | None, str | None]:
    return part.operator, part.name, part.variable, part.side


def places_of(part: StatePart) -> list[Place]:
    """Return where a part keeps its rows, and their number."""
    counted = [] if part.counter is None else [(part.operator, part.counter.store, part.counter.family.name)]
    return [(part.operator, part.store, part.family.name), *counted]


def _expiries_of(part: StatePart) -> list[Place]:
    """Return where Spark keeps when the values of a part expire, which each of them says too."""
    names = () if part.variable is None else families_of_variable(part.variable)
    return [(part.operator, part.store, name) for name in names]


def plan_evolution(path: Path, schemas: Path, target: Path, query: str | None = None) -> EvolutionPlan:
    """Verify two savepoints, and check that the state of one can get the form of the other; needs no Spark.

    Args:
        path: of the savepoint with the state.
        schemas: of a savepoint that the new version of the job has written.
        target: directory of the result, which must not exist.
        query: name of the only query. Default: all that both have, and whose operators or schemas differ.

    Raises:
        SavepointError: a query cannot get the form, there is none, or *target* exists.
    """
    kept, new = open_savepoint(path), open_savepoint(schemas)
    if query is not None:
        pairs = [(choose_query(kept, query), choose_query(new, query))]
    else:
        forms = {one.snapshot.name: one for one in new.queries}
        pairs = [(one, forms[one.snapshot.name]) for one in kept.queries if one.snapshot.name in forms]
        pairs = [(one, form) for one, form in pairs if one.description.operators != form.description.operators]
        if not pairs:
            raise SavepointError(
                f"no query of {path} has other operators or other types in {schemas}",
                "edit its state without --schemas-from; queries are the same if they have the same name",
            )
    if target.exists() or target.is_symlink():
        raise SavepointError(f"{target} exists already", "name a directory that does not exist")
    return EvolutionPlan(kept, new, tuple(_evolution(*pair) for pair in pairs), target.absolute())


def _evolution(query: SavepointQuery, schemas: SavepointQuery) -> Evolution:
    if NOTHING_COMMITTED in (query.snapshot.batch_id, schemas.snapshot.batch_id):
        raise SavepointError(
            f"query {query.snapshot.name!r} has committed no batch in one of the savepoints",
            "without a batch a query has no state; the new version needs one, which may have no rows",
        )
    commits = [_commit_version(one) for one in (query, schemas)]
    infos, new_infos = (check_snapshot(one.snapshot, contents=False).operators for one in (query, schemas))
    batches = query.snapshot.batch_id, schemas.snapshot.batch_id
    check_forms(query.description, schemas.description, commits, batches, new_infos)
    parts = parts_of(schemas.description, new_infos, times_stay=True) if schemas.description.operators else ()
    check_lifetimes(query.description, schemas.description, infos, new_infos)
    former = readable_parts(query.description, infos)
    kept = tuple(kept_families(query.description, schemas.description, parts))
    return Evolution(query, schemas, parts, former, kept)


def _commit_version(query: SavepointQuery) -> str:
    commit = Path(query.snapshot.path) / CHECKPOINT / "commits" / str(query.snapshot.batch_id)
    return commit.read_bytes().partition(b"\n")[0].decode(errors="replace").strip().removeprefix("v")


def check_forms(
    query: QueryDescription,
    schemas: QueryDescription,
    commits: Sequence[str],
    batches: tuple[int, int],
    operators: Iterable[OperatorInfo],
) -> None:
    """Check that the state of a query can be written under the settings of its new version.

    Args:
        query: the query as its state is.
        schemas: the query as the new version has it.
        commits: versions of their commit logs.
        batches: their last batches.
        operators: metadata of the operators of the new version.

    Raises:
        SavepointError: the state cannot be written in that form; the message says why.
    """
    name = query.name
    for one, what in ((query, "its state"), (schemas, "the state of the new version")):
        if one.operators and not is_rocksdb(one):
            remedy = into_rocksdb(one) if one is query else "run the new version with -D state.backend.type=rocksdb"
            raise SavepointError(
                f"query {name!r} cannot be edited: {what} is not in RocksDB, and Spark can only write that", remedy
            )
    old, new = (one.conf.get(_PARTITIONS, "?") for one in (query, schemas))
    if query.operators and schemas.operators and old != new:
        raise SavepointError(
            f"query {name!r} cannot be edited: its state has {old} partitions, and that of the new version {new}",
            f"run the new version with -D {_PARTITIONS}={old}; `understudy savepoint rescale` changes the number",
        )
    if commits[0] != commits[1]:
        raise SavepointError(
            f"query {name!r} cannot be edited: its checkpoint has format {commits[0]}, and that of the new version"
            f" {commits[1]}",
            f"run the new version with -D {_FORMAT}={commits[0]}",
        )
    if schemas.operators and schemas.conf.get(_ENCODING, _UNSAFE) != _UNSAFE:
        raise SavepointError(
            f"query {name!r} cannot be edited: the new version keeps its state in {schemas.conf[_ENCODING]}",
            f"run the new version with -D {_ENCODING}={_UNSAFE}",
        )
    has_numbers = any(store.schemas for one in operators for store in one.stores)
    if has_numbers and batches[1] > batches[0] + 1:
        raise SavepointError(
            f"query {name!r} cannot be edited: the new version is at batch {batches[1]}, and it is at batch"
            f" {batches[0]}; Spark would not find the schemas",
            "stop the new version after its first batch",
        )


def check_lifetimes(
    query: QueryDescription,
    schemas: QueryDescription,
    operators: Iterable[OperatorInfo],
    new_operators: Iterable[OperatorInfo],
) -> None:
    """Check that each variable with a time to live is new in the new version, or is the same in both.

    The values of one that is the same stay, and each of them expires at its time.

    Args:
        query: the query as its state is.
        schemas: the query as the new version has it.
        operators: metadata of the operators of the query.
        new_operators: metadata of the operators of the new version.

    Raises:
        SavepointError: one is not.
    """
    properties, new_properties = ({one.id: one.properties for one in infos} for infos in (operators, new_operators))
    before = {one.id: one for one in query.operators}
    for new in schemas.operators:
        old = before.get(new.id)
        if old is None or old.name != new.name or unfit(old, properties.get(old.id, ""), query.conf):
            continue
        former = variables_of(old, properties.get(old.id, ""))
        for name, variable in variables_of(new, new_properties.get(new.id, "")).items():
            if not variable.expires or name not in former:
                continue
            families = [_schemas_of(one, name) for one in (old, new)]
            if former[name] != variable or families[0] != families[1]:
                raise SavepointError(
                    f"query {query.name!r} cannot be edited: operator {new.id} ({new.name}), state variable {name!r}:"
                    " its time to live is new, or its type is another",
                    "give it another name in the new version, where it has no values at first",
                )


def _schemas_of(operator: OperatorDescription, variable: str) -> dict[Place, Any]:
    """Return the schemas of all column families of a state variable."""
    names = families_of_variable(variable)
    return {
        place: [json.loads(text) for text in (family.key, family.value)]
        for place, _, family in _families([operator])
        if family.name in names
    }


def kept_families(query: QueryDescription, schemas: QueryDescription, parts: Iterable[StatePart]) -> Iterator[Place]:
    """Yield the column families that a query has in both versions with equal schemas, and that no function makes.

    Args:
        query: the query as its state is.
        schemas: the query as the new version has it.
        parts: of the new version's state.
    """
    made = {place for part in parts for place in places_of(part)}
    old = {place: (name, family) for place, name, family in _families(query.operators)}
    for place, name, family in _families(schemas.operators):
        if place not in made and place in old and old[place][0] == name and _same(old[place][1], family):
            yield place


def _families(operators: Iterable[OperatorDescription]) -> Iterator[tuple[Place, str, ColumnFamily]]:
    for operator in operators:
        for store in operator.stores:
            for family in store.families:
                yield (operator.id, store.name, family.name), operator.name, family


def _same(one: ColumnFamily, other: ColumnFamily) -> bool:
    return [json.loads(text) for text in (one.key, one.value)] == [
        json.loads(text) for text in (other.key, other.value)
    ]


def settled_conf(kept: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a query keeps, with state in the form of its new version.

    The schemas fit only under the settings of the new version. How sources are identified belongs to the offsets, which
    stay.

    Args:
        kept: settings of the query.
        new: settings of the new version.
    """
    conf = {key: value for key, value in new.items() if key != SOURCE_EVOLUTION}
    return conf | {key: value for key, value in kept.items() if key == SOURCE_EVOLUTION}


def with_conf(content: bytes, new: Mapping[str, str]) -> bytes:
    """Return a file of the offset log with the settings of `settled_conf`.

    Args:
        content: of the file.
        new: settings of the new version.
    """
    version, text, *offsets = content.decode().splitlines()
    metadata = json.loads(text)
    metadata["conf"] = settled_conf(read_offsets(content).conf, new)
    return "\n".join([version, json.dumps(metadata, separators=(",", ":")), *offsets]).encode()


def prepare(evolution: Evolution, location: Path, schemas: Path) -> None:
    """Make a checkpointLocation with the position of a query, and the operators and schemas of its new version.

    It has no rows of state yet.

    Args:
        evolution: the query.
        location: is made.
        schemas: the checkpointLocation of the new version.

    Raises:
        SnapshotError: the query cannot be copied.
        OSError: a file cannot be written.
    """
    snapshot = evolution.query.snapshot
    restore_snapshot(snapshot, location, None, copy=True)
    remove_tree(location / "state")
    below = [name for name in list_files(schemas) if name.startswith("state/")]
    for name in described(below, evolution.schemas.snapshot.batch_id):
        target = location / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(schemas / name, target)
    log = location / "offsets" / str(snapshot.batch_id)
    rewrite(log, with_conf(log.read_bytes(), evolution.schemas.description.conf))
