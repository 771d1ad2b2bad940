"""What the product sees instead of the operating system while a simulation runs: clocks, random numbers, threads.

Devices add patches of their own by `add_patches`. All are undone when the simulation ends, and production pays nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread as futures_thread
import contextlib
import gc
import os
import queue
import random
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.kernel import (
    EPOCH_NS,
    SECOND,
    Kernel,
    ProcessKilled,
    SimLock,
    SimLoopPolicy,
    SimRLock,
    SimulationError,
    install_kernel,
    installed_kernel,
)

PRODUCT = ("actors", "blob", "conf", "runtime", "understudy")
Patch = tuple[Any, str, Any]

_sources: list[Callable[[Kernel], list[Patch]]] = []

real_monotonic = time.monotonic
real_process_time = time.process_time
_real_sleep, _real_urandom, _real_thread = time.sleep, os.urandom, threading.get_ident


def add_patches(source: Callable[[Kernel], list[Patch]]) -> None:
    """Register a device's patches: *source* returns (object, attribute, value) for a kernel."""
    if source not in _sources:
        _sources.append(source)


# ------------------------------------------------------------------ clocks


def _is_foreign(kernel: Kernel) -> bool:
    """Whether a thread calls that does not belong to the simulation, which is one thread: a worker of Py4J, say."""
    return _real_thread() != kernel.real_thread


def _clocks(kernel: Kernel) -> list[Patch]:
    def wall_ns() -> int:
        process = kernel.current
        return EPOCH_NS + kernel.now if process is None else process.host.wall(kernel.now + process.lag)

    def monotonic_ns() -> int:
        process = kernel.current
        return kernel.now if process is None else process.host.monotonic(kernel.now + process.lag)

    def gettime_ns(clock: int) -> int:
        process = kernel.current
        if clock == time.CLOCK_BOOTTIME and process is not None:
            return process.host.boottime(kernel.now + process.lag)
        return wall_ns() if clock == time.CLOCK_REALTIME else monotonic_ns()

    def sleep(seconds: float) -> None:
        if _is_foreign(kernel):
            _real_sleep(seconds)
        elif kernel.thread is not None:
            kernel.thread.sleep(seconds)
        elif kernel.current is not None:
            kernel.current.stall(seconds)
        else:
            raise SimulationError("the simulator itself sleeps")

    return [
        (time, "time", lambda: wall_ns() / SECOND),
        (time, "time_ns", wall_ns),
        (time, "monotonic", lambda: monotonic_ns() / SECOND),
        (time, "monotonic_ns", monotonic_ns),
        (time, "perf_counter", lambda: monotonic_ns() / SECOND),
        (time, "perf_counter_ns", monotonic_ns),
        (time, "process_time", lambda: monotonic_ns() / SECOND),
        (time, "thread_time", lambda: monotonic_ns() / SECOND),
        (time, "clock_gettime", lambda clock: gettime_ns(clock) / SECOND),
        (time, "clock_gettime_ns", gettime_ns),
        (time, "sleep", sleep),
    ]


# ------------------------------------------------------------------ random numbers, ids

_Random = random.Random


class ProcessRandom(random.Random):
    """A source of random numbers that draws from the stream of the current process; a seed of its own is respected."""

    def __init__(self, x: Any = None) -> None:
        self._own = x is not None
        super().__init__(0 if x is None else x)

    def _stream(self) -> random.Random | None:
        if self._own:
            return None
        kernel = installed_kernel()
        if _is_foreign(kernel):
            return None
        return kernel.random("simulator") if kernel.current is None else kernel.current.random

    def random(self) -> float:
        """Draw a number."""
        stream = self._stream()
        return super().random() if stream is None else stream.random()

    def getrandbits(self, k: int, /) -> int:
        """Draw bits."""
        stream = self._stream()
        return super().getrandbits(k) if stream is None else stream.getrandbits(k)


def _chance(kernel: Kernel) -> list[Patch]:
    def urandom(size: int, /) -> bytes:
        if _is_foreign(kernel):
            return _real_urandom(size)
        process = kernel.current
        stream = kernel.random("simulator") if process is None else process.random
        return stream.getrandbits(8 * size).to_bytes(size) if size else b""

    def getpid() -> int:
        return 1 if kernel.current is None else kernel.current.pid

    patches: list[Patch] = [
        (os, "urandom", urandom),
        (random, "_urandom", urandom),
        (os, "getpid", getpid),
        (random, "Random", ProcessRandom),
        (tempfile, "_Random", ProcessRandom),
        (tempfile, "_name_sequence", None),
    ]
    shared = ProcessRandom()
    names = ("random", "uniform", "randint", "randrange", "choice", "choices", "shuffle", "sample", "getrandbits")
    patches += [(random, name, getattr(shared, name)) for name in (*names, "randbytes", "expovariate", "gauss")]
    return patches


# ------------------------------------------------------------------ threads


def _threads(kernel: Kernel) -> list[Patch]:
    def start(self: threading.Thread) -> None:
        process = kernel.current
        if process is None:
            raise SimulationError("a thread is started outside of a simulated process")

        def run() -> None:
            self._started.set()  # type: ignore[attr-defined]
            self.run()

        thread = process.start_thread(self.name, run)
        thread.python = self
        self._sim = thread  # type: ignore[attr-defined]
        self._ident = thread.ident  # type: ignore[attr-defined]
        self._started.set()  # type: ignore[attr-defined]

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        thread, me = getattr(self, "_sim", None), kernel.thread
        if thread is None:
            raise RuntimeError("cannot join thread before it is started")
        if thread.done:
            return
        if me is None:
            raise SimulationError("a loop that the kernel drives joins a thread")
        deadline = None if timeout is None else me.deadline(max(timeout, 0.0))
        thread.on_done.append(me.unpark)
        try:
            while not thread.done and (deadline is None or kernel.now < deadline):
                me.park(f"the end of thread {thread.name}", deadline)
        finally:
            thread.on_done.remove(me.unpark)

    def is_alive(self: threading.Thread) -> bool:
        thread = getattr(self, "_sim", None)
        return thread is not None and not thread.done

    def get_ident() -> int:
        if kernel.thread is not None:
            return kernel.thread.ident
        return 1 if kernel.current is None else kernel.current.pid

    main = threading.main_thread()

    def current_thread() -> threading.Thread:
        if kernel.thread is not None and kernel.thread.python is not None:
            return kernel.thread.python
        return main

    def enumerate_threads() -> list[threading.Thread]:
        process = kernel.current
        threads = [] if process is None else [one.python for one in process.threads if one.python is not None]
        return [main, *threads]

    return [
        (threading, "Lock", SimLock),
        (threading, "_allocate_lock", SimLock),
        (threading, "RLock", SimRLock),
        (threading.Thread, "start", start),
        (threading.Thread, "join", join),
        (threading.Thread, "is_alive", is_alive),
        (threading, "get_ident", get_ident),
        (threading, "current_thread", current_thread),
        (threading, "enumerate", enumerate_threads),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        *_pools(),
    ]


def _work(executor_of: Callable[[], Any], requests: Any) -> None:
    """Run what comes to a pool of threads, until the pool is shut down or nobody has it any more."""
    while True:
        item = requests.get(block=True)
        if item is not None:
            item.run()
            del item
            if (executor := executor_of()) is not None:
                executor._idle_semaphore.release()
        elif (executor := executor_of()) is None or executor._shutdown:
            requests.put(None)
            return
        del executor


def _pools() -> list[Patch]:
    """Return patches of pools of threads: which thread takes a request differs between versions of Python."""

    def adjust_thread_count(self: Any) -> None:
        if getattr(self, "_initializer", None) is not None:
            raise SimulationError("threads of a pool with an initializer are not simulated")
        if self._idle_semaphore.acquire(timeout=0):
            return
        requests, number = self._work_queue, len(self._threads)
        if number < self._max_workers:
            reference = weakref.ref(self, lambda _: requests.put(None))
            name = f"{self._thread_name_prefix}_{number}"
            thread = threading.Thread(name=name, target=_work, args=(reference, requests))
            thread.start()
            self._threads.add(thread)

    return [(futures_thread.ThreadPoolExecutor, "_adjust_thread_count", adjust_thread_count)]


# ------------------------------------------------------------------ rebinding what was bound at import


def _hash_by_number(self: Any) -> int:
    found = self.__dict__.get("_sim_hash")
    if found is None:
        found = self.__dict__["_sim_hash"] = next(installed_kernel().hashes)
    return found  # type: ignore[no-any-return]


def _product_modules() -> list[types.ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if module is not None and (name.partition(".")[0] in PRODUCT)
    ]


def _functions(owner: Any, module: str) -> Iterator[types.FunctionType]:
    for value in list(vars(owner).values()):
        found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(found, types.FunctionType) and found.__module__ == module:
            yield found


def _rebindings(replaced: dict[int, Any]) -> list[Patch]:
    """Return patches for module globals and default arguments that hold a replaced function or a generator."""
    patches: list[Patch] = []

    def new(value: Any) -> Any:
        if type(value) is _Random:
            return ProcessRandom()
        try:
            return replaced.get(id(value), value)
        except TypeError:
            return value

    for module in _product_modules():
        owners: list[Any] = [module]
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                owners.append(value)
                if getattr(value, "__hash__", None) is object.__hash__ and value.__dictoffset__:
                    patches.append((value, "__hash__", _hash_by_number))
            elif new(value) is not value and not name.startswith("__"):
                patches.append((module, name, new(value)))
        for owner in owners:
            for function in _functions(owner, module.__name__):
                if function.__defaults__ and any(new(value) is not value for value in function.__defaults__):
                    patches.append((function, "__defaults__", tuple(map(new, function.__defaults__))))
                if function.__kwdefaults__ and any(
                    new(value) is not value for value in function.__kwdefaults__.values()
                ):
                    patches.append(
                        (
                            function,
                            "__kwdefaults__",
                            {key: new(value) for key, value in function.__kwdefaults__.items()},
                        )
                    )
    return patches


_MISSING = object()


def _forget(kernel: Kernel, patches: list[Patch]) -> None:
    """Let go of the simulated programs: replaced functions still refer to the devices, and these to the programs."""
    for process in [process for host in kernel.hosts.values() for process in host.processes] + list(kernel.processes):
        process.__dict__.clear()
    for _, _, value in patches:
        for cell in getattr(value, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                found = cell.cell_contents
                if type(found).__module__.startswith("tests.simulation.") and found is not kernel:
                    getattr(found, "__dict__", {}).clear()
    for device in kernel.devices.values():
        getattr(device, "__dict__", {}).clear()
    kernel.devices.clear()
    kernel.hosts.clear()
    kernel.processes.clear()
    kernel.graveyard.clear()


@contextlib.contextmanager
def installed(kernel: Kernel) -> Iterator[Kernel]:
    """Put the simulated world in the place of the real one, and end the simulation afterwards."""
    patches = [*_clocks(kernel), *_chance(kernel), *_threads(kernel)]
    for source in _sources:
        patches += source(kernel)
    replaced = {
        id(before): value
        for owner, name, value in patches
        if not isinstance(before := vars(owner).get(name), bool | None)  # which stand for themselves everywhere
    }
    patches += _rebindings(replaced)
    undo: list[Patch] = []
    policy = asyncio.get_event_loop_policy()
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    install_kernel(kernel)
    try:
        for owner, name, value in patches:
            undo.append((owner, name, vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING))
            if isinstance(owner, types.FunctionType):
                undo[-1] = (owner, name, getattr(owner, name))
            setattr(owner, name, value)
        asyncio.set_event_loop_policy(SimLoopPolicy())
        yield kernel
    finally:
        with contextlib.suppress(ProcessKilled):
            kernel.close()
        _forget(kernel, patches)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        gc.collect()  # the destructors of the dead run while all their effects are impossible
        sys.unraisablehook = hook
        asyncio.set_event_loop_policy(policy)
        for owner, name, value in reversed(undo):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        install_kernel(None)
        if was_enabled:
            gc.enable()
