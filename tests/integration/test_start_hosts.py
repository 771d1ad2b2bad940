"""A cluster that is started on its hosts over ssh, by a real sshd; the hosts are this one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime import __version__
from runtime.spark.driver.java import find_java
from tests.cluster_harness import GROUPS, ROOT, Cluster, await_value
from tests.fakes.redis_server import RedisServer, redis_server  # noqa: F401  # a fixture
from tests.fakes.sshd import find_sshd, running_sshd, unused_port
from tests.job_files import PAUSED, TRIVIAL, write_job
from tests.json_output import parsed
from tests.next_release import VERSION, make_environment, make_next_release
from tests.waiting import PATIENCE_S

ABSENT = "127.0.0.2"
"""Where nobody listens: the sshd is at 127.0.0.1 only."""


def command(conf: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command with the hosts' configuration."""
    words = [word for word in arguments if not word.startswith("-")][: 2 if arguments[0] in GROUPS else 1]
    rest = arguments[len(words) :]
    whole = [sys.executable, "-m", "runtime.cluster", *words, "--config", str(conf), *rest]
    return subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """What became of each host's roles."""
    assert done.returncode == 1, done.stderr  # for that of the absent one
    return {(each["host"], each["role"]): each for each in parsed(("start",), done.stdout)["hosts"]}


def upgrade(conf: Path, *arguments: str) -> dict[tuple[str, str], tuple[bool, str, list[str]]]:
    """Upgrade all hosts; returns what became of each host's roles, and the processes that were to be exchanged."""
    done = command(conf, "cluster", "upgrade", "--hosts", "--json", *arguments)
    assert done.returncode == 1, done.stderr  # for that of the absent one
    found = parsed(("cluster", "upgrade"), done.stdout)["hosts"]
    return {
        (each["host"], each["role"]): (each["ok"], each["detail"], [step["process"] for step in each["steps"]])
        for each in found
    }


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def upgrade_there_and_back(conf: Path, scratch: Path) -> None:
    """Upgrade the hosts to another release and back; a job runs on each mixture, and another one all the time."""
    environment = make_environment(scratch / "venv", make_next_release(scratch / "next"))
    to = f"--to={environment}"
    job, gate = write_job(scratch, TRIVIAL), scratch / "gate"
    waiting = write_job(scratch, PAUSED, "waiting.py")
    held = command(conf, "job", "run", "--detach", str(waiting), str(gate)).stdout.strip()
    part = Cluster(scratch / "run" / "task-executor")
    await_value(Path(f"{gate}.began").exists)

    def kept() -> tuple[list[int], list[str]]:
        """The process that keeps the TaskExecutors, a worker and the other job's task; programs of the first two."""
        found = parsed(("job", "info"), command(conf, "job", "info", "--json", held).stdout)
        assert (found["state"], found["restarts"]) == ("RUNNING", 0), found
        keeper = psutil.Process(next(pid for pid in part.processes() if "runtime.cluster.host" in words_of(pid)))
        [worker] = keeper.children()
        own = keeper.pid, worker.pid
        return [*own, *part.tasks_of(held)], [words_of(pid)[0] for pid in own]

    def versions() -> tuple[str, str]:
        assert command(conf, "job", "run", str(job)).stdout == "sum 499500\n"
        status = parsed(("status",), command(conf, "status", "--json").stdout)
        [executor] = status["task_executors"]
        return status["cluster"]["version"], executor["version"]

    plan = upgrade(conf, "--dry-run", to)
    assert list(plan) == [("127.0.0.1", "master"), ("127.0.0.1", "task-executor"), (ABSENT, "task-executor")]
    master, executor = ["master"], ["taskmanager-127.0.0.1-0"]
    assert [steps for _, _, steps in plan.values()] == [master, executor, []]
    assert [ok for ok, _, _ in plan.values()] == [True, True, False]
    assert "onnection refused" in plan[ABSENT, "task-executor"][1]

    for words, says in (
        (("--hosts", to), "the master of 127.0.0.1 is the only one that answers"),
        (("--role", "task-executor", to), "TaskExecutors follow the masters"),
        (("--role", "master", "--rollback"), "there is no upgrade to undo"),
        (("--hosts", f"--to={job}"), "take no wheel"),
        ((), "the masters here belong to a cluster on several hosts"),
    ):
        refused = command(conf, "cluster", "upgrade", *words)
        assert (refused.returncode, says in refused.stderr) == (1, True), refused.stderr
    assert versions() == (__version__, __version__)

    before, old = kept()
    done = upgrade(conf, "--yes", to)
    assert [detail for _, detail, _ in done.values()][:2] == ["exchanged", "exchanged"], done
    assert versions() == (VERSION, VERSION)
    new = str(environment / "bin" / "python")
    assert kept() == (before, [new, new]) != (before, old), "all were handed over"
    again = upgrade(conf, to)
    assert [detail for _, detail, _ in again.values()][:2] == ["runs it already", "runs it already"]

    back = command(conf, "cluster", "upgrade", "--hosts", "--rollback", "--masters-only", "--yes")
    assert back.returncode == 0, back.stderr
    assert versions() == (__version__, VERSION)
    done = upgrade(conf, "--rollback")
    assert [detail for _, detail, _ in done.values()][:2] == ["runs it already", "exchanged"], done
    assert versions() == (__version__, __version__)
    assert kept() == (before, old), "and handed back"
    gate.touch()
    await_value(lambda: "FINISHED" in command(conf, "job", "info", held).stdout)


@pytest.mark.parametrize("upgrades", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_roles_are_started_and_stopped_over_ssh_and_the_absent_host_is_named(
    tmp_path: Path,
    redis_server: RedisServer,  # noqa: F811
    *,
    upgrades: bool,
) -> None:
    program = find_sshd()
    if program is None:
        pytest.skip("there is no sshd (openssh-server)")
    run, conf = tmp_path / "run", tmp_path / "config.yaml"
    with running_sshd(program, tmp_path) as sshd:
        settings = {
            "cluster.runtime-dir": str(run),
            "cluster.start-timeout": "5 min",
            "high-availability.redis.url": redis_server.url,
            "jobmanager.rpc.port": str(unused_port()),
            "rest.port": "0",
            "spark.driver.memory": "1g",
            "taskmanager.spark.warm-up": "false",
            "taskmanager.spark.warm-up-queries": "0",
            "env.java.home": find_java().home,  # ssh passes no JAVA_HOME on
            "env.ssh.opts": shlex.join(sshd.options),
            "env.ssh.directory": str(ROOT),
        }
        conf.touch(mode=0o600)
        conf.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()))
        (tmp_path / "masters").write_text("127.0.0.1\n")
        (tmp_path / "workers").write_text(f"127.0.0.1\n{ABSENT}\n")
        try:
            started = outcomes(command(conf, "start", "--hosts", "--json"))
            assert started["127.0.0.1", "master"]["ok"], started
            assert started["127.0.0.1", "task-executor"]["ok"], started
            assert "onnection refused" in started[ABSENT, "task-executor"]["detail"]

            ran = command(conf, "job", "run", str(write_job(tmp_path, TRIVIAL)))
            assert ran.stdout == "sum 499500\n", ran.stderr
            views = parsed(("status",), command(conf, "status", "--json").stdout)["task_executors"]
            assert [view["task_executor"] for view in views] == ["taskmanager-127.0.0.1-0"]

            again = outcomes(command(conf, "start", "--hosts", "--json"))
            assert "already runs" in again["127.0.0.1", "master"]["detail"]

            if upgrades:
                upgrade_there_and_back(conf, tmp_path)

            wrong = tmp_path / "wrong"
            wrong.touch(mode=0o600)
            wrong.write_text("another secret, of another cluster")
            own = ("-D", f"cluster.runtime-dir={tmp_path / 'stranger'}", "-D", f"security.secret-file={wrong}")
            refused = command(conf, "start", "--role", "task-executor", "-D", "high-availability.type=none", *own)
            assert refused.returncode == 1
            assert "does not hold this cluster's secret" in refused.stderr
            assert "Traceback" not in refused.stderr
        finally:
            stopped = outcomes(command(conf, "stop", "--hosts", "--json"))
        assert stopped["127.0.0.1", "master"]["ok"], stopped
        assert stopped["127.0.0.1", "task-executor"]["ok"], stopped
    assert Cluster(run).processes() == Cluster(run / "task-executor").processes() == {}
    assert not (run / "cluster.json").exists()
