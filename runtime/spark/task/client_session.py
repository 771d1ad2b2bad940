"""The code of a job that keeps a Spark Connect session open for a client (`runtime.rest.connect`).

The task process opens the session and holds its slot. The client's own calls do not pass through this process.
"""

from __future__ import annotations

import threading
from typing import Any

RELEASED = threading.Event()
"""Set when the client has released the session of this process."""


def keep_open(_context: Any) -> None:
    """Wait until the client has released the session; a cancellation interrupts this."""
    RELEASED.wait()
