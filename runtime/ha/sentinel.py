"""Connections to whichever Redis the Sentinels call the master at present."""

from __future__ import annotations

from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from runtime.ha.redis_url import SentinelUrl


class _Pool(SentinelConnectionPool, aioredis.BlockingConnectionPool):
    """Asks the Sentinels for each new connection, and lets callers wait for a free one as any other pool here."""


class SentinelClient:
    """A redis-py client of the master, and clients of the Sentinels.

    Args:
        url: names the Sentinels and the master.
        timeout: seconds that a call may take, the look-up of the master included.
        settings: for the connections to Redis.
    """

    def __init__(self, url: SentinelUrl, timeout: float, settings: dict[str, Any]) -> None:
        tls = {} if url.tls is None else {"ssl": True, **url.tls}
        # There has to be time for the next one when one does not answer.
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
