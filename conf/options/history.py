"""Options of the cluster's history."""

from __future__ import annotations

from conf.option import option
from conf.values import Boolean, Duration, Integer, MemorySize


class HistoryOptions:
    """Ended jobs and figures over time, which `understudy history` shows."""

    ENABLED = option(
        "history.enabled",
        Boolean(),
        "true",
        "Whether the cluster keeps a history in the folder `history/` of `cluster.shared-dir` "
        "([history.md](history.md)). It holds the jobs that the cluster has forgotten (`jobstore.*`), the last states "
        "of its running jobs, and its figures over time.",
    )
    INTERVAL = option(
        "history.interval",
        Duration("30 s", minimum=0.1),
        "30 s",
        "Time between two points of the figures. The leading web endpoint writes them, each with the present state of "
        "the running jobs; without `rest.enabled` there are none.",
    )
    EXPIRATION_TIME = option(
        "history.expiration-time",
        Duration("7 d"),
        "7 d",
        "Time for which ended jobs and figures stay in the history. The leading Dispatcher deletes older ones.",
    )
    MAX_SIZE = option(
        "history.max-size",
        MemorySize("256 mb", minimum=1 << 20),
        "256 mb",
        "Most space of the history. Beyond it the leading Dispatcher deletes the oldest files first.",
    )
    PORT = option(
        "historyserver.web.port",
        Integer(0, 65535, example="8082"),
        "8082",
        "The port of `understudy history`, at `rest.bind-address` or `rest.address`; 0 for any free one. Token, TLS "
        "and allowed hosts are those of the web endpoint (`rest.*`, `security.ssl.rest.*`).",
    )
