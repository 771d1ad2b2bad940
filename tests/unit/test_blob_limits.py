from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blob.errors import NoSpaceLeft, QuotaExceeded
from blob.limits import ExpiryTable, StorageBudget
from blob.single_flight import SingleFlight
from tests.waiting import PATIENCE_S

JOB = "a" * 32


def test_the_quota_of_a_job() -> None:
    budget = StorageBudget(maximum_per_job=10)
    budget.reserve(JOB, 8, free=100)
    with pytest.raises(QuotaExceeded, match=f"10 bytes that job {JOB}"):
        budget.reserve(JOB, 3, free=100)
    budget.reserve(JOB, 2, free=100)
    budget.reserve(None, 10, free=100)
    with pytest.raises(QuotaExceeded, match="without a job"):
        budget.reserve(None, 1, free=100)


def test_the_quota_of_the_server() -> None:
    budget = StorageBudget(maximum=10)
    budget.add(JOB, 6)
    with pytest.raises(QuotaExceeded, match="10 bytes that the blob server"):
        budget.reserve(None, 5, free=100)
    budget.remove(JOB, 6)
    budget.reserve(None, 5, free=100)
    assert budget.total == 5


def test_the_reserve_of_the_disk_counts_uploads_under_way_once() -> None:
    budget = StorageBudget(reserve=10)
    budget.reserve(JOB, 50, free=100)
    with pytest.raises(NoSpaceLeft, match="reserve of 10 bytes"):
        budget.reserve(JOB, 41, free=100)
    budget.commit(50)
    budget.reserve(JOB, 40, free=50)
    with pytest.raises(NoSpaceLeft):
        budget.reserve(JOB, 1, free=50)


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 100), st.booleans())))
def test_what_fails_or_is_deleted_leaves_nothing(uploads: list[tuple[str | None, int, bool]]) -> None:
    budget = StorageBudget()
    for job, size, _ in uploads:
        budget.reserve(job, size, free=10**9)
    assert budget.total == sum(size for _, size, _ in uploads)
    for job, size, fails in uploads:
        if fails:
            budget.abort(job, size)
        else:
            budget.commit(size)
            budget.remove(job, size)
    assert budget.total == 0
    assert all(budget.held(job) == 0 for job in (None, "a", "b"))
    StorageBudget(reserve=5).reserve(None, 5, free=10)


def test_entries_expire_after_their_last_use() -> None:
    table: ExpiryTable[str] = ExpiryTable(10.0)
    table.touch("a", 0.0)
    table.touch("b", 1.0)
    table.touch("a", 5.0)
    assert table.expired(10.9) == []
    assert table.expired(11.0) == ["b"]
    assert table.expired(15.0) == ["b", "a"]
    table.forget("b")
    assert table.expired(15.0) == ["a"]


def test_what_is_noted_is_as_if_used_unless_it_is_known() -> None:
    table: ExpiryTable[str] = ExpiryTable(10.0)
    table.touch("a", 0.0)
    table.note("a", 5.0)
    table.note("b", 5.0)
    assert [table.is_expired(entry, 10.0) for entry in ("a", "b", "unknown")] == [True, False, True]


def test_one_flight_for_all_who_ask() -> None:
    flights: SingleFlight[str, object] = SingleFlight()
    started, finish = threading.Event(), threading.Event()
    calls: list[int] = []
    results: list[object] = []

    def work() -> object:
        calls.append(1)
        started.set()
        finish.wait(PATIENCE_S)
        return object()

    def ask() -> None:
        results.append(flights.run("key", work))

    threads = [threading.Thread(target=ask)]
    threads[0].start()
    started.wait(PATIENCE_S)
    threads += [threading.Thread(target=ask) for _ in range(7)]
    for thread in threads[1:]:
        thread.start()
    assert flights.run("another key", lambda: "at once") == "at once"
    finish.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    # A thread that came late may have flown on its own, after the first had landed; never two at a time.
    assert len(results) == 8
    assert len(set(map(id, results))) == len(calls)
    assert results[0] is not None


def test_a_failed_flight_fails_for_all_and_the_next_one_starts_anew() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    with pytest.raises(KeyError):
        flights.run("key", lambda: {}["nothing"])
    assert flights.run("key", lambda: 3) == 3
