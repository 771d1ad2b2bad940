"""Rescales a savepoint: writes another one with the same keys and values in another number of partitions.

The original is not changed, and the result appears under its name only when it is whole and verified:

1. `check` refuses what Spark's repartition does not fit, before Spark is started.
2. The state of a query is restored into a work directory beside the result. There Spark writes it again, as a batch of
   its own: batch N + 1 has the offsets of batch N.
3. The file sink's log gets an entry of that batch (`stand_in`), because Spark writes none. Without it, readers of the
   sink fail.
4. The new state is restored once more, and compared with the old one. In each store and column family the number of
   rows and a checksum are the same. Each key is in the partition that its hash names.

`obstacles`, `stand_in`, `differences`, `check`, `written_twice`, `is_result` and `undo_of` are pure; the rest blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from conf.files import make_private
from runtime.checkpoint.description import OperatorDescription, QueryDescription
from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.files import list_files, list_names, take_files
from runtime.checkpoint.layout import SINK_LOG, sink_files
from runtime.checkpoint.manifest import RescaledFrom, Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import (
    DEFAULT_COMPACT_INTERVAL,
    chain,
    compacted,
    interval_of,
    merged,
    read_unique_ids,
)
from runtime.checkpoint.remote_files import is_remote
from runtime.checkpoint.restore import batch_to_start_from, restore_snapshot, rewrite
from runtime.checkpoint.retained import is_checkpoint
from runtime.checkpoint.savepoint import open_savepoint, read_savepoint, write_savepoint
from runtime.checkpoint.snapshot import committed_batch, take_snapshot
from runtime.checkpoint.state_layout import OperatorInfo
from runtime.checkpoint.state_schema import schema_fields
from runtime.checkpoint.stored_snapshot import CHECKPOINT, SINK, check_snapshot
from runtime.checkpoint.work_directory import work_directory
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot

COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"

_STORE = "spark.sql.streaming.stateStore."
PROVIDER = f"{_STORE}providerClass"
"""Setting of Spark with the class of the state store; a query keeps it from its first batch on."""
_ROCKSDB, _HDFS_BACKED = "RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_JOIN_VERSION = "spark.sql.streaming.join.stateFormatVersion"
_JOIN_VERSIONS = ("2", "3")
_AGGREGATION, _JOIN, _LIMIT, _PROCESSOR = "stateStoreSave", "symmetricHashJoin", "globalLimit", "transformWithState"
_TIME_MODES = ("NoTime", "EventTime", "ProcessingTime")

_START_OVER = "keep the number of partitions, or start the query without state"

OPERATORS = (
    _AGGREGATION,
    "dedupe",
    "dedupeWithinWatermark",
    "sessionWindowStateStoreSaveExec",
    _JOIN,
    "applyInPandasWithState",
    "transformWithStateInPandasExec",
)
"""Spark's names of the operators that `tests/integration/test_savepoint_rescale.py` rescales."""


@dataclass(frozen=True, slots=True)
class FamilyState:
    """Content of a column family of a store, over all partitions.

    Args:
        operator: id of the operator.
        store: name of the store.
        family: name of the column family.
        rows: number of its keys and values.
        checksum: sum of the hashes of key and value of each row.
        misplaced: number of rows that are not in the partition that the hash of their key names.
    """

    operator: int
    store: str
    family: str
    rows: int
    checksum: int
    misplaced: int = 0


class StateTool(Protocol):
    """Spark, as far as a rescale needs it."""

    def repartition(self, location: Path, partitions: int, settings: Mapping[str, str]) -> None:
        """Write the state in a checkpointLocation again, with another number of partitions, as a batch of its own."""

    def read(
        self,
        location: Path,
        batch_id: int,
        partitions: int,
        operators: Sequence[OperatorDescription],
        settings: Mapping[str, str],
    ) -> list[FamilyState]:
        """Return what all stores of a checkpointLocation hold after a batch."""


def obstacles(query: QueryDescription, operators: Iterable[OperatorInfo], partitions: int) -> list[tuple[str, str]]:
    """Return why a query's state cannot get another number of partitions, each with the remedy; none if it can.

    Args:
        query: the query. Without stateful operators it has nothing to rescale.
        operators: their metadata.
        partitions: the new number.
    """
    found = []
    if not is_rocksdb(query):
        named = query.conf.get(PROVIDER, "").rpartition(".")[2] or "an unknown provider"
        found.append(
            (
                f"its state store is {named}, and Spark can only rescale RocksDB",
                into_rocksdb(query),
            )
        )
    if has_partitions(query, partitions):
        found.append((f"its state has {partitions} partitions already", "choose another number"))
    properties = {operator.id: operator.properties for operator in operators}
    for operator in query.operators:
        why = unfit(operator, properties.get(operator.id, ""), query.conf)
        if why:
            found.append((f"operator {operator.id} ({operator.name}) {why}", _START_OVER))
    return found


def is_rocksdb(query: QueryDescription) -> bool:
    """Return whether the state of a query is in RocksDB, the only store whose state Spark writes again."""
    return query.conf.get(PROVIDER, "").rpartition(".")[2] == _ROCKSDB


def is_hdfs_backed(query: QueryDescription) -> bool:
    """Return whether the state of a query is in Spark's HDFS-backed store."""
    return query.conf.get(PROVIDER, "").rpartition(".")[2] == _HDFS_BACKED


def into_rocksdb(query: QueryDescription) -> str:
    """Return how the state of a query comes into RocksDB."""
    if is_hdfs_backed(query):
        return (
            "`understudy savepoint convert` moves the state of a savepoint into RocksDB; start the job from the result"
        )
    return "start the query without state under state.backend.type=rocksdb; a query keeps its first state store"


def has_partitions(query: QueryDescription, partitions: int) -> bool:
    """Return whether the state of a query has this number of partitions."""
    return query.conf.get(_PARTITIONS) == str(partitions)


def partitions_of(query: SavepointQuery) -> int:
    """Return the number of partitions of a query's state."""
    return int(query.description.conf[_PARTITIONS])


def unfit(operator: OperatorDescription, properties: str, conf: Mapping[str, str]) -> str:
    """Return why the state of an operator cannot be written again; empty if it can."""
    if operator.name == _LIMIT:
        return "is a limit, whose state Spark cannot repartition"
    if operator.name not in OPERATORS:
        return "is of a kind that is not tested"
    families = [family for store in operator.stores for family in store.families]
    if not families:
        return "has no schema of its state"
    if operator.name == _AGGREGATION and any(
        all(kind == "void" for _, kind in schema_fields(family.key)) for family in families
    ):
        return (
            "is an aggregation without keys, whose one row Spark would move to a partition that the query does not read"
        )
    if operator.name == _JOIN and conf.get(_JOIN_VERSION) not in _JOIN_VERSIONS:
        return f"is a join with state format {conf.get(_JOIN_VERSION)}, which Spark makes unreadable; 2 and 3 work"
    if operator.name.startswith(_PROCESSOR):
        try:
            known = json.loads(properties)
            if not all(isinstance(variable["ttlEnabled"], bool) for variable in known["stateVariables"]):
                return "has unknown properties"
            if known["timeMode"] not in _TIME_MODES:
                return f"has the time mode {known['timeMode']}, which is not tested"
        except (ValueError, KeyError, TypeError):
            return "has unknown properties"
    return ""


def check(
    savepoint: Savepoint, operators: Mapping[str, Sequence[OperatorInfo]], partitions: int, *queries: str
) -> list[SavepointQuery]:
    """Return the queries of a savepoint to rescale.

    Args:
        savepoint: the savepoint.
        operators: metadata of the stateful operators of each query, by its name.
        partitions: the new number.
        queries: names of the only queries to rescale; none for all with state that have another number. All of them
            have to fit.

    Raises:
        SavepointError: the number is not a number of partitions, there is no such query, or a query does not fit.
    """
    if partitions < 1:
        raise SavepointError(f"{partitions} is not a number of partitions", "choose 1 or more")
    names = [one.snapshot.name for one in savepoint.queries]
    for query in queries:
        if query not in names:
            raise SavepointError(f"the savepoint has no query {query!r}", f"there is: {', '.join(names)}")
    chosen = [
        one for one in savepoint.queries if one.description.operators and (not queries or one.snapshot.name in queries)
    ]
    if not chosen:
        whose = f"query {', '.join(map(repr, queries))}" if queries else "the savepoint"
        raise SavepointError(
            f"{whose} has no stateful operator, so there is nothing to rescale",
            "set spark.sql.shuffle.partitions of the job",
        )
    if not queries:
        chosen = [one for one in chosen if not has_partitions(one.description, partitions)] or chosen
    for one in chosen:
        for why, remedy in obstacles(one.description, operators[one.snapshot.name], partitions):
            others = (
                "; `understudy savepoint rescale --query` takes one of the other queries alone"
                if len(chosen) > 1
                else ""
            )
            raise SavepointError(f"query {one.snapshot.name!r} cannot be rescaled: {why}", remedy + others)
    return chosen


def written_twice(savepoint: Savepoint) -> list[str]:
    """Return the names of queries that would write batches again after a rollback: those without a file sink."""
    return [one.snapshot.name for one in savepoint.queries if one.snapshot.sink is None]


def stand_in(
    names: Collection[str], batch_id: int, read: Callable[[str], bytes], interval: int = DEFAULT_COMPACT_INTERVAL
) -> tuple[str, bytes]:
    """Return name and content of the entry of a file sink's log for a batch that wrote no rows.

    Spark decides by the number of a batch whether its entry is a compacted one, and fails if it is not. The interval is
    a setting of the query's session, which a savepoint does not have. Where the log contradicts it, or was never
    compacted, the entry is a compacted one. If Spark would not open the log then, the restore makes it the only one.

    Args:
        names: of the log's files, which hold all entries up to the batch before.
        batch_id: the batch.
        read: reads one of them.
        interval: `COMPACT_INTERVAL` of the query's session, as far as it is known.

    Raises:
        IncompleteError: entries are missing.
    """
    newest = max(compacted(chain(names, batch_id - 1)), default=None)
    if newest is not None:
        distance = interval_of(names, interval)
        if (batch_id + 1) % distance and batch_id < newest + distance:
            return str(batch_id), b"v1"
    return f"{batch_id}.compact", merged(names, batch_id - 1, read)


def differences(before: Iterable[FamilyState], after: Iterable[FamilyState]) -> list[str]:
    """Return how rescaled state differs from the state before it, operator by operator; none if it is right."""
    old = {(one.operator, one.store, one.family): one for one in before}
    new = {(one.operator, one.store, one.family): one for one in after}
    found = []
    for key in sorted(old.keys() | new.keys()):
        operator, store, family = key
        where = f"operator {operator}, store {store}, column family {family}"
        was, now = old.get(key), new.get(key)
        had, has = (one.rows if one else 0 for one in (was, now))
        if had != has:
            found.append(f"{where}: it had {had} rows and has {has}")
        elif was and now and was.checksum != now.checksum:
            found.append(f"{where}: it has as many rows, but not the same")
        if now and now.misplaced:
            found.append(f"{where}: {now.misplaced} of {has} rows are in another partition than their keys belong to")
    return found


def refuse(wrong: Sequence[str], problem: str, remedy: str) -> None:
    """Raise `SavepointError` if anything is wrong with new state; the error has the first of it."""
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise SavepointError(f"{problem}: {wrong[0]}{more}", f"nothing was written; {remedy}")


@dataclass(frozen=True, slots=True)
class RescalePlan:
    """A rescale that was checked: the savepoint, its queries to rescale, the number, and where the result goes."""

    savepoint: Savepoint
    queries: tuple[SavepointQuery, ...]
    partitions: int
    target: Path

    @property
    def before(self) -> dict[str, int]:
        """Return the present number of partitions of each query to rescale, as far as Spark has written it down."""
        known = {one.snapshot.name: one.description.conf.get(_PARTITIONS, "") for one in self.queries}
        return {name: int(number) for name, number in known.items() if number.isdecimal()}


def plan_rescale(path: Path, partitions: int, target: Path, *queries: str) -> RescalePlan:
    """Verify a savepoint, and check that it can be rescaled; needs no Spark, and writes nothing.

    Args:
        path: of the savepoint.
        partitions: the new number.
        target: directory of the result, which must not exist.
        queries: names of the only queries to rescale; none for all with state.

    Raises:
        SavepointError: it cannot be rescaled, or *target* exists.
    """
    plan = _plan(open_savepoint(path), partitions, target, *queries)
    if target.exists() or target.is_symlink():
        raise SavepointError(f"{target} exists already", "name a directory that does not exist")
    return plan


def _plan(savepoint: Savepoint, partitions: int, target: Path, *queries: str) -> RescalePlan:
    infos = {one.snapshot.name: check_snapshot(one.snapshot, contents=False).operators for one in savepoint.queries}
    return RescalePlan(savepoint, tuple(check(savepoint, infos, partitions, *queries)), partitions, target.absolute())


def rescaled_path(path: Path, partitions: int) -> Path:
    """Return the directory for the rescaled copy of a savepoint, beside it."""
    return path.absolute().with_name(f"{path.absolute().name}-{partitions}-partitions")


def plan_start(path: Path, partitions: int) -> RescalePlan | Savepoint:
    """Find or plan the savepoint from which a job starts with another number of partitions.

    Its directory is that of `rescaled_path`. Needs no Spark, and writes nothing.

    Args:
        path: of the savepoint.
        partitions: the number.

    Returns:
        the savepoint itself if its state has that number already; the result of an earlier rescale; or what to do.

    Raises:
        SavepointError: it cannot be rescaled, or the directory has other content.
    """
    savepoint = open_savepoint(path)
    stateful = [one.description for one in savepoint.queries if one.description.operators]
    if stateful and all(has_partitions(description, partitions) for description in stateful):
        return savepoint
    target = rescaled_path(path, partitions)
    plan = _plan(savepoint, partitions, target)
    if not target.exists() and not target.is_symlink():
        return plan
    remedy = f"move it away, or rescale {path} with `understudy savepoint rescale` to another directory"
    try:
        earlier = open_savepoint(target)
    except SavepointError as error:
        raise SavepointError(f"{target} is in the way: {error}", remedy) from error
    if not is_result(earlier, plan):
        raise SavepointError(f"{target} is in the way: it is not a rescaled copy of {path}", remedy)
    return earlier


def is_result(found: Savepoint, plan: RescalePlan) -> bool:
    """Return whether a savepoint is the result of a plan. Both savepoints may have been moved since."""
    wanted, origin = plan.savepoint, found.rescaled
    names = tuple(one.snapshot.name for one in plan.queries)
    return (
        origin is not None
        and (found.job.id, origin.created_ms) == (wanted.job.id, wanted.created_ms)
        and (origin.partitions, origin.queries) == (plan.partitions, names)
    )


@dataclass(frozen=True, slots=True)
class Undo:
    """A decision how the rescale of a running job is undone.

    Args:
        rescaled: directory of the savepoint that the rescale has rolled the job back to.
        original: directory of the savepoint that it was rescaled from.
        partitions: the number before the rescale.
        queries: names of the queries that were rescaled.
        is_unused: whether no query has committed a batch since. The job then goes back to *original*, which repeats
            nothing. Otherwise its present state is rescaled to *partitions*.
        present: the number that the rescale has set.
    """

    rescaled: str
    original: str
    partitions: int
    queries: tuple[str, ...]
    is_unused: bool
    present: int


def undo_of(rescaled: Savepoint, original: Savepoint, committed: Mapping[str, int]) -> Undo:
    """Decide how a rescale is undone, so that no row is lost and none is written twice.

    A rollback to the original would repeat all batches since, and lose their rows if the sources have dropped them. So
    it is only done where there are none. It is also the only way where the job cannot start from the rescaled state.

    Args:
        rescaled: the savepoint that the job was last rolled back to.
        original: the savepoint in the directory that it was rescaled from.
        committed: last committed batch of each query, by its name.

    Raises:
        SavepointError: *rescaled* was not rescaled from *original*, or its queries had different numbers.
    """
    origin = rescaled.rescaled
    if origin is None or (original.job.id, original.created_ms) != (rescaled.job.id, origin.created_ms):
        raise SavepointError(
            f"{original.path} is not the savepoint that {rescaled.path} was rescaled from", _any_number(rescaled.job.id)
        )
    former = {
        one.snapshot.name: one.description.conf.get(_PARTITIONS, "?")
        for one in original.queries
        if one.snapshot.name in origin.queries
    }
    numbers = sorted(set(former.values()))
    if len(numbers) != 1 or not numbers[0].isdecimal():
        had = ", ".join(f"{name}: {number}" for name, number in former.items())
        raise SavepointError(
            f"its queries had different numbers of partitions ({had}), and one command can only set one",
            "rescale each of them with --partitions and --query",
        )
    is_unused = not written_twice(rescaled) and all(
        committed[one.snapshot.name] <= one.snapshot.batch_id for one in rescaled.queries
    )
    return Undo(rescaled.path, original.path, int(numbers[0]), origin.queries, is_unused, origin.partitions)


def _any_number(job_id: str) -> str:
    return f"`understudy job rescale {job_id} --partitions N` sets any number"


def find_undo(job_id: str, path: str) -> Undo:
    """Find what undoes the last rescale of a job; see `undo_of`.

    Args:
        job_id: the job.
        path: of the checkpoint or savepoint that the job was last rolled back to; empty if it never was.

    Raises:
        SavepointError: the job was not rescaled since, or its savepoints are gone.
        SnapshotError: a query's checkpointLocation cannot be read.
    """
    remedy = _any_number(job_id)
    if not path:
        raise SavepointError(f"job {job_id} was not rescaled since it started, so there is nothing to undo", remedy)
    try:
        rescaled = None if is_checkpoint(Path(path)) else read_savepoint(Path(path))
    except SavepointError as error:
        raise SavepointError(f"what job {job_id} was rolled back to is gone: {error}", remedy) from error
    if rescaled is None or rescaled.rescaled is None:
        raise SavepointError(
            f"job {job_id} was not rescaled since its rollback to {path}; only the last rescale can be undone, once",
            f"{remedy}; `understudy job info {job_id}` shows the former ones",
        )
    try:
        original = read_savepoint(Path(rescaled.rescaled.path))
    except SavepointError as error:
        raise SavepointError(f"the partitions before the rescale are not known any more: {error}", remedy) from error
    committed = {}
    for one in rescaled.queries:
        name, location = one.snapshot.name, one.snapshot.location
        if is_remote(location):
            committed[name] = committed_batch(QueryLocation(name, location))
            continue
        batch = batch_to_start_from(Path(location))  # the rollback itself may be under way
        if batch is None:
            raise SnapshotError(f"query {name!r}: {location} does not exist", remedy)
        committed[name] = batch
    return undo_of(rescaled, original, committed)


def run_rescale(plan: RescalePlan, tool: StateTool, compact_interval: int = DEFAULT_COMPACT_INTERVAL) -> Savepoint:
    """Rescale a savepoint, verify the result, and write it.

    Args:
        plan: what to do.
        tool: Spark.
        compact_interval: `COMPACT_INTERVAL`, as far as it is known.

    Returns:
        the new savepoint. Queries that are not rescaled are in it unchanged.

    Raises:
        SavepointError: the new state is not the same, or a file cannot be written. There is no result then.
        SnapshotError: the state cannot be copied. There is no result then.
    """
    old, target = plan.savepoint, plan.target
    with work_directory(target, "rescale", f"{old.path} cannot be rescaled to {target}") as work:
        snapshots = [
            _rescaled(one, plan.partitions, work / str(number), tool, compact_interval)
            if one in plan.queries
            else one.snapshot
            for number, one in enumerate(old.queries)
        ]
        names = tuple(one.snapshot.name for one in plan.queries)
        origin = RescaledFrom(old.path, old.created_ms, plan.partitions, names)
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, work=work, rescaled=origin)


def _rescaled(query: SavepointQuery, partitions: int, work: Path, tool: StateTool, interval: int) -> QuerySnapshot:
    old, description = query.snapshot, query.description
    settings = settings_of(query)
    clone = work / "location"
    restore_snapshot(old, clone, None)
    before = tool.read(clone, old.batch_id, partitions_of(query), description.operators, settings)
    tool.repartition(clone, partitions, settings)
    for name in list_files(clone):
        if name.startswith("state/") and name.endswith("/_metadata/metadata"):  # Spark never writes these again
            rewrite(clone / name, _with_partitions((clone / name).read_bytes(), partitions))
    taken = finish_batch(old, clone, work, interval)
    after = tool.read(work / "verified", taken.batch_id, partitions, description.operators, settings)
    refuse(
        differences(before, after),
        f"the rescaled state of query {old.name!r} is not what it was",
        "keep the number of partitions, and report this",
    )
    return replace(taken, location=old.location, sink=old.sink, is_proven=False)


def finish_batch(old: QuerySnapshot, clone: Path, work: Path, interval: int) -> QuerySnapshot:
    """Return a snapshot of a copied query whose state Spark has written again, as a batch of its own.

    The file sink's log gets an entry of that batch. The snapshot is restored into ``verified`` in *work*, as a job will
    restore it: by the files that the new savepoint has.

    Args:
        old: the snapshot from before.
        clone: the checkpointLocation with the new state.
        work: a directory for the snapshot.
        interval: `COMPACT_INTERVAL`, as far as it is known.

    Raises:
        SnapshotError: there is no such batch, or it is not whole.
    """
    sink = None if old.sink is None else work / "sink"
    if sink is not None:
        _continue_log(Path(old.path) / SINK, old.batch_id, sink / SINK_LOG, interval)
    location = QueryLocation(old.name, str(clone), None if sink is None else str(sink))
    taken = take_snapshot(location, work / "snapshot")
    if taken.batch_id != old.batch_id + 1:
        raise SnapshotError(f"query {old.name!r} is at batch {taken.batch_id} after Spark has written its state again")
    restore_snapshot(taken, work / "verified", None)
    return taken


def settings_of(query: SavepointQuery) -> dict[str, str]:
    """Return the settings of Spark under which the state was written: those of the offset log, and those it lacks."""
    checkpoint = Path(query.snapshot.path) / CHECKPOINT
    commit = (checkpoint / "commits" / str(query.snapshot.batch_id)).read_bytes()
    settings = {name: value for name, value in query.description.conf.items() if name != _PARTITIONS}
    settings[f"{_STORE}checkpointFormatVersion"] = "2" if read_unique_ids(commit) else "1"
    has_changes = any(name.endswith(".changelog") for name in list_files(checkpoint))
    settings[f"{_STORE}rocksdb.changelogCheckpointing.enabled"] = str(has_changes).lower()
    return settings


def _with_partitions(content: bytes, partitions: int) -> bytes:
    """Return an operator's metadata (first format) with another number of partitions."""
    version, text = content.decode().split("\n", 1)
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        store["numPartitions"] = partitions
    return f"{version}\n{json.dumps(metadata, separators=(',', ':'))}".encode()


def _continue_log(source: Path, batch_id: int, target: Path, interval: int) -> None:
    """Copy the log of a file sink, and add the entry of the batch in which Spark has repartitioned the state."""
    kept = sink_files(list_names(source), batch_id)
    make_private(target)
    take_files(source, kept, target)
    names = [name for name in kept if not name.endswith(".crc")]
    name, content = stand_in(names, batch_id + 1, lambda name: (source / name).read_bytes(), interval)
    (target / name).write_bytes(content)
