"""Spark's own History Server, run on a directory of event logs from pyspark's jars.

It listens on a free port of loopback. Spark's `JWSFilter` serves only requests with a token that is signed with a key
of this run, as `runtime.spark.driver.ui` describes. The key is in a file of mode 0600 and in this process, and on no
command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from conf.files import write_private
from runtime.spark.driver.java import Java, find_java
from runtime.spark.driver.launch import (
    LOOPBACK,
    class_path,
    inherited_environment,
    java_command,
    log_configuration,
    module_options,
    spark_home,
)
from runtime.spark.driver.ui import KEY_SIZE, filter_settings, token
from runtime.spark.errors import HistoryServerError
from runtime.spark.process import die_with

LOG_DIRECTORY = "spark.history.fs.logDirectory"
_CLASS = "org.apache.spark.deploy.history.HistoryServer"
_MEMORY = "1g"
_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 10.0


def properties(given: Mapping[str, str], logs: str, key: bytes) -> dict[str, str]:
    """Return the History Server's settings.

    Args:
        given: a user's own settings; those of the port and of the filter do not count.
        logs: URL of the directory of event logs.
        key: with which tokens are signed.
    """
    defaults = {
        LOG_DIRECTORY: logs,
        "spark.history.fs.update.interval": "2s",
        "spark.history.ui.title": "Understudy: Spark's history",
    }
    fixed = {
        "spark.history.ui.port": "0",
        "spark.history.fs.cleaner.enabled": "false",  # the cluster bounds its event logs itself
        **filter_settings({}, key),
    }
    return {**defaults, **given, **fixed}


def as_file(settings: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file; values may have any characters."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    """Return a key or a value in which Java finds no separator, comment or escape of its own."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-/,") else _unicode(each) for each in text)


def _unicode(character: str) -> str:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{encoded[at : at + 2].hex()}" for at in range(0, len(encoded), 2))


def command(
    java: Java, jars: Iterable[Path], directory: Path, log_file: Path, settings: Mapping[str, str]
) -> list[str]:
    """Write the JVM's files into its directory, and return its command line. Raises OSError.

    Args:
        java: that runs it.
        jars: Spark's.
        directory: see `HistoryServer.start`.
        log_file: for its log.
        settings: see `properties`; one of them is the key.
    """
    settings_file, log4j = directory / "history.properties", directory / "log4j2.properties"
    write_private(settings_file, as_file(settings).encode())
    write_private(log4j, log_configuration(log_file, 16 << 20, 1).encode())
    (directory / "tmp").mkdir(mode=0o700)
    arguments = [
        f"-Xmx{_MEMORY}",
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        *module_options(java),
        "-cp",
        os.pathsep.join(map(str, jars)),
        _CLASS,
        "--properties-file",
        str(settings_file),
    ]
    return java_command(java, directory, arguments)


class HistoryServer:
    """A running History Server, a child process that ends with this one.

    Attributes:
        pid: of its JVM.
        port: on loopback.
    """

    def __init__(self, child: subprocess.Popen[bytes], port: int, key: bytes) -> None:
        self.pid = child.pid
        self.port = port
        self._child = child
        self._key = key

    @classmethod
    async def start(
        cls,
        logs: str,
        directory: Path,
        log_file: Path,
        given: Mapping[str, str],
        java_home: str | None,
        patience_s: float,
    ) -> HistoryServer:
        """Start it, and wait until it serves all its paths. Call it on the main thread, see `die_with`.

        Args:
            logs: URL of the directory of event logs.
            directory: for its own files, of which one has the key; private to this user.
            log_file: for its log. What the JVM prints goes to a file beside it with the suffix ``.out``.
            given: a user's settings of Spark, see `properties`.
            java_home: the configured Java; None to find one.
            patience_s: seconds in which it has to serve.

        Raises:
            HistoryServerError: it ended, or did not serve in time.
            SparkError: there is no Java or no Spark.
        """
        java = find_java(java_home)
        key = secrets.token_bytes(KEY_SIZE)
        arguments = command(java, class_path(), directory, log_file, properties(given, logs, key))
        environment = inherited_environment() | {
            "JAVA_HOME": java.home,
            "SPARK_HOME": str(spark_home()),
            "SPARK_ENV_LOADED": "1",
            "SPARK_LOCAL_IP": LOOPBACK,
        }
        child = _spawn(arguments, environment, directory, log_file.with_suffix(".out"))
        deadline = time.monotonic() + patience_s
        try:
            port = await _listening_port(child, log_file, deadline)
            await _await_paths(child, port, key, log_file, deadline)
            return cls(child, port, key)
        except BaseException:
            child.kill()
            child.wait()
            raise

    def token(self) -> str:
        """Return a token for a request that is sent now."""
        return token(self._key, time.time())

    @property
    def lives(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        """End it, and wait until it has ended. It keeps nothing that it would have to write."""
        self._child.kill()
        self._child.wait()


def _spawn(command: list[str], environment: dict[str, str], directory: Path, output: Path) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )
    except OSError as error:
        raise HistoryServerError(f"{command[0]} could not be started: {error}") from error
    finally:
        os.close(descriptor)


async def _listening_port(child: subprocess.Popen[bytes], log_file: Path, deadline: float) -> int:
    """Wait until the process listens, and return its port as the kernel knows it, so that it is no other's."""
    process = psutil.Process(child.pid)
    while True:
        _check(child, log_file, deadline)
        listening = []
        with contextlib.suppress(psutil.Error):  # it has just ended
            listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        if listening:
            return int(listening[0].laddr.port)
        await asyncio.sleep(_POLL_S)


async def _await_paths(child: subprocess.Popen[bytes], port: int, key: bytes, log_file: Path, deadline: float) -> None:
    """Wait until it serves all its paths.

    Spark listens first, and then adds one path after the other. Until then its first page answers for the others, with
    status 200.
    """
    while True:
        _check(child, log_file, deadline)
        if await asyncio.to_thread(_serves, port, token(key, time.time())):
            return
        await asyncio.sleep(_POLL_S)


def _serves(port: int, shown: str) -> bool:
    """Return whether the API and the pages of applications, which Spark adds last, are served."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_TIMEOUT_S)
    try:
        found = []
        for path in ("/api/v1/version", "/history/none/jobs/"):
            connection.request("GET", path, headers={"Authorization": f"Bearer {shown}"})
            answer = connection.getresponse()
            answer.read()
            found.append((answer.status, (answer.getheader("content-type") or "").partition(";")[0]))
        return found[0] == (200, "application/json") and found[1][0] == 404
    except (OSError, http.client.HTTPException):  # it does not answer yet
        return False
    finally:
        connection.close()


def _check(child: subprocess.Popen[bytes], log_file: Path, deadline: float) -> None:
    """Raise HistoryServerError if the process has ended, or does not serve in time."""
    if child.poll() is not None:
        raise HistoryServerError(
            f"Spark's History Server ended at once (status {child.returncode}); see {log_file} and "
            f"{log_file.with_suffix('.out')}"
        )
    if time.monotonic() > deadline:
        raise HistoryServerError(f"Spark's History Server did not serve in time; see {log_file}")
