"""Reaching actors from a plain process (a notebook, a script, the command line): no Thespian, and no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from actors.address import ActorAddress
from actors.errors import ActorError, ClientClosed, FrameTooLarge, RecipientUnreachable
from actors.receptionist import PATH, Listing, ReceptionistGateway
from actors.rpc.blocking import HIGH_WATER, BlockingConnection, Stale, ThreadAsk
from actors.rpc.codec import MethodSpec, proxy_type
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from actors.rpc.offload import ThreadOffloader, put_by_thread

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)

CLOSE_FLUSH_S = 1.0
REPORT_S = 60.0


class ActorClient:
    """Looks actors up by address and calls them from any thread, or with `await` from any event loop.

    Code that runs on an event loop uses `RpcService` instead. Use the client as a context manager, or call `close`.

    Args:
        secret: the secret of the cluster.
        config: settings; a client never listens, so it ignores ``port``.
        offloader: carries arguments and results that do not fit into a frame; closed with the client. Without one the
            client rejects them.

    Attributes:
        config: the settings.
        dropped: number of tells that were not sent.
    """

    def __init__(
        self, secret: bytes, config: RpcConfig | None = None, offloader: ThreadOffloader | None = None
    ) -> None:
        self.config = config or RpcConfig()
        self.dropped = 0
        self._secret = secret
        self._offloader = offloader
        self._tls = None if self.config.tls is None else self.config.tls.contexts()[1]
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._reported_at = float("-inf")
        _clients.add(self)

    def find(self, address: ActorAddress | str) -> Listing:
        """Ask the receptionist at the address's port where the actor really lives.

        Raises:
            AddressError: *address* is not an address.
            UnknownActor: the receptionist knows no such actor.
            RecipientUnreachable: nothing listens there.
            AuthenticationError: the cluster has another secret.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return self.gateway(target.with_path(PATH), ReceptionistGateway).find(target.path).result()

    def lookup(self, address: ActorAddress | str, gateway_type: type[G], timeout_s: float | None = None) -> G:
        """Return a typed gateway to the actor at *address*, carrying its present fencing token; raises as `find`."""
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        if target.path == PATH:
            return self.gateway(target, gateway_type, None, timeout_s)
        listing = self.find(target)
        return self.gateway(listing.address, gateway_type, listing.token, timeout_s)

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """Return a gateway to exactly this address, with no look-up."""
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
                if self._offloader is None:
                    raise
                key = put_by_thread(self._offloader, arguments)
                ask.when_done(partial(self._offloader.release, key))
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

        A caller that sends faster than the recipient reads waits; after ``ask_timeout_s`` the client drops the message.
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
                    raise ClientClosed
                connection = self._connections.get(key)
                if connection is None or connection.broken is not None:
                    connection = self._connections[key] = BlockingConnection(
                        *key, self._secret, self.config, self._tls, self._offloader
                    )
        return connection

    def close(self) -> None:
        """Send buffered messages and close all connections; pending asks end in `ClientClosed`. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close(ClientClosed(), CLOSE_FLUSH_S)
        if self._offloader is not None:
            self._offloader.close_blocking()

    def after_fork(self) -> None:
        """Leave the connections to the parent; called in the child after a fork."""
        self._lock = threading.Lock()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abandon()

    def __enter__(self) -> ActorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()


_clients: weakref.WeakSet[ActorClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
