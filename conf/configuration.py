"""``Configuration``: the values of the declared options, from several layers (Flink's ``Configuration``).

The layers, from the lowest to the highest: the declared defaults, the packaged ``conf/config.yaml``, the user's
``config.yaml``, ``-D key=value``. A configuration is immutable; ``set`` returns another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from conf.errors import ConfigurationFileError, InconsistentOptionsError, InvalidValueError, UnknownOptionError
from conf.files import write_private
from conf.option import ConfigOption
from conf.options import BlobOptions, HeartbeatOptions, RestartStrategyOptions, RpcOptions, SecurityOptions
from conf.registry import (
    ConfigurationWarning,
    deprecation,
    is_pass_through,
    later_names,
    masked,
    options_by_key,
    own_key,
    removed_option,
    report_once,
    suggest,
)
from conf.secret import MASK

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value of a layer.

    Attributes:
        value: its text, or its texts when it is a list; an empty text resets the option to its default.
        origin: its place: ``file:line``, ``-D`` or similar.
    """

    value: str | list[str]
    origin: str


@dataclass(frozen=True, slots=True)
class _Entry:
    value: Any
    origin: str
    written_key: str


class Configuration:
    """Values by option; an unset option has its default.

    Attributes:
        warnings: valid settings that should be changed: former names, removed options, files that others may read.
    """

    __slots__ = ("_entries", "_pass_through", "warnings")

    def __init__(self) -> None:
        """Create a configuration in which every option has its declared default."""
        self._entries: dict[str, _Entry] = {}
        self._pass_through: dict[str, _Entry] = {}
        self.warnings: tuple[ConfigurationWarning, ...] = ()

    @classmethod
    def load(
        cls,
        config_file: Path | None = None,
        overrides: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Configuration:
        """Return the configuration of this process, from all layers.

        Args:
            config_file: the user's file; None: ``$UNDERSTUDY_CONF_DIR/config.yaml`` if that variable is set.
            overrides: the arguments of ``-D``, each ``key=value``.
            environ: the environment; None: that of the process.

        Raises:
            ConfigurationError: a file, a key or a value is wrong; the text names it and its place.
        """
        from conf.layers import read_layers  # imports PyYAML, which a process that gets its values does not need

        layers, warnings = read_layers(config_file, overrides, os.environ if environ is None else environ)
        configuration = cls._of_layers(layers)
        configuration.warnings = (*warnings, *configuration.warnings)
        return configuration

    @classmethod
    def from_dict(cls, values: Mapping[str, object], origin: str = "given values") -> Configuration:
        """Return a configuration from flat keys and plain values, as from ``to_dict``, or numbers and booleans.

        Raises:
            ConfigurationError: a key or a value is wrong.
        """
        return cls._of_layers([{key: RawValue(_plain(value), origin) for key, value in values.items()}])

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Return the configuration that another process has written with ``write``.

        Raises:
            ConfigurationFileError: the file is missing, unreadable or not such a file.
            ConfigurationError: a key or a value in it is wrong.
        """
        try:
            values = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigurationFileError(
                f"cannot read the configuration {path}: {error}", "start the cluster again: it writes this file itself"
            ) from error
        if not isinstance(values, dict):
            raise ConfigurationFileError(f"{path} holds no map of keys to values", "start the cluster again")
        return cls.from_dict(values, str(path))

    def write(self, path: Path) -> None:
        """Write the configuration, including secrets, for another process, to a file of mode 0600. Raises OSError."""
        write_private(path, json.dumps(self.to_dict(), indent=1).encode())

    def get(self, option: ConfigOption[T]) -> T:
        """Return the value of an option, or its default."""
        entry = self._entries.get(option.key)
        return option.default_in(self) if entry is None else cast("T", entry.value)

    def is_set(self, option: ConfigOption[Any]) -> bool:
        """Return whether a layer above the packaged defaults sets the option."""
        return option.key in self._entries

    def origin(self, option: ConfigOption[Any]) -> str:
        """Return the source of the value: ``file:line``, ``-D``, ``default``, ..."""
        entry = self._entries.get(option.key)
        return "default" if entry is None else entry.origin

    def set(self, option: ConfigOption[T], value: T) -> Configuration:
        """Return the same configuration with one other value; None resets the option to its default.

        Raises:
            InvalidValueError: the value is outside the option's bounds.
        """
        changed = self._copy()
        changed._entries.pop(option.key, None)
        if value is not None:
            changed._put(option.key, RawValue(option.value_type.render(value), "set by the program"))
        return changed

    def report_warnings(self, report: Callable[[str], object]) -> None:
        """Call *report* with each warning that this process has not reported yet, as one line."""
        report_once(self.warnings, report)

    def given_by(self, origin: str) -> dict[str, str]:
        """Return the values of one origin, as texts that ``from_dict`` reads; including secrets.

        The keys are those that were written. An earlier release, to which they may be sent, knows former names alone.
        """
        given = {
            entry.written_key: options_by_key()[key].value_type.render(entry.value)
            for key, entry in self._entries.items()
            if entry.origin == origin
        }
        return given | {key: entry.value for key, entry in self._pass_through.items() if entry.origin == origin}

    def overlaid(self, values: Mapping[str, object], origin: str) -> Configuration:
        """Return the same configuration with other values on top.

        Raises:
            ConfigurationError: a key or a value is wrong, or inconsistent with the rest.
        """
        changed = self._copy()
        changed._put_layer({key: RawValue(_plain(value), origin) for key, value in values.items()})
        changed._check_consistency()
        return changed

    def spark_properties(self) -> dict[str, str]:
        """Return the ``spark.*`` keys that go to the driver unchanged. They may contain secrets."""
        return {key: entry.value for key, entry in self._pass_through.items()}

    def to_dict(self, *, redacted: bool = False) -> dict[str, str]:
        """Return every value that is set, as flat keys and texts that ``from_dict`` reads.

        Args:
            redacted: whether to mask secrets, for people and logs; ``from_dict`` cannot read the result.
        """
        values: dict[str, str] = {}
        for key, entry in self._entries.items():
            value_type = options_by_key()[key].value_type
            values[key] = value_type.shown(entry.value) if redacted else value_type.render(entry.value)
        for key, entry in self._pass_through.items():
            values[key] = masked(key, entry.value) if redacted else entry.value
        return values

    def __repr__(self) -> str:
        return f"Configuration({self.to_dict(redacted=True)})"

    @classmethod
    def _of_layers(cls, layers: Iterable[Mapping[str, RawValue]]) -> Configuration:
        configuration = cls()
        for layer in layers:
            configuration._put_layer(layer)
        configuration._check_consistency()
        return configuration

    def _copy(self) -> Configuration:
        copy = Configuration()
        copy._entries.update(self._entries)
        copy._pass_through.update(self._pass_through)
        copy.warnings = self.warnings
        return copy

    def _put_layer(self, layer: Mapping[str, RawValue]) -> None:
        """Set the values of a layer. Present names win over former ones, the latest former name over earlier ones."""
        set_by: dict[str, str] = {}
        for key, raw in sorted(layer.items(), key=lambda item: later_names(item[0])):
            target, warning = own_key(key), deprecation(key, raw.origin)
            if target in set_by and warning is None:
                raise InconsistentOptionsError(
                    f"{set_by[target]!r} and {key!r} ({raw.origin}) set the same option", f"keep {target!r} alone"
                )
            if target in set_by:
                winner = f"{set_by[target]!r} ({layer[set_by[target]].origin})"
                warning = ConfigurationWarning(
                    f"{raw.origin}: {key!r} is ignored, because {winner} sets the same option",
                    f"remove {key!r}, a former name",
                )
            elif removed_option(key) is None:
                self._put(key, raw)
                set_by[target] = key
            if warning is not None:
                self.warnings = (*self.warnings, warning)

    def _put(self, key: str, raw: RawValue) -> None:
        option = options_by_key().get(key)
        if option is None:
            if not is_pass_through(key):
                raise UnknownOptionError(key, suggest(key), raw.origin)
            text = raw.value if isinstance(raw.value, str) else ",".join(raw.value)
            self._pass_through[key] = _Entry(text, raw.origin, key)
            return
        if raw.value == "":
            self._entries.pop(option.key, None)
            return
        value_type = option.value_type
        try:
            value = value_type.parse(raw.value) if isinstance(raw.value, str) else value_type.parse_items(raw.value)
        except ValueError as error:
            text = str(raw.value)
            shown = MASK if value_type.secret else value_type.shown_text(text)
            # from None: the cause would show a secret value in the traceback
            raise InvalidValueError(key, shown[:200], value_type.expected, value_type.example, raw.origin) from (
                error if shown == text else None
            )
        self._entries[option.key] = _Entry(value, raw.origin, key)

    def _check_consistency(self) -> None:
        pairs: tuple[tuple[ConfigOption[Any], ConfigOption[Any]], ...] = (
            (HeartbeatOptions.INTERVAL, HeartbeatOptions.TIMEOUT),
            (RestartStrategyOptions.EXPONENTIAL_INITIAL_BACKOFF, RestartStrategyOptions.EXPONENTIAL_MAX_BACKOFF),
            (BlobOptions.OFFLOAD_MINSIZE, RpcOptions.FRAME_SIZE),
        )
        for smaller, larger in pairs:
            low, high = self.get(smaller), self.get(larger)
            strict = smaller is HeartbeatOptions.INTERVAL
            if low > high or (strict and low == high):
                bound = "be smaller than" if strict else "not exceed"
                low_text, high_text = smaller.value_type.render(low), larger.value_type.render(high)
                raise InconsistentOptionsError(
                    f"{smaller.key} = {low_text} must {bound} {larger.key} = {high_text}",
                    f"lower {smaller.key} ({self.origin(smaller)}) or raise {larger.key} ({self.origin(larger)})",
                )
        if self.get(SecurityOptions.SSL_ENABLED):
            files = (SecurityOptions.SSL_CERTIFICATE, SecurityOptions.SSL_KEY, SecurityOptions.SSL_CA)
            for file in files:
                if self.get(file) is None:
                    raise InconsistentOptionsError(
                        f"{SecurityOptions.SSL_ENABLED.key} is true and {file.key} is not set",
                        f"set {file.key} to a PEM file, or {SecurityOptions.SSL_ENABLED.key} to false",
                    )


def _plain(value: object) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return "" if value is None else str(value)
