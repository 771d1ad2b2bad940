"""Starting and stopping roles on other hosts over ssh (Flink's ``start-cluster.sh`` and ``stop-cluster.sh``)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from conf.configuration import Configuration
from conf.options import ClusterOptions, EnvironmentOptions
from runtime.cluster.role_configuration import Role

CONNECT_S = 15
MARGIN_S = 60.0
SSH_FAILED = 255


@dataclass(frozen=True, slots=True)
class HostRole:
    """A role of a host.

    Args:
        host: as ssh takes it.
        role: what it does in the cluster.
        arguments: of its `start`, beside the role.
    """

    host: str
    role: Role
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one role.

    Args:
        host: as ssh takes it.
        role: what it does in the cluster.
        ok: whether it was done.
        detail: what the host said last, or why it was not.
    """

    host: str
    role: Role
    ok: bool
    detail: str


def remote_command(
    configuration: Configuration, verb: str, target: HostRole, config_file: str | None, overrides: Sequence[str]
) -> str:
    """The command line that a host's shell gets.

    Args:
        configuration: says which Python, and where.
        verb: ``start`` or ``stop``.
        target: the host.
        config_file: of the configuration, at the same place there; None: as the host's own environment says.
        overrides: the arguments of ``-D``.
    """
    get = configuration.get
    words = [get(EnvironmentOptions.SSH_PYTHON) or sys.executable, "-m", "runtime.cluster", verb]
    words += ["--role", target.role.value, *(target.arguments if verb == "start" else ())]
    words += ["--config", config_file] if config_file else []
    words += [word for override in overrides for word in ("-D", override)]
    directory = get(EnvironmentOptions.SSH_DIRECTORY)
    return f"{f'cd {shlex.quote(str(directory))} && ' if directory else ''}exec {shlex.join(words)}"


def ssh_command(configuration: Configuration, host: str, command: str) -> list[str]:
    """How ssh is called: it asks for nothing, and gives up soon where nobody answers."""
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")
    return ["ssh", *options, *configuration.get(EnvironmentOptions.SSH_OPTS), "--", host, command]


def run_everywhere(
    configuration: Configuration,
    verb: str,
    targets: Sequence[HostRole],
    config_file: str | None,
    overrides: Sequence[str],
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Do it on all hosts, on some of them at once (``env.ssh.parallel``); the failure of one hinders no other.

    Args:
        configuration: of the cluster.
        verb: ``start`` or ``stop``.
        targets: the hosts.
        config_file: see `remote_command`.
        overrides: see `remote_command`.
        tell: told of each as soon as it is over, from any thread.
    """
    limit_s = MARGIN_S + configuration.get(
        ClusterOptions.START_TIMEOUT if verb == "start" else ClusterOptions.STOP_TIMEOUT
    )

    def run(target: HostRole) -> Outcome:
        command = ssh_command(
            configuration, target.host, remote_command(configuration, verb, target, config_file, overrides)
        )
        outcome = Outcome(target.host, target.role, *_run(command, limit_s))
        tell(outcome)
        return outcome

    with ThreadPoolExecutor(configuration.get(EnvironmentOptions.SSH_PARALLEL)) as threads:
        return list(threads.map(run, targets))


def _run(command: list[str], limit_s: float) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except FileNotFoundError:
        return False, "there is no ssh on this machine: install openssh-client"
    except subprocess.TimeoutExpired:
        return False, f"no answer within {limit_s:g} s"
    if done.returncode == 0:
        return True, _last_line(done.stdout)
    said = next((line for line in done.stderr.splitlines() if line.startswith("error: ")), _last_line(done.stderr))
    return (
        False,
        f"{'ssh: ' if done.returncode == SSH_FAILED else ''}{said.removeprefix('error: ').removeprefix('ssh: ')}"
        or (f"exit status {done.returncode}"),
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
