"""A TaskExecutor whose Spark works elsewhere: on a standalone cluster, and at an endpoint that is there already."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import Cluster, WaitingJob, await_value, started
from tests.standalone_spark import connect_endpoint, spark_environment, standalone_spark

IN_WORKER = """\
def in_worker(_):
    import packed_probe, single_probe
    return f"{packed_probe.VERSION} {packed_probe.__file__} {single_probe.__file__}"
"""

SCRIPT = (
    IN_WORKER
    + """\
from pyspark.sql import SparkSession

context = SparkSession.builder.getOrCreate().sparkContext
for line in context.range(4, numSlices=2).map(in_worker).distinct().collect():
    print("worker", line)
"""
)

PIPELINE = (
    IN_WORKER
    + """\
from pyspark.sql import functions as F
from runtime.api import Pipeline

def read(ctx):
    return ctx.spark.range(1000)

def show(ctx, numbers):
    for row in numbers.limit(4).select(F.udf(in_worker, "string")("id")).distinct().collect():
        print("worker", row[0])
    print("sum", numbers.agg(F.sum("id")).first()[0])

def pipeline(argv):
    job = Pipeline("probe")
    job.source("read", read).blocking().sink("show", show)
    return job
"""
)


def write_libraries(directory: Path, version: int) -> tuple[str, ...]:
    """A module, and an archive of modules that is unpacked; returns the options that bring them."""
    directory.mkdir()
    single, archive = directory / "single_probe.py", directory / "packed.zip"
    single.write_text("")
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("packed_probe.py", f"VERSION = {version}\n")
    return f"--py-files={single}", f"--py-archive={archive}"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a standalone cluster, and where its worker works."""
    directory = tmp_path_factory.mktemp("spark")
    with standalone_spark(directory, spark_environment(directory)) as url:
        yield url, directory / "work"


@pytest.mark.parametrize("loses", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["jobs", "and-a-loss"])
def test_jobs_on_a_standalone_cluster(spark: tuple[str, Path], tmp_path: Path, loses: bool) -> None:
    """What jobs import reaches executors that are told no directory of this machine; the long form loses its driver."""
    url, work = spark
    settings = (f"spark.master={url}", "spark.executor.memory=512m", "spark.driver.memory=512m")
    for cluster in started(tmp_path / "c", *settings, "restart-strategy.fixed-delay.delay=100ms"):
        [manager] = cluster.json("status")["task_executors"]
        assert manager["spark_master"] == url
        for version, text in ((1, SCRIPT), (2, PIPELINE)):
            job = tmp_path / f"job{version}.py"
            job.write_text(text)
            libraries = write_libraries(tmp_path / f"libraries{version}", version)
            said = cluster.run("job", "run", *libraries, str(job)).stdout
            [line] = {line for line in said.splitlines() if line.startswith("worker ")}
            _, seen, *modules = line.split()
            assert seen == str(version)
            assert all(Path(module).is_relative_to(work) for module in modules), modules
            assert ("sum 499500" in said) == (text is PIPELINE)
        if loses:
            _survives_its_driver(WaitingJob.start(cluster, tmp_path), cluster, manager["spark_pid"])


def _survives_its_driver(job: WaitingJob, cluster: Cluster, driver: int) -> None:
    os.kill(driver, signal.SIGKILL)
    await_value(lambda: job.starts == 2)
    job.release()
    cluster.await_status(job.job_id, "FINISHED")
    assert "rows 8" in cluster.run("job", "logs", job.job_id).stdout


def test_an_unreachable_master_is_one_line(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", ("spark.master=spark://127.0.0.1:1",))
    refused = cluster.run("start", check=False)
    assert refused.returncode != 0
    [line] = refused.stderr.splitlines()
    assert "the Spark master spark://127.0.0.1:1 does not answer (127.0.0.1:1: Connection refused)" in line
    assert "-D spark.master=URL" in line
    assert cluster.processes() == {}


STREAM = """\
from runtime.api import Pipeline

def show(ctx):
    ctx.spark.readStream.format("rate").load().writeStream.format("console").start()

def pipeline(argv):
    job = Pipeline("stream")
    job.sink("show", show)
    return job
"""

STUCK = """\
from pathlib import Path
from runtime.api import Pipeline

def show(ctx):
    Path(ctx.parameters["began"]).touch()
    ctx.spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 600000L)").collect()

def pipeline(argv):
    job = Pipeline("stuck", parameters={"began": argv[0]})
    job.sink("show", show)
    return job
"""


@pytest.mark.slow
def test_jobs_at_an_endpoint_that_is_there_already(tmp_path: Path) -> None:
    """Pipelines run there with what they import; what it cannot give is refused; its end is the job's failure."""
    jobs = {"pipeline": PIPELINE, "script": SCRIPT, "stream": STREAM, "stuck": STUCK}
    files = {name: tmp_path / f"{name}.py" for name in jobs}
    for name, text in jobs.items():
        files[name].write_text(text)
    token = "a-token-that-nobody-may-see"
    with connect_endpoint(tmp_path, spark_environment(tmp_path), token) as (url, kill):
        settings = (f"spark.remote={url}/;token={token}", "heartbeat.interval=1s", "restart-strategy.type=none")
        for cluster in started(tmp_path / "c", *settings):
            [manager] = cluster.json("status")["task_executors"]
            assert manager["spark_master"] == url
            said = cluster.run("job", "run", *write_libraries(tmp_path / "libraries", 4), str(files["pipeline"])).stdout
            [line] = {line for line in said.splitlines() if line.startswith("worker ")}
            assert line.split()[1] == "4"
            assert "sum 499500" in said
            for name, refusal in (("script", "make it a pipeline"), ("stream", "streaming query cannot be started")):
                refused = cluster.run("job", "run", str(files[name]), check=False)
                assert refused.returncode != 0
                assert refusal in refused.stderr
            began = tmp_path / "began"
            job_id = cluster.submit(files["stuck"], str(began))
            await_value(began.exists)
            kill()
            failed = await_value(lambda: _failed(cluster, job_id))  # noqa: B023
            assert f"Spark Connect endpoint {url}" in failed["failure"]["message"]
        seen = [path for path in (tmp_path / "c" / "log").rglob("*") if path.is_file() and token in path.read_text()]
        assert seen == []


def _failed(cluster: Cluster, job_id: str) -> dict[str, Any] | None:
    job = cluster.job(job_id)
    return job if job["state"] == "FAILED" else None
