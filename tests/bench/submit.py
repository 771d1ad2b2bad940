"""How long a job takes beyond Spark's own work, on a warm session cluster; and spark-submit beside it.

- ``running_s``, ``finished_s``: a pipeline of one task over spark.range, submitted by a client in process, to RUNNING
  and until the client knows that it has FINISHED. Each begins when the pool of ready task processes is full again.
  ``script_running_s`` and ``script_finished_s`` are the same for a script; ``accepted_s``, ``created_s``,
  ``deploying_s`` and ``initializing_s`` are the stations on the pipeline's way, from its submission.
- ``cli_finished_s``: `job run` of a trivial script, whole command; ``spark_submit_s``: spark-submit of the same file.
- ``flink_run_s``, ``flink_rest_finished_s``: the same query on a warm session cluster of Flink (`tests.bench.flink`),
  where that is installed: `flink run`, whole command; and a jar that the cluster has, run by its REST API, until that
  says FINISHED (asked each 5 ms). That begins when the pool of ready task processes is full, too.
- ``connect_client_s``: a new Python process that opens a session of the same driver, without the runtime, and runs the
  same query.
- ``burst_50_jobs_per_s``: 50 such pipelines submitted one after the other without waiting, until all have FINISHED.
- ``overhead_ratio``: `examples/flight_delays.py` through the runtime, against its functions called in order in one live
  Connect session of the same driver (`tests.bench.bare_flights`).

Medians; what is compared alternates. The first round of each is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyspark

from conf.configuration import Configuration
from examples import flight_delays
from runtime.client import ClusterClient
from runtime.cluster.session import connect
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.protocol.archived_execution_graph import ApplicationStatus, ArchivedExecutionGraph
from runtime.protocol.execution_state import JobStatus
from runtime.spark.driver.api import DriverInfo, info_file
from runtime.spark.driver.java import find_java, launcher_home
from tests.bench.flink import TOTAL, FlinkSession, flink_session

SCRIPT = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("trivial").getOrCreate()
print(spark.range(1000).selectExpr("sum(id) AS total").first().total)
spark.stop()
"""
PIPELINE = """\
from runtime.api import Pipeline


def rows(ctx):
    return ctx.spark.range(1000)


def total(ctx, rows):
    print(rows.selectExpr("sum(id) AS total").first().total)


def pipeline(argv):
    p = Pipeline("trivial")
    p.source("rows", rows).sink("total", total)
    return p
"""
CONNECT = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.stdin.readline().strip()).getOrCreate()
print(spark.range(1000).selectExpr("sum(id) AS total").first().total)
"""
BURST = 50
WARM_UP = 10
"""Runs of the main job, either way, before any counts: by then Java has compiled what it runs."""
PATIENCE_S = 300.0

Figures = dict[str, float]


def run(rounds: int) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch)
        files = {"script": directory / "trivial.py", "pipeline": directory / "pipeline.py"}
        files["script"].write_text(SCRIPT)
        files["pipeline"].write_text(PIPELINE)
        with _cluster(directory / "c") as (setting, client):
            driver = DriverInfo.read(info_file(next((directory / "c").glob("tm-*")) / "spark"))
            with flink_session(directory / "flink") as flink:
                figures = _in_process(client, files, flink, rounds)
                figures |= _commands(directory, setting, files["script"], driver, flink, rounds)
            figures["burst_50_jobs_per_s"] = _burst(client, files["pipeline"])
            figures["overhead_ratio"] = _overhead(directory, client, driver, rounds)
    return figures, _table(figures)


@contextmanager
def _cluster(directory: Path) -> Iterator[tuple[list[str], ClusterClient]]:
    setting = ["-D", f"cluster.runtime-dir={directory}", "-D", "jobmanager.rpc.port=0", "-D", "rest.port=0"]
    understudy = [sys.executable, "-m", "runtime.cluster"]
    subprocess.run([*understudy, "start", *setting], check=True, stdout=subprocess.DEVNULL)
    try:
        log = directory / "log" / "taskmanager-0.log"
        while " small queries more" not in log.read_text():  # a session cluster that has been up for some minutes
            time.sleep(1)
        with connect(Configuration.read(directory / "configuration.json")) as client:
            yield setting, client
    finally:
        subprocess.run([*understudy, "stop", *setting], check=True, stdout=subprocess.DEVNULL)


# ---------------------------------------------------------------------------- a client in process


def _in_process(client: ClusterClient, files: dict[str, Path], flink: FlinkSession | None, rounds: int) -> Figures:
    jobs: list[Callable[[], Figures]] = [
        partial(_one_job, client, files["script"], "script_"),
        partial(_one_job, client, files["pipeline"], ""),
        *([lambda: {"flink_rest_finished_s": flink.finished_s()}] if flink else ()),
    ]
    samples: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for job in jobs:
            _await_full_pools(client)
            for name, seconds in job().items() if number else ():
                samples.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in samples.items()}


def _one_job(client: ClusterClient, file: Path, prefix: str) -> Figures:
    graph = read_job_file(file, ())
    began = time.time()
    job_id = client.submit(graph, file)
    accepted = time.time()
    job = _await_end(client, job_id)
    ended = time.time()
    stations = job.tasks[0].attempts[-1].timestamps
    figures = {f"{name.lower()}_s": at / 1000 - began for name, at in stations.items() if name != "FINISHED"}
    figures |= {"accepted_s": accepted - began, "finished_s": ended - began}
    wanted = ("running_s", "finished_s") if prefix else tuple(figures)
    return {f"{prefix}{name}": figures[name] for name in wanted}


def _await_end(client: ClusterClient, job_id: JobID) -> ArchivedExecutionGraph:
    *_, job = client.watch(job_id)
    if job.status is not JobStatus.FINISHED:
        raise RuntimeError(f"job {job_id} is {job.status.value}: {job.failure}")
    return job


def _await_full_pools(client: ClusterClient) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(sum(pool.idle.values()) < pool.size for pool in client.task_pools().values()):
        if time.monotonic() > deadline:
            raise RuntimeError("the pool of ready task processes does not fill; see the log of the TaskExecutor")
        time.sleep(0.05)


def _burst(client: ClusterClient, file: Path) -> float:
    graphs = [read_job_file(file, ()) for _ in range(BURST)]
    began = time.perf_counter()
    for job_id in [client.submit(graph, file) for graph in graphs]:
        if client.result(job_id).status is not ApplicationStatus.SUCCEEDED:
            raise RuntimeError(f"job {job_id} did not finish")
    return BURST / (time.perf_counter() - began)


# -------------------------------------------------------------------------------- whole commands


def _commands(
    scratch: Path, setting: list[str], job: Path, driver: DriverInfo, flink: FlinkSession | None, rounds: int
) -> Figures:
    spark_submit, environ = _spark_submit(scratch, job)
    url = f"sc://localhost:{driver.connect_port}/;token={driver.connect_token}\n"
    commands: dict[str, Callable[[], float]] = {
        "cli_finished_s": lambda: _time([sys.executable, "-m", "runtime.cluster", "job", "run", *setting, str(job)]),
        "spark_submit_s": lambda: _time(spark_submit, environ=environ),
        "connect_client_s": lambda: _time([sys.executable, "-c", CONNECT], text=url),
    }
    if flink:
        commands["flink_run_s"] = lambda: _time(flink.run_command, environ=flink.environ)
    samples = [{name: measure() for name, measure in commands.items()} for _ in range(rounds + 1)][1:]
    return {name: statistics.median(sample[name] for sample in samples) for name in commands}


def _spark_submit(scratch: Path, job: Path) -> tuple[list[str], dict[str, str]]:
    home = Path(pyspark.__file__).parent
    environ = {
        **os.environ,
        "JAVA_HOME": str(launcher_home(find_java(), scratch / "java")),
        "PYSPARK_PYTHON": sys.executable,
    }
    return [str(home / "bin" / "spark-submit"), "--master", "local[*]", str(job)], environ


def _time(command: list[str], *, environ: dict[str, str] | None = None, text: str = "") -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, input=text, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode != 0 or TOTAL not in done.stdout:
        raise RuntimeError(f"{command[:4]} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return took


# ------------------------------------------------------------------------------------ the main job


def _overhead(scratch: Path, client: ClusterClient, driver: DriverInfo, rounds: int) -> float:
    file, out = Path(flight_delays.__file__), scratch / "delays"
    command = [sys.executable, "-m", "tests.bench.bare_flights", str(driver.file)]
    times: list[tuple[float, float]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bare:
        assert bare.stdin is not None
        assert bare.stdout is not None
        for _ in range(WARM_UP + rounds):
            graph = read_job_file(file, ("--out", str(out)))
            _await_full_pools(client)
            began = time.perf_counter()
            _await_end(client, client.submit(graph, file))
            ours = time.perf_counter() - began
            _await_full_pools(client)  # what follows a job is not to be the other's burden
            bare.stdin.write(f"{out}\n")
            bare.stdin.flush()
            answer = bare.stdout.readline()
            if not answer:
                raise RuntimeError("the bare run of the main job failed; its traceback is above")
            times.append((ours, float(answer)))
        bare.stdin.close()
    counted = times[WARM_UP:]
    return statistics.median(ours for ours, _ in counted) / statistics.median(theirs for _, theirs in counted)


def _table(figures: Figures) -> list[tuple[str, str]]:
    goals = {
        "running_s": "at most 0.05",
        "finished_s": "at most 0.3",
        "cli_finished_s": "under 1.2",
        "burst_50_jobs_per_s": "at least 5",
        "overhead_ratio": "at most 1.03",
    }
    return [
        (name, f"{value:7.3f}" + (f"    (to reach: {goals[name]})" if name in goals else ""))
        for name, value in figures.items()
    ]
