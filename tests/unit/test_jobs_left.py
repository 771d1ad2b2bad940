"""The jobs that tests leave on the cluster of all are cancelled, at once after a failure."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.protocol.execution_state import JobStatus
from tests import conftest
from tests.cluster_harness import Cluster


class Client:
    """A cluster's client; a job that was cancelled is CANCELED when it is looked at the second time."""

    def __init__(self, *jobs: Any) -> None:
        self.jobs = jobs
        self.looks = 0
        self.cancelled: list[str] = []

    def list_jobs(self) -> tuple[Any, ...]:
        self.looks += 1
        for job in self.jobs:
            if job.status is JobStatus.CANCELLING:
                job.status = JobStatus.CANCELED
        return tuple(SimpleNamespace(**vars(job)) for job in self.jobs)

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        next(job for job in self.jobs if job.job_id == job_id).status = JobStatus.CANCELLING


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(
        SimpleNamespace(name="waits", job_id="a" * 32, status=JobStatus.RUNNING),
        SimpleNamespace(name="over", job_id="b" * 32, status=JobStatus.FINISHED),
    )

    def of(cluster: Cluster) -> AbstractContextManager[Client]:
        return nullcontext(made)

    monkeypatch.setattr(Cluster, "client", of)
    return made


def test_jobs_that_are_left_are_cancelled_and_over(client: Client) -> None:
    assert Cluster(Path("none")).jobs_left(0.0) == [f"waits ({'a' * 32})"]
    assert client.cancelled == ["a" * 32]
    assert [job.status for job in client.jobs] == [JobStatus.CANCELED, JobStatus.FINISHED]


@pytest.mark.parametrize("failed", [False, True])
def test_after_a_failure_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch, failed: bool) -> None:
    waits: list[float] = []

    def jobs_left(cluster: Cluster, timeout: float) -> list[str]:
        waits.append(timeout)
        return ["a job"]

    monkeypatch.setattr(Cluster, "jobs_left", jobs_left)
    request: Any = SimpleNamespace(session=SimpleNamespace(testsfailed=3))
    check = conftest.end_jobs(request, [Cluster(Path("none"))])
    next(check)
    request.session.testsfailed += failed
    if failed:  # the failure explains them
        assert next(check, None) is None
    else:
        with pytest.raises(AssertionError, match="unfinished jobs"):
            next(check)
    assert waits == [0.0 if failed else conftest.PATIENCE_S]
