"""The feature level of real clusters: what is written while two releases work side by side, and what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from conf.configuration import Configuration
from conf.options import ClusterOptions, HighAvailabilityOptions
from runtime import __version__
from runtime.environment.context import open_redis_services
from runtime.ha.connection import RedisConnection
from runtime.ha.feature_level import encode_level
from runtime.ha.keys import ClusterKeys
from runtime.ha.masters import MASTER_PREFIX
from tests.cluster_harness import Cluster, WaitingJob, await_value, started
from tests.job_files import PAUSED
from tests.next_release import LEVEL, VERSION, make_next_release
from tests.processes import lives
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

_SETTINGS = ("restart-strategy.type=fixed-delay", "restart-strategy.fixed-delay.delay=1s", "cluster.start-timeout=300s")


def test_a_new_cluster_has_the_newest_level_and_finalize_changes_nothing(cluster: Cluster) -> None:
    assert "feature level:  1\n" in cluster.run("status").stdout
    overview = cluster.json("status")["overview"]
    assert (overview["feature_level"], overview["newest_feature_level"]) == (1, 1)
    for _ in range(2):
        done = cluster.json("cluster", "finalize")
        assert (done["feature_level_before"], done["feature_level"], done["held_by"]) == (1, 1, [])
    assert cluster.run("cluster", "finalize").stdout == "the feature level is 1 already\n"


@pytest.fixture
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this release with one TaskExecutor."""
    yield from started(tmp_path_factory.mktemp("c"), *_SETTINGS)


def plant_level(cluster: Cluster, level: int) -> None:
    """Store another level, and make Redis forget its latches, as if the level was raised while it restarted."""
    configuration = Configuration.read(cluster.directory / "configuration.json")
    url, keys = configuration.get(HighAvailabilityOptions.REDIS_URL), ClusterKeys(configuration.get(ClusterOptions.ID))
    assert url is not None

    async def plant() -> None:
        connection = RedisConnection(url.reveal(), timeout=PATIENCE_S)
        await connection.command("HSET", keys.feature_level, "level", encode_level(level))
        if latches := await connection.command("KEYS", keys.leader(MASTER_PREFIX) + "*"):
            await connection.command("DEL", *latches)
        await connection.close()

    asyncio.run(plant())


def test_a_master_that_missed_a_higher_level_ends_and_leaves_jobs_and_workers(release: Cluster, tmp_path: Path) -> None:
    job = WaitingJob.start(release, tmp_path, text=PAUSED)
    master, worker = release.pid_of("master"), release.pid_of("taskmanager-0")
    plant_level(release, 9)
    await_value(lambda: not lives(master))
    log = (release.directory / "log" / "master.log").read_text()
    assert f"the master ends: the cluster has feature level 9, and Understudy {__version__} supports 1: " in log
    assert "it does not work for this cluster; install the release that the other hosts run" in log
    assert "Traceback" not in log
    assert lives(worker)
    plant_level(release, 1)
    release.run("start-master")
    release.await_status(job.job_id, "RUNNING")
    assert release.pid_of("taskmanager-0") == worker
    job.release()
    release.await_status(job.job_id, "FINISHED")
    assert job.starts == 1


def stored_versions(cluster: Cluster, job_id: str) -> tuple[int | None, int, int]:
    """Return the stored level, and the versions of a job's stored graph and execution."""

    async def read() -> tuple[int | None, bytes, bytes | None]:
        services = open_redis_services(Configuration.read(cluster.directory / "configuration.json"))
        try:
            level = await services.feature_level_store().find()
            return level, await services.job_graph_store().get(job_id), await services.execution_store().find(job_id)
        finally:
            await services.close()

    level, *encoded = asyncio.run(read())
    graph, execution = (msgpack.unpackb(data, strict_map_key=False)["format_version"] for data in encoded if data)
    return level, graph, execution


def refusal(cluster: Cluster, *words: str) -> str:
    done = cluster.run(*words, check=False)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow  # golden files show the formats, tests/upgrade an upgrade, contract tests the refusals
def test_an_upgrade_writes_the_old_formats_until_it_is_finalized_and_then_refuses_the_old_release(
    release: Cluster, tmp_path: Path
) -> None:
    upgraded = replace(release, tree=make_next_release(tmp_path / "next"))
    job = WaitingJob.start(release, tmp_path, text=PAUSED)
    assert stored_versions(release, job.job_id) == (1, 2, 1)

    # The next release joins as a standby. The leader of this release does not raise the level.
    upgraded.run("start-master")
    held = refusal(upgraded, "cluster", "finalize")
    assert "the feature level stays 1: the master at 127.0.0.1:" in held
    assert f"runs Understudy {__version__}, which supports level 1" in held

    # The next release leads. It still writes what this one reads, and the job has not noticed.
    os.kill(release.pid_of("master"), signal.SIGKILL)
    await_value(lambda: release.leaders().get("dispatcher") == "dispatcher-1")
    release.await_status(job.job_id, "RUNNING")
    assert job.starts == 1
    second = WaitingJob.start(upgraded, tmp_path, "second", text=PAUSED)
    assert stored_versions(release, second.job_id) == (1, 2, 1)
    shown = upgraded.run("status").stdout
    assert "feature level:  1; `understudy cluster finalize` raises it to 2" in shown
    assert "TaskExecutor taskmanager-0 runs Understudy" in refusal(upgraded, "cluster", "finalize")
    assert rest_level(release) == {"feature-level": 1, "newest-feature-level": LEVEL}

    # The TaskExecutor is replaced. Now all components support the second level.
    os.kill(release.pid_of("taskmanager-0"), signal.SIGKILL)
    await_value(lambda: [each["version"] for each in release.json("status")["task_executors"]] == [VERSION])
    done = upgraded.json("cluster", "finalize")
    assert (done["feature_level_before"], done["feature_level"], done["held_by"]) == (1, LEVEL, [])
    assert upgraded.run("cluster", "finalize").stdout == "the feature level is 2 already\n"
    assert rest_level(release) == {"feature-level": LEVEL, "newest-feature-level": LEVEL}

    # From now on it writes what this release does not read, and this release refuses the cluster.
    # What is stored already stays as it is until it changes.
    await_value(lambda: job.starts == 2 and release.tasks_of(job.job_id))
    os.kill(release.tasks_of(job.job_id)[0], signal.SIGKILL)
    await_value(lambda: job.starts == 3)
    assert stored_versions(release, job.job_id) == (LEVEL, 2, 2)
    job.release()
    second.release()
    for each in (job, second):
        release.await_status(each.job_id, "FINISHED")
    third = WaitingJob.start(upgraded, tmp_path, "third", text=PAUSED)
    assert stored_versions(release, third.job_id) == (LEVEL, 3, 2)
    refused = f"the cluster has feature level {LEVEL}, and Understudy {__version__} supports 1"
    before = release.leaders()
    assert refused in refusal(release, "start-master")
    assert release.leaders() == before
    killed = release.pid_of("master-1")
    os.kill(killed, signal.SIGKILL)
    await_value(lambda: not lives(killed))
    assert refused in refusal(release, "start")
    assert third.starts == 1

    # The next release goes on with what is left.
    upgraded.run("start-master")
    release.await_status(third.job_id, "RUNNING")
    third.release()
    release.await_status(third.job_id, "FINISHED")
    assert third.starts == 1


def rest_level(cluster: Cluster) -> object:
    return RestClient.of(cluster, "rest-1").get("/v1/feature-level")
