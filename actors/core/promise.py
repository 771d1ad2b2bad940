"""Promises of one message, or of one actor's end: the other side of an ask (Akka's `PromiseActorRef`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
from typing import TYPE_CHECKING, Any

from actors.core.system_messages import AskFailed, DeathWatchNotification, SystemMessage, Unwatch, Watch
from actors.errors import AskTimeout
from actors.messages import Failure
from actors.ref import ActorRef
from actors.serialization import remote_error

if TYPE_CHECKING:
    from actors.core.node import Node

AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]


class Promise:
    """Waits for the first message sent to its ref. When it stops waiting, it notifies actors that watch the ref.

    Args:
        node: its node.
        future: receives the message.
        recipient: the actor that was asked.
        what: type name of the message that was sent.
        timeout_s: seconds to wait.
        asker: the actor that asks; None when no actor does.
    """

    __slots__ = ("_asker", "_future", "_node", "_timeout_s", "_watched_by", "_what", "deadline", "recipient", "ref")

    def __init__(
        self,
        node: Node,
        future: AnyFuture,
        recipient: ActorRef,
        what: str,
        timeout_s: float,
        asker: ActorRef | None = None,
    ) -> None:
        self._node = node
        self._asker = asker
        self._watched_by: set[ActorRef] | None = None
        self._future = future
        self._what = what
        self._timeout_s = timeout_s
        self.recipient = recipient
        self.deadline = node.loop.time() + timeout_s
        self.ref = node.promises.add(self)

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Take the reply. A second or late reply becomes a dead letter."""
        if not self._node.promises.remove(self):
            self._node.undeliverable(self.ref, message, sender)
        elif type(message) is Failure:
            self.fail(message.error)
        else:
            self._succeed(message)

    def deliver_system(self, message: SystemMessage) -> None:
        """Handle the end of an ask without a reply, which is ignored after a reply; or add or remove a watcher."""
        match message:
            case AskFailed(error):
                if self._node.promises.remove(self):
                    self.fail(error)
            case Watch(watcher):
                if self._watched_by is None:
                    self._watched_by = set()
                self._watched_by.add(watcher)
                if self._node.promises.get(self.ref.path) is not self:
                    self.tell_watchers()
            case Unwatch(watcher):
                if self._watched_by is not None:
                    self._watched_by.discard(watcher)

    def tell_watchers(self) -> None:
        """Notify the watchers that the promise has stopped waiting."""
        watchers, self._watched_by = self._watched_by, None
        for watcher in watchers or ():
            self._node.send_system(watcher, DeathWatchNotification(self.ref))

    def expire(self) -> None:
        """Fail with `AskTimeout`; the promise has been removed already."""
        sent = "" if self._asker is None else f"; {self._asker.path} has sent it"
        self.fail(
            AskTimeout(
                f"{self.recipient.path} did not answer a message of type {self._what} in {self._timeout_s:g} s{sent}"
            )
        )

    def _succeed(self, value: Any) -> None:
        if not self._future.done():  # the caller may have cancelled
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """End the ask with *error*."""
        if self._future.done():
            return
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            error = remote_error(error)  # an exit of the other actor must end neither the caller nor its loop
        self._future.set_exception(error)


class TerminationPromise(Promise):
    """Waits for an actor's end (Akka's `gracefulStop`)."""

    __slots__ = ()

    def deliver_system(self, message: SystemMessage) -> None:
        """Succeed when the actor has stopped, or never existed."""
        if isinstance(message, DeathWatchNotification):
            if self._node.promises.remove(self):
                self._succeed(True)
        else:
            super().deliver_system(message)

    def expire(self) -> None:
        """Fail with `AskTimeout`."""
        self.fail(AskTimeout(f"{self.recipient.path} did not stop within {self._timeout_s:g} s"))


class SubscriberWatch(Promise):
    """Waits for the end of an event stream subscriber in another process (Akka's `EventStreamUnsubscriber`)."""

    __slots__ = ()

    def __init__(self, node: Node, subscriber: ActorRef) -> None:
        super().__init__(node, node.loop.create_future(), subscriber, "", math.inf)

    def deliver_system(self, message: SystemMessage) -> None:
        """Unsubscribe the subscriber when it has stopped, or never existed."""
        if isinstance(message, DeathWatchNotification) and self._node.promises.remove(self):
            self._node.unwatching(self.recipient, self)
            self._node.event_stream.unsubscribe(self.recipient)

    def fail(self, error: BaseException) -> None:
        """Do nothing: no caller waits for it."""


class Promises:
    """The promises of a node, by path, with one timer for all of them.

    Args:
        node: the node.
        prefix: prefix of their paths, ``/temp/...``.
        first: number of the first promise.
    """

    def __init__(self, node: Node, prefix: str, first: int) -> None:
        self._node = node
        self._prefix = prefix
        self._next = first
        self._by_path: dict[str, Promise] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, promise: Promise) -> ActorRef:
        """Register a promise; return the ref to which the reply goes."""
        number = self._next
        self._next = number + 1
        path = f"{self._prefix}${number}"
        self._by_path[path] = promise
        if self._timer is None or promise.deadline < self._timer.when():
            self._arm(promise.deadline)
        return ActorRef(self._node, self._node.origin, path, number, promise)

    def get(self, path: str) -> Promise | None:
        """Return the promise at *path* if it still waits, else None."""
        return self._by_path.get(path)

    def remove(self, promise: Promise) -> bool:
        """Remove a promise; return False when it did not wait any more."""
        if self._by_path.pop(promise.ref.path, None) is None:
            return False
        promise.tell_watchers()
        return True

    def all(self) -> list[Promise]:
        """Return the promises that wait."""
        return list(self._by_path.values())

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._node.loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._node.loop.time()
        for promise in self.all():
            if promise.deadline <= now and self.remove(promise):
                promise.expire()
        if self._by_path:
            self._arm(min(promise.deadline for promise in self._by_path.values()))

    def close(self, error: BaseException) -> None:
        """Fail all promises with *error*."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        promises, self._by_path = self._by_path, {}
        for promise in promises.values():
            promise.fail(error)
