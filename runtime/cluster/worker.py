"""The process of a worker: owns the Spark driver JVM and hosts the TaskExecutor (Flink's `TaskManagerRunner`).

    python -m runtime.cluster.worker RUNTIME_DIR SYSTEM_ADDRESS INDEX [NAME]

If the TaskExecutor is killed, it is restarted with the living JVM, which it adopts. If the JVM ends, the TaskExecutor
ends too, and both are restarted.

An upgrade may order that the worker continues in the environment of another release when its TaskExecutor has left
(`Successor`). It then becomes that program by `exec`. So it stays the parent of the JVM, which would end with it, and
the process that its master watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from actors.errors import ActorError
from actors.process.logs import configure_logging
from actors.process.system import HostedActor, ProcessActorSystem
from actors.rpc.security import load_or_create_secret
from conf.configuration import Configuration
from conf.options import SecurityOptions, SparkOptions
from runtime.cluster.leftovers import (
    collect_orphans,
    keep_event_logs_bounded,
    own_children,
    remove_abandoned_sockets,
)
from runtime.cluster.supervisor import Child, Running, await_gate, become, own_supervisor, wait_for_exit
from runtime.environment.context import ComponentContext, bound_outputs, log_config
from runtime.spark.driver.adopted import AdoptedDriver
from runtime.spark.driver.api import DriverInfo, SparkDriver, info_file
from runtime.spark.driver.cds import ArchiveBuild
from runtime.spark.driver.launch import spark_version
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.remote import RemoteDriver
from runtime.spark.errors import SparkError
from runtime.spark.process import start_time
from runtime.taskexecutor.spark_options import driver_options, remote_options
from runtime.taskexecutor.worker_files import ProgramInfo, Successor

logger = logging.getLogger(__name__)

ARCHIVE_DELAY_S = 30.0


class TaskManagerRunner:
    """One worker of this machine.

    Args:
        context: the surroundings of the components.
        system: the worker's own actor system.
        index: number of the worker on this machine, from 0.
        name: of the TaskExecutor, and of its logs.
    """

    def __init__(self, context: ComponentContext, system: ProcessActorSystem, index: int, name: str) -> None:
        self._context = context
        self._system = system
        self._name = name
        self._directory = context.directory.taskmanager(index)
        self._is_embedded = ProgramInfo.file(self._directory).exists()
        self._driver: SparkDriver | None = None
        self._driver_is_cold = False
        self._task_executor = 0
        self._system_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actor-system")
        self._stop_requested = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM, or until the actor system's admin has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_requested.set)
        supervisor = own_supervisor(lambda child, pid: None)
        await supervisor.add(Child(self._name, "actor", self._start, self._stop))
        background = (
            self._build_archive(),
            collect_orphans(),
            remove_abandoned_sockets(self._context.directory.socket_dir()),
            bound_outputs(self._context),
            keep_event_logs_bounded(self._context),
        )
        others = [loop.create_task(work) for work in background]
        admin = loop.create_task(wait_for_exit(self._system.admin_pid))
        stopped = loop.create_task(self._stop_requested.wait())
        await asyncio.wait((admin, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            logger.error("the actor system's admin has ended: this worker ends, too")
        for task in (admin, stopped, *others):
            task.cancel()
        await asyncio.gather(admin, stopped, *others, return_exceptions=True)
        await supervisor.remove(self._name)
        await loop.run_in_executor(self._system_thread, self._system.shutdown)
        if self._driver is not None:
            await self._driver.stop()
        self._system_thread.shutdown()

    async def _start(self) -> Running:
        if (successor := Successor.take(self._directory, self._task_executor)) is not None:
            await self._become(successor)
        driver = await self._living_driver()
        spec = self._context.host_spec(
            self._name,
            f"runtime.taskexecutor.{'embedded' if self._is_embedded else 'endpoint'}:create",
            directory=str(self._directory),
            driver_file=str(driver.info.file),
            warm_up=self._driver_is_cold and self._context.configuration.get(SparkOptions.WARM_UP),
            runner_pid=os.getpid(),
        )
        actor = await asyncio.get_running_loop().run_in_executor(self._system_thread, self._system.start, spec)
        self._driver_is_cold = False
        self._task_executor = actor.pid
        return Running(actor.pid, str(actor.address), actor)

    async def _become(self, successor: Successor) -> NoReturn:
        """Become the same worker in another environment. Raises OSError."""
        logger.info("this worker becomes that of %s", successor.python)
        await asyncio.get_running_loop().run_in_executor(self._system_thread, self._system.shutdown)
        become(successor, "runtime.cluster.worker", sys.argv[1:])

    async def _inherited_driver(self) -> LocalDriver | None:
        """Return the driver that this process has started as the worker of another release; None if there is none.

        No other process can have a living child that it has not started.
        """
        try:
            info = DriverInfo.read(info_file(self._directory / "spark"))
        except (SparkError, OSError):
            return None
        if info.pid not in own_children() or start_time(info.pid) != info.start_time:
            return None
        try:
            driver = await LocalDriver.adopt(info)
        except SparkError as error:
            logger.error("the Spark driver (process %d) cannot be adopted, and ends: %s", info.pid, error)
            os.kill(info.pid, signal.SIGKILL)
            return None
        if info.spark_version == spark_version():
            logger.info("Spark %s runs on as process %d", info.spark_version, info.pid)
            return driver
        logger.error("Spark %s of process %d is not that of this environment: it ends", info.spark_version, info.pid)
        await driver.stop()
        return None

    async def _stop(self, running: Running) -> None:
        if isinstance(running.handle, HostedActor):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._system_thread, self._system.stop, running.handle)

    async def _living_driver(self) -> SparkDriver:
        if self._driver is not None:
            if self._driver.alive and await self._answers(self._driver):
                return self._driver
            await self._driver.stop()
        if self._is_embedded:  # the Spark of the program that runs this cluster
            self._driver = await AdoptedDriver.adopt(info_file(self._directory / "spark"))
            return self._driver
        log_file = self._context.directory.log / f"{self._name}-spark.log"
        configuration, directory = self._context.configuration, self._directory / "spark"
        if self._driver is None and (inherited := await self._inherited_driver()) is not None:
            self._driver = inherited
            return inherited
        if (remote := remote_options(configuration, directory, log_file)) is not None:
            self._driver = await RemoteDriver.watch(remote)
            return self._driver
        self._driver = driver = await LocalDriver.start(driver_options(configuration, directory, log_file))
        self._driver_is_cold = True
        logger.info("Spark %s runs as process %d", driver.info.spark_version, driver.info.pid)
        return driver

    async def _answers(self, driver: SparkDriver) -> bool:
        try:
            async with asyncio.timeout(10.0):
                return await driver.ping()
        except (SparkError, TimeoutError) as error:
            logger.error("the Spark driver (process %d) does not answer: %s", driver.info.pid, error)
            return False

    async def _build_archive(self) -> None:
        """Make the class-data-sharing archive for later starts, once this start has settled."""
        get = self._context.configuration.get
        if self._driver is None or not (get(SparkOptions.CDS_ENABLED) and get(SparkOptions.WARM_UP)):
            return  # the list of classes of a driver that was not warmed is too short
        await asyncio.sleep(ARCHIVE_DELAY_S)
        await ArchiveBuild(get(SparkOptions.CDS_CACHE_DIR), self._driver.info).run()


def main() -> int:
    """Run a worker until it is stopped; return exit status 0, or 1 if it could not start."""
    await_gate()
    runtime_dir, system_address, index, *given = sys.argv[1:]
    context = ComponentContext.read(runtime_dir, system_address)
    configuration: Configuration = context.configuration
    name = given[0] if given else f"taskmanager-{index}"
    context.directory.taskmanager(int(index)).mkdir(mode=0o700, exist_ok=True)
    configure_logging(log_config(configuration, context.directory, f"{name}-runner"))
    logger.info("the worker %s starts as process %d", name, os.getpid())
    load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))  # the actor only reads it
    try:
        # Before any thread is started: the actor system's admin is forked from this process.
        system = ProcessActorSystem()
        asyncio.run(TaskManagerRunner(context, system, int(index), name).run())
    except (ActorError, SparkError, OSError) as error:
        logger.critical("the worker %s ends: %s", name, error, exc_info=True)
        with contextlib.suppress(OSError):
            print(f"error: {error}", file=sys.stderr)  # noqa: T201  # goes to the worker's .out file
        return 1
    logger.info("the worker %s has stopped", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
