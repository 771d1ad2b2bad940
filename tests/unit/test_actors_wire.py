from __future__ import annotations

import contextlib
import itertools
import random
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import FrameTooLarge, WireError
from actors.rpc.wire import ASK, ERROR, HEADER_SIZE, REPLY, TELL, FrameDecoder, FrameEncoder

MAXIMUM = 4096

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
TOKENS = st.none() | st.tuples(st.integers(0, 2**63), st.text(max_size=8)).map(list)
IDS = st.integers(0, 2**63)
ARGUMENTS = st.lists(PLAIN, max_size=4)
MESSAGES = st.one_of(
    st.tuples(st.just(ASK), IDS, st.text(max_size=12), st.text(max_size=12), ARGUMENTS, TOKENS),
    st.tuples(st.just(TELL), st.text(max_size=12), st.text(max_size=12), ARGUMENTS, TOKENS),
    st.tuples(st.just(REPLY), IDS, PLAIN),
    st.tuples(st.just(ERROR), IDS, st.text(max_size=12), st.text(max_size=12), st.text(max_size=12)),
).map(list)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def packed(message: Any) -> bytes:
    return frame(msgpack.packb(message))


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:stop] for start, stop in itertools.pairwise(edges)]


def decode_all(decoder: FrameDecoder, pieces: list[bytes]) -> list[list[Any]]:
    return [message for piece in pieces for message in decoder.feed(piece)]


@given(messages=st.lists(MESSAGES, max_size=6), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_of_the_stream_gives_the_same_messages(messages: list[list[Any]], cuts: list[int]) -> None:
    encoder = FrameEncoder(1 << 20)
    stream = b"".join(encoder.encode(message) for message in messages)
    assert decode_all(FrameDecoder(1 << 20), pieces_of(stream, cuts)) == messages


def test_a_stream_fed_byte_by_byte() -> None:
    messages = [[TELL, "/user/a", "note", ["x" * 300], None], [REPLY, 1, {"k": [1, 2]}]]
    stream = b"".join(packed(message) for message in messages)
    decoder = FrameDecoder(MAXIMUM)
    assert decode_all(decoder, [bytes([byte]) for byte in stream]) == messages


@given(message=MESSAGES, data=st.data())
def test_a_truncated_frame_yields_nothing_until_its_rest_comes(message: list[Any], data: st.DataObject) -> None:
    stream = FrameEncoder(1 << 20).encode(message)
    cut = data.draw(st.integers(0, len(stream) - 1))
    decoder = FrameDecoder(1 << 20)
    assert list(decoder.feed(stream[:cut])) == []
    assert list(decoder.feed(stream[cut:])) == [message]


@settings(max_examples=300)
@given(body=st.binary(max_size=64))
def test_any_body_is_one_message_or_a_wire_error(body: bytes) -> None:
    try:
        messages = list(FrameDecoder(MAXIMUM).feed(frame(body)))
    except WireError:
        return
    assert len(messages) == 1
    assert messages[0][0] in (ASK, TELL, REPLY, ERROR)


@settings(max_examples=300)
@given(message=MESSAGES, position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_corrupted_frame_never_raises_anything_but_a_wire_error(message: list[Any], position: int, flip: int) -> None:
    body = bytearray(msgpack.packb(message))
    body[position % len(body)] ^= flip
    try:
        messages = list(FrameDecoder(1 << 20).feed(frame(bytes(body))))
    except WireError:
        return
    assert all(isinstance(message, list) for message in messages)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="never used byte"),
        pytest.param(msgpack.packb([REPLY, 1, 2])[:-1], id="body ends early"),
        pytest.param(msgpack.packb([REPLY, 1, 2]) + b"\x00", id="bytes after the message"),
        pytest.param(msgpack.packb({"kind": 0}), id="a map"),
        pytest.param(msgpack.packb(7), id="an integer"),
        pytest.param(msgpack.packb([]), id="no kind"),
        pytest.param(msgpack.packb([4, 1, 2]), id="unknown kind"),
        pytest.param(msgpack.packb([-1, 1, 2]), id="negative kind"),
        pytest.param(msgpack.packb(["0", 1, 2]), id="kind is text"),
        pytest.param(msgpack.packb([2.0, 1, 2]), id="kind is a float"),
        pytest.param(msgpack.packb([[2], 1, 2]), id="kind is a list"),
        pytest.param(msgpack.packb([True, "/user/a", "m", [], None]), id="kind is a boolean"),
        pytest.param(msgpack.packb([False, 1, "/user/a", "m", [], None]), id="kind is false"),
        pytest.param(msgpack.packb([None, 1, 2]), id="kind is nil"),
        pytest.param(msgpack.packb([ASK, 1, "/user/a", "m", []]), id="ask without a field"),
        pytest.param(msgpack.packb([ASK, 1, "/user/a", "m", [], None, 0]), id="ask with one field more"),
        pytest.param(msgpack.packb([TELL, "/user/a", "m", []]), id="tell without a field"),
        pytest.param(msgpack.packb([REPLY, 1]), id="reply without a value"),
        pytest.param(msgpack.packb([ERROR, 1, "T", "m"]), id="error without a traceback"),
        pytest.param(msgpack.packb([REPLY, 1, msgpack.ExtType(5, b"x")]), id="extension type"),
        pytest.param(msgpack.packb([REPLY, "1", 2]), id="correlation id is text"),
        pytest.param(msgpack.packb([REPLY, [1], 2]), id="correlation id is a list"),
        pytest.param(msgpack.packb([ERROR, None, "T", "m", ""]), id="no correlation id"),
        pytest.param(msgpack.packb([ASK, True, "/user/a", "m", [], None]), id="correlation id is a boolean"),
        pytest.param(b"\x93\x02\x01\xa2\xff\xfe", id="text that is not UTF-8"),
        pytest.param(b"\x93\x02\x01\x81\x90\x01", id="a map with a list as key"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array of four thousand million"),
        pytest.param(b"\x93\x02\x01\xc6\xff\xff\xff\xff", id="bytes of four thousand million"),
        pytest.param(b"\x91" * 4000 + b"\xc0", id="nested four thousand deep"),
    ],
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    before = [REPLY, 9, "before"]
    messages = FrameDecoder(MAXIMUM).feed(packed(before) + frame(body))
    assert next(messages) == before, "what stands in front of the malformed frame is still delivered"
    with pytest.raises(WireError):
        next(messages)


@pytest.mark.parametrize("first", [b"\xff\xff\xff\xff", packed([9, 1, 2])], ids=["too large", "malformed"])
@pytest.mark.parametrize("split", [False, True])
def test_after_an_error_nothing_is_taken_any_more(first: bytes, split: bool) -> None:
    decoder = FrameDecoder(MAXIMUM)
    good = packed([REPLY, 1, 2])
    for piece in [first[:2], first[2:] + good] if split else [first + good]:
        with pytest.raises(WireError) if len(piece) > 2 else contextlib.nullcontext():
            list(decoder.feed(piece))
    with pytest.raises(WireError, match="after a malformed frame"):
        list(decoder.feed(good))


def test_announced_lengths_take_no_memory() -> None:
    """Lists in lists, each of which announces a million elements that never come."""
    body = (b"\xdd" + (1_000_000).to_bytes(4, "big")) * 1000 + b"\0" * 1_000_000
    decoder = FrameDecoder(len(body))
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            list(decoder.feed(len(body).to_bytes(4, "big") + body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000  # it would be 90 MB, and gigabytes with former releases of msgpack


def test_what_is_wrong_is_never_shown_at_length() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    for kind in ("x" * 3000, deep, {"k": "x" * 3000}):
        with pytest.raises(WireError) as caught:
            list(FrameDecoder(MAXIMUM).feed(packed([kind, 1, 2])))
        assert len(str(caught.value)) < 200


def test_the_maximum_is_inclusive() -> None:
    overhead = len(msgpack.packb([REPLY, 1, bytes(MAXIMUM - 10)])) - (MAXIMUM - 10)
    largest = [REPLY, 1, bytes(MAXIMUM - overhead)]
    larger = [REPLY, 1, bytes(MAXIMUM - overhead + 1)]
    encoded = FrameEncoder(MAXIMUM).encode(largest)
    assert len(encoded) == HEADER_SIZE + MAXIMUM
    assert list(FrameDecoder(MAXIMUM).feed(encoded)) == [largest]
    with pytest.raises(FrameTooLarge, match=r"rpc\.frame-size \(4096 bytes\)"):
        FrameEncoder(MAXIMUM).encode(larger)
    with pytest.raises(FrameTooLarge, match="4097"):
        list(FrameDecoder(MAXIMUM).feed(packed(larger)))


def test_an_oversized_frame_is_refused_on_its_header_alone() -> None:
    decoder = FrameDecoder(MAXIMUM)
    with pytest.raises(FrameTooLarge, match="4294967295"):
        list(decoder.feed(b"\xff\xff\xff\xff"))


def test_memory_stays_bounded_by_the_maximum_however_long_the_stream() -> None:
    maximum = 64 * 1024
    message = [REPLY, 1, random.Random(1).randbytes(maximum - 100)]
    stream = packed(message) * 3
    decoder = FrameDecoder(maximum)
    tracemalloc.start()
    try:
        count = 0
        for _ in range(100):  # 20 MB in all
            for start in range(0, len(stream), 1500):
                count += sum(1 for _ in decoder.feed(stream[start : start + 1500]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 300
    assert peak < 8 * maximum


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, 2**64, -(2**63) - 1, "\ud800", lambda: None],
    ids=["object", "set", "large", "small", "surrogate", "function"],
)
def test_what_messagepack_cannot_carry_is_refused_and_spoils_nothing(value: Any) -> None:
    encoder = FrameEncoder(MAXIMUM)
    with pytest.raises(WireError, match="cannot be sent"):
        encoder.encode([REPLY, 1, ["first", value]])
    assert encoder.encode([REPLY, 2, "next"]) == packed([REPLY, 2, "next"])


def test_a_frame_too_large_spoils_nothing() -> None:
    encoder = FrameEncoder(MAXIMUM)
    with pytest.raises(FrameTooLarge):
        encoder.encode([REPLY, 1, bytes(MAXIMUM)])
    assert encoder.encode([REPLY, 2, "next"]) == packed([REPLY, 2, "next"])


def test_a_timestamp_arrives_as_a_plain_number() -> None:
    (message,) = FrameDecoder(MAXIMUM).feed(packed([REPLY, 1, msgpack.Timestamp(1, 500_000_000)]))
    assert message == [REPLY, 1, 1.5]
    assert type(message[2]) is float
