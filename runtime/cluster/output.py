"""Output of the command line: text, tables, facts, JSON, and errors with their remedies.

This module imports little, and ``rich`` only if a terminal shows a table, so that every command starts quickly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TextIO

from conf import SecretStr
from runtime.errors import ClusterError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SCHEMA = "understudy/v1"
"""Version of the JSON that commands print."""

STATE_STYLES = {
    "RUNNING": "green",
    "FINISHED": "bold green",
    "FAILED": "bold red",
    "FAILING": "red",
    "CANCELED": "yellow",
    "CANCELING": "yellow",
    "CANCELLING": "yellow",
    "RESTARTING": "yellow",
}

_NUMBERS = frozenset(
    {"SLOTS", "FREE", "SPARK", "MEMORY", "TASKS", "PID", "SPARK PID", "RESTARTS", "SIZE", "ATTEMPT", "BATCH"}
)


_STREAMS = {1: "standard output", 2: "standard error"}


class OutputError(ClusterError):
    """Standard output or standard error cannot be written.

    Args:
        file: number of its file: 1 or 2.
        cause: the system's error.
    """

    def __init__(self, file: int, cause: OSError) -> None:
        super().__init__(f"{_STREAMS[file]} cannot be written: {cause.strerror or cause}", "")
        self.file = file
        self.cause = cause

    @property
    def has_no_reader(self) -> bool:
        """True if the stream is a pipe whose reader has closed it."""
        return self.cause.errno == errno.EPIPE


class _StandardFile(io.FileIO):
    """Raises `OutputError`, so that no other code takes the error for that of another file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(self.fileno(), error) from error


def prepare_streams() -> None:
    """Make standard output and standard error raise `OutputError`; a closed one discards what is written.

    This is for the start of a process. It changes no stream that has been replaced.
    """
    with contextlib.suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= max(_STREAMS):  # the lowest numbers that are closed
            os.set_inheritable(opened, True)
        os.close(opened)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _prepared(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _prepared(sys.stderr, 2)


def _prepared(stream: TextIO | None, file: int) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # Python has none for a file that was closed
        return io.TextIOWrapper(io.BufferedWriter(_StandardFile(file, "wb", closefd=False)))
    return io.TextIOWrapper(
        io.BufferedWriter(_StandardFile(file, "wb", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def is_fancy(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a stream is a terminal that may show colours (see https://no-color.org)."""
    variables = os.environ if environ is None else environ
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM", "") not in ("", "dumb")


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print one line, unchanged, to standard output unless *stream* is given."""
    out = stream or sys.stdout
    out.write(text + "\n")
    out.flush()


def print_bytes(data: bytes, stream: TextIO) -> None:
    """Print bytes unchanged. Raises OutputError or OSError: the stream cannot be written."""
    binary = getattr(stream, "buffer", None)
    if binary is None:  # a stream in memory
        stream.write(data.decode(errors="replace"))
    else:
        stream.flush()
        binary.write(data)
    stream.flush()


def discard_output(stream: TextIO) -> None:
    """Send further output of a stream that cannot be written to nowhere, instead of raising errors."""
    with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def say(step: str) -> None:
    """Print a line to standard error: a step, a warning, or anything else besides a command's result."""
    print_line(step, sys.stderr)


def say_anyway(step: str) -> None:
    """Print a line as `say`, or discard it and what follows it if standard error cannot be written."""
    try:
        say(step)
    except (OSError, OutputError):
        discard_output(sys.stderr)


def print_document(value: object, *, indent: int | None = 2) -> None:
    """Print a command's answer as JSON to standard output; see `to_plain`.

    An object begins with ``"schema"``. In a list each object begins with it. So ``jq '.[]'`` works, and an object that
    is taken out of the list still names its schema, as an item of `kubectl` does.

    Args:
        value: one of `runtime.cluster.documents`, or a list of them.
        indent: columns; None for all of it on one line.

    Raises:
        TypeError: the value cannot be written as JSON.
    """
    print_line(json.dumps(_marked(to_plain(value)), indent=indent))


def print_answer(value: object, text: str, as_json: bool) -> None:
    """Print the result of a command: *value* as `print_document` does, or *text* on a line."""
    if as_json:
        print_document(value)
    else:
        print_line(text)


def _marked(plain: object) -> object:
    if isinstance(plain, list):
        return [_marked(item) for item in plain]
    return {"schema": SCHEMA, **plain} if isinstance(plain, dict) else plain


def print_error(error: BaseException | str, remedy: str = "", stream: TextIO | None = None) -> None:
    """Print ``error: ...`` and, if there is one, ``remedy: ...`` to standard error, one line each.

    Args:
        error: an exception or a text.
        remedy: replaces the exception's attribute ``remedy``.
        stream: replaces standard error.
    """
    out = stream or sys.stderr
    fancy = is_fancy(out)
    text = str(error) or type(error).__name__
    remedy = remedy or str(getattr(error, "remedy", "") or "")
    for label, style, line in (("error:", "31", text), ("remedy:", "36", remedy)):
        if line:
            head = f"\x1b[1;{style}m{label}\x1b[0m" if fancy else label
            out.write(f"{head} {clean(' '.join(line.split()))}\n")
    out.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], stream: TextIO | None = None) -> None:
    """Print a table: coloured on a terminal; in a pipe aligned with spaces and never cut.

    Args:
        columns: headings, in capitals. The column STATE is coloured, columns of numbers are aligned to the right.
        rows: one text for each column; unprintable characters are escaped.
        stream: replaces standard output.
    """
    out = stream or sys.stdout
    cells = [[clean(cell) for cell in row] for row in rows]
    if is_fancy(out):
        _print_rich_table(columns, cells, out)
        return
    widths = [max(map(width, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        padded = [
            " " * (wide - width(cell)) + cell if heading in _NUMBERS else cell + " " * (wide - width(cell))
            for heading, cell, wide in zip(columns, line, widths, strict=True)
        ]
        out.write("  ".join(padded).rstrip() + "\n")
    out.flush()


def _print_rich_table(columns: Sequence[str], rows: list[list[str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        # the other columns are folded instead, because an id on two lines cannot be copied
        table.add_column(
            heading,
            justify="right" if heading in _NUMBERS else "left",
            no_wrap=heading in ("ID", "STATE"),
            overflow="fold",
        )
    for row in rows:
        # Text, not str: the name of a job may look like markup
        table.add_row(
            *(
                Text(cell, style=STATE_STYLES.get(cell, "") if heading == "STATE" else "")
                for heading, cell in zip(columns, row, strict=True)
            )
        )
    Console(file=out).print(table)


def print_facts(facts: Mapping[str, str], stream: TextIO | None = None) -> None:
    """Print names and values, aligned, one pair a line; leave out pairs without a value."""
    shown = {name: value for name, value in facts.items() if value}
    wide = max(map(width, shown), default=0)
    for name, value in shown.items():
        print_line(f"{name + ':':<{wide + 1}}  {clean(value)}", stream)


def format_duration(milliseconds: float) -> str:
    """Return a length of time in at most two units: ``350 ms``, ``4.2 s``, ``3 min 12 s``, ``2 h 5 min``."""
    if milliseconds < 1000:
        return f"{max(0, int(milliseconds))} ms"
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("a minute or more has a unit")


def format_size(size: int) -> str:
    """Return a number of bytes in powers of 1024: ``512 B``, ``1.5 KB``, ``10 MB``."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1024
        if value < 1023.95 or unit == "TB":
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def format_moment(epoch_ms: int) -> str:
    """Return a moment in local time: ``2026-03-01 14:05:09``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_ms / 1000))


def clean(text: str) -> str:
    """Escape unprintable characters, so that an untrusted text stays on one line and cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clean_lines(text: str) -> str:
    """Return a text of many lines, such as a traceback, with each line passed through `clean`."""
    return "\n".join(clean(line.replace("\t", "    ")) for line in text.splitlines())


def width(text: str) -> int:
    """Return the number of columns of a text on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def to_plain(value: object) -> object:
    """Convert a value for JSON: dataclasses become objects, enumerations their values, paths texts.

    Secrets are masked.

    Raises:
        TypeError: the value cannot be written as JSON.
    """
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath | SecretStr):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")
