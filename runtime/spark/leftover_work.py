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

from runtime.spark.handles import JvmHandles

_ANSWER = "10s"
_BUS_WAIT_MS = 1000
_NEWEST = 100
"""Jobs of the JVM among which those that were cancelled are looked for: their tasks end in seconds, or never."""


class LeftoverSparkWork:
    """The remains of one task; `look` until it returns nothing. Blocking, and not thread-safe.

    Args:
        handles: those of the driver's JVM.
        context: its JavaSparkContext.
        tags: the tags of the Spark jobs that may run.
        prefix: what the tags of all the task's Spark jobs begin with.
        thread_names: how the names of the task's JVM threads end.
        interrupted: whether the task may have been interrupted before: then Spark jobs that it has had are looked for
            too, for of a cancelled one tasks may still run.
    """

    def __init__(
        self,
        handles: JvmHandles,
        context: Any,
        tags: Iterable[str],
        prefix: str,
        thread_names: Iterable[str],
        interrupted: bool,
    ) -> None:
        self._handles = handles
        self._context: Any = context.sc()
        self._tracker: Any = context.statusTracker()
        self._tags = tuple(tags)
        self._prefix = prefix
        self._thread_names = tuple(thread_names)
        self._jobs: set[int] = set()
        self.interrupted = interrupted

    def look(self) -> str:
        """Cancel what runs; return in words what has not ended yet, nothing where all has."""
        for tag in self._tags:
            self._jobs |= self._cancel(tag)
        left = [f"thread {name}" for name in self._threads()]
        self.interrupted = self.interrupted or bool(self._jobs)
        if self.interrupted:
            with contextlib.suppress(Py4JJavaError):  # a TimeoutException: on a busy bus the next look is as good
                self._context.listenerBus().waitUntilEmpty(_BUS_WAIT_MS)
            self._jobs |= self._unsuccessful()
            left += [text for job_id in sorted(self._jobs) if (text := self._running(job_id))]
        return ", ".join(left)

    def _cancel(self, tag: str) -> set[int]:
        """Cancel the jobs that bear a tag; their ids, from the scheduler itself and not from what it has published."""
        cancelled = self._context.cancelJobsWithTagWithFuture(tag, "its task has ended")
        jobs = self._handles.await_result(cancelled, self._handles.new_duration(_ANSWER))
        return {int(job.jobId()) for job in self._handles.as_java(jobs)}

    def _unsuccessful(self) -> set[int]:
        """The task's newest jobs that run, or were cancelled."""
        as_java = self._handles.as_java
        jobs = as_java(self._context.statusStore().jobsList(self._handles.unsuccessful).take(_NEWEST))
        return {
            int(job.jobId()) for job in jobs if any(str(t).startswith(self._prefix) for t in as_java(job.jobTags()))
        }

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
        living = self._handles.all_stack_traces().keySet().toString()  # not a call for each thread
        return [name for name in self._thread_names if f"{name}," in living]
