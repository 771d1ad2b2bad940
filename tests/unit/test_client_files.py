from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.errors import ClientClosed
from actors.rpc.connection import again
from runtime.client import CARRIED_SIZE, ClusterClient, JobFile, _carried, _signed, _traced
from runtime.ids import JobID
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, JobKind
from tests.unit.test_trace_context import TEXT


def file_of(path: Path, role: ArtifactRole) -> JobFile:
    return JobFile(path.name, role, path)


def test_a_small_job_file_travels_in_the_job_graph(tmp_path: Path) -> None:
    main, data = tmp_path / "job.py", tmp_path / "data.csv"
    main.write_bytes(b"print('\xc3\xa4')\x00")
    data.write_bytes(b"")
    carried = _carried([file_of(main, ArtifactRole.MAIN), file_of(data, ArtifactRole.FILE)])
    assert carried == [
        Artifact("job.py", ArtifactRole.MAIN, content=b"print('\xc3\xa4')\x00"),
        Artifact("data.csv", ArtifactRole.FILE, content=b""),
    ]
    graph = JobGraph(JobID.random(), "job", JobKind.SCRIPT, ()).with_artifacts(*carried)
    assert decode_job_graph(encode(graph)).artifacts == tuple(carried)


def test_large_files_and_libraries_are_uploaded(tmp_path: Path) -> None:
    half, whole = tmp_path / "half", tmp_path / "whole"
    half.write_bytes(bytes(CARRIED_SIZE // 2 + 1))
    whole.write_bytes(bytes(CARRIED_SIZE))
    assert _carried([file_of(whole, ArtifactRole.MAIN)]) is not None
    assert _carried([file_of(half, ArtifactRole.MAIN), file_of(half, ArtifactRole.FILE)]) is None
    assert _carried([file_of(half, ArtifactRole.MAIN), file_of(tmp_path / "none.py", ArtifactRole.PY_FILE)]) is None


def test_an_argument_that_is_not_utf8_is_an_error_of_the_job() -> None:
    with pytest.raises(JobGraphError, match=r"'\\udcff' is not UTF-8"):
        encode(JobGraph.for_script("x", argv=("\udcff",)))


def test_calls_of_a_closed_client_end_at_once() -> None:
    client = ClusterClient("akka.tcp://understudy@127.0.0.1:1/user/dispatcher", b"secret", patience_s=0)
    client.close()
    with pytest.raises(ClientClosed):
        client.overview()
    assert isinstance(again(ClientClosed()), ClientClosed)  # each pending ask has an error of its own


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _carried([file_of(tmp_path / "none.py", ArtifactRole.MAIN)])


def test_a_job_is_submitted_in_the_name_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = JobGraph(JobID.random(), "job", JobKind.SCRIPT, ())
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    assert _signed(graph).submitter == "ada"
    assert _signed(replace(graph, submitter="bob")).submitter == "bob"


def test_a_job_is_submitted_in_the_trace_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", TEXT)
    graph = JobGraph.for_script("x")
    assert _traced(graph).traceparent == TEXT
    assert _traced(replace(graph, traceparent="own")).traceparent == "own"
    monkeypatch.delenv("TRACEPARENT")
    assert _traced(graph).traceparent == ""


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_a_user_without_a_name_submits_too(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def getuser() -> str:
        raise error("uid not found")

    graph = JobGraph(JobID.random(), "job", JobKind.SCRIPT, ())
    monkeypatch.setattr("getpass.getuser", getuser)
    assert _signed(graph) == graph
    monkeypatch.setattr("getpass.getuser", lambda: "a\nb")  # LOGNAME may be anything
    assert _signed(graph) == graph
