"""`RemoteDriver`: an existing Spark Connect endpoint instead of a driver JVM of the cluster.

It runs pipelines, each task in its own session. It rejects scripts, which attach to the JVM itself by Py4J. It also
rejects streaming queries, whose state and sinks the runtime could not look after.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.driver.api import (
    ActiveQueries,
    DriverInfo,
    SparkDriver,
    SparkEndpoint,
    StoppedQueries,
    StreamingQueryInfo,
)
from runtime.spark.driver.connection import Connection, new_pool
from runtime.spark.driver.launch import inherited_environment
from runtime.spark.driver.local import LocalDriver
from runtime.spark.errors import DriverStartError, UnsupportedByEndpointError
from runtime.spark.process import die_with, start_time
from runtime.spark.spec import CONNECT_USER, ConnectEndpoint

if TYPE_CHECKING:
    from runtime.spark.driver.connect_endpoint import ConnectService


REMOTE_VARIABLE = "UNDERSTUDY_REMOTE"
INTERVAL_VARIABLE = "UNDERSTUDY_REMOTE_INTERVAL"
FAILURES_VARIABLE = "UNDERSTUDY_REMOTE_FAILURES"
_START_TIMEOUT_S = 60.0
_SESSIONS = "sessions"
"""Directory with a file for each session that a task may have open; a successor releases these sessions."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Settings for the watch of an endpoint.

    Args:
        work_dir: for `driver.json`, created if missing (0700).
        log_file: log of the monitor.
        url: its connection string.
        shown: the part of the connection string that may be shown.
        interval_s: seconds between two checks.
        failures: number of unanswered checks in a row after which the endpoint is lost.
    """

    work_dir: Path
    log_file: Path
    url: str = field(repr=False)
    shown: str
    interval_s: float = 1.0
    failures: int = 2


def shown_url(url: str) -> str:
    """Return scheme, host and port of a connection string, which may be shown; the rest may hold a token."""
    return f"sc://{urlsplit(url).netloc.rpartition('@')[2]}"


def check_remote(url: str) -> str:
    """Return a line that says that an endpoint answers. Raises `DriverStartError` if it does not."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "runtime.spark.driver.connect_endpoint", "--once"],
            env=_environment(url),
            cwd=Path(__file__).resolve().parents[3],
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DriverStartError("the Spark Connect endpoint of spark.remote does not answer: is it one?") from None
    return f"Spark {_version(done.stdout, done.stderr)} answers"


def _environment(url: str) -> dict[str, str]:
    return inherited_environment() | {REMOTE_VARIABLE: url, "no_grpc_proxy": "localhost"}


def _version(said: str, complaint: str) -> str:
    line = said.partition("\n")[0]
    if not line or line.startswith("error: "):
        reason = line.removeprefix("error: ") or (complaint.strip().splitlines() or ["it says nothing"])[-1]
        raise DriverStartError(reason)
    return line


class RemoteDriver:
    """The `SparkDriver` of an external endpoint. Its process is the endpoint's monitor."""

    is_ours = False
    has_streaming = False

    def __init__(self, monitor: Connection[_LazyService]) -> None:
        self.info = monitor.info
        self._monitor = monitor
        self._sessions = Path(self.info.work_dir) / _SESSIONS

    @classmethod
    async def watch(cls, options: RemoteOptions) -> RemoteDriver:
        """Watch an endpoint that answers, from a process that dies with this one, and write its `driver.json`.

        Call it on the main thread. Raises `DriverStartError`.
        """
        options.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        monitor = _spawn(options)
        assert monitor.stdout is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                version = _version((await asyncio.to_thread(monitor.stdout.readline)).decode(), "")
            started = start_time(monitor.pid)
            if started is None:
                raise DriverStartError(f"the monitor of {options.shown} has ended; see {options.log_file}")
        except BaseException as error:
            monitor.kill()
            await asyncio.to_thread(monitor.wait)
            if isinstance(error, TimeoutError):
                raise DriverStartError(f"the Spark Connect endpoint {options.shown} does not answer") from None
            raise
        info = DriverInfo(
            pid=monitor.pid,
            start_time=started,
            spark_version=version,
            master=options.shown,
            work_dir=str(options.work_dir),
            log_file=str(options.log_file),
            remote=options.url,
        )
        info.write()
        return cls(Connection(info, _LazyService(info.remote), new_pool(), child=monitor))

    @classmethod
    async def adopt(cls, info: DriverInfo) -> RemoteDriver:
        """Take over an endpoint that a monitor watches already. Raises `DriverLostError`."""
        return cls(Connection(info, _LazyService(info.remote), new_pool()))

    @property
    def loss(self) -> str:
        return self._monitor.loss

    @property
    def alive(self) -> bool:
        return self._monitor.alive

    async def wait_dead(self, timeout: float | None = None) -> bool:
        return await self._monitor.wait_dead(timeout)

    async def ping(self) -> bool:
        await self._monitor.call(self._monitor.gateway.ask_version)
        return True

    async def jvm_figures(self) -> dict[str, int] | None:
        return None

    async def cores(self) -> int | None:
        return None

    async def warm_up(self) -> None:
        """Do nothing: the endpoint runs already."""

    async def reset(self, kept: Collection[SparkEndpoint] = ()) -> None:
        """Release the sessions that a former owner's tasks left."""
        for file in self._sessions.glob("*"):
            await self.release(self._session(file.name))

    def kill(self, why: str = "") -> None:
        self._monitor.kill(why)

    async def stop(self, timeout: float = 10.0) -> None:
        await self._monitor.stop(timeout)

    async def close(self) -> None:
        await self._monitor.close()

    async def open(
        self, kind: JobKind, name: str, *, output: Path | None = None, isolated: bool = False
    ) -> SparkEndpoint:
        """Name a new session. The endpoint decides whether the session's files are isolated, as they are by default."""
        if kind is not JobKind.PIPELINE:
            raise UnsupportedByEndpointError(
                f"the Spark Connect endpoint {self.info.master} runs no scripts, which need Spark's driver: "
                "make it a pipeline (docs/pipelines.md), or use a cluster without spark.remote"
            )
        endpoint = self._session(str(uuid.uuid4()))
        self._sessions.mkdir(mode=0o700, exist_ok=True)
        (self._sessions / endpoint.session_id).touch(mode=0o600)
        return endpoint

    async def open_for_client(self, session_id: str, user_id: str) -> ConnectEndpoint:
        raise UnsupportedByEndpointError(
            f"the cluster has no Spark drivers of its own: connect to its endpoint {self.info.master} directly"
        )

    def _session(self, session_id: str) -> ConnectEndpoint:
        return ConnectEndpoint(0, "", session_id, CONNECT_USER, self.info.remote)

    async def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        return {}  # its sessions reject such settings themselves

    async def load_tables(self) -> None:
        """Do nothing: the catalog belongs to the endpoint."""

    async def save_tables(self) -> None:
        """Do nothing: the catalog belongs to the endpoint."""

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        return False

    async def ended_jobs(self, endpoint: ConnectEndpoint, most: int) -> list[EndedSparkJob]:
        return []

    async def release(self, endpoint: SparkEndpoint, *, interrupted: bool = True, patience: float = math.inf) -> None:
        """Interrupt and close a session; the endpoint has to end any work that still runs after that."""
        if isinstance(endpoint, ConnectEndpoint):
            await self._monitor.call(self._monitor.gateway.release_session, endpoint.session_id)
            (self._sessions / endpoint.session_id).unlink(missing_ok=True)

    async def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        return []

    async def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        return []

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        return StoppedQueries()

    async def lock_file(self, path: Path, owner: str) -> bool:
        """Return False: no files are locked there."""
        return False

    async def unlock_files(self, owner: str) -> None:
        """Do nothing: no file is locked."""


class _LazyService:
    """The calls that `RemoteDriver` makes to an endpoint; the first one imports PySpark, on its thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._service: ConnectService | None = None

    def ask_version(self) -> None:
        session_id = str(uuid.uuid4())
        self._opened().version(session_id)
        self._opened().release(session_id)

    def release_session(self, session_id: str) -> None:
        self._opened().interrupt(session_id)
        self._opened().release(session_id)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()

    def _opened(self) -> ConnectService:
        from runtime.spark.driver.connect_endpoint import ConnectService

        with self._lock:
            self._service = self._service or ConnectService(self._url)
        return self._service


async def adopt_driver(file: Path) -> SparkDriver:
    """Take over the driver of a `driver.json`, local or remote. Raises `DriverLostError`."""
    info = DriverInfo.read(file)
    return await (RemoteDriver.adopt(info) if info.remote else LocalDriver.adopt(info))


def _spawn(options: RemoteOptions) -> subprocess.Popen[bytes]:
    log = os.open(options.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    parent = os.getpid()
    settings = {INTERVAL_VARIABLE: str(options.interval_s), FAILURES_VARIABLE: str(options.failures)}
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "runtime.spark.driver.connect_endpoint"],
            env=_environment(options.url) | settings,
            cwd=Path(__file__).resolve().parents[3],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )
    finally:
        os.close(log)
