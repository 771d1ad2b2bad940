from __future__ import annotations

import contextlib
import hmac
import multiprocessing
import os
import pickle
import select
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from actors.process.thespian_base import (
    MAXIMUM_MESSAGE,
    TAG_SIZE,
    Receipts,
    TaggedPickle,
    _BoundedReceiveBuffer,
    drop_inherited_sockets,
)
from tests.waiting import PATIENCE_S


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


PORT, OTHER_PORT = 4711, 4712
NAME = (1_000, b"m" * 16)


@pytest.mark.parametrize("prefix", [b"", bytes(TAG_SIZE), bytes(TAG_SIZE + 24)], ids=["nothing", "a tag", "all"])
def test_a_pickle_without_the_tag_is_not_executed(tmp_path: Path, prefix: bytes) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "executed"))
    with pytest.raises(ValueError, match="without this system's tag"):
        TaggedPickle().loads(prefix + bomb, PORT)
    assert not (tmp_path / "executed").exists()


def test_the_bomb_of_these_tests_is_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_a_recording_of_another_run_is_not_executed(tmp_path: Path) -> None:
    recorded = TaggedPickle(os.urandom(32)).dumps(Bomb(tmp_path / "executed"), PORT, NAME)
    with pytest.raises(ValueError, match="without this system's tag"):
        TaggedPickle().loads(recorded, PORT)
    assert not (tmp_path / "executed").exists()


def test_a_message_for_another_port_is_not_executed(tmp_path: Path) -> None:
    redirected = TaggedPickle().dumps(Bomb(tmp_path / "executed"), PORT, NAME)
    with pytest.raises(ValueError, match="without this system's tag"):
        TaggedPickle().loads(redirected, OTHER_PORT)
    assert not (tmp_path / "executed").exists()
    TaggedPickle().loads(redirected, PORT)
    assert (tmp_path / "executed").exists()


def test_what_is_forked_from_here_understands_this_process() -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send_bytes(TaggedPickle().dumps("from the child", PORT, NAME)))
    process.start()
    process.join(PATIENCE_S)
    assert TaggedPickle().loads(receiver.recv_bytes(), PORT) == "from the child"


def test_every_byte_of_a_tagged_message_counts() -> None:
    tagged = TaggedPickle()
    data = tagged.dumps({"a": 1}, PORT, NAME)
    assert tagged.loads(data, PORT) == {"a": 1}
    assert tagged.name(data, PORT) == NAME
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(ValueError, match="without this system's tag"):
            tagged.loads(bytes(changed), PORT)
    with pytest.raises(ValueError, match="without this system's tag"):
        tagged.loads(b"", PORT)


def test_an_acknowledgement_is_of_one_message_and_of_one_kind() -> None:
    tagged = TaggedPickle()
    one, other = (tagged.dumps("x", port, NAME) for port in (PORT, OTHER_PORT))
    words = {tagged.ack(kind, message) for kind in ("ACK", "ACK+DATAERR") for message in (one, other)}
    assert len(words) == 4
    assert TaggedPickle(os.urandom(32)).ack("ACK", one) not in words


# ------------------------------------------------------------------ recorded messages


def test_tags_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    pickler = TaggedPickle()
    message = pickler.dumps("said", PORT, NAME)
    assert pickler.loads(message, PORT) == "said"
    compared.assert_called_once_with(message[:TAG_SIZE], message[:TAG_SIZE])


def test_a_message_is_taken_once() -> None:
    receipts = Receipts(since=100)
    for name in ((101, b"a"), (101, b"b"), (200, b"a"), (150, b"a")):  # makers' messages may overtake each other
        assert not receipts.is_taken(name)
        receipts.take(name)
        assert receipts.is_taken(name)
        with pytest.raises(ValueError, match="recorded and sent again"):
            receipts.take(name)


@pytest.mark.parametrize("made_at", [1, 99, 100])
def test_a_message_to_an_earlier_process_of_the_port_is_not_taken(made_at: int) -> None:
    with pytest.raises(ValueError, match="recorded and sent again"):
        Receipts(since=100).take((made_at, b"a"))


def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_not_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Receipts, "REMEMBERED", 3)
    receipts = Receipts(since=0)
    for made_at in (5, 1, 4, 2, 6, 7):
        with contextlib.suppress(ValueError):
            receipts.take((made_at, b"a"))
        assert len(receipts._taken) == len(receipts._oldest) <= 3
    for made_at in range(1, 8):
        with pytest.raises(ValueError, match="recorded and sent again"):
            receipts.take((made_at, b"a"))
    receipts.take((8, b"a"))


def test_a_bounded_buffer_takes_messages_up_to_the_maximum() -> None:
    body = b"x" * MAXIMUM_MESSAGE
    buffer = _BoundedReceiveBuffer(bytes)
    buffer.addMore(b"%d>" % len(body))
    buffer.addMore(body[:1000])
    assert buffer.completed() is None
    buffer.addMore(body[1000:])
    assert buffer.completed() == (body, b"")


@pytest.mark.parametrize(
    "start",
    [
        b"%d>" % (MAXIMUM_MESSAGE + 1),
        b"99999999999999999999>",
        b"-1>",
        b"x" * 21,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"abc>",
    ],
)
def test_a_bounded_buffer_refuses_what_no_control_message_is(start: bytes) -> None:
    buffer = _BoundedReceiveBuffer(bytes)
    with pytest.raises(ValueError):
        buffer.addMore(start)


def test_a_length_that_drips_in_is_refused_before_it_is_long() -> None:
    buffer = _BoundedReceiveBuffer(bytes)
    for _ in range(20):
        buffer.addMore(b"1")
    with pytest.raises(ValueError, match="no length"):
        buffer.addMore(b"1")


# ------------------------------------------------------------------ inherited sockets


def _targets() -> dict[int, str]:
    found = {}
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:
            continue
    return found


def _drop_and_tell(results: Connection, own: list[int]) -> None:
    drop_inherited_sockets()
    with socket.create_server(("127.0.0.1", 0)) as fresh:
        targets = _targets()
        results.send(([targets.get(number) for number in own], targets[fresh.fileno()].startswith("socket:")))


def test_a_forked_process_lets_go_of_its_parents_stream_sockets_and_of_nothing_else(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    left, right = socket.socketpair()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
        socket.socket(socket.AF_UNIX) as unix,
        left,
        right,
        select.epoll() as epoll,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        (tmp_path / "file").open("w") as file,
    ):
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        own = [thing.fileno() for thing in (listening, connected, unix, left, epoll, datagrams, file)]
        process = context.Process(target=_drop_and_tell, args=(sender, own))
        process.start()
        process.join(PATIENCE_S)
        targets, fresh_is_a_socket = receiver.recv()
        assert targets[:5] == [os.devnull] * 5
        assert targets[5].startswith("socket:"), "syslog is spoken to by datagrams"
        assert targets[6] == str(tmp_path / "file")
        assert fresh_is_a_socket
        left.sendall(b"the parent's own are untouched")
        assert right.recv(100) == b"the parent's own are untouched"
