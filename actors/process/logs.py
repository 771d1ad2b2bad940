"""Logging of a process of the cluster: one rotated file each, one line an event."""

from __future__ import annotations

import logging
import logging.handlers
from dataclasses import dataclass
from pathlib import Path

LINE_FORMAT = "%(asctime)s %(levelname)-5s [%(process)d] %(name)s - %(message)s"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where and how a process logs.

    Args:
        file: the log file, made with mode 0600; None for the standard error stream.
        level: a level name of the logging module.
        max_bytes: size at which the file is put aside; 0 for never.
        backups: how many put-aside files are kept.
    """

    file: Path | None
    level: str = "INFO"
    max_bytes: int = 0
    backups: int = 0


def configure_logging(config: LogConfig) -> None:
    """Send everything that this process logs to the file (or the standard error stream), and nowhere else."""
    for earlier in list(logging.root.handlers):
        logging.root.removeHandler(earlier)
        earlier.close()
    handler: logging.Handler
    if config.file is None:
        handler = logging.StreamHandler()
    else:
        config.file.touch(mode=0o600, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            config.file, maxBytes=config.max_bytes, backupCount=config.backups, encoding="utf-8"
        )
    handler.setFormatter(logging.Formatter(LINE_FORMAT))
    logging.root.addHandler(handler)
    logging.root.setLevel(config.level)
