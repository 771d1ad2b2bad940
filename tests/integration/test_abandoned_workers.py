"""Python workers whose connection the JVM has closed are killed, and no other process that the JVM has started."""

from __future__ import annotations

import subprocess
import sys

import psutil

from runtime.spark.driver.local import kill_abandoned
from tests.cluster_harness import await_value

DRIVER = """\
import os, socket, subprocess, sys

DAEMON = '''
import os, socket, subprocess, sys

def closed_of(server):  # accepted there, and closed by the other end: it is in CLOSE_WAIT
    client = socket.create_connection(server.getsockname())
    accepted = server.accept()[0]
    client.close()
    accepted.recv(1)
    return accepted

sparks, others = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
of_spark, of_the_job = closed_of(sparks), closed_of(others)
others.close()
for kept in (of_spark, of_the_job, sparks):
    child = subprocess.Popen(["cat"], pass_fds=[kept.fileno()], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
of_spark.close(), of_the_job.close()
sys.stdin.read()
'''
worker = {**os.environ, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"}
for environment in (worker, os.environ):
    subprocess.Popen([sys.executable, "-c", DAEMON], env=environment)
sys.stdin.read()
"""


def test_only_python_workers_whose_connection_the_jvm_has_closed_are_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with driver:  # its end closes the input of all
        assert driver.stdout is not None
        found = [psutil.Process(int(driver.stdout.readline())) for _ in range(6)]
        workers = [process for process in found if process.environ().get("SPARK_PYTHON_RUNTIME")]
        abandoned, *others = workers
        assert kill_abandoned(driver.pid) == f"Python worker {abandoned.pid}"
        await_value(lambda: abandoned.status() == psutil.STATUS_ZOMBIE)
        living = {process.status() for process in found if process != abandoned}
        assert psutil.STATUS_ZOMBIE not in living
        assert len(others) == 2
