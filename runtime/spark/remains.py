"""What is left in the driver JVM of a task that has ended: its Spark jobs, their running tasks, its own threads.

Spark's cancel returns before anything has ended: the scheduler marks the jobs, the executors' threads end when they
look, and a thread that was between two Spark jobs submits the next one. So whoever says CANCELED looks here until
nothing is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError

_ANSWER = "10s"
_BUS_WAIT_MS = 1000


class TaskRemains:
    """The remains of one task; `look` until it returns nothing. Blocking, and not thread-safe.

    Args:
        jvm: the driver's JVM.
        context: its JavaSparkContext.
        tags: the tags of the task's Spark jobs.
        thread_names: how the names of the task's JVM threads end.
    """

    def __init__(self, jvm: Any, context: Any, tags: Iterable[str], thread_names: Iterable[str]) -> None:
        self._jvm = jvm
        self._context: Any = context.sc()
        self._tracker: Any = context.statusTracker()
        self._tags = tuple(tags)
        self._thread_names = tuple(thread_names)
        self._jobs: set[int] = set()

    def look(self) -> str:
        """Cancel what runs; return in words what has not ended yet, nothing where all has."""
        for tag in self._tags:
            self._jobs |= self._cancel(tag)
        left = [f"thread {name}" for name in self._threads()]
        if self._jobs:
            with contextlib.suppress(Py4JJavaError):  # a TimeoutException: on a busy bus the next look is as good
                self._context.listenerBus().waitUntilEmpty(_BUS_WAIT_MS)
            left += [text for job_id in sorted(self._jobs) if (text := self._running(job_id))]
        return ", ".join(left)

    def _cancel(self, tag: str) -> set[int]:
        """Cancel the jobs that bear a tag; their ids, from the scheduler itself and not from what it has published."""
        cancelled = self._context.cancelJobsWithTagWithFuture(tag, "its task has ended")
        limit = self._jvm.scala.concurrent.duration.Duration.create(_ANSWER)
        jobs = self._jvm.scala.concurrent.Await.result(cancelled, limit)
        return {int(job.jobId()) for job in self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(jobs)}

    def _running(self, job_id: int) -> str:
        job = self._tracker.getJobInfo(job_id)
        if job is None:
            return ""
        if str(job.status().name()) == "RUNNING":
            return f"Spark job {job_id}"
        for stage_id in job.stageIds():
            stage = self._tracker.getStageInfo(stage_id)
            if stage is not None and stage.numActiveTasks() > 0:
                return f"{stage.numActiveTasks()} tasks of Spark job {job_id}"
        return ""

    def _threads(self) -> list[str]:
        if not self._thread_names:
            return []
        living = str(self._jvm.java.lang.Thread.getAllStackTraces().keySet())  # one call, not one for each thread
        return [name for name in self._thread_names if f"{name}," in living]
