"""Endpoints that answer the part of a gateway that a benchmark asks for, and refuse the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from actors.errors import ActorSystemError
from actors.rpc.codec import method_specs
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import RPC_MARK, gateways_of, rpc_sync

E = TypeVar("E", bound=type[RpcEndpoint])


def refuses_the_rest(endpoint: E) -> E:
    """A class decorator: what the gateways of *endpoint* declare and it does not implement is an error when asked."""
    for gateway in gateways_of(endpoint):
        for name in method_specs(gateway):
            if not getattr(getattr(endpoint, name), RPC_MARK, False):
                setattr(endpoint, name, rpc_sync(_refusal(endpoint.__name__, name)))
    return endpoint


def _refusal(endpoint: str, name: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any) -> None:
        raise ActorSystemError(f"{endpoint} is a stand-in and does not answer {name}")

    return refuse
