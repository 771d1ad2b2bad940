"""What a gateway class is at run time: the dispatch table of an endpoint, and the class of its remote proxies."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from actors.address import ActorAddress
from actors.errors import ActorSystemError
from actors.rpc import codec
from actors.rpc.codec import MethodSpec
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.fencing import Fence
from actors.rpc.gateway import RPC_MARK, FencingToken, RpcGateway, gateways_of

MethodTable = dict[str, tuple[MethodSpec, Callable[..., Any], bool]]

_proxies: dict[type[RpcGateway], type[Any]] = {}


def method_table(endpoint: RpcEndpoint) -> MethodTable:
    """What each method of *endpoint*'s gateways dispatches to; raises `ActorSystemError` when one is missing."""
    table: MethodTable = {}
    for gateway_type in gateways_of(type(endpoint)):
        for name, spec in codec.method_specs(gateway_type).items():
            handler = getattr(endpoint, name)
            if not getattr(handler, RPC_MARK, False):
                raise ActorSystemError(f"{type(endpoint).__name__} does not implement {gateway_type.__name__}.{name}")
            table[name] = (spec, handler, asyncio.iscoroutinefunction(handler))
    return table


def proxy_type(gateway_type: type[RpcGateway]) -> type[Any]:
    """The class of the remote gateways of one interface: one method per declared method."""
    known = _proxies.get(gateway_type)
    if known is not None:
        return known

    class RemoteGateway(gateway_type):  # type: ignore[valid-type,misc]  # the base is a run-time value, by design
        __slots__ = ("address", "service", "timeout_s", "token")

        def __init__(
            self, service: Any, address: ActorAddress, token: FencingToken | Fence | None, timeout_s: float
        ) -> None:
            self.service = service
            self.address = address
            self.token = token
            self.timeout_s = timeout_s

        def __repr__(self) -> str:
            return f"<{gateway_type.__name__} to {self.address}>"

    def make(spec: MethodSpec) -> Callable[..., Any]:
        if spec.is_ask:

            def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
                arguments = spec.encode_arguments(args, kwargs)
                return self.service.ask(self.address, spec, arguments, self.token, self.timeout_s)

            return ask

        def tell(self: Any, *args: Any, **kwargs: Any) -> None:
            self.service.tell(self.address, spec.name, spec.encode_arguments(args, kwargs), self.token)

        return tell

    for name, spec in codec.method_specs(gateway_type).items():
        function = make(spec)
        functools.update_wrapper(function, getattr(gateway_type, name))
        setattr(RemoteGateway, name, function)
    RemoteGateway.__name__ = RemoteGateway.__qualname__ = f"Remote{gateway_type.__name__}"
    _proxies[gateway_type] = RemoteGateway
    return RemoteGateway
