"""The directory of a system's actors, at the system's own port (Akka's Receptionist).

Every registered actor has a process and a port of its own. Users need one address for the whole system:
``akka.tcp://<system>@<host>:<port>/user/<name>``. The receptionist at that port returns the actor's real address and,
for a fenced actor, the leadership under which it serves at present.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.address import ActorAddress
from actors.errors import FencingError, UnknownActor
from actors.rpc.endpoint import SYSTEM, RpcEndpoint
from actors.rpc.gateway import Ask, FencingToken, RpcGateway, reads, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from actors.serialization import message

NAME = "receptionist"
PATH = "/system/receptionist"


@dataclass(frozen=True, slots=True)
class Listing:
    """One registered actor.

    Args:
        path: its path, e.g. ``/user/dispatcher``.
        address: the text form of its real address.
        pid: pid of its process.
        token: the leadership under which it serves, None for an unfenced actor.
    """

    path: str
    address: str
    pid: int
    token: FencingToken | None = None


@message
class LeaderChanged:
    """Event: an actor leads from now on.

    Args:
        path: its path.
        address: the text form of its address.
        epoch: epoch of its leadership.
    """

    path: str
    address: str
    epoch: int


class ReceptionistGateway(RpcGateway):
    """Interface of the receptionist."""

    def register(self, listing: Listing) -> Ask[None]:
        """Enter or replace the actor at ``listing.path``.

        Raises:
            FencingError: a later leadership is listed; the error carries its epoch.
        """
        raise NotImplementedError

    def deregister(self, path: str, address: str) -> None:
        """Remove the actor, if it is still listed at *address*."""
        raise NotImplementedError

    @reads
    def find(self, path: str) -> Ask[Listing]:
        """Return the listing of *path*; raises `UnknownActor`."""
        raise NotImplementedError

    @reads
    def listings(self) -> Ask[list[Listing]]:
        """Return all listings, sorted by path."""
        raise NotImplementedError


class Receptionist(RpcEndpoint, ReceptionistGateway):
    """Keeps the listings in memory only: living actors register again when this process restarts."""

    parent_path = SYSTEM

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, NAME)
        self._listings: dict[str, Listing] = {}

    @rpc_sync
    def register(self, listing: Listing) -> None:
        later = self.enter(listing)
        if later is not None:
            raise FencingError(f"a later leadership of {listing.path} is listed at {self.address}", later.epoch)

    def enter(self, listing: Listing) -> FencingToken | None:
        """Enter or replace a listing, unless a later leadership is listed.

        Returns:
            The fencing token of that later leadership; None when the listing was entered.
        """
        known = self._listings.get(listing.path)
        if known is not None and known.token is not None and (listing.token is None or listing.token < known.token):
            return known.token
        self._listings[listing.path] = listing
        if listing.token is not None and (known is None or known.token != listing.token):
            self.service.node.publish(LeaderChanged(listing.path, listing.address, listing.token.epoch))
        return None

    @rpc_tell
    def deregister(self, path: str, address: str) -> None:
        known = self._listings.get(path)
        if known is not None and known.address == address:
            del self._listings[path]

    @rpc_sync
    def find(self, path: str) -> Listing:
        listing = self._listings.get(path)
        if listing is None:
            raise UnknownActor(f"no actor {path} is known to {self.address}")
        return listing

    def where(self, path: str) -> ActorAddress | None:
        """Return the real address of the actor at *path*, else of its nearest listed ancestor; None without either."""
        while path:
            listing = self._listings.get(path)
            if listing is not None:
                return ActorAddress.parse(listing.address)
            path = path.rpartition("/")[0]
        return None

    @rpc_sync
    def listings(self) -> list[Listing]:
        return [self._listings[path] for path in sorted(self._listings)]

    def forget_process(self, pid: int) -> None:
        """Remove all actors of a process that has ended."""
        self._listings = {path: listing for path, listing in self._listings.items() if listing.pid != pid}


def receptionist_of(service: RpcService, system: ActorAddress) -> ReceptionistGateway:
    """Return a gateway to the receptionist at the host and port of *system*, any address of the system."""
    return service.gateway(system.with_path(PATH), ReceptionistGateway)
