"""From SIGKILL of the leading master, of a JobMaster and of a TaskExecutor to everything being well again.

A streaming query runs while masters and its JobMaster are killed: its batches must be numbered without a gap, by one
and the same run. Measured with a client that is connected all the time, at the default lease and, once each, at 1 s.
"""

from __future__ import annotations

import itertools
import operator
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect
from runtime.ids import JobID
from runtime.protocol.execution_state import ExecutionState, JobStatus
from tests.processes import lives

QUERY = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
out = Path(sys.argv[1])
query = None

def note(rows, batch):
    while query is None:
        time.sleep(0.01)
    with out.open("a") as file:
        file.write(f"{query.runId} {batch} {time.time()}\\n")

stream = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
query = stream.writeStream.foreachBatch(note).trigger(processingTime="200 milliseconds").start()
while not Path(str(out) + ".stop").exists():
    time.sleep(0.05)
query.stop()
"""

SLEEPER = """\
import sys, time
from pathlib import Path

while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""

DEADLINE_S = 120.0
CALM_BATCHES = 15


@dataclass
class Figures:
    """What was measured, in seconds, and what the query went through."""

    serving: list[float] = field(default_factory=list)
    reconciled: list[float] = field(default_factory=list)
    detected: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    restarts: int = 0
    gaps: int = 0
    batches: int = 0
    longest_pause: float = 0.0
    calm_pause: float = 0.0


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows."""
    figures = _measure(rounds, 3.0)
    short = _measure(1, 1.0)
    serving, reconciled = statistics.median(figures.serving), statistics.median(figures.reconciled)
    rows = [
        ("leading master killed, to `list_jobs` answered", _show(figures.serving, "lease 3 s; to reach: 4.0 at most")),
        ("the same at a lease of 1 s", _show(short.serving, "to reach: 2.0 at most")),
        ("JobMaster killed, to reconciled", _show(figures.reconciled, "to reach: under 5.0")),
        ("the same at a lease of 1 s", _show(short.reconciled, "to reach: under 3.0")),
        ("TaskExecutor killed, to noticed", _show(figures.detected, "")),
        ("TaskExecutor killed, to its task RUNNING again", _show(figures.running, "a restart delay of 1 s in it")),
        ("streaming query: restarts, gaps", f"{figures.restarts}, {figures.gaps} in {figures.batches} batches"),
        ("streaming query: longest pause", f"{figures.longest_pause:6.2f} s  (undisturbed {figures.calm_pause:.2f})"),
    ]
    values = {
        "lease_s": 3.0,
        "master_kill_to_serving_s": serving,
        "jobmaster_kill_to_reconciled_s": reconciled,
        "taskexecutor_kill_detected_s": statistics.median(figures.detected),
        "taskexecutor_kill_to_running_s": statistics.median(figures.running),
        "query_restarts": figures.restarts + short.restarts,
        "query_batch_gaps": figures.gaps + short.gaps,
        "query_longest_pause_s": figures.longest_pause,
        "query_longest_pause_undisturbed_s": figures.calm_pause,
        "master_kill_to_serving_at_1s_lease_s": statistics.median(short.serving),
        "jobmaster_kill_to_reconciled_at_1s_lease_s": statistics.median(short.reconciled),
    }
    return values, rows


def _show(values: list[float], note: str) -> str:
    return f"{statistics.median(values):6.2f} s  (worst {max(values):.2f}){'  ' + note if note else ''}"


def _measure(rounds: int, lease_s: float) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory = Path(scratch) / "c"
        setting = ["-D", f"cluster.runtime-dir={directory}", "-D", "jobmanager.rpc.port=0", "-D", "rest.port=0"]
        _command("start", "--masters", "2", *setting, "-D", f"high-availability.lease={lease_s:g}s")
        try:
            with connect(Configuration.read(directory / "configuration.json")) as client:
                _with_a_query(client, Path(scratch), setting, rounds, figures)
                _with_a_task(client, Path(scratch), setting, rounds, figures)
        finally:
            _command("stop", *setting)
    return figures


def _with_a_query(client: ClusterClient, scratch: Path, setting: list[str], rounds: int, figures: Figures) -> None:
    out = scratch / "batches"
    job_id = _submit(scratch, setting, QUERY, out)
    _until(lambda: out.exists() and len(out.read_text().splitlines()) >= CALM_BATCHES)
    _until(lambda: client.status_of(job_id) is JobStatus.RUNNING)
    for _ in range(rounds):
        names = [view.name for view in client.status().processes if view.leadership == "leader"]
        (leader,) = [name for name in names if name.startswith("dispatcher")]
        (dispatcher,) = [view.pid for view in client.status().processes if view.name == leader]
        began = _kill(client, partial(operator.eq, leader.replace("dispatcher", "master")))
        _until(partial(_has_ended, dispatcher))  # it outlives its master by a moment
        client.list_jobs()
        figures.serving.append(time.monotonic() - began)
        _until(lambda: client.status_of(job_id) is JobStatus.RUNNING)
        _command("master", *setting)
        began = _kill(client, lambda name: name.startswith(f"jobmaster-{job_id}"))
        _until(lambda: client.status_of(job_id) is JobStatus.RECONCILING)
        _until(lambda: client.status_of(job_id) is JobStatus.RUNNING)
        figures.reconciled.append(time.monotonic() - began)
    seen = len(out.read_text().splitlines())
    _until(lambda: len(out.read_text().splitlines()) > seen + 2)
    attempts = client.job(job_id).tasks[0].attempts
    Path(f"{out}.stop").touch()
    _until(lambda: client.status_of(job_id).is_globally_terminal)
    lines = [line.split() for line in out.read_text().splitlines()]
    numbers, times = [int(line[1]) for line in lines], [float(line[2]) for line in lines]
    figures.batches = len(numbers)
    figures.restarts = len({line[0] for line in lines}) - 1 + len(attempts) - 1
    figures.gaps = sum(later != earlier + 1 for earlier, later in itertools.pairwise(numbers))
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    figures.calm_pause = max(pauses[2 : CALM_BATCHES - 1])  # the first ones load classes
    figures.longest_pause = max(pauses[CALM_BATCHES - 1 :])


def _with_a_task(client: ClusterClient, scratch: Path, setting: list[str], rounds: int, figures: Figures) -> None:
    for number in range(rounds):
        _worker_killed(client, scratch, setting, scratch / f"gate{number}", figures)


def _worker_killed(client: ClusterClient, scratch: Path, setting: list[str], gate: Path, figures: Figures) -> None:
    job_id = _submit(scratch, setting, SLEEPER, gate)
    _until(lambda: _attempt_states(client, job_id) == [ExecutionState.RUNNING])
    (worker,) = client.task_managers()
    began = time.monotonic()
    os.kill(worker.registration.pid, signal.SIGKILL)
    _until(lambda: _attempt_states(client, job_id)[0] is ExecutionState.FAILED)
    figures.detected.append(time.monotonic() - began)
    _until(lambda: _attempt_states(client, job_id)[1:] == [ExecutionState.RUNNING])
    figures.running.append(time.monotonic() - began)
    gate.touch()
    _until(lambda: client.status_of(job_id).is_globally_terminal)


def _attempt_states(client: ClusterClient, job_id: JobID) -> list[ExecutionState]:
    return [attempt.state for attempt in client.job(job_id).tasks[0].attempts]


def _kill(client: ClusterClient, wanted: Callable[[str], bool]) -> float:
    (pid,) = [view.pid for view in client.status().processes if wanted(view.name)]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return began


def _has_ended(pid: int) -> bool:
    return not lives(pid)


def _submit(scratch: Path, setting: list[str], text: str, argument: Path) -> JobID:
    file = scratch / "job.py"
    file.write_text(text)
    return JobID(_command("job", "run", "--detach", *setting, str(file), "--", str(argument)).strip())


def _command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cluster", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it did not come to pass within {DEADLINE_S:g} s")
        time.sleep(0.01)
