"""A client's connection to one other process, over its Unix socket where there is one, else over TCP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.errors import ActorError, RecipientUnreachable
from actors.rpc.connection import ClientConnection

if TYPE_CHECKING:
    from actors.rpc.service import RpcService


class Peer:
    """The one connection of this process to another; what is called while it is being opened is sent, in order, after.

    Args:
        service: the RPC service it belongs to.
        host: host of the other process.
        port: its TCP port; where it runs on this machine, its Unix socket is taken instead.
    """

    def __init__(self, service: RpcService, host: str, port: int) -> None:
        self._service = service
        self._key = (host, port)
        self._protocol = ClientConnection(service, self._closed)
        self._task = service.loop.create_task(self._open(host, port))

    async def _open(self, host: str, port: int) -> None:
        loop = self._service.loop
        local = self._service.local_socket(host, port)
        try:
            async with asyncio.timeout(self._service.config.connect_timeout_s):
                if local is not None:
                    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                        await loop.create_unix_connection(lambda: self._protocol, str(local))
                        return
                await loop.create_connection(lambda: self._protocol, host, port)
        except (OSError, TimeoutError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            self._protocol.fail(RecipientUnreachable(f"nothing can be reached at {host}:{port} ({reason})"))

    def ask(
        self,
        message: list[Any],
        decode: Callable[[Any], Any],
        future: asyncio.Future[Any],
        timeout_s: float,
        on_timeout: Callable[[], Exception],
    ) -> None:
        self._protocol.ask(message, decode, future, timeout_s, on_timeout)

    def send(self, frame: bytes) -> None:
        self._protocol.send(frame)

    def _closed(self, _reason: ActorError) -> None:
        self._service.forget_peer(self._key, self)

    def close(self) -> None:
        self._task.cancel()
        self._protocol.close()
