"""The logs of an attempt are put once it has ended, those of its TaskExecutor while its process comes to its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from blob.errors import BlobConnectionError, BlobRequestRefused
from runtime.ids import JobID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.taskexecutor.logs import AttemptLogKeeper
from tests.waiting import AT_ONCE, PATIENCE_S

OUT, OWN = KeptLog("stdout", 1, 1, "p-out"), KeptLog("taskexecutor", 2, 2, "p-own")


class Puts:
    """What was put, in order; the next put fails of each of *errors*."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: list[Exception] = []
        self.spawned: list[asyncio.Task[Any]] = []
        self.gate = threading.Event()
        self.gate.set()

    def of(self, log: KeptLog) -> Callable[[], list[KeptLog]]:
        def put() -> list[KeptLog]:
            assert self.gate.wait(PATIENCE_S)
            if self.errors:
                raise self.errors.pop(0)
            self.done.append(log.name)
            return [log]

        return put


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Puts:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    return Puts()


def keeper(puts: Puts) -> AttemptLogKeeper:

    def spawn(work: Coroutine[Any, Any, Any], _what: str) -> asyncio.Task[Any]:
        puts.spawned.append(asyncio.create_task(work))
        return puts.spawned[-1]

    endpoint: Any = SimpleNamespace(
        log=logging.getLogger("taskexecutor"),
        run_blocking=asyncio.to_thread,
        spawn=spawn,
    )
    deployment = TaskDeploymentDescriptor.internal("squares", JobKind.SCRIPT)
    return AttemptLogKeeper(endpoint, deployment, puts.of(OUT), puts.of(OWN), {})


async def test_all_are_put_when_it_has_ended(puts: Puts) -> None:
    assert await keeper(puts).keep(well=False) == (OUT, OWN)
    assert puts.done == ["stdout", "taskexecutor"]


async def test_those_of_the_task_executor_are_put_while_its_process_ends(puts: Puts) -> None:
    logs = keeper(puts)
    puts.gate.clear()
    logs.begin()
    kept = asyncio.create_task(logs.keep(well=True))
    await asyncio.sleep(0)
    assert not kept.done()
    puts.gate.set()
    assert await kept == (OUT, OWN)
    assert puts.done == ["taskexecutor", "stdout"]


async def test_what_came_to_a_bad_end_after_its_work_has_the_lines_that_say_why(puts: Puts) -> None:
    logs = keeper(puts)
    logs.begin()
    await asyncio.gather(*puts.spawned)
    assert await logs.keep(well=False) == (OUT, OWN)
    assert puts.done == ["taskexecutor", "stdout", "taskexecutor"]


@pytest.mark.parametrize("early", [BlobConnectionError("away"), BlobRequestRefused("no room"), OSError("gone")])
async def test_what_could_not_be_put_early_is_put_at_the_end(puts: Puts, early: Exception) -> None:
    puts.errors.append(early)
    logs = keeper(puts)
    logs.begin()
    await asyncio.sleep(0)
    assert await logs.keep(well=True) == (OUT, OWN)


async def test_a_blob_server_that_is_away_is_waited_for(puts: Puts) -> None:
    puts.errors += [BlobConnectionError("away")] * 3
    assert await keeper(puts).keep(well=True) == (OUT, OWN)


async def test_what_is_refused_keeps_the_end_from_nobody(puts: Puts, caplog: pytest.LogCaptureFixture) -> None:
    puts.errors.append(BlobRequestRefused("no room"))
    assert await keeper(puts).keep(well=True) == ()
    where = f"the logs of squares of job {JobID.from_name('squares')} stay in this TaskExecutor alone"
    assert f"{where}: BlobRequestRefused: no room" in caplog.text
