"""Stops the streaming queries of a task between two batches."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JJavaError

POLL_S = 0.01


def stop_at_boundary(queries: list[Any], *, drain: bool, timeout_s: float) -> list[str]:
    """Stop queries of the driver JVM, each when none of its batches is under way.

    What Spark's `stop` interrupts is no batch then. One that is always in a batch is stopped as soon as it has
    committed one; one that commits none for *timeout_s* is interrupted in the middle of it, and does it again when it
    is started again.

    Args:
        queries: `org.apache.spark.sql.streaming.StreamingQuery` objects.
        drain: work off first what the sources have now.
        timeout_s: seconds for all of it.

    Returns:
        what has to be told: the queries that were interrupted or not drained.
    """
    deadline = time.monotonic() + timeout_s
    if not queries:
        return []
    with ThreadPoolExecutor(len(queries), "stop-query") as pool:
        notes = pool.map(lambda query: _stop(query, drain, deadline), queries)
        return [note for found in notes for note in found]


def _stop(query: Any, drain: bool, deadline: float) -> list[str]:
    notes = []
    name = query.name() or query.id().toString()
    if drain and not _drained(query, deadline):
        notes.append(f"query {name} had not worked off all that its sources have when the time was over")
    batch = _last_batch(query)
    while query.isActive() and query.status().isTriggerActive() and _last_batch(query) == batch:
        if time.monotonic() >= deadline:
            notes.append(f"query {name} was stopped by force in the middle of a batch, which is done again from there")
            break
        time.sleep(POLL_S)
    query.stop()
    return notes


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
            return  # it was stopped, or has failed
        done.set()

    threading.Thread(target=wait, name="drain-query", daemon=True).start()
    while query.isActive() and time.monotonic() < deadline:
        if done.wait(POLL_S):
            return True
    return done.is_set() or not query.isActive()
