"""The log of Spark's file sink (``_spark_metadata``), which names the files that readers of the sink see. Pure.

A query that goes back to batch N needs the log to go back with it: the sink passes over every batch that its log has,
and with it that batch's changes of state are lost. The files that only later batches named are orphans then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.checkpoint.files import path_of, uri_of


def files_in_log(contents: Iterable[bytes]) -> set[Path]:
    """The files that entries of the log name.

    Raises:
        ValueError: an entry is damaged.
    """
    found = set()
    for content in contents:
        for line in content.decode().splitlines()[1:]:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                raise ValueError(f"not an entry of a file sink's log: {line[:100]!r}")
            found.add(path_of(entry["path"]))
    return found


def moved(path: Path, old: Path, new: Path) -> Path:
    """Where a file is that was below *old*, and moved with it to *new*; *path* itself if it was not."""
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def relocated(content: bytes, old: Path, new: Path, exists: Callable[[Path], bool]) -> bytes:
    """An entry of the log for a sink that was moved from *old* to *new*: names what is there by its new place.

    Files that *exists* does not find in the new place keep their name: readers find them where they are.

    Raises:
        ValueError: the entry is damaged.
    """
    version, *lines = content.decode().splitlines()
    result = [version]
    for line in lines:
        entry = json.loads(line)
        path = path_of(entry["path"])
        place = moved(path, old, new)
        if place != path and exists(place):
            entry["path"] = uri_of(place)
            line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        result.append(line)
    return "\n".join(result).encode()


def orphans(abandoned: Iterable[bytes], kept: Iterable[bytes], sink: Path) -> set[Path]:
    """The files of the sink that only abandoned batches named; never one outside of the sink's directory.

    Raises:
        ValueError: an entry is damaged.
    """
    named = files_in_log(abandoned) - files_in_log(kept)
    return {path for path in named if path.is_relative_to(sink) and ".." not in path.parts}
