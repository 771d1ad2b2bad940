"""Routers (Akka's ``akka.routing``): they select the routees of a message, and forward it.

`RoundRobin` and its like are configurations that may travel to another process. `RoutingLogic.create` makes the
`Selector` that keeps their state (pure). `Pool` and `Group` define the routees.

A router is a `RouterActor`. Unlike Akka's it is an ordinary actor: messages pass through its mailbox on their way to
the routees. Its props place it, and the routees of a pool run in the same process.
"""

from __future__ import annotations

import abc
import asyncio
import bisect
import enum
import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from actors.actor import Actor
from actors.core.cell import Cell
from actors.errors import AskTimeout, MailboxFull
from actors.mailbox import named
from actors.messages import (
    AddRoutee,
    AdjustPoolSize,
    Broadcast,
    GetRoutees,
    PoisonPill,
    RemoveRoutee,
    Routees,
    Terminated,
)
from actors.props import Props
from actors.ref import ActorRef, current_cell
from actors.rpc.gateway import Ask
from actors.selection import is_pattern, parse_selection
from actors.serialization import import_object, message
from actors.supervision import OneForOneStrategy, SupervisorStrategy, escalating_decider

R = TypeVar("R", bound=Hashable)

Sizes = Callable[[Any], int | None]
"""Returns the number of messages that wait for a routee, including the one that it handles; None when unknown."""


class Selector(abc.ABC, Generic[R]):
    """Selects routees; keeps the state of a routing logic."""

    @abc.abstractmethod
    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        """Return the routees that get *message*; none when there are no routees."""


class RoutingLogic(abc.ABC):
    """Base of the configurations."""

    __slots__ = ()

    @abc.abstractmethod
    def create(self, sizes: Sizes) -> Selector[Any]:
        """Return a selector with this logic.

        Args:
            sizes: returns the number of messages that wait for a routee.
        """


@message
class RoundRobin(RoutingLogic):
    """Sends to each routee in turn (Akka's ``RoundRobinRoutingLogic``)."""

    def create(self, sizes: Sizes) -> Selector[Any]:
        return _RoundRobin()


@message
class Random(RoutingLogic):
    """Sends to a random routee (Akka's ``RandomRoutingLogic``).

    Args:
        seed: makes the choices repeatable.
    """

    seed: int | None = None

    def create(self, sizes: Sizes) -> Selector[Any]:
        return _Random(self.seed)


@message
class SmallestMailbox(RoutingLogic):
    """Sends to the routee with the fewest waiting messages (Akka's ``SmallestMailboxRoutingLogic``).

    Equal routees take turns. Routees of other processes come last, because their mailboxes are not visible here.
    """

    def create(self, sizes: Sizes) -> Selector[Any]:
        return _SmallestMailbox(sizes)


@message
class BroadcastAll(RoutingLogic):
    """Sends to all routees (Akka's ``BroadcastRoutingLogic``)."""

    def create(self, sizes: Sizes) -> Selector[Any]:
        return _All()


@message
class ScatterGatherFirstCompleted(RoutingLogic):
    """Sends to all routees; the sender gets the first reply, and the router drops the others.

    Akka's ``ScatterGatherFirstCompletedRoutingLogic``.

    Args:
        within_s: seconds without a reply after which the sender gets ``Failure(AskTimeout)``.

    Raises:
        ValueError: *within_s* is not more than 0.
    """

    within_s: float

    def __post_init__(self) -> None:
        if not self.within_s > 0:
            raise ValueError(f"within_s is a time in seconds, more than 0, not {self.within_s!r}")

    def create(self, sizes: Sizes) -> Selector[Any]:
        return _All()


@message
class ConsistentHash(RoutingLogic):
    """Sends messages with the same key to the same routee (Akka's ``ConsistentHashingRoutingLogic``).

    When routees are added or removed, only messages of those routees move.

    Args:
        key: maps a message to its key, or the import path ``module:name`` of such a function. Keys are text, bytes,
            numbers, enum members, None, or tuples of these. A function without an import path (a lambda) works in this
            process only.
        virtual_nodes: number of places that each routee has on the ring; more places spread messages more evenly.

    Raises:
        ValueError: *virtual_nodes* is not a positive number, or *key* is not a function.
    """

    key: str | Callable[[Any], Any]
    virtual_nodes: int = 10

    def __post_init__(self) -> None:
        if type(self.virtual_nodes) is not int or self.virtual_nodes < 1:
            raise ValueError(f"virtual_nodes is a positive number, not {self.virtual_nodes!r}")
        object.__setattr__(self, "key", named(self.key))

    def create(self, sizes: Sizes) -> Selector[Any]:
        """See `RoutingLogic.create`.

        Raises:
            SerializationError: the key's import path cannot be imported here.
        """
        return _ConsistentHash(import_object(self.key) if isinstance(self.key, str) else self.key, self.virtual_nodes)


class RouterConfig(abc.ABC):
    """Base of `Pool` and `Group`."""

    __slots__ = ()

    logic: RoutingLogic


@message
class Pool(RouterConfig):
    """A router that creates its routees as its children (Akka's ``Pool``).

    It removes routees that stop, and stops when the last one has stopped.

    Args:
        size: number of routees at the start, 1 or more.
        logic: the routing logic.
        strategy: the strategy with which the router supervises them. By default failures escalate (as in Akka), so the
            router's own supervisor decides; a restart of the router then restarts all routees.

    Raises:
        ValueError: *size* is not a positive number, or an argument has the wrong type.
    """

    size: int
    logic: RoutingLogic
    strategy: SupervisorStrategy | None = None

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"the size of a pool is a positive number of routees, not {self.size!r}")
        _expect_logic(self.logic)
        if self.strategy is not None and not isinstance(self.strategy, SupervisorStrategy):
            raise ValueError(f"the strategy of a pool is a SupervisorStrategy or None, not {self.strategy!r}")

    @property
    def supervisor_strategy(self) -> SupervisorStrategy:
        """The strategy, or the default one."""
        return OneForOneStrategy(escalating_decider) if self.strategy is None else self.strategy


@message
class Group(RouterConfig):
    """A router for actors that exist independently of it (Akka's ``Group``).

    Args:
        paths: their paths, or full addresses; the present incarnation at each path gets the messages.
        logic: the routing logic.

    Raises:
        ValueError: *paths* is not a collection of actor paths without wildcards, or *logic* is not a routing logic.
    """

    paths: Iterable[str]
    logic: RoutingLogic

    def __post_init__(self) -> None:
        paths = None if isinstance(self.paths, str) else tuple(self.paths)
        if paths is None or not all(isinstance(path, str) for path in paths):
            raise ValueError(f"the paths of a group are a list of texts, not {self.paths!r}")
        for path in paths:
            if any(is_pattern(element) for element in parse_selection(path).elements):
                raise ValueError(f"the paths of a group name one actor each; {path!r} has wildcards")
        object.__setattr__(self, "paths", paths)
        _expect_logic(self.logic)


def _expect_logic(logic: Any) -> None:
    if not isinstance(logic, RoutingLogic):
        raise ValueError(f"{logic!r} is not a routing logic; give an instance, RoundRobin() for example")


class _RoundRobin(Selector[R]):
    def __init__(self) -> None:
        self._next = 0

    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        if not routees:
            return ()
        position = self._next % len(routees)
        self._next = position + 1
        return (routees[position],)


class _Random(Selector[R]):
    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)  # noqa: S311  it spreads load, and guards nothing

    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        return (self._random.choice(routees),) if routees else ()


class _SmallestMailbox(Selector[R]):
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._next = 0

    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        if not routees:
            return ()
        start = self._next % len(routees)
        best, best_size = start, float("inf")
        for offset in range(len(routees)):
            position = (start + offset) % len(routees)
            size = self._sizes(routees[position])
            if size is not None and size < best_size:
                best, best_size = position, size
                if size == 0:
                    break
        self._next = best + 1
        return (routees[best],)


class _All(Selector[R]):
    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        return routees


class _ConsistentHash(Selector[R]):
    def __init__(self, key: Callable[[Any], Any], virtual_nodes: int) -> None:
        self._key = key
        self._virtual_nodes = virtual_nodes
        self._routees: tuple[R, ...] = ()
        self._points: list[int] = []
        self._owners: list[R] = []

    def select(self, message: Any, routees: tuple[R, ...]) -> Sequence[R]:
        if not routees:
            return ()
        if routees is not self._routees and routees != self._routees:
            self._build(routees)
        position = bisect.bisect_left(self._points, _point(key_bytes(self._key(message))))
        return (self._owners[position % len(self._owners)],)

    def _build(self, routees: tuple[R, ...]) -> None:
        # By name, without the incarnation: an actor that replaces a routee gets the same messages.
        names = ((str(routee).partition("#")[0], routee) for routee in routees)
        ring = sorted(
            (
                (_point(f"{name}#{number}".encode()), name, routee)
                for name, routee in names
                for number in range(self._virtual_nodes)
            ),
            key=lambda place: place[:2],
        )
        self._routees = routees
        self._points = [point for point, _, _ in ring]
        self._owners = [routee for _, _, routee in ring]


def _point(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def key_bytes(key: Any) -> bytes:
    """Return a key as bytes that are the same in every process (unlike `hash`).

    Raises:
        TypeError: the type of *key* is not allowed.
    """
    if isinstance(key, enum.Enum):
        return f"e{type(key).__qualname__}.{key.name}".encode()
    if key is None or isinstance(key, (int, float)):
        return repr(key).encode()
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, tuple):
        parts = [key_bytes(part) for part in key]
        return b"t" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    raise TypeError(
        f"a hash key is text, bytes, a number, an enum member, None or a tuple of such, not {type(key).__name__}"
    )


def routed(props: Props) -> Props:
    """Return the props of the actor to create: those of a router if *props* have one, else *props* themselves.

    Mailbox and throughput in the props of a pool apply to its routees; the router's own mailbox is unbounded.
    """
    if props.router is None:
        return props
    return Props(RouterActor, RouterState(props.router, props.local()._with(router=None))).local()


class RouterState:
    """State that a router keeps over restarts.

    Args:
        config: the configuration of the router.
        routee_props: the props of the routees of a pool.
    """

    def __init__(self, config: RouterConfig, routee_props: Props) -> None:
        self.config = config
        self.routee_props = routee_props
        self.routees: tuple[ActorRef, ...] = ()
        self.selector: Selector[ActorRef] = config.logic.create(mailbox_size)
        self.is_started = False


class RouterActor(Actor):
    """Forwards messages to routees, which see the original sender.

    Args:
        state: state that the next instance gets after a restart.
    """

    def __init__(self, state: RouterState) -> None:
        self._state = state

    @property
    def supervisor_strategy(self) -> SupervisorStrategy:  # type: ignore[override]
        """Strategy of the pool."""
        config = self._state.config
        return config.supervisor_strategy if isinstance(config, Pool) else Actor.supervisor_strategy

    def pre_start(self) -> None:
        """Create or find the routees at the first start."""
        state = self._state
        if state.is_started:
            return
        state.is_started = True
        if isinstance(state.config, Pool):
            self._grow(state.config.size)
        elif isinstance(state.config, Group):
            select = self.context.actor_selection
            state.routees = tuple(dict.fromkeys(select(path).anchor for path in state.config.paths))

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        """Keep the routees; they restart with the router (as in Akka) instead of stopping."""

    def receive(self, message: Any) -> None:
        """Route a message, or carry out a management message."""
        state = self._state
        match message:
            case Broadcast(inner):
                self._forward(inner, state.routees)
            case GetRoutees():
                self.reply(Routees(list(state.routees)))
            case AddRoutee(ref):
                self._add([self.context.watch(ref)])
            case RemoveRoutee(ref):
                self._dismiss([ref])
                self._stop_if_empty()
            case AdjustPoolSize(change):
                self._adjust(message, change)
            case Terminated(actor):
                self._remove([actor])
                self._stop_if_empty()
            case _:
                self._route(message)

    # ------------------------------------------------------------------ messages

    def _route(self, message: Any) -> None:
        state = self._state
        chosen = state.selector.select(message, state.routees)
        logic = state.config.logic
        sender = self._sender()
        if isinstance(logic, ScatterGatherFirstCompleted) and chosen and sender is not None:
            asks = [routee.ask(message, logic.within_s) for routee in chosen]
            self.context.pipe_to(first_reply(asks, logic.within_s), sender)
        else:
            self._forward(message, chosen)

    def _forward(self, message: Any, routees: Sequence[ActorRef]) -> None:
        sender = self._sender()
        if not routees:
            self._undeliverable(self.self_ref, message, sender, None)
        for routee in routees:
            try:
                routee.tell(message, sender)
            except MailboxFull as error:  # the router continues with the other routees
                self._undeliverable(routee, message, sender, error)

    def _sender(self) -> ActorRef | None:
        cell = current_cell.get()
        return None if cell is None else cell.sender

    def _undeliverable(self, ref: ActorRef, message: Any, sender: ActorRef | None, error: BaseException | None) -> None:
        node = self.self_ref._node
        assert node is not None
        node.undeliverable(ref, message, sender, error)

    # ------------------------------------------------------------------ routees

    def _grow(self, count: int) -> None:
        props = self._state.routee_props
        self._add([self.context.watch(self.context.actor_of(props)) for _ in range(count)])

    def _adjust(self, message: AdjustPoolSize, change: int) -> None:
        if not isinstance(self._state.config, Pool):
            self.unhandled(message)
        elif change > 0:
            self._grow(change)
        elif change < 0:
            self._dismiss(self._state.routees[change:])

    def _add(self, refs: Iterable[ActorRef]) -> None:
        self._state.routees = tuple(dict.fromkeys((*self._state.routees, *refs)))

    def _remove(self, refs: Sequence[ActorRef]) -> None:
        self._state.routees = tuple(routee for routee in self._state.routees if routee not in refs)

    def _dismiss(self, refs: Sequence[ActorRef]) -> None:
        """Stop routing to *refs*; those that are children stop after the messages already in their mailboxes."""
        self._remove(refs)
        for ref in refs:
            self.context.unwatch(ref)
            if self.context.child(ref.name) == ref:
                ref.tell(PoisonPill())

    def _stop_if_empty(self) -> None:
        if isinstance(self._state.config, Pool) and not self._state.routees:
            self.context.stop(self.self_ref)


def mailbox_size(ref: ActorRef) -> int | None:
    """Return the number of messages that wait for an actor, including the one that it handles.

    Returns:
        None for an actor of another process.
    """
    target = ref._target
    if not isinstance(target, Cell):
        return None
    return len(target.mailbox) + (target.envelope is not None)


async def first_reply(asks: Sequence[Ask[Any]], within_s: float) -> Any:
    """Return the first reply; ignore errors unless all asks end in errors.

    Raises:
        AskTimeout: no reply came in time.
        Exception: the last error, when every ask failed before that time.
    """
    waiting = {asyncio.ensure_future(_awaited(ask)) for ask in asks}
    try:
        for ended in asyncio.as_completed(waiting):
            try:
                return await ended
            except AskTimeout:
                break  # all asks have the same timeout
            except Exception as error:
                last = error
        else:
            raise last
    finally:
        for task in waiting:
            task.cancel()
    raise AskTimeout(f"none of {len(asks)} routees answered within {within_s:g} s")


async def _awaited(ask: Ask[Any]) -> Any:
    return await ask
