"""Starting, finding and stopping the session cluster of a runtime directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from actors.errors import ActorError
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcConfig
from conf.configuration import Configuration
from conf.files import write_private
from conf.options import (
    BlobOptions,
    ClientOptions,
    ClusterOptions,
    DeploymentOptions,
    EnvironmentOptions,
    ExecutionTarget,
    HighAvailabilityOptions,
    RpcOptions,
    SecurityOptions,
    SparkOptions,
)
from runtime.client import ClusterClient
from runtime.cluster.host_processes import (
    FIRST,
    JOINING,
    MASTER,
    MEMBER,
    ClusterStartError,
    await_condition,
    embedded_redis,
    kill_heads,
    launch,
    left_behind,
    processes_of,
    sweep,
)
from runtime.cluster.preflight import Check, require, standard_checks
from runtime.cluster.workers import fixed_workers
from runtime.environment.context import has_redis, tls_config
from runtime.environment.directory import ClusterDirectory, ClusterLock
from runtime.errors import ClusterAlreadyRunning, ClusterError, ClusterNotRunning, PreflightError
from runtime.rest.listening import exposure_warning

Say = Callable[[str], None]

WORKER_TRIES = 2
LAST_STEPS_S = 2.0  # between a master's release of the lock and the end of its process
KILLED_S = 10.0  # from the SIGKILL of a process to its end, on a busy machine


def start_cluster(
    configuration: Configuration,
    say: Say,
    masters: int = 1,
    target: ExecutionTarget = ExecutionTarget.SESSION,
    *,
    is_member: bool = False,
) -> ClusterClient:
    """Start a cluster in the background and wait until it takes and runs jobs.

    Args:
        configuration: the cluster's.
        say: told each step, in a few words.
        masters: how many masters; one leads, the others are standbys.
        target: which kind of cluster; see `runtime.cluster.cluster_entrypoint`.
        is_member: whether it is one host's master of a cluster on several hosts.

    Raises:
        ClusterError, HaError, SparkError: the machine lacks something, a cluster runs already, or it failed.
    """
    if masters > 1:
        _require_redis(configuration, f"{masters} masters cannot be started")
    configuration = configuration.set(DeploymentOptions.TARGET, target)
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    _refuse_running(directory)
    check_redis = (lambda: describe_redis(configuration)) if has_redis(configuration) else None
    checks = standard_checks(configuration, lambda: _find_java(configuration), check_redis)
    try:
        require([*checks, Check("Spark master", lambda: check_spark_master(configuration))])
    except ClusterError:
        _refuse_running(directory)  # another `start` was faster: the ports are its cluster's
        raise
    own = StartedCluster.begin(directory)
    try:
        directory.create()
        sweep(directory)  # what a killed master left behind
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
        client = connect(configuration)
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
    """Raise `ClusterAlreadyRunning` where a cluster runs, or is being started."""
    if not directory.is_running():
        return
    with contextlib.suppress(ClusterNotRunning):
        if not directory.is_held_alone():
            descriptor = directory.read_descriptor()
            raise ClusterAlreadyRunning(
                f"the cluster {descriptor.cluster_id!r} already runs at {descriptor.system_address}",
                "use it, stop it with `python -m runtime.cluster stop`, or start another with -D cluster.id=NAME",
            )
    directory.acquire().release()  # it says what hinders


@dataclass(frozen=True, slots=True)
class StartedCluster:
    """The processes that one `start` has begun, and ends again if it fails; no others of the directory.

    Jobs that a killed cluster left in the directory stay, for the next start.

    Args:
        directory: of the cluster.
        lock: its lock, held alone from before the first change until the first master serves.
        found: the configuration that a killed cluster left; None where there was none.
    """

    directory: ClusterDirectory
    lock: ClusterLock
    found: bytes | None

    @classmethod
    def begin(cls, directory: ClusterDirectory) -> StartedCluster:
        """Take the lock. Raises `ClusterAlreadyRunning`."""
        lock = directory.acquire()
        file = directory.configuration_file
        return cls(directory, lock, file.read_bytes() if file.exists() else None)

    def take_down(self) -> None:
        """End its processes, as a kill would, and restore what was found; another cluster's are left alone."""
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
    """Start one more master for the cluster of the runtime directory; returns its address.

    Where all masters of the cluster were killed, it takes over what they left: Redis, the workers and their tasks.

    Raises:
        ClusterNotRunning: no cluster was started in the directory.
        ClusterError: the cluster keeps its state in its one master, or the master did not come up.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    return _start_joining(directory, time.monotonic() + configuration.get(ClusterOptions.START_TIMEOUT))


def _start_joining(directory: ClusterDirectory, deadline: float) -> str:
    _require_started(directory)
    with directory.join() as lock:
        _require_started(directory)  # nobody can stop and remove it from here on
        _require_redis(
            Configuration.read(directory.configuration_file), f"the cluster in {directory.root} has one master"
        )
        return _start_master(directory, lock, deadline, JOINING)


def _require_started(directory: ClusterDirectory) -> None:
    if not directory.configuration_file.exists():
        raise ClusterNotRunning(
            f"no cluster was started in {directory.root}", "start one with `python -m runtime.cluster start`"
        )


def _require_redis(configuration: Configuration, refusal: str) -> None:
    if not has_redis(configuration):
        raise ClusterError(
            f"{refusal}: high-availability.type is none, so a master keeps leaders and jobs in its own memory",
            "start the cluster with high-availability.type=redis to have standbys; one that has lost its master is "
            "ended by `python -m runtime.cluster stop`",
        )


def _find_java(configuration: Configuration) -> str:
    from runtime.spark.driver.java import find_java

    if configuration.get(SparkOptions.REMOTE) is not None:
        return "not needed for spark.remote"
    home = configuration.get(EnvironmentOptions.JAVA_HOME)
    java = find_java(None if home is None else str(home))
    return f"Java {java.version} in {java.home}"


def check_spark_master(configuration: Configuration) -> str:
    """Whether the Spark master, or the endpoint, can be had, in words; raises `SparkError`."""
    remote = configuration.get(SparkOptions.REMOTE)
    if remote is not None:
        from runtime.spark.driver.remote import check_remote

        return check_remote(remote.reveal())
    from runtime.spark.driver.launch import check_master, network_conf

    master = configuration.get(SparkOptions.MASTER)
    found = check_master(master)
    network_conf(master, configuration.spark_properties())
    return found


def describe_redis(configuration: Configuration) -> str:
    """The redis-server that would be started, or the configured one, which is asked; raises `HaError`."""
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    if url is None:
        from runtime.ha.redis_process import find_redis_server

        return f"{find_redis_server()}"
    import asyncio

    from runtime.ha.connection import RedisConnection

    async def check() -> str:
        try:
            connection = RedisConnection(url.reveal())
        except ValueError as error:
            raise PreflightError(str(error), "set high-availability.redis.url to such a URL") from None
        try:
            return str(await connection.check())
        finally:
            await connection.close()

    return asyncio.run(check())


def _start_master(directory: ClusterDirectory, lock: ClusterLock, deadline: float, mode: str) -> str:
    """Start a master, see `runtime.cluster.entrypoint`, and return its address once it serves."""
    return launch(directory, lock, "master", MASTER, [mode], deadline)


def _await_workers(client: ClusterClient, configuration: Configuration, deadline: float, say: Say) -> None:
    wanted = fixed_workers(configuration)
    log_dir = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR)).log
    if wanted:
        each = "a TaskExecutor with its" if wanted == 1 else f"{wanted} TaskExecutors, each with a"
        say(f"starting {each} Spark driver")
    while (there := client.overview().task_managers + _stopped_workers(client)) < wanted:
        if time.monotonic() > deadline:
            raise ClusterStartError(
                f"only {there} of {wanted} TaskExecutors have registered within cluster.start-timeout",
                f"see {log_dir}/taskmanager-*.log",
            )
        _give_up_on_dying_workers(client, log_dir)
        time.sleep(0.1)


def _stopped_workers(client: ClusterClient) -> int:
    """Workers that have come and that nobody used for ``resourcemanager.taskmanager-timeout``."""
    return sum(process.is_stopped for process in client.status().processes)


def _give_up_on_dying_workers(client: ClusterClient, log_dir: Path) -> None:
    """A worker that has ended twice without ever registering ends a third time: say why at once."""
    for process in client.status().processes:
        if process.role == "worker" and process.restarts >= WORKER_TRIES:
            words = (log_dir / f"{process.name}.out").read_text(errors="replace").strip().splitlines()
            cause = words[-1].removeprefix("error: ") if words else "it says nothing"
            raise ClusterStartError(f"{process.name} does not start: {cause}", f"see {log_dir}/{process.name}*.log")


def connect(configuration: Configuration) -> ClusterClient:
    """A client of the running cluster of the configuration's runtime directory.

    Where none was started there, it is one on other hosts, if the configuration says how to find that.

    Raises:
        ClusterNotRunning: none runs there.
        HaError: the Redis by which it is to be found cannot be used.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if not directory.cluster_json.exists():
        from runtime.cluster.discovery import connect_elsewhere

        client = connect_elsewhere(configuration)
        if client is not None:
            return client
    descriptor = directory.read_descriptor()
    if not directory.is_running():
        raise ClusterNotRunning(
            f"the cluster in {directory.root} is not running: its master is gone",
            "`python -m runtime.cluster master` takes over what it left, `stop` cleans up, `start` starts it again",
        )
    running = Configuration.read(directory.configuration_file)  # the limits that the cluster itself has
    frame_size = running.get(RpcOptions.FRAME_SIZE)
    return ClusterClient(
        (*directory.masters().values(), *descriptor.masters) or (descriptor.system_address,),
        load_or_create_secret(running.get(SecurityOptions.SECRET_FILE)),
        rpc=RpcConfig(socket_dir=Path(descriptor.socket_dir), frame_size=frame_size, tls=tls_config(running)),
        inline_limit=min(running.get(BlobOptions.OFFLOAD_MINSIZE), frame_size // 2),
        patience_s=configuration.get(ClientOptions.TIMEOUT),
        find_masters=lambda: tuple(directory.masters().values()),
        # Killed masters leave it: others may take over what they left.
        was_stopped=lambda: not directory.configuration_file.exists() and not directory.is_running(),
    )


def stop_cluster(configuration: Configuration, say: Say) -> None:
    """Stop the cluster of the configuration's runtime directory, and whatever a killed part of it left behind.

    Its unfinished jobs are over with it: the next cluster in the directory does not recover them. One that is still
    being started is stopped too. Another one, which is started meanwhile, is left alone.

    Raises:
        ClusterNotRunning: there is nothing to stop.
        ClusterError: it cannot be stopped.
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
        if directory.checkpoints.exists():  # of jobs that are over with the cluster
            shutil.rmtree(directory.checkpoints)


def _require_something(directory: ClusterDirectory, nothing: str) -> None:
    """Raise `ClusterNotRunning` where there is nothing to stop; what a cluster left in files is removed then."""
    if directory.is_running() or left_behind(directory):
        return
    if directory.cluster_json.exists():
        with directory.acquire():
            directory.clean()
    raise ClusterNotRunning(nothing, "there is nothing to stop")


def _shut_down(configuration: Configuration, directory: ClusterDirectory, say: Say) -> set[int]:
    """Tell all masters that serve to end the cluster; returns their processes, or none where nobody answered."""
    serving = set(directory.heads(serving=True))
    if not serving or not directory.cluster_json.exists():
        say("the cluster is being started or stopped: its processes are told to end")
        return set()
    try:
        with connect(configuration) as client:
            say("stopping jobs, TaskExecutors and the master")
            client.shut_down()
    except (ActorError, ClusterNotRunning) as error:
        say(f"the master does not answer ({error}): its processes are ended one by one")
        return set()
    return serving


def _sweep(directory: ClusterDirectory, told: set[int], say: Say) -> None:
    """End what is left; masters that were told to end have given up the lock, and take their last steps."""
    await_condition(lambda: told.isdisjoint(processes_of(directory)), LAST_STEPS_S)
    left = sweep(directory)
    if left:
        say(f"ended {left} process{'es' if left > 1 else ''} that had been left behind")


def end_cluster(
    directory: ClusterDirectory, incarnation: str | None, told: set[int], timeout_s: float
) -> ClusterLock | None:
    """Wait until the cluster of a directory has ended, and take its lock.

    Masters that were not told yet, those that are being started among them, get SIGTERM, and after *timeout_s* seconds
    all masters SIGKILL.

    Args:
        directory: of the cluster.
        incarnation: which cluster; see `ClusterDirectory.incarnation`.
        told: processes of masters that were told to end already; the others are added.
        timeout_s: seconds for an end in good order.

    Returns:
        the lock; None where another cluster was started meanwhile.

    Raises:
        ClusterError: something holds the lock and does not end.
    """
    lock = await_lock(directory, incarnation, timeout_s, told)
    if lock is None and kill_heads(directory, incarnation):
        lock = await_lock(directory, incarnation, KILLED_S)
    if lock is None and directory.incarnation() == incarnation:
        raise ClusterError(
            f"the lock {directory.lock_file} is not given up, though the cluster's processes were killed",
            "another `start` or `stop` holds it: wait for it, or end it, and stop the cluster again",
        )
    return lock


def await_lock(
    directory: ClusterDirectory, incarnation: str | None, timeout_s: float, told: set[int] | None = None
) -> ClusterLock | None:
    """Take the lock of a directory as soon as a cluster there has given it up.

    Args:
        directory: of the cluster.
        incarnation: which cluster.
        timeout_s: seconds to wait.
        told: processes of masters that know that they are to end; every other one gets SIGTERM. None: nobody does.

    Returns:
        the lock; None where it was not to be had in time, or is another cluster's by now.
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
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)


def wait_until_stopped(directory: ClusterDirectory, timeout_s: float) -> bool:
    """Wait for the end of a directory's cluster; whether it has come, and no process is left of it."""
    return await_condition(lambda: not directory.is_running(), timeout_s) and await_condition(
        lambda: not processes_of(directory), LAST_STEPS_S
    )


def require_for_workers(configuration: Configuration) -> None:
    """See that this host has what TaskExecutors need; raises as `start_cluster`."""
    check_redis = (lambda: describe_redis(configuration)) if has_redis(configuration) else None
    checks = standard_checks(configuration, lambda: _find_java(configuration), check_redis, with_ports=False)
    require([*checks, Check("Spark master", lambda: check_spark_master(configuration))])


def leave_cluster(configuration: Configuration, say: Say) -> None:
    """Stop what runs in the configuration's runtime directory of a cluster on several hosts; its jobs are the others'.

    Raises:
        ClusterNotRunning: there is nothing to stop.
    """
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    _require_something(directory, f"nothing of a cluster runs in {directory.root}")
    told: set[int] = set()
    lock = end_cluster(directory, directory.incarnation(), told, configuration.get(ClusterOptions.STOP_TIMEOUT))
    if lock is not None:
        with lock:
            _sweep(directory, told, say)
            directory.clean()


def _forget_jobs(directory: ClusterDirectory, say: Say) -> None:
    """Remove what a master that did not stop in good order left in files, and in Redis if there is one."""
    if not directory.configuration_file.exists():
        return  # it did
    import asyncio

    from runtime.environment.context import open_redis_services
    from runtime.ha.errors import HaError
    from runtime.ha.services import delete_state_files

    async def clean_up(configuration: Configuration) -> None:
        services = open_redis_services(configuration)
        try:
            await services.cleanup()
        finally:
            await services.close()

    configuration = Configuration.read(directory.configuration_file)
    if not has_redis(configuration):
        storage = configuration.get(HighAvailabilityOptions.STORAGE_DIR)
        delete_state_files(storage / configuration.get(ClusterOptions.ID))
        return
    if configuration.get(HighAvailabilityOptions.REDIS_URL) is None:
        return  # the master did not come as far as to store anything
    embedded = embedded_redis(directory)
    try:
        if embedded is not None and embedded.pid is None:
            embedded.start()  # it was killed too; only it can forget what it knows
        asyncio.run(clean_up(configuration))
    except HaError as error:
        say(f"the cluster's keys stay in Redis: {error}")
