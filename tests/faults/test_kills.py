"""SIGKILL of each process of a cluster, in the middle of a job, and what must hold after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from conf.configuration import Configuration
from runtime.environment.context import open_redis_services
from tests.cluster_harness import Cluster, WaitingJob, attempt_of, await_value, paths_below
from tests.faults.deeds import handles
from tests.job_files import GATED_PIPELINE, PAUSED, STUBBORN, TRIVIAL, WAITING, write_job
from tests.processes import lives


def test_a_lost_task_process_is_restarted(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id
    (task,) = [pid for pid in cluster.processes() if job_id in attempt_of(pid)]
    os.kill(task, signal.SIGKILL)
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    job = cluster.await_status(job_id, "FINISHED")
    first, second = job["tasks"][0]["attempts"]
    assert first["error"]["kind"] == "task-process-lost"
    assert "SIGKILL" in first["error"]["message"]
    assert job["failure_counts"] == {"task-process-lost": 1}
    assert "Failures:   1 task-process-lost\n" in cluster.run("job", "info", job_id).stdout
    assert second["state"] == "FINISHED"


def test_a_killed_task_executor_is_noticed_and_its_task_restarted(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id
    spark = cluster.json("status")["task_executors"][0]["spark_pid"]
    os.kill(cluster.pid_of("tm:taskmanager-0"), signal.SIGKILL)
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    job = cluster.await_status(job_id, "FINISHED")
    assert job["restarts"] == 1
    assert job["tasks"][0]["attempts"][0]["error"]["kind"] == "task-executor-lost"
    assert job["failure_counts"] == {"task-executor-lost": 1}
    assert cluster.json("status")["task_executors"][0]["spark_pid"] == spark, "the driver is adopted"


def test_a_killed_component_is_replaced_while_a_job_runs(cluster: Cluster, tmp_path: Path) -> None:
    """Each of them, one after the other."""
    waiting = WaitingJob.start(cluster, tmp_path)
    for victim in ("dispatcher", "resourcemanager", "blobserver", "redis"):
        killed = cluster.pid_of(victim)
        os.kill(killed, signal.SIGKILL)
        await_value(lambda victim=victim, killed=killed: cluster.pid_of(victim) not in (0, killed))  # type: ignore[misc]
        cluster.await_status(waiting.job_id, "RUNNING")
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL, "after.py"))).stdout == "sum 499500\n"


def test_a_killed_job_master_is_replaced_and_its_task_runs_on(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id
    before = cluster.job(job_id)["tasks"][0]["attempts"]
    os.kill(cluster.pid_of(f"jobmaster-{job_id}"), signal.SIGKILL)
    seen = set()

    def look() -> bool:
        seen.add(cluster.json("job", "list")[0]["state"])
        job = cluster.job(job_id)
        return job["state"] == "RUNNING" and "RECONCILING" in job["timestamps"]  # as its new JobMaster has recorded

    await_value(look)
    assert seen <= {"RUNNING", "RECONCILING"}, "nobody says anything else of it"
    (attempt,) = cluster.job(job_id)["tasks"][0]["attempts"]
    assert attempt["attempt_id"] == before[0]["attempt_id"]
    waiting.release()
    job = cluster.await_status(job_id, "FINISHED")
    assert (job["restarts"], waiting.starts) == (0, 1)
    await_value(lambda: cluster.json("status")["overview"]["free_slots"] == 2)
    await_value(lambda: not asyncio.run(_handles_of(cluster, job_id)))
    assert not [path for path in paths_below(cluster.directory / "ha") if path.name.startswith(f"{job_id}@")]


async def _handles_of(cluster: Cluster, job_id: str) -> list[str]:
    services = open_redis_services(Configuration.read(cluster.directory / "configuration.json"))
    try:
        return [name for name in await handles(services) if name.endswith(f"/{job_id}")]
    finally:
        await services.close()


def test_what_ends_while_the_job_master_is_away_is_not_run_again(cluster: Cluster, tmp_path: Path) -> None:
    out, file = tmp_path / "out", write_job(tmp_path, GATED_PIPELINE)
    job_id = cluster.submit(file, str(tmp_path / "gate"), str(out))
    await_value(lambda: (tmp_path / "gate.first").exists())
    cluster.await_status(job_id, "RUNNING")
    os.kill(cluster.pid_of(f"jobmaster-{job_id}"), signal.SIGKILL)
    (tmp_path / "gate").touch()
    cluster.await_status(job_id, "FINISHED")
    job = cluster.job(job_id)
    assert [len(task["attempts"]) for task in job["tasks"]] == [1, 1]
    assert (tmp_path / "gate.first").read_text() == "x"
    assert (tmp_path / "gate.second").read_text() == "x"


def test_a_cancellation_that_was_promised_survives_its_job_master(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "stubborn"
    job_id = cluster.submit(write_job(tmp_path, STUBBORN), str(gate))
    await_value(Path(f"{gate}.began").exists)
    cluster.await_status(job_id, "RUNNING")
    pid = cluster.pid_of(f"jobmaster-{job_id}")
    cluster.run("job", "cancel", "--no-wait", job_id)
    os.kill(pid, signal.SIGKILL)
    gate.touch()
    cluster.await_status(job_id, "CANCELED")
    assert cluster.tasks_of(job_id) == [], "CANCELED is said when nothing of it runs"
    assert_nothing_is_held(cluster)


def assert_nothing_is_held(cluster: Cluster) -> None:
    """No slot leaks, and no JobMaster stays of a job that is over."""
    await_value(lambda: cluster.json("status")["overview"]["free_slots"] == 2)
    await_value(lambda: not [view for view in cluster._processes() if view.name.startswith("jobmaster-")])


def test_a_job_that_is_cancelled_while_its_slot_is_asked_for_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The TaskExecutor hears of the slot when the job is over: it offers it to a JobMaster that has gone."""
    worker, gate = cluster.pid_of("tm:taskmanager-0"), tmp_path / "launched"
    file = write_job(tmp_path, WAITING, "launched.py")
    os.kill(worker, signal.SIGSTOP)
    try:
        job_id = cluster.submit(file, str(gate))
        await_value(lambda: cluster.job(job_id)["tasks"][0]["attempts"])
        job_master = cluster.pid_of(f"jobmaster-{job_id}")
        cluster.run("job", "cancel", "--no-wait", job_id)
        with contextlib.suppress(ProcessLookupError):  # it may be done already
            os.kill(job_master, signal.SIGKILL)
    finally:
        os.kill(worker, signal.SIGCONT)
    cluster.await_status(job_id, "CANCELED")
    assert_nothing_is_held(cluster)
    assert cluster.tasks_of(job_id) == []
    assert not Path(f"{gate}.began").exists(), "its code never ran"
    assert cluster.pid_of("tm:taskmanager-0") == worker
    assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL, "after.py"))).stdout == "sum 499500\n"


def test_a_job_master_and_its_task_executor_killed_at_once_start_the_task_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    for name in (f"jobmaster-{waiting.job_id}", "tm:taskmanager-0"):
        os.kill(cluster.pid_of(name), signal.SIGKILL)
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert job["restarts"] == 1
    assert job["tasks"][0]["attempts"][0]["error"]["kind"] == "task-executor-lost"
    assert cluster.tasks_of(waiting.job_id) == []
    assert_nothing_is_held(cluster)


def test_a_killed_spark_driver_is_replaced_and_its_tasks_start_again(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    waiting = WaitingJob.start(cluster, tmp_path)
    job_id = waiting.job_id
    spark = cluster.json("status")["task_executors"][0]["spark_pid"]
    os.kill(spark, signal.SIGKILL)
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    job = cluster.await_status(job_id, "FINISHED")
    assert job["tasks"][0]["attempts"][0]["error"]["kind"] == "spark-lost"
    assert job["failure_counts"]["spark-lost"] >= 1
    assert "user-code" not in job["failure_counts"], (
        "the job's code saw its sockets close: that is not a fault of its own"
    )
    assert cluster.json("status")["task_executors"][0]["spark_pid"] != spark


def test_stop_cleans_up_after_a_killed_master(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    cluster.run("start")
    WaitingJob.start(cluster, tmp_path, text=PAUSED)
    master = cluster.pid_of("master")
    os.kill(master, signal.SIGKILL)
    await_value(lambda: not lives(master))
    refused = cluster.run("job", "list", check=False)
    assert refused.returncode == 69
    assert "its master has ended" in refused.stderr
    cluster.run("stop")
    assert cluster.processes() == {}
    assert not (cluster.directory / "run").exists()
    cluster.run("start", "-D", "taskmanager.count=0")
    assert cluster.json("job", "list") == [], "a stopped cluster's jobs are over"


def test_a_new_master_and_a_new_start_after_a_killed_master_recover_its_jobs(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = own_cluster
    cluster.run("start")
    waiting = WaitingJob.start(cluster, tmp_path, text=PAUSED)
    job_id = waiting.job_id
    attempts = cluster.job(job_id)["tasks"][0]["attempts"]
    os.kill(cluster.pid_of("master"), signal.SIGKILL)
    await_value(lambda: cluster.run("job", "list", check=False).returncode == 69)
    cluster.run("start-master")  # a master alone takes over, and the task runs on
    job = cluster.await_status(job_id, "RUNNING")
    assert (job["restarts"], waiting.starts) == (0, 1)
    assert [each["attempt_id"] for each in job["tasks"][0]["attempts"]] == [each["attempt_id"] for each in attempts]
    (master,) = [view.pid for view in cluster._processes() if view.role == "master"]
    os.kill(master, signal.SIGKILL)
    await_value(lambda: cluster.run("job", "list", check=False).returncode == 69)
    cluster.run("start")
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    cluster.await_status(job_id, "FINISHED")


def test_a_killed_zygote_takes_its_task_executor_along_and_both_come_back(cluster: Cluster, tmp_path: Path) -> None:
    waiting = WaitingJob.start(cluster, tmp_path)
    executor = cluster.pid_of("tm:taskmanager-0")
    (zygote,) = [child.pid for child in psutil.Process(executor).children()]
    os.kill(zygote, signal.SIGKILL)
    await_value(lambda: waiting.starts == 2)
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert job["restarts"] == 1
    assert cluster.pid_of("tm:taskmanager-0") != executor
