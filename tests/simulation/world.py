"""One run of a workload: the simulated world, the faults that happen to it, its history, and the verdict."""

from __future__ import annotations

import contextlib
import logging
import random
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from tests.simulation import disk as disks
from tests.simulation.faults import Fault
from tests.simulation.kernel import EPOCH_NS, Kernel, ProcessKilled, SimHost, SimProcess
from tests.simulation.network import Network
from tests.simulation.patches import installed, real_monotonic, real_process_time
from tests.simulation.redis import RedisDeployment

SYNC_S = 0.004
LAST_LINES = 60


@dataclass(frozen=True)
class Failure:
    """What a check found.

    Args:
        check: its name.
        text: what is wrong.
        at_s: virtual time at which it was found.
    """

    check: str
    text: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.check}, at {self.at_s:.3f} s: {self.text}"


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    workload: str
    seed: int
    trace: str
    faults: int
    virtual_s: float
    real_s: float
    cpu_s: float
    failure: Failure | None = None
    plan: Sequence[Fault] = ()
    counts: dict[str, int] = field(default_factory=dict)
    last_events: Sequence[str] = ()
    log: Sequence[str] = ()
    waits: str = ""


class World:
    """The simulated world of one run, and what its workload and its faults need.

    Args:
        seed: of everything.

    Attributes:
        counts: how often what has happened.
        faults: how many faults were applied.
        failure: the first one.
        restart: called with the name of a process that ended, by `World.supervise`.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.redis: RedisDeployment | None = None
        self.disks: dict[str, disks.Disk] = {}
        self.files: disks.Files | None = None
        self.failure: Failure | None = None
        self.faults = 0
        self.counts: dict[str, int] = {}
        self.log: deque[str] = deque(maxlen=LAST_LINES)
        self.random = self.kernel.random("workload")
        self.quiet_from_s = 0.0
        self.switch_rate = 0.0
        """Probability with which an operation on a file passes control to other threads of its process."""
        self.disk_delays: dict[str, float] = {}
        """Longest seconds of an operation on a slow disk, by its name."""
        self._stop_callbacks: list[Callable[[], None]] = []
        self._previewed: list[str] | None = None
        """Names of the checks that have failed in a preview; None outside of one."""

    # ------------------------------------------------------------------ the world

    def hosts(self, count: int, *, drift: float = 0.0, offset_s: float = 0.0) -> list[SimHost]:
        """Add hosts, whose clocks differ by up to these values."""
        rng = self.kernel.random("clocks")
        return [
            self.kernel.add_host(
                f"host{number}",
                drift=rng.uniform(-drift, drift),
                wall_offset_s=rng.uniform(-offset_s, offset_s),
            )
            for number in range(1, count + 1)
        ]

    def add_disk(self, name: str) -> disks.Disk:
        """Add a disk that all hosts see, before the world is entered."""
        made = self.disks[name] = disks.Disk(
            name, clock=lambda: EPOCH_NS + self.kernel.now, source=self.kernel.random(f"disk {name}")
        )
        return made

    def mount(self, stack: contextlib.ExitStack) -> None:
        """Redirect files below the simulated root to the disks."""
        kernel = self.kernel

        nobody = disks.Caller("", 0)

        def caller() -> disks.Caller:
            process = kernel.current
            if process is None:
                return nobody
            found = process.local.get("caller")
            if found is None:
                found = process.local["caller"] = disks.Caller(process.host.name, process.pid)
            return found

        def before(operation: str, path: str, disk: disks.Disk) -> None:
            process = kernel.current
            if process is None or kernel.closed:
                return
            process.effect()
            if operation == "fsync":
                pause = SYNC_S * kernel.random("sync").random()
                if kernel.thread is not None:
                    kernel.thread.sleep(pause)
                else:
                    process.stall(pause)
            elif kernel.thread is not None and (self.switch_rate or self.disk_delays):
                rng = kernel.random("files")
                if delay := self.disk_delays.get(disk.name, 0.0):
                    kernel.thread.sleep(delay * rng.random())
                elif rng.random() < self.switch_rate:
                    kernel.thread.sleep(0.0003 * rng.random() ** 2)

        def check_alive() -> None:
            process = kernel.current
            if process is not None and not process.alive:
                raise ProcessKilled(-9)

        self.files = disks.Files(self.disks, caller, before, check_alive=check_alive)
        stack.enter_context(disks.installed(self.files))
        kernel.on_start.append(self._watch_files)

    def _watch_files(self, process: SimProcess) -> None:
        caller = disks.Caller(process.host.name, process.pid)

        def ended(silent: bool) -> None:
            if self.files is not None and not self.kernel.closed:
                self.files.process_ended(caller)

        process.on_end.append(ended)

    def find(self, name: str) -> SimProcess | None:
        """Return the living process of a name; else one whose name goes on with a dash, by chance."""
        alike = []
        for host in self.kernel.hosts.values():
            for process in host.processes:
                if process.name == name:
                    return process
                if process.name.startswith(f"{name}-"):
                    alike.append(process)
        return self.kernel.random("targets").choice(alike) if alike else None

    def supervise(self, process: SimProcess, again: Callable[[], SimProcess | None], pause_s: float = 0.3) -> None:
        """Start a process again some time after its end, until the world stops."""

        def ended(silent: bool) -> None:
            self.kernel.after(pause_s * (0.5 + self.random.random()), retry)

        def retry() -> None:
            if self.stopping:
                return
            if not process.host.up:
                self.kernel.after(pause_s, retry)
                return
            successor = again()
            if successor is not None:
                self.supervise(successor, again, pause_s)

        process.on_end.append(ended)

    stopping = False

    # ------------------------------------------------------------------ the verdict

    def fail(self, check: str, text: str) -> None:
        """Record a failure and end the run; only the first counts."""
        if self._previewed is not None:
            self._previewed.append(check)
        elif self.failure is None:
            self.failure = Failure(check, text, self.kernel.seconds)
            self.kernel.trace("failed", check)
            self.kernel.halt()

    def preview(self, check: Callable[[], None]) -> list[str]:
        """Run a check without recording what it finds; return the names of the checks that failed."""
        found: list[str] = []
        self._previewed = found
        try:
            check()
        finally:
            self._previewed = None
        return found

    def count(self, what: str, number: int = 1) -> None:
        """Count something that has happened."""
        self.counts[what] = self.counts.get(what, 0) + number

    def heal(self) -> None:
        """End all faults that last."""
        self.network.heal()
        for host in self.kernel.hosts.values():
            if not host.up:
                host.boot()
                self.network.host_is_up(host)
            host.resume()
            for process in list(host.processes):
                process.thaw()
        for disk in self.disks.values():
            disk.is_full = False
            disk.error_rates.clear()
        self.disk_delays.clear()
        if self.redis is not None:
            master = self.redis.master
            master.slow_s = 0.0
            if not master.up:
                master.start()
            if master.frozen:
                master.thaw()
        self.kernel.trace("healed")


class Workload(Protocol):
    """What runs under simulation."""

    name: ClassVar[str]
    faults_s: float
    """Virtual seconds in which faults happen."""
    calm_s: float
    """Virtual seconds after them, in which all has to heal."""

    def __init__(self, world: World) -> None: ...

    def build(self) -> None:
        """Add hosts, devices and processes; called inside the simulation."""

    def disks(self) -> None:
        """Add disks; called before the files are redirected."""

    def plan(self, rng: random.Random) -> list[Fault]:
        """Return the faults of a run."""

    # The calm time ends early once `check_healed` finds nothing, and the stop once `check_stopped` does and no process
    # is left. A workload may have `is_healed` and `is_stopped`, which then decide that instead, and `stop_s`, the most
    # virtual seconds of its stop.

    def check_often(self) -> None:
        """Check what is cheap; called many times."""

    def check_healed(self) -> None:
        """Check that all that should run runs; called at the end of the calm time."""

    def stop(self) -> None:
        """Begin an orderly stop of all processes."""

    def check_stopped(self) -> None:
        """Check what is left after the stop."""


KNOWN_ERRORS = {
    "redis.exceptions.ConnectionError": "an unretrieved error of a cancelled Redis call",
}
"""Texts of unhandled errors that do not count, and the known defect of the product that they come from."""
DEFECTS = (AttributeError, TypeError, LookupError, AssertionError, NameError, ValueError, RuntimeError)
"""Exceptions that are never meant: one that is logged with its traceback is a defect."""
CHECK_EVERY_S = 0.05
STOP_S = 20.0
SETTLE_S = 20.0
"""Least virtual seconds of calm: suspended work, leases and timeouts of the last faults are over by then."""
SETTLED_EVERY_S = 4.0
STOPPED_EVERY_S = 1.0


class _LogHandler(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        kernel = self._world.kernel
        who = kernel.current.name if kernel.current is not None else "-"
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        if record.exc_info and isinstance(record.exc_info[1], DEFECTS) and not kernel.closed:
            kernel.complain(f"{text}\n" + "".join(traceback.format_exception(record.exc_info[1]))[-2000:])
        if record.exc_info and record.exc_info[1] is not None:
            text += f" [{type(record.exc_info[1]).__name__}: {record.exc_info[1]}]"
        self._world.log.append(f"{kernel.seconds:10.4f} {who}: {record.levelname} {text[:300]}")


@contextlib.contextmanager
def _logging(world: World) -> Iterator[None]:
    root = logging.getLogger()
    before, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    root.handlers[:] = [_LogHandler(world)]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.raiseExceptions = raising


class _Passed:
    """Whether a check has found nothing; it looks now and then, and what it finds does not count yet."""

    def __init__(self, world: World, check: Callable[[], None], every_s: float) -> None:
        self._world = world
        self._check = check
        self._every_s = every_s
        self._has_passed = False

    def __call__(self) -> bool:
        return self._has_passed

    def look(self) -> None:
        """Run the check, and look again later if it fails."""
        world = self._world
        found = world.preview(self._check)
        is_stopping_still = world.stopping and any(host.processes for host in world.kernel.hosts.values())
        self._has_passed = not found and not is_stopping_still
        if not self._has_passed:
            world.kernel.after(self._every_s, self.look)


def run(
    workload_type: type[Workload], seed: int, plan: Sequence[Fault] | None = None, *, faults_s: float | None = None
) -> Outcome:
    """Run a workload once.

    Args:
        workload_type: what runs.
        seed: of everything.
        plan: the faults; by default those that the seed gives.
        faults_s: virtual seconds in which faults happen; by default the workload's.
    """
    began, cpu = real_monotonic(), real_process_time()
    world = World(seed)
    workload = workload_type(world)
    if faults_s is not None:
        workload.faults_s = faults_s
    kernel = world.kernel
    with contextlib.ExitStack() as stack:
        stack.enter_context(_logging(world))
        stack.enter_context(installed(kernel))
        workload.disks()
        world.mount(stack)
        workload.build()
        faults = list(plan) if plan is not None else workload.plan(kernel.random("faults"))
        begins = getattr(workload, "begins", None)
        if begins is not None:
            begins(faults)
        for fault in faults:
            kernel.after(fault.at_s, _apply, world, fault)
        end_s = workload.faults_s + workload.calm_s
        world.quiet_from_s = workload.faults_s
        kernel.after(workload.faults_s, world.heal)

        def look() -> None:
            workload.check_often()
            kernel.after(CHECK_EVERY_S, look)

        kernel.after(CHECK_EVERY_S, look)
        is_healed = getattr(workload, "is_healed", None)
        if is_healed is None:
            is_healed = _Passed(world, workload.check_healed, SETTLED_EVERY_S)
            kernel.after(workload.faults_s + SETTLE_S, is_healed.look)
        try:
            kernel.run(end_s, is_healed)
            waits = kernel.describe_waits() if kernel.halted else ""
            if world.failure is None:
                workload.check_healed()
                waits = kernel.describe_waits() if world.failure is not None else ""
            if world.failure is None:
                world.stopping = True
                workload.stop()
                is_stopped = getattr(workload, "is_stopped", None)
                if is_stopped is None:
                    is_stopped = _Passed(world, workload.check_stopped, STOPPED_EVERY_S)
                    kernel.after(STOPPED_EVERY_S, is_stopped.look)
                kernel.run(kernel.seconds + getattr(workload, "stop_s", STOP_S), is_stopped)
            if world.failure is None:
                workload.check_stopped()
                waits = kernel.describe_waits() if world.failure is not None else ""
            errors = [one for one in kernel.complaints if not any(known in one for known in KNOWN_ERRORS)]
            if world.failure is None and errors:
                world.fail("no unhandled error", "\n".join(errors[:3]))
        except Exception as error:
            waits = kernel.describe_waits()
            if world.failure is None:
                world.fail("the simulation runs", "".join(traceback.format_exception(error))[-3000:])
        outcome = Outcome(
            workload_type.name,
            seed,
            kernel.trace_hash(),
            world.faults,
            kernel.seconds,
            0.0,
            0.0,
            world.failure,
            tuple(faults),
            dict(world.counts),
            tuple(kernel.last_events),
            tuple(world.log),
            waits,
        )
        # All objects of the simulated programs end inside the simulation, where they have no effect.
        logging.getLogger().handlers[:] = [logging.NullHandler()]
        world.stopping = True
        kernel.close()
        workload.__dict__.clear()
        kernel.on_start.clear()
    return replace(outcome, real_s=real_monotonic() - began, cpu_s=real_process_time() - cpu)


def _apply(world: World, fault: Fault) -> None:
    if fault.apply(world):
        world.faults += 1
        world.count(f"fault {fault.kind}")
        world.kernel.trace("fault", fault.kind)
