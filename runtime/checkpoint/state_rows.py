"""Encodes rows as Spark's state stores hold them (``UnsafeRow``). Pure.

A row consists of 8-byte words, little endian:

| part | content |
|---|---|
| nulls | one bit a field, in as many words as needed |
| fields | one word each: the value itself; or the offset (upper half) and the size (lower half) of its bytes |
| bytes | texts, bytes, large decimals, inner rows and arrays, in the order of the fields, padded with zeros |

An array begins with the number of its elements. The nulls follow, then the elements in their own width, then the bytes
of those that have no fixed width.

A store finds a key by these bytes, so the same key must always give the same bytes. `RowEncoder` writes zeros in all
unused places. In keys it writes one zero and one NaN.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from runtime.checkpoint.state_schema import type_name

_FIXED = {
    "boolean": "?",
    "byte": "b",
    "short": "h",
    "integer": "i",
    "date": "i",
    "long": "q",
    "timestamp": "q",
    "timestamp_ntz": "q",
    "float": "f",
    "double": "d",
}
"""Types that fit into a word, by Spark's names in JSON, with their form for `struct`."""

_FLOATS = ("float", "double")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_LONG_DIGITS = 18
_LARGE_DECIMAL = 16

Encode = Callable[[Any], bytes]


class UnsupportedTypeError(ValueError):
    """A field has a type that `RowEncoder` cannot encode."""


class InvalidRowError(ValueError):
    """A row is not of its schema: a value is null that must not be, or does not fit its type."""


class RowEncoder:
    """Encodes the rows of one schema.

    Args:
        schema: a struct in Spark's JSON.
        is_key: whether the rows are keys.

    Raises:
        UnsupportedTypeError: a field has another type than booleans, numbers, dates, timestamps, texts, bytes, and
            structs and arrays of these. As a field of its own, void is allowed: it is always null.
    """

    def __init__(self, schema: str, *, is_key: bool = False) -> None:
        fields = json.loads(schema)["fields"]
        self.names = unique_names(field["name"] for field in fields)
        """Names of the fields, each once."""
        self._row = _Row(fields, "", is_key)

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return a row.

        Args:
            values: of the fields, in their order. Dates are numbers of days, and timestamps of microseconds, since the
                epoch; structs are sequences.

        Raises:
            InvalidRowError: they are not of the schema.
        """
        return self._row.encode(values)


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that differ without regard to case: from its second time on, a name gets its number (``sum_2``)."""
    found: dict[str, str] = {}
    for name in names:
        number, unique = 1, name
        while unique.lower() in found:
            number += 1
            unique = f"{name}_{number}"
        found[unique.lower()] = unique
    return tuple(found.values())


class _Row:
    def __init__(self, fields: Sequence[Any], prefix: str, is_key: bool) -> None:
        self._nulls = (len(fields) + 63) // 64 * 8
        self._fields = [_Field(one, prefix, is_key) for one in fields]

    def encode(self, values: Sequence[Any]) -> bytes:
        if len(values) != len(self._fields):
            raise InvalidRowError(f"a row has {len(values)} fields in place of {len(self._fields)}")
        nulls = 0
        words = bytearray()
        rest = bytearray()
        begin = self._nulls + 8 * len(self._fields)
        for position, (field, value) in enumerate(zip(self._fields, values, strict=True)):
            if value is None:
                if not field.is_nullable:
                    raise InvalidRowError(f"{field.name} is null, and must not be")
                nulls |= 1 << position
                if field.reserved:  # Spark keeps the place of a large decimal
                    words += struct.pack("<Q", begin + len(rest) << 32)
                    rest += bytes(field.reserved)
                else:
                    words += bytes(8)
            elif field.width:
                words += field.encode(value).ljust(8, b"\0")
            else:
                content = field.encode(value)
                words += struct.pack("<Q", begin + len(rest) << 32 | len(content))
                rest += _padded(content).ljust(field.reserved, b"\0")
        return nulls.to_bytes(self._nulls, "little") + bytes(words) + bytes(rest)


class _Field:
    """A field of a row, or the element of an array.

    Attributes:
        width: bytes of a value of fixed width; 0 if it has none.
        reserved: bytes at least in the variable part, also of a null; 0 if there are none.
    """

    def __init__(self, field: Any, prefix: str, is_key: bool) -> None:
        self.name = f"{prefix}{field['name']}"
        self.is_nullable = bool(field["nullable"])
        self.width, self.reserved, self._encode = _encoding(self.name, field["type"], is_key)

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except (struct.error, OverflowError, AttributeError, TypeError) as error:
            raise InvalidRowError(f"{self.name} cannot be {value!r}: {error}") from error


def _encoding(name: str, kind: Any, is_key: bool) -> tuple[int, int, Encode]:
    """Return the width, the reserved bytes, and what encodes a value of a type."""
    if isinstance(kind, dict) and kind["type"] == "struct":
        return 0, 0, _Row(kind["fields"], f"{name}.", is_key).encode
    if isinstance(kind, dict) and kind["type"] == "array":
        element = {"name": "element", "type": kind["elementType"], "nullable": kind["containsNull"]}
        return 0, 0, _Array(_Field(element, f"{name}.", is_key)).encode
    if isinstance(kind, str) and kind in _FIXED:
        form = struct.Struct(f"<{_FIXED[kind]}")
        return form.size, 0, _float(form) if is_key and kind in _FLOATS else form.pack
    if kind == "string":
        return 0, 0, str.encode
    if kind == "binary":
        return 0, 0, bytes
    if kind == "void":
        return 0, 0, _nothing
    if isinstance(kind, str) and (match := _DECIMAL.fullmatch(kind)):
        precision, scale = int(match[1]), int(match[2])
        if precision <= _LONG_DIGITS:
            form = struct.Struct("<q")
            return 8, 0, lambda value: form.pack(_unscaled(value, precision, scale))
        return 0, _LARGE_DECIMAL, lambda value: _big_endian(_unscaled(value, precision, scale))
    raise UnsupportedTypeError(f"{name} is {type_name(kind)}")


def _nothing(value: object) -> bytes:
    raise TypeError("it is always null")


def _float(form: struct.Struct) -> Encode:
    def encode(value: float) -> bytes:
        return form.pack(math.nan if math.isnan(value) else value or 0.0)

    return encode


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise TypeError("it is not a number")
    number = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    power: int = 10 ** abs(shift)
    if shift < 0 and number % power:
        raise OverflowError(f"it has more than {scale} decimal places")
    number = number * power if shift >= 0 else number // power
    if number >= 10**precision:
        raise OverflowError(f"it has more than {precision} digits")
    return -number if sign else number


def _big_endian(number: int) -> bytes:
    """Return the shortest two's complement, as Java's ``BigInteger.toByteArray``."""
    size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


class _Array:
    def __init__(self, element: _Field) -> None:
        if element.reserved:
            raise UnsupportedTypeError(f"{element.name} is a decimal of more than {_LONG_DIGITS} digits")
        self._element = element

    def encode(self, values: Sequence[Any]) -> bytes:
        element, count = self._element, len(values)
        nulls = 0
        head = (count + 63) // 64 * 8
        width = element.width or 8
        begin = 8 + head + (width * count + 7) // 8 * 8
        places = bytearray()
        rest = bytearray()
        for position, value in enumerate(values):
            if value is None:
                if not element.is_nullable:
                    raise InvalidRowError(f"{element.name} is null, and must not be")
                nulls |= 1 << position
                places += bytes(width)
            elif element.width:
                places += element.encode(value)
            else:
                content = element.encode(value)
                places += struct.pack("<Q", begin + len(rest) << 32 | len(content))
                rest += _padded(content)
        return struct.pack("<q", count) + nulls.to_bytes(head, "little") + _padded(bytes(places)) + bytes(rest)
