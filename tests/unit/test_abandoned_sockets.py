"""Sockets of killed processes are removed, and no others."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.cluster.leftovers import sweep


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="us-") as short:  # a socket's path has to be
        yield Path(short)


def bound(path: Path) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(str(path))
    return one


def test_only_a_socket_that_nobody_listens_on_is_removed(directory: Path) -> None:
    bound(directory / "rpc-1").close()  # as a killed process leaves it
    (directory / "rpc-note").write_text("no socket")
    bound(directory / "redis.sock").close()
    with bound(directory / "rpc-2") as served:
        served.listen()
        assert sweep(directory, time.time() + 1) == [directory / "rpc-1"]
    assert {path.name for path in directory.iterdir()} == {"rpc-2", "rpc-note", "redis.sock"}


def test_one_that_stands_still_with_many_waiting_keeps_its_socket(directory: Path) -> None:
    with bound(directory / "rpc-1") as served:
        served.listen(0)
        waiting = []
        while True:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.setblocking(False)
            waiting.append(one)
            try:
                one.connect(str(directory / "rpc-1"))
            except BlockingIOError:
                break
        assert sweep(directory, time.time() + 1) == []
        for one in waiting:
            one.close()


def test_one_that_is_just_being_made_is_left(directory: Path) -> None:
    with bound(directory / "rpc-1"):
        assert sweep(directory, time.time() - 10) == []
