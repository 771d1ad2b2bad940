"""Reports of what clients have read of an answer: Spark gets the last one of several.

PySpark sends a `ReleaseExecute` for each message of an answer, seven or eight for a query of one row. It does not wait
for their answers, and reads nothing in them. Spark frees memory upon them. What nobody reports as read it frees after a
time (`spark.connect.execute.manager.detachedTimeout`). So the gateway acknowledges each report at once, and passes on
the last one of an operation only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from runtime.rest.connect.calls import Call
from runtime.rest.connect.requests import Released

PAUSE_S = 0.1
"""Seconds for which a report waits for later ones of its operation; an answer occupies memory of the driver so long."""
MOST_WAITING = 1000
"""Beyond this number of reports, with those that a driver has not taken yet, one is passed on before its answer."""
STOP_S = 1.0
"""Longest time in which a gateway that stops passes on what waits."""

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A `ReleaseExecute`.

    Args:
        call: that brought it.
        message: the request.
        released: what it says.
        metadata: of the call, for Spark.
    """

    call: Call
    message: bytes
    released: Released
    metadata: Metadata


class Reports:
    """The reports that wait to be passed on.

    Args:
        pass_on: passes a report on to Spark; never raises.
    """

    def __init__(self, pass_on: Callable[[Report], Awaitable[None]]) -> None:
        self._pass_on = pass_on
        self._waiting: dict[tuple[str, str, str, str], Report] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._stopping = asyncio.Event()

    async def take(self, report: Report) -> None:
        """Take a report over, so that it can be acknowledged."""
        call = report.call
        key = call.user, call.name, call.client_id, report.released.operation_id
        earlier = self._waiting.get(key)
        if earlier is not None:
            if not earlier.released.is_all:  # a client sends its reports in several threads
                self._waiting[key] = report
        elif len(self._tasks) < MOST_WAITING:
            self._waiting[key] = report
            task = asyncio.create_task(self._later(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            await self._pass_on(report)

    async def _later(self, key: tuple[str, str, str, str]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await self._stopping.wait()
        await self._pass_on(self._waiting.pop(key))

    async def stop(self) -> None:
        """Pass on at once what waits; what Spark does not take within `STOP_S` is dropped."""
        self._stopping.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in late:
            task.cancel()
