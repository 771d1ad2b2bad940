from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cattrs.preconf.msgpack import make_converter

from blob.errors import BlobConnectionError, BlobNotFound, InvalidBlobKey
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from blob.offload import Inline, Key, MaybeOffloaded, MessageOffload, Offloaded, offload_if_larger, resolve, take
from tests.waiting import PATIENCE_S

JOB = "b" * 32


class Blobs:
    """A writer and reader in memory."""

    def __init__(self) -> None:
        self.held: dict[tuple[str | None, str], bytes] = {}
        self.uploads = 0
        self.reachable = True

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None) -> Key:
        if not self.reachable:
            raise BlobConnectionError("nobody there")
        self.uploads += 1
        key = key_type.create(hashlib.sha256(data).digest())
        self.held[job_id, key] = data
        return key

    def read(self, job_id: str | None, key: BlobKey) -> bytes:
        if (job_id, key) not in self.held:
            raise BlobNotFound(key)
        return self.held[job_id, key]

    def get_bytes(self, key: BlobKey, job_id: str | None = None) -> bytes:
        return self.read(job_id, key)

    def delete(self, key: TransientBlobKey, job_id: str | None = None) -> bool:
        if not self.reachable:
            raise BlobConnectionError("nobody there")
        return self.held.pop((job_id, key), None) is not None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_what_is_over_the_limit_is_uploaded() -> None:
    blobs = Blobs()
    assert offload_if_larger(b"12345", 5, blobs, JOB) == Inline(b"12345")
    assert blobs.held == {}
    offloaded = offload_if_larger(b"123456", 5, blobs, JOB)
    assert isinstance(offloaded, Offloaded)
    assert (offloaded.size, offloaded.job_id, len(blobs.held)) == (6, JOB, 1)
    assert [resolve(offloaded, blobs) for _ in range(3)] == [b"123456"] * 3
    assert resolve(Inline(b"1"), blobs) == b"1"


def test_both_travel_as_plain_data() -> None:
    converter = make_converter()
    for value in (Inline(b"\x00\xff"), Offloaded(str(PermanentBlobKey.create(b"d" * 32)), JOB, 7)):
        data = converter.dumps(value, unstructure_as=MaybeOffloaded)
        assert converter.loads(data, MaybeOffloaded) == value


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidBlobKey):
        resolve(Offloaded("../../etc/passwd", JOB, 1), Blobs())


def test_below_the_limit_nothing_changes() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    with offload.kept(b"12345"), offload.delivery(b"12345") as message:
        assert message == Inline(b"12345")
        assert take(message, blobs) == b"12345"
    assert blobs.uploads == 0


def test_one_upload_however_many_receivers_deleted_after_the_last() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    with contextlib.ExitStack() as stack:
        messages = [stack.enter_context(offload.delivery(b"123456")) for _ in range(3)]
        assert len(set(messages)) == 1
        with offload.delivery(b"other content") as other:
            assert other != messages[0]
        assert [resolve(message, blobs) for message in messages] == [b"123456"] * 3
        assert (blobs.uploads, len(blobs.held)) == (2, 1)
        with pytest.raises(ValueError, match="as if it failed"), offload.delivery(b"123456"):
            raise ValueError("as if it failed")
        assert len(blobs.held) == 1
    assert blobs.held == {}


def test_what_is_kept_is_reused_by_a_redeployment() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    with offload.kept(b"123456"):
        for _ in range(3):
            with offload.delivery(b"123456") as message:
                assert resolve(message, blobs) == b"123456"
        assert (blobs.uploads, len(blobs.held)) == (1, 1)
    assert blobs.held == {}


def test_the_deadline() -> None:
    blobs, clock = Blobs(), Clock()
    offload = MessageOffload(blobs, 5, JOB, lifetime_s=10.0, clock=clock)
    with offload.kept(b"123456"):
        with offload.delivery(b"123456") as first:
            clock.now = 6.0
            with offload.delivery(b"123456") as second:
                # It would not live long enough to be fetched for sure.
                assert second != first
                assert [resolve(message, blobs) for message in (first, second)] == [b"123456"] * 2
            clock.now = 10.0
            offload.expire()
            with pytest.raises(BlobNotFound):
                resolve(first, blobs)
        assert len(blobs.held) == 0  # the second's last delivery is over, and only the first one was kept
    with offload.delivery(b"abcdef"):
        assert len(blobs.held) == 1
    assert blobs.held == {}


def test_a_lost_blob_is_uploaded_again() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    with offload.kept(b"123456"):
        with offload.delivery(b"123456") as message:
            blobs.held.clear()
            with pytest.raises(BlobNotFound):
                resolve(message, blobs)
            offload.lost(message)
        with offload.delivery(b"123456") as message:
            assert resolve(message, blobs) == b"123456"
    assert blobs.held == {}


def test_a_server_that_is_gone() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    with offload.delivery(b"123456"):
        blobs.reachable = False
    with pytest.raises(BlobConnectionError), offload.delivery(b"abcdef"):
        pass
    blobs.reachable = True
    with offload.delivery(b"abcdef") as message:
        assert resolve(message, blobs) == b"abcdef"
        offload.close()
    assert len(blobs.held) == 1  # what could not be deleted goes when its time to live is over


def test_a_result_is_taken_by_its_only_receiver() -> None:
    blobs = Blobs()
    permanent = offload_if_larger(b"123456", 5, blobs, JOB)
    transient = Offloaded(blobs.put_bytes(b"result", TransientBlobKey, JOB), JOB, 6)
    assert take(transient, blobs) == b"result"
    assert take(permanent, blobs) == b"123456"
    assert len(blobs.held) == 1


def test_threads_that_deliver_the_same_content_at_once() -> None:
    blobs = Blobs()
    offload = MessageOffload(blobs, 5, JOB)
    together = threading.Barrier(8)

    def deliver(_: int) -> bool:
        with offload.delivery(b"123456") as message:
            together.wait(PATIENCE_S)
            return resolve(message, blobs) == b"123456"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(deliver, range(8)))
    assert (blobs.uploads, blobs.held) == (1, {})
