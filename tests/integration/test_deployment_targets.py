"""Clusters that live as long as what they run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.cluster_harness import ROOT, Cluster, await_value
from tests.job_files import WAITING, write_job

FAST = ("high-availability.lease=1s", "heartbeat.interval=200ms", "heartbeat.timeout=2s")

FAILS_LATER = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
raise ValueError("no such month")
"""


def run_in_background(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """`job run` as a user has it in a terminal."""
    return subprocess.Popen(
        cluster.command("job", "run", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def assert_nothing_is_left(cluster: Cluster) -> None:
    """No process of it runs, and only what its user may want lies in its directory."""
    assert cluster.processes() == {}
    assert {path.name for path in cluster.directory.iterdir()} <= {"log", "archive", "checkpoints"}


def test_a_per_job_cluster_outlives_its_master_but_not_its_job(tmp_path: Path) -> None:
    cluster, gate = Cluster(tmp_path / "c", FAST), tmp_path / "gate"
    job = write_job(tmp_path, FAILS_LATER)
    client = run_in_background(cluster, "--target=per-job", "--masters=2", str(job), "--", str(gate))
    try:
        await_value(lambda: Path(f"{gate}.began").exists() or client.poll() is not None, 180)
        assert client.poll() is None, client.communicate()
        (known,) = cluster.json("job", "list")
        os.kill(cluster.pid_of("master"), signal.SIGKILL)
        await_value(lambda: cluster.leaders().get("dispatcher") == "dispatcher-1", 120)
        refused = cluster.run("job", "run", "--target=session", str(write_job(tmp_path, "", "other.py")), check=False)
        assert "is of job" in refused.stderr, refused
        gate.touch()
        output, errors = client.communicate(timeout=180)
        assert_nothing_is_left(cluster)
    finally:
        client.kill()
        cluster.run("stop", check=False)
    assert client.returncode == 1, (output, errors)
    assert "ValueError: no such month" in errors
    assert known["job_id"] in errors


def test_a_per_job_cluster_goes_on_without_its_client_and_ends_by_itself(tmp_path: Path) -> None:
    cluster, gate = Cluster(tmp_path / "c"), tmp_path / "gate"
    client = run_in_background(cluster, "--target=per-job", str(write_job(tmp_path, WAITING)), "--", str(gate))
    try:
        await_value(lambda: Path(f"{gate}.began").exists() or client.poll() is not None, 180)
        assert client.poll() is None, client.communicate()
        client.kill()
        client.communicate()
        (job,) = cluster.json("job", "list")
        assert job["status"] == "RUNNING"
        gate.touch()
        await_value(lambda: not cluster.processes(), 180)
        assert_nothing_is_left(cluster)
    finally:
        client.kill()
        cluster.run("stop", check=False)
    kept = cluster.directory / "log" / f"job-{job['job_id']}"
    assert [path.read_text() for path in kept.glob("*.stdout")] == ["rows 8\n"]
