"""Stores that keep permanent blobs beyond their server (Flink's `BlobStore`): none, a local directory, or a URL.

Several threads use a store at once. Its layout is that of the server's directory, `job_<id>/blob_<key>`, and a file
`fence` beside the jobs' directories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from blob.errors import BlobStoreError
from blob.files import file_digest
from blob.key import BlobKey


class BlobStore(ABC):
    """Durable storage of permanent blobs. Every method raises BlobStoreError when the storage fails."""

    @abstractmethod
    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Copy a file in, durably and atomically; return False when this store keeps nothing."""

    @abstractmethod
    def get(self, job_id: str, key: BlobKey, local: Path) -> bool:
        """Copy a blob to the file *local*, overwriting it; return False when there is no such blob.

        This does not verify the content; see `fetch_verified`.
        """

    @abstractmethod
    def delete(self, job_id: str, key: BlobKey) -> bool:
        """Delete a blob; return False when there was none."""

    @abstractmethod
    def delete_all(self, job_id: str) -> None:
        """Delete all blobs of a job."""

    @abstractmethod
    def jobs(self) -> set[str]:
        """Return the ids of the jobs with blobs in this store."""

    @abstractmethod
    def read_mark(self) -> bytes | None:
        """Return the bytes that `write_mark` wrote last; None when it never did."""

    @abstractmethod
    def write_mark(self, data: bytes) -> None:
        """Keep *data* for all servers that use this store (see `blob.server`)."""


class VoidBlobStore(BlobStore):
    """Keeps nothing: permanent blobs live as long as the server's own directory (Flink's `VoidBlobStore`)."""

    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Keep nothing."""
        return False

    def get(self, job_id: str, key: BlobKey, local: Path) -> bool:
        """Find nothing."""
        return False

    def delete(self, job_id: str, key: BlobKey) -> bool:
        """Delete nothing."""
        return False

    def delete_all(self, job_id: str) -> None:
        """Delete nothing."""

    def jobs(self) -> set[str]:
        """Return no jobs."""
        return set()

    def read_mark(self) -> bytes | None:
        """Return no mark."""
        return None

    def write_mark(self, data: bytes) -> None:
        """Keep no mark."""


def fetch_verified(store: BlobStore, job_id: str, key: BlobKey, descriptor: int, local: Path) -> bool:
    """Copy a blob from *store* to the file *local*, open as *descriptor*; return False when the store has no such blob.

    Raises:
        BlobStoreError: the store failed, or its copy is damaged.
    """
    if not store.get(job_id, key, local):
        return False
    if file_digest(descriptor) != key.digest:
        raise BlobStoreError(f"the copy of {key} of job {job_id} in the blob store is damaged")
    return True
