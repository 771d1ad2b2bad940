"""Spark's stage and task counts by vertex, and the reporting of their changes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from runtime.protocol.descriptor import EndedSparkJob

MIN_INTERVAL = 0.2
"""Seconds between two progress messages of a task."""
MOST_STAGES = 12
"""Largest number of a vertex's stages that are reported one by one: the newest ones."""
MOST_JOBS = 32
"""Largest number of a vertex's ended Spark jobs that are reported one by one: the last ones."""
MOST_OF_A_NAME = 200
"""Largest number of characters of the name of a stage or of a Spark job."""


class VertexState(Enum):
    """State of a vertex of a task."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class Counts:
    """Spark stages and tasks."""

    stages: int = 0
    stages_completed: int = 0
    tasks_total: int = 0
    tasks_completed: int = 0
    tasks_active: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.stages + other.stages,
            self.stages_completed + other.stages_completed,
            self.tasks_total + other.tasks_total,
            self.tasks_completed + other.tasks_completed,
            self.tasks_active + other.tasks_active,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """A Spark stage: number, name (the call that made it), tasks, state in Spark's words, and stages that feed it."""

    stage_id: int
    name: str
    tasks: int
    completed: int
    active: int
    state: str
    parents: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        stage_id: int,
        name: str,
        tasks: int,
        completed: int,
        active: int,
        job: str,
        parents: tuple[int, ...] = (),
    ) -> Stage:
        """Return the stage with the state that follows from Spark's status tracker.

        *job* is the state of its Spark job (`JobExecutionStatus`). Spark skips a stage whose output an earlier job has
        left: such a stage has no completed task when its job has SUCCEEDED.
        """
        if completed >= tasks:
            state = "COMPLETE"
        elif job == "FAILED":
            state = "FAILED"
        elif job == "SUCCEEDED":
            state = "COMPLETE" if completed else "SKIPPED"
        else:
            state = "ACTIVE" if active or completed else "PENDING"
        return cls(stage_id, name[:MOST_OF_A_NAME], tasks, completed, active, state, parents)

    @property
    def counts(self) -> Counts:
        """Return the counts of this stage alone."""
        return Counts(1, int(self.completed >= self.tasks), self.tasks, self.completed, self.active)


def parents_of(rdds: Mapping[int, frozenset[int]], inputs: Mapping[int, frozenset[int]]) -> dict[int, tuple[int, ...]]:
    """Return, for each stage of a Spark job, the job's stages that it reads the shuffled output of.

    Args:
        rdds: the RDDs that each stage computes, by the stage's number.
        inputs: the RDDs of other stages that each stage reads.
    """
    return {
        stage: tuple(sorted(other for other, made in rdds.items() if other != stage and made & read))
        for stage, read in inputs.items()
    }


class TaskProgress:
    """The progress of a task's vertices (pure).

    `upstream` names the vertices chained into each vertex. A Spark operation counts for the vertex whose function runs,
    and for the unfinished vertices chained into it, since the same stages do their work.
    """

    def __init__(self, upstream: Mapping[str, Iterable[str]]) -> None:
        self._upstream = {vertex: tuple(producers) for vertex, producers in upstream.items()}
        self._states = dict.fromkeys(self._upstream, VertexState.CREATED)
        self._operations: dict[str, tuple[frozenset[str], Counts]] = {}
        self._finished_counts = dict.fromkeys(self._upstream, Counts())
        self._stages: dict[str, dict[int, Stage]] = {}
        self._jobs: dict[str, deque[EndedSparkJob]] = {}

    def start(self, vertex: str) -> None:
        """Mark a vertex as RUNNING: its function starts."""
        self._states[vertex] = VertexState.RUNNING

    def finish(self, vertex: str) -> None:
        """Mark a vertex as FINISHED, and its producers whose consumers all are.

        Call it when the vertex's result exists, or its action is done.
        """
        self._states[vertex] = VertexState.FINISHED
        for producer in self._upstream[vertex]:
            consumers = [other for other, producers in self._upstream.items() if producer in producers]
            if self._states[producer] is not VertexState.FINISHED and all(
                self._states[consumer] is VertexState.FINISHED for consumer in consumers
            ):
                self.finish(producer)

    def finish_all(self) -> None:
        """Mark all vertices as FINISHED."""
        self._states = dict.fromkeys(self._upstream, VertexState.FINISHED)

    def update(self, vertex: str, operation: str, counts: Counts, stages: Iterable[Stage] = ()) -> None:
        """Record the counts of an operation of `vertex` since its start, and the operation's known stages."""
        if operation in self._operations:
            vertices, _ = self._operations[operation]
        else:
            vertices = frozenset({vertex, *self._unfinished_ancestors(vertex)})
        self._operations[operation] = (vertices, counts)
        known = self._stages.get(vertex, {}) | {stage.stage_id: stage for stage in stages}
        self._stages[vertex] = dict(sorted(known.items())[-MOST_STAGES:])

    def job_ended(self, vertex: str, job: EndedSparkJob) -> None:
        """Record the times of a Spark job of `vertex`, once."""
        self._jobs.setdefault(vertex, deque(maxlen=MOST_JOBS)).append(job)

    def complete(self, operation: str) -> None:
        """Forget an operation that is over; its counts stay, and its skipped stages count as completed."""
        vertices, counts = self._operations.pop(operation, (frozenset[str](), Counts()))
        done = replace(counts, stages_completed=counts.stages, tasks_completed=counts.tasks_total, tasks_active=0)
        for vertex in vertices:
            self._finished_counts[vertex] += done

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the progress of every vertex in the form that is sent."""
        result: dict[str, dict[str, Any]] = {}
        for vertex, state in self._states.items():
            counts = self._finished_counts[vertex]
            for vertices, current in self._operations.values():
                if vertex in vertices:
                    counts += current
            result[vertex] = {"state": state.value, **asdict(counts)}
            if stages := self._stages.get(vertex):
                result[vertex]["latest_stages"] = [asdict(stage) for stage in stages.values()]
            if jobs := self._jobs.get(vertex):
                result[vertex]["latest_jobs"] = [asdict(job) for job in jobs]
        return result

    def _unfinished_ancestors(self, vertex: str) -> set[str]:
        found: set[str] = set()
        pending = list(self._upstream[vertex])
        while pending:
            producer = pending.pop()
            if producer not in found and self._states[producer] is not VertexState.FINISHED:
                found.add(producer)
                pending += self._upstream[producer]
        return found


class ProgressReporter:
    """Sends a task's progress when it has changed, at most every `MIN_INTERVAL` seconds. Thread-safe."""

    def __init__(
        self, progress: TaskProgress, tell: Callable[[dict[str, Any]], object], clock: Callable[[], float]
    ) -> None:
        self._progress = progress
        self._tell = tell
        self._clock = clock
        self._sent: dict[str, dict[str, Any]] | None = None
        self._sent_at = float("-inf")
        self._lock = threading.Lock()

    def change(self, method: Callable[..., None], *arguments: Any, force: bool = False) -> None:
        """Call a method of the `TaskProgress`; send the progress if the interval is over, or with *force*."""
        with self._lock:
            method(self._progress, *arguments)
            now = self._clock()
            if not force and now - self._sent_at < MIN_INTERVAL:
                return
            self._send(now)

    def tick(self) -> None:
        """Send the progress if it has changed and the interval is over."""
        with self._lock:
            now = self._clock()
            if now - self._sent_at >= MIN_INTERVAL:
                self._send(now)

    def _send(self, now: float) -> None:
        snapshot = self._progress.snapshot()
        if snapshot != self._sent:
            self._sent, self._sent_at = snapshot, now
            self._tell(snapshot)
