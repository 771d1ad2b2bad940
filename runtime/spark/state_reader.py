"""Reads the state in a savepoint through Spark's own data source (``statestore``).

    frame = read_state(spark, "/savepoints/savepoint-0123ab-...", "/tmp/state", query="arrivals")
    frame.show()

The state is copied first: Spark writes into a checkpointLocation that it reads, and the metadata of some operators
contain absolute paths.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.savepoint import open_savepoint
from runtime.checkpoint.state_choice import StateChoice, choose_state
from runtime.spark.connect_session import connect_session
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_state(
    spark: SparkSession,
    path: str | Path,
    directory: str | Path,
    *,
    query: str | None = None,
    operator: int | None = None,
    store: str | None = None,
    variable: str | None = None,
) -> DataFrame:
    """Return the keys and values of one operator's state in a savepoint, as a DataFrame.

    Spark reads the state during this call, and keeps the rows in its storage. Otherwise Spark 4.3 gives wrong rows
    where two tasks read one partition of a state at the same time, as in a ``crossJoin``.

    Args:
        spark: a session, classic or Connect, whose driver sees the directories.
        path: of the savepoint; it is verified first, and not changed.
        directory: where the state is copied for Spark to read.
        query: name of the query; may be omitted if only one has state.
        operator: id of the operator. Default: the first.
        store: name of the operator's store (joins have several). Default: the first.
        variable: the state variable of a transformWithState; may be omitted if it has only one.

    Raises:
        SavepointError: the savepoint cannot be used, has no such state, or has several that fit.
        SnapshotError: the state cannot be copied into *directory*.
    """
    choice = choose_state(open_savepoint(Path(path)), query, operator, store, variable)
    return read_once(_load(spark, choice, Path(directory)))


def read_once(state: DataFrame) -> DataFrame:
    """Return the rows of a DataFrame that reads state stores, from Spark's storage.

    Spark 4.3 gives wrong rows when two tasks read one partition of such a DataFrame at the same time, as in a
    ``crossJoin``. Both share a decoder, which keeps the row that it works on: one key comes twice, and another never.
    """
    kept: Any = state.localCheckpoint()
    if kept.sparkSession is not state.sparkSession:
        # PySpark's Connect client has taken the thread's active session for the one that keeps the rows.
        kept._plan._spark_session = state.sparkSession
        kept = type(kept)(kept._plan, state.sparkSession)
    found: DataFrame = kept
    return found


def _load(spark: SparkSession, choice: StateChoice, directory: Path) -> DataFrame:
    snapshot = choice.query.snapshot
    location = directory.absolute() / "checkpoint"
    restore_snapshot(snapshot, location, None)
    reader = spark.read.format("statestore").option("operatorId", choice.operator).option("batchId", snapshot.batch_id)
    if choice.store != "default":
        reader = reader.option("storeName", choice.store)
    if choice.variable is not None:
        reader = reader.option("stateVarName", choice.variable)
    return reader.load(str(location))


def first_rows(choice: StateChoice, limit: int, java_home: str | None = None) -> list[dict[str, Any]]:
    """Return the first rows of a part of a savepoint's state, read with a Spark of one core that is started for it.

    Call it on the main thread. That Spark ends with this process.

    Args:
        choice: the part to read, of a verified savepoint.
        limit: largest number of rows.
        java_home: the configured Java, None to find one.

    Raises:
        SparkError: Spark cannot be started.
        SnapshotError: the state cannot be prepared.
    """
    return asyncio.run(_first_rows(choice, limit, java_home))


async def _first_rows(choice: StateChoice, limit: int, java_home: str | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="understudy-state-") as name:
        directory = Path(name)
        options = DriverOptions(
            work_dir=directory / "driver",
            log_file=directory / "log" / "spark-driver.log",
            java_home=java_home,
            master="local[1]",
            die_with_parent=True,
        )
        driver = await LocalDriver.start(options)
        try:
            endpoint = await driver.open_session(isolated=False)
            return await asyncio.to_thread(_collect, driver, endpoint.url, choice, directory, limit)
        finally:
            await driver.stop()


def _collect(driver: LocalDriver, url: str, choice: StateChoice, directory: Path, limit: int) -> list[dict[str, Any]]:
    with connect_session(url, driver) as spark:
        return [row.asDict(recursive=True) for row in _load(spark, choice, directory).limit(limit).collect()]
