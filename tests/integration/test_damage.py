"""A live location that is damaged is found at the next start: the query goes back by itself, and loses no row."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.retained import verify_state
from tests.cluster_harness import Cluster, await_value, started
from tests.job_files import write_job
from tests.streaming_rows import Source, files_of, unless_it_changes

PROCESSOR = """\
import sys
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

source, sink, location = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()

class Total(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n LONG")
    def handleInputRows(self, key, frames, timer_values):
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(len(frame) for frame in frames)
        self.total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "n": [total]})
    def close(self):
        pass

rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
totals = rows.groupBy("key").transformWithStateInPandas(Total(), "key STRING, n LONG", "append", "none")
writer = totals.writeStream.queryName("totals").format("parquet").option("checkpointLocation", location)
writer.trigger(processingTime="200 milliseconds").start(sink).awaitTermination()
"""


@pytest.fixture(scope="module")
def rocksdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from started(
        tmp_path_factory.mktemp("d"),
        "state.backend.type=rocksdb",
        "cluster.start-timeout=5min",
        "execution.checkpointing.interval=1s",
        "restart-strategy.fixed-delay.attempts=20",
        "restart-strategy.fixed-delay.delay=200ms",
        "spark.sql.session.timeZone=UTC",
    )


def totals_of(sink: Path) -> dict[str, int]:
    """The latest total of each key; no total may be there twice, as none is written twice."""
    found: list[tuple[str, int]] = []
    for path in files_of(sink):
        found += [(row["key"], row["n"]) for row in pyarrow.parquet.read_table(path).to_pylist()]
    assert len(found) == len(set(found)), "a batch was written twice"
    return dict(sorted(found))


def is_whole(checkpoint: Path) -> bool:
    """Whether there is no damage in a checkpoint; one that is subsumed while it is looked at is passed over."""
    try:
        return verify_state(checkpoint) == []
    except (CheckpointError, FileNotFoundError):
        return False


def test_a_query_whose_state_is_damaged_goes_back_to_its_checkpoint(rocksdb: Cluster, tmp_path: Path) -> None:
    cluster, source, sink, live = rocksdb, Source(tmp_path / "in"), tmp_path / "out", tmp_path / "live"
    source.write(1)
    script = write_job(tmp_path, PROCESSOR, "totals.py")
    job_id = cluster.submit(script, str(source.directory), str(sink), str(live))

    def figures() -> dict[str, Any]:
        found: dict[str, Any] = cluster.job(job_id)["checkpoints"]
        return found

    def attempts() -> int:
        return int(cluster.job(job_id)["tasks"][0]["attempts"][-1]["number"])

    committed = lambda: last_commit(f"commits/{name}" for name in list_names(live / "commits"))  # noqa: E731
    await_value(lambda: committed() == 0)
    directory = cluster.directory / "checkpoints" / job_id
    holding = lambda: list(directory.glob("chk-*/*/totals/checkpoint/state/0/0/1.zip"))  # noqa: E731
    await_value(lambda: figures()["latest_completed"] and holding())

    # The column families are in the zip alone, so that the changelog that stays is not a state.
    (manager,) = cluster.json("status")["task_executors"]
    before = attempts()
    os.kill(manager["spark_pid"], signal.SIGKILL)
    (live / "state" / "0" / "0" / "1.zip").unlink()
    source.write(1)
    await_value(lambda: committed() >= 1)
    # One or two for the driver (a TaskExecutor that ends may refuse the next attempt), one for the damaged state.
    assert attempts() <= before + 3, "it did not try the damaged state again and again"
    text = cluster.run("job", "logs", job_id, check=False)
    told = text.stdout + text.stderr
    assert "query totals continues from checkpoint" in told
    assert "version 1 has no whole file to begin with" in told

    # What is complete from then on can be restored.
    latest = figures()["latest_completed"]["id"]
    await_value(lambda: figures()["latest_completed"]["id"] > latest)
    await_value(lambda: [path for path in directory.glob("chk-*/_metadata") if is_whole(path.parent)])
    source.close()
    keys: dict[str, int] = {}
    for (_, key), count in source.expected.items():
        keys[key] = keys.get(key, 0) + count
    await_value(
        lambda: {key: n for key, n in (unless_it_changes(totals_of, sink) or {}).items() if key in keys} == keys
    )
    savepoint = cluster.run("job", "stop", job_id).stdout.strip()
    assert verify_state(Path(savepoint)) == []
