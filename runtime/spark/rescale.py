"""Rescales the state in a savepoint by Spark's own repartition of a stopped query.

    from understudy import rescale_savepoint

    rescale_savepoint("/savepoints/savepoint-0123ab-...", 8, "/savepoints/of-8")

`runtime.checkpoint.rescale` says what a rescale does; this module is its Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.checkpoint.description import OperatorDescription
from runtime.checkpoint.manifest import Savepoint
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.checkpoint.rescale import (
    COMPACT_INTERVAL,
    FamilyState,
    RescalePlan,
    plan_rescale,
    run_rescale,
)
from runtime.spark.connect_session import connect_session
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import DriverCallError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_MOST_CORES = 4

Repartition = Callable[[Path, int, Mapping[str, str]], None]


class SparkStateReader:
    """Reads the state of stopped queries by a running Spark.

    Args:
        spark: a session, used by this object alone: its settings change.
        at_once: how many partitions are read at the same time. A Spark task keeps its core until it has read its
            partition, so queries of the same Spark wait for that. Default: as many as Spark has cores.
    """

    def __init__(self, spark: SparkSession, at_once: int | None = None) -> None:
        self._spark = spark
        self._at_once = at_once

    def read(
        self,
        location: Path,
        batch_id: int,
        partitions: int,
        operators: Sequence[OperatorDescription],
        settings: Mapping[str, str],
    ) -> list[FamilyState]:
        """Return what all stores hold, with the rows that are in another partition than the hash of their key names.

        Raises:
            SparkError: Spark cannot read the state.
        """
        from pyspark.errors import PySparkException

        self._spark.conf.set(_FORMAT, settings[_FORMAT])
        try:
            return [
                found
                for operator in operators
                for store in operator.stores
                for found in self._families(location, batch_id, partitions, operator.id, store.name)
            ]
        except PySparkException as error:
            first = str(error).partition("\n")[0]
            raise DriverCallError(f"Spark cannot read the state of batch {batch_id} in {location}: {first}") from error

    def _families(self, location: Path, batch_id: int, partitions: int, operator: int, store: str) -> list[FamilyState]:
        reader = self._spark.read.format("statestore").option("batchId", batch_id).option("operatorId", operator)
        if store != "default":
            reader = reader.option("storeName", store)
        rows = reader.option("_readAllColumnFamilies", "true").load(str(location))
        # the reader has a partition of its own for each of the state's, in their order
        hashed = rows.selectExpr(
            "column_family_name AS family",
            "CAST(xxhash64(key_bytes, value_bytes) AS DECIMAL(38, 0)) AS digest",
            f"INT(pmod(hash(partition_key), {partitions}) <> spark_partition_id()) AS misplaced",
        )
        if self._at_once is not None:
            hashed = hashed.coalesce(self._at_once)
        sums = hashed.groupBy("family").agg({"*": "count", "digest": "sum", "misplaced": "sum"})
        return [
            FamilyState(
                operator,
                store,
                row["family"],
                row["count(1)"],
                int(row["sum(digest)"]),
                row["sum(misplaced)"],
            )
            for row in sums.collect()
        ]


class SparkStateTool(SparkStateReader):
    """The `StateTool` of a running Spark.

    Args:
        spark: a session, used by this object alone: its settings change.
        repartition: repartitions a checkpointLocation in the same driver (`LocalDriver.repartition_state`).
        at_once: as of `SparkStateReader`.
    """

    def __init__(self, spark: SparkSession, repartition: Repartition, at_once: int | None = None) -> None:
        super().__init__(spark, at_once)
        self._repartition = repartition

    def repartition(self, location: Path, partitions: int, settings: Mapping[str, str]) -> None:
        """Write the state in a checkpointLocation again, with another number of partitions.

        Raises:
            SparkError: Spark refuses or fails.
        """
        self._repartition(location, partitions, settings)


def rescale_savepoint(
    path: str | Path,
    partitions: int,
    to: str | Path,
    *,
    query: str | None = None,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Write a savepoint with the state of another one in another number of partitions.

    Starts a Spark for it, which ends with this call.

    Args:
        path: of the savepoint, which is verified first, and not changed.
        partitions: the new number.
        to: directory of the result, which must not exist; it appears when it is whole and verified.
        query: name of the only query to rescale. Default: all with state.
        java_home: the Java to use, None to find one.
        compact_interval: ``spark.sql.streaming.fileSink.log.compactInterval`` of the job's sessions.

    Raises:
        SavepointError: the savepoint cannot be rescaled, or the new state is not the same.
        SnapshotError: the state cannot be copied.
        SparkError: Spark cannot be started, or fails.
    """
    named = () if query is None else (query,)
    return rescale(plan_rescale(Path(path), partitions, Path(to), *named), java_home, compact_interval)


def rescale(
    plan: RescalePlan, java_home: str | None = None, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run a rescale that was planned; otherwise as `rescale_savepoint`."""
    return run_with_driver(lambda driver: rescale_with(driver, plan, compact_interval), java_home)


Work = Callable[[LocalDriver], Coroutine[Any, Any, Savepoint]]


def run_with_driver(work: Work, java_home: str | None) -> Savepoint:
    """Start a Spark, run a coroutine with it, and end it; also where an event loop runs in the calling thread.

    Raises:
        SparkError: Spark cannot be started.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_run(work, java_home))
    return _beside_a_loop(lambda: _run(work, java_home))


def _beside_a_loop(work: Callable[[], Coroutine[Any, Any, Savepoint]]) -> Savepoint:
    """Run a coroutine in a thread of its own: the calling thread runs an event loop, as that of a notebook does."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def run() -> Savepoint:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work()

    with ThreadPoolExecutor(1, "understudy-rescale") as pool:
        done = pool.submit(lambda: asyncio.run(run()))
        try:
            return done.result()
        except BaseException:
            if not done.done():  # an interrupt of this thread
                loop, task = begun.result()
                with contextlib.suppress(RuntimeError):  # it has ended at the same moment
                    loop.call_soon_threadsafe(task.cancel)
            raise


def rescale_in_task(plan: RescalePlan) -> Savepoint:
    """Run a rescale that was planned, in the Spark to which the calling task is attached.

    Raises:
        SavepointError, SnapshotError, SparkError: as `rescale_savepoint`.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    interval = spark.conf.get(COMPACT_INTERVAL)
    half = max(1, spark.sparkContext.defaultParallelism // 2)  # the other cores are for the queries that run there
    return run_rescale(plan, SparkStateTool(spark.newSession(), _repartition_from(spark), half), int(interval or 0))


def _repartition_from(spark: Any) -> Repartition:
    """Return what repartitions state in the Spark of a classic session, as `DriverGateway.repartition_state`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def repartition(location: Path, partitions: int, settings: Mapping[str, str]) -> None:
        session: Any = spark.newSession()._jsparkSession
        for key, value in settings.items():
            session.conf().set(key, value)
        try:
            session.streamingCheckpointManager().repartition(str(location), partitions, True)
        except (PySparkException, Py4JError) as error:
            first = str(error).partition("\n")[0]
            raise DriverCallError(f"Spark cannot repartition the state in {location}: {first}") from error

    return repartition


async def _run(work: Work, java_home: str | None) -> Savepoint:
    with tempfile.TemporaryDirectory(prefix="understudy-rewrite-") as name:
        directory = Path(name)
        options = DriverOptions(
            work_dir=directory / "driver",
            log_file=directory / "log" / "spark-driver.log",
            java_home=java_home,
            master=f"local[{min(_MOST_CORES, os.cpu_count() or 1)}]",
            die_with_parent=True,
        )
        driver = await LocalDriver.start(options, thread_stays=True)  # this thread waits for the end of the work
        try:
            return await work(driver)
        finally:
            await driver.stop()


async def rescale_with(
    driver: LocalDriver,
    plan: RescalePlan,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
    at_once: int | None = None,
) -> Savepoint:
    """Run a rescale in a running driver; see `run_rescale`, and for *at_once* `SparkStateReader`."""
    loop = asyncio.get_running_loop()
    endpoint = await driver.open_session(isolated=False)

    def repartition(location: Path, partitions: int, settings: Mapping[str, str]) -> None:
        call = driver.repartition_state(location, partitions, settings)
        asyncio.run_coroutine_threadsafe(call, loop).result()

    def run() -> Savepoint:
        with connect_session(endpoint.url, driver) as spark:
            return run_rescale(plan, SparkStateTool(spark, repartition, at_once), compact_interval)

    return await asyncio.to_thread(run)
