"""The metrics of one process (Flink's `MetricRegistry` and `MetricGroup`): registered once, read when asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from runtime.metrics.dump import MetricDump, MetricKind, MetricScope, ScopeDump, gauges
from runtime.metrics.metric import Counter, Gauge, Histogram, Meter, Value

logger = logging.getLogger(__name__)

Reader = Callable[[], Iterable[MetricDump]]
Source = Callable[[], Iterable[ScopeDump]]
T = TypeVar("T")


class MetricGroup:
    """Metrics of one scope; made by a `MetricRegistry`. Dots in names are Flink's groups within groups.

    Every registration raises ValueError where the scope has a metric of that name.
    """

    def __init__(self, readers: dict[str, Reader], clock: Callable[[], float]) -> None:
        self._readers = readers
        self._clock = clock

    def counter(self, name: str) -> Counter:
        """A new counter."""
        counter = Counter()
        self._register(name, lambda: [MetricDump(name, MetricKind.COUNTER, counter.count)])
        return counter

    def meter(self, name: str) -> Meter:
        """A new meter."""
        meter = Meter(self._clock)
        self._register(name, lambda: [MetricDump(name, MetricKind.METER, meter.rate())])
        return meter

    def histogram(self, name: str) -> Histogram:
        """A new histogram."""
        histogram = Histogram()
        self._register(name, lambda: [MetricDump(name, MetricKind.HISTOGRAM, histogram.count, histogram.statistics())])
        return histogram

    def gauge(self, name: str, gauge: Gauge) -> None:
        """Something that is read when it is asked for."""
        self._register(name, lambda: gauges({name: gauge()}))

    def gauges(self, name: str, read: Callable[[], dict[str, Value | None]]) -> None:
        """Several that are read together (Dropwizard's `MetricSet`).

        Args:
            name: of a group for them; empty for none.
            read: gives their values by their names in it.
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
        clock: gives monotonic seconds, for meters.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._scopes: dict[MetricScope, dict[str, Reader]] = {}
        self._sources: list[Source] = []

    def group(self, scope: MetricScope) -> MetricGroup:
        """The metrics of a scope."""
        return MetricGroup(self._scopes.setdefault(scope, {}), self._clock)

    def add_source(self, source: Source) -> None:
        """Something that has metrics of scopes which come and go, such as the tasks of a job."""
        self._sources.append(source)

    def snapshot(self) -> list[ScopeDump]:
        """All values of now. What cannot be read is left out and logged: it takes nothing else away."""
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
    except Exception:  # whatever it is, the other metrics are as good as before
        logger.exception("the metric %s cannot be read", name)
        return []
