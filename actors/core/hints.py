"""Whether a received value can be what a type hint says; how far the check goes is said in `actors.serialization`."""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from actors.errors import RemoteError

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
