"""Health of a Spark driver: a trial job with a Python worker shows whether it still runs jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from actors.own_modules import wire_name
from conf.files import write_private
from runtime.checkpoint.errors import RemoteStorageError
from runtime.protocol.execution_state import ErrorInfo, FailureKind
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import DriverCallError, DriverLostError, SparkError, ZygoteError, ZygoteLostError

logger = logging.getLogger(__name__)

STOPPED_TEXTS = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
"""Parts of the messages with which Spark rejects work because its context was stopped."""

DISK_FULL = "No space left on device"

_STORAGE_AWAY = wire_name(f"{RemoteStorageError.__module__}.{RemoteStorageError.__qualname__}")

_PYTHON_LATE = "Python worker failed to connect back"
"""Spark's message if a new Python process has not reported to it within 10 s; there is no setting for that time."""

LOOK_INTERVAL_S = 2.0
ANSWER_S = 30.0
EXAMINATION_S = 10.0
"""Longest time in seconds that the end of a failed task waits for a trial."""
_DETAIL = 1000
"""Most characters shown of a failure."""
DYING_S = 5.0
"""Longest time in seconds to wait for the end of a JVM that may be dying."""
PAUSE_S = 10.0
"""Pause in seconds between two trials on a driver without tasks."""


class Finding(Enum):
    """Result of a check of a driver, or of a trial on it."""

    WELL = "well"
    STOPPED = "stopped"
    """Its SparkContext is stopped, and cannot be started again."""
    FAILED = "failed"
    """The trial failed."""
    SILENT = "silent"
    """No answer yet: the machine is busy, other tasks have the cores, or the driver hangs."""


@dataclass(frozen=True, slots=True)
class DriverHealth:
    """Counts findings, and decides when a driver is lost (pure). Immutable: `after` returns the next one.

    Args:
        failures: failed trials in a row.
        silences: checks in a row without an answer.
        loss: why the driver is lost; empty while it is not.
    """

    failures: int = 0
    silences: int = 0
    loss: str = ""

    FAILURES_LOST = 2
    """A single failure may be an accident, such as a Python worker that the kernel has killed."""
    SILENCES_LOST = 20
    """Ten minutes, with `ANSWER_S` for each. Trials that wait for a core do not count."""

    def after(self, finding: Finding, detail: str = "", *, is_trial: bool = False) -> DriverHealth:
        """Return the health after a finding; *detail* is the message, *is_trial* whether it comes from a trial."""
        if self.loss:
            return self
        if finding is Finding.STOPPED:
            return DriverHealth(loss="its SparkContext has been stopped")
        if finding is Finding.FAILED:
            failures = self.failures + 1
            if failures >= DriverHealth.FAILURES_LOST:
                return DriverHealth(failures, loss=f"it fails every job: {detail}")
            return DriverHealth(failures)
        if finding is Finding.SILENT:
            silences = self.silences + (not is_trial)
            if silences >= DriverHealth.SILENCES_LOST:
                return DriverHealth(self.failures, silences, "it does not answer")
            return DriverHealth(self.failures, silences)
        return DriverHealth() if is_trial else DriverHealth(self.failures)

    @property
    def needs_trial(self) -> bool:
        """Return whether a trial must follow at once."""
        return self.failures > 0 and not self.loss


class DriverLosses:
    """Keeps the last loss of a worker's driver in a file, for the next TaskExecutor of this worker.

    Args:
        directory: of the worker.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "spark-loss"

    def note(self, loss: str, now_s: float) -> None:
        """Write a loss to the file; a failure to write is logged, and raises nothing."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
        try:
            write_private(self._path, f"{moment}: {loss}".encode())
        except OSError as error:
            logger.warning("the loss of the Spark driver cannot be written to %s: %s", self._path, error)

    def last(self) -> str:
        """Return when and why a driver was last lost; empty if none was."""
        try:
            return self._path.read_text()
        except OSError:
            return ""


class DriverWatch:
    """Checks the driver that tasks share, and kills it once it is lost: then its TaskExecutor and tasks restart.

    A check asks whether the SparkContext is stopped (1 ms, every 2 s). A trial runs a job with a Python worker. It
    follows when a task has failed in a way that the driver may have caused. It also follows when the last task that
    used the driver has ended.

    Args:
        driver: the driver.
        trial: runs a trivial job in a process of its own; returns the first line of its failure, or nothing.
        has_tasks: returns whether tasks run.
    """

    def __init__(self, driver: SparkDriver, trial: Callable[[], Awaitable[str]], has_tasks: Callable[[], bool]) -> None:
        self._driver = driver
        self._trial = trial
        self._has_tasks = has_tasks
        self._health = DriverHealth()
        self._used = False
        self._tried_at = -PAUSE_S
        self._examination: asyncio.Task[None] | None = None

    def task_ended(self) -> None:
        """Note that a task has used the driver: a trial follows once no task uses it."""
        self._used = True

    async def run(self) -> None:
        """Watch until the driver is lost."""
        while not self._health.loss:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self._look()
                if self._used and not self._has_tasks() and time.monotonic() - self._tried_at >= PAUSE_S:
                    await self._examine()
            except DriverLostError:
                return  # the process has ended; `TaskExecutor` watches for that

    async def examine(self) -> str:
        """Return why the driver is lost; empty if it is well, or does not answer within `EXAMINATION_S`."""
        if not self._health.loss:
            if self._examination is None or self._examination.done():
                self._examination = asyncio.create_task(self._examine())
            try:
                async with asyncio.timeout(EXAMINATION_S):
                    await asyncio.shield(self._examination)
            except (TimeoutError, DriverLostError):
                pass
        return self._health.loss

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                self._found(Finding.WELL if await self._driver.ping() else Finding.STOPPED)
        except TimeoutError:
            self._found(Finding.SILENT)
        except DriverLostError:
            raise
        except SparkError as error:
            self._found(_finding(str(error)), str(error))

    async def _examine(self) -> None:
        await self._look()
        while not self._health.loss:
            self._used, self._tried_at = False, time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    failure = await self._trial()
                self._found(_finding(failure), failure, is_trial=True)
            except TimeoutError:
                self._found(Finding.SILENT, is_trial=True)
                return
            except (ZygoteError, OSError) as error:
                logger.warning(
                    "no trial of the Spark driver (process %d) could be made: %s", self._driver.info.pid, error
                )
                return
            except DriverLostError:
                raise
            except SparkError as error:
                self._found(_finding(str(error)), str(error), is_trial=True)
            if not self._health.needs_trial:
                return

    def _found(self, finding: Finding, said: str = "", *, is_trial: bool = False) -> None:
        detail = " ".join(line.strip() for line in said.splitlines()[:2])[:_DETAIL]
        before, self._health = self._health, self._health.after(finding, detail, is_trial=is_trial)
        if finding in (Finding.FAILED, Finding.SILENT):
            logger.warning("the Spark driver (process %d): %s %s", self._driver.info.pid, finding.value, detail)
        if self._health.loss and not before.loss:
            logger.critical("the Spark driver (process %d) is killed: %s", self._driver.info.pid, self._health.loss)
            self._driver.kill(self._health.loss)


async def kind_of(error: Exception, driver: SparkDriver, watch: DriverWatch | None) -> FailureKind:
    """Return which part has failed when a task could not be run: its Spark driver, its process or the runtime.

    Args:
        error: raised while the task was prepared, followed or ended.
        driver: of the task. A killed JVM takes up to a second to die, and rejects calls or breaks them off.
        watch: of that driver, if tasks share it.
    """
    if isinstance(error, DriverLostError) or not driver.alive or await _is_lost(error, driver, watch):
        return FailureKind.SPARK_LOST
    return FailureKind.TASK_PROCESS_LOST if isinstance(error, ZygoteLostError) else FailureKind.RUNTIME


async def _is_lost(error: Exception, driver: SparkDriver, watch: DriverWatch | None) -> bool:
    if isinstance(error, DriverCallError) and watch is not None and await watch.examine():
        return True
    try:
        async with asyncio.timeout(ANSWER_S):
            return not await driver.ping()
    except DriverLostError:
        return True
    except TimeoutError:
        return False
    except SparkError:
        # Py4J reports a call that the JVM's death has broken off like one that the JVM has rejected.
        return await driver.wait_dead(DYING_S)


def may_be_sparks(failure: ErrorInfo) -> bool:
    """Return whether the driver may have caused a failure of a task's code: the JVM raised it, not in analysis."""
    if failure.type.endswith(("AnalysisException", "ParseException")):
        return False
    return failure.type.startswith(("py4j.", "pyspark.")) or "py4j" in failure.traceback


def is_python_late(failure: ErrorInfo) -> bool:
    """Return whether Spark has given up a Python process of a task that was too slow to start: no fault of its code."""
    return _PYTHON_LATE in failure.message or _PYTHON_LATE in failure.traceback


def is_storage_away(failure: ErrorInfo) -> bool:
    """Return whether a query could not start as the file system of its state did not answer: no fault of its code."""
    return _STORAGE_AWAY in failure.type or _STORAGE_AWAY in failure.traceback


def _finding(failure: str) -> Finding:
    if not failure:
        return Finding.WELL
    if DISK_FULL in failure:
        return Finding.SILENT  # another driver would find the disk as full
    return Finding.STOPPED if any(text in failure for text in STOPPED_TEXTS) else Finding.FAILED
