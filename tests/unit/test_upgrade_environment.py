"""The environment to which `cluster upgrade --rollback` returns: which one is kept, and when."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.cluster.upgrade_environment import Environment, FormerEnvironment
from runtime.cluster.upgrade_plan import ClusterState, PlannedProcess, RunningMaster, UpgradeRefusedError
from runtime.environment.directory import ClusterDirectory
from runtime.feature_level import FeatureLevels, Release


def running(*versions: str) -> ClusterState:
    """A cluster whose masters run these versions; each is this process."""
    releases = [Release(version, FeatureLevels(1, 1)) for version in versions]
    return ClusterState(1, tuple(RunningMaster(f"master-{n}", os.getpid(), each) for n, each in enumerate(releases)))


def exchanged(version: str, target: str = "9.9.9") -> PlannedProcess:
    return PlannedProcess("master", os.getpid(), version, target, "")


@pytest.fixture
def directory(tmp_path: Path) -> ClusterDirectory:
    made = ClusterDirectory(tmp_path / "c")
    made.create()
    return made


def version_kept(directory: ClusterDirectory) -> str | None:
    former = FormerEnvironment.read(directory)
    return former and former.version


def test_the_environment_of_the_first_exchanged_master_is_kept_until_no_process_runs_it(
    directory: ClusterDirectory,
) -> None:
    FormerEnvironment.keep(directory, exchanged("0.1.0"), running("0.1.0", "0.1.0"))
    assert version_kept(directory) == "0.1.0"
    FormerEnvironment.keep(directory, exchanged("0.2.0"), running("0.2.0", "0.1.0"))
    assert version_kept(directory) == "0.1.0", "an interrupted upgrade to 0.2.0 went on to 0.3.0"
    FormerEnvironment.keep(directory, exchanged("0.2.0"), running("0.2.0", "0.2.0"))
    assert version_kept(directory) == "0.2.0"
    assert stat.S_IMODE(directory.upgraded_from.stat().st_mode) == 0o600


@pytest.mark.parametrize("program", [sys.executable, "bin/python", "python"])
def test_it_is_the_interpreter_and_the_path_of_the_process(
    directory: ClusterDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    variables = {"PATH": f"{tmp_path}/bin", "PYTHONPATH": "/packages"}
    with subprocess.Popen(
        [program, "-c", "print(flush=True); input()"],
        executable=sys.executable,
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as master:
        assert master.stdout is not None
        assert master.stdout.readline() == b"\n"
        step = replace(exchanged("0.1.0"), pid=master.pid)
        FormerEnvironment.keep(directory, step, running("0.1.0"))
        master.communicate(b"\n")
    former = FormerEnvironment.read(directory)
    assert former is not None
    environment = Environment(Path(former.python), former.path)
    expected = sys.executable if program == sys.executable else f"{tmp_path}/bin/python"
    assert environment == Environment(Path(expected), "/packages")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    told = environment.run(["-c", "import os; print(os.environ['PYTHONPATH'])"], 60)
    assert told.stdout == "/packages\n", "the path of this command is not a part of it"


def test_an_interrupted_return_is_not_forgotten(directory: ClusterDirectory) -> None:
    FormerEnvironment.keep(directory, exchanged("0.1.0", "0.2.0"), running("0.1.0", "0.1.0"))
    FormerEnvironment.keep(directory, exchanged("0.2.0", "0.1.0"), running("0.2.0", "0.2.0"))
    assert version_kept(directory) == "0.1.0"


def test_a_master_that_has_just_ended_tells_nothing(directory: ClusterDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as master:
        master.wait()
    FormerEnvironment.keep(directory, replace(exchanged("0.1.0"), pid=master.pid), running("0.1.0"))
    assert version_kept(directory) is None


def test_a_field_of_a_later_release_is_ignored(directory: ClusterDirectory) -> None:
    directory.upgraded_from.write_text('{"version": "0.1.0", "python": "/p", "path": "", "later": 1}')
    assert version_kept(directory) == "0.1.0"


def test_an_environment_whose_release_was_exchanged_in_place_is_refused(directory: ClusterDirectory) -> None:
    own = Environment.of(None)
    directory.upgraded_from.write_text(json.dumps({"version": "0.1.0", "python": str(own.python), "path": own.path}))
    with pytest.raises(UpgradeRefusedError, match=r"ran Understudy 0\.1\.0 before, and .* has Understudy") as refused:
        FormerEnvironment.required(directory)
    assert "--to" in refused.value.remedy


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]"])
def test_without_a_note_there_is_nothing_to_return_to(directory: ClusterDirectory, content: bytes | None) -> None:
    if content is not None:
        directory.upgraded_from.write_bytes(content)
    with pytest.raises(UpgradeRefusedError, match="there is no upgrade to undo") as refused:
        FormerEnvironment.required(directory)
    assert "--to" in refused.value.remedy


def test_a_stopped_cluster_has_nothing_to_return_to(directory: ClusterDirectory) -> None:
    FormerEnvironment.keep(directory, exchanged("0.1.0"), running("0.1.0"))
    directory.clean()
    assert version_kept(directory) is None
