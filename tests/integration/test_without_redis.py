"""``high-availability.type: none``: a cluster of real processes, and no Redis anywhere."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import PAUSED, PRINTING, write_job
from tests.processes import lives

NONE = "high-availability.type=none"


def test_components_are_replaced_while_a_job_runs_and_jobs_are_lost_with_the_master(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = own_cluster
    options = ("-D", NONE, "-D", "high-availability.lease=1s", "-D", "high-availability.memory-threshold=0 b")
    assert "lost with it" in cluster.run("start", *options).stderr
    waiting = WaitingJob.start(cluster, tmp_path, text=PAUSED)
    attempts = [attempt["attempt_id"] for attempt in cluster.job(waiting.job_id)["tasks"][0]["attempts"]]
    for victim in ("dispatcher", f"jobmaster-{waiting.job_id}", "resourcemanager"):
        killed = cluster.pid_of(victim)
        os.kill(killed, signal.SIGKILL)
        await_value(lambda victim=victim, killed=killed: cluster.pid_of(victim) not in (0, killed))  # type: ignore[misc]
        cluster.await_status(waiting.job_id, "RUNNING")
    assert "redis-server" not in cluster.processes().values()
    assert list((cluster.directory / "redis").iterdir()) == []
    refusal = cluster.run("master", *options, check=False)
    assert refusal.returncode == 1
    assert "high-availability.type is none" in refusal.stderr
    waiting.release()
    job = cluster.await_status(waiting.job_id, "FINISHED")
    assert job["restarts"] == 0
    assert [attempt["attempt_id"] for attempt in job["tasks"][0]["attempts"]] == attempts
    assert cluster.run("job", "run", str(write_job(tmp_path, PRINTING, "after.py"))).stdout == "sum 499500\n"

    # With the master the jobs are lost, and nothing else is left.
    lost = WaitingJob.start(cluster, tmp_path, "lost", text=PAUSED)
    of_master = cluster.processes_of_master(0)
    for pid in of_master:
        with contextlib.suppress(ProcessLookupError):  # it ends with its master
            os.kill(pid, signal.SIGKILL)
    await_value(lambda: not any(map(lives, of_master)))
    cluster.run("start", "-D", NONE, "-D", "taskmanager.count=0")
    kept = {job["job_id"]: job["state"] for job in cluster.json("job", "list")}
    assert lost.job_id not in kept
    assert set(kept.values()) == {"FINISHED"}, "from the archive"
    cluster.run("stop")
    assert lost.starts == 1
    assert cluster.processes() == {}
    assert not [path for path in (cluster.directory / "ha").rglob("*@*") if path.is_file()], "no state files"
