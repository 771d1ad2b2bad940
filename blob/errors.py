"""The exception tree of the blob service.

Every error derives from the one above it::

    BlobError
    ├── InvalidBlobKey           a text is not the key (or job id) that it should be
    ├── BlobProtocolError        a peer sent bytes that are not the protocol
    ├── BlobConnectionError      the server cannot be reached, or the connection broke and the retries are used up
    │   ├── BlobTimeout          the peer was too slow
    │   └── BlobConnectionTampered  an attacker on the way changed, added or removed bytes
    ├── BlobAuthenticationError  the peer does not hold the cluster secret
    ├── BlobNotFound             no blob of that key and job at the server nor in the store
    ├── BlobRequestRefused       the request is well-formed but not allowed (wrong type, wrong job, wrong length)
    ├── DigestMismatch           the content is not what its digest says
    ├── NoSpaceLeft              the disk is full, or would have less than its reserve left
    ├── QuotaExceeded            the job, or the whole server, holds as much as it may
    ├── BlobTooLarge             a blob exceeds the most that the receiver takes into memory
    ├── BlobStoreError           the BlobStore cannot be read or written
    └── BlobServerError          the server failed, could not start, or is stopping
"""

from __future__ import annotations

from actors.errors import AuthenticationError


class BlobError(Exception):
    """Base of every error raised by the blob service."""


class InvalidBlobKey(BlobError, ValueError):
    """A text is not the blob key, or the job id, that it should be."""


class BlobProtocolError(BlobError):
    """A peer sent bytes that are not the blob protocol."""


class BlobConnectionError(BlobError, ConnectionError):
    """The server cannot be reached, or the connection broke and the retries are used up."""


class BlobTimeout(BlobConnectionError, TimeoutError):
    """The peer did not send or take bytes fast enough."""


class BlobConnectionTampered(BlobConnectionError):
    """Bytes came that the peer has not sent there: an attacker on the way changed, added or removed some."""


class BlobAuthenticationError(BlobError, AuthenticationError):
    """The peer does not hold the cluster secret."""


class BlobNotFound(BlobError, LookupError):
    """There is no blob of that key and job, neither at the server nor in the store."""


class BlobRequestRefused(BlobError, ValueError):
    """The request is not allowed: a permanent blob without a job, a delete of a permanent blob, a wrong length."""


class DigestMismatch(BlobError):
    """The received content does not match its digest; nothing of it was kept."""


class NoSpaceLeft(BlobError, OSError):
    """The disk is full, or would have less than its reserve left."""


class QuotaExceeded(BlobError):
    """The job, or the server as a whole, already holds as many bytes as it may."""


class BlobTooLarge(BlobError):
    """A blob exceeds the most that the receiver is willing to hold in memory."""


class BlobStoreError(BlobError):
    """The BlobStore cannot be read or written."""


class BlobServerError(BlobError):
    """The server failed in handling the request, could not start, or is stopping."""
