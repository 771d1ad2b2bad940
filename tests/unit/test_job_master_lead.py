"""How a JobMaster begins to lead, where something is not as it should be."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.ha.errors import HaUnreachableError, JobAlreadyDoneError, StateHandleNotFoundError
from runtime.jobmaster.endpoint import JobMaster
from runtime.protocol.leader import LeaderTerm

TERM = LeaderTerm("jobmaster-j", 1, "session")


class Follower:
    async def start(self) -> None:
        pass


class Answer:
    """A store or registry that fails, at once or later."""

    def __init__(self, error: Exception, turns: int) -> None:
        self._error = error
        self._turns = turns

    async def _fail(self, *_arguments: object) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        raise self._error

    get = set_running = _fail


def lead(registry: Answer, graphs: Answer) -> None:
    ha = SimpleNamespace(
        execution_store=lambda: None, running_jobs_registry=lambda: registry, job_graph_store=lambda: graphs
    )
    job: Any = SimpleNamespace(
        _job_id="j", _ha=ha, _dispatcher=Follower(), _resource_manager=Follower(), log=logging.getLogger("test")
    )
    asyncio.run(JobMaster.lead(job, TERM))


@pytest.mark.parametrize("turns", [(0, 5), (5, 0)])
def test_a_job_that_is_over_is_not_run_again_also_when_its_graph_is_gone(
    turns: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        lead(Answer(JobAlreadyDoneError("done"), turns[0]), Answer(StateHandleNotFoundError("gone"), turns[1]))
    assert "over already" in caplog.text


def test_what_keeps_the_job_from_being_read_is_told() -> None:
    away = HaUnreachableError("Redis", "away")
    with pytest.raises(HaUnreachableError):
        lead(Answer(away, 0), Answer(StateHandleNotFoundError("gone"), 5))
