"""A streaming query that fails alone is restarted alone: in a pipeline with its task, in a script by option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job

# Two queries that share nothing are two tasks. One of them fails until its file has another row.
PIPELINE = """\
from runtime.api import Pipeline

def rows(ctx):
    return ctx.spark.readStream.format("rate").option("rowsPerSecond", 20).load()

def lines(ctx):
    return ctx.spark.readStream.format("text").load(ctx.parameters["lines"])

def good(ctx, rows):
    writer = rows.writeStream.queryName("good").format("noop")
    writer.trigger(processingTime="200 milliseconds").start().awaitTermination()

def troubled(ctx, lines):
    checked = lines.selectExpr("IF(value = 'poison', raise_error('this query is troubled'), value) AS value")
    writer = checked.writeStream.queryName("troubled").format("noop")
    writer.trigger(processingTime="200 milliseconds").start().awaitTermination()

def pipeline(argv):
    p = Pipeline("apart", {"lines": argv[0]})
    p.source("rows", rows).sink("good", good)
    p.source("lines", lines).sink("troubled", troubled)
    return p
"""

# Its batch 1 fails as often as the third argument says, from the moment when the file `gate` is there.
SCRIPT = """\
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

directory, live, failures = Path(sys.argv[1]), sys.argv[2], [None] * int(sys.argv[3])

def work(batch, number):
    if number == 1 and failures:
        while not (directory / "gate").exists():
            time.sleep(0.05)
        failures.pop()
        raise ValueError("this query is troubled")
    if number == 2:
        shown = [second.isActive, second.runId == troubled.runId, second.status["isTriggerActive"]]
        (directory / "second.json").write_text(json.dumps(shown))
    rows = sorted(row.value for row in batch.collect())
    (directory / f"{number}.json").write_text(json.dumps(rows))

spark = SparkSession.builder.getOrCreate()
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory / "in"))
rate = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
good = rate.writeStream.queryName("good").format("noop").trigger(processingTime="200 milliseconds").start()
writer = lines.writeStream.queryName("troubled").option("checkpointLocation", live).foreachBatch(work)
troubled = writer.trigger(processingTime="200 milliseconds").start()
second = spark.streams.get(troubled.id)
spark.streams.awaitAnyTermination()
print("ended", troubled.exception())
"""

AT_ONCE = (
    *("-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.attempts=50"),
    *("-D", "restart-strategy.fixed-delay.delay=0s"),
)


def attempts(cluster: Cluster, job_id: str, name: str) -> list[dict[str, Any]]:
    """The attempts of the task that has this vertex."""
    (task,) = (task for task in cluster.job(job_id)["tasks"] if name in task["name"])
    return list(task["attempts"])


def query(cluster: Cluster, job_id: str, name: str) -> dict[str, Any] | None:
    """A query of a running attempt that has reported a batch."""
    running = [task["attempts"][-1]["queries"] for task in cluster.job(job_id)["tasks"]]
    return next((one for each in running for one in each if one["name"] == name and one["batch"] is not None), None)


def test_a_query_of_a_pipeline_is_restarted_while_the_others_run(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "0.txt").write_text("poison\n")
    job_id = cluster.submit(write_job(tmp_path, PIPELINE), str(lines), options=AT_ONCE)
    before = await_value(lambda: query(cluster, job_id, "good"))
    await_value(lambda: len(attempts(cluster, job_id, "troubled")) > 2)
    (lines / "0.txt").write_text("antidote\n")
    await_value(lambda: query(cluster, job_id, "troubled"))
    after = await_value(lambda: (one := query(cluster, job_id, "good")) and one["batch"] > before["batch"] and one)
    assert after["run_id"] == before["run_id"]
    assert len(attempts(cluster, job_id, "good")) == 1
    job = cluster.job(job_id)
    assert (job["state"], job["restarts"]) == ("RUNNING", len(attempts(cluster, job_id, "troubled")) - 1)
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")


def test_a_query_of_a_script_is_restarted_in_its_task(cluster: Cluster, tmp_path: Path) -> None:
    """Its rows are there once, and the code that waits for any query goes on waiting."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("".join(f"{row}\n" for row in range(number * 10, number * 10 + 10)))
    options = ("-D", "task.streaming.query-restarts=2", "-D", "task.streaming.query-restart-delay=100 ms")
    script = write_job(tmp_path, SCRIPT)
    job_id = cluster.submit(script, str(tmp_path), str(tmp_path / "live"), "2", options=options)
    before = await_value(lambda: query(cluster, job_id, "good"))
    troubled = await_value(lambda: query(cluster, job_id, "troubled"))
    (tmp_path / "gate").touch()
    await_value((tmp_path / "2.json").exists)
    assert json.loads((tmp_path / "second.json").read_text()) == [True, True, True]
    again = await_value(
        lambda: (one := query(cluster, job_id, "troubled")) and one["run_id"] != troubled["run_id"] and one
    )
    assert again["id"] == troubled["id"]
    after = await_value(lambda: (one := query(cluster, job_id, "good")) and one["batch"] > before["batch"] and one)
    assert after["run_id"] == before["run_id"]
    job = cluster.job(job_id)
    assert (job["state"], job["restarts"], len(job["tasks"][0]["attempts"])) == ("RUNNING", 0, 1)
    cluster.run("job", "stop", job_id)
    cluster.await_status(job_id, "FINISHED")
    logs = cluster.run("job", "logs", job_id)
    assert "ended None" in logs.stdout
    assert logs.stderr.count("streaming query troubled has failed and is started again: ") == 2 or (
        logs.stdout.count("streaming query troubled has failed and is started again: ") == 2
    )
    rows = [row for number in range(3) for row in json.loads((tmp_path / f"{number}.json").read_text())]
    assert sorted(map(int, rows)) == list(range(30))


def test_a_query_that_fails_too_often_fails_its_task(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    (tmp_path / "gate").touch()
    options = ("-D", "task.streaming.query-restarts=1", "-D", "task.streaming.query-restart-delay=0 s")
    script = write_job(tmp_path, SCRIPT)
    job_id = cluster.submit(script, str(tmp_path), str(tmp_path / "live"), "5", options=options)
    failed = cluster.await_status(job_id, "FAILED")
    assert "this query is troubled" in failed["failure"]["message"] + failed["failure"]["traceback"]
    assert len(failed["tasks"][0]["attempts"]) == 1
