"""Streaming queries of a running job: what is seen of them, what becomes of their failures, and where they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.errors import JobVertexNotFoundError
from runtime.ids import JobID, JobVertexID
from runtime.jobmaster.streaming_query import BackPressureLevel
from runtime.taskexecutor.location_leases import lock_holder
from tests.cluster_harness import Cluster, await_value, started
from tests.job_files import write_job
from tests.rest_client import RestClient

# One query that has all the time it needs, and one whose every batch overruns its trigger by far.
TWO_QUERIES = """\
import time
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
counts = rows.selectExpr("value % 3 AS key").groupBy("key").count()
easy = counts.writeStream.queryName("easy").format("noop").outputMode("update").trigger(processingTime="1 hour")
slow = rows.writeStream.queryName("slow").foreachBatch(lambda batch, number: time.sleep(1))
slow.trigger(processingTime="100 milliseconds").start()
easy.start().awaitTermination()
"""

# Spark Connect, which knows the rows of its sources only.
PIPELINE = """\
from runtime.api import Pipeline

def read(ctx):
    ctx.spark.conf.set("spark.sql.shuffle.partitions", 1)
    return ctx.spark.readStream.format("rate").option("rowsPerSecond", 50).load()

def write(ctx, rows):
    counts = rows.selectExpr("value % 3 AS key").groupBy("key").count()
    writer = counts.writeStream.queryName("counts").format("noop").outputMode("update")
    writer.trigger(processingTime="500 milliseconds").start().awaitTermination()

def pipeline(argv):
    p = Pipeline("connect-stream")
    p.source("read", read).sink("write", write)
    return p
"""

# Nobody waits for the query that fails, or hangs, until a file is there.
TROUBLED = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

mended, how = Path(sys.argv[1]), sys.argv[2]

def work(batch, number):
    while not mended.exists():
        if how == "fail":
            raise ValueError("this query is troubled")
        time.sleep(0.1)

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
good = rows.writeStream.queryName("good").format("noop").trigger(processingTime="200 milliseconds").start()
rows.writeStream.queryName("troubled").foreachBatch(work).trigger(processingTime="200 milliseconds").start()
good.awaitTermination()
"""

# Its own code sees to it: one that it stops, in whatever it is doing, and one whose failure it waits for.
ATTENDED = """\
import threading, time
from pyspark.sql import SparkSession

busy = threading.Event()

def work(batch, number):
    busy.set()
    time.sleep(5)

def fail(batch, number):
    raise ValueError("expected")

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
good = rows.writeStream.queryName("good").format("noop").start()
try:
    rows.writeStream.queryName("failed").foreachBatch(fail).start().awaitTermination()
except Exception:
    print("seen to")
stopped = rows.writeStream.queryName("stopped").foreachBatch(work).start()
busy.wait()
stopped.stop()
time.sleep(6)  # longer than the grace
print("good" if good.isActive else "bad")
good.stop()
"""

LOCATED = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
writer = rows.writeStream.queryName("located").format("noop").option("checkpointLocation", sys.argv[1])
writer.trigger(processingTime="200 milliseconds").start().awaitTermination()
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that restarts at once."""
    yield from started(
        tmp_path_factory.mktemp("q"),
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=20",
        "restart-strategy.fixed-delay.delay=0s",
        "task.cancellation.timeout=10s",  # what hangs in its batch is ended by force
        "task.streaming.failure-grace=2s",
        "task.streaming.no-progress-timeout=20s",
    )


def queries(cluster: Cluster, job_id: str) -> dict[str, dict[str, Any]]:
    """The streaming queries of a job's one task, by their names."""
    return {query["name"]: query for query in cluster.job(job_id)["tasks"][0]["attempts"][-1]["queries"]}


def await_query(
    cluster: Cluster, job_id: str, name: str, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until a query is there and the condition holds for it; returns it."""
    found: list[dict[str, Any]] = []

    def holds() -> bool:
        query = queries(cluster, job_id).get(name)
        if query is not None and condition(query):
            found.append(query)
        return bool(found)

    await_value(holds, timeout=120)
    return found[-1]


def test_a_query_is_seen_with_its_figures_and_a_slow_one_presses_back(streaming: Cluster, tmp_path: Path) -> None:
    job_id = streaming.submit(write_job(tmp_path, TWO_QUERIES))
    slow = await_query(streaming, job_id, "slow", lambda query: (query["back_pressure"] or {}).get("level") == "high")
    assert slow["trigger_interval_ms"] == 100
    assert slow["progress"]["duration_ms"] > 100
    assert slow["back_pressure"]["busy"] > 1
    await_query(streaming, job_id, "easy", lambda query: query["progress"] is not None)
    rest = RestClient.of(streaming)
    (vertex,) = rest.get(f"/v1/jobs/{job_id}")["vertices"]

    def told() -> dict[str, Any]:
        return {query["name"]: query for query in rest.get(f"/v1/jobs/{job_id}")["spark"][vertex["id"]]["queries"]}

    await_value(lambda: told().get("easy", {}).get("trigger-interval") == 3_600_000)
    await_value(lambda: told().get("slow", {}).get("backpressure-level") == "high")
    pressure = rest.get(f"/v1/jobs/{job_id}/vertices/{vertex['id']}/backpressure")
    assert (pressure["status"], pressure["backpressure-level"]) == ("ok", "high")
    assert pressure["subtasks"][0]["ratio"] > 0
    with streaming.client() as client:
        dispatcher = client.lookup("dispatcher", DispatcherGateway)
        stats = dispatcher.request_operator_back_pressure_stats(JobID(job_id), JobVertexID(vertex["id"])).result()
        with pytest.raises(JobVertexNotFoundError, match=f"its tasks are {vertex['id']}"):
            dispatcher.request_operator_back_pressure_stats(JobID(job_id), JobVertexID("0" * 32)).result()
    assert stats is not None
    assert stats.level is BackPressureLevel.HIGH
    shown = streaming.run("job", "info", job_id).stdout
    assert "BACK PRESSURE" in shown
    streaming.run("job", "cancel", job_id)
    streaming.await_status(job_id, "CANCELED")


def test_rows_are_counted_on_spark_connect_too(streaming: Cluster, tmp_path: Path) -> None:
    job_id = streaming.submit(write_job(tmp_path, PIPELINE))
    query = await_query(streaming, job_id, "counts", lambda query: (query["progress"] or {}).get("rows", 0) > 0)
    assert query["trigger_interval_ms"] == 500
    assert query["progress"]["sources"][0]["rows"] == query["progress"]["rows"]
    await_query(streaming, job_id, "counts", lambda query: (query["progress"] or {}).get("state_rows", 0) == 3)
    streaming.run("job", "cancel", job_id)
    streaming.await_status(job_id, "CANCELED")


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("fail", "user-code", "streaming query troubled has failed, and the job's code goes on: "),
        (
            "hang",
            "runtime",
            "streaming query troubled has made no progress for 20 s (task.streaming.",
        ),
    ],
)
def test_a_query_in_trouble_that_nobody_waits_for_fails_its_task_which_is_restarted(
    streaming: Cluster, tmp_path: Path, how: str, kind: str, text: str
) -> None:
    mended = tmp_path / "mended"
    job_id = streaming.submit(write_job(tmp_path, TROUBLED), str(mended), how)

    def failures() -> list[dict[str, Any]]:
        history = streaming.job(job_id)["failure_history"]
        return [failure for failure in history if failure["message"].startswith(text)]

    await_value(failures, timeout=120)
    mended.touch()
    failure = failures()[0]
    assert failure["kind"] == kind
    if how == "fail":
        assert "this query is troubled" in failure["message"] + failure["traceback"]
    for name in ("good", "troubled"):
        await_query(streaming, job_id, name, lambda query: (query["batch"] or 0) > 0)
    job = streaming.job(job_id)
    assert job["status"] == "RUNNING"
    assert job["restarts"] >= 1
    streaming.run("job", "cancel", job_id)
    streaming.await_status(job_id, "CANCELED")


def test_what_the_code_itself_sees_to_is_no_failure(streaming: Cluster, tmp_path: Path) -> None:
    done = streaming.run("job", "run", str(write_job(tmp_path, ATTENDED)))
    assert done.stdout.split("\n")[:2] == ["seen to", "good"]


def test_a_location_has_one_writer(streaming: Cluster, tmp_path: Path) -> None:
    script, location = write_job(tmp_path, LOCATED), tmp_path / "live"
    job_id = streaming.submit(script, str(location))
    await_query(streaming, job_id, "located", lambda query: query["batch"] is not None)
    second = ("job", "run", "-D", "restart-strategy.type=none", str(script), "--", str(location))
    refused = streaming.run(*second, check=False)
    assert refused.returncode == 1
    assert f"the checkpointLocation {location} is written to by job {job_id} (" in refused.stderr
    assert streaming.job(job_id)["status"] == "RUNNING"
    streaming.run("job", "cancel", job_id)
    streaming.await_status(job_id, "CANCELED")
    assert lock_holder(tmp_path / ".live.lease") is None
    successor = streaming.submit(script, str(location))
    await_query(streaming, successor, "located", lambda query: query["batch"] is not None)
    assert lock_holder(tmp_path / ".live.lease") is not None
    streaming.run("job", "cancel", successor)
    streaming.await_status(successor, "CANCELED")
