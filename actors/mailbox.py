"""Mailboxes (Akka's ``MailboxType`` and ``MessageQueue``): queues of the messages that wait for an actor.

`Props.with_mailbox` takes a configuration (`UnboundedMailbox` and its like), which may travel to another process.
`MailboxType.create` makes the `Mailbox` there. Mailboxes are pure; only the loop of their node uses them.
"""

from __future__ import annotations

import abc
import enum
import heapq
import typing
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.errors import MailboxFull
from actors.messages import ControlMessage
from actors.serialization import import_object, import_path, message

if TYPE_CHECKING:
    from actors.ref import ActorRef

PriorityKey = Callable[[Any], Any]
"""Maps a message to its priority; the lowest comes first (as with Akka's ``PriorityGenerator``)."""


class Envelope(NamedTuple):
    """A message and its sender."""

    message: Any
    sender: ActorRef | None


@message
class Overflow(enum.Enum):
    """Policy of a bounded mailbox for a message for which it has no room."""

    FAIL = "fail"
    """The mailbox rejects it with `MailboxFull`; in the same process the sender's `tell` raises that."""
    DROP_NEW = "drop-new"
    """The new message becomes a dead letter."""
    DROP_OLD = "drop-old"
    """The oldest message becomes a dead letter instead."""
    BACKPRESSURE = "backpressure"
    """Like `FAIL`; also, the node stops reading connections that bring messages while it is `Mailbox.saturated`."""


class Mailbox(abc.ABC):
    """The messages of one actor."""

    __slots__ = ()

    @abc.abstractmethod
    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        """Add a message; return the messages that the mailbox dropped, which become dead letters.

        Raises:
            MailboxFull: there is no room, and the policy is to fail the sender.
        """

    @abc.abstractmethod
    def put_first(self, envelopes: Sequence[Envelope]) -> None:
        """Put messages that were taken out (unstashed) back in front of the others; the first of them comes next.

        A bounded mailbox accepts them all, because it accepted them before. Control-aware and priority mailboxes put
        them in front of the others of their kind or priority.
        """

    @abc.abstractmethod
    def get(self) -> Envelope | None:
        """Take out the next message; return None when there is none."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def drain(self) -> list[Envelope]:
        """Take out all messages, in the order in which `get` would give them."""
        drained = []
        while (envelope := self.get()) is not None:
            drained.append(envelope)
        return drained

    @property
    def saturated(self) -> bool:
        """Return whether senders should pause: with `Overflow.BACKPRESSURE` from full until half empty."""
        return False

    def when_relieved(self, callback: Callable[[], object]) -> None:
        """Call *callback* once, as soon as the mailbox is not `saturated`. It must not take messages out."""
        callback()


class MailboxType(abc.ABC):
    """Base of the configurations."""

    __slots__ = ()

    @abc.abstractmethod
    def create(self, owner: str = "an actor") -> Mailbox:
        """Return a new mailbox with this configuration.

        Args:
            owner: path of the actor, for error messages.
        """


@message
class UnboundedMailbox(MailboxType):
    """The default: first in, first out, and as many as memory holds (Akka's ``UnboundedMailbox``)."""

    def create(self, owner: str = "an actor") -> Mailbox:
        return _Unbounded()


@message
class BoundedMailbox(MailboxType):
    """First in, first out, at most *capacity* messages (Akka's ``BoundedMailbox``, which blocks the sender's thread).

    Args:
        capacity: number of messages it holds, 1 or more.
        overflow: policy for further messages.

    Raises:
        ValueError: *capacity* is not a positive number.
    """

    capacity: int
    overflow: Overflow = Overflow.FAIL

    def __post_init__(self) -> None:
        if type(self.capacity) is not int or self.capacity < 1:
            raise ValueError(f"the capacity of a mailbox is a positive number of messages, not {self.capacity!r}")

    def create(self, owner: str = "an actor") -> Mailbox:
        kind = _BackPressed if self.overflow is Overflow.BACKPRESSURE else _Bounded
        return kind(self.capacity, self.overflow, owner)


@message
class PriorityMailbox(MailboxType):
    """The message with the lowest priority value first; first in, first out among equals.

    Akka's ``UnboundedStablePriorityMailbox``.

    Args:
        key: maps a message to its priority, or the import path ``module:name`` of such a function. A function without
            an import path (a lambda) works in this process only. It should return a priority for every message:
            an error that it raises reaches the sender from `tell`. Priorities must be comparable with each other.
    """

    key: str | PriorityKey

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", named(self.key))

    def create(self, owner: str = "an actor") -> Mailbox:
        """See `MailboxType.create`.

        Raises:
            SerializationError: the key's import path cannot be imported here.
        """
        return _Priority(import_object(self.key) if isinstance(self.key, str) else self.key)


@message
class ControlAwareMailbox(MailboxType):
    """`ControlMessage`s first, each kind first in, first out (Akka's ``UnboundedControlAwareMailbox``)."""

    def create(self, owner: str = "an actor") -> Mailbox:
        return _ControlAware()


F = typing.TypeVar("F", bound=Callable[..., Any])


def named(function: str | F) -> str | F:
    """Return the import path of a function if it has one, so that a configuration that holds it can travel.

    Raises:
        ValueError: *function* is neither callable nor of the form ``module:name``.
    """
    if isinstance(function, str):
        if ":" not in function:
            raise ValueError(f"{function!r} is not an import path; the form is module:name")
        return function
    if not callable(function):
        raise ValueError(f"{function!r} is neither a function nor the import path of one")
    return import_path(function) or function


_NOTHING: tuple[Envelope, ...] = ()


class _Unbounded(Mailbox):
    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Envelope] = deque()

    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        self._queue.append(envelope)
        return _NOTHING

    def put_first(self, envelopes: Sequence[Envelope]) -> None:
        self._queue.extendleft(reversed(envelopes))

    def get(self) -> Envelope | None:
        return self._queue.popleft() if self._queue else None

    def __len__(self) -> int:
        return len(self._queue)


class _Bounded(_Unbounded):
    __slots__ = ("_capacity", "_overflow", "_owner")

    def __init__(self, capacity: int, overflow: Overflow, owner: str) -> None:
        super().__init__()
        self._capacity = capacity
        self._overflow = overflow
        self._owner = owner

    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        queue = self._queue
        if len(queue) < self._capacity:
            queue.append(envelope)
            return _NOTHING
        match self._overflow:
            case Overflow.DROP_NEW:
                return (envelope,)
            case Overflow.DROP_OLD:
                queue.append(envelope)
                return (queue.popleft(),)
            case _:
                what = type(envelope.message).__name__
                raise MailboxFull(
                    f"the mailbox of {self._owner} is full ({self._capacity} messages), so a message of type {what} is "
                    "refused; send more slowly, or raise its capacity"
                )


class _BackPressed(_Bounded):
    __slots__ = ("_relieved", "_saturated")

    def __init__(self, capacity: int, overflow: Overflow, owner: str) -> None:
        super().__init__(capacity, overflow, owner)
        self._saturated = False
        self._relieved: list[Callable[[], object]] = []

    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        dropped = super().put(envelope)
        self._saturated = self._saturated or len(self._queue) >= self._capacity
        return dropped

    def put_first(self, envelopes: Sequence[Envelope]) -> None:
        super().put_first(envelopes)
        self._saturated = self._saturated or len(self._queue) >= self._capacity

    def get(self) -> Envelope | None:
        envelope = super().get()
        if self._saturated and len(self._queue) <= self._capacity // 2:
            self._saturated = False
            relieved, self._relieved = self._relieved, []
            for callback in relieved:
                callback()
        return envelope

    @property
    def saturated(self) -> bool:
        return self._saturated

    def when_relieved(self, callback: Callable[[], object]) -> None:
        if self._saturated:
            self._relieved.append(callback)
        else:
            callback()


class _Priority(Mailbox):
    __slots__ = ("_back", "_front", "_heap", "_key")

    def __init__(self, key: PriorityKey) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, Envelope]] = []
        # Never twice the same, so that messages of equal priority differ before their envelopes would be compared.
        self._back = 0
        self._front = 0

    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        self._back += 1
        heapq.heappush(self._heap, (self._key(envelope.message), self._back, envelope))
        return _NOTHING

    def put_first(self, envelopes: Sequence[Envelope]) -> None:
        self._front -= len(envelopes)
        for number, envelope in enumerate(envelopes, self._front):
            heapq.heappush(self._heap, (self._key(envelope.message), number, envelope))

    def get(self) -> Envelope | None:
        return heapq.heappop(self._heap)[2] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)


class _ControlAware(Mailbox):
    __slots__ = ("_control", "_others")

    def __init__(self) -> None:
        self._control: deque[Envelope] = deque()
        self._others: deque[Envelope] = deque()

    def put(self, envelope: Envelope) -> Sequence[Envelope]:
        (self._control if isinstance(envelope.message, ControlMessage) else self._others).append(envelope)
        return _NOTHING

    def put_first(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in reversed(envelopes):
            queue = self._control if isinstance(envelope.message, ControlMessage) else self._others
            queue.appendleft(envelope)

    def get(self) -> Envelope | None:
        queue = self._control or self._others
        return queue.popleft() if queue else None

    def __len__(self) -> int:
        return len(self._control) + len(self._others)
