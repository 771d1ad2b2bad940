"""Clusters that live as long as what they run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster_harness import ROOT, Cluster, await_value
from tests.job_files import PAUSED, write_job
from tests.waiting import PATIENCE_S

FAST = ("high-availability.lease=3s", "heartbeat.interval=1s", "heartbeat.timeout=10s")

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

APPLICATION = """\
import sys, time
from pathlib import Path
from runtime.notebook import connect

def note(directory, what):
    with (Path(directory) / what).open("a") as file:
        file.write("x")

def total(directory):
    note(directory, "first")
    return sum(range(1000))

def count(directory, rows):
    note(directory, "second")
    while not (Path(directory) / "gate").exists():
        time.sleep(0.05)
    return rows

if __name__ == "__main__":
    note(sys.argv[1], "main")
    cluster = connect()
    rows = cluster.submit(total, directory=sys.argv[1]).result()
    counted = cluster.submit(count, directory=sys.argv[1], rows=rows)
    print("counted", counted.result(), "in", len(cluster.jobs()), "jobs")
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
    wanted = {"log", "archive", "checkpoints", "history", "spark-events", "audit"}
    assert {path.name for path in cluster.directory.iterdir()} <= wanted


def test_a_per_job_cluster_outlives_its_master_but_not_its_job(tmp_path: Path) -> None:
    cluster, gate = Cluster(tmp_path / "c", FAST), tmp_path / "gate"
    job = write_job(tmp_path, FAILS_LATER)
    client = run_in_background(cluster, "--target=per-job", "--masters=2", str(job), "--", str(gate))
    try:
        await_value(lambda: Path(f"{gate}.began").exists() or client.poll() is not None)
        assert client.poll() is None, client.communicate()
        (known,) = cluster.json("job", "list")
        os.kill(cluster.pid_of("master"), signal.SIGKILL)
        await_value(lambda: cluster.leaders().get("dispatcher") == "dispatcher-1")
        refused = cluster.run("job", "run", "--target=session", str(write_job(tmp_path, "", "other.py")), check=False)
        assert "runs job" in refused.stderr, refused
        gate.touch()
        output, errors = client.communicate(timeout=PATIENCE_S)
        assert_nothing_is_left(cluster)
    finally:
        client.kill()
        cluster.run("stop", check=False)
    assert client.returncode == 1, (output, errors)
    assert "ValueError: no such month" in errors
    assert known["job_id"] in errors


@pytest.mark.slow
def test_a_per_job_cluster_goes_on_without_its_client_and_ends_by_itself(tmp_path: Path) -> None:
    cluster, gate = Cluster(tmp_path / "c"), tmp_path / "gate"
    client = run_in_background(
        cluster, "--target=per-job", str(write_job(tmp_path, f"{PAUSED}print('the end')\n")), "--", str(gate)
    )
    try:
        await_value(lambda: Path(f"{gate}.began").exists() or client.poll() is not None)
        assert client.poll() is None, client.communicate()
        client.kill()
        client.communicate()
        (job,) = cluster.json("job", "list")
        cluster.await_status(job["job_id"], "RUNNING")
        gate.touch()
        await_value(lambda: not cluster.processes())
        assert_nothing_is_left(cluster)
    finally:
        client.kill()
        cluster.run("stop", check=False)
    kept = cluster.directory / "log" / f"job-{job['job_id']}"
    assert [path.read_text() for path in kept.glob("*.stdout")] == ["the end\n"]


def test_an_application_outlives_its_master_and_its_main_and_runs_no_job_twice(tmp_path: Path) -> None:
    cluster, program = Cluster(tmp_path / "c", FAST), write_job(tmp_path, APPLICATION, "application.py")
    said = lambda what: path.read_text() if (path := tmp_path / what).exists() else ""  # noqa: E731
    client = run_in_background(cluster, "--target=application", "--masters=2", str(program), "--", str(tmp_path))
    try:
        await_value(lambda: said("second") or client.poll() is not None)
        assert client.poll() is None, client.communicate()
        before = [job["job_id"] for job in cluster.json("job", "list")]
        assert len(before) == 2
        assert sorted(cluster.job(job_id)["state"] for job_id in before) == ["FINISHED", "RUNNING"]
        application = cluster.pid_of("application")
        os.kill(cluster.pid_of("master"), signal.SIGKILL)
        await_value(lambda: cluster.leaders().get("dispatcher") == "dispatcher-1")
        await_value(lambda: "application" in {view["name"] for view in cluster.json("status")["cluster"]["processes"]})
        assert cluster.pid_of("application") == application
        os.kill(application, signal.SIGKILL)
        await_value(lambda: said("main") == "xx")
        (tmp_path / "gate").touch()
        output, errors = client.communicate(timeout=PATIENCE_S)
        assert_nothing_is_left(cluster)
    finally:
        client.kill()
        cluster.run("stop", check=False)
    assert (client.returncode, output) == (0, "counted 499500 in 2 jobs\n"), errors
    assert (said("first"), said("second")) == ("x", "x")
    assert all(f"job {job_id}" in errors for job_id in before)
