"""Several masters: whichever of them is lost, what was promised holds and what runs goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError, FencingError
from actors.rpc.fencing import Leadership
from actors.rpc.service import RpcConfig, RpcService
from blob.offload import Inline
from conf.configuration import Configuration
from runtime.environment.context import open_redis_services
from runtime.ids import ExecutionAttemptID, JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, job_master
from runtime.protocol.master import MasterGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from tests.acting import acting
from tests.cluster_harness import Cluster, WaitingJob, attempt_of, await_value, started
from tests.job_files import PAUSED, PRINTING, write_job
from tests.waiting import PATIENCE_S

HEARTBEAT_INTERVAL_S, HEARTBEAT_TIMEOUT_S = 1, 10
JOB_MASTER_TIMEOUT_S = 6
FAST = (
    "high-availability.lease=3s",
    f"heartbeat.interval={HEARTBEAT_INTERVAL_S}s",
    f"heartbeat.timeout={HEARTBEAT_TIMEOUT_S}s",
)


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
    """The other master looks after Redis and the TaskExecutors, too."""
    waiting = WaitingJob.start(pair, tmp_path, text=PAUSED)
    kept = {name: pair.pid_of(name) for name in ("taskmanager-0", "tm:taskmanager-0", "redis")}
    attempt = pair.job(waiting.job_id)["tasks"][0]["attempts"][0]["attempt_id"]
    with pair.client() as notebook:
        assert [job.job_id for job in notebook.list_jobs()] == [waiting.job_id]
        os.kill(pair.pid_of("master"), signal.SIGKILL)
        assert [job.job_id for job in notebook.list_jobs()] == [waiting.job_id], "the client follows the leader"
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    await_value(lambda: {name: pair.pid_of(name) for name in kept} == kept)
    await_value(lambda: "redis" in {view["name"] for view in pair.json("status")["cluster"]["processes"]})
    os.kill(kept["redis"], signal.SIGKILL)
    await_value(lambda: pair.pid_of("redis") not in (0, kept["redis"]))
    pair.await_status(waiting.job_id, "RUNNING")
    waiting.release()
    job = pair.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert [item["attempt_id"] for item in job["tasks"][0]["attempts"]] == [attempt]

    second = WaitingJob.start(pair, tmp_path, "second", text=PAUSED)
    os.kill(kept["taskmanager-0"], signal.SIGKILL)
    await_value(lambda: pair.pid_of("taskmanager-0") not in (0, kept["taskmanager-0"]))
    await_value(lambda: second.starts == 2)
    pair.run("start-master")  # and there are two again
    await_value(lambda: len(pair.json("status")["cluster"]["masters"]) == 2)
    second.release()
    pair.await_status(second.job_id, "FINISHED")
    assert second.starts == 2
    assert pair.run("job", "run", str(write_job(tmp_path, PRINTING, "after.py"))).stdout == "sum 499500\n"


@pytest.mark.slow  # test_start_stop and the test below end masters in the same way
def test_a_master_that_is_told_to_end_leaves_at_once_and_the_rest_goes_on(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path, text=PAUSED)
    worker, leaving = pair.pid_of("taskmanager-0"), psutil.Process(pair.pid_of("master"))
    leaving.terminate()
    leaving.wait(PATIENCE_S)
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    await_value(lambda: pair.pid_of("taskmanager-0") == worker)
    waiting.release()
    assert pair.await_status(waiting.job_id, "FINISHED")["restarts"] == 0
    assert waiting.starts == 1


def test_jobs_outlive_the_only_master_that_is_told_to_end(own_cluster: Cluster, tmp_path: Path) -> None:
    """A reboot ends all processes by SIGTERM. Only `stop` ends the jobs."""
    own_cluster.run("start")
    waiting = WaitingJob.start(own_cluster, tmp_path, text=PAUSED)
    master = psutil.Process(own_cluster.pid_of("master"))
    master.terminate()
    master.wait(PATIENCE_S)
    await_value(lambda: not own_cluster.processes())
    refused = own_cluster.run("status", check=False)
    assert "`start` starts it again" in refused.stderr
    own_cluster.run("start")
    own_cluster.await_status(waiting.job_id, "RUNNING")
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    own_cluster.await_status(waiting.job_id, "FINISHED")


def test_a_master_that_stood_still_beyond_its_lease_is_refused_and_steps_down(pair: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(pair, tmp_path, text=PAUSED)
    attempt = ExecutionAttemptID(pair.job(waiting.job_id)["tasks"][0]["attempts"][0]["attempt_id"])
    secret = (pair.directory / "secret").read_bytes().strip()
    late = JobGraph.for_script("late")
    with ActorClient(secret, RpcConfig(ask_timeout_s=PATIENCE_S)) as actors:
        system = ActorAddress.parse(pair.json("status")["cluster"]["address"])
        old = actors.lookup(system.with_path("/user/dispatcher"), DispatcherGateway)
        assert old.list_jobs().result() == [waiting.job_id]
        former = asyncio.run(leaderships(pair, DISPATCHER, RESOURCE_MANAGER, job_master(JobID(waiting.job_id))))
        frozen = pair.processes_of_master(0)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            # These lie in its sockets when it goes on: it reads them before it has looked at the latch.
            asked = [
                old.list_jobs(),
                old.request_job_status(JobID(waiting.job_id)),
                old.request_multiple_job_details(),
                old.request_cluster_overview(),
                old.cancel_job(JobID(waiting.job_id)),
                old.submit_job(Inline(encode(late))),
                old.shut_down_cluster(),
            ]
            wait_for_leaders_of_the_living(pair)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        for ask in asked:
            with pytest.raises(FencingError):  # by its own clock
                ask.result()
    wait_for_leaders(pair, 1)
    pair.await_status(waiting.job_id, "RUNNING")
    asyncio.run(orders_of_former_leaders_are_refused(pair, former, JobID(waiting.job_id), attempt))
    assert [job["job_id"] for job in pair.json("job", "list")] == [waiting.job_id]
    assert not [view for view in pair.json("status")["cluster"]["processes"] if late.job_id in view["name"]]
    text = (pair.directory / "log" / "dispatcher.log").read_text()
    assert "lost its leadership" in text
    waiting.release()
    job = pair.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)


async def leaderships(cluster: Cluster, *components: str) -> list[Leadership]:
    """Those that Redis has at this moment."""
    services = open_redis_services(Configuration.read(cluster.directory / "configuration.json"))
    try:
        found = [await services.current_leader(component) for component in components]
        return [Leadership(leader.component, leader.epoch, leader.session) for leader in found if leader is not None]
    finally:
        await services.close()


async def orders_of_former_leaders_are_refused(
    cluster: Cluster, former: list[Leadership], job_id: JobID, attempt: ExecutionAttemptID
) -> None:
    """Send what they might still have sent, to the receivers that know their successors."""
    with cluster.client() as client:
        (worker,) = [view.registration.address for view in client.task_managers()]
        (master,) = [view.address for view in client.status().processes if view.name == "master-1"]
    service = RpcService(asyncio.get_running_loop(), (cluster.directory / "secret").read_bytes().strip(), RpcConfig())
    await service.listen()
    dispatcher, manager, owner = map(acting, former)
    order = service.gateway(master, MasterGateway, dispatcher)
    as_manager = service.gateway(worker, TaskExecutorGateway, manager)
    as_owner = service.gateway(worker, TaskExecutorGateway, owner)
    try:
        for ask in (
            order.stop_job_master(job_id),
            order.start_job_master(JobID.random()),
            as_manager.heartbeat_from_resource_manager(),
            as_owner.cancel_task(attempt),
        ):
            with pytest.raises(FencingError, match="leads no more"):
                await ask
    finally:
        await service.close()


def wait_for_leaders_of_the_living(cluster: Cluster) -> None:
    """As `wait_for_leaders`, for while one master answers nobody: asked of the other one."""
    with cluster.client() as client:

        def leads() -> bool:
            try:
                return bool(client.overview().slots == 2)
            except ActorError:
                return False

        log = cluster.directory / "log" / "dispatcher-1.log"
        await_value(lambda: "leads at" in log.read_text())
        await_value(leads)


def test_tasks_without_a_job_master_are_cancelled_in_the_end(own_cluster: Cluster, tmp_path: Path) -> None:
    patience = f"taskmanager.job-master.timeout={JOB_MASTER_TIMEOUT_S}s"
    cluster = Cluster(own_cluster.directory, (*FAST, patience))
    cluster.run("start")
    waiting = WaitingJob.start(cluster, tmp_path, text=PAUSED)
    (task,) = [pid for pid in cluster.processes() if waiting.job_id in attempt_of(pid)]
    began = time.monotonic()
    os.kill(cluster.pid_of("master"), signal.SIGKILL)
    await_value(lambda: not psutil.pid_exists(task))
    # heartbeat.timeout counts from the last heartbeat, which may have been late before the master was killed.
    assert time.monotonic() - began > JOB_MASTER_TIMEOUT_S, "not before taskmanager.job-master.timeout is over"


def test_redis_away_for_longer_than_the_lease_costs_no_job_its_task(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(*FAST)
    waiting = WaitingJob.start(cluster, tmp_path, text=PAUSED)
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
