"""What every store of finished jobs promises, in memory and on files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.dispatcher.archive import (
    ArchivedExecutionGraphStore,
    FileArchivedExecutionGraphStore,
    MemoryArchivedExecutionGraphStore,
    Retention,
    create_archive,
)
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.execution_state import ErrorInfo, FailureKind, JobStatus

MakeStore = Callable[..., ArchivedExecutionGraphStore]
BROKEN = ErrorInfo(FailureKind.USER_CODE, "ValueError", "no", "Traceback", "read", 5)


def job(number: int, end_ms: int, name: str = "flights") -> ArchivedExecutionGraph:
    return ArchivedExecutionGraph(
        job_id=JobID(f"{number:032x}"),
        name=name,
        kind=JobKind.SCRIPT,
        status=JobStatus.FAILED,
        timestamps={"CREATED": 1, "FAILED": end_ms},
        tasks=(),
        vertices=(),
        failure=BROKEN,
        failure_history=(BROKEN, BROKEN),
        restarts=1,
        restart_strategy="none",
        failure_counts={"user-code": 2},
    )


@pytest.fixture(params=["memory", "file"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    def make(capacity: int = 100, max_bytes: int = 1 << 20, expiration_s: float = 10.0) -> ArchivedExecutionGraphStore:
        retention = Retention(capacity, max_bytes, expiration_s)
        if request.param == "memory":
            return MemoryArchivedExecutionGraphStore(retention)
        return FileArchivedExecutionGraphStore(retention, tmp_path)

    return make


def put(store: ArchivedExecutionGraphStore, job: ArchivedExecutionGraph, now_ms: int) -> list[JobID]:
    return store.enter(job, store.write(job), now_ms)


def ids(store: ArchivedExecutionGraphStore) -> set[int]:
    return {int(details.job_id, 16) for details in store.details()}


def test_what_was_put_is_found_whole_and_in_one_line(make_store: MakeStore) -> None:
    store, kept = make_store(), job(1, 10)
    store.load()
    assert put(store, kept, 10) == []
    assert store.get(kept.job_id) == kept
    assert store.find(kept.job_id) == kept.details()
    assert store.details() == [kept.details()]
    unknown = JobID.random()
    assert store.get(unknown) is None
    assert store.find(unknown) is None


def test_what_is_written_is_found_when_it_is_entered_and_not_before(make_store: MakeStore) -> None:
    store, kept = make_store(), job(1, 10)
    size = store.write(kept)
    assert (store.find(kept.job_id), store.get(kept.job_id), store.details()) == (None, None, [])
    store.enter(kept, size, 10)
    assert store.get(kept.job_id) == kept


def test_a_job_that_is_put_again_is_there_once(make_store: MakeStore) -> None:
    store = make_store(capacity=1)
    put(store, job(1, 10), 10)
    assert put(store, job(1, 10, "again"), 10) == []
    assert [details.name for details in store.details()] == ["again"]


def test_no_more_than_the_capacity_are_kept_the_oldest_go_first(make_store: MakeStore) -> None:
    store = make_store(capacity=2)
    assert [put(store, job(number, number), 10) for number in (2, 1, 3)] == [[], [], [job(1, 1).job_id]]
    assert ids(store) == {2, 3}
    assert store.get(job(1, 1).job_id) is None


def test_no_more_bytes_than_allowed_are_kept(make_store: MakeStore) -> None:
    room = len(encode(job(1, 1)))
    store = make_store(max_bytes=2 * room)
    assert [put(store, job(number, number), 10) for number in (1, 2, 3)] == [[], [], [job(1, 1).job_id]]
    large = job(4, 4, "x" * 3 * room)
    assert put(store, large, 10) == [job(2, 2).job_id, job(3, 3).job_id]
    assert store.get(large.job_id) == large, "how the last one ended is told whatever its size"


def test_old_jobs_expire(make_store: MakeStore) -> None:
    store = make_store(expiration_s=1.0)
    put(store, job(1, 1000), 1000)
    put(store, job(2, 1500), 1500)
    assert store.expire(2000) == []
    assert store.expire(2001) == [job(1, 1000).job_id]
    assert ids(store) == {2}


def test_a_capacity_of_none_keeps_none(make_store: MakeStore) -> None:
    store, ended = make_store(capacity=0), job(1, 1)
    assert put(store, ended, 1) == [ended.job_id]
    assert store.get(ended.job_id) is None


def test_many_threads_at_once_leave_what_the_bounds_allow(make_store: MakeStore) -> None:
    store = make_store(capacity=7)
    with ThreadPoolExecutor(8) as pool:
        dropped = [
            job_id
            for outcome in pool.map(lambda number: put(store, job(number, number), 60), range(50))
            for job_id in outcome
        ]
        found = list(pool.map(lambda number: store.get(job(number, number).job_id), range(50)))
    assert ids(store) == set(range(43, 50))
    assert sorted(int(job_id, 16) for job_id in dropped) == list(range(43))
    assert [number for number, archived in enumerate(found) if archived is not None] == list(range(43, 50))


# --------------------------------------------------------------------- what only one of them does


def test_files_are_found_by_the_next_store_and_bounded_by_it(tmp_path: Path) -> None:
    first = FileArchivedExecutionGraphStore(Retention(100, 1 << 20, 10.0), tmp_path)
    for number in (1, 2, 3):
        put(first, job(number, number), 10)
    (tmp_path / "damaged.job").write_bytes(b"no")
    second = FileArchivedExecutionGraphStore(Retention(2, 1 << 20, 10.0), tmp_path)
    second.load()
    second.load()
    assert ids(second) == {1, 2, 3}
    assert second.expire(10) == [job(1, 1).job_id]
    assert second.get(job(3, 3).job_id) == job(3, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["damaged.job", *(f"{job(number, 1).job_id}.job" for number in (2, 3))]
    )
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("0*.job")} == {0o600}


def test_a_job_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    store = FileArchivedExecutionGraphStore(Retention(1, 1 << 20, 10.0), tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        put(store, job(1, 1), 1)
    assert store.details() == []


def test_an_archive_of_an_older_version_is_read(tmp_path: Path) -> None:
    fields = {
        field.name: getattr(job(1, 1), field.name)
        for field in dataclasses.fields(ArchivedExecutionGraph)
        if field.name != "failure_counts"
    }
    (tmp_path / "old.job").write_bytes(encode(fields))
    store = FileArchivedExecutionGraphStore(Retention(1, 1 << 20, 10.0), tmp_path)
    store.load()
    assert store.find(job(1, 1).job_id) == job(1, 1).details()


def test_the_configuration_names_the_store(tmp_path: Path) -> None:
    assert isinstance(create_archive(Configuration.from_dict({}), tmp_path), FileArchivedExecutionGraphStore)
    in_memory = Configuration.from_dict({"jobstore.type": "memory", "jobstore.max-capacity": "1"})
    store = create_archive(in_memory, tmp_path)
    assert isinstance(store, MemoryArchivedExecutionGraphStore)
    put(store, job(1, 1), 1)
    assert put(store, job(2, 2), 2) == [job(1, 1).job_id]
    assert not list(tmp_path.iterdir())
