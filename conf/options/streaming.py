"""Options of the streaming queries of jobs."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration, Integer

STREAMING_PREFIX = "task.streaming."


class StreamingOptions:
    """Supervision of streaming queries."""

    FAILURE_GRACE = option(
        "task.streaming.failure-grace",
        Duration("10 s"),
        "10 s",
        "Time for which the code of a task may ignore a failed streaming query before the task fails.",
    )
    QUERY_RESTARTS = option(
        "task.streaming.query-restarts",
        Integer(0, example="3"),
        "0",
        "How often one attempt of a script's task starts a failed streaming query again alone, while the others run. "
        "After that the task fails. 0: the task fails at once.",
    )
    QUERY_RESTART_DELAY = option(
        "task.streaming.query-restart-delay",
        Duration("1 s"),
        "1 s",
        "Time before a failed streaming query is started again alone.",
    )
    NO_PROGRESS_TIMEOUT = option(
        "task.streaming.no-progress-timeout",
        Duration("10 min", minimum=0.001),
        None,
        "Longest time of one batch of a streaming query, after which its task fails and is restarted. Unset: no limit.",
    )
