"""The short forms: hypothesis, some seconds of the coverage-guided fuzzer, some seconds against a real service."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import SerializationError, WireError
from actors.rpc.wire import FrameDecoder
from tests.fuzz import blob, decoder, handshake, serializer
from tests.fuzz.__main__ import GUIDED, RSS_LIMIT_MB, has_fuzzer, run_guided
from tests.fuzz.client import run_client
from tests.fuzz.live import run_live
from tests.waiting import PATIENCE_S

GUIDED_S, LIVE_S, CLIENT_S = 3, 5, 2
CHECKS: dict[str, Callable[[bytes], None]] = {
    "decoder": decoder.check,
    "handshake": handshake.check,
    "serializer": serializer.check,
    "blob": blob.check,
}


@pytest.mark.parametrize("target", CHECKS)
@settings(max_examples=300)
@given(data=st.binary(max_size=400))
def test_any_input(target: str, data: bytes) -> None:
    CHECKS[target](data)


@pytest.mark.parametrize("target", [decoder, handshake, serializer, blob], ids=lambda target: target.__name__)
def test_the_seeds_and_what_is_near_them(target: object) -> None:
    choose = random.Random(1)
    seeds = target.seeds()  # type: ignore[attr-defined]
    check = target.check  # type: ignore[attr-defined]
    for seed in seeds:
        check(seed)
        for _ in range(30):
            changed = bytearray(seed or b"\x00")
            for _ in range(choose.randrange(1, 4)):
                changed[choose.randrange(len(changed))] = choose.randrange(256)
            check(bytes(changed) + choose.randbytes(choose.randrange(40)))


# ------------------------------------------------------------------ memory


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(WireError, SerializationError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SIZE = 1 << 18
BOMBS = {
    "lists that announce what does not follow": (b"\xdd" + struct.pack(">I", SIZE - 16)) * 1000 + bytes(SIZE - 5000),
    "maps that announce what does not follow": (b"\xdf" + struct.pack(">I", SIZE // 2)) * 1000 + bytes(SIZE - 5000),
    "bytes that do not follow": b"\xc6" + struct.pack(">I", SIZE) + bytes(SIZE - 5),
    "nested lists": b"\x91" * SIZE,
    "nested maps": b"\x81\x01" * (SIZE // 2),
    "as many empty lists as there are bytes": b"\xdd" + struct.pack(">I", SIZE - 5) + b"\x90" * (SIZE - 5),
    "as many empty maps as there are bytes": b"\xdd" + struct.pack(">I", SIZE - 5) + b"\x80" * (SIZE - 5),
    "nested extension types": b"\xc9" + struct.pack(">IB", SIZE - 6, 3) + b"\xc9" * (SIZE - 6),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("what", ["frame", "message"])
def test_no_bytes_take_more_than_their_share_of_memory(name: str, what: str) -> None:
    bomb = BOMBS[name]
    if what == "frame":
        stream = decoder.frame(bomb)
        peak = peak_of(lambda: list(FrameDecoder(SIZE).feed(stream)))
    else:
        peak = peak_of(lambda: serializer._serializer.loads(bomb))
    assert peak < 100 * SIZE, "64 bytes for each of the empty containers, and a few copies"


@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=1, max_size=60), st.sampled_from([1, 7, 1500, 65536]))
def test_a_long_stream_of_anything_leaves_nothing_behind(unit: bytes, size: int) -> None:
    maximum = 16 * 1024
    good = decoder.frame(msgpack.packb([2, 1, unit]))
    stream = good * (60_000 // len(good)) + unit

    def feed() -> None:
        reader = FrameDecoder(maximum)
        for start in range(0, len(stream), size):
            for _ in reader.feed(stream[start : start + size]):
                pass

    assert peak_of(feed) < 8 * max(maximum, size)


def test_a_handshake_keeps_nothing_of_what_it_is_sent() -> None:
    def handshakes() -> None:
        for number in range(300):
            handshake.check(number.to_bytes(2, "big") * 100)

    handshakes()
    assert peak_of(handshakes) < 1 << 20


# ------------------------------------------------------------------ the real fuzzers


def run_until(is_enough: Callable[[Any], bool], run: Callable[[int], Any], seconds: int) -> Any:
    """Run for longer and longer until there was enough of it, on a busy machine too; nothing may be found meanwhile."""
    while True:
        result = run(seconds)
        assert result["found"] == ""
        if is_enough(result):
            return result
        seconds *= 2
        assert seconds < PATIENCE_S, result


@pytest.mark.skipif(not has_fuzzer(), reason="atheris is not installed: pip install 'understudy-spark[fuzz]'")
@pytest.mark.parametrize("target", GUIDED)
def test_the_coverage_guided_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    result = run_until(lambda found: found["executions"] > 100, lambda s: run_guided(target, s, tmp_path), GUIDED_S)
    assert result["coverage"] > 30, "it must see the code, or it is none"
    assert result["peak_rss_mb"] < RSS_LIMIT_MB
    assert list(tmp_path.iterdir()) == []


def test_a_live_service_withstands_streams_that_were_tampered_with() -> None:
    run_until(
        lambda found: found["executions"] > 20 and found["good_answers"] > 100, lambda s: run_live(s, seed=1), LIVE_S
    )


@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_a_client_withstands_a_server_gone_mad(kind: str) -> None:
    run_until(
        lambda found: found["executions"] > 10 and found["answers"] > 5 and len(found["errors"]) >= 3,
        lambda s: run_client(kind, s, seed=1),
        CLIENT_S,
    )
