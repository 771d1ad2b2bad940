"""What a blob server holds, and what may be done with it: the part of the server that knows no sockets.

Used by all connections' threads at once. Each blob has a read-write lock, and each job: an upload's copying to the
store and appearing is one step for whoever deletes, and so is a recovery from the store; a job is deleted when nothing
of it is in such a step. A GET holds the read lock only until the file is open: it then delivers the blob whole even if
that is deleted meanwhile, for a blob is never rewritten. A lock of microseconds guards the accounts; nothing slow
(copying, syncing, removing) happens inside that one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from blob.errors import BlobError, BlobRequestRefused
from blob.files import file_digest
from blob.key import BlobKey, BlobType, TransientBlobKey
from blob.limits import ExpiryTable, StorageBudget
from blob.refusals import not_found, require_job, storage_failure
from blob.single_flight import SingleFlight
from blob.storage import BlobDirectory
from blob.store import BlobStore, fetch_verified
from blob.uploads import ParkedUploads, Upload, UploadName

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class _State:
    __slots__ = ("readers", "users", "writers_waiting", "writing")

    def __init__(self) -> None:
        self.readers = 0
        self.writing = False
        self.writers_waiting = 0
        self.users = 0


class KeyedLocks(Generic[K]):
    """A read-write lock for every key; one that nobody holds or waits for takes no memory.

    Writers go before readers that come later, so that readers cannot keep them out. Not reentrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[K, _State] = {}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def shared(self, key: K) -> Iterator[None]:
        """Hold the read lock of *key* in a ``with``: many may, while nobody writes."""
        with self._changed:
            state = self._enter(key)
            while state.writing or state.writers_waiting:
                self._changed.wait()
            state.readers += 1
        try:
            yield
        finally:
            with self._changed:
                state.readers -= 1
                self._leave(key, state)

    @contextmanager
    def exclusive(self, key: K) -> Iterator[None]:
        """Hold the write lock of *key* in a ``with``: nobody else holds either."""
        with self._changed:
            state = self._enter(key)
            state.writers_waiting += 1
            while state.writing or state.readers:
                self._changed.wait()
            state.writers_waiting -= 1
            state.writing = True
        try:
            yield
        finally:
            with self._changed:
                state.writing = False
                self._leave(key, state)

    def _enter(self, key: K) -> _State:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State()
        state.users += 1
        return state

    def _leave(self, key: K, state: _State) -> None:
        state.users -= 1
        if state.users:
            self._changed.notify_all()
        else:
            del self._states[key]


_Entry = tuple[str | None, BlobKey]


class BlobContents:
    """The blobs of one server.

    Args:
        directory: where they are; its blobs are counted at once.
        store: where permanent ones are copied to and recovered from.
        budget: how much may be held.
        transient_ttl: seconds after its last use at which a transient blob is deleted.
        orphan_age: seconds after the last use of any of its blobs at which a job that nobody knows may be deleted.
        resume_window: seconds for which an interrupted upload may go on where it broke; 0 for not at all.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: BlobDirectory,
        store: BlobStore,
        budget: StorageBudget,
        transient_ttl: float,
        orphan_age: float = 3600.0,
        resume_window: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self._store = store
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: KeyedLocks[_Entry] = KeyedLocks()
        self._job_locks: KeyedLocks[str | None] = KeyedLocks()
        self._expiry: ExpiryTable[_Entry] = ExpiryTable(transient_ttl)
        self._job_uses: ExpiryTable[str] = ExpiryTable(orphan_age)
        self._parked = ParkedUploads(resume_window)
        self._recoveries: SingleFlight[_Entry, None] = SingleFlight()
        for job_id, key, status in directory.entries():
            budget.add(job_id, status.st_size)
            self._touch(job_id, key)

    @property
    def total_bytes(self) -> int:
        """Bytes held, uploads under way included."""
        return self._budget.total

    @property
    def parked_uploads(self) -> int:
        """Interrupted uploads that may still go on."""
        return len(self._parked)

    @property
    def owners(self) -> int:
        """Jobs that hold something, the blobs without a job counted as one."""
        return self._budget.owners

    def begin(self, name: UploadName) -> Upload:
        """Admit an upload, or go on with an interrupted one; use the result in a ``with`` and `commit` it.

        Raises:
            BlobRequestRefused: a permanent blob without a job.
            QuotaExceeded, NoSpaceLeft: it is too large for now.
        """
        require_job(name.blob_type, name.job_id)
        with self._lock:
            self._touch_job(name.job_id)
            if (parked := self._parked.resume(name)) is not None:
                return parked
            self._budget.reserve(name.job_id, name.length, self.directory.free_bytes())
        try:
            return Upload(name, *self.directory.new_temporary(), self._abandon)
        except OSError as error:
            with self._lock:
                self._budget.abort(name.job_id, name.length)
            raise storage_failure(error) from error

    def commit(self, upload: Upload, key: BlobKey) -> None:
        """Make a complete upload durable and visible; a permanent one is in the store when this returns.

        Raises:
            BlobStoreError: the store failed; nothing is visible.
            NoSpaceLeft, BlobServerError: the disk failed.
        """
        job_id = upload.name.job_id
        try:
            os.fsync(upload.descriptor)
            with self._job_locks.shared(job_id), self._blobs.exclusive((job_id, key)):
                if job_id is not None and key.blob_type is BlobType.PERMANENT:
                    self._store.put(upload.temporary, job_id, key)
                with self._lock:
                    replaced = self.directory.commit(upload.temporary, job_id, key)
                    upload.committed = True
                    self._budget.commit(upload.name.length)
                    if replaced:
                        self._budget.remove(job_id, upload.name.length)
                    self._touch(job_id, key)
            if key.blob_type is BlobType.PERMANENT:
                # A transient blob's name may be lost with the machine's power: never its content, while it has a name.
                self.directory.sync(job_id)
        except BlobError:
            raise
        except OSError as error:
            raise storage_failure(error) from error

    def park(self, upload: Upload) -> None:
        """Keep what came of an upload whose connection broke, for as long as its client may try again."""
        with self._lock:
            others = self._parked.park(upload, self._clock())
        for other in others:
            other.end()

    def _abandon(self, upload: Upload) -> None:
        with self._lock:
            self._budget.abort(upload.name.job_id, upload.name.length)

    def open(self, job_id: str | None, key: BlobKey, *, verify: bool = False) -> tuple[int, int]:
        """Return a descriptor of the blob's file, to be closed by the caller, and its size.

        A permanent blob that is not here, or with *verify* one whose content is damaged, is fetched from the store.

        Raises:
            BlobNotFound: there is no such blob.
            BlobStoreError: the store failed, or its copy is damaged.
        """
        require_job(key.blob_type, job_id)
        path = self.directory.path(job_id, key)
        if verify:
            self._drop_if_damaged(job_id, key, path)
        try:
            with self._blobs.shared((job_id, key)):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if job_id is None or key.blob_type is BlobType.TRANSIENT:
                raise not_found(job_id, key) from None
            job = job_id
            self._recoveries.run((job, key), lambda: self._recover(job, key))
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with self._lock:
            self._touch(job_id, key)
        return descriptor, os.fstat(descriptor).st_size

    def size_of(self, job_id: str | None, key: BlobKey) -> int | None:
        """Bytes of a blob that is in the directory; None if it is not, though it may be in the store."""
        try:
            return self.directory.path(job_id, key).stat().st_size
        except FileNotFoundError:
            return None

    def use_job(self, job_id: str) -> None:
        """Count as a use of all of a job's blobs: it was submitted, or recovered."""
        with self._lock:
            self._touch_job(job_id)

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete a transient blob; False if there was none.

        Raises:
            BlobRequestRefused: the key is a permanent blob's, which lives as long as its job.
        """
        if not isinstance(key, TransientBlobKey):
            raise BlobRequestRefused(f"{key} is permanent: it is deleted with its job, not by itself")
        with self._blobs.exclusive((job_id, key)), self._lock:
            taken = self.directory.take(job_id, key)
            self._expiry.forget((job_id, key))
        return self._dispose(job_id, taken)

    def delete_job(self, job_id: str, *, from_store: bool = True) -> bool:
        """Delete every blob of a job, here and, unless told otherwise, in the store; False if none was here."""
        with self._job_locks.exclusive(job_id):
            return self._delete_job(job_id, from_store=from_store)

    def _delete_job(self, job_id: str, *, from_store: bool = True) -> bool:
        with self._lock:
            taken = self.directory.take_job(job_id)
            interrupted = self._parked.take(lambda name, _: name.job_id == job_id)
            self._job_uses.forget(job_id)
        for upload in interrupted:
            upload.end()
        found = self._dispose(job_id, taken)
        if from_store:
            self._store.delete_all(job_id)
        return found

    def sweep(self, live_jobs: Collection[str]) -> list[str]:
        """Delete the jobs, here and in the store, that were uploaded and never submitted, or ended and were left over.

        Never one of *live_jobs*, nor one of which any blob was put, got or recovered, or which was named to `use_job`,
        within the orphan age; what this server first hears of it has just been used.

        Args:
            live_jobs: those that run, are being recovered, or are kept after their end.

        Returns:
            The ids of the jobs deleted.

        Raises:
            BlobStoreError: the store failed.
        """
        stored = self._store.jobs()
        now = self._clock()
        with self._lock:
            for job_id in stored:
                self._job_uses.note(job_id, now)
            for job_id in live_jobs:
                self._job_uses.touch(job_id, now)
            candidates = [job_id for job_id in self._job_uses.expired(now) if job_id not in live_jobs]
        deleted = []
        for job_id in candidates:
            with self._job_locks.exclusive(job_id):
                with self._lock:
                    orphaned = self._job_uses.is_expired(job_id, self._clock())
                if orphaned and (self._delete_job(job_id) or job_id in stored):
                    deleted.append(job_id)
        return deleted

    def delete_expired(self) -> int:
        """Delete the transient blobs whose time to live is over, and interrupted uploads; return how many blobs."""
        with self._lock:
            expired = self._expiry.expired(self._clock())
            interrupted = self._parked.expired(self._clock())
        for upload in interrupted:
            upload.end()
        count = 0
        for entry in expired:
            with self._blobs.exclusive(entry), self._lock:
                if not self._expiry.is_expired(entry, self._clock()):
                    continue  # used meanwhile
                taken = self.directory.take(*entry)
                self._expiry.forget(entry)
            count += self._dispose(entry[0], taken)
        return count

    def close(self) -> None:
        """Give up the interrupted uploads, and the directory."""
        for upload in self._parked.take(lambda _name, _since: True):
            upload.end()
        self.directory.close()

    def _touch(self, job_id: str | None, key: BlobKey) -> None:
        if key.blob_type is BlobType.TRANSIENT:
            self._expiry.touch((job_id, key), self._clock())
        self._touch_job(job_id)

    def _touch_job(self, job_id: str | None) -> None:
        if job_id is not None:
            self._job_uses.touch(job_id, self._clock())

    def _dispose(self, job_id: str | None, taken: Path | None) -> bool:
        if taken is None:
            return False
        size = self.directory.dispose(taken)
        with self._lock:
            self._budget.remove(job_id, size)
        return True

    def _recover(self, job_id: str, key: BlobKey) -> None:
        with self._job_locks.shared(job_id), self._blobs.exclusive((job_id, key)):
            if self.directory.path(job_id, key).exists():
                return
            descriptor, temporary = self.directory.new_temporary()
            try:
                if not fetch_verified(self._store, job_id, key, descriptor, temporary):
                    raise not_found(job_id, key)
                os.fsync(descriptor)
                size = os.fstat(descriptor).st_size
                with self._lock:
                    # Without asking the quotas: it was admitted when it was uploaded.
                    self.directory.commit(temporary, job_id, key)
                    self._budget.add(job_id, size)
            except BaseException:
                temporary.unlink()
                raise
            finally:
                os.close(descriptor)
        logger.info("recovered %s of job %s from the blob store (%d bytes)", key, job_id, size)

    def _drop_if_damaged(self, job_id: str | None, key: BlobKey, path: Path) -> None:
        try:
            with path.open("rb") as file:
                damaged = file_digest(file.fileno()) != key.digest
        except FileNotFoundError:
            return
        if damaged:
            logger.error("%s is damaged and is dropped", path)
            with self._blobs.exclusive((job_id, key)), self._lock:
                taken = self.directory.take(job_id, key)
            self._dispose(job_id, taken)
