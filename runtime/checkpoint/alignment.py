"""A consistent cut through queries that read each other's output.

Query A has a file sink, and query B a file source that reads its directory. If a snapshot of B has consumed files that
A has written after its own snapshot, a restore doubles their rows. It takes A back, A writes the rows again as new
files, and B reads these too. The reverse does no harm: B then reads what A had written before its snapshot. So the cut
is consistent if each file that B has consumed is in the log of A's snapshot.

Spark writes both facts into files. A file source's log names each file that it has planned to read. A file sink's log
names each file that it has committed. So nothing has to be known of the queries' plans.

- `downstream_first` gives the order in which snapshots of running queries are consistent most often.
- `find_misaligned` checks snapshots. The order alone is not enough. Spark adds a batch to the sink's log before it
  commits the batch, and a reader may be faster than that commit.

Other sinks and other sources have no such log.

Files and sinks have places: local paths or URLs (`runtime.checkpoint.sink_log`). Snapshots have the logs of remote
sinks and sources as local files. The live log of a remote sink is read only for files that the snapshots do not
explain, or that may be abandoned; that of a remote source, when a query starts beside a writer that has state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoint.errors import CheckpointError, SnapshotError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import SINK_LOG
from runtime.checkpoint.metadata_log import compacted, entries, last_entry
from runtime.checkpoint.remote_files import RemoteDirectory, is_below, is_remote
from runtime.checkpoint.sink_log import RemoteSink, SinkFiles, log_names, place_of, sink_of
from runtime.checkpoint.stored_snapshot import CHECKPOINT, SINK
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot

Times = Mapping[str, int]
"""Places of files with their times of change, in milliseconds since the epoch."""

_LATEST = 2**63 - 1
_PLAIN = re.compile(r"[A-Za-z0-9]+")  # no URI and no JSON writes these otherwise


@dataclass(frozen=True, slots=True)
class Misalignment:
    """Files of one query's sink that another query has consumed, and that the sink does not have at its snapshot.

    Args:
        reader: name of the query that has consumed them.
        writer: name of the query of the sink.
        batch_id: the batch of the snapshot of *writer*.
        files: their places, at least one.
    """

    reader: str
    writer: str
    batch_id: int
    files: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return (
            f"query {self.reader!r} has read what query {self.writer!r} wrote after its batch {self.batch_id}: "
            f"{self.files[0]}{more}; after a restore these rows would be read twice"
        )


def read_source_log(contents: Iterable[bytes], sinks: Collection[str]) -> dict[str, int]:
    """Return the files that entries of a file source's log name; none for the log of another source. Pure.

    Args:
        contents: of the log's files.
        sinks: places of directories. Entries that cannot be of files below one of them may be left out, because a log
            may have millions.
    """
    marks = [max(_PLAIN.findall(sink.rpartition("/")[2]), key=len, default="").encode() for sink in sinks]
    lines = (line for content in contents for line in content.split(b"\n")[1:])
    return _read((line for line in lines if any(mark in line for mark in marks)), "timestamp", _LATEST)


def read_sink_log(contents: Iterable[bytes]) -> dict[str, int]:
    """Return the files that entries of a file sink's log name. Pure."""
    return _read((line for content in contents for line in content.split(b"\n")[1:]), "modificationTime", 0)


def _read(lines: Iterable[bytes], time: str, default: int) -> dict[str, int]:
    found = {}
    for line in lines:
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                continue
            place = place_of(entry["path"])
        except ValueError:
            continue  # a source that is not a file source writes what it likes
        at = entry.get(time)
        found[place] = at if isinstance(at, int) else default
    return found


def files_ahead(consumed: Times, written: Times, sink: str) -> list[str]:
    """Return the consumed files below a sink that are newer than its log. Pure.

    The log forgets old files if the sink has a ``retention``. So a file that it lacks counts only if it is not older
    than the newest one that it has.

    Args:
        consumed: files that the reader's snapshot has.
        written: files in the log of the writer's snapshot.
        sink: place of the sink.
    """
    newest = max(written.values(), default=0)
    return sorted(
        place for place, time in consumed.items() if place not in written and time >= newest and is_below(place, sink)
    )


def downstream_first(names: Sequence[str], reads: Collection[tuple[str, str]]) -> list[str]:
    """Return queries in the order in which to take their snapshots: each before those whose output it reads. Pure.

    In a cycle no order is right, so its queries keep theirs; `find_misaligned` says whether they fit.

    Args:
        names: of the queries. Among queries that do not read each other, the last one comes first: programs usually
            start a reader after its writer.
        reads: pairs of a reader and a writer.
    """
    order: list[str] = []
    waiting = list(reversed(names))
    while waiting:
        left = {(reader, writer) for reader, writer in reads if reader != writer and {reader, writer} <= set(waiting)}
        read = {writer for _, writer in left}
        cycle = [] if set(waiting) - read else cycle_in(left)
        following = next(name for name in waiting if name in cycle or name not in read)
        order.append(following)
        waiting.remove(following)
    return order


def upstream_waves(names: Sequence[str], reads: Collection[tuple[str, str]]) -> list[list[str]]:
    """Return queries in the groups in which to drain them: each after those whose output it reads. Pure.

    Args:
        names: of the queries; those of a cycle are in one group with all that follow.
        reads: pairs of a reader and a writer.
    """
    waves: list[list[str]] = []
    waiting = list(names)
    while waiting:
        wave = [
            name for name in waiting if not any((name, other) in reads for other in waiting if other != name)
        ] or waiting
        waves.append(wave)
        waiting = [name for name in waiting if name not in wave]
    return waves


def cycle_in(reads: Collection[tuple[str, str]]) -> list[str]:
    """Return the names of queries that read their own output by way of others; empty if there are none. Pure."""
    waiting = {name for pair in reads for name in pair}
    edges = {(reader, writer) for reader, writer in reads if reader != writer}
    while free := {name for name in waiting if not any(pair[0] in waiting for pair in edges if pair[1] == name)}:
        waiting -= free
    while free := {name for name in waiting if not any(pair[1] in waiting for pair in edges if pair[0] == name)}:
        waiting -= free
    return sorted(waiting)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Result of `find_misaligned`.

    Args:
        misaligned: the pairs of snapshots that do not fit together.
        reads: pairs of a reader and a writer of which the reader has consumed a file.
    """

    misaligned: tuple[Misalignment, ...] = ()
    reads: frozenset[tuple[str, str]] = frozenset()


def find_misaligned(snapshots: Collection[QuerySnapshot], *, are_running: bool = False) -> Alignment:
    """Check that snapshots of several queries are a consistent cut.

    Args:
        snapshots: of one job. Without a second one beside that of a query with a file sink, no file is read.
        are_running: whether the queries run. Then a file that no log has yet may be one that the sink commits next.

    Raises:
        SnapshotError: a log cannot be read.
        SavepointError: the file system of a remote sink cannot be reached.
    """
    writers = [writer for writer in snapshots if writer.sink is not None]
    if len(snapshots) < 2 or not writers:
        return Alignment()
    misaligned, reads = [], set()
    try:
        sinks = [_sink_of(writer) for writer in writers]
        consumed = {snapshot.name: consumed_files(Path(snapshot.path) / CHECKPOINT, sinks) for snapshot in snapshots}
        for writer, sink in zip(writers, sinks, strict=True):
            readers = {
                name: files
                for name, files in consumed.items()
                if name != writer.name and any(is_below(place, sink) for place in files)
            }
            if not readers:
                continue
            reads |= {(name, writer.name) for name in readers}
            written = read_sink_log(_contents(Path(writer.path) / SINK))
            for name, files in readers.items():
                ahead = files_ahead(files, written, sink)
                if ahead:
                    is_foreign = _foreign_files(writer, are_running=are_running)
                    ahead = [place for place in ahead if not is_foreign(place)]
                if ahead:
                    misaligned.append(Misalignment(name, writer.name, writer.batch_id, tuple(ahead)))
    except OSError as error:
        raise SnapshotError(f"the snapshots of the job's queries cannot be compared: {error}") from error
    return Alignment(tuple(misaligned), frozenset(reads))


def alignment_problems(snapshots: Collection[QuerySnapshot]) -> list[str]:
    """Return why stored snapshots of several queries do not fit together; none if they do."""
    try:
        return [str(misalignment) for misalignment in find_misaligned(snapshots).misaligned]
    except CheckpointError as error:
        return [str(error)]


def abandoned_files(query: QueryLocation, location: str | Path, writer: QuerySnapshot) -> list[str]:
    """Return the files that a query has consumed, and that a restore of their writer has removed.

    Args:
        query: the query that has consumed them.
        location: its checkpointLocation, or the one in a snapshot.
        writer: the snapshot to which the query of the sink may have gone back.

    Raises:
        OSError: a log cannot be read.
        SavepointError: the file system of a remote sink or location cannot be reached.
    """
    if writer.sink is None or writer.name == query.name:
        return []
    ahead = _ahead_of(location, writer)
    if not ahead:
        return []
    sink = _sink_of(writer)
    live, files = read_sink_log(_live_log(sink)), SinkFiles(sink)
    return [place for place in ahead if place not in live and not files.exist(place)]


def has_read_on(query: QueryLocation, writer: QuerySnapshot) -> list[str]:
    """Return the files that a query has consumed at its checkpointLocation, and that a restore of their writer removes.

    Raises:
        OSError: a log cannot be read.
        SavepointError: the file system of a remote sink or location cannot be reached.
    """
    if writer.sink is None or writer.name == query.name:
        return []
    ahead = _ahead_of(query.location, writer)
    if not ahead:
        return []
    is_foreign = _foreign_files(writer, are_running=False)
    return [place for place in ahead if not is_foreign(place)]


def _sink_of(writer: QuerySnapshot) -> str:
    """Return the place of the sink of a query that has one."""
    assert writer.sink is not None
    return sink_of(writer.sink) if is_remote(writer.sink) else str(Path(writer.sink))


def _ahead_of(location: str | Path, writer: QuerySnapshot) -> list[str]:
    sink = _sink_of(writer)
    consumed = consumed_files(location, [sink])
    if not any(is_below(place, sink) for place in consumed):
        return []
    return files_ahead(consumed, read_sink_log(_contents(Path(writer.path) / SINK)), sink)


def consumed_files(location: str | Path, sinks: Collection[str]) -> dict[str, int]:
    """Return the files that the file sources of a query have planned to read, by their logs.

    Args:
        location: its checkpointLocation, or the one in a snapshot.
        sinks: as in `read_source_log`.

    Raises:
        OSError: a log cannot be read.
        SavepointError: the file system of a remote location cannot be reached.
    """
    found: dict[str, int] = {}
    for contents in _source_logs(location):
        found.update(read_source_log(contents, sinks))
    return found


def _source_logs(location: str | Path) -> Iterable[Iterable[bytes]]:
    """Yield the files of the log of each source of a query, as `_contents`."""
    if is_remote(str(location)):
        yield from _remote_source_logs(RemoteDirectory(f"{location}/sources"))
        return
    for name in list_names(Path(location) / "sources"):
        directory = Path(location) / "sources" / name
        if directory.is_dir():
            yield _contents(directory)


def _remote_source_logs(directory: RemoteDirectory) -> Iterable[Iterable[bytes]]:
    logs: dict[str, list[str]] = {}
    for path in directory.files():
        log, _, name = path.partition("/")
        logs.setdefault(log, []).append(name)

    def read(path: str) -> bytes:
        content = directory.read(path)
        if content is None:
            raise FileNotFoundError(f"{directory.url}/{path} has disappeared")
        return content

    for log, names in logs.items():
        yield [read(f"{log}/{name}") for name in _not_compacted(names)]


def _contents(log: Path) -> Iterable[bytes]:
    """Yield the files of a compacted log, without those that its newest compacted file holds."""
    for name in _not_compacted(list_names(log)):
        yield (log / name).read_bytes()


def _live_log(sink: str) -> Iterable[bytes]:
    """Yield the files of a sink's live log, as `_contents`."""
    if not is_remote(sink):
        yield from _contents(Path(sink) / SINK_LOG)
        return
    log = RemoteSink(sink)
    for name in _not_compacted(log.names()):
        yield log.read(name)


def _not_compacted(names: Collection[str]) -> list[str]:
    single, compact = entries(names), compacted(names)
    newest = max(compact, default=-1)
    chosen = [compact[newest]] if compact else []
    return [*chosen, *(name for number, name in single.items() if number > newest)]


def _foreign_files(writer: QuerySnapshot, *, are_running: bool) -> Callable[[str], bool]:
    """Return a function that says whether a file in a sink's directory was written by another program.

    A query that reads a directory above the sink, or by a pattern, sees such files. So it is asked of the sink's live
    log, if that has not been lost or moved. A file that was removed since may be of an abandoned batch.
    """
    sink = _sink_of(writer)
    last = last_entry(log_names(sink))
    if last < max(writer.batch_id, 0):
        return lambda place: False
    if are_running and not is_remote(writer.location):
        planned = last_entry(list_names(Path(writer.location) / "offsets"))
        if planned > last:  # a batch is being written, and its files are not in the log yet
            return lambda place: False
    live, files = read_sink_log(_live_log(sink)), SinkFiles(sink)
    return lambda place: place not in live and files.exist(place)
