"""What the proxy before Redis makes of the bytes that pass it."""

from __future__ import annotations

import pytest

from runtime.ha import scripts
from tests.fakes.resp import Exchange, Exchanges, RespParser, Value
from tests.faults.history import Reign
from tests.faults.redis_front import accepted

LATCH = "{understudy:c}:leader:dispatcher"


def encoded(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_values_are_cut_out_of_whatever_pieces_come(size: int) -> None:
    stream = b"+OK\r\n:42\r\n$-1\r\n*-1\r\n*3\r\n$3\r\na\r\n\r\n*1\r\n:7\r\n-ERR no\r\n"
    parser, found = RespParser(), list[Value]()
    for at in range(0, len(stream), size):
        found += parser.feed(stream[at : at + size])
    assert found == [b"OK", 42, None, None, [b"a\r\n", [7], b"-ERR no"]]


def test_replies_are_paired_with_their_commands_in_order() -> None:
    exchanges = Exchanges()
    exchanges.sent(encoded("GET", "a") + encoded("GET", "b"), 1.0)
    exchanges.sent(encoded("GET", "c"), 2.0)
    assert exchanges.replied(b"$1\r\n1\r\n:2\r\n$1", 3.0) == [
        Exchange([b"GET", b"a"], b"1", 1.0, 3.0),
        Exchange([b"GET", b"b"], 2, 1.0, 3.0),
    ]
    assert exchanges.replied(b"\r\n3\r\n", 4.0) == [Exchange([b"GET", b"c"], b"3", 2.0, 4.0)]


def test_the_messages_of_a_subscription_are_no_replies() -> None:
    exchanges = Exchanges()
    exchanges.sent(encoded("SUBSCRIBE", "c"), 1.0)
    assert exchanges.replied(b"*1\r\n:1\r\n" * 3, 2.0) == []


def exchange(script: scripts.Script, reply: Value, *arguments: str, by_source: bool = False) -> Exchange:
    words = ("EVAL", script.source) if by_source else ("EVALSHA", script.sha)
    command = (*words, "2", LATCH, "{understudy:c}:handles:jobgraphs", *arguments)
    return Exchange([word.encode() for word in command], reply, 1.0, 2.0)


@pytest.mark.parametrize(
    ("item", "epoch"),
    [
        (exchange(scripts.ACQUIRE, [1, 7, 1000], "s", "1000", "0"), 7),
        (exchange(scripts.ACQUIRE, [0, 7, 1000], "s", "1000", "0"), None),
        (exchange(scripts.RENEW, 1, "s", "8", "1000"), 8),
        (exchange(scripts.RENEW, 0, "s", "8", "1000"), None),
        (exchange(scripts.FENCED_HSET, [1], "s", "9", "job", "any", "", "handle", by_source=True), 9),
        (exchange(scripts.FENCED_HSET, [0, b"other"], "s", "9", "job", "absent", "", "handle"), 9),
        (exchange(scripts.FENCED_HSET, [-1, b"10"], "s", "9", "job", "any", "", "handle"), None),
        (exchange(scripts.FENCED_DEL, b"-NOSCRIPT No matching script", "s", "9"), None),
        (exchange(scripts.LEADERS, [[b"s", b"9", b"akka://a"], [None, None, None]]), None),
        (Exchange([b"HGET", b"key", b"field"], b"1", 1.0, 2.0), None),
    ],
)
def test_what_redis_granted_is_told_from_what_it_refused(item: Exchange, epoch: int | None) -> None:
    assert accepted(item) == (None if epoch is None else Reign("dispatcher", epoch, "s", 2.0, 1.0, 1))
