"""Decides whether the state of a savepoint can move from Spark's HDFS-backed store into RocksDB, and reads its files.

Spark only writes state again that is in RocksDB, and its readers return the rows of the HDFS-backed store decoded, not
as bytes. So a conversion reads the files of that store (`read_changes`). `runtime.spark.state_convert` has Spark write
these rows into RocksDB, each in the partition in which it was, and compares what Spark reads before and afterwards.

`plan_conversion` reads files; the rest is pure.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.rescale import PROVIDER, is_hdfs_backed, unfit
from runtime.checkpoint.savepoint import open_savepoint
from runtime.checkpoint.state_choice import choose_query
from runtime.checkpoint.state_layout import DEFAULT_STORE, OperatorInfo
from runtime.checkpoint.stored_snapshot import check_snapshot

ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STORE = "spark.sql.streaming.stateStore."
_CODEC = f"{_STORE}compression.codec"
_ROW_CHECKSUM = f"{_STORE}rowChecksum.enabled"
_FILE = re.compile(r"state/(\d+)/(\d+)/(?:([^/]+)/)?(\d+)\.(delta|snapshot)")
_WORD = 8
"""Bytes by which the size of each row of Spark can be divided."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The directory of a store in a partition: operator, name of the store, partition."""

    operator: int
    store: str
    partition: int


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A conversion that was checked: the savepoint, its queries to convert, and where the result goes."""

    savepoint: Savepoint
    queries: tuple[SavepointQuery, ...]
    target: Path


def plan_conversion(path: Path, target: Path, query: str | None = None) -> ConversionPlan:
    """Verify a savepoint, and check that its state can move into RocksDB; needs no Spark, and writes nothing.

    Args:
        path: of the savepoint.
        target: directory of the result, which must not exist.
        query: name of the only query to convert; None for all whose state is in the HDFS-backed store.

    Raises:
        SavepointError: a query cannot be converted, there is none, or *target* exists.
    """
    savepoint = open_savepoint(path)
    chosen = [choose_query(savepoint, query)] if query is not None else list(savepoint.queries)
    hashed = [one for one in chosen if one.description.operators and is_hdfs_backed(one.description)]
    if not hashed:
        whose = f"query {query!r}" if query is not None else str(path)
        raise SavepointError(
            f"{whose} has no state in Spark's HDFS-backed store, so there is nothing to convert",
            "see `understudy savepoint info`",
        )
    if target.exists() or target.is_symlink():
        raise SavepointError(f"{target} exists already", "name a directory that does not exist")
    for one in hashed:
        operators = check_snapshot(one.snapshot, contents=False).operators
        if why := obstacle(one, operators):
            raise SavepointError(
                f"query {one.snapshot.name!r} cannot be converted: {why}",
                "keep its state store, or start the query without state; --query converts another query alone",
            )
    return ConversionPlan(savepoint, tuple(hashed), target.absolute())


def obstacle(query: SavepointQuery, operators: Sequence[OperatorInfo]) -> str:
    """Return why a query's state cannot move into RocksDB; empty if it can.

    Args:
        query: the query.
        operators: metadata of its stateful operators.
    """
    if query.description.conf.get(_ROW_CHECKSUM, "false") != "false":
        return f"its rows have checksums ({_ROW_CHECKSUM}), whose form is not known"
    properties = {one.id: one.properties for one in operators}
    for one in query.description.operators:
        if why := unfit(one, properties.get(one.id, ""), query.description.conf):
            return f"operator {one.id} ({one.name}) {why}"
    return ""


def codec_of(query: SavepointQuery) -> str:
    """Return Spark's name of the codec by which the files of the store are compressed."""
    return query.description.conf.get(_CODEC, "lz4")


def with_rocksdb(content: bytes) -> bytes:
    """Return a file of the offset log after which Spark starts the query with RocksDB.

    Args:
        content: of the file.
    """
    version, text, *offsets = content.decode().splitlines()
    metadata = json.loads(text)
    metadata["conf"] = {**metadata["conf"], PROVIDER: ROCKSDB_PROVIDER}
    return "\n".join([version, json.dumps(metadata, separators=(",", ":")), *offsets]).encode()


def state_files(names: Iterable[str]) -> dict[StorePlace, list[str]]:
    """Return the files of each HDFS-backed store in each partition, in the order in which they are read.

    Args:
        names: files of a snapshot below its checkpointLocation. A snapshot has only those of the last version.
    """
    found: dict[StorePlace, list[tuple[int, bool, str]]] = defaultdict(list)
    for name in names:
        if match := _FILE.fullmatch(name):
            place = StorePlace(int(match[1]), match[3] or DEFAULT_STORE, int(match[2]))
            found[place].append((int(match[4]), match[5] == "snapshot", name))
    ordered = {}
    for place, files in found.items():
        whole = max((version for version, is_whole, _ in files if is_whole), default=0)
        ordered[place] = [name for version, is_whole, name in sorted(files) if is_whole or version > whole]
    return ordered


def read_changes(content: bytes, rows: dict[bytes, bytes]) -> None:
    """Apply a file of the HDFS-backed store to rows: Spark's ``HDFSBackedStateStoreProvider.updateFromDeltaFile``.

    A file is a sequence of the size of a key, the key, the size of the value, and the value. A value of size -1 removes
    the key, a key of size -1 ends the file. Sizes are 4 bytes, the highest first.

    Args:
        content: of a ``.snapshot`` or ``.delta``, not compressed.
        rows: encoded values by encoded keys; a ``.snapshot`` belongs to none.

    Raises:
        IncompleteError: the file is truncated, or has rows of another form.
    """
    view, position = memoryview(content), 0

    def size() -> int:
        nonlocal position
        (found,) = struct.unpack_from(">i", view, position)
        position += 4
        return int(found)

    def row(length: int) -> bytes:
        nonlocal position
        found = bytes(view[position : position + length])
        if len(found) < length or length % _WORD:
            raise IncompleteError(f"a row of {length} bytes is truncated, or not of a form that is known")
        position += length
        return found

    try:
        while (length := size()) >= 0:
            key = row(length)
            length = size()
            if length < 0:
                rows.pop(key, None)
            else:
                rows[key] = row(length)
    except struct.error as error:
        raise IncompleteError("the end of the file is missing") from error
    if position != len(content):
        raise IncompleteError(f"{len(content) - position} bytes follow the end of the rows")
