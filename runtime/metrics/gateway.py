"""How the metrics of a process are asked for (Flink's `MetricQueryServiceGateway`)."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, reads
from runtime.ids import ResourceID
from runtime.metrics.dump import ScopeDump

NAME = "metric-query-service"
PATH = f"/user/{NAME}"
"""The same in every process that has one."""


@dataclass(frozen=True, slots=True)
class TaskManagerMetricAddress:
    """Where the metrics of a TaskExecutor are asked for."""

    resource_id: ResourceID
    address: str


class MetricQueryServiceGateway(RpcGateway):
    """Not fenced: a process tells its own figures whether or not it leads."""

    @reads
    def query_metrics(self) -> Ask[list[ScopeDump]]:
        """The values of now."""
        raise NotImplementedError
