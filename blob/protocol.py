"""The frames of the blob protocol, as pure values: bytes in, value out, and back.

After the handshake of `actors.rpc.security` (service ``"blob"``) a connection carries one request after another:

    PUT     request(random, length)    ->
            content over 64 KiB only:  <- CONTINUE(length = bytes held already), or the refusal
            content[held:], digest(32) ->
                                       <- OK(digest), or the refusal
    GET     request(key, offset)       ->
                                       <- OK(length) content[offset:], or the refusal
    DELETE  request(key)               ->
                                       <- OK(length = number of blobs deleted), or the refusal

Over plain TCP a tag of 16 bytes (`actors.rpc.wire.Tags`) follows each message: a request, a digest, a response, and the
detail of a refusal. Contents have no tag. A tagged digest follows the content of a PUT, and the key in a GET contains
the digest of its content. Under TLS there are no tags.

Requests and responses have a fixed size, so a peer cannot make the other side allocate memory. Names never travel as
text, so they cannot contain ``../`` or NUL. A large PUT waits for CONTINUE (like HTTP's ``Expect: 100-continue``), so
that a refusal costs no upload. An interrupted PUT resumes where it broke; type, job, random part and length name it.
A refusal carries a readable detail of at most 1,024 bytes and leaves the connection usable,
except BAD_REQUEST, after which the server closes it. The operations are those of Flink's `BlobServerProtocol`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from blob.errors import (
    BlobError,
    BlobNotFound,
    BlobProtocolError,
    BlobRequestRefused,
    BlobServerError,
    BlobStoreError,
    DigestMismatch,
    InvalidBlobKey,
    NoSpaceLeft,
    QuotaExceeded,
)
from blob.key import DIGEST_SIZE, KEY_TYPES, RANDOM_SIZE, BlobKey, BlobType, check_job_id

SERVICE = "blob"
INLINE_CONTENT = 64 * 1024
MAX_LENGTH = 2**40
MAX_DETAIL = 1024

_REQUEST = struct.Struct(">BBBB16s32s16sQQ")
_RESPONSE = struct.Struct(">BxHQ32s")
REQUEST_SIZE = _REQUEST.size
RESPONSE_SIZE = _RESPONSE.size
_NO_JOB = bytes(16)
_NO_DIGEST = bytes(DIGEST_SIZE)


class Operation(IntEnum):
    """Operation of a request."""

    PUT = 1
    GET = 2
    DELETE = 3


class Status(IntEnum):
    """Status of a response; each value above CONTINUE is a refusal of the type in `ERRORS`."""

    OK = 0
    CONTINUE = 1
    NOT_FOUND = 2
    BAD_REQUEST = 3
    REFUSED = 4
    DIGEST_MISMATCH = 5
    NO_SPACE = 6
    QUOTA = 7
    STORE_FAILED = 8
    SERVER_ERROR = 9


ERRORS: dict[Status, type[BlobError]] = {
    Status.NOT_FOUND: BlobNotFound,
    Status.BAD_REQUEST: BlobProtocolError,
    Status.REFUSED: BlobRequestRefused,
    Status.DIGEST_MISMATCH: DigestMismatch,
    Status.NO_SPACE: NoSpaceLeft,
    Status.QUOTA: QuotaExceeded,
    Status.STORE_FAILED: BlobStoreError,
    Status.SERVER_ERROR: BlobServerError,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Args:
        operation: PUT, GET or DELETE.
        blob_type: permanent or transient.
        job_id: the job the blob belongs to, or None.
        random: the random part of the key (16 bytes).
        digest: the digest part of the key (32 bytes); all zero in a PUT, whose digest follows the content.
        offset: first byte to send, GET only.
        length: bytes of content, PUT only.
        verify: whether the server checks its own copy first, GET only; set after a content with a wrong digest.
    """

    operation: Operation
    blob_type: BlobType
    job_id: str | None
    random: bytes
    digest: bytes = _NO_DIGEST
    offset: int = 0
    length: int = 0
    verify: bool = False

    @classmethod
    def of_key(
        cls, operation: Operation, job_id: str | None, key: BlobKey, offset: int = 0, verify: bool = False
    ) -> Request:
        """Return the GET or DELETE request for *key*."""
        return cls(operation, key.blob_type, job_id, key.random, key.digest, offset, verify=verify)

    @property
    def key(self) -> BlobKey:
        """The key of a GET or DELETE."""
        return KEY_TYPES[self.blob_type].create(self.digest, self.random)

    def encode(self) -> bytes:
        """Return the REQUEST_SIZE bytes of this request; raises BlobProtocolError for a field out of its range."""
        if not (0 <= self.offset <= MAX_LENGTH and 0 <= self.length <= MAX_LENGTH):
            raise BlobProtocolError(
                f"offset {self.offset} or length {self.length} is outside 0..{MAX_LENGTH}; split the content"
            )
        if len(self.random) != RANDOM_SIZE or len(self.digest) != DIGEST_SIZE:
            raise BlobProtocolError("a request needs a random part of 16 bytes and a digest of 32")
        job = _NO_JOB if self.job_id is None else bytes.fromhex(check_job_id(self.job_id) or "")
        return _REQUEST.pack(
            self.operation,
            self.blob_type,
            self.job_id is not None,
            self.verify,
            job,
            self.digest,
            self.random,
            self.offset,
            self.length,
        )

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Return the request in *data*; raises BlobProtocolError when it is malformed."""
        if len(data) != REQUEST_SIZE:
            raise BlobProtocolError(f"a request has {REQUEST_SIZE} bytes, not {len(data)}")
        code, type_code, with_job, verify, job, digest, random, offset, length = _REQUEST.unpack(data)
        try:
            operation = Operation(code)
            blob_type = BlobType(type_code)
        except ValueError as error:
            raise BlobProtocolError(f"unknown request: {error}") from None
        if with_job > 1 or verify > 1 or (not with_job and job != _NO_JOB):
            raise BlobProtocolError("the flags or the job of the request are malformed")
        if offset > MAX_LENGTH or length > MAX_LENGTH:
            raise BlobProtocolError(f"offset {offset} or length {length} exceeds the maximum of {MAX_LENGTH} bytes")
        if operation is Operation.PUT and digest != _NO_DIGEST:
            raise BlobProtocolError("a PUT says its digest after its content")
        if ((offset or verify) and operation is not Operation.GET) or (length and operation is not Operation.PUT):
            raise BlobProtocolError(f"an offset, a length or a flag does not fit a {operation.name}")
        return cls(operation, blob_type, job.hex() if with_job else None, random, digest, offset, length, verify == 1)


@dataclass(frozen=True, slots=True)
class Response:
    """One response.

    Args:
        status: OK, CONTINUE, or the kind of refusal.
        length: bytes of content that follow a GET's OK; bytes held of an interrupted PUT, in CONTINUE; blobs deleted by
            a DELETE.
        digest: the digest that the server computed, PUT only.
        detail: text of a refusal.
    """

    status: Status
    length: int = 0
    digest: bytes = _NO_DIGEST
    detail: str = ""

    @classmethod
    def of_error(cls, error: BlobError) -> Response:
        """Return the refusal for *error*."""
        for status, error_type in ERRORS.items():
            if isinstance(error, error_type):
                return cls(status, detail=str(error))
        if isinstance(error, InvalidBlobKey):
            return cls(Status.REFUSED, detail=str(error))
        return cls(Status.SERVER_ERROR, detail=f"{type(error).__name__}: {error}")

    def encode(self) -> bytes:
        """Return the bytes of this response: RESPONSE_SIZE, then the detail if there is one."""
        detail = self.detail.encode(errors="replace")[:MAX_DETAIL]
        return _RESPONSE.pack(self.status, len(detail), self.length, self.digest) + detail

    @classmethod
    def decode(cls, data: bytes) -> tuple[Response, int]:
        """Return the response in the RESPONSE_SIZE bytes *data*, and the number of bytes of detail that follow it.

        Raises:
            BlobProtocolError: *data* is malformed.
        """
        if len(data) != RESPONSE_SIZE:
            raise BlobProtocolError(f"a response has {RESPONSE_SIZE} bytes, not {len(data)}")
        code, detail_size, length, digest = _RESPONSE.unpack(data)
        try:
            status = Status(code)
        except ValueError as error:
            raise BlobProtocolError(f"unknown response: {error}") from None
        if data[1] != 0 or detail_size > MAX_DETAIL or length > MAX_LENGTH:
            raise BlobProtocolError("the response is malformed")
        if detail_size and status in (Status.OK, Status.CONTINUE):
            raise BlobProtocolError(f"a detail does not fit a response {status.name}")
        return cls(status, length, digest), detail_size

    def error(self, detail: bytes) -> BlobError:
        """Return the exception of this refusal."""
        return ERRORS[self.status](detail.decode(errors="replace") or self.status.name)
