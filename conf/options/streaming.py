"""Options of the streaming queries of jobs."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration


class StreamingOptions:
    """Supervision of streaming queries."""

    FAILURE_GRACE = option(
        "task.streaming.failure-grace",
        Duration("10 s"),
        "10 s",
        "Time for which the code of a task may ignore a failed streaming query before the task fails.",
    )
    NO_PROGRESS_TIMEOUT = option(
        "task.streaming.no-progress-timeout",
        Duration("10 min", minimum=0.001),
        None,
        "Longest time of one batch of a streaming query, after which its task fails and is restarted. Unset: no limit.",
    )
