"""Endpoints: actors whose methods gateways call, one message at a time (Flink's `RpcEndpoint`).

In Flink an `RpcEndpoint` has a Pekko actor, which receives the calls of its gateways as messages. Here the endpoint
itself is the actor.
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
    """Base of every actor with a gateway.

    It is an ordinary actor: it has a path, a parent, timers, and children that it supervises. It can watch and be
    watched, and handles messages that are not calls in `receive`. `RpcService.start_server` adds it to the actor system
    of the process.

    All handlers, `on_start`, `on_stop` and everything that the endpoint schedules run on one thread, its *main thread*.
    Other calls run at the awaits of a coroutine handler; nothing runs at the awaits of a coroutine `receive`. The error
    of a call goes to its caller. Use `run_blocking` for blocking work.

    Args:
        service: the RPC service of the process.
        name: last element of the actor's path, e.g. ``dispatcher``; unique among its parent's children.
    """

    log: logging.Logger = logging.getLogger(__name__)  # type: ignore[assignment]  # lines have no path before them
    """The logger of the endpoint's class."""
    parent_path: str | None = USER
    """The path of its parent; None for endpoints that carry the messages of actors, which have no parent."""
    _is_endpoint = True

    def __init__(self, service: RpcService, name: str) -> None:
        self.service = service
        self.name = name
        self.log = logging.getLogger(f"{type(self).__module__}.{type(self).__name__}")
        self.termination: asyncio.Future[None] = service.loop.create_future()
        self.fences = Fences()
        self.running = False
        self.stoppers: set[asyncio.Task[Any] | None] = set()
        """Tasks that wait for the end of the endpoint; it does not cancel them, even if they are its own."""
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
        """Hook that runs once, on the main thread, before the first message; override it to acquire resources."""

    async def on_stop(self) -> None:
        """Hook that runs once after the last message; override it to release resources."""

    def check_token(self, token: FencingToken | None) -> None:
        """Reject a call whose fencing token does not fit; an unfenced endpoint accepts every call."""

    def validate_main_thread(self) -> None:
        """Assert that the caller is on the endpoint's main thread (Flink's `MainThreadValidatorUtil`)."""
        if threading.get_ident() != self._main_thread:
            raise EndpointStateError(f"{self.path} was touched from a thread that is not its main thread")

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run a coroutine on the main thread next to the handlers; `on_error` gets *what* and its error if it fails."""
        task = self.service.loop.create_task(work, name=f"{self.path}:{what}")
        self._spawned.add(task)
        task.add_done_callback(functools.partial(self._task_done, what))
        return task

    def _task_done(self, what: str, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_error(what, error)

    def on_error(self, what: str, error: BaseException) -> None:
        """Handle the error of an internal step without a caller; the default logs it with its traceback."""
        self.log.error("%s: %s failed", self.path, what, exc_info=error)

    def schedule_run_async(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Run *action* on the main thread after *delay_s* seconds (Flink's `scheduleRunAsync`).

        Returns:
            The handle that cancels it.

        Raises:
            EndpointStateError: called from another thread; use `run_async` there.
        """
        self.validate_main_thread()

        def fire() -> None:
            self._scheduled.discard(handle)
            try:
                action()
            except Exception as error:  # a timer has no caller: the endpoint's error hook gets it
                self.on_error(getattr(action, "__qualname__", "timer"), error)

        handle = self.service.loop.call_later(delay_s, fire)
        self._scheduled.add(handle)
        return handle

    def run_async(self, action: Callable[[], None]) -> None:
        """Run *action* on the main thread soon; callable from any thread (Flink's `runAsync`)."""
        self.service.loop.call_soon_threadsafe(lambda: self.schedule_run_async(0, action))

    def call_async(self, function: Callable[[], T], timeout_s: float | None = None) -> Ask[T]:
        """Call *function* on the main thread soon and return an ask for its result (Flink's `callAsync`).

        It is callable from any thread.

        Args:
            function: called like a message, between the handlers.
            timeout_s: seconds until the ask ends in `AskTimeout`; default: ``rpc.ask-timeout``.

        Raises:
            EndpointStateError: (from the ask) the endpoint stopped before the call had its turn.
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
                except Exception as error:  # goes to the caller
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
        """Return a gateway for this endpoint's calls, see `RpcService.gateway`; a leader's carries its leadership."""
        return self.service.gateway(address, gateway_type, token, timeout_s)

    def self_gateway(self, gateway_type: type[G]) -> G:
        """Return a gateway to this endpoint itself (Flink's `getSelfGateway`). Its calls wait in the mailbox as usual.

        The gateway of a fenced endpoint carries its present token, so a call sent under one leadership is rejected
        under the next.
        """
        return self.service.gateway(self.address, gateway_type, self._own_token())

    def _own_token(self) -> FencingToken | None:
        return None

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking work on the endpoint's I/O threads and return its result on the main thread."""
        if self._io_threads is None:
            self._io_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix=f"{self.name}-io")
        return await self.service.loop.run_in_executor(self._io_threads, function, *args)

    async def pre_start(self) -> None:
        """Run `on_start`, then accept calls; if it fails, run `on_stop`."""
        try:
            await self.on_start()
        except BaseException as error:
            await self._leave(error)
            raise
        self.running = True
        self.service.started(self)

    async def post_stop(self) -> None:
        """Run `on_stop`, and end the unanswered calls."""
        await self._leave(None)

    async def _leave(self, error: BaseException | None) -> None:
        try:
            await self.stop()
        finally:
            await self.service.stopped(self, error)

    def cease(self) -> None:
        """Stop accepting calls, and cancel timers; idempotent."""
        self.running = False
        for handle in list(self._scheduled):
            handle.cancel()
        self._scheduled.clear()
        for give_up in list(self._calls):
            give_up(EndpointStateError(f"{self.path} was stopped before the call had its turn"))
        self._calls.clear()

    async def stop(self) -> None:
        """Stop accepting calls, run `on_stop`, cancel timers and tasks; idempotent."""
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
    """An endpoint that serves only while it leads; calls must carry its token (Flink's `FencedRpcEndpoint`).

    Without a token of its own it is a standby and rejects every call.
    """

    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.fencing_token: FencingToken | None = None
        self.leads_since_ms = 0
        """Start of the present leadership, in milliseconds since 1970; undefined while it does not lead."""

    def _own_token(self) -> FencingToken | None:
        return self.fencing_token

    def check_token(self, token: FencingToken | None) -> None:
        """Reject a call that addresses another leadership; raises `FencingError`."""
        if self.fencing_token is None:
            raise FencingError(f"{self.path} is not the leader at present; look the leader up again")
        if token != self.fencing_token:
            raise FencingError(f"the call to {self.path} was meant for another leadership; look the leader up again")
