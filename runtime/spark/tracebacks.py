"""The user's own traceback: without our frames and runpy's, the job's file by the name that the user knows."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from actors.own_modules import wire_name
from runtime.spark.errors import STOP_REFUSED

_OWN_DIRECTORY = str(Path(__file__).resolve().parent)
_STOP_HINT = (
    "a script cannot stop the SparkContext that it shares with other jobs; use spark.stop(), or submit the job with "
    "--own-driver"
)
_MAX_TEXT = 200_000
"""Characters of a traceback that travel; Java's may be very long. The first lines and the last ones are kept."""


def describe(error: BaseException, files: dict[str, str]) -> dict[str, Any]:
    """Return an error as plain data: `type`, `message`, `error_class` (PySpark's condition, or None), `traceback`.

    `files` maps paths of the job's files to the names to be shown.
    """
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _clean(summary, files, set())
    kind = type(error)
    text = str(error)
    if STOP_REFUSED in text:
        text = f"{_STOP_HINT}: {text}"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{wire_name(kind.__module__)}."
    return {
        "type": f"{module}{kind.__qualname__}",
        "message": _clip(text),
        "error_class": _error_class(error),
        "traceback": _clip("".join(summary.format())),
    }


def _clean(summary: traceback.TracebackException, files: dict[str, str], seen: set[int]) -> None:
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not frame.filename.startswith((_OWN_DIRECTORY, "<frozen"))]
    for frame in kept:
        frame.filename = files.get(frame.filename, frame.filename)
    summary.stack = traceback.StackSummary.from_list(kept)
    file = getattr(summary, "filename", None)  # of a SyntaxError
    if file is not None:
        summary.filename = files.get(file, file)
    for linked in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        if linked is not None:
            _clean(linked, files, seen)


def _error_class(error: BaseException) -> str | None:
    """The error condition of PySpark's exceptions, such as TABLE_OR_VIEW_NOT_FOUND."""
    for name in ("getCondition", "getErrorClass"):
        method = getattr(error, name, None)
        if callable(method):
            try:
                value = method()
            except Exception:  # a Java exception whose JVM is gone cannot say
                return None
            return None if value is None else str(value)
    return None


def _clip(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - _MAX_TEXT} characters left out ...\n{text[-half:]}"
