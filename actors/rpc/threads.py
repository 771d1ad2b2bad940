"""Calling from plain threads: one `BlockingConnection` to each process, made anew when it broke or after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from functools import partial
from typing import Any, TypeVar, cast

from actors.address import ActorAddress
from actors.errors import ActorError, FrameTooLarge, RecipientUnreachable
from actors.rpc.blocking import HIGH_WATER, BlockingConnection, Stale
from actors.rpc.codec import MethodSpec
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from actors.rpc.offload import ThreadOffloader, put_by_thread
from actors.rpc.tables import proxy_type
from actors.rpc.thread_ask import ThreadAsk
from actors.rpc.tls import TlsStream

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)

CLOSE_FLUSH_S = 1.0
REPORT_S = 60.0
_callers: weakref.WeakSet[ThreadCaller] = weakref.WeakSet()


class ThreadCaller:
    """Sends the calls of a program's threads; what `RpcService` is to the code on an event loop.

    Args:
        secret: the cluster secret.
        config: see `RpcConfig`.
        offloader: for arguments and results that do not fit into a frame; closed with the caller.
    """

    def __init__(self, secret: bytes, config: RpcConfig, offloader: ThreadOffloader | None = None) -> None:
        self.secret = secret
        self.config = config
        self.offloader = offloader
        self.dropped = 0
        self._tls = None if config.tls is None else config.tls.contexts()[1]
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._reported_at = float("-inf")
        _callers.add(self)

    def tls_stream(self) -> TlsStream | None:
        """TLS for one TCP connection; None without certificates."""
        return None if self._tls is None else TlsStream(self._tls, server_side=False)

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """As `RpcService.gateway`."""
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return cast("G", proxy_type(gateway_type)(self, target, token, timeout_s or self.config.ask_timeout_s))

    def ask(
        self, target: ActorAddress, spec: MethodSpec, arguments: list[Any], token: FencingToken | None, timeout_s: float
    ) -> Ask[Any]:
        """Send an ask (used by the generated gateways); arguments that do not fit into a frame are uploaded first."""
        ask: ThreadAsk[Any] = ThreadAsk(target, spec, timeout_s)
        fenced = None if token is None else (token.epoch, token.session)
        try:
            try:
                self._send(ask, target, (target.path, spec.name, arguments, fenced))
            except FrameTooLarge:
                if self.offloader is None:
                    raise
                key = put_by_thread(self.offloader, arguments)
                ask.when_done(partial(self.offloader.release, key))
                self._send(ask, target, (target.path, spec.name, key, fenced))
        except ActorError as error:
            ask.resolve(None, error)
        return ask

    def _send(self, ask: ThreadAsk[Any], target: ActorAddress, fields: tuple[Any, ...]) -> None:
        while True:
            connection = self._connection(target)
            if connection.unsent > HIGH_WATER:
                self._make_room(connection, target, ask.deadline)
            with contextlib.suppress(Stale):
                connection.ask(ask, fields)
                return

    def tell(self, target: ActorAddress, name: str, arguments: list[Any], token: FencingToken | None) -> None:
        """Send a tell (used by the generated gateways): at most once, no reply, never an error to the caller.

        Who sends faster than the recipient takes is made to wait; after ``ask_timeout_s`` the message is dropped.
        """
        fields = (target.path, name, arguments, None if token is None else (token.epoch, token.session))
        try:
            while True:
                connection = self._connection(target)
                if connection.unsent > HIGH_WATER:
                    self._make_room(connection, target, time.monotonic() + self.config.ask_timeout_s)
                try:
                    connection.tell(fields)
                    break
                except Stale:
                    continue
        except ActorError as error:
            self.dropped += 1
            now = time.monotonic()
            if now - self._reported_at >= REPORT_S or not isinstance(error, RecipientUnreachable):
                self._reported_at = now
                logger.warning("a message to %s was not sent (%d so far): %s", target, self.dropped, error)

    def _make_room(self, connection: BlockingConnection, target: ActorAddress, until: float) -> None:
        try:
            asyncio.get_running_loop()
            roomy = connection.unsent <= self.config.outbox_size  # an event loop must not be held up
        except RuntimeError:
            roomy = connection.make_room(until)
        if not roomy:
            raise RecipientUnreachable(
                f"{target.host}:{target.port} takes nothing: {connection.unsent} bytes wait for it already; "
                "it hangs, or is sent more than it can do"
            )

    def _connection(self, target: ActorAddress) -> BlockingConnection:
        key = (target.host, target.port)
        connection = self._connections.get(key)
        if connection is None or connection.broken is not None:
            with self._lock:
                if self._closed:
                    raise RecipientUnreachable("the client was closed")
                connection = self._connections.get(key)
                if connection is None or connection.broken is not None:
                    connection = self._connections[key] = BlockingConnection(self, *key)
        return connection

    def close(self) -> None:
        """Send what is held back, close all connections; pending asks end in `RecipientUnreachable`. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close(RecipientUnreachable("the client was closed"), CLOSE_FLUSH_S)
        if self.offloader is not None:
            self.offloader.close_blocking()

    def after_fork(self) -> None:
        """In the child: leave the connections to the parent."""
        self._lock = threading.Lock()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abandon()


def _after_fork() -> None:
    for caller in list(_callers):
        caller.after_fork()


os.register_at_fork(after_in_child=_after_fork)
