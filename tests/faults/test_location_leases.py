"""One checkpointLocation, one writer: a Spark driver that was cut off, and comes back, finds that it was ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.lease import lock_holder, read_holder
from tests.cluster_harness import Cluster, await_value, started
from tests.job_files import write_job
from tests.processes import lives

STREAM = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
writer = rows.writeStream.queryName("rows").format("noop").option("checkpointLocation", sys.argv[1])
writer.trigger(processingTime="200 milliseconds").start().awaitTermination()
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two TaskExecutors, whose loss is noticed soon."""
    yield from started(
        tmp_path_factory.mktemp("l"),
        "taskmanager.count=2",
        "taskmanager.numberOfTaskSlots=1",
        "heartbeat.interval=200ms",
        "heartbeat.timeout=15s",  # longer than anything stands still on a busy machine
        "task.cancellation.timeout=15s",
        "restart-strategy.fixed-delay.attempts=20",
        "restart-strategy.fixed-delay.delay=200ms",
    )


def attempt(cluster: Cluster, job_id: str) -> dict[str, Any]:
    return dict(cluster.job(job_id)["tasks"][0]["attempts"][-1])


def commits(location: Path) -> int:
    return max((int(path.name) for path in location.glob("commits/[0-9]*")), default=-1)


@pytest.mark.slow
def test_a_driver_that_was_cut_off_is_ended_before_its_successor_writes(pair: Cluster, tmp_path: Path) -> None:
    location, lease = tmp_path / "live", tmp_path / ".live.lease"
    job_id = pair.submit(write_job(tmp_path, STREAM), str(location))
    await_value(lambda: commits(location) >= 0)
    first = attempt(pair, job_id)
    workers = pair.json("status")["task_executors"]
    (worker,) = [row for row in workers if row["task_executor"] == first["task_executor"]]
    assert lock_holder(lease) == worker["spark_pid"]

    cut_off = worker["spark_pid"], worker["pid"]
    try:
        for pid in cut_off:
            os.kill(pid, signal.SIGSTOP)
        await_value(lambda: attempt(pair, job_id)["number"] > first["number"])
        await_value(lambda: lock_holder(lease) not in (None, worker["spark_pid"]))
        assert not lives(worker["spark_pid"])
        before = commits(location)
        await_value(lambda: commits(location) > before)
    finally:
        for pid in cut_off:
            if lives(pid):
                os.kill(pid, signal.SIGCONT)
    named = read_holder(lease)
    assert named is not None
    assert (named.job_id, named.driver_pid) == (job_id, lock_holder(lease))
    pair.run("job", "cancel", job_id)
    pair.await_status(job_id, "CANCELED")
    assert lock_holder(lease) is None, "it is free with the end of the job"
