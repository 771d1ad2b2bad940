"""The costs of both state backends: `python -m tests.bench.state_backends`.

For each number of keys two queries of one Spark count the same rows: one keeps its state in the HDFS-backed store
(`hashmap`), one in RocksDB with changelog (`rocksdb`). The first file has all keys, each later one changes `CHANGED` of
them. The queries take turns batch by batch, so other load of the machine hits both. The figures are medians over the
batches after the first two, and medians of the ratios of the two queries' batches:

- ``batch_ms``: the duration of a batch; ``commit_ms``: the part of it that writes the state, summed over partitions.
- ``snapshot_ms``: the duration of a snapshot of the query, which links from the one before, as checkpoints do.
- ``new_kb``: bytes of the snapshot that the one before does not have.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from conf.options import StateBackend
from runtime.checkpoint.snapshot import take_snapshot
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from runtime.taskexecutor.spark_options import state_backend_properties

CHANGED = 500
_WARM_UP = 2


class Counted:
    """A query that counts rows by key, with its snapshots."""

    def __init__(self, spark: SparkSession, root: Path, backend: StateBackend) -> None:
        self._root, self._source = root, root / "in"
        self._source.mkdir(parents=True)
        self.location = QueryLocation(backend.value, str(root / "checkpoint"))
        for name, value in state_backend_properties(backend).items():
            spark.conf.set(name, value)
        rows = spark.readStream.schema("k LONG, v LONG").parquet(str(self._source)).groupBy("k")
        counted = rows.agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))
        writer = counted.writeStream.format("noop").outputMode("update")
        self._query: Any = writer.option("checkpointLocation", self.location.location).start()
        self._last: QuerySnapshot | None = None
        self._taken = 0

    def work(self, rows: pa.Table) -> dict[str, float]:
        """Work through a file of rows, take a snapshot, and return the figures."""
        part = self._source / ".part"
        pq.write_table(rows, part)
        part.rename(self._source / f"{self._taken}.parquet")
        self._query.processAllAvailable()
        progress = next(one for one in reversed(self._query.recentProgress) if one["numInputRows"])
        begun = time.perf_counter()
        self._taken += 1
        self._last = take_snapshot(self.location, self._root / f"chk-{self._taken}", self._last)
        return {
            "batch_ms": progress["durationMs"]["triggerExecution"],
            "commit_ms": sum(one["commitTimeMs"] for one in progress["stateOperators"]),
            "snapshot_ms": (time.perf_counter() - begun) * 1000,
            "new_kb": self._last.new_bytes / 1024,
        }

    def stop(self) -> None:
        self._query.stop()


def measured(spark: SparkSession, root: Path, keys: int, batches: int) -> dict[str, tuple[float, float, float]]:
    """Return of each figure the medians of hashmap and rocksdb, and the median of their ratios."""
    random = np.random.default_rng(7)
    both = [Counted(spark, root / one.value, one) for one in (StateBackend.HASHMAP, StateBackend.ROCKSDB)]
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        for number in range(1 + batches):
            chosen = np.arange(keys) if number == 0 else random.integers(0, keys, min(CHANGED, keys))
            rows = pa.table({"k": chosen, "v": np.full(len(chosen), number)})
            order = (0, 1) if number % 2 else (1, 0)
            found = {place: both[place].work(rows) for place in order}
            if number > _WARM_UP:
                for name, value in found[0].items():
                    figures[name].append((value, found[1][name]))
    finally:
        for one in both:
            one.stop()
    return {
        name: (
            statistics.median(one for one, _ in pairs),
            statistics.median(other for _, other in pairs),
            statistics.median(other / max(one, 0.001) for one, other in pairs),
        )
        for name, pairs in figures.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 300_000])
    parser.add_argument("--batches", type=int, default=22)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args(arguments)
    conf = {
        "spark.sql.shuffle.partitions": str(given.partitions),
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
    }
    builder: Any = SparkSession.builder.master("local[2]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="understudy-backends-") as directory:
        for keys in given.keys:
            print(f"{keys} keys: hashmap, rocksdb, rocksdb/hashmap")
            for name, (one, other, ratio) in measured(spark, Path(directory) / str(keys), keys, given.batches).items():
                print(f"  {name:12} {one:10.1f} {other:10.1f} {ratio:6.2f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
