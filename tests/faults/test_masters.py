"""Several masters: whichever of them is lost, what was promised holds and what runs goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from actors.client import ActorClient
from actors.errors import ActorError, FencingError
from actors.rpc.service import RpcConfig
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.ids import JobID
from tests.cluster_harness import Cluster, WaitingJob, await_value, started
from tests.job_files import TRIVIAL, write_job

LEASE_S = 1.0
FAST = (f"high-availability.lease={LEASE_S:g}s", "heartbeat.interval=200ms", "heartbeat.timeout=2s")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with a standby master."""
    yield from started(tmp_path / "c", *FAST, masters=2)


def wait_for_leaders(cluster: Cluster, number: int) -> None:
    """Wait until the components of that master lead."""
    suffix = f"-{number}" if number else ""
    wanted = {"dispatcher": f"dispatcher{suffix}", "resourcemanager": f"resourcemanager{suffix}"}
    await_value(lambda: wanted.items() <= cluster.leaders().items())


def test_a_standby_takes_over_from_a_killed_master_and_no_job_notices(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path)
    kept = {name: pair.pid_of(name) for name in ("taskmanager-0", "tm:taskmanager-0", "redis")}
    attempt = pair.job(waiting.job_id)["tasks"][0]["attempts"][0]["attempt_id"]
    with pair.client() as notebook:
        assert [job.job_id for job in notebook.list_jobs()] == [waiting.job_id]
        os.kill(pair.pid_of("master"), signal.SIGKILL)
        assert [job.job_id for job in notebook.list_jobs()] == [waiting.job_id], "the client follows the leader"
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    await_value(lambda: {name: pair.pid_of(name) for name in kept} == kept)
    pair.run("master")  # and there are two again
    await_value(lambda: len(pair.json("status")["cluster"]["masters"]) == 2)
    waiting.release()
    job = pair.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert [item["attempt_id"] for item in job["tasks"][0]["attempts"]] == [attempt]
    assert pair.run("job", "run", str(write_job(tmp_path, TRIVIAL, "after.py"))).stdout == "sum 499500\n"


def test_workers_and_redis_of_a_killed_master_are_looked_after_by_another(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path)
    os.kill(pair.pid_of("master"), signal.SIGKILL)
    wait_for_leaders(pair, 1)
    await_value(lambda: "redis" in {view["name"] for view in pair.json("status")["cluster"]["processes"]})
    redis = pair.pid_of("redis")
    os.kill(redis, signal.SIGKILL)
    await_value(lambda: pair.pid_of("redis") not in (0, redis))
    pair.await_status(waiting.job_id, "RUNNING")
    assert waiting.starts == 1
    worker = pair.pid_of("taskmanager-0")
    os.kill(worker, signal.SIGKILL)
    await_value(lambda: pair.pid_of("taskmanager-0") not in (0, worker))
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    pair.await_status(waiting.job_id, "FINISHED")


def test_a_master_that_is_told_to_end_leaves_at_once_and_the_rest_goes_on(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path)
    worker, leaving = pair.pid_of("taskmanager-0"), psutil.Process(pair.pid_of("master"))
    leaving.terminate()
    leaving.wait(30)
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    await_value(lambda: pair.pid_of("taskmanager-0") == worker)
    waiting.release()
    assert pair.await_status(waiting.job_id, "FINISHED")["restarts"] == 0
    assert waiting.starts == 1


def test_a_master_that_stood_still_beyond_its_lease_is_refused_and_steps_down(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path)
    secret = (pair.directory / "secret").read_bytes().strip()
    with ActorClient(secret, RpcConfig()) as actors:
        system = pair.json("status")["cluster"]["address"]
        old = actors.lookup(system.replace("/system/receptionist", "/user/dispatcher"), DispatcherGateway)
        assert old.list_jobs().result() == [waiting.job_id]
        frozen = pair.processes_of_master(0)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            wait_for_leaders_of_the_living(pair)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        with pytest.raises(FencingError):  # at once, before it has looked at the latch: by its own clock
            old.cancel_job(JobID(waiting.job_id)).result()
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    text = (pair.directory / "log" / "dispatcher.log").read_text()
    assert "lost its leadership" in text
    waiting.release()
    job = pair.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)


def wait_for_leaders_of_the_living(cluster: Cluster) -> None:
    """As `wait_for_leaders`, for while one master answers nobody: asked of the other one."""
    with cluster.client() as client:

        def leads() -> bool:
            try:
                return bool(client.overview().slots == 2)
            except ActorError:
                return False

        log = cluster.directory / "log" / "dispatcher-1.log"
        await_value(lambda: "leads at" in log.read_text(), 60)
        await_value(leads, 60)


def test_masters_that_were_all_killed_are_replaced_and_tasks_run_on(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    cluster.run("start")
    waiting = WaitingJob.start(cluster, tmp_path)
    os.kill(cluster.pid_of("master"), signal.SIGKILL)
    await_value(lambda: cluster.run("job", "list", check=False).returncode == 1)
    cluster.run("master")
    cluster.await_status(waiting.job_id, "RUNNING")
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)


def test_tasks_without_a_job_master_are_cancelled_in_the_end(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = Cluster(own_cluster.directory, (*FAST, "taskmanager.job-master.timeout=1s"))
    cluster.run("start")
    waiting = WaitingJob.start(cluster, tmp_path)
    (task,) = [pid for pid in cluster.processes() if _works_for(pid, waiting.job_id)]
    began = time.monotonic()
    os.kill(cluster.pid_of("master"), signal.SIGKILL)
    await_value(lambda: not psutil.pid_exists(task))
    assert time.monotonic() - began > 2.0, "not before heartbeat.timeout and taskmanager.job-master.timeout are over"


def _works_for(pid: int, job_id: str) -> bool:
    try:
        return job_id in psutil.Process(pid).cwd()
    except psutil.Error:
        return False


def test_redis_away_for_longer_than_the_lease_costs_no_job_its_task(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(*FAST)
    waiting = WaitingJob.start(cluster, tmp_path)
    attempt = cluster.job(waiting.job_id)["tasks"][0]["attempts"][0]["attempt_id"]
    redis, job_master = cluster.pid_of("redis"), cluster.pid_of(f"jobmaster-{waiting.job_id}")
    log = cluster.directory / "log" / f"jobmaster-{waiting.job_id}.log"
    os.kill(redis, signal.SIGSTOP)
    try:
        await_value(lambda: "lost its leadership" in log.read_text())
    finally:
        os.kill(redis, signal.SIGCONT)
    cluster.await_status(waiting.job_id, "RUNNING")
    assert cluster.pid_of(f"jobmaster-{waiting.job_id}") == job_master
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert [item["attempt_id"] for item in job["tasks"][0]["attempts"]] == [attempt]
