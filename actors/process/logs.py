"""Logging of a process of the cluster: one rotated file each, one line an event, which says where it comes from.

The fields of a line (slf4j's MDC, as Flink's `MdcUtils` use it): a process has a context of its own, such as which
component it is, under which epoch it leads, for which job it works. Work for one job or one attempt beside that of
others adds its own for as long as it runs; tasks that it starts inherit it.
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

FIELDS = ("component", "epoch", "job", "attempt")
"""The fields, in the order in which a line shows them."""

_of_process: dict[str, str] = {}
_of_task: ContextVar[Mapping[str, str]] = ContextVar("log context")

CONTINUED = "\n    "
"""In front of the further lines of a text: what others have named themselves cannot look like an event."""
_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]*:[^/?#\s'\"]*(?=@)")
_BEARER = re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{16,}")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f]+")


def set_process_context(**fields: object) -> None:
    """Let each line of this process say these *fields*; one that is None is said no more."""
    for name, value in fields.items():
        if value is None:
            _of_process.pop(name, None)
        else:
            _of_process[name] = str(value)


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Let what is logged within say these *fields* too."""
    token = _of_task.set({**_of_task.get({}), **fields})
    try:
        yield
    finally:
        _of_task.reset(token)


def current_context() -> dict[str, str]:
    """The fields of now."""
    return {**_of_process, **_of_task.get({})}


def without_secrets(text: str) -> str:
    """The text without the user and password of URLs, and without bearer tokens, whatever library wrote it."""
    if "://" in text and "@" in text:
        text = _USER_INFO.sub("******", text)
    if "earer " in text or "EARER " in text:
        text = _BEARER.sub("******", text)
    return text


def fields_of(record: logging.LogRecord, context: Mapping[str, str]) -> dict[str, str]:
    """The fields of a line: those of the *context*, and the ids among the record's arguments.

    The type of an id says by its attribute ``log_field`` which field it is (`runtime.ids`).
    """
    found = dict(context)
    arguments = record.args
    if isinstance(arguments, tuple):
        for argument in reversed(arguments):  # the first one of a kind is what the line is about
            name = getattr(type(argument), "log_field", None)
            if name is not None:
                found[name] = str(argument)
    return {name: found[name] for name in FIELDS if name in found}


class LineFormatter(logging.Formatter):
    """The base of both formats.

    Args:
        context: gives the fields of now.
    """

    def __init__(self, context: Callable[[], Mapping[str, str]] = current_context) -> None:
        super().__init__()
        self._context = context
        self._second = -1
        self._clock = ""

    def moment(self, created: float) -> str:
        """Local time to the millisecond with its offset; the part that holds for a second is made once in it."""
        second, fraction = divmod(created, 1)
        if second != self._second:
            local = time.localtime(second)
            self._clock = time.strftime("%Y-%m-%d %H:%M:%S,%%03d%z", local)
            self._second = int(second)
        return self._clock % int(fraction * 1000)

    def trace(self, record: logging.LogRecord) -> str:
        """The traceback of a record, and the stack that it asked for; empty without them."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        return "\n".join([*parts, *([self.formatStack(record.stack_info)] if record.stack_info else [])])


class TextFormatter(LineFormatter):
    """``TIME LEVEL [PID] LOGGER component=... epoch=... job=... attempt=... - MESSAGE``, and indented what follows."""

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
    """Where and how a process logs.

    Args:
        file: the log file, made with mode 0600; None for the standard error stream.
        level: a level name of the logging module.
        max_bytes: size at which the file is put aside; 0 for never.
        backups: how many put-aside files are kept.
        as_json: whether each line is a JSON object.
        component: what the lines say that the process is; empty to say nothing.
    """

    file: Path | None
    level: str = "INFO"
    max_bytes: int = 0
    backups: int = 0
    as_json: bool = False
    component: str = ""


class LogFile(logging.handlers.RotatingFileHandler):
    """A file of mode 0600 that is put aside when it is full, and so is each that follows it.

    The standard library's formats each line twice, and asks the file system about each. Here the size is counted.

    Args:
        file: the file.
        max_bytes: size beyond which it does not grow; 0 for no limit.
        backups: how many put-aside files are kept.
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
            if self.stream is None:  # a roll-over could not open its new file
                self.stream = self._open()
            self.stream.write(line)
            self.stream.flush()
            self._size += size
        except Exception:  # logging's own way: a log that cannot be written breaks nothing else
            self.handleError(record)


def configure_logging(config: LogConfig) -> None:
    """Send everything that this process logs to the file (or the standard error stream), and nowhere else."""
    for earlier in list(logging.root.handlers):
        logging.root.removeHandler(earlier)
        earlier.close()
    file = config.file
    handler = logging.StreamHandler() if file is None else LogFile(file, config.max_bytes, config.backups)
    handler.setFormatter(JsonFormatter() if config.as_json else TextFormatter())
    logging.root.addHandler(handler)
    logging.root.setLevel(config.level)
    set_process_context(component=config.component or None)
