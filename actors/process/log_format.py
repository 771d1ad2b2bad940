"""How a line of a log is written: text with ``key=value``, or JSON. Pure: a record in, a line out."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping

from actors.process.log_context import FIELDS, current_context

CONTINUED = "\n    "
"""In front of the further lines of a text: what others have named themselves cannot look like an event."""

_USER_INFO = re.compile(r"(?<=://)[^/?#\s'\"]*:[^/?#\s'\"]*(?=@)")
_BEARER = re.compile(r"(?i)(?<=\bbearer )[A-Za-z0-9._~+/=-]{16,}")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f]+")


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
