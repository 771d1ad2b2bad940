"""Look-up of options by key, and suggestions for wrong keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from conf.option import ConfigOption, RemovedOption
from conf.options import JOB_OPTIONS, REMOVED_OPTIONS, all_options
from conf.secret import MASK

T = TypeVar("T")

SPARK_PREFIX = "spark."
RESERVED_PREFIXES = ("spark.cds.", "spark.table-")  # a typing error in our own keys must not become Spark's property

# Spark's own spark.redaction.regex, and the names of secrets of connectors to stores, catalogs and queues
_SENSITIVE = re.compile(
    r"(?i)secret|passw|passphrase|[.]pass$|token|credential|(access|account|encryption|private|api)[._-]?key|[.]sas[.]"
    r"|[.]auth$|jaas"
)
_reported: set[ConfigurationWarning] = set()
"""Warnings that this process has reported."""
_USER_INFO = re.compile(r"(?<=://)[^/\s@]*(?=@)")
_ASSIGNED = re.compile(r"(?i)((?:passw(?:or)?d|pwd|secret|token|key|sig)\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s&;,]+)")


@dataclass(frozen=True, slots=True)
class ConfigurationWarning:
    """A valid setting that should be changed.

    Attributes:
        message: the problem and the place of the setting, on one line.
        remedy: the action to take.
    """

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}"


@lru_cache(maxsize=1)
def options_by_key() -> dict[str, ConfigOption[Any]]:
    """Return every key with its option, including former and foreign names."""
    found: dict[str, ConfigOption[Any]] = {}
    for option in all_options():
        for key in option.keys:
            if key in found:
                raise AssertionError(f"two options claim the key {key!r}")
            found[key] = option
    return found


def own_key(key: str) -> str:
    """Return the key by which an option is declared, for any key that sets it; other keys as they are."""
    option = options_by_key().get(key)
    return key if option is None else option.key


def later_names(key: str) -> int:
    """Return the number of names that an option got after this former name; 0 if it is not a former name."""
    option = options_by_key().get(key)
    former = () if option is None else option.deprecated_keys
    return next((number for number, name in enumerate(former, 1) if name.key == key), 0)


def by_own_key(settings: Mapping[str, T]) -> dict[str, T]:
    """Return settings by the keys by which their options are declared; a former name counts less than a later one."""
    return {own_key(key): settings[key] for key in sorted(settings, key=later_names, reverse=True)}


def removed_option(key: str) -> RemovedOption | None:
    """Return the removed option of a key, if the key is one."""
    return next((removed for removed in REMOVED_OPTIONS if removed.key == key), None)


def deprecation(key: str, origin: str) -> ConfigurationWarning | None:
    """Return the warning of a key that only this release still accepts; None for any other key.

    Args:
        key: the key as written.
        origin: its place: ``file:line``, ``-D`` or similar.
    """
    if removed := removed_option(key):
        return ConfigurationWarning(
            f"{origin}: {key!r} was removed in {removed.since} and has no effect; {_ends(removed.since)}",
            removed.remedy,
        )
    if not (later := later_names(key)):
        return None
    option = options_by_key()[key]
    since = option.deprecated_keys[later - 1].since
    return ConfigurationWarning(
        f"{origin}: {key!r} was renamed in {since}; {_ends(since)}", f"write {option.key!r} instead"
    )


def report_once(warnings: Iterable[ConfigurationWarning], report: Callable[[str], object]) -> None:
    """Call *report* with the text of each warning that this process has not reported yet."""
    for warning in warnings:
        if warning not in _reported:
            _reported.add(warning)
            report(str(warning))


def _ends(since: str) -> str:
    return f"{since.rpartition('.')[0]} is the last release that accepts it"


def is_pass_through(key: str) -> bool:
    """Return whether a key without an option goes to Spark unchanged."""
    return key.startswith(SPARK_PREFIX) and not key.startswith(RESERVED_PREFIXES) and len(key) > 6


def is_job_setting(key: str) -> bool:
    """Return whether one job may set a key for itself: its options, and Spark's own settings."""
    option = options_by_key().get(key)
    if option is None:
        return is_pass_through(key) or removed_option(key) is not None
    return option in JOB_OPTIONS


def is_sensitive(key: str) -> bool:
    """Return whether the value of an undeclared key is likely a secret."""
    return _SENSITIVE.search(key) is not None


def masked(key: str, value: str) -> str:
    """Return the value of an undeclared key for display: masked if it is a secret, else without secrets in it."""
    if is_sensitive(key):
        return MASK
    return _ASSIGNED.sub(rf"\1{MASK}", _USER_INFO.sub(MASK, value))


def is_section(key: str) -> bool:
    """Return whether a key is a prefix of declared ones, such as ``heartbeat``."""
    return key == "spark" or any(known.startswith(f"{key}.") for known in options_by_key())


def suggest(key: str) -> str | None:
    """Return the declared key nearest to an undeclared one, or None when none is near.

    Keys are near if their spelling is similar, or if they are in the same area and share a word: ``taskmanager.slots``
    is near ``taskmanager.numberOfTaskSlots``.
    """
    from difflib import SequenceMatcher  # only for a wrong key: keeps the command line quick to start

    def nearness(known: str) -> float:
        ratio = SequenceMatcher(None, plain, "".join(_words(known))).ratio()
        shared = set(_words(key.rpartition(".")[2])) & set(_words(known)) - {section}
        return ratio + (0.5 if shared and known.startswith(section) else 0.0)

    plain, section = "".join(_words(key)), key.partition(".")[0]
    best = max(options_by_key(), key=nearness)
    return options_by_key()[best].key if nearness(best) >= 0.65 else None


def _words(key: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", key)]
