"""Conversion of values to MessagePack and back by the type hints of gateways (cattrs), and of errors by a registry."""

from __future__ import annotations

import functools
import inspect
import traceback
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cattrs.cols import list_structure_factory
from cattrs.preconf.msgpack import make_converter

import actors.errors
from actors.address import ActorAddress
from actors.errors import ActorError, RemoteError, WireError
from actors.own_modules import wire_name
from actors.rpc.fencing import Fence
from actors.rpc.gateway import FENCING_MARK, READS, RECIPIENT, Ask, FencingToken, RpcGateway, gateway_methods

ERROR_TEXT_LIMIT = 32 * 1024

_PLAIN = (str, int, float, bool, bytes, type(None))
Hook = Callable[[Any], Any]
E = TypeVar("E", bound=type[Exception])

converter = make_converter()


def _expect(value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise WireError(f"expected {kind}, got {type(value).__name__}")
    return value


# cattrs would coerce "3" to 3 and 3 to "3"; on the wire a wrong type is the sender's error. Subclasses of str (ids)
# check themselves in their constructor.
converter.register_structure_hook(int, lambda value, _: _expect(value, int))
converter.register_structure_hook(
    str, lambda value, hint: _expect(value, str) if hint is str else hint(_expect(value, str))
)
converter.register_structure_hook(bool, lambda value, _: _expect(value, bool))
converter.register_structure_hook(bytes, lambda value, _: _expect(value, bytes))
converter.register_structure_hook(float, lambda value, _: float(_expect(value, (int, float))))


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint)


@converter.register_structure_hook_factory(lambda hint: _origin(hint) is list)
def _list_hook(hint: Any) -> Callable[[Any, Any], Any]:
    # cattrs iterates over any value: the text "ab" would become the list ["a", "b"].
    structure = list_structure_factory(hint, converter)
    return lambda value, _: structure(_expect(value, (list, tuple)), hint)


@converter.register_structure_hook_factory(
    lambda hint: _origin(hint) is tuple and typing.get_args(hint)[-1:] == (Ellipsis,)
)
def _tuple_hook(hint: Any) -> Callable[[Any, Any], Any]:
    as_list: Any = types.GenericAlias(list, typing.get_args(hint)[:1])
    structure = converter.get_structure_hook(as_list)
    return lambda value, _: tuple(structure(value, as_list))


# The hooks by type. cattrs has such a table too, but clears it for each new tuple or list type. It then compiles the
# same dataclasses again, which takes 28 ms in the process of a JobMaster, for a job of one task.
_unstructure_hook: Callable[[Any], Hook] = functools.cache(converter.get_unstructure_hook)
_structure_hook: Callable[[Any], Callable[[Any, Any], Any]] = functools.cache(converter.get_structure_hook)


def to_plain(value: Any) -> Any:
    """Turn a dataclass (or a collection of such) into plain MessagePack values."""
    return _unstructure_hook(type(value))(value)


def from_plain(value: Any, hint: Any) -> Any:
    """Rebuild a value of type *hint* from plain values; raises `WireError` when it does not fit."""
    try:
        return _structure_hook(hint)(value, hint)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"a value does not fit {hint}: {_first_cause(error)}") from error


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """Properties of a gateway method for the wire.

    `defaults` are those of its last parameters. `plain` holds its parameters' types if all travel unchanged, else None.
    `fenced_by` is the component whose leaders alone may call it. `changes` is False for methods that only read.
    `component` is the gateway's name in lower case, such as ``dispatcher``.
    """

    name: str
    signature: inspect.Signature
    is_ask: bool
    encoders: tuple[Hook | None, ...]
    decoders: tuple[Hook, ...]
    defaults: tuple[Any, ...]
    encode_result: Hook | None
    decode_result: Hook
    plain: tuple[type, ...] | None
    fenced_by: str | None = None
    changes: bool = True
    component: str = ""

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Bind and encode the arguments of a call; raises TypeError as a local call would.

        Arguments behind the last given one stay away: the receiver fills in its defaults. So a parameter may be added,
        and only calls that use it fail at a receiver of an earlier release.
        """
        if kwargs or len(args) != len(self.encoders):
            bound = self.signature.bind(None, *args, **kwargs)
            given = [*self.signature.parameters].index([*bound.arguments][-1])
            bound.apply_defaults()
            args = bound.args[1 : given + 1]
        if self.plain is not None:
            return list(args)
        return [value if encode is None else encode(value) for encode, value in zip(self.encoders, args, strict=False)]

    def decode_arguments(self, values: Any) -> list[Any]:
        """Decode received arguments; raises `WireError` when number or types do not fit."""
        if type(values) is list and tuple(map(type, values)) == self.plain:
            return values
        missing = len(self.decoders) - len(values) if isinstance(values, list) else -1
        if not 0 <= missing <= len(self.defaults):
            raise WireError(f"{self.name}() takes {len(self.decoders)} arguments")
        given = [decode(value) for decode, value in zip(self.decoders, values, strict=False)]
        return [*given, *self.defaults[len(self.defaults) - missing :]]


def _encoder(hint: Any) -> Hook | None:
    return None if hint in _PLAIN or hint is Any else lambda value: _unstructure_hook(hint)(value)


def _decoder(hint: Any) -> Hook:
    if hint is Any:
        return lambda value: value
    if hint is type(None):
        return lambda value: None
    if hint in _PLAIN:
        return lambda value: value if type(value) is hint else from_plain(value, hint)
    return lambda value: from_plain(value, hint)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_method_specs: dict[type[RpcGateway], dict[str, MethodSpec]] = {}
_proxies: dict[type[RpcGateway], type[Any]] = {}


def method_specs(gateway: type[RpcGateway]) -> dict[str, MethodSpec]:
    """Return the methods of a gateway class, by name.

    Raises:
        TypeError: a method lacks a type hint, or returns something other than ``Ask[...]`` or ``None``.
    """
    if gateway in _method_specs:
        return _method_specs[gateway]
    specs: dict[str, MethodSpec] = {}
    for name, function in gateway_methods(gateway).items():
        hints = typing.get_type_hints(function)
        signature = inspect.signature(function)
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
        missing = [parameter.name for parameter in parameters if parameter.name not in hints]
        if missing or "return" not in hints:
            raise TypeError(f"{gateway.__name__}.{name} needs type hints for {', '.join(missing) or 'its result'}")
        placeless = [parameter.name for parameter in parameters if parameter.kind not in _POSITIONAL]
        if placeless:
            raise TypeError(f"{gateway.__name__}.{name}: {', '.join(placeless)} must be passable by position")
        returns = hints["return"]
        is_ask = typing.get_origin(returns) is Ask
        if not is_ask and returns is not type(None):
            raise TypeError(f"{gateway.__name__}.{name} must return Ask[...] (an ask) or None (a tell)")
        result = typing.get_args(returns)[0] if is_ask else type(None)
        kinds = tuple(hints[parameter.name] for parameter in parameters)
        specs[name] = MethodSpec(
            name=name,
            signature=signature,
            is_ask=is_ask,
            encoders=tuple(_encoder(hints[parameter.name]) for parameter in parameters),
            decoders=tuple(_decoder(hints[parameter.name]) for parameter in parameters),
            defaults=tuple(
                parameter.default for parameter in parameters if parameter.default is not inspect.Parameter.empty
            ),
            encode_result=_encoder(result),
            decode_result=_decoder(result),
            plain=kinds if all(kind in _PLAIN for kind in kinds) else None,
            fenced_by=None if (fence := getattr(function, FENCING_MARK, None)) in (READS, RECIPIENT) else fence,
            changes=fence != READS,
            component=gateway.__name__.removesuffix("Gateway").lower(),
        )
    _method_specs[gateway] = specs
    return specs


def proxy_type(gateway_type: type[RpcGateway]) -> type[Any]:
    """Return the class of the remote gateways of one interface: one method per declared method."""
    if gateway_type in _proxies:
        return _proxies[gateway_type]

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

    for name, spec in method_specs(gateway_type).items():
        function = make(spec)
        functools.update_wrapper(function, getattr(gateway_type, name))
        setattr(RemoteGateway, name, function)
    RemoteGateway.__name__ = RemoteGateway.__qualname__ = f"Remote{gateway_type.__name__}"
    _proxies[gateway_type] = RemoteGateway
    return RemoteGateway


def prepare(*types: Any) -> None:
    """Compile the converters of these gateways and values now rather than at their first use (0.1 to 15 ms each).

    Call it in a process from which others are forked: they then have the compiled converters.
    """
    for item in types:
        is_gateway = isinstance(item, type) and issubclass(item, RpcGateway)
        for hint in _values_of(item) if is_gateway else (item,):
            _structure_hook(hint)
            _unstructure_hook(hint)


def _values_of(gateway: type[RpcGateway]) -> list[Any]:
    """Return the types of all parameters and results of a gateway."""
    method_specs(gateway)
    hints: list[Any] = []
    for function in gateway_methods(gateway).values():
        found = typing.get_type_hints(function)
        returns = found.pop("return")
        hints += [*found.values(), *(typing.get_args(returns) if typing.get_origin(returns) is Ask else ())]
    return [hint for hint in hints if hint not in (Any, None, type(None))]


_known_errors: dict[str, type[Exception]] = {}


def _name_of(error_type: type[BaseException]) -> str:
    return f"{wire_name(error_type.__module__)}.{error_type.__qualname__}"


def wire_error(error_type: E) -> E:
    """Class decorator: the asking side rebuilds this exception as its own type.

    Its constructor must work with the message as the only argument.
    """
    _known_errors[_name_of(error_type)] = error_type
    return error_type


for _value in vars(actors.errors).values():
    if isinstance(_value, type) and issubclass(_value, ActorError) and _value is not RemoteError:
        wire_error(_value)
for _builtin in (
    ValueError,
    TypeError,
    KeyError,
    LookupError,
    RuntimeError,
    FileNotFoundError,
    PermissionError,
    TimeoutError,
):
    wire_error(_builtin)


def error_name(error: BaseException) -> str | None:
    """Return the name by which `decode_error` rebuilds an error of the same type; None if it cannot."""
    if isinstance(error, RemoteError):
        return error.type_name
    name = _name_of(type(error))
    return name if name in _known_errors else None


def encode_error(error: BaseException) -> list[str]:
    """Return type name, message and formatted traceback of *error*, as they travel in an ERROR frame.

    It never fails, whatever the error's text is, because the asker would otherwise wait until its timeout.
    """
    if isinstance(error, RemoteError):
        return [error.type_name, error.message, error.remote_traceback]
    name = _name_of(type(error))
    text = "" if name in _known_errors else "".join(traceback.format_exception(error))
    try:
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    except Exception as broken:  # a user's __str__ failed; the asker still has to learn of the error
        message = f"(its text cannot be had: {type(broken).__name__})"
    return [name, sendable(message), sendable(text)]


def sendable(text: str) -> str:
    """Return *text* with bounded length; characters without UTF-8 form (lone surrogates of file names) are escaped."""
    if len(text) > ERROR_TEXT_LIMIT:
        half = ERROR_TEXT_LIMIT // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def decode_error(name: Any, message: Any, remote_traceback: Any) -> Exception:
    """Return the exception of an ERROR frame: a known type, or `RemoteError`."""
    error_type = _known_errors.get(str(name))
    if error_type is None:
        return RemoteError(str(name), str(message), str(remote_traceback))
    return error_type(str(message))
