"""The end of a cluster removes its keys from Redis, also when Redis does not answer at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conf.configuration import Configuration
from conf.options import ExecutionTarget
from runtime import retry
from runtime.cluster import session
from runtime.cluster.master import ENTRYPOINTS, Master
from runtime.environment.directory import ClusterDirectory
from runtime.ha.errors import HaError, RedisAuthenticationError, RedisUnreachableError
from runtime.ha.services import RedisHaServices
from runtime.ha.state_files import StateFiles
from runtime.protocol.leader import LeaderTerm

URL = "redis://127.0.0.1:1"
BUSY = RedisUnreachableError("127.0.0.1:1", "no reply within 1 s")


class Services(RedisHaServices):
    """Redis answers after *failures*; the pauses between the attempts take no time."""

    def __init__(self, storage: Path, failures: list[HaError]) -> None:
        super().__init__(URL, "c", storage)
        self.failures = failures
        self.attempts = 0

    async def _forget(self) -> None:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were taken; they take no time."""
    clock, taken = [100.0], []

    async def sleep(seconds: float) -> None:
        clock[0] += seconds
        taken.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return taken


def _state_file(storage: Path) -> Path:
    (storage / "c" / "jobs").mkdir(parents=True)
    StateFiles(storage / "c" / "jobs").write("job", b"state", LeaderTerm("dispatcher", 1, "s"))
    return next((storage / "c" / "jobs").iterdir())


async def test_keys_are_removed_from_a_redis_that_answers_again(tmp_path: Path, pauses: list[float]) -> None:
    state = _state_file(tmp_path)
    ha = Services(tmp_path, [BUSY] * 5)
    await ha.cleanup()
    assert (ha.attempts, len(pauses), state.exists()) == (6, 5, False)


async def test_a_redis_that_stays_away_is_given_up_after_ten_seconds(tmp_path: Path, pauses: list[float]) -> None:
    state = _state_file(tmp_path)
    ha = Services(tmp_path, [BUSY] * 1000)
    with pytest.raises(RedisUnreachableError):
        await ha.cleanup()
    assert 9.0 < sum(pauses) <= 10.0
    assert state.exists(), "a handle may point to it"
    refused = Services(tmp_path, [RedisAuthenticationError("127.0.0.1:1")])
    with pytest.raises(RedisAuthenticationError):
        await refused.cleanup()
    assert refused.attempts == 1, "waiting does not help"


@pytest.mark.parametrize("failures", [0, 1, 1000])
def test_a_stop_says_what_it_waits_for_and_what_it_could_not_do(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    directory = ClusterDirectory(tmp_path)
    settings = {"cluster.runtime-dir": str(tmp_path), "high-availability.redis.url": URL, "cluster.id": "nightly"}
    Configuration.from_dict(settings).write(directory.configuration_file)
    ha = Services(tmp_path, [BUSY] * failures)
    monkeypatch.setattr(session, "open_redis_services", lambda configuration: ha)
    said: list[str] = []
    session._forget_jobs(directory, said.append)
    waits = ["Redis does not answer: trying again for 10 s"] if failures else []
    gives_up = [
        f"the jobs of the cluster 'nightly' stay in Redis, and the next cluster of that id runs them again: {BUSY}"
    ]
    assert said == waits + (gives_up if failures == 1000 else [])


async def test_a_master_that_could_not_remove_the_keys_leaves_that_to_the_stop(
    tmp_path: Path, pauses: list[float]
) -> None:
    """`stop` sees the configuration, and does it."""
    for failures in (0, 1000):
        master: Any = SimpleNamespace(_ha=Services(tmp_path, [BUSY] * failures), is_forgotten=True)
        await Master._clean_up_ha(master)
        assert master.is_forgotten is (failures == 0)
    directory = ClusterDirectory(tmp_path)
    for target, is_forgotten, stays in (
        (ExecutionTarget.SESSION, False, True),
        (ExecutionTarget.SESSION, True, False),
        (ExecutionTarget.PER_JOB, False, False),
    ):
        Configuration.from_dict({"cluster.runtime-dir": str(tmp_path)}).write(directory.configuration_file)
        ENTRYPOINTS[target].clean_up(directory, is_forgotten=is_forgotten)
        assert directory.configuration_file.exists() is stays, target
