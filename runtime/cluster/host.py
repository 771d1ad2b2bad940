"""The process that keeps the TaskExecutors of one host running, in a cluster on several hosts.

    python -m runtime.cluster.host RUNTIME_DIR REPORT_FD LOCK_FD

`understudy start --role task-executor` starts it. It keeps ``taskmanager.count`` workers running. It ends if one of
them was not registered within ``taskmanager.registration.timeout`` (as Flink's TaskManager does).

An upgrade may order that it continues in the environment of another release: by the file `Successor`, and SIGHUP. It
then becomes that program by `exec`, and finds its workers running by their claims.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from actors.address import ActorAddress
from actors.process.logs import configure_logging
from actors.receptionist import PATH as RECEPTIONIST_PATH
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import ClusterOptions, JobManagerOptions, TaskManagerOptions
from runtime.cluster.host_processes import HOST, Report
from runtime.cluster.supervisor import become, own_supervisor, process_child
from runtime.environment.context import ComponentContext, log_config
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory, ClusterLock
from runtime.errors import ClusterError
from runtime.taskexecutor.worker_files import REGISTERED, RegistrationState, Successor

logger = logging.getLogger(__name__)

NAME = "host"
CHECK_INTERVAL_S = 0.5


class RegistrationTimeoutError(ClusterError):
    """A TaskExecutor was not registered in time."""


def worker_name(configuration: Configuration, index: int) -> str:
    """Return the name of one of a host's TaskExecutors, counted from 0."""
    return f"{configuration.get(TaskManagerOptions.RESOURCE_ID)}-{index}"


def registrations(configuration: Configuration, directory: ClusterDirectory) -> dict[str, RegistrationState]:
    """Return the registration states of this host's TaskExecutors, by name."""
    return {
        worker_name(configuration, index): RegistrationState(directory.taskmanager(index))
        for index in range(configuration.get(TaskManagerOptions.COUNT))
    }


async def all_registered(context: ComponentContext) -> None:
    """Return once every TaskExecutor has been registered; raises `RegistrationTimeoutError`."""
    timeout_s = context.configuration.get(TaskManagerOptions.REGISTRATION_TIMEOUT)
    waiting = registrations(context.configuration, context.directory)
    deadline = asyncio.get_running_loop().time() + timeout_s
    while waiting:
        states = {name: state.read() for name, state in waiting.items()}
        waiting = {name: state for name, state in waiting.items() if states[name][0] != REGISTERED}
        if waiting and asyncio.get_running_loop().time() > deadline:
            name = min(waiting)
            raise RegistrationTimeoutError(
                f"{name} was not registered within taskmanager.registration.timeout ({timeout_s:g} s): "
                f"{states[name][1] or 'it has not started'}",
                "start the master, then start this again",
            )
        await asyncio.sleep(CHECK_INTERVAL_S)


def _continue_elsewhere(directory: ClusterDirectory, lock: ClusterLock) -> None:
    """Become this host's process in another environment; return if none was ordered."""
    successor = Successor.take(directory.root, os.getpid())
    if successor is None:
        return
    logger.info("this process becomes that of %s", successor.python)
    nobody = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (nobody, lock.descriptor):
        os.set_inheritable(descriptor, True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited: another order would end the program that just starts
    become(successor, HOST, (str(directory.root), str(nobody), str(lock.descriptor)))


async def _serve(context: ComponentContext, report: Report, lock: ClusterLock) -> None:
    loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)

    def ordered_to_continue() -> None:
        if not stop_requested.is_set():
            _continue_elsewhere(context.directory, lock)

    loop.add_signal_handler(signal.SIGHUP, ordered_to_continue)
    supervisor = own_supervisor(lambda child, pid: None)
    registering, stopped = loop.create_task(all_registered(context)), loop.create_task(stop_requested.wait())
    try:
        for index in range(context.configuration.get(TaskManagerOptions.COUNT)):
            name = worker_name(context.configuration, index)
            claim = context.directory.claim(name)
            claim.try_acquire()
            words = str(index), name
            await supervisor.add(process_child(context, name, "worker", "runtime.cluster.worker", words, claim))
        report.send(address=context.configuration.get(ClusterOptions.HOST))
        await asyncio.wait((registering, stopped), return_when=asyncio.FIRST_COMPLETED)
        if registering.done():
            registering.result()
            await stopped
    finally:
        stop_requested.set()
        for task in (registering, stopped):
            task.cancel()
        await asyncio.gather(*(supervisor.remove(name) for name in list(supervisor.children)))


def main() -> int:
    """Run until stopped; return exit status 0, or 1 if it could not start or was not registered in time."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can follow an order
    directory, report = ClusterDirectory(Path(sys.argv[1])), Report(int(sys.argv[2]))
    try:
        with ClusterLock.handed(directory.lock_file, int(sys.argv[3]), exclusive=True) as lock:
            configuration = Configuration.read(directory.configuration_file)
            claim = directory.claim(NAME)
            claim.try_acquire()
            claim.note(ProcessRecord.of(NAME, os.getpid()))
            configure_logging(log_config(configuration, directory, NAME))
            logger.info("process %d starts the TaskExecutors of this host", os.getpid())
            get = configuration.get
            # Address of the master without Redis; with Redis the leader sends it when it registers a TaskExecutor.
            system = ActorAddress(
                "understudy",
                get(JobManagerOptions.RPC_ADDRESS),
                get(JobManagerOptions.RPC_PORT),
                RECEPTIONIST_PATH,
            )
            asyncio.run(_serve(ComponentContext(configuration, directory, system), report, lock))
            claim.forget()
            directory.clean()
    except (ClusterError, ConfigurationError, OSError) as error:
        logger.critical("the TaskExecutors of this host end: %s", error)
        report.send(error=str(error), remedy=str(getattr(error, "remedy", "")))
        return 1
    logger.info("the TaskExecutors of this host have stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
