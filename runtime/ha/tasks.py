"""Reliable cancellation of background tasks."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` until it has ended.

    A single cancellation may be lost inside the Redis client. If closing a broken connection fails, that error replaces
    the cancellation, and the task continues as after any other broken connection.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.2)
