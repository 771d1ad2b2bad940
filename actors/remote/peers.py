"""The other nodes with which this one communicates: a link to each, its incarnation, and its death.

This module collects every sign of a node's death: a closed port, silence, another incarnation at its address, a report
of its system's root node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.ref import ActorRef
from actors.remote.gateway import NodeId
from actors.remote.heartbeats import Heartbeats
from actors.remote.link import Link
from actors.rpc.service import RpcService
from actors.system_config import HeartbeatConfig

logger = logging.getLogger(__name__)

REMEMBERED = 1000


class Associations:
    """The incarnations of other nodes, by address (Akka's ``Association`` and ``Quarantined``). Pure.

    A node is an address and the uid of one incarnation of the process there. An incarnation that was declared dead
    stays dead, because actors here already know that its actors have ended. Messages from it would contradict that.
    Communication resumes only with a new incarnation at the address.

    Args:
        remembered: number of uids in quarantine to remember; the oldest are forgotten first.

    Raises:
        ValueError: *remembered* is not a positive number.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        if remembered < 1:
            raise ValueError(f"at least one uid has to be remembered, not {remembered!r}")
        self._remembered = remembered
        self._by_address: dict[Hashable, int] = {}
        self._quarantined: dict[int, str] = {}

    def seen(self, address: Hashable, uid: int) -> int | None:
        """Record a node with that uid at *address*; ignore it while it is in quarantine.

        Returns:
            The uid of the incarnation that it supersedes, which is now in quarantine; None when there is none.
        """
        if uid in self._quarantined:
            return None
        known = self._by_address.get(address)
        self._by_address[address] = uid
        if known is None or known == uid or known in self._quarantined:
            return None
        self.quarantine(known, f"another incarnation ({uid}) has taken its address {address}")
        return known

    def quarantine(self, uid: int, reason: str) -> None:
        """Declare an incarnation dead for good."""
        if uid in self._quarantined:
            return
        self._quarantined[uid] = reason
        if len(self._quarantined) > self._remembered:
            oldest = next(iter(self._quarantined))
            del self._quarantined[oldest]
            # Forget its address too: after that the address is like any unknown one.
            for address in [each for each, known in self._by_address.items() if known == oldest]:
                del self._by_address[address]

    def accept_from(self, uid: int) -> bool:
        """Return whether to accept messages of that incarnation."""
        return uid not in self._quarantined

    def reason(self, uid: int) -> str | None:
        """Return why that incarnation is in quarantine; None when it is not."""
        return self._quarantined.get(uid)


class Peers:
    """Links by address. All methods run on the node's loop.

    Args:
        service: the RPC service of this process.
        me: this node.
        heartbeat: settings of the failure detection.
        on_lost: called with a link whose node has died, and with the refs that were watched over the link.
    """

    def __init__(
        self,
        service: RpcService,
        me: NodeId,
        heartbeat: HeartbeatConfig,
        on_lost: Callable[[Link, set[ActorRef]], None],
    ) -> None:
        self.heartbeats = Heartbeats(service, heartbeat, self._silent)
        self.associations = Associations()
        self.on_down: list[Callable[[int, str], None]] = []
        """Called with uid and reason for each node that has died."""
        self.on_host_silent: Callable[[int, str], None] | None = None
        """Called by a root node for a silent process of its own system, with uid and reason."""
        self._service = service
        self._me = me
        self._on_lost = on_lost
        self._silent_addresses: dict[tuple[str, int], str] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._is_closed = False

    def link(self, address: ActorAddress, node: NodeId | None = None) -> Link:
        """Return the link to the process at *address*; with *node*, the link to exactly that incarnation."""
        key = (address.host, address.port)
        link = self._links.get(key)
        if link is not None and node is not None and link.node is not None and link.node.uid != node.uid:
            # One of the two has died. *node* comes from the system's root node and is the newer one.
            link.declare_dead("another incarnation has its address")
            link = None
        if link is None:
            link = Link(self._service, self._me, address, self._link_up, self._link_dead)
            link.node = node
            if node is not None and (reason := self.associations.reason(node.uid)) is not None:
                link.dead = reason
                return link
            self._links[key] = link
            if key in self._silent_addresses:
                link.suspect(self._silent_addresses[key])
        return link

    def link_to(self, uid: int) -> Link | None:
        """Return the link to the node with that uid, or None."""
        return next((link for link in self._links.values() if link.node is not None and link.node.uid == uid), None)

    def _link_up(self, link: Link) -> None:
        if link.node is not None and not self.heard_of(link.node):
            link.declare_dead(self.associations.reason(link.node.uid) or "it is in quarantine")

    def heard_of(self, node: NodeId) -> bool:
        """Record contact with another node; declare the incarnation that it supersedes dead.

        Returns:
            False when the node is in quarantine and must be ignored.
        """
        for uid in (node.uid, node.system_uid):
            if not self.associations.accept_from(uid):
                return False
        if node.port:
            self._silent_addresses.pop((node.host, node.port), None)
            superseded = self.associations.seen((node.host, node.port), node.uid)
            if superseded is not None:
                self.node_down(superseded, "another incarnation has its address")
        return True

    # ------------------------------------------------------------------ monitoring

    def monitor(self, link: Link) -> None:
        """Monitor the node of a link if it belongs to another system; the root node monitors its own processes."""
        if link.node is not None and link.node.system_uid != self._me.system_uid:
            link.open()
            self.heartbeats.watch(link.node)

    def relax(self, link: Link) -> None:
        """Stop monitoring the node of a link when no watched actor and no guest's parent is left on it."""
        node = link.node
        if node is not None and not link.watched and not link.guests and node.system_uid != self._me.system_uid:
            self.heartbeats.unwatch(node.uid)

    # ------------------------------------------------------------------ the end of other nodes

    def node_down(self, uid: int, reason: str) -> None:
        """Handle the end of a process, known or assumed; idempotent."""
        if uid == self._me.uid:
            return
        self.associations.quarantine(uid, reason)
        self.heartbeats.unwatch(uid)
        for link in list(self._links.values()):
            if link.node is None:
                continue
            if link.node.uid == uid:
                link.declare_dead(reason)
            elif link.node.system_uid == uid:
                self.node_down(link.node.uid, f"its system has ended: {reason}")
        for told in self.on_down:
            told(uid, reason)

    def _silent(self, node: NodeId, reason: str) -> None:
        if node.system_uid == self._me.system_uid and self.on_host_silent is not None:
            self.on_host_silent(node.uid, reason)
            return
        self._silent_addresses[node.host, node.port] = reason
        logger.error("%s counts as dead: %s; it stays unreachable until it is restarted", node, reason)
        self.node_down(node.uid, reason)

    def _link_dead(self, link: Link, reason: str) -> None:
        if self._links.get(link.key) is link:
            del self._links[link.key]
        if link.node is None or self._is_closed:
            return
        logger.info("%s has ended: %s", link.node, reason)
        watched, link.watched = link.watched, set()
        self._on_lost(link, watched)
        self.node_down(link.node.uid, reason)

    # ------------------------------------------------------------------ end

    async def drained(self) -> None:
        """Wait until all queued parcels have been sent or have failed."""
        for link in list(self._links.values()):
            with contextlib.suppress(ActorError):
                await link.drained()
        await asyncio.sleep(0)  # frames are written once in a turn of the loop

    def close(self) -> None:
        """Stop monitoring and connecting."""
        self._is_closed = True
        self.heartbeats.close()
        for link in list(self._links.values()):
            link.close()
        self._links.clear()
