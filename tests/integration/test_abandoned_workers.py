"""Python workers whose connection the JVM has closed are killed, and no other process that the JVM has started."""

from __future__ import annotations

import subprocess
import sys

import psutil

from runtime.spark.driver.local import kill_abandoned
from tests.cluster_harness import await_value

DRIVER = """\
import os, socket, subprocess, sys

server = socket.create_server(("127.0.0.1", 0))
closed = socket.create_connection(server.getsockname())
server.accept()[0].close()
closed.recv(1)  # from now on it is in CLOSE_WAIT

worker = {**os.environ, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"}
for environment, kept in ((worker, [closed.fileno()]), (worker, []), (os.environ, [closed.fileno()])):
    child = subprocess.Popen(["cat"], pass_fds=kept, env=environment, stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
closed.close()
sys.stdin.read()
"""


def test_only_python_workers_are_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with driver:  # its end closes the input of all
        assert driver.stdout is not None
        abandoned, worker, starting = (psutil.Process(int(driver.stdout.readline())) for _ in range(3))
        assert kill_abandoned(driver.pid) == f"Python worker {abandoned.pid}"
        await_value(lambda: abandoned.status() == psutil.STATUS_ZOMBIE)
        assert psutil.STATUS_ZOMBIE not in {worker.status(), starting.status()}
