from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blob.errors import BlobError, BlobProtocolError, BlobServerError, InvalidBlobKey
from blob.key import BlobType, PermanentBlobKey
from blob.protocol import (
    ERRORS,
    MAX_DETAIL,
    MAX_LENGTH,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    Operation,
    Request,
    Response,
    Status,
)

JOBS = st.none() | st.binary(min_size=16, max_size=16).map(bytes.hex)
RANDOMS = st.binary(min_size=16, max_size=16)
DIGESTS = st.binary(min_size=32, max_size=32)
LENGTHS = st.integers(0, MAX_LENGTH)
TYPES = st.sampled_from(BlobType)
PUT = Request(Operation.PUT, BlobType.TRANSIENT, None, bytes(16), length=5)

requests = st.one_of(
    st.builds(Request, st.just(Operation.PUT), TYPES, JOBS, RANDOMS, length=LENGTHS),
    st.builds(Request, st.just(Operation.GET), TYPES, JOBS, RANDOMS, DIGESTS, offset=LENGTHS, verify=st.booleans()),
    st.builds(Request, st.just(Operation.DELETE), TYPES, JOBS, RANDOMS, DIGESTS),
)


@given(requests)
def test_a_request_survives_the_wire(request: Request) -> None:
    data = request.encode()
    assert len(data) == REQUEST_SIZE
    assert Request.decode(data) == request


@given(st.binary(min_size=REQUEST_SIZE, max_size=REQUEST_SIZE) | st.binary(max_size=2 * REQUEST_SIZE))
@example(b"")
def test_garbage_is_refused_or_is_a_request(data: bytes) -> None:
    try:
        request = Request.decode(data)
    except BlobProtocolError:
        return
    assert request.encode() == data


@given(requests, st.integers(0, REQUEST_SIZE - 1), st.integers(1, 255))
def test_a_spoilt_request_is_refused_or_another_request(request: Request, position: int, change: int) -> None:
    data = bytearray(request.encode())
    data[position] ^= change
    try:
        decoded = Request.decode(bytes(data))
    except BlobProtocolError:
        return
    assert decoded != request
    assert decoded.encode() == data


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1, 2**64])
def test_a_length_out_of_range_is_not_sent(length: int) -> None:
    with pytest.raises(BlobProtocolError, match="outside"):
        Request(Operation.PUT, BlobType.TRANSIENT, None, bytes(16), length=length).encode()


@pytest.mark.parametrize("length", [MAX_LENGTH + 1, 2**63, 2**64 - 1])
def test_a_length_out_of_range_is_not_received(length: int) -> None:
    data = PUT.encode()[:-8] + length.to_bytes(8)
    with pytest.raises(BlobProtocolError, match="exceeds the maximum"):
        Request.decode(data)


def test_a_job_id_that_is_none_is_not_sent() -> None:
    with pytest.raises(InvalidBlobKey):
        Request(Operation.PUT, BlobType.TRANSIENT, "../../etc/passwd", bytes(16)).encode()


def test_the_key_of_a_request() -> None:
    key = PermanentBlobKey.create(b"d" * 32)
    assert Request.decode(Request.of_key(Operation.GET, None, key).encode()).key == key


@given(st.sampled_from(Status), LENGTHS, st.binary(min_size=32, max_size=32), st.text(max_size=2000))
def test_a_response_survives_the_wire(status: Status, length: int, digest: bytes, detail: str) -> None:
    if status in (Status.OK, Status.CONTINUE):
        detail = ""
    data = Response(status, length, digest, detail).encode()
    response, detail_size = Response.decode(data[:RESPONSE_SIZE])
    assert response == Response(status, length, digest)
    assert data[RESPONSE_SIZE:] == detail.encode()[:MAX_DETAIL]
    assert detail_size == len(data) - RESPONSE_SIZE <= MAX_DETAIL


@given(st.binary(min_size=RESPONSE_SIZE, max_size=RESPONSE_SIZE) | st.binary(max_size=2 * RESPONSE_SIZE))
def test_garbage_is_refused_or_is_a_response(data: bytes) -> None:
    try:
        response, detail_size = Response.decode(data)
    except BlobProtocolError:
        return
    assert response.length <= MAX_LENGTH
    assert detail_size <= MAX_DETAIL


@pytest.mark.parametrize("error_type", ERRORS.values())
def test_every_refusal_arrives_typed(error_type: type[BlobError]) -> None:
    response = Response.of_error(error_type("because"))
    arrived = response.error(response.detail.encode())
    assert type(arrived) is error_type
    assert str(arrived) == "because"


def test_an_unforeseen_error_arrives_as_the_servers() -> None:
    response = Response.of_error(BlobError("odd"))
    assert isinstance(response.error(response.detail.encode()), BlobServerError)
