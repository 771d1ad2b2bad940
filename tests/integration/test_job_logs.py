"""Logs of tasks on a real cluster: kept when whoever had them is gone, and followed while they are written."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster_harness import Cluster, attempt_of, await_value
from tests.integration.test_deployment_offload import forget_files
from tests.job_files import FAILING, write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

# Says that it runs, in its log and in a file; waits for the gate; and what it says then is the last of its log.
TALKING = """\
import sys, time
from pathlib import Path

gate = Path(sys.argv[1])
began = Path(sys.argv[1] + ".began")
with began.open("a") as file:
    file.write("x")
print("start", len(began.read_text()))
print("a remark", file=sys.stderr)
while not gate.exists():
    time.sleep(0.05)
print("the end")
"""

WHOLE = ["stdout", "stderr", "taskexecutor", "spark"]
"""What is kept of an attempt that ended where it ran."""


def _starts(gate: Path) -> int:
    began = Path(f"{gate}.began")
    return len(began.read_text()) if began.exists() else 0


def _begin(cluster: Cluster, tmp_path: Path, name: str = "gate") -> tuple[str, Path]:
    gate = tmp_path / name
    job_id = cluster.submit(write_job(tmp_path, TALKING), str(gate))
    await_value(lambda: _starts(gate) == 1)
    cluster.await_status(job_id, "RUNNING")
    return job_id, gate


def _kept(job: dict[str, Any]) -> list[list[str]]:
    return [[log["name"] for log in attempt["logs"]] for attempt in job["tasks"][0]["attempts"]]


def _task_of(cluster: Cluster, job_id: str) -> int:
    for pid in cluster.processes():
        if job_id in attempt_of(pid):
            return pid
    raise AssertionError(f"no process of job {job_id}")


def test_logs_outlive_the_task_executor_and_the_dispatcher_and_those_of_an_attempt_lost_with_it_are_kept(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    job_id, gate = _begin(cluster, tmp_path)
    assert "start 1\n" in cluster.run("job", "logs", job_id).stdout, "of a running job"
    gate.touch()
    job = cluster.await_status(job_id, "FINISHED")
    assert _kept(job) == [WHOLE]
    second, second_gate = _begin(cluster, tmp_path, "second")
    os.kill(cluster.pid_of("tm:taskmanager-0"), signal.SIGKILL)
    await_value(lambda: _starts(second_gate) == 2)
    forget_files(cluster, job_id)
    done = cluster.run("job", "logs", job_id)
    assert done.stdout == "start 1\nthe end\n"
    assert "a remark\n" in done.stderr
    for victim in ("dispatcher", "blobserver"):
        killed = cluster.pid_of(victim)
        os.kill(killed, signal.SIGKILL)
        await_value(lambda victim=victim, killed=killed: cluster.pid_of(victim) not in (0, killed))
        assert cluster.run("job", "logs", job_id).stdout == "start 1\nthe end\n"
    followed = cluster.run("job", "logs", "-f", job_id)
    assert (followed.stdout, followed.returncode) == ("start 1\nthe end\n", 0)

    # Of the job whose attempt was lost with its TaskExecutor. The JobMaster fetches them when the job is over; what a
    # lost TaskExecutor logged itself was not the attempt's.
    second_gate.touch()
    cluster.await_status(second, "FINISHED")
    await_value(lambda: _kept(cluster.job(second)) == [["stdout", "stderr"], WHOLE])
    forget_files(cluster, second)
    assert cluster.run("job", "logs", second).stdout == "start 1\nstart 2\nthe end\n"


def test_logs_are_kept_while_the_job_master_and_the_blob_server_are_replaced(cluster: Cluster, tmp_path: Path) -> None:
    job_id, gate = _begin(cluster, tmp_path)
    os.kill(_task_of(cluster, job_id), signal.SIGKILL)
    await_value(lambda: _starts(gate) == 2)
    cluster.await_status(job_id, "RUNNING")
    assert _kept(cluster.job(job_id)) == [WHOLE, []]
    for victim in (f"jobmaster-{job_id}", "blobserver"):
        os.kill(cluster.pid_of(victim), signal.SIGKILL)
    gate.touch()
    job = cluster.await_status(job_id, "FINISHED")
    assert _kept(job) == [WHOLE, WHOLE], "the journal had the first, the second waited"
    forget_files(cluster, job_id)
    assert cluster.run("job", "logs", job_id).stdout == "start 1\nstart 2\nthe end\n"


def test_a_running_job_is_followed_into_its_next_attempt(cluster: Cluster, tmp_path: Path) -> None:
    job_id, gate = _begin(cluster, tmp_path)
    command = cluster.command("job", "logs", "-f", job_id)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "start 1\n"
        os.kill(_task_of(cluster, job_id), signal.SIGKILL)
        assert process.stdout.readline() == "start 2\n"
        gate.touch()
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert output == "the end\n"
    assert process.returncode == 0, errors
    assert errors.count("a remark\n") == 2
    assert "--- task job, attempt 2 ---\n" in errors


def test_following_ends_as_the_job_does(cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, FAILING, "failing.py"))
    done = cluster.run("job", "logs", "-f", job_id, check=False)
    assert done.returncode == 1
    assert done.stdout == "before the failure\n"
    assert "FAILED: ZeroDivisionError" in done.stderr
    # With an attempt goes what its TaskExecutor and Spark logged meanwhile; what the JVM prints does not.
    logs = cluster.json("job", "logs", job_id)
    assert [log["name"] for log in logs] == WHOLE
    (own,) = [log["text"] for log in logs if log["name"] == "taskexecutor"]
    assert f"job {job_id} starts" in own
    served = cluster.json("job", "logs", "--task-executors", job_id)
    assert [log["name"] for log in served if log["task_executor"]] == ["taskexecutor", "spark"]
    job_id, gate = _begin(cluster, tmp_path)
    interrupted = subprocess.Popen(cluster.command("job", "logs", "-f", job_id), stdout=subprocess.PIPE, text=True)
    assert interrupted.stdout is not None
    assert interrupted.stdout.readline() == "start 1\n"
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(PATIENCE_S) == 130
    gate.touch()
    cluster.await_status(job_id, "FINISHED")


def test_a_failure_is_found_in_one_command_and_its_lines_by_its_id(cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, FAILING, "failing.py"))
    cluster.await_status(job_id, "FAILED")
    found = cluster.run("job", "exceptions")  # of the job that failed last
    assert found.stdout.startswith("Traceback (most recent call last):")
    assert "ZeroDivisionError" in found.stdout
    assert job_id in found.stderr
    attempt = cluster.job(job_id)["tasks"][0]["attempts"][0]["attempt_id"]
    logs = cluster.directory / "log"
    lines = (logs / "taskmanager-0.log").read_text().splitlines()
    assert any(f" component=taskmanager-0 job={job_id} attempt={attempt} - " in line for line in lines)
    (own,) = logs.glob(f"jobmaster-{job_id}.log")
    starts = [line for line in own.read_text().splitlines() if f"job={job_id}" in line]
    assert any(f"component=jobmaster-{job_id} epoch=" in line for line in starts)
    for secret in ("secret", "rest-token"):
        hidden = (cluster.directory / secret).read_text().strip()
        assert not any(hidden in path.read_text(errors="replace") for path in logs.iterdir() if path.is_file())


def test_log_levels_are_changed_while_the_cluster_runs(cluster: Cluster) -> None:
    with cluster.client() as others:  # the JobMaster of a job that has just ended would end before it answers
        names = lambda: [process.name for process in others.status().processes]  # noqa: E731
        await_value(lambda: not any(name.startswith("jobmaster-") for name in names()))
    log = cluster.directory / "log" / "dispatcher.log"
    changed = cluster.run("log-level", "dispatcher", "debug")
    assert changed.stdout == "dispatcher: root is DEBUG, it was INFO\n"
    levels_of = [level for level in cluster.json("log-level") if level["process"] == "dispatcher"]
    assert cluster.json("log-level", "dispatcher") == levels_of
    assert [level["level"] for level in levels_of if level["logger"] == "root"] == ["DEBUG"]
    assert "the log level of root is DEBUG, it was INFO" in log.read_text()
    everywhere = cluster.json("log-level", "actors.rpc", "ERROR")
    assert {"master", "dispatcher", "taskmanager-0"} <= {change["process"] for change in everywhere}
    assert {(change["was"], change["error"]) for change in everywhere} == {("INHERITED", "")}
    client = RestClient.of(cluster)
    answer = client.ask("PATCH", "/log-levels?process=taskmanager-0&logger=actors.rpc&level=INHERITED")
    assert answer.json["changes"][0]["was"] == "ERROR"

    def levels() -> dict[str, dict[str, str]] | None:
        """The levels of all processes, once these two have answered in time."""
        found = {process["name"]: process["levels"] for process in client.get("/log-levels")["processes"]}
        return found if found["taskmanager-0"] and found["dispatcher"] else None

    known = await_value(levels)
    assert "actors.rpc" not in known["taskmanager-0"]
    assert known["dispatcher"]["actors.rpc"] == "ERROR"
    for command in (("log-level", "actors.rpc", "INHERITED"), ("log-level", "dispatcher", "INFO")):
        cluster.run(*command)
    own = "/taskmanagers/taskmanager-0/logs/taskexecutor"
    whole = client.ask("GET", f"{own}?offset=0").body
    assert b"the log level of actors.rpc is ERROR, it was INHERITED" in whole
    assert client.ask("GET", f"{own}?offset={len(whole) - 1}").body.startswith(b"\n")
    unknown = cluster.run("log-level", "no.such.logger", "DEBUG", check=False)
    assert unknown.returncode == 1
    assert "error: 'no.such.logger' is neither a process of the cluster nor a logger in one" in unknown.stderr

    def processes() -> dict[str, dict[str, Any]] | None:
        """All processes, once these two have answered in time."""
        found = {process["name"]: process for process in client.get("/actors")["processes"]}
        return found if found["taskmanager-0"]["answers"] and found["dispatcher"]["answers"] else None

    told = await_value(processes)
    (dispatcher,) = [one for one in told["dispatcher"]["actors"] if one["path"] == "/user/dispatcher"]
    assert dispatcher["kind"] == "Dispatcher"
    assert dispatcher["messages"] > 0
