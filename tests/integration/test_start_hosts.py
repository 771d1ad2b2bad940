"""A cluster that is started on its hosts over ssh, by a real sshd; the hosts are this one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_harness import GROUPS, ROOT, Cluster
from tests.fakes.sshd import find_sshd, running_sshd, unused_port
from tests.job_files import TRIVIAL, write_job
from tests.json_output import parsed
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


def test_roles_are_started_and_stopped_over_ssh_and_the_absent_host_is_named(tmp_path: Path) -> None:
    program = find_sshd()
    if program is None:
        pytest.skip("there is no sshd (openssh-server)")
    run, conf = tmp_path / "run", tmp_path / "config.yaml"
    with running_sshd(program, tmp_path) as sshd:
        settings = {
            "cluster.runtime-dir": str(run),
            "cluster.start-timeout": "5 min",
            "high-availability.type": "none",
            "jobmanager.rpc.port": str(unused_port()),
            "rest.port": "0",
            "spark.driver.memory": "1g",
            "env.ssh.opts": shlex.join(sshd.options),
            "env.ssh.directory": str(ROOT),
        }
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

            whole = command(conf, "cluster", "upgrade", "--dry-run")
            assert whole.returncode == 1
            assert "the masters here belong to a cluster on several hosts" in whole.stderr
            assert "stop --role master" in whole.stderr

            wrong = tmp_path / "wrong"
            wrong.touch(mode=0o600)
            wrong.write_text("another secret, of another cluster")
            own = ("-D", f"cluster.runtime-dir={tmp_path / 'stranger'}", "-D", f"security.secret-file={wrong}")
            refused = command(conf, "start", "--role", "task-executor", *own)
            assert refused.returncode == 1
            assert "does not hold this cluster's secret" in refused.stderr
            assert "Traceback" not in refused.stderr
        finally:
            stopped = outcomes(command(conf, "stop", "--hosts", "--json"))
        assert stopped["127.0.0.1", "master"]["ok"], stopped
        assert stopped["127.0.0.1", "task-executor"]["ok"], stopped
    assert Cluster(run).processes() == Cluster(run / "task-executor").processes() == {}
    assert not (run / "cluster.json").exists()
