"""The blob protocol under any bytes: what is decoded is what was said, and nothing else is accepted.

`check` is one input of a fuzzer, for the frames, keys and names. `frames_of` makes what is sent to a real server, of
which nothing half must become visible, and which must go on serving: `tests/contract/test_blob_fuzz.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import PurePosixPath

from blob.errors import BlobError, BlobProtocolError, InvalidBlobKey
from blob.key import BlobKey, BlobType, PermanentBlobKey
from blob.protocol import (
    INLINE_CONTENT,
    MAX_DETAIL,
    MAX_LENGTH,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    Operation,
    Request,
    Response,
    Status,
)
from blob.server import _decode as decode_fence
from blob.server import _encode as encode_fence
from blob.storage import blob_file_name, job_directory_name, job_of_directory
from tests.fuzz.source import ByteSource

JOB = "0123456789abcdef" * 2
LENGTHS = (0, 1, 31, 32, 33, 1000, INLINE_CONTENT, 200_000, MAX_LENGTH, MAX_LENGTH + 1, 2**63, 2**64 - 1)


def seeds() -> list[bytes]:
    """Inputs from which a fuzzer may start; the first byte says what the rest is taken for."""
    key = PermanentBlobKey.create(bytes(32), bytes(16))
    requests = [
        Request(Operation.PUT, BlobType.TRANSIENT, JOB, bytes(16), length=5),
        Request.of_key(Operation.GET, JOB, key, 7, True),
        Request.of_key(Operation.DELETE, None, key),
    ]
    responses = [
        Response(Status.OK, 5),
        Response(Status.NOT_FOUND, detail="there is none"),
        Response(Status.CONTINUE, 1),
    ]
    return [
        *(b"\x00" + request.encode() for request in requests),
        *(b"\x01" + response.encode() for response in responses),
        b"\x02" + key.encode(),
        b"\x02" + b"../" * 20,
        b'\x03{"epoch": 5, "session": "a"}',
    ]


def check(data: bytes) -> None:
    """One input of the fuzzer; raises AssertionError, or whatever came that should not."""
    kind, rest = data[:1], data[1:]
    (_request, _response, _text, _fence)[kind[0] % 4 if kind else 0](rest)


def _request(data: bytes) -> None:
    try:
        request = Request.decode(data)
    except BlobProtocolError:
        return
    assert request.encode() == data
    assert 0 <= request.offset <= MAX_LENGTH
    assert 0 <= request.length <= MAX_LENGTH
    _safe(request.job_id, request.key)


def _response(data: bytes) -> None:
    try:
        response, size = Response.decode(data[:RESPONSE_SIZE])
    except BlobProtocolError:
        return
    assert 0 <= size <= MAX_DETAIL
    assert response.length <= MAX_LENGTH
    if response.status not in (Status.OK, Status.CONTINUE):
        assert isinstance(response.error(data[RESPONSE_SIZE:][:size]), BlobError)


def _text(data: bytes) -> None:
    text = data.decode("latin-1")
    with contextlib.suppress(InvalidBlobKey):
        key = BlobKey.parse(text)
        assert key == text
        _safe(None, key)
    with contextlib.suppress(InvalidBlobKey):
        job_directory_name(text)
        assert len(text) == 32
    job_id = job_of_directory(text)
    assert job_id is None or job_directory_name(job_id) == text


def _fence(data: bytes) -> None:
    try:
        token = decode_fence(data)
    except ValueError:
        return
    assert decode_fence(encode_fence(token)) == token


def _safe(job_id: str | None, key: BlobKey) -> None:
    """However a request is made, its path is two plain names below the root."""
    path = PurePosixPath("/root", job_directory_name(job_id), blob_file_name(key))
    assert path.parent.parent == PurePosixPath("/root")
    assert ".." not in path.parts
    assert "\0" not in str(path)


def frames_of(source: ByteSource) -> bytes:
    """What a hostile or broken client might send on an authenticated connection; it may also be in order."""
    return b"".join(_frame(source) for _ in range(source.number(4) + 1))


def _frame(source: ByteSource) -> bytes:
    content = bytes(source.choose((0, 1, 7, 1000, INLINE_CONTENT + 1)))
    digest = hashlib.sha256(content).digest()
    head = bytearray(
        bytes(source.choose(values) for values in ((1, 1, 1, 2, 3, 0), (2, 2, 1, 9), (1, 1, 0, 1), (0,)))
        + source.choose((bytes.fromhex(JOB), bytes.fromhex(JOB), bytes(16)))
        + source.choose((bytes(32), bytes(32), bytes(32), digest))
        + source.choose((bytes(16), b"r" * 16))
        + source.choose((0,) * 40 + LENGTHS).to_bytes(8)
        + source.choose((len(content),) * 20 + LENGTHS).to_bytes(8)
    )
    match source.number(8):
        case 0:
            head[source.number(REQUEST_SIZE)] ^= 1 + source.number(255)
        case 1:
            return bytes(head[: source.number(REQUEST_SIZE)])
        case 2:
            return bytes(head) + content[: source.number(len(content) + 1)]
        case 3:
            return bytes(head) + content + bytes(32)
        case 4:
            return source.take(200)
    return bytes(head) + content + digest
