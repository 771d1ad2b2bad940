"""Two queries of one job, of which one reads the other's file sink: restored together, no row is lost or doubled."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from runtime.checkpoint.alignment import find_misaligned
from runtime.checkpoint.savepoint import read_savepoint, verify_savepoint
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.streaming_rows import Source

# The second query counts by key what the first one writes, and keeps its counts in one file.
CHAIN = """\
import json, os, sys
from pyspark.sql import SparkSession

source, work = sys.argv[1:3]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()

def write(frame, batch):
    with open(f"{work}/part", "w") as file:
        json.dump({row["key"]: row["count"] for row in frame.collect()}, file)
    os.replace(f"{work}/part", f"{work}/counts.json")

rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
writer = rows.writeStream.queryName("rows").format("parquet").trigger(processingTime="100 milliseconds")
writer.option("checkpointLocation", f"{work}/rows-live").start(f"{work}/rows")
read = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 2).parquet(f"{work}/rows")
counts = read.groupBy("key").count().writeStream.queryName("counts").outputMode("complete").foreachBatch(write)
counts = counts.trigger(processingTime="100 milliseconds").option("checkpointLocation", f"{work}/counts-live").start()
spark.streams.awaitAnyTermination()
"""


def counted(work: Path) -> Counter[str]:
    path = work / "counts.json"
    return Counter(json.loads(path.read_text())) if path.exists() else Counter()


def snapshots_of(savepoint: str) -> dict[str, QuerySnapshot]:
    return {query.snapshot.name: query.snapshot for query in read_savepoint(Path(savepoint)).queries}


def test_a_query_and_the_reader_of_its_output_are_restored_together(cluster: Cluster, tmp_path: Path) -> None:
    cluster = cluster.with_settings("execution.checkpointing.interval=1s", "spark.sql.session.timeZone=UTC")
    source, work, savepoints = Source(tmp_path / "in"), tmp_path / "work", tmp_path / "savepoints"
    (work / "rows").mkdir(parents=True)
    script = write_job(tmp_path, CHAIN, "chain.py")
    source.write(4)
    job_id = cluster.submit(script, str(source.directory), str(work))
    await_value(lambda: counted(work).total() > 0)

    # While both go on, and one of them is ahead of nothing: back to it, several times.
    source.write(20)
    taken = [cluster.run("job", "savepoint", job_id, str(savepoints)).stdout.strip() for _ in range(3)]
    for path in taken:
        alignment = find_misaligned(list(snapshots_of(path).values()))
        assert alignment.misaligned == ()
        assert alignment.reads == {("counts", "rows")}
        assert verify_savepoint(Path(path)) == []
    restored_path = lambda: (cluster.job(job_id)["checkpoints"]["latest_restored"] or {}).get("path")  # noqa: E731
    cluster.run("job", "rollback", "--to", taken[1], job_id)
    await_value(lambda: restored_path() == taken[1])
    source.write(4)

    # Stopped in the middle, and started again from there.
    stopped = cluster.run("job", "stop", "--savepoint", str(savepoints), job_id).stdout.strip()
    second = cluster.submit(script, str(source.directory), str(work), options=("--from", stopped))
    before = counted(work).total()
    source.write(2)
    await_value(lambda: counted(work).total() > before)  # both have started
    source.write(4)

    # The reader is drained after its writer, so it has all rows.
    last = cluster.run("job", "stop", "--drain", "--savepoint", str(savepoints), second).stdout.strip()
    expected: Counter[str] = Counter()
    for (_, key), number in source.expected.items():
        expected[key] += number
    assert counted(work) == expected

    mixed = find_misaligned([snapshots_of(taken[0])["rows"], snapshots_of(last)["counts"]]).misaligned
    assert [(found.reader, found.writer) for found in mixed] == [("counts", "rows")], "these would double rows"
