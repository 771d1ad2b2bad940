"""Where Spark's work is done, by the master URL: what a driver has to be told so that executors elsewhere reach it.

With `local[N]` everything is on the loopback address. With another master the executors connect to the driver, so it
listens where they can: on the address by which this machine reaches the master. What may connect is then for Spark's
own authentication to say, without which such a driver does not start.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from runtime.spark.errors import DriverStartError

LOOPBACK = "127.0.0.1"
_HOST, _BIND, _AUTHENTICATE = "spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_REMEDY = "start it, or name another with -D spark.master=URL"


def is_local(master: str) -> bool:
    """Whether the executors are in the driver itself."""
    return master.startswith("local")


def addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master that a URL names; none for those that are found otherwise."""
    if master.startswith("spark://"):
        hosts = [item.rpartition(":") for item in master.removeprefix("spark://").split(",")]
        return [(host, int(port)) for host, _, port in hosts]
    if master.startswith("k8s://"):
        rest = master.removeprefix("k8s://")
        url = urlsplit(rest if "://" in rest else f"https://{rest}")
        return [(url.hostname or "", url.port or (80 if url.scheme == "http" else 443))]
    return []


def check_master(master: str, timeout: float = 5.0) -> str:
    """Whether a master answers, in words: Spark itself asks a silent one for a minute, and says little.

    Args:
        master: Spark's master URL.
        timeout: seconds for each host that it names.

    Raises:
        DriverStartError: none of the hosts that it names takes a connection, or YARN's configuration is not there.
    """
    if master == "yarn" and not configuration_directories(master):
        raise DriverStartError(
            "spark.master=yarn needs Hadoop's configuration, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR names its "
            "directory: set one of them where the cluster is started"
        )
    failures = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), timeout).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
            continue
        return f"{master} answers"
    if failures:
        raise DriverStartError(f"the Spark master {master} does not answer ({'; '.join(failures)}): {_REMEDY}")
    return master


def configuration_directories(master: str) -> list[str]:
    """What belongs on the driver's class path beside Spark's jars: where YARN finds Hadoop's configuration."""
    return [os.environ[name] for name in _HADOOP if os.environ.get(name)] if master == "yarn" else []


def network_conf(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings by which executors reach a driver; they go before what the user has given.

    Args:
        master: Spark's master URL.
        conf: what the user has given.

    Raises:
        DriverStartError: the driver would take anybody's connections from other machines.
    """
    if is_local(master):
        return {_HOST: LOOPBACK, _BIND: LOOPBACK, _AUTHENTICATE: "true"}
    host = conf.get(_HOST) or _address_towards(master)
    settings = {} if host is None else {_HOST: host, _BIND: conf.get(_BIND, host)}
    if master == "yarn":
        settings["spark.yarn.isPython"] = "true"  # as spark-submit says of a Python program: PySpark is sent along
    if not master.startswith("spark://"):
        return settings | {
            _AUTHENTICATE: conf.get(_AUTHENTICATE, "true")
        }  # the secret is made and handed over by Spark
    if _is_loopback(settings.get(_BIND, "")) or conf.get(_AUTHENTICATE) == "false":
        return settings
    if conf.get(_AUTHENTICATE) != "true" or not conf.get("spark.authenticate.secret"):
        raise DriverStartError(
            f"the executors of {master} reach this driver at {host}, and so can others: set spark.authenticate=true "
            "and spark.authenticate.secret as the Spark cluster has them, or spark.authenticate=false on a network "
            "where everybody may run code"
        )
    return settings


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _address_towards(master: str) -> str | None:
    """The address of this machine from which it reaches a master; None leaves the choice to Spark."""
    for host, port in addresses(master):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None
