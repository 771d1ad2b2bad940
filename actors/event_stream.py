"""The event stream (Akka's ``EventStream``): events are published by their class, and told to who has subscribed to it.

The stream is the whole system's, in however many processes that runs. Each node keeps the subscriptions that were made
in it, has the others' brought to it (`EventStream.on_change` and `EventStream.replace`), and tells all of them. Classes
are known by name, so that a node may carry subscriptions to classes which it has never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from actors.errors import MailboxFull
from actors.serialization import name_of

if TYPE_CHECKING:
    from actors.ref import ActorRef

Table = Mapping["ActorRef", frozenset[str]]
"""To which classes (by name) each subscriber has subscribed."""

_CACHED_TYPES = 1000


def class_names(kind: type) -> tuple[str, ...]:
    """The names of a class and of all that it is derived from: an event of this class is one of each of those."""
    return tuple(name_of(base) for base in kind.__mro__)


class Subscriptions:
    """Who has subscribed to what. Pure."""

    def __init__(self) -> None:
        self._table: dict[ActorRef, frozenset[str]] = {}

    def add(self, ref: ActorRef, name: str) -> bool:
        """Subscribe; False when that was so already."""
        names = self._table.get(ref, frozenset())
        if name in names:
            return False
        self._table[ref] = names | {name}
        return True

    def remove(self, ref: ActorRef, name: str | None = None) -> bool:
        """End one subscription, or all of *ref*'s; False when there was none."""
        names = self._table.get(ref, frozenset())
        left = frozenset() if name is None else names - {name}
        if left:
            self._table[ref] = left
        else:
            self._table.pop(ref, None)
        return left != names

    @property
    def table(self) -> Table:
        """A copy, in the order in which the subscribers came."""
        return dict(self._table)

    def matching(self, names: frozenset[str]) -> list[ActorRef]:
        """Whoever has subscribed to one of these classes, each once."""
        return [ref for ref, wanted in self._table.items() if not names.isdisjoint(wanted)]

    def __contains__(self, ref: object) -> bool:
        return ref in self._table


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
        """Tell *ref* all events of the class *kind* and of classes derived from it, each once. Idempotent."""
        self._run(self._subscribe, ref, _expect_class(kind))

    def unsubscribe(self, ref: ActorRef, kind: type | None = None) -> None:
        """End the subscription to exactly that class, or all of them. Idempotent."""
        self._run(self._unsubscribe, ref, None if kind is None else _expect_class(kind))

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

    def _subscribe(self, ref: ActorRef, name: str) -> None:
        known = ref in self._here
        if self._here.add(ref, name):
            self._changed()
            if not known and self._on_subscriber is not None:
                self._on_subscriber(ref)

    def _unsubscribe(self, ref: ActorRef, name: str | None) -> None:
        if self._here.remove(ref, name):
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
        here = self._here.matching(names)
        elsewhere = (ref for ref, wanted in self._elsewhere.items() if not names.isdisjoint(wanted))
        subscribers = tuple(dict.fromkeys((*here, *elsewhere)))
        if len(self._by_type) >= _CACHED_TYPES:  # classes made on the fly must not be kept alive for ever
            self._by_type.clear()
        self._by_type[kind] = subscribers
        return subscribers


def _at_once(function: Callable[..., object], *args: Any) -> None:
    function(*args)


def _expect_class(kind: Any) -> str:
    if not isinstance(kind, type):
        raise TypeError(f"events are subscribed to by their class; {kind!r} is none")
    return name_of(kind)
