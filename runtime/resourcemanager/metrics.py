"""The ResourceManager's metrics, by Flink's names (``taskSlotsTotal``, ``numRegisteredTaskManagers`` ...)."""

from __future__ import annotations

from collections.abc import Callable

from actors.rpc.service import RpcService
from runtime.metrics.metric import MetricScope, ScopeCategory, Value
from runtime.metrics.registry import MetricRegistry, add_process_metrics
from runtime.protocol.messages import ResourceOverview


def resource_manager_metrics(service: RpcService, overview: Callable[[], ResourceOverview | None]) -> MetricRegistry:
    """The registry of a ResourceManager's process.

    Args:
        service: its RPC service.
        overview: its counts, which are the cluster's; None while it does not lead.
    """
    registry = MetricRegistry()

    def counts() -> dict[str, Value | None]:
        found = overview()
        if found is None:
            return {}
        return {
            "numRegisteredTaskManagers": found.task_managers,
            "taskSlotsTotal": found.slots,
            "taskSlotsAvailable": found.free_slots,
            "numPendingSlotRequests": found.pending_requests,
        }

    registry.group(MetricScope(ScopeCategory.JOB_MANAGER)).gauges("", counts)
    add_process_metrics(registry.group(MetricScope(ScopeCategory.JOB_MANAGER, component="resourcemanager")), service)
    return registry
