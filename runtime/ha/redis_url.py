"""The URLs of a Redis: a server of its own, or a master that Sentinels name.

    redis://[[user]:password@]host[:port][/db]
    rediss://...                                                        the same over TLS
    unix://[[user]:password@]/path/of/redis.sock
    redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db][?sentinel-password=...]
    rediss+sentinel://...                                               the same over TLS, to the Sentinels too

The form for Sentinel is that of the ``redis-sentinel-url`` package. User and password before the ``@`` are Redis's;
those of the Sentinels, where they want any, are ``sentinel-username`` and ``sentinel-password`` in the query. Whatever
in the query begins with ``ssl_`` is given to redis-py, for Redis and Sentinels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", "unix", *SENTINEL_SCHEMES)

_REDIS_PORT, _SENTINEL_PORT = 6379, 26379
_SENTINEL_FORM = "write redis+sentinel://[:password@]host:26379,other:26379/service[/0]"


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A URL of the form for Sentinel, taken apart. It holds passwords: never to be shown.

    Args:
        hosts: of the Sentinels, with their ports.
        service: the name by which they know the master.
        database: its number.
        credentials: for Redis: ``username`` and ``password``, as far as given.
        sentinel_credentials: the same for the Sentinels.
        tls: arguments of redis-py for TLS to both; None without.
    """

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int = 0
    credentials: dict[str, str] = field(default_factory=dict, repr=False)
    sentinel_credentials: dict[str, str] = field(default_factory=dict, repr=False)
    tls: dict[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service} of the Sentinels {hosts}" + (f"/{self.database}" if self.database else "")

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """The parts of a URL.

        Raises:
            ValueError: it cannot be used; the message does not repeat it.
        """
        # The text of urllib's own errors can hold a part of the password, hence `from None`.
        try:
            parts = urlsplit(url)
            user, _, hosts = parts.netloc.rpartition("@")
            found = tuple(_host(text) for text in hosts.split(","))
            service, _, database = parts.path.strip("/").partition("/")
            number = int(database or 0)
        except ValueError:
            raise ValueError(f"the Redis URL for Sentinel cannot be read; {_SENTINEL_FORM}") from None
        if not service:
            raise ValueError(f"the Redis URL for Sentinel does not say by which name they know it; {_SENTINEL_FORM}")
        name, _, password = user.partition(":")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        tls = {key: value for key, value in query.items() if key.startswith("ssl_")}
        return cls(
            found,
            unquote(service),
            number,
            _credentials(unquote(name), unquote(password)),
            _credentials(query.get("sentinel-username", ""), query.get("sentinel-password", "")),
            tls if parts.scheme == "rediss+sentinel" else None,
        )


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, parts.port or _SENTINEL_PORT


def _credentials(username: str, password: str) -> dict[str, str]:
    given = {"username": username, "password": password}
    return {key: value for key, value in given.items() if value}


def is_sentinel(url: str) -> bool:
    """Whether a URL names Sentinels."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SENTINEL_SCHEMES))


def describe_url(url: str) -> str:
    """Where a Redis URL leads, fit to be shown: ``host:port``, ``host:port/db`` or ``unix:/path``, no credential.

    Raises:
        ValueError: the URL is not of a form that can be used; the message does not repeat it.
    """
    if is_sentinel(url):
        return str(SentinelUrl.parse(url))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the Redis URL cannot be read; write redis://[:password@]host:port/0") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(
            "a Redis URL starts with redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://"
        )
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise ValueError("a unix Redis URL has an absolute path: unix:///path/of/redis.sock")
        return f"unix:{parts.path}"
    if not host:
        raise ValueError("the Redis URL names no host; write redis://[:password@]host:port/0")
    database = parts.path.strip("/") or parse_qs(parts.query).get("db", [""])[0]
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port or _REDIS_PORT}" + (f"/{database}" if database not in ("", "0") else "")
