"""Writes the state of a stopped streaming query again with Spark's ``StateRewriter``, which also repartitions state.

``StateRewriter`` reads all rows of a store in their encoded form, and applies a function of Scala to them. It writes
the result as the state of another batch. Partition i of the result becomes partition i of the store.

- It applies the same function to all operators. So `StateWriter` runs it once for each operator, while the state of the
  others is out of its sight.
- The function returns rows that were prepared before, whatever it gets: at each call those of the next store.
  It is a queue behind Java's ``EventHandler``, so the JVM needs no connection back to Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENCODED = ("key_bytes", "value_bytes")
"""Columns of a Parquet directory with encoded rows, after those of `partition_column`."""

POSITION = "position"
"""Column of the same directory: a number by which the rows are written. A list has its values in this order."""


PLACE = "place"
"""Column of the directory of a family that `is_placed`: a number whose hash names the partition of the row."""


def partition_column(number: int) -> str:
    """Return the name of a column with a field of the partition key."""
    return f"partition_{number}"


@dataclass(frozen=True, slots=True)
class NewFamily:
    """The new rows of a column family.

    Args:
        operator: id of the operator.
        store: name of the store.
        family: name of the column family.
        directory: of Parquet files with the columns of `ENCODED`, `partition_column` and `POSITION`.
        partition_fields: number of fields of the partition key.
        is_placed: whether the directory has the column `PLACE` in place of `partition_column` and `POSITION`. The
            family is then the only one of its store. What the store had before is not read.
    """

    operator: int
    store: str
    family: str
    directory: Path
    partition_fields: int
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class StatePlace:
    """A committed batch of a checkpointLocation."""

    location: Path
    batch_id: int


class StateWriter:
    """Writes the state of one checkpointLocation, as a batch of its own after its last one.

    Args:
        jvm: the JVM's view.
        session: a SQL session of Spark, used by this object alone, with the settings under which the state was written.
        location: the checkpointLocation.
        batch_id: its last batch, which is committed.
        partitions: number of partitions of the state.
        former: where state is read; None for that batch itself. Another place has the same operators and schemas, and
            *location* has these too.
    """

    def __init__(
        self, jvm: Any, session: Any, location: Path, batch_id: int, partitions: int, former: StatePlace | None = None
    ) -> None:
        self._jvm = jvm
        self._session = session
        self._location = location
        self._uri = f"file:{location}"
        self._batch_id = batch_id
        self._partitions = partitions
        self._former = former or StatePlace(location, batch_id)
        self._former_uri = f"file:{self._former.location}"
        # an adaptive plan leaves out the partitions of a result without rows, and each of the state's has to be written
        session.conf().set("spark.sql.adaptive.enabled", "false")

    def run(self, families: Sequence[NewFamily]) -> None:
        """Write the batch: new rows where there are some, and all other state as it was.

        Args:
            families: the new rows.

        Raises:
            Py4JError: Spark refuses or fails.
        """
        by_operator: dict[int, list[NewFamily]] = defaultdict(list)
        for family in families:
            by_operator[family.operator].append(family)
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        log = streaming.runtime.StreamingQueryCheckpointMetadata(self._session, self._uri, False)
        written = self._batch_id + 1
        log.offsetLog().add(written, log.offsetLog().get(self._batch_id).get())
        ids = None
        state = self._location / "state"
        operators = sorted(int(path.name) for path in state.glob("*") if path.name.isdigit())
        aside = self._location.with_name(f"{self._location.name}-aside")
        aside.mkdir(mode=0o700)
        for operator in operators:
            others = [str(one) for one in operators if one != operator]
            for name in others:
                (state / name).rename(aside / name)
            found = self._write_operator(by_operator[operator])
            for name in others:
                (aside / name).rename(state / name)
            if found.isDefined():  # the second format of checkpoints
                ids = found.get() if ids is None else ids.concat(found.get())
        commit = log.commitLog().get(self._batch_id).get()
        if ids is not None:
            commit = commit.withStateUniqueIds(self._jvm.scala.Option.apply(ids))
        log.commitLog().add(written, commit)

    def _write_operator(self, families: Sequence[NewFamily]) -> Any:
        """Write the only operator in sight; return Spark's optional ids of its files."""
        option = self._jvm.scala.Option
        function = option.empty()
        hadoop = self._session.sessionState().newHadoopConf()
        if families:
            results = self._jvm.java.util.ArrayDeque()
            for store in self._stores(hadoop):
                results.add(self._rows(families[0].operator, store, [one for one in families if one.store == store]))
            function = option.apply(self._next_of(results))
        rewriter = self._jvm.org.apache.spark.sql.execution.streaming.state.StateRewriter(
            self._session,
            self._former.batch_id,
            self._batch_id + 1,
            self._uri,
            hadoop,
            option.empty() if self._former_uri == self._uri else option.apply(self._former_uri),
            function,
            option.empty(),
        )
        return rewriter.run()

    def _stores(self, hadoop: Any) -> list[str]:
        """Return the stores of the only operator in sight, in the order in which ``StateRewriter`` writes them."""
        conf = self._jvm.org.apache.spark.util.SerializableConfiguration(hadoop)
        metadata = self._jvm.org.apache.spark.sql.execution.datasources.v2.state.metadata
        [operator] = metadata.StateMetadataPartitionReader(
            self._uri, conf, self._former.batch_id
        ).allOperatorStateMetadata()
        stores = operator.stateStoresMetadata()  # a sequence of Scala
        return [stores.apply(number).storeName() for number in range(stores.size())]

    def _next_of(self, results: Any) -> Any:
        """Return a function of Scala that returns the next result of a queue at each call."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        function = loader.loadClass("scala.Function1")
        return self._jvm.java.beans.EventHandler.create(function, results, "poll")

    def _rows(self, operator: int, store: str, families: Sequence[NewFamily]) -> Any:
        """Return all rows of a store: the new ones, and those of its other column families."""
        column = self._jvm.org.apache.spark.sql.functions
        options: Mapping[str, str] = {
            "batchId": str(self._former.batch_id),
            "operatorId": str(operator),
            "storeName": store,
            "_readAllColumnFamilies": "true",
        }
        reader = self._session.read().format("statestore")
        for name, value in options.items():
            reader = reader.option(name, value)
        before = reader.load(self._former_uri)  # nothing is read yet but schemas
        if not families:
            return before
        schema = before.schema()
        if families[0].is_placed:
            return self._placed(families[0], schema, before.columns())
        rows = before.withColumn(POSITION, column.monotonically_increasing_id())
        for family in families:
            rows = rows.where(column.col("column_family_name").notEqual(family.family))
        for family in families:
            new = self._session.read().format("parquet").load(f"file:{family.directory}")
            fields = ", ".join(partition_column(number) for number in range(family.partition_fields))
            hashed = column.expr(f"struct({fields})").cast(schema.apply("partition_key").dataType())
            new = new.withColumn("partition_key", hashed).withColumn("column_family_name", column.lit(family.family))
            rows = rows.unionByName(new.selectExpr(self._texts(rows.columns())))
        keys = self._jvm.java.util.ArrayList()
        keys.add(column.col("partition_key"))
        order = self._jvm.java.util.ArrayList()
        order.add(column.col(POSITION))
        placed = rows.repartition(self._partitions, self._seq(keys)).sortWithinPartitions(self._seq(order))
        placed = placed.selectExpr(self._texts(before.columns()))
        return self._session.createDataFrame(placed.toJavaRDD(), schema)  # Spark compares the schema as a whole

    def _placed(self, family: NewFamily, schema: Any, columns: Sequence[str]) -> Any:
        """Return all rows of a store that has one family, whose rows name their partition themselves."""
        column = self._jvm.org.apache.spark.sql.functions
        unknown = column.lit(None).cast(schema.apply("partition_key").dataType())  # Spark writes the other columns only
        rows = self._session.read().format("parquet").load(f"file:{family.directory}")
        rows = rows.withColumn("partition_key", unknown).withColumn("column_family_name", column.lit(family.family))
        keys = self._jvm.java.util.ArrayList()
        keys.add(column.col(PLACE))
        placed = rows.repartition(self._partitions, self._seq(keys)).selectExpr(self._texts(columns))
        return self._session.createDataFrame(placed.toJavaRDD(), schema)

    def _texts(self, names: Sequence[str]) -> Any:
        texts = self._jvm.java.util.ArrayList()
        for name in names:
            texts.add(name)
        return self._seq(texts)

    def _seq(self, values: Any) -> Any:
        """Return a list of Java as a sequence of Scala."""
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)
