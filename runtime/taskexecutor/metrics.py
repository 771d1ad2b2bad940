"""A TaskExecutor's metrics: slots, tasks, its pool of ready task processes, what it and its Spark driver take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

import psutil

from actors.rpc.service import RpcService
from runtime.ids import ResourceID
from runtime.metrics.dump import MetricScope, ScopeCategory
from runtime.metrics.metric import Value
from runtime.metrics.process import NANOSECONDS, add_process_metrics
from runtime.metrics.registry import MetricRegistry
from runtime.protocol.diagnostics import TaskManagerMetrics, TaskPoolReport
from runtime.protocol.slots import SlotReport
from runtime.spark.driver.api import SparkDriver
from runtime.spark.errors import SparkError

logger = logging.getLogger(__name__)

JVM_INTERVAL_S = 5.0
RATE_WINDOW_S = 60.0
COLLECTION_TIME = ".Time"


class JvmRates:
    """Rates of the last minute, from figures that only grow (Flink's `MeterView`). Pure.

    Args:
        cores: of the machine.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._seen: deque[tuple[float, float, dict[str, int]]] = deque()

    def rates(self, now_s: float, cpu_s: float, figures: Mapping[str, int]) -> dict[str, float]:
        """Return the processor load (0 to 1), and the milliseconds of each second that go into garbage collection.

        Args:
            now_s: seconds on a clock that does not go back.
            cpu_s: processor seconds that the Spark driver has taken.
            figures: as of `SparkDriver.jvm_figures`.
        """
        spent = {name: value for name, value in figures.items() if name.endswith(COLLECTION_TIME)}
        self._seen.append((now_s, cpu_s, spent))
        while self._seen[0][0] < now_s - RATE_WINDOW_S:
            self._seen.popleft()
        then_s, cpu_then_s, spent_then = self._seen[0]
        passed_s = now_s - then_s
        if passed_s <= 0:
            return {"CPU.Load": 0.0, **{f"{name}MsPerSecond": 0.0 for name in spent}}
        rates = {f"{name}MsPerSecond": (spent[name] - spent_then.get(name, 0)) / passed_s for name in spent}
        return {"CPU.Load": (cpu_s - cpu_then_s) / passed_s / self._cores, **rates}


class MetricsSampler:
    """Looks at what a TaskExecutor and its Spark driver take.

    Args:
        spark_pid: process of the Spark driver.
    """

    def __init__(self, spark_pid: int) -> None:
        self._own = psutil.Process()
        self._spark_pid = spark_pid
        self._spark: psutil.Process | None = None
        self._jvm: dict[str, int | float] = {}
        self._rates = JvmRates(psutil.cpu_count() or 1)

    async def ask_jvm(self, driver: SparkDriver) -> None:
        """Ask the Spark driver for its figures now and then, until it is gone or has none to be told."""
        while driver.alive:
            try:
                found = await driver.jvm_figures()
                if found is None:
                    return
                _, cpu_s = self._sample_spark()
                self._jvm = {**found, **self._files(), **self._rates.rates(time.monotonic(), cpu_s, found)}
            except (SparkError, ValueError, psutil.Error) as error:
                logger.debug("the Spark driver does not tell its figures: %s", error)
                self._jvm = {}
            await asyncio.sleep(JVM_INTERVAL_S)

    def _files(self) -> dict[str, int]:
        """Open descriptors of the Spark driver, and how many it may have; raises psutil.Error where it is gone."""
        spark = psutil.Process(self._spark_pid)
        return {
            "FileDescriptor.Open": spark.num_fds(),
            "FileDescriptor.Max": spark.rlimit(psutil.RLIMIT_NOFILE)[0],
        }

    def sample(self, tasks: int) -> TaskManagerMetrics:
        """Return what they take at present; *tasks* is how many attempts run."""
        with self._own.oneshot():
            times = self._own.cpu_times()
            memory, threads, files = self._own.memory_info().rss, self._own.num_threads(), self._own.num_fds()
        spark_memory, spark_cpu_s = self._sample_spark()
        jvm = self._jvm if spark_memory else {}
        cpu_s = times.user + times.system
        return TaskManagerMetrics(memory, cpu_s, threads, files, spark_memory, spark_cpu_s, tasks, jvm)

    def _sample_spark(self) -> tuple[int, float]:
        try:
            if self._spark is None:
                self._spark = psutil.Process(self._spark_pid)
            times = self._spark.cpu_times()
            return self._spark.memory_info().rss, times.user + times.system
        except psutil.Error:
            return 0, 0.0  # it has ended, which others are about to see


def task_executor_metrics(
    service: RpcService,
    resource_id: ResourceID,
    slots: Callable[[], SlotReport],
    sample: Callable[[], TaskManagerMetrics],
    pool: Callable[[], TaskPoolReport | None],
) -> MetricRegistry:
    """The registry of a TaskExecutor's process.

    Args:
        service: its RPC service.
        resource_id: its name.
        slots: gives what its slots are used for.
        sample: looks at what it and its Spark driver take.
        pool: gives what its pool did; None while there is none.
    """
    registry = MetricRegistry()
    group = registry.group(MetricScope(ScopeCategory.TASK_MANAGER, task_manager=resource_id))

    def own() -> dict[str, Value | None]:
        statuses, found = slots().slots, sample()
        has_driver = found.spark_memory_bytes > 0
        return {
            "taskSlotsTotal": len(statuses),
            "taskSlotsAvailable": sum(status.allocation_id is None for status in statuses),
            "numRunningTasks": found.tasks,
            "Status.JVM.CPU.Time": int(found.spark_cpu_s * NANOSECONDS) if has_driver else None,
            "Status.JVM.Memory.Resident": found.spark_memory_bytes if has_driver else None,
            **{f"Status.JVM.{name}": value for name, value in found.jvm.items()},
        }

    def task_pool() -> dict[str, Value | None]:
        report = pool()
        if report is None:
            return {}
        return {
            "size": report.size,
            "idle": sum(report.idle.values()),
            "numHits": report.hits,
            "numMisses": sum(report.misses.values()),
            **{f"numMisses.{reason}": count for reason, count in report.misses.items()},
            "numDied": report.died,
            "numFailed": report.failed,
        }

    group.gauges("", own)
    group.gauges("TaskPool", task_pool)
    add_process_metrics(group, service)
    return registry
