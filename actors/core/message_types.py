"""The classes whose instances may travel between processes, by name; see `actors.serialization`."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import sys
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from actors.core.hints import Check, check_of
from actors.errors import SerializationError

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
    return f"{cls.__module__}:{cls.__qualname__}"


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
            importlib.import_module(f"actors.{module}")
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
