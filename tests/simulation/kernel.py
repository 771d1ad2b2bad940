"""Virtual time, a seeded scheduler, and simulated hosts with their clocks, processes, event loops and threads.

A workload builds a `Kernel`, installs it (`patches.installed`), adds hosts, and starts processes on them:

    kernel = Kernel(seed=7)
    with installed(kernel):
        one, two = kernel.add_host("one"), kernel.add_host("two", wall_offset_s=2.5)
        server = one.start("server", serve)             # a coroutine function: runs on an event loop of its own
        client = two.start("client", call, "one")       # a plain function: runs in a simulated thread, and may block
        kernel.after(3.0, server.kill)                  # a fault is a call at a virtual time
        kernel.run(until_s=60.0)
    assert client.exit_code == 0, kernel.describe_waits()
    kernel.trace_hash()                                 # the same for the same seed

How it works:

1. One virtual clock (`Kernel.now`, nanoseconds) and one heap of events. `Kernel.run` takes the earliest event, moves
   the clock there and calls it. Nothing else moves time.
2. A process with a coroutine function has a `SimLoop`: asyncio's own selector loop over a `SimSelector`. A turn of a
   process runs its loop until it has nothing to do. Processes affect each other only through simulated devices, so a
   finer interleaving would look the same to all others.
3. Blocking code runs in `SimThread` objects: greenlets, so that one runs at a time. They pass control on only where
   they block: `time.sleep`, locks, conditions, events, queues, joins, `asyncio.run`, blocking sockets. While a
   kernel is installed, `threading` and `queue` build on simulated locks. `loop.run_in_executor` and
   `asyncio.to_thread` run their function in such a thread. A loop that the kernel drives itself must not block; a
   process whose main function is plain may run loops (`asyncio.run`) and block anywhere. A thread that waits until a
   time before which nothing happens anywhere keeps control, and only the clock moves (`Kernel.skip`).
4. Each simulated device calls `SimProcess.effect` before anything that others can see. There a process can be killed or
   stalled "at its n-th effect from now" (`kill_at_effect`, `stall_at_effect`), in the middle of a synchronous stretch
   of code. A killed process runs no further callback; its `finally` blocks run, and every effect in them raises
   `ProcessKilled`.
5. Clocks, random numbers, uuids and process ids answer for the current process. Each process draws from a stream of its
   own, seeded by the kernel's seed, its name and its number.

The trace is a running hash of what devices report (`Kernel.trace`) and not of scheduling details, so that it does not
depend on the Python version. Iterating a set of objects is the usual way to break it. So asyncio's tasks have stable
hashes here, and `patches.installed` gives them to the product's classes.

Devices build on this module: `Kernel.files` maps descriptors to `SimFile` objects, `Kernel.after` delays,
`SimThread.park` blocks, `SimProcess.on_end` closes, `Kernel.random` draws.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import hashlib
import heapq
import inspect
import itertools
import random
import selectors
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import greenlet  # type: ignore[import-untyped]

SECOND = 1_000_000_000
EPOCH_NS = 1_750_000_000 * SECOND
"""Wall time of the start of each simulation, in nanoseconds since 1970."""
MAX_ITERATIONS = 20_000
MOST_CALLBACKS = 100_000
"""Callbacks of all loops in a virtual second, after which a process is said to repeat something without a pause."""
"""Iterations of one loop at one moment of virtual time, after which it is said to spin."""
LAST_EVENTS = 300
MANY_TIMERS = 100
"""Timers of a loop above which it drops its cancelled ones as soon as they are more than half of all, as asyncio."""


class SimulationError(Exception):
    """The simulator was used in a way that it does not support, or the simulated program spins."""


class ProcessKilled(SystemExit):
    """Raised inside a killed process, by whatever it does next."""


class Event(list[Any]):
    """A call at a virtual time: [time, rank, number, function, arguments]. Heaps compare lists without calling us."""

    __slots__ = ()

    @property
    def when(self) -> int:
        """Its time, in nanoseconds."""
        return self[0]  # type: ignore[no-any-return]

    @property
    def is_cancelled(self) -> bool:
        """Whether it will not be called."""
        return self[3] is None

    def cancel(self) -> None:
        """Do not call it."""
        self[3], self[4] = None, ()


class Kernel:
    """The simulated world: time, hosts, and what is going to happen.

    Args:
        seed: of everything random.

    Attributes:
        now: virtual nanoseconds since the start.
        current: the process whose code runs; None in the kernel and in devices.
        thread: the simulated thread that runs; None if the kernel drives a loop.
        files: open descriptors of all processes.
        complaints: errors that nobody handled, as text with their process and time.
        steps: turns of processes so far.
        real_thread: the real thread in which all of this runs.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self.current: SimProcess | None = None
        self.thread: SimThread | None = None
        self.hosts: dict[str, SimHost] = {}
        self.processes: list[SimProcess] = []
        self.files: dict[int, SimFile] = {}
        self.complaints: list[str] = []
        self.steps = 0
        self.real_thread = threading.get_ident()
        self.closed = False
        self.devices: dict[str, Any] = {}
        """Devices by name (``network``, ``disk``, ...), for those that need each other."""
        self._events: list[Event] = []
        self._until = -1
        """The time up to which `run` lets time pass; -1 while it does not."""
        self._stop: Callable[[], bool] | None = None
        self._sequence = itertools.count()
        self._fds = itertools.count(10_000)
        self._pids = itertools.count(101)
        self._hash = hashlib.blake2b(str(seed).encode(), digest_size=16)
        self.last_events: deque[str] = deque(maxlen=LAST_EVENTS)
        self.traced = 0
        self._streams: dict[str, random.Random] = {}
        self.halted = False
        self.on_start: list[Callable[[SimProcess], object]] = []
        """Called with each new process, before it runs."""
        self.graveyard: list[object] = []
        """What belonged to killed processes: kept, so that no destructor runs code of theirs during the run."""
        self.hashes = itertools.count(1)
        self._second_ends = SECOND
        self._callbacks = 0

    # ------------------------------------------------------------------ time and events

    @property
    def seconds(self) -> float:
        """Virtual seconds since the start."""
        return self.now / SECOND

    def random(self, name: str) -> random.Random:
        """Return the stream of random numbers of that name; streams do not disturb each other."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return stream

    def at(self, when: int, fn: Callable[..., object], *args: Any, rank: int = 0) -> Event:
        """Call *fn* at *when* (nanoseconds); events of one moment run by rank, then in the order of their making."""
        event = Event((when if when > self.now else self.now, rank, next(self._sequence), fn, args))
        heapq.heappush(self._events, event)
        return event

    def after(self, seconds: float, fn: Callable[..., object], *args: Any) -> Event:
        """Call *fn* after *seconds*."""
        return self.at(self.now + int(seconds * SECOND), fn, *args)

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass until *until_s*, or until *stop* returns true after an event; return whether it did."""
        until = int(until_s * SECOND)
        self._until, self._stop = until, stop
        events, pop = self._events, heapq.heappop
        try:
            while events and not self.halted:
                if events[0][0] > until:
                    break
                when, _, _, fn, args = pop(events)
                if fn is None:
                    continue
                if when < self.now:
                    raise SimulationError(
                        f"the clock is at {self.seconds} s, and an event was due at {when / SECOND} s"
                    )
                self.now = when
                fn(*args)
                if self.halted or (stop is not None and stop()):
                    return True
        finally:
            self._until = -1
        self.now = max(self.now, until)
        return False

    def skip(self, process: SimProcess, deadline: int) -> bool:
        """Move the clock to *deadline* if nothing happens until then, in *process* or elsewhere; return whether it did.

        So the thread that runs may sleep without passing control on: nobody else would have used it.
        """
        events = self._events
        while events and events[0].is_cancelled:
            heapq.heappop(events)
        if not self.now <= deadline <= self._until or self.halted or (events and events[0][0] <= deadline):
            return False
        if not process.is_idle():
            return False
        now, stop = self.now, self._stop
        if stop is not None and stop():
            return False
        self.now = deadline
        if stop is not None and stop():
            self.now = now  # `run` ends before the thread goes on
            return False
        return True

    def called(self, process: SimProcess, count: int) -> None:
        """Count the callbacks that a loop is about to run.

        Raises:
            SimulationError: there are too many for one second.
        """
        if self.now >= self._second_ends:
            self._second_ends, self._callbacks = self.now + SECOND, 0
        self._callbacks += count
        if self._callbacks > MOST_CALLBACKS:
            raise SimulationError(f"{process} is busy: {MOST_CALLBACKS} callbacks in a second, at {self.seconds} s")

    def halt(self) -> None:
        """Have `run` return after the present event, and at once from then on."""
        self.halted = True

    # ------------------------------------------------------------------ the trace

    def trace(self, *what: object) -> None:
        """Add an event to the trace: plain values only, whose text is the same each time."""
        line = f"{self.now} {' '.join(map(str, what))}"
        self._hash.update(line.encode())
        self.last_events.append(line)
        self.traced += 1

    def trace_hash(self) -> str:
        """Return the hash of the trace so far."""
        return self._hash.hexdigest()

    def complain(self, text: str) -> None:
        """Record an error that the simulated program did not handle."""
        who = self.current.name if self.current is not None else "the simulator"
        self.complaints.append(f"{self.seconds:.3f} s, {who}: {text}")

    # ------------------------------------------------------------------ hosts, processes

    def add_host(self, name: str, **clocks: Any) -> SimHost:
        """Add a host; see `SimHost`."""
        host = self.hosts[name] = SimHost(self, name, len(self.hosts) + 1, **clocks)
        return host

    def new_pid(self) -> int:
        """Return a process id that was never used."""
        return next(self._pids)

    def new_fd(self) -> int:
        """Return a descriptor that was never used."""
        return next(self._fds)

    def describe_waits(self) -> str:
        """Return what each living process waits for, as text."""
        lines = [f"at {self.seconds:.6f} s:"]
        for process in self.processes:
            if process.alive:
                lines += [f"  {process}{' (frozen)' if process.frozen else ''}", *process.waits()]
        return "\n".join(lines)

    # ------------------------------------------------------------------ threads

    def resume(self, thread: SimThread) -> None:
        """Let a thread run until it blocks or ends."""
        process, outer, loop = self.current, self.thread, asyncio._get_running_loop()
        self.current, self.thread = thread.process, thread
        if loop is None:
            thread.enter()
        else:
            hooks = sys.get_asyncgen_hooks()
            thread.enter()
            asyncio._set_running_loop(loop)
            sys.set_asyncgen_hooks(*hooks)
        self.current, self.thread = process, outer

    def close(self) -> None:
        """End all processes and their threads; the kernel cannot run again."""
        self.closed = True
        for process in list(self.processes):
            process.end(None)
        self._events.clear()


class SimHost:
    """A host: its clocks, and the processes on it.

    Args:
        kernel: the world.
        name: its name.
        number: its number; its address is ``10.0.0.<number>``.
        wall_offset_s: seconds by which its wall clock is ahead of the true time.
        drift: relative error of the rate of all of its clocks.
    """

    def __init__(
        self, kernel: Kernel, name: str, number: int, *, wall_offset_s: float = 0.0, drift: float = 0.0
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.number = number
        self.address = f"10.0.0.{number}"
        self.processes: list[SimProcess] = []
        self.up = True
        self.on_crash: list[Callable[[], object]] = []
        """Called when the host loses its power, after its processes have ended: devices lose what was not synced."""
        self._wall_offset = int(wall_offset_s * SECOND)
        self._rate = 1.0 + drift
        self._booted = 0
        self._suspended_at: int | None = None
        self._suspended = 0
        self._uptime = 3600 * SECOND
        """Nanoseconds by which the time since the boot, without those in suspend, is ahead of the true time."""

    # ------------------------------------------------------------------ clocks

    def boottime(self, now: int) -> int:
        """Return nanoseconds since the boot, with those in suspend."""
        return int((now - self._booted + 3600 * SECOND) * self._rate)

    def monotonic(self, now: int) -> int:
        """Return nanoseconds since the boot without those in suspend."""
        if self._suspended_at is not None:
            now = min(now, self._suspended_at)
        return int((now + self._uptime) * self._rate)

    def wall(self, now: int) -> int:
        """Return nanoseconds since 1970."""
        return EPOCH_NS + self._wall_offset + int(now * self._rate)

    def when_monotonic(self, nanoseconds: float) -> int:
        """Return the time at which `monotonic` reaches a value, if the host is not suspended until then."""
        return int(nanoseconds / self._rate) + 1 - self._uptime

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._wall_offset += int(seconds * SECOND)

    # ------------------------------------------------------------------ states

    def suspend(self) -> None:
        """Stop all processes and the monotonic clock, as a laptop's lid does."""
        if self.up and self._suspended_at is None:
            self._suspended_at = self.kernel.now

    def resume(self) -> None:
        """End a suspend."""
        if self._suspended_at is not None:
            self._suspended += self.kernel.now - self._suspended_at
            self._uptime -= self.kernel.now - self._suspended_at
            self._suspended_at = None
            for process in list(self.processes):
                process.wake()

    @property
    def suspended(self) -> bool:
        """Whether the host is suspended."""
        return self._suspended_at is not None

    def crash(self) -> None:
        """Lose power: end all processes without a word to their peers."""
        self.up = False
        self._suspended_at = None
        for process in list(self.processes):
            process.end(-9, silent=True)
        for callback in list(self.on_crash):
            callback()

    def boot(self) -> None:
        """Start again after a crash; nothing runs until the workload starts it."""
        self.up = True
        self._booted, self._suspended = self.kernel.now, 0
        self._uptime = 3600 * SECOND - self.kernel.now

    # ------------------------------------------------------------------ processes

    def start(self, name: str, main: Callable[..., Any], *args: Any) -> SimProcess:
        """Start a process.

        Args:
            name: shown in traces; a restarted process may have the name of its predecessor.
            main: a coroutine function, which runs on a loop that the kernel drives; or a plain function, which runs in
                a simulated thread and may block.
            args: its arguments.
        """
        if not self.up:
            raise SimulationError(f"{self.name} is down")
        process = SimProcess(self, name, main, args)
        for callback in self.kernel.on_start:
            callback(process)  # raises if the process cannot start, as without a free pid
        self.kernel.processes.append(process)
        self.processes.append(process)
        process.wake()
        return process

    def __repr__(self) -> str:
        return self.name


class SimProcess:
    """A process on a host. Make it by `SimHost.start`.

    Attributes:
        alive: whether it has not ended.
        frozen: whether it was stopped (SIGSTOP).
        exit_code: None while it runs; 0, 1 for an exception of its main function, -9 for a kill.
        error: the exception of its main function.
        result: what its main function returned.
        effects: number of its effects so far.
        on_end: called once when it ends, with whether its host lost power, in the order of their making.
        local: values of devices and workloads, by name.
    """

    def __init__(self, host: SimHost, name: str, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.host = host
        self.kernel = host.kernel
        self.name = name
        self.pid = self.kernel.new_pid()
        self.alive = True
        self.frozen = False
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self.result: Any = None
        self.effects = 0
        self.on_end: list[Callable[[bool], object]] = []
        self.local: dict[str, Any] = {}
        self.files: dict[int, SimFile] = {}
        self.random = random.Random(f"{self.kernel.seed}/process/{name}/{self.pid}")
        self.threads: list[SimThread] = []
        self.lag = 0
        """Nanoseconds by which the clocks of this process are ahead in the present turn, since it was stalled."""
        self.loop: SimLoop | None = None
        self._main = main
        self._args = args
        self._started = False
        self._woken = False
        self._busy_until = 0
        self._traps: list[tuple[int, Callable[[], None]]] = []
        self._task_names = itertools.count(1)
        self._salt = (self.pid * 2654435761 + self.kernel.seed * 40503) & 0xFFFFFFFF

    def __repr__(self) -> str:
        return f"{self.name}[{self.pid}]@{self.host.name}"

    # ------------------------------------------------------------------ clocks

    def time(self) -> float:
        """Return monotonic seconds."""
        return self.host.monotonic(self.kernel.now + self.lag) / SECOND

    # ------------------------------------------------------------------ faults

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.end(-9)

    def freeze(self) -> None:
        """Stop it (SIGSTOP)."""
        self.frozen = True

    def thaw(self) -> None:
        """Let it run again (SIGCONT)."""
        if self.frozen:
            self.frozen = False
            self.wake()

    def kill_at_effect(self, count: int) -> None:
        """Kill it just before its *count*-th effect from now (1: the next)."""
        self._traps.append((self.effects + count, self.kill))

    def stall_at_effect(self, count: int, seconds: float) -> None:
        """Stop it just before its *count*-th effect from now, for *seconds*."""
        self._traps.append((self.effects + count, lambda: self.stall(seconds)))

    def stall(self, seconds: float) -> None:
        """Let the code that runs now lose *seconds* (a pause in the middle of a stretch of code)."""
        if self.kernel.thread is not None and self.kernel.thread.process is self:
            self.kernel.thread.sleep(seconds)
        else:
            self.lag += int(seconds * SECOND)

    def effect(self) -> None:
        """Note that others are about to see something of this process; devices call this first.

        Raises:
            ProcessKilled: it is dead, or was killed here.
        """
        if not self.alive:
            raise ProcessKilled(-9)
        self.effects += 1
        if self._traps:
            due = [trap for trap in self._traps if trap[0] <= self.effects]
            if due:
                self._traps = [trap for trap in self._traps if trap[0] > self.effects]
                for _, action in due:
                    action()
                if not self.alive:
                    raise ProcessKilled(-9)

    # ------------------------------------------------------------------ running

    def rank(self) -> int:
        """Return this process's place among those that run at one moment; by seed, and without drawing a number."""
        return ((self.kernel.now ^ self._salt) * 2246822519 >> 7) & 0xFFFF

    def wake(self) -> None:
        """Have it take a turn, as soon as it may run."""
        if not self._woken and self.alive:
            self._woken = True
            self.kernel.at(max(self.kernel.now, self._busy_until), self._turn, rank=self.rank())

    @property
    def may_run(self) -> bool:
        """Whether it is alive and not stopped."""
        return self.alive and not self.frozen and self.host._suspended_at is None

    def _turn(self) -> None:
        self._woken = False
        if not self.may_run:
            return  # `thaw` and `resume` wake it
        if self.kernel.now < self._busy_until:
            self.wake()
            return
        self.kernel.steps += 1
        if not self._started:
            self._started = True
            if inspect.iscoroutinefunction(self._main):
                self.loop = SimLoop(self)
                self.loop.begin(self._main, self._args)
            else:
                self.start_thread("MainThread", self._run_main)
        for thread in list(self.threads):
            if thread.is_due:
                thread.turn()
                if not self.may_run:
                    return
        if self.loop is not None:
            self.loop.turn()

    def is_idle(self) -> bool:
        """Return whether nothing of it is due but the thread that runs."""
        if not self.may_run or self._busy_until > self.kernel.now:
            return False
        loop = self.loop
        if loop is not None and loop.has_work():
            return False
        return not any(thread.is_due for thread in self.threads)

    def turn_by_timer(self) -> None:
        """Take a turn, because a timer is due; unless one is about to come anyway."""
        if not self._woken:
            self._turn()

    def _run_main(self) -> None:
        try:
            self.result = self._main(*self._args)
        except ProcessKilled:
            raise
        except BaseException as error:
            self.finished(None, error)
        else:
            self.finished(self.result, None)

    def finished(self, result: Any, error: BaseException | None) -> None:
        """Note the end of the main function, and end the process."""
        self.result, self.error = result, error
        if error is not None and not isinstance(error, SystemExit):
            self.kernel.complain("".join(traceback.format_exception(error))[-2000:])
        code = error.code if isinstance(error, SystemExit) else 0 if error is None else 1
        self.end(code if isinstance(code, int) else 0 if code is None else 1)

    def spent(self) -> None:
        """End a turn: a process that was stalled in it is busy for that long."""
        if self.lag:
            self._busy_until = self.kernel.now + self.lag
            self.lag = 0
            self.wake()

    def end(self, code: int | None, *, silent: bool = False) -> None:
        """End the process: its devices close, none of its code has an effect any more.

        Args:
            code: its exit code.
            silent: whether its host lost power, so that peers get no sign.
        """
        if not self.alive:
            return
        self.alive = False
        self.exit_code = code
        if self in self.host.processes:
            self.host.processes.remove(self)
        if not self.kernel.closed:
            self.kernel.trace("ended", self.name, self.pid, code)
        self.kernel.graveyard.append(self)
        for file in list(self.files.values()):
            file.owner_died(silent)
        for callback in list(self.on_end):
            callback(silent)
        if self.loop is not None:
            self.loop.die()
        for thread in list(self.threads):
            if self.kernel.thread is None:
                thread.die()
            else:  # the running thread ends at its next effect, and the others when it has passed control on
                self.kernel.at(self.kernel.now, thread.die)

    # ------------------------------------------------------------------ threads

    def start_thread(self, name: str, target: Callable[[], object]) -> SimThread:
        """Start a simulated thread of this process."""
        thread = SimThread(self, name, target)
        self.threads.append(thread)
        thread.is_due = True
        self.wake()
        return thread

    def task_name(self) -> str:
        """Return the default name of a new asyncio task."""
        return f"task-{next(self._task_names)}"

    def waits(self) -> list[str]:
        """Return what its tasks and threads wait for."""
        lines = [f"    thread {thread.name}: {thread.waits_for}" for thread in self.threads if not thread.done]
        loops = [self.loop] if self.loop is not None else []
        for loop in loops:
            for task in sorted(asyncio.all_tasks(loop), key=hash):
                frames = task.get_stack(limit=1)
                where = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "nothing"
                lines.append(f"    task {task.get_name()}: in {where}")
            if loop._scheduled:
                lines.append(f"    next timer in {loop._scheduled[0]._when - loop.time():.3f} s")
        return lines


# ------------------------------------------------------------------ loops


class SimFile:
    """An open descriptor of a process: something that can become readable or writable.

    Args:
        process: its owner.
    """

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.kernel = process.kernel
        self.fd = self.kernel.new_fd()
        self.kernel.files[self.fd] = self
        process.files[self.fd] = self
        self.watchers: dict[SimSelector, None] = {}
        self.waiters: list[SimThread] = []

    def readable(self) -> bool:
        """Return whether a read would not block."""
        return False

    def writable(self) -> bool:
        """Return whether a write would not block."""
        return False

    def changed(self) -> None:
        """Tell those who wait that `readable` or `writable` may have become true; devices call this."""
        for watcher in self.watchers:
            watcher.poke(self.fd)
        waiters, self.waiters = self.waiters, []
        for thread in waiters:
            thread.unpark()

    def wait(self, ready: Callable[[], bool], reason: str, timeout_s: float | None = None) -> bool:
        """Block the simulated thread until *ready*; return whether it is."""
        thread = self.kernel.thread
        if thread is None:
            raise SimulationError(f"{self.process}: blocking ({reason}) on a loop that the kernel drives")
        deadline = None if timeout_s is None else self.kernel.now + int(timeout_s * SECOND)
        while not ready():
            self.waiters.append(thread)
            if not thread.park(reason, deadline):
                if thread in self.waiters:
                    self.waiters.remove(thread)
                return ready()
        return True

    def owner_died(self, silent: bool) -> None:
        """Close it, because its process has ended."""
        self.forget()

    def forget(self) -> None:
        """Drop it from the tables of descriptors."""
        self.kernel.files.pop(self.fd, None)
        self.process.files.pop(self.fd, None)


class SimSelector(selectors.BaseSelector):
    """A selector over the files of the kernel, for loops and for plain code.

    A file that may have become ready is *poked*; only these are looked at.
    """

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._maybe: dict[int, None] = {}
        self._thread: SimThread | None = None
        self.loop: SimLoop | None = None
        kernel = installed_kernel()
        self._kernel = kernel

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        file = self._kernel.files.get(fd)
        if file is None:
            raise OSError(errno.EBADF, "the descriptor is not open")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        file.watchers[self] = None
        self.poke(fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        key = self._keys.pop(fd)
        self._maybe.pop(fd, None)
        file = self._kernel.files.get(fd)
        if file is not None:
            file.watchers.pop(self, None)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _descriptor(fileobj)
        if fd not in self._keys:
            raise KeyError(f"{fileobj!r} is not registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self.poke(fd)
        return key

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_descriptor(fileobj)]

    def poke(self, fd: int) -> None:
        """Note that a file may be ready."""
        self._maybe[fd] = None
        if self.loop is not None and self.loop.driven:
            self.loop.process.wake()
        elif self._thread is not None:
            self._thread.unpark()

    def interrupt(self) -> None:
        """Have a blocked `select` return."""
        if self._thread is not None:
            self._thread.unpark()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop is not None and not self.loop.driven and not self.loop.process.alive:
            raise ProcessKilled(-9)  # code that goes on after `ProcessKilled` would have the loop turn for ever
        ready = self._poll()
        if ready or (self.loop is not None and self.loop.driven) or (timeout is not None and timeout <= 0):
            return ready
        thread = self._kernel.thread
        if thread is None:
            raise SimulationError("a selector of a plain thread blocks on a loop that the kernel drives")
        self._thread = thread
        try:
            deadline = None if timeout is None else thread.deadline(timeout)
            is_woken = thread.park("select()", deadline)
        finally:
            self._thread = None
        if not is_woken and self.loop is not None and self.loop._ready:
            # A timer has ended the wait, which a callback of another thread or process should have ended before.
            self._kernel.complain(f"the loop of {thread.process} was not woken for {self.loop._ready[0]}")
        return self._poll()

    def _poll(self) -> list[tuple[selectors.SelectorKey, int]]:
        if not self._maybe:
            return []
        ready = []
        files = self._kernel.files
        for fd in list(self._maybe):
            key = self._keys.get(fd)
            file = files.get(fd)
            mask = 0
            if key is not None and file is not None:
                if key.events & selectors.EVENT_READ and file.readable():
                    mask |= selectors.EVENT_READ
                if key.events & selectors.EVENT_WRITE and file.writable():
                    mask |= selectors.EVENT_WRITE
            if mask and key is not None:
                ready.append((key, mask))
            else:
                del self._maybe[fd]
        return ready

    def close(self) -> None:
        for fd in list(self._keys):
            file = self._kernel.files.get(fd)
            if file is not None:
                file.watchers.pop(self, None)
        self._keys.clear()
        self._maybe.clear()


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is a number, so that sets of tasks have the same order each time."""

    def __init__(self, coro: Any, *, loop: SimLoop, **options: Any) -> None:
        self._sim_hash = next(loop.kernel.hashes)
        if options.get("name") is None:
            options["name"] = loop.process.task_name()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._sim_hash

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_task(loop: Any, coro: Any, **options: Any) -> Any:
    return SimTask(coro, loop=loop, **options)


class SimLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop in virtual time, of one process.

    The kernel drives the loop of a process whose main function is a coroutine function. Any other loop runs in the
    simulated thread that calls `run_forever`.

    Args:
        process: its process.
    """

    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.kernel = process.kernel
        self.driven = False
        self._sim_selector = SimSelector()
        super().__init__(self._sim_selector)
        self._sim_selector.loop = self
        self._clock_resolution = 1e-9
        self.set_task_factory(_make_task)
        self.set_exception_handler(_complain)
        self._armed: Event | None = None
        self._main_task: asyncio.Task[Any] | None = None
        self.dead = False

    # ------------------------------------------------------------------ asyncio's side

    def time(self) -> float:
        process = self.process
        return process.host.monotonic(self.kernel.now + process.lag) / SECOND

    get_debug = staticmethod(bool)
    """False, without a call of Python code: asyncio asks at every callback."""

    def _make_self_pipe(self) -> None:
        self._internal_fds = 0
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        if self.driven:
            self.process.wake()
        else:
            self._sim_selector.interrupt()

    def _check_running(self) -> None:
        if self.driven:
            raise RuntimeError("This event loop is already running")
        super()._check_running()  # type: ignore[misc]

    def is_running(self) -> bool:
        return self.driven or super().is_running()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.dead:
            return asyncio.Handle(callback, args, self, context)
        if self.kernel.current is not self.process:
            self._write_to_self()
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.dead:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._check_closed()  # type: ignore[attr-defined]
            heapq.heappush(self._scheduled, timer)
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a function in a simulated thread."""
        if executor is not None and not getattr(executor, "simulated", False):
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except ProcessKilled:
                raise
            except BaseException as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        self.process.start_thread(f"executor {getattr(func, '__name__', 'call')}", work)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the threads end with their functions."""

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Remember the callback; `SimLoop.signal` calls it."""
        self.process.local.setdefault("signals", {})[int(sig)] = (callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Forget it."""
        return self.process.local.get("signals", {}).pop(int(sig), None) is not None

    # ------------------------------------------------------------------ the kernel's side

    def begin(self, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Create the task of the process's main function, on a loop that the kernel drives."""
        self.driven = True
        self._thread_id = self.process.pid
        context = contextvars.copy_context()

        def start() -> None:
            self._main_task = self.create_task(main(*args), name="main")
            self._main_task.add_done_callback(self._ended)

        self.call_soon(start, context=context)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, ProcessKilled):
            self.process.finished(None if error or task.cancelled() else task.result(), error)

    def turn(self) -> None:
        """Run all that is ready."""
        kernel, process = self.kernel, self.process
        kernel.current = process
        asyncio._set_running_loop(self)
        try:
            for _ in range(MAX_ITERATIONS):
                self._iterate()
                if not process.alive:
                    return
                if process.lag or not self.has_work():
                    break
            else:
                raise SimulationError(
                    f"{process} spins: {MAX_ITERATIONS} iterations at {kernel.seconds} s\n{process.waits()}"
                )
        except ProcessKilled:
            return
        finally:
            asyncio._set_running_loop(None)
            kernel.current = None
        process.spent()
        self._arm()

    def _iterate(self) -> None:
        """Run what is ready now, once: what asyncio's `_run_once` does, without waiting and without its debugging."""
        ready = self._ready
        self._drop_cancelled()
        if self._sim_selector._maybe:
            self._process_events(self._sim_selector._poll())  # type: ignore[attr-defined]
        scheduled = self._scheduled
        if scheduled:
            end = self.time() + 1e-9
            while scheduled and scheduled[0]._when < end:
                timer = heapq.heappop(scheduled)
                timer._scheduled = False
                ready.append(timer)
        count = len(ready)
        self.kernel.called(self.process, count)
        for _ in range(count):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        """Drop cancelled timers: those at the head of the heap, or all if they are many."""
        scheduled = self._scheduled
        if len(scheduled) > MANY_TIMERS and self._timer_cancelled_count > len(scheduled) / 2:
            for timer in scheduled:
                timer._scheduled = not timer._cancelled
            scheduled[:] = [timer for timer in scheduled if timer._scheduled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False

    def has_work(self) -> bool:
        """Return whether a callback, a file or a timer is due."""
        if self._ready or self._sim_selector._maybe:
            return True
        scheduled = self._scheduled
        return bool(scheduled) and scheduled[0]._when <= self.time()

    def _arm(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not scheduled:
            return
        when = max(self.process.host.when_monotonic(scheduled[0]._when * SECOND), self.kernel.now + 1)
        armed = self._armed
        if armed is not None and not armed.is_cancelled:
            if armed.when <= when and armed.when > self.kernel.now:
                return
            armed.cancel()
        self._armed = self.kernel.at(when, self.process.turn_by_timer, rank=self.process.rank())

    def die(self) -> None:
        """Run nothing any more, and keep all, so that no destructor runs code of the dead."""
        self.dead = True
        for handle in (*self._ready, *self._scheduled):
            handle._cancelled = True
        if self._armed is not None:
            self._armed.cancel()
        self.kernel.graveyard.append([*self._ready, *self._scheduled])

    def __del__(self, *_: Any) -> None:
        pass  # asyncio warns about an unclosed loop here


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    if loop.dead or loop.kernel.closed or isinstance(error, ProcessKilled):
        return
    text = "" if error is None else "".join(traceback.format_exception(error))[-3000:]
    loop.kernel.complain(f"{context.get('message')}: {context.get('task', '')}\n{text}")


class SimLoopPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes loops of the current simulated process."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        process = installed_kernel().current
        if process is None:
            raise SimulationError("a loop is made outside of a simulated process")
        return SimLoop(process)


# ------------------------------------------------------------------ threads


class SimThread:
    """A thread of a simulated process, as a greenlet: it passes control on only in `park`.

    Args:
        process: its process.
        name: shown when it waits for ever.
        target: its function.
    """

    def __init__(self, process: SimProcess, name: str, target: Callable[[], object]) -> None:
        self.process = process
        self.kernel = process.kernel
        self.name = name
        self.ident = next(self.kernel.hashes) + 1_000_000
        self.python: threading.Thread | None = None
        self.done = False
        self.is_due = False
        self.waits_for = "its start"
        self.on_done: list[Callable[[], object]] = []
        self._target = target
        self._greenlet: greenlet.greenlet | None = None
        self._running_loop: asyncio.AbstractEventLoop | None = None
        self._hooks: Any = None
        """Hooks of asynchronous generators, of the loop that this thread runs; None without one."""
        self._parks = 0
        self._woken = False
        self._timer: Event | None = None

    def turn(self) -> None:
        """Let it run until it blocks or ends; the process calls this."""
        self.is_due = False
        if not self.done:
            self.kernel.resume(self)

    def enter(self) -> None:
        """Switch to it; `Kernel.resume` calls this."""
        if self._greenlet is None:
            self._greenlet = greenlet.greenlet(self.run)
        self._greenlet.parent = greenlet.getcurrent()
        if self._running_loop is None:
            asyncio._set_running_loop(None)
            self._greenlet.switch()
            return
        asyncio._set_running_loop(self._running_loop)
        sys.set_asyncgen_hooks(*self._hooks)
        self._greenlet.switch()

    def _leave(self) -> None:
        assert self._greenlet is not None
        assert self._greenlet.parent is not None
        self._running_loop = asyncio._get_running_loop()
        if self._running_loop is None:
            self._greenlet.parent.switch()
            return
        self._hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(None, None)
        self._greenlet.parent.switch()

    def run(self) -> None:
        """Run the function, in the greenlet."""
        try:
            if self.process.alive:
                self.waits_for = "nothing"
                self._target()
        except ProcessKilled:
            pass
        except BaseException as error:
            self.kernel.complain(f"thread {self.name}: " + "".join(traceback.format_exception(error))[-3000:])
        finally:
            self.done = True
            if self in self.process.threads:
                self.process.threads.remove(self)
            for callback in self.on_done:
                callback()

    def deadline(self, timeout_s: float) -> int:
        """Return the time after *timeout_s* seconds of this host's clock."""
        host, now = self.process.host, self.kernel.now
        return host.when_monotonic(host.monotonic(now) + timeout_s * SECOND)

    def park(self, reason: str, deadline: int | None = None) -> bool:
        """Block until `unpark`, or until *deadline*; return whether it was unparked. The thread itself calls this.

        Raises:
            ProcessKilled: its process has been killed.
        """
        if not self.process.alive:
            raise ProcessKilled(-9)
        self._parks += 1
        self._woken = False
        self.waits_for = reason
        if deadline is not None:
            if self.kernel.skip(self.process, deadline):
                self.waits_for = "nothing"
                return False
            self._timer = self.kernel.at(deadline, self._expire, self._parks)
        self._leave()
        self.waits_for = "nothing"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.process.alive:
            raise ProcessKilled(-9)
        return self._woken

    def unpark(self) -> None:
        """Let a parked thread go on."""
        self._woken = True
        self.is_due = True
        self.process.wake()

    def _expire(self, park: int) -> None:
        if park == self._parks:
            self.is_due = True
            self.process.wake()

    def sleep(self, seconds: float) -> None:
        """Let time pass for this thread."""
        deadline = self.deadline(max(seconds, 0.0))
        while self.kernel.now < deadline:
            self.park(f"sleep({seconds:g})", deadline)
        if seconds <= 0:
            self.is_due = True
            self.process.wake()
            self.park("sleep(0)")

    def die(self) -> None:
        """End it, because its process has been killed: what it waits for raises `ProcessKilled`."""
        if self.kernel.thread is self or self.done:
            return  # the running thread ends at its next effect
        if self._greenlet is None:
            self.done = True
            return
        while not self.done:
            self.kernel.resume(self)


class SimLock:
    """A lock between simulated threads. A loop that the kernel drives may take it only while it is free."""

    def __init__(self) -> None:
        self._kernel = installed_kernel()
        self._held = False
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock."""
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        thread = self._kernel.thread
        if thread is None:
            process = self._kernel.current
            if process is None or not process.alive or self._kernel.closed:
                return True  # code of a dead process, which a destructor runs
            raise SimulationError(f"{process} would block on a lock, on a loop that the kernel drives")
        deadline = None if timeout < 0 else thread.deadline(timeout)
        while self._held:
            self._waiting.append(thread)
            try:
                woken = thread.park("a lock", deadline)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
            if not woken and self._held:
                return False
        self._held = True
        return True

    def release(self) -> None:
        """Free the lock."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._waiting.popleft().unpark()

    def locked(self) -> bool:
        """Return whether it is held."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimRLock:
    """A reentrant lock between simulated threads."""

    def __init__(self) -> None:
        self._kernel = installed_kernel()
        self._lock = SimLock()
        self._owner: object = None
        self._count = 0

    def _me(self) -> object:
        return self._kernel.thread or self._kernel.current or self._kernel

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, once more if it is held already."""
        me = self._me()
        if self._owner is me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        """Free it once."""
        if self._owner is not self._me():
            process = self._kernel.current
            if self._kernel.closed or (process is not None and not process.alive):
                return  # a killed thread unwinds, and has not got back the lock that a condition gave away
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What `threading.Condition` needs.

    def _is_owned(self) -> bool:
        return self._owner is self._me()

    def _release_save(self) -> tuple[object, int]:
        state = self._owner, self._count
        self._owner, self._count = None, 0
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[object, int]) -> None:
        self._lock.acquire()
        self._owner, self._count = state

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0


# ------------------------------------------------------------------ the installed kernel


class _Installed:
    kernel: Kernel | None = None


def installed_kernel() -> Kernel:
    """Return the kernel that is installed; raises `SimulationError` if there is none."""
    if _Installed.kernel is None:
        raise SimulationError("no simulation runs: use patches.installed")
    return _Installed.kernel


def install_kernel(kernel: Kernel | None) -> None:
    """Set the installed kernel; `patches.installed` calls this."""
    _Installed.kernel = kernel
