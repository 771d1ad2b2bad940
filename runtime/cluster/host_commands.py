"""`start` and `stop` of a cluster on several hosts: one host's part of it, or all of them over ssh."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from actors.rpc.codec import to_plain
from conf.configuration import Configuration
from conf.layers import CONF_DIR_VARIABLE, FILE_NAME
from conf.options import ClusterOptions
from conf.registry import masked, options_by_key
from runtime.cluster.render import print_facts, print_json, print_line, print_table
from runtime.cluster.role_configuration import Role
from runtime.cluster.running import ExitStatus, readable_errors, waiting
from runtime.cluster.ssh import HostRole, Outcome, run_everywhere
from runtime.errors import ClusterError

_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9:\[][A-Za-z0-9_.:\[\]-]*")


class HostFileError(ClusterError):
    """``masters`` or ``workers`` is missing, empty or has a line that names no host."""


@dataclass(frozen=True, slots=True)
class Master:
    """One line of ``masters``.

    Args:
        host: as ssh takes it, a user before ``@`` included.
        rest_port: of its web endpoint; None: ``rest.port``.
    """

    host: str
    rest_port: int | None = None


def parse_hosts(text: str, name: str) -> list[str]:
    """The hosts of ``workers``, in their order; one that is there twice runs a worker once. Raises HostFileError."""
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        host = line.partition("#")[0].strip()
        if host and not _HOST.fullmatch(host):
            raise HostFileError(f"{name}:{number}: {host!r} is no host", "write one host name or address on each line")
        if host:
            hosts[host] = None
    return list(hosts)


def parse_masters(text: str, name: str) -> list[Master]:
    """The lines of ``masters``. Raises HostFileError."""
    masters = []
    for line in parse_hosts(text, name):
        host, colon, port = line.rpartition(":")
        if not colon or line.endswith("]") or (host.count(":") and not host.endswith("]")):  # an address of IPv6
            masters.append(Master(line))
        elif port.isdecimal() and 0 < int(port) < 65536:
            masters.append(Master(host, int(port)))
        else:
            raise HostFileError(f"{name}: {line!r} has no port behind its colon", "write host:port, or the host alone")
    return masters


def read_host_files(
    config_file: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[list[Master], list[str]]:
    """Read ``masters`` and ``workers`` beside the user's ``config.yaml``: the hosts of a cluster, as Flink's files do.

    One host on each line; a line of ``masters`` may name the port of its web endpoint behind a colon. What follows a
    ``#`` is a comment.

    Args:
        config_file: the user's; None: the one in ``$UNDERSTUDY_CONF_DIR``.
        environ: the environment.

    Raises:
        HostFileError: there is no such directory or file, nobody is in one of them, or a line names no host.
    """
    directory = config_file.parent if config_file is not None else Path(environ.get(CONF_DIR_VARIABLE, ""))
    if config_file is None and not environ.get(CONF_DIR_VARIABLE):
        raise HostFileError(
            f"where `masters` and `workers` are is not known: {CONF_DIR_VARIABLE} is not set",
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


def _say(step: str) -> None:
    print_line(step, sys.stderr)


def start(
    configuration: Configuration, masters: int, role: str | None, host: str | None, hosts: bool, as_json: bool
) -> None:
    """`understudy start --role` and `--hosts`."""
    if hosts and (role is not None or host is not None):
        raise ClusterError("--hosts starts every role on its host", "leave out --role and --host")
    if masters != 1:
        raise ClusterError("--masters is for one host", "name one host for each master in `masters`")
    if hosts:
        _everywhere(configuration, "start", as_json)
        return
    if role is None:
        raise ClusterError("--host is this host's address in a cluster on several", "add --role")
    from runtime.cluster.roles import start_role

    left = f"it may be coming up; `python -m runtime.cluster stop --role {role}` stops it"
    with readable_errors(), waiting("", left):
        started = start_role(configuration, Role(role), host, _say)
    if as_json:
        print_json(to_plain(started))
        return
    print_facts(
        {
            "cluster": configuration.get(ClusterOptions.ID),
            "role": started.role.value,
            "host": started.host,
            "directory": started.directory,
        }
    )
    print_line(f"waits to be registered: {started.waiting}" if started.waiting else "ready")


def stop(configuration: Configuration, role: str | None, hosts: bool, as_json: bool) -> None:
    """`understudy stop --role` and `--hosts`."""
    if hosts:
        if role is not None:
            raise ClusterError("--hosts stops every role on its host", "leave out --role")
        _everywhere(configuration, "stop", as_json)
        return
    assert role is not None
    from runtime.cluster.roles import stop_role

    left = f"part of it may run still; `python -m runtime.cluster stop --role {role}` goes on"
    with readable_errors(), waiting("", left):
        stop_role(configuration, Role(role), _say)
    if as_json:
        print_json({"role": role, "stopped": True})
    else:
        print_line(f"the {role} of this host has stopped")


def _everywhere(configuration: Configuration, verb: str, as_json: bool) -> None:
    """Over ssh: the masters first where they are started, and last where they are stopped."""
    parameters = click.get_current_context().params
    given: Path | None = parameters["config_file"]
    masters, workers = read_host_files(given)
    config_file = (given or Path(os.environ[CONF_DIR_VARIABLE]) / FILE_NAME).absolute()
    overrides: tuple[str, ...] = parameters["overrides"]
    _refuse_secrets(overrides)
    groups = [
        [
            HostRole(
                master.host,
                Role.MASTER,
                (
                    *("--host", master.host.rpartition("@")[2].strip("[]")),
                    *(("-D", f"rest.port={master.rest_port}") if master.rest_port is not None else ()),
                ),
            )
            for master in masters
        ],
        [HostRole(host, Role.TASK_EXECUTOR) for host in workers],
    ]
    outcomes: list[Outcome] = []
    left = f"hosts that were begun with go on; `python -m runtime.cluster {verb} --hosts` does the rest"
    with readable_errors(), waiting("", left):
        for targets in groups if verb == "start" else reversed(groups):
            outcomes += run_everywhere(configuration, verb, targets, str(config_file), overrides, _tell)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if as_json:
        print_json({"ok": not failed, "hosts": to_plain(outcomes)})
    else:
        rows = [(each.host, each.role.value, "ok" if each.ok else "FAILED", each.detail) for each in outcomes]
        print_table(("HOST", "ROLE", "OUTCOME", "DETAIL"), rows)
    if failed:
        sys.exit(ExitStatus.FAILED)


def _tell(outcome: Outcome) -> None:
    _say(f"{outcome.host}: {outcome.role.value} {'is done' if outcome.ok else 'FAILED'}")


def _refuse_secrets(overrides: tuple[str, ...]) -> None:
    """What is given with ``-D`` goes to the hosts' command lines, which other users of theirs see."""
    for key, value in ((key.strip(), value) for key, _, value in (override.partition("=") for override in overrides)):
        option = options_by_key().get(key)
        if masked(key, value) != value or (option is not None and option.value_type.secret):
            raise ClusterError(f"{key} would be seen on the hosts' command lines", "set it in config.yaml, mode 0600")
