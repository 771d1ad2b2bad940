"""How far a TaskExecutor is with its registration, in a file: `start --role` tells it, and ends what never gets in."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from conf.files import write_private

logger = logging.getLogger(__name__)

WAITING = "waiting"
REFUSED = "refused"
REGISTERED = "registered"


class RegistrationState:
    """The file, in the worker's own directory.

    Args:
        directory: of the worker.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "registration.json"
        self._written: tuple[str, str] | None = None

    def write(self, state: str, reason: str = "") -> None:
        """Say how it stands: `WAITING` and `REFUSED` with their reason. A full disk keeps nobody from registering."""
        if (state, reason) != self._written:
            try:
                write_private(self._path, json.dumps({"state": state, "reason": reason}).encode())
            except OSError as error:
                logger.warning("that this TaskExecutor is %s cannot be written to %s: %s", state, self._path, error)
            else:
                self._written = state, reason

    def read(self) -> tuple[str, str]:
        """State and reason; waiting without a word where nothing was said yet."""
        try:
            values = json.loads(self._path.read_bytes())
            return str(values["state"]), str(values["reason"])
        except (FileNotFoundError, ValueError, KeyError):
            return WAITING, ""

    def forget(self) -> None:
        """Nothing is said any more; to be called before the TaskExecutor is started."""
        self._path.unlink(missing_ok=True)
