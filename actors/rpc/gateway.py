"""Typed gateways: the interface by which an endpoint is called (Flink's `RpcGateway`).

A gateway is a class whose methods are declared only. A method that returns ``Ask[T]`` is an *ask*, one that returns
``None`` a *tell*::

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
    """Which leadership a call is meant for: a monotonic epoch and the leader's session id (as Flink's)."""

    epoch: int
    session: str

    def fields(self) -> tuple[int, str]:
        """The token as a message carries it."""
        return self.epoch, self.session


class Ask(Generic[T]):
    """The eventual reply to an ask: awaitable in coroutines of any event loop, a future in plain threads.

    Flink's methods return a CompletableFuture; this is its counterpart. Errors: `AskTimeout` after the gateway's
    time-out, `RecipientUnreachable` when the connection cannot be made or breaks, and whatever the handler raised.
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
        """Wait in a plain thread for the reply, at most *timeout* seconds (default: the gateway's ask time-out).

        Raises:
            RuntimeError: called on the event loop's own thread, where it could only wait for itself.
        """
        if not isinstance(self._future, concurrent.futures.Future) or _runs_here(self._loop):
            raise RuntimeError("Ask.result() would block the actor's own thread; await it instead")
        try:
            return self._future.result(self._deadline_s + 1.0 if timeout is None else timeout)
        except concurrent.futures.TimeoutError as error:
            if self._future.done():
                return self._future.result()  # the reply came just now, or it is itself a TimeoutError
            raise AskTimeout(f"no reply within {timeout if timeout is not None else self._deadline_s:g} s") from error

    def done(self) -> bool:
        """Whether the reply (or its failure) is there."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call *callback* with the underlying future when the reply is there."""
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
        """The actor that is called."""
        raise NotImplementedError


class FencedRpcGateway(RpcGateway):
    """A gateway whose calls carry a `FencingToken`; a stale one is refused before dispatch."""


RPC_MARK = "__rpc_method__"
FENCING_MARK = "__rpc_fencing__"

READS = "nothing"
RECIPIENT = "its recipient"


def reads(declared: D) -> D:
    """Declare that a gateway's method changes nothing: any leader of former times may ask."""
    setattr(declared, FENCING_MARK, READS)
    return declared


def fenced_by(component: str) -> Callable[[D], D]:
    """Declare whose leadership fences a gateway's method, which changes something.

    Args:
        component: the one whose leaders alone call it, such as ``resourcemanager``, or a kind of them, such as
            ``jobmaster``: a call without a leadership of it is refused. Or `RECIPIENT`: others than leaders may call it
            too, and the token of the leadership that the call is meant for fences it.
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
def rpc_sync(  # a Future is a T too: the first that fits is meant
    handler: Callable[Concatenate[S, P], asyncio.Future[T]],
) -> Callable[Concatenate[S, P], Ask[T]]: ...


@typing.overload
def rpc_sync(handler: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Ask[T]]: ...


def rpc_sync(handler: Callable[..., Any]) -> Callable[..., Ask[Any]]:
    """Mark a plain method as the implementation of an ask: it runs to its end without interleaving (the fast path).

    It may return an `asyncio.Future` instead of the result: the reply is sent when that is done, with no task for it.
    """
    setattr(handler, RPC_MARK, True)
    return typing.cast("Callable[..., Ask[Any]]", handler)


def rpc_tell(handler: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Mark a plain method as the implementation of a tell of the endpoint's gateway."""
    setattr(handler, RPC_MARK, True)
    return handler


def gateway_methods(gateway: type[RpcGateway]) -> dict[str, Callable[..., Any]]:
    """All methods that *gateway* declares, inherited ones included, by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(gateway.__mro__):
        if issubclass(base, RpcGateway):
            declared = {name: value for name, value in vars(base).items() if inspect.isfunction(value)}
            methods.update({name: value for name, value in declared.items() if not name.startswith("_")})
    return methods


def gateways_of(endpoint_type: type) -> list[type[RpcGateway]]:
    """The gateway interfaces among the bases of an endpoint class."""
    return [
        base
        for base in endpoint_type.__mro__
        if issubclass(base, RpcGateway)
        and base not in (RpcGateway, FencedRpcGateway)
        and not getattr(base, "_is_endpoint", False)
    ]
