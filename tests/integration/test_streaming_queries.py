"""Streaming queries of a running job: what is seen of them, what becomes of their failures, and where they write."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.lease import lock_holder
from runtime.ids import JobID, JobVertexID
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobVertexNotFoundError
from runtime.protocol.streaming_query import BackPressureLevel
from tests.cluster_harness import Cluster, await_value
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

# Nobody waits for the query that fails, or hangs, until a file is there; what hangs ends in the end, to be stopped.
TROUBLED = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

mended, how = Path(sys.argv[1]), sys.argv[2]

def work(batch, number):
    began = time.monotonic()
    while not mended.exists() and time.monotonic() < began + 80:
        if how == "fail":
            raise ValueError("this query is troubled")
        time.sleep(0.1)

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
good = rows.writeStream.queryName("good").format("noop").trigger(processingTime="1 second").start()
rows.writeStream.queryName("troubled").foreachBatch(work).trigger(processingTime="1 second").start()
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
good = rows.writeStream.queryName("good").format("noop").trigger(processingTime="1 second").start()
try:
    rows.writeStream.queryName("failed").foreachBatch(fail).start().awaitTermination()
except Exception:
    print("seen to")
stopped = rows.writeStream.queryName("stopped").foreachBatch(work).start()
busy.wait()
stopped.stop()
time.sleep(12)  # longer than the grace
print("good" if good.isActive else "bad")
good.stop()
"""

LOCATED = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
writer = rows.writeStream.queryName("located").format("noop").option("checkpointLocation", sys.argv[1])
writer.trigger(processingTime="500 milliseconds").start().awaitTermination()
"""

# Raises on the row that says so, once a drain waits for it; a query that fails before is the code's own business.
POISONED = """\
import sys, threading, time
from pyspark.sql import SparkSession

def is_drained():
    stacks = spark._jvm.java.lang.Thread.getAllStackTraces().values()
    frames = [stack[n] for stack in stacks for n in range(min(8, len(stack)))]
    return any(frame.getMethodName() == "processAllAvailable" for frame in frames)

def work(batch, number):
    if batch.where("value = 'poison'").count():
        while not is_drained():
            time.sleep(0.1)
        raise ValueError("this row is poison")

def fail(batch, number):
    raise ValueError("this query is of no use")

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("text").load(sys.argv[1])
writer = rows.writeStream.queryName("poisoned").foreachBatch(work).option("checkpointLocation", sys.argv[2])
query = writer.trigger(processingTime="500 milliseconds").start()
if sys.argv[3] == "before":
    try:
        rows.writeStream.queryName("useless").foreachBatch(fail).start().awaitTermination()
    except Exception as error:
        print("seen to")
try:
    query.awaitTermination()
finally:
    if sys.argv[3] == "now":
        threading.Event().wait()  # the drain alone ends the job
"""

# A query that Spark has only once a file is there, and one that starts after it.
LATE = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

class Late:
    def __init__(self, writer):
        self.writer = writer

    def __getattr__(self, name):
        return lambda *given: getattr(self.writer, name)(*given) and self

    def start(self):
        print("at its start")
        while not Path(sys.argv[3]).exists():
            time.sleep(0.1)
        return self.writer.start()

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(sys.argv[1])
writer = rows.writeStream.queryName("first").format("text").option("checkpointLocation", sys.argv[2] + "/first")
writer.option("path", sys.argv[2] + "/out")
writer._jwrite = Late(writer._jwrite)
writer.start().awaitTermination()
last = rows.writeStream.queryName("last").format("noop").option("checkpointLocation", sys.argv[2] + "/last")
last.start().awaitTermination()
"""

# Ends by itself; and one that is ended by nobody's will, the first time.
ENDED = """\
import sys
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("text").load(sys.argv[1])
writer = rows.writeStream.queryName("ended").format("noop").option("checkpointLocation", sys.argv[2])
again = Path(sys.argv[2], "again")
if again.exists():
    writer.trigger(availableNow=True).start().awaitTermination()
else:
    query = writer.start()
    query.processAllAvailable()
    again.touch()
    query._jsq.stop()  # as another session in the driver might
    query.awaitTermination()
"""


# A job is restarted at once, each time.
RESTARTS = (
    *("-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.attempts=20"),
    *("-D", "restart-strategy.fixed-delay.delay=0s"),
)
NO_RESTARTS = ("-D", "restart-strategy.type=none")


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

    await_value(holds)
    return found[-1]


def test_a_query_is_seen_with_its_figures_and_a_slow_one_presses_back(cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, TWO_QUERIES))
    slow = await_query(cluster, job_id, "slow", lambda query: (query["back_pressure"] or {}).get("level") == "high")
    assert slow["trigger_interval_ms"] == 100
    assert slow["progress"]["duration_ms"] > 100
    assert slow["back_pressure"]["busy"] > 1
    await_query(cluster, job_id, "easy", lambda query: query["progress"] is not None)
    rest = RestClient.of(cluster)
    (vertex,) = rest.get(f"/v1/jobs/{job_id}")["vertices"]

    def told() -> dict[str, Any]:
        return {query["name"]: query for query in rest.get(f"/v1/jobs/{job_id}")["spark"][vertex["id"]]["queries"]}

    await_value(lambda: told().get("easy", {}).get("trigger-interval") == 3_600_000)
    await_value(lambda: told().get("slow", {}).get("backpressure-level") == "high")
    pressure = rest.get(f"/v1/jobs/{job_id}/vertices/{vertex['id']}/backpressure")
    assert (pressure["status"], pressure["backpressure-level"]) == ("ok", "high")
    assert pressure["subtasks"][0]["ratio"] > 0
    with cluster.client() as client:
        dispatcher = client.lookup("dispatcher", DispatcherGateway)
        stats = dispatcher.request_operator_back_pressure_stats(JobID(job_id), JobVertexID(vertex["id"])).result()
        with pytest.raises(JobVertexNotFoundError, match=f"its tasks are {vertex['id']}"):
            dispatcher.request_operator_back_pressure_stats(JobID(job_id), JobVertexID("0" * 32)).result()
    assert stats is not None
    assert stats.level is BackPressureLevel.HIGH
    shown = cluster.run("job", "info", job_id).stdout
    assert "BACK PRESSURE" in shown

    def history() -> dict[str, Any]:
        """Of the slow query."""
        told = rest.get(f"/v1/jobs/{job_id}/queries")["queries"]
        assert [query["name"] for query in told] == ["easy", "slow"]
        return dict(told[1])

    await_value(lambda: len(history()["timestamps"]) > 2)
    seen = history()
    assert (seen["vertex-id"], seen["id"], seen["run-id"]) == (vertex["id"], slow["id"], slow["run_id"])
    assert seen["batches"] == sorted(set(seen["batches"]))
    assert min(seen["batch-durations"]) > 100
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")
    assert history()["timestamps"][: len(seen["timestamps"])] == seen["timestamps"]


def test_rows_are_counted_on_spark_connect_too(cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, PIPELINE))
    query = await_query(cluster, job_id, "counts", lambda query: (query["progress"] or {}).get("rows", 0) > 0)
    assert query["trigger_interval_ms"] == 500
    assert query["progress"]["sources"][0]["rows"] == query["progress"]["rows"]
    await_query(cluster, job_id, "counts", lambda query: (query["progress"] or {}).get("state_rows", 0) == 3)
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")


def test_a_query_that_has_failed_and_that_nobody_waits_for_fails_its_task_which_is_restarted(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = "streaming query troubled has failed, and the job's code keeps running: "
    failure = fails_until_it_is_mended(cluster, tmp_path, "fail", text)
    assert failure["kind"] == "user-code"
    assert "this query is troubled" in failure["message"] + failure["traceback"]


@pytest.mark.slow  # unit/test_query_supervision.py shows when a query is stuck; the test above what becomes of its task
def test_a_query_that_hangs_fails_its_task_which_is_restarted(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(
        "task.cancellation.timeout=30s",  # what hangs in its batch is ended by force
        "task.streaming.no-progress-timeout=60s",
    )
    text = "streaming query troubled has made no progress for 60 s (task.streaming."
    assert fails_until_it_is_mended(cluster, tmp_path, "hang", text)["kind"] == "runtime"


def fails_until_it_is_mended(cluster: Cluster, directory: Path, how: str, text: str) -> dict[str, Any]:
    """Run a job with a query in trouble, which is mended after a failure that begins with *text*; returns that one."""
    mended = directory / "mended"
    job_id = cluster.submit(write_job(directory, TROUBLED), str(mended), how, options=RESTARTS)

    def failures() -> list[dict[str, Any]]:
        history = cluster.job(job_id)["failure_history"]
        return [failure for failure in history if failure["message"].startswith(text)]

    await_value(failures)
    mended.touch()
    for name in ("good", "troubled"):
        await_query(cluster, job_id, name, lambda query: (query["batch"] or 0) > 0)
    job = cluster.job(job_id)
    assert job["state"] == "RUNNING"
    assert job["restarts"] >= 1
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")
    return failures()[0]


def test_what_the_code_itself_sees_to_is_no_failure(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("job", "run", str(write_job(tmp_path, ATTENDED)))
    assert done.stdout.split("\n")[:2] == ["seen to", "good"]


def test_a_location_has_one_writer(cluster: Cluster, tmp_path: Path) -> None:
    script, location = write_job(tmp_path, LOCATED), tmp_path / "live"
    job_id = cluster.submit(script, str(location))
    await_query(cluster, job_id, "located", lambda query: query["batch"] is not None)
    second = ("job", "run", *NO_RESTARTS, str(script), "--", str(location))
    refused = cluster.run(*second, check=False)
    assert refused.returncode == 1
    assert f"the checkpointLocation {location} is written to by job {job_id} (" in refused.stderr
    assert cluster.job(job_id)["state"] == "RUNNING"
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")
    assert lock_holder(tmp_path / ".live.lease") is None
    successor = cluster.submit(script, str(location))
    await_query(cluster, successor, "located", lambda query: query["batch"] is not None)
    assert lock_holder(tmp_path / ".live.lease") is not None
    cluster.run("job", "cancel", successor)
    cluster.await_status(successor, "CANCELED")


def copy_if_there(source: str, target: str) -> None:
    """Copy a file; the query removes those of old batches meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def test_a_copy_that_is_begun_beside_its_original_ends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    script, place = write_job(tmp_path, LOCATED), tmp_path / "live"
    original = cluster.submit(script, str(place))
    own_id = await_query(cluster, original, "located", lambda query: query["batch"] is not None)["id"]
    savepoint = cluster.run("job", "savepoint", original, str(tmp_path / "savepoints")).stdout.strip()

    # Its savepoint, elsewhere, while it runs: the copy is another query.
    copy = cluster.submit(script, str(tmp_path / "copy"), options=("--from", savepoint))
    copied = await_query(cluster, copy, "located", lambda query: query["batch"] is not None)
    assert copied["id"] != own_id
    assert cluster.job(original)["state"] == "RUNNING"
    batch = await_query(cluster, original, "located", lambda query: query["batch"] is not None)["batch"]
    await_query(cluster, original, "located", lambda query: query["id"] == own_id and query["batch"] > batch)

    def has_gone_on(job_id: str, query_id: str) -> None:
        await_query(cluster, job_id, "located", lambda query: query["id"] == query_id)
        ended = [failure for failure in cluster.job(job_id)["failure_history"] if "stopped" in failure["message"]]
        assert ended == []

    has_gone_on(copy, copied["id"])
    cluster.run("job", "cancel", copy)  # there are two slots
    cluster.await_status(copy, "CANCELED")

    # The same id where it is insisted upon, and files that were copied by hand: refused, also where the script lets
    # Spark stop what runs. Hidden files are left out: the query writes them and gives them another name meanwhile.
    shutil.copytree(place, tmp_path / "by hand", ignore=shutil.ignore_patterns(".*"), copy_function=copy_if_there)
    obliging = LOCATED.replace(
        "getOrCreate()", 'config("spark.sql.streaming.stopActiveRunOnRestart", True).getOrCreate()'
    )
    insists = ("--from", savepoint, "--same-query-id")
    for job, location, options in (
        (script, "same id", insists),
        (write_job(tmp_path, obliging, "obliging.py"), "by hand", ()),
    ):
        refused = cluster.run(
            "job", "run", *options, *NO_RESTARTS, str(job), "--", str(tmp_path / location), check=False
        )
        assert refused.returncode == 1
        assert f"a query with its id ({own_id}) runs in this Spark driver already" in refused.stderr, refused.stderr
    has_gone_on(original, own_id)

    # Elsewhere, after it has ended: the same query goes on there.
    stopped = cluster.run("job", "stop", "--savepoint", str(tmp_path / "savepoints"), original).stdout.strip()
    moved = cluster.submit(script, str(tmp_path / "moved"), options=("--from", stopped))
    await_query(cluster, moved, "located", lambda query: query["id"] == own_id)
    cluster.run("job", "cancel", moved)


@pytest.mark.parametrize(
    ("when", "query", "cause"),
    [
        # unit/test_query_stop.py shows it, too
        pytest.param("now", "poisoned", "this row is poison", marks=pytest.mark.slow),
        ("before", "useless", "this query is of no use"),
    ],
)
def test_a_drain_in_which_a_query_has_failed_has_failed(
    cluster: Cluster, tmp_path: Path, when: str, query: str, cause: str
) -> None:
    source, savepoints = tmp_path / "in", tmp_path / "savepoints"
    source.mkdir()
    (source / "0.txt").write_text("a row\n")
    arguments = str(source), str(tmp_path / "live"), when
    job_id = cluster.submit(write_job(tmp_path, POISONED), *arguments, options=NO_RESTARTS)
    await_query(cluster, job_id, "poisoned", lambda query: query["batch"] is not None)
    if when == "now":
        (tmp_path / "1.txt").write_text("poison\n")
        (tmp_path / "1.txt").rename(source / "1.txt")
    else:
        await_value(lambda: "seen to" in cluster.run("job", "logs", job_id).stdout)
    stopped = cluster.run("job", "stop", "--savepoint", str(savepoints), "--drain", job_id, check=False)
    assert stopped.returncode == 1, stopped
    assert stopped.stdout == "", "there is no savepoint"
    assert f"streaming query {query} has failed: " in stopped.stderr, stopped.stderr
    assert cause in stopped.stderr, stopped.stderr
    assert not savepoints.exists() or list(savepoints.iterdir()) == []
    failed = cluster.await_status(job_id, "FAILED")
    assert failed["failure"]["kind"] == "user-code"
    again = cluster.run("job", "stop", "--savepoint", str(savepoints), job_id, check=False)
    assert (again.returncode, "is FAILED already" in again.stderr) == (1, True)


def test_a_stop_waits_for_the_query_that_is_being_started_and_no_other_starts_after_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The savepoint was complete before Spark had the query, which then ran on, and the job did not end."""
    source, live, gate = tmp_path / "in", tmp_path / "live", tmp_path / "gate"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.txt").write_text("a row\n")
    job_id = cluster.submit(write_job(tmp_path, LATE), str(source), str(live), str(gate))
    await_value(lambda: "at its start" in cluster.run("job", "logs", job_id).stdout)
    with ThreadPoolExecutor(1) as other:
        stop = ("job", "stop", "--savepoint", str(tmp_path / "savepoints"), "--drain", job_id)
        stopping = other.submit(cluster.run, *stop)
        await_value(lambda: stopping.done() or cluster.job(job_id)["checkpoints"]["counts"]["in_progress"])
        assert not stopping.done(), stopping.result()
        gate.touch()
        assert stopping.result().returncode == 0
    assert sum(len(part.read_text().splitlines()) for part in (live / "out").glob("*.txt")) == 5, "it is drained"
    ended = cluster.await_status(job_id, "FINISHED")
    assert [query["name"] for query in ended["tasks"][0]["attempts"][-1]["queries"]] == ["first"]
    assert not (live / "last" / "metadata").exists()


def test_a_query_that_nobodys_will_has_ended_is_lost_and_what_is_finished_keeps_its_figures(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a row\n")
    job_id = cluster.submit(write_job(tmp_path, ENDED), str(tmp_path / "in"), str(tmp_path / "live"), options=RESTARTS)
    job = cluster.await_status(job_id, "FINISHED")
    lost = [failure for failure in job["failure_history"] if failure["message"].startswith("streaming query ended has")]
    assert [failure["kind"] for failure in lost] == ["runtime"]
    assert [query["name"] for query in job["tasks"][0]["attempts"][-1]["queries"]] == ["ended"]
