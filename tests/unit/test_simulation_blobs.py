"""The parts of the workload `blobs`: pipes between sockets and files, and checkers that find what they are for."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.simulation.blob_checks import (
    CONTENT,
    FENCED,
    FLIGHT,
    LEADS,
    LEFT,
    READABLE,
    Blob,
    BlobHistory,
    Job,
    Outcome,
)
from tests.simulation.disk import ROOT
from tests.simulation.kernel import SECOND
from tests.simulation.patches import installed
from tests.simulation.splice import Splice
from tests.simulation.world import World

ORPHAN_AGE, TRANSIENT_TTL = 30 * SECOND, 15 * SECOND
CAPACITY = 1000

# ------------------------------------------------------------------ splice


@contextmanager
def one_host() -> Iterator[tuple[World, Splice]]:
    world = World(1)
    splice = Splice(world.kernel, CAPACITY)
    with ExitStack() as stack:
        stack.enter_context(installed(world.kernel))
        world.add_disk("d")
        world.mount(stack)
        splice.files = world.files
        assert world.files is not None
        world.files.send_to = splice.send
        world.kernel.add_host("h")
        yield world, splice


def in_a_process(*mains: Callable[[], object]) -> None:
    """Run functions as processes of one host."""
    with one_host() as (world, _):
        for number, main in enumerate(mains):
            world.kernel.hosts["h"].start(f"p{number}", main)
        world.kernel.run(until_s=20.0)
        assert not world.kernel.complaints
        assert not world.kernel.hosts["h"].processes, "both have come to their end"


def test_a_pipe_moves_what_a_socket_gets_into_a_file() -> None:
    moved: list[int] = []

    def receive() -> None:
        listener = socket.create_server(("10.0.0.1", 7))
        peer, _ = listener.accept()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        target = os.open(f"{ROOT}/d/file", os.O_RDWR | os.O_CREAT, 0o600)
        while got := os.splice(peer.fileno(), writer, 1 << 20):
            assert got <= CAPACITY, "no more than the pipe takes"
            moved.append(got)
            while got:
                got -= os.splice(reader, target, got)
        for descriptor in (reader, writer, target):
            os.close(descriptor)
        peer.close()
        listener.close()
        moved.append(-1 if Path(f"{ROOT}/d/file").read_bytes() != bytes(range(250)) * 10 else 0)

    def send() -> None:
        sock = socket.create_connection(("10.0.0.1", 7))
        sock.sendall(bytes(range(250)) * 10)
        sock.close()

    in_a_process(receive, send)
    assert sum(moved) == 2500
    assert moved[-1] == 0
    assert len(moved) > 3, "the pipe was full several times"


def test_a_file_is_sent_from_an_offset() -> None:
    got: list[bytes] = []

    def receive() -> None:
        listener = socket.create_server(("10.0.0.1", 7))
        peer, _ = listener.accept()
        while data := peer.recv(100):
            got.append(data)
        peer.close()
        listener.close()

    def send() -> None:
        Path(f"{ROOT}/d/file").write_bytes(b"0123456789")
        source = os.open(f"{ROOT}/d/file", os.O_RDONLY)
        sock = socket.create_connection(("10.0.0.1", 7))
        assert os.sendfile(sock.fileno(), source, 4, 100) == 6
        assert os.sendfile(sock.fileno(), source, 10, 100) == 0, "its end"
        os.close(source)
        sock.close()

    in_a_process(receive, send)
    assert b"".join(got) == b"456789"


def test_splice_refuses_what_is_no_pipe_or_no_socket() -> None:
    seen: list[int | None] = []

    def work() -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        target = os.open(f"{ROOT}/d/file", os.O_RDWR | os.O_CREAT, 0o600)
        for source, into in ((target, target), (target, writer)):
            try:
                os.splice(source, into, 10)
            except OSError as error:
                seen.append(error.errno)
        for descriptor in (reader, writer, target):
            os.close(descriptor)

    in_a_process(work)
    assert seen == [errno.EINVAL, errno.EBADF]


# ------------------------------------------------------------------ checkers


class Found:
    """The failures of a history."""

    def __init__(self, *, has_store: bool = False) -> None:
        self.checks: list[str] = []
        self.history = BlobHistory(
            lambda check, text: self.checks.append(check), ORPHAN_AGE, TRANSIENT_TTL, has_store=has_store
        )

    def job(self, began: int = 0) -> tuple[Job, Blob]:
        """Open a job and note a blob that was uploaded in its first second."""
        job = self.history.opened("a", began)
        return job, self.history.acknowledged(job, "p-1", b"content", "m1", began, began + SECOND)


def test_a_read_returns_what_was_uploaded() -> None:
    found = Found()
    _, blob = found.job()
    found.history.read(blob, b"content", 2 * SECOND)
    assert found.checks == []
    found.history.read(blob, b"contenT", 2 * SECOND)
    found.history.read(blob, None, 2 * SECOND)
    assert found.checks == [CONTENT, CONTENT]


def test_a_blob_that_is_acknowledged_is_missed() -> None:
    found = Found()
    job, blob = found.job()
    found.history.missing(job, blob, 2 * SECOND, 3 * SECOND, "m1")
    assert found.checks == [READABLE]


@pytest.mark.parametrize("reason", ["read before the acknowledgement", "its job is over", "swept as an orphan"])
def test_a_blob_may_be_missing(reason: str) -> None:
    found = Found()
    job, blob = found.job()
    began = 100 * SECOND
    if reason == "read before the acknowledgement":
        began = SECOND // 2
    elif reason == "its job is over":
        job.over = 50 * SECOND
    else:
        found.history.call("m1", 1, 90 * SECOND)
    found.history.missing(job, blob, began, began + SECOND, "m1")
    assert found.checks == []


@pytest.mark.parametrize("reason", ["the leader knows it", "it is too young", "the sweep was refused", "it is used"])
def test_a_sweep_does_not_explain_that_a_blob_is_missing(reason: str) -> None:
    found = Found()
    began = 80 * SECOND if reason == "it is too young" else 0
    job, blob = found.job(began)
    if reason == "it is used":
        found.history.used(job, "m1", 85 * SECOND, 86 * SECOND)
    call = found.history.call("m1", 1, 90 * SECOND, live=["a"] if reason == "the leader knows it" else [])
    outcome = Outcome.FENCED if reason == "the sweep was refused" else Outcome.DONE
    found.history.ended(call, outcome, 91 * SECOND, leads=False)
    found.history.missing(job, blob, 100 * SECOND, 101 * SECOND, "m1")
    assert found.checks == [READABLE]


def test_a_transient_blob_lives_for_its_time() -> None:
    found = Found()
    blob = Blob("t-1", b"", "m1", SECOND, 0)
    found.history.missing_transient(blob, 16 * SECOND)
    assert found.checks == []
    found.history.missing_transient(blob, 14 * SECOND)
    assert found.checks == [READABLE]
    found.history.read(blob, b"", 10 * SECOND)
    found.history.missing_transient(blob, 24 * SECOND)
    assert found.checks == [READABLE, READABLE], "a use prolongs it"


def test_a_transient_blob_may_be_lost_with_the_power_or_deleted() -> None:
    found = Found()
    found.history.crashed("m1", 2 * SECOND)
    found.history.missing_transient(Blob("t-1", b"", "m1", SECOND, 0), 3 * SECOND)
    found.history.missing_transient(Blob("t-2", b"", "m2", SECOND, 0, removing=True), 3 * SECOND)
    assert found.checks == []
    assert found.history.has_crashed("m1")
    assert not found.history.has_crashed("m2")
    found.history.missing_transient(Blob("t-3", b"", "m2", SECOND, 0), 3 * SECOND)
    assert found.checks == [READABLE]


@pytest.mark.parametrize("has_store", [False, True])
def test_a_former_leader_has_to_be_refused(has_store: bool) -> None:
    found = Found(has_store=has_store)
    later = found.history.call("m1", 2, SECOND)
    found.history.ended(later, Outcome.DONE, 2 * SECOND, leads=True)
    here, there = found.history.call("m1", 1, 3 * SECOND), found.history.call("m2", 1, 3 * SECOND, job="a")
    found.history.ended(here, Outcome.FENCED, 4 * SECOND, leads=False)
    assert found.checks == []
    found.history.ended(here, Outcome.DONE, 4 * SECOND, leads=False)
    assert found.checks == [FENCED]
    found.history.ended(there, Outcome.DONE, 4 * SECOND, leads=False)
    assert found.checks == [FENCED] * (2 if has_store else 1), "servers with one store know it from each other"


def test_a_former_leader_that_was_faster_may_pass() -> None:
    found = Found()
    former = found.history.call("m1", 1, SECOND)
    later = found.history.call("m1", 2, SECOND)
    found.history.ended(later, Outcome.DONE, 2 * SECOND, leads=True)
    found.history.ended(former, Outcome.DONE, 3 * SECOND, leads=False)
    assert found.checks == []


def test_leaders_that_write_the_fence_of_a_store_at_the_same_time_may_both_pass() -> None:
    found = Found(has_store=True)
    found.history.call("m2", 1, SECOND)
    later = found.history.call("m1", 2, SECOND)
    found.history.ended(later, Outcome.DONE, 2 * SECOND, leads=True)
    assert not found.history.is_fenced("m2", 1, 3 * SECOND)
    assert found.history.is_fenced("m1", 1, 3 * SECOND)


def test_the_leader_is_not_refused() -> None:
    found = Found()
    call = found.history.call("m1", 1, SECOND, job="a")
    found.history.ended(call, Outcome.FENCED, 2 * SECOND, leads=True)
    assert found.checks == [LEADS]


def test_a_blob_has_one_download_at_a_time() -> None:
    found = Found()
    found.history.download_began("w1", "a/p-1")
    found.history.download_began("w2", "a/p-1")
    found.history.download_ended("w1", "a/p-1")
    found.history.download_began("w1", "a/p-1")
    found.history.forget_downloads("w1")
    found.history.download_began("w1", "a/p-1")
    assert found.checks == []
    found.history.download_began("w1", "a/p-1")
    assert found.checks == [FLIGHT]


def test_what_is_left_is_told() -> None:
    found = Found()
    found.history.left_behind("m1", ["lock", "incoming"], {"lock", "incoming"})
    assert found.checks == []
    found.history.left_behind("m1", ["lock", "incoming/temp-1"], {"lock", "incoming"})
    assert found.checks == [LEFT]
