"""`LocalDriver`: a driver JVM in its own process, which outlives the actor that uses it and can be adopted again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver import event_logs, ui
from runtime.spark.driver.api import DriverInfo, SparkEndpoint
from runtime.spark.driver.cds import sharing
from runtime.spark.driver.connection import Connection, new_pool, process_of, run_on
from runtime.spark.driver.gateway import DriverGateway
from runtime.spark.driver.java import Java, find_java
from runtime.spark.driver.jvm import LeftoverSparkWork
from runtime.spark.driver.jvm_driver import JvmDriver
from runtime.spark.driver.launch import (
    DriverOptions,
    await_connection,
    check_master,
    class_path,
    command,
    environment,
    prepare,
    spark_conf,
    spark_version,
    spawn,
)
from runtime.spark.driver.packages import PackageCache, PackageRequest
from runtime.spark.driver.state_writer import NewFamily, StatePlace
from runtime.spark.errors import DriverCallError, DriverLostError, DriverStartError, SparkError, StillRunningError
from runtime.spark.process import children_of, start_time
from runtime.spark.spec import CONNECT_USER, WORKER_VARIABLE, ClassicEndpoint, ConnectEndpoint

logger = logging.getLogger(__name__)

_ADOPTION_TIMEOUT = 10.0
_FETCH_MEMORY = "256m"
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""Java's option that saves a third of the processor time of a JVM which runs for seconds."""

_WAITING = (psutil.CONN_ESTABLISHED, psutil.CONN_SYN_SENT)
_PACKAGES = PackageCache()
_RELEASE_TRIES = 20
_RELEASE_PAUSE = 0.1
_LEFTOVER_PAUSE = 0.005
_RESET_PATIENCE = 60.0
_NOT_BEGUN = "EXECUTION_STATE_TRANSITION_INVALID_OPERATION_STATUS_MISMATCH"


class LocalDriver(JvmDriver):
    """The `SparkDriver` of the cluster's own JVM, which `start` starts or `adopt` takes over from another process.

    Args:
        jvm: its process, and the Py4J calls.
        alone: whether one task has this driver to itself.
    """

    is_ours = True

    def __init__(self, jvm: Connection[DriverGateway], *, alone: bool = False) -> None:
        super().__init__(jvm)
        if jvm.info.tables:
            self._gateway.keep_tables(Path(jvm.info.tables))
        self._alone = alone

    # --- life

    @classmethod
    async def start(
        cls,
        options: DriverOptions,
        *,
        alone: bool = False,
        thread_stays: bool = False,
        tell: Callable[[str], None] = logger.warning,
    ) -> LocalDriver:
        """Start a driver JVM and write its `driver.json`; 1.5 to 2.6 s with an archive of classes, 3 to 4.6 s without.

        With `die_with_parent`, call it on the main thread: the kernel sends the parent-death signal when the thread
        that forked ends. A cancelled call leaves no process.

        Args:
            options: the driver's.
            alone: whether one task has it to itself.
            thread_stays: whether the caller ensures that its thread outlives the driver.
            tell: called with a line for the user if the start has to wait for the fetch of another driver's packages.

        Raises:
            JavaNotFoundError, UnsupportedJavaError: there is no Java that fits.
            PackagesError: its packages cannot be fetched.
            DriverStartError: the JVM ended, or was not ready in time.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if options.die_with_parent and not (is_main or thread_stays):
            raise DriverStartError("a driver that is to die with this process must be started from its main thread")
        java = find_java(options.java_home)
        await asyncio.to_thread(check_master, options.master)
        options = await _with_packages(java, options, tell)
        conf = spark_conf(options)
        ui_key = secrets.token_bytes(ui.KEY_SIZE) if ui.is_served(conf) else b""
        if ui_key:
            conf |= ui.ui_settings(conf, ui_key)
        prepare(options)
        jars = class_path()
        shared = sharing(options.archive_dir, java, jars, options.work_dir)
        arguments = command(java, options, jars, list(shared.options))
        connection_file = options.work_dir / f".connection-{secrets.token_hex(8)}"
        token = secrets.token_hex(32)
        child = spawn(arguments, environment(java, options, connection_file, token), options)
        pool, gateway = new_pool(), None
        try:
            port, secret = await await_connection(child, connection_file, options)
            async with _limit(options):
                gateway = await run_on(pool, DriverGateway, port, secret)
                await run_on(pool, gateway.create_context, conf)
                connect_port = await run_on(pool, gateway.connect_port)
                shares_classes = await run_on(pool, gateway.shares_classes)
                application = await run_on(pool, gateway.application_id)
                ui_port = await run_on(pool, gateway.ui_port)
            if shared.archive is not None and not shares_classes:
                shared.reject()
            started = start_time(child.pid)
            if started is None:
                raise DriverStartError(f"the Spark driver's JVM ended while it started; see {options.log_file}")
            info = DriverInfo(
                pid=child.pid,
                start_time=started,
                spark_version=spark_version(),
                master=options.master,
                work_dir=str(options.work_dir),
                log_file=str(options.log_file),
                gateway_port=port,
                gateway_secret=secret,
                connect_port=connect_port,
                connect_token=token,
                java_home=java.home,
                java_version=java.version,
                class_list="" if shared.class_list is None else str(shared.class_list),
                tables="" if options.tables is None else str(options.tables),
                application=application,
                ui_port=ui_port,
                ui_key=ui_key.hex(),
            )
            if options.event_logs is not None and event_logs.is_written_to(options.event_logs, conf):
                event_logs.note_driver(options.event_logs, info.application, info.pid, started)
            driver = cls(Connection(info, gateway, pool, child=child), alone=alone)
        except BaseException as error:
            child.kill()
            await asyncio.get_running_loop().run_in_executor(None, child.wait)
            if gateway is not None:
                gateway.close()
            pool.shutdown(wait=False)
            if isinstance(error, SparkError) and not isinstance(error, DriverStartError):
                raise DriverStartError(f"the Spark driver did not start: {error}; see {options.log_file}") from error
            raise
        finally:
            connection_file.unlink(missing_ok=True)
        info.write()
        return driver

    @classmethod
    async def adopt(cls, info: DriverInfo | Path) -> LocalDriver:
        """Take over a living driver from its `driver.json`.

        Work of its former owner's tasks keeps running; see `reset`. Raises `DriverLostError` where the process has
        ended, where another process has its pid, or where it does not answer.
        """
        return cls(await connect(info, DriverGateway.attach))

    async def stop(self, timeout: float = 10.0) -> None:
        """End the JVM by SIGTERM, so that Spark removes its directories (0.6 s); by SIGKILL after `timeout` seconds."""
        await self._jvm.stop(timeout)

    def kill(self, why: str = "") -> None:
        self._jvm.kill(why)

    async def reset(self, kept: Collection[SparkEndpoint] = ()) -> None:
        """End everything that a former owner's tasks left running: servers, sessions, streaming queries, Spark jobs.

        Kills the driver if some of this work does not end, and raises `DriverLostError`.

        Args:
            kept: endpoints of tasks that run on. Work that belongs to no endpoint then stays too, since it may be
                theirs.
        """
        call, gateway = self._jvm.call, self._gateway
        names = {endpoint.name for endpoint in kept if isinstance(endpoint, ClassicEndpoint)}
        sessions = {endpoint.session_id for endpoint in kept if isinstance(endpoint, ConnectEndpoint)}
        try:
            for name in await call(gateway.classic_names):
                if name not in names:
                    await self._release(await call(gateway.release_classic, name, True), _RESET_PATIENCE)
            for session_id, user_id in await call(gateway.connect_sessions):
                if session_id not in sessions:
                    await self.release(self.new_session(session_id, user_id), patience=_RESET_PATIENCE)
        except StillRunningError as error:
            self.kill()
            raise DriverLostError(f"the Spark driver (process {self.info.pid}) was killed: {error}") from error
        if kept:
            return
        await call(gateway.stop_queries)
        await call(gateway.cancel_all)
        await call(gateway.close_ended_states)
        await call(gateway.unlock_files)

    async def warm_up(self) -> None:
        """Run one query in the JVM, which loads Spark's SQL engine; it needs no Python process."""
        await self._jvm.call(self._gateway.warm_up)

    async def repartition_state(self, location: Path, partitions: int, settings: Mapping[str, str]) -> None:
        """Repartition the state of a stopped streaming query; see `DriverGateway.repartition_state`."""
        await asyncio.to_thread(self._gateway.repartition_state, str(location), partitions, settings)  # takes long

    async def write_state(
        self,
        location: Path,
        batch_id: int,
        partitions: int,
        settings: Mapping[str, str],
        families: Sequence[NewFamily],
        former: StatePlace | None = None,
    ) -> None:
        """Write the state of a stopped streaming query again; see `DriverGateway.write_state`."""
        await asyncio.to_thread(self._gateway.write_state, location, batch_id, partitions, settings, families, former)

    async def unpack_files(self, files: Mapping[Path, Path], codec: str) -> None:
        """Decompress files that Spark has written; see `DriverGateway.unpack_files`."""
        await asyncio.to_thread(self._gateway.unpack_files, files, codec)

    # --- tasks

    async def open(
        self, kind: JobKind, name: str, *, output: Path | None = None, isolated: bool = False
    ) -> SparkEndpoint:
        if kind is JobKind.SCRIPT:
            return await self.open_classic(name, output)
        return await self.open_session(isolated=isolated)

    async def open_classic(self, name: str, output: Path | None = None) -> ClassicEndpoint:
        """Open a Py4J server with its own SQL session for a script (30 ms); `name` is the attempt's id."""
        return await self._jvm.call(self._gateway.open_classic, name, str(output or os.devnull), self._alone)

    async def open_session(self, *, isolated: bool = False) -> ConnectEndpoint:
        """Name a new Connect session for a task, and open it if it is *isolated*."""
        endpoint = self.new_session()
        if isolated:
            await self._jvm.call(self._gateway.open_session, endpoint)
        return endpoint

    async def open_for_client(self, session_id: str, user_id: str) -> ConnectEndpoint:
        endpoint = self.new_session(session_id, user_id)
        await self._jvm.call(self._gateway.open_session, endpoint)
        return endpoint

    def new_session(self, session_id: str | None = None, user_id: str = CONNECT_USER) -> ConnectEndpoint:
        """Name a Connect session, which is created when a task opens it. The id of a living session takes that over."""
        return ConnectEndpoint(
            self.info.connect_port, self.info.connect_token, session_id or str(uuid.uuid4()), user_id
        )

    async def load_tables(self) -> None:
        await self._jvm.call(self._gateway.load_tables)

    async def save_tables(self) -> None:
        await self._jvm.call(self._gateway.save_tables)

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        return await self._jvm.call(self._gateway.configure_session, endpoint, conf)

    async def release(self, endpoint: SparkEndpoint, *, interrupted: bool = True, patience: float = math.inf) -> None:
        call, gateway = self._jvm.call, self._gateway
        if isinstance(endpoint, ClassicEndpoint):
            await self._release(await call(gateway.release_classic, endpoint.name, interrupted), patience)
            return
        tries = _RELEASE_TRIES
        while True:
            try:
                released = await call(gateway.release_session, endpoint, interrupted)
                break
            except DriverCallError as error:  # Spark closes no session with an accepted operation that has not started
                if _NOT_BEGUN not in str(error) or tries == 0:
                    raise
                tries -= 1
                await asyncio.sleep(_RELEASE_PAUSE)
        if released is not None:
            await self._release(released, patience)

    async def _release(self, released: tuple[str, LeftoverSparkWork], patience: float) -> None:
        """Wait until all released work has ended; raises `StillRunningError`."""
        workers, leftover = released
        deadline = math.inf
        while left := await self._jvm.call(self._look, leftover):
            now = time.monotonic()
            deadline = min(deadline, now + patience)
            if now > deadline:
                raise StillRunningError(f"{left} does not end")
            await asyncio.sleep(_LEFTOVER_PAUSE)
        await self._jvm.call(self._gateway.close_ended_states)
        await asyncio.to_thread(kill_workers, self.info.pid, workers)

    def _look(self, leftover: LeftoverSparkWork) -> str:
        left = self._gateway.still_runs(leftover)
        return kill_abandoned(self.info.pid) if not left and leftover.interrupted else left

    async def active_jobs(self, endpoint: SparkEndpoint) -> list[int]:
        """Return the ids of a task's running Spark jobs."""
        return await self._jvm.call(self._gateway.active_jobs, endpoint)


@contextlib.asynccontextmanager
async def _limit(options: DriverOptions) -> AsyncIterator[None]:
    """Limit the time in which a JVM that has answered creates its SparkContext. Raises `DriverStartError`."""
    limit = asyncio.timeout(options.start_timeout)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DriverStartError(
            f"the Spark driver's JVM did not create its SparkContext within {options.start_timeout:g} s "
            f"(taskmanager.spark.start-timeout, spark.master={options.master}); see {options.log_file}"
        ) from None


async def _with_packages(java: Java, options: DriverOptions, tell: Callable[[str], None]) -> DriverOptions:
    """Return options whose packages are fetched and are among the jars."""
    if options.packages is None:
        return options
    jars = await _PACKAGES.fetch(options.packages, _SmallJvm(java, options), tell)
    return replace(options, jars=(*options.jars, *jars), packages=None)


class _SmallJvm:
    """`Ivy` in a JVM of its own (2 s), which can be killed without harm to other jobs.

    Args:
        java: runs the JVM.
        options: of the driver that is to have the packages.
    """

    def __init__(self, java: Java, options: DriverOptions) -> None:
        self._java = java
        self._options = replace(
            options,
            work_dir=options.work_dir / "packages",
            memory=_FETCH_MEMORY,
            java_options=(_SHORT_LIVED, *options.java_options),
            jars=(),
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._port = 0

    async def fetch(self, request: PackageRequest) -> list[Path]:
        java, options = self._java, self._options
        prepare(options)
        connection_file = options.work_dir / f".connection-{secrets.token_hex(8)}"
        arguments = command(java, options, class_path(), [])
        self._child = child = spawn(arguments, environment(java, options, connection_file, ""), options)
        pool, gateway = new_pool(), None
        try:
            self._port, secret = await await_connection(child, connection_file, options)
            gateway = await run_on(pool, DriverGateway, self._port, secret)
            return await run_on(pool, gateway.resolve_packages, request)
        finally:
            child.kill()  # before anything that waits for an answer of the JVM
            await asyncio.to_thread(child.wait)
            if gateway is not None:
                gateway.close()
            pool.shutdown(wait=False)
            shutil.rmtree(options.work_dir, ignore_errors=True)

    def peers(self) -> str:
        if self._child is None:
            return ""
        found: list[Any] = []
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self._child.pid).net_connections("tcp")
        remote = [
            f"{item.raddr.ip.removeprefix('::ffff:')}:{item.raddr.port}"
            for item in found
            if item.status in _WAITING and item.laddr.port != self._port
        ]
        return ", ".join(dict.fromkeys(remote))


async def connect(info: DriverInfo | Path, attach: Callable[[DriverGateway], None]) -> Connection[DriverGateway]:
    """Connect to a living driver JVM, and find its sessions by *attach*; raises `DriverLostError`."""
    found = info if isinstance(info, DriverInfo) else DriverInfo.read(info)
    process, pool = process_of(found), new_pool()
    try:
        gateway = await run_on(pool, DriverGateway, found.gateway_port, found.gateway_secret)
        async with asyncio.timeout(_ADOPTION_TIMEOUT):
            if await run_on(pool, gateway.pid) != found.pid:
                raise DriverLostError(f"another process answers at the address in {found.file}")
            await run_on(pool, attach, gateway)
    except BaseException as error:
        process.close()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, TimeoutError):
            raise DriverLostError(f"the Spark driver of {found.file} does not answer within 10 s") from None
        raise
    return Connection(found, gateway, pool, process)


# ------------------------------------------------------------------ Python daemons
# Spark keeps one for each set of environment variables, until the JVM ends. Tasks without files of their own share one
# warm daemon. A task with py-files has its own daemon, which has to end with the task.

ARTIFACT_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"
"""Environment variable that Spark sets for the Python workers of an artifact set. It holds the UUID of the set's
Connect session, or the name of the script's task."""

_RUNTIME_VARIABLE = "SPARK_PYTHON_RUNTIME"  # Spark sets it for its Python daemons
_PORT_VARIABLE = "PYTHON_WORKER_FACTORY_PORT"  # where a worker without a daemon connects to the JVM


def kill_workers(driver: int, name: str) -> None:
    """Kill the Python daemons, with their workers, of a task or of an artifact set, by its name."""
    for process, variables in _python_workers(driver):
        with contextlib.suppress(psutil.Error):
            if name in (variables.get(WORKER_VARIABLE), variables.get(ARTIFACT_VARIABLE)):
                process.kill()


def kill_abandoned(driver: int) -> str:
    """Kill the Python workers whose connection the JVM has closed; return a list of them as text, empty for none.

    When a Spark task is interrupted, Spark closes the connection to its Python worker and forgets the worker. A worker
    that waits for its next task then ends. A worker inside the job's own code keeps running it to its end.

    Only Spark's connection counts. The code of a job has others, which their servers may close at any time.
    """
    found = []
    for process, variables in _python_workers(driver):
        with contextlib.suppress(psutil.Error):
            closed = [item for item in process.net_connections("tcp") if item.status == psutil.CONN_CLOSE_WAIT]
            if closed and _has_sparks(closed, process, variables.get(_PORT_VARIABLE, "")):
                process.kill()
                found.append(f"Python worker {process.pid}")
    return ", ".join(found)


def _has_sparks(connections: Iterable[Any], worker: psutil.Process, port: str) -> bool:
    """Return whether one of a worker's connections is that to the JVM.

    The worker's daemon has accepted it, at the port where it listens. A worker without a daemon has opened it.
    """
    daemon = worker.parent()
    listening = () if daemon is None else daemon.net_connections("tcp")
    accepts = {item.laddr.port for item in listening if item.status == psutil.CONN_LISTEN}
    return any(item.laddr.port in accepts or str(item.raddr.port) == port for item in connections)


def _python_workers(driver: int) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield the Python daemons and workers of a driver, each with its environment.

    The JVM also starts programs such as ``chmod``. For a moment, such a process has all connections of the JVM open,
    those that are closed at their other end among them.
    """
    for process in children_of(driver):
        variables = {}
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
        if variables.get(_RUNTIME_VARIABLE) == "PYTHON_WORKER":
            yield process, variables
