"""Files in a worker's own directory, by which its TaskExecutor and the worker's runner inform each other."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from conf.files import write_private
from runtime.taskexecutor.slot_table import UNKNOWN_USER

logger = logging.getLogger(__name__)

WAITING = "waiting"
REFUSED = "refused"
REGISTERED = "registered"


class RegistrationState:
    """State of a TaskExecutor's registration: `start --role` shows it, and ends a worker that never registers.

    Args:
        directory: of the worker.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "registration.json"
        self._written: tuple[str, str] | None = None

    def write(self, state: str, reason: str = "") -> None:
        """Write the state; `WAITING` and `REFUSED` have a reason. A failure to write is logged, and raises nothing."""
        if (state, reason) != self._written:
            try:
                write_private(self._path, json.dumps({"state": state, "reason": reason}).encode())
            except OSError as error:
                logger.warning("the state %r of the registration cannot be written to %s: %s", state, self._path, error)
            else:
                self._written = state, reason

    def read(self) -> tuple[str, str]:
        """Return state and reason; `WAITING` without a reason if nothing was written yet."""
        try:
            values = json.loads(self._path.read_bytes())
            return str(values["state"]), str(values["reason"])
        except (FileNotFoundError, ValueError, KeyError):
            return WAITING, ""

    def forget(self) -> None:
        """Remove the file; call this before the TaskExecutor is started."""
        self._path.unlink(missing_ok=True)


class DriverUser:
    """The user whom a worker's Spark driver has served, for the next TaskExecutor that adopts the driver.

    Args:
        directory: of the worker.
        pid: of the driver.
        start_time: of that process; with the pid it names the process.
    """

    def __init__(self, directory: Path, pid: int, start_time: int) -> None:
        self._path = directory / "driver-user.json"
        self._driver = [pid, start_time]

    def write(self, user: str) -> None:
        """Write the user. Raises OSError."""
        write_private(self._path, json.dumps({"driver": self._driver, "user": user}).encode())

    def read(self) -> str | None:
        """Return the user; None if the driver has served none, `UNKNOWN_USER` if the file cannot be read."""
        try:
            values = json.loads(self._path.read_bytes())
            return str(values["user"]) if values["driver"] == self._driver else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("the user of the Spark driver cannot be read from %s: %s", self._path, error)
            return UNKNOWN_USER


@dataclass(frozen=True, slots=True)
class Successor:
    """The environment in which a process continues, as an upgrade has ordered.

    A worker does so after the end of its TaskExecutor, and the process that keeps a host's workers at once.

    Args:
        task_executor: process id of the TaskExecutor whose end is meant; or of the host's process.
        python: the interpreter.
        path: directories of packages, as in ``PYTHONPATH``.
    """

    task_executor: int
    python: str
    path: str

    @classmethod
    def file(cls, directory: Path) -> Path:
        """Return the path of the file in a worker's directory."""
        return directory / "successor.json"

    @classmethod
    def take(cls, directory: Path, task_executor: int) -> Successor | None:
        """Remove the file of a worker's directory; return what it orders for the end of that TaskExecutor, if it does.

        None, too, if its interpreter cannot be run. Raises OSError.
        """
        file = cls.file(directory)
        try:
            found = cls.decode(file.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read, and is removed: %s", file, error)
            found = None
        file.unlink(missing_ok=True)
        if found is None or found.task_executor != task_executor:
            return None
        if not os.access(found.python, os.X_OK):
            logger.error("this process stays in its environment: %s cannot be run", found.python)
            return None
        return found

    @classmethod
    def decode(cls, data: bytes) -> Successor:
        """Return an order from its stored form; raises ValueError, KeyError or TypeError."""
        values = json.loads(data)
        return cls(int(values["task_executor"]), str(values["python"]), str(values["path"]))

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(asdict(self)).encode()

    def write(self, directory: Path) -> None:
        """Write the file into a worker's directory. Raises OSError."""
        write_private(self.file(directory), self.encode())


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """The program that embeds the cluster: its process, and the Unix socket at which it takes its task.

    A worker that has this file uses the program's own Spark; see `runtime.embedded`.
    """

    pid: int
    socket: str

    @classmethod
    def file(cls, directory: Path) -> Path:
        """Return the path of the file in a worker's directory."""
        return directory / "program.json"

    @classmethod
    def read(cls, directory: Path) -> ProgramInfo:
        """Read the file of a worker's directory. Raises OSError, ValueError."""
        return cls(**json.loads(cls.file(directory).read_bytes()))

    def write(self, directory: Path) -> None:
        """Write the file into a worker's directory. Raises OSError."""
        write_private(self.file(directory), json.dumps(asdict(self)).encode())
