"""Actors in one system: how long they take from `actor_of` to the first reply, and how much memory each holds.

They share one host process, as thousands are meant to; a process of its own each is measured beside. For each number of
actors there is a system of its own: all are created, each is asked, the host's memory is looked at, all are stopped.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from actors import Actor, ActorSystem, Props

Figures = dict[str, float]
Rows = list[tuple[str, str]]

COUNTS = (250, 500, 1000)
WARM = 50
PINNED = 10
TIMEOUT_S = 120.0


class Counter(Actor):
    """Keeps a number, as a small actor does."""

    def __init__(self) -> None:
        self.count = 0

    def receive(self, message: int) -> None:
        """Add and answer."""
        self.count += message
        self.reply(self.count)


class Trimmer(Actor):
    """Gives memory back that its process holds but does not use: messages that have been handled, above all."""

    def receive(self, message: None) -> None:
        """Trim and answer."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self.reply(None)


@dataclass(frozen=True)
class Sample:
    """One run.

    Args:
        create_s: from the first `actor_of` until each actor has answered, in seconds.
        stop_s: from the first order to stop until all have stopped, in seconds.
        bytes_each: growth of the memory that the host has for itself, for each actor, in bytes. (Its resident memory
            would hide what it takes of the memory that it was forked with.)
    """

    create_s: float
    stop_s: float
    bytes_each: float


def run(rounds: int) -> tuple[Figures, Rows]:
    """Measure; returns the figures and the table's rows."""
    samples: dict[int, list[Sample]] = {count: [] for count in COUNTS}
    for _ in range(rounds):
        for count in COUNTS:
            samples[count].append(_shared(count))
    pinned_s = statistics.median(_pinned(PINNED) for _ in range(rounds))
    most = max(COUNTS)
    figures = {
        "actors.count": float(most),
        "actors.create_s": _median(samples[most], lambda sample: sample.create_s),
        "actors.stop_s": _median(samples[most], lambda sample: sample.stop_s),
        "actors.bytes_each": _median(samples[most], lambda sample: sample.bytes_each),
        "actors.pinned_create_s_each": pinned_s / PINNED,
    }
    rows = []
    for count in COUNTS:
        create_s = _median(samples[count], lambda sample: sample.create_s)
        figures[f"actors.{count}.create_us_each"] = create_s / count * 1e6
        figures[f"actors.{count}.bytes_each"] = _median(samples[count], lambda sample: sample.bytes_each)
        rows.append(
            (
                f"{count} actors, created and asked",
                f"{create_s:12.3f} s    {create_s / count * 1e6:6.0f} us and "
                f"{figures[f'actors.{count}.bytes_each']:6.0f} bytes each",
            )
        )
    rows.append((f"{most} actors, stopped", f"{figures['actors.stop_s']:12.3f} s"))
    rows.append(("an actor with a process of its own", f"{pinned_s / PINNED * 1e3:12.1f} ms to its first reply"))
    return figures, rows


def _median(samples: list[Sample], of: Callable[[Sample], float]) -> float:
    return statistics.median(of(sample) for sample in samples)


def _shared(count: int) -> Sample:
    props = Props(Counter).shared()
    with ActorSystem("bench") as system:
        _ask_all(system, props, WARM)  # so that what the first actors bring with them (imports, buffers) is there
        trimmer = system.actor_of(Props(Trimmer).shared())
        trimmer.ask(None, TIMEOUT_S).result()
        (pid,) = system.processes.values()
        host = psutil.Process(pid)
        before = host.memory_full_info().uss
        began = time.perf_counter()
        refs = [system.actor_of(props) for _ in range(count)]
        for ask in [ref.ask(1, TIMEOUT_S) for ref in refs]:
            if ask.result() != 1:
                raise RuntimeError("an actor has answered wrongly")
        create_s = time.perf_counter() - began
        trimmer.ask(None, TIMEOUT_S).result()
        after = host.memory_full_info().uss
        began = time.perf_counter()
        for stop in [system.graceful_stop(ref, TIMEOUT_S) for ref in refs]:
            stop.result()
        return Sample(create_s, time.perf_counter() - began, (after - before) / count)


def _ask_all(system: ActorSystem, props: Props, count: int) -> None:
    for ask in [system.actor_of(props).ask(1, TIMEOUT_S) for _ in range(count)]:
        ask.result()


def _pinned(count: int) -> float:
    with ActorSystem("bench") as system:
        began = time.perf_counter()
        _ask_all(system, Props(Counter).pinned(), count)
        return time.perf_counter() - began
