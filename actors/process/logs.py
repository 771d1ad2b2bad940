"""Logging of a process of the cluster: one rotated file each, one line an event."""

from __future__ import annotations

import logging
import logging.handlers
import os
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from actors.process.log_context import set_process_context
from actors.process.log_format import JsonFormatter, TextFormatter


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
