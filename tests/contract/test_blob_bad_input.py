"""The table *Answers* of docs/blob.md: what each bad input gets, and that it leaves nothing behind.

What needs more than a few frames is in its own test: the time-outs, the limits, the disk and the races in
`test_blob_server`, interrupted uploads in `test_blob_resume`, the stores in `test_blob_stores`.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from blob.errors import BlobNotFound, BlobServerError, InvalidBlobKey
from blob.key import DIGEST_SIZE, BlobKey, BlobType, PermanentBlobKey, TransientBlobKey
from blob.protocol import INLINE_CONTENT, REQUEST_SIZE, Operation, Request, Status
from tests.contract.blob_harness import JOB, OTHER_JOB, RawPeer, Served, digest_of, is_closed
from tests.waiting import PATIENCE_S

DOCS = Path(__file__).resolve().parents[2] / "docs" / "blob.md"
CONTENT = b"content"
RANDOM = b"r" * 16


def put(
    content: bytes = CONTENT,
    job_id: str | None = None,
    blob_type: BlobType = BlobType.TRANSIENT,
    *,
    length: int | None = None,
    digest: bytes | None = None,
) -> bytes:
    """All bytes of a small PUT."""
    size = len(content) if length is None else length
    request = Request(Operation.PUT, blob_type, job_id, RANDOM, length=size).encode()
    return request + content + (digest_of(content) if digest is None else digest)


def get(key: BlobKey, job_id: str | None, offset: int = 0) -> bytes:
    return Request.of_key(Operation.GET, job_id, key, offset).encode()


def spoilt(position: int, value: int) -> bytes:
    request = bytearray(put()[:REQUEST_SIZE])
    request[position] = value
    return bytes(request)


HERE = TransientBlobKey.create(hashlib.sha256(CONTENT).digest(), RANDOM)  # of JOB
KEPT = PermanentBlobKey.create(hashlib.sha256(CONTENT).digest(), RANDOM)  # of JOB
BAD_REQUESTS = {
    "an unknown operation": spoilt(0, 9),
    "operation zero": spoilt(0, 0),
    "an unknown type": spoilt(1, 3),
    "a job flag that is none": spoilt(2, 2),
    "a job where there is none": spoilt(4, 1),
    "a flag of GET in a PUT": spoilt(3, 1),
    "a digest in a PUT": spoilt(20, 1),
    "an offset in a PUT": spoilt(REQUEST_SIZE - 9, 1),
    "a huge length": spoilt(REQUEST_SIZE - 7, 0xFF),
    "a negative length": put()[: REQUEST_SIZE - 8] + (-1).to_bytes(8, signed=True),
    "the most negative length": put()[: REQUEST_SIZE - 8] + (-(2**63)).to_bytes(8, signed=True),
    "a negative offset": get(HERE, JOB)[: REQUEST_SIZE - 16] + (-1).to_bytes(8, signed=True) + bytes(8),
    "a length in a GET": get(HERE, JOB)[: REQUEST_SIZE - 1] + b"\x01",
    "text": b"../../../../etc/passwd\0".ljust(REQUEST_SIZE, b"\0"),
}
REFUSALS: dict[str, tuple[bytes, Status]] = {
    "a permanent blob without a job": (put(blob_type=BlobType.PERMANENT), Status.REFUSED),
    "a permanent blob is fetched without a job": (get(KEPT, None), Status.REFUSED),
    "a permanent blob is deleted": (Request.of_key(Operation.DELETE, JOB, KEPT).encode(), Status.REFUSED),
    "an offset beyond the end": (get(HERE, JOB, len(CONTENT) + 1), Status.REFUSED),
    "a key of the wrong job": (get(HERE, OTHER_JOB), Status.NOT_FOUND),
    "a key of the wrong type": (get(TransientBlobKey("t" + str(KEPT)[1:-1] + "0"), JOB), Status.NOT_FOUND),
    "a key without its job": (get(HERE, None), Status.NOT_FOUND),
    "a key that never was": (get(PermanentBlobKey.create(bytes(32)), JOB), Status.NOT_FOUND),
    "a wrong digest": (put(digest=digest_of(b"other")), Status.DIGEST_MISMATCH),
}


def served_with_two(directory: Path) -> tuple[Served, list[str]]:
    """A server that has HERE and KEPT, and the names of its files."""
    served = Served(directory)
    with RawPeer(served.server.address) as peer:
        for blob_type in BlobType:
            peer.send(put(job_id=JOB, blob_type=blob_type))
            assert peer.response()[0].status is Status.OK
    return served, served.files()


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_what_is_no_request_closes_the_connection(tmp_path: Path, name: str) -> None:
    served, files = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as peer:
        peer.send(BAD_REQUESTS[name])
        response, detail = peer.response()
        assert (response.status, bool(detail)) == (Status.BAD_REQUEST, True)
        assert is_closed(peer.sock)
        assert served.files() == files
        assert served.server.stats().total_bytes == 2 * len(CONTENT)


def test_a_peer_that_sends_on_after_what_is_no_request_still_gets_the_answer(tmp_path: Path) -> None:
    """A server that closes at once resets the connection, and its peer finds that while it still sends."""
    served, _ = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as peer:
        peer.send(BAD_REQUESTS["a huge length"][:REQUEST_SIZE])
        assert select.select([peer.sock], [], [], PATIENCE_S)[0], "the answer has come"
        for _ in range(2):
            peer.sock.sendall(bytes(INLINE_CONTENT))
        assert peer.response()[0].status is Status.BAD_REQUEST
        assert is_closed(peer.sock)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_leaves_the_connection_usable(tmp_path: Path, name: str) -> None:
    served, files = served_with_two(tmp_path)
    frames, expected = REFUSALS[name]
    with served, RawPeer(served.server.address) as peer:
        peer.send(frames)
        response, detail = peer.response()
        assert (response.status, bool(detail)) == (expected, True)
        peer.send(get(HERE, JOB))
        assert peer.response()[0].length == len(CONTENT)
        assert peer.receive(len(CONTENT)) == CONTENT
        assert served.files() == files
        assert served.server.stats().total_bytes == 2 * len(CONTENT)


def test_a_length_that_is_too_long_for_the_content_leaves_nothing(tmp_path: Path) -> None:
    served, files = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as peer:
        peer.send(put(length=len(CONTENT) + 10))
        peer.sock.shutdown(1)
        assert is_closed(peer.sock)
        assert served.files() == files


def test_a_length_that_is_too_short_for_the_content_leaves_nothing(tmp_path: Path) -> None:
    served, files = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as peer:
        peer.send(put(CONTENT + b"\xff" * (DIGEST_SIZE + REQUEST_SIZE), length=len(CONTENT)))
        assert peer.response()[0].status is Status.DIGEST_MISMATCH
        assert peer.response()[0].status is Status.BAD_REQUEST
        assert is_closed(peer.sock)
        assert served.files() == files


@pytest.mark.parametrize("size", [len(CONTENT), INLINE_CONTENT + 1])
def test_a_large_refusal_comes_before_the_content(tmp_path: Path, size: int) -> None:
    served, _ = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as peer:
        request = put(bytes(size), blob_type=BlobType.PERMANENT)
        peer.send(request if size <= INLINE_CONTENT else request[:REQUEST_SIZE])
        assert peer.response()[0].status is Status.REFUSED
        peer.send(get(HERE, JOB))
        assert peer.response()[0].status is Status.OK


@pytest.mark.parametrize(
    "name", ["../etc/passwd", "/etc/passwd", "a" * 31 + "\0", "A" * 32, "", "a" * 33, "a" * 32 + "\n"]
)
def test_what_is_no_job_id_is_not_sent(tmp_path: Path, name: str) -> None:
    served, files = served_with_two(tmp_path)
    with served, served.client(retries=0) as client:
        uses: list[Callable[[], object]] = [
            lambda: client.put_bytes(b"x", TransientBlobKey, name),
            lambda: client.get_bytes(HERE, name),
            lambda: client.delete(HERE, name),
            lambda: served.do(served.server.delete_job(name)),
            lambda: BlobKey.parse(name),
        ]
        for use in uses:
            with pytest.raises(InvalidBlobKey):
                use()
        assert served.files() == files


def test_a_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, files = served_with_two(tmp_path)

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with served, served.client(retries=0) as client:
        with monkeypatch.context() as patch:
            patch.setattr("blob.storage.BlobDirectory.new_temporary", fail)
            for data in (b"x", bytes(INLINE_CONTENT + 1)):
                with pytest.raises(BlobServerError, match="cannot use its directory"):
                    client.put_bytes(data, TransientBlobKey)
        with monkeypatch.context() as patch:
            patch.setattr("blob.storage.BlobDirectory.take", fail)
            with pytest.raises(BlobServerError, match="cannot use its directory"):
                client.delete(HERE, JOB)
        assert client.get_bytes(HERE, JOB) == CONTENT
        assert served.files() == files
        assert served.server.stats().total_bytes == 2 * len(CONTENT)


def test_two_puts_of_the_same_content_at_the_same_time(tmp_path: Path) -> None:
    data = bytes(INLINE_CONTENT + 1)
    served, files = served_with_two(tmp_path)
    with served, RawPeer(served.server.address) as one, RawPeer(served.server.address) as two:
        same = Request(Operation.PUT, BlobType.TRANSIENT, None, RANDOM, length=len(data))
        for peer in (one, two):
            peer.send(same.encode())
            assert peer.response()[0].status is Status.CONTINUE
        for peer in (one, two):
            peer.send(data + digest_of(data))
            assert peer.response()[0].status is Status.OK
        key = TransientBlobKey.create(digest_of(data), RANDOM)
        assert served.files() == [*files, f"no_job/blob_{key}"]
        with served.client() as client:
            assert client.get_bytes(key) == data
            assert client.delete(key)
            with pytest.raises(BlobNotFound):
                client.get_bytes(key)
        assert served.server.stats().total_bytes == 2 * len(CONTENT)


def test_every_answer_is_documented() -> None:
    table = DOCS.read_text().partition("## Answers")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([A-Z_]+)`", table))
    assert documented == {status.name for status in Status if status not in (Status.OK, Status.CONTINUE)}
