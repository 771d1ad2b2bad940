"""What is removed of a job that has ended, and when it is forgotten: in order, and again until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from actors.errors import RecipientUnreachable
from runtime.dispatcher.resource_cleaner import ResourceCleaner
from runtime.ha.errors import LeadershipLostError, RedisUnreachableError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ids import JobID
from runtime.job_logs import logs_owner
from runtime.protocol.leader import LeaderTerm, job_master
from tests.waiting import AT_ONCE, PATIENCE_S

JOB = JobID("a" * 32)
TERM = LeaderTerm("dispatcher", 1, "s")
AWAY = RedisUnreachableError("redis", "it is being replaced")


class World:
    """All that a cleaner removes from, in one; *fails* are raised by the named step, one each time."""

    def __init__(self, log_dir: Path) -> None:
        self.done: list[str] = []
        self.fails: dict[str, list[Exception]] = {}
        self.entries = {JOB: JobEntry(JobSchedulingStatus.DONE, {}, dirty=True)}
        self.leads = True
        itself = cast(Any, self)
        leads = lambda term: self.leads and term == TERM  # noqa: E731
        self.cleaner = ResourceCleaner(itself, itself, itself, log_dir, leads)

    def step(self, name: str) -> None:
        if self.fails.get(name):
            raise self.fails[name].pop(0)
        self.done.append(name)

    def job_graph_store(self) -> Any:
        return _Remover(lambda: self.step("graph"))

    def execution_store(self) -> Any:
        return _Remover(lambda: self.step("execution"))

    def checkpoint_recovery_factory(self) -> Any:
        return _Cleaner(lambda: self.step("checkpoints"))

    def running_jobs_registry(self) -> World:
        return self

    async def stop_job_master(self, job_id: JobID) -> None:
        self.step("JobMaster")

    async def depose(self, component: str, term: LeaderTerm) -> None:
        assert (component, term) == (job_master(JOB), TERM)
        self.step("term")

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        self.step("logs" if job_id == logs_owner(JOB) else "blobs")

    async def entry(self, job_id: JobID) -> JobEntry | None:
        return self.entries.get(job_id)

    async def mark_clean(self, job_id: JobID, term: LeaderTerm) -> None:
        self.step("clean")
        self.entries[job_id] = JobEntry(JobSchedulingStatus.DONE, {}, dirty=False)

    async def withdraw(self, job_id: JobID, term: LeaderTerm) -> None:
        self.step("withdraw")

    async def forget(self, job_id: JobID, term: LeaderTerm) -> None:
        self.step("forget")
        del self.entries[job_id]


class _Remover:
    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    async def remove(self, job_id: JobID, term: LeaderTerm) -> None:
        self._step()


class _Cleaner:
    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step

    async def clean_up(self, job_id: JobID, term: LeaderTerm) -> None:
        self._step()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    return World(tmp_path)


async def test_an_ended_job_is_cleaned_up_handle_first_and_again_where_that_failed(world: World) -> None:
    world.fails = {"JobMaster": [RecipientUnreachable("the master is away")], "clean": [AWAY]}
    await world.cleaner.clean_up(JOB, TERM)
    whole = ["graph", "JobMaster", "term", "execution", "checkpoints", "blobs", "clean"]
    assert world.done == ["graph", *whole[:-1], *whole]


async def test_only_what_was_never_accepted_is_taken_back(world: World) -> None:
    for entry in (None, JobEntry(JobSchedulingStatus.RUNNING), JobEntry(JobSchedulingStatus.DONE, {}, dirty=True)):
        world.entries = {} if entry is None else {JOB: entry}
        await world.cleaner.take_back(JOB, TERM)
        assert world.done == []
    world.entries = {JOB: JobEntry(JobSchedulingStatus.PENDING)}
    world.fails = {"withdraw": [AWAY]}
    await world.cleaner.take_back(JOB, TERM)
    assert world.done == ["graph", "graph", "withdraw"]


async def test_a_job_is_forgotten_after_it_was_cleaned_up_and_its_log_with_it(world: World, tmp_path: Path) -> None:
    for name in (f"jobmaster-{JOB}.log", f"jobmaster-{JOB}.log.1", f"jobmaster-{JOB}-1.log", "dispatcher.log"):
        (tmp_path / name).touch()
    world.fails = {"clean": [AWAY] * 3, "forget": [AWAY]}
    await asyncio.wait_for(
        asyncio.gather(world.cleaner.forget(JOB, TERM), world.cleaner.clean_up(JOB, TERM)), PATIENCE_S
    )
    assert world.done[-4:] == ["clean", "logs", "logs", "forget"]
    assert world.entries == {}
    assert [path.name for path in tmp_path.iterdir()] == ["dispatcher.log"]


async def test_logs_that_the_blob_server_does_not_take_hinder_no_forgetting(world: World) -> None:
    world.entries[JOB] = JobEntry(JobSchedulingStatus.DONE, {}, dirty=False)
    world.fails = {"logs": [RecipientUnreachable("the BlobServer is away")]}
    await world.cleaner.forget(JOB, TERM)
    assert world.done == ["forget"]


async def test_who_does_not_lead_any_more_leaves_the_rest_to_its_successor(world: World) -> None:
    world.fails = {"graph": [LeadershipLostError("over")]}
    await world.cleaner.clean_up(JOB, TERM)
    assert world.done == []
    world.leads = False
    await world.cleaner.forget(JOB, TERM)
    assert world.done == []
    assert JOB in world.entries
