"""A connection to Redis: by URL, with a time limit on every call, and no password in any message.

This layer never retries a call: only the caller knows whether a retry is safe. A silent retry after a lost reply would
report a write as failed that took effect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio as aioredis
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from conf.values import split_url
from runtime.ha.errors import (
    RedisAuthenticationError,
    RedisCommandError,
    RedisRequirementError,
    RedisUnreachableError,
)
from runtime.ha.scripts import Script
from runtime.ha.tasks import cancel_and_wait

logger = logging.getLogger(__name__)

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SCHEMES = ("redis", "rediss", "unix", *SENTINEL_SCHEMES)

_REDIS_PORT, _SENTINEL_PORT = 6379, 26379
_SENTINEL_FORM = "write redis+sentinel://[:password@]host:26379,other:26379/service[/0]"


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of a Redis URL with Sentinels. It holds passwords: never show it.

    The URLs of a Redis are as follows; with Sentinels, these name its master:

        redis://[[user]:password@]host[:port][/db]
        rediss://...                                                        the same over TLS
        unix://[[user]:password@]/path/of/redis.sock
        redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[/db][?sentinel-password=...]
        rediss+sentinel://...                                               the same over TLS, to the Sentinels too

    The form with Sentinels is that of the ``redis-sentinel-url`` package. User and password before the ``@`` are those
    of Redis. If the Sentinels require credentials, these are ``sentinel-username`` and ``sentinel-password`` in the
    query. Parameters of the query that begin with ``ssl_`` are passed to redis-py, for Redis and Sentinels.

    Args:
        hosts: of the Sentinels, with their ports.
        service: the name by which they know the master.
        database: its number.
        credentials: for Redis: ``username`` and ``password``, as far as given.
        sentinel_credentials: the same for the Sentinels.
        tls: arguments of redis-py for TLS to both; None without TLS.
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
        """Parse a URL.

        Raises:
            ValueError: it cannot be used; the message does not repeat it.
        """
        # The text of urllib's own errors can hold a part of the password: so `from None`.
        try:
            authority, parts = split_url(url)
            user, _, hosts = authority.rpartition("@")
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
    """Return whether a URL names Sentinels."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SENTINEL_SCHEMES))


def describe_url(url: str) -> str:
    """Return the address in a Redis URL without credentials: ``host:port``, ``host:port/db`` or ``unix:/path``.

    Raises:
        ValueError: the URL cannot be used; the message does not repeat it.
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


class _Pool(SentinelConnectionPool, aioredis.BlockingConnectionPool):
    """A pool that asks the Sentinels for each new connection; callers wait for a free one, as with other pools here."""


class SentinelClient:
    """A redis-py client of the master, and clients of the Sentinels.

    Args:
        url: names the Sentinels and the master.
        timeout: seconds that a call may take, including the look-up of the master.
        settings: for the connections to Redis.
    """

    def __init__(self, url: SentinelUrl, timeout: float, settings: dict[str, Any]) -> None:
        tls = {} if url.tls is None else {"ssl": True, **url.tls}
        # When one Sentinel does not answer, there has to be time for the next one.
        limit = timeout / (len(url.hosts) + 1)
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call, unused-ignore]
            list(url.hosts),
            sentinel_kwargs={
                "socket_timeout": limit,
                "socket_connect_timeout": limit,
                "retry": Retry(NoBackoff(), 0),
                **url.sentinel_credentials,
                **tls,
            },
        )
        self.pool = _Pool(  # type: ignore[no-untyped-call, unused-ignore]
            url.service, self._sentinel, db=url.database, **url.credentials, **tls, **settings
        )

    async def close(self) -> None:
        """Close the connections to the Sentinels."""
        for client in self._sentinel.sentinels:
            await client.aclose()


MINIMUM_VERSION = (6, 2)

# Without this, each connection looks up the version of its library (4 ms) and sends it in two commands.
_ANONYMOUS: dict[str, None] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}  # before version 7
)

Argument = str | int


@dataclass(frozen=True, slots=True)
class RedisCheck:
    """Outcome of a check of the server: a verdict and warnings, both for users."""

    version: str
    persistent: bool
    verdict: str
    warnings: tuple[str, ...]


class RedisConnection:
    """A small pool of connections to one server; use it from one event loop.

    Args:
        url: see `SentinelUrl`; may hold user name and password.
        timeout: seconds that each call, or a new connection, may take.
        max_connections: further calls wait for a free connection (at most ``timeout``).
    """

    def __init__(self, url: str, *, timeout: float = 1.0, max_connections: int = 8) -> None:
        self.where = describe_url(url)
        self.timeout = timeout
        self.has_sentinels = is_sentinel(url)
        settings: dict[str, Any] = {
            "max_connections": max_connections,
            "timeout": timeout,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": True,
            "encoding_errors": "replace",
            "protocol": 2,
            **_ANONYMOUS,
        }
        self._sentinels: SentinelClient | None = None
        self._pool: aioredis.ConnectionPool
        if self.has_sentinels:
            self._sentinels = SentinelClient(SentinelUrl.parse(url), timeout, settings)
            self._pool = self._sentinels.pool
        else:
            self._pool = aioredis.BlockingConnectionPool.from_url(url, **settings)
        self._client = aioredis.Redis(connection_pool=self._pool)
        self._abandoned: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"RedisConnection({self.where})"

    async def command(self, *arguments: Argument, timeout: float | None = None) -> Any:
        """Send one command and return its reply.

        Args:
            timeout: seconds for this call, if less than the connection's own time limit.

        Raises:
            RedisUnreachableError: no connection or no reply in time; the outcome of the command is unknown.
            RedisAuthenticationError: the credentials are refused.
            RedisCommandError: the server answered with an error.
        """
        limit = self.timeout if timeout is None else min(timeout, self.timeout)
        try:
            return await self._within(limit, arguments)
        except (TimeoutError, redis_errors.TimeoutError):
            raise RedisUnreachableError(self.where, f"no reply within {limit:g} s") from None
        except redis_errors.NoScriptError:
            raise
        except redis_errors.ResponseError as error:
            if "READONLY" in str(error):
                # It was the master and is a replica now: new connections find the new master.
                await self._pool.disconnect()
                raise RedisUnreachableError(self.where, "it has become a read-only replica") from error
            raise RedisCommandError(
                f"Redis at {self.where} refused {arguments[0]}: {_one_line(error)}. Look at the server's log and disk."
            ) from error
        except MasterNotFoundError:
            # The text of this error contains all that redis-py knows of each Sentinel.
            raise RedisUnreachableError(
                self.where, "no Sentinel that answers, and takes sentinel-password, knows its master"
            ) from None
        except (redis_errors.RedisError, OSError) as error:
            if _is_about_credentials(error):
                raise RedisAuthenticationError(self.where) from None
            raise RedisUnreachableError(self.where, _one_line(error)) from error

    async def _within(self, limit: float, arguments: tuple[Argument, ...]) -> Any:
        # Not asyncio.timeout: the client may lose a cancellation while it handles a broken connection. But a leader
        # whose renewal hangs must be free at the deadline.
        reply = self._client.execute_command(*arguments)  # type: ignore[no-untyped-call, unused-ignore]
        task: asyncio.Task[Any] = asyncio.ensure_future(reply)
        try:
            done, _ = await asyncio.wait([task], timeout=limit)
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        if not done:
            self._abandon(task)
            raise TimeoutError
        return task.result()

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """End a request whose result nobody awaits any more; it may have ended already, before its caller knew."""
        if task.done():
            self._forget(task)
        else:
            task.cancel()
            self._abandoned.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: its caller already has an error that the outcome is unknown

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument], *, timeout: float | None = None
    ) -> Any:
        """Run a script by its digest; send the source to a server that does not know it (after a restart).

        Raises:
            RedisUnreachableError, RedisAuthenticationError, RedisCommandError: as `command`.
        """
        rest = (len(keys), *keys, *arguments)
        try:
            return await self.command("EVALSHA", script.sha, *rest, timeout=timeout)
        except redis_errors.NoScriptError:
            return await self.command("EVAL", script.source, *rest, timeout=timeout)

    async def warm_up(self, connections: int) -> None:
        """Open *connections* for concurrent calls; raises the errors of `command`."""
        await asyncio.gather(*(self.command("PING") for _ in range(connections)))

    def pubsub(self) -> aioredis.client.PubSub:
        """Return a subscription with a connection of its own; the caller closes it."""
        return self._client.pubsub()

    async def check(self) -> RedisCheck:
        """Check that the server may hold leaderships, and log the outcome.

        Raises:
            RedisRequirementError: it is older than 6.2, may evict keys, or is a read-only replica.
            RedisUnreachableError, RedisAuthenticationError, RedisCommandError: as `command`.
        """
        check = assess(self.where, await self.command("INFO"), has_sentinels=self.has_sentinels)
        for warning in check.warnings:
            logger.warning(warning)
        logger.info(check.verdict)
        return check

    async def close(self) -> None:
        """Close every connection; the object cannot be used afterwards."""
        for task in list(self._abandoned):
            await cancel_and_wait(task)
        await self._client.aclose()
        await self._pool.disconnect()
        if self._sentinels is not None:
            await self._sentinels.close()


def assess(where: str, info: dict[str, Any], *, has_sentinels: bool = False) -> RedisCheck:
    """Check a server by its INFO (pure).

    Raises:
        RedisRequirementError: it cannot hold leaderships.
    """
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < MINIMUM_VERSION:
        raise RedisRequirementError(f"Redis at {where} is version {version}; 6.2 or later is needed. Upgrade it.")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise RedisRequirementError(
            f"Redis at {where} may evict keys (maxmemory-policy {policy}), leader latches among them. "
            "Set maxmemory-policy noeviction."
        )
    if info.get("role", "master") != "master":
        raise RedisRequirementError(
            f"Redis at {where} is a read-only replica. Set high-availability.redis.url to its master."
        )
    persistent = str(info.get("aof_enabled", "0")) == "1"
    warnings: tuple[str, ...] = ()
    if not persistent:
        warnings = (
            f"Redis at {where} keeps no append-only file: jobs submitted since its last snapshot are lost if it dies. "
            "Set appendonly yes.",
        )
    # Redis reports the number of its good replicas only if min-replicas-to-write is set.
    if has_sentinels and "min_slaves_good_slaves" not in info:
        warnings += (
            f"Redis at {where} takes writes while it is cut off from its replicas, and they are lost when one of those "
            "becomes the master. Set min-replicas-to-write 1 and min-replicas-max-lag below high-availability.lease.",
        )
    verdict = f"Redis {version} at {where}: fit (noeviction, {'append-only file' if persistent else 'NOT persistent'})"
    return RedisCheck(version, persistent, verdict, warnings)


def _is_about_credentials(error: BaseException | None) -> bool:
    # The client wraps errors of a new connection into a ConnectionError.
    while error is not None:
        if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
