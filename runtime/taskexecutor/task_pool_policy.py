"""Which task processes are kept ready, and for what (pure).

Flink has no such pool: its tasks are threads. Ray's prestarted workers and the pre-forked children of web servers are
the models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.diagnostics import TaskPoolReport

MAX_IDLE_S = 900.0
"""Seconds after which a process that nobody took is replaced: Spark closes a Connect session after an hour's rest."""

REST_S = 2.0
"""Seconds for which the pool is not filled up after a task has taken a process, while some of each kind is left: what
makes one ready would take the cores from that task."""

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
FORGETTING = 0.9
"""Part that is left of the earlier demand for a kind whenever a process is asked for."""


class Miss(Enum):
    """Why a task did not get a process that was ready."""

    OFF = "off"
    EMPTY = "empty"
    OTHER_KIND = "other-kind"
    OWN_ENVIRONMENT = "own-environment"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Preparation:
    """A process to be made ready."""

    number: int
    kind: JobKind


@dataclass(slots=True)
class _Process:
    kind: JobKind
    ready_since: float | None = None


class TaskPoolPolicy:
    """Keeps at most *size* processes: one of each kind, and the others by what was asked for lately.

    One is made ready at a time, and none for `REST_S` after a process was taken, unless none of a wanted kind is left.
    After a failure the next one waits a second, twice as long after each further one.

    Args:
        size: most processes, ready or being made so; 0 keeps none.
        max_idle_s: seconds after which one that nobody took is replaced.
    """

    def __init__(self, size: int, max_idle_s: float = MAX_IDLE_S) -> None:
        self._size = size
        self._max_idle_s = max_idle_s
        self._processes: dict[int, _Process] = {}
        self._numbers = 0
        self._demand = dict.fromkeys(JobKind, 0.0)
        self._delay_s = 0.0
        self._not_before = self._rests_until = float("-inf")
        self._drained = False
        self._hits = 0
        self._misses: Counter[Miss] = Counter()
        self._died = 0
        self._failed = 0

    def take(self, kind: JobKind, own_environment: bool, now: float) -> int | Miss:
        """A task wants a process: the number of the one that has waited longest, or why it gets none."""
        self._rests_until = now + REST_S
        self._demand = {each: amount * FORGETTING for each, amount in self._demand.items()}
        if not own_environment:
            self._demand[kind] += 1.0
        found = self._pick(kind, own_environment)
        if isinstance(found, Miss):
            self._misses[found] += 1
        else:
            self._hits += 1
            del self._processes[found]
        return found

    def _pick(self, kind: JobKind, own_environment: bool) -> int | Miss:
        if self._size == 0 or self._drained:
            return Miss.OFF
        if own_environment:
            return Miss.OWN_ENVIRONMENT
        ready = self._ready()
        if not ready:
            return Miss.EMPTY
        return next((number for number in ready if self._processes[number].kind is kind), Miss.OTHER_KIND)

    def taken_was_dead(self) -> None:
        """The process that was taken last had ended: it was no hit."""
        self._hits -= 1
        self._misses[Miss.DIED] += 1

    def next_preparation(self, now: float) -> Preparation | None:
        """Return what to make ready now; None if nothing is wanted, or not yet (see `wake_at`)."""
        if not self._wants_more() or now < self._earliest():
            return None
        counts = Counter(process.kind for process in self._processes.values())
        missing = {kind: wanted - counts[kind] for kind, wanted in self._targets().items()}
        kind = max(missing, key=lambda each: (missing[each], self._demand[each]))
        self._numbers += 1
        self._processes[self._numbers] = _Process(kind)
        return Preparation(self._numbers, kind)

    def wake_at(self) -> float | None:
        """When something is to be looked at again though nothing happens; None if never."""
        times = [since + self._max_idle_s for process in self._processes.values() if (since := process.ready_since)]
        if self._wants_more():
            times.append(self._earliest())
        return min(times, default=None)

    def prepared(self, number: int, now: float) -> None:
        """A process is ready."""
        self._processes[number].ready_since = now
        self._delay_s = 0.0

    def failed(self, number: int, now: float) -> None:
        """A process could not be made ready."""
        if self._processes.pop(number, None) is not None:
            self._failed += 1
            self._slow_down(now)

    def died(self, number: int, now: float) -> None:
        """A process ended while it waited."""
        if self._processes.pop(number, None) is not None:
            self._died += 1
            self._slow_down(now)

    def surplus(self, now: float) -> list[int]:
        """Processes to be ended: those that waited too long, and what stands in the way of a kind that is wanted."""
        old = [number for number in self._ready() if now - (self._since(number)) >= self._max_idle_s]
        for number in old:
            del self._processes[number]
        if len(self._processes) < self._size:
            return old
        targets = self._targets()
        counts = Counter(process.kind for process in self._processes.values())
        for number in self._ready():
            kind = self._processes[number].kind
            if counts[kind] > targets[kind]:
                del self._processes[number]
                return [*old, number]
        return old

    def drain(self) -> list[int]:
        """Keep none from now on; returns those that are to be ended."""
        self._drained = True
        numbers = list(self._processes)
        self._processes.clear()
        return numbers

    def report(self) -> TaskPoolReport:
        """The counts."""
        idle = Counter(self._processes[number].kind.value for number in self._ready())
        misses = {reason.value: count for reason, count in self._misses.items()}
        return TaskPoolReport(self._size, dict(idle), self._hits, misses, self._died, self._failed)

    def _wants_more(self) -> bool:
        is_preparing = any(process.ready_since is None for process in self._processes.values())
        return not self._drained and not is_preparing and len(self._processes) < self._size

    def _earliest(self) -> float:
        """When the next one may be made ready."""
        counts = Counter(process.kind for process in self._processes.values())
        is_short = any(wanted and not counts[kind] for kind, wanted in self._targets().items())
        return self._not_before if is_short else max(self._not_before, self._rests_until)

    def _ready(self) -> list[int]:
        """The numbers of those that are ready, the longest waiting first."""
        return sorted(
            (number for number, process in self._processes.items() if process.ready_since is not None), key=self._since
        )

    def _since(self, number: int) -> float:
        return self._processes[number].ready_since or 0.0

    def _targets(self) -> dict[JobKind, int]:
        """How many of each kind: one, if there is room for one of each; the rest by demand (D'Hondt's method)."""
        targets = dict.fromkeys(JobKind, 1 if self._size >= len(JobKind) else 0)
        while sum(targets.values()) < self._size:
            kind = max(targets, key=lambda each: (self._demand[each] / (targets[each] + 1), -targets[each]))
            targets[kind] += 1
        return targets

    def _slow_down(self, now: float) -> None:
        self._delay_s = min(2 * self._delay_s or FIRST_DELAY_S, LONGEST_DELAY_S)
        self._not_before = now + self._delay_s
