"""Messages to bytes and back: MessagePack with extension types (Akka's ``Serialization``, without Java's).

A message class is declared with `message`, which makes it a frozen dataclass and registers it::

    @message
    class Greet:
        who: str
        times: int = 1

**Types that travel.** Message classes, enums registered with `message`, and these types:

- None, bool, int (of any size), float, str, bytes, and bytearray (which arrives as bytes);
- list, dict, tuple, set, frozenset;
- datetime (it keeps its offset from UTC but not the name of its zone), date, timedelta;
- pathlib paths, actor refs, and exceptions.

The serializer rejects subclasses of the plain types, because they would silently arrive as something else.

**Exceptions.** An exception travels with the names of its class and bases, its text, traceback, arguments and
attributes. The receiver rebuilds it as its own type under two conditions. It must have imported that type already, and
all arguments and attributes must be able to travel (true of every built-in type, and most others). The receiver runs no
user's constructor, imports nothing, and creates nothing but exceptions. It adds the traceback as a note. It rebuilds
types that `actors.rpc.codec` knows from their text. Any other exception arrives as `RemoteError`, whose `kinds` are the
names.

**Checks on receipt.** The receiver treats bytes as data: it unpickles nothing, and imports no module that they name.
A class has to be registered in the receiving process, which means that its module has been imported there. The receiver
checks the number of fields, and each field against its type hint:

- It checks None, plain types, literals, enums, message classes, refs, exceptions, and unions of those.
- It checks that a list, set or dict is one, but not its elements. It also checks the elements of a tuple of fixed
  length.
- An int passes for a float, and a bool for an int, as in mypy.
- It ignores any other hint (a callable, a type variable).
- It ignores a hint that it cannot evaluate because the module imports the name for type checkers only.

`dumps` checks no hints; run mypy at the sender.

**Limits.** Values may be nested 32 extension types deep (messages in messages, tuples in tuples). Between those they
may be nested 511 lists and dicts deep, MessagePack's own limit. The receiver rejects a length that exceeds the bytes
that came.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import Any, TypeVar, cast

import msgpack

from actors.errors import RemoteError, SerializationError
from actors.own_modules import import_own, loaded_module, wire_name
from actors.ref import ActorRef
from actors.rpc.codec import ERROR_TEXT_LIMIT, decode_error, encode_error, sendable
from actors.rpc.wire import LARGE, walk_through

Check = Callable[[Any], bool]
"""Returns whether a value passes."""

_OWN_MODULES = ("messages", "core.system_messages", "mailbox", "supervision", "routing", "selection", "props")
C = TypeVar("C", bound=type)
T = TypeVar("T")
message_types: dict[type, MessageType] = {}
messages_by_name: dict[str, MessageType] = {}
enum_names: dict[type, str] = {}
enums_by_name: dict[str, type[enum.Enum]] = {}
MAX_DEPTH = 32
"""Greatest nesting of extension types."""
MESSAGE, REF, TUPLE, SET, ERROR, ENUM, DATETIME, TIMEDELTA, PATH, FROZENSET, DATE, BIG_INT = range(1, 13)
"""Codes of the extension types."""
ERROR_LIMIT = 4 * ERROR_TEXT_LIMIT
"""Most bytes of an encoded exception; a larger one travels without its arguments and attributes."""
_Encoded = tuple[int, "bytes | list[Any]"]
_PLAIN_DECODERS: dict[int, Callable[[bytes], Any]] = {
    DATETIME: lambda data: dt.datetime.fromisoformat(data.decode()),
    DATE: lambda data: dt.date.fromisoformat(data.decode()),
    PATH: lambda data: Path(os.fsdecode(data)),
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
}


class _Holder:
    """Holds one annotation, so that `typing.get_type_hints` evaluates it alone and an unknown name affects no other."""

    def __init__(self, hint: Any) -> None:
        self.__annotations__ = {"field": hint}


def check_of(cls: type, field: str) -> Check | None:
    """Return the check for a field of a dataclass; None when its hint allows anything or cannot be checked."""
    declared = next(base for base in cls.__mro__ if field in inspect.get_annotations(base))
    hint = inspect.get_annotations(declared)[field]
    namespace = {**vars(sys.modules.get(declared.__module__, types)), declared.__name__: declared}
    try:
        hint = typing.get_type_hints(_Holder(hint), namespace)["field"]
    except (
        Exception
    ):  # the hint names user code missing at run time (imports for type checkers, local classes), or is not a type
        return None
    return check_for(hint)


def check_for(hint: Any) -> Check | None:
    """Return the check for an evaluated hint; None when it allows anything or cannot be checked."""
    if hint is Any:  # a class since Python 3.11
        return None
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return check_for(arguments[0])
    if origin in (typing.Final, typing.ClassVar):
        return check_for(arguments[0]) if arguments else None
    if isinstance(hint, typing.NewType):
        return check_for(hint.__supertype__)
    if origin is typing.Literal:
        return lambda value: any(value == each and type(value) is type(each) for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return _check_any(arguments)
    if origin is tuple:
        return _check_tuple(arguments)
    return _check_class(hint if origin is None else origin)


def _check_any(arguments: tuple[Any, ...]) -> Check | None:
    checks = [check_for(each) for each in arguments]
    wanted = [check for check in checks if check is not None]
    return (lambda value: any(check(value) for check in wanted)) if len(wanted) == len(checks) else None


def _check_tuple(arguments: tuple[Any, ...]) -> Check:
    if not arguments or arguments[-1] is Ellipsis:
        return lambda value: type(value) is tuple
    checks = [check_for(each) for each in arguments if each != ()]
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check is None or check(each) for check, each in zip(checks, value, strict=True))
    )


def _check_class(cls: Any) -> Check | None:
    if cls is None or cls is type(None):
        return lambda value: value is None
    if cls is float:
        return lambda value: isinstance(value, (float, int))
    if not isinstance(cls, type) or cls is object or cls in (collections.abc.Callable, collections.abc.Hashable):
        return None
    if getattr(cls, "_is_protocol", False):
        return None
    if issubclass(cls, BaseException):
        # A type that this process does not know arrives as RemoteError; the sender has made no mistake.
        return lambda value: isinstance(value, (cls, RemoteError))
    if issubclass(cls, PurePath):
        return lambda value: isinstance(value, PurePath)
    if cls is bytearray:
        cls = bytes
    return lambda value: isinstance(value, cls)


class MessageType:
    """Wire form of a registered dataclass; hints are compiled when the first one is received."""

    __slots__ = ("_by_name", "_checks", "cls", "fields", "name")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = name_of(cls)
        declared = [field for field in dataclasses.fields(cls) if field.init]
        self.fields = tuple(field.name for field in declared)
        self._by_name = any(field.kw_only for field in declared)
        self._checks: tuple[Check | None, ...] | None = None

    def values(self, instance: Any) -> list[Any]:
        """Return the fields of an instance, in their order."""
        return [getattr(instance, field) for field in self.fields]

    def construct(self, values: list[Any]) -> Any:
        """Return an instance with the received fields.

        Raises:
            SerializationError: the number or the types of *values* do not fit.
        """
        if len(values) != len(self.fields):
            raise SerializationError(
                f"{self.name} has {len(self.fields)} fields, but {len(values)} came: "
                "the two processes run different versions of the module"
            )
        checks = self._checks
        if checks is None:
            checks = self._checks = tuple(check_of(self.cls, field) for field in self.fields)
        for field, check, value in zip(self.fields, checks, values, strict=True):
            if check is not None and not check(value):
                raise SerializationError(f"{self.name}.{field} cannot be of type {type(value).__name__}")
        if self._by_name:
            return self.cls(**dict(zip(self.fields, values, strict=True)))
        return self.cls(*values)


def name_of(cls: type) -> str:
    """Return the name of a class on the wire, ``module:Qualname``."""
    return f"{wire_name(cls.__module__)}:{cls.__qualname__}"


@typing.dataclass_transform(frozen_default=True)
def message(cls: C) -> C:
    """Class decorator: instances may travel between processes.

    A class that is not a dataclass yet becomes a frozen one with slots. In a notebook a class that is defined again
    replaces the earlier one. The decorator registers enums too; their members travel by name, flags by value.

    Raises:
        TypeError: the class is a dataclass that is not frozen, or an exception; register exceptions with
            `actors.rpc.codec.wire_error`.
    """
    if issubclass(cls, enum.Enum):
        enum_names[cls] = name_of(cls)
        enums_by_name[name_of(cls)] = cls
        return cls
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__} is an exception: register it with actors.rpc.codec.wire_error instead")
    if "__dataclass_fields__" not in vars(cls):
        cls = typing.cast("C", dataclasses.dataclass(frozen=True, slots=True)(cls))
    elif not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(
            f"messages are shared and must not change: declare {cls.__qualname__} with dataclass(frozen=True)"
        )
    spec = MessageType(cls)
    message_types[cls] = messages_by_name[spec.name] = spec
    return cls


def find(registry: dict[str, T], name: str, kind: str) -> T:
    """Return the entry that is registered under a received name. It imports no module that the name names.

    Raises:
        SerializationError: no entry has that name; the error text names the remedy.
    """
    found = registry.get(name)
    if found is None and name.startswith("actors.") and len(name) < 100:
        for module in _OWN_MODULES:  # fixed names, not the one received
            import_own(f"actors.{module}")
        found = registry.get(name)
    if found is not None:
        return found
    name = name[:200]
    module = name.partition(":")[0]
    if module == "__main__":
        remedy = "move the class from the script into a module that both processes import"
    else:
        remedy = f"import the module {module} in this process, and see that the class has the decorator @actors.message"
    raise SerializationError(f"the {kind} {name!r} is not known here: {remedy}")


def import_path(thing: Callable[..., Any]) -> str | None:
    """Return ``module:Qualname`` of a function or class; None when that does not lead to it (a lambda, for example)."""
    path = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', None)}"
    found: Any = sys.modules.get(path.partition(":")[0])
    for element in path.partition(":")[2].split("."):
        found = getattr(found, element, None)
    return path if found is thing else None


def import_object(path: str) -> Any:
    """Import the object that the path ``module:Qualname`` names. Use it for configurations, never for received names.

    Raises:
        SerializationError: the module or name does not exist here.
    """
    module_name, separator, qualified = path.partition(":")
    try:
        if not separator:
            raise ImportError("the form is module:Qualname")
        found: Any = importlib.import_module(module_name)
        for element in qualified.split("."):
            found = getattr(found, element)
    except Exception as error:  # also whatever the module raises while it is imported
        raise SerializationError(f"{path!r} cannot be imported here: {type(error).__name__}: {error}") from error
    return found


class Serializer:
    """Encodes and decodes the messages of one node; several threads may use it at once.

    Args:
        resolve_ref: makes a ref from its text, bound to the node.
    """

    def __init__(self, resolve_ref: Callable[[str], ActorRef]) -> None:
        self._decode_at = _decoders(resolve_ref)
        self._levels = [_Level()]
        for _ in range(MAX_DEPTH):
            self._levels.append(_Level(self._levels[-1]))
        self._outermost = self._levels[-1]

    def dumps(self, value: Any) -> bytes:
        """Encode a message.

        Raises:
            SerializationError: *value*, or a value in it, has a type that does not travel.
        """
        try:
            return self._outermost.pack(value)
        except SerializationError:
            raise
        except (ValueError, OverflowError, TypeError, RecursionError, AttributeError) as error:
            raise SerializationError(f"{_described(value)} cannot be sent to another process: {error}") from error

    def loads(self, data: bytes) -> Any:
        """Decode a message.

        Raises:
            SerializationError: the bytes are not a message, or their class or shape is unknown here.
        """
        try:
            return self._decode_at(data)
        except SerializationError:
            raise
        except Exception as error:  # hostile bytes: whatever msgpack or a class's constructor makes of them
            raise SerializationError(f"a message cannot be read: {type(error).__name__}: {str(error)[:300]}") from error


class _Level:
    """Packs values at one level of nesting. Each level has its own packers, because a packer is not reentrant.

    Args:
        inner: the next level; None for the last.
    """

    def __init__(self, inner: _Level | None = None) -> None:
        self._inner = inner
        self._idle: list[Any] = []

    def pack(self, value: Any) -> bytes:
        try:
            packer = self._idle.pop()
        except IndexError:
            packer = msgpack.Packer(default=self._extension, strict_types=True, use_bin_type=True, buf_size=1024)
        data: bytes = packer.pack(value)
        self._idle.append(packer)  # a packer that failed is not used again
        return data

    def _extension(self, value: Any) -> Any:
        kind = type(value)
        spec = message_types.get(kind)
        if spec is not None:
            return self._nested(MESSAGE, [spec.name, *spec.values(value)])
        if kind is ActorRef:
            return msgpack.ExtType(REF, str(value).encode())
        if kind is tuple:
            return self._nested(TUPLE, list(value))
        encode = _EXTENSIONS.get(kind)
        if encode is not None:
            code, data = encode(value)
            return self._nested(code, data) if isinstance(data, list) else msgpack.ExtType(code, data)
        if kind in enum_names:
            member = value.value if isinstance(value, enum.Flag) else value.name
            return self._nested(ENUM, [enum_names[kind], member])
        if isinstance(value, BaseException):
            return self._error(value)
        raise _unencodable(value)

    def _error(self, error: BaseException) -> Any:
        told = _told(error)
        parts = _parts(error)
        if parts is not None:
            try:
                whole = self._nested(ERROR, [*told, *parts])
            except (ValueError, OverflowError, TypeError, RecursionError, AttributeError):
                pass  # an argument does not travel: send the error without its arguments
            else:
                if len(whole.data) <= ERROR_LIMIT:
                    return whole
        return self._nested(ERROR, told)

    def _nested(self, code: int, values: list[Any]) -> Any:
        if self._inner is None:
            raise SerializationError(f"messages, tuples and sets can be nested {MAX_DEPTH} deep at most")
        return msgpack.ExtType(code, self._inner.pack(values))


def _path(value: PurePath) -> _Encoded:
    return PATH, os.fsencode(value)


_EXTENSIONS: dict[type, Callable[[Any], _Encoded]] = {
    set: lambda value: (SET, list(value)),
    frozenset: lambda value: (FROZENSET, list(value)),
    dt.datetime: lambda value: (DATETIME, value.isoformat().encode()),
    dt.date: lambda value: (DATE, value.isoformat().encode()),
    dt.timedelta: lambda value: (TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    PosixPath: _path,
    PurePosixPath: _path,
    int: lambda value: (BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
}


def _described(value: Any) -> str:
    return f"a value of type {name_of(type(value)).removeprefix('builtins:')}"


def _unencodable(value: Any) -> SerializationError:
    if isinstance(value, enum.Enum):
        remedy = "register the enum with @actors.message"
    elif isinstance(value, type) or callable(value):
        remedy = "name it by its import path 'module:name' instead"
        if not isinstance(value, type) and not hasattr(value, "__qualname__"):
            remedy = "declare its class with @actors.message"
    elif isinstance(value, (str, int, float, bytes, list, dict, tuple)):
        base = next(kind for kind in (str, int, float, bytes, list, dict, tuple) if isinstance(value, kind))
        remedy = f"convert it with {base.__name__}(...) first; subclasses of {base.__name__} do not travel"
    else:
        remedy = "declare the class with @actors.message, or send what it is made of"
    what = f"the class {name_of(value)}" if isinstance(value, type) else _described(value)
    return SerializationError(f"{what} cannot be sent to another process: {remedy}")


def _decoders(resolve_ref: Callable[[str], ActorRef]) -> Callable[[bytes], Any]:
    """Return the function that decodes a whole message. Each level of nesting has its own, which bounds the depth."""

    def too_deep(_code: int, _data: bytes) -> Any:
        raise SerializationError(f"a message is nested more than {MAX_DEPTH} deep")

    def level(inner: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
        def extension(code: int, data: bytes) -> Any:
            if code == REF:
                return resolve_ref(data.decode())
            plain = _PLAIN_DECODERS.get(code)
            if plain is not None:
                return plain(data)
            if inner is None:
                return too_deep(code, data)
            nested = _NESTED_DECODERS.get(code)
            if nested is None:
                raise SerializationError(f"a message holds the unknown extension type {code}; is the sender newer?")
            values = inner(data)
            if type(values) is not list:
                raise SerializationError(f"malformed extension type {code}: no list")
            return nested(values)

        def unpack(data: bytes) -> Any:
            if len(data) > LARGE:
                walk_through(data)
            return msgpack.unpackb(data, raw=False, strict_map_key=False, timestamp=3, ext_hook=extension)

        return unpack

    unpack = level(None)
    for _ in range(MAX_DEPTH):
        unpack = level(unpack)
    return unpack


def _message(values: list[Any]) -> Any:
    if not values or type(values[0]) is not str:
        raise SerializationError("malformed message: no type name")
    return find(messages_by_name, values[0], "message type").construct(values[1:])


def _enum(values: list[Any]) -> Any:
    if len(values) != 2 or type(values[0]) is not str:
        raise SerializationError("malformed enum")
    cls = find(enums_by_name, values[0], "enum")
    member = values[1]
    if issubclass(cls, enum.Flag):
        if type(member) is int:
            return cls(member)
    elif type(member) is str and member in cls.__members__:
        return cls.__members__[member]
    raise SerializationError(
        f"{values[0]} has no member {str(member)[:100]!r} here: the two processes run different versions"
    )


def _told(error: BaseException) -> list[Any]:
    """Return the part of an exception that always travels: the names of its classes, its text, its traceback."""
    _, text, trace = encode_error(error)
    if isinstance(error, RemoteError):
        return [list(error.kinds), text, trace]
    kinds = [name_of(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    return [kinds, text, trace if error.__traceback__ is not None else ""]


def _parts(error: BaseException) -> list[Any] | None:
    """Return the arguments and attributes from which to rebuild an exception; None when it has other state."""
    kind = type(error)
    if kind is RemoteError or any(vars(each).get("__slots__") for each in kind.__mro__):
        return None
    reduced: Any = _built_in_base(kind).__reduce__(error)  # not the class's own, whose result may call anything
    args = [sendable(each) if type(each) is str else each for each in reduced[1]]
    return [args, reduced[2] if len(reduced) > 2 else None]


def _built_in_base(kind: type[BaseException]) -> Any:
    """Return the built-in exception that lays out the instances of *kind*."""
    base: type = kind
    while base.__module__ != "builtins" and base.__base__ is not None:
        base = base.__base__
    return base


def _error(values: list[Any]) -> BaseException:
    kinds, text, trace, *parts = values if len(values) >= 3 else ((), "", "")
    if not _are_texts(kinds) or not kinds or not _are_texts([text, trace]) or len(parts) not in (0, 2):
        raise SerializationError("malformed exception")
    if parts:
        args, state = parts[0], {} if parts[1] is None else parts[1]
        if type(args) is not list or type(state) is not dict or not _are_texts(list(state)):
            raise SerializationError("malformed exception")
        rebuilt = _rebuilt(kinds[0], args, state)
        if rebuilt is not None:
            if trace:
                notes = vars(rebuilt).get("__notes__")
                vars(rebuilt)["__notes__"] = [*(notes if type(notes) is list else ()), trace]
            return rebuilt
    error = decode_error(kinds[0].replace(":", ".", 1), text, trace)
    return RemoteError(error.type_name, text, trace, tuple(kinds)) if type(error) is RemoteError else error


def _are_texts(values: Any) -> bool:
    return type(values) is list and all(type(value) is str for value in values)


def _rebuilt(name: str, args: list[Any], state: dict[str, Any]) -> BaseException | None:
    """Return an exception of that class; None when the class is unknown here, or the arguments do not fit it."""
    kind = _known_exception(name)
    if kind is None:
        return None
    base = _built_in_base(kind)
    try:
        error: BaseException = base.__new__(kind, *args)
        base.__init__(error, *args)
        for key, value in state.items():
            if callable(getattr(base, key, None)):
                return None  # it would hide a method
            if hasattr(base, key):
                object.__setattr__(error, key, value)
            else:
                vars(error)[key] = value
    except Exception:  # a built-in type rejects the arguments; the error arrives as a RemoteError
        return None
    return error


def _known_exception(name: str) -> type[BaseException] | None:
    """Return the exception class of that name in a module that is imported already, or None.

    It looks names up in dictionaries only, because reading an attribute of a lazy module would import others.
    """
    module, _, qualified = name.partition(":")
    found: Any = loaded_module(module)
    for element in qualified.split("."):
        if not issubclass(type(found), (types.ModuleType, type)):
            return None
        found = object.__getattribute__(found, "__dict__").get(element)
    if issubclass(type(found), type) and issubclass(found, BaseException) and name_of(found) == name:
        return cast("type[BaseException]", found)
    return None


def remote_error(error: BaseException) -> RemoteError:
    """Return *error* as it arrives in a process that does not know its type."""
    kinds, text, trace = _told(error)
    return RemoteError(kinds[0].replace(":", ".", 1), text, trace, tuple(kinds))


def _timedelta(values: list[Any]) -> dt.timedelta:
    if len(values) != 3 or not all(type(value) is int for value in values):
        raise SerializationError("malformed timedelta")
    return dt.timedelta(*values)


_NESTED_DECODERS: dict[int, Callable[[list[Any]], Any]] = {
    MESSAGE: _message,
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    ERROR: _error,
    ENUM: _enum,
    TIMEDELTA: _timedelta,
}
