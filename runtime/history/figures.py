"""Figures of a cluster over time, in a file that is only appended to.

Each line is a JSON object: a `Sample`. Unknown fields of a line are ignored, so that releases read each other's files.
A line that cannot be read, such as one that a killed process has cut short, is counted and left out. A full file is
renamed, by the time of the next sample. `HistoryDirectory.expire` deletes old ones.

`FigureReader` reads them for a chart. A full file does not change any more. So its lines are read once, and their means
are kept for charts of a time range with many more samples than points.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from conf.files import append_line

FILE = "figures.jsonl"
MOST_BYTES = 1 << 20
"""Size at which the file is renamed."""
MOST_POINTS = 300
"""Number of points of an answer, by default."""
GAP_FACTOR = 4
"""A pause of so many usual intervals between two samples is a gap: the cluster did not run, or nobody led it."""

CONDENSED = 16
"""How many samples of a full file become one, which is kept in memory."""

_COUNTS = ("task_managers", "slots", "free_slots", "requests_waiting", "jobs_running", "heap_used", "heap_max")
_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class Sample:
    """The main figures at one time.

    Args:
        at_ms: milliseconds since the epoch.
        task_managers: registered TaskExecutors.
        slots: all their slots.
        free_slots: slots that no job has.
        requests_waiting: requests that wait for a slot.
        jobs_running: jobs that are not over, also those that wait.
        heap_used: bytes of the heaps of all Spark drivers; None if no driver has reported them.
        heap_max: their limits together; None if no driver has reported them.
        rows: rows per second that arrive at the streaming queries of each job, by its id; only jobs with such a figure.
    """

    at_ms: int
    task_managers: int | None = None
    slots: int | None = None
    free_slots: int | None = None
    requests_waiting: int | None = None
    jobs_running: int | None = None
    heap_used: int | None = None
    heap_max: int | None = None
    rows: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the line, without its end; unknown figures are left out."""
        found: dict[str, Any] = {"at_ms": self.at_ms}
        found |= {name: value for name in _COUNTS if (value := getattr(self, name)) is not None}
        if self.rows:
            found["rows"] = {job_id: round(rate, 3) for job_id, rate in self.rows.items()}
        return json.dumps(found, separators=(",", ":"), allow_nan=False)

    @classmethod
    def parse(cls, line: bytes) -> Sample:
        """Read a line. Raises ValueError."""
        found = json.loads(line)
        if not isinstance(found, dict) or type(found.get("at_ms")) not in _NUMBERS:
            raise ValueError("a line of figures is not an object with at_ms")
        rows = found.get("rows", {})
        counts = {name: int(found[name]) for name in _COUNTS if type(found.get(name)) in _NUMBERS}
        rates = (
            {str(key): float(rate) for key, rate in rows.items() if type(rate) in _NUMBERS}
            if isinstance(rows, dict)
            else {}
        )
        return cls(int(found["at_ms"]), **counts, rows=rates)

    @property
    def rows_per_second(self) -> float | None:
        """Return the rate of all jobs together; None if no job has one."""
        return sum(self.rows.values()) if self.rows else None


class FigureFile:
    """Appends samples to the figures of a cluster. Several processes may do so, of which one is the leader.

    Args:
        directory: of the history; made at the first sample, with mode 0700.
        most_bytes: size at which the file is renamed.
    """

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = directory / FILE
        self._most_bytes = most_bytes

    def append(self, sample: Sample) -> None:
        """Append a line; a loss of power may lose the last ones. Raises OSError."""
        line = sample.to_json().encode()
        append_line(self._path, line, self._most_bytes, lambda: self._path.rename(self._next_name(sample.at_ms)))

    def _next_name(self, at_ms: int) -> Path:
        """Return a new name for the full file; the lock on it keeps others from choosing the same."""
        while (found := self._path.with_name(f"figures-{at_ms:014d}.jsonl")).exists():
            at_ms += 1
        return found


def figure_files(directory: Path) -> list[Path]:
    """Return the files of figures of a history, the oldest first."""
    return [*sorted(directory.glob("figures-*.jsonl")), *directory.glob(FILE)]


def read_samples(directory: Path, since_ms: int, until_ms: int) -> tuple[list[Sample], int]:
    """Read the samples of a time range, in the order of their times.

    Args:
        directory: of the history.
        since_ms: the first time.
        until_ms: the last time.

    Returns:
        the samples, and the number of lines that cannot be read.

    Raises:
        OSError: a file cannot be read.
    """
    files = []
    for path in figure_files(directory):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns // 1_000_000 >= since_ms:  # the others' last lines are older
                files.append(path)
    return _read_files(files, since_ms, until_ms)


def _read_files(files: Iterable[Path], since_ms: int, until_ms: int) -> tuple[list[Sample], int]:
    found, damaged = list[Sample](), 0
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # it was renamed or deleted between the two looks
            samples, unreadable = _read_file(path)
            found += [sample for sample in samples if since_ms <= sample.at_ms <= until_ms]
            damaged += unreadable
    return sorted(found, key=lambda sample: sample.at_ms), damaged


def _read_file(path: Path) -> tuple[list[Sample], int]:
    found, damaged = list[Sample](), 0
    for line in path.read_bytes().splitlines():
        try:
            found.append(Sample.parse(line))
        except ValueError:
            damaged += bool(line.strip())
    return found, damaged


@dataclass(frozen=True, slots=True)
class _FullFile:
    """A file that is full: its identity, the times of its first and last samples, their means, its damaged lines."""

    identity: tuple[int, int, int]
    first_ms: float
    last_ms: float
    means: Sequence[Sample]
    damaged: int

    @classmethod
    def read(cls, path: Path, identity: tuple[int, int, int]) -> _FullFile:
        samples, damaged = _read_file(path)
        times = [sample.at_ms for sample in samples]
        first_ms, last_ms = min(times, default=math.inf), max(times, default=-math.inf)
        return cls(identity, first_ms, last_ms, _means(samples, CONDENSED), damaged)


class FigureReader:
    """Reads the points of charts from the figures of a cluster. Any thread may call it; it serves one at a time.

    It reads each full file once, and keeps one sample in memory for each `CONDENSED` of the file.

    Args:
        directory: of the history.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._full: dict[Path, _FullFile] = {}
        self._lock = threading.Lock()

    def points(self, since_ms: int, until_ms: int, most: int) -> tuple[list[Sample], int]:
        """Return about *most* points of a time range, with an empty one in each gap, and the number of damaged lines.

        If the range has more than `CONDENSED` samples for each point, a point is the mean of means. Then the range may
        begin and end within one of these, and only the file that is not full yet is read.

        Raises:
            OSError: a file cannot be read.
        """
        with self._lock:
            full = self._overlapping(since_ms, until_ms)
            means = [each for file in full.values() for each in file.means if since_ms <= each.at_ms <= until_ms]
            if len(means) <= most:
                samples, damaged = _read_files([*full, self._directory / FILE], since_ms, until_ms)
            else:
                newest, damaged = _read_files([self._directory / FILE], since_ms, until_ms)
                samples = sorted([*means, *_means(newest, CONDENSED)], key=lambda sample: sample.at_ms)
                damaged += sum(file.damaged for file in full.values())
        return with_gaps(thinned(samples, most)), damaged

    def _overlapping(self, since_ms: int, until_ms: int) -> dict[Path, _FullFile]:
        """Return the full files with samples of a time range; read those that are new."""
        found = dict[Path, _FullFile]()
        files = [path for path in figure_files(self._directory) if path.name != FILE]
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if status.st_mtime_ns // 1_000_000 < since_ms:
                    continue
                identity = status.st_mtime_ns, status.st_size, status.st_ino
                known = self._full.get(path)
                if known is None or known.identity != identity:
                    known = self._full[path] = _FullFile.read(path, identity)
                if known.first_ms <= until_ms and known.last_ms >= since_ms:
                    found[path] = known
        for gone in self._full.keys() - set(files):
            del self._full[gone]
        return found


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most *most* samples; each is the mean of neighbours, with the time of the last of them. Pure.

    No two samples with a gap between them become one: then there may be some more than *most*.
    """
    size = -(-len(samples) // max(most, 1))
    return list(samples) if size <= 1 else _means(samples, size)


def _means(samples: Sequence[Sample], size: int) -> list[Sample]:
    """Return the means of each *size* neighbours; none spans a gap."""
    if not samples:
        return []
    longest_ms = _longest_pause(samples)
    groups: list[list[Sample]] = [[samples[0]]]
    for before, sample in pairwise(samples):
        if len(groups[-1]) == size or sample.at_ms - before.at_ms > longest_ms:
            groups.append([])
        groups[-1].append(sample)
    return [_mean(group) for group in groups]


def _mean(group: Sequence[Sample]) -> Sample:
    counts = {}
    for name in _COUNTS:
        known = [value for sample in group if (value := getattr(sample, name)) is not None]
        if known:
            counts[name] = round(sum(known) / len(known))
    rows: dict[str, list[float]] = {}
    for sample in group:
        for job_id, rate in sample.rows.items():
            rows.setdefault(job_id, []).append(rate)
    return Sample(group[-1].at_ms, **counts, rows={job_id: sum(rates) / len(rates) for job_id, rates in rows.items()})


def _longest_pause(samples: Sequence[Sample]) -> float:
    """Return the longest pause between two samples, in milliseconds, that is not a gap."""
    pauses = sorted(after.at_ms - before.at_ms for before, after in pairwise(samples))
    return GAP_FACTOR * pauses[len(pauses) // 2] if pauses else 0.0


def with_gaps(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with an empty one in each gap, so that a chart draws no line there. Pure."""
    longest_ms = _longest_pause(samples)
    found = list(samples[:1])
    for before, sample in pairwise(samples):
        if sample.at_ms - before.at_ms > longest_ms:
            found.append(Sample((before.at_ms + sample.at_ms) // 2))
        found.append(sample)
    return found


def jobs_with_rows(samples: Iterable[Sample]) -> list[str]:
    """Return the ids of the jobs that have rates, in the order in which they begin to have them. Pure."""
    return list(dict.fromkeys(job_id for sample in samples for job_id in sample.rows))
