"""What is written down is what had happened when it was asked for, however Redis behaves meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from actors.rpc.endpoint import RpcEndpoint
from runtime.ha.errors import LeadershipLostError, RedisUnreachableError
from runtime.ha.state_handles import ExecutionStore
from runtime.jobmaster.journal import ExecutionJournal
from runtime.protocol.errors import JobNotReachableError
from runtime.protocol.leader import LeaderTerm
from tests.waiting import AT_ONCE

TERM = LeaderTerm("jobmaster-x", 1, "s")


class Endpoint:
    log = logging.getLogger("test")

    def __init__(self) -> None:
        self.service = self
        self.loop = asyncio.get_running_loop()

    def spawn(self, work: Any, what: str) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=what)


class Store:
    """Takes a write when it is let; *failures* come first."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(data)


class Book:
    def __init__(self) -> None:
        self.state = 0
        self.store = Store()
        endpoint = cast(RpcEndpoint, Endpoint())
        self.journal = ExecutionJournal(
            endpoint, cast(ExecutionStore, self.store), "x", TERM, lambda: b"%d" % self.state
        )


async def test_changes_during_a_write_go_into_the_next_one() -> None:
    book = Book()
    book.store.gate.clear()
    first = asyncio.create_task(book.journal.written())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = []
    for book.state in (1, 2, 3):
        waiting.append(asyncio.create_task(book.journal.written()))
    await asyncio.sleep(0)
    assert not first.done()
    book.store.gate.set()
    await asyncio.gather(first, *waiting)
    assert book.store.written == [b"0", b"3"]


async def test_redis_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    book = Book()
    book.store.failures = [RedisUnreachableError("r", "away"), OSError(28, "No space left on device")]
    await book.journal.written()
    assert book.store.written == [b"0"]


async def test_who_waits_is_told_when_the_leadership_is_over() -> None:
    book = Book()
    book.store.failures = [LeadershipLostError("over")]
    with pytest.raises(JobNotReachableError):
        await book.journal.written()
    book.store.gate.clear()
    waiting = asyncio.create_task(book.journal.written())
    await asyncio.sleep(0)
    book.journal.close()
    with pytest.raises(JobNotReachableError):
        await waiting
    with pytest.raises(JobNotReachableError):
        await book.journal.written()
    assert book.store.written == []


async def test_who_has_left_the_job_to_another_writes_nothing() -> None:
    book = Book()
    book.journal.close()
    with pytest.raises(JobNotReachableError, match="another JobMaster"):
        await book.journal.written()
    assert book.store.written == []


async def test_after_the_end_nothing_is_written() -> None:
    book = Book()
    await book.journal.written()
    book.journal.complete()
    book.state = 1
    await book.journal.written()
    assert book.store.written == [b"0"]
