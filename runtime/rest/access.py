"""Access rules: which requests are served and which connections stay, decided by the head of a request first. Pure.

A token protects the endpoint from other users of the machine and of the network. Pages of other sites run in the
browser of a user who has the token. Against these, the endpoint checks the name in the header Host (DNS rebinding) and
the site that a request comes from.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from runtime.users.identities import CLUSTER, Principal, looks_like_a_token
from runtime.users.oidc import looks_like_a_jwt

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
CHANGES_BY_GET = ("yarn-cancel", "yarn-stop")
"""Last parts of paths that change something with GET, as Flink's page uses them."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER = b"x-requested-by"
UNAUTHENTICATED = 256
"""How many unauthenticated connections may be open."""

_AUTHORITY = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?")
_PAGE = re.compile(r"([a-z]+://[a-zA-Z0-9.:_\[\]-]+)/[A-Za-z0-9._~/-]*")
_DEFAULT_PORTS = {b"http": 80, b"https": 443}

Headers = Iterable[tuple[bytes, bytes]]
C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for which a request is not served.

    Args:
        status: the HTTP status.
        message: one line for the client.
        detail: one line for the audit log, if the client is not told all of it.
    """

    status: int
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """Token of a user, which the store of users or the issuer has to identify."""

    token: bytes


class AccessPolicy:
    """The rules of one endpoint.

    Args:
        token: the endpoint's own token; every request has to show it or that of a user. None if requests need none.
        hosts: the names of the endpoint in the header Host, without ports; IPv6 addresses in brackets.
        scheme: ``http`` or ``https``.
        max_content: the most bytes of a request's body.
        has_issuer: whether an OpenID Connect provider identifies users, by JWTs.
    """

    def __init__(
        self, token: bytes | None, hosts: Iterable[str], scheme: str, max_content: int, *, has_issuer: bool = False
    ) -> None:
        self._has_issuer = has_issuer
        self._token = token
        self._hosts = frozenset(host.lower().encode() for host in (*LOOPBACK_NAMES, *hosts))
        self._scheme = scheme.encode()
        self._max_content = max_content

    def check(self, method: str, path: str, headers: Headers) -> Refusal | Principal | Shown:
        """Return whom the request is from, or why it is refused; `Shown` if that is still to be found out.

        Args:
            method: in upper case.
            path: decoded, without the query.
            headers: names in lower case.
        """
        host = authorization = length = b""
        origins = list[bytes]()
        hosts = authorizations = 0
        fetched_from = b""
        asked_for = False
        for name, value in headers:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"authorization":
                authorization, authorizations = value, authorizations + 1
            elif name == b"origin":
                origins.append(value)
            elif name == b"content-length":
                length = value
            elif name == b"sec-fetch-site":
                fetched_from = value
            elif name == CSRF_HEADER:
                asked_for = True
        foreign = self._of_another_site(host if hosts == 1 else b"", origins)
        if foreign is not None:
            return foreign
        verdict = self.identify(authorization if authorizations == 1 else b"")
        if isinstance(verdict, Refusal):
            return verdict
        if (
            self._token is None
            and changes_state(method, path)
            and (fetched_from == b"cross-site" or (method in SAFE_METHODS and not asked_for))
        ):
            return Refusal(403, "a request that changes something by GET needs the header X-Requested-By")
        if length and (not length.isdigit() or int(length[:20]) > self._max_content):
            return Refusal(413, f"at most {self._max_content} bytes are taken (rest.server.max-content-length)")
        return verdict

    def check_page(self, headers: Headers, address: str) -> Refusal | None:
        """Return why a request that needs no token is refused: it is of another site, or in the name of another page.

        Args:
            headers: names in lower case.
            address: of the page that sends it; it must have the name, port and scheme by which the endpoint is asked.
        """
        shown = list(headers)
        foreign = self.check_site(shown)
        if foreign is not None:
            return foreign
        host = next(value for name, value in shown if name == b"host")
        page = _PAGE.fullmatch(address)
        if page is None or _origin(page[1].encode()) != _origin(self._scheme + b"://" + host):
            return Refusal(400, "the address is not that of this endpoint's page")
        return None

    def check_site(self, headers: Headers) -> Refusal | None:
        """Return why a request that needs no token is refused: it is of a page of another site; names in lower case."""
        shown = list(headers)
        hosts = [value for name, value in shown if name == b"host"]
        origins = [value for name, value in shown if name == b"origin"]
        return self._of_another_site(hosts[0] if len(hosts) == 1 else b"", origins)

    def _of_another_site(self, host: bytes, origins: list[bytes]) -> Refusal | None:
        """Return why a request is refused by its headers Host (empty if it is not there once) and Origin."""
        asked = _authority(self._scheme, host)
        if asked is None or asked[0] not in self._hosts:
            return Refusal(
                403, "this name is not one of the endpoint's (header Host); add it to rest.allowed-hosts if it is"
            )
        if origins and (len(origins) > 1 or _origin(origins[0]) != (self._scheme, *asked)):
            return Refusal(403, "requests of pages from other sites are refused (header Origin)")
        return None

    def identify(self, authorization: bytes) -> Refusal | Principal | Shown:
        """Return whom a header Authorization identifies, as `check` does; *authorization* is empty if there is none."""
        if self._token is None:
            return CLUSTER
        shown = _bearer(authorization)
        if looks_like_a_token(shown):
            return Shown(shown)
        if hmac.compare_digest(shown, self._token):
            return CLUSTER
        if self._has_issuer and looks_like_a_jwt(shown):
            return Shown(shown)
        return Refusal(
            401,
            "show a token: `Authorization: Bearer TOKEN`; an admin issues one with `understudy token add`, and the "
            "cluster's own is in rest.authentication.token-file",
        )


def _bearer(authorization: bytes) -> bytes:
    """Return the token in a header Authorization; empty if there is none."""
    scheme, _, shown = authorization.partition(b" ")
    return shown.strip() if scheme.lower() == b"bearer" else b""


def changes_state(method: str, path: str) -> bool:
    """Return whether the request may change anything."""
    return method not in SAFE_METHODS or path.rstrip("/").rpartition("/")[2] in CHANGES_BY_GET


@lru_cache(maxsize=64)  # the clients of an endpoint use few names
def _authority(scheme: bytes, text: bytes) -> tuple[bytes, int] | None:
    """Return host (in lower case) and port of ``host[:port]``, by default the scheme's port; None for other texts."""
    found = _AUTHORITY.fullmatch(text.lower())
    return None if found is None else (found[1], int(found[2] or _DEFAULT_PORTS[scheme]))


def _origin(text: bytes) -> tuple[bytes, bytes, int] | None:
    """Return the origin in an Origin header: scheme, host and port (RFC 6454); None for any other text."""
    scheme, _, rest = text.partition(b"://")
    scheme = scheme.lower()
    authority = _authority(scheme, rest) if scheme in _DEFAULT_PORTS else None
    return None if authority is None else (scheme, *authority)


class ConnectionLimits(Generic[C]):
    """Decide which connections stay: among unauthenticated ones, the oldest is closed first.

    An unauthenticated connection never takes the place of an authenticated one, and never blocks a new connection.

    Args:
        authenticated: how many authenticated connections may be open.
        unauthenticated: how many unauthenticated ones may be open; at least 1.
    """

    def __init__(self, authenticated: int, unauthenticated: int = UNAUTHENTICATED) -> None:
        self._most_authenticated = authenticated
        self._most_unauthenticated = unauthenticated
        self._authenticated = set[C]()
        self._unauthenticated = dict[C, None]()  # in the order in which they came

    def enter(self, connection: C) -> C | None:
        """Add a new connection; return the one to close for it, which is removed."""
        self._unauthenticated[connection] = None
        if len(self._unauthenticated) <= self._most_unauthenticated:
            return None
        oldest = next(iter(self._unauthenticated))
        del self._unauthenticated[oldest]
        return oldest

    def authenticate(self, connection: C) -> bool:
        """Note that a request of this connection was granted; return whether there is a place for it."""
        if connection in self._authenticated:
            return True
        if connection not in self._unauthenticated or len(self._authenticated) >= self._most_authenticated:
            return False
        del self._unauthenticated[connection]
        self._authenticated.add(connection)
        return True

    def leave(self, connection: C) -> None:
        """Remove a connection that has ended; idempotent."""
        self._authenticated.discard(connection)
        self._unauthenticated.pop(connection, None)
