"""Metrics for Prometheus: its text format 0.0.4, and a reporter that sends them to a push gateway.

These are Flink's `PrometheusReporter`, names included, and `PrometheusPushGatewayReporter`.

The names are Flink's (``flink_jobmanager_job_numRestarts``), so dashboards and alerts for Flink find the metrics that
exist here too. Counters become counters, meters become gauges of their rates, and histograms become summaries.
Prometheus accepts no texts, so they are left out. The label ``component`` distinguishes the processes that together
correspond to Flink's single JobManager process.

This module does not use the prometheus_client library, which keeps the values of its own process. The values here are
those of other processes, read at the time of the scrape. Only the few lines that write the format would be of use.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import re
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from urllib.parse import quote, unquote, urlsplit

from conf.configuration import Configuration
from conf.options import ClusterOptions, MetricOptions
from runtime.metrics.metric import MetricDump, MetricKind, MetricScope, Number, ScopeCategory

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Seconds that a push gateway may take to answer."""

MEDIA = "text/plain; version=0.0.4; charset=utf-8"

_PREFIXES = {
    ScopeCategory.JOB_MANAGER: "flink_jobmanager",
    ScopeCategory.JOB: "flink_jobmanager_job",
    ScopeCategory.TASK_MANAGER: "flink_taskmanager",
    ScopeCategory.TASK: "flink_taskmanager_job_task",
    ScopeCategory.OPERATOR: "flink_taskmanager_job_task_operator",
}
_LABELS = {
    "component": "component",
    "task_manager": "tm_id",
    "job_id": "job_id",
    "job_name": "job_name",
    "task_id": "task_id",
    "task_name": "task_name",
    "operator_name": "operator_name",
    "queue": "queue",
}
_TYPES = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.METER: "gauge",
    MetricKind.HISTOGRAM: "summary",
}
_QUANTILES = (("0.5", "median"), ("0.75", "p75"), ("0.95", "p95"), ("0.98", "p98"), ("0.99", "p99"), ("0.999", "p999"))
_OTHER = re.compile(r"[^a-zA-Z0-9:_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(scopes: Mapping[MetricScope, Mapping[str, MetricDump]]) -> str:
    """Return all numeric metrics in Prometheus's text format, which needs the samples of each family together.

    Metrics of one scope whose names differ only in characters that Prometheus does not have are left out.

    Args:
        scopes: metrics by scope and name, as in `runtime.metrics.store.MetricStore.scopes`.
    """
    families: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for scope, metrics in scopes.items():
        labels = _labels(scope)
        names = {
            metric.name: _OTHER.sub("_", f"{_PREFIXES[scope.category]}_{metric.name}") for metric in metrics.values()
        }
        uses = Counter(names.values())
        for metric in metrics.values():
            name = names[metric.name]
            if uses[name] > 1:
                continue
            kind, samples = families.setdefault(name, (_TYPES[metric.kind], {}))
            if kind == _TYPES[metric.kind]:
                lines = list(_samples(name, labels, metric))
                if lines:
                    samples.setdefault(labels, lines)  # Prometheus rejects a whole scrape with a repeated sample
    found: list[str] = []
    for name, (kind, samples) in families.items():
        if samples:
            found.append(f"# TYPE {name} {kind}")
            found += (line for lines in samples.values() for line in lines)
    return "".join(f"{line}\n" for line in found)


def _labels(scope: MetricScope) -> str:
    shown = {label: getattr(scope, name) for name, label in _LABELS.items()}
    return ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in shown.items() if value)


def _samples(name: str, labels: str, metric: MetricDump) -> Iterator[str]:
    if isinstance(metric.value, str):
        return
    told = metric.statistics
    if told is None:
        yield _sample(name, labels, metric.value)
        return
    for quantile, field in _QUANTILES:
        yield _sample(
            name, f'{labels},quantile="{quantile}"' if labels else f'quantile="{quantile}"', getattr(told, field)
        )
    yield _sample(f"{name}_sum", labels, told.sum)
    yield _sample(f"{name}_count", labels, told.count)


def _sample(name: str, labels: str, value: Number) -> str:
    shown = str(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"


class PushGateway:
    """One group of metrics at a push gateway, named by its label ``job``. Its methods block.

    Args:
        url: of the gateway, with user and password where it asks for them.
        job: the label.
    """

    def __init__(self, url: str, job: str) -> None:
        self._lock = threading.Lock()
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._group = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/metrics/job/{quote(job, safe='')}"
        self._headers = {"Content-Type": MEDIA}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()

    def put(self, text: str) -> None:
        """Replace the group's metrics at the gateway; raises OSError."""
        self._send("PUT", text.encode())

    def delete(self) -> None:
        """Delete the group at the gateway; raises OSError."""
        self._send("DELETE", None)

    def _send(self, method: str, body: bytes | None) -> None:
        # The option accepts only http and https.
        request = urllib.request.Request(self._group, body, self._headers, method=method)  # noqa: S310
        try:
            # One request after the other: an earlier one must not arrive after the last.
            with self._lock, urllib.request.urlopen(request, timeout=ANSWER_S):  # noqa: S310
                pass
        except urllib.error.HTTPError as error:
            said = error.read(200).decode(errors="replace").strip()
            raise OSError(f"status {error.code}: {said or error.reason}") from None


class PushReporter:
    """Sends all metrics to a push gateway at an interval (Flink's `PrometheusPushGatewayReporter`).

    Logs once that the gateway does not accept them, and once more when it does again.

    Args:
        gateway: the gateway.
        interval_s: seconds between two transmissions.
        collect: returns the metrics in Prometheus's format.
        forgets: whether to delete the metrics at the gateway at the end.
    """

    def __init__(
        self, gateway: PushGateway, interval_s: float, collect: Callable[[], Awaitable[str]], *, forgets: bool
    ) -> None:
        self._gateway = gateway
        self._interval_s = interval_s
        self._collect = collect
        self._forgets = forgets
        self._complaint = ""
        self._work: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, configuration: Configuration, collect: Callable[[], Awaitable[str]]) -> PushReporter | None:
        """Return the configured reporter; None where none is configured."""
        url = configuration.get(MetricOptions.PUSH_URL)
        if url is None:
            return None
        job = configuration.get(MetricOptions.PUSH_JOB) or configuration.get(ClusterOptions.ID)
        return cls(
            PushGateway(url.reveal(), job),
            configuration.get(MetricOptions.PUSH_INTERVAL),
            collect,
            forgets=configuration.get(MetricOptions.PUSH_DELETE),
        )

    def start(self) -> None:
        """Start sending; call it on the event loop."""
        self._work = asyncio.get_running_loop().create_task(self._run(), name="metrics to the push gateway")

    async def stop(self, *, forget: bool = False) -> None:
        """Stop sending; *forget* deletes the metrics, if no other process continues. No error before `start`."""
        if self._work is None:
            return
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self._work = None
        if forget and self._forgets:
            await self._try(lambda: asyncio.to_thread(self._gateway.delete))

    async def _run(self) -> None:
        while True:
            await self._try(self._send)
            await asyncio.sleep(self._interval_s)

    async def _send(self) -> None:
        await asyncio.to_thread(self._gateway.put, await self._collect())

    async def _try(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            await send()
        except Exception as error:  # a failure of metrics must not affect anything else
            if str(error) != self._complaint:
                logger.warning("the push gateway did not take the metrics (%s): %s", MetricOptions.PUSH_URL.key, error)
            self._complaint = str(error)
        else:
            if self._complaint:
                logger.info("the push gateway takes the metrics again")
            self._complaint = ""
