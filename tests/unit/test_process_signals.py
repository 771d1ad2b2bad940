"""A signal to a process that is known by its number reaches that process, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.cluster import host_processes
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.process_signals import signal_process

WAITS = "import sys, time; print('begun', flush=True); sys.stdin.read()"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        made.kill()


def test_it_is_sent_to_the_process_that_is_meant(process: subprocess.Popen[str]) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    assert not signal_process(process.pid, signal.SIGTERM, lambda: False), "another process has the number"
    assert signal_process(process.pid, signal.SIGINT, lambda: True)
    assert process.wait() == -signal.SIGINT
    assert not signal_process(process.pid, signal.SIGTERM, lambda: True), "it has ended"
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_process_that_ends_while_it_is_checked_gets_none(process: subprocess.Popen[str]) -> None:
    def ends() -> bool:
        process.kill()
        process.wait()
        return True

    assert not signal_process(process.pid, signal.SIGTERM, ends)


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ProcessLookupError])
def test_a_process_that_shows_nothing_is_not_the_one_that_is_meant(error: type[OSError]) -> None:
    """The process has ended, or another user's process has its number now."""

    def is_meant() -> bool:
        raise error("/proc/1/environ")

    assert not signal_process(os.getpid(), signal.SIGTERM, is_meant)


def test_a_sweep_spares_a_process_that_has_got_the_number_of_one_of_the_clusters(
    process: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    looks = iter([[process.pid], [process.pid]])  # as they were listed; the process with the mark has ended since
    monkeypatch.setattr(host_processes, "processes_of", lambda _: next(looks, []))
    host_processes.sweep(directory)
    process.communicate()  # ends its input
    assert process.returncode == 0


def test_a_sweep_ends_the_processes_of_the_cluster(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    environment = {**os.environ, CLUSTER_DIR_VARIABLE: str(directory.root)}
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env=environment) as made:
        while made.pid not in host_processes.processes_of(directory):  # until it has its environment
            assert made.poll() is None
        assert host_processes.sweep(directory) == 1
        assert made.wait() == -signal.SIGTERM
