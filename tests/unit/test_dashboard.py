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
from runtime.cluster.blob_server import blob_server_metrics
from runtime.dispatcher.endpoint import DispatcherMetrics
from runtime.ids import ResourceID
from runtime.jobmaster.metrics import job_metrics
from runtime.metrics.metric import MetricScope, ScopeCategory
from runtime.metrics.prometheus import exposition
from runtime.metrics.registry import MetricRegistry, add_process_metrics
from runtime.metrics.store import MetricStore
from runtime.protocol.diagnostics import TaskManagerMetrics, TaskPoolReport
from runtime.protocol.messages import ResourceOverview
from runtime.protocol.slots import SlotReport
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from runtime.resourcemanager.endpoint import resource_manager_metrics
from runtime.taskexecutor.diagnostics import task_executor_metrics
from tests.unit.metric_values import JVM
from tests.unit.test_rest_messages import READ, graph

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
            lambda: TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7, JVM),
            lambda: TaskPoolReport(1),
        ),
    ]
    told = [dump for registry in registries for dump in registry.snapshot()]
    source = SourceProgress("Rate", 1, 2.0, 3.0, 4)
    progress = QueryProgress(1, "2026-11-21T20:00:00Z", 2, 3, 4.0, 5.0, 6, 7, (source,))
    query = StreamingQuery("a", "r", "counts", 1, 1000, progress, BackPressure(BackPressureLevel.LOW, 0.9))
    job = graph()
    attempt = job.tasks[0].attempts[-1]
    times = {**attempt.timestamps, "INITIALIZING": 140}
    streaming = replace(job.tasks[0], attempts=(replace(attempt, queries=(query,), timestamps=times),))
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


FLINKS: dict[str, list[str]] = json.loads(Path(__file__).with_name("flink_2_3.json").read_text())["metrics"]
"""What a session cluster of Flink 2.3 with a streaming job had, by the path where REST tells it."""
SCOPES = {
    "the JobManager": "/jobmanager/metrics",
    "a TaskManager": "/taskmanagers/{taskmanagerid}/metrics",
    "a job": "/jobs/{jobid}/metrics",
    "a task and its operators": "/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtaskindex}/metrics",
}


def test_the_documents_say_how_many_names_of_flinks_there_are(store: MetricStore) -> None:
    (job_id,) = (job_id for job_id in store.jobs if job_id != "1")
    told = {
        "the JobManager": store.job_manager,
        "a TaskManager": store.task_managers["tm-0"],
        "a job": store.jobs[job_id],
        "a task and its operators": {
            name.replace("counts.", "*.", 1): value for name, value in store.tasks[job_id, READ].items()
        },
    }
    counted = {}
    for scope, path in SCOPES.items():
        shared = set(FLINKS[path]) & set(told[scope])
        counted[scope] = (len(shared), len(FLINKS[path]))
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| ([a-zA-Z ]+) \| (\d+) of (\d+) \|", text, re.MULTILINE)
    assert {scope: (int(shared), int(all_of_them)) for scope, shared, all_of_them in rows} == counted
    shared, all_of_them = (sum(numbers) for numbers in zip(*counted.values(), strict=True))
    readme = (DOCS.parent / "README.md").read_text()
    assert f"{shared} of the {all_of_them} metrics" in readme, (shared, all_of_them)
