"""Reads the stage and task counts of a classic task's Spark jobs off the JVM's status tracker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from runtime.spark.progress import Counts, ProgressReporter, TaskProgress


class StatusReader:
    """Reads the jobs that bear a task's tag; each finished one is read once."""

    def __init__(self, jvm: Any, java_context: Any, tag: str) -> None:
        self._arrays: Any = jvm.java.util.Arrays
        self._tracker: Any = java_context.statusTracker()
        self._by_tag: Any = java_context.sc().statusTracker()  # Java's wrapper does not know tags
        self._tag = tag
        self._done: set[int] = set()

    def read(self) -> Iterator[tuple[int, Counts, bool]]:
        """Yield id, counts, and whether it is over, of the jobs that run or have ended since the last call."""
        for job_id in sorted(set(self._numbers(self._by_tag.getJobIdsForTag(self._tag))) - self._done):
            job = self._tracker.getJobInfo(job_id)
            if job is None:
                continue
            over = str(job.status().name()) in ("SUCCEEDED", "FAILED")
            counts = Counts()
            for stage_id in self._numbers(job.stageIds()):
                counts += self._stage(stage_id)
            if over:
                self._done.add(job_id)
            yield job_id, counts, over

    def _stage(self, stage_id: int) -> Counts:
        stage = self._tracker.getStageInfo(stage_id)
        if stage is None:
            return Counts(stages=1)
        total, completed, active = stage.numTasks(), stage.numCompletedTasks(), stage.numActiveTasks()
        return Counts(1, int(completed >= total), total, completed, active)

    def _numbers(self, array: Any) -> list[int]:
        """A Java int array, in one call instead of one for each element."""
        text = str(self._arrays.toString(array)).strip("[]")
        return [int(part) for part in text.split(",")] if text else []


class StatusPoller:
    """Looks at a `StatusReader` at an interval, on a thread of its own, and reports for a vertex."""

    def __init__(self, reader: StatusReader, reporter: ProgressReporter, vertex: str, interval: float) -> None:
        self._reader = reader
        self._reporter = reporter
        self._vertex = vertex
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-status", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look a last time, and end."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._ended.wait(self._interval)
            try:
                found = list(self._reader.read())
            except (Py4JError, OSError):  # the JVM is gone, which the script's own call says better
                return
            for job_id, counts, over in found:
                self._reporter.change(TaskProgress.update, self._vertex, f"job-{job_id}", counts)
                if over:
                    self._reporter.change(TaskProgress.complete, f"job-{job_id}")
            if last:
                return
            self._reporter.tick()
