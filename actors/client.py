"""Reaching actors from a plain process (a notebook, a script, the command line): no Thespian, a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.receptionist import PATH, Listing, receptionist_of
from actors.rpc.gateway import FencingToken, RpcGateway
from actors.rpc.service import RpcConfig, RpcService

G = TypeVar("G", bound=RpcGateway)


class ActorClient:
    """Looks actors up by address and calls them from any thread, or from any event loop by `await`.

    Args:
        secret: the secret of the cluster.
        config: settings; a client never listens, so ``port`` is of no use to it.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, secret: bytes, config: RpcConfig | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="understudy-client", daemon=True)
        self._thread.start()
        started.wait()
        self._service = self._on_loop(secret, config or RpcConfig())

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        self._loop.run_forever()
        self._loop.close()

    def _on_loop(self, secret: bytes, config: RpcConfig) -> RpcService:
        async def make() -> RpcService:
            return RpcService(self._loop, secret, config)

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result()

    def find(self, address: ActorAddress | str) -> Listing:
        """Ask the receptionist at the address's port where the actor really lives.

        Raises:
            AddressError: *address* is none.
            UnknownActor: no such actor is known there.
            RecipientUnreachable: nothing listens there.
            AuthenticationError: the cluster has another secret.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return receptionist_of(self._service, target).find(target.path).result()

    def lookup(self, address: ActorAddress | str, gateway_type: type[G], timeout_s: float | None = None) -> G:
        """A typed gateway to the actor at *address*, carrying its present fencing token; raises as `find`."""
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
        """A gateway to exactly this address, with no look-up."""
        return self._service.gateway(address, gateway_type, token, timeout_s)

    def close(self) -> None:
        """Close all connections and end the thread; idempotent."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._service.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> ActorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()
