"""A TaskExecutor is exchanged, and the tasks and the Spark driver of its worker run on as they were."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actors.errors import ActorError
from runtime.cluster.host_processes import await_condition
from runtime.cluster.upgrade import LEAVING_S
from runtime.ids import JobID
from runtime.protocol.errors import HandOverRefusedError
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.spark.task.zygote_client import HELD
from tests.cluster_harness import Cluster, WaitingJob, attempt_of, await_value, started
from tests.faults import streaming
from tests.faults.streaming import StreamingQuery
from tests.integration.test_checkpoints import await_checkpoints
from tests.job_files import write_job
from tests.next_release import VERSION, make_next_release
from tests.processes import lives

SETTINGS = (
    "taskmanager.numberOfTaskSlots=6",
    "taskmanager.spark.warm-up=false",
    "taskmanager.task-pool.size=0",
    "spark.driver.memory=1g",
    *streaming.SETTINGS,
)
NAME = "taskmanager-0"
LIFETIME_S = 300.0

BATCH = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
gate = Path(sys.argv[1])
with Path(sys.argv[1] + ".began").open("a") as file:
    file.write("x")
print("before", flush=True)
while not gate.exists():
    time.sleep(0.2)
print("after", spark.range(100).count(), flush=True)
"""
"""A job that uses Spark after it was released, and writes to its log before and after."""

RATE = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
writer = spark.readStream.format("rate").load().writeStream.queryName("rate").format("parquet")
writer = writer.option("checkpointLocation", sys.argv[1] + "/live").trigger(processingTime="2 seconds")
writer.start(sys.argv[1] + "/out").awaitTermination()
"""


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from started(tmp_path_factory.mktemp("c"), *SETTINGS, masters=2)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from started(
        tmp_path_factory.mktemp("c"),
        *SETTINGS,
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=1000",
        "restart-strategy.fixed-delay.delay=200ms",
    )


def runs_of(cluster: Cluster, job_id: str) -> set[str]:
    """Return the run ids of a job's streaming queries."""
    with cluster.client() as client:
        tasks = client.job(JobID(job_id)).tasks
    return {query.run_id for task in tasks for query in task.attempts[-1].queries}


def completed(cluster: Cluster, job_id: str) -> int:
    latest = cluster.job(job_id)["checkpoints"]["latest_completed"]
    return 0 if latest is None else int(latest["id"])


def attempts_of(cluster: Cluster, job_id: str) -> list[str]:
    (task,) = cluster.job(job_id)["tasks"]
    return [attempt["attempt_id"] for attempt in task["attempts"]]


def submit_batch(cluster: Cluster, directory: Path, name: str) -> WaitingJob:
    gate = directory / name
    job = WaitingJob(cluster.submit(write_job(directory, BATCH, f"{name}.py"), str(gate)), gate)
    await_value(lambda: job.starts == 1)
    cluster.await_status(job.job_id, "RUNNING")
    return job


def test_an_upgrade_leaves_queries_and_batch_jobs_as_they_are(pair: Cluster, tmp_path: Path) -> None:
    upgraded = replace(pair, tree=make_next_release(tmp_path / "next"))
    query = StreamingQuery(tmp_path)
    query.begin(pair)
    job_id = str(query.job_id)
    rate = pair.submit(write_job(tmp_path, RATE, "rate.py"), str(tmp_path / "rate"))
    batch, cancelled = (submit_batch(pair, tmp_path, name) for name in ("batch", "cancelled"))
    jobs = (job_id, rate, batch.job_id, cancelled.job_id)
    await_value(lambda: completed(pair, job_id) and completed(pair, rate))

    def state() -> dict[str, object]:
        return {
            each: (pair.tasks_of(each), attempts_of(pair, each), runs_of(pair, each), pair.job(each)["restarts"])
            for each in jobs
        }

    before, driver, worker = state(), driver_of(pair), pair.pid_of(NAME)
    executor = pair.pid_of(f"tm:{NAME}")
    plan = upgraded.json("cluster", "upgrade", "--dry-run")
    assert "adopts its Spark driver and its tasks" in plan["steps"][-1]["effect"]
    assert {
        each["job_id"]: "the successor adopts its tasks" in each["effect"] for each in plan["jobs"]
    } == dict.fromkeys(jobs, True)

    upgraded.run("cluster", "upgrade", "--yes")
    assert upgraded.json("cluster", "upgrade", "--dry-run")["steps"] == []
    assert pair.pid_of(f"tm:{NAME}") != executor
    assert (pair.pid_of(NAME), driver_of(pair)) == (worker, driver)
    with pair.client() as client:
        assert [view.registration.version for view in client.task_managers()] == [VERSION]
    assert state() == before

    # The successor does everything that its predecessor did.
    for each in (job_id, rate):
        await_checkpoints(upgraded, each)
    new = submit_batch(upgraded, tmp_path, "new")
    running = pair.tasks_of(new.job_id)
    leaver = hand_over(upgraded)  # tasks of two zygotes, and for some of them the second time
    await_value(lambda: upgraded.pid_of(f"tm:{NAME}") != leaver)
    assert (state(), pair.tasks_of(new.job_id)) == (before, running)
    new.release()
    upgraded.run("job", "cancel", cancelled.job_id)
    assert upgraded.await_status(cancelled.job_id, "CANCELED", "FINISHED")["state"] == "CANCELED"
    batch.release()
    assert upgraded.await_status(batch.job_id, "FINISHED", "FAILED")["state"] == "FINISHED"
    assert upgraded.await_status(new.job_id, "FINISHED", "FAILED")["state"] == "FINISHED"
    assert "before" in (told := upgraded.run("job", "logs", batch.job_id).stdout)
    assert "after 100" in told
    upgraded.run("job", "stop", rate)
    assert upgraded.await_status(rate, "FINISHED", "FAILED")["state"] == "FINISHED"
    query.end()
    assert query.problems == []
    assert upgraded.job(job_id)["restarts"] == 0
    assert await_value(lambda: not zygotes_without_tasks(upgraded)), "the old zygote ends with its last task"


def driver_of(cluster: Cluster) -> int:
    with cluster.client() as client:
        (view,) = client.task_managers()
    return view.registration.spark_pid


def zygotes_without_tasks(cluster: Cluster) -> list[int]:
    """Return the zygotes beside the one that forks the tasks of the TaskExecutor."""
    found = [pid for pid in cluster.processes() if ".task.zygote" in " ".join(_words(pid)) and not attempt_of(pid)]
    own = {child.pid for child in psutil.Process(cluster.pid_of(f"tm:{NAME}")).children()}
    return [pid for pid in found if pid not in own]


def _words(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


# ---------------------------------------------------------------------------- kills


def order_hand_over(cluster: Cluster) -> int:
    """Order the TaskExecutor to leave its tasks to a successor of the same release; return its process.

    It may still keep them: a checkpoint can begin before the last message of a task is read.
    """

    def order() -> int:
        with cluster.client() as client:
            (view,) = client.task_managers()
            try:
                gateway = client.gateway_at(view.registration.address, TaskExecutorGateway)
                gateway.hand_over(LIFETIME_S).result()
            except (HandOverRefusedError, ActorError):
                return 0
        return view.registration.pid

    pid: int = await_value(order)
    return pid


def hand_over(cluster: Cluster) -> int:
    """Order it as often as an upgrade does, until the TaskExecutor has left its tasks; return its process."""
    leaving = order_hand_over(cluster)

    def left() -> bool:
        if await_condition(lambda: not lives(leaving), LEAVING_S):
            return True
        order_hand_over(cluster)
        return False

    await_value(left)
    return leaving


def held(cluster: Cluster) -> list[Path]:
    """Return the sockets of zygotes that wait for a successor."""
    return list((cluster.directory / "tm-0").glob(f"{HELD}*"))


def hosted(cluster: Cluster, worker: int) -> list[int]:
    """Return the TaskExecutors below a worker, also one that has not registered."""
    found = []
    for child in psutil.Process(worker).children():  # its actor system, its driver, zygotes without a TaskExecutor
        if "runtime.cluster.worker" in _words(child.pid):
            found += [actor.pid for actor in child.children()]
    return found


@pytest.fixture
def query(cluster: Cluster, tmp_path: Path) -> StreamingQuery:
    query = StreamingQuery(tmp_path)
    query.begin(cluster)
    await_value(lambda: completed(cluster, str(query.job_id)))
    return query


VICTIMS = ("JobMaster", "old TaskExecutor", "new TaskExecutor", "zygote", "adopter", "worker")


@pytest.mark.slow  # contract/test_zygote_hand_over.py kills processes, tests/upgrade those of a cluster
def test_whatever_is_killed_during_a_hand_over_each_row_is_there_once(cluster: Cluster, query: StreamingQuery) -> None:
    job_id = str(query.job_id)
    for victim in VICTIMS:
        cluster.await_status(job_id, "RUNNING")
        await_checkpoints(cluster, job_id)
        leave_and_kill(cluster, job_id, victim)
        await_checkpoints(cluster, job_id)
        await_value(lambda: len(cluster.tasks_of(job_id)) == 1)
        assert held(cluster) == [], victim
    query.end()
    assert query.problems == []


def leave_and_kill(cluster: Cluster, job_id: str, victim: str) -> None:
    """Begin a hand-over, and kill a process meanwhile; return when there is another TaskExecutor."""
    worker, (task,) = cluster.pid_of(NAME), cluster.tasks_of(job_id)
    zygote = psutil.Process(task).ppid()
    old = order_hand_over(cluster) if victim == "old TaskExecutor" else hand_over(cluster)
    match victim:
        case "JobMaster":
            kill(cluster.pid_of(f"jobmaster-{job_id}"))
            await_checkpoints(cluster, job_id)
            assert cluster.tasks_of(job_id) == [task], "the next JobMaster has waited too"
            # And the next but one knows where the tasks are.
            kill(cluster.pid_of(f"jobmaster-{job_id}"))
            await_checkpoints(cluster, job_id)
            assert cluster.tasks_of(job_id) == [task]
        case "old TaskExecutor":
            kill(old)
        case "new TaskExecutor":
            kill(await_value(lambda: hosted(cluster, worker))[0])
        case "zygote":
            kill(zygote)
            await_value(lambda: not lives(task))
        case "adopter":
            await_value(lambda: not held(cluster))
            kill(await_value(lambda: hosted(cluster, worker))[0])
        case "worker":
            kill(worker)
            await_value(lambda: cluster.pid_of(NAME) != worker)
    await_value(lambda: cluster.pid_of(f"tm:{NAME}") != old)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
