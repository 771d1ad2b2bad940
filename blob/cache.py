"""Local copies of blobs (Flink's `PermanentBlobCache` and `TransientBlobCache`).

A blob is looked for in the cache's directory, then at the server, then in the store; whatever is found is verified
and kept. Several processes may use one directory: a file appears in it whole or not at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from blob.client import BlobClient
from blob.contents import file_digest
from blob.errors import BlobConnectionError, BlobNotFound, BlobStoreError
from blob.key import BlobKey, PermanentBlobKey, check_job_id
from blob.single_flight import SingleFlight
from blob.storage import BlobDirectory
from blob.store import BlobStore, VoidBlobStore

_log = logging.getLogger(__name__)
KEPT_CLIENTS = 4


class BlobCache:
    """A directory of local copies.

    Args:
        directory: where they are; made when missing, may be shared with other caches.
        connect: makes a client of the server; called when a download needs one more.
        store: where permanent blobs are looked for when the server has none or cannot be reached.

    Safe for use by several threads at once.
    """

    def __init__(self, directory: Path, connect: Callable[[], BlobClient], store: BlobStore | None = None) -> None:
        self._directory = BlobDirectory(directory, exclusive=False)
        self._connect = connect
        self._store = store or VoidBlobStore()
        self._downloads: SingleFlight[tuple[str | None, BlobKey], Path] = SingleFlight()
        self._lock = threading.Lock()
        self._idle: list[BlobClient] = []
        self._references: dict[str, int] = {}
        self._closed = False

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

        The file is nobody's to write; it stays until `release_job` (or `delete`, for a transient blob).

        Raises:
            BlobNotFound: neither the server nor the store has it.
            BlobConnectionError: the server cannot be reached and the store does not have it.
            BlobError: as the server or the store refused.
        """
        path = self._directory.path(job_id, key)
        if path.exists():
            return path
        return self._downloads.run((job_id, key), lambda: self._fetch(job_id, key, path))

    def read(self, job_id: str | None, key: BlobKey) -> bytes:
        """Return a blob's content, which must fit into memory; raises as `get_file`."""
        while True:
            try:
                return self.get_file(job_id, key).read_bytes()
            except FileNotFoundError:
                # Deleted by another thread between the two; the next look says whether for good.
                continue

    def delete(self, job_id: str | None, key: BlobKey) -> bool:
        """Delete the local copy of a blob; False if there was none."""
        taken = self._directory.take(job_id, key)
        if taken is not None:
            self._directory.dispose(taken)
        return taken is not None

    def register_job(self, job_id: str) -> None:
        """Count one more user of a job's copies (Flink's ``registerJob``)."""
        check_job_id(job_id)
        with self._lock:
            self._references[job_id] = self._references.get(job_id, 0) + 1

    def release_job(self, job_id: str) -> bool:
        """Count one user of a job's copies out; delete them if it was the last, or none was registered.

        Returns:
            Whether they were deleted (Flink's ``releaseJob`` deletes them after an interval).
        """
        check_job_id(job_id)
        with self._lock:
            left = self._references.pop(job_id, 1) - 1
            if left > 0:
                self._references[job_id] = left
                return False
        taken = self._directory.take_job(job_id)
        if taken is not None:
            self._directory.dispose(taken)
        return True

    def _fetch(self, job_id: str | None, key: BlobKey, path: Path) -> Path:
        if path.exists():
            return path
        descriptor, temporary = self._directory.new_temporary()
        try:
            self._fill(job_id, key, descriptor, temporary)
            os.fsync(descriptor)
            self._directory.commit(temporary, job_id, key)
            self._directory.sync(job_id)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return path

    def _fill(self, job_id: str | None, key: BlobKey, descriptor: int, temporary: Path) -> None:
        try:
            client = self._borrow()
            try:
                client.download(key, descriptor, job_id)
            finally:
                self._give_back(client)
            return
        except (BlobConnectionError, BlobNotFound) as error:
            if job_id is None or not isinstance(key, PermanentBlobKey):
                raise
            if not self._fill_from_store(job_id, key, descriptor, temporary):
                raise
            _log.info("fetched %s of job %s from the blob store: %s", key, job_id, error)

    def _fill_from_store(self, job_id: str, key: PermanentBlobKey, descriptor: int, temporary: Path) -> bool:
        if not self._store.get(job_id, key, temporary):
            return False
        if file_digest(descriptor) != key.digest:
            raise BlobStoreError(f"the copy of {key} of job {job_id} in the blob store is damaged")
        return True

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
