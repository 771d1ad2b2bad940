"""Checks of what a cluster needs from the machine, made before a start.

Each check returns a line with its finding, or raises ``PreflightError`` with the remedy.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import why_unreachable
from conf import Configuration
from conf.options import (
    BlobOptions,
    ClusterOptions,
    EnvironmentOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    QueueOptions,
    RestOptions,
    SparkOptions,
    TaskManagerOptions,
)
from runtime.environment.context import has_redis
from runtime.errors import ClusterError, PreflightError
from runtime.rest.issuer import client_secret_of, rules_of
from runtime.rest.listening import PortTakenError, bind_address, check_exposure, listen, ports, ports_key
from runtime.retry import retry
from runtime.taskexecutor.control_groups import control_groups

if TYPE_CHECKING:  # it loads yaml
    from runtime.queues.configuration import Queues

logger = logging.getLogger(__name__)

MINIMUM_FILES = 1024
REDIS_PATIENCE_S = 10.0
"""Seconds for which a start waits for a Redis that is busy or being restarted."""
HEADROOM = 256 << 20  # bytes for logs, Spark's shuffle and Redis, in addition to the reserve of the blob service


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        name: the thing that it checks.
        run: returns its finding in a few words, or raises PreflightError or another error with a ``remedy``.
    """

    name: str
    run: Callable[[], str]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check; ``remedy`` is empty if it passed without a warning."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def standard_checks(
    configuration: Configuration,
    find_java: Callable[[], str] | None = None,
    check_redis: Callable[[], str] | None = None,
    *,
    with_ports: bool = True,
) -> list[Check]:
    """Return the checks of a start with this configuration.

    Args:
        configuration: of the cluster that will be started.
        find_java: the check of Java; None to leave it out.
        check_redis: the check of Redis; None to leave it out.
        with_ports: whether to check that the cluster's ports are free; those of a running cluster are not.
    """
    runtime_dir = configuration.get(ClusterOptions.RUNTIME_DIR)
    needed = configuration.get(BlobOptions.DISK_RESERVE) + HEADROOM
    bind_host = configuration.get(ClusterOptions.HOST)
    checks = [
        Check("runtime directory", lambda: check_writable(runtime_dir)),
        Check("disk space", lambda: check_disk_space(runtime_dir, needed)),
        Check("open files", check_file_limit),
    ]
    for option in (JobManagerOptions.RPC_PORT, BlobOptions.SERVER_PORT):
        port = configuration.get(option)
        if port != 0 and with_ports:
            checks.append(Check(option.key, functools.partial(check_port_free, bind_host, port, option.key)))
    if configuration.get(RestOptions.ENABLED) and with_ports:
        checks.append(Check("web endpoint", lambda: check_web_endpoint(configuration)))
    queues = configuration.get(QueueOptions.FILE)
    if queues is not None:
        checks.append(Check(QueueOptions.FILE.key, lambda: check_queues(queues)))
    options, get = TaskManagerOptions, configuration.get
    if get(options.CGROUP) or get(options.TASK_CGROUP_MEMORY) or get(options.TASK_CGROUP_CPUS):
        checks.append(Check("control groups", lambda: check_control_groups(configuration)))
    if find_java is not None:
        checks.append(Check("Java", find_java))
    if check_redis is not None:
        checks.append(Check("Redis", check_redis))
    return checks


def start_checks(configuration: Configuration, say: Callable[[str], None], *, with_ports: bool = True) -> list[Check]:
    """Return all checks of a start; *say* is called with what they wait for, otherwise as `standard_checks`."""
    redis = (lambda: describe_redis(configuration, say)) if has_redis(configuration) else None
    checks = standard_checks(configuration, lambda: find_java(configuration), redis, with_ports=with_ports)
    return [*checks, Check("Spark master", lambda: check_spark_master(configuration))]


def require(checks: Iterable[Check]) -> list[CheckResult]:
    """Make the checks and return their results; raise the error of the first that fails."""
    return [CheckResult(check.name, True, check.run()) for check in checks]


def examine(checks: Iterable[Check], expected: tuple[type[Exception], ...] = (ClusterError,)) -> list[CheckResult]:
    """Make all checks and return their results.

    Args:
        checks: the checks.
        expected: types of errors that are results; any other error is raised.
    """
    results = []
    for check in checks:
        try:
            results.append(CheckResult(check.name, True, check.run()))
        except expected as error:
            results.append(CheckResult(check.name, False, str(error), str(getattr(error, "remedy", ""))))
    return results


def check_queues(path: Path) -> str:
    """Check the file of queues; return the names of the queues."""
    return ", ".join(queue.name for queue in read_queues(path).queues)


def read_queues(path: Path) -> Queues:
    """Return the content of a file of queues; raises `PreflightError`."""
    from runtime.queues.configuration import QueuesError, QueuesFile

    try:
        return QueuesFile(path).read()
    except QueuesError as error:
        problem, _, remedy = str(error).rpartition("; ")
        raise PreflightError(problem, remedy) from None


def check_control_groups(configuration: Configuration) -> str:
    """Check that tasks can have control groups."""
    control_groups(configuration, owner=f"preflight {os.getpid()}")
    return f"tasks have control groups in {configuration.get(TaskManagerOptions.CGROUP)}"


def check_port_free(host: str, port: int, key: str) -> str:
    """Check that no process listens on a port of this machine.

    Args:
        host: the address to listen on.
        port: the port.
        key: of the option that names the port, for the remedy.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise PreflightError(
            f"cannot resolve the host {host!r}: {why_unreachable(error)}", "check jobmanager.rpc.address"
        ) from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # as a server does: ports that only linger in TIME_WAIT are free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise _port_error(error, host, port, key) from error
    return f"{host}:{port} is free"


def check_web_endpoint(configuration: Configuration) -> str:
    """Check that the web endpoint may listen on its address, and that a port is free there."""
    check_exposure(configuration)
    rules_of(configuration)
    client_secret_of(configuration)
    host, wanted, key = bind_address(configuration), ports(configuration), ports_key(configuration)
    try:
        listener = listen(host, wanted, key)
    except PortTakenError as error:
        raise PreflightError(f"{error}{port_holder(wanted[0])}", error.remedy) from error
    with listener:
        return f"{host}:{listener.getsockname()[1]} is free"


def _port_error(error: OSError, host: str, port: int, key: str) -> PreflightError:
    if error.errno == errno.EADDRINUSE:
        return PreflightError(
            f"port {port} is taken{port_holder(port)}", f"stop that process, or choose another port with -D {key}=PORT"
        )
    if error.errno == errno.EACCES:
        return PreflightError(f"only root may listen on port {port}", f"choose a port above 1023 with -D {key}=PORT")
    if error.errno == errno.EADDRNOTAVAIL:
        return PreflightError(
            f"{host} is not an address of this machine", "set jobmanager.rpc.address to one that is, or to 127.0.0.1"
        )
    return PreflightError(f"cannot listen on {host}:{port}: {error.strerror}", f"choose another with -D {key}=PORT")


def port_holder(port: int) -> str:
    """Return the process that listens on a port, such as `` by process 123 (redis-server)``; empty if it is hidden."""
    import psutil  # only for a taken port, so that the command line starts quickly

    with suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,) and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def check_writable(directory: Path) -> str:
    """Check that files can be made in a directory, or in its nearest existing parent."""
    existing = _nearest_existing(directory)
    if not existing.is_dir():
        raise PreflightError(
            f"the runtime directory {directory} cannot be made: {existing} is not a directory",
            "choose another with -D cluster.runtime-dir=DIR",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PreflightError(
            f"the runtime directory {directory} cannot be written: no permission in {existing}",
            "choose another with -D cluster.runtime-dir=DIR",
        )
    return f"{directory} can be written"


def check_disk_space(directory: Path, needed: int) -> str:
    """Check that ``needed`` bytes are free on the disk of a directory."""
    free = shutil.disk_usage(_nearest_existing(directory)).free
    if free < needed:
        raise PreflightError(
            f"only {free >> 20} MB are free on the disk of {directory}, {needed >> 20} MB are needed",
            "free some space, or choose another disk with -D cluster.runtime-dir=DIR",
        )
    return f"{free >> 20} MB free"


def check_file_limit(needed: int = MINIMUM_FILES) -> str:
    """Check that a process may open ``needed`` files; raise the soft limit, for children too, if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise PreflightError(
                f"a process may open only {hard} files, {needed} are needed",
                f"run `ulimit -n {needed}` as root, or see limits.conf",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        soft = needed
    return "no limit" if soft == resource.RLIM_INFINITY else f"{soft} allowed"


def find_java(configuration: Configuration) -> str:
    """Return the Java that a start would use, without running it; raises `SparkError`."""
    from runtime.spark.driver import java as installed

    if configuration.get(SparkOptions.REMOTE) is not None:
        return "not needed for spark.remote"
    home = configuration.get(EnvironmentOptions.JAVA_HOME)
    java = installed.find_java(None if home is None else str(home))
    return f"Java {java.version} in {java.home}"


def check_spark_master(configuration: Configuration) -> str:
    """Check the Spark master, or the endpoint of ``spark.remote``; raises `SparkError`."""
    remote = configuration.get(SparkOptions.REMOTE)
    if remote is not None:
        from runtime.spark.driver.remote import check_remote

        return check_remote(remote.reveal())
    from runtime.spark.driver.launch import check_master, network_conf

    master = configuration.get(SparkOptions.MASTER)
    found = check_master(master)
    network_conf(master, configuration.spark_properties())
    return found


def describe_redis(configuration: Configuration, say: Callable[[str], None] | None = None) -> str:
    """Return the redis-server that would be started, or the answer of the configured one.

    Args:
        configuration: of the cluster.
        say: called once if Redis does not answer; then the check tries again for `REDIS_PATIENCE_S` seconds. With None,
            it tries once.

    Raises:
        HaError, PreflightError: Redis cannot be used.
    """
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    if url is None:
        from runtime.ha.redis_process import find_redis_server

        return f"{find_redis_server()}"
    from runtime.ha.connection import RedisConnection
    from runtime.ha.errors import HaUnreachableError

    async def check() -> str:
        try:
            connection = RedisConnection(url.reveal())
        except ValueError as error:
            raise PreflightError(str(error), "set high-availability.redis.url to such a URL") from None
        try:
            return str(await connection.check())
        finally:
            await connection.close()

    try:
        return asyncio.run(check())
    except HaUnreachableError as error:
        if say is None:
            raise
        say(f"Redis does not answer: trying again for {REDIS_PATIENCE_S:g} s ({error.cause})")
    again = retry(check, HaUnreachableError, what="asking Redis", log=logger, patience_s=REDIS_PATIENCE_S)
    return asyncio.run(again)


def _nearest_existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
