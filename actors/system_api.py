"""Interface of every actor system, with several processes or in one thread (Akka's `ActorSystem`)."""

from __future__ import annotations

import abc
import concurrent.futures
import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from actors.address import ActorAddress
from actors.core.system_messages import Terminate
from actors.errors import ActorSystemError
from actors.ref import ActorRef

if TYPE_CHECKING:
    from actors.core.node import Node
    from actors.event_stream import EventStream
    from actors.props import Props
    from actors.rpc.gateway import Ask
    from actors.selection import ActorSelection

P = ParamSpec("P")
T = TypeVar("T")


class ActorSystemBase(abc.ABC):
    """An actor system, usable from any thread; as a context manager it terminates at the end."""

    node: Node
    """The node of this process."""

    @abc.abstractmethod
    def terminate(self, timeout_s: float = 10.0) -> None:
        """Stop all actors, children first, then the system's processes, and wait until all have ended. Idempotent.

        Args:
            timeout_s: seconds until actors that still run are cancelled.
        """

    # ------------------------------------------------------------------ the same for all

    @property
    def name(self) -> str:
        """The system's name."""
        return self.node.name

    @property
    def address(self) -> ActorAddress:
        """Address of the system; its path is ``/user``."""
        return ActorAddress(*self.node.origin, "/user")

    @property
    def dead_letters(self) -> ActorRef:
        """The ref ``/deadLetters``: every message to it becomes a dead letter."""
        return self.node.dead_letters

    @property
    def dead_letters_count(self) -> int:
        """Number of dead letters so far in this process."""
        return self.node.dead_letters_count

    @property
    def event_stream(self) -> EventStream:
        """The system's event stream."""
        return self.node.event_stream

    @property
    def when_terminated(self) -> concurrent.futures.Future[None]:
        """Future that is done when all actors of the system have stopped."""
        return self.node.terminated

    def actor_of(self, props: Props, name: str | None = None) -> ActorRef:
        """Create a top-level actor, below ``/user``, and return its ref at once; see `ActorContext.actor_of`.

        Raises:
            InvalidActorName: the name is malformed or taken.
            ActorSystemError: the system is terminating, or this is not the process of its root node.
        """
        root = self.node.root
        if root is None:
            raise ActorSystemError(
                "top-level actors are made in the process of the ActorSystem; make a child with context.actor_of, "
                "or have an actor of that process make one"
            )
        return self.on_loop(root.user.make_child, props, name)

    def actor_selection(self, path: str) -> ActorSelection:
        """Select the actors that match *path*: an absolute path or a full address, with ``*`` and ``?``."""
        return self.node.select(path, self.node.ref("/", 0))

    def stop(self, ref: ActorRef) -> None:
        """Stop an actor after its current message."""
        root = self.node.root
        if root is None:
            self.node.post(self.node.send_system, ref, Terminate())
        else:
            self.on_loop(root.user.stop, ref)

    def graceful_stop(self, ref: ActorRef, timeout_s: float | None = None) -> Ask[bool]:
        """Stop an actor after the messages that are in its mailbox; the ask ends when it has stopped.

        The ask returns True, also when there was no such actor. It ends in `AskTimeout` after *timeout_s* seconds
        (default: the system's ask timeout).
        """
        return self.node.graceful_stop(ref, timeout_s)

    def on_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on the thread of the node's loop, wait for it, and return its result.

        Raises:
            ActorSystemError: the system has been terminated.
        """
        if threading.get_ident() == self.node.thread:
            return function(*args, **kwargs)
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        if not self.node.post(_call, future, functools.partial(function, *args, **kwargs)):
            raise ActorSystemError(f"the actor system {self.name} has been terminated")
        while True:
            try:
                return future.result(1.0)
            except TimeoutError:
                if not future.done() and self.node.is_closed:
                    raise ActorSystemError(f"the actor system {self.name} was terminated meanwhile") from None
                if future.done():
                    return future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()


def _call(future: concurrent.futures.Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
