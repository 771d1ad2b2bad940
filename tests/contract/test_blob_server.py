from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import random
import signal
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import blob.acceptor
import blob.connection
from blob.client import BlobClient
from blob.errors import (
    BlobAuthenticationError,
    BlobNotFound,
    BlobRequestRefused,
    BlobServerError,
    BlobStoreError,
    DigestMismatch,
    NoSpaceLeft,
    QuotaExceeded,
)
from blob.file_store import FileSystemBlobStore
from blob.key import BlobType, PermanentBlobKey, TransientBlobKey
from blob.protocol import INLINE_CONTENT, REQUEST_SIZE, Operation, Request, Status
from blob.settings import BlobServerOptions
from tests.contract.blob_harness import JOB, OTHER_JOB, SECRET, RawPeer, Served, digest_of, is_closed, wait_until
from tests.waiting import PATIENCE_S

LARGE = random.Random(1).randbytes(6 * 1024 * 1024 + 17)
TRANSIENT_PUT = Request(Operation.PUT, BlobType.TRANSIENT, None, bytes(16), length=len(LARGE))


def drip(peer: RawPeer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        peer.send(b"x")
        time.sleep(0.01)


@pytest.mark.parametrize("size", [0, 1, INLINE_CONTENT, INLINE_CONTENT + 1, len(LARGE)])
def test_what_is_put_is_got_and_lies_where_it_should(tmp_path: Path, size: int) -> None:
    data = LARGE[:size]
    with Served(tmp_path / "blob") as served, served.client() as client:
        permanent = client.put_bytes(data, PermanentBlobKey, JOB)
        transient = client.put_bytes(data, TransientBlobKey)
        assert type(permanent) is PermanentBlobKey
        assert permanent.digest == transient.digest == digest_of(data)
        assert served.files() == [f"job_{JOB}/blob_{permanent}", f"no_job/blob_{transient}"]
        assert client.get_bytes(permanent, JOB) == client.get_bytes(transient) == data
        client.get_to_file(permanent, tmp_path / "copy", JOB)
        assert (tmp_path / "copy").read_bytes() == data
        assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
        for path in (tmp_path / "blob").rglob("*"):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
        stats = served.server.stats()
        assert (stats.puts, stats.gets, stats.refusals, stats.total_bytes) == (2, 3, 0, 2 * size)


def test_two_puts_of_one_content_are_two_blobs(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client:
        first, second = (client.put_bytes(b"same", TransientBlobKey, JOB) for _ in range(2))
        assert first != second
        assert client.delete(first, JOB)
        assert not client.delete(first, JOB)
        assert client.get_bytes(second, JOB) == b"same"


def test_an_upload_repeated_after_a_lost_answer_is_one_blob(tmp_path: Path) -> None:
    with Served(tmp_path) as served, RawPeer(served.server.address) as peer:
        request = Request(Operation.PUT, BlobType.TRANSIENT, JOB, b"r" * 16, length=3)
        for _ in range(2):
            peer.send(request.encode() + b"abc" + digest_of(b"abc"))
            assert peer.response()[0].digest == digest_of(b"abc")
        assert len(served.files()) == 1
        assert served.server.stats().total_bytes == 3


def test_a_key_of_the_wrong_job_or_type_finds_nothing(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client:
        key = client.put_bytes(b"x", TransientBlobKey, JOB)
        disguised = PermanentBlobKey.create(key.digest, key.random)
        for wrong, job_id in ((key, OTHER_JOB), (key, None), (disguised, JOB)):
            with pytest.raises(BlobNotFound, match=str(wrong)):
                client.get_bytes(wrong, job_id)
        assert not client.delete(key, OTHER_JOB)
        assert client.get_bytes(key, JOB) == b"x"


def test_what_the_types_forbid_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client(retries=0) as client:
        for size in (3, len(LARGE)):
            with pytest.raises(BlobRequestRefused, match="belongs to a job"):
                client.put_bytes(LARGE[:size], PermanentBlobKey)
        key = client.put_bytes(b"abc", PermanentBlobKey, JOB)
        with pytest.raises(BlobRequestRefused, match="deleted with its job"):
            client.delete(key, JOB)  # type: ignore[arg-type]
        with pytest.raises(BlobRequestRefused, match="belongs to a job"):
            client.get_bytes(key)
        with RawPeer(served.server.address) as peer:
            peer.send(Request.of_key(Operation.GET, JOB, key, offset=4).encode())
            assert peer.response()[0].status is Status.REFUSED
        assert client.get_bytes(key, JOB) == b"abc"
        assert served.server.stats().connections <= 2


def test_a_wrong_secret_is_refused_by_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Served(tmp_path) as served:
        stranger = BlobClient(served.server.address, b"another secret altogether", retries=0)
        with pytest.raises(BlobAuthenticationError, match="does not hold this cluster's secret"):
            stranger.put_bytes(b"x", TransientBlobKey)
        with socket.create_connection(served.server.address) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
            assert is_closed(sock)
        with socket.create_connection(served.server.address) as sock:
            # A client that does not check the server's proof, but has none of its own.
            sock.sendall(b"UNDR\x01" + bytes(32))
            sock.recv(69, socket.MSG_WAITALL)
            sock.sendall(bytes(32) + TRANSIENT_PUT.encode())
            assert is_closed(sock)
        assert served.files() == []
        assert SECRET.decode() not in caplog.text
        with served.client() as client:
            client.put_bytes(b"x", TransientBlobKey)


def test_garbage_is_refused_and_disturbs_nobody(tmp_path: Path) -> None:
    source = random.Random(7)
    valid = TRANSIENT_PUT.encode()
    with Served(tmp_path) as served, served.client(retries=0) as client:
        key = client.put_bytes(b"here", TransientBlobKey)
        for number in range(60):
            with RawPeer(served.server.address) as peer:
                if number % 2:
                    peer.send(b"\xff" + source.randbytes(source.randrange(4 * REQUEST_SIZE)))
                else:
                    spoilt = bytearray(valid)
                    spoilt[source.randrange(REQUEST_SIZE)] ^= source.randrange(1, 256)
                    peer.send(bytes(spoilt))
                peer.sock.shutdown(socket.SHUT_WR)
                assert is_closed(peer.sock)
        assert client.get_bytes(key) == b"here"
        wait_until(lambda: served.files() == [f"no_job/blob_{key}"])
        wait_until(lambda: served.server.stats().connections == 1)
        assert served.server.stats().total_bytes == 4


@pytest.mark.parametrize("length", [2**40 + 1, 2**63, 2**64 - 1])
def test_a_huge_or_negative_length_is_refused(tmp_path: Path, length: int) -> None:
    with Served(tmp_path) as served, RawPeer(served.server.address) as peer:
        peer.send(TRANSIENT_PUT.encode()[:-8] + length.to_bytes(8))
        response, detail = peer.response()
        assert (response.status, "exceeds the maximum" in detail) == (Status.BAD_REQUEST, True)
        assert is_closed(peer.sock)
        assert served.files() == []


def test_a_length_beyond_the_disk_is_refused_before_the_upload(tmp_path: Path) -> None:
    with Served(tmp_path) as served, RawPeer(served.server.address) as peer:
        peer.send(TRANSIENT_PUT.encode()[:-8] + (2**40).to_bytes(8))
        assert peer.response()[0].status is Status.NO_SPACE
        assert served.files() == []


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_a_wrong_digest_leaves_nothing(tmp_path: Path, size: int) -> None:
    data = LARGE[:size]
    with Served(tmp_path) as served, RawPeer(served.server.address) as peer:
        request = Request(Operation.PUT, BlobType.TRANSIENT, None, bytes(16), length=size)
        peer.send(request.encode())
        if size > INLINE_CONTENT:
            assert peer.response()[0].status is Status.CONTINUE
        peer.send(data + digest_of(b"something else"))
        assert peer.response()[0].status is Status.DIGEST_MISMATCH
        assert served.files() == []
        assert served.server.stats().total_bytes == 0
        peer.send(
            Request(Operation.PUT, BlobType.TRANSIENT, None, bytes(16), length=1).encode() + b"a" + digest_of(b"a")
        )
        assert peer.response()[0].status is Status.OK


@pytest.mark.parametrize("size", [INLINE_CONTENT, len(LARGE)])
def test_half_a_put_leaves_nothing(tmp_path: Path, size: int) -> None:
    with Served(tmp_path) as served:
        with RawPeer(served.server.address) as peer:
            request = Request(Operation.PUT, BlobType.PERMANENT, JOB, bytes(16), length=size)
            peer.send(request.encode())
            if size > INLINE_CONTENT:
                peer.response()
            peer.send(LARGE[: size // 2])
            wait_until(lambda: any(name.startswith("incoming/temp-") for name in served.files()))
        wait_until(lambda: served.files() == [])
        wait_until(lambda: served.server.stats().total_bytes == 0)


def test_a_silent_and_a_dripping_client_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path, options=BlobServerOptions(disk_reserve=0, timeout=5.0)) as served:
        with monkeypatch.context() as patch:
            patch.setattr(blob.connection, "HANDSHAKE_TIMEOUT", 0.2)
            with socket.create_connection(served.server.address, timeout=PATIENCE_S) as mute:
                assert mute.recv(1) == b""
        with RawPeer(served.server.address) as silent:
            silent.send(TRANSIENT_PUT.encode())
            silent.response()
            silent.send(b"some")
            assert is_closed(silent.sock)
        with RawPeer(served.server.address) as dripping:
            dripping.send(TRANSIENT_PUT.encode())
            dripping.response()
            with pytest.raises(ConnectionError):
                drip(dripping, seconds=PATIENCE_S)
        wait_until(lambda: served.files() == [])


def test_the_connection_over_the_limit_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob.acceptor, "EVICTABLE_AFTER", 0.02)
    options = BlobServerOptions(max_connections=2, disk_reserve=0)
    with Served(tmp_path, options=options) as served, ThreadPoolExecutor(1) as pool:
        busy = [RawPeer(served.server.address) for _ in range(2)]
        for peer in busy:
            peer.send(TRANSIENT_PUT.encode())
            peer.response()
        waiting = pool.submit(served.client().put_bytes, b"x", TransientBlobKey)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        assert served.server.stats().connections == 2
        busy[0].send(LARGE + digest_of(LARGE))
        assert busy[0].response()[0].status is Status.OK
        busy[0].sock.close()
        assert isinstance(waiting.result(PATIENCE_S), TransientBlobKey)
        busy[1].sock.close()


def test_fifty_are_served_and_the_fifty_first_waits(tmp_path: Path) -> None:
    with Served(tmp_path) as served, contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        busy = [stack.enter_context(RawPeer(served.server.address)) for _ in range(50)]
        for peer in busy:
            peer.send(TRANSIENT_PUT.encode())
            peer.response()
        waiting = pool.submit(served.client().put_bytes, b"x", TransientBlobKey)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        assert served.server.stats().connections == 50
        busy[0].sock.close()
        assert isinstance(waiting.result(PATIENCE_S), TransientBlobKey)


def test_an_idle_client_gives_its_place_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob.acceptor, "EVICTABLE_AFTER", 0.02)
    options = BlobServerOptions(max_connections=1, disk_reserve=0)
    with Served(tmp_path, options=options) as served, served.client() as one, served.client() as two:
        key = one.put_bytes(b"x", TransientBlobKey)
        assert two.get_bytes(key) == b"x"
        assert one.get_bytes(key) == b"x"


def test_connections_without_the_secret_keep_no_client_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give way at once, the oldest first: nobody has to wait until their handshakes are given up."""
    for module, bound in ((blob.acceptor, "EVICTABLE_AFTER"), (blob.connection, "HANDSHAKE_TIMEOUT")):
        monkeypatch.setattr(module, bound, 3600.0)
    with Served(tmp_path) as served, served.client(retries=0) as mine, contextlib.ExitStack() as stack:
        key = mine.put_bytes(b"x", TransientBlobKey)
        address = served.server.address
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        with ThreadPoolExecutor(1) as pool:
            client = stack.enter_context(served.client(retries=0))
            reading = pool.submit(client.get_bytes, key)
            try:
                assert reading.result(PATIENCE_S) == b"x"
            finally:
                for sock in silent:
                    sock.close()  # or the pool waits for ever
        assert mine.get_bytes(key) == b"x", "who has authenticated himself stays"
        wait_until(lambda: served.server.stats().connections == 2)


def test_the_oldest_connection_without_the_secret_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob.acceptor, "UNAUTHENTICATED", 3)
    monkeypatch.setattr(blob.connection, "HANDSHAKE_TIMEOUT", 3600.0)
    with Served(tmp_path) as served, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(served.server.address)) for _ in range(4)]
        with served.client(retries=0) as client:
            client.put_bytes(b"x", TransientBlobKey)  # it came last: the others have been accepted
        ended = []
        for sock in silent:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                ended.append(sock.recv(1))
        assert ended == [b"", b""], "as many as were too many, with the client"


def test_quotas(tmp_path: Path) -> None:
    options = BlobServerOptions(max_bytes=2 * INLINE_CONTENT, max_bytes_per_job=INLINE_CONTENT, disk_reserve=0)
    with Served(tmp_path, options=options) as served, served.client(retries=0) as client:
        key = client.put_bytes(bytes(INLINE_CONTENT), TransientBlobKey, JOB)
        for data in (b"x", LARGE):
            with pytest.raises(QuotaExceeded, match=f"job {JOB}"):
                client.put_bytes(data, TransientBlobKey, JOB)
        client.put_bytes(bytes(INLINE_CONTENT), TransientBlobKey, OTHER_JOB)
        with pytest.raises(QuotaExceeded, match="the blob server may hold"):
            client.put_bytes(b"x", TransientBlobKey)
        client.delete(key, JOB)
        client.put_bytes(b"x", TransientBlobKey, JOB)
    with Served(tmp_path, options=options) as served, served.client(retries=0) as client:
        assert served.server.stats().total_bytes == INLINE_CONTENT + 1
        with pytest.raises(QuotaExceeded):
            client.put_bytes(bytes(INLINE_CONTENT), TransientBlobKey, JOB)


def test_the_reserve_of_the_disk(tmp_path: Path) -> None:
    with Served(tmp_path, options=BlobServerOptions(disk_reserve=2**60)) as served, served.client() as client:
        for data in (b"x", LARGE):
            with pytest.raises(NoSpaceLeft, match="reserve"):
                client.put_bytes(data, TransientBlobKey)
        assert served.files() == []


@pytest.mark.parametrize(
    ("writes", "data"),
    [
        ("blob.files.Pipe.empty", LARGE),
        ("blob.channel.write_all", LARGE[:2_000_000]),
        ("blob.connection.write_all", b"x"),
    ],
)
def test_a_disk_that_fills_up_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: str, data: bytes) -> None:
    received = 0

    def fill_up(*arguments: Any) -> None:
        nonlocal received
        received += arguments[-1] if isinstance(arguments[-1], int) else len(arguments[-1])
        if received > len(data) // 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with Served(tmp_path) as served, served.client(retries=0) as client:
        with monkeypatch.context() as patch:
            patch.setattr(writes, fill_up)
            with pytest.raises(NoSpaceLeft, match="disk is full"):
                client.put_bytes(data, TransientBlobKey)
        assert served.files() == []
        client.put_bytes(data, TransientBlobKey)
        assert served.server.stats().total_bytes == len(data)


def test_a_file_system_that_cannot_splice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splice = os.splice

    def refuse(source: int, target: int, size: int) -> int:
        if stat.S_ISREG(os.fstat(target).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        return splice(source, target, size)

    monkeypatch.setattr(os, "splice", refuse)
    with Served(tmp_path) as served, served.client() as client:
        assert client.get_bytes(client.put_bytes(LARGE, TransientBlobKey)) == LARGE


def test_a_file_that_shrinks_while_it_is_sent(tmp_path: Path) -> None:
    with Served(tmp_path) as served, RawPeer(served.server.address) as peer, served.client() as client:
        data = LARGE * 4
        key = client.put_bytes(data, TransientBlobKey)
        peer.send(Request.of_key(Operation.GET, None, key).encode())
        assert peer.response()[0].length == len(data)
        os.truncate(tmp_path / "no_job" / f"blob_{key}", len(data) // 2)
        assert is_closed(peer.sock)


def test_more_uploads_at_once_than_threads_that_hash(tmp_path: Path) -> None:
    def put(number: int) -> bool:
        data = random.Random(number).randbytes(5_000_000)
        with served.client() as client:
            key = client.put_bytes(data, TransientBlobKey)
            client.get_to_file(key, tmp_path / f"copy-{number}")
        return (tmp_path / f"copy-{number}").read_bytes() == data

    with Served(tmp_path / "blob") as served, ThreadPoolExecutor(12) as pool:
        assert all(pool.map(put, range(12)))


def test_a_get_that_began_survives_the_delete(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client, RawPeer(served.server.address) as peer:
        data = LARGE * 4
        key = client.put_bytes(data, TransientBlobKey, JOB)
        peer.send(Request.of_key(Operation.GET, JOB, key).encode())
        assert peer.response()[0].length == len(data)
        first = peer.receive(1000)
        assert client.delete(key, JOB)
        with pytest.raises(BlobNotFound):
            client.get_bytes(key, JOB)
        assert first + peer.receive(len(data) - 1000) == data


def test_transient_blobs_expire_and_permanent_ones_do_not(tmp_path: Path) -> None:
    options = BlobServerOptions(transient_ttl=0.1, cleanup_interval=0.02, disk_reserve=0)
    with Served(tmp_path, options=options) as served, served.client() as client:
        client.put_bytes(b"forgotten", TransientBlobKey, JOB)
        client.put_bytes(b"forgotten too", TransientBlobKey)
        permanent = client.put_bytes(b"permanent", PermanentBlobKey, JOB)
        wait_until(lambda: served.server.stats().total_bytes == len(b"permanent"))  # counted after the file is gone
        assert served.files() == [f"job_{JOB}/blob_{permanent}"]
        assert client.get_bytes(permanent, JOB) == b"permanent"


def test_transient_blobs_found_at_start_expire_too(tmp_path: Path) -> None:
    with Served(tmp_path) as served, served.client() as client:
        client.put_bytes(b"x", TransientBlobKey)
    with Served(tmp_path, options=BlobServerOptions(transient_ttl=0.2, cleanup_interval=0.05)) as served:
        assert len(served.files()) == 1
        wait_until(lambda: served.files() == [])


def test_the_end_of_a_job_takes_its_blobs_and_no_others(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        mine = client.put_bytes(b"mine", PermanentBlobKey, JOB)
        client.put_bytes(b"mine too", TransientBlobKey, JOB)
        other = client.put_bytes(b"other", PermanentBlobKey, OTHER_JOB)
        assert served.do(served.server.delete_job(JOB, from_store=False))
        assert client.get_bytes(mine, JOB) == b"mine"
        assert served.do(served.server.delete_job(JOB))
        assert not served.do(served.server.delete_job(JOB))
        with pytest.raises(BlobNotFound):
            client.get_bytes(mine, JOB)
        assert served.files() == [f"job_{OTHER_JOB}/blob_{other}"]
        assert [path.name for path in (tmp_path / "store").iterdir()] == [f"job_{OTHER_JOB}"]
        assert served.server.stats().total_bytes == 5


def test_permanent_blobs_are_recovered_from_the_store(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "one", store) as served, served.client() as client:
        permanent = client.put_bytes(LARGE, PermanentBlobKey, JOB)
        transient = client.put_bytes(b"x", TransientBlobKey, JOB)
    with Served(tmp_path / "two", store) as served, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: served.client().get_bytes(permanent, JOB) == LARGE, range(8)))
        with served.client() as client, pytest.raises(BlobNotFound):
            client.get_bytes(transient, JOB)
        assert served.files() == [f"job_{JOB}/blob_{permanent}"]
        assert served.server.stats().total_bytes == len(LARGE)


def test_a_damaged_local_copy_is_replaced_from_the_store(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        key = client.put_bytes(LARGE, PermanentBlobKey, JOB)
        small = client.put_bytes(b"small", PermanentBlobKey, JOB)
        for name in (key, small):
            (tmp_path / f"blob/job_{JOB}/blob_{name}").write_bytes(b"damaged")
        client.get_to_file(key, tmp_path / "copy", JOB)
        assert (tmp_path / "copy").read_bytes() == LARGE
        assert client.get_bytes(small, JOB) == b"small"
        lost = client.put_bytes(b"lost", TransientBlobKey)
        (tmp_path / f"blob/no_job/blob_{lost}").write_bytes(b"damaged")
        with pytest.raises(BlobNotFound):
            client.get_to_file(lost, tmp_path / "lost")
        assert not (tmp_path / "lost").exists()


@pytest.mark.parametrize("damage", [b"damaged", LARGE[:-1] + b"?", LARGE + b"and more"], ids=["short", "same", "long"])
def test_a_stream_gets_an_intact_copy_after_a_damaged_one(tmp_path: Path, damage: bytes) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        key = client.put_bytes(LARGE, PermanentBlobKey, JOB)
        (tmp_path / f"blob/job_{JOB}/blob_{key}").write_bytes(damage)
        with pytest.raises(DigestMismatch):
            client.get_to_stream(key, io.BytesIO(), JOB)
        again = io.BytesIO()
        client.get_to_stream(key, again, JOB)
        assert again.getvalue() == LARGE


def test_a_damaged_copy_in_the_store_is_an_error(tmp_path: Path) -> None:
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "one", store) as served, served.client() as client:
        key = client.put_bytes(b"content", PermanentBlobKey, JOB)
    (tmp_path / f"store/job_{JOB}/blob_{key}").write_bytes(b"cont")
    with Served(tmp_path / "two", store) as served, served.client() as client:
        with pytest.raises(BlobStoreError, match="damaged"):
            client.get_bytes(key, JOB)
        assert served.files() == []


def test_a_store_that_fails_fails_the_put(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the directory should be")
    store = FileSystemBlobStore(tmp_path / "store")
    with Served(tmp_path / "blob", store) as served, served.client() as client:
        with pytest.raises(BlobStoreError, match="reachable"):
            client.put_bytes(b"x", PermanentBlobKey, JOB)
        assert served.files() == []
        with pytest.raises(BlobStoreError, match="reachable"):
            client.get_bytes(PermanentBlobKey.create(b"d" * 32), JOB)
        client.put_bytes(b"x", TransientBlobKey, JOB)


def test_many_clients_at_once(tmp_path: Path) -> None:
    with Served(tmp_path) as served, ThreadPoolExecutor(16) as pool:

        def work(number: int) -> None:
            source = random.Random(number)
            with served.client() as client:
                for _ in range(10):
                    data = source.randbytes(source.choice([0, 100, 10_000, 200_000]))
                    key = client.put_bytes(data, TransientBlobKey, source.choice([None, JOB]))
                    job_id = None if (tmp_path / f"no_job/blob_{key}").exists() else JOB
                    assert client.get_bytes(key, job_id) == data
                    assert client.delete(key, job_id)

        list(pool.map(work, range(16)))
        assert served.files() == []
        stats = served.server.stats()
        assert (stats.puts, stats.gets, stats.deletes, stats.total_bytes) == (160, 160, 160, 0)
        wait_until(lambda: served.server.stats().connections == 0)


def test_puts_while_their_job_is_deleted_over_and_over(tmp_path: Path) -> None:
    with Served(tmp_path) as served, ThreadPoolExecutor(4) as pool:
        done = threading.Event()

        def put() -> None:
            with served.client(retries=0) as client:
                for _ in range(50):
                    client.put_bytes(b"x" * 100, TransientBlobKey, JOB)

        uploads = [pool.submit(put) for _ in range(3)]
        while not done.is_set():
            served.do(served.server.delete_job(JOB))
            if all(upload.done() for upload in uploads):
                done.set()
        for upload in uploads:
            upload.result()
        served.do(served.server.delete_job(JOB))
        assert served.files() == []
        assert served.server.stats().total_bytes == 0


def _serve_until_killed(directory: Path, store: Path, addresses: Any) -> None:
    with Served(directory, FileSystemBlobStore(store)) as served:
        addresses.put(served.server.address)
        threading.Event().wait()


def test_a_server_killed_in_mid_put_leaves_no_trace_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    addresses = spawn.Queue()
    process = spawn.Process(target=_serve_until_killed, args=(tmp_path / "blob", tmp_path / "store", addresses))
    process.start()
    try:
        address = addresses.get(timeout=PATIENCE_S)
        with RawPeer(address) as peer:
            request = Request(Operation.PUT, BlobType.PERMANENT, JOB, b"k" * 16, length=3)
            peer.send(request.encode() + b"abc" + digest_of(b"abc"))
            assert peer.response()[0].status is Status.OK
            peer.send(TRANSIENT_PUT.encode())
            peer.response()
            peer.send(LARGE[: len(LARGE) // 2])
            incoming = tmp_path / "blob" / "incoming"
            wait_until(lambda: any(path.stat().st_size for path in incoming.iterdir()))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE_S)
        assert list(incoming.iterdir())
        with Served(tmp_path / "blob", FileSystemBlobStore(tmp_path / "store")) as served, served.client() as client:
            key = PermanentBlobKey.create(digest_of(b"abc"), b"k" * 16)
            assert served.files() == [f"job_{JOB}/blob_{key}"]
            assert client.get_bytes(key, JOB) == b"abc"
    finally:
        process.kill()
        process.join(PATIENCE_S)


def test_one_server_to_a_directory_and_to_a_port(tmp_path: Path) -> None:
    with Served(tmp_path / "one") as served:
        with pytest.raises(BlobServerError, match="in use by a blob server"):
            Served(tmp_path / "one")
        with pytest.raises(BlobServerError, match=r"port is taken; .* blob\.server\.port"):
            Served(tmp_path / "two", port=served.server.address[1])
        with pytest.raises(BlobServerError, match="running already"):
            served.do(served.server.start())
    with Served(tmp_path / "one"), Served(tmp_path / "two"):
        pass


def test_a_server_can_be_closed_twice_in_mid_transfer_and_started_again(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        with RawPeer(served.server.address) as peer:
            peer.send(TRANSIENT_PUT.encode())
            peer.response()
            peer.send(b"some")
            served.do(served.server.close())
            assert is_closed(peer.sock)
        served.do(served.server.close())
        with pytest.raises(BlobServerError, match="not running"):
            served.server.stats()
        assert served.files() == []
        served.do(served.server.start())
        served.client().put_bytes(b"x", TransientBlobKey)
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("blob-")])


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BlobServerError, match="cannot use"):
        Served(tmp_path / "file" / "blob")


def test_a_digest_mismatch_at_the_server_reaches_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(computed: bytes, declared: bytes) -> bytes:
        raise DigestMismatch("as if the network had changed a byte")

    with Served(tmp_path) as served, served.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(blob.connection, "_verified", reject)
            for data in (b"x", LARGE):
                with pytest.raises(DigestMismatch, match="as if"):
                    client.put_bytes(data, TransientBlobKey)
        assert served.files() == []
