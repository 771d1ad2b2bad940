"""Flink's stock command line client against a running cluster."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.checkpoint.files import path_of
from runtime.checkpoint.savepoint import read_savepoint
from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.flink_package import FlinkClient
from tests.job_files import write_job
from tests.rest_client import RestClient

STREAM = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
counts = rows.selectExpr("value % 3 AS key").groupBy("key").count()
writer = counts.writeStream.queryName("counts").format("noop").outputMode("update")
writer.trigger(processingTime="200 milliseconds").start().awaitTermination()
"""


def path_in(text: str) -> Path:
    """Where the client says that the savepoint is."""
    found = re.search(r"^Savepoint completed\. Path: (\S+)$", text, re.MULTILINE)
    assert found, text
    assert found.group(1).startswith("file:/")
    return path_of(found.group(1))


def has_written_a_batch(rest: RestClient, job_id: str) -> bool:
    """Whether a streaming query of the job has something to save."""
    tasks = rest.get(f"/jobs/{job_id}")["spark"].values()
    return any("batch-duration" in query for task in tasks for query in task["queries"])


def test_flinks_client_lists_saves_stops_and_cancels(cluster: Cluster, tmp_path: Path) -> None:
    rest = RestClient.of(cluster)
    flink = FlinkClient(tmp_path, rest)
    job_id = cluster.submit(write_job(tmp_path, STREAM))
    cluster.await_status(job_id, "RUNNING")
    await_value(lambda: has_written_a_batch(rest, job_id))
    (tmp_path / "savepoints").mkdir()

    await_value(lambda: f" : {job_id} : job (RUNNING)" in flink.good("list"))  # RECONCILING where it is slow to answer

    kept = path_in(flink.good("savepoint", job_id, str(tmp_path / "savepoints")))
    assert kept.parent == tmp_path / "savepoints"
    assert read_savepoint(kept).job.id == job_id
    assert "disposed." in flink.good("savepoint", "-d", str(kept))
    assert not kept.exists()
    detached = re.search(r"triggerId: ([0-9a-f]{32})", flink.good("savepoint", "-detached", job_id))
    assert detached
    polled = f"/v1/jobs/{job_id}/savepoints/{detached.group(1)}"
    await_value(lambda: rest.get(polled)["status"]["id"] == "COMPLETED")
    assert path_of(rest.get(polled)["operation"]["location"]).is_dir()
    number = re.search(r"Checkpoint (\d+) for job", flink.good("checkpoint", job_id))
    assert number
    assert rest.get(f"/jobs/{job_id}/checkpoints/details/{number.group(1)}")["status"] == "COMPLETED"

    stopped = path_in(flink.good("stop", "-p", str(tmp_path / "savepoints"), job_id))
    assert read_savepoint(stopped).job.id == job_id
    assert cluster.job(job_id)["state"] == "FINISHED"
    waiting = WaitingJob.start(cluster, tmp_path)  # holds all of Spark's cores
    assert "Cancelled job" in flink.good("cancel", waiting.job_id)
    cluster.await_status(waiting.job_id, "CANCELED")

    def all_are_over() -> bool:
        told = flink.good("list", "-a")
        return f"{job_id} : job (FINISHED)" in told and f"{waiting.job_id} : job (CANCELED)" in told

    await_value(all_are_over)
    for savepoint in (stopped, path_of(rest.get(polled)["operation"]["location"])):
        assert "disposed." in flink.good("savepoint", "-d", str(savepoint))


def test_flinks_client_cancels_with_a_savepoint(cluster: Cluster, tmp_path: Path) -> None:
    rest = RestClient.of(cluster)
    flink = FlinkClient(tmp_path, rest)
    job_id = cluster.submit(write_job(tmp_path, STREAM))
    cluster.await_status(job_id, "RUNNING")
    await_value(lambda: has_written_a_batch(rest, job_id))
    said = flink.good("cancel", "-s", str(tmp_path / "savepoints"), job_id)
    found = re.search(r"Savepoint stored in (\S+)\.$", said, re.MULTILINE)
    assert found, said
    assert read_savepoint(path_of(found.group(1))).job.id == job_id
    assert cluster.job(job_id)["state"] == "CANCELED"


def test_flinks_client_shows_why_not(cluster: Cluster, tmp_path: Path) -> None:
    rest = RestClient.of(cluster)
    flink = FlinkClient(tmp_path, rest)
    (tmp_path / "stranger").mkdir()
    assert "show a token" in FlinkClient(tmp_path / "stranger", RestClient(rest.url, "")).bad("cancel", "0" * 32)
    assert "Job could not be found" in flink.bad("cancel", "0" * 32)
    for command in (("stop",), ("savepoint",), ("checkpoint",)):
        assert f"Could not find Flink job ({'0' * 32})" in flink.bad(*command, "0" * 32)
    over = cluster.submit(write_job(tmp_path, "print(1)\n"))
    cluster.await_status(over, "FINISHED")
    assert "already reached another terminal state (FINISHED)" in flink.bad("cancel", over)
    missing = tmp_path / "nothing"
    assert f"there is no savepoint {missing}" in flink.bad("savepoint", "-d", str(missing))
