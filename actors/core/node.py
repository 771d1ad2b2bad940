"""The actors of one process (what Akka's `ActorRefProvider` and `Dispatcher` are to an `ActorSystem`).

A node runs on one event loop and is used on that loop's thread; from other threads `ActorRef`'s methods and `post` lead
there. What is not in this process it hands to its `Remote`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.address import ActorAddress
from actors.core.cell import Cell
from actors.core.delivery import Delivery, Remote
from actors.core.guardians import start_guardians
from actors.core.router import routed
from actors.core.settings import CoreSettings
from actors.core.system_messages import Create, DeathWatchNotification, Perform
from actors.errors import (
    ActorInitializationError,
    ActorSystemError,
    InvalidActorName,
)
from actors.mailbox import UnboundedMailbox
from actors.props import CreateOrder, Placement, Props
from actors.ref import ActorRef, Origin, Target, forget_node, register_node

if TYPE_CHECKING:
    from actors.mailbox import Mailbox
    from actors.system_api import ActorSystemBase

log = logging.getLogger(__name__)


class Node(Delivery):
    """The actors of one process.

    Args:
        loop: the event loop it runs on; to be made on that loop's thread.
        system: name of the actor system.
        address: anything with ``host`` and ``port``: those of the system's root node.
        uid: random number of this incarnation of the process.
        settings: how its actors behave.
        remote: how it reaches other nodes; None for a system of one process.
        root: whether this is the system's root node, where ``/user`` and ``/system`` live.
        temp: what the paths of its asks have behind ``/temp/``, so that other nodes find the way back; "" for the root.
        rng: where uids and jitter come from.
        turn_budget_s: how long actors have their turns before the loop sees to I/O and timers again; None: 64 turns.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        system: str,
        address: Any,
        uid: int,
        *,
        settings: CoreSettings | None = None,
        remote: Remote | None = None,
        root: bool = True,
        temp: str = "",
        rng: random.Random | None = None,
        turn_budget_s: float | None = 0.002,
    ) -> None:
        super().__init__(
            loop,
            turn_budget_s,
            Origin(system, address.host, address.port),
            settings or CoreSettings(),
            remote,
            f"/temp/{temp}/" if temp else "/temp/",
            rng or random.Random(),  # noqa: S311  # uids tell incarnations apart, they keep no secret
        )
        self.name = system
        self.uid = uid
        self.aborting = False
        self.on_cell_stopped: Callable[[ActorRef], None] | None = None
        self.terminated: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when a root node's guardians have stopped."""
        self._system: ActorSystemBase | None = None
        self._watchers: dict[ActorRef, set[Target]] = {}
        register_node(self)
        if root:
            self.root = start_guardians(self)

    @property
    def system(self) -> ActorSystemBase:
        """The actor system that this node is of.

        Raises:
            ActorSystemError: it has not been set.
        """
        if self._system is None:
            raise ActorSystemError(f"the node of {self.name} was made without an actor system")
        return self._system

    @system.setter
    def system(self, system: ActorSystemBase) -> None:
        self._system = system

    # ------------------------------------------------------------------ making actors

    def new_uid(self) -> int:
        """A number for an incarnation."""
        return self.rng.getrandbits(63) or 1

    def new_mailbox(self, props: Props, path: str) -> Mailbox:
        """The mailbox that *props* ask for."""
        return (props.mailbox or _DEFAULT_MAILBOX).create(path)

    def create_child(self, parent: Cell, props: Props, name: str) -> ActorRef:
        """Make a child, here or elsewhere; returns its ref at once."""
        path = f"{parent.ref.path}/{name}"
        uid = self.new_uid()
        if self.remote is not None and self._lives_elsewhere(parent, props):
            return self._order_child(parent, props, path, uid)
        return self.start_cell(routed(props), path, uid, parent.ref).ref

    def _lives_elsewhere(self, parent: Cell, props: Props) -> bool:
        if props.deploy_to is not None:
            return True
        if props.placement is Placement.DEFAULT:
            return parent.ref.path == "/user"
        return props.placement is not Placement.LOCAL

    def _order_child(self, parent: Cell, props: Props, path: str, uid: int) -> ActorRef:
        assert self.remote is not None
        origin = self.origin
        if props.deploy_to is not None:
            there = ActorAddress.parse(f"{props.deploy_to.rstrip('/')}/user")
            origin = Origin(there.system, there.host, there.port)
            path = f"/remote/{self.name}@{self.origin.host.replace(':', '-')}_{self.origin.port}{path}"
        ref = ActorRef(self, origin, path, uid)
        order = CreateOrder.of(props, path, uid, parent.ref)

        def failed(error: Exception) -> None:
            wrapped = ActorInitializationError(
                f"{path}: it could not be created elsewhere: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            parent.deliver_system(Perform(functools.partial(parent.child_lost, ref, wrapped)))

        self.remote.create(order, ref, failed)
        self.watching(ref, parent)
        return ref

    def start_cell(self, props: Props, path: str, uid: int, parent: ActorRef) -> Cell:
        """Make a cell and have it create its instance."""
        cell = self.cells[path] = Cell(self, props, path, uid, parent)
        cell.deliver_system(Create())
        return cell

    def create_ordered(self, order: CreateOrder) -> ActorRef:
        """Make an actor whose parent lives elsewhere.

        Raises:
            InvalidActorName: an earlier incarnation still lives here; stop it first.
            ActorSystemError: its class cannot be loaded here.
        """
        if order.path in self.cells:
            raise InvalidActorName(f"{order.path} still lives here, in an earlier incarnation")
        props = order.props()
        props.load_class()
        return self.start_cell(routed(props), order.path, order.uid, order.parent).ref

    def cell_stopped(self, cell: Cell) -> None:
        """A cell has stopped: its path is free."""
        path = cell.ref.path
        if self.cells.get(path) is cell:
            del self.cells[path]
        self.event_stream.unsubscribe(cell.ref)
        if self.on_cell_stopped is not None:
            self.on_cell_stopped(cell.ref)

    # ------------------------------------------------------------------ watching other processes

    def watching(self, ref: ActorRef, watcher: Target) -> None:
        """*watcher* is to be told when the process of *ref* ends, if that is another one."""
        if self.remote is None or ref._target is not None:
            return
        watchers = self._watchers.get(ref)
        if watchers is None:
            watchers = self._watchers[ref] = set()
            self.remote.watching(ref)
        watchers.add(watcher)

    def unwatching(self, ref: ActorRef, watcher: Target) -> None:
        """*watcher* does not want to be told any more."""
        watchers = self._watchers.get(ref)
        if watchers is not None and watcher in watchers:
            watchers.discard(watcher)
            if not watchers and self.remote is not None:
                del self._watchers[ref]
                self.remote.unwatching(ref)

    def process_ended(self, ref: ActorRef) -> None:
        """The process that hosted *ref* has ended: watchers and parents here are told."""
        for watcher in list(self._watchers.get(ref, ())):
            watcher.deliver_system(DeathWatchNotification(ref, True, True))

    # ------------------------------------------------------------------ the end

    def abort(self) -> None:
        """The time allowed for stopping is over: coroutines of actors that still run are cancelled."""
        self.aborting = True
        for cell in list(self.cells.values()):
            cell.abort()

    def close(self) -> None:
        """End: asks fail, nothing is sent any more; idempotent. The actors should have stopped."""
        if self.is_closed:
            return
        forget_node(self)
        self.close_dispatcher()
        self.promises.close(self._is_over())
        self.letters.close()
        if self.remote is not None:
            self.remote.closed()


_DEFAULT_MAILBOX = UnboundedMailbox()
