"""Creation of the BlobStore for a URL (Flink's `BlobUtils.createBlobStoreFromConfig`)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from blob.errors import BlobStoreError
from blob.file_store import FileSystemBlobStore
from blob.store import BlobStore, VoidBlobStore


def create_blob_store(url: str | None) -> BlobStore:
    """Return the store at *url*.

    Args:
        url: None or "" for none; an absolute path or a ``file://`` URL; any other URL that fsspec knows.

    Raises:
        BlobStoreError: a relative path, or a scheme that fsspec does not know or whose plug-in is missing.
    """
    if not url:
        return VoidBlobStore()
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme else url)
        if not path.is_absolute() or parts.netloc not in ("", "localhost"):
            raise BlobStoreError(f"no blob store for {url!r}; give an absolute path of this machine")
        return FileSystemBlobStore(path)
    # Imported here: most clusters do not use fsspec, and its import takes time in every process.
    from blob.fsspec_store import FsspecBlobStore

    return FsspecBlobStore(url)
