"""`SparkDriver`: one driver JVM as a process of its own, which outlives the actor that uses it and is adopted again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil

from runtime.spark.driver.api import ActiveQueries, DriverInfo, StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.cds import ArchiveBuild, sharing
from runtime.spark.driver.gateway import DriverGateway, job_tag
from runtime.spark.driver.java import Java, find_java
from runtime.spark.driver.jvm import LeftoverSparkWork
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
from runtime.spark.errors import DriverCallError, DriverLostError, DriverStartError, SparkError, StillRunningError
from runtime.spark.process import ProcessHandle, children_of, start_time
from runtime.spark.spec import CONNECT_USER, WORKER_VARIABLE, ClassicEndpoint, ConnectEndpoint

T = TypeVar("T")
logger = logging.getLogger(__name__)
_DISCONNECT_TIMEOUT = 2.0
_RELEASE_TRIES = 20
_RELEASE_PAUSE = 0.1
_REMAINS_PAUSE = 0.005
_RESET_PATIENCE = 60.0
_NOT_BEGUN = "EXECUTION_STATE_TRANSITION_INVALID_OPERATION_STATUS_MISMATCH"


class SparkDriver:
    """A driver JVM: started by `start`, or taken over from another process by `adopt`.

    All calls are for one asyncio loop; the blocking Py4J calls run on threads of their own.
    """

    _gateway_type = DriverGateway

    def __init__(
        self, info: DriverInfo, process: ProcessHandle, gateway: DriverGateway, pool: ThreadPoolExecutor
    ) -> None:
        self.info = info
        self._process = process
        self._gateway = gateway
        self._pool = pool
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._condemned = ""
        self.alone = False
        """Whether one task has this driver to itself; to be set before the task starts."""

    # --- life

    @classmethod
    async def start(cls, options: DriverOptions) -> SparkDriver:
        """Start a driver JVM and write its `driver.json`; 1.5 to 2.6 s with an archive of classes, 3 to 4.6 s without.

        With `die_with_parent` it must be called on the main thread: the kernel's parent-death signal goes by the
        thread that forked. Raises `JavaNotFoundError`, `UnsupportedJavaError` and `DriverStartError`.
        """
        if options.die_with_parent and threading.current_thread() is not threading.main_thread():
            raise DriverStartError("a driver that is to die with this process must be started from its main thread")
        java = find_java(options.java_home)
        await asyncio.to_thread(check_master, options.master)
        conf = spark_conf(options)
        prepare(options)
        jars = class_path()
        shared = sharing(options.archive_dir, java, jars, options.work_dir)
        arguments = command(java, options, jars, list(shared.options))
        connection_file = options.work_dir / f".connection-{secrets.token_hex(8)}"
        token = secrets.token_hex(32)
        child = spawn(arguments, environment(java, options, connection_file, token), options)
        try:
            port, secret = await await_connection(child, connection_file, options)
            pool = _new_pool()
            gateway = await _on(pool, DriverGateway, port, secret)
            await _on(pool, gateway.create_context, conf)
            connect_port = await _on(pool, gateway.connect_port)
            if shared.archive is not None and not await _on(pool, gateway.shares_classes):
                shared.reject()
            info = _info(child.pid, java, options, (port, secret), (connect_port, token), shared.class_list)
            driver = cls(info, ProcessHandle(child.pid, info.start_time), gateway, pool)
        except BaseException as error:
            child.kill()
            await asyncio.get_running_loop().run_in_executor(None, child.wait)
            if isinstance(error, SparkError) and not isinstance(error, DriverStartError):
                raise DriverStartError(f"the Spark driver did not start: {error}; see {options.log_file}") from error
            raise
        finally:
            connection_file.unlink(missing_ok=True)
        driver._child = child
        info.write()
        return driver

    @classmethod
    async def adopt(cls, info: DriverInfo | Path) -> SparkDriver:
        """Take over a living driver from its `driver.json`.

        What its former owner's tasks left there goes on; see `reset`. Raises `DriverLostError` where the process is
        gone, is another one under the same number, or does not answer.
        """
        found = info if isinstance(info, DriverInfo) else DriverInfo.read(info)
        try:
            process = ProcessHandle(found.pid, found.start_time)
        except OSError as error:
            raise DriverLostError(f"the Spark driver of {found.file} is gone: {error}") from error
        pool = _new_pool()
        try:
            gateway = await _on(pool, cls._gateway_type, found.gateway_port, found.gateway_secret)
            async with asyncio.timeout(10):
                if await _on(pool, gateway.pid) != found.pid:
                    raise DriverLostError(f"another process answers at the address in {found.file}")
                await _on(pool, gateway.attach)
        except BaseException as error:
            process.close()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, TimeoutError):
                raise DriverLostError(f"the Spark driver of {found.file} does not answer within 10 s") from None
            raise
        return cls(found, process, gateway, pool)

    @property
    def is_ours(self) -> bool:
        """Whether the JVM was started for a cluster's jobs, and may be ended."""
        return True

    @property
    def loss(self) -> str:
        """Reason shown when the driver is lost."""
        return f"{self.info.loss}: {self._condemned}" if self._condemned else self.info.loss

    def condemn(self, why: str) -> None:
        """End the JVM at once because it can run no jobs any more; *why* goes into the reason of its loss."""
        self._condemned = why
        self.kill()

    @property
    def alive(self) -> bool:
        """Whether the JVM's process lives."""
        return self._process.alive

    async def wait_dead(self, timeout: float | None = None) -> bool:
        """Wait until the JVM's process has ended (by pidfd, at once); False where `timeout` seconds passed first."""
        return await self._process.wait(timeout)

    async def ping(self) -> bool:
        """Whether the JVM answers and its SparkContext is not stopped. Raises `DriverLostError` where it is gone."""
        return await self._call(self._gateway.ping)

    async def jvm_figures(self) -> dict[str, int] | None:
        """Return the JVM's figures of itself; see `DriverGateway.jvm_figures`. Takes 1.4 ms of an idle driver."""
        return await self._call(self._gateway.jvm_figures)

    async def stop(self, timeout: float = 10.0) -> None:
        """End the JVM: SIGTERM, on which Spark removes its directories (0.6 s), after `timeout` seconds SIGKILL.

        A driver that was closed or stopped before is left as it is.
        """
        if self._closed:
            return
        workers = children_of(self.info.pid) if self.alive else []
        await self._disconnect()
        self._process.send_signal(signal.SIGTERM)
        if not await self.wait_dead(timeout):
            logger.warning("the Spark driver %d did not end within %.0f s and is killed", self.info.pid, timeout)
            self._process.send_signal(signal.SIGKILL)
            await self.wait_dead()
        for worker in workers:  # Python daemons: they end when their standard input does, unless they are stuck
            with contextlib.suppress(psutil.Error):
                worker.kill()
        if self._child is not None:
            self._child.wait()
        self._let_go()
        self.info.file.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the JVM at once, by SIGKILL."""
        self._process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Let go of the driver, which goes on, and may be adopted."""
        if not self._closed:
            await self._disconnect()
            self._let_go()

    async def _disconnect(self) -> None:
        """Close the Py4J connections; not on our own threads, which a JVM that hangs may have taken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCONNECT_TIMEOUT):
                await asyncio.to_thread(self._gateway.close)

    def _let_go(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False)
        self._process.close()

    async def reset(self) -> None:
        """End everything that a former owner's tasks left running: servers, sessions, streaming queries, Spark jobs.

        A driver in which something of it does not end is killed: `DriverLostError` is raised.
        """
        try:
            for name in await self._call(self._gateway.classic_names):
                await self._close_classic(name, True, _RESET_PATIENCE)
            for user_id, session_id in await self._call(self._gateway.connect_sessions):
                await self.release_session(self.new_session(session_id, user_id), patience=_RESET_PATIENCE)
        except StillRunningError as error:
            self.kill()
            raise DriverLostError(f"the Spark driver (process {self.info.pid}) was killed: {error}") from error
        await self._call(self._gateway.stop_queries)
        await self._call(self._gateway.cancel_all)
        await self._call(self._gateway.unlock_files)

    async def warm_up(self) -> None:
        """Run one query in the JVM, which loads Spark's SQL engine; no Python process takes part."""
        await self._call(self._gateway.warm_up)

    def archive_build(self, directory: Path) -> ArchiveBuild:
        """The background making of this driver's class-data-sharing archive, to be run after the warm-up."""
        return ArchiveBuild(directory, self.info)

    # --- tasks

    async def open_classic(self, name: str, output: Path | None = None) -> ClassicEndpoint:
        """Open a Py4J server with a SQL session of its own for a task; `name` is the attempt's id. 30 ms.

        What Spark itself prints for the task is appended to the file `output`.
        """
        return await self._call(self._gateway.open_classic, name, str(output or os.devnull), self.alone)

    async def close_classic(
        self, endpoint: ClassicEndpoint, *, interrupted: bool = True, patience: float = math.inf
    ) -> None:
        """End what the task left running, and its server.

        Returns when nothing of it runs any more; raises `StillRunningError` where something still does `patience`
        seconds after it was seen first. To be called whenever the task's process has ended; `interrupted` is False
        where its code came to its own end, for which a shorter look is enough.
        """
        await self._close_classic(endpoint.name, interrupted, patience)

    async def _close_classic(self, name: str, interrupted: bool, patience: float) -> None:
        await self._all_ended(await self._call(self._gateway.close_classic, name, interrupted), patience)
        await _on(self._pool, kill_workers, self.info.pid, name)

    async def open_session(self, *, isolated: bool = False) -> ConnectEndpoint:
        """Name a new Connect session for a task.

        `isolated` is for a task with py-files or jars: they are the session's own, and so are its Python workers, whose
        start costs the first Python function 1 to 2 s. The other sessions share warm workers.
        """
        endpoint = self.new_session()
        if isolated:
            await self._call(self._gateway.open_session, endpoint.user_id, endpoint.session_id)
        return endpoint

    def new_session(self, session_id: str | None = None, user_id: str = CONNECT_USER) -> ConnectEndpoint:
        """Name a Connect session; it comes to be when a task opens it. The id of a living one takes that over."""
        return ConnectEndpoint(
            self.info.connect_port, self.info.connect_token, session_id or str(uuid.uuid4()), user_id
        )

    async def configure_session(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Set configuration of a session from here, which takes 1 ms, and a task 8; whether the session is open."""
        return await self._call(self._gateway.configure_session, endpoint.user_id, endpoint.session_id, conf)

    async def _all_ended(self, remains: LeftoverSparkWork, patience: float) -> None:
        deadline = math.inf
        while True:
            left = await self._call(self._gateway.still_runs, remains)
            if not left and remains.interrupted:
                left = await _on(self._pool, kill_abandoned, self.info.pid)
            if not left:
                return
            now = time.monotonic()
            deadline = min(deadline, now + patience)
            if now > deadline:
                raise StillRunningError(f"{left} does not end")
            await asyncio.sleep(_REMAINS_PAUSE)

    async def _release(self, endpoint: ConnectEndpoint, interrupted: bool) -> tuple[str, LeftoverSparkWork] | None:
        """Release a session; Spark refuses to close one whose operation has been accepted and not begun yet."""
        tries = _RELEASE_TRIES
        while True:
            try:
                names = endpoint.user_id, endpoint.session_id
                return await self._call(self._gateway.release_session, *names, interrupted)
            except DriverCallError as error:
                if _NOT_BEGUN not in str(error) or tries == 0:
                    raise
                tries -= 1
                await asyncio.sleep(_RELEASE_PAUSE)

    async def release_session(
        self, endpoint: ConnectEndpoint, *, interrupted: bool = True, patience: float = math.inf
    ) -> None:
        """Interrupt and close a Connect session, its streaming queries too; its id cannot be used again.

        To be called whenever the task's process has ended, unless a successor is to take the session over; the rest as
        in `close_classic`.
        """
        released = await self._release(endpoint, interrupted)
        if released is not None:
            uuid, remains = released
            await self._all_ended(remains, patience)
            await _on(self._pool, kill_workers, self.info.pid, uuid)

    async def release(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> None:
        """End what a task left running, whichever way it went into Spark; see `close_classic`, `release_session`."""
        if isinstance(endpoint, ClassicEndpoint):
            await self.close_classic(endpoint)
        else:
            await self.release_session(endpoint)

    async def cancel(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> None:
        """Cancel the Spark jobs of a task; its session remains."""
        if isinstance(endpoint, ClassicEndpoint):
            await self._call(self._gateway.cancel_tag, endpoint.tag)
        else:
            await self._call(self._gateway.interrupt_session, endpoint.user_id, endpoint.session_id)

    async def active_jobs(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> list[int]:
        """Ids of the Spark jobs that a task has running."""
        return await self._call(self._gateway.active_jobs, job_tag(endpoint))

    async def streaming_queries(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> list[StreamingQueryInfo]:
        """The running streaming queries of a task."""
        if isinstance(endpoint, ClassicEndpoint):
            return await self._call(self._gateway.classic_queries, endpoint.name)
        return await self._call(self._gateway.session_queries, endpoint.user_id, endpoint.session_id)

    async def active_queries(self, endpoint: ClassicEndpoint | ConnectEndpoint) -> ActiveQueries:
        """The running streaming queries of a task, to be given to `stop_streaming_queries`."""
        if isinstance(endpoint, ClassicEndpoint):
            return await self._call(self._gateway.active_classic_queries, endpoint.name)
        return await self._call(self._gateway.active_session_queries, endpoint.user_id, endpoint.session_id)

    async def stop_streaming_queries(self, queries: ActiveQueries, *, drain: bool, timeout_s: float) -> StoppedQueries:
        """Stop the streaming queries of a task between two batches; returns what became of them.

        See `stop_at_boundary`. Raises `SparkError`.
        """
        loop = asyncio.get_running_loop()  # its threads, for this may take long
        return await loop.run_in_executor(None, lambda: self._gateway.stop_at_boundary(queries, drain, timeout_s))

    async def lock_file(self, path: Path, owner: str) -> bool:
        """Lock a file for a task, until `unlock_files` or the driver's end; whether it has the lock now."""
        return await self._call(self._gateway.lock_file, str(path), owner)

    async def unlock_files(self, owner: str) -> None:
        """Give up what was locked for a task."""
        await self._call(self._gateway.unlock_files, owner)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        if not self._process.alive:
            raise DriverLostError(
                f"the Spark driver (process {self.info.pid}) is gone; its log is {self.info.log_file}"
            )
        return await _on(self._pool, function, *arguments)


def _new_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="spark-driver")


async def _on(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*arguments))


def _info(
    pid: int,
    java: Java,
    options: DriverOptions,
    gateway: tuple[int, str],
    connect: tuple[int, str],
    classes: Path | None,
) -> DriverInfo:
    started = start_time(pid)
    if started is None:
        raise DriverStartError(f"the Spark driver's JVM ended while it started; see {options.log_file}")
    return DriverInfo(
        pid=pid,
        start_time=started,
        gateway_port=gateway[0],
        gateway_secret=gateway[1],
        connect_port=connect[0],
        connect_token=connect[1],
        java_home=java.home,
        java_version=java.version,
        spark_version=spark_version(),
        master=options.master,
        work_dir=str(options.work_dir),
        log_file=str(options.log_file),
        class_list="" if classes is None else str(classes),
    )


ARTIFACT_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"
"""In the environment of the Python workers of an artifact set: the UUID of its Connect session, or the name of the
script's task. Set by Spark."""


def kill_workers(driver: int, name: str) -> None:
    """Kill the Python daemons, with their workers, of a task or of an artifact set, by its name."""
    for process in children_of(driver):
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if name in (environment.get(WORKER_VARIABLE), environment.get(ARTIFACT_VARIABLE)):
                process.kill()


def kill_abandoned(driver: int) -> str:
    """Kill the Python workers that the JVM has hung up on; return in words which they were, nothing for none.

    Where a task of Spark's is interrupted, Spark closes the connection to its Python worker and forgets it. A worker
    that waits for its next task ends; one that is inside the job's own code goes on with it, for as long as that takes.
    """
    found = []
    for process in children_of(driver):
        with contextlib.suppress(psutil.Error):
            if any(item.status == psutil.CONN_CLOSE_WAIT for item in process.net_connections("tcp")):
                process.kill()
                found.append(f"Python worker {process.pid}")
    return ", ".join(found)
