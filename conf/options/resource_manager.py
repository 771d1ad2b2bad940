"""Options of the ResourceManager."""

from __future__ import annotations

from conf.option import option
from conf.values import Duration


class ResourceManagerOptions:
    """How the ResourceManager deals with requests that it cannot serve."""

    START_UP_TIME = option(
        "resourcemanager.standalone.start-up-time",
        Duration("1 min"),
        "0 s",
        "How long after it began to lead the ResourceManager waits for TaskExecutors to come: from then on a request "
        "for a slot fails at once while there is no slot in the whole cluster. `0 s`: it always waits for "
        "`slot.request.timeout`, since a worker that is replaced is away for some seconds (Flink's default is that "
        "time).",
    )
