"""An application from its beginning to its end, with real processes of main() and a cluster that is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.errors import RecipientUnreachable
from conf.configuration import Configuration
from runtime.application.program import ApplicationFiles
from runtime.application.state import ApplicationResult
from runtime.cluster import application_bootstrap as module
from runtime.cluster.application_bootstrap import ApplicationBootstrap
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterNotRunning
from runtime.ha.errors import RedisUnreachableError
from runtime.ids import ApplicationID, JobID
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.archived_execution_graph import ApplicationStatus, JobDetails
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import JobStatus

HEAD = """\
import os
from pathlib import Path
from runtime.notebook import connect

def f(spark):
    pass

def submit():
    job = connect().submit(f)
    print(job.id, job.status.value)
    return job

def once():
    first = not Path("begun").exists()
    Path("begun").touch()
    return first

"""


def test_an_application_waits_for_a_master_and_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    client = object()
    outcomes: list[Any] = [RedisUnreachableError("here", "refused"), ClusterNotRunning("no leader", "start it"), client]

    def connect(_configuration: Configuration) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "connect_locally", connect)
    assert module._connected(Configuration()) is client


class FakeCluster:
    """Jobs that end at once, as they are told to; and masters that end when they are told to."""

    def __init__(self, status: JobStatus) -> None:
        self.status = status
        self.jobs: dict[JobID, tuple[JobGraph, JobStatus]] = {}
        self.ends: list[ApplicationStatus] = []

    def status_of(self, job_id: JobID) -> JobStatus:
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id)
        return self.jobs[job_id][1]

    def submit(self, graph: JobGraph, main: Path, libraries: Any) -> JobID:
        assert graph.job_id not in self.jobs, "no job is submitted twice"
        self.jobs[graph.job_id] = graph, self.status
        return graph.job_id

    def cancel(self, job_id: JobID) -> None:
        self.jobs[job_id] = self.jobs[job_id][0], JobStatus.CANCELED

    def list_jobs(self) -> list[JobDetails]:
        return [
            JobDetails(graph.job_id, graph.name, graph.kind, status, 1, None, {}, 0, "")
            for graph, status in self.jobs.values()
        ]

    def logs(self, job_id: JobID) -> list[Any]:
        return []

    def shut_down(self, status: ApplicationStatus) -> None:
        if self.ends:
            raise RecipientUnreachable("the masters have gone")
        self.ends.append(status)


def run(cluster: FakeCluster, tmp_path: Path, text: str, *, cancelled: bool = False) -> ApplicationResult:
    """Run a program to its end, and return what its client reads."""
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    files, program = ApplicationFiles(directory), tmp_path / "app.py"
    program.write_text(HEAD + text)
    files.deploy(ApplicationID.random(), "app", program, (), ())
    if cancelled:
        files.cancel()
    ApplicationBootstrap(cluster, Configuration.from_dict({}), directory).run()  # type: ignore[arg-type]
    result = files.result()
    assert result is not None
    assert cluster.ends == [result.status]
    return result


def test_a_main_that_was_killed_is_run_again_and_finds_its_job(tmp_path: Path) -> None:
    cluster = FakeCluster(JobStatus.FINISHED)
    text = "job = submit()\nif once():\n    os.kill(os.getpid(), 9)\nsubmit()\n"
    assert run(cluster, tmp_path, text) == ApplicationResult(ApplicationStatus.SUCCEEDED)
    said = (tmp_path / "c" / "log" / "application.stdout").read_text()
    assert said == "".join(f"{job_id} FINISHED\n" for job_id in cluster.jobs)
    assert len(cluster.jobs) == 2


def test_the_jobs_of_a_main_that_fails_are_cancelled(tmp_path: Path) -> None:
    cluster = FakeCluster(JobStatus.RUNNING)
    result = run(cluster, tmp_path, "submit()\nraise ValueError('no such month')\n")
    assert (result.status, result.error) == (ApplicationStatus.FAILED, "ValueError: no such month")
    assert 'File "app.py"' in result.traceback
    assert [status for _, status in cluster.jobs.values()] == [JobStatus.CANCELED]


class Free:
    """A claim that nobody has: that of the process before went with it."""

    def try_acquire(self) -> bool:
        return True


def test_an_application_that_is_over_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that ran it was lost between its result and the end of the cluster; its successor ends that."""
    cluster = FakeCluster(JobStatus.FINISHED)
    result = run(cluster, tmp_path, "submit()\nprint('run', file=open('../runs', 'a'))\n")
    cluster.ends.clear()
    monkeypatch.setattr(ClusterDirectory, "client_claim", lambda self: Free())
    directory = ClusterDirectory(tmp_path / "c")
    ApplicationBootstrap(cluster, Configuration.from_dict({}), directory).run()  # type: ignore[arg-type]
    assert ApplicationFiles(directory).result() == result
    assert cluster.ends == [ApplicationStatus.SUCCEEDED]
    assert (directory.application / "runs").read_text() == "run\n"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_cancelled_application_ends_main_and_its_jobs(tmp_path: Path, is_late: bool) -> None:
    cluster = FakeCluster(JobStatus.RUNNING)
    text = "submit()\nPath('../cancelled').touch()\nimport threading\nthreading.Event().wait()\n"
    result = run(cluster, tmp_path, text, cancelled=not is_late)
    assert result.status is ApplicationStatus.CANCELED
    assert [status for _, status in cluster.jobs.values()] == ([JobStatus.CANCELED] if is_late else [])
