"""Sees the streaming queries of a task: whatever its code starts, in whichever of its sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from runtime.jobmaster.descriptor import StreamingQuery
from runtime.spark import ClassicEndpoint, ConnectEndpoint, SparkDriver, SparkVehicleError

INTERVAL_S = 1.0
REPEAT_S = 5.0


async def watch_queries(
    driver: SparkDriver,
    endpoint: ClassicEndpoint | ConnectEndpoint,
    tell: Callable[[tuple[StreamingQuery, ...]], None],
) -> None:
    """Tell a task's active queries when they change, and now and then, for a JobMaster that is new; until cancelled.

    It ends by itself when the driver is lost, which others tell.
    """
    told: tuple[StreamingQuery, ...] = ()
    told_at = time.monotonic()
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            infos = await driver.streaming_queries(endpoint)
        except SparkVehicleError:
            return
        found = tuple(StreamingQuery(info.id, info.run_id, info.name or "", info.batch) for info in infos)
        if found != told or (found and time.monotonic() - told_at > REPEAT_S):
            tell(found)
            told, told_at = found, time.monotonic()
