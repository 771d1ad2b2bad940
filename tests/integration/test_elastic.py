"""A cluster that starts workers when they are needed, and stops those that nobody uses."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import PAUSED, write_job
from tests.processes import lives


def worker_of(cluster: Cluster) -> int:
    """The process of the one worker; 0 where there is none."""
    found = [item["pid"] for item in cluster.json("status")["cluster"]["processes"] if item["role"] == "worker"]
    assert len(found) <= 1, "a worker too many"
    return int(found[0]) if found else 0


def kill_worker(pid: int) -> None:
    """A worker with all that belongs to it, as the kernel's out-of-memory killer might."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_workers_come_with_the_first_job_are_replaced_adopted_and_go(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(
        "resourcemanager.driver=process",
        "resourcemanager.taskmanager-timeout=10s",
        "slotmanager.number-of-slots.max=1",
        "taskmanager.numberOfTaskSlots=1",
        "taskmanager.task-pool.size=0",
        "high-availability.lease=5s",
        masters=2,
    )
    assert worker_of(cluster) == 0

    gate = tmp_path / "gate"
    job = WaitingJob(cluster.submit(write_job(tmp_path, PAUSED), str(gate)), gate)
    await_value(lambda: job.starts == 1)  # a worker comes first
    first = worker_of(cluster)
    kill_worker(first)
    await_value(lambda: job.starts == 2)
    second = worker_of(cluster)
    assert second not in (0, first)

    waiting = cluster.submit(write_job(tmp_path, "print('second')\n", "second.py"))
    reason = "there may be at most 1 (slotmanager.number-of-slots.max)"
    # Until the ResourceManager has said why, it is just "a slot".
    await_value(lambda: reason in cluster.job(waiting)["tasks"][0]["waiting_for"])

    leading = int(cluster.leaders()["resourcemanager"].removeprefix("resourcemanager").lstrip("-") or 0)
    for pid in cluster.processes_of_master(leading):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    standby = f"resourcemanager{'' if leading else '-1'}"
    await_value(lambda: cluster.leaders().get("resourcemanager") == standby)
    await_value(lambda: worker_of(cluster) == second)
    job.release()
    cluster.await_status(job.job_id, "FINISHED")
    assert job.starts == 2, "the job went on in the worker that was adopted"
    cluster.await_status(waiting, "FINISHED")

    await_value(lambda: worker_of(cluster) == 0 and not lives(second))
    assert cluster.json("status")["task_executors"] == []
