"""Jobs of every kind run on, as they were, when their TaskExecutor is exchanged beside the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect import functions as F  # noqa: N812  # as PySpark's users name it
from pyspark.sql.types import StringType

from tests.cluster_harness import Cluster, await_value, started
from tests.fakes.sshd import unused_port
from tests.integration.test_connect import Door
from tests.integration.test_hand_over import NAME, hand_over
from tests.integration.test_job_libraries import wheel
from tests.job_files import write_job

SCRIPT = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import library_probe

def in_worker(_):
    import library_probe
    return library_probe.VERSION

def versions():
    return library_probe.VERSION, SparkSession.builder.getOrCreate().sparkContext.range(2).map(in_worker).collect()

here, other = map(Path, sys.argv[1:])
print("before", *versions())
here.touch()
while not other.exists():
    time.sleep(0.05)
print("after", *versions())
"""

PIPELINE = """\
import time
from pathlib import Path
from pyspark.sql import functions as F
from runtime.api import Pipeline

def in_worker(_):
    import library_probe
    return library_probe.VERSION

def read(ctx):
    return ctx.spark.range(2).select(F.udf(in_worker, "string")("id").alias("version"))

def wait(ctx, rows):
    print("before", [row[0] for row in rows.collect()])
    Path(ctx.parameters["here"]).touch()
    while not Path(ctx.parameters["other"]).exists():
        time.sleep(0.05)
    return rows

def show(ctx, rows):
    import library_probe
    print("after", library_probe.VERSION, [row[0] for row in rows.collect()])

def pipeline(argv):
    job = Pipeline("probe", parameters={"here": argv[0], "other": argv[1]})
    job.source("read", read).blocking().then("wait", wait).blocking().sink("show", show)
    return job
"""


@pytest.fixture
def door(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    port = unused_port()
    settings = (
        "connect.enabled=true",
        f"connect.port={port}",
        "taskmanager.numberOfTaskSlots=4",
        "security.users.isolation=false",
        "restart-strategy.type=none",
    )
    for cluster in started(tmp_path_factory.mktemp("c"), *settings):
        yield Door(cluster, port)


@dataclass(frozen=True)
class Held:
    """A job whose code waits until the file *go* is there."""

    job_id: str
    go: Path

    @classmethod
    def submit(cls, cluster: Cluster, directory: Path, code: str, version: str) -> Held:
        """Submit one with a library of that version, and return when it has used Spark and waits."""
        here, go = directory / f"here-{version}", directory / f"go-{version}"
        options = "--package", str(wheel(directory, version))
        file = write_job(directory, code, f"job{version[0]}.py")
        job_id = cluster.submit(file, str(here), str(go), options=options)
        await_value(lambda: here.exists() or cluster.job(job_id)["state"] == "FAILED")
        cluster.await_status(job_id, "RUNNING")
        return cls(job_id, go)


@pytest.mark.slow  # test_hand_over shows it of scripts
def test_scripts_and_pipelines_with_libraries_and_connect_sessions_run_on(door: Door, tmp_path: Path) -> None:
    cluster, spark = door.cluster, door.session("ada")
    spark.range(3).createOrReplaceTempView("three")

    def doubled(number: int) -> str:
        return str(2 * number)

    def asked() -> list[Any]:
        function = F.udf(doubled, StringType(), useArrow=False)
        return [row[0] for row in spark.table("three").select(function("id")).collect()]

    assert asked() == ["0", "2", "4"]
    script, pipeline = (
        Held.submit(cluster, tmp_path, code, version) for code, version in ((SCRIPT, "1.0"), (PIPELINE, "2.0"))
    )
    session = door.job("ada")
    jobs = (session, script.job_id, pipeline.job_id)
    before = {job: (cluster.tasks_of(job), cluster.job(job)["restarts"]) for job in jobs}

    old = hand_over(cluster)
    await_value(lambda: cluster.pid_of(f"tm:{NAME}") not in (old, None))
    assert {job: (cluster.tasks_of(job), cluster.job(job)["restarts"]) for job in jobs} == before
    assert asked() == ["0", "2", "4"]
    assert door.job("ada") == session

    for job in (script, pipeline):
        job.go.touch()
        cluster.await_status(job.job_id, "FINISHED")
    told = cluster.run("job", "logs", script.job_id).stdout
    assert "before 1.0 ['1.0', '1.0']\nafter 1.0 ['1.0', '1.0']" in told
    told = cluster.run("job", "logs", pipeline.job_id).stdout
    assert "before ['2.0', '2.0']" in told
    assert "after 2.0 ['2.0', '2.0']" in told
    spark.stop()
    assert cluster.await_status(session, "FINISHED")["restarts"] == 0
