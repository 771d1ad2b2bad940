"""Task processes that are ready: the pure `TaskPoolPolicy` decides which to keep, and `TaskPool` has the real ones.

Flink has no such pool: its tasks are threads. The models are Ray's prestarted workers and the pre-forked children of
web servers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from actors.rpc.endpoint import RpcEndpoint
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.diagnostics import TaskPoolReport
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import SparkError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint, PreparedSpec, TaskSpec
from runtime.spark.task.zygote_client import TaskProcess, Zygote

PREPARATION_TIMEOUT_S = 180.0

MAX_IDLE_S = 900.0
"""Seconds after which an unused process is replaced: Spark closes a Connect session after an idle hour."""

REST_S = 2.0
"""Pause in seconds after a task has taken a process: filling the pool would take the cores from that task.

There is no pause while a wanted kind is missing."""

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
FORGETTING = 0.9
"""Factor by which each request for a process reduces the earlier demand for every kind."""


class Miss(Enum):
    """Reason why a task did not get a ready process."""

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
    """Keeps at most *size* processes: one of each kind, and the others according to recent demand.

    It prepares one process at a time, and none for `REST_S` after a process was taken, unless a wanted kind is missing.
    After a failure it waits a second, and twice as long after each further one.

    Args:
        size: most processes, ready or in preparation; 0 keeps none.
        max_idle_s: seconds after which an unused process is replaced.
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
        """Return the number of the longest waiting process for a task, or the reason why it gets none."""
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
        """Count the process that was taken last as a miss, because it had ended."""
        self._hits -= 1
        self._misses[Miss.DIED] += 1

    def next_preparation(self, now: float) -> Preparation | None:
        """Return the process to prepare now; None if none is wanted, or not yet (see `wake_at`)."""
        if not self._wants_more() or now < self._earliest():
            return None
        counts = Counter(process.kind for process in self._processes.values())
        missing = {kind: wanted - counts[kind] for kind, wanted in self._targets().items()}
        kind = max(missing, key=lambda each: (missing[each], self._demand[each]))
        self._numbers += 1
        self._processes[self._numbers] = _Process(kind)
        return Preparation(self._numbers, kind)

    def wake_at(self) -> float | None:
        """Return the time at which to check again, even if nothing happens; None if never."""
        times = [since + self._max_idle_s for process in self._processes.values() if (since := process.ready_since)]
        if self._wants_more():
            times.append(self._earliest())
        return min(times, default=None)

    def prepared(self, number: int, now: float) -> None:
        """Note that a process is ready."""
        self._processes[number].ready_since = now
        self._delay_s = 0.0

    def failed(self, number: int, now: float) -> None:
        """Note that a process could not be prepared."""
        if self._processes.pop(number, None) is not None:
            self._failed += 1
            self._slow_down(now)

    def died(self, number: int, now: float) -> None:
        """Note that a process ended while it waited."""
        if self._processes.pop(number, None) is not None:
            self._died += 1
            self._slow_down(now)

    def surplus(self, now: float) -> list[int]:
        """Return the processes to end: those that waited too long, and one that takes the place of a wanted kind."""
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
        """Keep no process from now on; return those to end."""
        self._drained = True
        numbers = list(self._processes)
        self._processes.clear()
        return numbers

    def report(self) -> TaskPoolReport:
        """Return the counts."""
        idle = Counter(self._processes[number].kind.value for number in self._ready())
        misses = {reason.value: count for reason, count in self._misses.items()}
        return TaskPoolReport(self._size, dict(idle), self._hits, misses, self._died, self._failed)

    def _wants_more(self) -> bool:
        is_preparing = any(process.ready_since is None for process in self._processes.values())
        return not self._drained and not is_preparing and len(self._processes) < self._size

    def _earliest(self) -> float:
        """Return when the next process may be prepared."""
        counts = Counter(process.kind for process in self._processes.values())
        is_short = any(wanted and not counts[kind] for kind, wanted in self._targets().items())
        return self._not_before if is_short else max(self._not_before, self._rests_until)

    def _ready(self) -> list[int]:
        """Return the numbers of the ready processes, the longest waiting first."""
        return sorted(
            (number for number, process in self._processes.items() if process.ready_since is not None), key=self._since
        )

    def _since(self, number: int) -> float:
        return self._processes[number].ready_since or 0.0

    def _targets(self) -> dict[JobKind, int]:
        """Return the number of each kind: one, if there is room for all; the rest by demand (D'Hondt's method)."""
        targets = dict.fromkeys(JobKind, 1 if self._size >= len(JobKind) else 0)
        while sum(targets.values()) < self._size:
            kind = max(targets, key=lambda each: (self._demand[each] / (targets[each] + 1), -targets[each]))
            targets[kind] += 1
        return targets

    def _slow_down(self, now: float) -> None:
        self._delay_s = min(2 * self._delay_s or FIRST_DELAY_S, LONGEST_DELAY_S)
        self._not_before = now + self._delay_s


@dataclass(slots=True)
class ReadyProcess:
    """A process that is ready for one task, its way into Spark, and the file for a script's output from Spark."""

    process: TaskProcess
    endpoint: ClassicEndpoint | ConnectEndpoint
    output: Path | None = None


class TakenProcess:
    """A process that a task has taken: it runs that task, or is ended."""

    def __init__(self, pool: TaskPool, ready: ReadyProcess) -> None:
        self._pool = pool
        self._ready = ready

    @property
    def endpoint(self) -> ClassicEndpoint | ConnectEndpoint:
        """Its way into Spark."""
        return self._ready.endpoint

    async def run(self, spec: TaskSpec) -> TaskProcess | None:
        """Run a task in it; return None, and clean up, if the process or its session had ended before."""
        process, output = self._ready.process, self._ready.output
        try:
            if output is not None:
                output.rename(Path(spec.work_dir) / "stdout")  # Spark has it open
                self._ready.output = None
            is_open = True
            if isinstance(self.endpoint, ConnectEndpoint):
                is_open = await self._pool.configure(self.endpoint, spec.conf)
                spec = replace(spec, conf={})
            if is_open and await process.run(spec):
                return process
        except BaseException:
            await self._pool.end(self._ready)
            raise
        await self._pool.taken_was_dead(self._ready)
        return None


def private_file(path: Path) -> Path:
    """Make an empty file that only this user can read: other users could read one that the JVM makes itself."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return path


class TaskPool:
    """Forks processes and opens Spark sessions ahead of the tasks. Each is used once, so that nothing of a job stays.

    Args:
        endpoint: the TaskExecutor.
        driver: the Spark driver.
        zygote: forks the processes; None: no process is kept ready.
        directory: its own, for output; emptied. Must be on the file system of the attempts' directories.
        size: most processes that are kept ready; 0 keeps none.
    """

    def __init__(
        self, endpoint: RpcEndpoint, driver: SparkDriver, zygote: Zygote | None, directory: Path, size: int
    ) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        self._directory = directory
        self._endpoint = endpoint
        self._driver = driver
        self._zygote = zygote
        self._policy = TaskPoolPolicy(0 if zygote is None else size)
        self._ready: dict[int, ReadyProcess] = {}
        self._changed = asyncio.Event()
        self._stopped = False

    def take(self, kind: JobKind, *, own_environment: bool) -> TakenProcess | None:
        """Return a process for a task of a job; None if none is ready.

        Args:
            kind: of the job.
            own_environment: whether the job brings what its code imports: then its session has to be made for it.
        """
        found = self._policy.take(kind, own_environment, time.monotonic())
        self._changed.set()
        if isinstance(found, Miss):
            if found is not Miss.OFF:
                self._endpoint.log.info("no task process was ready for a %s: %s", kind.value, found.value)
            return None
        return TakenProcess(self, self._ready.pop(found))

    def report(self) -> TaskPoolReport:
        """Return the counts since the pool started."""
        return self._policy.report()

    async def fill(self) -> None:
        """Keep processes ready, until `stop`."""
        while not self._stopped:
            self._changed.clear()
            for number in self._policy.surplus(time.monotonic()):
                ready = self._ready.pop(number, None)
                if ready is not None:  # it has not ended while another one was ended
                    await self.end(ready)
            preparation = self._policy.next_preparation(time.monotonic())
            if preparation is not None:
                await self._prepare(preparation)
                continue
            wake_at = self._policy.wake_at()
            try:
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """End all processes that wait, and prepare no more."""
        self._stopped = True
        self._changed.set()
        for number in self._policy.drain():
            ready = self._ready.pop(number, None)
            if ready is not None:
                await self.end(ready)

    async def end(self, ready: ReadyProcess) -> None:
        """End a process, and its session in Spark."""
        ready.process.kill()
        ready.process.close()
        if ready.output is not None:
            ready.output.unlink(missing_ok=True)
        try:
            await self._driver.release(ready.endpoint)
        except SparkError as error:
            self._endpoint.log.info("the session of a task process is left to Spark: %s", error)

    async def configure(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Configure the session of a process that a task has taken; return whether the session is open."""
        return await self._driver.configure(endpoint, conf)

    async def taken_was_dead(self, ready: ReadyProcess) -> None:
        """Clean up after a process that had ended, or whose session had, when it was to run a task."""
        self._policy.taken_was_dead()
        self._endpoint.log.warning("task process %d, or its session, had ended: it runs no task", ready.process.pid)
        await self.end(ready)

    async def _prepare(self, preparation: Preparation) -> None:
        number = preparation.number
        try:
            async with asyncio.timeout(PREPARATION_TIMEOUT_S):
                ready = await self._make_ready(preparation.kind)
        except (SparkError, OSError, TimeoutError) as error:
            self._policy.failed(number, time.monotonic())
            self._endpoint.log.warning("no task process could be made ready: %s: %s", type(error).__name__, error)
            return
        if self._stopped:
            await self.end(ready)
            return
        self._ready[number] = ready
        self._policy.prepared(number, time.monotonic())
        ready.process.on_exit(lambda: self._process_ended(number))

    async def _make_ready(self, kind: JobKind) -> ReadyProcess:
        """Open the way into Spark, fork a process, and wait until it has used that way once."""
        name, output = f"ready-{uuid.uuid4().hex}", None
        if kind is JobKind.SCRIPT:
            output = private_file(self._directory / name)
        endpoint = await self._driver.open(kind, name, output=output)
        if isinstance(endpoint, ClassicEndpoint):
            spec = PreparedSpec(classic=endpoint)
        else:
            spec = PreparedSpec(connect=endpoint)
        process: TaskProcess | None = None
        try:
            assert self._zygote is not None  # else the policy keeps none
            process = await self._zygote.prepare(spec)
            if await process.ready():
                return ReadyProcess(process, endpoint, output)
            raise SparkError("the process ended before it was ready; see zygote.log of the TaskExecutor")
        except BaseException:
            if process is None:
                if output is not None:
                    output.unlink(missing_ok=True)
                await self._driver.release(endpoint)
            else:
                await self.end(ReadyProcess(process, endpoint, output))
            raise

    def _process_ended(self, number: int) -> None:
        """Clean up after a process that has ended while it waited; ignore one that a task has taken."""
        ready = self._ready.pop(number, None)
        if ready is None:
            return
        self._policy.died(number, time.monotonic())
        self._endpoint.log.warning("task process %d, which was ready, has ended", ready.process.pid)
        self._endpoint.spawn(self.end(ready), "ending what a task process left")
        self._changed.set()
