"""The short form of the fuzz of the blob protocol: its parser under hypothesis, a live server under a fixed seed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blob.key import PermanentBlobKey, TransientBlobKey
from blob.settings import BlobServerOptions
from tests.contract.blob_harness import JOB, RawPeer, Served, is_closed, wait_until
from tests.fuzz.blob import check, frames_of, seeds
from tests.fuzz.source import ByteSource

CONNECTIONS = 500
OPTIONS = BlobServerOptions(disk_reserve=0, max_bytes=50_000_000, resume_window=0.0)
VISIBLE = re.compile(r"(no_job|job_[0-9a-f]{32})/blob_([pt])-([0-9a-f]{64})-[0-9a-f]{32}")


@pytest.mark.parametrize("data", seeds())
def test_the_seeds(data: bytes) -> None:
    check(data)


@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.sampled_from(seeds()), st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_spoilt_frames(seed: bytes, position: int, change: int, cut: bool) -> None:
    data = bytearray(seed)
    data[position % len(data)] ^= change
    check(bytes(data[: position % len(data)] if cut else data))


def test_a_live_server(tmp_path: Path) -> None:
    source = random.Random(20)
    with Served(tmp_path, options=OPTIONS) as served, served.client() as client:
        permanent = client.put_bytes(b"permanent", PermanentBlobKey, JOB)
        for _ in range(CONNECTIONS):
            with RawPeer(served.server.address) as peer, contextlib.suppress(OSError):
                peer.send(frames_of(ByteSource(source.randbytes(300))))
                peer.sock.shutdown(socket.SHUT_WR)
                assert is_closed(peer.sock)
        assert client.get_bytes(permanent, JOB) == b"permanent"
        assert client.get_bytes(client.put_bytes(b"x", TransientBlobKey)) == b"x"
        wait_until(lambda: served.server.stats().connections <= 1)
        wait_until(lambda: not any(name.startswith("incoming") for name in served.files()))
        held = 0
        for name in served.files():
            # Whatever was accepted is whole, right, and where it belongs.
            found = VISIBLE.fullmatch(name)
            assert found is not None
            content = (tmp_path / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == found[3]
            assert found[2] == "t" or found[1] != "no_job"
            held += len(content)
        assert served.server.stats().total_bytes == held
        assert served.server.stats().puts > 10
