"""Failed queries are started again under the code's handles; on classes like PySpark's, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from runtime.spark.task.query_restarts import FixedDelay, QueryRestarts
from tests.waiting import PATIENCE_S


class Jsq:
    """One run in the JVM."""

    def __init__(self, number: int, query_id: str) -> None:
        self.number = number
        self.query_id = query_id
        self.is_active = True
        self.failure = ""

    def fail(self, why: str = "it broke") -> None:
        self.is_active, self.failure = False, why

    def isActive(self) -> bool:  # noqa: N802
        return self.is_active

    def runId(self) -> str:  # noqa: N802
        return f"run-{self.number}"

    def stop(self) -> None:
        self.is_active = False

    def status(self) -> str:
        return f"status of {self.runId()}"

    def exception(self) -> Any:
        found = SimpleNamespace(getMessage=lambda: self.failure)
        return SimpleNamespace(isDefined=lambda: bool(self.failure), get=lambda: found)


class Spark:
    """Hooked classes, and the runs that they have started; *outcomes* are errors of the next starts."""

    def __init__(self, restarts: int = 1, delay: float = 0.0) -> None:
        self.outcomes: list[Exception | None] = []
        self.runs: list[Jsq] = []
        self.resets = 0
        self.sticky: Jsq | None = None
        spark = self

        class Query:
            name = "counts"

            def __init__(self, jsq: Jsq) -> None:
                self._jsq = jsq

            @property
            def id(self) -> str:
                return self._jsq.query_id

            @property
            def runId(self) -> str:  # noqa: N802
                return self._jsq.runId()

            def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
                if self._jsq.failure:
                    raise StreamingQueryException(self._jsq.failure)
                if self._jsq.is_active and timeout is None:
                    raise TimeoutError(f"waits for {self.runId}")
                return None if timeout is None else not self._jsq.is_active

            @property
            def isActive(self) -> bool:  # noqa: N802
                return self._jsq.isActive()

            @property
            def status(self) -> str:
                return self._jsq.status()

            def stop(self) -> None:
                self._jsq.stop()

        class Manager:
            _jsqm = "streams"

            def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
                failed = [run for run in spark.runs if run.failure]
                if spark.sticky is None and len(failed) > spark.forgotten:
                    spark.sticky = failed[-1]
                if spark.sticky is not None:
                    raise StreamingQueryException(spark.sticky.failure)
                if timeout is None:
                    raise TimeoutError("waits for any")
                return False

            def resetTerminated(self) -> None:  # noqa: N802
                spark.resets += 1
                spark.sticky = None
                spark.forgotten = len([run for run in spark.runs if run.failure])

        class Writer:
            def __init__(self, query_id: str) -> None:
                self.query_id = query_id
                self._spark = SimpleNamespace(_jsparkSession=SimpleNamespace(streams=lambda: Streams()))

            def start(self) -> Query:
                outcome = spark.outcomes.pop(0) if spark.outcomes else None
                if outcome is not None:
                    raise outcome
                spark.runs.append(Jsq(len(spark.runs), self.query_id))
                return Query(spark.runs[-1])

            toTable = start  # noqa: N815

        class Streams:
            def equals(self, other: object) -> bool:
                return other == "streams"

        self.forgotten = 0
        self.restarts = QueryRestarts(lambda: FixedDelay(restarts, delay))
        self.restarts.install_waits(Query, Manager)
        self.restarts.install_starts(Writer)
        self.query, self.manager, self.writer = Query, Manager, Writer


def test_who_waits_for_a_query_waits_for_its_next_run() -> None:
    spark = Spark()
    query = spark.writer("q").start()
    other = spark.query(query._jsq)  # as spark.streams.get returns it
    spark.runs[0].fail()
    with pytest.raises(TimeoutError, match="waits for run-1"):
        other.awaitTermination()
    with pytest.raises(TimeoutError, match="waits for run-1"):
        query.awaitTermination()
    assert query.awaitTermination(0.01) is False
    spark.runs[1].fail("again")
    with pytest.raises(StreamingQueryException, match="again"):
        query.awaitTermination()
    with pytest.raises(StreamingQueryException, match="again"):
        query.awaitTermination()
    assert len(spark.runs) == 2


def test_a_start_that_fails_counts_as_one_more_failure(capsys: pytest.CaptureFixture[str]) -> None:
    spark = Spark(restarts=2)
    query = spark.writer("q").start()
    spark.runs[0].fail()
    spark.outcomes = [OSError("no source")]
    assert spark.restarts.restart("run-0")
    assert query.runId == "run-1"
    assert "counts cannot be started again: OSError: no source" in capsys.readouterr().err
    spark.runs[1].fail()
    assert not spark.restarts.restart("run-1")


@pytest.mark.parametrize("how", ["stopped", "started again", "over"])
def test_what_the_code_has_ended_stays_so(how: str) -> None:
    spark = Spark()
    writer = spark.writer("q")
    query = writer.start()
    spark.runs[0].fail()
    if how == "stopped":
        query.stop()
    elif how == "started again":
        assert writer.start().runId == "run-1"
    else:
        spark.restarts.end(wait=True)
    started = len(spark.runs)
    assert not spark.restarts.restart("run-0")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert len(spark.runs) == started


def test_a_stop_during_the_delay_ends_the_restart() -> None:
    spark = Spark(delay=PATIENCE_S)
    query = spark.writer("q").start()
    spark.runs[0].fail()
    found: list[bool] = []
    restart = threading.Thread(target=lambda: found.append(spark.restarts.restart("run-0")))
    restart.start()
    query.stop()
    spark.restarts.end(wait=True)
    restart.join(PATIENCE_S)
    assert (found, len(spark.runs)) == ([False], 1)


def test_a_stop_during_the_start_reaches_the_new_run() -> None:
    spark = Spark()
    writer = spark.writer("q")
    query = writer.start()
    run = spark.restarts.runs["run-0"]
    start = run.start

    def stopped_meanwhile() -> Any:
        query.stop()
        return start()

    run.start = stopped_meanwhile
    spark.runs[0].fail()
    assert not spark.restarts.restart("run-0")
    assert [one.is_active for one in spark.runs] == [False, False]


def test_who_waits_for_any_query_waits_on_when_the_failed_ones_run_again() -> None:
    spark = Spark()
    queries = [spark.writer(name).start() for name in ("a", "b")]
    spark.runs[0].fail()
    with pytest.raises(TimeoutError, match="waits for any"):
        spark.manager().awaitAnyTermination()
    assert [query.runId for query in queries] == ["run-2", "run-1"]
    assert spark.resets == 1
    spark.runs[1].fail()
    assert spark.restarts.restart("run-1"), "by another thread, before this one asks"
    assert spark.manager().awaitAnyTermination(0.01) is False
    spark.runs[2].fail("once more")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="once more"):
            spark.manager().awaitAnyTermination()


def test_the_end_of_another_query_is_not_forgotten_with_the_failure() -> None:
    spark = Spark()
    for name in ("a", "b", "c"):
        spark.writer(name).start()
    spark.runs[2].stop()
    spark.manager().resetTerminated()  # the code knows of this one
    spark.runs[0].fail()
    with pytest.raises(TimeoutError):
        spark.manager().awaitAnyTermination()
    spark.runs[3].fail()
    spark.restarts.runs["run-0"].policy = FixedDelay(5, 0.0)
    spark.runs[1].stop()
    assert spark.manager().awaitAnyTermination() is None
    spark.runs[4].fail()
    assert spark.manager().awaitAnyTermination(0.01) is True


def test_the_failure_of_an_unknown_query_is_raised() -> None:
    spark = Spark()
    spark.runs.append(Jsq(0, "of the JVM"))
    spark.runs[0].fail()
    with pytest.raises(StreamingQueryException):
        spark.manager().awaitAnyTermination()
    assert spark.resets == 0


def test_a_query_that_no_thread_waits_for_is_restarted_until_the_policy_gives_up() -> None:
    spark, given_up = Spark(), threading.Event()
    query = spark.writer("q").start()
    spark.runs[0].fail()
    spark.restarts.attend("run-0", given_up.set)
    spark.restarts.restart("run-0")  # waits for the other thread, if that is first
    assert query.runId == "run-1"
    assert not given_up.is_set()
    spark.runs[1].fail()
    spark.restarts.attend("run-1", given_up.set)
    assert given_up.wait(PATIENCE_S)
    unknown = threading.Event()
    spark.restarts.attend("unknown", unknown.set)
    assert unknown.wait(PATIENCE_S)


@pytest.mark.parametrize("stops", [False, True])
def test_a_failure_is_over_when_the_next_run_has_ended_before_its_wait(stops: bool) -> None:
    spark = Spark()
    query = spark.writer("q").start()
    other = spark.query(query._jsq)  # as spark.streams.get returns it
    spark.runs[0].fail()
    assert spark.restarts.restart("run-0"), "on another thread"
    if stops:
        query.stop()
    spark.runs[1].is_active = False
    assert other.awaitTermination(0.01) is True
    assert other.awaitTermination() is None
    assert len(spark.runs) == 2


def test_a_next_run_that_ends_at_once_is_no_failure() -> None:
    spark = Spark()
    query = spark.writer("q").start()
    (run,) = spark.restarts.runs.values()
    start = run.start

    def ended_at_once() -> Any:
        started = start()
        started._jsq.is_active = False  # as with the trigger availableNow and no rows
        return started

    run.start = ended_at_once
    spark.runs[0].fail()
    assert query.awaitTermination() is None
    assert len(spark.runs) == 2


def test_a_stop_by_another_handle_reaches_the_new_run() -> None:
    spark = Spark()
    query = spark.writer("q").start()
    other = spark.query(query._jsq)
    spark.runs[0].fail()
    assert spark.restarts.restart("run-0")
    other.stop()
    assert not spark.runs[1].is_active


def test_all_handles_show_the_new_run() -> None:
    """A handle of `spark.streams.active`, made before the restart, showed the failed run for good."""
    spark = Spark(restarts=2)
    query = spark.writer("q").start()
    unknown = spark.query(Jsq(9, "another"))
    handles = [query, spark.query(spark.runs[0])]
    for number in (1, 2):
        spark.runs[-1].fail()
        assert [handle.isActive for handle in handles] == [False] * len(handles), "until it runs again"
        assert spark.restarts.restart(f"run-{number - 1}")
        handles.append(spark.query(spark.runs[-1]))
        shown = [(handle.isActive, handle.status, handle.runId) for handle in handles]
        assert shown == [(True, f"status of run-{number}", f"run-{number}")] * len(handles)
    assert unknown.runId == "run-9"


def test_the_figures_of_a_run_are_not_shown_as_those_of_the_run_before() -> None:
    """`StreamingQueries` keeps the handle of each start with the id of its run."""
    spark = Spark(restarts=2)
    started: list[Any] = []
    spark.writer("q").start()
    (run,) = spark.restarts.runs.values()
    start = run.start

    def start_again() -> Any:
        started.append(start())
        return started[-1]

    run.start = start_again
    for number in range(2):
        spark.runs[-1].fail()
        assert spark.restarts.restart(f"run-{number}")
    assert [handle.runId for handle in started] == ["run-1", "run-2"]
