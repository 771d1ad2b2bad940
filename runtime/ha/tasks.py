"""Ending a background task for certain."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` until it has ended.

    Once is not enough where the task may be inside the Redis client: an error while a broken connection is being
    closed takes the place of the cancellation, and the task goes on as after any other broken connection.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.2)
