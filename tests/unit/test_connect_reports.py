"""Reports of what clients have read of an answer: which ones Spark gets, and when."""

from __future__ import annotations

import asyncio

import pytest

from runtime.rest.connect import reports
from runtime.rest.connect.calls import Call, Caller
from runtime.rest.connect.reports import Report, Reports
from runtime.rest.connect.requests import Released
from runtime.users.identities import Principal, Role
from tests.waiting import PATIENCE_S


def report(operation: str, *, user: str = "ada", message: bytes = b"", is_all: bool = False) -> Report:
    call = Call(Caller(Principal(user, Role.USER), ""), "ReleaseExecute", "00112233-4455-6677-8899-aabbccddeeff")
    return Report(call, message, Released(operation, is_all, b""), ())


@pytest.fixture(autouse=True)
def _long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 3600.0)


async def passed_on(*taken: Report) -> list[Report]:
    found = list[Report]()

    async def pass_on(one: Report) -> None:
        found.append(one)

    waiting = Reports(pass_on)
    for one in taken:
        await waiting.take(one)
    await waiting.stop()
    return found


def test_the_last_report_of_an_operation_is_passed_on() -> None:
    first, last, other = report("a", message=b"1"), report("a", message=b"2"), report("b")
    assert asyncio.run(passed_on(first, other, last)) == [last, other]


def test_a_report_of_the_whole_answer_stands() -> None:
    whole, late = report("a", is_all=True), report("a", message=b"2")
    assert asyncio.run(passed_on(whole, late)) == [whole]


def test_a_report_is_passed_on_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 0.0)

    async def alone() -> Report:
        found: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

        async def pass_on(one: Report) -> None:
            found.set_result(one)

        await Reports(pass_on).take(report("a"))
        return await found

    assert asyncio.run(alone()) == report("a")


def test_operations_of_two_users_with_one_id_are_two() -> None:
    ours, theirs = report("a"), report("a", user="bob")
    assert asyncio.run(passed_on(ours, theirs)) == [ours, theirs]


def test_a_stop_does_not_wait_for_a_spark_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "STOP_S", 0.0)

    async def run() -> None:
        ended = asyncio.Event()

        async def pass_on(one: Report) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = Reports(pass_on)
        await waiting.take(report("a"))
        await asyncio.sleep(0)
        await waiting.stop()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)

    asyncio.run(run())


def test_reports_that_wait_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_WAITING", 1)
    first, second = report("a"), report("b")
    assert asyncio.run(passed_on(first, second)) == [second, first], "one beyond the limit is passed on at once"


def test_reports_that_a_driver_does_not_take_count_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "PAUSE_S", 0.0)
    monkeypatch.setattr(reports, "MOST_WAITING", 1)
    monkeypatch.setattr(reports, "STOP_S", 0.0)

    async def run() -> None:
        begun, take = list[str](), asyncio.Event()

        async def pass_on(one: Report) -> None:
            begun.append(one.released.operation_id)
            await take.wait()

        waiting = Reports(pass_on)
        await waiting.take(report("a"))
        async with asyncio.timeout(PATIENCE_S):
            while not begun:  # noqa: ASYNC110
                await asyncio.sleep(0)
        second = asyncio.create_task(waiting.take(report("b")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done(), "it is not acknowledged before it is passed on"
        take.set()
        await second
        assert begun == ["a", "b"]
        await waiting.stop()

    asyncio.run(run())
