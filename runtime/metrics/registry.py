"""The metrics of one process: components register them once, and an actor reads them on request.

After Flink's `MetricRegistry`, `MetricGroup` and `MetricQueryService`. Every component of the cluster has a registry. A
TaskExecutor's ``Status.JVM`` is that of its Spark driver. Other processes run Python, and have ``Status.Process``
instead of Flink's ``Status.JVM``.
"""

from __future__ import annotations

import gc
import logging
import resource
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

from actors.address import ActorAddress
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from runtime.metrics.metric import (
    NAME,
    PATH,
    Counter,
    Gauge,
    Histogram,
    Meter,
    MetricDump,
    MetricKind,
    MetricQueryServiceGateway,
    MetricScope,
    ScopeDump,
    Value,
    gauges,
)

logger = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000

Reader = Callable[[], Iterable[MetricDump]]
Source = Callable[[], Iterable[ScopeDump]]
T = TypeVar("T")


class MetricGroup:
    """Metrics of one scope; created by `MetricRegistry.group`. Dots in names separate Flink's nested groups.

    Every registration raises ValueError if the scope has a metric of that name.
    """

    def __init__(self, readers: dict[str, Reader], clock: Callable[[], float]) -> None:
        self._readers = readers
        self._clock = clock

    def counter(self, name: str) -> Counter:
        """Register and return a new counter."""
        counter = Counter()
        self._register(name, lambda: [MetricDump(name, MetricKind.COUNTER, counter.count)])
        return counter

    def meter(self, name: str) -> Meter:
        """Register and return a new meter."""
        meter = Meter(self._clock)
        self._register(name, lambda: [MetricDump(name, MetricKind.METER, meter.rate())])
        return meter

    def histogram(self, name: str) -> Histogram:
        """Register and return a new histogram."""
        histogram = Histogram()
        self._register(name, lambda: [MetricDump(name, MetricKind.HISTOGRAM, histogram.count, histogram.statistics())])
        return histogram

    def gauge(self, name: str, gauge: Gauge) -> None:
        """Register a callable, which is called when a client requests the metrics."""
        self._register(name, lambda: gauges({name: gauge()}))

    def gauges(self, name: str, read: Callable[[], dict[str, Value | None]]) -> None:
        """Register several gauges that are read together (Dropwizard's `MetricSet`).

        Args:
            name: of a group for them; empty for none.
            read: returns their values by their names in the group.
        """
        prefix = f"{name}." if name else ""
        self._register(prefix, lambda: gauges({prefix + key: value for key, value in read().items()}))

    def _register(self, name: str, reader: Reader) -> None:
        if name in self._readers:
            raise ValueError(f"there is a metric {name!r} in this scope already")
        self._readers[name] = reader


class MetricRegistry:
    """All metrics of a process.

    Args:
        clock: returns monotonic seconds, for meters.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._scopes: dict[MetricScope, dict[str, Reader]] = {}
        self._sources: list[Source] = []

    def group(self, scope: MetricScope) -> MetricGroup:
        """Return the group of a scope's metrics."""
        return MetricGroup(self._scopes.setdefault(scope, {}), self._clock)

    def add_source(self, source: Source) -> None:
        """Add a callable that returns metrics of scopes that come and go, such as the tasks of a job."""
        self._sources.append(source)

    def snapshot(self) -> list[ScopeDump]:
        """Return all current values; log and leave out a metric that cannot be read."""
        found = [
            ScopeDump(scope, tuple(dump for name, reader in readers.items() for dump in _read(name, reader)))
            for scope, readers in self._scopes.items()
        ]
        for source in self._sources:
            found += _read("of a source", source)
        return found


def _read(name: str, reader: Callable[[], Iterable[T]]) -> Iterable[T]:
    try:
        return list(reader())
    except Exception:  # a failure of one metric must not affect the others
        logger.exception("the metric %s cannot be read", name)
        return []


def add_process_metrics(group: MetricGroup, service: RpcService) -> None:
    """Register the figures of this process and of its RPC service in *group*."""
    process = psutil.Process()

    def status() -> dict[str, Value | None]:
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
            return {
                "CPU.Time": int((times.user + times.system) * NANOSECONDS),
                "Memory.Resident": memory.rss,
                "Threads.Count": process.num_threads(),
                "FileDescriptor.Open": process.num_fds(),
                "FileDescriptor.Max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "GarbageCollector.Count": sum(generation["collections"] for generation in gc.get_stats()),
            }

    def rpc() -> dict[str, Value | None]:
        figures = service.statistics()
        return {
            "numConnections": figures.connections,
            "numMessagesReceived": figures.messages,
            "mailboxSize": figures.queued,
            "numHandlersRunning": figures.running,
            "numDeadLetters": figures.dead_letters,
        }

    group.gauges("Status.Process", status)
    group.gauges("Rpc", rpc)


class MetricQueryService(RpcEndpoint, MetricQueryServiceGateway):
    """Answers with the metrics of its process; reads the registry only on request.

    Args:
        service: the RPC service of the process.
        registry: its metrics.
    """

    def __init__(self, service: RpcService, registry: MetricRegistry) -> None:
        super().__init__(service, NAME)
        self._registry = registry

    @rpc_sync
    def query_metrics(self) -> list[ScopeDump]:
        return self._registry.snapshot()


async def serve_metrics(service: RpcService, registry: MetricRegistry) -> None:
    """Start the actor that answers with the metrics of this process; it ends with the RPC service."""
    await service.start_server(MetricQueryService(service, registry))


def beside(address: ActorAddress | str) -> str:
    """Return the address of the MetricQueryService in the process of the component at *address*."""
    known = ActorAddress.parse(address) if isinstance(address, str) else address
    return str(known.with_path(PATH))
