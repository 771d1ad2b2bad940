"""Starting and stopping the cluster of a runtime directory."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from actors.errors import ActorError
from actors.rpc.security import load_or_create_secret
from conf.configuration import Configuration
from conf.files import write_private
from conf.options import (
    ClusterOptions,
    DeploymentOptions,
    ExecutionTarget,
    HighAvailabilityOptions,
    SecurityOptions,
)
from conf.secret import SecretStr
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_locally
from runtime.cluster.host_processes import (
    FIRST,
    JOINING,
    MASTER,
    MEMBER,
    ClusterStartError,
    await_condition,
    embedded_redis,
    fixed_workers,
    kill_heads,
    last_words,
    launch,
    left_behind,
    processes_of,
    sweep,
)
from runtime.cluster.preflight import require, start_checks
from runtime.environment.context import has_redis, open_redis_services
from runtime.environment.directory import ClusterDirectory, ClusterLock
from runtime.errors import ClusterAlreadyRunning, ClusterError, ClusterNotRunning
from runtime.process_signals import signal_process
from runtime.rest.listening import exposure_warning

Say = Callable[[str], None]

WORKER_TRIES = 2
LAST_STEPS_S = 2.0  # seconds from a master's release of the lock to its end
KILLED_S = 10.0  # seconds from a SIGKILL to the end, on a busy machine


def start_cluster(
    configuration: Configuration,
    say: Say,
    masters: int = 1,
    target: ExecutionTarget = ExecutionTarget.SESSION,
    *,
    is_member: bool = False,
) -> ClusterClient:
    """Start a cluster in the background, and wait until it accepts and runs jobs.

    Args:
        configuration: the cluster's.
        say: called with each step.
        masters: number of masters; one leads, the others are standbys.
        target: the kind of cluster; see `runtime.cluster.master.ClusterEntrypoint`.
        is_member: whether it is one host's master of a cluster on several hosts.

    Raises:
        ClusterError, HaError, SparkError: the machine lacks something, a cluster runs already, or it failed.
        FeatureLevelUnsupportedError: a killed master left a cluster that this release must not work for.
    """
    if masters > 1:
        _require_redis(configuration, f"{masters} masters cannot be started")
    configuration = configuration.set(DeploymentOptions.TARGET, target)
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    _refuse_running(directory)
    try:
        require(start_checks(configuration, say))
    except ClusterError:
        _refuse_running(directory)  # another `start` was faster: its cluster uses the ports
        raise
    _refuse_level(configuration, directory)
    own = StartedCluster.begin(directory)
    try:
        directory.create()
        sweep(directory)  # ends what a killed master left behind
        load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))
        configuration.write(directory.configuration_file)
        deadline = time.monotonic() + configuration.get(ClusterOptions.START_TIMEOUT)
        if warning := exposure_warning(configuration):
            say(warning)
        say("starting the master")
        if not has_redis(configuration):
            say("high-availability.type is none: the cluster's jobs live as long as its master, and are lost with it")
        _start_master(directory, own.lock, deadline, MEMBER if is_member else FIRST)
        for _ in range(masters - 1):
            say("starting a standby master")
            _start_joining(directory, deadline)
        client = connect_locally(configuration)
        try:
            _await_workers(client, configuration, deadline, say)
        except BaseException:
            client.close()
            raise
    except BaseException:
        own.take_down()
        raise
    return client


def _refuse_running(directory: ClusterDirectory) -> None:
    """Raise `ClusterAlreadyRunning` if a cluster runs or is being started."""
    if not directory.is_running():
        return
    with contextlib.suppress(ClusterNotRunning):
        if not directory.is_held_alone():
            descriptor = directory.read_descriptor()
            raise ClusterAlreadyRunning(
                f"the cluster {descriptor.cluster_id!r} already runs at {descriptor.system_address}",
                "use it, stop it with `understudy stop`, or start another with -D cluster.id=NAME",
            )
    directory.acquire().release()  # raises with the cause


def _refuse_level(configuration: Configuration, directory: ClusterDirectory) -> None:
    """Check the feature level of a cluster whose masters were killed, before its other processes are ended.

    If its Redis does not run either, the new master checks the level once it has started that.

    Raises:
        FeatureLevelUnsupportedError: this release must not work for the cluster.
    """
    from runtime.ha.errors import HaUnreachableError

    if not has_redis(configuration):
        return
    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:
        embedded = embedded_redis(directory)
        if embedded is None or embedded.pid is None:
            return
        configuration = configuration.set(HighAvailabilityOptions.REDIS_URL, SecretStr(embedded.url))

    async def check() -> None:
        services = open_redis_services(configuration)
        try:
            await services.feature_level_store().current()
        finally:
            await services.close()

    with contextlib.suppress(HaUnreachableError):  # the master waits for it, and checks the level then
        asyncio.run(check())


@dataclass(frozen=True, slots=True)
class StartedCluster:
    """The processes that one `start` has started, and stops again if it fails.

    Jobs that a killed cluster left in the directory are kept for the next start.

    Args:
        directory: of the cluster.
        lock: of the directory, held alone until the first master serves.
        found: the configuration that a killed cluster left; None if there was none.
    """

    directory: ClusterDirectory
    lock: ClusterLock
    found: bytes | None

    @classmethod
    def begin(cls, directory: ClusterDirectory) -> StartedCluster:
        """Acquire the lock. Raises `ClusterAlreadyRunning`."""
        lock = directory.acquire()
        file = directory.configuration_file
        return cls(directory, lock, file.read_bytes() if file.exists() else None)

    def take_down(self) -> None:
        """Kill its processes, and restore the former configuration; do not touch those of another cluster."""
        if not self.lock.held:  # its first master has it
            kill_heads(self.directory, self.lock.incarnation)
            lock = await_lock(self.directory, self.lock.incarnation, KILLED_S)
            if lock is None:
                return
        else:
            lock = self.lock
        with lock:
            sweep(self.directory)
            if self.found is None:
                self.directory.clean()
            else:
                write_private(self.directory.configuration_file, self.found)


def join_cluster(configuration: Configuration) -> str:
    """Start one more master for the cluster of the runtime directory and return its address.

    If all masters of the cluster were killed, it takes over Redis, the workers and their tasks.

    Raises:
        ClusterNotRunning: no cluster was started in the directory, or its start was cut off.
        ClusterError: the cluster keeps its state in its one master, or the master did not start.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    return _start_joining(directory, time.monotonic() + configuration.get(ClusterOptions.START_TIMEOUT))


def _start_joining(directory: ClusterDirectory, deadline: float) -> str:
    _require_started(directory)
    with directory.join() as lock:
        _require_started(directory)  # `stop` cannot remove it while this process holds the lock
        configuration = Configuration.read(directory.configuration_file)
        _require_redis(configuration, f"the cluster in {directory.root} has one master")
        if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:  # its first master was killed before it served
            raise ClusterNotRunning(
                f"the cluster in {directory.root} has not finished its start", "start it again with `understudy start`"
            )
        return _start_master(directory, lock, deadline, JOINING)


def _require_started(directory: ClusterDirectory) -> None:
    if not directory.configuration_file.exists():
        raise ClusterNotRunning(f"no cluster was started in {directory.root}", "start one with `understudy start`")


def _require_redis(configuration: Configuration, refusal: str) -> None:
    if not has_redis(configuration):
        raise ClusterError(
            f"{refusal}: high-availability.type is none, so a master keeps leaders and jobs in its own memory",
            "start the cluster with high-availability.type=redis to have standbys; if it has lost its master, end it "
            "with `understudy stop`",
        )


def _start_master(directory: ClusterDirectory, lock: ClusterLock, deadline: float, mode: str) -> str:
    """Start a master (see `runtime.cluster.entrypoint`) and return its address once it serves."""
    return launch(directory, lock, "master", MASTER, [mode], deadline)


def _await_workers(client: ClusterClient, configuration: Configuration, deadline: float, say: Say) -> None:
    wanted = fixed_workers(configuration)
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if wanted:
        each = "a TaskExecutor with its" if wanted == 1 else f"{wanted} TaskExecutors, each with a"
        say(f"starting {each} Spark driver")
    while True:
        registered, processes = client.overview().task_managers, client.status().processes
        # Stopped workers have registered, and were idle for resourcemanager.taskmanager-timeout.
        registered += sum(process.is_stopped for process in processes)
        if registered >= wanted:
            return
        if time.monotonic() > deadline:
            raise ClusterStartError(
                f"only {registered} of {wanted} TaskExecutors have registered within cluster.start-timeout",
                f"see {directory.log}/taskmanager-*.log",
            )
        for process in processes:
            if process.role == "worker" and process.restarts >= WORKER_TRIES:  # a third start would fail likewise
                cause = last_words(directory, process.name) or "it reports no cause"
                raise ClusterStartError(
                    f"{process.name} does not start: {cause}", f"see {directory.log}/{process.name}*.log"
                )
        time.sleep(0.1)


def stop_cluster(configuration: Configuration, say: Say) -> None:
    """Stop the cluster of the configuration's runtime directory, and what killed processes of it left behind.

    The next cluster in the directory does not recover its unfinished jobs. A cluster that is still starting is stopped,
    too. A new cluster that is started during the stop is not touched.

    Raises:
        ClusterNotRunning: there is nothing to stop.
        ClusterError: the cluster cannot be stopped.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    _require_something(directory, f"no cluster runs in {directory.root}")
    incarnation = directory.incarnation()
    told = _shut_down(configuration, directory, say) if directory.is_running() else set()
    lock = end_cluster(directory, incarnation, told, configuration.get(ClusterOptions.STOP_TIMEOUT))
    if lock is None:
        return
    with lock:
        _forget_jobs(directory, say)
        _sweep(directory, told, say)
        directory.clean()
        if directory.checkpoints.exists():  # the jobs have ended with the cluster
            shutil.rmtree(directory.checkpoints)


def _require_something(directory: ClusterDirectory, nothing: str) -> None:
    """Raise `ClusterNotRunning` if there is nothing to stop, and remove files that a cluster left."""
    if directory.is_running() or left_behind(directory):
        return
    if directory.cluster_json.exists():
        with directory.acquire():
            directory.clean()
    raise ClusterNotRunning(nothing, "there is nothing to stop")


def _shut_down(configuration: Configuration, directory: ClusterDirectory, say: Say) -> set[int]:
    """Request the end of the cluster from all serving masters; return their processes, or none if none answered."""
    serving = set(directory.heads(serving=True))
    if not serving or not directory.cluster_json.exists():
        say("the cluster is being started or stopped: its processes get SIGTERM")
        return set()
    try:
        with connect_locally(configuration) as client:
            say("stopping jobs, TaskExecutors and the master")
            client.shut_down()
    except (ActorError, ClusterNotRunning) as error:
        say(f"the master does not answer ({error}): its processes are ended one by one")
        return set()
    return serving


def _sweep(directory: ClusterDirectory, told: set[int], say: Say) -> None:
    """End what is left. Masters that were requested to end have released the lock, and get a moment to end."""
    await_condition(lambda: told.isdisjoint(processes_of(directory)), LAST_STEPS_S)
    left = sweep(directory)
    if left:
        say(f"ended {left} process{'es' if left > 1 else ''} that had been left behind")


def end_cluster(
    directory: ClusterDirectory, incarnation: str | None, told: set[int], timeout_s: float
) -> ClusterLock | None:
    """Wait until the cluster of a directory has ended, and take its lock.

    Other masters, even those that are still starting, get SIGTERM; after *timeout_s* seconds all masters get SIGKILL.

    Args:
        directory: of the cluster.
        incarnation: which cluster; see `ClusterDirectory.incarnation`.
        told: processes of masters that have a request to end, and need no SIGTERM; the others are added.
        timeout_s: seconds for an end in good order.

    Returns:
        the lock; None if another cluster was started in between.

    Raises:
        ClusterError: the lock stays held.
    """
    lock = await_lock(directory, incarnation, timeout_s, told)
    if lock is None and kill_heads(directory, incarnation):
        lock = await_lock(directory, incarnation, KILLED_S)
    if lock is None and directory.incarnation() == incarnation:
        raise ClusterError(
            f"the lock {directory.lock_file} is still held, though the cluster's processes were killed",
            "another `understudy start` or `stop` holds it: wait for it, or end it, and stop the cluster again",
        )
    return lock


def await_lock(
    directory: ClusterDirectory, incarnation: str | None, timeout_s: float, told: set[int] | None = None
) -> ClusterLock | None:
    """Take the lock of a directory as soon as a cluster there has released it.

    Args:
        directory: of the cluster.
        incarnation: which cluster.
        timeout_s: seconds to wait.
        told: processes of masters that have a request to end; every other one gets SIGTERM. None: no master gets it.

    Returns:
        the lock; None if it stayed held, or belongs to another cluster by now.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if directory.incarnation() not in (None, incarnation):
            return None
        with contextlib.suppress(ClusterAlreadyRunning):
            return directory.acquire()
        if time.monotonic() > deadline:
            return None
        if told is not None:
            for pid in set(directory.heads()) - told:
                told.add(pid)
                signal_process(pid, signal.SIGTERM, lambda: pid in directory.heads())  # noqa: B023  # called at once
        time.sleep(0.02)


def wait_until_stopped(directory: ClusterDirectory, timeout_s: float) -> bool:
    """Wait for the end of a directory's cluster; return whether all of its processes have ended."""
    return await_condition(lambda: not directory.is_running(), timeout_s) and await_condition(
        lambda: not processes_of(directory), LAST_STEPS_S
    )


def leave_cluster(configuration: Configuration, say: Say) -> None:
    """Stop one host's part of a cluster on several hosts, and leave its jobs to the other hosts.

    Raises:
        ClusterNotRunning: there is nothing to stop.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    _require_something(directory, f"no part of a cluster runs in {directory.root}")
    told: set[int] = set()
    lock = end_cluster(directory, directory.incarnation(), told, configuration.get(ClusterOptions.STOP_TIMEOUT))
    if lock is not None:
        with lock:
            _sweep(directory, told, say)
            directory.clean()


def _forget_jobs(directory: ClusterDirectory, say: Say) -> None:
    """Remove the jobs that a killed master left in files, and in Redis if the cluster uses it."""
    if not directory.configuration_file.exists():
        return  # the master has stopped in good order
    from runtime.ha.errors import HaError, HaUnreachableError
    from runtime.ha.services import CLEANUP_PATIENCE_S, delete_state_files

    async def clean_up(configuration: Configuration) -> None:
        services = open_redis_services(configuration)
        try:
            try:
                await services.cleanup(0.0)
            except HaUnreachableError:
                say(f"Redis does not answer: trying again for {CLEANUP_PATIENCE_S:g} s")
                await services.cleanup(CLEANUP_PATIENCE_S)
        finally:
            await services.close()

    configuration = Configuration.read(directory.configuration_file)
    if not has_redis(configuration):
        storage = configuration.get(HighAvailabilityOptions.STORAGE_DIR)
        delete_state_files(storage / configuration.get(ClusterOptions.ID))
        return
    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:
        return  # the master was killed before it stored anything
    embedded = embedded_redis(directory)
    try:
        if embedded is not None and embedded.pid is None:
            embedded.start()  # it was killed too, and the keys can only be removed while it runs
        asyncio.run(clean_up(configuration))
    except HaError as error:
        say(
            f"the jobs of the cluster {configuration.get(ClusterOptions.ID)!r} stay in Redis, and the next cluster of "
            f"that id runs them again: {error}"
        )
