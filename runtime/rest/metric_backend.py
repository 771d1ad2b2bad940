"""What the web endpoint asks of metrics (Flink's `MetricFetcher`); a part of `runtime.rest.backend`."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from actors.errors import ActorError
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.metric_query_service import MetricQueryServiceGateway
from runtime.metrics.dump import ScopeDump
from runtime.metrics.store import MetricStore

log = logging.getLogger(__name__)

T = TypeVar("T")

QUERY_TIMEOUT_S = 3.0
QUERIES_AT_ONCE = 64


class MetricBackend(Protocol):
    """What the handlers need; the errors are those of `runtime.rest.backend.Backend`."""

    async def metrics(self) -> MetricStore:
        """The metrics of the whole cluster, as they are now."""


class ClusterMetrics(ABC):
    """The part of `ClusterBackend`: asks every process of the cluster when it is asked itself, and at no other time."""

    @abstractmethod
    async def _ask_dispatcher(self, question: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Ask the Dispatcher that leads, again and again for a while."""

    @abstractmethod
    def _metric_query_service(self, address: str) -> MetricQueryServiceGateway:
        """A gateway to that, whose asks take at most `QUERY_TIMEOUT_S`."""

    @abstractmethod
    def _own_metrics(self) -> list[ScopeDump]:
        """Those of the endpoint's own process."""

    async def metrics(self) -> MetricStore:
        addresses = await self._ask_dispatcher(lambda dispatcher: dispatcher.request_metric_query_service_addresses())
        workers = await self._ask_dispatcher(
            lambda dispatcher: dispatcher.request_task_manager_metric_query_service_addresses()
        )
        room = asyncio.Semaphore(QUERIES_AT_ONCE)
        told = await asyncio.gather(
            *(self._query(address, room) for address in [*addresses, *(worker.address for worker in workers)])
        )
        return MetricStore([*self._own_metrics(), *(dump for dumps in told for dump in dumps)])

    async def _query(self, address: str, room: asyncio.Semaphore) -> list[ScopeDump]:
        """The metrics of one process; none where it does not answer: what is gone has no metrics."""
        async with room:
            try:
                return await self._metric_query_service(address).query_metrics()
            except ActorError as error:
                log.info("the metrics of %s are not known: %s", address, error)
                return []
