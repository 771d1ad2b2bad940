"""When a Spark driver is lost, and what is asked of it to find out; no process takes part."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.checkpoint.errors import RemoteStorageError
from runtime.protocol.execution_state import ErrorInfo, FailureKind
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import DriverCallError, DriverLostError, ZygoteError, ZygoteLostError
from runtime.spark.task.control import describe
from runtime.taskexecutor.driver_health import (
    DriverHealth,
    DriverLosses,
    DriverWatch,
    Finding,
    is_python_late,
    is_storage_away,
    kind_of,
    may_be_sparks,
)

POISONED = "org.apache.spark.SparkException: config.txt exists and does not match contents of config.txt"
STOPPED = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."


def test_a_stopped_context_is_a_loss_at_once() -> None:
    assert DriverHealth().after(Finding.STOPPED).loss == "its SparkContext has been stopped"


def test_one_failed_trial_is_an_accident_and_two_in_a_row_are_a_loss() -> None:
    once = DriverHealth().after(Finding.FAILED, POISONED, is_trial=True)
    assert (once.loss, once.needs_trial) == ("", True)
    assert once.after(Finding.WELL).needs_trial, "a look runs no job, and tells nothing of them"
    assert once.after(Finding.WELL, is_trial=True) == DriverHealth()
    lost = once.after(Finding.FAILED, POISONED, is_trial=True)
    assert POISONED in lost.loss
    assert not lost.needs_trial
    assert lost.after(Finding.WELL, is_trial=True) == lost, "what is lost stays so"


def test_a_slow_driver_is_lost_after_many_looks_only_and_never_by_slow_trials() -> None:
    health = DriverHealth()
    for _ in range(100):
        health = health.after(Finding.SILENT, is_trial=True)
    assert health == DriverHealth()
    for _ in range(DriverHealth.SILENCES_LOST - 1):
        health = health.after(Finding.SILENT)
    assert health.loss == ""
    assert health.after(Finding.WELL).silences == 0
    assert health.after(Finding.SILENT).loss == "it does not answer"


@dataclass
class FakeDriver:
    """Answers what it is told to, and notes what it was condemned for."""

    answers: list[bool | Exception] = field(default_factory=list)
    condemned: list[str] = field(default_factory=list)
    info: Any = field(default_factory=lambda: SimpleNamespace(pid=7))
    alive: bool = True
    ends: bool = False
    """Whether it is about to end."""

    async def wait_dead(self, timeout: float | None = None) -> bool:
        assert timeout, "a driver that lives on would be waited for without an end"
        return self.ends

    async def ping(self) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, why: str = "") -> None:
        self.condemned.append(why)


class Trials:
    """Trials that end as they are told to, then well; counts them."""

    def __init__(self, *results: str | Exception) -> None:
        self._results = list(results)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        await asyncio.sleep(0)
        result = self._results.pop(0) if self._results else ""
        if isinstance(result, Exception):
            raise result
        return result


def watch(driver: FakeDriver, trials: Trials, tasks: int = 0) -> DriverWatch:
    return DriverWatch(cast(SparkDriver, driver), trials, lambda: tasks > 0)


@pytest.mark.parametrize(
    ("answers", "results", "loss", "count"),
    [
        ([], [], "", 1),
        ([], [POISONED], "", 2),
        ([], [POISONED, POISONED], POISONED, 2),
        ([], [STOPPED], "has been stopped", 1),
        ([], [DriverCallError(STOPPED)], "has been stopped", 1),
        ([], [DriverCallError("refused"), DriverCallError("refused")], "refused", 2),
        ([], [ZygoteError("no process"), ZygoteError("no process")], "", 1),
        ([], [OSError("no directory")], "", 1),
        ([], ["java.io.IOException: No space left on device"], "", 1),
        ([False], [], "has been stopped", 0),
        ([DriverCallError(STOPPED)], [], "has been stopped", 0),
        ([DriverLostError("gone")], [], "", 0),
    ],
)
async def test_an_examination(
    answers: list[bool | Exception], results: list[str | Exception], loss: str, count: int
) -> None:
    driver, trials = FakeDriver(answers), Trials(*results)
    found = await watch(driver, trials).examine()
    assert loss in found
    assert bool(found) == bool(loss)
    assert driver.condemned == ([found] if loss else [])
    assert trials.count == count


async def test_tasks_that_fail_together_share_one_examination() -> None:
    driver, trials = FakeDriver(), Trials(POISONED, POISONED)
    watching = watch(driver, trials)
    found = await asyncio.gather(*(watching.examine() for _ in range(5)))
    assert all(POISONED in each for each in found)
    assert (trials.count, len(driver.condemned)) == (2, 1)
    assert await watching.examine() == found[0], "it is asked no more"
    assert trials.count == 2


GONE = DriverLostError("the driver JVM does not answer: connection refused")
BROKEN_OFF = DriverCallError("An error occurred while calling o23.sc")


@pytest.mark.parametrize(
    ("error", "answer", "alive", "kind"),
    [
        (OSError("no such file"), True, True, FailureKind.RUNTIME),
        (ZygoteError("no process"), True, True, FailureKind.RUNTIME),
        (ZygoteLostError("it has ended"), True, True, FailureKind.TASK_PROCESS_LOST),
        (OSError("no such file"), True, False, FailureKind.SPARK_LOST),
        (GONE, True, True, FailureKind.SPARK_LOST),
        (OSError("/proc/7/cwd"), GONE, True, FailureKind.SPARK_LOST),
        (ZygoteLostError("it has ended"), GONE, True, FailureKind.SPARK_LOST),
        (OSError("no such file"), False, True, FailureKind.SPARK_LOST),
        (OSError("no such file"), DriverCallError("no such class"), True, FailureKind.RUNTIME),
        (DriverCallError("refused"), True, True, FailureKind.RUNTIME),
    ],
)
async def test_a_jvm_that_is_dying_is_lost_though_its_process_is_there(
    error: Exception, answer: bool | Exception, alive: bool, kind: FailureKind
) -> None:
    driver = cast(SparkDriver, FakeDriver([answer], alive=alive))
    assert await kind_of(error, driver, None) == kind


@pytest.mark.parametrize("error", [BROKEN_OFF, OSError("/proc/7/cwd")])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("answer", [BROKEN_OFF, GONE])
async def test_a_jvm_whose_death_breaks_off_the_question_is_lost(
    error: Exception, is_shared: bool, answer: Exception
) -> None:
    driver = FakeDriver([answer, answer], ends=True)
    trials = Trials(GONE)
    found = await kind_of(error, cast(SparkDriver, driver), watch(driver, trials) if is_shared else None)
    assert found is FailureKind.SPARK_LOST


async def test_what_a_driver_refuses_is_its_failure_where_it_fails_every_job() -> None:
    for results, kind in (((), FailureKind.RUNTIME), ((POISONED, POISONED), FailureKind.SPARK_LOST)):
        driver = FakeDriver()
        found = await kind_of(DriverCallError("refused"), cast(SparkDriver, driver), watch(driver, Trials(*results)))
        assert found == kind


@pytest.mark.parametrize(
    ("type_", "traceback", "may_be"),
    [
        ("py4j.protocol.Py4JJavaError", "", True),
        ("pyspark.errors.exceptions.captured.PythonException", "", True),
        ("pyspark.errors.exceptions.captured.AnalysisException", "", False),
        ("ZeroDivisionError", "", False),
        ("MyError", 'File "/site-packages/py4j/protocol.py"', True),
    ],
)
def test_which_failures_may_be_the_drivers(type_: str, traceback: str, may_be: bool) -> None:
    assert may_be_sparks(ErrorInfo(FailureKind.USER_CODE, type_, "", traceback)) == may_be


@pytest.mark.parametrize(
    ("message", "traceback", "is_late"),
    [
        ("org.apache.spark.SparkException: Python worker failed to connect back.\n\nJVM stacktrace:\n", "", True),
        ("MyError: no batch", "... Caused by: SparkException: Python worker failed to connect back.\n", True),
        ("Python worker exited unexpectedly (crashed)", "", False),
    ],
)
def test_a_python_that_spark_has_not_waited_for_is_told_from_the_codes_failures(
    message: str, traceback: str, is_late: bool
) -> None:
    assert is_python_late(ErrorInfo(FailureKind.USER_CODE, "SparkException", message, traceback)) == is_late


@pytest.mark.parametrize(
    ("name", "traceback", "is_away"),
    [
        ("runtime.checkpoint.errors.RemoteStorageError", "", True),
        ("MyError", "runtime.checkpoint.errors.RemoteStorageError: s3://b/live: cannot read it\n\nDuring ...", True),
        ("runtime.checkpoint.errors.SavepointError", "s3://b/live", False),
    ],
)
def test_storage_that_does_not_answer_is_told_from_the_codes_failures(name: str, traceback: str, is_away: bool) -> None:
    assert describe(RemoteStorageError("away")).type == "runtime.checkpoint.errors.RemoteStorageError"
    assert is_storage_away(ErrorInfo(FailureKind.USER_CODE, name, "", traceback)) == is_away


def test_the_last_loss_is_kept_for_the_next_task_executor(tmp_path: Path) -> None:
    assert DriverLosses(tmp_path).last() == ""
    DriverLosses(tmp_path).note("the Spark driver (process 7) has ended: stopped", 0)
    assert DriverLosses(tmp_path).last() == "1970-01-01 00:00:00 UTC: the Spark driver (process 7) has ended: stopped"
    assert (tmp_path / "spark-loss").stat().st_mode & 0o077 == 0
