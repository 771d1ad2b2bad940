"""Values as people read them: lengths of time, sizes, moments, texts that others wrote."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath

from conf import SecretStr


def format_duration(milliseconds: float) -> str:
    """A length of time in at most two units: ``350 ms``, ``4.2 s``, ``3 min 12 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if milliseconds < 1000:
        return f"{max(0, int(milliseconds))} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("a minute or more has a unit")


def format_size(size: int) -> str:
    """A number of bytes in powers of 1024: ``512 B``, ``1.5 KB``, ``10 MB``."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1024
        if value < 1023.95 or unit == "TB":
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def format_moment(epoch_ms: int) -> str:
    """A moment in local time: ``2026-03-01 14:05:09``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_ms / 1000))


def clean(text: str) -> str:
    """A text that someone else wrote, on one line and harmless to a terminal: what cannot be printed is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clean_lines(text: str) -> str:
    """The same for a text of many lines, such as a traceback."""
    return "\n".join(clean(line.replace("\t", "    ")) for line in text.splitlines())


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def to_plain(value: object) -> object:
    """A value as JSON has it: dataclasses become objects, enumerations their values, paths texts; secrets are masked.

    Raises:
        TypeError: JSON has nothing for it.
    """
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath | SecretStr):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")
