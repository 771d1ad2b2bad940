"""Connections to the Spark Connect servers of drivers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from runtime.protocol.session import SessionAddress

MOST_CHANNELS = 64
"""How many unused connections to Spark drivers are kept."""


class Channels:
    """Connections to Spark drivers, each shared by the calls to that driver."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, str], Any] = {}
        self._uses: dict[tuple[int, str], int] = {}

    @contextlib.asynccontextmanager
    async def use(self, address: SessionAddress) -> AsyncIterator[Any]:
        """Give the connection to the driver of a session, which stays open during this context."""
        key = address.port, address.token
        channel = self._channels.pop(key, None)
        if channel is None:
            options = [
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ]
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{address.port}", options=options)
        self._channels[key] = channel  # the last one is the one used last
        self._uses[key] = self._uses.get(key, 0) + 1
        try:
            yield channel
        finally:
            self._uses[key] -= 1
            await self._close_oldest()

    async def _close_oldest(self) -> None:
        unused = [key for key in self._channels if not self._uses[key]]
        for key in unused[: max(0, len(unused) - MOST_CHANNELS)]:
            del self._uses[key]
            await self._channels.pop(key).close()

    async def close(self) -> None:
        """Close all connections, and so end the calls that use them."""
        for channel in self._channels.values():
            await channel.close()
