"""Options of queues and limits."""

from __future__ import annotations

from conf.option import option
from conf.values import FilePath


class QueueOptions:
    """Queues of jobs, and limits of users, groups and queues (`docs/queues.md`)."""

    FILE = option(
        "queues.file",
        FilePath("/etc/understudy/queues.yaml"),
        None,
        "The file that names queues and limits, on each machine of a master. It is read again when it has changed. "
        "Unset: there is one queue, without limits.",
    )
