"""Gateways whose methods return the answer itself, for people at a prompt: typed, documented, following the leader."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from actors.rpc.gateway import Ask, RpcGateway, gateway_methods

G = TypeVar("G", bound=RpcGateway)

Call = Callable[[Callable[[Any], Any]], Any]
"""Calls a function with the present gateway, and again with another one while the leader changes."""


class SynchronousGateway:
    """Base of the classes that `synchronous` makes."""

    def __init__(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"<{self._description}>"


def synchronous(gateway_type: type[RpcGateway], description: str, call: Call) -> Any:
    """An object with the methods of a gateway; each waits for its reply and returns that.

    Tab completion, ``?`` and signatures are those of the gateway; an ``Ask[T]`` has become ``T``.

    Args:
        gateway_type: declares the methods.
        description: for its repr.
        call: see `Call`.
    """
    methods: dict[str, Any] = {
        name: _waiting(method, name, call) for name, method in gateway_methods(gateway_type).items()
    }
    kind = type(
        f"Synchronous{gateway_type.__name__}", (SynchronousGateway,), {**methods, "__doc__": gateway_type.__doc__}
    )
    return kind(description)


def _waiting(method: Callable[..., Any], name: str, call: Call) -> Callable[..., Any]:
    @functools.wraps(method)
    def wait(_self: Any, *args: Any, **kwargs: Any) -> Any:
        def ask(gateway: Any) -> Any:
            answer = getattr(gateway, name)(*args, **kwargs)
            return answer.result() if isinstance(answer, Ask) else answer

        return call(ask)

    signature, hints = inspect.signature(method), typing.get_type_hints(method)
    answer = hints.get("return")
    if typing.get_origin(answer) is Ask:
        (answer,) = typing.get_args(answer)
    parameters = [
        item.replace(annotation=hints.get(item.name, item.annotation)) for item in signature.parameters.values()
    ]
    wait.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=answer
    )
    return wait
