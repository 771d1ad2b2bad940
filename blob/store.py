"""Where permanent blobs survive their server (Flink's `BlobStore`): nowhere, or in a file system.

A store is used from several threads at once. Its layout is that of the server's directory, `job_<id>/blob_<key>`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import unquote, urlsplit

from blob.errors import BlobStoreError
from blob.key import BlobKey
from blob.storage import blob_file_name, job_directory_name, sync_directory


class BlobStore(ABC):
    """Durable storage of permanent blobs. Every method raises BlobStoreError when the storage fails."""

    @abstractmethod
    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Copy a file in, durably and atomically; False when this store keeps nothing."""

    @abstractmethod
    def get(self, job_id: str, key: BlobKey, local: Path) -> bool:
        """Copy a blob to the file *local*, which is overwritten; False when there is no such blob.

        The content is not verified here: the caller compares its digest.
        """

    @abstractmethod
    def delete(self, job_id: str, key: BlobKey) -> bool:
        """Delete a blob; False when there was none."""

    @abstractmethod
    def delete_all(self, job_id: str) -> None:
        """Delete all blobs of a job."""


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


class FileSystemBlobStore(BlobStore):
    """Keeps blobs under a directory, which all masters of the cluster can reach (Flink's `FileSystemBlobStore`).

    Args:
        root: the directory; made with the first blob.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Copy a file in: to a temporary name, synced, then renamed."""
        target = self._path(job_id, key)
        # The name begins with no "blob_": a half-written copy is never taken for a blob.
        temporary = target.with_name(f"temp-{secrets.token_hex(8)}")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                with local.open("rb") as reader:
                    _copy(reader.fileno(), temporary, durable=True)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(target.parent)
        except OSError as error:
            raise self._failure("write", target, error) from error
        return True

    def get(self, job_id: str, key: BlobKey, local: Path) -> bool:
        """Copy a blob out."""
        source = self._path(job_id, key)
        try:
            reader = source.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failure("read", source, error) from error
        with reader:
            try:
                _copy(reader.fileno(), local, durable=False)
            except OSError as error:
                raise self._failure("read", source, error) from error
        return True

    def delete(self, job_id: str, key: BlobKey) -> bool:
        """Delete one blob."""
        target = self._path(job_id, key)
        try:
            target.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failure("delete", target, error) from error
        return True

    def delete_all(self, job_id: str) -> None:
        """Delete the job's directory."""
        directory = self._root / job_directory_name(job_id)
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure("delete", directory, error) from error

    def _path(self, job_id: str, key: BlobKey) -> Path:
        return self._root / job_directory_name(job_id) / blob_file_name(key)

    @staticmethod
    def _failure(verb: str, path: Path, error: OSError) -> BlobStoreError:
        return BlobStoreError(
            f"cannot {verb} {path} in the blob store: {error.strerror or error}; check that the storage is reachable, "
            "writable and not full"
        )


def create_blob_store(url: str | None) -> BlobStore:
    """The store at *url*: None or "" for none, an absolute path, or a ``file://`` URL.

    Raises:
        BlobStoreError: a relative path, or a scheme that no store exists for.
    """
    if not url:
        return VoidBlobStore()
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
    elif parts.scheme == "":
        path = Path(url)
    else:
        raise BlobStoreError(f"no blob store for {url!r}; give an absolute path or a file:// URL")
    if not path.is_absolute():
        raise BlobStoreError(f"the blob store {url!r} is a relative path; give an absolute one")
    return FileSystemBlobStore(path)


def _copy(source: int, target: Path, *, durable: bool) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        offset = 0
        while copied := os.sendfile(descriptor, source, offset, 1 << 20):
            offset += copied
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
