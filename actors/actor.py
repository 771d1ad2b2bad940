"""The class that users derive actors from (Akka's `Actor`)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, MutableMapping
from typing import TYPE_CHECKING, Any

from actors.supervision import OneForOneStrategy, SupervisorStrategy

if TYPE_CHECKING:
    from actors.context import ActorContext
    from actors.ref import ActorRef
    from actors.timers import Timers


class Actor:
    """An actor: state that only its own messages touch, one message at a time.

    Derive from it, write `receive`, and create it with `actor_of` (never by calling the class)::

        class Counter(Actor):
            def __init__(self, start: int) -> None:
                self.count = start

            def receive(self, message: Any) -> None:
                match message:
                    case "add":
                        self.count += 1
                    case "get":
                        self.reply(self.count)
                    case _:
                        self.unhandled(message)

    `receive` and the four hooks may be plain or ``async def``. The next message is handled only when the coroutine of
    the present one has ended. A handler that blocks (or computes for long) blocks all actors of its process:
    `ActorContext.run_blocking` takes such work to a thread.

    `context` is there before the constructor runs.
    """

    context: ActorContext
    supervisor_strategy: SupervisorStrategy = OneForOneStrategy()
    """What happens to children that fail; a class attribute or a property."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("receive", "pre_start", "post_stop", "pre_restart", "post_restart"):
            method = vars(cls).get(name)
            if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is a generator function, of which no line would run: "
                    "take the yield out of it; to wait for something, write async def and await"
                )

    def receive(self, message: Any) -> Awaitable[Any] | None:
        """Handle a message. Until it is overridden, all messages are unhandled."""
        self.unhandled(message)
        return None

    def unhandled(self, message: Any) -> None:
        """Called by `receive` for a message that it has no use for.

        An ask gets an `UnhandledMessageError`, and an `UnhandledMessage` is published on the event stream.

        Raises:
            DeathPactError: the message is `Terminated`: who watches another and does not handle its death dies with it.
        """
        self.context.unhandled(message)

    def pre_start(self) -> Awaitable[None] | None:
        """Called before the first message, and by default after each restart; may be a coroutine."""
        return None

    def post_stop(self) -> Awaitable[None] | None:
        """Called when the actor has stopped, its children too, and by default before each restart."""
        return None

    def pre_restart(self, reason: BaseException, message: Any) -> Awaitable[None] | None:
        """Called on the old instance before a restart. By default it stops all children and calls `post_stop`.

        Args:
            reason: why the actor is restarted.
            message: what it was handling when it failed, or None.

        An override that is a coroutine function calls ``super().pre_restart(...)`` and awaits what that returns, if
        anything.
        An error raised here is logged; the restart goes on.
        """
        for child in self.context.children:
            self.context.unwatch(child)
            self.context.stop(child)
        return self.post_stop()

    def post_restart(self, reason: BaseException) -> Awaitable[None] | None:
        """Called on the new instance after a restart, instead of `pre_start`, which it calls by default."""
        return self.pre_start()

    def reply(self, message: Any) -> None:
        """Send *message* to the sender of the message that is being handled; without one it is a dead letter."""
        self.context.reply(message)

    @property
    def self_ref(self) -> ActorRef:
        """The actor's own ref."""
        return self.context.self_ref

    @property
    def sender(self) -> ActorRef:
        """Who sent the message that is being handled; dead letters when nobody did."""
        return self.context.sender

    @property
    def timers(self) -> Timers:
        """Messages to itself after a time."""
        return self.context.timers

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is named after the actor's module; each line begins with the actor's path."""
        return _PathLogger(logging.getLogger(type(self).__module__), {"path": self.context.self_ref.path})


class _PathLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        path = self.extra["path"] if self.extra else ""
        return f"{path}: {msg}", kwargs
