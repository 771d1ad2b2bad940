"""The schema that Spark keeps in each parquet file that it writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

_KEY = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark's `ParquetWriteSupport` puts it; what its `ParquetFileFormat` takes for the file's schema."""


def stored_schema(file: Path) -> str | None:
    """The schema of a parquet file as Spark's JSON; None if it is not there.

    Raises:
        OSError: the file cannot be read.
        pyarrow.ArrowInvalid: it is not a parquet file.
    """
    found = (pyarrow.parquet.read_metadata(file).metadata or {}).get(_KEY)
    return None if found is None else found.decode()
