"""Typed gateways: the interfaces by which callers reach endpoints (Flink's `RpcGateway`).

A gateway is a class that only declares its methods. A method that returns ``Ask[T]`` is an *ask*; one that returns
``None`` is a *tell*::

    class GreeterGateway(RpcGateway):
        def greet(self, name: str) -> Ask[str]: ...
        def note(self, text: str) -> None: ...

The endpoint implements the gateway with the `rpc` decorator, so that mypy checks both sides against one declaration::

    class Greeter(RpcEndpoint, GreeterGateway):
        @rpc
        async def greet(self, name: str) -> str: ...

        @rpc_tell
        def note(self, text: str) -> None: ...
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import typing
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from actors.address import ActorAddress
from actors.errors import AskTimeout

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
D = TypeVar("D", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """The leadership that a call addresses: a monotonic epoch and the leader's session id (as in Flink)."""

    epoch: int
    session: str

    def fields(self) -> tuple[int, str]:
        """Return the fields of the token in a message."""
        return self.epoch, self.session


class Ask(Generic[T]):
    """The future reply to an ask: awaitable in coroutines of any event loop; plain threads call `result`.

    It is the counterpart of the CompletableFuture that Flink's methods return. Errors: `AskTimeout` after the gateway's
    timeout, `RecipientUnreachable` when the connection fails or breaks, and any error that the handler raised.
    """

    __slots__ = ("_deadline_s", "_future", "_loop")

    def __init__(
        self,
        future: asyncio.Future[T] | concurrent.futures.Future[T],
        loop: asyncio.AbstractEventLoop | None,
        deadline_s: float,
    ) -> None:
        self._future = future
        self._loop = loop
        self._deadline_s = deadline_s

    def __await__(self) -> Generator[Any, None, T]:
        if isinstance(self._future, concurrent.futures.Future):
            return asyncio.wrap_future(self._future).__await__()
        return self._future.__await__()

    def result(self, timeout: float | None = None) -> T:
        """Wait in a plain thread for the reply, at most *timeout* seconds (default: the gateway's ask timeout).

        Raises:
            RuntimeError: called on the event loop's own thread, where it would wait for itself.
        """
        if not isinstance(self._future, concurrent.futures.Future) or _runs_here(self._loop):
            raise RuntimeError("Ask.result() would block the actor's own thread; await it instead")
        try:
            return self._future.result(self._deadline_s + 1.0 if timeout is None else timeout)
        except concurrent.futures.TimeoutError as error:
            if self._future.done():
                return self._future.result()  # the reply has just come, or is itself a TimeoutError
            raise AskTimeout(f"no reply within {timeout if timeout is not None else self._deadline_s:g} s") from error

    def done(self) -> bool:
        """Return whether the reply or a failure has come."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call *callback* with the underlying future when the reply has come."""
        self._future.add_done_callback(callback)


def _runs_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class RpcGateway:
    """Base of all gateways."""

    @property
    def address(self) -> ActorAddress:
        """Address of the called actor."""
        raise NotImplementedError


class FencedRpcGateway(RpcGateway):
    """A gateway whose calls carry a `FencingToken`; the receiver rejects a stale one before dispatch."""


RPC_MARK = "__rpc_method__"
FENCING_MARK = "__rpc_fencing__"

READS = "nothing"
RECIPIENT = "its recipient"


def reads(declared: D) -> D:
    """Declare that a gateway's method changes nothing, so that former leaders may call it."""
    setattr(declared, FENCING_MARK, READS)
    return declared


def fenced_by(component: str) -> Callable[[D], D]:
    """Declare which leadership fences a gateway's method, because the method changes something.

    Args:
        component: the component whose leaders alone may call it, such as ``resourcemanager``, or the prefix of several
            components, such as ``jobmaster``. The receiver rejects a call without a leadership of it. With `RECIPIENT`
            not only leaders may call it, and the token of the leadership that the call addresses fences it.
    """

    def mark(declared: D) -> D:
        setattr(declared, FENCING_MARK, component)
        return declared

    return mark


def rpc(
    handler: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Ask[T]]:
    """Mark a coroutine method as the implementation of an ask of the endpoint's gateway."""
    setattr(handler, RPC_MARK, True)
    return typing.cast("Callable[Concatenate[S, P], Ask[T]]", handler)


@typing.overload
def rpc_sync(  # a Future is a T too, so this overload comes first
    handler: Callable[Concatenate[S, P], asyncio.Future[T]],
) -> Callable[Concatenate[S, P], Ask[T]]: ...


@typing.overload
def rpc_sync(handler: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Ask[T]]: ...


def rpc_sync(handler: Callable[..., Any]) -> Callable[..., Ask[Any]]:
    """Mark a plain method as the implementation of an ask; it runs without interruption (the fast path).

    It may return an `asyncio.Future` instead of the result. The reply leaves when that is done, without a task for it.
    """
    setattr(handler, RPC_MARK, True)
    return typing.cast("Callable[..., Ask[Any]]", handler)


def rpc_tell(handler: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Mark a plain method as the implementation of a tell of the endpoint's gateway."""
    setattr(handler, RPC_MARK, True)
    return handler


def gateway_methods(gateway: type[RpcGateway]) -> dict[str, Callable[..., Any]]:
    """Return all methods that *gateway* declares, including inherited ones, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(gateway.__mro__):
        if issubclass(base, RpcGateway):
            declared = {name: value for name, value in vars(base).items() if inspect.isfunction(value)}
            methods.update({name: value for name, value in declared.items() if not name.startswith("_")})
    return methods


def gateways_of(endpoint_type: type) -> list[type[RpcGateway]]:
    """Return the gateway interfaces among the bases of an endpoint class."""
    return [
        base
        for base in endpoint_type.__mro__
        if issubclass(base, RpcGateway)
        and base not in (RpcGateway, FencedRpcGateway)
        and not getattr(base, "_is_endpoint", False)
    ]
