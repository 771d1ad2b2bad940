"""What one host of a cluster on several makes of the configuration that all of them share."""

from __future__ import annotations

import socket
from enum import Enum
from urllib.parse import urlsplit

from actors.rpc.security import load_secret
from conf.configuration import Configuration
from conf.options import (
    ClusterOptions,
    HeartbeatOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    SecurityOptions,
    TaskManagerOptions,
)
from runtime.environment.context import has_redis
from runtime.errors import PreflightError
from runtime.rest.access import is_loopback

ONLY_SILENCE_COUNTS = -1
TASK_EXECUTOR_DIR = "task-executor"


class Role(Enum):
    """What a host does in the cluster."""

    MASTER = "master"
    TASK_EXECUTOR = "task-executor"


def role_configuration(configuration: Configuration, role: Role, host: str | None = None) -> Configuration:
    """The configuration of one host's processes.

    Args:
        configuration: the cluster's, the same on all hosts.
        role: of the host.
        host: its address, which `find_host` and `check_host` deal with; None where nothing is to be started.
    """
    get = configuration.get
    # Both are computed from the runtime directory, which may be the role's own from here on.
    own = configuration.set(ClusterOptions.SHARED_DIR, get(ClusterOptions.SHARED_DIR))
    own = own.set(SecurityOptions.SECRET_FILE, get(SecurityOptions.SECRET_FILE))
    if host is not None:
        own = own.set(ClusterOptions.HOST, host)
    if not configuration.is_set(HeartbeatOptions.RPC_FAILURE_THRESHOLD):
        # Across a network whoever cannot be reached may be alive: what it runs must not be run again before it has
        # ended that itself (taskmanager.isolation.timeout).
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
    """Whether a cluster of this configuration can have several hosts.

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
            "set the former lower, or leave it out",
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
            "cluster.shared-dir is not set: other hosts do not see this one's disk",
            "set it to a directory on a file system that all hosts have mounted at the same place",
        )


def find_host(configuration: Configuration, role: Role) -> str:
    """The address of this machine: as configured, or the one by which it reaches Redis or the master."""
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
            probe.connect(address)  # sends nothing: the kernel chooses the way, and by it the address
            return str(probe.getsockname()[0])
    except OSError as error:
        raise PreflightError(
            f"there is no way from this host to {target}: {error.strerror or error}",
            "mend the network, or name this host's own address with --host",
        ) from error


def check_host(host: str) -> str:
    """The address that *host* names, if it is one of this machine that others can use.

    Raises:
        PreflightError: it is not.
    """
    try:
        address = str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise PreflightError(
            f"cannot resolve the host {host!r}: {error.strerror or error}", "name this host's address with --host"
        ) from error
    if is_loopback(address) and not is_loopback(host):
        raise PreflightError(
            f"{host} is {address} on this machine, which no other host reaches",
            "name this host's address with --host, or mend its line in /etc/hosts",
        )
    if not _is_own(address):
        raise PreflightError(
            f"{host} is not an address of this machine", "name one of its own with --host, or leave it out"
        )
    return address


def _is_own(host: str) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _redis_host(url: str) -> tuple[str, int] | None:
    """Host and port of a Redis, or of its first Sentinel; None where it is a Unix socket."""
    where = urlsplit(url).netloc.rpartition("@")[2].split(",")[0]
    parts = urlsplit(f"//{where}")
    return None if not parts.hostname else (parts.hostname, parts.port or 6379)
