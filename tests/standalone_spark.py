"""A Spark standalone cluster of real processes on the loopback address, and what Spark's scripts need around them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from runtime.spark.driver.java import find_java, launcher_home
from tests.cluster_harness import ROOT, await_value
from tests.waiting import PATIENCE_S

SPARK_HOME = Path(pyspark.__file__).parent


def spark_environment(directory: Path) -> dict[str, str]:
    """That of a program whose Spark PySpark, or one of Spark's scripts, starts itself."""
    (directory / "scratch").mkdir()
    return {
        **os.environ,
        "JAVA_HOME": str(launcher_home(find_java(), directory / "java")),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(directory / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
    }


@dataclass(frozen=True)
class SparkDaemon:
    """A process, and what it logs."""

    log: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it; may be repeated."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def spark_daemon(directory: Path, environment: dict[str, str], name: str, *command: str) -> Iterator[SparkDaemon]:
    """One of Spark's processes, which is killed at the end."""
    log = directory / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    daemon = SparkDaemon(log, process)
    try:
        yield daemon
    finally:
        daemon.kill()


@contextlib.contextmanager
def standalone_spark(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master, and a worker of two cores that works in the directory ``work``; gives the master's URL."""

    def command(name: str, *arguments: str) -> list[str]:
        java_class = f"org.apache.spark.deploy.{name.lower()}.{name}"
        return ["spark-class", java_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(spark_daemon(directory, environment, "master", *command("Master"))).log
        url = str(await_value(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()))[0])
        room = ("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"))
        log = stack.enter_context(spark_daemon(directory, environment, "worker", *command("Worker", *room, url))).log
        await_value(lambda: "Successfully registered with master" in log.read_text())
        yield url


@contextlib.contextmanager
def connect_endpoint(
    directory: Path, environment: dict[str, str], token: str
) -> Iterator[tuple[str, Callable[[], None]]]:
    """A Spark Connect server that asks for a token; gives its URL without it, and what kills the server."""
    command = [
        "spark-submit",
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    with spark_daemon(
        directory,
        environment | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token, "SPARK_DAEMON_MEMORY": "768m"},
        "connect",
        *command,
        "spark-internal",
    ) as daemon:
        found = await_value(
            lambda: re.search(r"Connect server started at:.*:(\d+)", daemon.log.read_text()), PATIENCE_S
        )
        yield f"sc://localhost:{found[1]}", daemon.kill
