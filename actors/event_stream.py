"""The event stream (Akka's ``EventStream``): it delivers each event to the subscribers of the event's class.

One stream serves the whole system, over all its processes. Each node keeps the subscriptions made in it and receives
those of the other nodes (`EventStream.on_change` and `EventStream.replace`). It delivers an event to all of them.
Subscriptions name classes by text, so a node can hold subscriptions to classes that it has never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from actors.errors import MailboxFull
from actors.ref import ActorRef
from actors.serialization import name_of

Table = Mapping[ActorRef, tuple[str, ...]]
"""The names of the classes to which each subscriber has subscribed. A ``-`` precedes a class that it then left out.

For an event, the last entry counts that names its class or one of that class's bases.
"""

_CACHED_TYPES = 1000


def class_names(kind: type) -> tuple[str, ...]:
    """Return the names of a class and of all its bases. An event of the class matches a subscription to any of them."""
    return tuple(name_of(base) for base in kind.__mro__)


class _Entry(NamedTuple):
    """A class by its name, with the names of the class and all its bases."""

    name: str
    bases: frozenset[str]
    wanted: bool

    def __str__(self) -> str:
        return self.name if self.wanted else f"-{self.name}"


class Subscriptions:
    """The subscribers and the classes they have subscribed to, given as `class_names`. Pure."""

    def __init__(self) -> None:
        self._table: dict[ActorRef, tuple[_Entry, ...]] = {}

    def add(self, ref: ActorRef, names: tuple[str, ...]) -> bool:
        """Subscribe; return False when *ref* was subscribed already."""
        entries = self._table.get(ref, ())
        if all(entry.wanted for entry in entries) and any(entry.name == names[0] for entry in entries):
            return False
        return self._set(ref, (*_others(entries, names), _Entry(names[0], frozenset(names), True)))

    def remove(self, ref: ActorRef, names: tuple[str, ...] | None = None) -> bool:
        """Unsubscribe from a class and all that is derived from it, or from everything.

        Returns:
            False when nothing changed.
        """
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
        """A copy of the table, in the order of subscription."""
        return {ref: tuple(map(str, entries)) for ref, entries in self._table.items()}

    def matching(self, names: frozenset[str]) -> list[ActorRef]:
        """Return the subscribers of an event of a class with these names, each once."""
        return _matching(self.table, names)

    def __contains__(self, ref: object) -> bool:
        return ref in self._table


def _others(entries: tuple[_Entry, ...], names: tuple[str, ...]) -> tuple[_Entry, ...]:
    """Return the entries that a new entry for the class *names* does not replace."""
    return tuple(entry for entry in entries if names[0] not in entry.bases)


def _matching(table: Table, names: frozenset[str]) -> list[ActorRef]:
    found = []
    for ref, entries in table.items():
        last = next((entry for entry in reversed(entries) if entry.removeprefix("-") in names), "-")
        if not last.startswith("-"):
            found.append(ref)
    return found


class EventStream:
    """Event stream of a node. Any thread may subscribe, unsubscribe and publish if *run* allows that.

    Args:
        run: runs a function with its arguments on the node's loop; default: at once, in the caller's thread.
        refused: called with subscriber, event and error when a subscriber's mailbox refuses an event.
        on_subscriber: called with each new subscriber of this node, so that the node watches it.
        on_change: called with the new table whenever this node's subscriptions change, to inform the other nodes.
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
        """Deliver all events of the class *kind* and of classes derived from it to *ref*, each once. Idempotent.

        Raises:
            TypeError: *ref* is not a ref, or *kind* is not a class.
        """
        self._run(self._subscribe, _expect_ref(ref), _expect_class(kind))

    def subscribe_by_name(self, ref: ActorRef, names: tuple[str, ...]) -> None:
        """Subscribe to a class by its `class_names`; this process need not have imported it. See `subscribe`."""
        self._run(self._subscribe, _expect_ref(ref), names)

    def unsubscribe(self, ref: ActorRef, kind: type | None = None) -> None:
        """Stop delivering events of the class *kind* and of classes derived from it to *ref*. Idempotent.

        Without *kind* it gets no events at all. If *ref* has subscribed to a base class of *kind*, it still gets the
        other events of that base class (as with Akka's).

        Raises:
            TypeError: *ref* is not a ref, or *kind* is not a class.
        """
        self._run(self._unsubscribe, _expect_ref(ref), None if kind is None else _expect_class(kind))

    def publish(self, event: Any) -> None:
        """Deliver *event* to its subscribers, without a sender."""
        self._run(self._publish, event)

    def replace(self, elsewhere: Table) -> None:
        """Replace the subscriptions made in the other nodes; call it on the loop."""
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
            except MailboxFull as error:  # a slow subscriber must not affect the publisher and the other subscribers
                if self._refused is not None:
                    self._refused(ref, event, error)

    def _remember(self, kind: type) -> tuple[ActorRef, ...]:
        names = frozenset(class_names(kind))
        subscribers = tuple(dict.fromkeys((*self._here.matching(names), *_matching(self._elsewhere, names))))
        if len(self._by_type) >= _CACHED_TYPES:  # the cache must not keep classes alive that were made on the fly
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
