"""Options of the ResourceManager."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration


class ResourceManagerOptions:
    """How the ResourceManager deals with requests that it cannot serve, and with workers that nobody uses."""

    TASK_MANAGER_TIMEOUT = option(
        "resourcemanager.taskmanager-timeout",
        Duration("5 min"),
        "0 s",
        "How long nobody may use any slot of a TaskExecutor before its worker is stopped, with its Spark driver; it is "
        "started again when requests wait for slots. `0 s`: never (Flink's default is 30 s, and holds where workers "
        "are started on demand).",
    )
    START_UP_TIME = option(
        "resourcemanager.standalone.start-up-time",
        Duration("1 min"),
        "0 s",
        "How long after it began to lead the ResourceManager waits for TaskExecutors to come: from then on a request "
        "for a slot fails at once while there is no slot in the whole cluster. `0 s`: it always waits for "
        "`slot.request.timeout`, since a worker that is replaced is away for some seconds (Flink's default is that "
        "time), and so it does where workers are stopped (`resourcemanager.taskmanager-timeout`).",
    )
