"""Encoded rows of a state store, byte by byte; `tests/integration/test_savepoint_edit.py` compares them to Spark's."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any

import pytest

from runtime.checkpoint.state_rows import InvalidRowError, RowEncoder, UnsupportedTypeError, unique_names


def encoder(*kinds: Any, nullable: bool = True, is_key: bool = False) -> RowEncoder:
    fields = [{"name": f"f{number}", "type": kind, "nullable": nullable} for number, kind in enumerate(kinds)]
    return RowEncoder(json.dumps({"type": "struct", "fields": fields}), is_key=is_key)


def struct_of(*kinds: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": kind, "type": kind, "nullable": True} for kind in kinds]}


def array_of(kind: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": nullable}


def words(*parts: int | bytes) -> bytes:
    return b"".join(part if isinstance(part, bytes) else struct.pack("<q", part) for part in parts)


def at(offset: int, size: int) -> int:
    return offset << 32 | size


def test_a_key_as_spark_has_written_it() -> None:
    window = encoder(struct_of("timestamp", "timestamp"), "integer", is_key=True)
    row = window.encode(((1_704_067_220_000_000, 1_704_067_230_000_000), 2))
    assert row.hex() == (
        "0000000000000000180000001800000002000000000000000000000000000000004d5211d70d060080e3ea11d70d0600"
    )


@pytest.mark.parametrize(
    ("kind", "value", "word"),
    [
        ("boolean", True, b"\1" + bytes(7)),
        ("byte", -1, b"\xff" + bytes(7)),
        ("short", -2, b"\xfe\xff" + bytes(6)),
        ("integer", -2, b"\xfe\xff\xff\xff" + bytes(4)),
        ("date", 19_723, 19_723),
        ("long", -3, -3),
        ("timestamp_ntz", 7, 7),
        ("float", 1.5, struct.pack("<f", 1.5) + bytes(4)),
        ("double", 1.5, struct.pack("<d", 1.5)),
        ("decimal(18,2)", Decimal("-1.5"), -150),
        ("void", None, 0),
    ],
)
def test_values_of_one_word(kind: str, value: Any, word: int | bytes) -> None:
    nulls = 1 if value is None else 0
    assert encoder(kind).encode([value]) == words(nulls, word)


def test_values_with_bytes_of_their_own() -> None:
    row = encoder("string", "binary", "string", "string").encode(["nine byte", b"", None, "é"])
    assert row == words(4, at(40, 9), at(56, 0), 0, at(56, 2), b"nine byte" + bytes(7), "é".encode() + bytes(6))


@pytest.mark.parametrize(
    ("value", "content"),
    [(Decimal("1.28"), b"\x00\x80"), (Decimal("-1.28"), b"\x80"), (Decimal("-1.29"), b"\xff\x7f"), (Decimal(0), b"\0")],
)
def test_a_large_decimal_always_has_sixteen_bytes(value: Decimal, content: bytes) -> None:
    row = encoder("decimal(20,2)", "string").encode([value, "x"])
    assert row == words(0, at(24, len(content)), at(40, 1), content.ljust(16, b"\0"), b"x" + bytes(7))
    assert encoder("decimal(20,2)").encode([None]) == words(1, at(16, 0), bytes(16))


def test_more_than_64_fields_have_a_second_word_of_nulls() -> None:
    row = encoder(*["long"] * 65).encode([*range(64), None])
    assert row == words(0, 1, *range(64), 0)


def test_arrays() -> None:
    assert encoder(array_of("short")).encode([[1, None, 3]]) == words(
        0, at(16, 24), 3, 2, struct.pack("<hhhxx", 1, 0, 3)
    )
    texts = words(2, 0, at(32, 1), at(40, 1), b"a" + bytes(7), b"b" + bytes(7))
    assert encoder(array_of("string")).encode([["a", "b"]]) == words(0, at(16, 48), texts)
    assert encoder(array_of("long")).encode([[]]) == words(0, at(16, 8), 0)
    inner = words(0, 5)
    assert encoder(array_of(struct_of("long"))).encode([[(5,)]]) == words(0, at(16, 40), 1, 0, at(24, 16), inner)


def test_a_key_has_one_zero_and_one_nan() -> None:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    keys = encoder("double", "float", is_key=True)
    assert keys.encode([-0.0, -0.0]) == words(0, 0, 0)
    assert keys.encode([odd_nan, math.nan])[8:16] == struct.pack("<Q", 0x7FF8000000000000)
    assert encoder("double").encode([-0.0]) == words(0, struct.pack("<d", -0.0))  # a value stays what it is


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("integer", 1 << 31, "f0 cannot be 2147483648"),
        ("byte", 128, "f0 cannot be 128"),
        ("string", 5, "f0 cannot be 5"),
        ("void", 5, "f0 cannot be 5: it is always null"),
        ("decimal(3,1)", Decimal("100.0"), "more than 3 digits"),
        ("decimal(3,1)", Decimal("1.25"), "more than 1 decimal places"),
        (struct_of("integer"), ("x",), "f0.integer cannot be 'x'"),
        (array_of("integer", nullable=False), [1, None], r"f0.element is null"),
    ],
)
def test_values_that_do_not_fit(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(InvalidRowError, match=why):
        encoder(kind).encode([value])


def test_a_null_where_there_must_be_none() -> None:
    with pytest.raises(InvalidRowError, match="f0 is null"):
        encoder("long", nullable=False).encode([None])
    with pytest.raises(InvalidRowError, match="1 fields in place of 2"):
        encoder("long", "long").encode([1])


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": True},
        "interval day to second",
        "variant",
        "string collate UNICODE_CI",
        array_of("decimal(38,2)"),
        struct_of("time(6)"),
    ],
)
def test_other_types_are_refused(kind: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="f0"):
        encoder(kind)


def test_names_that_occur_several_times_are_numbered() -> None:
    assert unique_names(["sum", "n", "sum", "Sum", "sum_2"]) == ("sum", "n", "sum_2", "Sum_3", "sum_2_2")
