"""One host's part of a cluster on several hosts: its configuration, its start and its stop.

It corresponds to Flink's ``jobmanager.sh`` and ``taskmanager.sh``.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError, AuthenticationError, why_unreachable
from actors.rpc.config import RpcConfig
from actors.rpc.security import load_or_create_secret, load_secret
from conf.configuration import Configuration
from conf.files import make_private
from conf.options import (
    ClusterOptions,
    HeartbeatOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    SecurityOptions,
    TaskManagerOptions,
)
from conf.values import is_loopback, split_url
from runtime.cluster.host import registrations
from runtime.cluster.host_processes import HOST, ClusterStartError, is_member, last_words, launch, sweep
from runtime.cluster.preflight import require, start_checks
from runtime.cluster.session import Say, StartedCluster, leave_cluster, start_cluster
from runtime.environment.context import has_redis, tls_config
from runtime.environment.directory import ClusterDirectory
from runtime.environment.shared_directory import mark_shared_directory
from runtime.errors import ClusterAlreadyRunning, ClusterError, PreflightError
from runtime.taskexecutor.worker_files import REFUSED, REGISTERED, RegistrationState

PATIENCE_S = 3.0  # for a started TaskExecutor to be registered, before `start` reports that it waits
POLL_S = 0.1


ONLY_SILENCE_COUNTS = -1
TASK_EXECUTOR_DIR = "task-executor"


class Role(Enum):
    """Role of a host in the cluster."""

    MASTER = "master"
    TASK_EXECUTOR = "task-executor"


def role_configuration(configuration: Configuration, role: Role, host: str | None = None) -> Configuration:
    """Return the configuration of one host's processes.

    Args:
        configuration: the cluster's, the same on all hosts.
        role: of the host.
        host: its address (see `find_host` and `check_host`); None if nothing will be started.
    """
    get = configuration.get
    # Both default to places in the runtime directory, which changes below.
    own = configuration.set(ClusterOptions.SHARED_DIR, get(ClusterOptions.SHARED_DIR))
    own = own.set(SecurityOptions.SECRET_FILE, get(SecurityOptions.SECRET_FILE))
    if host is not None:
        own = own.set(ClusterOptions.HOST, host)
    if not configuration.is_set(HeartbeatOptions.RPC_FAILURE_THRESHOLD):
        # Across a network an unreachable TaskExecutor may be alive. Its tasks must not run again before it has
        # ended them itself (taskmanager.isolation.timeout).
        own = own.set(HeartbeatOptions.RPC_FAILURE_THRESHOLD, ONLY_SILENCE_COUNTS)
    if role is Role.MASTER:
        return own.set(TaskManagerOptions.COUNT, 0)
    own = own.set(ClusterOptions.RUNTIME_DIR, get(ClusterOptions.RUNTIME_DIR) / TASK_EXECUTOR_DIR)
    if host is not None and not configuration.is_set(TaskManagerOptions.RESOURCE_ID):
        own = own.set(TaskManagerOptions.RESOURCE_ID, f"taskmanager-{host.replace(':', '.').strip('.')}")
    if not configuration.is_set(TaskManagerOptions.ISOLATION_TIMEOUT):
        timeout_s, interval_s = get(HeartbeatOptions.TIMEOUT), get(HeartbeatOptions.INTERVAL)
        own = own.set(TaskManagerOptions.ISOLATION_TIMEOUT, max(timeout_s - 2 * interval_s, timeout_s / 2))
    return own


def check_role(configuration: Configuration, role: Role, host: str) -> None:
    """Check that a cluster with this configuration can have several hosts.

    Raises:
        PreflightError: an option does not fit, or the secret is missing; with the remedy.
        AuthenticationError: the secret cannot be used.
    """
    get = configuration.get
    if has_redis(configuration):
        if get(HighAvailabilityOptions.REDIS_URL) is None:
            raise PreflightError(
                "the cluster has no Redis that several hosts could share: only its own host reaches one that it starts",
                "set high-availability.redis.url to one that every host reaches, or high-availability.type to none",
            )
    elif role is Role.TASK_EXECUTOR and get(JobManagerOptions.RPC_PORT) == 0:
        raise PreflightError(
            "without Redis the TaskExecutors find the master by its port, and jobmanager.rpc.port is 0",
            "set jobmanager.rpc.port, and jobmanager.rpc.address to the master's host",
        )
    isolation_s = get(TaskManagerOptions.ISOLATION_TIMEOUT)
    if isolation_s is not None and isolation_s >= get(HeartbeatOptions.TIMEOUT):
        raise PreflightError(
            f"taskmanager.isolation.timeout ({isolation_s:g} s) is not below heartbeat.timeout: tasks would run again "
            "before those of a host that is cut off have ended",
            "set the first one lower, or leave it out",
        )
    if is_loopback(host):
        return
    secret = get(SecurityOptions.SECRET_FILE)
    if not secret.exists():
        raise PreflightError(
            f"there is no secret in {secret}, and without one nothing listens on {host}",
            f"make one (install -m 600 /dev/null {secret}; openssl rand -hex 32 >> {secret}) and copy it to every host",
        )
    load_secret(secret)
    if not configuration.is_set(ClusterOptions.SHARED_DIR):
        raise PreflightError(
            "cluster.shared-dir is not set: other hosts cannot read this host's disk",
            "set it to a directory on a file system that all hosts have mounted at the same path",
        )


def find_host(configuration: Configuration, role: Role) -> str:
    """Return the address of this machine: as configured, or the one by which it reaches Redis or the master."""
    if configuration.is_set(ClusterOptions.HOST):
        return configuration.get(ClusterOptions.HOST)
    master = configuration.get(JobManagerOptions.RPC_ADDRESS)
    if role is Role.MASTER and configuration.is_set(JobManagerOptions.RPC_ADDRESS) and _is_own(master):
        return master
    target, port = master, configuration.get(JobManagerOptions.RPC_PORT) or 1
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    if has_redis(configuration) and url is not None and (found := _redis_host(url.reveal())):
        target, port = found
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(target, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing: the kernel chooses the route, and so the address
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        raise PreflightError(
            f"this host has no route to {target}: {why_unreachable(error)}",
            "fix the network, or name this host's own address with --host",
        ) from error


def check_host(host: str) -> str:
    """Return the address that *host* names, if other hosts can reach this machine by it.

    Raises:
        PreflightError: they cannot.
    """
    try:
        address = str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise PreflightError(
            f"cannot resolve the host {host!r}: {why_unreachable(error)}", "name this host's address with --host"
        ) from error
    if is_loopback(address) and not is_loopback(host):
        raise PreflightError(
            f"{host} is {address} on this machine, which no other host reaches",
            "name this host's address with --host, or correct its line in /etc/hosts",
        )
    if not _is_own(address):
        raise PreflightError(
            f"{host} is not an address of this machine", "name its own address with --host, or leave out --host"
        )
    return address


def _is_own(host: str) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, UnicodeError):
        return False
    return True


def _redis_host(url: str) -> tuple[str, int] | None:
    """Return host and port of a Redis, or of its first Sentinel; None for a Unix socket."""
    where = split_url(url)[0].rpartition("@")[2].split(",")[0]
    parts = urlsplit(f"//{where}")
    return None if not parts.hostname else (parts.hostname, parts.port or 6379)


# -------------------------------------------------------------- start and stop


@dataclass(frozen=True, slots=True)
class StartedRole:
    """Result of a start on this host.

    Args:
        role: of this host.
        host: the address of this machine.
        directory: its runtime directory.
        waiting: why its TaskExecutors are not registered yet; empty if they are.
    """

    role: Role
    host: str
    directory: str
    waiting: str = ""


def start_role(configuration: Configuration, role: Role, host: str | None, say: Say) -> StartedRole:
    """Start one host's part of a cluster in the background.

    A master serves when this returns. TaskExecutors may still wait for a master; they try to register for
    ``taskmanager.registration.timeout``.

    Args:
        configuration: the cluster's, the same on all hosts.
        role: of this host.
        host: its address, or a name for it; None: as configured, or detected.
        say: called with each step.

    Raises:
        ClusterError, HaError, SparkError, AuthenticationError: this host lacks something, the configuration does not
            allow several hosts, the role runs already, or its start failed.
    """
    address = check_host(host or find_host(configuration, role))
    check_role(configuration, role, address)
    own = role_configuration(configuration, role, address)
    if not is_loopback(address) and tls_config(own) is None:
        say("warning: messages and blobs between hosts are not encrypted; see security.ssl.internal.enabled")
    start = _start_master if role is Role.MASTER else _start_task_executors
    waiting = start(own, say)
    return StartedRole(role, address, str(own.get(ClusterOptions.RUNTIME_DIR)), waiting)


def stop_role(configuration: Configuration, role: Role, say: Say) -> None:
    """Stop this host's part of a cluster. Its jobs keep running on other hosts, or are kept if there are none.

    Raises:
        ClusterNotRunning: no part of it runs here.
        ClusterError: the masters here belong to a cluster on one host, all of which would end with them.
    """
    own = role_configuration(configuration, role)
    heads = ClusterDirectory(own.get(ClusterOptions.RUNTIME_DIR)).heads()
    if role is Role.MASTER and heads and not any(map(is_member, heads)):
        raise ClusterError(
            "the masters here belong to a cluster on one host", "leave out --role: `understudy stop` stops all of it"
        )
    leave_cluster(own, say)


def _start_master(configuration: Configuration, say: Say) -> str:
    shared = configuration.get(ClusterOptions.SHARED_DIR)
    mark_shared_directory(shared, configuration.get(ClusterOptions.ID))
    for part in ("jobs", "archive"):
        make_private(shared / part, durable=True)
    start_cluster(configuration, say, is_member=True).close()
    return ""


def _start_task_executors(configuration: Configuration, say: Say) -> str:
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if directory.is_running():
        raise ClusterAlreadyRunning(
            f"TaskExecutors of this host run already in {directory.root}",
            "stop them with `understudy stop --role task-executor`",
        )
    require(start_checks(configuration, say, with_ports=False))
    if not has_redis(configuration):
        _check_secret(configuration)
    load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))
    own = StartedCluster.begin(directory)
    try:
        directory.create()
        sweep(directory)
        states = registrations(configuration, directory)
        for index, state in enumerate(states.values()):
            directory.taskmanager(index).mkdir(mode=0o700, exist_ok=True)
            state.forget()
        configuration.write(directory.configuration_file)
        deadline = time.monotonic() + configuration.get(ClusterOptions.START_TIMEOUT)
        count = configuration.get(TaskManagerOptions.COUNT)
        say("starting a TaskExecutor with its Spark driver" if count == 1 else f"starting {count} TaskExecutors")
        launch(directory, own.lock, "host", HOST, [], deadline)
        return _await_registration(configuration, directory, states, deadline)
    except BaseException:
        own.take_down()
        raise


def _check_secret(configuration: Configuration) -> None:
    """Raise AuthenticationError if the master answers and rejects this host's secret."""
    address = ActorAddress(
        "understudy",
        configuration.get(JobManagerOptions.RPC_ADDRESS),
        configuration.get(JobManagerOptions.RPC_PORT),
        "/user/master",
    )
    secret = load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))
    with ActorClient(secret, RpcConfig(tls=tls_config(configuration), connect_timeout_s=PATIENCE_S)) as client:
        try:
            client.find(address)
        except AuthenticationError:
            raise
        except ActorError:
            return  # no master yet: the TaskExecutors wait for one


def _await_registration(
    configuration: Configuration, directory: ClusterDirectory, states: dict[str, RegistrationState], deadline: float
) -> str:
    """Wait until all are registered; return why a started one has to wait for the master, or an empty text."""
    # A name may be taken until the ResourceManager has noticed that the process that had it before has ended.
    refusal_s = configuration.get(HeartbeatOptions.TIMEOUT) + PATIENCE_S
    since: dict[tuple[str, str], float] = {}
    while True:
        now = time.monotonic()
        open_states = {name: found for name, state in states.items() if (found := state.read())[0] != REGISTERED}
        if not open_states:
            return ""
        for name, (state, reason) in open_states.items():
            lasted_s = now - since.setdefault((name, state), now)
            if state == REFUSED and lasted_s > refusal_s:
                raise ClusterStartError(
                    f"the master rejects this host's TaskExecutor: {reason}", "fix it, and try again"
                )
            if state != REFUSED and reason and lasted_s > PATIENCE_S:
                return f"{name}: {reason}"
        if not directory.is_running():
            raise ClusterStartError(
                "the TaskExecutors of this host have ended", f"see {directory.log / 'host.log'} and the logs beside it"
            )
        if now > deadline:
            name = min(open_states)
            words = last_words(directory, name)
            raise ClusterStartError(
                f"{name} did not start within cluster.start-timeout{words and f': {words}'}",
                f"see {directory.log}/{name}*.log",
            )
        time.sleep(POLL_S)
