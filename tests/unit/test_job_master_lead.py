"""How a JobMaster begins to lead, where something is not as it should be."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.feature_level import FeatureLevel, lowest_level
from runtime.ha.errors import HaUnreachableError, JobAlreadyDoneError, StateHandleNotFoundError
from runtime.ha.fenced import Demand, HashWrite
from runtime.ha.keys import ClusterKeys
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus, RunningJobsRegistry
from runtime.jobmaster.endpoint import JobMaster
from runtime.protocol.leader import LeaderTerm

TERM = LeaderTerm("jobmaster-j", 1, "session")


class Maps:
    """Maps whose one writer leads."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    async def get(self, key: str, field: str) -> str | None:
        return self.entries.get(field)

    async def hset(self, key: str, field: str, value: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        found = self.entries.get(field)
        if found != (None if demand is Demand.ABSENT else demand):
            return HashWrite(False, found)
        self.entries[field] = value
        return HashWrite(True)

    async def hdel(self, key: str, field: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        found = self.entries.get(field)
        if found != demand:
            return HashWrite(False, found)
        del self.entries[field]
        return HashWrite(True)


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


class Levels:
    async def current(self) -> FeatureLevel:
        return lowest_level()


class Election:
    is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


def lead(registry: Answer | RunningJobsRegistry, graphs: Answer) -> Election:
    ha = SimpleNamespace(
        execution_store=lambda: None,
        running_jobs_registry=lambda: registry,
        job_graph_store=lambda: graphs,
        feature_level_store=lambda: Levels(),
    )
    election = Election()
    job: Any = SimpleNamespace(
        _job_id="j",
        _ha=ha,
        _dispatcher=Follower(),
        _resource_manager=Follower(),
        _election=election,
        log=logging.getLogger("test"),
    )
    asyncio.run(JobMaster.lead(job, TERM))
    return election


@pytest.mark.parametrize("turns", [(0, 5), (5, 0)])
def test_a_job_that_is_over_is_not_run_again_also_when_its_graph_is_gone(
    turns: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        graphs = Answer(StateHandleNotFoundError("gone"), turns[1])
        election = lead(Answer(JobAlreadyDoneError("done"), turns[0]), graphs)
    assert "over already" in caplog.text
    assert election.is_stopped


def test_a_thawed_job_master_does_not_enter_a_forgotten_job_again() -> None:
    maps = Maps()
    registry = RunningJobsRegistry(cast(Any, maps), ClusterKeys("c"))
    for _ in range(2):
        with pytest.raises(StateHandleNotFoundError):
            lead(registry, Answer(StateHandleNotFoundError("gone"), 0))
        assert maps.entries == {}


def test_a_job_whose_graph_cannot_be_read_now_keeps_its_entry() -> None:
    maps = Maps()
    registry = RunningJobsRegistry(cast(Any, maps), ClusterKeys("c"))
    with pytest.raises(HaUnreachableError):
        lead(registry, Answer(HaUnreachableError("Redis", "away"), 0))
    assert maps.entries == {"j": JobEntry(JobSchedulingStatus.RUNNING).to_json()}


def test_what_keeps_the_job_from_being_read_is_told() -> None:
    away = HaUnreachableError("Redis", "away")
    with pytest.raises(HaUnreachableError):
        lead(Answer(away, 0), Answer(StateHandleNotFoundError("gone"), 5))


def test_a_job_master_that_is_told_of_a_level_beyond_its_release_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    async def notify() -> Election:
        given_up = list[asyncio.Task[None]]()
        election = Election()
        job: Any = SimpleNamespace(
            path="/user/j", _level=lowest_level(), _election=election, log=logging.getLogger("test")
        )
        job.give_up = lambda error: JobMaster.give_up(job, error)
        job.spawn = lambda act, _what: given_up.append(asyncio.create_task(act))
        JobMaster.notify_feature_level(job, 9)
        await asyncio.gather(*given_up)
        assert job._level == lowest_level()
        return election

    assert asyncio.run(notify()).is_stopped
    assert "/user/j does not lead: the cluster has feature level 9, and " in caplog.text
