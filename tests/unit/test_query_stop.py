"""How queries are stopped between two batches, on queries like the JVM's."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from runtime.spark.driver.api import QueryFailure, StoppedQueries
from runtime.spark.driver.jvm import stop_at_boundary
from runtime.taskexecutor.task import stop_notes
from tests.waiting import PATIENCE_S


class Query:
    """A query whose batches are numbered by how often somebody looked; `looks` until its present batch is over."""

    def __init__(self, looks: int | None = 0, *, is_always_busy: bool = False) -> None:
        self.looks = looks
        self.is_always_busy = is_always_busy
        self.batch = 5
        self.stopped_in_batch: bool | None = None
        self.drained = threading.Event()
        self.failed_with = ""
        self.sources = ["RateStreamV2"]
        self.sink = "ForeachBatchSink"
        self.planned_after = 0

    def runId(self) -> Any:  # noqa: N802
        return SimpleNamespace(toString=lambda: "run of q")

    def exception(self) -> Any:
        found = SimpleNamespace(getMessage=lambda: self.failed_with)
        return SimpleNamespace(isDefined=lambda: bool(self.failed_with), get=lambda: found)

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

    def streamingQuery(self) -> Any:  # noqa: N802
        self.planned_after -= 1
        sources = SimpleNamespace(mkString=lambda between: between.join(self.sources * (self.planned_after < 0)))
        sink = SimpleNamespace(toString=lambda: self.sink)
        return SimpleNamespace(sources=lambda: sources, sink=lambda: sink)

    def processAllAvailable(self) -> None:  # noqa: N802
        self.drained.set()

    def stop(self) -> None:
        self.stopped_in_batch = self._in_batch()


STOPPED = StoppedQueries()


def test_an_idle_query_is_stopped_at_once() -> None:
    query = Query()
    assert stop_at_boundary([query], drain=False, timeout_s=60) == STOPPED
    assert query.stopped_in_batch is False
    assert not query.drained.is_set()


def test_a_busy_one_is_stopped_when_it_has_committed_a_batch() -> None:
    queries = [Query(4), Query(4, is_always_busy=True)]
    assert stop_at_boundary(queries, drain=False, timeout_s=60) == STOPPED
    assert [query.stopped_in_batch for query in queries] == [False, False]


def test_one_that_commits_none_is_stopped_by_force_and_that_is_told() -> None:
    query = Query(None)
    stopped = stop_at_boundary([query], drain=False, timeout_s=0.05)
    assert stopped == StoppedQueries(forced=("q",))
    assert "query q was stopped by force in the middle of a batch" in stop_notes(stopped)[0]
    assert query.stopped_in_batch is True


def test_it_is_drained_first_where_that_is_asked_for() -> None:
    query = Query()
    assert stop_at_boundary([query], drain=True, timeout_s=60) == STOPPED
    assert query.drained.is_set()


@pytest.mark.parametrize("source", ["file:/out/a", "file:/out", "file:/out/*/day=*", "file:/out/a/day=1"])
def test_one_that_reads_the_output_of_another_is_drained_after_it_and_then_both_are_stopped(source: str) -> None:
    reader, writer = Query(), Query()
    reader.planned_after = 3  # it has just been started
    reader.sources, writer.sink = ["KafkaV2[Subscribe[x]]", f"FileStreamSource[{source}]"], "FileSink[/out/a]"
    order: list[str] = []
    for name, query in (("reader", reader), ("writer", writer)):
        query.processAllAvailable = partial(order.append, f"{name} is drained")  # type: ignore[method-assign]
        stop = query.stop
        query.stop = lambda name=name, stop=stop: (order.append(f"{name} is stopped"), stop())  # type: ignore[misc]
    assert stop_at_boundary([reader, writer], drain=True, timeout_s=60) == STOPPED
    assert order[:2] == ["writer is drained", "reader is drained"]
    assert sorted(order[2:]) == ["reader is stopped", "writer is stopped"]


class Failing(Query):
    """Fails on the row that it is drained of: Spark ends it, and whoever waits for it is told."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self._message = message

    def processAllAvailable(self) -> None:  # noqa: N802
        self.failed_with = self._message
        self.stopped_in_batch = True
        raise Py4JJavaError("", SimpleNamespace(_target_id="o1", _gateway_client=None))


PYTHON_ERROR = """\
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. Reason: \
Return Message: Traceback (most recent call last):
  File "/job/stream.py", line 7, in work
    raise ValueError("poison")
ValueError: poison

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


@pytest.mark.parametrize(
    ("message", "error"),
    [(PYTHON_ERROR, "ValueError: poison"), ("[CANNOT_PARSE] a field\nSQLSTATE: 22", "[CANNOT_PARSE] a field")],
)
def test_a_query_that_fails_while_it_is_drained_is_not_drained(message: str, error: str) -> None:
    stopped = stop_at_boundary([Failing(message), Query()], drain=True, timeout_s=60)
    assert stopped == StoppedQueries((QueryFailure("run of q", "q", error),))


def test_one_that_does_not_get_through_in_time_is_not_drained() -> None:
    query, is_over = Query(), threading.Event()
    query.processAllAvailable = lambda: is_over.wait(PATIENCE_S)  # type: ignore[method-assign]
    stopped = stop_at_boundary([query], drain=True, timeout_s=0.05)
    is_over.set()
    assert stopped.undrained == ("q",)
    assert "query q did not process all data" in stop_notes(stopped)[0]


def test_no_queries_need_no_stop() -> None:
    assert stop_at_boundary([], drain=True, timeout_s=0) == STOPPED
