"""A cluster embedded in a program with a Spark of its own: local, on a standalone cluster by `spark-submit`, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.checkpoint.savepoint import read_savepoint, verify_savepoint
from runtime.spark.process import start_time
from tests.cluster_harness import ROOT, Cluster, await_value
from tests.standalone_spark import SPARK_HOME, spark_environment, standalone_spark
from tests.waiting import PATIENCE_S

PROGRAM = """\
import sys
from pyspark.sql import SparkSession
from runtime.embedded import EmbeddedCluster

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
cluster = EmbeddedCluster(spark, {"execution.checkpointing.interval": "1s"})
query = (
    spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().writeStream.queryName("numbers")
    .format("parquet").option("path", sys.argv[1] + "/out").option("checkpointLocation", sys.argv[1] + "/location")
    .trigger(processingTime="500 milliseconds").start()
)
print("ready", cluster.directory, cluster.job.id, spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
for line in sys.stdin:
    print("savepoint", cluster.savepoint(sys.argv[1]), query.isActive, flush=True)
"""

STOPPED_IN_A_BATCH = """\
import sys, threading
from pyspark.sql import SparkSession
from runtime.embedded import EmbeddedCluster

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
inside = threading.Event()

def collect(batch, number):
    inside.set()
    batch.sparkSession.range(10**14).selectExpr("sum(id * id % 7)").collect()  # longer than anybody waits

with EmbeddedCluster(spark) as cluster:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = rows.writeStream.foreachBatch(collect).option("checkpointLocation", sys.argv[1] + "/location").start()
    inside.wait()
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        query.awaitTermination(0.1)
    query.stop()
    print("stopped", query.isActive, query.exception())
    try:
        cluster.access()
    except Exception as error:
        print("access", error.remedy)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return spark_environment(tmp_path)


@pytest.fixture
def standalone(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    with standalone_spark(tmp_path, environment) as url:
        yield url


@pytest.mark.slow  # test_spark_anywhere has such a Spark, the test below the program
def test_spark_submit_to_a_standalone_cluster(standalone: str, environment: dict[str, str], tmp_path: Path) -> None:
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", standalone, "--executor-memory", "512m"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "embedded.py"), "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "labels {'even': 5, 'odd': 5}" in lines or "labels {'odd': 5, 'even': 5}" in lines
    assert "workers [1, 1]" in lines
    assert "batches [(0, 10), (1, 10), (2, 10), (3, 10), (4, 10)]" in lines  # one failed once, and none is missing
    assert "has failed and is started again: " in done.stdout  # to which spark-submit turns a driver's standard error
    assert "job RUNNING" in lines
    assert "spark goes on: 3" in lines
    [savepoint] = [Path(line.split()[1]) for line in lines if line.startswith("savepoint ")]
    assert verify_savepoint(savepoint) == []
    assert [query.snapshot.name for query in read_savepoint(savepoint).queries] == ["numbers"]
    assert _left(tmp_path) == []


def test_a_killed_task_executor_is_replaced_and_a_killed_program_leaves_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert program.stdin is not None
        assert program.stdout is not None
        _, root, job_id, jvm = program.stdout.readline().split()
        cluster = Cluster(Path(root))
        completed = lambda: cluster.job(job_id)["checkpoints"]["counts"]["completed"]  # noqa: E731
        await_value(completed)
        os.kill(cluster.pid_of("tm:taskmanager-0"), signal.SIGKILL)

        def attached_again() -> bool:
            attempt = cluster.job(job_id)["tasks"][0]["attempts"][-1]
            return bool(attempt["number"] > 0 and attempt["state"] == "RUNNING" and attempt["queries"])

        await_value(attached_again)
        program.stdin.write("\n")
        program.stdin.flush()
        _, savepoint, is_active = program.stdout.readline().split()
        assert is_active == "True"
        assert verify_savepoint(Path(savepoint)) == []
        processes = [*cluster.processes(), int(jvm)]
    finally:
        program.kill()
        program.wait()
    await_value(lambda: not any(start_time(pid) for pid in processes) and not _left(tmp_path))


@pytest.mark.slow  # unit/test_embedded.py shows what is told of an interruption, and of workers of another Python
def test_a_query_stopped_in_a_batch_and_workers_of_another_python(environment: dict[str, str], tmp_path: Path) -> None:
    script, other = tmp_path / "program.py", tmp_path / "bin" / "python3"
    script.write_text(STOPPED_IN_A_BATCH)
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'msgpack'\" >&2\nexit 1\n")
    other.chmod(0o700)
    own = {name: value for name, value in environment.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**own, "PATH": f"{other.parent}:{environment['PATH']}"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped False None" in done.stdout.splitlines()
    assert "StackOverflowError" not in done.stderr
    assert f"warning: Spark's Python workers run {other}" in done.stderr
    assert f"access set PYSPARK_PYTHON={sys.executable} before the session is made" in done.stdout


def _left(directory: Path) -> list[str]:
    """What an embedded cluster has left in the temporary directory."""
    scratch = directory / "scratch"
    return [path.name for path in scratch.iterdir() if path.name.startswith(("understudy-", "us-"))]
