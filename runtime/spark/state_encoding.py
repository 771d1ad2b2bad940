"""Encodes rows of Parquet files as Spark's state stores hold them; needs no Spark.

An edit of a savepoint (`runtime.spark.state_edit`) stores the rows of a part of the state (`StatePart`) decoded.
`encode_files` makes of them the files that the writer of the state takes (`NewFamily`). Each row gets the fields that
decide its partition, and a position, because the elements of a list have an order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from runtime.checkpoint.edit import PartKind, StatePart, is_void, named_schema, session_field
from runtime.checkpoint.state_rows import InvalidRowError, RowEncoder
from runtime.spark.driver.state_writer import ENCODED, POSITION, partition_column

_ROWS, _LISTS = 65536, 1024


def encode_files(
    part: StatePart,
    hashed: Sequence[Sequence[int]],
    sources: Sequence[Path],
    target: Path,
    counts: Path | None = None,
) -> None:
    """Encode the rows of Parquet files into another one, batch by batch.

    Args:
        part: with the schemas.
        hashed: where the key's fields are that decide the partition (`partition_paths`); columns of the result.
        sources: with the columns ``key`` and ``value``; fields that are always null are not in ``value``.
        target: the result.
        counts: the number of values of each key, for a part that has a counter.

    Raises:
        InvalidRowError: a row is not of the schemas.
    """
    import pyarrow
    import pyarrow.parquet

    encoder = _PartEncoder(part)
    with contextlib.ExitStack() as files:
        rows = files.enter_context(_EncodedFile(target, hashed))
        counted = None if counts is None else files.enter_context(_EncodedFile(counts, hashed))
        for source in sources:
            file = pyarrow.parquet.ParquetFile(source)
            for one in (rows, counted):
                if one is not None:  # a file without rows has the columns too
                    one.add(pyarrow.array([], file.schema_arrow.field("key").type), [], [])
            for batch in file.iter_batches(_ROWS if counted is None else _LISTS):
                key = batch.column("key")
                if key.null_count:
                    raise InvalidRowError("a key is null")
                if counted is None:
                    rows.add(key, *encoder.rows(batch))
                    continue
                positions, *encoded, numbers = encoder.lists(batch)
                rows.add(key.take(pyarrow.array(positions, pyarrow.int64())), *encoded)
                counted.add(key, *numbers)


class _EncodedFile:
    """A Parquet file of encoded rows, as `NewFamily` describes it."""

    def __init__(self, path: Path, hashed: Sequence[Sequence[int]]) -> None:
        self._path = path
        self._hashed = hashed
        self._names = [*(partition_column(number) for number in range(len(hashed))), *ENCODED, POSITION]
        self._writer: Any = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, keys: Any, encoded: Sequence[bytes], content: Sequence[bytes]) -> None:
        """Add rows: their decoded keys as an array of pyarrow, the encoded keys, and the encoded values."""
        import pyarrow
        import pyarrow.parquet

        positions = range(self._count, self._count + len(keys))
        self._count += len(keys)
        arrays = [_field_at(keys, path) for path in self._hashed]
        arrays += [pyarrow.array(one, pyarrow.binary()) for one in (encoded, content)]
        arrays.append(pyarrow.array(positions, pyarrow.int64()))
        batch = pyarrow.RecordBatch.from_arrays(arrays, names=self._names)
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, batch.schema)
        self._writer.write_batch(batch)


class _PartEncoder:
    """Encodes the keys and values of a part."""

    def __init__(self, part: StatePart) -> None:
        self._keys, self._values = RowEncoder(part.family.key, is_key=True), RowEncoder(part.family.value)
        self._voids = [number for number, one in enumerate(named_schema(part.family.value)["fields"]) if is_void(one)]
        self._sessions = RowEncoder(part.family.key)
        self._window = session_field(part.family) if part.kind is PartKind.SESSIONS else None
        self._is_map, self._is_join = part.kind is PartKind.MAP, part.kind is PartKind.JOIN
        self._counted = RowEncoder(part.counter.family.key, is_key=True) if part.counter is not None else self._keys
        self._counts = RowEncoder(part.counter.family.value) if part.counter is not None else None

    def rows(self, batch: Any) -> tuple[list[bytes], list[bytes]]:
        """Return encoded keys and values, one of each for a row.

        Raises:
            InvalidRowError: a row is not of the schemas.
        """
        decoded = column_values(batch.column("key"))
        if self._is_map and any(None in row for row in decoded):
            raise InvalidRowError("the group or the userKey of a map is null")
        keys = [self._keys.encode(row) for row in decoded]
        rows = list(_value_rows(batch, self._voids))
        if self._window is not None:
            for key, row in zip(keys, rows, strict=True):
                named = session_key(row[: len(self._keys.names)], self._window)
                if key != self._sessions.encode(named):
                    raise InvalidRowError("a key is not that of the columns and the session start in its value")
        return keys, [self._values.encode(row) for row in rows]

    def lists(self, batch: Any) -> tuple[list[int], list[bytes], list[bytes], tuple[list[bytes], list[bytes]]]:
        """Return each element's row in the batch, its encoded key and value; and keys and numbers of elements.

        Raises:
            InvalidRowError: a row is not of the schemas, or a list has no elements.
        """
        assert self._counts is not None
        positions, keys, values = [], [], []
        counted: tuple[list[bytes], list[bytes]] = [], []
        pairs = zip(column_values(batch.column("key")), column_values(batch.column("value")), strict=True)
        for number, (key, elements) in enumerate(pairs):
            if not elements:
                raise InvalidRowError("a list is null or has no values; leave out its key")
            if None in elements:
                raise InvalidRowError("a value in a list is null")
            if self._is_join and any(one[-1] is None for one in elements):
                raise InvalidRowError("matched is null")
            encoded = self._counted.encode(key)
            positions += [number] * len(elements)
            keys += self._indexed(key, len(elements)) if self._is_join else [encoded] * len(elements)
            values += [self._values.encode(one) for one in elements]
            counted[0].append(encoded)
            counted[1].append(self._counts.encode((len(elements),)))
        return positions, keys, values, counted

    def _indexed(self, key: Sequence[Any], count: int) -> list[bytes]:
        """Return the keys of a join's rows: the index of each row follows the columns of the join."""
        return [self._keys.encode((*key, index)) for index in range(count)]


def _field_at(array: Any, path: Sequence[int]) -> Any:
    for number in path:
        array = array.flatten()[number]
    return array


def session_key(row: Sequence[Any], position: int) -> list[Any]:
    """Return the key that Spark makes from the first fields of a session's value.

    Args:
        row: as many fields as the key has.
        position: that of the session window.
    """
    window = row[position]
    return [*row[:position], *row[position + 1 :], None if window is None else window[0]]


def _value_rows(batch: Any, voids: Sequence[int]) -> Iterator[Sequence[Any]]:
    """Yield the values of a batch, with nulls for the fields that are always null."""
    if len(voids) and "value" not in batch.schema.names:
        yield from [[None] * len(voids)] * len(batch)
        return
    column = batch.column("value")
    if column.null_count:
        raise InvalidRowError("a value is null")
    for row in column_values(column):
        found = list(row)
        for position in voids:
            found.insert(position, None)
        yield found


def column_values(array: Any) -> list[Any]:
    """Return the values of an array of pyarrow in the form that `RowEncoder` takes."""
    import pyarrow

    kind = array.type
    if pyarrow.types.is_struct(kind):
        columns = [column_values(child) for child in array.flatten()]
        rows: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * len(array)
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pyarrow.types.is_list(kind):
        inner = iter(column_values(array.flatten()))
        sizes = array.value_lengths().to_pylist()
        return [None if size is None else [next(inner) for _ in range(size)] for size in sizes]
    if pyarrow.types.is_timestamp(kind):
        return list(array.cast(pyarrow.int64()).to_pylist())
    if pyarrow.types.is_date32(kind):
        return list(array.cast(pyarrow.int32()).to_pylist())
    return list(array.to_pylist())
