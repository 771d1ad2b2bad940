"""The Grafana dashboard in the documents asks for metrics that there are, and the documents name all of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.rpc.service import RpcStatistics
from blob.settings import BlobServerStats
from runtime.dispatcher.metrics import DispatcherMetrics
from runtime.gateways.diagnostics import TaskManagerMetrics
from runtime.gateways.messages import ResourceOverview
from runtime.ids import ResourceID
from runtime.jobmaster.metrics import job_metrics
from runtime.jobmaster.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from runtime.metrics.blob_server import blob_server_metrics
from runtime.metrics.dump import MetricScope, ScopeCategory
from runtime.metrics.process import add_process_metrics
from runtime.metrics.prometheus import exposition
from runtime.metrics.registry import MetricRegistry
from runtime.metrics.store import MetricStore
from runtime.resourcemanager.metrics import resource_manager_metrics
from runtime.resourcemanager.slots import SlotReport
from runtime.taskexecutor.metrics import task_executor_metrics
from runtime.taskexecutor.task_pool_policy import TaskPoolReport
from tests.unit.test_rest_messages import graph

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def store() -> MetricStore:
    """All metrics of all components."""
    service = cast("Any", SimpleNamespace(statistics=lambda: RpcStatistics(1, 2, 3, 4, 5)))
    blob_server = cast("Any", SimpleNamespace(statistics=lambda: BlobServerStats(*range(10))))
    job_master = MetricRegistry()
    add_process_metrics(job_master.group(MetricScope(ScopeCategory.JOB, component="jobmaster", job_id="1")), service)
    registries = [
        DispatcherMetrics(service, lambda: 1, list).registry,
        resource_manager_metrics(service, lambda: ResourceOverview(1, 2, 3, 4)),
        blob_server_metrics(service, blob_server),
        job_master,
        task_executor_metrics(
            service,
            ResourceID("tm-0"),
            lambda: SlotReport(()),
            lambda: TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7),
            lambda: TaskPoolReport(1),
        ),
    ]
    told = [dump for registry in registries for dump in registry.snapshot()]
    source = SourceProgress("Rate", 1, 2.0, 3.0, 4)
    progress = QueryProgress(1, "2026-11-21T20:00:00Z", 2, 3, 4.0, 5.0, 6, 7, (source,))
    query = StreamingQuery("a", "r", "counts", 1, 1000, progress, BackPressure(BackPressureLevel.LOW, 0.9))
    job = graph()
    streaming = replace(job.tasks[0], attempts=(replace(job.tasks[0].attempts[-1], queries=(query,)),))
    return MetricStore([*told, *job_metrics(replace(job, tasks=(streaming, *job.tasks[1:])), 5000)])


def test_the_dashboard_asks_for_metrics_that_there_are(store: MetricStore) -> None:
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    asked = re.findall(r"\bflink_\w+", json.dumps([panel["targets"] for panel in board["panels"]]))
    assert len(asked) > 30
    there = {line.split()[2] for line in exposition(store.scopes).splitlines() if line.startswith("# TYPE")}
    assert set(asked) <= there
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = {
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    }
    assert len(cells) == sum(at["w"] * at["h"] for at in places), "two panels overlap"


def test_every_metric_is_in_the_documents(store: MetricStore) -> None:
    text = (DOCS / "metrics.md").read_text()
    names = {name.rpartition(".")[2] for metrics in store.scopes.values() for name in metrics}
    named_together = {f"{state}Time" for state in ("initializing", "created", "failing", "cancelling", "restarting")}
    missing = {name for name in names if name not in text} - named_together - {"reconcilingTime"}
    assert not missing
