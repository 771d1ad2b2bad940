"""Dispatch of received calls to handlers, and of their outcomes to replies (Flink's `RpcServer`).

A call is a message to the endpoint's actor. If the actor is idle and its mailbox empty, the dispatcher handles the call
at once. Otherwise the call waits in the mailbox.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from actors.core.cell import Call, Cell
from actors.core.node import Node
from actors.errors import (
    ActorError,
    ActorSystemError,
    EndpointStateError,
    FencingError,
    FrameTooLarge,
    MailboxFull,
    UnknownActor,
    WireError,
)
from actors.messages import RpcInvocation
from actors.ref import current_cell
from actors.rpc import codec, wire
from actors.rpc.codec import MethodSpec
from actors.rpc.connection import ServerConnection
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.fencing import ACTING, Leadership, received
from actors.rpc.gateway import RPC_MARK, gateways_of
from actors.rpc.offload import Offload

logger = logging.getLogger(__name__)

SHOWN = 1000
PLAIN_TOKEN = 2
TURNS = 1000
"""Most turns of the loop that a supervisor gets to handle a failed start."""
Outcome = asyncio.Future[Any]
Method = tuple[MethodSpec, Callable[..., Any], bool]
"""A method, its handler, and whether the handler is a coroutine function."""
MethodTable = dict[str, Method]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a client that changes something, once it has ended.

    Args:
        caller: name that the client has announced; empty without one. Nothing but the secret vouches for it.
        source: ``host:port`` of the client, or ``unix:pid``.
        component: name of the gateway in lower case, such as ``dispatcher``.
        path: path of the called actor.
        method: name of the called method.
        arguments: decoded; empty if they could not be decoded.
        result: the result; None if the call has failed.
        error: the error of a call that has failed.
    """

    caller: str
    source: str
    component: str
    path: str
    method: str
    arguments: list[Any]
    result: Any
    error: Exception | None


class CallRecorder(Protocol):
    """Records calls. Its methods raise nothing."""

    def record(self, call: RecordedCall) -> None:
        """Record a call. It runs on the loop's thread, so it must not block."""

    def close(self) -> None:
        """Finish pending work; it may block."""


def method_table(endpoint: RpcEndpoint) -> MethodTable:
    """Return the handlers of all methods of *endpoint*'s gateways; raises `ActorSystemError` when one is missing."""
    table: MethodTable = {}
    for gateway_type in gateways_of(type(endpoint)):
        for name, spec in codec.method_specs(gateway_type).items():
            handler = getattr(endpoint, name)
            if not getattr(handler, RPC_MARK, False):
                raise ActorSystemError(f"{type(endpoint).__name__} does not implement {gateway_type.__name__}.{name}")
            table[name] = (spec, handler, asyncio.iscoroutinefunction(handler))
    return table


class Served:
    """An endpoint of this process: its actor, its dispatch table, and its unanswered calls.

    Args:
        endpoint: the endpoint.
        loop: the loop of its process.
    """

    __slots__ = ("_own_check", "cell", "endpoint", "promised", "received", "started", "stopped", "table", "tasks")

    cell: Cell

    def __init__(self, endpoint: RpcEndpoint, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.table: MethodTable = method_table(endpoint)
        self.started: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()
        self.received = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.promised: dict[tuple[ServerConnection, int], tuple[Outcome, Callable[[Outcome], None]]] = {}
        kind = type(endpoint)
        self._own_check = kind.check_token not in (RpcEndpoint.check_token, FencedRpcEndpoint.check_token)

    @property
    def queued(self) -> int:
        """Number of calls and messages that have not started: the depth of its mailbox."""
        return len(self.cell.mailbox) + self.cell.held

    def admit(self, token: Any, spec: MethodSpec | None) -> Leadership | None:
        """Check a call's fencing fields, as they came over the wire. Stale calls are rejected only here.

        Args:
            token: the fields.
            spec: the called method; None for an unknown method.

        Returns:
            The leadership under which the call acts, or None.

        Raises:
            FencingError: the call addresses another leadership, acts under a former one, or acts under none although
                the method requires one.
            WireError: the fields are malformed.
        """
        endpoint = self.endpoint
        required = None if spec is None else spec.fenced_by
        if required is None and not (type(token) is list and len(token) > PLAIN_TOKEN):
            self._check_recipient(token)
            return None
        recipient, leadership = received(token)
        endpoint.check_token(recipient)
        if leadership is not None:
            endpoint.fences.check(leadership)
        if required is not None and spec is not None and (leadership is None or not leadership.is_of(required)):
            acting = "no leadership" if leadership is None else f"the leadership of {leadership.component}"
            raise FencingError(f"{endpoint.path} takes {spec.name}() of a {required} that leads; this has {acting}")
        return leadership

    def _check_recipient(self, token: Any) -> None:
        endpoint = self.endpoint
        if not self._own_check:
            if isinstance(endpoint, FencedRpcEndpoint):
                own = endpoint.fencing_token
                if (
                    own is not None
                    and type(token) is list
                    and token == [own.epoch, own.session]
                    and type(token[0]) is int  # True == 1, and 1.0 too
                ):
                    return
            elif token is None:
                return
        endpoint.check_token(received(token)[0])


class Dispatcher:
    """The endpoints of a process, by path. All methods run on the loop's thread.

    Args:
        loop: runs the coroutine handlers.
        encoder: encodes the frames of the replies.
        node: returns the node with the actors of this process; None before the first of them.
        offload: carries arguments and results that do not fit into a frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        encoder: wire.FrameEncoder,
        node: Callable[[], Node | None],
        offload: Offload,
    ) -> None:
        self.served: dict[str, Served] = {}
        self.caller: ServerConnection | None = None
        """Connection whose message a plain handler is handling."""
        self.received = 0
        """Number of messages since the start."""
        self._loop = loop
        self._encoder = encoder
        self._node = node
        self._offload = offload

    # ------------------------------------------------------------------ start and stop of endpoints

    async def start(self, endpoint: RpcEndpoint, node: Node) -> None:
        """Register *endpoint* and start its actor; unregister it if the start fails.

        Args:
            endpoint: the endpoint.
            node: the actors of this process.

        Raises:
            ActorSystemError: the name is taken, or a method of a gateway is missing.
            Exception: any error that its `on_start` raises.
        """
        path = endpoint.path
        if path in self.served:
            raise ActorSystemError(f"an actor named {path} runs in this process already")
        served = self.served[path] = Served(endpoint, self._loop)
        try:
            served.cell = node.start_endpoint(endpoint, endpoint.parent_path, endpoint.name, path)
        except BaseException:
            del self.served[path]
            raise
        try:
            await asyncio.shield(served.started)
        except asyncio.CancelledError:
            served.cell.abort()
            await served.stopped
            raise
        except BaseException:
            await _until_free(served.cell)
            raise

    def started(self, endpoint: RpcEndpoint) -> None:
        """Record that the endpoint runs."""
        served = self.served[endpoint.path]
        if not served.started.done():
            served.started.set_result(None)

    async def stop(self, endpoint: RpcEndpoint) -> None:
        """Stop *endpoint*, end its unanswered asks with `EndpointStateError`, and free its name."""
        served = self.served.get(endpoint.path)
        if served is None or served.endpoint is not endpoint:
            await endpoint.stop()
            return
        endpoint.stoppers.add(asyncio.current_task())
        endpoint.cease()
        served.cell.stop_from_outside()
        await asyncio.shield(served.stopped)

    async def stopped(self, endpoint: RpcEndpoint, error: BaseException | None) -> None:
        """Handle the stop of an endpoint: end its unanswered calls, and free its name.

        Args:
            endpoint: the endpoint.
            error: the error of a failed start; None after a start.
        """
        served = self.served.get(endpoint.path)
        if served is None or served.endpoint is not endpoint:
            return
        try:
            await self._abandon(served)
        finally:
            del self.served[endpoint.path]
            if error is not None and not served.started.done():
                served.started.set_exception(error)
            served.stopped.set_result(None)

    async def _abandon(self, served: Served) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step could not answer
        tasks = [task for task in served.tasks if task not in served.endpoint.stoppers]
        for task in tasks:
            task.cancel()
        promised, served.promised = served.promised, {}
        for future, answer in promised.values():
            future.remove_done_callback(answer)
            stopped: Outcome = self._loop.create_future()
            stopped.cancel()
            answer(stopped)
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ messages

    def dispatch(self, message: list[Any], connection: ServerConnection) -> None:
        """Run one received ASK or TELL (whose correlation id becomes None), in the order of arrival."""
        self.received += 1
        if message[0] == wire.TELL:
            message.insert(1, None)
        elif message[0] != wire.ASK:
            raise WireError(f"a client sent a message of kind {message[0]}")
        _, correlation, path, name, args, token = message
        method: Method | None = None
        try:
            if type(path) is not str or type(name) is not str:
                raise WireError("malformed message: the actor's path and the method's name have to be texts")
            served = self.served.get(path)
            if served is None:
                node = self._node()
                where = "here yet" if node is None else f"at {node.origin.host}:{node.origin.port}"
                raise UnknownActor(f"no actor {path} lives {where}")
            served.received += 1
            endpoint = served.endpoint
            if not endpoint.running:
                raise EndpointStateError(f"{path} is starting or stopping; try again")
            method = served.table.get(name)
            leadership = served.admit(token, None if method is None else method[0])
            if method is None:
                raise UnknownActor(f"{path} has no method {name!r}")
            spec = method[0]
            if type(args) is str and correlation is not None and self._offload.offloader is not None:
                connection.handler_started()
                self._offload.spawn(self._fetch_arguments(message, connection))
                return
            values = spec.decode_arguments(args)
        except UnknownActor as error:
            node = self._node()
            if node is not None:
                node.dead_letter(RpcInvocation(_shown(name)), None, node.ref(_shown(path), 0))
            if correlation is not None:
                self._fail(connection, message, error)
            return
        except (ActorError, ValueError, TypeError, LookupError) as error:
            if connection.recorder is not None and method is not None and not _is_misrouted(error, method[0]):
                self._record(connection, message, method[0], [], None, error)
            self._fail(connection, message, error)
            return
        cell, is_coroutine = served.cell, method[2]
        if cell.is_idle() or (is_coroutine and cell.may_follow()):
            if is_coroutine or leadership is not None:
                self._begin(served, method, values, message, connection, leadership)
            else:
                if current_cell.get() is not cell:  # setting it costs a quarter of a whole dispatch
                    current_cell.set(cell)
                self._call(served, method, values, message, connection)
            return
        call = Call(
            functools.partial(self._begin, served, method, values, message, connection, leadership),
            functools.partial(self._fail, connection, message),
        )
        try:
            cell.deliver(call, None)
        except MailboxFull as error:
            if connection.recorder is not None:
                self._record(connection, message, method[0], values, None, error)
            self._fail(connection, message, error)

    def _record(
        self,
        connection: ServerConnection,
        message: list[Any],
        spec: MethodSpec,
        values: list[Any],
        result: Any,
        error: Exception | None,
    ) -> None:
        recorder = connection.recorder
        if recorder is not None and spec.changes:
            caller, source, path = connection.caller, connection.source, message[2]
            recorder.record(RecordedCall(caller, source, spec.component, path, spec.name, values, result, error))

    def _begin(
        self,
        served: Served,
        method: Method,
        values: list[Any],
        message: list[Any],
        connection: ServerConnection,
        leadership: Leadership | None,
    ) -> None:
        current_cell.set(served.cell)
        acting = ACTING.set(leadership)
        try:
            if not method[2]:
                self._call(served, method, values, message, connection)
                return
            served.cell.hold()  # later calls wait for the task's first step, to keep the order
            self._track(served, connection, self._run(served, method, values, message, connection))
        finally:
            ACTING.reset(acting)

    def _track(self, served: Served, connection: ServerConnection, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that answers a call of *connection*."""
        connection.handler_started()
        task = self._loop.create_task(work)
        served.tasks.add(task)
        task.add_done_callback(functools.partial(_ended, served, connection))

    async def _fetch_arguments(self, message: list[Any], connection: ServerConnection) -> None:
        """Fetch the offloaded arguments of an ASK, then dispatch it; other calls do not wait for it."""
        try:
            arguments = await self._offload.get(message[4])
            if type(arguments) is not list:
                raise WireError(f"the arguments of {_shown(message[3])} that traveled apart are not a list")
        except ActorError as error:
            self._fail(connection, message, error)
        except asyncio.CancelledError:
            self._fail(connection, message, EndpointStateError("the RPC service was closed"))
            raise
        else:
            self.dispatch([*message[:4], arguments, message[5]], connection)
        finally:
            connection.handler_ended()

    def _call(
        self, served: Served, method: Method, values: list[Any], message: list[Any], connection: ServerConnection
    ) -> None:
        self.caller = connection
        try:
            result = method[1](*values)
        except Exception as error:  # any error of a handler goes to the asker
            if connection.recorder is not None:
                self._record(connection, message, method[0], values, None, error)
            self._fail(connection, message, error)
            return
        correlation = message[1]
        if correlation is not None and isinstance(result, asyncio.Future):
            answer = functools.partial(self._promise_kept, served, method[0], values, message, connection)
            served.promised[connection, correlation] = result, answer
            result.add_done_callback(answer)
            return
        if connection.recorder is not None:
            self._record(connection, message, method[0], values, result, None)
        if correlation is not None:
            self._reply(connection, message, served, method[0], result)

    def _promise_kept(
        self,
        served: Served,
        spec: MethodSpec,
        values: list[Any],
        message: list[Any],
        connection: ServerConnection,
        future: Outcome,
    ) -> None:
        """Send the outcome of a plain handler's future."""
        served.promised.pop((connection, message[1]), None)
        error = _stopped(message) if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        result = None if error is not None else future.result()
        if connection.recorder is not None:
            self._record(connection, message, spec, values, result, error)
        if error is None:
            self._reply(connection, message, served, spec, result)
        else:
            self._fail(connection, message, error)

    async def _run(
        self, served: Served, method: Method, values: list[Any], message: list[Any], connection: ServerConnection
    ) -> None:
        served.cell.release()
        try:
            result = await method[1](*values)
        except asyncio.CancelledError:
            stopped = _stopped(message)
            self._record(connection, message, method[0], values, None, stopped)
            self._fail(connection, message, stopped)
            raise
        except Exception as error:  # as in _call
            self._record(connection, message, method[0], values, None, error)
            self._fail(connection, message, error)
        else:
            if connection.recorder is not None:
                self._record(connection, message, method[0], values, result, None)
            if message[1] is not None:
                self._reply(connection, message, served, method[0], result)

    # ------------------------------------------------------------------ answers

    def _reply(
        self, connection: ServerConnection, message: list[Any], served: Served, spec: MethodSpec, result: Any
    ) -> None:
        try:
            value = result if spec.encode_result is None else spec.encode_result(result)
            frame = self._encoder.encode([wire.REPLY, message[1], value])
        except FrameTooLarge as error:
            if self._offload.offloader is None or not connection.fetches_results:
                self._fail(connection, message, error)
            else:
                self._track(served, connection, self._send_apart(connection, message, value))
            return
        except Exception as error:  # a result that cannot be encoded must not leave the asker waiting
            self._fail(connection, message, error)
            return
        connection.send(frame)

    async def _send_apart(self, connection: ServerConnection, message: list[Any], value: Any) -> None:
        try:
            await self._offload.send_result(connection, self._encoder, message[1], value)
        except asyncio.CancelledError:
            self._fail(connection, message, _stopped(message))
            raise
        except ActorError as error:
            self._fail(connection, message, error)

    def _fail(self, connection: ServerConnection, message: list[Any], error: Exception) -> None:
        _, correlation, path, name, *_ = message
        if correlation is None:
            logger.warning(
                "the message %s to %s failed: %s",
                _shown(name),
                _shown(path),
                _shown(codec.encode_error(error)[1]),
                exc_info=not isinstance(error, ActorError),
            )
            return
        connection.send(self._encoder.encode([wire.ERROR, correlation, *codec.encode_error(error)]))


def _shown(value: Any) -> str:
    """Return a short text of a peer's value for the log; the value may be megabytes, or a list too deep to print."""
    return value[:SHOWN] if type(value) is str else f"({type(value).__name__})"


async def _until_free(cell: Cell) -> None:
    """Give the supervisor of an actor that could not start its turn, in which it frees the name."""
    supervisor = cell.parent._target
    for _ in range(TURNS):
        if not isinstance(supervisor, Cell) or supervisor.children.find(cell.ref) is None:
            return
        await asyncio.sleep(0)


def _ended(served: Served, connection: ServerConnection, task: asyncio.Task[None]) -> None:
    served.tasks.discard(task)
    connection.handler_ended()


def _is_misrouted(error: Exception, spec: MethodSpec) -> bool:
    """Return whether a call was meant for another leadership, so that the client repeats it at the leader."""
    return isinstance(error, FencingError) and spec.fenced_by is None


def _stopped(message: list[Any]) -> EndpointStateError:
    return EndpointStateError(f"{message[2]} was stopped before it had answered {message[3]}()")
