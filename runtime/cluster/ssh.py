"""All hosts of a cluster: the files that name them, and starting and stopping their roles over ssh.

It corresponds to Flink's ``masters``, ``workers``, ``start-cluster.sh`` and ``stop-cluster.sh``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conf.configuration import Configuration
from conf.layers import CONF_DIR_VARIABLE, FILE_NAME
from conf.options import ClusterOptions, EnvironmentOptions
from conf.registry import masked, options_by_key
from runtime.cluster.roles import Role
from runtime.errors import ClusterError

CONNECT_S = 15
MARGIN_S = 60.0
SSH_FAILED = 255

_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9:\[][A-Za-z0-9_.:\[\]-]*")


class HostFileError(ClusterError):
    """``masters`` or ``workers`` is missing, empty or has a line that names no host."""


@dataclass(frozen=True, slots=True)
class Master:
    """A line of ``masters``.

    Args:
        host: as ssh takes it, with ``user@`` if given.
        rest_port: of its web endpoint; None: ``rest.port``.
    """

    host: str
    rest_port: int | None = None


def parse_hosts(text: str, name: str) -> list[str]:
    """Return the hosts of ``workers`` in their order, each once. Raises HostFileError."""
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        host = line.partition("#")[0].strip()
        if host and not _HOST.fullmatch(host):
            raise HostFileError(
                f"{name}:{number}: {host!r} is not a host", "write one host name or address on each line"
            )
        if host:
            hosts[host] = None
    return list(hosts)


def parse_masters(text: str, name: str) -> list[Master]:
    """Return the lines of ``masters``. Raises HostFileError."""
    masters = []
    for line in parse_hosts(text, name):
        host, colon, port = line.rpartition(":")
        if not colon or line.endswith("]") or (host.count(":") and not host.endswith("]")):  # an address of IPv6
            masters.append(Master(line))
        elif port.isdecimal() and 0 < int(port) < 65536:
            masters.append(Master(host, int(port)))
        else:
            raise HostFileError(f"{name}: {line!r} has no port after its colon", "write host:port, or only the host")
    return masters


def read_host_files(
    config_file: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[list[Master], list[str]]:
    """Read ``masters`` and ``workers`` beside the user's ``config.yaml``: the hosts of a cluster, as Flink's files do.

    Each line names one host. A line of ``masters`` may name the port of its web endpoint after a colon. A ``#`` starts
    a comment.

    Args:
        config_file: the user's; None: the one in ``$UNDERSTUDY_CONF_DIR``.
        environ: the environment.

    Raises:
        HostFileError: a directory or file is missing, a file names no host, or a line is not a host.
    """
    directory = config_file.parent if config_file is not None else Path(environ.get(CONF_DIR_VARIABLE, ""))
    if config_file is None and not environ.get(CONF_DIR_VARIABLE):
        raise HostFileError(
            f"the directory of `masters` and `workers` is not known: {CONF_DIR_VARIABLE} is not set",
            "set it to their directory, or name the config.yaml beside them with --config",
        )
    texts = {}
    for name in ("masters", "workers"):
        try:
            texts[name] = (directory / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HostFileError(
                f"{directory / name} cannot be read: {getattr(error, 'strerror', None) or error}",
                "write the hosts there, one on each line",
            ) from error
    masters = parse_masters(texts["masters"], str(directory / "masters"))
    workers = parse_hosts(texts["workers"], str(directory / "workers"))
    for found, name in ((masters, "masters"), (workers, "workers")):
        if not found:
            raise HostFileError(f"{directory / name} names no host", "write the hosts there, one on each line")
    return masters, workers


@dataclass(frozen=True, slots=True)
class HostRole:
    """A role of a host.

    Args:
        host: as ssh takes it.
        role: its role in the cluster.
        arguments: arguments of its `start`, in addition to the role and the settings.
        settings: ``-D`` and the setting that holds for this host only.
    """

    host: str
    role: Role
    arguments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of starting or stopping one role.

    Args:
        host: as ssh takes it.
        role: its role in the cluster.
        ok: whether it was started or stopped.
        detail: the last line that the host printed, or why it failed.
    """

    host: str
    role: Role
    ok: bool
    detail: str


def roles_of_hosts(config_file: Path | None) -> tuple[Path, list[list[HostRole]]]:
    """Return the configuration file and the roles of all hosts: those of the masters, then those of the workers.

    Args:
        config_file: see `read_host_files`.

    Raises:
        HostFileError: see `read_host_files`.
    """
    masters, workers = read_host_files(config_file)
    used = (config_file or Path(os.environ[CONF_DIR_VARIABLE]) / FILE_NAME).absolute()
    leading = []
    for master in masters:
        port = () if master.rest_port is None else ("-D", f"rest.port={master.rest_port}")
        address = master.host.rpartition("@")[2].strip("[]")
        leading.append(HostRole(master.host, Role.MASTER, ("--host", address), port))
    return used, [leading, [HostRole(host, Role.TASK_EXECUTOR) for host in workers]]


def refuse_secrets(overrides: Sequence[str]) -> None:
    """Raise ClusterError if ``-D`` gives a secret: other users of the hosts could read their command lines."""
    for key, value in ((key.strip(), value) for key, _, value in (override.partition("=") for override in overrides)):
        option = options_by_key().get(key)
        if masked(key, value) != value or (option is not None and option.value_type.secret):
            raise ClusterError(f"{key} would be seen on the hosts' command lines", "set it in config.yaml, mode 0600")


def remote_command(
    configuration: Configuration, verb: str, target: HostRole, config_file: str | None, overrides: Sequence[str]
) -> str:
    """Return the command line for a host's shell.

    Args:
        configuration: names the Python and the directory.
        verb: ``start`` or ``stop``.
        target: the host.
        config_file: at the same path there; None: found by the host's own environment.
        overrides: the arguments of ``-D``.
    """
    get = configuration.get
    words = [get(EnvironmentOptions.SSH_PYTHON) or sys.executable, "-m", "runtime.cluster", verb]
    words += ["--role", target.role.value, *((*target.arguments, *target.settings) if verb == "start" else ())]
    words += ["--config", config_file] if config_file else []
    words += [word for override in overrides for word in ("-D", override)]
    directory = get(EnvironmentOptions.SSH_DIRECTORY)
    return f"{f'cd {shlex.quote(str(directory))} && ' if directory else ''}exec {shlex.join(words)}"


def ssh_command(configuration: Configuration, host: str, command: str) -> list[str]:
    """Return the command line of ssh: without questions, and with a short time-out for the connection."""
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")
    return ["ssh", *options, *configuration.get(EnvironmentOptions.SSH_OPTS), "--", host, command]


def run_everywhere(
    configuration: Configuration,
    verb: str,
    targets: Sequence[HostRole],
    config_file: str | None,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> list[Outcome]:
    """Start or stop roles, on ``env.ssh.parallel`` hosts at a time; a failure of one host does not stop the others.

    Args:
        configuration: of the cluster.
        verb: ``start`` or ``stop``.
        targets: the hosts.
        config_file: see `remote_command`.
        overrides: see `remote_command`.
        say: called with each outcome as soon as it is available, from any thread.
    """
    limit_s = MARGIN_S + configuration.get(
        ClusterOptions.START_TIMEOUT if verb == "start" else ClusterOptions.STOP_TIMEOUT
    )

    def run(target: HostRole) -> Outcome:
        command = ssh_command(
            configuration, target.host, remote_command(configuration, verb, target, config_file, overrides)
        )
        outcome = Outcome(target.host, target.role, *_run(command, limit_s))
        say(f"{outcome.host}: {outcome.role.value} {'is done' if outcome.ok else 'FAILED'}")
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
