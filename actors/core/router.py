"""The actor that routers are made of (Akka's ``RouterActor`` and ``RoutedActorCell``); `actors.routing` has the logics.

Unlike Akka's a router is an actor like any other: messages pass through its mailbox, in their order, on their way to
the routees. It lives where its props say, and the routees of a pool live beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from actors.actor import Actor
from actors.core.cell import Cell
from actors.errors import AskTimeout, MailboxFull
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
from actors.routing import Group, Pool, RouterConfig, ScatterGatherFirstCompleted, Selector
from actors.rpc.gateway import Ask
from actors.supervision import SupervisorStrategy


def routed(props: Props) -> Props:
    """The props of the actor that *props* ask for: a router's own, or *props* themselves when they ask for none.

    Mailbox and throughput in the props of a pool are those of its routees; a router's own mailbox is unbounded.
    """
    if props.router is None:
        return props
    return Props(RouterActor, RouterState(props.router, props.local()._with(router=None))).local()


class RouterState:
    """What a router keeps when it is restarted.

    Args:
        config: how it routes.
        routee_props: what the routees of a pool are made by.
    """

    def __init__(self, config: RouterConfig, routee_props: Props) -> None:
        self.config = config
        self.routee_props = routee_props
        self.routees: tuple[ActorRef, ...] = ()
        self.selector: Selector[ActorRef] = config.logic.create(mailbox_size)
        self.is_started = False


class RouterActor(Actor):
    """Passes messages on to routees, who see the original sender.

    Args:
        state: kept from instance to instance.
    """

    def __init__(self, state: RouterState) -> None:
        self._state = state

    @property
    def supervisor_strategy(self) -> SupervisorStrategy:  # type: ignore[override]
        """That of the pool."""
        config = self._state.config
        return config.supervisor_strategy if isinstance(config, Pool) else Actor.supervisor_strategy

    def pre_start(self) -> None:
        """Make or find the routees, the first time."""
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
        """Keep the routees: they are restarted with the router (as Akka's are), not stopped."""

    def receive(self, message: Any) -> None:
        """Route it, or do as a management message says."""
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
            except MailboxFull as error:  # the sender's concern; the router has done its part
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
        """Route to them no more; those that the router has made stop, once they have handled what they have."""
        self._remove(refs)
        for ref in refs:
            self.context.unwatch(ref)
            if self.context.child(ref.name) == ref:
                ref.tell(PoisonPill())

    def _stop_if_empty(self) -> None:
        if isinstance(self._state.config, Pool) and not self._state.routees:
            self.context.stop(self.self_ref)


def mailbox_size(ref: ActorRef) -> int | None:
    """How many messages wait for an actor, the one that it is handling included; None for one of another process."""
    target = ref._target
    if not isinstance(target, Cell):
        return None
    return len(target.mailbox) + (target.envelope is not None)


async def first_reply(asks: Sequence[Ask[Any]], within_s: float) -> Any:
    """The first reply; errors count only when there are nothing but errors.

    Raises:
        AskTimeout: no reply came in time.
        Exception: every ask failed before; the last error.
    """
    waiting = {asyncio.ensure_future(_awaited(ask)) for ask in asks}
    try:
        for ended in asyncio.as_completed(waiting):
            try:
                return await ended
            except AskTimeout:
                break  # they all have the same time
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
