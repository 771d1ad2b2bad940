"""Uploads that break go on where they broke."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobProtocolError, DigestMismatch
from blob.key import BlobType, PermanentBlobKey, TransientBlobKey
from blob.protocol import Operation, Request, Status
from blob.settings import BlobServerOptions
from tests.contract.blob_harness import JOB, SECRET, CuttingProxy, RawPeer, Served, digest_of, wait_until

LARGE = random.Random(5).randbytes(20 * 1024 * 1024 + 17)
OPTIONS = BlobServerOptions(disk_reserve=0, resume_window=60.0)
PUT = Request(Operation.PUT, BlobType.TRANSIENT, JOB, b"r" * 16, length=len(LARGE))
HALF = 10 * 1024 * 1024


def send_half(served: Served, data: bytes = LARGE) -> None:
    with RawPeer(served.server.address) as peer:
        peer.send(PUT.encode())
        assert peer.response()[0].status is Status.CONTINUE
        peer.send(data[:HALF])
    wait_until(lambda: served.server.stats().parked_uploads == 1)


def once_parked(served: Served, proxy: CuttingProxy) -> Callable[[], tuple[str, int]]:
    """The address for a client, which connects again when the server has seen the first connection break."""

    def address() -> tuple[str, int]:
        if proxy.connections:
            wait_until(lambda: served.server.stats().parked_uploads == 1)
        return proxy.address

    return address


@pytest.mark.parametrize("key_type", [TransientBlobKey, PermanentBlobKey])
def test_an_upload_goes_on_where_it_broke(
    tmp_path: Path, key_type: type[TransientBlobKey] | type[PermanentBlobKey]
) -> None:
    with Served(tmp_path / "blob", options=OPTIONS) as served:
        proxy = CuttingProxy(served.server.address, cuts=1, after=HALF, upstream=True)
        done: list[tuple[int, int]] = []
        with BlobClient(once_parked(served, proxy), SECRET, backoff=0.001) as client:
            key = client.put_stream(io.BytesIO(LARGE), key_type, JOB, lambda *now: done.append(now))
            assert proxy.bytes_to_server < 1.5 * len(LARGE)
            assert client.get_bytes(key, JOB) == LARGE
        proxy.close()
        assert done == sorted(set(done))
        assert done[-1] == (len(LARGE), len(LARGE))
        assert served.files() == [f"job_{JOB}/blob_{key}"]
        stats = served.server.stats()
        assert (stats.puts, stats.parked_uploads, stats.total_bytes) == (1, 0, len(LARGE))


def test_what_is_half_there_is_not_visible_and_is_counted(tmp_path: Path) -> None:
    with Served(tmp_path / "blob", options=OPTIONS) as served:
        send_half(served)
        assert [name.split("-")[0] for name in served.files()] == ["incoming/temp"]
        assert served.server.stats().total_bytes == len(LARGE)
    assert served.files() == []


def test_another_content_from_where_it_broke_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path / "blob", options=OPTIONS) as served:
        send_half(served, bytes(HALF))
        with RawPeer(served.server.address) as peer:
            peer.send(PUT.encode())
            response, _ = peer.response()
            assert (response.status, 4 * 1024 * 1024 <= response.length <= HALF) == (Status.CONTINUE, True)
            peer.send(LARGE[response.length :] + digest_of(LARGE))
            assert peer.response()[0].status is Status.DIGEST_MISMATCH
        assert served.files() == []
        assert served.server.stats().total_bytes == 0


def test_an_upload_of_another_name_begins_anew(tmp_path: Path) -> None:
    with Served(tmp_path / "blob", options=OPTIONS) as served:
        send_half(served)
        with RawPeer(served.server.address) as peer:
            for other in (
                Request(Operation.PUT, BlobType.TRANSIENT, None, PUT.random, length=len(LARGE)),
                Request(Operation.PUT, BlobType.PERMANENT, JOB, PUT.random, length=len(LARGE)),
                Request(Operation.PUT, BlobType.TRANSIENT, JOB, PUT.random, length=len(LARGE) + 1),
                Request(Operation.PUT, BlobType.TRANSIENT, JOB, b"s" * 16, length=len(LARGE)),
            ):
                with RawPeer(served.server.address) as another:
                    another.send(other.encode())
                    assert another.response()[0].length == 0
            peer.send(PUT.encode())
            assert peer.response()[0].length > 0


def test_what_is_not_resumed_goes_when_its_window_is_over(tmp_path: Path) -> None:
    """An interrupted upload counts against the quotas, so it does not wait for the next clean-up of blobs."""
    options = BlobServerOptions(disk_reserve=0, resume_window=0.1, cleanup_interval=3600)
    with Served(tmp_path / "blob", options=options) as served:
        with RawPeer(served.server.address) as peer:
            peer.send(PUT.encode())
            peer.response()
            peer.send(LARGE[:HALF])
        wait_until(lambda: served.files() == [] and served.server.stats().total_bytes == 0)


def test_a_source_that_changed_between_two_attempts(tmp_path: Path) -> None:
    class Changing(io.BytesIO):
        attempts = 0

        def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
            if offset == 0 and whence == io.SEEK_SET:
                self.attempts += 1
                self.getbuffer()[:16] = bytes([self.attempts]) * 16
            return super().seek(offset, whence)

    with Served(tmp_path / "blob", options=OPTIONS) as served:
        proxy = CuttingProxy(served.server.address, cuts=1, after=HALF, upstream=True)
        with (
            BlobClient(once_parked(served, proxy), SECRET, backoff=0.001) as client,
            pytest.raises(DigestMismatch),
        ):
            client.put_stream(Changing(LARGE), TransientBlobKey, JOB)
        proxy.close()
        wait_until(lambda: served.files() == [])


def test_a_server_that_claims_to_hold_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path / "blob", options=OPTIONS) as served, served.client(retries=0) as client:
        send_half(served)
        with monkeypatch.context() as patch:
            patch.setattr("blob.uploads.ParkedUploads.resume", lambda parked, _: parked.take(lambda *_: True)[0])
            with pytest.raises(BlobProtocolError, match=r"says that it holds \d+ bytes of 70000"):
                client.put_bytes(bytes(70_000), TransientBlobKey, JOB)
        assert client.get_bytes(client.put_bytes(b"x", TransientBlobKey)) == b"x"


def test_without_a_window_an_upload_begins_anew(tmp_path: Path) -> None:
    with Served(tmp_path / "blob") as served:
        proxy = CuttingProxy(served.server.address, cuts=99, after=HALF, upstream=True)
        with BlobClient(proxy.address, SECRET, retries=1, backoff=0.01) as client, pytest.raises(BlobConnectionError):
            client.put_bytes(LARGE, TransientBlobKey)
        proxy.close()
        wait_until(lambda: served.files() == [])
