"""Options of the ResourceManager."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from conf.option import computed_option, option
from conf.values import Choice, Duration, Integer, Number

if TYPE_CHECKING:
    from conf.configuration import Configuration


class ResourceManagerDriverType(Enum):
    """Way to start TaskExecutors."""

    STANDALONE = "standalone"
    PROCESS = "process"
    KUBERNETES = "kubernetes"


def _idle_timeout(configuration: Configuration) -> float:
    return 0.0 if configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE else 30.0


class ResourceManagerOptions:
    """Start and stop of TaskExecutors, and the treatment of slot requests that cannot be served yet."""

    DRIVER = option(
        "resourcemanager.driver",
        Choice(ResourceManagerDriverType),
        "standalone",
        "Way to start TaskExecutors. `standalone`: `understudy start` starts them (`taskmanager.count`). `process`: "
        "the ResourceManager starts processes on its own machine when requests wait for slots, and stops unused ones. "
        "`kubernetes`: it does the same with pods.",
    )
    MIN_SLOTS = option(
        "slotmanager.number-of-slots.min",
        Integer(0, example="4"),
        "0",
        "Least number of slots, used or not. It has no effect with `resourcemanager.driver: standalone`.",
    )
    MAX_SLOTS = option(
        "slotmanager.number-of-slots.max",
        Integer(1, example="16"),
        None,
        "Most slots; further requests wait. Unset, with `resourcemanager.driver: process`: the slots of as many "
        "TaskExecutors as the machine has cores. Unset, with other drivers: no limit.",
    )
    REDUNDANT_TASK_MANAGERS = option(
        "slotmanager.redundant-taskmanager-num",
        Integer(0, 1024),
        "0",
        "Number of additional TaskExecutors to keep, so that a lost one is replaced at once. It has no effect with "
        "`resourcemanager.driver: standalone`.",
    )
    TASK_MANAGER_TIMEOUT = computed_option(
        "resourcemanager.taskmanager-timeout",
        Duration("5 min"),
        _idle_timeout,
        "30 s, or never with `resourcemanager.driver: standalone`",
        "Time after which an unused TaskExecutor is stopped with its Spark driver. It starts again when requests wait "
        "for slots. `0 s`: never.",
    )
    REGISTRATION_TIMEOUT = option(
        "resourcemanager.taskmanager-registration.timeout",
        Duration("5 min", minimum=1.0),
        "5 min",
        "Time within which a started TaskExecutor has to register. After that the ResourceManager stops it, and starts "
        "another one if it is still needed.",
    )
    START_WORKER_MAX_FAILURE_RATE = option(
        "resourcemanager.start-worker.max-failure-rate",
        Number(0.0, 1e6, "10.0"),
        "10.0",
        "Number of TaskExecutors that may fail to start within a minute. After more failures, the ResourceManager "
        "waits for `resourcemanager.start-worker.retry-interval` before it starts the next one.",
    )
    START_WORKER_RETRY_INTERVAL = option(
        "resourcemanager.start-worker.retry-interval",
        Duration("3 s", minimum=0.1),
        "3 s",
        "Time for which the ResourceManager starts no TaskExecutor after too many have failed to start.",
    )
    PREVIOUS_WORKER_RECOVERY_TIMEOUT = option(
        "resourcemanager.previous-worker.recovery.timeout",
        Duration("30 s"),
        "30 s",
        "Time for which a new leader expects the TaskExecutors of the former one, and starts no replacements for them "
        "(Flink's default is 0 s).",
    )
    START_UP_TIME = option(
        "resourcemanager.standalone.start-up-time",
        Duration("1 min"),
        "0 s",
        "Time for which a new leading ResourceManager waits for TaskExecutors. After it a slot request fails at once "
        "while the whole cluster has no slot. `0 s`: a slot request always waits for `slot.request.timeout`, because "
        "the replacement of a TaskExecutor takes some seconds (Flink's default is that timeout). The same holds if "
        "unused TaskExecutors are stopped (`resourcemanager.taskmanager-timeout`).",
    )
