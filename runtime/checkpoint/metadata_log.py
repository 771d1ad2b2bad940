"""Reads the logs that Spark writes for a streaming query: offsets, commits, and the compacted logs. Pure.

Spark's ``HDFSMetadataLog`` is a directory with a file for each batch, named by its number. A file never changes. Its
first line is the version of its format.

``CompactibleFileStreamLog`` is the log of a file source or a file sink. Every tenth time (by default) it writes
``<n>.compact``, which holds all entries up to n. It deletes the files of these entries later. When Spark opens such a
log, it computes the interval from the two newest compacted files, or from the only one and a setting. So a log that is
copied needs both. From one of them Spark may compute another interval, and look for a compacted file that never was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.protocol.query_snapshot import NOTHING_COMMITTED

_ENTRY = re.compile(r"(\d+)(\.compact)?")
_NAMED = re.compile(r"(\w+):(.*)", re.ASCII)

DEFAULT_COMPACT_INTERVAL = 10
"""Spark's default for the distance of two compacted files of a log."""

SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Setting of Spark under which it identifies sources by their names; a query keeps it from its first batch on."""


class IncompleteError(Exception):
    """A file that a batch needs is not there, or damaged: it was purged, is not written yet, or is lost."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """One file of the offset log.

    Args:
        sources: each source's offset as Spark's JSON text; None for a source that had none yet.
        conf: the settings of Spark that the query keeps from its first batch on.
        watermark_ms: the event-time watermark of the batch, in milliseconds since the epoch; 0 if it has none.
        is_positional: whether sources are identified by their position; Spark's later format uses names.
        names: of the sources, in the order of *sources*; empty if they are identified by their position.
    """

    sources: tuple[str | None, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    watermark_ms: int = 0
    is_positional: bool = True
    names: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the sources' directories below ``sources``, in their order; empty in an unknown form of the log."""
        return tuple(map(str, range(len(self.sources)))) if self.is_positional else self.names


def entries(names: Iterable[str]) -> dict[int, str]:
    """Return the numbered files of a log directory, without compacted ones; other names are ignored."""
    return {int(match[1]): name for name in names if (match := _ENTRY.fullmatch(name)) and not match[2]}


def compacted(names: Iterable[str]) -> dict[int, str]:
    """Return the compacted files of a log directory by the last number that they hold."""
    return {int(match[1]): name for name in names if (match := _ENTRY.fullmatch(name)) and match[2]}


def last_entry(names: Iterable[str]) -> int:
    """Return the last number of a log directory's files; `NOTHING_COMMITTED` if none has a number."""
    return max((int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))), default=NOTHING_COMMITTED)


def chain(names: Iterable[str], last: int) -> list[str]:
    """Return the files that hold all entries of a compacted log up to and including *last*.

    Raises:
        IncompleteError: some of them are missing.
    """
    names = list(names)
    single, compact = entries(names), compacted(names)
    first = max((number for number in compact if number <= last), default=-1)
    missing = [str(number) for number in range(first + 1, last + 1) if number not in single]
    if missing:
        raise IncompleteError(f"entries {', '.join(missing[:3])} of the log are missing")
    whole = [compact[first]] if first >= 0 else []
    return whole + [single[number] for number in range(first + 1, last + 1)]


def restart_chain(names: Iterable[str], last: int) -> list[str]:
    """Return the files of a compacted log for a restart after *last*: those of `chain`, and the compacted file before.

    Raises:
        IncompleteError: some of them are missing.
    """
    names = list(names)
    needed, compact = chain(names, last), compacted(names)
    newest = max(compacted(needed), default=-1)
    before = max((number for number in compact if number < newest), default=None)
    return needed if before is None else [compact[before], *needed]


def merged(names: Iterable[str], last: int, read: Callable[[str], bytes]) -> bytes:
    """Return the content of a compacted file with all entries of a log up to and including *last*.

    Args:
        names: of the log's files.
        last: number of the last entry.
        read: reads one of the files.

    Raises:
        IncompleteError: entries are missing.
    """
    return b"\n".join([b"v1", *(line for name in chain(names, last) for line in read(name).split(b"\n")[1:] if line)])


def interval_of(names: Iterable[str], default: int = DEFAULT_COMPACT_INTERVAL) -> int:
    """Return the distance of compacted files that Spark computes when it opens a log.

    As ``CompactibleFileStreamLog.compactInterval``.

    Args:
        names: of the log's files.
        default: the setting of the session.
    """
    compact = sorted(compacted(names))
    if len(compact) > 1:
        return compact[-1] - compact[-2]
    return derived_interval(default, compact[0]) if compact else default


def derived_interval(default: int, last: int) -> int:
    """Return the interval that Spark derives from the number of the only compacted file of a log.

    As ``CompactibleFileStreamLog.deriveCompactInterval``.
    """
    size = last + 1
    if default < size / 2:
        return next((number for number in range(default, size // 2 + 1) if size % number == 0), size)
    return size


def opens(names: Iterable[str]) -> bool:
    """Return whether Spark finds the compacted file that it looks for when it opens a log; a log without any opens."""
    names = list(names)
    newest, interval = max(compacted(names), default=None), interval_of(names)
    return newest is None or (last_entry(names) + 1) // interval * interval == newest + 1


def exchange_steps(
    live: Iterable[str], wanted: Iterable[str], differing: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return which files of a compacted log to add, and which to remove then, to make it an earlier one.

    The caller takes them one by one. After each step of 1 and 2 a reader finds all entries up to the last one:

    1. Files that are missing are added, the oldest first.
    2. Entries after the last wanted one are removed. The first are those after the newest compacted file, the newest
       first. The next are those that a compacted file holds, and the last are the compacted files, the newest first.
    3. All others that are not wanted are removed, and those with another content, which the caller adds again.

    Args:
        live: names of the log's files.
        wanted: names that it shall have.
        differing: those of both whose content differs.
    """
    live, wanted = set(live), set(wanted)
    last = last_entry(wanted)
    later = {name for name in live - wanted if last_entry([name]) > last}
    single, compact = entries(later), compacted(later)
    newest = max(compact, default=NOTHING_COMMITTED)
    removals = [single[number] for number in sorted(single, reverse=True) if number > newest]
    removals += [single[number] for number in sorted(single) if number < newest]
    removals += [compact[number] for number in sorted(compact, reverse=True)]
    removals += [*sorted(live - wanted - later), *sorted(differing)]
    return sorted(wanted - live, key=lambda name: last_entry([name])), removals


def source_chain(names: Iterable[str], previous: int, last: int) -> list[str]:
    """Return the files of a file source's log for a query whose last batch ends at *last* and began after *previous*.

    The single files of that batch's entries are included as well, since Spark reads them when it starts. If only a
    later compacted file holds the entries up to *last*, that file is returned. The source then knows more files than it
    has read, and reads them in one batch.

    Raises:
        IncompleteError: some of them are missing.
    """
    names = list(names)
    single, compact = entries(names), compacted(names)
    try:
        needed = restart_chain(names, last)
    except IncompleteError:
        later = min((number for number in compact if number > last), default=None)
        if later is None:
            raise
        needed = [compact[later]]
    needed += [single[number] for number in range(previous + 1, last + 1) if number in single]
    return list(dict.fromkeys(needed))


def read_offsets(content: bytes) -> BatchOffsets:
    """Parse one file of the offset log.

    Raises:
        IncompleteError: the content is not such a file, or is truncated.
    """
    try:
        version, metadata, *sources = content.decode().splitlines()
        values = json.loads(metadata)
        is_positional = version == "v1"
        named = [] if is_positional else [match for text in sources if (match := _NAMED.fullmatch(text))]
        if len(named) != len(sources):
            named = []
        return BatchOffsets(
            tuple(None if text == "-" else text for text in ([match[2] for match in named] or sources)),
            {str(key): str(value) for key, value in values.get("conf", {}).items()},
            int(values.get("batchWatermarkMs", 0)),
            is_positional,
            tuple(match[1] for match in named),
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise IncompleteError(f"not a file of the offset log: {error}") from error


def log_offset(offset: str | None) -> int | None:
    """Return the number of a file source's log entry that an offset names; None for the offset of any other source."""
    if offset is None:
        return None
    try:
        value = json.loads(offset)
    except ValueError:
        return None
    if isinstance(value, dict) and list(value) == ["logOffset"] and isinstance(value["logOffset"], int):
        return value["logOffset"]
    return None


def read_unique_ids(content: bytes) -> dict[int, list[list[str]]]:
    """Return the ids of the state files that a commit names, by operator, partition and store.

    It is empty in Spark's first format.

    Raises:
        IncompleteError: the content is not a file of the commit log, or is truncated.
    """
    try:
        _, text = content.decode().split("\n", 1)
        ids: dict[str, Any] = json.loads(text).get("stateUniqueIds") or {}
        return {int(operator): partitions for operator, partitions in ids.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise IncompleteError(f"not a file of the commit log: {error}") from error


def read_query_id(content: bytes) -> str:
    """Return the query's id, from the file ``metadata``.

    Raises:
        IncompleteError: it has none.
    """
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteError(f"not the metadata of a query: {error!r}") from error
