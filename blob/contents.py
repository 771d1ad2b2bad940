"""Contents of a blob server and the operations on them: the part of the server without sockets.

The threads of all connections use it at once. Each blob and each job has a read-write lock:

- An upload copies to the store and makes the blob appear under these locks, so a delete sees both or neither. The same
  holds for a recovery from the store. A job is deleted only when none of its blobs is in such a step.
- A GET holds the read lock only until the file is open. It then delivers the whole blob even if that is deleted during
  the transfer, because a blob is never rewritten.

Another lock guards the accounts for microseconds; slow work (copying, syncing, removing) happens outside it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    """A read-write lock for every key; a lock that no thread holds or waits for takes no memory.

    Writers precede readers that come later, so that readers cannot starve them. The locks are not reentrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[K, _State] = {}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def shared(self, key: K) -> Iterator[None]:
        """Hold the read lock of *key* in a ``with``: many threads may, while none holds the write lock."""
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
        """Hold the write lock of *key* in a ``with``: no other thread holds either lock."""
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


@dataclass(slots=True)
class _Rest:
    """Deleted bytes that are still on the disk; they count until they are removed.

    Attributes:
        job_id: the job for which it counts.
        size: bytes for which it counts; None before that is known.
        is_reserved: whether they are the reservation of an upload.
    """

    job_id: str | None
    size: int | None = None
    is_reserved: bool = False


class BlobContents:
    """The blobs of one server.

    Args:
        directory: directory of the blobs; the constructor counts them.
        store: store to which permanent blobs are copied, and from which they are recovered.
        budget: quotas.
        transient_ttl: seconds after its last use when a transient blob is deleted.
        orphan_age: seconds after the last use of any of its blobs when an unknown job may be deleted.
        resume_window: seconds for which an interrupted upload can resume where it broke; 0 for never.
        clock: returns monotonic seconds.
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
        self._rests: dict[Path, _Rest] = {}
        for job_id, key, status in directory.entries():
            budget.add(job_id, status.st_size)
            self._touch(job_id, key)

    @property
    def total_bytes(self) -> int:
        """Number of bytes held, including running uploads."""
        return self._budget.total

    @property
    def parked_uploads(self) -> int:
        """Number of interrupted uploads that can still resume."""
        return len(self._parked)

    @property
    def owners(self) -> int:
        """Number of jobs with blobs; all blobs without a job count as one job."""
        return self._budget.owners

    def begin(self, name: UploadName) -> Upload:
        """Admit an upload, or resume an interrupted one; use the result in a ``with`` and `commit` it.

        Raises:
            BlobRequestRefused: a permanent blob without a job.
            QuotaExceeded, NoSpaceLeft: it is too large at present.
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
        """Make a complete upload durable and visible; a permanent blob is in the store when this returns.

        Raises:
            BlobStoreError: the store failed; the blob is not visible.
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
                # A power failure may lose a transient blob's name, but never the content of a blob with a name.
                self.directory.sync(job_id)
        except BlobError:
            raise
        except OSError as error:
            raise storage_failure(error) from error

    def park(self, upload: Upload) -> None:
        """Keep the received part of an upload whose connection broke, so that its client can resume it."""
        with self._lock:
            others = self._parked.park(upload, self._clock())
        for other in others:
            other.end()

    def _abandon(self, upload: Upload) -> None:
        self._remove(upload.temporary, _Rest(upload.name.job_id, upload.name.length, is_reserved=True))

    def open(self, job_id: str | None, key: BlobKey, *, verify: bool = False) -> tuple[int, int]:
        """Return a descriptor of the blob's file, which the caller closes, and its size.

        A permanent blob that is not here is fetched from the store; with *verify* also one with damaged content.

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
        """Return the size of a blob in bytes; None if it is not in the directory, though it may be in the store."""
        try:
            return self.directory.path(job_id, key).stat().st_size
        except FileNotFoundError:
            return None

    def use_job(self, job_id: str) -> None:
        """Record a use of all of a job's blobs, because the job was submitted or recovered."""
        with self._lock:
            self._touch_job(job_id)

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete a transient blob; return False if there was none.

        Raises:
            BlobRequestRefused: the key is that of a permanent blob, which lives as long as its job.
        """
        if not isinstance(key, TransientBlobKey):
            raise BlobRequestRefused(f"{key} is permanent: it is deleted with its job, not by itself")
        with self._blobs.exclusive((job_id, key)), self._lock:
            taken = self.directory.take(job_id, key)
            self._expiry.forget((job_id, key))
        return self._dispose(job_id, taken)

    def delete_job(self, job_id: str, *, from_store: bool = True) -> bool:
        """Delete every blob of a job, here and, with *from_store*, in the store; return False if none was here."""
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
        """Delete leftover jobs, here and in the store: uploaded but never submitted, or ended but not cleaned up.

        It also removes directories of jobs that have no blobs here any more.

        It never deletes *live_jobs*, nor jobs with a use within the orphan age. Uses are a PUT, GET or recovery of a
        blob, a call of `use_job`, and the first time that this server sees the job.

        Args:
            live_jobs: jobs that run, are being recovered, or are kept after their end.

        Returns:
            The ids of the deleted jobs.

        Raises:
            BlobStoreError: the store failed.
        """
        stored = self._store.jobs()
        now = self._clock()
        with self._lock:
            for job_id in sorted(stored):
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
        self.directory.remove_empty_jobs()
        return deleted

    def end_interrupted(self) -> None:
        """Delete the interrupted uploads whose time to resume is over; they count against the quotas until then."""
        with self._lock:
            interrupted = self._parked.expired(self._clock())
        for upload in interrupted:
            upload.end()

    def delete_expired(self) -> int:
        """Delete expired transient blobs and expired interrupted uploads; return the number of deleted blobs.

        It also removes what the disk did not remove at an earlier delete.
        """
        with self._lock:
            rests, self._rests = self._rests, {}
        for path, rest in rests.items():
            self._remove(path, rest)
        with self._lock:
            expired = self._expiry.expired(self._clock())
        self.end_interrupted()
        count = 0
        for entry in expired:
            with self._blobs.exclusive(entry), self._lock:
                if not self._expiry.is_expired(entry, self._clock()):
                    continue  # used since then
                taken = self.directory.take(*entry)
                self._expiry.forget(entry)
            count += self._dispose(entry[0], taken)
        return count

    def close(self) -> None:
        """Delete the interrupted uploads, and release the directory."""
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
        self._remove(taken, _Rest(job_id))
        return True

    def _remove(self, path: Path, rest: _Rest) -> None:
        """Remove a path that nobody finds any more; `delete_expired` tries again if the disk fails."""
        try:
            if rest.size is None:
                rest.size = self.directory.size(path)
            self.directory.dispose(path)
        except OSError as error:
            logger.warning("%s cannot be removed at present: %s", path, error)
            with self._lock:
                self._rests[path] = rest
            return
        with self._lock:
            if rest.is_reserved:
                self._budget.abort(rest.job_id, rest.size)
            else:
                self._budget.remove(rest.job_id, rest.size)

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
                    # No check of the quotas: it was admitted when it was uploaded.
                    self.directory.commit(temporary, job_id, key)
                    self._budget.add(job_id, size)
            except BaseException:
                self._remove(temporary, _Rest(job_id, 0))
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
