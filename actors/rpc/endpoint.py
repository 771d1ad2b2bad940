"""Endpoints: the actors whose methods gateways call, one message at a time (Flink's `RpcEndpoint`).

With Flink an `RpcEndpoint` has an actor of Pekko's, to which the calls of its gateways are messages. Here it is one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from actors.actor import Actor
from actors.address import ActorAddress
from actors.errors import AskTimeout, EndpointStateError, FencingError
from actors.rpc.fencing import Fences
from actors.rpc.gateway import Ask, FencingToken, RpcGateway

if TYPE_CHECKING:
    from actors.rpc.service import RpcService

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)

USER = "/user"
SYSTEM = "/system"


class RpcEndpoint(Actor):
    """Base of every actor that is reached through a gateway.

    It is an actor like others: it has a path, a parent, children that it supervises, it watches and is watched, has
    timers and `receive` for messages that are no calls. `RpcService.start_server` gives it its place in the actor
    system of the process.

    All handlers, `on_start`, `on_stop` and everything scheduled by the endpoint run on one thread, its *main thread*; a
    coroutine handler lets other calls in at its awaits, a coroutine `receive` lets in nothing. A call's error is its
    caller's. Blocking work belongs into `run_blocking`.

    Args:
        service: the RPC service of the process.
        name: last element of the actor's path, e.g. ``dispatcher``; unique among the children of its parent.
    """

    log: logging.Logger = logging.getLogger(__name__)  # type: ignore[assignment]  # lines have no path before them
    """The logger of the endpoint's class."""
    parent_path: str | None = USER
    """The path of its parent; None for what carries the messages of actors, and so is above none and below none."""
    _is_endpoint = True

    def __init__(self, service: RpcService, name: str) -> None:
        self.service = service
        self.name = name
        self.log = logging.getLogger(f"{type(self).__module__}.{type(self).__name__}")
        self.termination: asyncio.Future[None] = service.loop.create_future()
        self.fences = Fences()
        self.running = False
        self.stoppers: set[asyncio.Task[Any] | None] = set()
        """The tasks that wait for the end of the endpoint, and are not ended with it though they may be its own."""
        self._spawned: set[asyncio.Task[Any]] = set()
        self._scheduled: set[asyncio.TimerHandle] = set()
        self._calls: set[Callable[[Exception], None]] = set()
        self._main_thread = threading.get_ident()
        self._io_threads: ThreadPoolExecutor | None = None

    @property
    def path(self) -> str:
        """The actor's path within its system."""
        return f"{self.parent_path or SYSTEM}/{self.name}"

    @property
    def address(self) -> ActorAddress:
        """The actor's full address."""
        return self.service.address_of(self.path)

    async def on_start(self) -> None:
        """Called once, on the main thread, before the first message; override to acquire resources."""

    async def on_stop(self) -> None:
        """Called once after the last message; override to release resources."""

    def check_token(self, token: FencingToken | None) -> None:
        """Refuse a call whose fencing token does not fit; an unfenced endpoint takes every call."""

    def validate_main_thread(self) -> None:
        """Assert that the caller is on the endpoint's main thread (Flink's `MainThreadValidatorUtil`)."""
        if threading.get_ident() != self._main_thread:
            raise EndpointStateError(f"{self.path} was touched from a thread that is not its main thread")

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run a coroutine on the main thread beside the handlers; its failure goes, with *what*, to `on_error`."""
        task = self.service.loop.create_task(work, name=f"{self.path}:{what}")
        self._spawned.add(task)
        task.add_done_callback(functools.partial(self._task_done, what))
        return task

    def _task_done(self, what: str, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_error(what, error)

    def on_error(self, what: str, error: BaseException) -> None:
        """An internal step failed with nobody waiting for its result; the default logs it with its traceback."""
        self.log.error("%s: %s failed", self.path, what, exc_info=error)

    def schedule_run_async(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Run *action* on the main thread after *delay_s* seconds (Flink's `scheduleRunAsync`).

        Returns:
            What cancels it.

        Raises:
            EndpointStateError: called from another thread; `run_async` may be.
        """
        self.validate_main_thread()

        def fire() -> None:
            self._scheduled.discard(handle)
            try:
                action()
            except Exception as error:  # a timer has no caller: the endpoint's error hook is the one to know
                self.on_error(getattr(action, "__qualname__", "timer"), error)

        handle = self.service.loop.call_later(delay_s, fire)
        self._scheduled.add(handle)
        return handle

    def run_async(self, action: Callable[[], None]) -> None:
        """Run *action* on the main thread soon; may be called from any thread (Flink's `runAsync`)."""
        self.service.loop.call_soon_threadsafe(lambda: self.schedule_run_async(0, action))

    def call_async(self, function: Callable[[], T], timeout_s: float | None = None) -> Ask[T]:
        """Call *function* on the main thread soon, and get its result; from any thread (Flink's `callAsync`).

        Args:
            function: called as a message would be, between the handlers.
            timeout_s: seconds until the result is an `AskTimeout` (default ``rpc.ask-timeout``).

        Raises:
            EndpointStateError: (as the result) the endpoint stops before the call had its turn.
        """
        allowed_s = self.service.config.ask_timeout_s if timeout_s is None else timeout_s
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def give_up(error: Exception) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        def arrange() -> None:
            if self.termination.done():
                give_up(EndpointStateError(f"{self.path} has stopped"))
                return
            late = self.service.loop.call_later(
                allowed_s, give_up, AskTimeout(f"{self.path} did not call {function!r} within {allowed_s:g} s")
            )

            def call() -> None:
                self._calls.discard(give_up)
                late.cancel()
                if outcome.done():
                    return
                try:
                    outcome.set_result(function())
                except Exception as error:  # the caller's to know
                    outcome.set_exception(error)

            self._calls.add(give_up)
            self.schedule_run_async(0, call)

        self.service.loop.call_soon_threadsafe(arrange)
        return Ask(outcome, self.service.loop, allowed_s)

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """A gateway for this endpoint's own calls; see `RpcService.gateway`. A leader's carries its leadership."""
        return self.service.gateway(address, gateway_type, token, timeout_s)

    def self_gateway(self, gateway_type: type[G]) -> G:
        """A gateway to this endpoint itself (Flink's `getSelfGateway`): its calls are messages, taken in their turn.

        That of a fenced endpoint carries the token of now, so what is sent to itself under one leadership is refused
        under the next.
        """
        return self.service.gateway(self.address, gateway_type, self._own_token())

    def _own_token(self) -> FencingToken | None:
        return None

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking work on the endpoint's I/O threads and come back to the main thread with its result."""
        if self._io_threads is None:
            self._io_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix=f"{self.name}-io")
        return await self.service.loop.run_in_executor(self._io_threads, function, *args)

    async def pre_start(self) -> None:
        """Run `on_start`, and take calls from then on; where that fails, `on_stop` follows it."""
        try:
            await self.on_start()
        except BaseException as error:
            await self._leave(error)
            raise
        self.running = True
        self.service.started(self)

    async def post_stop(self) -> None:
        """Run `on_stop`, and refuse what has not been answered."""
        await self._leave(None)

    async def _leave(self, error: BaseException | None) -> None:
        try:
            await self.stop()
        finally:
            await self.service.stopped(self, error)

    def cease(self) -> None:
        """Take no calls any more, and cancel timers; idempotent."""
        self.running = False
        for handle in list(self._scheduled):
            handle.cancel()
        self._scheduled.clear()
        for give_up in list(self._calls):
            give_up(EndpointStateError(f"{self.path} was stopped before the call had its turn"))
        self._calls.clear()

    async def stop(self) -> None:
        """Take no calls any more, run `on_stop`, cancel timers and tasks; idempotent."""
        if self.termination.done():
            return
        self.cease()
        try:
            await self.on_stop()
        finally:
            self.stoppers.add(asyncio.current_task())
            tasks = [task for task in self._spawned if task not in self.stoppers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._io_threads is not None:
                self._io_threads.shutdown(wait=False, cancel_futures=True)
            if not self.termination.done():
                self.termination.set_result(None)


class FencedRpcEndpoint(RpcEndpoint):
    """An endpoint that serves only under a leadership: calls must carry its token (Flink's `FencedRpcEndpoint`).

    Without a token of its own it is a standby and refuses every call.
    """

    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.fencing_token: FencingToken | None = None
        self.leads_since_ms = 0
        """When the present leadership was taken, in milliseconds since 1970; of no meaning without one."""

    def _own_token(self) -> FencingToken | None:
        return self.fencing_token

    def check_token(self, token: FencingToken | None) -> None:
        """Refuse a call made under another leadership; raises `FencingError`."""
        if self.fencing_token is None:
            raise FencingError(f"{self.path} is not the leader at present; look the leader up again")
        if token != self.fencing_token:
            raise FencingError(f"the call to {self.path} was meant for another leadership; look the leader up again")
