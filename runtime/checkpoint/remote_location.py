"""A checkpointLocation in a remote file system: its snapshots, and restores into it.

Spark reaches it by Hadoop's file systems, and this module by fsspec's (`runtime.checkpoint.remote_files`). A snapshot
is as one of a local location: the files of the last committed batch, in the directory of the job's checkpoints. Files
that the previous snapshot holds are linked from there, and only others are fetched.

A remote file system has no rename of whole directories, or none that is atomic. So a restore works in the location
itself. It first writes a mark, `MARK`, and removes that last. If it is interrupted, the mark stays, and no query starts
there until a restore has completed: the snapshot is needed until then. All functions block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.integrity import FileRecord, check_sizes
from runtime.checkpoint.layout import BatchFiles, files_of_batch, files_of_restart, foreign_names, last_commit
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.remote_files import RemoteDirectory, RemoteFile

MARK = ".understudy-restore"
"""File of a location in which a restore is not complete. Neither Spark nor `runtime.checkpoint.layout` reads it."""


class RemoteLocation:
    """A checkpointLocation at a URL.

    Args:
        url: of the location.

    Raises:
        SavepointError: fsspec cannot use the URL. All methods raise it if the file system cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._directory = RemoteDirectory(url)
        self.url = self._directory.url

    def read(self, name: str) -> bytes:
        """Return the content of a small file; raises FileNotFoundError if there is none."""
        content = self._directory.read(name)
        if content is None:
            raise FileNotFoundError(f"{self.url}/{name} does not exist")
        return content

    def is_half_restored(self) -> bool:
        """Return whether a restore into it is not complete."""
        return self._directory.exists(MARK)

    def committed_batch(self) -> int:
        """Return the last batch that the query has committed; `NOTHING_COMMITTED` if there is none."""
        return last_commit(f"commits/{name}" for name in RemoteDirectory(f"{self.url}/commits").files())

    def restart_batch(
        self, sink_log: list[str] | None, begun: Iterable[str] = (), known: Mapping[str, FileRecord] | None = None
    ) -> int:
        """Check that Spark can start a query there; return the last committed batch.

        Names and sizes are checked, and the files that name others are read. The states are not: remote file systems
        check their content themselves.

        Args:
            sink_log: names in the log of the query's file sink; None if it has none.
            begun: as in `files_of_restart`.
            known: records of an earlier snapshot, of files that are never written again, by their paths below the
                location; None if there is none.

        Raises:
            SnapshotError: a file is missing or empty, or has another size than before, or a restore is not complete.
        """
        if self.is_half_restored():
            raise SnapshotError(f"a restore into {self.url} was interrupted")
        try:
            listing = _sizes(self._directory.listing())
            batch = files_of_restart(listing, sink_log, self.read, begun=begun)
            before = known or {}
            check_sizes({name: before[name] for name in batch.files if name in before}, listing)
            return batch.batch_id
        except (IncompleteError, FileNotFoundError) as error:
            raise SnapshotError(f"the query cannot continue from {self.url}: {error}") from error

    def last_batch(self) -> tuple[BatchFiles, dict[str, RemoteFile]]:
        """Return the files of the last committed batch, and all files of the location.

        Raises:
            IncompleteError: a file is missing or empty.
            FileNotFoundError: a file has disappeared: there is a newer batch.
        """
        batch_id = self.committed_batch()  # before the listing: Spark writes a commit after the files that it needs
        listing = self._directory.listing()
        return files_of_batch(_sizes(listing), batch_id, self.read), listing

    def fetch(self, target: Path, previous: Path | None) -> None:
        """Fetch the files of the last committed batch into a new directory.

        Args:
            target: the directory, which is made.
            previous: an earlier snapshot's directory of such files, from which unchanged ones are linked; None if there
                is none.

        Raises:
            SnapshotError: a restore into the location is not complete.
            IncompleteError: a file is missing or empty.
            FileNotFoundError: a file has disappeared: there is a newer batch.
        """
        if self.is_half_restored():
            raise SnapshotError(f"a restore into {self.url} is not complete")
        batch, listing = self.last_batch()
        self._directory.fetch(batch.files, listing, target, previous)

    def replace(self, query: str, prepared: Path, names: Sequence[str]) -> None:
        """Replace all files of the location by prepared ones; `MARK` is left there, see `complete`.

        Args:
            query: name of the query that is restored.
            prepared: the directory that holds them.
            names: their paths below it.

        Raises:
            SnapshotError: the location does not show the files afterwards; or it is a whole bucket, or holds files that
                are not Spark's, and nothing was changed.
        """
        directory = self._directory
        if not urlsplit(self.url).path.strip("/"):
            raise SnapshotError(
                f"query {query!r} cannot be restored to {self.url}: a restore replaces the whole location, here a "
                "whole bucket or file system",
                "give the query a directory below it as its checkpointLocation",
            )
        directory.make()
        if not self.is_half_restored():
            if found := foreign_names(directory.names(), names):
                raise foreign_error(query, self.url, found)
            directory.put_whole(MARK, b"Understudy was restoring this checkpointLocation, and has not completed it.\n")
        for name in directory.names():
            if name != MARK:
                directory.remove(name)
        directory.make_parents(names)
        directory.each(names, lambda name: directory.put(prepared / name, name))
        wanted = {name: (prepared / name).stat().st_size for name in names}
        written = {name: size for name, size in directory.files().items() if name != MARK}
        if written != wanted:
            differing = sorted(name for name in wanted.keys() | written.keys() if wanted.get(name) != written.get(name))
            raise SnapshotError(f"{self.url} differs from what was written there: {', '.join(differing[:3])}")

    def complete(self) -> None:
        """Remove the mark of a restore: queries may start here."""
        self._directory.remove(MARK)


def foreign_error(query: str, location: str, found: Sequence[str]) -> SnapshotError:
    """Return the error for a location that holds names which are not those of a checkpointLocation."""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return SnapshotError(
        f"query {query!r} cannot be restored to {location}: a restore replaces the whole directory, and "
        f"{', '.join(map(repr, found[:3]))}{more} in it are not the query's",
        "move them elsewhere, or give the query a checkpointLocation of its own",
    )


def _sizes(listing: Mapping[str, RemoteFile]) -> dict[str, int]:
    return {name: file.size for name, file in listing.items()}
