"""Records with tags: what somebody on the way could do to them, each of which is seen."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import RecipientUnreachable, WireError
from actors.rpc.wire import RECORD_SIZE, TAG_SIZE, RecordReader, Tags, seal, unseal

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
HEADER_SIZE = 4


def records(*payloads: bytes, key: bytes = KEY) -> list[bytes]:
    tags = Tags(key)
    return [seal(tags, payload) for payload in payloads]


def read(*sent: bytes, key: bytes = KEY) -> bytes:
    reader = RecordReader(Tags(key))
    return b"".join(reader.feed(piece) for piece in sent)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, RECORD_SIZE, RECORD_SIZE + 1, 3 * RECORD_SIZE + 7])
def test_what_is_sealed_is_read_again(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert read(*records(data[:size], b"more")) == data[:size] + b"more"


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 2000), min_size=1),
)
def test_records_may_come_in_any_pieces(payloads: list[bytes], cuts: list[int]) -> None:
    stream, pieces = b"".join(records(*payloads)), []
    while stream:
        size = cuts[len(pieces) % len(cuts)]
        pieces.append(stream[:size])
        stream = stream[size:]
    assert read(*pieces) == b"".join(payloads)


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=2000), min_size=1, max_size=3),
    position=st.integers(min_value=0),
    flip=st.integers(1, 255),
)
def test_every_byte_counts(payloads: list[bytes], position: int, flip: int) -> None:
    stream = bytearray(b"".join(records(*payloads)))
    stream[position % len(stream)] ^= flip
    reader = RecordReader(Tags(KEY))
    try:
        said = reader.feed(bytes(stream))
    except (RecipientUnreachable, WireError):
        return
    # A length that was made larger waits for more; none of that record has been given out.
    assert b"".join(payloads).startswith(said)
    assert said != b"".join(payloads)


def _swapped(first: bytes, second: bytes, third: bytes) -> bytes:
    return first + third + second


ATTACKS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "injection": lambda first, second, third: first + records(b"rm -rf ~", key=OTHER_KEY)[0] + second + third,
    "replay": lambda first, second, third: first + second + second + third,
    "replay at the beginning": lambda first, second, third: first + first + second + third,
    "reordering": _swapped,
    "removal of one": lambda first, second, third: first + third,
    "removal of the first": lambda first, second, third: second + third,
    "truncation of the payload": lambda first, second, third: (
        first + second[: -TAG_SIZE - 1] + second[-TAG_SIZE:] + third
    ),
    "a length that fits what was cut": lambda first, second, third: (
        first + (len(second) - HEADER_SIZE - TAG_SIZE - 1).to_bytes(4) + second[4 : -TAG_SIZE - 1] + second[-TAG_SIZE:]
    ),
    "another connection's record": lambda first, second, third: first + records(b"one", b"evil", key=OTHER_KEY)[1],
    "two made one": lambda first, second, third: first + (6).to_bytes(4) + b"two" + b"333" + third[-TAG_SIZE:],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_was_tampered_with_is_refused_and_nothing_of_it_is_given_out(name: str) -> None:
    first, second, third = records(b"one", b"two", b"333")
    assert read(first, second, third) == b"onetwo333"
    tampered = ATTACKS[name](first, second, third)
    reader, said, refused = RecordReader(Tags(KEY)), b"", ""
    for byte in tampered + bytes(100):
        try:
            said += reader.feed(bytes([byte]))
        except RecipientUnreachable as error:
            refused = str(error)
            break
    assert "its other end has not sent" in refused
    assert b"onetwo333".startswith(said)
    # The control: without the tags it would have been given out.
    with mock.patch.object(Tags, "fits", return_value=True):
        payloads, _, _ = unseal(Tags(KEY), tampered)
    assert payloads != [b"one", b"two", b"333"][: len(payloads)]


def test_tags_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr("actors.rpc.wire.compare_digest", compared)
    (record,) = records(b"said")
    assert read(record) == b"said"
    compared.assert_called_once_with(record[-TAG_SIZE:], record[-TAG_SIZE:])


def test_a_reflected_record_is_refused() -> None:
    """What one end has sent comes back to it: its own direction has another key."""
    (record,) = records(b"one", key=KEY)
    with pytest.raises(RecipientUnreachable):
        read(record, key=OTHER_KEY)


@pytest.mark.parametrize("size", [0, RECORD_SIZE + 1, 2**32 - 1])
def test_a_length_that_no_record_has_is_refused_before_anything_is_held(size: int) -> None:
    with pytest.raises(WireError, match=f"a record of {size} bytes"):
        RecordReader(Tags(KEY)).feed(size.to_bytes(4))


def test_checking_a_copy_of_the_tags_can_be_done_again() -> None:
    """As a thread does that was interrupted while it read."""
    first, second = records(b"one", b"two")
    tags = Tags(KEY)
    for _ in range(2):
        assert unseal(tags.copy(), first + second[:5])[:2] == ([b"one"], len(first))
    after = tags.copy()
    unseal(after, first)
    assert unseal(after, second)[0] == [b"two"]
