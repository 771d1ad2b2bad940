"""Stops the streaming queries of a task between two batches."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from runtime.causes import cause_of

POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A streaming query that had failed before it was stopped: its run, its name, and its error on one line."""

    run_id: str
    name: str
    error: str


@dataclass(frozen=True, slots=True)
class StoppedQueries:
    """What became of queries that were stopped.

    Args:
        failures: those that failed before they could be stopped.
        undrained: names of those that had not worked off in time what their sources have.
        forced: names of those that were interrupted in a batch.
    """

    failures: tuple[QueryFailure, ...] = ()
    undrained: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


def stop_at_boundary(queries: list[Any], *, drain: bool, timeout_s: float) -> StoppedQueries:
    """Stop queries of the driver JVM, each when none of its batches is under way.

    What Spark's `stop` interrupts is no batch then. One that is always in a batch is stopped as soon as it has
    committed one; one that commits none for *timeout_s* is interrupted in the middle of it, and does it again when it
    is started again.

    Args:
        queries: `org.apache.spark.sql.streaming.StreamingQuery` objects.
        drain: work off first what the sources have now.
        timeout_s: seconds for all of it.
    """
    deadline = time.monotonic() + timeout_s
    if not queries:
        return StoppedQueries()
    with ThreadPoolExecutor(len(queries), "stop-query") as pool:
        parts = list(pool.map(lambda query: _stop(query, drain, deadline), queries))
    return StoppedQueries(
        tuple(failure for part in parts for failure in part.failures),
        tuple(name for part in parts for name in part.undrained),
        tuple(name for part in parts for name in part.forced),
    )


def _stop(query: Any, drain: bool, deadline: float) -> StoppedQueries:
    name = str(query.name() or query.id().toString())
    undrained = drain and not _drained(query, deadline)
    is_forced = False
    batch = _last_batch(query)
    while query.isActive() and query.status().isTriggerActive() and _last_batch(query) == batch:
        if time.monotonic() >= deadline:
            is_forced = True
            break
        time.sleep(POLL_S)
    failure = query.exception()  # of its own: what it ends with from now on may come of the stop
    query.stop()
    if failure.isDefined():
        error = cause_of(str(failure.get().getMessage()))
        return StoppedQueries(failures=(QueryFailure(query.runId().toString(), name, error),))
    return StoppedQueries((), (name,) * undrained, (name,) * is_forced)


def _last_batch(query: Any) -> int | None:
    progress = query.lastProgress()
    return None if progress is None else int(progress.batchId())


def _drained(query: Any, deadline: float) -> bool:
    """Whether all that the sources had could be worked off in time."""
    done = threading.Event()

    def wait() -> None:
        try:
            query.processAllAvailable()
        except Py4JJavaError:
            return  # it was stopped, or has failed, which whoever stops it finds
        done.set()

    threading.Thread(target=wait, name="drain-query", daemon=True).start()
    while query.isActive() and time.monotonic() < deadline:
        if done.wait(POLL_S):
            return True
    return done.is_set() or not query.isActive()
