"""How tasks share a Spark driver: which scripts cannot, and which scheduler pool each job has (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conf.options import SparkDriverChoice
from runtime.ids import JobID


class FairPools:
    """The jobs' pools in the fair scheduler of one driver: as many as jobs ever ran at once.

    Jobs that share a driver share its cores evenly when each has a pool of its own. Spark never forgets a pool, and
    sorts all of them at every offer of a core; so their names are used again.
    """

    def __init__(self) -> None:
        self._numbers: dict[JobID, int] = {}
        self._tasks: dict[JobID, int] = {}

    def enter(self, job_id: JobID) -> str:
        """A task of the job begins: the name of the job's pool, the same for all of its tasks."""
        if job_id not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[job_id] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._tasks[job_id] = self._tasks.get(job_id, 0) + 1
        return f"job-{self._numbers[job_id]}"

    def leave(self, job_id: JobID) -> None:
        """A task of the job has ended, and nothing of it runs in Spark."""
        self._tasks[job_id] -= 1
        if not self._tasks[job_id]:
            del self._tasks[job_id], self._numbers[job_id]


_HINTS = (
    (r"\bStreamingContext\b", "uses DStreams, and a driver runs the streams of one program only"),
    (
        r"\bhadoopConfiguration\b",
        "changes Hadoop's configuration, and the tasks of a driver share its open file systems",
    ),
    (
        r"\bfs\.(s3[an]?|azure|abfss?|wasbs?|adl|gs|oss|obs|cosn|swift)\.",
        "configures a file system, and the tasks of a driver share its open file systems",
    ),
    (r"\bADD\s+JARS?\b|\baddJar\b", "adds jars while it runs, which every task of a driver would get"),
    (r"\baddSparkListener\b", "adds a listener to Spark, which would hear of the other tasks too"),
    (r"\bSystem\.exit\b|\bgetRuntime\(\)|\bRuntime\.halt\b", "ends its JVM, which would be the other tasks' too"),
)
"""Patterns in a script's text that show that it cannot share a driver, and why."""


def own_driver_reason(choice: SparkDriverChoice, text: str, jars: Sequence[str]) -> str:
    """Why a script runs on a Spark driver of its own, as a predicate; empty where it shares the TaskExecutor's.

    The text is a hint only. What it does not show, a library's code for instance, the shared driver refuses or undoes;
    see `runtime.spark.driver.script_application`.

    Args:
        choice: ``task.spark-driver``.
        text: the script.
        jars: names of the jars that the job brings.
    """
    if jars:  # a script attaches to the driver's one context, whose class path they would change
        return f"brings jars ({', '.join(jars)})"
    if choice is SparkDriverChoice.OWN:
        return "is to have one (task.spark-driver)"
    if choice is SparkDriverChoice.AUTO:
        for pattern, reason in _HINTS:
            if re.search(pattern, text, re.IGNORECASE):
                return reason
    return ""
