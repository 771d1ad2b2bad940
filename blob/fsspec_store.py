"""The BlobStore in any file system that fsspec knows, by URL (Flink's `FileSystemBlobStore` over its file systems).

Schemes are ``ftp://``, ``sftp://``, ``hdfs://``, ``s3://``, ``gs://``, ``abfs://``, ``memory://`` and so on. Users
install the packages that a scheme needs beyond fsspec itself (``s3fs`` for ``s3``). Credentials come from the URL, from
fsspec's own configuration (``~/.config/fsspec``, ``FSSPEC_*``) or from the sources of the plug-in. No message of this
module contains them.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import fsspec
from fsspec.core import url_to_fs

from blob.errors import BlobStoreError
from blob.file_store import MARK
from blob.key import BlobKey
from blob.storage import blob_file_name, job_directory_name, job_of_directory
from blob.store import BlobStore

T = TypeVar("T")
# Their PUT is atomic, and their rename is a copy, so a temporary name would only cost time.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "r2", "tos"})
BLOCK = 4 * 1024 * 1024
MASK = "******"
MAKING_ATTEMPTS = 5


class FsspecBlobStore(BlobStore):
    """Keeps blobs below a URL.

    A blob appears under its name by the rename of a complete file, or by the atomic PUT of an object store. Readers
    verify each blob that they get. Each operation uses its own file system object, and so its own connection. Threads
    must not share fsspec's objects, and an object that was idle for long may report an existing blob as missing. Only
    objects made for sharing (fsspec's asynchronous ones, which speak HTTP) are shared.

    Args:
        url: URL with its scheme; the store owns everything below it. The store connects at its first use.

    Raises:
        BlobStoreError: fsspec does not know the scheme, or lacks its plug-in.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.shown = shown_url(url)
        self._secrets = _secrets_of(url)
        self._shared: Any = None
        scheme = urlsplit(url).scheme
        self._atomic_put = scheme in OBJECT_STORES
        try:
            root = str(fsspec.get_filesystem_class(scheme)._strip_protocol(url))
        except ValueError:
            raise BlobStoreError(
                f"no blob store for {self.shown!r}; give an absolute path, a file:// URL, or a URL of a scheme that "
                "fsspec knows"
            ) from None
        except ImportError as error:
            raise BlobStoreError(f"the blob store {self.shown!r} needs a plug-in of fsspec: {error}") from None
        self._root = root.rstrip("/") or "/"

    def put(self, local: Path, job_id: str, key: BlobKey) -> bool:
        """Copy a file in."""
        directory, target = self._directory(job_id), self._path(job_id, key)
        # The name does not begin with "blob_", so a partial copy never counts as a blob.
        temporary = posixpath.join(directory, f"temp-{secrets.token_hex(8)}")

        def put(fs: Any) -> bool:
            make_directory(fs, directory)
            if self._atomic_put:
                fs.put_file(str(local), target)
                return True
            try:
                fs.put_file(str(local), temporary)
                if _exists(fs, target):
                    fs.rm_file(target)  # the same content, of an attempt whose answer was lost
                fs.mv(temporary, target)
            except BaseException:
                # If this fails, the file that is left is not a blob, and is deleted with its job.
                with contextlib.suppress(Exception):
                    fs.rm_file(temporary)
                raise
            return True

        return self._do("write", target, put)

    def get(self, job_id: str, key: BlobKey, local: Path) -> bool:
        """Copy a blob out."""
        source = self._path(job_id, key)

        def get(fs: Any) -> bool:
            if not _exists(fs, source):
                return False
            fs.get_file(source, str(local))
            return True

        return self._do("read", source, get)

    def delete(self, job_id: str, key: BlobKey) -> bool:
        """Delete one blob."""
        target = self._path(job_id, key)

        def delete(fs: Any) -> bool:
            if not _exists(fs, target):
                return False
            fs.rm_file(target)
            return True

        return self._do("delete", target, delete)

    def delete_all(self, job_id: str) -> None:
        """Delete the job's directory."""
        directory = self._directory(job_id)

        def delete(fs: Any) -> None:
            if _exists(fs, directory):
                fs.rm(directory, recursive=True)

        self._do("delete", directory, delete)

    def jobs(self) -> set[str]:
        """Return the jobs that have a directory."""

        def jobs(fs: Any) -> set[str]:
            if not _exists(fs, self._root):
                return set()
            names = (posixpath.basename(str(path).rstrip("/")) for path in fs.ls(self._root, detail=False))
            return {job_id for name in names if (job_id := job_of_directory(name)) is not None}

        return self._do("list", self._root, jobs)

    def read_mark(self) -> bytes | None:
        """Read the mark."""
        path = posixpath.join(self._root, MARK)

        def read(fs: Any) -> bytes | None:
            return bytes(fs.cat_file(path)) if _exists(fs, path) else None

        return self._do("read", path, read)

    def write_mark(self, data: bytes) -> None:
        """Write the mark. If the write is not atomic, a reader may see a part of it, which it rejects as an error."""
        path = posixpath.join(self._root, MARK)

        def write(fs: Any) -> None:
            make_directory(fs, self._root)
            fs.pipe_file(path, data)

        self._do("write", path, write)

    def _directory(self, job_id: str) -> str:
        return posixpath.join(self._root, job_directory_name(job_id))

    def _path(self, job_id: str, key: BlobKey) -> str:
        return posixpath.join(self._directory(job_id), blob_file_name(key))

    def _do(self, verb: str, path: str, action: Callable[[Any], T]) -> T:
        with self._failures(verb, path):
            fs = self._shared
            if fs is None:
                fs = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)[0]
                # FTP's default is 64 KiB, and each block is a command of its own.
                fs.blocksize = max(fs.blocksize, BLOCK)
                if getattr(fs, "async_impl", False):
                    self._shared = fs
            return action(fs)

    @contextlib.contextmanager
    def _failures(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except BlobStoreError:
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            for secret in self._secrets:
                reason = reason.replace(secret, MASK)
            # Without the cause, whose text may contain the secrets that were masked here.
            raise BlobStoreError(
                f"cannot {verb} {posixpath.basename(path) or path} in the blob store {self.shown}: {reason}; check "
                "that the storage is reachable, writable and not full"
            ) from None


def _exists(fs: Any, path: str) -> bool:
    """Return whether the path exists. (fsspec's own ``exists`` returns False when it cannot find out.)"""
    fs.invalidate_cache()
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    return True


def make_directory(fs: Any, path: str) -> None:
    """Make a directory of a file system object of fsspec, with its parents, while others may do the same."""
    for attempt in range(MAKING_ATTEMPTS):
        try:
            fs.makedirs(path, exist_ok=True)
        except Exception:
            # Another thread or server may have just created one of its parents.
            fs.invalidate_cache()
            if attempt == MAKING_ATTEMPTS - 1:
                raise
        else:
            return


def shown_url(url: str) -> str:
    """Return *url* for display: without its user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    query = f"?{MASK}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"


def _secrets_of(url: str) -> list[str]:
    """Return the secret parts of *url*, as written and unquoted, the longest first."""
    parts = urlsplit(url)
    credentials = parts.netloc.rpartition("@")[0]
    found = {credentials, credentials.partition(":")[2], parts.query, *(parts.query.split("&"))}
    found |= {value.partition("=")[2] for value in parts.query.split("&")}
    return sorted((found | {unquote(text) for text in found}) - {""}, key=len, reverse=True)
