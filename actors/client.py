"""Reaching actors from a plain process (a notebook, a script, the command line): no Thespian, and no event loop."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.receptionist import PATH, Listing, ReceptionistGateway
from actors.rpc.blocking import ThreadCaller
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import FencingToken, RpcGateway
from actors.rpc.offload import ThreadOffloader

G = TypeVar("G", bound=RpcGateway)


class ActorClient:
    """Looks actors up by address and calls them from any thread, or from any event loop by `await`.

    Args:
        secret: the secret of the cluster.
        config: settings; a client never listens, so ``port`` is of no use to it.
        offloader: takes arguments and results that do not fit into a frame; closed with the client. Without one they
            are refused.

    Use it as a context manager, or call `close`.
    """

    def __init__(
        self, secret: bytes, config: RpcConfig | None = None, offloader: ThreadOffloader | None = None
    ) -> None:
        self._caller = ThreadCaller(secret, config or RpcConfig(), offloader)

    def find(self, address: ActorAddress | str) -> Listing:
        """Ask the receptionist at the address's port where the actor really lives.

        Raises:
            AddressError: *address* is none.
            UnknownActor: no such actor is known there.
            RecipientUnreachable: nothing listens there.
            AuthenticationError: the cluster has another secret.
        """
        target = ActorAddress.parse(address) if isinstance(address, str) else address
        return self.gateway(target.with_path(PATH), ReceptionistGateway).find(target.path).result()

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
        return self._caller.gateway(address, gateway_type, token, timeout_s)

    def close(self) -> None:
        """Send what is held back and close all connections; idempotent."""
        self._caller.close()

    def __enter__(self) -> ActorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()
