"""Kinds of the streaming sources that a job's code reads, by its calls of PySpark's readers, in this process only."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from runtime.spark.task.streaming import FILE_FORMATS, settings_of

READS = ("load", "json", "orc", "parquet", "text", "csv", "xml", "table")
"""Methods of a `DataStreamReader` that make a source."""


class Sources:
    """Names the kind of each source, also of Python data sources, which the code registers."""

    def __init__(self) -> None:
        self._python: set[str] = set()

    def install(self, registration: Any, wrap: Callable[[Any], Any] = lambda data_source: data_source) -> None:
        """Watch PySpark's `DataSourceRegistration`; *wrap* returns the class that is registered for a given one."""
        original, known = registration.register, self._python

        @functools.wraps(original)
        def register(self: Any, dataSource: Any) -> Any:  # noqa: N803
            known.add(dataSource.name().lower())
            return original(self, wrap(dataSource))

        registration.register = register

    def kind(self, reader: Any, method: str) -> str:
        """Return the kind of a source: that of `kind_by_offsets`, ``python``, or ``rate-micro-batch``."""
        settings = settings_of(reader)
        kind = kind_by_offsets(method, settings)
        if kind != "other":
            return kind
        name = settings["format"]
        return "python" if name in self._python else name if name == "rate-micro-batch" else "other"


def kind_by_offsets(method: str, settings: Mapping[str, str]) -> str:
    """Return the kind of a source, as `runtime.checkpoint.description.source_kind` names it by its offsets.

    Args:
        method: one of `READS`.
        settings: of the reader.
    """
    kind = settings.get("format", "parquet") if method == "load" else method
    if kind in FILE_FORMATS:
        return "file"
    if kind == "kafka":
        return _topics(settings)
    return {"rate": "rate", "table": "unknown"}.get(kind, "other")


def _topics(settings: Mapping[str, str]) -> str:
    if "subscribe" in settings:
        return f"kafka:{','.join(sorted(topic.strip() for topic in settings['subscribe'].split(',')))}"
    if "assign" in settings:
        return f"kafka:{','.join(sorted(json.loads(settings['assign'])))}"
    return "unknown"  # by a pattern: only the broker knows the topics
