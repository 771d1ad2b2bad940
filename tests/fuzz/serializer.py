"""The serializer of the actor layer under any bytes: a value, or `SerializationError`; what was read can be sent on."""

from __future__ import annotations

import datetime as dt
import enum
import struct
from pathlib import Path
from typing import Any

import msgpack

from actors.errors import SerializationError
from actors.messages import Identify, PoisonPill, Terminated
from actors.ref import ActorRef, Origin
from actors.serialization import MAX_DEPTH, Serializer, message, name_of
from tests.fuzz.source import ByteSource

CODES = (*range(14), 42, 127)
_ERROR_TEXT_LIMIT = 2000


@message
class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@message
class Parcel:
    """Something of every kind that a message may be made of."""

    number: int
    text: str
    blob: bytes = b""
    items: list[Any] = None  # type: ignore[assignment]  # a default that its own hint refuses on receipt
    pair: tuple[int, str] = (0, "")
    names: frozenset[str] = frozenset()
    colour: Colour = Colour.RED
    inner: Parcel | None = None
    ref: ActorRef | None = None


class _Node:
    """As much of a node as refs need in order to be parsed."""

    def ref(self, path: str, uid: int, origin: Origin) -> ActorRef:
        return ActorRef(None, origin, path, uid)


_node: Any = _Node()
_serializer = Serializer(lambda text: ActorRef.parse(text, _node))
_REF = ActorRef(None, Origin("tests", "127.0.0.1", 4711), "/user/a", 7)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -(2**63),
    2**70,
    1.5,
    "text",
    b"bytes",
    [1, [2]],
    {"k": 1, 2: "v"},
    (1, ("a",)),
    {1, 2},
    frozenset("ab"),
    dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
    dt.datetime(2026, 1, 2),
    dt.date(2026, 1, 2),
    dt.timedelta(days=-1, microseconds=1),
    Path("/tmp/a"),
    ValueError("wrong"),
    KeyError("k"),
    Colour.BLUE,
    _REF,
    PoisonPill(),
    Identify(1),
    Terminated(_REF),
    Parcel(1, "a", b"b", [1], (1, "x"), frozenset("n"), Colour.RED, Parcel(2, "in", items=[]), _REF),
)


def seeds() -> list[bytes]:
    """Encoded values for the raw mode, and choices for the mode that builds them."""
    raw = [b"\x00" + _serializer.dumps(value) for value in _VALUES]
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = (nested,)
    return [
        *raw,
        b"\x00" + _serializer.dumps(nested),
        *(bytes([1, number, *range(number, number + 50)]) for number in range(0, 200, 20)),
    ]


def _value_of(source: ByteSource, depth: int = 0) -> Any:
    """A value of MessagePack with extension types, right or wrong."""
    if depth > 6:
        return None
    match source.number(8):
        case 0:
            return [_value_of(source, depth + 1) for _ in range(source.number(5))]
        case 1:
            return {source.take(source.number(6)): _value_of(source, depth + 1) for _ in range(source.number(4))}
        case 2 | 3:
            inner = msgpack.packb([_value_of(source, depth + 1) for _ in range(source.number(5))])
            return msgpack.ExtType(source.choose(CODES), inner)
        case 4:
            return msgpack.ExtType(source.choose(CODES), source.take(source.number(64)))
        case 5:
            name = source.choose((name_of(Parcel), name_of(Colour), name_of(Identify), "os:system", "actors.x:Y", ""))
            fields = [_value_of(source, depth + 1) for _ in range(source.number(10))]
            return msgpack.ExtType(source.choose((1, 5, 6)), msgpack.packb([name, *fields]))
        case 6:
            return source.take(source.number(20)).decode("latin-1")
        case _:
            return source.number(1 << 64)


def check(data: bytes) -> None:
    """One input of the fuzzer; raises AssertionError, or whatever came that should not."""
    source = ByteSource(data)
    if source.number(2) == 0:
        encoded = source.take(len(data))
    else:
        encoded = msgpack.packb(_value_of(source))
        match source.number(4):
            case 0:
                encoded = encoded[: source.number(len(encoded) + 1)]
            case 1:
                changed = bytearray(encoded)
                changed[source.number(len(changed))] ^= 1 + source.number(255)
                encoded = bytes(changed)
            case 2:
                encoded = struct.pack(">BI", 0xDD, source.number(1 << 32)) + encoded
            case _:
                pass
    try:
        value = _serializer.loads(encoded)
    except SerializationError as error:
        _check_text(str(error))
        return
    try:
        again = _serializer.dumps(value)
    except SerializationError as error:  # deeper than is sent, or an exception with an odd text
        _check_text(str(error))
        return
    assert type(_serializer.loads(again)) is type(value)


def _check_text(text: str) -> None:
    assert len(text) < _ERROR_TEXT_LIMIT, "an error of the peer's making must not fill the log"
