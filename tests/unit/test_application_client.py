"""How main() reaches its jobs: both ends, over a real socket pair."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runtime.application import client as application
from runtime.application.client import ApplicationClient, ApplicationGateway
from runtime.application.state import ExecuteIds
from runtime.ids import JobID
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph
from runtime.notebook import NotebookError, connect
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import JobStatus
from runtime.spark.wire import BlockingChannel


@dataclass
class FakeCluster:
    """What of a ClusterClient is asked."""

    jobs: dict[JobID, JobStatus] = field(default_factory=dict)
    submitted: list[tuple[JobGraph, Path, list[Any]]] = field(default_factory=list)

    def status_of(self, job_id: JobID) -> JobStatus:
        if job_id not in self.jobs:
            raise JobNotFoundError(f"no job {job_id}")
        return self.jobs[job_id]

    def submit(self, graph: JobGraph, main: Path, libraries: Any) -> JobID:
        self.jobs[graph.job_id] = JobStatus.RUNNING
        self.submitted.append((graph, main, list(libraries)))
        return graph.job_id


def new_client(cluster: FakeCluster, channels: list[BlockingChannel]) -> ApplicationClient:
    """A client as a new run of main() has it."""
    ours, theirs = map(BlockingChannel, socket.socketpair())
    channels += [ours, theirs]
    libraries = [(Path("/l/lib.py"), ArtifactRole.PY_FILE)]
    gateway = ApplicationGateway(cluster, ExecuteIds("app"), libraries, lambda ask: ask())  # type: ignore[arg-type]

    def serve() -> None:
        while (message := ours.receive()) is not None:
            ours.send(gateway.answer(message))

    threading.Thread(target=serve, daemon=True).start()
    return ApplicationClient(theirs)


@pytest.fixture
def channels() -> Iterator[list[BlockingChannel]]:
    opened: list[BlockingChannel] = []
    yield opened
    for channel in opened:
        channel.sock.shutdown(socket.SHUT_RDWR)  # ends who reads


def test_a_job_is_submitted_once_however_often_main_is_run(channels: list[BlockingChannel], tmp_path: Path) -> None:
    cluster = FakeCluster()
    job = JobGraph.for_script("load")
    jar = (tmp_path / "x.jar", ArtifactRole.JAR)
    first = [new_client(cluster, channels)]
    ids = [first[0].submit(job, tmp_path / "load.py", [jar]) for _ in range(2)]
    assert [graph.job_id for graph, _, _ in cluster.submitted] == ids
    assert cluster.submitted[0][1:] == (tmp_path / "load.py", [jar, (Path("/l/lib.py"), ArtifactRole.PY_FILE)])
    cluster.jobs[ids[0]] = JobStatus.FINISHED
    again = new_client(cluster, channels)
    assert [again.submit(job, tmp_path / "load.py") for _ in range(2)] == ids
    assert len(cluster.submitted) == 2
    assert again.status_of(ids[0]) is JobStatus.FINISHED


def test_what_is_wrong_is_told_to_main_as_itself(channels: list[BlockingChannel]) -> None:
    client = new_client(FakeCluster(), channels)
    with pytest.raises(JobNotFoundError, match="no job"):
        client.status_of(JobID("a" * 32))
    with pytest.raises(NotebookError, match="which does not exist"):
        client._ask("shut_down", job_id="a" * 32)
    with pytest.raises(NotebookError, match="it reaches its jobs only"):
        client.lookup("dispatcher")


def test_connect_is_the_applications_own_cluster_in_its_main(
    channels: list[BlockingChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = new_client(FakeCluster(), channels)
    monkeypatch.setattr(application, "_current", client)
    assert connect().client is client  # type: ignore[comparison-overlap]
