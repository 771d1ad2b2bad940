"""Who may ask: decides on the head of a request, before anything else looks at it. Pure.

Against other users of the machine and of the network: the token. Against pages of other sites in the browser of
somebody who has it: the names by which the endpoint may be asked (DNS rebinding), and the site that a request comes
from.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
CHANGES_BY_GET = ("yarn-cancel", "yarn-stop")
"""Last parts of paths that change something although they are asked with GET, as Flink's page does."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER = b"x-requested-by"

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: the HTTP status and one line."""

    status: int
    message: str


class AccessPolicy:
    """The rules of one endpoint.

    Args:
        token: what every request has to show; None where nothing is asked for.
        hosts: the names by which it may be asked, without ports; IPv6 addresses in brackets.
        scheme: ``http`` or ``https``.
        max_content: the most bytes of a request's body.
    """

    def __init__(self, token: bytes | None, hosts: Iterable[str], scheme: str, max_content: int) -> None:
        self._token = token
        self._hosts = frozenset(host.lower().encode() for host in (*LOOPBACK_NAMES, *hosts))
        self._scheme = scheme.encode()
        self._max_content = max_content

    def check(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """Why the request is refused; None when it is not.

        Args:
            method: in upper case.
            path: decoded, without the query.
            headers: names in lower case.
        """
        host = authorization = origin = length = b""
        hosts = authorizations = 0
        fetched_from = b""
        asked_for = False
        for name, value in headers:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"authorization":
                authorization, authorizations = value, authorizations + 1
            elif name == b"origin":
                origin = value
            elif name == b"content-length":
                length = value
            elif name == b"sec-fetch-site":
                fetched_from = value
            elif name == CSRF_HEADER:
                asked_for = True
        if hosts != 1 or _host_name(host) not in self._hosts:
            return Refusal(
                403, "this name is not one of the endpoint's (header Host); add it to rest.allowed-hosts if it is"
            )
        if origin and origin.lower() != self._scheme + b"://" + host.lower():
            return Refusal(403, "requests of pages from other sites are refused (header Origin)")
        if self._token is not None:
            if authorizations != 1 or not self._is_token(authorization):
                return Refusal(
                    401, "show the token: `Authorization: Bearer TOKEN`; it is in rest.authentication.token-file"
                )
        elif changes_state(method, path) and (
            fetched_from == b"cross-site" or (method in SAFE_METHODS and not asked_for)
        ):
            return Refusal(403, "a request that changes something by GET needs the header X-Requested-By")
        if length and (not length.isdigit() or int(length[:20]) > self._max_content):
            return Refusal(413, f"at most {self._max_content} bytes are taken (rest.server.max-content-length)")
        return None

    def _is_token(self, authorization: bytes) -> bool:
        scheme, _, shown = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._token or b"")


def changes_state(method: str, path: str) -> bool:
    """Whether the request may change anything."""
    return method not in SAFE_METHODS or path.rstrip("/").rpartition("/")[2] in CHANGES_BY_GET


def _host_name(host: bytes) -> bytes:
    """The name in a Host header, without its port, in lower case."""
    name, colon, port = host.rpartition(b":")
    return (name if colon and (port.isdigit() or not port) else host).lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything
