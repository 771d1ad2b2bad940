"""A forked command does what one in a Python of its own does: the harness may use it in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_server import COMMANDS, ROOT
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("nonsense",),
        ("status", "-D", "cluster.runtime-dir=nowhere"),
        ("queue", "check", "queues.yaml"),
        ("status", "--config", "there.yaml"),
    ],
    ids=" ".join,
)
def test_status_and_output_are_those_of_a_process_of_its_own(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "there.yaml").write_text(f"cluster.runtime-dir: {tmp_path / 'there'}\n")
    (tmp_path / "queues.yaml").write_text("queues: {urgent: {slots: 0}}\n")
    env = {**os.environ, "UNDERSTUDY_TEST": "x" * 100_000}
    forked = COMMANDS.run(arguments, cwd=tmp_path, env=env, timeout=PATIENCE_S)
    own = subprocess.run(
        [sys.executable, "-m", "understudy", *arguments],
        cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)


def test_the_environment_is_the_callers(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"cluster.runtime-dir: {tmp_path / 'there'}\n")
    env = {**os.environ, "UNDERSTUDY_CONF_DIR": str(tmp_path)}
    done = COMMANDS.run(["status"], cwd=ROOT, env=env, timeout=PATIENCE_S)
    assert f"no cluster runs in {tmp_path / 'there'}" in done.stderr
    assert str(tmp_path) not in COMMANDS.run(["status"], cwd=ROOT, env=os.environ, timeout=PATIENCE_S).stderr


def test_a_command_that_does_not_end_is_killed_and_others_go_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "queues.yaml")  # nobody writes into it
    with pytest.raises(subprocess.TimeoutExpired):
        COMMANDS.run(["queue", "check", "queues.yaml"], cwd=tmp_path, env=os.environ, timeout=0.5)
    assert COMMANDS.run(["--version"], cwd=tmp_path, env=os.environ, timeout=PATIENCE_S).returncode == 0


def test_variables_of_python_are_heeded(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONWARNINGS": "error::nonsense"}
    done = COMMANDS.run(["--version"], cwd=tmp_path, env=env, timeout=PATIENCE_S)
    assert "Invalid -W option ignored" in done.stderr
