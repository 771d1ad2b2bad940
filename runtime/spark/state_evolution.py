"""Gives the state in a savepoint the operators and types that a new version of the job has.

    from understudy import evolve_savepoint

    def edit(state, part):
        value = sf.struct("value.count", sf.lit(None).cast("bigint").alias("sum"))
        return state.select("key", value.alias("value"))

    evolve_savepoint("/savepoints/savepoint-0123ab-...", edit, "/savepoints/new-version", "/savepoints/evolved")

Neither savepoint is changed, and the result appears under its name only when it is whole and verified. For each query:

1. Both are restored into a work directory beside the result. The function is called for each part of the new version's
   state (`StatePart`). It gets the rows of the same part before, in their former types.
2. Where Understudy can encode the former rows, they have to come out as each byte that Spark has stored. So do the rows
   that the new version has, if it has any.
3. A checkpointLocation is made with the query's position, and the operators and schemas of the new version. There Spark
   writes the new state, as a batch of its own (`StateWriter`).
4. The new state is restored once more and read in both forms, as after an edit (`check_written`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conf.files import make_private
from runtime.checkpoint.edit import StatePart, can_encode
from runtime.checkpoint.manifest import EditedFrom, Savepoint
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.checkpoint.rescale import FamilyState, differences, finish_batch, partitions_of, refuse, settings_of
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.state_evolution import Evolution, EvolutionPlan, Place, places_of, plan_evolution, prepare
from runtime.checkpoint.work_directory import work_directory
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import ENCODED, POSITION, NewFamily, StatePlace, partition_column
from runtime.spark.edit_function import Edit, call_function
from runtime.spark.rescale import run_with_driver
from runtime.spark.state_edit import (
    NewPart,
    SavedState,
    Write,
    check_encoding,
    check_written,
    stored_rows,
    take_result,
    with_writer,
)
from runtime.spark.state_reader import read_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def evolve_savepoint(
    path: str | Path,
    function: Edit,
    schemas: str | Path,
    to: str | Path,
    *,
    query: str | None = None,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Write a savepoint with the state of another one in the form that a new version of the job has.

    Starts a Spark for it, which ends with this call.

    Args:
        path: of the savepoint with the state, which is verified first, and not changed.
        function: called for each part of the new version's state, with a DataFrame and the part. The DataFrame has the
            rows of the same part before, in their former types, or no rows if there was no such part. Returns a
            DataFrame with ``key`` and ``value`` of the types of the part. If it takes a third argument, that is a
            `FormerState`.
        schemas: of a savepoint that the new version has written. Its rows are not used.
        to: directory of the result, which must not exist; it appears when it is whole and verified.
        query: name of the only query to change. Default: all whose operators or schemas differ.
        java_home: the Java to use, None to find one.
        compact_interval: ``spark.sql.streaming.fileSink.log.compactInterval`` of the job's sessions.

    Returns:
        the savepoint. Its ``edited.dropped`` names former state that nothing has read.

    Raises:
        SavepointError: a query does not fit, the function fails or returns something else, or the new state is not
            what it returned.
        SnapshotError: the state cannot be copied.
        SparkError: Spark cannot be started, or fails.
    """
    plan = plan_evolution(Path(path), Path(schemas), Path(to), query)
    return evolve(plan, function, java_home, compact_interval)


def evolve(
    plan: EvolutionPlan,
    function: Edit,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Run an evolution that was planned; otherwise as `evolve_savepoint`."""
    return run_with_driver(lambda driver: evolve_with(driver, plan, function, compact_interval), java_home)


async def evolve_with(
    driver: LocalDriver, plan: EvolutionPlan, function: Edit, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run an evolution in a running driver; otherwise as `evolve`."""
    return await with_writer(driver, lambda spark, write: _run(plan, function, spark, write, compact_interval))


def _run(plan: EvolutionPlan, function: Edit, spark: SparkSession, write: Write, interval: int) -> Savepoint:
    old, target = plan.savepoint, plan.target
    with work_directory(target, "edit", f"{old.path} cannot be edited into {target}") as work:
        evolvers = {
            one.query.snapshot.name: _QueryEvolver(spark, one, work / str(number), write)
            for number, one in enumerate(plan.queries)
        }
        for evolver in evolvers.values():
            evolver.take(function)
        snapshots = []
        for one in old.queries:
            found = evolvers.get(one.snapshot.name)
            snapshots.append(one.snapshot if found is None else found.finish(interval))
        dropped = tuple(text for evolver in evolvers.values() for text in evolver.dropped())
        origin = EditedFrom(old.path, old.created_ms, tuple(evolvers), plan.schemas.path, dropped)
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, work=work, edited=origin)


class FormerState:
    """The state of a query before its new version, for the function of an evolution.

    Attributes:
        parts: those that `read` returns.
    """

    def __init__(self, parts: Sequence[StatePart], state: SavedState) -> None:
        self.parts = tuple(parts)
        self._state = state
        self._read: dict[StatePart, DataFrame] = {}

    def read(self, operator: int, variable: str | None = None, side: str | None = None) -> DataFrame:
        """Return the rows of a part, with ``key``, ``value`` and ``partition_id`` in their former types.

        Args:
            operator: id of the operator in the former version.
            variable: the state variable of a transformWithState; not needed if it has one.
            side: ``left`` or ``right``, of a join.

        Raises:
            LookupError: there is no such part, or more than one.
        """
        found = [
            one
            for one in self.parts
            if one.operator == operator and variable in (None, one.variable) and side in (None, one.side)
        ]
        if len(found) != 1:
            known = "; ".join(map(str, self.parts)) or "none"
            raise LookupError(f"{len(found)} parts of the former state are of operator {operator}; there is: {known}")
        return self.of(found[0])

    def of(self, part: StatePart) -> DataFrame:
        """Return the rows of one of `parts`."""
        if part not in self._read:
            self._read[part] = read_once(self._state.decoded(part))
        return self._read[part]

    def was_read(self) -> tuple[StatePart, ...]:
        """Return the parts that were read so far."""
        return tuple(self._read)


class _QueryEvolver:
    """Writes the state of one query in its new form.

    Args:
        spark: a session, used by this evolution alone: its settings change.
        evolution: the query.
        work: a directory for its files.
        write: writes the state; see `DriverGateway.write_state`.
    """

    def __init__(self, spark: SparkSession, evolution: Evolution, work: Path, write: Write) -> None:
        self._spark = spark
        self._evolution = evolution
        self._work = work
        self._write = write
        query, schemas = evolution.query, evolution.schemas
        self._form = work / "schemas"
        self._clone = work / "location"
        self._former = SavedState(spark, query, work / "former", query.snapshot.batch_id)
        self._empty = SavedState(spark, schemas, self._form, schemas.snapshot.batch_id)
        self._before: list[FamilyState] = []
        self._of_form: list[FamilyState] = []
        self._read: tuple[StatePart, ...] = ()
        self._new: list[NewPart] = []
        self._kept: list[tuple[NewFamily, FamilyState]] = []

    def take(self, function: Edit) -> None:
        """Call the function for each part of the new state, and store and encode what it returns.

        Raises:
            SavepointError: the function fails, or its result cannot be the state.
        """
        query, schemas = self._evolution.query, self._evolution.schemas
        restore_snapshot(query.snapshot, self._work / "former", None)
        restore_snapshot(schemas.snapshot, self._form, None)
        self._before = self._former.families() if query.description.operators else []
        self._of_form = self._empty.families() if schemas.description.operators else []
        with_rows = {(one.operator, one.store, one.family) for one in self._of_form if one.rows}
        former = FormerState(self._evolution.former, self._former)
        for number, part in enumerate(self._evolution.parts):
            directory = self._work / f"part-{number}"
            make_private(directory)
            known = self._evolution.former_of(part)
            if known is None:
                state = read_once(self._empty.decoded(part).limit(0))
            else:
                state = former.of(known)
                if can_encode(known):
                    hashed = self._former.partition_paths(known)
                    check_encoding(self._spark, known, hashed, state, self._before, directory)
            result = call_function(function, state, part, former)
            hashed = self._empty.partition_paths(part)
            if with_rows.intersection(places_of(part)):  # they show how Spark encodes the new types
                make_private(directory / "form")
                present = read_once(self._empty.decoded(part))
                check_encoding(self._spark, part, hashed, present, self._of_form, directory / "form")
            self._new.append(take_result(self._spark, part, hashed, result, directory))
        self._read = former.was_read()
        self._kept = [self._copied(number, place) for number, place in enumerate(self._evolution.kept)]

    def _copied(self, number: int, place: Place) -> tuple[NewFamily, FamilyState]:
        """Store the encoded rows of a column family that stays as it is."""
        from pyspark.sql import functions as sf

        operator, store, family = place
        directory = self._work / f"kept-{number}"
        rows = self._former.encoded(operator, store).where(sf.col("column_family_name") == family)
        fields = rows.schema["partition_key"].dataType.jsonValue()["fields"]  # type: ignore[index]
        hashed = (
            sf.col("partition_key").getField(field["name"]).alias(partition_column(at))
            for at, field in enumerate(fields)
        )
        found = rows.select(*hashed, *ENCODED, sf.monotonically_increasing_id().alias(POSITION))
        read_once(found).write.parquet(f"file:{directory}")
        state = stored_rows(self._spark, operator, store, family, directory)
        return NewFamily(operator, store, family, directory, len(fields)), state

    def finish(self, interval: int) -> QuerySnapshot:
        """Write the new state, verify it, and return a snapshot of it.

        Args:
            interval: `COMPACT_INTERVAL`, as far as it is known.

        Raises:
            SavepointError: the new state is not what the function returned.
            SnapshotError: it is not whole.
            SparkError: Spark cannot write it.
        """
        old, schemas = self._evolution.query.snapshot, self._evolution.schemas
        prepare(self._evolution, self._clone, self._form)
        made = [one for new in self._new for one in new.encoded] + self._kept
        self._check_empty({(one.operator, one.store, one.family) for one, _ in made})
        present = {(one.operator, one.store, one.family): one for one in self._before}
        kept = [present[place] for place in self._evolution.kept if place in present]
        refuse(
            differences(kept, [state for _, state in self._kept]),
            f"the timers and values with a time to live of query {old.name!r} cannot be copied",
            "report this",
        )
        settings = settings_of(schemas)
        former = StatePlace(self._form, schemas.snapshot.batch_id)
        families = [family for family, _ in made]
        self._write(self._clone, old.batch_id, partitions_of(schemas), settings, families, former)
        taken = finish_batch(old, self._clone, self._work, interval)
        if schemas.description.operators:
            after = SavedState(self._spark, schemas, self._work / "verified", taken.batch_id)
            check_written(self._spark, old.name, [state for _, state in made], self._new, after)
        return replace(taken, location=old.location, sink=old.sink, is_proven=False)

    def _check_empty(self, made: set[Place]) -> None:
        """Raise `SavepointError` if the new version has rows where the result shall have none."""
        refuse(
            [one.family for one in self._of_form if one.rows and (one.operator, one.store, one.family) not in made],
            f"query {self._evolution.query.snapshot.name!r} of the new version has rows of Spark's own in its state",
            "let the new version process one batch without rows, and stop it",
        )

    def dropped(self) -> tuple[str, ...]:
        """Return, in words, the former state that nothing has read."""
        return self._evolution.dropped(self._before, self._read)
