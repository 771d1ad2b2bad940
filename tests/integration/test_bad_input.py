"""Whatever a user gets wrong ends in one readable line with the remedy, a non-zero status, and nothing left running."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, WaitingJob, await_value
from tests.job_files import PAUSED, write_job

OURS = "from understudy import Pipeline\n\n"
IMPORT_ERROR = f"{OURS}import nothing_of_that_name\n\ndef pipeline(argv) -> Pipeline:\n    return None\n"
SYNTAX_ERROR = "def pipeline(argv:\n"
EMPTY = "from runtime.api import Pipeline\n\ndef pipeline(argv):\n    return Pipeline('empty')\n"
NOT_A_PIPELINE = f"{OURS}def pipeline(argv) -> Pipeline:\n    return 42\n"
CYCLIC = """\
from runtime.api import Pipeline, Stream
from runtime.ids import JobVertexID

def step(ctx, *inputs):
    return inputs[0]

def pipeline(argv):
    p = Pipeline("round")
    first = p.operator("first", step, Stream(p, JobVertexID.of("round", "second"), "second"))
    p.sink("end", step, p.operator("second", step, first))
    return p
"""


def refused(cluster: Cluster, *arguments: str, status: int = 1) -> str:
    """Run a command that must fail; returns its one line of error, without the remedy's."""
    done = cluster.run(*arguments, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    frames = [line for line in done.stderr.splitlines() if line.strip().startswith("File ")]
    assert not [line for line in frames if "/runtime/" in line], done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


@pytest.fixture
def idle(tmp_path: Path) -> Cluster:
    """A directory in which no cluster runs."""
    return Cluster(tmp_path / "idle")


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("taskmanager.numberOfTaskSlot=4", "unknown option 'taskmanager.numberOfTaskSlot'"),
        ("taskmanager.numberOfTaskSlots=many", "invalid value 'many'"),
        ("env.java.home=/nonexistent", "no Java at /nonexistent"),
        ("high-availability.redis.url=redis://127.0.0.1:1/0", "Redis at 127.0.0.1:1 cannot be reached"),
        ("high-availability.redis.url=redis+sentinel://127.0.0.1:1", "does not say by which name they know it"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_start_with_a_wrong_setting(idle: Cluster, setting: str, error: str) -> None:
    assert error in refused(idle, "start", "-D", setting)
    assert idle.processes() == {}


def test_an_unknown_option_is_answered_with_the_nearest_real_one(idle: Cluster) -> None:
    done = idle.run("start", "-D", "slot.request.timeot=1s", check=False)
    assert "did you mean 'slot.request.timeout'?" in done.stderr


def test_a_java_of_the_wrong_version(idle: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="11.0.2"\n')
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    assert "Java 11.0.2" in refused(idle, "start", "-D", f"env.java.home={home}")


def test_a_port_that_is_taken(idle: Cluster) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        assert f"port {port} is taken" in refused(idle, "start", "-D", f"jobmanager.rpc.port={port}")
    assert idle.processes() == {}


@pytest.mark.parametrize("command", [("stop",), ("status",), ("job", "list"), ("job", "info", "0" * 32)])
def test_a_command_without_a_cluster(idle: Cluster, command: tuple[str, ...]) -> None:
    assert "no cluster runs in" in refused(idle, *command, status=69)


def test_a_second_start(cluster: Cluster) -> None:
    assert "already runs at akka.tcp://" in refused(cluster, "start")
    assert cluster.json("status")["overview"]["task_executors"] == 1


def test_a_job_file_that_does_not_exist(cluster: Cluster) -> None:
    assert "there is no job file nosuch.py" in refused(cluster, "job", "run", "nosuch.py")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (IMPORT_ERROR, "No module named 'nothing_of_that_name'"),
        (SYNTAX_ERROR, "is not valid Python"),
        (EMPTY, "has no vertices"),
        (NOT_A_PIPELINE, "returned int"),
        (CYCLIC, "goes round in a circle: first -> second -> first"),
    ],
)
def test_a_job_file_that_makes_no_job(cluster: Cluster, tmp_path: Path, text: str, error: str) -> None:
    jobs = len(cluster.json("job", "list"))
    assert error in refused(cluster, "job", "run", str(write_job(tmp_path, text)))
    assert len(cluster.json("job", "list")) == jobs


def test_a_job_that_nobody_knows(cluster: Cluster) -> None:
    assert f"no job {'0' * 32}" in refused(cluster, "job", "info", "0" * 32)
    assert "no job has the id or name 'xyz'" in refused(cluster, "job", "cancel", "xyz")


def test_a_job_that_waits_for_a_slot_says_so(cluster: Cluster, tmp_path: Path) -> None:
    holders = [WaitingJob.start(cluster, tmp_path, name, text=PAUSED) for name in ("one", "two")]
    waiter = cluster.submit(write_job(tmp_path, "print('waited')\n", "waiter.py"))
    reason = "1 slot for task 'waiter'; the cluster has 2 slot(s) on 1 TaskExecutor(s), 0 free"
    # Until the ResourceManager has said why, it is just "a slot".
    await_value(lambda: reason in cluster.job(waiter)["tasks"][0]["waiting_for"])
    for holder in holders:
        holder.release()
    for job_id in (waiter, *(holder.job_id for holder in holders)):
        cluster.await_status(job_id, "FINISHED")


def test_a_job_without_a_slot_gives_up(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster("taskmanager.count=0", "slot.request.timeout=1s")
    failed = cluster.await_status(cluster.submit(write_job(tmp_path, "print('never')\n")), "FAILED")
    assert failed["failure"]["kind"] == "no-resource"
    assert "no slot within 1 s" in failed["failure"]["message"]
