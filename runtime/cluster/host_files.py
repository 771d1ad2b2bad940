"""``masters`` and ``workers``: the hosts of a cluster, as Flink's files of these names have them.

One host on each line; a line of ``masters`` may name the port of its web endpoint behind a colon. What follows a ``#``
is a comment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.layers import CONF_DIR_VARIABLE
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
    """What ``masters`` and ``workers`` beside the user's ``config.yaml`` say.

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
