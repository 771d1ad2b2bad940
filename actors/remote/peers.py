"""The other nodes that this one speaks with: a link to each, what is known of it, and when it is dead.

One place for all that says that a node has died: its connection and its closed port, its silence, another incarnation
at its address, the word of its system's root node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.ref import ActorRef
from actors.remote.associations import Associations
from actors.remote.gateway import NodeId
from actors.remote.link import Link
from actors.remote.watcher import HeartbeatConfig, Heartbeats
from actors.rpc.service import RpcService

log = logging.getLogger(__name__)


class Peers:
    """Links by address. All of it runs on the node's loop.

    Args:
        service: the RPC service of this process.
        me: this node.
        heartbeat: how failures are detected.
        on_lost: called with a link whose node has died, and with the refs that were watched over it.
    """

    def __init__(
        self,
        service: RpcService,
        me: NodeId,
        heartbeat: HeartbeatConfig,
        on_lost: Callable[[Link, set[ActorRef]], None],
    ) -> None:
        self.heartbeats = Heartbeats(service, heartbeat, self._silent)
        self.associations: Associations[tuple[str, int]] = Associations()
        self.on_down: list[Callable[[int, str], None]] = []
        """Called with uid and reason for each node that has died."""
        self.on_host_silent: Callable[[int, str], None] | None = None
        """A root node's: what to do with a process of its own system that does not answer."""
        self._service = service
        self._me = me
        self._on_lost = on_lost
        self._silent_addresses: dict[tuple[str, int], str] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._is_closed = False

    def link(self, address: ActorAddress, node: NodeId | None = None) -> Link:
        """The link to the process at *address*; with *node*, to that very incarnation."""
        key = (address.host, address.port)
        link = self._links.get(key)
        if link is not None and node is not None and link.node is not None and link.node.uid != node.uid:
            # One of the two has died. What the system's root says of late is the younger truth.
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
        """The link to a node that is known."""
        return next((link for link in self._links.values() if link.node is not None and link.node.uid == uid), None)

    def _link_up(self, link: Link) -> None:
        if link.node is not None and not self.heard_of(link.node):
            link.declare_dead(self.associations.reason(link.node.uid) or "it is in quarantine")

    def heard_of(self, node: NodeId) -> bool:
        """Another node has spoken: False when it is not to be listened to. What it supersedes has died."""
        for uid in (node.uid, node.system_uid):
            if not self.associations.accept_from(uid):
                return False
        if node.port:
            self._silent_addresses.pop((node.host, node.port), None)
            superseded = self.associations.seen((node.host, node.port), node.uid).superseded
            if superseded is not None:
                self.node_down(superseded, "another incarnation has its address")
        return True

    # ------------------------------------------------------------------ whose end matters

    def monitor(self, link: Link) -> None:
        """The end of that node matters. A root node sees to its own system's processes, each node to other systems'."""
        if link.node is not None and link.node.system_uid != self._me.system_uid:
            link.open()
            self.heartbeats.watch(link.node)

    def relax(self, link: Link) -> None:
        """Something that mattered does not any more: if it was the last, the node is not monitored any more."""
        node = link.node
        if node is not None and not link.watched and not link.guests and node.system_uid != self._me.system_uid:
            self.heartbeats.unwatch(node.uid)

    # ------------------------------------------------------------------ the end of other nodes

    def node_down(self, uid: int, reason: str) -> None:
        """A process is known to have ended, or is held for dead; idempotent."""
        if uid == self._me.uid:
            return
        known = self.link_to(uid)
        self.associations.quarantine(("", 0) if known is None else known.key, uid, reason)
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
        log.error("%s is held for dead: %s; it is not talked to again before it is started anew", node, reason)
        self.node_down(node.uid, reason)

    def _link_dead(self, link: Link, reason: str) -> None:
        if self._links.get(link.key) is link:
            del self._links[link.key]
        if link.node is None or self._is_closed:
            return
        log.info("%s has ended: %s", link.node, reason)
        watched, link.watched = link.watched, set()
        self._on_lost(link, watched)
        self.node_down(link.node.uid, reason)

    # ------------------------------------------------------------------ end

    async def drained(self) -> None:
        """Wait until what waits for connections has been sent, or cannot be."""
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
