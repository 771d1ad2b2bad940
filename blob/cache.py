"""Local copies of blobs (Flink's `PermanentBlobCache` and `TransientBlobCache`).

A blob is looked for in the cache's directory, then at the server, then in the store; whatever is found is verified
and kept. A file appears in the directory whole or not at all, so the copies outlive their process: the next one takes
them over at its start by their names and sizes, and takes the digest of each when it is first asked for, not before (a
start costs no reading); a copy that is damaged is dropped and fetched anew.
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
    """The copies of one cache, the least recently used first: who uses them, and which have to go. Pure.

    A copy is referenced, and never evicted, while it is pinned, or while its job is registered or was handed a file of
    its own by name.

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
        """A copy was found that another process left, or made: its content is still to be verified."""
        if entry not in self._sizes:
            self.add(entry, size)
            self._unverified.add(entry)

    def add(self, entry: Entry, size: int) -> None:
        """A copy was made, of a verified content."""
        self.remove(entry)
        self._sizes[entry] = size
        self.total += size

    def verified(self, entry: Entry) -> None:
        """The content of a copy that was found is right."""
        self._unverified.discard(entry)

    def is_verified(self, entry: Entry) -> bool:
        """Whether the copy is known, and its content was verified by this process."""
        return entry in self._sizes and entry not in self._unverified

    def use(self, entry: Entry) -> None:
        """The copy is used now: it is the last to go."""
        size = self._sizes.pop(entry, None)
        if size is not None:
            self._sizes[entry] = size

    def remove(self, entry: Entry) -> None:
        """The copy is gone."""
        self.total -= self._sizes.pop(entry, 0)
        self._unverified.discard(entry)

    def pin(self, entry: Entry) -> None:
        """Somebody uses the copy; to be followed by `unpin`."""
        self._pins[entry] = self._pins.get(entry, 0) + 1

    def unpin(self, entry: Entry) -> None:
        """Somebody uses the copy no more."""
        left = self._pins.pop(entry) - 1
        if left:
            self._pins[entry] = left

    def hold(self, job_id: str) -> None:
        """The job was handed a path: all of its copies stay until `forget_job`."""
        self._holders.add(job_id)

    def register_job(self, job_id: str) -> None:
        """Count one more user of a job's copies."""
        self._jobs[job_id] = self._jobs.get(job_id, 0) + 1

    def release_job(self, job_id: str) -> bool:
        """Count one user of a job's copies out; returns whether none is left (or never was)."""
        left = self._jobs.pop(job_id, 1) - 1
        if left > 0:
            self._jobs[job_id] = left
        return left <= 0

    def forget_job(self, job_id: str) -> None:
        """All copies of a job are gone."""
        self._holders.discard(job_id)
        for entry in [entry for entry in self._sizes if entry[0] == job_id]:
            self.remove(entry)

    def surplus(self, coming: int = 0) -> list[Entry]:
        """What has to go for *coming* bytes more: unreferenced copies, the least recently used first.

        It may not be enough: what is referenced stays, and the limit is exceeded rather than a job hindered.
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
        directory: where they are; made when missing. Without *max_bytes* it may be shared with other caches.
        connect: makes a client of the server; called when a download needs one more.
        store: where permanent blobs are looked for when the server has none or cannot be reached.
        max_bytes: most bytes to keep, None for no limit: when a download takes the cache beyond it, unreferenced copies
            go, the least recently used first. Referenced are those of a job that is registered, or that `get_file` has
            handed a path since it was last released, and those in `pinned`. A directory with a limit is for one cache
            alone, since references of other processes are not known.

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
        """Bytes of the copies that this cache knows of."""
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
        """Return the path of a local copy, downloading it if need be: once, however many threads ask.

        The file is nobody's to write. That of a job stays until `release_job`; one without a job may be evicted once
        there are too many: use `pinned`, or `read`.

        Raises:
            BlobNotFound: neither the server nor the store has it.
            BlobConnectionError: the server cannot be reached and the store does not have it.
            BlobError: as the server or the store refused.
        """
        if job_id is not None:
            with self._lock:
                self._residents.hold(job_id)
        return self._get(job_id, key)

    @contextlib.contextmanager
    def pinned(self, job_id: str | None, key: BlobKey) -> Iterator[Path]:
        """The path of a local copy, which stays as long as the ``with`` lasts; raises as `get_file`."""
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
                # Deleted by another thread between the two: the next look says whether for good.
                return path.read_bytes()

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete the local copy of a blob; False if there was none."""
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
        """Count one user of a job's copies out; delete them if it was the last, or none was registered.

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
        """Verify the copy that is there, or fetch one."""
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
            logger.warning("%s is damaged and is fetched anew", path)
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
                self._residents.pin((job_id, key))  # until whoever asked could have used it
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
