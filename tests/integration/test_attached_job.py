"""An attached `job run` on a real cluster: its output is seen while it runs, and its end is the job's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from runtime.ids import JobID
from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job
from tests.waiting import PATIENCE_S

# Says each line when the file of its number is there; the end of a cancelled one is of its log, too.
TALKING = """\
import os, sys, time
from pathlib import Path

gate = sys.argv[1]
Path(gate + f".began-{os.getpid()}").touch()
sys.stdout.buffer.write(b"begun \\xff\\x00\\r\\n")
sys.stdout.flush()
print("a remark", file=sys.stderr)
try:
    for number in range(3):
        while not Path(f"{gate}-{number}").exists():
            time.sleep(0.05)
        print("line", number)
finally:
    print("the end")
"""

LARGE = """\
import sys
line = "x" * 99 + "\\n"
for _ in range(200_000):
    sys.stdout.write(line)
print("the end", file=sys.stderr)
"""

BEGUN = b"begun \xff\x00\r\n"
TIMEOUT_S = 15
"""Longer than a client stands still on a busy machine."""
SHORT = ("-D", "client.heartbeat.interval=500ms", "-D", f"client.heartbeat.timeout={TIMEOUT_S}s")


@contextlib.contextmanager
def run(
    cluster: Cluster, file: Path, *arguments: str, options: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`job run`, whose job has not ended yet."""
    command = cluster.command("job", "run", *options, str(file), "--", *arguments)
    # Without a buffer: `communicate` leaves out what a buffer has read ahead.
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def output_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def id_of(process: subprocess.Popen[bytes]) -> str:
    """The job's id, which is said first."""
    assert process.stderr is not None
    said, job_id, *_ = process.stderr.readline().decode().split()
    assert said == "job"
    return job_id


def begin(tmp_path: Path) -> tuple[Path, str]:
    return write_job(tmp_path, TALKING, "talking.py"), str(tmp_path / "gate")


def open_gates(gate: str, *numbers: int) -> None:
    for number in numbers:
        Path(f"{gate}-{number}").touch()


def test_output_is_seen_while_the_job_runs_and_across_leaders(cluster: Cluster, tmp_path: Path) -> None:
    file, gate = begin(tmp_path)
    with run(cluster, file, gate) as process:
        job_id = id_of(process)
        assert output_of(process).readline() == BEGUN
        assert cluster.await_status(job_id, "RUNNING")
        open_gates(gate, 0)
        assert output_of(process).readline() == b"line 0\n"
        for victim in ("dispatcher", f"jobmaster-{job_id}"):
            os.kill(cluster.pid_of(victim), signal.SIGKILL)
        open_gates(gate, 1)
        assert output_of(process).readline() == b"line 1\n"
        open_gates(gate, 2)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == (b"line 2\nthe end\n", 0)
    web_page, *rest = errors.splitlines()
    assert web_page.startswith(b"web page: http")
    assert rest == [b"a remark"]


def test_a_later_attempt_is_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    file, gate = begin(tmp_path)
    with run(cluster, file, gate) as process:
        assert output_of(process).readline() == BEGUN
        (began,) = await_value(lambda: list(tmp_path.glob("gate.began-*")))
        os.kill(int(began.name.rpartition("-")[2]), signal.SIGKILL)
        assert output_of(process).readline() == BEGUN
        open_gates(gate, 0, 1, 2)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == (b"line 0\nline 1\nline 2\nthe end\n", 0)
    assert b"a remark\n--- task talking, attempt 2 ---\na remark\n" in errors


def test_large_output_comes_whole(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("job", "run", str(write_job(tmp_path, LARGE, "large.py")))
    assert done.stdout == ("x" * 99 + "\n") * 200_000
    assert done.stderr.endswith("the end\n")


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import sys\nprint('so far')\nsys.exit(3)\n", 3, "FAILED: "),
        ("import os, sys\nprint('so far')\nsys.stdout.flush()\nos._exit(4)\n", 4, "ended with status 4"),
        ("import sys\nprint('so far')\nsys.exit('no input')\n", 1, "\nno input\n"),
    ],
)
def test_the_exit_status_is_the_scripts(cluster: Cluster, tmp_path: Path, text: str, status: int, said: str) -> None:
    file = write_job(tmp_path, text, "leaving.py")
    done = cluster.run("job", "run", "-D", "restart-strategy.type=none", str(file), check=False)
    assert (done.returncode, done.stdout) == (status, "so far\n"), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    job_id = done.stderr.split()[1]
    assert cluster.job(job_id)["failure"]["exit_status"] == status
    assert cluster.run("job", "logs", "-f", job_id, check=False).returncode == status


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)]
)
def test_a_signal_cancels_the_job_and_shows_its_end(
    cluster: Cluster, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    file, gate = begin(tmp_path)
    with run(cluster, file, gate) as process:
        job_id = id_of(process)
        assert output_of(process).readline() == BEGUN
        process.send_signal(sent)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == (b"the end\n", status), errors
    assert cluster.job(job_id)["state"] == "CANCELED"


def test_cancelled_by_somebody_else_and_unread_output_have_statuses_of_their_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    file, gate = begin(tmp_path)
    with run(cluster, file, gate) as process:
        job_id = id_of(process)
        assert output_of(process).readline() == BEGUN
        cluster.run("job", "cancel", job_id)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == (b"the end\n", 79)
    assert f"job {job_id} (talking) is CANCELED\n".encode() in errors
    with run(cluster, file, gate) as process:
        job_id = id_of(process)
        assert output_of(process).readline() == BEGUN
        output_of(process).close()
        open_gates(gate, 0)
        assert process.wait(PATIENCE_S) == 141
    assert cluster.job(job_id)["state"] == "CANCELED"


def pass_time(seconds: float) -> None:
    """Let a time-out pass in which nothing is to happen."""
    deadline = time.monotonic() + seconds
    await_value(lambda: time.monotonic() > deadline)


def test_a_job_whose_client_lives_outlives_its_dispatcher_and_one_that_stood_still(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A job that was detached does so, too; the other one ends when its client vanishes."""
    file, gate = begin(tmp_path)
    with run(cluster, file, gate, options=SHORT) as living, run(cluster, file, gate, options=SHORT) as left:
        attached, detached = id_of(living), id_of(left)
        for process in (living, left):
            assert output_of(process).readline() == BEGUN
        with cluster.client() as client:
            client.detach(JobID(detached), PATIENCE_S)
        left.kill()
        killed = cluster.pid_of("dispatcher")
        os.kill(killed, signal.SIGKILL)
        await_value(lambda: cluster.pid_of("dispatcher") not in (0, killed))
        stopped = psutil.Process(cluster.pid_of("dispatcher"))
        stopped.suspend()
        pass_time(TIMEOUT_S + 1.0)  # longer than the time-out
        stopped.resume()
        pass_time(TIMEOUT_S + 1.0)
        assert [cluster.job(job_id)["state"] for job_id in (attached, detached)] == ["RUNNING", "RUNNING"]
        living.kill()
        job = cluster.await_status(attached, "CANCELED")
    why = f"its client has not been heard of for {TIMEOUT_S} s"
    assert job["canceled_because"] == why
    assert f"CANCELED ({why})" in cluster.run("job", "info", attached).stdout
    for log in ("dispatcher", f"jobmaster-{attached}"):
        assert f"cancelled: {why}" in (cluster.directory / "log" / f"{log}.log").read_text()
    assert cluster.job(detached)["state"] == "RUNNING"
    open_gates(gate, 0, 1, 2)
    cluster.await_status(detached, "FINISHED")
