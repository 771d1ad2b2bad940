"""From a received message to the handler, and from its outcome to the reply (Flink's `RpcServer`)."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.errors import (
    ActorError,
    ActorSystemError,
    EndpointStateError,
    FencingError,
    FrameTooLarge,
    UnknownActor,
    WireError,
)
from actors.rpc import codec, wire
from actors.rpc.codec import MethodSpec
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.fencing import ACTING, Leadership, received
from actors.rpc.offload import Offload
from actors.rpc.tables import MethodTable, method_table

if TYPE_CHECKING:
    from actors.rpc.connection import ServerConnection

logger = logging.getLogger(__name__)

SHOWN = 1000
PLAIN_TOKEN = 2
Outcome = asyncio.Future[Any]


class Served:
    """An endpoint of this process: its dispatch table, and the calls that it has not answered yet.

    Args:
        endpoint: the endpoint.
    """

    __slots__ = ("_own_check", "endpoint", "promised", "received", "table", "tasks")

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self.endpoint = endpoint
        self.table: MethodTable = method_table(endpoint)
        self.received = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.promised: dict[tuple[ServerConnection, int], tuple[Outcome, Callable[[Outcome], None]]] = {}
        kind = type(endpoint)
        self._own_check = kind.check_token not in (RpcEndpoint.check_token, FencedRpcEndpoint.check_token)

    def admit(self, token: Any, spec: MethodSpec | None) -> Leadership | None:
        """Check a call's fencing fields (as they came over the wire): the one place where calls are refused as stale.

        Args:
            token: the fields.
            spec: the method that is called; None where there is none of that name.

        Returns:
            the leadership that the call acts under.

        Raises:
            FencingError: it is meant for another leadership, or acts under a former one, or under none where the
                method wants one.
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
    """The endpoints of a process, by path. All of it runs on the loop's thread.

    Args:
        loop: runs the coroutine handlers.
        encoder: makes the frames of the replies.
        location: ``host:port`` of this process, for error messages.
        offload: for arguments and results that do not fit into a frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        encoder: wire.FrameEncoder,
        location: Callable[[], str],
        offload: Offload,
    ) -> None:
        self.served: dict[str, Served] = {}
        self.caller: ServerConnection | None = None
        """Whose message a plain handler is handling."""
        self.received = 0
        """How many messages came since the start."""
        self.dead_letters = 0
        """How many of them were for actors or methods that are not here."""
        self._loop = loop
        self._encoder = encoder
        self._location = location
        self._offload = offload

    # ------------------------------------------------------------------ endpoints come and go

    async def start(self, endpoint: RpcEndpoint) -> None:
        """Register and start *endpoint*; raises `ActorSystemError`, or what its `on_start` does: then it is not."""
        if endpoint.path in self.served:
            raise ActorSystemError(f"an actor named {endpoint.path} runs in this process already")
        self.served[endpoint.path] = Served(endpoint)
        try:
            await endpoint.start()
        except BaseException:
            del self.served[endpoint.path]
            await endpoint.stop()
            raise

    async def stop(self, endpoint: RpcEndpoint) -> None:
        """Stop *endpoint*, end what it has not answered (its askers get `EndpointStateError`), and free its name."""
        served = self.served.get(endpoint.path)
        try:
            await endpoint.stop()
        finally:
            if served is not None and served.endpoint is endpoint:
                await self._abandon(served)
                if self.served.get(endpoint.path) is served:
                    del self.served[endpoint.path]

    async def _abandon(self, served: Served) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step could not answer
        own = asyncio.current_task()
        tasks = [task for task in served.tasks if task is not own]
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
        """Run one received ASK or TELL; called on the main thread, in the order of arrival."""
        self.received += 1
        if message[0] == wire.ASK:
            _, correlation, path, name, args, token = message
        elif message[0] == wire.TELL:
            _, path, name, args, token = message
            correlation = None
        else:
            raise WireError(f"a client sent a message of kind {message[0]}")
        try:
            if type(path) is not str or type(name) is not str:
                raise WireError("malformed message: the actor's path and the method's name have to be texts")
            served = self.served.get(path)
            if served is None:
                self.dead_letters += 1
                raise UnknownActor(f"no actor {path} lives at {self._location()}")
            served.received += 1
            endpoint = served.endpoint
            if not endpoint.running:
                raise EndpointStateError(f"{path} is starting or stopping; try again")
            method = served.table.get(name)
            leadership = served.admit(token, None if method is None else method[0])
            if method is None:
                self.dead_letters += 1
                raise UnknownActor(f"{path} has no method {name!r}")
            spec = method[0]
            if type(args) is str and correlation is not None and self._offload.offloader is not None:
                connection.handler_started()
                self._offload.spawn(self._fetch_arguments(message, connection))
                return
            values = spec.decode_arguments(args)
        except (ActorError, ValueError, TypeError, LookupError) as error:
            self._fail(connection, correlation, path, name, error)
            return
        if leadership is None:
            self._begin(served, method, values, correlation, connection)
            return
        acting = ACTING.set(leadership)
        try:
            self._begin(served, method, values, correlation, connection)
        finally:
            ACTING.reset(acting)

    def _begin(
        self,
        served: Served,
        method: tuple[MethodSpec, Callable[..., Any], bool],
        values: list[Any],
        correlation: int | None,
        connection: ServerConnection,
    ) -> None:
        spec, handler, is_coroutine = method
        endpoint = served.endpoint
        if is_coroutine:
            endpoint.pending_starts += 1
            connection.handler_started()
            task = self._loop.create_task(self._run(served, spec, handler, values, correlation, connection))
            served.tasks.add(task)
            task.add_done_callback(functools.partial(_ended, served, connection))
        elif endpoint.pending_starts:
            # An earlier message of this endpoint waits for its first step: queue behind it, so that order holds.
            self._loop.call_soon(self._call, served, spec, handler, values, correlation, connection)
        else:
            self._call(served, spec, handler, values, correlation, connection)

    async def _fetch_arguments(self, message: list[Any], connection: ServerConnection) -> None:
        """Dispatch an ASK whose arguments travel apart once they are here; others are not kept waiting for it."""
        _, correlation, path, name, key, _ = message
        try:
            arguments = await self._offload.get(key)
            if type(arguments) is not list:
                raise WireError(f"the arguments of {_shown(name)} that traveled apart are no list")
        except ActorError as error:
            self._fail(connection, correlation, path, name, error)
        except asyncio.CancelledError:
            self._fail(connection, correlation, path, name, EndpointStateError("the RPC service was closed"))
            raise
        else:
            self.dispatch([*message[:4], arguments, message[5]], connection)
        finally:
            connection.handler_ended()

    def _call(
        self,
        served: Served,
        spec: MethodSpec,
        handler: Callable[..., Any],
        values: list[Any],
        correlation: int | None,
        connection: ServerConnection,
    ) -> None:
        self.caller = connection
        try:
            result = handler(*values)
        except Exception as error:  # a handler's failure is the asker's to know, whatever it is
            self._fail(connection, correlation, served.endpoint.path, spec.name, error)
            return
        if correlation is None:
            return
        if isinstance(result, asyncio.Future):
            answer = functools.partial(self._promise_kept, served, spec, correlation, connection)
            served.promised[connection, correlation] = result, answer
            result.add_done_callback(answer)
        else:
            self._reply(connection, correlation, served, spec, result)

    def _promise_kept(
        self, served: Served, spec: MethodSpec, correlation: int, connection: ServerConnection, future: Outcome
    ) -> None:
        """A plain handler's future is done."""
        served.promised.pop((connection, correlation), None)
        if future.cancelled():
            self._fail(connection, correlation, served.endpoint.path, spec.name, _stopped(served, spec))
        elif (error := future.exception()) is None:
            self._reply(connection, correlation, served, spec, future.result())
        elif isinstance(error, Exception):
            self._fail(connection, correlation, served.endpoint.path, spec.name, error)
        else:
            raise error

    async def _run(
        self,
        served: Served,
        spec: MethodSpec,
        handler: Callable[..., Any],
        values: list[Any],
        correlation: int | None,
        connection: ServerConnection,
    ) -> None:
        served.endpoint.pending_starts -= 1
        try:
            result = await handler(*values)
        except asyncio.CancelledError:
            self._fail(connection, correlation, served.endpoint.path, spec.name, _stopped(served, spec))
            raise
        except Exception as error:  # as in _call
            self._fail(connection, correlation, served.endpoint.path, spec.name, error)
        else:
            if correlation is not None:
                self._reply(connection, correlation, served, spec, result)

    # ------------------------------------------------------------------ answers

    def _reply(
        self, connection: ServerConnection, correlation: int, served: Served, spec: MethodSpec, result: Any
    ) -> None:
        try:
            value = result if spec.encode_result is None else spec.encode_result(result)
            frame = self._encoder.encode([wire.REPLY, correlation, value])
        except FrameTooLarge as error:
            if self._offload.offloader is None or not connection.fetches_results:
                self._fail(connection, correlation, served.endpoint.path, spec.name, error)
                return
            task = self._loop.create_task(self._send_apart(connection, correlation, served, spec, value))
            connection.handler_started()
            served.tasks.add(task)
            task.add_done_callback(functools.partial(_ended, served, connection))
            return
        except Exception as error:  # a result that cannot be encoded must not leave the asker waiting
            self._fail(connection, correlation, served.endpoint.path, spec.name, error)
            return
        connection.send(frame)

    async def _send_apart(
        self, connection: ServerConnection, correlation: int, served: Served, spec: MethodSpec, value: Any
    ) -> None:
        try:
            await self._offload.send_result(connection, self._encoder, correlation, value)
        except asyncio.CancelledError:
            self._fail(connection, correlation, served.endpoint.path, spec.name, _stopped(served, spec))
            raise
        except ActorError as error:
            self._fail(connection, correlation, served.endpoint.path, spec.name, error)

    def _fail(
        self, connection: ServerConnection, correlation: int | None, path: str, name: str, error: Exception
    ) -> None:
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
    """What a peer sent, for the log: it may be megabytes, or a list too deep for its text."""
    return value[:SHOWN] if type(value) is str else f"({type(value).__name__})"


def _ended(served: Served, connection: ServerConnection, task: asyncio.Task[None]) -> None:
    served.tasks.discard(task)
    connection.handler_ended()


def _stopped(served: Served, spec: MethodSpec) -> EndpointStateError:
    return EndpointStateError(f"{served.endpoint.path} was stopped before it had answered {spec.name}()")
