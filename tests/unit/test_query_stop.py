"""How queries are stopped between two batches, on queries like the JVM's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from runtime.spark.query_stop import stop_at_boundary


class Query:
    """A query whose batches are numbered by how often somebody looked; `looks` until its present batch is over."""

    def __init__(self, looks: int | None = 0, *, is_always_busy: bool = False) -> None:
        self.looks = looks
        self.is_always_busy = is_always_busy
        self.batch = 5
        self.stopped_in_batch: bool | None = None
        self.drained = threading.Event()

    def name(self) -> str:
        return "q"

    def isActive(self) -> bool:  # noqa: N802
        return self.stopped_in_batch is None

    def _in_batch(self) -> bool:
        return self.looks is None or self.looks > 0

    def status(self) -> Any:
        return SimpleNamespace(isTriggerActive=lambda: self.is_always_busy or self._in_batch())

    def lastProgress(self) -> Any:  # noqa: N802
        if self.looks:
            self.looks -= 1
            self.batch += self.looks == 0
        return SimpleNamespace(batchId=lambda: self.batch)

    def processAllAvailable(self) -> None:  # noqa: N802
        self.drained.set()

    def stop(self) -> None:
        self.stopped_in_batch = self._in_batch()


def test_an_idle_query_is_stopped_at_once() -> None:
    query = Query()
    assert stop_at_boundary([query], drain=False, timeout_s=60) == []
    assert query.stopped_in_batch is False
    assert not query.drained.is_set()


def test_a_busy_one_is_stopped_when_it_has_committed_a_batch() -> None:
    queries = [Query(4), Query(4, is_always_busy=True)]
    assert stop_at_boundary(queries, drain=False, timeout_s=60) == []
    assert [query.stopped_in_batch for query in queries] == [False, False]


def test_one_that_commits_none_is_stopped_by_force_and_that_is_told() -> None:
    query = Query(None)
    (note,) = stop_at_boundary([query], drain=False, timeout_s=0.05)
    assert "query q was stopped by force in the middle of a batch" in note
    assert query.stopped_in_batch is True


def test_it_is_drained_first_where_that_is_asked_for() -> None:
    query = Query()
    assert stop_at_boundary([query], drain=True, timeout_s=60) == []
    assert query.drained.is_set()


def test_no_queries_need_no_stop() -> None:
    assert stop_at_boundary([], drain=True, timeout_s=0) == []
