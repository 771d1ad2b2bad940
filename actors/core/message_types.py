"""The classes whose instances may travel between processes, by name; see `actors.serialization`."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, TypeVar

from actors.errors import RemoteError, SerializationError
from actors.own_modules import import_own, wire_name

Check = Callable[[Any], bool]
"""Whether a value passes."""


class _Holder:
    """Bears one annotation, so that `typing.get_type_hints` evaluates it alone: one unknown name spoils no others."""

    def __init__(self, hint: Any) -> None:
        self.__annotations__ = {"field": hint}


def check_of(cls: type, field: str) -> Check | None:
    """The check for a field of a dataclass; None when its hint allows anything or cannot be checked."""
    declared = next(base for base in cls.__mro__ if field in inspect.get_annotations(base))
    hint = inspect.get_annotations(declared)[field]
    namespace = {**vars(sys.modules.get(declared.__module__, types)), declared.__name__: declared}
    try:
        hint = typing.get_type_hints(_Holder(hint), namespace)["field"]
    except (
        Exception
    ):  # user code that is not there at run time (imports for type checkers, local classes), or is no type
        return None
    return check_for(hint)


def check_for(hint: Any) -> Check | None:
    """The check for an evaluated hint; None when it allows anything or cannot be checked."""
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
        # A type that is not known here arrives as RemoteError: that is what it can be, not a mistake of the sender's.
        return lambda value: isinstance(value, (cls, RemoteError))
    if issubclass(cls, PurePath):
        return lambda value: isinstance(value, PurePath)
    if cls is bytearray:
        cls = bytes
    return lambda value: isinstance(value, cls)


_OWN_MODULES = ("messages", "core.system_messages", "mailbox", "supervision", "routing", "selection", "props")

C = TypeVar("C", bound=type)
T = TypeVar("T")


class MessageType:
    """What the wire needs to know of a registered dataclass; hints are compiled when the first one is received."""

    __slots__ = ("_by_name", "_checks", "cls", "fields", "name")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = name_of(cls)
        declared = [field for field in dataclasses.fields(cls) if field.init]
        self.fields = tuple(field.name for field in declared)
        self._by_name = any(field.kw_only for field in declared)
        self._checks: tuple[Check | None, ...] | None = None

    def values(self, instance: Any) -> list[Any]:
        """The fields of an instance, in their order."""
        return [getattr(instance, field) for field in self.fields]

    def construct(self, values: list[Any]) -> Any:
        """An instance of received fields.

        Raises:
            SerializationError: their number or kinds do not fit.
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


message_types: dict[type, MessageType] = {}
messages_by_name: dict[str, MessageType] = {}
enum_names: dict[type, str] = {}
enums_by_name: dict[str, type[enum.Enum]] = {}


def name_of(cls: type) -> str:
    """``module:Qualname`` of a class, by which it is known on the wire."""
    return f"{wire_name(cls.__module__)}:{cls.__qualname__}"


@typing.dataclass_transform(frozen_default=True)
def message(cls: C) -> C:
    """Class decorator: instances may travel between processes.

    A class that is no dataclass yet becomes a frozen one with slots. In a notebook a class that is defined again takes
    the place of the earlier one. Enums are registered too; their members travel by name, flags by value.

    Raises:
        TypeError: the class is a dataclass that is not frozen; or an exception, for which there is
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
    """What is registered under a received name.

    Raises:
        SerializationError: nothing is; it tells the remedy. No module is imported by the name.
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
    """``module:Qualname`` of a function or class, None when it cannot be found by that (a lambda, a local function)."""
    path = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', None)}"
    found: Any = sys.modules.get(path.partition(":")[0])
    for element in path.partition(":")[2].split("."):
        found = getattr(found, element, None)
    return path if found is thing else None


def import_object(path: str) -> Any:
    """Import what the path ``module:Qualname`` names. For paths out of configurations, never for names in messages.

    Raises:
        SerializationError: there is no such module or name here.
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
