"""Streaming queries that fail while nobody looks, and those that do not get on."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from runtime.spark.driver.api import StreamingQueryInfo
from runtime.spark.errors import QueryLostError
from runtime.spark.task.streaming import QuerySupervision, QuerySupervisor
from runtime.taskexecutor.streaming import ProgressWatchdog

GRACE = 10.0


def nobody(_listener: object) -> bool:
    return False


def everybody(_listener: object) -> bool:
    return True


@pytest.fixture
def supervision() -> QuerySupervision:
    supervision = QuerySupervision(GRACE)
    supervision.started("run", "id")
    supervision.started("other", "other id")
    return supervision


def test_a_failure_that_nobody_attends_to_is_overdue_after_the_grace(supervision: QuerySupervision) -> None:
    supervision.ended("run", 100.0, failed=True)
    supervision.ended("run", 105.0, failed=True)  # seen again
    assert supervision.running == ["other"]
    assert supervision.overdue(109.9, nobody) is None
    assert supervision.overdue(110.0, nobody) == "run"


def test_a_query_whose_trigger_ends_it_or_that_runs_is_never_overdue(supervision: QuerySupervision) -> None:
    supervision.started("once", "once id", ends_itself=True)
    supervision.ended("once", 100.0, failed=False)
    assert supervision.overdue(1e9, nobody) is None
    assert (supervision.failed, supervision.lost) == ([], [])


def test_a_query_that_ends_otherwise_is_lost_and_only_a_new_start_attends_to_it(supervision: QuerySupervision) -> None:
    supervision.ended("run", 100.0, failed=False)
    assert (supervision.running, supervision.failed, supervision.lost) == (["other"], [], ["run"])
    supervision.told("thread", "run")  # awaitTermination has returned, as if all were well
    assert supervision.unattended(nobody) == [], "it has not failed"
    assert supervision.overdue(109.9, everybody) is None
    assert supervision.overdue(110.0, everybody) == "run"
    supervision.started("run 2", "id")
    assert supervision.lost == []
    assert supervision.overdue(1e9, nobody) is None


def test_a_stop_by_the_code_itself_is_no_failure(supervision: QuerySupervision) -> None:
    supervision.stopped("run")
    supervision.ended("run", 100.0, failed=True)  # a stop in the midst of a Python foreachBatch ends it so
    assert supervision.overdue(1e9, nobody) is None
    supervision.stopped_all()
    supervision.ended("other", 100.0, failed=True)
    assert supervision.overdue(1e9, nobody) is None


def test_a_query_that_is_started_again_has_been_attended_to(supervision: QuerySupervision) -> None:
    supervision.ended("run", 100.0, failed=True)
    supervision.started("run 2", "id")
    assert supervision.overdue(1e9, nobody) is None
    supervision.ended("run 2", 200.0, failed=True)
    assert supervision.overdue(210.0, nobody) == "run 2"


def test_a_failure_is_the_codes_own_while_a_thread_lives_that_was_told(supervision: QuerySupervision) -> None:
    supervision.ended("run", 100.0, failed=True)
    supervision.told("thread", "run")
    assert supervision.overdue(500.0, everybody) is None
    assert supervision.overdue(509.0, nobody) is None  # it has ended at 500: the grace begins anew
    assert supervision.overdue(510.0, nobody) == "run"


def test_only_of_what_has_failed_one_can_be_told(supervision: QuerySupervision) -> None:
    supervision.told("thread", "run")
    supervision.ended("run", 100.0, failed=True)
    assert supervision.overdue(110.0, everybody) == "run"
    supervision.told("thread", "other")  # of another one
    assert supervision.overdue(110.0, everybody) == "run"
    supervision.told("thread")  # of any
    assert supervision.overdue(110.0, everybody) is None


class FailedError(Exception):
    """Spark's `StreamingQueryException`."""


def query_class() -> tuple[Any, Any]:
    """Classes of queries and of their manager like PySpark's, of this test's own, for the hooks change them."""
    module = types.ModuleType("streaming_like")

    class StreamingQuery:
        def __init__(self, run_id: str) -> None:
            self.id, self.runId = f"id of {run_id}", run_id
            self.isActive, self.error = True, FailedError(run_id)
            self.calls: list[str] = []

            self.is_lost = False
            self.name: str | None = None
            self.lastProgress: Any = types.SimpleNamespace(json=f"progress of {run_id}")

        def fail(self) -> None:
            self.isActive = False

        def lose(self) -> None:
            self.isActive, self.is_lost = False, True

        def exception(self) -> Exception | None:
            return None if self.isActive or self.is_lost else self.error

        def awaitTermination(self, timeout: int | None = None) -> None:  # noqa: N802
            if not self.isActive and not self.is_lost:
                raise self.error

        def processAllAvailable(self) -> None:  # noqa: N802
            self.awaitTermination()

        def stop(self) -> None:
            self.calls.append("stop")
            self.fail()

    class StreamingQueryManager:
        def __init__(self, *queries: Any) -> None:
            self.queries = queries

        def awaitAnyTermination(self, timeout: int | None = None) -> None:  # noqa: N802
            for query in self.queries:
                query.awaitTermination()

    StreamingQuery.__module__ = module.__name__
    module.StreamingQueryManager = StreamingQueryManager  # type: ignore[attr-defined]
    return StreamingQuery, module


class Supervised:
    """Two queries under supervision, and what was told of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind, module = query_class()
        monkeypatch.setitem(sys.modules, module.__name__, module)
        self.told: list[tuple[str, BaseException]] = []
        self.supervisor = QuerySupervisor(GRACE, lambda *told: self.told.append(told))
        self.first, self.second = kind("first"), kind("second")
        self.manager = module.StreamingQueryManager(self.first, self.second)
        for query in (self.first, self.second):
            self.supervisor.started(query)

    def after_grace(self) -> list[str]:
        """What was told of by then, seen by a clock that is far ahead of the supervisor's own."""
        self.supervisor.look(1e9)
        self.supervisor.look(2e9)
        return [run_id for run_id, _ in self.told]


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> Supervised:
    # Its own thread would look by a clock of its own.
    monkeypatch.setattr(QuerySupervisor, "_run", lambda self: None)
    return Supervised(monkeypatch)


def test_the_query_that_the_code_does_not_wait_for_is_told_with_its_exception_once(supervised: Supervised) -> None:
    supervised.second.fail()
    assert supervised.after_grace() == ["second"]
    assert supervised.told == [("second", supervised.second.error)]
    assert supervised.after_grace() == ["second"]


@pytest.mark.parametrize("wait", ["awaitTermination", "processAllAvailable"])
def test_what_this_thread_was_told_of_is_its_own_business(supervised: Supervised, wait: str) -> None:
    supervised.second.fail()
    with pytest.raises(FailedError):
        getattr(supervised.second, wait)()
    assert supervised.after_grace() == []


def test_whoever_asks_for_the_exception_was_told(supervised: Supervised) -> None:
    assert supervised.second.exception() is None
    supervised.second.fail()
    assert supervised.second.exception() is supervised.second.error
    assert supervised.after_grace() == []


def test_the_manager_tells_of_all_that_have_failed(supervised: Supervised) -> None:
    supervised.second.fail()
    with pytest.raises(FailedError):
        supervised.manager.awaitAnyTermination()
    assert supervised.after_grace() == []
    supervised.first.fail()  # later, and of this one nobody was told
    assert supervised.after_grace() == ["first"]


def test_a_thread_that_has_ended_attends_to_nothing(supervised: Supervised) -> None:
    supervised.second.fail()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            supervised.second.awaitTermination()
        except FailedError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert caught == [supervised.second.error]
    assert supervised.after_grace() == ["second"]


def test_at_the_end_of_the_code_what_has_failed_unseen_is_known(supervised: Supervised) -> None:
    assert supervised.supervisor.unattended() == []
    supervised.first.fail()
    supervised.second.fail()
    assert supervised.first.exception() is not None
    assert supervised.supervisor.unattended() == [("second", supervised.second.error)]


def test_all_that_have_failed_are_known_whoever_attends_to_them(supervised: Supervised) -> None:
    assert supervised.supervisor.failed() == []
    supervised.first.fail()
    supervised.second.lose()
    assert supervised.first.exception() is supervised.first.error
    assert supervised.supervisor.failed() == [("first", supervised.first.error)]


def test_a_query_that_somebody_else_ends_is_told_though_its_waiter_sees_no_error(supervised: Supervised) -> None:
    supervised.second.lose()
    supervised.second.awaitTermination()
    assert supervised.supervisor.lost() == ["second"]
    assert supervised.supervisor.unattended() == []
    assert supervised.after_grace() == ["second"]
    assert isinstance(supervised.told[0][1], QueryLostError)


def test_where_functions_run_elsewhere_the_code_may_have_ended_the_query(supervised: Supervised) -> None:
    calls_back = type(supervised.first)("third")
    supervised.supervisor.started(calls_back, has_code_elsewhere=True)
    supervised.second.lose()
    assert supervised.supervisor.lost() == []
    supervised.first.fail()
    assert supervised.after_grace() == ["first"], "a failure is one"


def test_stops_are_no_failures(supervised: Supervised) -> None:
    supervised.first.stop()
    assert supervised.first.calls == ["stop"]
    supervised.supervisor.stopped_all()
    supervised.second.fail()
    assert supervised.after_grace() == []


def test_a_query_that_cannot_be_asked_any_more_is_left_to_others(supervised: Supervised) -> None:
    del supervised.second.error  # to ask for it is an error, as it is when Spark is gone
    supervised.second.fail()
    assert supervised.after_grace() == []


def test_the_last_reports_of_the_queries_outlive_their_session(supervised: Supervised) -> None:
    def report(number: str) -> dict[str, str]:
        return {"id": f"id of {number}", "run_id": number, "name": "", "json": f"progress of {number}"}

    assert supervised.supervisor.last_progress() == [report("first"), report("second")]
    supervised.supervisor.stopped_all()
    del supervised.first.lastProgress  # to ask for it is an error from now on
    assert supervised.supervisor.last_progress() == [report("first"), report("second")]
    supervised.supervisor.started(supervised.first)
    third = type(supervised.second)("third")
    supervised.supervisor.started(third)
    assert supervised.supervisor.last_progress() == [report("first"), report("second"), report("third")]


def info(run_id: str, progress: str | None, *, active: bool = True) -> StreamingQueryInfo:
    return StreamingQueryInfo("id", run_id, "counts", True, None, progress, None, active)


def test_a_query_without_progress_in_a_batch_is_stuck() -> None:
    watchdog = ProgressWatchdog(60.0)
    assert watchdog.observe([info("a", "1"), info("b", "1")], 0.0) is None
    assert watchdog.observe([info("a", "2"), info("b", "1")], 59.0) is None
    assert watchdog.observe([info("a", "2"), info("b", "1")], 60.0) == info("b", "1")


def test_the_first_batch_counts_too() -> None:
    watchdog = ProgressWatchdog(60.0)
    assert watchdog.observe([info("a", None)], 0.0) is None
    assert watchdog.observe([info("a", None)], 60.0) == info("a", None)


def test_a_query_that_waits_for_its_trigger_is_not_stuck() -> None:
    watchdog = ProgressWatchdog(60.0)
    for now in range(0, 300, 50):
        assert watchdog.observe([info("a", "1", active=False)], float(now)) is None
    assert watchdog.observe([info("a", "1")], 309.0) is None
    assert watchdog.observe([info("a", "1")], 310.0) == info("a", "1")


def test_another_run_begins_anew() -> None:
    watchdog = ProgressWatchdog(60.0)
    watchdog.observe([info("a", "1")], 0.0)
    assert watchdog.observe([info("b", "1")], 60.0) is None
    assert watchdog.observe([], 100.0) is None
    assert watchdog.observe([info("b", "1")], 200.0) is None
