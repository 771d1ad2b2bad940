"""A model of a streaming query as Spark runs it: which files it writes, in which order, and what it reads at its start.

It has no JVM. `StreamExecution` is Spark's `MicroBatchExecution` with a file source, a stateful operator in the HDFS
state store provider, and a file sink. A batch makes these steps, each a file of its own:

1. ``sources/0/<n>``: the files that the source has found; before the offsets.
2. ``offsets/<batch>``: the batch is planned. It is run again with the same input until it is committed.
3. ``state/0/<partition>/<batch + 1>.delta``, and sometimes a whole ``.snapshot``: the state after the batch.
4. ``part-…`` in the sink: the rows. Nobody sees them yet.
5. ``_spark_metadata/<batch>``, in the sink's directory: readers see the rows. A batch that is there is skipped.
6. ``commits/<batch>``: the batch is over.
7. Old entries of the logs, and old versions of the state, are removed.

Each file is written under another name, then renamed, then its checksums are (Hadoop's `ChecksumFs`); part files are
written in place. Spark syncs nothing. A log entry that exists is never overwritten: the query fails.

Each input row is a number, counted from 0. The state of a partition is how many rows it has had. The sink gets each row
with that count. So `wrong_rows` finds rows that are lost or doubled, and state that does not belong to its offsets.

The model runs wherever its files are: on a simulated disk it can be killed before any step.
"""

from __future__ import annotations

import functools
import json
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.checkpoint.files import path_of, uri_of
from runtime.protocol.query_snapshot import QueryLocation

_NUMBERED = re.compile(r"(\d+)(\.compact)?")
_BLOCK = 512
LOAD_FAILED = "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]"
"""How Spark's message begins when it cannot read its state."""


class QueryFailed(Exception):
    """The query ends with an error."""


@dataclass
class RowSource:
    """The directory of a file source, outside of the simulated disk: it never loses a row.

    Attributes:
        available: number of rows so far, one in each file.
    """

    available: int = 0


@dataclass(frozen=True)
class QueryPlan:
    """A query of a job, as its code describes it.

    Args:
        name: its ``queryName``.
        location: its checkpointLocation.
        sink: the directory of its file sink.
        partitions: of its state.
        files_per_batch: ``maxFilesPerTrigger``.
        retained: ``spark.sql.streaming.minBatchesToRetain``.
        compact_every: so many entries of a log become one file.
        whole_every: each so-manieth version of the state is also written as a whole.
    """

    name: str
    location: str
    sink: str
    partitions: int = 2
    files_per_batch: int = 3
    retained: int = 3
    compact_every: int = 5
    whole_every: int = 3

    @property
    def query(self) -> QueryLocation:
        """The query as the runtime names it."""
        return QueryLocation(self.name, self.location, self.sink)


class MetadataLog:
    """A directory with one file for each number: `HDFSMetadataLog`, or `CompactibleFileStreamLog`.

    Args:
        directory: of the log.
        compact_every: each so-manieth entry is a file of all entries so far; 0 for none.
    """

    def __init__(self, directory: Path, compact_every: int = 0) -> None:
        self.directory = directory
        self._compact_every = compact_every

    def numbers(self) -> list[int]:
        """Return the numbers that have a file, sorted."""
        if not self.directory.is_dir():
            return []
        found = (_NUMBERED.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def last(self) -> int:
        """Return the last number; -1 if there is none."""
        return max(self.numbers(), default=-1)

    def add(self, number: int, lines: list[str]) -> None:
        """Write an entry.

        Raises:
            QueryFailed: it is there, or files before it are missing.
        """
        if number in self.numbers():
            raise QueryFailed(f"concurrent update to the log {self.directory}: entry {number} is there already")
        if self._compact_every and number % self._compact_every == self._compact_every - 1:
            lines = [*self.read_all(number - 1), *lines]
            write(self.directory / f"{number}.compact", "\n".join(["v1", *lines]))
        else:
            write(self.directory / str(number), "\n".join(["v1", *lines]))

    def read(self, number: int) -> list[str]:
        """Return the lines of one entry."""
        return _read(self.directory / str(number)).splitlines()[1:]

    def read_all(self, last: int) -> list[str]:
        """Return the lines of all entries of a compacted log up to a number."""
        names = {path.name for path in self.directory.iterdir()} if self.directory.is_dir() else set()
        whole = [number for number in range(last, -1, -1) if f"{number}.compact" in names][:1]
        first = whole[0] + 1 if whole else 0
        found = [f"{whole[0]}.compact"] if whole else []
        found += [str(number) for number in range(first, last + 1)]
        return [line for name in found for line in _read(self.directory / name).splitlines()[1:]]

    def purge(self, before: int) -> None:
        """Remove entries below a number; of a compacted log, only what a later file holds."""
        numbers = self.numbers()
        if self._compact_every:
            wholes = [number for number in numbers if number % self._compact_every == self._compact_every - 1]
            before = max((number for number in wholes if number < before), default=0)
        for number in numbers:
            if number < before:
                for name in (str(number), f"{number}.compact"):
                    delete(self.directory / name)


class StreamExecution:
    """One run of a query, from its start to its end; a method raises `QueryFailed` where Spark ends the query.

    Args:
        plan: the query.
        source: its input.
        new_id: returns a random text, for the query's id and for part files.
        pause: called between steps, with the name of the next one.
    """

    def __init__(
        self,
        plan: QueryPlan,
        source: RowSource,
        new_id: Callable[[], str],
        pause: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.plan = plan
        self._source = source
        self._new_id = new_id
        self._pause = pause
        self._location, self._sink = Path(plan.location), Path(plan.sink)
        self._found = MetadataLog(self._location / "sources" / "0", plan.compact_every)
        self._offsets = MetadataLog(self._location / "offsets")
        self._commits = MetadataLog(self._location / "commits")
        self._written = MetadataLog(self._sink / "_spark_metadata", plan.compact_every)
        self._batch = 0
        self._start = -1
        self._planned_end: int | None = None
        self._seen: set[int] = set()
        self._log_offset = -1
        self._state: dict[int, int] = {}
        self.query_id = ""
        self.committed = -1
        """The last batch that this run knows as committed."""

    def start(self) -> None:
        """Read what an earlier run has left, as `populateStartOffsets` does."""
        metadata = self._location / "metadata"
        self._location.mkdir(parents=True, exist_ok=True)
        if metadata.exists():
            self.query_id = str(_json(_read(metadata))["id"])
        else:
            self.query_id = self._new_id()
            write(metadata, json.dumps({"id": self.query_id}))
        self._log_offset = self._found.last()
        self._seen = {_row_of(line) for line in self._found.read_all(self._log_offset)}
        planned = self._offsets.last()
        if planned < 0:
            return
        if planned > 0:
            self._start = self._offset_of(planned - 1)
        end = self._offset_of(planned)
        self.committed = self._commits.last()
        if self.committed == planned:
            self._batch, self._start = planned + 1, end
        else:
            self._batch, self._planned_end = planned, end
        self._state = {number: self._load(number, self._batch) for number in range(self.plan.partitions)}

    def run_batch(self) -> bool:
        """Run one batch, if there is input for it; return whether there was."""
        if self._planned_end is None:
            self._plan_batch()
        if self._planned_end is None:
            return False
        batch = self._batch
        rows = self._rows(self._start, self._planned_end)
        if self._written.last() >= batch:  # Spark skips the whole batch, with its changes of state
            self._state = {number: self._load(number, batch + 1) for number in range(self.plan.partitions)}
        else:
            self._execute(batch, rows)
        self._pause("commits")
        self._commits.add(batch, ['{"nextBatchWatermarkMs":0}'])
        self.committed = batch
        self._batch, self._start, self._planned_end = batch + 1, self._planned_end, None
        self._pause("purge")
        self._purge(batch)
        return True

    # ------------------------------------------------------------------- batches

    def _plan_batch(self) -> None:
        new = sorted(set(range(self._source.available)) - self._seen)[: self.plan.files_per_batch]
        if new:
            self._pause("sources")
            number = self._log_offset + 1
            self._found.add(number, [json.dumps({"path": f"file:///in/{row}", "batchId": number}) for row in new])
            self._log_offset = number
            self._seen.update(new)
        if self._log_offset > self._start:
            self._pause("offsets")
            head = json.dumps({"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}})
            self._offsets.add(self._batch, [head, json.dumps({"logOffset": self._log_offset}, separators=(",", ":"))])
            self._planned_end = self._log_offset

    def _execute(self, batch: int, rows: list[int]) -> None:
        parts: list[Path] = []
        if batch == 0:
            self._describe_operator()
        for number in range(self.plan.partitions):
            own = [row for row in rows if row % self.plan.partitions == number]
            before = self._state.get(number, 0)
            self._pause("part file")
            if own:
                part = self._sink / f"part-{number:05}-{self._new_id()}-c000.json"
                text = "".join(f"{row} {before + place}\n" for place, row in enumerate(own, 1))
                self._sink.mkdir(parents=True, exist_ok=True)
                _write_in_place(part, text.encode())
                parts.append(part)
            self._pause("state")
            place = self._location / "state" / "0" / str(number)
            write(place / f"{batch + 1}.delta", str(len(own)), overwrites=True)
            if (batch + 1) % self.plan.whole_every == 0:
                write(place / f"{batch + 1}.snapshot", str(before + len(own)), overwrites=True)
            self._state[number] = before + len(own)
        self._pause("sink log")
        self._written.add(batch, [json.dumps({"path": uri_of(part), "action": "add"}) for part in parts])

    def _describe_operator(self) -> None:
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.plan.partitions}
        info = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": [store]}
        path = self._location / "state" / "0" / "_metadata" / "metadata"
        if not path.exists():
            write(path, "v1\n" + json.dumps(info))

    def _purge(self, batch: int) -> None:
        oldest = batch - self.plan.retained + 1
        if oldest <= 0:
            return
        for log in (self._offsets, self._commits, self._found, self._written):
            log.purge(oldest)
        for number in range(self.plan.partitions):
            place = self._location / "state" / "0" / str(number)
            versions = {path: int(path.name.split(".")[0]) for path in place.iterdir() if path.name[0].isdigit()}
            wholes = [version for path, version in versions.items() if path.suffix == ".snapshot"]
            needed = max((version for version in wholes if version <= oldest + 1), default=0)
            for path, version in versions.items():
                if version < needed:
                    delete(path)

    # --------------------------------------------------------------------- reads

    def _offset_of(self, batch: int) -> int:
        lines = self._offsets.read(batch)
        if len(lines) != 2:
            raise QueryFailed(f"[INVALID_LOG_VERSION] offsets/{batch} has {len(lines)} lines")
        offset = lines[1]
        return int(_json(offset)["logOffset"])

    def _rows(self, after: int, to: int) -> list[int]:
        entries = [_json(line) for line in self._found.read_all(self._log_offset)]
        found = [entry for entry in entries if after < entry["batchId"] <= to]
        if to > self._log_offset:
            raise QueryFailed(f"the source's log ends at {self._log_offset}, and the batch at {to}")
        return [_row_of(json.dumps(entry)) for entry in found]

    def _load(self, partition: int, version: int) -> int:
        """Load a version of a partition's state: the last whole one, and the changes since."""
        place = self._location / "state" / "0" / str(partition)
        total, number = 0, version
        while number > 0:
            if (place / f"{number}.snapshot").exists():
                return total + int(_read(place / f"{number}.snapshot", LOAD_FAILED))
            total += int(_read(place / f"{number}.delta", LOAD_FAILED))
            number -= 1
        return total


# ------------------------------------------------------------------------------- files


def write(path: Path, content: str, *, overwrites: bool = False) -> None:
    """Write a file as Hadoop's local file system does: under another name, renamed, with checksums beside it.

    Raises:
        QueryFailed: old checksums are in the way, or the disk fails.
    """
    data, checksums = content.encode(), path.with_name(f".{path.name}.crc")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part, part_checksums = path.with_name(f".{path.name}.tmp"), path.with_name(f"..{path.name}.tmp.crc")
        part.write_bytes(data)
        part_checksums.write_bytes(checksums_of(data))
        part.replace(path)
        if checksums.exists() and not overwrites:
            raise QueryFailed(f"{checksums} is there already")
        part_checksums.replace(checksums)
    except OSError as error:
        raise QueryFailed(f"{path} cannot be written: {error}") from error


def _write_in_place(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
        path.with_name(f".{path.name}.crc").write_bytes(checksums_of(data))
    except OSError as error:
        raise QueryFailed(f"{path} cannot be written: {error}") from error


def delete(path: Path) -> None:
    """Delete a file, and then its checksums, as Hadoop does."""
    for each in (path, path.with_name(f".{path.name}.crc")):
        try:
            each.unlink(missing_ok=True)
        except OSError as error:
            raise QueryFailed(f"{each} cannot be deleted: {error}") from error


def checksums_of(data: bytes) -> bytes:
    """Return what Hadoop's local file system writes beside a file."""
    sums = [zlib.crc32(data[start : start + _BLOCK]) for start in range(0, len(data), _BLOCK)]
    return struct.pack(f">4sI{len(sums)}I", b"crc\0", _BLOCK, *sums)


def _read(path: Path, what: str = "") -> str:
    """Read a file, and compare it with its checksums, as Spark does."""
    try:
        data = path.read_bytes()
        checksums = path.with_name(f".{path.name}.crc")
        expected = checksums.read_bytes() if checksums.exists() else b""
        if expected[:4] == b"crc\0" and len(expected) >= 8 and expected != checksums_of(data):
            raise QueryFailed(f"org.apache.hadoop.fs.ChecksumException: {path}")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise QueryFailed(f"{what} {path} cannot be read: {error}".strip()) from error


def _json(text: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, TypeError) as error:
        raise QueryFailed(f"[INVALID_LOG_VERSION] {text[:60]!r}: {error}") from error
    return found


def _row_of(line: str) -> int:
    return int(str(_json(line)["path"]).rpartition("/")[2])


# --------------------------------------------------------------------- what readers see


Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SinkRows:
    """The rows that a reader of a file sink sees: each with its count of the state, and the files that are missing."""

    rows: Rows
    missing: tuple[str, ...]


def read_rows(path: Path) -> Rows | None:
    """Read a file of a sink; return None if it is missing."""
    if not path.exists():
        return None
    return tuple((int(row), int(count)) for row, count in map(str.split, _read(path).splitlines()))


def read_sink(plan: QueryPlan, rows_of: Callable[[Path], Rows | None] = read_rows) -> SinkRows:
    """Read a file sink by its log, as Spark's readers do; *rows_of* reads one of its files."""
    log = MetadataLog(Path(plan.sink, "_spark_metadata"), plan.compact_every)
    rows: list[tuple[int, int]] = []
    missing: list[str] = []
    for line in log.read_all(log.last()):
        path = _file_of(line)
        found = rows_of(path)
        if found is None:
            missing.append(str(path))
        else:
            rows += found
    return SinkRows(tuple(rows), tuple(missing))


@functools.lru_cache(maxsize=4096)
def _file_of(line: str) -> Path:
    """Return the file that a line of a sink's log names."""
    return path_of(str(_json(line)["path"]))


def wrong_rows(plan: QueryPlan, seen: SinkRows, available: int, *, complete: bool = True) -> list[str]:
    """Return what is wrong with the rows of a sink, one line each; nothing if each row is there exactly once.

    Args:
        plan: the query.
        seen: the rows of its sink.
        available: how many rows its source has had.
        complete: whether all of them must be there by now.
    """
    problems = [f"file {os.path.basename(name)} of the sink's log is missing" for name in seen.missing]  # noqa: PTH119
    numbers = Counter(row for row, _ in seen.rows)
    doubled = sorted(row for row, times in numbers.items() if times > 1)
    unknown = sorted(row for row in numbers if row >= available)
    last = available if complete else max(numbers, default=-1) + 1
    lost = sorted(set(range(last)) - numbers.keys())
    for word, rows in (("doubled", doubled), ("made up", unknown), ("lost", lost)):
        if rows:
            problems.append(f"{len(rows)} rows of {plan.name} are {word}, as of {rows[:5]}")
    wrong = sorted(row for row, count in seen.rows if count != row // plan.partitions + 1)
    if wrong and not (doubled or lost):
        problems.append(f"{len(wrong)} rows of {plan.name} have the count of another state, as of {wrong[:5]}")
    return problems
