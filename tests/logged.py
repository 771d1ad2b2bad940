"""What was logged while a test ran."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture, logger: str = "") -> list[str]:
    """The messages of the loggers whose names begin with *logger*.

    Not those of dead letters: the one actor system of all contract tests counts its own in this process, and sums them
    up by a timer, amid whatever test runs then.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(logger) and record.name != "actors.core.dead_letters"
    ]
