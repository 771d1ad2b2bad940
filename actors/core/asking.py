"""Asks of a node: promises, from any thread (Akka's `ask` and `gracefulStop` patterns)."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from actors.core.dispatcher import Dispatcher
from actors.core.promise import Promise, Promises, SubscriberWatch, TerminationPromise
from actors.core.settings import CoreSettings
from actors.core.system_messages import AskFailed, SystemMessage, Watch
from actors.errors import RecipientTerminated
from actors.messages import PoisonPill
from actors.ref import ActorRef, Origin, Target, current_cell
from actors.rpc.gateway import Ask
from actors.selection import SelectionMessage
from actors.serialization import Serializer

if TYPE_CHECKING:
    from actors.core.node import Node


class Asking(Dispatcher, abc.ABC):
    """The part of a node that asks.

    Args:
        loop: see `Dispatcher`.
        turn_budget_s: see `Dispatcher`.
        origin: address of the actor system.
        settings: how its actors behave.
    """

    ask_type: type[Ask[Any]] = Ask
    """What asks of the loop's own thread are made of."""

    promises: Promises
    serializer: Serializer

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_budget_s: float | None,
        origin: Origin,
        settings: CoreSettings,
    ) -> None:
        super().__init__(loop, turn_budget_s)
        self.origin = origin
        self.settings = settings

    @property
    def as_node(self) -> Node:
        """This, as others know it: there are no other askings than nodes."""
        return cast("Node", self)

    @abc.abstractmethod
    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message."""

    @abc.abstractmethod
    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message."""

    @abc.abstractmethod
    def undeliverable(
        self, ref: ActorRef, message: Any, sender: ActorRef | None, error: BaseException | None = None
    ) -> None:
        """A message has no recipient."""

    @abc.abstractmethod
    def watching(self, ref: ActorRef, watcher: Target) -> None:
        """*watcher* is to be told when the process of *ref* ends."""

    @abc.abstractmethod
    def unwatching(self, ref: ActorRef, watcher: Target) -> None:
        """*watcher* does not want to be told any more."""

    def ask(self, ref: ActorRef, message: Any, timeout_s: float | None = None) -> Ask[Any]:
        """See `ActorRef.ask`; from any thread."""
        cell = current_cell.get()
        return self._promised(functools.partial(self._ask, ref, message, None if cell is None else cell.ref), timeout_s)

    def graceful_stop(self, ref: ActorRef, timeout_s: float | None = None, message: Any = None) -> Ask[bool]:
        """Stop an actor and wait for its end; from any thread. Ends in True, or `AskTimeout`.

        Args:
            ref: the actor.
            timeout_s: for how long to wait, in seconds; default: the system's ask timeout.
            message: what makes it stop; default: `PoisonPill`.
        """
        return self._promised(functools.partial(self._stop_gracefully, ref, message or PoisonPill()), timeout_s)

    def _promised(self, begin: Callable[[Any, float], None], timeout_s: float | None) -> Ask[Any]:
        if timeout_s is None:
            timeout_s = self.settings.ask_timeout_s
        if not timeout_s > 0:
            raise ValueError(f"the time allowed for an answer is a positive number of seconds, not {timeout_s!r}")
        if threading.get_ident() == self.thread:
            future = self.loop.create_future()
            begin(future, timeout_s)
            return self.ask_type(future, self.loop, timeout_s)
        promised: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if not self.post(begin, promised, timeout_s):
            promised.set_exception(self._is_over())
        return Ask(promised, self.loop, timeout_s)

    def _is_over(self) -> RecipientTerminated:
        return RecipientTerminated(f"the actor system {self.origin.system} has been terminated")

    def _ask(self, ref: ActorRef, message: Any, asker: ActorRef | None, future: Any, timeout_s: float) -> None:
        if self.is_closed:
            future.set_exception(self._is_over())
            return
        innermost = message
        while type(innermost) is SelectionMessage:
            innermost = innermost.message
        promise = Promise(self.as_node, future, ref, type(innermost).__qualname__, timeout_s, asker)
        try:
            self.send(ref, message, promise.ref)
        except Exception as error:  # a full mailbox, or a message that cannot travel
            if self.promises.remove(promise):
                promise.fail(error)

    def _stop_gracefully(self, ref: ActorRef, message: Any, future: Any, timeout_s: float) -> None:
        if self.is_closed:
            future.set_result(True)
            return
        promise = TerminationPromise(self.as_node, future, ref, type(message).__qualname__, timeout_s)
        self.watching(ref, promise)
        self.send_system(ref, Watch(promise.ref))
        self.send(ref, message, None)

    def watch_subscriber(self, ref: ActorRef) -> None:
        """See that the end of a subscriber to the event stream is noticed; of an actor of this node it is anyway."""
        if ref._target is None and not self.is_closed:
            watch = SubscriberWatch(self.as_node, ref)
            self.watching(ref, watch)
            self.send_system(ref, Watch(watch.ref))

    def fail_ask(self, asker: ActorRef, error: BaseException) -> None:
        """Tell an asker that there will be no reply; it sees the error as if it came from another process."""
        promise = self.promises.get(asker.path)
        if promise is None:
            if asker._target is None:  # it is of another node; one of this node waits no more
                self.send_system(asker, AskFailed(error))
        elif promise.ref == asker:
            told = error
            if error.__traceback__ is not None:  # it was raised by the handler, and is not the asker's to raise again
                told = self.serializer.loads(self.serializer.dumps(error))
                told.__cause__ = error
            promise.deliver_system(AskFailed(told))

    def ask_time_left(self, asker: ActorRef) -> float | None:
        """For how many seconds an asker of this node waits yet; None for one of another node."""
        promise = self.promises.get(asker.path)
        return None if promise is None else max(promise.deadline - self.loop.time(), 0.0)
