"""Options of the ResourceManager."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.values import Choice, Duration, Integer, Number

if TYPE_CHECKING:
    from conf.configuration import Configuration


class ResourceManagerDriverType(Enum):
    """Where workers come from."""

    STANDALONE = "standalone"
    PROCESS = "process"
    KUBERNETES = "kubernetes"


def _idle_timeout(configuration: Configuration) -> float:
    return 0.0 if configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE else 30.0


class ResourceManagerOptions:
    """Where workers come from, how the ResourceManager deals with requests that it cannot serve, and with workers that
    nobody uses."""

    DRIVER = option(
        "resourcemanager.driver",
        Choice(ResourceManagerDriverType),
        "standalone",
        "Where workers come from. `standalone`: those that `understudy start` starts (`taskmanager.count`). `process`: "
        "the ResourceManager starts processes on its own machine when requests wait for slots, and stops those that "
        "nobody uses. `kubernetes`: it does the same with pods.",
    )
    MIN_SLOTS = option(
        "slotmanager.number-of-slots.min",
        Integer(0, example="4"),
        "0",
        "How many slots there are always to be, used or not. Not with `resourcemanager.driver: standalone`.",
    )
    MAX_SLOTS = option(
        "slotmanager.number-of-slots.max",
        Integer(1, example="16"),
        None,
        "How many slots there may be; requests beyond them wait. Unset: with `resourcemanager.driver: process` those "
        "of as many TaskExecutors as the machine has cores, otherwise no limit.",
    )
    REDUNDANT_TASK_MANAGERS = option(
        "slotmanager.redundant-taskmanager-num",
        Integer(0, 1024),
        "0",
        "How many TaskExecutors more than are asked for are kept, so that a lost one is replaced at once. Not with "
        "`resourcemanager.driver: standalone`.",
    )
    TASK_MANAGER_TIMEOUT = computed_option(
        "resourcemanager.taskmanager-timeout",
        Duration("5 min"),
        _idle_timeout,
        "30 s, or never with `resourcemanager.driver: standalone`",
        "How long nobody may use any slot of a TaskExecutor before its worker is stopped, with its Spark driver; it is "
        "started again when requests wait for slots. `0 s`: never.",
    )
    REGISTRATION_TIMEOUT = option(
        "resourcemanager.taskmanager-registration.timeout",
        Duration("5 min", minimum=1.0),
        "5 min",
        "How long a worker that was asked for may take until its TaskExecutor registers; after that it is stopped, and "
        "another one is asked for if it is still needed.",
    )
    START_WORKER_MAX_FAILURE_RATE = option(
        "resourcemanager.start-worker.max-failure-rate",
        Number(0.0, 1e6, "10.0"),
        "10.0",
        "How many workers may fail to start within a minute; with more of them, the next one is asked for after "
        "`resourcemanager.start-worker.retry-interval`.",
    )
    START_WORKER_RETRY_INTERVAL = option(
        "resourcemanager.start-worker.retry-interval",
        Duration("3 s", minimum=0.1),
        "3 s",
        "How long no worker is asked for after too many have failed to start.",
    )
    PREVIOUS_WORKER_RECOVERY_TIMEOUT = option(
        "resourcemanager.previous-worker.recovery.timeout",
        Duration("30 s"),
        "30 s",
        "How long after a change of the leader the workers of the former one count as coming, so that none is asked "
        "for in their place (Flink's default is 0 s).",
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
