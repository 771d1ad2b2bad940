"""The files of a cluster's history: what is kept, for how long, and what is read of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.configuration import Configuration
from runtime.dispatcher.archive import FileArchivedExecutionGraphStore, Retention
from runtime.environment.descriptor import ClusterDescriptor
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.history.directory import LOG_END, HistoryDirectory, HistoryFile, surplus
from runtime.history.figures import FILE, FigureFile, Sample
from runtime.history.reader import ClusterHistory, log_keys, suspended
from runtime.ids import JobID
from runtime.job_logs import KeptLog, logs_owner
from runtime.jobgraph.codec import encode
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.execution_state import ExecutionState, JobStatus
from tests.unit.test_rest_messages import graph

DAY_S = 86_400.0
KEY = "p-" + "1" * 64 + "-" + "2" * 32


def job(number: int, status: JobStatus = JobStatus.FINISHED) -> ArchivedExecutionGraph:
    return graph(status, job_id=JobID(f"{number:032x}"))


def write(path: Path, content: bytes, at_ms: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if at_ms is not None:
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "archive").mkdir()
    return tmp_path


def history_of(root: Path, now_ms: int = 0, **settings: str) -> ClusterHistory:
    given = {"cluster.runtime-dir": str(root), **{key.replace("_", "."): value for key, value in settings.items()}}
    return ClusterHistory("nightly", root, Configuration.from_dict(given), lambda: now_ms)


# ------------------------------------------------------------------- retention

files = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1_000)), max_size=20).map(
    lambda found: [HistoryFile(Path(f"{number:03d}"), *each) for number, each in enumerate(found)]
)


@given(files, st.integers(0, 300), st.integers(0, 1_000), st.integers(0, 2_000))
def test_what_stays_is_within_the_bounds_and_as_much_as_fits(
    found: list[HistoryFile], max_bytes: int, expiration_ms: int, now_ms: int
) -> None:
    gone = surplus(found, max_bytes, expiration_ms, now_ms)
    by_age = sorted(found, key=lambda file: (file.written_ms, file.path))
    assert gone == by_age[: len(gone)], "the oldest go first"
    kept = by_age[len(gone) :]
    assert sum(file.size for file in kept) <= max_bytes
    assert all(now_ms - file.written_ms <= expiration_ms for file in kept)
    if gone:
        back = [gone[-1], *kept]
        assert sum(file.size for file in back) > max_bytes or now_ms - gone[-1].written_ms > expiration_ms


def test_old_files_of_each_part_are_deleted_and_others_are_not(root: Path) -> None:
    history = root / "history"
    parts = ("jobs/a.job", "running/b.job", f"logs/{KEY}", "figures-00000000000005.jsonl")
    old = [write(history / part, b"x", 1_000) for part in parts]
    new = [write(history / f"{part}2", b"x", 9_000) for part in parts[:3]]
    other = write(history / "notes.txt", b"the user's own", 0)
    directory = HistoryDirectory(history, 1 << 20, 5.0)
    assert sorted(directory.expire(9_500)) == sorted(old)
    assert all(path.exists() for path in (*new, other))
    assert directory.expire(9_500) == []
    assert HistoryDirectory(root / "none", 1, 1.0).expire(9_500) == []


def test_a_cluster_keeps_no_history_where_that_is_said(root: Path) -> None:
    settings = {"cluster.runtime-dir": str(root)}
    kept = HistoryDirectory.of(Configuration.from_dict(settings))
    assert kept is not None
    assert kept.root == root / "history"
    assert HistoryDirectory.of(Configuration.from_dict({**settings, "history.enabled": "false"})) is None


def test_a_job_that_the_cluster_forgets_is_in_the_history(root: Path) -> None:
    directory = HistoryDirectory(root / "history", 1 << 20, DAY_S)
    directory.note_running(job(1, JobStatus.RUNNING))
    archive = FileArchivedExecutionGraphStore(Retention(1, 1 << 20, DAY_S), root / "archive", directory)
    for number in (1, 2):
        ended = job(number)
        archive.enter(ended, archive.write(ended), 2_000)
    assert [details.job_id for details in archive.details()] == [job(2).job_id]
    assert directory.read_ended(job(1).job_id) == job(1)
    assert directory.read_ended(job(2).job_id) is None
    assert directory.running() == [], "it is over"
    assert {details.job_id for details in history_of(root).jobs()} == {job(1).job_id, job(2).job_id}
    assert history_of(root).job(job(1).job_id) == job(1)
    assert (root / "history" / "jobs").stat().st_mode & 0o777 == 0o700


def test_a_file_that_is_gone_is_dropped_all_the_same(root: Path) -> None:
    archive = FileArchivedExecutionGraphStore(
        Retention(1, 1 << 20, DAY_S), root / "archive", HistoryDirectory(root / "history", 1, DAY_S)
    )
    for number in (1, 2):
        archive.enter(job(number), archive.write(job(number)), 2_000)
        (root / "archive" / f"{job(1).job_id}.job").unlink(missing_ok=True)
    assert [details.job_id for details in archive.details()] == [job(2).job_id]


# ------------------------------------------------------------ unfinished jobs


def test_a_job_that_the_cluster_did_not_end_is_suspended_when_it_was_last_seen(root: Path) -> None:
    running = job(1, JobStatus.RUNNING)
    write(root / "history" / "running" / f"{running.job_id}.job", encode(running), 7_000)
    history = history_of(root)
    (details,) = history.jobs()
    assert (details.status, details.end_ms) == (JobStatus.SUSPENDED, 7_000)
    whole = history.job(running.job_id)
    assert whole is not None
    assert (whole.status, whole.end_ms) == (JobStatus.SUSPENDED, 7_000)
    assert all(attempt.state.is_terminal for task in whole.tasks for attempt in task.attempts)
    assert all(not vertex.state.value.startswith("RUN") for vertex in whole.vertices)


def test_a_suspended_job_keeps_its_attempts_with_their_ends() -> None:
    before = job(1, JobStatus.RUNNING)
    after = suspended(before, 9_000)
    states = [[attempt.state for attempt in task.attempts] for task in after.tasks]
    assert ExecutionState.FAILED in states[0], "an attempt that had ended stays as it was"
    for old, new in zip(before.tasks, after.tasks, strict=True):
        for was, now in zip(old.attempts, new.attempts, strict=True):
            assert now.attempt_id == was.attempt_id
            assert now == was if was.state.is_terminal else now.end_ms == 9_000
    assert not any(task.waiting_for for task in after.tasks)
    assert after.checkpoints == before.checkpoints


def test_an_end_wins_over_the_state_before(root: Path) -> None:
    directory = HistoryDirectory(root / "history", 1 << 20, DAY_S)
    directory.note_running(job(1, JobStatus.RUNNING))
    write(root / "archive" / f"{job(1).job_id}.job", encode(job(1)))
    assert [details.status for details in history_of(root).jobs()] == [JobStatus.FINISHED]
    found = history_of(root).job(job(1).job_id)
    assert found is not None
    assert found.status is JobStatus.FINISHED


def test_jobs_of_a_running_cluster_are_left_out_and_those_of_its_predecessor_are_not(root: Path) -> None:
    write(root / "history" / "running" / f"{job(1).job_id}.job", encode(job(1, JobStatus.RUNNING)), 4_000)
    write(root / "history" / "running" / f"{job(2).job_id}.job", encode(job(2, JobStatus.RUNNING)), 6_000)
    directory = ClusterDirectory(root)
    lock = directory.acquire()
    try:
        descriptor = ClusterDescriptor("nightly", "akka.tcp://u@h:1/", 5_000, str(root), "log", "run", ())
        directory.write_descriptor(descriptor)
        history = history_of(root)
        assert [details.job_id for details in history.jobs()] == [job(1).job_id]
        assert history.job(job(2).job_id) is None
        assert history.job(job(1).job_id) is not None
    finally:
        lock.release()
    assert {details.job_id for details in history.jobs()} == {job(1).job_id, job(2).job_id}


def test_a_cluster_of_other_hosts_counts_as_running_while_it_writes_figures(root: Path) -> None:
    shared = root / "shared"
    write(shared / "history" / "running" / f"{job(1).job_id}.job", encode(job(1, JobStatus.RUNNING)), 100_000)
    write(shared / "history" / FILE, b"", 100_000)
    for now_ms, expected in ((150_000, []), (200_000, [job(1).job_id])):
        history = ClusterHistory(
            "far",
            root / "own",
            Configuration.from_dict({"cluster.runtime-dir": str(root / "own"), "cluster.shared-dir": str(shared)}),
            lambda now_ms=now_ms: now_ms,  # type: ignore[misc]
        )
        assert [details.job_id for details in history.jobs()] == expected


# -------------------------------------------------------------------- reading


def test_a_damaged_archive_is_one_line_and_the_rest_is_shown(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        write(root / "archive" / f"{job(number).job_id}.job", encode(job(number)))
    damaged = write(root / "history" / "jobs" / f"{job(3).job_id}.job", encode(job(3))[:-9])
    history = history_of(root)
    for _ in range(2):
        assert {details.job_id for details in history.jobs()} == {job(1).job_id, job(2).job_id}
        (line,) = history.damaged()
        assert str(damaged) in line
        assert "\n" not in line
    assert len(caplog.records) == 1, "it is logged once"
    damaged.write_bytes(encode(job(3)))
    assert len(history.jobs()) == 3
    assert history.damaged() == []


def test_reading_changes_no_file(root: Path) -> None:
    write(root / "archive" / f"{job(1).job_id}.job", encode(job(1)))
    write(root / "history" / "running" / f"{job(2).job_id}.job", encode(job(2, JobStatus.RUNNING)), 1_000)
    write(root / "history" / "jobs" / "damaged.job", b"x")
    FigureFile(root / "history").append(Sample(1))

    def seen() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}

    before = seen()
    history = history_of(root)
    history.jobs()
    history.job(job(1).job_id)
    history.points(0, 10, 10)
    assert history.log(str(logs_owner(job(1).job_id)), KEY) is None
    assert seen() == before


def test_a_kept_log_is_read_from_the_blobs_and_then_its_end_from_the_history(root: Path) -> None:
    owner = str(logs_owner(job(1).job_id))
    blob = write(root / "blob" / f"job_{owner}" / f"blob_{KEY}", b"the whole log\n")
    HistoryDirectory(root / "history", 1 << 20, DAY_S).keep_log(KEY, b"x" * LOG_END + b"the end\n")
    history = history_of(root)
    assert history.log(owner, KEY) == b"the whole log\n"
    blob.unlink()
    end = history.log(owner, KEY)
    assert end is not None
    assert end.endswith(b"xthe end\n")
    assert len(end) == LOG_END
    assert history.log(owner, KEY.replace("1", "3")) is None


def test_only_logs_with_content_are_kept() -> None:
    one = job(1)
    logs = (KeptLog("stdout", 3, 3, KEY), KeptLog("stderr", 0, 0, ""), KeptLog(".function-result", 3, 3, KEY))
    task = replace(one.tasks[0], attempts=(replace(one.tasks[0].attempts[0], logs=logs),))
    assert log_keys(replace(one, tasks=(task,)), (".function-result",)) == [logs[0]]


def test_the_newest_job_is_first_and_new_files_are_found(root: Path) -> None:
    history = history_of(root)
    assert history.jobs() == []
    for number, began in ((1, 10), (2, 20)):
        ended = replace(job(number), timestamps={"INITIALIZING": began, "FINISHED": 30})
        write(root / "archive" / f"{ended.job_id}.job", encode(ended))
        assert history.jobs()[0].job_id == ended.job_id
        assert history.has(ended.job_id)
    assert not history.has(job(3).job_id)


def test_a_directory_without_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no history") as refused:
        ClusterHistory.open(tmp_path / "none", Configuration.from_dict({}))
    assert "--dir" in str(refused.value.remedy)


def test_the_configuration_of_a_killed_cluster_counts(tmp_path: Path) -> None:
    root, shared = tmp_path / "own", tmp_path / "shared"
    (shared / "archive").mkdir(parents=True)
    root.mkdir(mode=0o700)
    own = {"cluster.id": "far", "cluster.runtime-dir": str(root), "cluster.shared-dir": str(shared)}
    Configuration.from_dict(own).write(root / "configuration.json")
    assert ClusterHistory.open(root, Configuration.from_dict({})).name == "far"
    (root / "configuration.json").write_text("{")
    with pytest.raises(ClusterError, match="no history"):
        ClusterHistory.open(root, Configuration.from_dict({}))
