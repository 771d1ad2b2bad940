"""A batch job that is interrupted goes on from its last finished blocking results, and comes to the same."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster_harness import ROOT, Cluster, await_value
from tests.flights import expected_tables, written_tables
from tests.job_files import write_job

# The main job with one blocking result, that of its join. Each vertex says that its function has returned, and waits
# there until it may go on.
BOUNDARIES = """\
import functools, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, {examples!r})
import flight_delays as main_job
from runtime.api import Pipeline

def stops(function):
    @functools.wraps(function)
    def stopping(ctx, *inputs):
        marks = Path(ctx.parameters["marks"])
        tempfile.tempdir = str(marks)  # what a killed task leaves there goes with the test
        result = function(ctx, *inputs)
        with (marks / f"{{ctx.vertex_name}}.at").open("a") as file:
            file.write("x")
        while not (marks / f"{{ctx.vertex_name}}.go").exists():
            time.sleep(0.05)
        return result
    stopping.__module__ = __name__
    return stopping

read_flights, clean_flights = stops(main_job.read_flights), stops(main_job.clean_flights)
read_weather, clean_weather = stops(main_job.read_weather), stops(main_job.clean_weather)
read_airlines, read_airports = stops(main_job.read_airlines), stops(main_job.read_airports)
join, report = stops(main_job.join), stops(main_job.report)
by_carrier, by_airport, by_hour = stops(main_job.by_carrier), stops(main_job.by_airport), stops(main_job.by_hour)

def pipeline(argv):
    p = Pipeline("boundaries", parameters={{"marks": argv[0], "out": argv[1]}})
    flights = p.source("read-flights", read_flights).then("clean-flights", clean_flights)
    weather = p.source("read-weather", read_weather).then("clean-weather", clean_weather)
    joined = p.operator("join", join, flights, weather).blocking()
    carriers = p.operator("by-carrier", by_carrier, joined, p.source("read-airlines", read_airlines))
    airports = p.operator("by-airport", by_airport, joined, p.source("read-airports", read_airports))
    p.sink("report", report, carriers, airports, p.operator("by-hour", by_hour, joined))
    return p
"""

# What is killed at each vertex boundary: before the blocking result is there, and after it.
EVERYWHERE = (
    ("task", "jobmaster", "task", "jobmaster", "taskexecutor"),
    ("everything", "task", "jobmaster", "task", "jobmaster", "task"),
)
EACH_ONCE = (("", "", "", "jobmaster", "task"), ("everything", "", "", "", "", "jobmaster"))


class Interrupted:
    """The job of `BOUNDARIES` on a cluster, and whoever kills it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.marks = directory / "marks"
        self.marks.mkdir()
        job = write_job(directory, BOUNDARIES.format(examples=str(ROOT / "examples")), "boundaries.py")
        self.job_id = cluster.submit(job, str(self.marks), str(directory / "out"))

    def next_boundary(self) -> str:
        """The vertex that has returned and waits."""

        def look() -> str | None:
            waiting = [name for name, count in self.passed().items() if count and not self._go(name).exists()]
            return waiting[0] if waiting else None

        return str(await_value(look))

    def passed(self) -> dict[str, int]:
        """How often each vertex has returned."""
        return {path.stem: len(path.read_text()) for path in self.marks.glob("*.at")}

    def kill(self, victim: str, vertex: str) -> None:
        """Kill it while *vertex* waits, and return when that vertex waits again; nothing is killed for an empty one."""
        before = self.passed()[vertex]
        if not victim:
            return
        if victim == "jobmaster":
            name = f"jobmaster-{self.job_id}"
            pid = self.cluster.pid_of(name)
            os.kill(pid, signal.SIGKILL)
            await_value(lambda: self._pid_of(name) not in (0, pid))
            self.cluster.await_status(self.job_id, "RUNNING")
            assert self.passed()[vertex] == before, "its task has run on"
            return
        if victim == "everything":
            for pid in self.cluster.processes():
                with suppress(ProcessLookupError):  # it has ended with its master
                    os.kill(pid, signal.SIGKILL)
            await_value(lambda: not self.cluster.processes())
            self.cluster.run("start")
        else:
            (task,) = self.cluster.tasks_of(self.job_id)
            os.kill(task if victim == "task" else self.cluster.pid_of("tm:taskmanager-0"), signal.SIGKILL)
        await_value(lambda: self.passed()[vertex] == before + 1)

    def release(self, vertex: str) -> None:
        """Let it go on."""
        self._go(vertex).touch()

    def _go(self, vertex: str) -> Path:
        return self.marks / f"{vertex}.go"

    def _pid_of(self, name: str) -> int:
        with self.cluster.client() as client:
            return next((view.pid for view in client.status().processes if view.name == name), 0)


@pytest.mark.slow  # test_pipelines loses a result
@pytest.mark.parametrize("victims", [EACH_ONCE, EVERYWHERE], ids=["each-once", "everywhere"])
def test_a_job_that_is_killed_at_vertex_boundaries_comes_to_the_same(
    own_cluster: Cluster, tmp_path: Path, victims: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    before_it, after_it = victims
    settings = ("restart-strategy.fixed-delay.attempts=100", "restart-strategy.fixed-delay.delay=0s")
    cluster = Cluster(own_cluster.directory, (*settings, "high-availability.lease=1s"))
    cluster.run("start")
    job = Interrupted(cluster, tmp_path)
    for victim in before_it:
        vertex = job.next_boundary()
        job.kill(victim, vertex)
        job.release(vertex)
    assert vertex == "join"
    first = job.next_boundary()
    before_the_result = {name: count for name, count in job.passed().items() if name != first}
    for number, victim in enumerate(after_it):
        vertex = first if number == 0 else job.next_boundary()
        job.kill(victim, vertex)
        job.release(vertex)
    assert vertex == "report"
    done = cluster.await_status(job.job_id, "FINISHED")
    assert written_tables(tmp_path / "out") == expected_tables(tmp_path)
    assert set(job.passed()) == {item["name"] for item in done["vertices"]}, "there was a boundary at every vertex"
    joining, reporting = done["tasks"]
    assert len(joining["attempts"]) == 1 + sum(victim not in ("", "jobmaster") for victim in before_it)
    assert len(reporting["attempts"]) == 1 + sum(victim not in ("", "jobmaster") for victim in after_it)
    after = {name: count for name, count in job.passed().items() if name in before_the_result}
    assert after == before_the_result, "what had finished was not run again, not after the loss of everything either"


# `first` makes a result that `second` reads; `second` says that it has begun, each time, and waits for the gate.
REREAD = """\
import time
from pathlib import Path
from runtime.api import Pipeline

def first(ctx):
    with open(ctx.parameters["gate"] + ".first", "a") as file:
        file.write("x")
    return ctx.spark.range(100)

def second(ctx, first):
    with open(ctx.parameters["gate"] + ".second", "a") as file:
        file.write("x")
    while not Path(ctx.parameters["gate"]).exists():
        time.sleep(0.05)
    print("rows", first.count())

def pipeline(argv):
    p = Pipeline("reread", parameters={"gate": argv[0]})
    p.source("first", first).blocking().sink("second", second)
    return p
"""


@pytest.mark.slow
def test_a_result_that_is_gone_is_made_again(cluster: Cluster, tmp_path: Path) -> None:
    gate, first, second = (tmp_path / name for name in ("gate", "gate.first", "gate.second"))
    job_id = cluster.submit(write_job(tmp_path, REREAD), str(gate))
    await_value(lambda: second.exists() and second.read_text())
    shutil.rmtree(cluster.directory / "jobs" / job_id / "results")
    (task,) = cluster.tasks_of(job_id)
    os.kill(task, signal.SIGKILL)
    await_value(lambda: second.read_text() == "xx")
    assert first.read_text() == "xx"
    gate.touch()
    job = cluster.await_status(job_id, "FINISHED")
    assert [failure["kind"] for failure in job["failure_history"]] == ["task-process-lost", "result-lost"]
    assert "rows 100" in cluster.run("job", "logs", job_id).stdout
