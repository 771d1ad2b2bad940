"""What a blob server holds, and what may be done with it: the part of the server that knows no sockets.

Used by all connections' threads at once. Two locks of microseconds guard the accounts; everything slow (copying,
syncing, removing) happens outside them. A blob needs no read or write lock of its own: it is never rewritten, a GET
that has opened it delivers it whole even if it is deleted meanwhile, and one that comes later finds nothing.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from blob.errors import BlobError, BlobNotFound, BlobRequestRefused, BlobServerError, BlobStoreError, NoSpaceLeft
from blob.key import BlobKey, BlobType, TransientBlobKey
from blob.limits import ExpiryTable, StorageBudget
from blob.single_flight import SingleFlight
from blob.storage import BlobDirectory
from blob.store import BlobStore

_log = logging.getLogger(__name__)


class Upload:
    """An upload under way: a context manager that leaves no trace unless `BlobContents.commit` was called."""

    def __init__(self, contents: BlobContents, job_id: str | None, length: int) -> None:
        self._contents = contents
        self.job_id = job_id
        self.length = length
        self.committed = False
        self.descriptor, self.temporary = contents.directory.new_temporary()

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.descriptor)
        if not self.committed:
            self.temporary.unlink()
            self._contents.abandon(self)


class BlobContents:
    """The blobs of one server.

    Args:
        directory: where they are; its blobs are counted at once.
        store: where permanent ones are copied to and recovered from.
        budget: how much may be held.
        transient_ttl: seconds after its last use at which a transient blob is deleted.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: BlobDirectory,
        store: BlobStore,
        budget: StorageBudget,
        transient_ttl: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._store = store
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._expiry: ExpiryTable[tuple[str | None, BlobKey]] = ExpiryTable(transient_ttl)
        self._recoveries: SingleFlight[tuple[str, BlobKey], None] = SingleFlight()
        for job_id, key, size in directory.entries():
            budget.add(job_id, size)
            self._touch(job_id, key)

    @property
    def total_bytes(self) -> int:
        """Bytes held, uploads under way included."""
        return self._budget.total

    def begin(self, blob_type: BlobType, job_id: str | None, length: int) -> Upload:
        """Admit an upload of *length* bytes; use the result in a ``with`` and `commit` it.

        Raises:
            BlobRequestRefused: a permanent blob without a job.
            QuotaExceeded, NoSpaceLeft: it is too large for now.
        """
        _require_job(blob_type, job_id)
        with self._lock:
            self._budget.reserve(job_id, length, self.directory.free_bytes())
        try:
            return Upload(self, job_id, length)
        except OSError as error:
            with self._lock:
                self._budget.abort(job_id, length)
            raise storage_failure(error) from error

    def commit(self, upload: Upload, key: BlobKey) -> None:
        """Make a complete upload durable and visible; a permanent one is in the store when this returns.

        Raises:
            BlobStoreError: the store failed; nothing is visible.
            NoSpaceLeft, BlobServerError: the disk failed.
        """
        try:
            os.fsync(upload.descriptor)
            if upload.job_id is not None and key.blob_type is BlobType.PERMANENT:
                self._store.put(upload.temporary, upload.job_id, key)
            with self._lock:
                replaced = self.directory.commit(upload.temporary, upload.job_id, key)
                upload.committed = True
                self._budget.commit(upload.length)
                if replaced:
                    self._budget.remove(upload.job_id, upload.length)
                self._touch(upload.job_id, key)
            self.directory.sync(upload.job_id)
        except BlobError:
            raise
        except OSError as error:
            raise storage_failure(error) from error

    def abandon(self, upload: Upload) -> None:
        """Count out an upload that failed."""
        with self._lock:
            self._budget.abort(upload.job_id, upload.length)

    def open(self, job_id: str | None, key: BlobKey, *, verify: bool = False) -> tuple[int, int]:
        """Return a descriptor of the blob's file, to be closed by the caller, and its size.

        A permanent blob that is not here, or with *verify* one whose content is damaged, is fetched from the store.

        Raises:
            BlobNotFound: there is no such blob.
            BlobStoreError: the store failed, or its copy is damaged.
        """
        _require_job(key.blob_type, job_id)
        path = self.directory.path(job_id, key)
        if verify:
            self._drop_if_damaged(job_id, key, path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if job_id is None or key.blob_type is BlobType.TRANSIENT:
                raise BlobNotFound(_not_found(job_id, key)) from None
            job = job_id
            self._recoveries.run((job, key), lambda: self._recover(job, key, path))
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if key.blob_type is BlobType.TRANSIENT:
            with self._lock:
                self._touch(job_id, key)
        return descriptor, os.fstat(descriptor).st_size

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete a transient blob; False if there was none.

        Raises:
            BlobRequestRefused: the key is a permanent blob's, which lives as long as its job.
        """
        if not isinstance(key, TransientBlobKey):
            raise BlobRequestRefused(f"{key} is permanent: it is deleted with its job, not by itself")
        with self._lock:
            taken = self.directory.take(job_id, key)
            self._expiry.forget((job_id, key))
        return self._dispose(job_id, taken)

    def delete_job(self, job_id: str, *, from_store: bool = True) -> bool:
        """Delete every blob of a job, here and, unless told otherwise, in the store; False if none was here."""
        with self._lock:
            taken = self.directory.take_job(job_id)
        found = self._dispose(job_id, taken)
        if from_store:
            self._store.delete_all(job_id)
        return found

    def delete_expired(self) -> int:
        """Delete the transient blobs whose time to live is over; return how many that were."""
        with self._lock:
            expired = self._expiry.expired(self._clock())
            taken = [(job_id, self.directory.take(job_id, key)) for job_id, key in expired]
            for entry in expired:
                self._expiry.forget(entry)
        return sum(self._dispose(job_id, path) for job_id, path in taken)

    def _touch(self, job_id: str | None, key: BlobKey) -> None:
        if key.blob_type is BlobType.TRANSIENT:
            self._expiry.touch((job_id, key), self._clock())

    def _dispose(self, job_id: str | None, taken: Path | None) -> bool:
        if taken is None:
            return False
        size = self.directory.dispose(taken)
        with self._lock:
            self._budget.remove(job_id, size)
        return True

    def _recover(self, job_id: str, key: BlobKey, path: Path) -> None:
        if path.exists():
            return
        descriptor, temporary = self.directory.new_temporary()
        try:
            if not self._store.get(job_id, key, temporary):
                raise BlobNotFound(_not_found(job_id, key))
            if file_digest(descriptor) != key.digest:
                raise BlobStoreError(f"the copy of {key} of job {job_id} in the blob store is damaged")
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
            with self._lock:
                # Without asking the quotas: it was admitted when it was uploaded.
                if not self.directory.commit(temporary, job_id, key):
                    self._budget.add(job_id, size)
            _log.info("recovered %s of job %s from the blob store (%d bytes)", key, job_id, size)
        except BaseException:
            temporary.unlink()
            raise
        finally:
            os.close(descriptor)

    def _drop_if_damaged(self, job_id: str | None, key: BlobKey, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            damaged = file_digest(descriptor) != key.digest
        finally:
            os.close(descriptor)
        if damaged:
            _log.error("%s is damaged and is dropped", path)
            with self._lock:
                taken = self.directory.take(job_id, key)
            self._dispose(job_id, taken)


def file_digest(descriptor: int) -> bytes:
    """The SHA-256 digest of an open file's content."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").digest()


def storage_failure(error: OSError) -> BlobError:
    """The error to answer when the server's own disk failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceLeft("the blob server's disk is full; free some space, or move the blob directory")
    return BlobServerError(f"the blob server cannot use its directory: {error}")


def _require_job(blob_type: BlobType, job_id: str | None) -> None:
    if blob_type is BlobType.PERMANENT and job_id is None:
        raise BlobRequestRefused("a permanent blob belongs to a job: give its job id")


def _not_found(job_id: str | None, key: BlobKey) -> str:
    owner = "without a job" if job_id is None else f"of job {job_id}"
    return f"there is no blob {key} {owner}: it was never uploaded, was deleted, or its time to live is over"
