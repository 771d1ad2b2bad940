"""What a job's trace shows and costs, and whether Spark's own pages show the jobs of a driver that was killed.

Two session clusters, one of which writes traces, get the same jobs in turn. Both write Spark's event logs.

- ``trace_coverage``: share of the changes of state of jobs and attempts, as `job info --json` has their times, at which
  a span of the job's trace starts or ends, or has an event. The jobs are a script, a pipeline, a stream, one that
  fails and one that is cancelled.
- ``overhead_submit_ratio``: a trivial script, from its submission until the client knows its end; medians, with traces
  over without.
- ``overhead_batch_ratio``: a batch of a streaming query, as Spark gives its duration; medians, likewise.
- ``spark_ui_pages``, ``spark_ui_pages_ok``: pages of Spark's own UI, one of each kind and one for each job, stage and
  SQL execution of the drivers' applications; those that `understudy history-server` shows.
- ``history_after_driver_kill_ok``: 1 if all jobs of a killed driver are there, finished.
- ``remote_fs_checkpoint_ok``: 1 if a query whose checkpointLocation is on an FTP server is checkpointed, resumes there
  after its task was killed, is rolled back to the checkpoint, and each row comes once.
- ``airflow_kills_survived`` of ``airflow_kills``: kills of Airflow's tasks and workers, all of them if each job has run
  once; only with an Airflow, see `tests.airflow_harness`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runtime.checkpoint.lease import lease_file
from runtime.client import ClusterClient
from runtime.job_file import read_job_file
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.spark.driver.api import DriverInfo, info_file
from runtime.spark.errors import DriverLostError
from tests.airflow_harness import MISSING, find_airflow, started_airflow
from tests.airflow_kills import run_killed
from tests.bench.submit import PIPELINE, SCRIPT
from tests.cluster_harness import WARM_UP, Cluster, await_value, started
from tests.ftp_server import HADOOP_FTP, FtpServer
from tests.rest_client import RestClient
from tests.seeds import printed_seed
from tests.streaming_rows import STREAM as COUNTS
from tests.streaming_rows import Source, rows_of, rows_so_far
from tests.waiting import PATIENCE_S

SUBMISSIONS = 8
"""Scripts in a round, on each cluster."""
BATCHES = 30
STREAM = f"""\
import statistics, sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
with tempfile.TemporaryDirectory() as name:
    source = Path(name, "in")
    source.mkdir()
    for number in range({BATCHES}):
        (source / f"{{number:04}}.txt").write_text("row\\n")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    sink = rows.writeStream.format("parquet").option("path", f"{{name}}/out").trigger(availableNow=True)
    query = sink.option("checkpointLocation", f"{{name}}/checkpoint").start()
    query.awaitTermination()
    print(statistics.median(each.batchDuration for each in query.recentProgress if each.numInputRows))
"""
FAILS = 'raise ValueError("as it should")\n'
WAITS = "import threading\nthreading.Event().wait()\n"
AIRFLOW_KILLS = 50
PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL")
_MOST_REDIRECTS = 3
_UTC = "spark.sql.session.timeZone=UTC"

Figures = dict[str, float]


def run(rounds: int) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch)
        files = {"script": SCRIPT, "pipeline": PIPELINE, "stream": STREAM, "fails": FAILS, "waits": WAITS}
        for name, text in files.items():
            (directory / f"{name}.py").write_text(text)
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(_cluster(directory / "p", WARM_UP))
            traced = stack.enter_context(_cluster(directory / "t", WARM_UP, f"traces.directory={directory / 'traces'}"))
            figures = _overhead(plain, traced, directory, rounds)
            figures["trace_coverage"] = _coverage(traced, directory)
            figures |= _spark_pages(traced, directory)
            figures["remote_fs_checkpoint_ok"] = float(_remote_checkpoint(plain, directory))
            if find_airflow():
                figures |= _airflow(plain, directory)
    return figures, _table(figures)


_cluster = contextlib.contextmanager(started)


def _finished(client: ClusterClient, file: Path, wanted: JobStatus = JobStatus.FINISHED) -> ArchivedExecutionGraph:
    *_, job = client.watch(client.submit(read_job_file(file, ()), file))
    if job.status is not wanted:
        raise RuntimeError(f"{file.name} is {job.status.value}, not {wanted.value}: {job.failure}")
    return job


# ---------------------------------------------------------------------------------------------- what traces cost


def _overhead(plain: Cluster, traced: Cluster, directory: Path, rounds: int) -> Figures:
    seconds: dict[str, list[float]] = {"plain": [], "traced": []}
    batches: dict[str, list[float]] = {"plain": [], "traced": []}
    with plain.client() as one, traced.client() as other:
        clients = {"plain": one, "traced": other}
        for number in range(rounds + 1):  # the first round is not counted
            for _ in range(SUBMISSIONS):
                for name, client in clients.items():
                    began = time.perf_counter()
                    _finished(client, directory / "script.py")
                    if number:
                        seconds[name].append(time.perf_counter() - began)
            for name, client in clients.items():
                job = _finished(client, directory / "stream.py")
                if number:
                    batches[name].append(float(_output({"plain": plain, "traced": traced}[name], job)))
    return {
        "overhead_submit_ratio": statistics.median(seconds["traced"]) / statistics.median(seconds["plain"]),
        "overhead_batch_ratio": statistics.median(batches["traced"]) / statistics.median(batches["plain"]),
        "submit_s": statistics.median(seconds["plain"]),
        "batch_ms": statistics.median(batches["plain"]),
    }


def _output(cluster: Cluster, job: ArchivedExecutionGraph) -> str:
    return cluster.run("job", "logs", job.job_id).stdout


# ------------------------------------------------------------------------------------------ what a trace has


def _coverage(cluster: Cluster, directory: Path) -> float:
    with cluster.client() as client:
        jobs = [_finished(client, directory / f"{name}.py") for name in ("script", "pipeline", "stream")]
        jobs.append(_finished(client, directory / "fails.py", JobStatus.FAILED))
        waits = client.submit(read_job_file(directory / "waits.py", ()), directory / "waits.py")
        cluster.await_status(waits, "RUNNING")
        cluster.run("job", "cancel", waits)
        jobs.append(client.job(waits))
    moments = {job.job_id: _moments(directory / "traces", job.job_id) for job in jobs}
    changes = [(job.job_id, at_ms) for job in jobs for at_ms in _changes(job)]
    return sum(at_ms in moments[job_id] for job_id, at_ms in changes) / len(changes)


def _changes(job: ArchivedExecutionGraph) -> list[int]:
    """Return when states changed: of the job, and of each attempt but for its creation, which is the task's."""
    times = [*job.timestamps.values()]
    for task in job.tasks:
        for attempt in task.attempts:
            times += [at for state, at in attempt.timestamps.items() if state != ExecutionState.CREATED.value]
    return times


def _moments(directory: Path, trace_id: str) -> set[int]:
    """Return when spans of a trace start, end or have an event, once the job's own span is written."""

    def read() -> set[int]:
        lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
        scopes = [scope for line in lines for each in json.loads(line)["resourceSpans"] for scope in each["scopeSpans"]]
        spans = [span for scope in scopes for span in scope["spans"] if span["traceId"] == trace_id]
        if not any(span["name"].startswith("job ") for span in spans):
            return set()
        times = [span[name] for span in spans for name in ("startTimeUnixNano", "endTimeUnixNano")]
        times += [event["timeUnixNano"] for span in spans for event in span.get("events", ())]
        return {int(each) // 1_000_000 for each in times}

    found: set[int] = await_value(read)
    return found


# ------------------------------------------------------------------------------------------- Spark's own pages


def _spark_pages(cluster: Cluster, directory: Path) -> Figures:
    """Kill the driver that has run everything so far, run a job on the next one, and look at the pages of both."""
    lost, pid = _application(cluster)
    os.kill(pid, signal.SIGKILL)
    with cluster.client() as client:
        await_value(lambda: _application(cluster)[1] not in (0, pid))
        _finished(client, directory / "script.py")
    applications = (lost, _application(cluster)[0])
    with _history_server(cluster) as pages:
        await_value(lambda: {each["id"] for each in pages.json("/api/v1/applications")} >= set(applications))
        jobs = pages.json(f"/api/v1/applications/{lost}/jobs")
        paths = [path for each in applications for path in _paths(pages, each)]
        answers = {path: pages.get(path)[0] for path in paths}
    missing = [path for path, status in answers.items() if status != 200]
    for path in missing:
        print(f"not shown, status {answers[path]}: {path}", file=sys.stderr)
    is_whole = bool(jobs) and all(job["status"] == "SUCCEEDED" for job in jobs)
    return {
        "spark_ui_pages": len(paths),
        "spark_ui_pages_ok": len(paths) - len(missing),
        "history_after_driver_kill_ok": float(is_whole),
    }


def _application(cluster: Cluster) -> tuple[str, int]:
    """Return the Spark application of the present driver, and the driver's process; 0 while there is none."""
    try:
        driver = DriverInfo.read(info_file(cluster.directory / "tm-0" / "spark"))
    except DriverLostError:
        return "", 0
    return driver.application, driver.pid


def _paths(pages: _Pages, application: str) -> list[str]:
    def ids(kind: str, name: str) -> list[Any]:
        return sorted({row[name] for row in pages.json(f"/api/v1/applications/{application}/{kind}")})

    paths = [f"{name}/" for name in PAGES]
    paths += [f"jobs/job/?id={each}" for each in ids("jobs", "jobId")]
    paths += [f"stages/stage/?id={each}&attempt=0" for each in ids("stages", "stageId")]
    paths += [f"SQL/execution/?id={each}" for each in ids("sql", "id")]
    return [f"/history/{application}/{path}" for path in paths]


class _Pages:
    """The History Server of a cluster, with the cluster's token."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self._token = (cluster.directory / "rest-token").read_text().strip()
        self._port = port

    def get(self, path: str) -> tuple[int, str]:
        """Request a path as a browser does; return status and text.

        If a driver has written more, the History Server reads it, and sends the browser to the same path again.
        """
        for _ in range(_MOST_REDIRECTS):
            status, text, target = self._get_once(path)
            if status != HTTPStatus.FOUND:
                break
            path = urlsplit(target)._replace(scheme="", netloc="").geturl()
        return status, text

    def _get_once(self, path: str) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers.get("location", "")
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Request a path of Spark's API."""
        status, text = self.get(path)
        if status != 200:
            raise RuntimeError(f"Spark's History Server answers {path} with {status}: {text[:200]}")
        return json.loads(text)


@contextlib.contextmanager
def _history_server(cluster: Cluster) -> Iterator[_Pages]:
    command = cluster.command("history-server", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cluster.tree) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)/login", line := server.stdout.readline())
            if found is None:
                raise RuntimeError(f"`understudy history-server` says {line!r}")
            yield _Pages(cluster, int(found[1]))
        finally:
            server.terminate()


# -------------------------------------------------------------------------------- a remote file system, and Airflow


def _remote_checkpoint(cluster: Cluster, directory: Path) -> bool:
    server = FtpServer(directory / "ftp", anonymous=True)
    url = f"ftp://127.0.0.1:{server.port}/live"
    try:
        source, sink, script = Source(directory / "in"), directory / "out", directory / "remote.py"
        script.write_text(COUNTS.replace("rows = ", HADOOP_FTP + "rows = ", 1))
        source.write(3)
        job_id = cluster.submit(script, str(source.directory), str(sink), url, options=("-D", _UTC))
        await_value(lambda: rows_so_far(sink).total() > 0)
        taken = Path(cluster.run("job", "checkpoint", job_id).stdout.strip())
        (task,), seen = cluster.tasks_of(job_id), rows_so_far(sink).total()
        os.kill(task, signal.SIGKILL)
        source.write(2)
        await_value(lambda: rows_so_far(sink).total() > seen)
        cluster.run("job", "rollback", job_id, "--to", taken.name)
        source.write(2)
        source.close()
        await_value(lambda: rows_so_far(sink).total() >= source.expected.total())
        cluster.run("job", "cancel", job_id)
        return rows_of(sink) == source.expected
    finally:
        lease_file(url).unlink(missing_ok=True)
        server.close()


def _airflow(cluster: Cluster, directory: Path) -> Figures:
    with contextlib.contextmanager(started_airflow)(directory / "airflow", RestClient.of(cluster)) as airflow:
        killed = run_killed(airflow, directory, AIRFLOW_KILLS, AIRFLOW_KILLS, random.Random(printed_seed()))
    print(killed, file=sys.stderr)
    survived = sum(executions == 1 for executions in killed.executions)
    return {"airflow_kills": AIRFLOW_KILLS, "airflow_kills_survived": survived}


def _table(figures: Figures) -> list[tuple[str, str]]:
    return [
        ("changes of state in traces", f"{figures['trace_coverage']:7.3f}  (to reach: 1)"),
        (
            "script, with traces",
            f"{figures['overhead_submit_ratio']:7.3f}  (to reach: 1.01)",
        ),
        (
            "batch, with traces",
            f"{figures['overhead_batch_ratio']:7.3f}  (to reach: 1.01)",
        ),
        ("pages of Spark's UI", f"{figures['spark_ui_pages_ok']:.0f} of {figures['spark_ui_pages']:.0f}"),
        ("jobs of a killed driver", "all" if figures["history_after_driver_kill_ok"] else "not all"),
        ("checkpoint on an FTP server", "restored" if figures["remote_fs_checkpoint_ok"] else "rows lost or doubled"),
        ("kills of Airflow's tasks and workers", _airflow_kills(figures)),
    ]


def _airflow_kills(figures: Figures) -> str:
    if "airflow_kills" not in figures:
        return f"not measured: {MISSING}"
    return f"{figures['airflow_kills_survived']:.0f} of {figures['airflow_kills']:.0f} survived"
