"""The frame decoder under any bytes: one of its documented errors or messages, the same however the bytes are cut."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from actors.errors import FrameTooLarge, WireError
from actors.rpc.wire import ASK, ERROR, HEADER_SIZE, REPLY, TELL, FrameDecoder, FrameEncoder
from tests.fuzz.source import ByteSource

MAXIMA = (64, 1024, 65536)
_KINDS = {ASK: 6, TELL: 5, REPLY: 3, ERROR: 5}
_VALUES: tuple[Any, ...] = (
    None,
    0,
    1,
    -1,
    2**64 - 1,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    True,
    "/user/probe",
    "\x00",
    "x" * 300,
    b"",
    b"\xff" * 300,
    [],
    {},
    {1: 2, "a": [None]},
    [[[[]]]],
    msgpack.Timestamp(1, 500),
    msgpack.ExtType(5, b"ext"),
    msgpack.ExtType(127, b""),
)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def seeds() -> list[bytes]:
    """Streams from which a fuzzer may start; the first byte says which maximum, the second that the rest is raw."""
    encoder = FrameEncoder(65536)
    messages: list[list[Any]] = [
        [ASK, 1, "/user/probe", "echo", [b"x"], [7, "session"]],
        [TELL, "/user/probe", "add", [1], None],
        [REPLY, 1, {"k": [1, 2.5]}],
        [ERROR, 1, "builtins.ValueError", "text", ""],
    ]
    frames = [encoder.encode(message) for message in messages]
    whole = b"".join(frames)
    streams = [
        *frames,
        whole,
        whole[:-1],
        b"\xff\xff\xff\xff",
        frame(b"\x91" * 60),
        frame(b"\xdd\xff\xff\xff\xff"),
        b"",
    ]
    built = [bytes([2, 1, *range(number, number + 60)]) for number in (0, 60, 120, 180)]
    return [b"\x02\x00" + stream for stream in streams] + built


def stream_of(source: ByteSource) -> bytes:
    """A stream of frames, some of which are not what they should be."""
    parts: list[bytes] = []
    for _ in range(source.number(8) + 1):
        parts.append(_frame_of(source, parts))
    return b"".join(parts)


def _frame_of(source: ByteSource, earlier: list[bytes]) -> bytes:
    kind = source.choose((ASK, TELL, REPLY, ERROR))
    message = [kind, *(source.choose(_VALUES) for _ in range(_KINDS[kind] - 1))]
    if kind != TELL and source.number(8):
        message[1] = source.number(1 << 16)
    body = msgpack.packb(message)
    match source.number(12):
        case 0:
            return source.take(source.number(64))  # no frame at all
        case 1:
            return frame(body)[: source.number(len(body) + HEADER_SIZE)]  # truncated
        case 2:
            return struct.pack(">I", source.number(1 << 32)) + body  # a length of its own
        case 3 if earlier:
            return source.choose(earlier)  # duplicated
        case 4:
            changed = bytearray(body)
            changed[source.number(len(changed))] ^= 1 + source.number(255)
            return frame(bytes(changed))
        case 5:
            return frame(msgpack.packb(message[:-1]))  # a field too few
        case 6:
            return frame(msgpack.packb([*message, None]))  # a field too many
        case 7:
            return frame(source.choose((b"\x91", b"\x81\x01", b"\xdd\x00\x00\xff\xff")) * source.number(300))  # nested
        case 8:
            return frame(body + b"\x00")  # bytes after the message
        case 9:
            return frame(source.take(source.number(64)))
        case _:
            return frame(body)


def outcome(maximum: int, pieces: list[bytes]) -> tuple[list[list[Any]], type[WireError] | None]:
    """The messages of a stream and how it ended; raises whatever is not documented."""
    decoder = FrameDecoder(maximum)
    messages: list[list[Any]] = []
    for number, piece in enumerate(pieces):
        try:
            for message in decoder.feed(piece):
                _check(message)
                messages.append(message)
        except WireError as error:
            _check_end(decoder, str(error), pieces[number + 1 :])
            return messages, type(error)
    assert len(decoder._buffer) < maximum + HEADER_SIZE
    return messages, None


def _check_end(decoder: FrameDecoder, text: str, later: list[bytes]) -> None:
    assert len(text) < 1000, "an error of the peer's making must not fill the log"
    for piece in (*later, frame(msgpack.packb([REPLY, 1, 2]))):
        _refused(decoder, piece)


def _refused(decoder: FrameDecoder, piece: bytes) -> None:
    try:
        found = list(decoder.feed(piece))
    except WireError:
        return
    raise AssertionError(f"a stream that had broken went on with {found!r}")


def _check(message: list[Any]) -> None:
    kind = message[0]
    assert type(kind) is int
    assert len(message) == _KINDS[kind]
    assert kind == TELL or type(message[1]) is int


def same(left: Any, right: Any) -> bool:
    """Whether two decoded values are the same, NaN being itself, however deep they are."""
    waiting = [(left, right)]
    while waiting:
        one, other = waiting.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, list):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif isinstance(one, dict):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))  # in the order of the wire
            waiting.extend(zip(one.values(), other.values(), strict=True))
        elif one != other and one == one:  # which NaN is not
            return False
    return True


def check(data: bytes) -> None:
    """One input of the fuzzer; raises AssertionError, or whatever came that should not."""
    source = ByteSource(data)
    maximum = source.choose(MAXIMA)
    stream = source.take(len(data)) if source.number(2) == 0 else stream_of(source)
    whole, error = outcome(maximum, [stream])
    cuts = ByteSource(data[::-1])
    for pieces in (cuts.pieces(stream), [stream[n : n + 1] for n in range(len(stream))] if len(stream) < 300 else []):
        if pieces:
            again, same_error = outcome(maximum, pieces)
            assert same_error is error, f"{same_error} where it was {error} in one piece"
            assert same(again, whole), "the cuts changed the messages"
    if error is FrameTooLarge:
        assert any(
            int.from_bytes(stream[n : n + HEADER_SIZE], "big") > maximum for n in range(len(stream) - HEADER_SIZE + 1)
        )
