"""Local copies of blobs (Flink's `PermanentBlobCache` and `TransientBlobCache`).

The cache looks for a blob in its directory, then at the server, then in the store; it verifies and keeps each blob that
it finds. Files appear in the directory atomically, so the copies outlive their process. The next process adopts them at
its start by their names and sizes. It computes the digest of a copy when the copy is first requested, so the start
reads no content. It drops a damaged copy and fetches it again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobNotFound
from blob.files import file_digest
from blob.key import BlobKey, PermanentBlobKey, check_job_id
from blob.single_flight import SingleFlight
from blob.storage import BlobDirectory
from blob.store import BlobStore, VoidBlobStore, fetch_verified

Entry = tuple[str | None, BlobKey]


class Residents:
    """The copies of one cache, least recently used first, with their users; it selects the copies to evict. Pure.

    A referenced copy is never evicted. A copy is referenced while it is pinned, while its job is registered, or after
    its job got the path of a file.

    Args:
        maximum: most bytes to keep; None for no limit.
    """

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum
        self._sizes: dict[Entry, int] = {}
        self._unverified: set[Entry] = set()
        self._pins: dict[Entry, int] = {}
        self._jobs: dict[str, int] = {}
        self._holders: set[str] = set()
        self.total = 0

    def found(self, entry: Entry, size: int) -> None:
        """Add an unverified copy that another process has left or made."""
        if entry not in self._sizes:
            self.add(entry, size)
            self._unverified.add(entry)

    def add(self, entry: Entry, size: int) -> None:
        """Add a new copy with verified content."""
        self.remove(entry)
        self._sizes[entry] = size
        self.total += size

    def verified(self, entry: Entry) -> None:
        """Record that the content of an unverified copy is right."""
        self._unverified.discard(entry)

    def is_verified(self, entry: Entry) -> bool:
        """Return whether the copy is known and this process has verified its content."""
        return entry in self._sizes and entry not in self._unverified

    def use(self, entry: Entry) -> None:
        """Record a use of the copy, which makes it the last one to evict."""
        size = self._sizes.pop(entry, None)
        if size is not None:
            self._sizes[entry] = size

    def remove(self, entry: Entry) -> None:
        """Remove a copy that was deleted."""
        self.total -= self._sizes.pop(entry, 0)
        self._unverified.discard(entry)

    def pin(self, entry: Entry) -> None:
        """Count a user of the copy; each call needs a call of `unpin`."""
        self._pins[entry] = self._pins.get(entry, 0) + 1

    def unpin(self, entry: Entry) -> None:
        """Remove a user of the copy."""
        left = self._pins.pop(entry) - 1
        if left:
            self._pins[entry] = left

    def hold(self, job_id: str) -> None:
        """Keep all copies of a job until `forget_job`, because it got the path of one."""
        self._holders.add(job_id)

    def register_job(self, job_id: str) -> None:
        """Count one more user of a job's copies."""
        self._jobs[job_id] = self._jobs.get(job_id, 0) + 1

    def release_job(self, job_id: str) -> bool:
        """Remove one user of a job's copies; return whether none is left, or there never was one."""
        left = self._jobs.pop(job_id, 1) - 1
        if left > 0:
            self._jobs[job_id] = left
        return left <= 0

    def forget_job(self, job_id: str) -> None:
        """Remove all copies of a job, which were deleted."""
        self._holders.discard(job_id)
        for entry in [entry for entry in self._sizes if entry[0] == job_id]:
            self.remove(entry)

    def surplus(self, coming: int = 0) -> list[Entry]:
        """Return the copies to evict to make room for *coming* bytes: unreferenced ones, least recently used first.

        They may not suffice. Referenced copies stay: exceeding the limit is better than disturbing a job.
        """
        if self._maximum is None:
            return []
        chosen, total = [], self.total + coming
        for entry, size in self._sizes.items():
            if total <= self._maximum:
                break
            if not self._referenced(entry):
                chosen.append(entry)
                total -= size
        return chosen

    def _referenced(self, entry: Entry) -> bool:
        return entry in self._pins or entry[0] in self._jobs or entry[0] in self._holders


logger = logging.getLogger(__name__)
KEPT_CLIENTS = 4


class BlobCache:
    """A directory of local copies.

    Args:
        directory: directory of the copies; created when missing. Without *max_bytes* several caches may share it.
        connect: returns a client of the server; called when a download needs another one.
        store: source of permanent blobs that the server does not have, or when it cannot be reached.
        max_bytes: most bytes to keep; None for no limit. When a download exceeds it, the cache evicts unreferenced
            copies, least recently used first. A copy is referenced while its job is registered, while it is `pinned`,
            or after `get_file` gave its job a path, until `release_job`. Only one cache may use a directory with a
            limit, because it does not know the references of other processes.

    Safe for use by several threads at once.

    Raises:
        BlobServerError: the directory is in use by a server, or by another cache and one of the two has a limit.
    """

    def __init__(
        self,
        directory: Path,
        connect: Callable[[], BlobClient],
        store: BlobStore | None = None,
        *,
        max_bytes: int | None = None,
    ) -> None:
        self._directory = BlobDirectory(directory, exclusive=max_bytes is not None)
        self._connect = connect
        self._store = store or VoidBlobStore()
        self._downloads: SingleFlight[Entry, Path] = SingleFlight()
        self._lock = threading.Lock()
        self._idle: list[BlobClient] = []
        self._residents = Residents(max_bytes)
        self._closed = False
        for job_id, key, status in sorted(self._directory.entries(), key=lambda entry: entry[2].st_mtime_ns):
            self._residents.found((job_id, key), status.st_size)
        self._evict()

    @property
    def total_bytes(self) -> int:
        """Number of bytes of the copies that this cache knows."""
        return self._residents.total

    def close(self) -> None:
        """Close the connections; the copies stay for the next process."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed = True
        for client in idle:
            client.close()
        self._directory.close()

    def get_file(self, job_id: str | None, key: BlobKey) -> Path:
        """Return the path of a local copy; download it if needed, once for all threads that ask at the same time.

        Do not write to the file. A copy of a job stays until `release_job`. The cache may evict a copy without a job at
        any time: use `pinned` or `read` for it.

        Raises:
            BlobNotFound: neither the server nor the store has the blob.
            BlobConnectionError: the server cannot be reached and the store does not have the blob.
            BlobError: the server or the store rejects the request.
        """
        if job_id is not None:
            with self._lock:
                self._residents.hold(job_id)
        return self._get(job_id, key)

    @contextlib.contextmanager
    def pinned(self, job_id: str | None, key: BlobKey) -> Iterator[Path]:
        """Yield the path of a local copy, which stays as long as the ``with`` lasts; raises as `get_file`."""
        with self._lock:
            self._residents.pin((job_id, key))
        try:
            yield self._get(job_id, key)
        finally:
            with self._lock:
                self._residents.unpin((job_id, key))
            self._evict()

    def read(self, job_id: str | None, key: BlobKey) -> bytes:
        """Return a blob's content, which must fit into memory; raises as `get_file`."""
        while True:
            with self.pinned(job_id, key) as path, contextlib.suppress(FileNotFoundError):
                # Deleted by another thread between the two: try again, which shows whether it is gone.
                return path.read_bytes()

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete the local copy of a blob; return False if there was none."""
        with self._lock:
            taken = self._directory.take(job_id, key)
            self._residents.remove((job_id, key))
        if taken is not None:
            self._directory.dispose(taken)
        return taken is not None

    def register_job(self, job_id: str) -> None:
        """Count one more user of a job's copies (Flink's ``registerJob``)."""
        check_job_id(job_id)
        with self._lock:
            self._residents.register_job(job_id)

    def release_job(self, job_id: str) -> bool:
        """Remove one user of a job's copies; delete the copies if it was the last, or none was registered.

        Returns:
            Whether they were deleted (Flink's ``releaseJob`` deletes them after an interval).
        """
        check_job_id(job_id)
        with self._lock:
            if not self._residents.release_job(job_id):
                return False
            taken = self._directory.take_job(job_id)
            self._residents.forget_job(job_id)
        if taken is not None:
            self._directory.dispose(taken)
        return True

    def _get(self, job_id: str | None, key: BlobKey) -> Path:
        path, entry = self._directory.path(job_id, key), (job_id, key)
        with self._lock:
            if self._residents.is_verified(entry) and path.exists():
                self._residents.use(entry)
                return path
        return self._downloads.run(entry, lambda: self._obtain(job_id, key, path))

    def _obtain(self, job_id: str | None, key: BlobKey, path: Path) -> Path:
        """Verify the present copy, or fetch one."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._fetch(job_id, key, path)
        try:
            intact = file_digest(descriptor) == key.digest
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if not intact:
            logger.warning("%s is damaged, and is fetched again", path)
            self.delete(job_id, key)
            return self._fetch(job_id, key, path)
        with self._lock:
            self._residents.found((job_id, key), size)
            self._residents.verified((job_id, key))
            self._residents.use((job_id, key))
        return path

    def _fetch(self, job_id: str | None, key: BlobKey, path: Path) -> Path:
        descriptor, temporary = self._directory.new_temporary()
        try:
            self._fill(job_id, key, descriptor, temporary)
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
            with self._lock:
                self._directory.commit(temporary, job_id, key)
                self._residents.add((job_id, key), size)
                self._residents.pin((job_id, key))  # until the caller could have used it
            self._directory.sync(job_id)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._evict()
        with self._lock:
            self._residents.unpin((job_id, key))
        return path

    def _evict(self) -> None:
        with self._lock:
            surplus = self._residents.surplus()
            taken = [self._directory.take(*entry) for entry in surplus]
            for entry in surplus:
                self._residents.remove(entry)
        for path in taken:
            if path is not None:
                self._directory.dispose(path)

    def _fill(self, job_id: str | None, key: BlobKey, descriptor: int, temporary: Path) -> None:
        try:
            client = self._borrow()
            try:
                client.download(key, descriptor, job_id, durable=True)
            finally:
                self._give_back(client)
            return
        except (BlobConnectionError, BlobNotFound) as error:
            if job_id is None or not isinstance(key, PermanentBlobKey):
                raise
            if not fetch_verified(self._store, job_id, key, descriptor, temporary):
                raise
            logger.info("fetched %s of job %s from the blob store: %s", key, job_id, error)

    def _borrow(self) -> BlobClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, client: BlobClient) -> None:
        with self._lock:
            if len(self._idle) < KEPT_CLIENTS and not self._closed:
                self._idle.append(client)
                return
        client.close()
