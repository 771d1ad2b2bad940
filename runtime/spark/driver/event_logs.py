"""Spark's event logs of the drivers of one machine: where they are, and which parts of them are removed.

A driver is one Spark application, which several jobs may share. It writes one log, in files of `ROLL_SIZE`:

    spark-events/                             in the runtime directory (0700)
      eventlog_v2_<application>/              (0700)
        appstatus_<application>[.inprogress]  empty; the suffix goes when the application has ended
        events_<number>_<application>.zstd    the last one is being written
        events_<number>_<application>.zstd.compact
      .<application>.driver                   the process that writes it

A file with the suffix ``.compact`` stands for all files up to its number. Spark's History Server makes such files, and
reads a log from the last one on. It reads no log in whose further numbers there is a gap.

Spark's History Server reads this directory, and ignores names that begin with a dot. `decide` is pure. `tidy` reads the
directory and carries the decision out. The log of a killed driver keeps its `.inprogress`: its last lines may be cut
off, which Spark reads of such logs only.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.files import write_private
from runtime.spark.process import start_time

ENABLED, DIRECTORY = "spark.eventLog.enabled", "spark.eventLog.dir"

ROLL_SIZE = 32 << 20
"""Bytes of a file of a log at which Spark begins the next one."""
GRACE_S = 600.0
"""Seconds for which a log whose driver is not known counts as one that a driver has just begun."""

_LOG = "eventlog_v2_"
_OPEN = ".inprogress"
_COMPACT = ".compact"
_PART = re.compile(r"events_([0-9]+)_.*")


@dataclass(frozen=True, slots=True)
class LogPart:
    """One of the files of a log: path, number from 1, bytes, and its last change in seconds since the epoch."""

    path: Path
    number: int
    size: int
    changed_s: float


@dataclass(frozen=True, slots=True)
class EventLog:
    """The event log of one application.

    Args:
        application: its id.
        path: of its directory, or of its only file if a user has turned rolling off.
        parts: its files, by number; those before a compacted one are not among them.
        is_open: whether Spark has not marked it as ended.
        has_driver: whether the driver that writes it lives; None if the driver is not known.
        changed_s: the last change, in seconds since the epoch.
        outdated: files before a compacted one, which nobody reads.
    """

    application: str
    path: Path
    parts: tuple[LogPart, ...]
    is_open: bool
    has_driver: bool | None
    changed_s: float
    outdated: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def is_written(self, now_s: float) -> bool:
        """Return whether a driver may still write it."""
        if self.has_driver is not None:
            return self.has_driver
        return self.is_open and now_s - self.changed_s <= GRACE_S


@dataclass(frozen=True, slots=True)
class Shortening:
    """A decision on a log that is written: the first part becomes a compacted one, which stands for removed parts.

    Args:
        first: the first part.
        compacted: its new path.
        removed: the parts after the first one that go.
    """

    first: Path
    compacted: Path
    removed: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Tidying:
    """A decision: the logs to remove, and how logs that are written are made shorter."""

    logs: tuple[EventLog, ...] = ()
    shortenings: tuple[Shortening, ...] = ()


def decide(logs: Iterable[EventLog], now_s: float, retention_s: float, max_bytes: int) -> Tidying:
    """Return what to remove, so that no log is older than *retention_s*, and all together have at most *max_bytes*.

    Logs that are not written any more go first, the oldest before others. Of a log that a driver writes, the first part
    names the application and the last one is open, so these two stay. The parts between them go, the oldest first, and
    the first part takes the place of a compacted one.

    Args:
        logs: all that exist.
        now_s: seconds since the epoch.
        retention_s: seconds for which a log is kept after its last change.
        max_bytes: see above. Logs of living drivers may exceed it by two parts each.
    """
    by_age = sorted(logs, key=lambda log: (log.changed_s, log.application))
    written = [log for log in by_age if log.is_written(now_s)]
    others = [log for log in by_age if not log.is_written(now_s)]
    removed = [log for log in others if now_s - log.changed_s > retention_s]
    kept = [log for log in others if now_s - log.changed_s <= retention_s]
    total = sum(log.size for log in (*written, *kept))
    while kept and total > max_bytes:
        oldest = kept.pop(0)
        removed.append(oldest)
        total -= oldest.size
    ages = [(part, log) for log in written for part in log.parts[1:-1]]
    gone: dict[str, list[LogPart]] = {}
    for part, log in sorted(ages, key=lambda each: (_age(*each), each[0].number)):
        if total <= max_bytes:
            break
        gone.setdefault(log.application, []).append(part)
        total -= part.size
    return Tidying(
        tuple(removed), tuple(_shortening(log, gone[log.application]) for log in written if log.application in gone)
    )


def _age(part: LogPart, log: EventLog) -> float:
    """Return the last change of a part or of one before it, so that a part never goes before those."""
    return max(each.changed_s for each in log.parts[1:] if each.number <= part.number)


def _shortening(log: EventLog, gone: list[LogPart]) -> Shortening:
    last = gone[-1].path
    return Shortening(log.parts[0].path, last.with_name(last.name + _COMPACT), tuple(part.path for part in gone))


def settings(directory: Path) -> dict[str, str]:
    """Return Spark's settings for a driver that writes its event log into a directory; a user's own override them."""
    return {
        ENABLED: "true",
        DIRECTORY: directory.as_uri(),
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": f"{ROLL_SIZE}b",
        "spark.eventLog.compress": "true",
    }


def is_written_to(directory: Path, conf: Mapping[str, str]) -> bool:
    """Return whether a driver with these settings writes its event log into a directory."""
    return conf.get(ENABLED) == "true" and conf.get(DIRECTORY) == directory.as_uri()


def prepare(directory: Path) -> None:
    """Make the directory, for its owner only; Spark does not make it. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def note_driver(directory: Path, application: str, pid: int, started: int) -> None:
    """Write down which process writes a log, by its pid and `start_time`, and make the log private. Raises OSError."""
    content = json.dumps({"pid": pid, "start_time": started}).encode()
    write_private(_note(directory, application), content, durable=False)
    for log in directory.glob(f"*{application}*"):
        _make_private(log)


def _note(directory: Path, application: str) -> Path:
    return directory / f".{application}.driver"


def _has_driver(directory: Path, application: str) -> bool | None:
    try:
        noted = json.loads(_note(directory, application).read_bytes())
        return start_time(int(noted["pid"])) == int(noted["start_time"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def find(directory: Path) -> list[EventLog]:
    """Return the logs in a directory; none if it does not exist. Raises OSError."""
    if not directory.is_dir():
        return []
    logs = []
    for path in directory.iterdir():
        if path.name.startswith(".") or path.is_symlink():
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another worker's process removes it
            logs.append(_rolling(path) if path.is_dir() else _single(path))
    return [log for log in logs if log is not None]


def _rolling(path: Path) -> EventLog | None:
    if not path.name.startswith(_LOG):
        return None
    application, parts, is_open, changed_s = path.name.removeprefix(_LOG), [], False, path.stat().st_mtime
    for file in path.iterdir():
        status = file.lstat()
        changed_s = max(changed_s, status.st_mtime)
        is_open = is_open or file.name.endswith(_OPEN)
        if (found := _PART.fullmatch(file.name)) is not None:
            parts.append(LogPart(file, int(found[1]), status.st_size, status.st_mtime))
    parts.sort(key=lambda part: (part.number, _is_compacted(part)))
    first = max((at for at, part in enumerate(parts) if _is_compacted(part)), default=0)
    outdated = tuple(part.path for part in parts[:first])
    driver = _has_driver(path.parent, application)
    return EventLog(application, path, tuple(parts[first:]), is_open, driver, changed_s, outdated)


def _is_compacted(part: LogPart) -> bool:
    return part.path.name.endswith(_COMPACT)


def _single(path: Path) -> EventLog:
    status = path.lstat()
    application = path.name.removesuffix(_OPEN).partition(".")[0]
    part = LogPart(path, 1, status.st_size, status.st_mtime)
    is_open = path.name.endswith(_OPEN)
    return EventLog(application, path, (part,), is_open, _has_driver(path.parent, application), status.st_mtime)


def tidy(directory: Path, now_s: float, retention_s: float, max_bytes: int) -> list[str]:
    """Decide and carry it out; return the ids of the applications whose logs were removed. Raises OSError.

    Several workers of a machine may call it at the same time. Args as of `decide`.
    """
    logs = find(directory)
    for log in logs:
        with contextlib.suppress(FileNotFoundError):
            _make_private(log.path)
    decision = decide(logs, now_s, retention_s, max_bytes)
    for path in (path for log in logs for path in log.outdated):
        path.unlink(missing_ok=True)
    for shortening in decision.shortenings:
        with contextlib.suppress(FileNotFoundError):  # another worker's process made it shorter: look again next time
            shortening.first.rename(shortening.compacted)
            for path in shortening.removed:
                path.unlink(missing_ok=True)
    for log in decision.logs:
        with contextlib.suppress(FileNotFoundError):
            if log.path.is_dir():
                shutil.rmtree(log.path)
            else:
                log.path.unlink()
    _remove_notes(directory, {log.application for log in logs if log not in decision.logs})
    return [log.application for log in decision.logs]


def _remove_notes(directory: Path, applications: set[str]) -> None:
    """Remove the notes of drivers that have ended and have no log any more."""
    for note in directory.glob(".*.driver"):
        application = note.name.removeprefix(".").removesuffix(".driver")
        if application not in applications and not _has_driver(directory, application):
            note.unlink(missing_ok=True)


def _make_private(log: Path) -> None:
    """Take a log from group and others: Spark sets the modes 0770 and 0660, whatever the umask is."""
    for path in (log, *(log.iterdir() if log.is_dir() else ())):
        with contextlib.suppress(FileNotFoundError):  # Spark has renamed it, or another worker's process removes it
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o077:
                path.chmod(status.st_mode & 0o700)
