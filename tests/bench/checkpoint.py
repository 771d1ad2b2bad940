"""What a checkpoint costs the query that it is taken of, and what it saves beside a copy of the same directory.

The query counts rows by key; its state is in RocksDB with changelog; a batch brings 1,000 rows. Snapshots are taken by
`runtime.checkpoint.snapshot` while it runs, their files are links.

- ``batch_overhead_ratio``: the median duration of a batch in rounds of 20 batches with a checkpoint every 10, over
  that in the rounds between them without, at 10^5 keys; ``batch_ms_*``: both, the median and the 99th percentile.
- ``checkpoint_ms_1e5``, ``checkpoint_ms_1e6``: how long taking one lasts, at as many keys, the query working.
- ``incremental_bytes_ratio``: the bytes that no earlier checkpoint holds, over all its bytes, ten batches after the one
  before, at 10^6 keys: 1 % of them have changed.
- ``copy_time_ratio_1e6``: one by links over ``cp -r`` of the same directory, alternating, the query waiting for input.
- ``restore_s_1e6``: from a snapshot to the first batch that is committed in another place.
- ``kills_survived``, ``rows_lost``, ``rows_doubled``: of a job in a cluster that is killed ``--kills`` times
  (`tests.faults.exactly_once`); left out where there are none.

Medians. The first two rounds of batches are not counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.snapshot import restore_snapshot, take_snapshot
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from tests.faults import exactly_once

CHANGES = 1000
ROUND = 20
EVERY = 10
COPY_TRIES = 10
PATIENCE_S = 300.0
_STORE = "spark.sql.streaming.stateStore."
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    f"{_STORE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORE}rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STORE}maintenanceInterval": "2s",  # whole state is written every some batches, as in a long run
}

Figures = dict[str, float]


def run(rounds: int, kills: int) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        figures = asyncio.run(_on_a_driver(Path(scratch), rounds))
        if kills:
            figures |= _killed(Path(scratch), kills)
    return figures, _table(figures)


def _killed(directory: Path, kills: int) -> Figures:
    seed = random.SystemRandom().randrange(10**6)
    print(f"{kills} kills, seed {seed}", file=sys.stderr)
    result = exactly_once.run(directory, kills, seed)
    for problem in result.problems:
        print(problem, file=sys.stderr)
    return {"kills_survived": result.survived, "rows_lost": result.lost, "rows_doubled": result.doubled}


async def _on_a_driver(directory: Path, rounds: int) -> Figures:
    log = directory / "log" / "spark-driver.log"
    driver = await LocalDriver.start(
        DriverOptions(work_dir=directory / "driver", log_file=log, memory="2g", die_with_parent=True, conf=CONF)
    )
    try:
        endpoint = await driver.open_session(isolated=False)
        spark = await asyncio.to_thread(SparkSession.builder.remote(endpoint.url).getOrCreate)
        try:
            overhead = await asyncio.to_thread(_overhead, Counts(spark, directory / "1e5", 100_000), rounds)
            return overhead | await asyncio.to_thread(_large, Counts(spark, directory / "1e6", 1_000_000), rounds)
        finally:
            await asyncio.to_thread(spark.stop)
    finally:
        await driver.stop()


@dataclass
class Counts:
    """The query: its first batch brings each key once, every other one some of them."""

    spark: SparkSession
    root: Path
    keys: int
    files: int = 0
    snapshots: list[QuerySnapshot] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)

    def feed(self, batches: int) -> None:
        """Give it input for some batches, and the keys before all others."""
        (self.root / "in").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(self.files)
        for number in range(self.files, self.files + batches):
            keys = random.integers(0, self.keys, CHANGES) if number else np.arange(self.keys)
            part = self.root / "part"
            pq.write_table(pa.table({"key": keys}), part)
            os.utime(part, (1_400_000_000 + number,) * 2)  # Spark takes the oldest first
            part.rename(self.root / "in" / f"{number:05}.parquet")
        self.files += batches

    def start(self, location: Path | None = None) -> StreamingQuery:
        """Start it, at its own location or another one."""
        rows = self.spark.readStream.schema("key BIGINT").option("maxFilesPerTrigger", 1)
        counts = rows.parquet(str(self.root / "in")).groupBy("key").count()
        writer = counts.writeStream.format("noop").outputMode("update").trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(location or self.location)).start()

    @property
    def location(self) -> Path:
        return self.root / "checkpoint"

    def committed(self, location: Path | None = None) -> int:
        """The last batch that is committed; -1 for none."""
        return last_commit(f"commits/{name}" for name in list_names((location or self.location) / "commits"))

    def snapshot(self) -> QuerySnapshot:
        """Take one, and note how long it took; one older than the last is removed, as a job keeps few."""
        target = self.root / f"chk-{len(self.took_ms)}"
        previous = self.snapshots[-1] if self.snapshots else None
        began = time.perf_counter()
        taken = take_snapshot(QueryLocation("counts", str(self.location)), target, previous)
        self.took_ms.append((time.perf_counter() - began) * 1000)
        for old in self.snapshots:
            shutil.rmtree(old.path)
        self.snapshots = [taken]
        return taken


def _await(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        if time.monotonic() > deadline:
            raise RuntimeError("the query does not get on; see its Spark driver's log")
        time.sleep(0.02)


def _overhead(counts: Counts, rounds: int) -> Figures:
    blocks = 2 * (rounds + 1)
    counts.feed(blocks * ROUND)
    query = counts.start()
    for batch in range(EVERY // 2, blocks * ROUND, EVERY):
        _await(lambda batch=batch: counts.committed() >= batch, query)  # type: ignore[misc]
        if batch // ROUND % 2:
            counts.snapshot()
    _await(lambda: counts.committed() == blocks * ROUND - 1, query)
    durations: dict[bool, list[float]] = {True: [], False: []}
    for progress in query.recentProgress:
        if 2 * ROUND <= progress["batchId"] < blocks * ROUND and "addBatch" in progress["durationMs"]:
            durations[bool(progress["batchId"] // ROUND % 2)].append(progress["durationMs"]["triggerExecution"])
    query.stop()
    p50 = {taken: statistics.median(values) for taken, values in durations.items()}
    p99 = {taken: statistics.quantiles(values, n=100, method="inclusive")[98] for taken, values in durations.items()}
    return {
        "batch_overhead_ratio": p50[True] / p50[False],
        "batch_ms_p50_with": p50[True],
        "batch_ms_p50_without": p50[False],
        "batch_ms_p99_with": p99[True],
        "batch_ms_p99_without": p99[False],
        "checkpoint_ms_1e5": statistics.median(counts.took_ms),
    }


def _large(counts: Counts, rounds: int) -> Figures:
    counts.feed(2 * EVERY)
    query = counts.start()
    _await(lambda: counts.committed() == counts.files - 1, query)
    _await(lambda: any(counts.location.glob("state/0/*/*.zip")), query)
    counts.snapshot()  # it shares nothing with an earlier one, and is not counted
    ratios = []
    for _ in range(rounds):
        before = counts.committed()
        counts.feed(EVERY + 1)
        _await(lambda before=before: counts.committed() >= before + EVERY, query)  # type: ignore[misc]
        taken = counts.snapshot()
        ratios.append(taken.new_bytes / taken.bytes)
    figures = {
        "checkpoint_ms_1e6": statistics.median(counts.took_ms[1:]),
        "incremental_bytes_ratio": statistics.median(ratios),
    }
    _await(lambda: counts.committed() == counts.files - 1, query)
    links, copies = [], []
    for _ in range(rounds + 1):
        counts.snapshot()
        links.append(counts.took_ms[-1])
        copies.append(_copy_ms(counts.location, counts.root / "copy"))
    query.stop()
    figures["copy_time_ratio_1e6"] = statistics.median(links[1:]) / statistics.median(copies[1:])
    figures["restore_s_1e6"] = statistics.median(_restore_s(counts, number) for number in range(rounds))
    return figures


def _copy_ms(directory: Path, target: Path) -> float:
    """Return how long a copy takes; one under which the query has removed a file is made again."""
    for _ in range(COPY_TRIES):
        began = time.perf_counter()
        copied = subprocess.run(["cp", "-r", str(directory), str(target)], capture_output=True, text=True, check=False)
        took = time.perf_counter() - began
        shutil.rmtree(target)
        if copied.returncode == 0:
            return took * 1000
    raise RuntimeError(f"{directory} cannot be copied: {copied.stderr}")


def _restore_s(counts: Counts, number: int) -> float:
    [snapshot] = counts.snapshots
    if number == 0:
        counts.feed(1)
    location = counts.root / f"restored-{number}"
    began = time.perf_counter()
    restore_snapshot(snapshot, location, None)
    query = counts.start(location)
    _await(lambda: counts.committed(location) > snapshot.batch_id, query)
    took = time.perf_counter() - began
    query.stop()
    return took


def _table(figures: Figures) -> list[tuple[str, str]]:
    goals = {
        "batch_overhead_ratio": "at most 1.05",
        "incremental_bytes_ratio": "proportional to the change, which is 1 % of the keys",
        "copy_time_ratio_1e6": "at most 0.35",
        "kills_survived": "all",
        "rows_lost": "0",
        "rows_doubled": "0",
    }
    return [
        (name, f"{value:9.3f}" + (f"    (to reach: {goals[name]})" if name in goals else ""))
        for name, value in figures.items()
    ]
