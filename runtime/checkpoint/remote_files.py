"""Files below a URL of a file system that fsspec knows (``s3://``, ``hdfs://``, ``ftp://``).

Users install the packages that a scheme needs beyond fsspec itself (``s3fs`` for ``s3``). Commands, logs and
job graphs show the URL, so it has no credentials. These come from fsspec's own configuration (``~/.config/fsspec``,
``FSSPEC_*``) or from the sources of the plug-in. All functions block.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from conf.files import make_private, write_private
from runtime.checkpoint.errors import RemoteStorageError, SavepointError

T = TypeVar("T")

_PRIVATE_TO_A_PROCESS = frozenset({"memory"})
_LOCAL = frozenset({"local"})
_THREADS = 4
_OTHER_CHARACTERS = 200
_CHANGED = (
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "modify",
    "modificationTime",
    "ETag",
    "etag",
)
"""Names by which fsspec's file systems say when a file was changed, or which content it has."""


class RemoteFile(NamedTuple):
    """A file of a remote file system.

    Args:
        size: in bytes.
        stamp: a number that another content of the file does not have, as far as the file system tells times or
            digests; None if it tells neither.
    """

    size: int
    stamp: int | None


def is_remote(location: str) -> bool:
    """Return whether a path, as the runtime knows it, is a URL of a remote file system."""
    return "://" in location


def checked_url(text: str) -> str:
    """Return a URL of a directory, without a slash at its end.

    Raises:
        SavepointError: it has a password or a query, which would be shown, or names no directory.
    """
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None
    except ValueError:
        raise SavepointError("this is not a URL of a directory", "give one such as s3://bucket/savepoints") from None
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if has_password or parts.query or parts.fragment:
        raise SavepointError(
            f"the URL {shown} has a password or parameters, which logs and commands would show",
            "leave them out; give credentials in ~/.config/fsspec, FSSPEC_... variables, or as the plug-in expects",
        )
    if "::" in text or ".." in parts.path.split("/") or any(not char.isprintable() for char in text):
        raise SavepointError(
            f"the URL {shown} does not name one directory", "leave out `::`, `..` and control characters"
        )
    if parts.scheme in _PRIVATE_TO_A_PROCESS | _LOCAL or not parts.netloc:
        raise SavepointError(
            f"the URL {shown} names no storage that other processes see",
            "give an absolute path, or a URL with its host or bucket, such as s3://bucket/savepoints",
        )
    return text.rstrip("/")


def is_below(url: str, parent: str) -> bool:
    """Return whether a URL is another one, or lies below it; neither ends with a slash."""
    return f"{url}/".startswith(f"{parent}/")


class RemoteDirectory:
    """A directory of a remote file system.

    Each thread uses a file system object of its own, and so its own connection, as threads must not share fsspec's
    objects; only those made for sharing are shared. A connection that was idle for long may report an existing file as
    missing, so use an object for one operation.

    Args:
        url: of the directory.

    Raises:
        SavepointError: fsspec does not know the scheme, its plug-in is missing, or `checked_url` refuses the URL.
    """

    def __init__(self, url: str) -> None:
        # Imported here: most clusters do not use fsspec, and its import takes time in every process.
        import fsspec

        from blob.fsspec_store import OBJECT_STORES

        self.url = checked_url(url)
        scheme = urlsplit(url).scheme
        self._has_atomic_put = scheme in OBJECT_STORES
        self._own = threading.local()
        self._shared: Any = None
        try:
            self._root = str(fsspec.get_filesystem_class(scheme)._strip_protocol(self.url)).rstrip("/")
        except ValueError:
            raise SavepointError(
                f"{self.url} cannot be used: no file system for the scheme {scheme!r}",
                "give an absolute path, or a URL of a scheme that fsspec knows, such as s3://, hdfs:// or ftp://",
            ) from None
        except ImportError as error:
            raise SavepointError(
                f"{self.url} cannot be used: its scheme needs a package that is missing here: {error}",
                "install it on every machine of the cluster, and where you run commands on this URL",
            ) from None

    def exists(self, name: str) -> bool:
        """Return whether there is a file or directory of that name; raises SavepointError if that is not known."""
        return self._do("read", name, lambda fs: _info(fs, self._path(name)) is not None)

    def files(self) -> dict[str, int]:
        """Return the files below the directory by their relative paths, with their sizes; none if it is not there."""
        return {name: file.size for name, file in self.listing().items()}

    def listing(self) -> dict[str, RemoteFile]:
        """Return the files below the directory by their relative paths; none if it is not there."""

        def walk(fs: Any) -> dict[str, RemoteFile]:
            found: dict[str, RemoteFile] = {}
            pending = [self._root]
            while pending:
                directory = pending.pop()
                for entry in _listed(fs, directory):
                    name = str(entry["name"]).rstrip("/")
                    if entry["type"] == "directory":
                        pending.append(name)
                    else:
                        found[name.removeprefix(self._root).lstrip("/")] = RemoteFile(int(entry["size"]), _stamp(entry))
            return found

        return self._do("list", "", walk)

    def names(self) -> dict[str, bool]:
        """Return the names in the directory, each with whether it is a directory; raises SavepointError if it is none.

        Object stores have no directories, so there it may also be empty.
        """

        def names(fs: Any) -> dict[str, bool]:
            if not self._has_atomic_put and _info(fs, self._root or "/") is None:
                raise FileNotFoundError("there is no such directory")
            return {
                posixpath.basename(str(entry["name"]).rstrip("/")): entry["type"] == "directory"
                for entry in _listed(fs, self._root)
            }

        return self._do("list", "", names)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""

        def read(fs: Any) -> bytes | None:
            path = self._path(name)
            return None if _info(fs, path) is None else bytes(fs.cat_file(path))

        return self._do("read", name, read)

    def make(self, directories: Iterable[str] = ("",)) -> None:
        """Make directories below this one, with all parents."""
        from blob.fsspec_store import make_directory

        for name in directories:
            path = self._path(name)
            self._do("write", name, lambda fs, path=path: make_directory(fs, path or "/"))  # type: ignore[misc]

    def make_parents(self, names: Iterable[str]) -> None:
        """Make this directory, and the directories of files below it."""
        self.make(sorted({"", *(posixpath.dirname(name) for name in names)}))

    def put(self, local: Path, name: str) -> None:
        """Copy a local file in; its directory exists. An interrupted copy may leave a part of it."""
        self._do("write", name, lambda fs: fs.put_file(str(local), self._path(name)))

    def get(self, name: str, local: Path) -> None:
        """Copy a file out, to a local file that exists, and keeps its mode."""
        self._do("read", name, lambda fs: fs.get_file(self._path(name), str(local)))

    def fetch(
        self, names: Collection[str], listing: Mapping[str, RemoteFile], target: Path, previous: Path | None
    ) -> None:
        """Fetch files that do not change any more into a new local directory.

        Each gets its stamp as its time of change (`RemoteFile`); without one, the time of this call.

        Args:
            names: their paths below this directory.
            listing: of this directory.
            target: the local directory, which is made.
            previous: a local directory with files of an earlier call, from which unchanged ones are linked; None if
                there is none.

        Raises:
            FileNotFoundError: a file has disappeared, or was replaced.
        """
        make_private(target)
        for parent in sorted({str(PurePosixPath(name).parent) for name in names} - {"."}):
            make_private(target / parent, below=target)

        def fetch(name: str) -> None:
            if name not in listing:
                raise FileNotFoundError(f"{self.url}/{name} has disappeared")
            if previous is not None and _is_same(previous / name, listing[name]):
                os.link(previous / name, target / name)
                return
            write_private(target / name, b"", durable=False)
            try:
                self.get(name, target / name)
            except SavepointError as error:
                if self.exists(name):
                    raise
                raise FileNotFoundError(f"{self.url}/{name} has disappeared") from error
            if (size := (target / name).stat().st_size) != listing[name].size:
                raise FileNotFoundError(f"{self.url}/{name} was replaced: it has {size} bytes now")
            stamp = listing[name].stamp or time.time_ns()  # the kernel's own times may be the same for two fetches
            os.utime(target / name, ns=(stamp, stamp))

        self.each(names, fetch)

    def put_whole(self, name: str, content: bytes) -> None:
        """Write a small file that appears whole, or not at all; none of that name may exist."""

        def write(fs: Any) -> None:
            path = self._path(name)
            if self._has_atomic_put:
                fs.pipe_file(path, content)
                return
            temporary = self._path(f".{name}.{secrets.token_hex(4)}")
            fs.pipe_file(temporary, content)
            fs.mv(temporary, path)

        self._do("write", name, write)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents, if it exists."""

        def remove(fs: Any) -> None:
            path = self._path(name)
            info = _info(fs, path)
            if info is not None and info["type"] == "directory":
                fs.rm(path, recursive=True)
            elif info is not None:
                fs.rm_file(path)

        self._do("remove", name, remove)

    def each(self, names: Iterable[str], action: Callable[[str], object]) -> None:
        """Call *action* with each name, on several threads; after the first error, no further call begins."""
        waiting, failed = list(names), threading.Event()

        def call(name: str) -> None:
            if failed.is_set():
                return
            try:
                action(name)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(_THREADS, "remote-files") as pool:
            for done in [pool.submit(call, name) for name in waiting]:
                done.result()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _do(self, verb: str, name: str, action: Callable[[Any], T]) -> T:
        try:
            return action(self._file_system())
        except SavepointError:
            raise
        except Exception as error:
            # The cause is left out: the plug-ins' texts are long, and may quote requests.
            reason = (str(error) or type(error).__name__).partition("\n")[0][:_OTHER_CHARACTERS]
            raise RemoteStorageError(
                f"{self.url}{'/' if name else ''}{name}: cannot {verb} it: {reason}",
                "check that the storage is reachable and not full, and that its credentials permit this",
            ) from None

    def _file_system(self) -> Any:
        from fsspec.core import url_to_fs

        from blob.fsspec_store import BLOCK

        found = self._shared or getattr(self._own, "file_system", None)
        if found is None:
            found = url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)[0]
            found.blocksize = max(found.blocksize, BLOCK)  # of FTP each block is a command of its own
            if getattr(found, "async_impl", False):
                self._shared = found
            self._own.file_system = found
        return found


def _is_same(older: Path, file: RemoteFile) -> bool:
    """Return whether a file of an earlier snapshot has the content that the file system shows now."""
    try:
        before = older.stat()
    except FileNotFoundError:
        return False
    return file.stamp is not None and (before.st_size, before.st_mtime_ns) == (file.size, file.stamp)


def _stamp(entry: dict[str, Any]) -> int | None:
    """Return a number for what a file system says of a file's content; it differs where that does."""
    told = [repr(entry[key]) for key in _CHANGED if entry.get(key) is not None]
    return int.from_bytes(hashlib.sha256("\n".join(told).encode()).digest()[:6]) if told else None


def _info(fs: Any, path: str) -> dict[str, Any] | None:
    """Return what is at a path. (fsspec's own ``exists`` returns False when it cannot find out.)"""
    fs.invalidate_cache()
    try:
        return dict(fs.info(path))
    except FileNotFoundError:
        return None


def _listed(fs: Any, directory: str) -> list[dict[str, Any]]:
    """Return the entries of a directory; none if it is not there. Object stores may list it as its own entry."""
    fs.invalidate_cache()
    try:
        entries: list[dict[str, Any]] = fs.ls(directory or "/", detail=True)
    except FileNotFoundError:
        return []
    return [entry for entry in entries if str(entry["name"]).rstrip("/") != directory]
