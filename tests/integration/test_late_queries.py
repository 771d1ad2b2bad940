"""A job that starts one of its queries late: its state stays in all that is kept of the job meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.retained import find_state, read_checkpoint
from runtime.checkpoint.savepoint import read_savepoint
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.streaming_rows import Source, rows_of, rows_so_far

# The second query starts when a file is there.
LATE = """\
import os, sys, time
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, work, gate = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()

def start(name):
    rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
    counts = (
        rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), "key").count()
        .selectExpr("window.start AS start", "key", "count")
    )
    writer = counts.writeStream.queryName(name).format("parquet").trigger(processingTime="200 milliseconds")
    return writer.option("checkpointLocation", f"{work}/{name}-live").start(f"{work}/{name}")

first = start("early")
while first.isActive and not os.path.exists(gate):
    time.sleep(0.05)
if first.isActive:
    start("late")
first.awaitTermination()
"""


def committed(location: Path) -> int:
    return last_commit(f"commits/{name}" for name in list_names(location / "commits"))


def await_rows(work: Path, source: Source) -> None:
    for name in ("early", "late"):
        await_value(lambda name=name: rows_so_far(work / name).total() >= source.expected.total())


def batches_of(savepoint: str) -> dict[str, int]:
    return {query.snapshot.name: query.snapshot.batch_id for query in read_savepoint(Path(savepoint)).queries}


def test_a_query_that_starts_after_two_savepoints_has_its_state(cluster: Cluster, tmp_path: Path) -> None:
    cluster = cluster.with_settings("spark.sql.session.timeZone=UTC")
    source, work, gate, savepoints = Source(tmp_path / "in"), tmp_path / "work", tmp_path / "gate", tmp_path / "saved"
    script, arguments = write_job(tmp_path, LATE, "late.py"), (str(source.directory), str(work), str(gate))

    def stopped(job_id: str) -> tuple[str, str]:
        done = cluster.run("job", "stop", "--savepoint", str(savepoints), job_id)
        return done.stdout.strip(), done.stderr

    gate.touch()
    source.write(3)
    job_id = cluster.submit(script, *arguments)
    await_value(lambda: min(committed(work / name) for name in ("early-live", "late-live")) >= 1)
    both, _ = stopped(job_id)
    assert set(batches_of(both)) == {"early", "late"}

    gate.unlink()
    source.write(2)
    job_id = cluster.submit(script, *arguments, options=("--from", both))
    await_value(lambda: committed(work / "early-live") > batches_of(both)["early"])
    carried, notes = stopped(job_id)
    assert f"the state of query 'late' in {both} is carried over" in notes
    assert batches_of(carried)["late"] == batches_of(both)["late"]
    assert batches_of(carried)["early"] > batches_of(both)["early"]

    shutil.rmtree(work / "late-live")  # nothing but the savepoints has its state
    shutil.rmtree(both)
    job_id = cluster.submit(script, *arguments, options=("--from", carried))
    source.write(2)
    await_value(lambda: committed(work / "early-live") > batches_of(carried)["early"])
    gate.touch()
    source.close()
    await_rows(work, source)
    cluster.run("job", "cancel", job_id)
    for name in ("early", "late"):
        assert rows_of(work / name) == source.expected, name


def test_a_query_that_starts_after_two_retained_checkpoints_has_its_state(cluster: Cluster, tmp_path: Path) -> None:
    cluster = cluster.with_settings(
        "spark.sql.session.timeZone=UTC",
        "execution.checkpointing.interval=1s",
        "execution.checkpointing.externalized-checkpoint-retention=RETAIN_ON_CANCELLATION",
    )
    source, work, gate = Source(tmp_path / "in"), tmp_path / "work", tmp_path / "gate"
    script, arguments = write_job(tmp_path, LATE, "late.py"), (str(source.directory), str(work), str(gate))

    def kept(job_id: str) -> dict[str, int]:
        """The queries of the last checkpoint, with their batches."""
        directory = cluster.directory / "checkpoints"
        return {query.name: query.batch_id for query in read_checkpoint(find_state(job_id, directory)).queries}

    def checkpointed(job_id: str, *names: str) -> dict[str, int]:
        """Checkpoint until the queries have committed more than their first batch; cancel the job."""
        cluster.await_status(job_id, "RUNNING")
        await_value(lambda: min(committed(work / f"{name}-live") for name in names) >= 1)
        cluster.run("job", "checkpoint", job_id)
        cluster.run("job", "cancel", job_id)
        cluster.await_status(job_id, "CANCELED")
        return kept(job_id)

    gate.touch()
    source.write(3)
    first = cluster.submit(script, *arguments)
    both = checkpointed(first, "early", "late")
    assert min(both["early"], both["late"]) >= 1
    gate.unlink()
    source.write(2)
    second = cluster.submit(script, *arguments, options=("--from", first))
    await_value(lambda: committed(work / "early-live") > both["early"] + 1)
    carried = checkpointed(second, "early")
    assert (carried["late"], carried["early"] > both["early"]) == (both["late"], True)

    shutil.rmtree(work / "late-live")
    shutil.rmtree(cluster.directory / "checkpoints" / first)
    gate.touch()
    third = cluster.submit(script, *arguments, options=("--from", second))
    source.close()
    await_rows(work, source)
    cluster.run("job", "cancel", third)
    for name in ("early", "late"):
        assert rows_of(work / name) == source.expected, name
