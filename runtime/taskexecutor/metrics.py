"""A TaskExecutor's metrics: slots, tasks, its pool of ready task processes, what it and its Spark driver take."""

from __future__ import annotations

from collections.abc import Callable

from actors.rpc.service import RpcService
from runtime.gateways.diagnostics import TaskManagerMetrics
from runtime.ids import ResourceID
from runtime.metrics.dump import MetricScope, ScopeCategory
from runtime.metrics.metric import Value
from runtime.metrics.process import NANOSECONDS, add_process_metrics
from runtime.metrics.registry import MetricRegistry
from runtime.resourcemanager.slots import SlotReport
from runtime.taskexecutor.task_pool_policy import TaskPoolReport


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
