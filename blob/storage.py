"""Blobs in a local directory, as the server and the caches lay them out (Flink's `BlobUtils`).

    <root>/incoming/temp-N               incomplete content, never served, removed at start
    <root>/job_<id>/blob_<key>           a job's blobs
    <root>/no_job/blob_<key>             transient blobs without a job
    <root>/lock                          held while the directory is in use

A blob appears under its name by one atomic rename of complete, verified, synced content and is never written again.
Files have mode 0600, directories 0700.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from blob.errors import BlobServerError, InvalidBlobKey
from blob.key import BlobKey, check_job_id
from conf.files import sync_directory, sync_names

NO_JOB = "no_job"
LOCK_WAIT = 2.0


def job_directory_name(job_id: str | None) -> str:
    """Return the name of the directory of a job's blobs; raises InvalidBlobKey for a malformed job id."""
    return NO_JOB if check_job_id(job_id) is None else f"job_{job_id}"


def job_of_directory(name: str) -> str | None:
    """Return the job whose blobs are in the directory of this name; None for any other directory."""
    if not name.startswith("job_"):
        return None
    try:
        return check_job_id(name.removeprefix("job_"))
    except InvalidBlobKey:
        return None


def blob_file_name(key: BlobKey) -> str:
    """Return the name of a blob's file."""
    return f"blob_{key}"


class BlobDirectory:
    """The files of a server or of a cache.

    Args:
        root: the directory; created when missing.
        exclusive: reject a directory that any other process uses (a server); otherwise share it (caches).

    Raises:
        BlobServerError: *exclusive* is set and the directory is in use, or it belongs to a server.
        OSError: the directory cannot be created.
    """

    def __init__(self, root: Path, *, exclusive: bool) -> None:
        self.root = root
        self._incoming = root / "incoming"
        self._numbers = itertools.count()
        for directory in (root, self._incoming):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take_lock(exclusive)
        except BaseException:
            os.close(self._lock)
            raise
        if exclusive:
            # A killed process may not have synced the names of the last directories that it made.
            sync_directory(root)
            sync_names(root)

    def _take_lock(self, exclusive: bool) -> None:
        deadline = time.monotonic() + LOCK_WAIT
        while True:
            try:
                # The only process here may sweep, because no other can be writing into incoming/.
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sweep_incoming()
                if not exclusive:
                    fcntl.flock(self._lock, fcntl.LOCK_SH)
                return
            except BlockingIOError:
                with contextlib.suppress(BlockingIOError):
                    if not exclusive:
                        fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        return
            if exclusive or time.monotonic() > deadline:
                raise BlobServerError(
                    f"the blob directory {self.root} is in use by a blob server or by a cache of limited size; stop "
                    "that, or choose another directory"
                )
            # Either another cache sweeps at this moment, or a server has the directory: waiting shows which.
            time.sleep(0.01)

    def close(self) -> None:
        """Release the directory; its blobs stay."""
        if self._lock >= 0:
            # Explicitly: a forked process may have a copy of the descriptor, which keeps the lock.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    def path(self, job_id: str | None, key: BlobKey) -> Path:
        """Return the path of the blob, whether it exists or not."""
        return self.root / job_directory_name(job_id) / blob_file_name(key)

    def new_temporary(self) -> tuple[int, Path]:
        """Create an empty file in ``incoming/``; return its descriptor (read and write) and path."""
        path = self._incoming / f"temp-{os.getpid()}-{next(self._numbers)}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path

    def commit(self, temporary: Path, job_id: str | None, key: BlobKey) -> bool:
        """Make a complete, synced temporary file visible as the blob; call `sync` to make its name durable.

        Returns:
            Whether the blob existed already; it then had the same content.
        """
        target = self.path(job_id, key)
        replaced = target.exists()
        while True:
            try:
                temporary.replace(target)
                return replaced
            except FileNotFoundError:
                if not temporary.exists():
                    raise
                # The first blob of the job, or take_job() has just moved the directory.
                target.parent.mkdir(mode=0o700, exist_ok=True)
                try:
                    sync_directory(self.root)
                except OSError:
                    with contextlib.suppress(OSError):  # a cache has put another copy into it
                        target.parent.rmdir()  # so that the next upload makes it again, and syncs its name
                    raise

    def sync(self, job_id: str | None) -> None:
        """Make the names of a job's blobs durable; do nothing if the directory was deleted."""
        with contextlib.suppress(FileNotFoundError):
            sync_directory(self.root / job_directory_name(job_id))

    def take(self, job_id: str | None, key: BlobKey) -> Path | None:
        """Make a blob vanish by one rename; return the path to `dispose` of, or None if there was no such blob.

        Readers that have it open can still read it to its end.
        """
        return self._take(self.path(job_id, key))

    def take_job(self, job_id: str) -> Path | None:
        """Make all blobs of a job vanish together, by one rename; return the path to `dispose` of, or None."""
        return self._take(self.root / job_directory_name(job_id))

    def remove_empty_jobs(self) -> None:
        """Remove the directories of jobs in which nothing is: deleted, expired or damaged blobs leave them."""
        for directory in self.root.iterdir():
            if job_of_directory(directory.name) is not None:
                with contextlib.suppress(OSError):  # not empty, or just removed with its job
                    directory.rmdir()

    def size(self, taken: Path) -> int:
        """Return the number of bytes of the blobs in a taken path."""
        if not taken.is_dir():
            return taken.stat().st_size
        return sum(entry.stat().st_size for entry in os.scandir(taken))

    def dispose(self, taken: Path) -> None:
        """Remove a taken path, which is slow for large files; call it again if the disk fails."""
        if taken.is_dir():
            shutil.rmtree(taken)
        else:
            taken.unlink(missing_ok=True)

    def _take(self, path: Path) -> Path | None:
        trash = self._incoming / f"trash-{os.getpid()}-{next(self._numbers)}"
        try:
            path.rename(trash)
        except FileNotFoundError:
            return None
        return trash

    def entries(self) -> Iterator[tuple[str | None, BlobKey, os.stat_result]]:
        """Yield job id, key and `os.stat` result of every blob; skip files that are not blobs."""
        for directory in self.root.iterdir():
            job_id = job_of_directory(directory.name)
            if job_id is None and directory.name != NO_JOB:
                continue
            try:
                files = list(os.scandir(directory))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for file in files:
                # Deleted between scandir and stat, or not a blob: do not count it.
                with contextlib.suppress(InvalidBlobKey, FileNotFoundError):
                    yield job_id, BlobKey.parse(file.name.removeprefix("blob_")), file.stat()

    def free_bytes(self) -> int:
        """Return the number of bytes that an ordinary user may still write on this file system."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def _sweep_incoming(self) -> None:
        for entry in self._incoming.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
