"""Guests: the actors of this process whose parents live in others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.core.system_messages import Terminate
from actors.remote.gateway import NodeId
from actors.remote.peers import Peers

if TYPE_CHECKING:
    from actors.core.node import Node

log = logging.getLogger(__name__)


class Guests:
    """They are stopped when the process of their parent dies, since nobody would supervise them any more.

    Args:
        node: the node that they live in.
        me: its id.
        peers: the other nodes.
    """

    def __init__(self, node: Node, me: NodeId, peers: Peers) -> None:
        self._node = node
        self._me = me
        self._peers = peers
        self._creators: dict[str, tuple[int, NodeId]] = {}
        peers.on_down.append(self._orphaned)

    def arrived(self, path: str, uid: int, creator: NodeId) -> None:
        """An actor is made here for a parent in *creator*."""
        self._creators[path] = (uid, creator)
        if creator.system_uid != self._me.system_uid and creator.port:
            link = self._peers.link(creator.address, creator)
            link.guests += 1
            self._peers.monitor(link)
        reason = self._peers.associations.reason(creator.uid)
        if reason is not None:
            self._orphaned(creator.uid, reason)

    def left(self, path: str, uid: int) -> bool:
        """An actor of this node has stopped: whether it was a guest."""
        known = self._creators.get(path)
        if known is None or known[0] != uid:
            return False
        creator = self._creators.pop(path)[1]
        link = self._peers.link_to(creator.uid)
        if link is not None and creator.system_uid != self._me.system_uid:
            link.guests -= 1
            self._peers.relax(link)
        return True

    def stop_all(self) -> None:
        """Stop them: this process ends."""
        for path, (uid, _) in list(self._creators.items()):
            self._node.deliver_system(self._node.ref(path, uid), Terminate())

    def _orphaned(self, creator: int, reason: str) -> None:
        for path, (uid, node) in list(self._creators.items()):
            if node.uid == creator:
                log.warning("%s is stopped: %s, where its parent lived, has ended (%s)", path, node, reason)
                self._node.deliver_system(self._node.ref(path, uid), Terminate())
