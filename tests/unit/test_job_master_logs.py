"""The logs of JobMasters go with their jobs and are bounded; those of jobs that run or are listed stay."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import builds, floats, integers, lists, sampled_from, sets

from actors.address import ActorAddress
from conf.configuration import Configuration
from runtime.cluster import leftovers
from runtime.cluster.leftovers import (
    GRACE_S,
    JobMasterLog,
    list_job_master_logs,
    remove_surplus_job_master_logs,
    surplus_logs,
)
from runtime.environment.context import ComponentContext
from runtime.environment.directory import ClusterDirectory
from runtime.ha.errors import HaError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from tests.waiting import PATIENCE_S

RUNNING, FAILED, FORGOTTEN, NEW = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
JOBS = [letter * 32 for letter in "0123456"]
NOW_S = 10_000.0


def log_of(job_id: str, suffix: str = ".log", size: int = 10, written_s: float = 0.0) -> JobMasterLog:
    return JobMasterLog(f"jobmaster-{job_id}{suffix}", job_id, size, written_s)


def test_what_is_put_aside_and_of_another_master_goes_with_its_job() -> None:
    gone = [log_of(FORGOTTEN, suffix) for suffix in (".log", ".log.1", ".log.10", "-1.log", "-1.log.2")]
    stay = [log_of(RUNNING), log_of(FAILED), log_of(FAILED, ".log.1"), log_of(NEW, written_s=NOW_S - GRACE_S)]
    assert surplus_logs([*gone, *stay], {RUNNING}, {FAILED}, NOW_S, 10**6) == sorted(log.name for log in gone)


def test_beyond_their_size_the_oldest_of_ended_jobs_go_but_not_the_last_ones() -> None:
    logs = [log_of(job_id, size=100, written_s=float(at)) for at, job_id in enumerate(JOBS)]
    running = log_of(RUNNING, size=10**9)
    for max_bytes, gone in ((700, 0), (699, 1), (300, 4), (0, 6)):
        surplus = surplus_logs([*logs, running], {RUNNING}, set(JOBS), NOW_S, max_bytes)
        assert surplus == sorted(log.name for log in logs[:gone])


FILES = builds(
    log_of,
    sampled_from(JOBS),
    sampled_from([".log", ".log.1", "-1.log"]),
    integers(0, 200),
    floats(0.0, NOW_S),
)


@given(lists(FILES, max_size=12, unique_by=lambda file: file.name), sets(sampled_from(JOBS)), sets(sampled_from(JOBS)))
def test_whatever_there_is_no_log_of_use_goes_and_the_rest_is_bounded(
    files: list[JobMasterLog], running: set[str], listed: set[str]
) -> None:
    gone = set(surplus_logs(files, running, listed, NOW_S, 300))
    left = [file for file in files if file.name not in gone]
    assert not [file for file in files if file.job_id in running and file.name in gone]
    ended = {file.job_id: 0 for file in left if file.job_id in listed - running}
    for file in left:
        if file.job_id in ended:
            ended[file.job_id] += file.size
    assert sum(ended.values()) <= 300 or len(ended) == 1
    unknown = {file.job_id for file in left} - running - listed
    assert all(max(file.written_s for file in left if file.job_id == job) >= NOW_S - GRACE_S for job in unknown)
    if sum(file.size for file in files) <= 300:
        assert not [file for file in files if file.job_id in listed and file.name in gone]


class Registry:
    """Answers once with an error, and then with the jobs."""

    def __init__(self) -> None:
        self.asked = 0

    def running_jobs_registry(self) -> Registry:
        return self

    async def entries(self) -> dict[str, JobEntry]:
        self.asked += 1
        if self.asked == 1:
            raise HaError("Redis does not answer")
        return {
            RUNNING: JobEntry(JobSchedulingStatus.RUNNING),
            FAILED: JobEntry(JobSchedulingStatus.DONE),
            FORGOTTEN: JobEntry(JobSchedulingStatus.DONE),
        }


@pytest.mark.parametrize(("kept_in", "also_listed"), [("File", set[str]()), ("Memory", {FORGOTTEN})])
async def test_a_master_removes_the_logs_of_jobs_that_are_listed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_in: str, also_listed: set[str]
) -> None:
    """A job of files is listed as long as its file is there, whatever is known of it elsewhere."""
    monkeypatch.setattr(leftovers, "LOGS_INTERVAL_S", 0.0)
    directory = ClusterDirectory(tmp_path / "cluster")
    directory.create()
    configuration = Configuration.from_dict({"cluster.runtime-dir": directory.root, "jobstore.type": kept_in})
    context = ComponentContext(configuration, directory, ActorAddress.parse("akka.tcp://understudy@127.0.0.1:1/user/x"))
    (context.archive / f"{FAILED}.job").touch()
    others = {"master.log", f"jobmaster-{FORGOTTEN}.out", "jobmaster-x.log", "dispatcher.log.1"}
    names = {f"jobmaster-{job_id}.log" for job_id in (RUNNING, FAILED, FORGOTTEN, NEW)}
    for name in others | names:
        (directory.log / name).touch()
        os.utime(directory.log / name, (0, 0))
    gone = {f"jobmaster-{job_id}.log" for job_id in {FORGOTTEN, NEW} - also_listed}
    registry = Registry()
    sweeping = asyncio.ensure_future(remove_surplus_job_master_logs(context, registry))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        while any((directory.log / name).exists() for name in gone):  # noqa: ASYNC110  # files tell nobody
            await asyncio.sleep(0)
    sweeping.cancel()
    assert {path.name for path in directory.log.iterdir()} == others | (names - gone)
    assert {log.name for log in list_job_master_logs(directory.log)} == names - gone
    assert registry.asked >= 2
