"""Look-up of options by key, and suggestions for wrong keys."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from conf.option import ConfigOption
from conf.options import JOB_OPTIONS, all_options
from conf.secret import MASK

SPARK_PREFIX = "spark."
RESERVED_PREFIX = "spark.cds."  # Understudy's own: a typing error in it must not become a property of Spark

# Spark's own spark.redaction.regex, and the names of secrets of connectors to stores, catalogs and queues
_SENSITIVE = re.compile(
    r"(?i)secret|passw|passphrase|[.]pass$|token|credential|(access|account|encryption|private|api)[._-]?key|[.]sas[.]"
    r"|[.]auth$|jaas"
)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]*(?=@)")
_ASSIGNED = re.compile(r"(?i)((?:passw(?:or)?d|pwd|secret|token|key|sig)\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s&;,]+)")


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


def is_pass_through(key: str) -> bool:
    """Return whether a key without an option goes to Spark unchanged."""
    return key.startswith(SPARK_PREFIX) and not key.startswith(RESERVED_PREFIX) and len(key) > 6


def is_job_setting(key: str) -> bool:
    """Return whether one job may set a key for itself: its options, and Spark's own settings."""
    option = options_by_key().get(key)
    return is_pass_through(key) if option is None else option in JOB_OPTIONS


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
