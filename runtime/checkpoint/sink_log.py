"""The log of a file sink (``_spark_metadata``), in a local directory or in a remote file system.

When a query goes back to batch N, the log has to go back with it. Otherwise the sink skips every batch that its log
has, and the state changes of that batch are lost. The files that only later batches named become orphans.

The log names its files by URIs. Their *places* are texts without escapes: local paths, or URLs.

A local log is exchanged as a whole directory (`runtime.checkpoint.restore`). A remote file system has no such rename,
so there `RemoteSink` changes the log file by file. All of its methods block.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import UNQUOTED, list_names, path_of, uri_of
from runtime.checkpoint.layout import SINK_LOG, abandoned_sink_files
from runtime.checkpoint.metadata_log import exchange_steps
from runtime.checkpoint.remote_files import RemoteDirectory, is_below, is_remote

SINK_WORKSPACE = "_understudy_restore"
"""Directory of a restore in a sink. Spark does not read names that begin with an underscore."""

logger = logging.getLogger(__name__)


def place_of(uri: str) -> str:
    """Return the place of a file that a log names."""
    if not is_remote(uri) or uri.startswith("file:"):
        return str(path_of(uri))
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"


def uri_at(place: str) -> str:
    """Return a place as Spark writes it in a log."""
    if not is_remote(place):
        return uri_of(Path(place))
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{quote(rest, safe=UNQUOTED)}"


def sink_of(text: str) -> str:
    """Return the place of a sink: of a URL as Hadoop makes it, with single slashes."""
    if not is_remote(text):
        return text
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{re.sub('/+', '/', rest).rstrip('/')}"


def files_in_log(contents: Iterable[bytes]) -> set[str]:
    """Return the places of the files that entries of a log name: those that its readers see.

    Raises:
        ValueError: an entry is damaged.
    """
    found = set()
    for content in contents:
        for line in content.decode().splitlines()[1:]:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                raise ValueError(f"not an entry of a file sink's log: {line[:100]!r}")
            found.add(place_of(entry["path"]))
    return found


def moved(place: str, old: str, new: str) -> str:
    """Return the new place of a file below *old*, a directory that was moved to *new*; its own for other files."""
    return new + place.removeprefix(old) if old != new and place != old and is_below(place, old) else place


def relocated(content: bytes, old: str, new: str, exists: Callable[[str], bool]) -> bytes:
    """Return an entry of the log, adapted to a sink that was moved from *old* to *new*.

    Files keep their place if *exists* does not find them below *new*, so that readers find them in the old one.

    Raises:
        ValueError: the entry is damaged.
    """
    version, *lines = content.decode().splitlines()
    result = [version]
    for line in lines:
        entry = json.loads(line)
        before = place_of(entry["path"])
        place = moved(before, old, new)
        if place != before and exists(place):
            entry["path"] = uri_at(place)
            line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        result.append(line)
    return "\n".join(result).encode()


def orphans(abandoned: Iterable[bytes], kept: Iterable[bytes], sink: str) -> set[str]:
    """Return the files of the sink that only abandoned batches named; never one outside of the sink's directory.

    Raises:
        ValueError: an entry is damaged.
    """
    named = files_in_log(abandoned) - files_in_log(kept)
    return {place for place in named if place != sink and is_below(place, sink) and ".." not in place.split("/")}


def log_names(sink: str) -> list[str]:
    """Return the names in the log of a sink; none if there is no log.

    Raises:
        SavepointError: the file system of a remote sink cannot be reached.
        OSError: a local log cannot be read.
    """
    return RemoteSink(sink).names() if is_remote(sink) else list_names(Path(sink) / SINK_LOG)


class SinkFiles:
    """Tells which files exist. Those of a remote sink are listed once.

    Args:
        sinks: the sinks whose files are looked up.
    """

    def __init__(self, *sinks: str) -> None:
        self._sinks = [sink for sink in sinks if is_remote(sink)]
        self._listed: dict[str, frozenset[str]] = {}

    def exist(self, place: str) -> bool:
        """Return whether there is a file at a place.

        Raises:
            SavepointError: its file system cannot be reached.
        """
        if not is_remote(place):
            return Path(place).exists()
        for sink in self._sinks:
            if is_below(place, sink):
                if sink not in self._listed:
                    self._listed[sink] = frozenset(RemoteDirectory(sink).files())
                return place.removeprefix(sink).lstrip("/") in self._listed[sink]
        directory, _, name = place.rpartition("/")
        return RemoteDirectory(directory).exists(name)


class RemoteSink:
    """A file sink at a URL.

    Args:
        url: of the sink.

    Raises:
        SavepointError: fsspec cannot use the URL. All methods raise it if the file system cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = sink_of(url)
        self._log = RemoteDirectory(f"{self.url}/{SINK_LOG}")

    def names(self) -> list[str]:
        """Return the names in the log; none if there is no log."""
        return list(self._log.files())

    def read(self, name: str) -> bytes:
        """Return a file of the log.

        Raises:
            FileNotFoundError: it has disappeared.
        """
        content = self._log.read(name)
        if content is None:
            raise FileNotFoundError(f"{self.url}/{SINK_LOG}/{name} has disappeared")
        return content

    def fetch(self, names: Collection[str], target: Path, previous: Path | None) -> None:
        """Fetch files of the log into a new directory, as `RemoteDirectory.fetch`.

        Raises:
            FileNotFoundError: a file has disappeared.
        """
        self._log.fetch(names, self._log.listing(), target, previous)

    def put_back(self, prepared: Path) -> None:
        """Make the log that of a prepared directory; repeat it after an interruption.

        1. Entries that are going to be removed or replaced are copied to `SINK_WORKSPACE`, for `sweep`.
        2. The log is changed in the order of `exchange_steps`. Each file appears whole.

        Args:
            prepared: a local directory with the files of the log, without checksum files.

        Raises:
            SnapshotError: the log is not the prepared one afterwards.
        """
        wanted = {name: (prepared / name).read_bytes() for name in list_names(prepared)}
        live = self._log.files()
        differing = {
            name
            for name, content in wanted.items()
            if name in live and (live[name] != len(content) or self._log.read(name) != content)
        }
        additions, removals = exchange_steps(live, wanted, differing)
        old = RemoteDirectory(f"{self.url}/{SINK_WORKSPACE}")
        leaving = [name for name in removals if name[0].isdigit()]
        if leaving:
            old.make()
        for name in leaving:
            content = self._log.read(name)
            if content is not None:
                old.remove(name)
                old.put_whole(name, content)
        self._log.make()
        for name in additions:
            self._log.put_whole(name, wanted[name])
        for name in removals:
            self._log.remove(name)
            if name in wanted:
                self._log.put_whole(name, wanted[name])
        written = self._log.files()
        sizes = {name: len(content) for name, content in wanted.items()}
        if written != sizes:
            names = sorted(name for name in sizes.keys() | written.keys() if sizes.get(name) != written.get(name))
            raise SnapshotError(f"the log of {self.url} differs from what was written there: {', '.join(names[:3])}")

    def sweep(self, batch_id: int) -> None:
        """Remove the files that only abandoned batches named, and then what `put_back` has kept for this."""
        files, old = RemoteDirectory(self.url), RemoteDirectory(f"{self.url}/{SINK_WORKSPACE}")
        names = list(old.files())
        abandoned = abandoned_files(
            {name: lambda name=name: old.read(name) or b"" for name in names},  # type: ignore[misc]
            [self._log.read(name) or b"" for name in self._log.files()] if names else [],
            self.url,
            batch_id,
        )
        files.each([place.removeprefix(self.url).lstrip("/") for place in abandoned], files.remove)
        files.remove(SINK_WORKSPACE)


def abandoned_files(
    old: Mapping[str, Callable[[], bytes]], kept: Iterable[bytes], sink: str, batch_id: int
) -> list[str]:
    """Return the places of the files that only abandoned batches of a sink named; none if an entry is damaged.

    Args:
        old: the former files of the log by their names, each with a function that reads it.
        kept: the present ones.
        sink: the place of the sink.
        batch_id: the batch that was restored. Its entry differs if the snapshot was rescaled: there it has no rows.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        return sorted(orphans([old[name]() for name in abandoned_sink_files(old, batch_id - 1)], kept, sink))
    except ValueError as error:
        # Readers of the sink follow its log, so files of abandoned batches only waste space.
        logger.warning("files of abandoned batches stay in %s: %s", sink, error)
        return []


def check_named_files(log: Path, names: Iterable[str], old: str, new: str, goal: str) -> None:
    """Check that a sink still has the files that a log names: Spark ignores missing ones silently.

    Args:
        log: directory of the log.
        names: its files.
        old: place of the sink when the log was written.
        new: its place from now on.
        goal: of the message, what is not possible otherwise.

    Raises:
        SnapshotLostError: files are missing, or the log is damaged.
        SavepointError: the file system of a remote sink cannot be reached.
    """
    try:
        named = files_in_log((log / name).read_bytes() for name in names)
    except ValueError as error:
        raise SnapshotLostError(f"the log of the file sink in {log} is damaged: {error}") from error
    files = SinkFiles(new, old)
    gone = [place for place in sorted(named) if not files.exist(moved(place, old, new)) and not files.exist(place)]
    if gone:
        raise SnapshotLostError(
            f"{goal}: its file sink has lost {len(gone)} of {len(named)} files of that time, {gone[0]} among them; "
            "they were removed, or abandoned by a rollback",
            "take an earlier snapshot, or put the files back",
        )
