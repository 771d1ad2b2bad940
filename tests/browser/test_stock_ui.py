"""Flink's stock web page, every page of it, before a running cluster with a streaming job and a finished one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.flink_page import flink_page
from tests.cluster_harness import Cluster, await_value
from tests.flink_package import flink_dist
from tests.job_files import FAILING, write_job
from tests.rest_client import RestClient

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.visitor import Window

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect

# What the page complains of when it is left while it still draws, whoever it asks: it measures a graph that it has just
# taken out of itself (d3-zoom), and lays out an editor that is gone (its debounced observer of sizes).
FLINKS_OWN = (
    "Could not resolve relative length",
    "Cannot read properties of null (reading 'layout')",
    "/profiler",  # which is off
    "Failed to load resource: the server responded with a status of 404 (Not Found)",  # told with its address too
)

STREAM = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
counts = rows.selectExpr("value % 3 AS key").groupBy("key").count()
writer = counts.writeStream.queryName("counts").format("noop").outputMode("update")
writer.trigger(processingTime="500 milliseconds").start().awaitTermination()
"""

BATCH = """\
from runtime.api import Pipeline

def numbers(ctx):
    return ctx.spark.range(1000)

def squares(ctx, numbers):
    return numbers.selectExpr("id * id AS square")

def show(ctx, squares):
    squares.show(1)

def pipeline(argv):
    p = Pipeline("ended-batch")
    p.source("numbers", numbers).blocking().then("squares", squares).sink("show", show)
    return p
"""

# Of each page: where it is, what it asks (None: nothing that is its own), and what is shown when that has come.
CLUSTER = [
    ("overview", "/applications/overview", "text=Running Application List"),
    ("submit", "/jars", "text=Uploaded Jars"),
    ("job/running", "/jobs/overview", "td >> text=ongoing-stream"),
    ("job/completed", "/jobs/overview", "td >> text=ended-batch"),
    ("application/running", "/applications/overview", "td >> text=ongoing-stream"),
    ("application/completed", "/applications/overview", "td >> text=ended-batch"),
    ("task-manager", "/taskmanagers", "td >> text={tm}"),
    ("task-manager/{tm}/metrics", "/taskmanagers/{tm}/metrics", "text=Garbage Collection"),
    ("task-manager/{tm}/logs", "/taskmanagers/{tm}/log", ".view-line >> text=TaskExecutor"),
    ("task-manager/{tm}/stdout", "/taskmanagers/{tm}/stdout", ".monaco-editor"),
    ("task-manager/{tm}/log-list", "/taskmanagers/{tm}/logs", "td >> text=spark"),
    ("task-manager/{tm}/log-list/spark", "/taskmanagers/{tm}/logs/spark", ".view-line >> text=SparkContext"),
    ("task-manager/{tm}/thread-dump", "/taskmanagers/{tm}/thread-dump", ".view-line >> text=MainThread"),
    ("task-manager/{tm}/profiler", "/taskmanagers/{tm}/profiler", "button[disabled] >> text=Create Profiling Instance"),
    ("job-manager/metrics", "/jobmanager/metrics", "text=JVM Heap"),
    ("job-manager/config", "/jobmanager/config", "text=cluster.runtime-dir"),
    ("job-manager/logs", "/jobmanager/log", ".view-line >> text=receptionist"),
    ("job-manager/stdout", "/jobmanager/stdout", ".monaco-editor"),
    ("job-manager/log", "/jobmanager/logs", "td >> text=dispatcher.log"),
    ("job-manager/log/rest.log", "/jobmanager/logs/rest.log", ".view-line >> text=API"),
    ("job-manager/thread-dump", "/jobmanager/thread-dump", ".view-line >> text=MainThread"),
    ("job-manager/profiler", "/jobmanager/profiler", "button[disabled] >> text=Create Profiling Instance"),
]
JOB = [
    ("exceptions", "/jobs/{job}/exceptions", "text=Exception History"),
    ("dataskew", "/jobs/{job}/vertices/{vertex}/subtasks/metrics", "text=How is Data Skew Calculated?"),
    ("timeline", "/jobs/{job}", "canvas"),
    ("configuration", "/jobs/{job}/config", "text=Execution Configuration"),
    ("overview", "/jobs/{job}/vertices/{vertex}/watermarks", "text=Parallelism: 1"),
    ("overview/{vertex}/detail", None, "text=Max Parallelism"),
    ("overview/{vertex}/subtasks", "/jobs/{job}/vertices/{vertex}", "text=Aggregated Metrics"),
    ("overview/{vertex}/taskmanagers", "/jobs/{job}/vertices/{vertex}/taskmanagers", "td >> text={tm}"),
    ("overview/{vertex}/watermarks", "/jobs/{job}/vertices/{vertex}/watermarks", "text=Datetime of Watermark"),
    ("overview/{vertex}/accumulators", "/jobs/{job}/vertices/{vertex}/subtasks/accumulators", "text=Vertex Accum"),
    ("overview/{vertex}/backpressure", "/jobs/{job}/vertices/{vertex}/backpressure", "th >> text=Backpressure Status"),
    ("overview/{vertex}/metrics", "/jobs/{job}/vertices/{vertex}/metrics", "{metrics}"),
    ("overview/{vertex}/flamegraph", "/jobs/{job}/vertices/{vertex}/flamegraph", "text={sampling}"),
]
APPLICATION = [
    ("overview", "/applications/{job}", "text=Running Job List"),
    ("exceptions", "/applications/{job}/exceptions", "text=Root Exception"),
]
JOBS = {
    "running": {"metrics": "text=Add Metric:", "sampling": "The flame graph feature is currently disabled"},
    "completed": {"metrics": "[role=tab] >> text=Metrics", "sampling": "The task has already been terminated"},
}


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One that runs and has a checkpoint, and one that is over."""
    flink_dist()  # nothing is started in vain
    rest, directory = RestClient.of(cluster), tmp_path_factory.mktemp("jobs")
    batch = cluster.submit(write_job(directory, BATCH, "batch.py"))
    cluster.await_status(batch, "FINISHED")
    stream = cluster.submit(write_job(directory, STREAM, "ongoing-stream.py"))
    cluster.await_status(stream, "RUNNING")

    def queries() -> list[dict[str, object]]:
        return [query for task in rest.get(f"/jobs/{stream}")["spark"].values() for query in task["queries"]]

    await_value(lambda: any("batch-duration" in query for query in queries()))
    asked = rest.ask("POST", f"/jobs/{stream}/checkpoints", b"{}").json["request-id"]
    await_value(lambda: rest.get(f"/jobs/{stream}/checkpoints/{asked}")["status"]["id"] == "COMPLETED")
    yield {"running": stream, "completed": batch}
    cluster.run("job", "cancel", stream, check=False)  # if it has not been


@pytest.fixture
def window(browser: Browser, cluster: Cluster, jobs: dict[str, str]) -> Iterator[Window]:
    """The page in a window; nothing may have gone wrong in it when it is closed."""
    from tests.browser.visitor import Window

    with flink_page(RestClient.of(cluster)) as url:
        context = browser.new_context(viewport={"width": 1400, "height": 900}, base_url=url)
        window = Window(context.new_page())
        window.page.goto("/")
        yield window
        context.close()
    assert [problem for problem in window.problems if not any(own in problem for own in FLINKS_OWN)] == []


def pages(rest: RestClient, jobs: dict[str, str], states: Iterable[str]) -> Iterator[tuple[str, str | None, str]]:
    """All pages, with the names of what there is; those of jobs for the jobs in these states."""
    names = {"tm": rest.get("/taskmanagers")["taskmanagers"][0]["id"]}
    for route, asked, shown in CLUSTER:
        yield route.format(**names), asked and asked.format(**names), shown.format(**names)
    for state in states:
        job_id = jobs[state]
        vertex = rest.get(f"/jobs/{job_id}")["vertices"][0]["id"]
        here = {**names, "job": job_id, "vertex": vertex, **JOBS[state]}
        for area, listed in (("job", JOB), ("application", APPLICATION)):
            for route, asked, shown in listed:
                where = f"{area}/{state}/{job_id}/{route.format(**here)}"
                yield where, asked and asked.format(**here), shown.format(**here)


def go(window: Window, route: str, asked: str | None, shown: str) -> None:
    """Follow a link inside of the page, and wait until it has asked and shows what came."""
    page = window.page
    if asked is None:
        page.goto(f"/#/{route}")
    else:
        with page.expect_response(lambda told: urlsplit(told.url).path == asked):
            page.goto(f"/#/{route}")
    expect(page.locator(shown).first).to_be_visible()
    assert page.evaluate("location.hash") == f"#/{route}"


@pytest.mark.parametrize("states", [["running"], pytest.param(["running", "completed"], marks=pytest.mark.slow)])
def test_every_page_of_flinks_own(window: Window, cluster: Cluster, jobs: dict[str, str], states: list[str]) -> None:
    seen = 0
    for route, asked, shown in pages(RestClient.of(cluster), jobs, states):
        go(window, route, asked, shown)
        seen += 1
    assert seen == len(CLUSTER) + len(states) * (len(JOB) + len(APPLICATION))


def test_the_pages_of_checkpoints(window: Window, jobs: dict[str, str]) -> None:
    page, job_id = window.page, jobs["running"]
    below = f"/jobs/{job_id}/checkpoints"
    go(window, f"job/running/{job_id}/checkpoints", below, "text=Latest Completed Checkpoint")
    page.locator(".ant-tabs-tab", has_text="Summary").click()
    expect(page.locator("text=Minimum").first).to_be_visible()
    page.locator(".ant-tabs-nav").last.locator(".ant-tabs-tab", has_text="Configuration").click()
    expect(page.locator("text=Checkpointing Mode").first).to_be_visible()
    page.locator(".ant-tabs-tab", has_text="History").click()
    with page.expect_response(lambda told: f"{below}/details/" in told.url and "/subtasks/" not in told.url):
        page.locator("tbody .ant-table-row-expand-icon:visible").first.click()
    row = page.locator("flink-job-checkpoints-detail:visible tbody tr", has_text="ongoing-stream").first
    expect(row).to_contain_text("1/1")
    with page.expect_response(lambda told: f"{below}/details/" in told.url and "/subtasks/" in told.url):
        row.locator(".ant-table-row-expand-icon").click()
    expect(page.locator("flink-job-checkpoints-subtask:visible tbody tr:visible").last).to_contain_text(
        "false"
    )  # not unaligned


def test_the_button_of_flinks_page_cancels_a_job(window: Window, cluster: Cluster, jobs: dict[str, str]) -> None:
    job_id = jobs["running"]
    go(window, f"job/running/{job_id}/overview", f"/jobs/{job_id}", "text=Parallelism: 1")
    window.page.locator("a, button", has_text="Cancel Job").first.click()
    window.page.locator(".ant-modal button, .ant-popover button", has_text="Yes").first.click()
    cluster.await_status(job_id, "CANCELED")


def test_the_users_own_traceback_is_shown(window: Window, cluster: Cluster, tmp_path: Path) -> None:
    job_id = cluster.submit(write_job(tmp_path, FAILING, "failing.py"))
    cluster.await_status(job_id, "FAILED")
    asked = f"/jobs/{job_id}/exceptions"
    go(window, f"job/completed/{job_id}/exceptions", asked, ".view-line >> text=ZeroDivisionError")
    window.page.locator(".ant-tabs-tab", has_text="Exception History").click()
    expect(window.page.locator("td >> text=ZeroDivisionError").first).to_be_visible()
