"""The actors of one process (the role of Akka's `ActorRefProvider` and `Dispatcher`).

A node runs on one event loop; call it on that loop's thread. From other threads, the methods of `ActorRef` and `post`
lead there. The node schedules the turns of its cells. It also finds the target of a ref: a cell, an ask, no actor, or
an actor of another process, which its `Remote` reaches.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from actors.actor import Actor
from actors.address import ActorAddress
from actors.core.cell import Cell, Children
from actors.core.dead_letters import DeadLetters
from actors.core.promise import Promise, Promises, SubscriberWatch, TerminationPromise
from actors.core.system_messages import (
    AskFailed,
    Create,
    DeathWatchNotification,
    Failed,
    Perform,
    SystemMessage,
    Terminate,
    Watch,
)
from actors.errors import (
    ActorError,
    ActorInitializationError,
    ActorSystemError,
    AskTimeout,
    InvalidActorName,
    MailboxFull,
    RecipientTerminated,
)
from actors.event_stream import EventStream
from actors.mailbox import BoundedMailbox, UnboundedMailbox
from actors.messages import ActorIdentity, Identify, PoisonPill, ReceiveTimeout, Terminated
from actors.props import CreateOrder, Placement, Props
from actors.ref import ActorRef, Origin, Target, current_cell, forget_node, register_node
from actors.routing import routed
from actors.rpc.gateway import Ask
from actors.selection import ActorSelection, SelectionMessage, step
from actors.serialization import Serializer
from actors.supervision import OneForOneStrategy, SupervisorStrategy
from actors.system_config import CoreSettings

if TYPE_CHECKING:
    from actors.actor import Actor
    from actors.core.cell import Cell
    from actors.mailbox import Mailbox
    from actors.system_api import ActorSystemBase


logger = logging.getLogger(__name__)

ABORT_GRACE_S = 1.0

P = ParamSpec("P")
T = TypeVar("T")
POST_LIMIT = 10_000
"""Number of calls of other threads that may wait; beyond it the calling thread waits."""
TURNS = 64
_get_ident = threading.get_ident
_DEFAULT_MAILBOX = UnboundedMailbox()
_ENDPOINT_MAILBOX = BoundedMailbox(100_000)
"""Mailbox of endpoints: it rejects a call or message beyond its capacity with `MailboxFull`."""
_UNMOURNED = (PoisonPill, Terminated, ReceiveTimeout)
"""Messages that are not reported when their recipient has stopped (Akka's `DeadLetterSuppression`)."""


class Guardian(Actor):
    """Parent of the top-level actors.

    Args:
        strategy: strategy for top-level actors that fail.
    """

    def __init__(self, strategy: SupervisorStrategy) -> None:
        self.supervisor_strategy = strategy


class Root:
    """Parent of the guardians: it has no parent and no mailbox, and the system ends when its children have stopped.

    Args:
        node: the root node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._deadline: asyncio.TimerHandle | None = None
        self._timeout_s = 0.0
        self._stopping = False
        self.children = Children()
        self.ref = ActorRef(node, node.origin, "/", node.new_uid(), self)
        self.parent = self.ref
        self.system = self._guardian("system")
        self.user = self._guardian("user")

    def _guardian(self, name: str) -> Cell:
        props = Props(Guardian, OneForOneStrategy())
        cell = self._node.start_cell(props, f"/{name}", self._node.new_uid(), self.ref)
        self.children.add(name, cell.ref, props)
        return cell

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Make a dead letter of any message to the root."""
        self._node.undeliverable(self.ref, message, sender)

    def deliver_system(self, message: SystemMessage) -> None:
        """Terminate the system after a guardian has failed or stopped."""
        if isinstance(message, Failed):
            logger.critical(
                "%s failed (%s: %s): the actor system %s is terminated",
                message.child.path,
                type(message.error).__name__,
                message.error,
                self._node.name,
                exc_info=message.error,
            )
            self.terminate(None)
        elif isinstance(message, DeathWatchNotification):
            self.children.remove(message.actor)
            if self.children.refs():
                self.terminate(None)  # a guardian that stops alone ends the system
                self._node.send_system(self.system.ref, Terminate())
            elif not self._node.terminated.done():
                if self._deadline is not None:
                    self._deadline.cancel()
                self._node.terminated.set_result(None)

    def terminate(self, timeout_s: float | None) -> None:
        """Stop ``/user`` and all actors below it, then ``/system``; `Node.terminated` is done after that.

        Args:
            timeout_s: seconds until coroutines that still run are cancelled; actors that do not end within another
                second are left behind. None for no limit.
        """
        if timeout_s is not None and self._deadline is None and not self._node.terminated.done():
            self._timeout_s = timeout_s
            self._deadline = self._node.loop.call_later(timeout_s, self._abort)
        if not self._stopping:
            self._stopping = True
            self._node.letters.silent = True  # dead letters are expected from now on
            self._node.send_system(self.user.ref, Terminate())

    def _abort(self) -> None:
        logger.warning(
            "actors of %s did not stop within %g s: their coroutines are cancelled", self._node.name, self._timeout_s
        )
        self._node.abort()
        self._deadline = self._node.loop.call_later(ABORT_GRACE_S, self._give_up)

    def _give_up(self) -> None:
        if not self._node.terminated.done():
            living = [path for path in self._node.cells if path.startswith("/user/")]
            text = f"these actors of {self._node.name} do not stop and are left behind: {', '.join(living[:10])}"
            logger.error("%s", text)
            self._node.terminated.set_exception(AskTimeout(text))


class Remote(Protocol):
    """Link of a node to other processes. Called only on the node's loop."""

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message; raises `SerializationError`. Lost messages go to `Node.undeliverable`."""

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message."""

    def create(self, order: CreateOrder, ref: ActorRef, on_failed: Callable[[Exception], None]) -> None:
        """Create an actor in another process. Messages to *ref* wait until it exists."""

    def watching(self, ref: ActorRef) -> None:
        """Watch the process of *ref*, and call `Node.process_ended` when it ends."""

    def unwatching(self, ref: ActorRef) -> None:
        """Stop watching the process of *ref*."""

    def closed(self) -> None:
        """Stop, because the node has ended."""


class Node:
    """The actors of one process.

    Args:
        loop: the event loop on which it runs; create the node on that loop's thread.
        system: name of the actor system.
        address: any object with ``host`` and ``port``: those of the system's root node.
        uid: random number of this incarnation of the process.
        settings: settings of its actors.
        remote: link to other nodes; None for a system of one process.
        temp: path element of its asks behind ``/temp/``, by which other nodes find this node; "" for the root node,
            which has ``/user`` and ``/system``.
        rng: source of uids and jitter.
        turn_budget_s: seconds of actor turns before the loop handles I/O and timers again; None for 64 turns.
    """

    ask_type: type[Ask[Any]] = Ask
    """Class of asks that are awaited on the loop's own thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        system: str,
        address: Any,
        uid: int,
        *,
        settings: CoreSettings | None = None,
        remote: Remote | None = None,
        temp: str = "",
        rng: random.Random | None = None,
        turn_budget_s: float | None = 0.002,
    ) -> None:
        self.loop = loop
        self.thread = _get_ident()
        self.origin = Origin(system, address.host, address.port)
        self.name = system
        self.uid = uid
        self.settings = settings or CoreSettings()
        self.remote = remote
        self.rng = rng = rng or random.Random()  # noqa: S311  # uids tell incarnations apart, they keep no secret
        self.is_closed = False
        self.aborting = False
        self._turn_budget_s = turn_budget_s
        self._run_queue: deque[Cell] = deque()
        self._running = False
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._post_pending = False
        self._room = threading.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self.cells: dict[str, Cell] = {}
        self.root: Root | None = None
        self.promises = Promises(self, f"/temp/{temp}/" if temp else "/temp/", rng.getrandbits(61) + 1)
        self.serializer = Serializer(lambda text: ActorRef.parse(text, self))
        self.dead_letters = ActorRef(self, self.origin, "/deadLetters", 0, _Grave(self))
        self.event_stream = EventStream(self.run_on_loop, self._event_refused, self.watch_subscriber)
        self.letters = DeadLetters(loop, self.event_stream.publish)
        self.on_cell_stopped: Callable[[ActorRef], None] | None = None
        self.terminated: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when a root node's guardians have stopped."""
        self._system: ActorSystemBase | None = None
        self._watchers: dict[ActorRef, set[Target]] = {}
        register_node(self)
        if not temp:
            self.root = Root(self)

    @property
    def system(self) -> ActorSystemBase:
        """The actor system of this node.

        Raises:
            ActorSystemError: it has not been set.
        """
        if self._system is None:
            raise ActorSystemError(f"the node of {self.name} was made without an actor system")
        return self._system

    @system.setter
    def system(self, system: ActorSystemBase) -> None:
        self._system = system

    # ------------------------------------------------------------------ turns and threads

    def schedule(self, cell: Cell) -> None:
        """Queue the cell for a turn. The cells take their turns one after the other in one callback of the loop."""
        self._run_queue.append(cell)
        if not self._running:
            self._running = True
            self.loop.call_soon(self._run_turns)

    def _run_turns(self) -> None:
        queue = self._run_queue
        budget_s = self._turn_budget_s
        ends = 0.0 if budget_s is None else time.perf_counter() + budget_s
        left = TURNS
        try:
            while queue:
                cell = queue.popleft()
                try:
                    contextvars.Context().run(cell.turn)
                except BaseException:  # an interrupt; the cell continues if the loop does
                    cell.interrupted()
                    raise
                if budget_s is None:
                    left -= 1
                    if not left:
                        break
                elif time.perf_counter() >= ends:
                    break
        finally:
            if queue:
                self.loop.call_soon(self._run_turns)
            else:
                self._running = False

    def post(self, callback: Callable[..., object], *args: Any) -> bool:
        """Call *callback* on the loop, in the order of the calls; callable from any thread.

        When `POST_LIMIT` calls of other threads wait already, the calling thread waits until there is room.

        Returns:
            False when the node has ended.
        """
        if _get_ident() == self.thread:
            if not self.is_closed:
                self.loop.call_soon(callback, *args)
            return not self.is_closed
        while len(self._posted) >= POST_LIMIT and not self.is_closed:
            self._room.clear()
            if len(self._posted) >= POST_LIMIT:
                self._room.wait(1.0)
        if self.is_closed:
            return False
        self._posted.append((callback, args))
        if not self._post_pending:
            self._post_pending = True
            try:
                self.loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:  # the loop was closed just now
                return False
        return True

    def _run_posted(self) -> None:
        self._post_pending = False  # before taking the first call: later calls request another run
        posted = self._posted
        for _ in range(len(posted)):
            callback, args = posted.popleft()
            try:
                callback(*args)
            except Exception:  # no caller is left to receive it
                logger.exception("a call from another thread failed")
        self._room.set()

    def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a blocking function in a thread of the loop's executor."""
        call: Callable[[], T] = functools.partial(function, *args, **kwargs)
        return self.loop.run_in_executor(None, contextvars.copy_context().run, call)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop, next to the actors."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def run_on_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop: at once, when this is its thread."""
        if _get_ident() == self.thread:
            function(*args)
        else:
            self.post(function, *args)

    # ------------------------------------------------------------------ refs

    def ref(self, path: str, uid: int, origin: Origin | None = None) -> ActorRef:
        """Return the ref of the actor at *path*, bound to this node; uid 0 means the incarnation at the time of use."""
        if uid and (origin is None or origin == self.origin):
            target = self._find(path, uid)
            if target is not None:
                return target.ref
        if path == "/deadLetters":
            return self.dead_letters
        return ActorRef(self, origin or self.origin, path, uid)

    def _find(self, path: str, uid: int) -> Cell | Promise | None:
        found = self.cells.get(path) or self.promises.get(path)
        return found if found is not None and uid in (found.ref.uid, 0) else None

    def target_of(self, ref: ActorRef) -> Target | None:
        """Return the target of a ref, if it lives here."""
        return self._find(ref.path, ref.uid) if ref.uid and ref.origin == self.origin else None

    def select(self, path: str, base: ActorRef) -> ActorSelection:
        """Select the actors that match *path*, relative to *base*."""
        return ActorSelection(self, path, base)

    # ------------------------------------------------------------------ messages

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message; *sender* is an actor of this node or None. Raises `MailboxFull` and `SerializationError`."""
        target = ref._target
        if target is not None:
            target.deliver(message, sender)
        elif ref._origin != self.origin:
            self._send_away(ref, message, sender)
        elif (found := self._find(ref.path, ref.uid)) is None:
            if ref.path == "/" and self.root is not None:
                self._deliver_found(self.root, message, sender)
            else:
                self._send_away(ref, message, sender)
        else:
            self._deliver_found(found, message, sender)

    def _send_away(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        if self.remote is None or self.is_closed:
            self.undeliverable(ref, message, sender)
        else:
            self.remote.send(ref, message, sender)

    def deliver(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Deliver a message from another process. Never raises: with a full mailbox it becomes a dead letter."""
        self.deliver_text(ref.path, ref.uid, message, sender)

    def deliver_text(self, path: str, uid: int, message: Any, sender: ActorRef | None) -> None:
        """Deliver a message from another process by path and uid, without making a ref for an existing actor."""
        found: Target | None = self._find(path, uid)
        if found is None and path == "/":
            found = self.root
        if found is None:
            self.undeliverable(self.ref(path, uid), message, sender)
            return
        try:
            self._deliver_found(found, message, sender)
        except Exception as error:  # a full mailbox, or a user's priority function failed
            self.undeliverable(self.ref(path, uid), message, sender, error)

    def _deliver_found(self, found: Target, message: Any, sender: ActorRef | None) -> None:
        if type(message) is SelectionMessage and not isinstance(found, Promise):
            self._pass_on(found, message, sender)
        else:
            found.deliver(message, sender)

    def _pass_on(self, at: Target, selection: SelectionMessage, sender: ActorRef | None) -> None:
        """Forward a selection by one element, at a cell or at the root of all paths."""
        assert isinstance(at, (Cell, Root))
        children = at.children
        way = step(selection, [ref.name for ref in children.refs()])
        if way.missed:
            self.undeliverable(at.ref, selection, sender)
            return
        refs = (
            [at.parent] if way.to_parent else [ref for name in way.children if (ref := children.ref(name)) is not None]
        )
        for ref in refs:
            if isinstance(way.rest, SelectionMessage) and isinstance(ref._target, (Cell, Root)):
                self._pass_on(ref._target, way.rest, sender)
            else:
                try:
                    self.send(ref, way.rest, sender)
                except ActorError as error:  # continue with the others
                    self.undeliverable(ref, way.rest, sender, error)

    def post_message(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message from another thread."""
        self.post(self._send_posted, ref, message, sender)

    def _send_posted(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        try:
            self.send(ref, message, sender)
        except Exception as error:  # the call that sent it has returned already
            logger.warning("a %s for %s was not sent: %s", type(message).__name__, ref.path, error)
            self.undeliverable(ref, message, sender, error)

    # ------------------------------------------------------------------ system messages

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message to an actor of this or another process."""
        target = ref._target
        if target is None and ref._origin == self.origin:
            target = self._find(ref.path, ref.uid)
        if target is not None:
            target.deliver_system(message)
        elif self.remote is None or self.is_closed:
            self.undeliverable_system(ref, message)
        else:
            self.remote.send_system(ref, message)

    def deliver_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Deliver a system message from another process."""
        target: Target | None = self._find(ref.path, ref.uid)
        if target is None and ref.path == "/":
            target = self.root
        if target is None:
            self.undeliverable_system(ref, message)
        else:
            target.deliver_system(message)

    def undeliverable_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Handle a system message to a stopped or unknown actor: answer `Watch` at once, drop all others."""
        if isinstance(message, Watch):
            self.send_system(message.watcher, DeathWatchNotification(ref, existence_confirmed=False))

    # ------------------------------------------------------------------ undeliverable messages

    def undeliverable(
        self, ref: ActorRef, message: Any, sender: ActorRef | None, error: BaseException | None = None
    ) -> None:
        """Handle a message that has no recipient, or that its recipient rejected.

        It becomes a dead letter; an ask fails at once.

        Args:
            ref: the recipient.
            message: the message.
            sender: its sender.
            error: the reason; default: the recipient has terminated.
        """
        while type(message) is SelectionMessage:
            message = message.message
        if type(message) is Identify:
            (sender or self.dead_letters).tell(ActorIdentity(message.message_id, None), ref)
            return
        if not isinstance(message, _UNMOURNED):
            self.letters.put(message, sender, ref, error)
        if sender is not None and sender.is_ask:
            self.fail_ask(sender, error or RecipientTerminated(f"{ref} has stopped, or never lived"))

    def dead_letter(self, message: Any, sender: ActorRef | None, recipient: ActorRef) -> None:
        """Count, log and publish a message that was not delivered."""
        self.letters.put(message, sender, recipient)

    @property
    def dead_letters_count(self) -> int:
        """Number of dead letters so far in this process."""
        return self.letters.count

    def publish(self, event: Any) -> None:
        """Publish an event on the event stream."""
        self.event_stream.publish(event)

    def _event_refused(self, subscriber: ActorRef, event: Any, error: MailboxFull) -> None:
        self.letters.put(event, None, subscriber, error)

    # ------------------------------------------------------------------ asks

    def ask(self, ref: ActorRef, message: Any, timeout_s: float | None = None) -> Ask[Any]:
        """Send an ask, see `ActorRef.ask`; callable from any thread."""
        cell = current_cell.get()
        return self._promised(functools.partial(self._ask, ref, message, None if cell is None else cell.ref), timeout_s)

    def graceful_stop(self, ref: ActorRef, timeout_s: float | None = None, message: Any = None) -> Ask[bool]:
        """Stop an actor; the ask ends with True when it has stopped, or in `AskTimeout`. Callable from any thread.

        Args:
            ref: the actor.
            timeout_s: seconds to wait; default: the system's ask timeout.
            message: message that stops it; default: `PoisonPill`.
        """
        return self._promised(functools.partial(self._stop_gracefully, ref, message or PoisonPill()), timeout_s)

    def _promised(self, begin: Callable[[Any, float], None], timeout_s: float | None) -> Ask[Any]:
        if timeout_s is None:
            timeout_s = self.settings.ask_timeout_s
        if not timeout_s > 0:
            raise ValueError(f"the time allowed for an answer is a positive number of seconds, not {timeout_s!r}")
        if threading.get_ident() == self.thread:
            future = self.loop.create_future()
            begin(future, timeout_s)
            return self.ask_type(future, self.loop, timeout_s)
        promised: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if not self.post(begin, promised, timeout_s):
            promised.set_exception(self._is_over())
        return Ask(promised, self.loop, timeout_s)

    def _is_over(self) -> RecipientTerminated:
        return RecipientTerminated(f"the actor system {self.origin.system} has been terminated")

    def _ask(self, ref: ActorRef, message: Any, asker: ActorRef | None, future: Any, timeout_s: float) -> None:
        if self.is_closed:
            future.set_exception(self._is_over())
            return
        innermost = message
        while type(innermost) is SelectionMessage:
            innermost = innermost.message
        promise = Promise(self, future, ref, type(innermost).__qualname__, timeout_s, asker)
        try:
            self.send(ref, message, promise.ref)
        except Exception as error:  # a full mailbox, or a message that cannot travel
            if self.promises.remove(promise):
                promise.fail(error)

    def _stop_gracefully(self, ref: ActorRef, message: Any, future: Any, timeout_s: float) -> None:
        if self.is_closed:
            future.set_result(True)
            return
        promise = TerminationPromise(self, future, ref, type(message).__qualname__, timeout_s)
        self.watching(ref, promise)
        self.send_system(ref, Watch(promise.ref))
        self.send(ref, message, None)

    def watch_subscriber(self, ref: ActorRef) -> None:
        """Watch a subscriber in another process, to unsubscribe it when it ends. Local ones need no watch."""
        if ref._target is None and not self.is_closed:
            watch = SubscriberWatch(self, ref)
            self.watching(ref, watch)
            self.send_system(ref, Watch(watch.ref))

    def fail_ask(self, asker: ActorRef, error: BaseException) -> None:
        """End an ask with *error*, which the asker sees as if it came from another process."""
        promise = self.promises.get(asker.path)
        if promise is None:
            if asker._target is None:  # an ask of another node; one of this node has ended
                self.send_system(asker, AskFailed(error))
        elif promise.ref == asker:
            told = error
            if error.__traceback__ is not None:  # raised by the handler: the asker must not raise the same object
                told = self.serializer.loads(self.serializer.dumps(error))
                told.__cause__ = error
            promise.deliver_system(AskFailed(told))

    def ask_time_left(self, asker: ActorRef) -> float | None:
        """Return the remaining seconds of an ask of this node; None for an ask of another node."""
        promise = self.promises.get(asker.path)
        return None if promise is None else max(promise.deadline - self.loop.time(), 0.0)

    # ------------------------------------------------------------------ making actors

    def new_uid(self) -> int:
        """Return a random number for a new incarnation."""
        return self.rng.getrandbits(63) or 1

    def new_mailbox(self, props: Props, path: str) -> Mailbox:
        """Return a new mailbox of the type that *props* request."""
        return (props.mailbox or _DEFAULT_MAILBOX).create(path)

    def create_child(self, parent: Cell, props: Props, name: str) -> ActorRef:
        """Create a child in this or another process; return its ref at once."""
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
        """Make a cell, which then creates its instance."""
        cell = self.cells[path] = Cell(self, props, path, uid, parent)
        cell.deliver_system(Create())
        return cell

    def start_endpoint(self, endpoint: Actor, parent_path: str | None, name: str, path: str) -> Cell:
        """Start the actor of an existing endpoint instance.

        Args:
            endpoint: the endpoint.
            parent_path: path of its parent; it has no parent when this node has none at that path (a host process).
            name: its name below the parent.
            path: its path.

        Raises:
            InvalidActorName: the name is malformed or taken.
            ActorSystemError: the endpoint has run once already.
        """
        props = Props.of(endpoint).with_mailbox(_ENDPOINT_MAILBOX)
        props.allocate()
        parent = None if parent_path is None else self.cells.get(parent_path)
        if parent is None:
            cell = Cell(self, props, path, self.new_uid(), self.dead_letters)
            cell.deliver_system(Create())
            return cell
        parent.make_child(props, name)
        return self.cells[path]

    def create_ordered(self, order: CreateOrder) -> ActorRef:
        """Create an actor whose parent is in another process.

        Raises:
            InvalidActorName: an earlier incarnation still runs here; stop it first.
            ActorSystemError: its class cannot be loaded here.
        """
        if order.path in self.cells:
            raise InvalidActorName(f"{order.path} still lives here, in an earlier incarnation")
        props = order.props()
        props.load_class()
        return self.start_cell(routed(props), order.path, order.uid, order.parent).ref

    def cell_stopped(self, cell: Cell) -> None:
        """Free the path of a cell that has stopped."""
        path = cell.ref.path
        if self.cells.get(path) is cell:
            del self.cells[path]
        self.event_stream.unsubscribe(cell.ref)
        if self.on_cell_stopped is not None:
            self.on_cell_stopped(cell.ref)

    # ------------------------------------------------------------------ watching other processes

    def watching(self, ref: ActorRef, watcher: Target) -> None:
        """Notify *watcher* when the process of *ref* ends, if that is another process."""
        if self.remote is None or ref._target is not None:
            return
        watchers = self._watchers.get(ref)
        if watchers is None:
            watchers = self._watchers[ref] = set()
            self.remote.watching(ref)
        watchers.add(watcher)

    def unwatching(self, ref: ActorRef, watcher: Target) -> None:
        """Stop notifying *watcher* of the end of *ref*'s process."""
        watchers = self._watchers.get(ref)
        if watchers is not None and watcher in watchers:
            watchers.discard(watcher)
            if not watchers and self.remote is not None:
                del self._watchers[ref]
                self.remote.unwatching(ref)

    def process_ended(self, ref: ActorRef) -> None:
        """Notify watchers and parents in this node that the process of *ref* has ended."""
        for watcher in list(self._watchers.get(ref, ())):
            watcher.deliver_system(DeathWatchNotification(ref, True, True))

    # ------------------------------------------------------------------ the end

    def abort(self) -> None:
        """Cancel the coroutines of actors that still run; called after the timeout for stopping."""
        self.aborting = True
        for cell in list(self.cells.values()):
            cell.abort()

    def close(self) -> None:
        """End the node: all asks fail, and it sends nothing more. Stop the actors first. Idempotent."""
        if self.is_closed:
            return
        forget_node(self)
        self.is_closed = True  # accept no more calls of other threads; those accepted before run below
        self._running = True  # schedule no more turns
        for task in self._background:
            task.cancel()
        self._run_posted()
        self.promises.close(self._is_over())
        self.letters.close()
        if self.remote is not None:
            self.remote.closed()


class _Grave:
    """The target of `/deadLetters`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        self._node.undeliverable(self._node.dead_letters, message, sender)

    def deliver_system(self, message: SystemMessage) -> None:
        self._node.undeliverable_system(self._node.dead_letters, message)
