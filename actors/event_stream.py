"""The event stream (Akka's ``EventStream``): events are published by their class, and told to who has subscribed to it.

The stream is the whole system's, in however many processes that runs. Each node keeps the subscriptions that were made
in it, has the others' brought to it (`EventStream.on_change` and `EventStream.replace`), and tells all of them. Classes
are known by name, so that a node may carry subscriptions to classes which it has never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from actors.errors import MailboxFull
from actors.ref import ActorRef
from actors.serialization import name_of

Table = Mapping[ActorRef, tuple[str, ...]]
"""The classes (by name) to which each subscriber has subscribed, and behind a ``-`` those that it has then left out.

For an event the last entry counts that names its class or one of that class's bases.
"""

_CACHED_TYPES = 1000


def class_names(kind: type) -> tuple[str, ...]:
    """The names of a class and of all that it is derived from: an event of this class is one of each of those."""
    return tuple(name_of(base) for base in kind.__mro__)


class _Entry(NamedTuple):
    """A class by its name, with the names of all that it is derived from, itself included."""

    name: str
    bases: frozenset[str]
    wanted: bool

    def __str__(self) -> str:
        return self.name if self.wanted else f"-{self.name}"


class Subscriptions:
    """The subscribers and the classes they have subscribed to. Pure. Classes are given by `class_names`."""

    def __init__(self) -> None:
        self._table: dict[ActorRef, tuple[_Entry, ...]] = {}

    def add(self, ref: ActorRef, names: tuple[str, ...]) -> bool:
        """Subscribe; False when that was so already."""
        entries = self._table.get(ref, ())
        if all(entry.wanted for entry in entries) and any(entry.name == names[0] for entry in entries):
            return False
        return self._set(ref, (*_others(entries, names), _Entry(names[0], frozenset(names), True)))

    def remove(self, ref: ActorRef, names: tuple[str, ...] | None = None) -> bool:
        """Unsubscribe from a class and all that is derived from it, or from everything; False when that was so."""
        if names is None:
            return self._set(ref, ())
        left = _others(self._table.get(ref, ()), names)
        if any(entry.wanted for entry in left):  # its class may have a part in common with any of them
            return self._set(ref, (*left, _Entry(names[0], frozenset(names), False)))
        return self._set(ref, ())

    def _set(self, ref: ActorRef, entries: tuple[_Entry, ...]) -> bool:
        before = self._table.get(ref, ())
        if entries:
            self._table[ref] = entries
        else:
            self._table.pop(ref, None)
        return entries != before

    @property
    def table(self) -> Table:
        """A copy, in the order in which the subscribers came."""
        return {ref: tuple(map(str, entries)) for ref, entries in self._table.items()}

    def matching(self, names: frozenset[str]) -> list[ActorRef]:
        """Return the subscribers of an event of a class with these names, each once."""
        return _matching(self.table, names)

    def __contains__(self, ref: object) -> bool:
        return ref in self._table


def _others(entries: tuple[_Entry, ...], names: tuple[str, ...]) -> tuple[_Entry, ...]:
    """The entries that an entry for the class *names* does not make void."""
    return tuple(entry for entry in entries if names[0] not in entry.bases)


def _matching(table: Table, names: frozenset[str]) -> list[ActorRef]:
    found = []
    for ref, entries in table.items():
        last = next((entry for entry in reversed(entries) if entry.removeprefix("-") in names), "-")
        if not last.startswith("-"):
            found.append(ref)
    return found


class EventStream:
    """Subscribe, unsubscribe, publish: from any thread, if *run* sees to that.

    Args:
        run: runs a function with its arguments on the node's loop; default: at once, here.
        refused: told of subscriber, event and error when a subscriber's mailbox refuses an event.
        on_subscriber: given whoever subscribes in this node and had not before, to see that its end is noticed.
        on_change: given the new table of this node's subscriptions whenever it changes, for the other nodes.
    """

    def __init__(
        self,
        run: Callable[..., object] | None = None,
        refused: Callable[[ActorRef, Any, MailboxFull], None] | None = None,
        on_subscriber: Callable[[ActorRef], None] | None = None,
        on_change: Callable[[Table], None] | None = None,
    ) -> None:
        self._run = run or _at_once
        self._refused = refused
        self._on_subscriber = on_subscriber
        self.on_change = on_change
        self._here = Subscriptions()
        self._elsewhere: Table = {}
        self._by_type: dict[type, tuple[ActorRef, ...]] = {}

    def subscribe(self, ref: ActorRef, kind: type) -> None:
        """Tell *ref* all events of the class *kind* and of classes derived from it, each once. Idempotent.

        Raises:
            TypeError: *ref* is no ref, or *kind* no class.
        """
        self._run(self._subscribe, _expect_ref(ref), _expect_class(kind))

    def subscribe_by_name(self, ref: ActorRef, names: tuple[str, ...]) -> None:
        """As `subscribe`, to a class that need not be known here, given by its `class_names`."""
        self._run(self._subscribe, _expect_ref(ref), names)

    def unsubscribe(self, ref: ActorRef, kind: type | None = None) -> None:
        """Tell *ref* no events of the class *kind* and of classes derived from it any more, or none at all. Idempotent.

        Events of its other base classes, if *ref* has subscribed to one, go on (as with Akka's).

        Raises:
            TypeError: *ref* is no ref, or *kind* no class.
        """
        self._run(self._unsubscribe, _expect_ref(ref), None if kind is None else _expect_class(kind))

    def publish(self, event: Any) -> None:
        """Tell *event* to its subscribers, without a sender."""
        self._run(self._publish, event)

    def replace(self, elsewhere: Table) -> None:
        """The subscriptions made in the other nodes are now these; to be called on the loop."""
        self._elsewhere = dict(elsewhere)
        self._by_type.clear()

    @property
    def table(self) -> Table:
        """The subscriptions made in this node."""
        return self._here.table

    def _subscribe(self, ref: ActorRef, names: tuple[str, ...]) -> None:
        known = ref in self._here
        if self._here.add(ref, names):
            self._changed()
            if not known and self._on_subscriber is not None:
                self._on_subscriber(ref)

    def _unsubscribe(self, ref: ActorRef, names: tuple[str, ...] | None) -> None:
        if self._here.remove(ref, names):
            self._changed()

    def _changed(self) -> None:
        self._by_type.clear()
        if self.on_change is not None:
            self.on_change(self._here.table)

    def _publish(self, event: Any) -> None:
        subscribers = self._by_type.get(type(event))
        if subscribers is None:
            subscribers = self._remember(type(event))
        for ref in subscribers:
            try:
                ref.tell(event, None)
            except MailboxFull as error:  # a slow subscriber is neither the publisher's nor the others' concern
                if self._refused is not None:
                    self._refused(ref, event, error)

    def _remember(self, kind: type) -> tuple[ActorRef, ...]:
        names = frozenset(class_names(kind))
        subscribers = tuple(dict.fromkeys((*self._here.matching(names), *_matching(self._elsewhere, names))))
        if len(self._by_type) >= _CACHED_TYPES:  # classes made on the fly must not be kept alive for ever
            self._by_type.clear()
        self._by_type[kind] = subscribers
        return subscribers


def _at_once(function: Callable[..., object], *args: Any) -> None:
    function(*args)


def _expect_ref(ref: Any) -> ActorRef:
    if not isinstance(ref, ActorRef):
        raise TypeError(f"subscribers are actor refs; {ref!r} is none: pass self_ref, or what actor_of has returned")
    return ref


def _expect_class(kind: Any) -> tuple[str, ...]:
    if not isinstance(kind, type):
        raise TypeError(f"events are subscribed to by their class; {kind!r} is none")
    return class_names(kind)
