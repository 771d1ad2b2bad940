"""Logging of a process of the cluster: one rotated file per process, one line per event, with fields for its origin.

The fields are what slf4j's MDC is in Flink's `MdcUtils`. A process has its own context: its component, the epoch under
which it leads, the job for which it works. Work for one job or attempt among others adds its own fields while it runs.
Tasks that it starts inherit them.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

FIELDS = ("component", "epoch", "job", "attempt", "trace_id", "span_id")
"""The fields, in the order in which a line shows them."""

_of_process: dict[str, str] = {}
_of_task: ContextVar[Mapping[str, str]] = ContextVar("log context")

CONTINUED = "\n    "
"""Prefix of all lines of a text but the first, so that text chosen by users cannot look like an event."""
_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]*:[^/?#\s'\"]*(?=@)")
_BEARER = re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{16,}")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f]+")


def set_process_context(**fields: object) -> None:
    """Add *fields* to each line of this process; a value of None removes a field."""
    for name, value in fields.items():
        if value is None:
            _of_process.pop(name, None)
        else:
            _of_process[name] = str(value)


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add *fields* to lines that are logged within this context."""
    token = _of_task.set({**_of_task.get({}), **fields})
    try:
        yield
    finally:
        _of_task.reset(token)


def current_context() -> dict[str, str]:
    """Return the present fields."""
    return {**_of_process, **_of_task.get({})}


def without_secrets(text: str) -> str:
    """Return the text without users and passwords in URLs, and without bearer tokens, whichever library wrote it."""
    if "://" in text and "@" in text:
        text = _USER_INFO.sub("******", text)
    if "earer " in text or "EARER " in text:
        text = _BEARER.sub("******", text)
    return text


def fields_of(record: logging.LogRecord, context: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a line: those of the *context*, and the ids among the record's arguments.

    The attribute ``log_field`` of an id's type names its field (`runtime.ids`).
    """
    found = dict(context)
    arguments = record.args
    if isinstance(arguments, tuple):
        for argument in reversed(arguments):  # of several ids of a type, the line is about the first
            name = getattr(type(argument), "log_field", None)
            if name is not None:
                found[name] = str(argument)
    return {name: found[name] for name in FIELDS if name in found}


class LineFormatter(logging.Formatter):
    """Base of both formats.

    Args:
        context: returns the present fields.
    """

    def __init__(self, context: Callable[[], Mapping[str, str]] = current_context) -> None:
        super().__init__()
        self._context = context
        self._second = -1
        self._clock = ""

    def moment(self, created: float) -> str:
        """Return local time in milliseconds with its offset; the part above a second is formatted once per second."""
        second, fraction = divmod(created, 1)
        if second != self._second:
            local = time.localtime(second)
            self._clock = time.strftime("%Y-%m-%d %H:%M:%S,%%03d%z", local)
            self._second = int(second)
        return self._clock % int(fraction * 1000)

    def trace(self, record: logging.LogRecord) -> str:
        """Return the traceback of a record and its ``stack_info``; empty without them."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        return "\n".join([*parts, *([self.formatStack(record.stack_info)] if record.stack_info else [])])


class TextFormatter(LineFormatter):
    """``TIME LEVEL [PID] LOGGER component=... epoch=... job=... attempt=... - MESSAGE``; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_value(value)}" for name, value in fields_of(record, self._context()).items())
        head = f"{self.moment(record.created)} {record.levelname:<5} [{record.process}] {record.name}{fields} - "
        trace = self.trace(record)
        text = without_secrets(record.getMessage() + (f"\n{trace}" if trace else ""))
        return head + _shown(text).replace("\n", CONTINUED)


class JsonFormatter(LineFormatter):
    """One JSON object a line: ``time``, ``level``, ``process``, ``logger``, the fields, ``message``, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.moment(record.created),
            "level": record.levelname,
            "process": record.process,
            "logger": record.name,
            **fields_of(record, self._context()),
            "message": without_secrets(record.getMessage()),
        }
        trace = self.trace(record)
        if trace:
            line["exception"] = without_secrets(trace)
        return json.dumps(line, ensure_ascii=True, separators=(",", ":"))


def _value(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _shown(text: str) -> str:
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Log settings of a process.

    Args:
        file: the log file, created with mode 0600; None for the standard error stream.
        level: a level name of the logging module.
        max_bytes: size at which the file is rotated; 0 for never.
        backups: number of rotated files to keep.
        as_json: whether each line is a JSON object.
        component: value of the field ``component``; empty to leave the field out.
    """

    file: Path | None
    level: str = "INFO"
    max_bytes: int = 0
    backups: int = 0
    as_json: bool = False
    component: str = ""


class LogFile(logging.handlers.RotatingFileHandler):
    """A rotated log file of mode 0600.

    The handler of the standard library formats each line twice and calls the file system for each. This one counts the
    size instead.

    Args:
        file: the file.
        max_bytes: size beyond which it does not grow; 0 for no limit.
        backups: number of rotated files to keep.
    """

    def __init__(self, file: Path, max_bytes: int, backups: int) -> None:
        self._size = 0
        super().__init__(file, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", errors="replace")

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(descriptor).st_size
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            size = len(line) if line.isascii() else len(line.encode(errors="replace"))
            if self.maxBytes and self._size and self._size + size > self.maxBytes:
                self.doRollover()
            if self.stream is None:  # a rotation could not open the new file
                self.stream = self._open()
            self.stream.write(line)
            self.stream.flush()
            self._size += size
        except Exception:  # as in the logging module: a log that cannot be written must break nothing else
            self.handleError(record)


def configure_logging(config: LogConfig) -> None:
    """Send all log records of this process to the file (or the standard error stream), and nowhere else."""
    for earlier in list(logging.root.handlers):
        logging.root.removeHandler(earlier)
        earlier.close()
    file = config.file
    handler = logging.StreamHandler() if file is None else LogFile(file, config.max_bytes, config.backups)
    handler.setFormatter(JsonFormatter() if config.as_json else TextFormatter())
    logging.root.addHandler(handler)
    logging.root.setLevel(config.level)
    set_process_context(component=config.component or None)
