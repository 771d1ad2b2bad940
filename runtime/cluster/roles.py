"""Starting and stopping one host's part of a cluster on several (Flink's ``jobmanager.sh`` and ``taskmanager.sh``)."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError, AuthenticationError
from actors.rpc.config import RpcConfig
from actors.rpc.security import load_or_create_secret
from conf.configuration import Configuration
from conf.options import (
    ClusterOptions,
    HeartbeatOptions,
    JobManagerOptions,
    SecurityOptions,
    TaskManagerOptions,
)
from runtime.cluster.host import registrations
from runtime.cluster.host_processes import HOST, ClusterStartError, launch, sweep
from runtime.cluster.role_configuration import Role, check_host, check_role, find_host, role_configuration
from runtime.cluster.session import Say, StartedCluster, leave_cluster, require_for_workers, start_cluster
from runtime.environment.context import has_redis, tls_config
from runtime.environment.directory import ClusterDirectory
from runtime.environment.shared_directory import mark_shared_directory
from runtime.errors import ClusterAlreadyRunning
from runtime.rest.access import is_loopback
from runtime.taskexecutor.worker_files import REFUSED, REGISTERED, RegistrationState

PATIENCE_S = 3.0  # that a TaskExecutor which has started is given to be registered, before it is said to wait
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class StartedRole:
    """What was started on this host.

    Args:
        role: what it does in the cluster.
        host: the address of this machine.
        directory: where its files are.
        waiting: why its TaskExecutors are not registered yet; empty when they are.
    """

    role: Role
    host: str
    directory: str
    waiting: str = ""


def start_role(configuration: Configuration, role: Role, host: str | None, say: Say) -> StartedRole:
    """Start one host's part of a cluster in the background.

    A master serves when this returns. TaskExecutors may still wait for one: they go on trying to be registered for
    ``taskmanager.registration.timeout``.

    Args:
        configuration: the cluster's, the same on all hosts.
        role: of this host.
        host: its address, or a name for it; None: as configured, or found.
        say: told each step, in a few words.

    Raises:
        ClusterError, HaError, SparkError, AuthenticationError: this host lacks something, the configuration does
            not allow several hosts, it runs already, or it failed.
    """
    address = check_host(host or find_host(configuration, role))
    check_role(configuration, role, address)
    own = role_configuration(configuration, role, address)
    if not is_loopback(address) and tls_config(own) is None:
        say("warning: messages and blobs travel unencrypted between hosts: see security.ssl.internal.enabled")
    start = _start_master if role is Role.MASTER else _start_task_executors
    waiting = start(own, say)
    return StartedRole(role, address, str(own.get(ClusterOptions.RUNTIME_DIR)), waiting)


def stop_role(configuration: Configuration, role: Role, say: Say) -> None:
    """Stop this host's part of a cluster; jobs go on with the others, and are kept where there is no other.

    Raises:
        ClusterNotRunning: nothing of it runs here.
    """
    leave_cluster(role_configuration(configuration, role), say)


def _start_master(configuration: Configuration, say: Say) -> str:
    shared = configuration.get(ClusterOptions.SHARED_DIR)
    mark_shared_directory(shared, configuration.get(ClusterOptions.ID))
    for part in ("jobs", "archive"):
        (shared / part).mkdir(mode=0o700, exist_ok=True)
    start_cluster(configuration, say, is_member=True).close()
    return ""


def _start_task_executors(configuration: Configuration, say: Say) -> str:
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if directory.is_running():
        raise ClusterAlreadyRunning(
            f"TaskExecutors of this host run already in {directory.root}",
            "stop them with `python -m runtime.cluster stop --role task-executor`",
        )
    require_for_workers(configuration)
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
    """Where the master is known and answers, a wrong secret is told at once. Raises AuthenticationError."""
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
            return  # it is not there yet: the TaskExecutors wait for it


def _await_registration(
    configuration: Configuration, directory: ClusterDirectory, states: dict[str, RegistrationState], deadline: float
) -> str:
    """Wait until all are registered; returns why one is not, when it has started and has to wait for the master."""
    # A name may be taken until the ResourceManager has found out that its last bearer is gone.
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
                raise ClusterStartError(f"the master refuses this host's TaskExecutor: {reason}", "then start again")
            if state != REFUSED and reason and lasted_s > PATIENCE_S:
                return f"{name}: {reason}"
        if not directory.is_running():
            raise ClusterStartError(
                "the TaskExecutors of this host have ended", f"see {directory.log / 'host.log'} and the logs beside it"
            )
        if now > deadline:
            name = min(open_states)
            words = _last_words(directory, name)
            raise ClusterStartError(
                f"{name} did not start within cluster.start-timeout{words and f': {words}'}",
                f"see {directory.log}/{name}*.log",
            )
        time.sleep(POLL_S)


def _last_words(directory: ClusterDirectory, name: str) -> str:
    """The last line that the process of a worker wrote, which says why it ended."""
    with contextlib.suppress(FileNotFoundError):
        lines = (directory.log / f"{name}.out").read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else ""
    return ""
