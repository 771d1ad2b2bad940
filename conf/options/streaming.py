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
        "How long the code of a task may leave a streaming query alone that has failed, before the task fails of it.",
    )
    NO_PROGRESS_TIMEOUT = option(
        "task.streaming.no-progress-timeout",
        Duration("10 min", minimum=0.001),
        None,
        "How long a streaming query may be in one batch, before its task fails and is restarted; unset: any time.",
    )
