"""Messages to bytes and back: MessagePack with extension types (Akka's ``Serialization``, without Java's).

A message class is declared with `message`, which makes it a frozen dataclass and registers it::

    @message
    class Greet:
        who: str
        times: int = 1

Beside such classes and enums registered likewise these travel as they are: None, bool, int (of any size), float, str,
bytes, list, dict, tuple, set, frozenset, datetime, date, timedelta, pathlib paths, actor refs, and exceptions. A
bytearray arrives as bytes; a
datetime keeps its offset from UTC but not the name of its zone. Subclasses of these types do not travel: they would
silently arrive as something else.

**Exceptions.** The names of an exception's class and its bases travel, its text, its traceback, its arguments and its
attributes. It is rebuilt as its own type where the receiving process has imported that already, and where all
arguments and attributes travel (every built-in type, and most others). No constructor of a user's runs for it, nothing
is imported, and nothing but exceptions is made. The traceback is added as a note. Types that `actors.rpc.codec` knows
are rebuilt from their text; any other arrives as `RemoteError`, whose `kinds` are the names.

**What is checked on receipt.** Bytes are only ever data: nothing is unpickled, and no module is imported because a name
in them says so. A class has to be registered in the receiving process, that is, its module has been imported there.
The number of fields is checked, and the kind of each by its type hint: None, plain types, literals, enums, message
classes, refs, exceptions, unions of those; of a list, set or dict that it is one, but not what is in it; of a tuple of
fixed length also its elements. An int passes for a float, and a bool for an int, as mypy has it. A hint that is none of
these (a callable, a type variable), or that cannot be evaluated because its module imports it for type checkers only,
is not checked. `dumps` checks no hints: that is mypy's business at the sender.

**Limits.** Values may be nested 32 extension types deep (messages in messages, tuples in tuples), and between them 511
lists and dicts deep, MessagePack's own limit. Announced lengths are believed only when so many bytes are there.
"""

from __future__ import annotations

import datetime as dt
import enum
import os
import types
from collections.abc import Callable
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import Any, cast

import msgpack

from actors.core.message_types import enum_names, enums_by_name, find, message_types, messages_by_name
from actors.core.message_types import import_object as import_object
from actors.core.message_types import import_path as import_path
from actors.core.message_types import message as message
from actors.core.message_types import name_of as name_of
from actors.errors import RemoteError, SerializationError
from actors.own_modules import loaded_module
from actors.ref import ActorRef
from actors.rpc.codec import ERROR_TEXT_LIMIT, decode_error, encode_error, sendable

MAX_DEPTH = 32
"""How many extension types may be nested in each other."""

MESSAGE, REF, TUPLE, SET, ERROR, ENUM, DATETIME, TIMEDELTA, PATH, FROZENSET, DATE, BIG_INT = range(1, 13)
"""Codes of the extension types."""

ERROR_LIMIT = 4 * ERROR_TEXT_LIMIT
"""Bytes of an encoded exception; one that would be larger travels without its arguments and attributes."""

_LARGE = 4096
"""From so many bytes on the structure is walked through once before anything is built: lists that announce more
elements than follow, nested in each other, would otherwise have memory set aside for them all."""


class Serializer:
    """Encodes and decodes the messages of one node; may be used by several threads at once.

    Args:
        resolve_ref: makes the ref of its text, bound to the node.
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
            SerializationError: it, or something in it, is of a type that does not travel.
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
            SerializationError: the bytes are no message, or one of a class or shape that is unknown here.
        """
        try:
            return self._decode_at(data)
        except SerializationError:
            raise
        except Exception as error:  # hostile bytes: whatever msgpack or a class's constructor makes of them
            raise SerializationError(f"a message cannot be read: {type(error).__name__}: {str(error)[:300]}") from error


class _Level:
    """Packs what is nested so many levels deep; a packer cannot be entered again while it is at work.

    Args:
        inner: the next level, None for the last.
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
        self._idle.append(packer)  # one that failed is not used again
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
                pass  # an argument that does not travel, as many have: the error travels without
            else:
                if len(whole.data) <= ERROR_LIMIT:
                    return whole
        return self._nested(ERROR, told)

    def _nested(self, code: int, values: list[Any]) -> Any:
        if self._inner is None:
            raise SerializationError(f"messages, tuples and sets can be nested {MAX_DEPTH} deep at most")
        return msgpack.ExtType(code, self._inner.pack(values))


_Encoded = tuple[int, "bytes | list[Any]"]


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
    """The function that decodes a whole message; each level of nesting has its own, so that the depth is bounded."""

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
            if len(data) > _LARGE:
                _walk_through(data)
            return msgpack.unpackb(data, raw=False, strict_map_key=False, timestamp=3, ext_hook=extension)

        return unpack

    unpack = level(None)
    for _ in range(MAX_DEPTH):
        unpack = level(unpack)
    return unpack


def _walk_through(data: bytes) -> None:
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()


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
    """The arguments and attributes of which an exception can be rebuilt; None when it has more than these."""
    kind = type(error)
    if kind is RemoteError or any(vars(each).get("__slots__") for each in kind.__mro__):
        return None
    reduced: Any = _built_in_base(kind).__reduce__(error)  # not the class's own: what that returns is to be called
    args = [sendable(each) if type(each) is str else each for each in reduced[1]]
    return [args, reduced[2] if len(reduced) > 2 else None]


def _built_in_base(kind: type[BaseException]) -> Any:
    """The built-in exception that lays out the instances of *kind*."""
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
    """An exception of that class; None when the class is not known here, or the arguments do not fit it."""
    kind = _known_exception(name)
    if kind is None:
        return None
    base = _built_in_base(kind)
    try:
        error: BaseException = base.__new__(kind, *args)
        base.__init__(error, *args)
        for key, value in state.items():
            if callable(getattr(base, key, None)):
                return None  # no attribute of an exception's, and it would hide a method
            if hasattr(base, key):
                object.__setattr__(error, key, value)
            else:
                vars(error)[key] = value
    except Exception:  # whatever a built-in type says to arguments that are not its own: it is told as a RemoteError
        return None
    return error


def _known_exception(name: str) -> type[BaseException] | None:
    """The exception class of that name in a module that is imported already.

    Names are looked up in dictionaries only: the attribute of a lazy module would import others.
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
    """Return *error* as one of a type that this process does not know."""
    kinds, text, trace = _told(error)
    return RemoteError(kinds[0].replace(":", ".", 1), text, trace, tuple(kinds))


def _timedelta(values: list[Any]) -> dt.timedelta:
    if len(values) != 3 or not all(type(value) is int for value in values):
        raise SerializationError("malformed timedelta")
    return dt.timedelta(*values)


_PLAIN_DECODERS: dict[int, Callable[[bytes], Any]] = {
    DATETIME: lambda data: dt.datetime.fromisoformat(data.decode()),
    DATE: lambda data: dt.date.fromisoformat(data.decode()),
    PATH: lambda data: Path(os.fsdecode(data)),
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
}
_NESTED_DECODERS: dict[int, Callable[[list[Any]], Any]] = {
    MESSAGE: _message,
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    ERROR: _error,
    ENUM: _enum,
    TIMEDELTA: _timedelta,
}
