"""Messages between cells beside the mailbox (Akka's `SystemMessage`s): supervision, watching, termination.

They are handled before user messages, and also while the mailbox is suspended. Between processes they travel encoded as
messages do, errors included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from actors.ref import ActorRef
from actors.serialization import message


class SystemMessage:
    """Base of all system messages."""

    __slots__ = ()


@message
class Create(SystemMessage):
    """Make the instance and start it; the first thing that a cell handles."""


@message
class Suspend(SystemMessage):
    """Handle no user messages for now; suspensions are counted."""


@message
class Resume(SystemMessage):
    """Take one suspension back.

    Args:
        cause: the failure that the supervisor has decided to pass over; None when only the supervisor itself goes on.
    """

    cause: BaseException | None


@message
class Recreate(SystemMessage):
    """Restart with a new instance.

    Args:
        cause: why.
        delay_s: how long to wait for the new instance once the old one has gone, in seconds.
    """

    cause: BaseException
    delay_s: float = 0.0


@message
class Terminate(SystemMessage):
    """Stop, children first."""


@message
class Watch(SystemMessage):
    """Tell *watcher* when you have stopped."""

    watcher: ActorRef


@message
class Unwatch(SystemMessage):
    """Do not tell *watcher* any more."""

    watcher: ActorRef


@message
class DeathWatchNotification(SystemMessage):
    """*actor* has stopped: sent to its parent and to its watchers.

    Args:
        actor: who has stopped.
        existence_confirmed: False when there was no such actor.
        address_terminated: whether its process is gone.
    """

    actor: ActorRef
    existence_confirmed: bool = True
    address_terminated: bool = False


@message
class Failed(SystemMessage):
    """To the parent: *child* has failed and waits, suspended, for a directive.

    Args:
        child: the child.
        error: what it raised.
        handling: type name of the message it was handling, or which part of its life.
        trace: the formatted traceback, where the error itself arrives without one; else "".
        escalated: whether the child itself only passes on a failure from below it.
    """

    child: ActorRef
    error: BaseException
    handling: str
    trace: str = ""
    escalated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Perform(SystemMessage):
    """To a cell of the same node: what has come to pass meanwhile, to be dealt with in a turn of its own."""

    action: Callable[[], None]


@message
class AskFailed(SystemMessage):
    """To the temporary ref of an ask: there will be no reply, because of *error*. Too late it is dropped."""

    error: BaseException
