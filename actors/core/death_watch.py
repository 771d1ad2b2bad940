"""Watching other actors and being watched (Akka's `DeathWatch`)."""

from __future__ import annotations

from typing import Any

from actors.core.cell_state import CellState
from actors.core.system_messages import DeathWatchNotification, Unwatch, Watch
from actors.errors import ActorProcessDied
from actors.messages import Terminated
from actors.ref import ActorRef


class DeathWatch(CellState):
    """The part of a cell that knows whom it watches and who watches it."""

    __slots__ = ()

    def watch(self, ref: ActorRef) -> None:
        """Be told when *ref* has stopped; idempotent."""
        watching = self._watching
        if ref == self.ref or (watching is not None and ref in watching):
            return
        if watching is None:
            watching = self._watching = set()
        watching.add(ref)
        self.node.watching(ref, self)
        self.node.send_system(ref, Watch(self.ref))

    def unwatch(self, ref: ActorRef) -> None:
        """Be told no more, not even by a `Terminated` that is in the mailbox already."""
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self._watch_ended(ref)
            self.node.send_system(ref, Unwatch(self.ref))
        if self._stopped_watchees is not None:
            self._stopped_watchees.discard(ref)

    def _watch_ended(self, ref: ActorRef) -> None:
        if self._children is None or self._children.find(ref) is None:
            self.node.unwatching(ref, self)

    def unwatch_all(self) -> None:
        """The actor stops: it wants to hear of nobody's death any more."""
        for ref in list(self._watching or ()):
            self.unwatch(ref)
        self._watching = None
        self._stopped_watchees = None

    def add_watcher(self, watcher: ActorRef) -> None:
        """*watcher* wants to be told."""
        if watcher != self.ref:
            if self._watched_by is None:
                self._watched_by = set()
            self._watched_by.add(watcher)

    def remove_watcher(self, watcher: ActorRef) -> None:
        """*watcher* does not want to be told any more."""
        if self._watched_by is not None:
            self._watched_by.discard(watcher)

    def watchee_terminated(self, notification: DeathWatchNotification) -> None:
        """Somebody has stopped: one that is watched, or a child, or both; or nobody of interest any more."""
        ref = notification.actor
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self.node.unwatching(ref, self)
            self.announce(Terminated(ref, notification.existence_confirmed, notification.address_terminated))
        child = None if self._children is None else self._children.find(ref)
        if child is None:
            return
        self.node.unwatching(ref, self)
        if notification.address_terminated and not self.children.is_dying(ref):
            self.child_lost(ref, ActorProcessDied(f"the process of {ref.path} has ended"))
        else:
            self.child_terminated(ref)

    def announce(self, terminated: Terminated) -> None:
        """Tell the actor, by way of the mailbox: behind what the dead one had sent before."""
        if self._children is not None and self._children.is_terminating:
            return
        self.expect_terminated(terminated.actor)
        self.deliver_own(terminated, terminated.actor)

    def expect_terminated(self, ref: ActorRef) -> None:
        """The `Terminated` of *ref* is in the mailbox or the stash, to be received unless *ref* is unwatched before."""
        if self._stopped_watchees is None:
            self._stopped_watchees = set()
        self._stopped_watchees.add(ref)

    def receive_terminated(self, message: Terminated) -> Any:
        """The actor handles a `Terminated`, unless it has stopped watching since that was queued."""
        if self._stopped_watchees is not None and message.actor in self._stopped_watchees:
            self._stopped_watchees.discard(message.actor)
            return self._receive(message)
        return None

    def tell_watchers(self) -> None:
        """The actor has stopped: its parent and its watchers are told."""
        notification = DeathWatchNotification(self.ref, True, False)
        watchers, self._watched_by = self._watched_by, None
        self.node.send_system(self.parent, notification)
        for watcher in watchers or ():
            if watcher != self.parent:
                self.node.send_system(watcher, notification)
