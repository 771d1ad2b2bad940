"""The rows of a streaming job: what its file source is given, and what its file sink holds; Spark reads neither."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow.parquet

KEYS = 7

T = TypeVar("T")

# A job that counts the rows of a source by minute and key, with a watermark: they come in the order of their time, so
# none is too late. Arguments: the source, the file sink, the checkpointLocation; if that is empty, the job's own.
STREAM = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

source, sink, location = sys.argv[1:4]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
rows = spark.readStream.schema("at TIMESTAMP, key STRING").option("maxFilesPerTrigger", 1).json(source)
counts = (
    rows.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), "key").count()
    .selectExpr("window.start AS start", "key", "count")
)
writer = counts.writeStream.queryName("counts").format("parquet").trigger(processingTime="200 milliseconds")
if location:
    writer = writer.option("checkpointLocation", location)
writer.start(sink).awaitTermination()
print("the query has ended")
"""


class Source:
    """The files of the source, each with rows of one minute; the last one closes all windows.

    Args:
        directory: which is made.
        window_minutes: how long the windows are that the rows are counted in.
    """

    def __init__(self, directory: Path, window_minutes: int = 1) -> None:
        self.directory = directory
        self._window_minutes = window_minutes
        self.expected: Counter[tuple[str, str]] = Counter()
        self._files = 0
        self._begun = time.time() - 3600
        directory.mkdir()

    def write(self, files: int) -> None:
        for _ in range(files):
            number = self._files
            minute = _moment(number)
            keys = [f"key-{row % KEYS}" for row in range(20 + number)]
            window = _moment(number - number % self._window_minutes)
            self.expected.update((window, key) for key in keys)
            self._add([{"at": minute, "key": key} for key in keys])

    def close(self) -> None:
        self._add([{"at": "2030-01-01T00:00:00", "key": "end"}])

    def _add(self, rows: list[dict[str, str]]) -> None:
        unfinished = self.directory.parent / "unfinished"
        unfinished.write_text("\n".join(map(json.dumps, rows)))
        # Spark takes the files in the order of these times.
        os.utime(unfinished, (self._begun + self._files, self._begun + self._files))
        unfinished.rename(self.directory / f"{self._files:04}.json")
        self._files += 1


def lost_and_doubled(expected: Counter[T], found: Counter[T]) -> tuple[Counter[T], Counter[T]]:
    """What is missing of what was to be there, and what is there that was not, or too often."""
    return expected - found, found - expected


def _moment(minute: int) -> str:
    return f"2026-01-{1 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:00"


def files_of(sink: Path, served: Path | None = None) -> list[str]:
    """What the sink holds by its log, which is what counts for Spark's readers; one that is there twice counts twice.

    The log is read here, and not by Spark: what Spark wrote is not checked by Spark. *served* is the directory of the
    server that the log names, of a remote sink.
    """
    log = sink / "_spark_metadata"
    names = [path.name for path in log.iterdir() if not path.name.startswith(".")] if log.exists() else []
    compact = max((int(name.split(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    later = [name for name in names if name.isdigit() and int(name) > compact]
    paths: list[str] = []
    for name in [*([f"{compact}.compact"] if compact >= 0 else []), *later]:
        paths += [json.loads(line)["path"] for line in (log / name).read_text().splitlines()[1:]]
    return [f"{served or ''}{unquote(urlsplit(path).path)}" for path in paths]


def rows_of(sink: Path, served: Path | None = None) -> Counter[tuple[str, str]]:
    """The rows of the sink's files; one that is there twice counts twice."""
    found: Counter[tuple[str, str]] = Counter()
    for path in files_of(sink, served):
        for row in pyarrow.parquet.read_table(path).to_pylist():
            found[row["start"].strftime("%Y-%m-%dT%H:%M:%S"), row["key"]] += row["count"]
    return found


def rows_so_far(sink: Path, served: Path | None = None) -> Counter[tuple[str, str]]:
    """The rows while the query goes on; none where its log was compacted, or put back, while it was read."""
    return unless_it_changes(lambda place: rows_of(place, served), sink) or Counter()


def files_so_far(sink: Path) -> list[str]:
    """The files while the query goes on; none where its log was compacted, or put back, while it was read."""
    return unless_it_changes(files_of, sink) or []


def unless_it_changes(read: Callable[[Path], T], sink: Path) -> T | None:
    """Return the findings of *read* in a sink; None where its log was compacted, or put back, while it was read."""
    try:
        return read(sink)
    except FileNotFoundError:
        return None


def partitions_of(location: Path, version: int) -> list[int]:
    """The partitions in whose stores Spark has written a version of the state of a query's first operator."""
    written = (location / "state" / "0").glob(f"[0-9]*/{version}*.[cz]*")
    return sorted({int(path.parent.name) for path in written})
