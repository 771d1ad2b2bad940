"""Task processes that are ready before their job comes: used once, replaced when they die, and Spark's cores shared."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.cluster_harness import Cluster, await_full_task_pool, await_value
from tests.job_files import TRIVIAL, write_job

# Leaves traces in its process and in its session, and tells those that it finds.
TRACES = """\
import builtins, os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("pid", os.getpid())
found = [hasattr(builtins, "trace"), "TRACE" in os.environ, "trace" in sys.modules]
found += [spark.conf.get("spark.sql.trace", None) is not None, spark.catalog.tableExists("trace")]
print("found", any(found))
builtins.trace = os.environ["TRACE"] = "x"
sys.modules["trace"] = sys
spark.conf.set("spark.sql.trace", "x")
spark.range(1).createOrReplaceTempView("trace")
"""

# Tells the pool of Spark's scheduler that its tasks run in, once another job's tasks run as well.
_MEET = """
def meet(rows):
    import sys, time
    from pathlib import Path
    from pyspark import TaskContext
    own, other = Path({own!r}), Path({other!r})
    own.write_text(TaskContext.get().getLocalProperty("spark.scheduler.pool") or "none")
    deadline = time.monotonic() + 600
    while not other.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    yield from rows
"""
_SCRIPT = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("rows", spark.sparkContext.parallelize(range(3), 1).mapPartitions(meet).count())
"""
_PIPELINE = """\
from runtime.api import Pipeline


def rows(ctx):
    return ctx.spark.range(0, 3, 1, 1)


def count(ctx, rows):
    print("rows", rows.mapInPandas(meet, "id long").count())


def pipeline(argv):
    p = Pipeline("meet")
    p.source("rows", rows).sink("count", count)
    return p
"""


def _ready_processes(cluster: Cluster) -> list[int]:
    """The children of the zygote once the pool is full, no task runs and none tries Spark after the last task."""
    (zygote,) = psutil.Process(cluster.pid_of("tm:taskmanager-0")).children()
    size = await_full_task_pool(cluster).size

    def look() -> list[int] | None:
        found = [child.pid for child in zygote.children()]
        return found if len(found) == size else None

    ready: list[int] = await_value(look)
    return ready


def test_jobs_get_ready_processes_with_nothing_of_earlier_jobs_in_them(cluster: Cluster, tmp_path: Path) -> None:
    before = await_full_task_pool(cluster)
    ready = _ready_processes(cluster)
    assert len(ready) == before.size
    file = write_job(tmp_path, TRACES, "traces.py")
    outputs = []
    for _ in range(2):
        outputs.append(cluster.run("job", "run", str(file)).stdout.splitlines())
        await_full_task_pool(cluster)
    pids = [int(output[0].removeprefix("pid ")) for output in outputs]
    assert pids[0] in ready
    assert pids[0] != pids[1]
    assert [output[1] for output in outputs] == ["found False", "found False"]
    after = await_full_task_pool(cluster)
    assert after.hits == before.hits + 2
    assert after.misses == before.misses
    (told,) = cluster.json("status")["task_pools"].values()
    assert told["hits"] == after.hits


def test_ready_processes_that_die_are_replaced_and_harm_no_job(cluster: Cluster, tmp_path: Path) -> None:
    before = await_full_task_pool(cluster)
    killed = _ready_processes(cluster)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL))).stdout == "sum 499500\n"

    def dead() -> int:
        """How many were found dead since, before they were taken or when they were."""
        after = await_full_task_pool(cluster)
        return after.died - before.died + after.misses.get("died", 0) - before.misses.get("died", 0)

    await_value(lambda: dead() >= len(killed))
    assert dead() == len(killed)
    await_value(lambda: not set(killed) & set(_ready_processes(cluster)))


def test_a_job_with_libraries_of_its_own_gets_a_process_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    before = await_full_task_pool(cluster)
    helper = tmp_path / "helper.py"
    helper.write_text("VALUE = 42\n")
    file = write_job(tmp_path, "import helper\nprint(helper.VALUE)\n", "uses.py")
    assert cluster.run("job", "run", "--py-files", str(helper), str(file)).stdout == "42\n"
    after = await_full_task_pool(cluster)
    assert after.misses.get("own-environment", 0) == before.misses.get("own-environment", 0) + 1
    assert after.hits == before.hits


def test_jobs_that_share_a_spark_driver_run_in_fair_pools_of_their_own(cluster: Cluster, tmp_path: Path) -> None:
    own, other = tmp_path / "script.pool", tmp_path / "pipeline.pool"
    script = _MEET.format(own=str(own), other=str(other)) + _SCRIPT
    pipeline = _MEET.format(own=str(other), other=str(own)) + _PIPELINE
    jobs = [
        cluster.submit(write_job(tmp_path, script, "script.py")),
        cluster.submit(write_job(tmp_path, pipeline, "pipeline.py")),
    ]
    for job in jobs:
        cluster.await_status(job, "FINISHED")
    pools = [await_value(path.read_text) for path in (own, other)]
    assert sorted(pools) == ["job-0", "job-1"]
