"""The forms of values: each parses a text, renders it again, and describes itself.

They follow the types of Flink's ``ConfigOptions``. (``Duration`` and ``MemorySize`` accept the same texts as Flink's,
but a duration always needs its unit.)
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from conf.secret import MASK, SecretStr

V = TypeVar("V")
E = TypeVar("E", bound=Enum)

_DURATION_UNITS: dict[str, float] = {
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("min", "m", "minute", "minutes"), 60.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1e-6),
}
_MEMORY_UNITS: dict[str, int] = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1 << 40),
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-zµ]*)")


class ValueType(ABC, Generic[V]):
    """A form of values.

    ``name`` is its name in the reference, ``expected`` the form in words, ``example`` one valid value.
    """

    name: str
    expected: str
    example: str
    secret = False

    @abstractmethod
    def parse(self, text: str) -> V:
        """Return the value of a text. Raises ValueError when the text does not have this form."""

    def parse_items(self, items: list[str]) -> V:
        """Return the value of a YAML list. Raises ValueError for forms that are not lists."""
        raise ValueError(items)

    def render(self, value: V) -> str:
        """Return a text that ``parse`` reads as this value."""
        return str(value)

    def shown(self, value: V) -> str:
        """Return the text for people and logs."""
        return self.render(value)

    def shown_text(self, text: str) -> str:
        """Return a text without this form, for people and logs."""
        return text


class Text(ValueType[str]):
    """A text; ``pattern`` must match all of it."""

    name = "String"

    def __init__(self, example: str, pattern: str = r".+", expected: str = "a text") -> None:
        self.example, self.expected = example, expected
        self._pattern = re.compile(pattern)

    def parse(self, text: str) -> str:
        if not self._pattern.fullmatch(text):
            raise ValueError(text)
        return text


class Secret(ValueType[SecretStr]):
    """A text that is never shown."""

    name = "Secret"
    expected = "a text"
    example = "..."
    secret = True

    def parse(self, text: str) -> SecretStr:
        return SecretStr(text)

    def render(self, value: SecretStr) -> str:
        return value.reveal()

    def shown(self, value: SecretStr) -> str:
        return str(value)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def split_url(url: str) -> tuple[str, SplitResult]:
    """Return the authority of a URL, and the URL without it as `urlsplit` returns it.

    An authority may list several hosts, such as Redis' Sentinels. If one of them is an IPv6 address, newer releases of
    Python reject the URL, because they expect brackets around the whole host.
    """
    scheme, separator, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return authority, urlsplit(scheme + separator + rest.removeprefix(authority))


class SecretUrl(Secret):
    """A URL that may contain a password; shown without its user, password and query."""

    name = "Secret URL"

    def __init__(self, schemes: tuple[str, ...], example: str) -> None:
        self._schemes = schemes
        self.example = example
        self.expected = "a URL that starts with " + " or ".join(f"{scheme}://" for scheme in schemes)

    def parse(self, text: str) -> SecretStr:
        authority, parts = split_url(text)
        if parts.scheme not in self._schemes or not (authority or parts.path) or any(c.isspace() for c in text):
            raise ValueError("not such a URL")
        netloc = f"{MASK}@{authority.rpartition('@')[2]}" if "@" in authority else authority
        query = f"?{MASK}" if parts.query else ""
        return SecretStr(text, f"{parts.scheme}://{netloc}{parts.path}{query}")


class SecretHttpUrl(SecretUrl):
    """An http or https URL of one host, without a query; it may contain a password."""

    def __init__(self, example: str) -> None:
        super().__init__(("http", "https"), example)
        self.expected = "a URL that starts with http:// or https://, with a host and no query"

    def parse(self, text: str) -> SecretStr:
        parts = urlsplit(text)
        if not parts.hostname or parts.port == 0 or parts.query or parts.fragment:  # `port` raises if it is none
            raise ValueError("not such a URL")
        return super().parse(text)


class SparkConnectUrl(Secret):
    """Spark Connect's connection string; shown without its parameters, which may include a token."""

    name = "Secret URL"
    example = "sc://spark.example:15002/;use_ssl=true;token=..."
    expected = "sc://HOST:PORT, with /;name=value;... behind it, and neither session_id nor user_id among them"
    _pattern = re.compile(r"sc://([^\s:/;?#@]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/?|/(;[^\s;=]+=[^\s;=]*)+);?")

    def parse(self, text: str) -> SecretStr:
        if not self._pattern.fullmatch(text) or re.search(r";(session_id|user_id)=", text):
            raise ValueError("not such a URL")
        server, _, parameters = text.removeprefix("sc://").partition("/")
        return SecretStr(text, f"sc://{server}" + (f"/;{MASK}" if parameters else ""))


class Integer(ValueType[int]):
    """A whole number between two bounds, both included."""

    name = "Integer"

    def __init__(self, minimum: int = 0, maximum: int = 2**31 - 1, example: str = "") -> None:
        self._minimum, self._maximum = minimum, maximum
        self.example = example or str(max(minimum, 1))
        self.expected = f"a whole number from {minimum} to {maximum}"

    def parse(self, text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError(text)
        value = int(text)
        if not self._minimum <= value <= self._maximum:
            raise ValueError(text)
        return value


class IntegerRange(ValueType[tuple[int, int]]):
    """Two whole numbers from 1 on, the smaller one first, as ``2..16``."""

    name = "Range<Integer>"
    expected = "two whole numbers from 1 on, the smaller one first, such as 2..16"
    example = "2..16"

    def parse(self, text: str) -> tuple[int, int]:
        found = re.fullmatch(r"([0-9]{1,9})\.\.([0-9]{1,9})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(text)
        return int(found[1]), int(found[2])

    def render(self, value: tuple[int, int]) -> str:
        return f"{value[0]}..{value[1]}"


class Number(ValueType[float]):
    """A number between two bounds, both included."""

    name = "Double"

    def __init__(self, minimum: float, maximum: float, example: str) -> None:
        self._minimum, self._maximum = minimum, maximum
        self.example = example
        self.expected = f"a number from {minimum:g} to {maximum:g}"

    def parse(self, text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and self._minimum <= value <= self._maximum):
            raise ValueError(text)
        return value


class Boolean(ValueType[bool]):
    """``true`` or ``false``."""

    name = "Boolean"
    expected = "true or false"
    example = "true"

    def parse(self, text: str) -> bool:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ValueError(text)
        return lowered == "true"

    def render(self, value: bool) -> str:
        return "true" if value else "false"


class Duration(ValueType[float]):
    """A length of time with its unit, as seconds.

    It rejects a bare number (except 0), which Flink reads as milliseconds, while most people mean seconds.

    Args:
        example: one valid value.
        minimum: the shortest allowed, in seconds.
    """

    name = "Duration"

    def __init__(self, example: str = "10 s", minimum: float = 0.0) -> None:
        self.example = example
        self._minimum = minimum
        bound = f", at least {self.render(minimum)}" if minimum > 0 else ""
        self.expected = f"a number with its unit (ms, s, min, h or d){bound}"

    def parse(self, text: str) -> float:
        match = _QUANTITY.fullmatch(text.lower())
        if match is None:
            raise ValueError(text)
        number, unit = match.groups()
        if not unit and float(number) != 0:
            raise ValueError(text)
        # one rounding to the microsecond, so that "300 ms" is 0.3 and not 0.30000000000000004
        seconds = round(float(number) * (_DURATION_UNITS[unit] if unit else 0.0), 6) if unit in _UNITS_OR_NONE else None
        if seconds is None or seconds < self._minimum:
            raise ValueError(text)
        return seconds

    def render(self, value: float) -> str:
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            if value and value % size == 0:
                return f"{int(value // size)} {unit}"
        micros = round(value * 1e6)
        return f"{micros // 1000} ms" if micros % 1000 == 0 else f"{micros} us"


_UNITS_OR_NONE = frozenset(_DURATION_UNITS) | {""}


class MemorySize(ValueType[int]):
    """A size in bytes; k, m, g and t are powers of 1024 as in Flink and Spark; a bare number is bytes."""

    name = "MemorySize"

    def __init__(self, example: str = "10 mb", minimum: int = 0, maximum: int = 1 << 50) -> None:
        self.example = example
        self._minimum, self._maximum = minimum, maximum
        self.expected = "a size with its unit (b, kb, mb, gb or tb)"
        if minimum > 0:
            self.expected += f", at least {self.render(minimum)}"
        if maximum < 1 << 50:
            self.expected += f", at most {self.render(maximum)}"

    def parse(self, text: str) -> int:
        match = _QUANTITY.fullmatch(text.lower())
        if match is None or match.group(2) not in _MEMORY_UNITS:
            raise ValueError(text)
        number, unit = match.groups()
        size = int(number) * _MEMORY_UNITS[unit] if number.isdigit() else int(float(number) * _MEMORY_UNITS[unit])
        if not self._minimum <= size <= self._maximum:
            raise ValueError(text)
        return size

    def render(self, value: int) -> str:
        for unit, size in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value} b"


class Choice(ValueType[E]):
    """One of an enumeration's values; case does not matter."""

    name = "Enum"

    def __init__(self, choices: type[E]) -> None:
        self._by_text = {str(member.value).lower(): member for member in choices}
        self.expected = "one of " + ", ".join(str(member.value) for member in choices)
        self.example = str(next(iter(choices)).value)

    def parse(self, text: str) -> E:
        if text.lower() not in self._by_text:
            raise ValueError(text)
        return self._by_text[text.lower()]

    def render(self, value: E) -> str:
        return str(value.value)


class FilePath(ValueType[Path]):
    """A path, which is made absolute: ``~`` is expanded, and a relative path is relative to the current directory.

    So it means the same in every process that gets the configuration.
    """

    name = "Path"
    expected = "a path"

    def __init__(self, example: str) -> None:
        self.example = example

    def parse(self, text: str) -> Path:
        if "\0" in text:
            raise ValueError("a path holds no NUL")
        try:
            return Path(text).expanduser().absolute()
        except RuntimeError as error:  # ~ of a user that does not exist
            raise ValueError(str(error)) from error


class TextList(ValueType[tuple[str, ...]]):
    """Texts separated by ``;`` as in Flink, or a YAML list."""

    name = "List<String>"
    expected = "texts separated by ';'"

    def __init__(self, example: str) -> None:
        self.example = example

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in text.split(";") if item.strip())

    def parse_items(self, items: list[str]) -> tuple[str, ...]:
        if any(";" in item for item in items):
            raise ValueError(items)
        return tuple(items)

    def render(self, value: tuple[str, ...]) -> str:
        return ";".join(value)


class MavenCoordinates(ValueType[tuple[str, ...]]):
    """Coordinates of Maven packages, as Spark takes them: with ``:`` or, before the artifact, ``/``."""

    name = "List<String>"
    expected = "Maven coordinates GROUP:ARTIFACT:VERSION, separated by commas"
    example = "org.postgresql:postgresql:42.7.4"
    _pattern = re.compile(r"[A-Za-z0-9_][\w.-]*[:/][A-Za-z0-9_][\w.-]*:[A-Za-z0-9_][\w.+-]*", re.ASCII)

    def parse(self, text: str) -> tuple[str, ...]:
        return self.parse_items(text.split(","))

    def parse_items(self, items: list[str]) -> tuple[str, ...]:
        found = [item.strip() for item in items]
        if not all(map(self._pattern.fullmatch, found)):
            raise ValueError(items)
        return tuple(dict.fromkeys(item.replace("/", ":") for item in found))

    def render(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


class Arguments(ValueType[tuple[str, ...]]):
    """Command line arguments, separated by spaces and quoted as in a shell."""

    name = "Arguments"
    expected = "arguments separated by spaces, quoted as in a shell"
    _SECRETS = re.compile(r"(?i)(?<=://)[^/\s]*(?=@)|(?<=password=).+|(?<=secret=).+|(?<=token=).+")

    def __init__(self, example: str) -> None:
        self.example = example

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(shlex.split(text))

    def parse_items(self, items: list[str]) -> tuple[str, ...]:
        return tuple(items)

    def render(self, value: tuple[str, ...]) -> str:
        return shlex.join(value)

    def shown(self, value: tuple[str, ...]) -> str:
        """Return the arguments without secrets: users and passwords in URLs, and values of ``...password=``."""
        return " ".join(shown if MASK in shown else shlex.quote(shown) for shown in map(self._masked, value))

    def shown_text(self, text: str) -> str:
        return " ".join(map(self._masked, text.split()))

    def _masked(self, argument: str) -> str:
        return self._SECRETS.sub(MASK, argument)
