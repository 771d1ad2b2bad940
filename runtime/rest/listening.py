"""Address and ports of the web endpoint, and the check whether it may listen there at all."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from collections.abc import Iterable

from actors.errors import why_unreachable
from conf.configuration import Configuration
from conf.options import RestOptions
from conf.values import is_loopback
from runtime.errors import PreflightError

BACKLOG = 512


def bind_address(configuration: Configuration) -> str:
    """Return the address to listen on."""
    return (configuration.get(RestOptions.BIND_ADDRESS) or configuration.get(RestOptions.ADDRESS)).strip("[]")


def allowed_hosts(configuration: Configuration) -> list[str]:
    """Return the names in the header Host that requests may have, IPv6 addresses in brackets."""
    get = configuration.get
    hosts = [get(RestOptions.ADDRESS), bind_address(configuration), *get(RestOptions.ALLOWED_HOSTS)]
    return [f"[{host}]" if ":" in host and not host.startswith("[") else host for host in hosts]


def ports(configuration: Configuration) -> range:
    """Return the ports to try, in their order.

    Raises:
        PreflightError: the range is not valid.
    """
    text = configuration.get(RestOptions.BIND_PORT)
    if text is None:
        port = configuration.get(RestOptions.PORT)
        return range(port, port + 1)
    first, _, last = text.partition("-")
    found = range(int(first), int(last or first) + 1)
    if not found or found[-1] > 65535:
        raise PreflightError(
            f"{RestOptions.BIND_PORT.key} = {text} is not a range of ports", "give it as FIRST-LAST, at most 65535"
        )
    return found


def ports_key(configuration: Configuration) -> str:
    """Return the key of the option that sets the ports."""
    return (RestOptions.BIND_PORT if configuration.is_set(RestOptions.BIND_PORT) else RestOptions.PORT).key


def check_exposure(configuration: Configuration) -> None:
    """Refuse an address that other machines reach without the token or without TLS.

    Raises:
        PreflightError: the configuration is refused; with the remedy.
    """
    secured = configuration.get(RestOptions.SSL_ENABLED)
    for file in (RestOptions.SSL_CERTIFICATE, RestOptions.SSL_KEY):
        if secured and configuration.get(file) is None:
            raise PreflightError(
                f"{RestOptions.SSL_ENABLED.key} is true and {file.key} is not set",
                f"set {file.key} to a PEM file, or {RestOptions.SSL_ENABLED.key} to false",
            )
    host = bind_address(configuration)
    lacks = [] if configuration.get(RestOptions.TOKEN_ENABLED) else ["the token"]
    lacks += [] if secured else ["TLS"]
    if lacks and not is_loopback(host) and not configuration.get(RestOptions.ALLOW_INSECURE):
        raise PreflightError(
            f"the web endpoint would listen on {host} without {' and '.join(lacks)}: its clients could run code",
            "keep rest.authentication.enabled, set security.ssl.rest.*, or set rest.allow-insecure=true",
        )


def exposure_warning(configuration: Configuration) -> str:
    """Return a warning, in one line, if the configured web endpoint lets others run code; else an empty text."""
    get = configuration.get
    if not get(RestOptions.ENABLED):
        return ""
    host = bind_address(configuration)
    whoever = "every user of this machine" if is_loopback(host) else f"everyone who reaches {host}"
    if not get(RestOptions.TOKEN_ENABLED):
        return (
            f"WARNING: {RestOptions.TOKEN_ENABLED.key} is false: {whoever} may run code as {_user()} "
            "through the web endpoint"
        )
    if not get(RestOptions.SSL_ENABLED) and not is_loopback(host):
        return (
            f"WARNING: {RestOptions.SSL_ENABLED.key} is false: {whoever} may read the token on its way, and then run "
            f"code as {_user()}"
        )
    return ""


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # containers run as users without a name
        return f"user {os.geteuid()}"


OR_WITHOUT = ", or leave the endpoint out with -D rest.enabled=false"


class PortTakenError(PreflightError):
    """The only port to try is taken; the name of its holder may follow the message."""


def listen(host: str, wanted: Iterable[int], key: str, otherwise: str = OR_WITHOUT) -> socket.socket:
    """Return a listening socket on the first free port.

    Args:
        host: the address.
        wanted: the ports; 0 is any free one.
        key: the option that sets them, for the remedy.
        otherwise: a further remedy.

    Raises:
        PortTakenError: the only port is taken.
        PreflightError: no port is free, or the address is not one of this machine.
    """
    tried: list[int] = []
    denied = False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise PreflightError(
            f"cannot resolve the host {host!r}: {why_unreachable(error)}", "check rest.address and rest.bind-address"
        ) from error
    family, kind, protocol, _, address = found[0]
    for port in wanted:
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address[0], port, *address[2:]))
            made.listen(BACKLOG)
            made.setblocking(False)
        except OSError as error:
            made.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise PreflightError(
                    f"the web endpoint cannot listen on {host}:{port}: {error.strerror}",
                    f"change rest.address or {key}",
                ) from error
            tried.append(port)
            denied = denied or error.errno == errno.EACCES
        else:
            return made
    remedy = f"choose another with -D {key}=PORT (0: a free one){otherwise}"
    if len(tried) > 1:
        problem = f"the ports {tried[0]}-{tried[-1]} of {host} are taken" + (", or only root's" if denied else "")
    elif denied:
        problem = f"only root may listen on port {tried[0]} of {host}"
    else:
        raise PortTakenError(f"the web endpoint cannot listen: port {tried[0]} of {host} is taken", remedy)
    raise PreflightError(f"the web endpoint cannot listen: {problem}", remedy)
