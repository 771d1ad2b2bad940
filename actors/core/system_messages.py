"""Messages between cells that bypass the mailbox (Akka's `SystemMessage`s): supervision, watching, termination.

A cell handles them before user messages, also while its mailbox is suspended. Between processes they travel encoded
like messages, including their errors.
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
    """Create the instance and start it; the first message that a cell handles."""


@message
class Suspend(SystemMessage):
    """Stop handling user messages; the cell counts suspensions."""


@message
class Resume(SystemMessage):
    """Undo one suspension.

    Args:
        cause: the failure that the supervisor ignores; None when the supervisor itself resumes.
    """

    cause: BaseException | None


@message
class Recreate(SystemMessage):
    """Restart with a new instance.

    Args:
        cause: the failure.
        delay_s: least seconds from this message to the creation of the new instance.
    """

    cause: BaseException
    delay_s: float = 0.0


@message
class Terminate(SystemMessage):
    """Stop, children first."""


@message
class Watch(SystemMessage):
    """Notify *watcher* when the recipient has stopped."""

    watcher: ActorRef


@message
class Unwatch(SystemMessage):
    """Stop notifying *watcher*."""

    watcher: ActorRef


@message
class DeathWatchNotification(SystemMessage):
    """Notice to the parent and the watchers that *actor* has stopped.

    Args:
        actor: the actor that has stopped.
        existence_confirmed: False when there was no such actor.
        address_terminated: whether its process has ended.
    """

    actor: ActorRef
    existence_confirmed: bool = True
    address_terminated: bool = False


@message
class Failed(SystemMessage):
    """To the parent: *child* has failed and waits, suspended, for a directive.

    Args:
        child: the child.
        error: the error that it raised.
        handling: type name of the message that it was handling, or the part of its life cycle.
        trace: the formatted traceback if the error itself arrives without one, else "".
        escalated: whether the child escalates the failure of one of its own children.
    """

    child: ActorRef
    error: BaseException
    handling: str
    trace: str = ""
    escalated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Perform(SystemMessage):
    """To a cell of the same node: run *action* in a turn of the cell."""

    action: Callable[[], None]


@message
class AskFailed(SystemMessage):
    """To the temporary ref of an ask: it ends with *error* instead of a reply. After its end this is ignored."""

    error: BaseException
