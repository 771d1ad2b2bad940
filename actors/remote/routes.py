"""Which process hosts which path: the table of a system's root node. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from actors.remote.gateway import NodeId, Route


@dataclass(slots=True)
class _Entry:
    uid: int
    node: NodeId | None
    """None while the actor is being created."""


class RouteTable:
    """Paths that were placed in a process of their own or in a shared one; all others follow the path above them.

    Args:
        root: the root node itself, which hosts what nobody else hosts.
    """

    def __init__(self, root: NodeId) -> None:
        self._root = root
        self._entries: dict[str, _Entry] = {}

    def begin(self, path: str, uid: int) -> None:
        """The actor *uid* is about to be created at *path*; an earlier incarnation's entry is replaced."""
        self._entries[path] = _Entry(uid, None)

    def settle(self, path: str, uid: int, node: NodeId) -> bool:
        """The actor lives in *node* now; False when its entry has been removed or replaced meanwhile."""
        entry = self._entries.get(path)
        if entry is None or entry.uid != uid:
            return False
        entry.node = node
        return True

    def remove(self, path: str, uid: int) -> NodeId | None:
        """The actor has stopped, or could not be created: where it lived, None when it is not (or no more) known."""
        entry = self._entries.get(path)
        if entry is None or entry.uid != uid:
            return None
        del self._entries[path]
        return entry.node

    def find(self, path: str, uid: int) -> Route | tuple[str, int]:
        """Where *path* is hosted, by the longest known path that it begins with.

        Args:
            path: the path that is looked for.
            uid: the incarnation that is meant, 0 for any: a known other incarnation at *path* itself does not count.

        Returns:
            The route, or path and uid of the creation that has to end before that is known.
        """
        prefix = path
        while prefix:
            entry = self._entries.get(prefix)
            if entry is not None and (prefix != path or uid in (0, entry.uid)):
                if entry.node is None:
                    return prefix, entry.uid
                return Route(entry.node, prefix == path)
            prefix = prefix.rpartition("/")[0]
        return Route(self._root)

    def drop_node(self, uid: int) -> list[tuple[str, int]]:
        """A process has ended: forget what it hosted; returns those paths, each with its incarnation."""
        gone = [
            (path, entry.uid)
            for path, entry in self._entries.items()
            if entry.node is not None and entry.node.uid == uid
        ]
        for path, _ in gone:
            del self._entries[path]
        return gone

    def __len__(self) -> int:
        return len(self._entries)
