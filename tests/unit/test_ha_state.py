"""The pure parts of the stores and of leader retrieval, and the state files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cattrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ha.errors import JobAlreadyDoneError, StateCorruptedError
from runtime.ha.retrieval import RetrievalState, next_look
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus, clean, done, pending, running
from runtime.ha.state_files import StateFiles, StateHandle
from runtime.protocol.leader import LeaderInformation, LeaderTerm

TERM = LeaderTerm("dispatcher", 5, "s")
LEADER = LeaderInformation("dispatcher", "akka.tcp://u@h:1/user/d", 5, "s")


def test_leader_information_travels() -> None:
    assert cattrs.structure(cattrs.unstructure(LEADER), LeaderInformation) == LEADER
    assert LEADER.term == TERM


def test_retrieval_tells_changes_only() -> None:
    state = RetrievalState(3.0)
    assert not state.read(0.0, None)
    assert state.read(1.0, LEADER)
    assert not state.read(2.0, LEADER)
    assert state.read(3.0, None)


def test_retrieval_keeps_a_leader_while_its_lease_may_run() -> None:
    state = RetrievalState(3.0)
    state.read(10.0, LEADER)
    assert not state.unreachable(12.9)
    assert state.leader == LEADER
    assert state.unreachable(13.0)
    assert state.leader is None
    assert not state.unreachable(14.0)


def test_a_job_runs_until_it_is_done_and_never_again() -> None:
    entry = pending("j", None)
    assert entry.status is JobSchedulingStatus.PENDING
    entry = running("j", entry)
    assert pending("j", entry) == entry, "accepting it again does not stop it"
    entry = done("j", running("j", entry), {"state": "FINISHED"})
    assert entry == JobEntry(JobSchedulingStatus.DONE, {"state": "FINISHED"}, dirty=True)
    assert done("j", entry, {"state": "FINISHED"}) == entry
    with pytest.raises(JobAlreadyDoneError, match="job j has ended"):
        running("j", entry)
    with pytest.raises(JobAlreadyDoneError):
        pending("j", entry)
    with pytest.raises(JobAlreadyDoneError):
        done("j", entry, {"state": "FAILED"})
    entry = clean("j", entry)
    assert not entry.dirty
    assert done("j", entry, {"state": "FINISHED"}) == entry, "a late repetition makes it not dirty again"
    with pytest.raises(ValueError, match="no result"):
        clean("j", None)


def test_a_registry_entry_survives_its_text() -> None:
    entry = JobEntry(JobSchedulingStatus.DONE, {"state": "FAILED", "error": "x"}, dirty=True)
    assert JobEntry.from_json(entry.to_json()) == entry
    with pytest.raises(StateCorruptedError):
        JobEntry.from_json('{"status": "BANANA"}')


def test_a_state_file_is_private_named_after_its_term_and_verified(tmp_path: Path) -> None:
    files = StateFiles(tmp_path / "kind")
    handle = files.write("job-1", b"graph", TERM)
    path = tmp_path / "kind" / handle.path
    assert handle.path.startswith("job-1@dispatcher.e5.")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert files.read(StateHandle.from_json(handle.to_json())) == b"graph"
    path.write_bytes(b"grApf")
    with pytest.raises(StateCorruptedError, match="not what was stored"):
        files.read(handle)


def test_a_state_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name.partition('@')[0]}")

    replace = Path.replace

    def replaced(path: Path, target: Path) -> None:
        steps.append("rename")
        replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    StateFiles(tmp_path / "kind").write("job-1", b"graph", TERM)
    assert steps[-4:] == [f"sync {tmp_path.name}", "sync .job-1", "rename", "sync kind"], (
        "its new directory is synced, too"
    )


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "x", "a/b@dispatcher.e1." + "0" * 32])
def test_a_handle_cannot_lead_out_of_its_directory(path: str) -> None:
    text = json.dumps({"path": path, "size": 1, "sha256": "x", "created": 0})
    with pytest.raises(StateCorruptedError):
        StateHandle.from_json(text)


def test_only_files_of_earlier_terms_of_the_same_component_are_old(tmp_path: Path) -> None:
    files = StateFiles(tmp_path)
    assert files.older_than(TERM) == []
    old = files.write("a", b"1", LeaderTerm("dispatcher", 4, "r"))
    half = tmp_path / f".{old.path.replace('a@', 'b@')}.01234567"
    half.write_bytes(b"")
    files.write("a", b"2", TERM)
    files.write("a", b"3", LeaderTerm("jobmaster-x", 3, "r"))
    (tmp_path / "foreign").write_bytes(b"")
    assert files.older_than(TERM) == [half.name, old.path]
    assert (files.of_name("b"), half.exists()) == ([half.name], True)
    files.delete_all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["foreign"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    files = StateFiles(tmp_path)
    earlier = files.write("a", b"0", TERM)  # the directory's own name is on the disk: the write fails, not its sync
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write("a", b"1", TERM)
    assert [path.name for path in tmp_path.iterdir()] == [earlier.path]


def test_those_of_one_process_look_at_the_same_moments() -> None:
    moments = {round(now + next_look(now, 1.0, 0.25), 6) for now in (100.0, 100.3, 100.6)}
    assert moments == {100.75}


def test_who_is_woken_a_moment_too_early_does_not_look_twice() -> None:
    assert next_look(99.999999, 1.0, 0.0) == pytest.approx(1.000001)
    assert next_look(100.0, 1.0, 0.0) == pytest.approx(1.0)


@given(now=st.floats(0, 1e7), every=st.floats(0.01, 1000), phase=st.floats(0, 1000))
def test_nobody_looks_too_often_or_too_seldom(now: float, every: float, phase: float) -> None:
    assert every * 0.099 <= next_look(now, every, phase) <= every * 1.101
