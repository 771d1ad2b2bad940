"""Checkpoints over all state stores and operators: Spark is killed, the live state is lost, and no row is.

One job has a query of each operator over some store, or over each. It begins anew from a retained checkpoint, in its
own place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.retained import find_state, open_checkpoint
from tests.cluster_harness import Cluster, await_value, started
from tests.job_files import write_job
from tests.streaming_rows import Source, files_of

JOB = """\
import sys
from pathlib import Path
import pandas as pd
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

source, out = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
PREFIX = "spark.sql.streaming.stateStore."
PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
CHANGELOG = PREFIX + "rocksdb.changelogCheckpointing.enabled"
STORES = {  # what state.backend does not say is said for the session
    "changelog": {},
    "rocksdb": {CHANGELOG: "false"},
    "hashmap": {PREFIX + "providerClass": PROVIDERS + "HDFSBackedStateStoreProvider"},
}

def rows():
    files = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 2).json(source)
    return files.withWatermark("at", "0 seconds")

def running(key, frames, state):
    total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"key": [key[0]], "total": [total]})

def started(name, frame, mode="append", batch=None):
    writer = frame.writeStream.queryName(name).outputMode(mode).trigger(processingTime="500 milliseconds")
    writer = writer.option("checkpointLocation", str(out / "live" / name))
    writer.foreachBatch(batch).start() if batch else writer.format("parquet").start(str(out / name))

def latest(directory):
    directory.mkdir(parents=True, exist_ok=True)
    def write(frame, number):  # idempotent: a batch that is done again writes the same file
        (directory / f"{number}.json").write_text("[" + ",".join(frame.toJSON().collect()) + "]")
    return write

for store, settings in STORES.items():
    for key, value in settings.items():
        spark.conf.set(key, value)
    minutes = rows().groupBy(F.window("at", "1 minute"), "key").count()
    started(f"aggregation-{store}", minutes.selectExpr("window.start AS at", "key", "count"))
    started(f"deduplication-{store}", rows().dropDuplicates(["at", "key"]))
    started(f"join-{store}", rows().join(rows(), ["at", "key"]))
    totals = rows().groupBy("key").applyInPandasWithState(
        running, "key STRING, total LONG", "total LONG", "append", GroupStateTimeout.NoTimeout
    )
    started(f"pandas-{store}", totals)
    name = f"batches-{store}"
    started(name, rows().groupBy("key").count(), "update", latest(out / name))
    for key in settings:
        spark.conf.unset(key)
spark.conf.set("spark.sql.shuffle.partitions", 3)  # of which an aggregation without keys uses one
started("total", rows().groupBy().count(), "update", latest(out / "total"))
started("rate", spark.readStream.format("rate").option("rowsPerSecond", 20).load().select("value"))
spark.streams.awaitAnyTermination()
"""
STORES = ("changelog", "rocksdb", "hashmap")
OPERATORS = ("aggregation", "deduplication", "join", "pandas", "batches")
CELLS = tuple(f"{operator}-{store}" for operator in OPERATORS for store in STORES)
END = ("2030-01-01T00:00:00", "end")


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from started(
        tmp_path_factory.mktemp("b"),
        "state.backend.type=rocksdb",
        "execution.checkpointing.interval=1s",
        "execution.checkpointing.externalized-checkpoint-retention=DELETE_ON_CANCELLATION",
        "spark.sql.session.timeZone=UTC",
    )


def sink_rows(sink: Path) -> Counter[tuple[Any, ...]]:
    """How often each row is in a file sink; times as text."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in files_of(sink):
        for row in pyarrow.parquet.read_table(path).to_pylist():
            if "at" in row:
                row["at"] = row["at"].strftime("%Y-%m-%dT%H:%M:%S")
            found[tuple(row.values())] += 1
    return found


def differences(out: Path, minutes: Counter[tuple[str, str]]) -> list[str]:
    """The queries whose results are not (yet) what the source was given, by minute and key; each row counts."""
    keys: Counter[str] = Counter()
    for (_, key), count in minutes.items():
        keys[key] += count
    keys[END[1]] = 1
    aggregated = Counter({(*minute, count): 1 for minute, count in minutes.items()})
    unique = Counter([*minutes, END])
    joined = Counter({(minute, key): count * count for (minute, key), count in minutes.items()} | {END: 1})
    expected = {"aggregation": aggregated, "deduplication": unique, "join": joined}
    wrong = []
    for cell in CELLS:
        operator, latest = cell.split("-")[0], dict[str, int]()
        if operator in expected:
            wrong += [cell] * (sink_rows(out / cell) != expected[operator])
            continue
        if operator == "pandas":
            found = sink_rows(out / cell)
            wrong += [cell] * (max(found.values(), default=0) > 1)
            rows = [(str(key), int(total)) for key, total in found]
        else:
            read = [json.loads(path.read_text()) for path in (out / cell).glob("*.json")]
            rows = [(row["key"], row["count"]) for part in read for row in part]
        for key, number in rows:
            latest[key] = max(number, latest.get(key, 0))
        wrong += [cell] * (latest != keys)
    totals_of_all = [row["count"] for path in (out / "total").glob("*.json") for row in json.loads(path.read_text())]
    return wrong + ["total"] * (max(totals_of_all, default=0) != keys.total())


@pytest.mark.slow  # test_checkpoints and test_snapshots have one store
def test_all_operators_go_on_from_a_checkpoint_over_all_stores(backends: Cluster, tmp_path: Path) -> None:
    cluster, source, out = backends, Source(tmp_path / "in"), tmp_path / "out"
    script = write_job(tmp_path, JOB, "operators.py")
    source.write(3)
    options, arguments = ("-D", "restart-strategy.type=none"), (str(source.directory), str(out))
    queries = (*CELLS, "total", "rate")
    job_id = cluster.submit(script, *arguments, options=options)

    def committed(query: str) -> int:
        return last_commit(f"commits/{name}" for name in list_names(out / "live" / query / "commits"))

    def latest() -> int:
        return int((cluster.job(job_id)["checkpoints"]["latest_completed"] or {"id": 0})["id"])

    await_value(lambda: all(committed(query) >= 0 for query in queries))
    before = latest()
    await_value(lambda: latest() > before + 1)  # the next may have been begun earlier
    source.write(2)
    (manager,) = cluster.json("status")["task_executors"]
    os.kill(manager["spark_pid"], signal.SIGKILL)
    await_value(lambda: cluster.job(job_id)["state"] == "FAILED")
    kept = open_checkpoint(find_state(job_id, cluster.directory / "checkpoints"))
    assert sorted(query.name for query in kept.queries) == sorted(queries)
    assert all(query.batch_id >= 0 for query in kept.queries)

    shutil.rmtree(out / "live")
    source.write(1)
    again = cluster.submit(script, *arguments, options=("--from", job_id))
    await_value(lambda: all(committed(query.name) > query.batch_id for query in kept.queries))
    source.close()
    minutes = source.expected

    def is_right() -> bool:
        try:
            return not differences(out, minutes)
        except (FileNotFoundError, ValueError):
            return False  # a log was compacted, or a file was half written, while it was read

    try:
        await_value(is_right)
    except AssertionError:
        assert differences(out, minutes) == []
        raise
    cluster.run("job", "cancel", again)
    assert differences(out, minutes) == []
    values = sink_rows(out / "rate")
    assert values == Counter({(number,): 1 for number in range(len(values))}), (
        "each of the rate source's rows is there once"
    )
