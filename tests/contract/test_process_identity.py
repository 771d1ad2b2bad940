"""What says whether a process lives: a zombie that has threads yet holds its files and locks, so it does."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from runtime.environment.descriptor import ProcessRecord
from runtime.spark.process import start_time
from tests.cluster_harness import await_value
from tests.processes import lives

FIRST_THREAD_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""
EXIT_OF_A_THREAD = {"x86_64": "60", "aarch64": "93"}[platform.machine()]


def as_recorded(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return ProcessRecord.of("worker", process.pid).is_alive


def as_spark_processes(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return lambda: start_time(process.pid) is not None


def as_tests(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return lambda: lives(process.pid)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", FIRST_THREAD_ENDS, EXIT_OF_A_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize("see", [as_recorded, as_spark_processes, as_tests])
def test_a_process_lives_until_its_last_thread_has_ended(
    process: subprocess.Popen[bytes], see: Callable[[subprocess.Popen[bytes]], Callable[[], bool]]
) -> None:
    seems_alive = see(process)
    await_value(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert seems_alive()
    assert process.stdin is not None
    process.stdin.close()
    await_value(lambda: psutil.Process(process.pid).num_threads() == 1)
    assert not seems_alive()
