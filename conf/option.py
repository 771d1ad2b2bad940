"""``ConfigOption``: one declared option, typed by its value (Flink's ``ConfigOption`` and ``ConfigOptions``).

An option is declared once, in ``conf.options``::

    class RpcOptions:
        FRAME_SIZE = option("rpc.frame-size", MemorySize("10 mb"), "10 mb", "Largest message ...")

and ``configuration.get(RpcOptions.FRAME_SIZE)`` is an ``int`` for the type checker as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from conf.values import ValueType

if TYPE_CHECKING:
    from conf.configuration import Configuration

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DeprecatedKey:
    """A former name of an option; it still works, with a warning (Flink's ``withDeprecatedKeys``).

    Attributes:
        key: the name.
        since: the release that renamed the option, such as ``0.2.0``; the last release that accepts the former name.
    """

    key: str
    since: str


@dataclass(frozen=True, slots=True)
class RemovedOption:
    """An option of earlier releases; setting it has no effect but a warning (Spark's ``DeprecatedConfig``).

    Attributes:
        key: its key.
        since: the release that removed it, such as ``0.2.0``; the last release that accepts it.
        remedy: the action to take, without a full stop, such as ``set rpc.frame-size instead``.
    """

    key: str
    since: str
    remedy: str


@dataclass(frozen=True, slots=True, eq=False)
class ConfigOption(Generic[T]):
    """A declared option.

    Attributes:
        key: its key; Flink's name if Flink has such an option.
        value_type: the form of its value.
        default: its value when it is not set (ignored when ``compute`` is given).
        default_text: the default as the reference shows it.
        description: its effect, with units and consequences; Markdown, one paragraph.
        fallback_keys: other names that set it, such as Flink's own.
        deprecated_keys: former names, the latest first.
        compute: returns the default from the rest of the configuration.
    """

    key: str
    value_type: ValueType[Any]
    default: T | None
    default_text: str
    description: str
    fallback_keys: tuple[str, ...] = ()
    deprecated_keys: tuple[DeprecatedKey, ...] = ()
    compute: Callable[[Configuration], T] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that sets this option, its own first."""
        return (self.key, *self.fallback_keys, *(former.key for former in self.deprecated_keys))

    def default_in(self, configuration: Configuration) -> T:
        """Return the value when the option is not set."""
        if self.compute is not None:
            return self.compute(configuration)
        return cast("T", self.default)  # T includes None wherever the declared default is None

    def __repr__(self) -> str:
        return f"ConfigOption({self.key!r})"


@overload
def option(
    key: str,
    value_type: ValueType[V],
    default: str,
    description: str,
    *,
    fallback_keys: tuple[str, ...] = (),
    deprecated_keys: tuple[DeprecatedKey, ...] = (),
) -> ConfigOption[V]: ...


@overload
def option(
    key: str,
    value_type: ValueType[V],
    default: None,
    description: str,
    *,
    fallback_keys: tuple[str, ...] = (),
    deprecated_keys: tuple[DeprecatedKey, ...] = (),
) -> ConfigOption[V | None]: ...


def option(
    key: str,
    value_type: ValueType[V],
    default: str | None,
    description: str,
    *,
    fallback_keys: tuple[str, ...] = (),
    deprecated_keys: tuple[DeprecatedKey, ...] = (),
) -> ConfigOption[V] | ConfigOption[V | None]:
    """Declare an option. ``default`` is a text as a user would write it; None: unset by default."""
    parsed = None if default is None else value_type.parse(default)
    shown = "(none)" if parsed is None else value_type.shown(parsed)
    return ConfigOption(key, value_type, parsed, shown, description, fallback_keys, deprecated_keys)


def computed_option(
    key: str,
    value_type: ValueType[V],
    compute: Callable[[Configuration], V],
    default_text: str,
    description: str,
    *,
    fallback_keys: tuple[str, ...] = (),
    deprecated_keys: tuple[DeprecatedKey, ...] = (),
) -> ConfigOption[V]:
    """Declare an option whose default follows from others. ``default_text`` describes it in the reference."""
    return ConfigOption(key, value_type, None, default_text, description, fallback_keys, deprecated_keys, compute)
