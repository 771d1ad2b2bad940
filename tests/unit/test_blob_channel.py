"""What a channel makes of a message that was changed on its way, and how slow a transfer may be."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from actors.rpc.wire import Tags
from blob import channel
from blob.channel import MINIMUM_RATE, Channel, Pace
from blob.errors import BlobConnectionTampered, BlobTimeout


def test_a_peer_that_drips_is_given_up_once_it_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pace = Pace(10.0)
    clock.now = 10.0
    pace.check(1)
    clock.now = 20.0
    pace.check(20 * MINIMUM_RATE - 1)
    clock.now = 20.5
    with pytest.raises(BlobTimeout, match=f"sent or accepted only {20 * MINIMUM_RATE} bytes in 20 s"):
        pace.check(0)


def test_a_message_whose_tag_is_wrong_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as sock:
        one, other = Channel(sock, 60.0), Channel(sock, 60.0)
        one.tag_with(Tags(b"a" * 32), Tags(b"b" * 32))
        other.tag_with(Tags(b"b" * 32), Tags(b"a" * 32))
        assert other.unsealed(one.sealed(b"first")) == b"first"
        second = one.sealed(b"second")
        with pytest.raises(BlobConnectionTampered):
            other.unsealed(b"S" + second[1:])
