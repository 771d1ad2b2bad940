"""The BlobStore in a directory (Flink's `FileSystemBlobStore`); `blob.fsspec_store` has the one for fsspec.

fsspec has a local file system too, but it calls no ``fsync`` of file or directory, and leaves the modes to the umask.
This store acknowledges a blob only when its content and its name are on the disk. It copies with ``sendfile``, so the
bytes do not enter the process.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from blob.errors import BlobStoreError
from blob.key import BlobKey
from blob.storage import blob_file_name, job_directory_name, job_of_directory
from blob.store import BlobStore
from conf.files import make_private, private_file, write_private

MARK = "fence"
_SENDFILE_CHUNK = 4 * 1024 * 1024


class FileSystemBlobStore(BlobStore):
    """Keeps blobs in a directory, which all masters of the cluster can reach.

    Args:
        root: the directory; created with the first blob.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Copy a file in, durably."""
        target = self._path(job_id, key)
        try:
            make_private(target.parent, durable=True)
            # Its temporary name does not begin with "blob_", so a partial copy never counts as a blob.
            with local.open("rb") as reader, private_file(target) as file:
                _copy(reader.fileno(), file.fileno())
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
                descriptor = os.open(local, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    _copy(reader.fileno(), file.fileno())
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

    def jobs(self) -> set[str]:
        """Return the jobs that have a directory."""
        try:
            names = [path.name for path in self._root.iterdir()]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._failure("list", self._root, error) from error
        return {job_id for name in names if (job_id := job_of_directory(name)) is not None}

    def read_mark(self) -> bytes | None:
        """Read the mark."""
        path = self._root / MARK
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", path, error) from error

    def write_mark(self, data: bytes) -> None:
        """Write the mark, durably."""
        path = self._root / MARK
        try:
            make_private(self._root, durable=True)
            write_private(path, data)
        except OSError as error:
            raise self._failure("write", path, error) from error

    def _path(self, job_id: str, key: BlobKey) -> Path:
        return self._root / job_directory_name(job_id) / blob_file_name(key)

    @staticmethod
    def _failure(verb: str, path: Path, error: OSError) -> BlobStoreError:
        return BlobStoreError(
            f"cannot {verb} {path} in the blob store: {error.strerror or error}; check that the storage is reachable, "
            "writable and not full"
        )


def _copy(source: int, target: int) -> None:
    offset = 0
    while copied := os.sendfile(target, source, offset, _SENDFILE_CHUNK):
        offset += copied
