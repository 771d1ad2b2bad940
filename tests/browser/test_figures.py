"""Figures that change while a page looks on: streaming charts, actors, log levels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from runtime.ids import ExecutionAttemptID
from runtime.jobmaster.query_history import QueryHistories
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.streaming_query import BackPressureLevel
from tests.browser.made_up_cluster import FAILED, HOSTILE, RUNNING, STREAMING, streaming_query, vertex_id

if TYPE_CHECKING:
    from tests.browser.visitor import Visitor

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect

CHARTS = ("Rows per second", "Batch duration", "State size", "Rows in state", "Lag")


def test_charts_are_full_at_the_first_visit_and_grow_by_a_point_for_each_batch(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{STREAMING}/streaming")
    for title in CHARTS:
        expect(page.get_by_role("img", name=re.compile(f"^{title}: "))).to_be_visible()
    expect(page.get_by_text(re.compile("^40 points since "))).to_be_visible()
    rows = page.get_by_role("img", name=re.compile("^Rows per second: in 513, done 369"))
    expect(rows.locator("polyline")).to_have_count(2)
    assert rows.locator("polyline").first.get_attribute("points").count(",") == 40
    cluster.end_batch(42, BackPressureLevel.LOW)
    expect(page.get_by_text(re.compile("^41 points since "))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Rows per second: in 525, done 378"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Batch duration: took 0.4s; up to 0.5s"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^State size: size 42.0 MiB"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Lag: lag 1,042"))).to_be_visible()
    expect(page.locator(".part").get_by_text("LOW", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text(re.compile("^41 points since "))).to_be_visible()
    page.get_by_role("link", name="Graph", exact=True).click()
    expect(page.get_by_role("link", name=re.compile("back pressure LOW"))).to_be_visible()
    cluster.end_batch(43, BackPressureLevel.OK)
    expect(page.get_by_role("link", name=re.compile("back pressure OK"))).to_be_visible()
    page.get_by_role("link", name="Their figures over time").click()
    expect(page.get_by_text(re.compile("^42 points since "))).to_be_visible()
    assert visitor.problems == []


def test_one_batch_is_a_dot_and_none_is_said(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.histories = QueryHistories()
    cluster.histories.add(vertex_id("main"), (replace(streaming_query(1), progress=None),), 1)
    visitor.go(f"#/jobs/{STREAMING}/streaming")
    expect(page.get_by_text("It has not reported a batch yet.")).to_be_visible()
    cluster.end_batch(42, BackPressureLevel.LOW)
    expect(page.get_by_text(re.compile("^1 point since "))).to_be_visible()
    rows = page.get_by_role("img", name=re.compile("^Rows per second: "))
    expect(rows.locator("text")).to_have_count(2)  # how high, and when; not twice the same time
    expect(rows.locator("circle")).to_have_count(2)  # a value alone is a dot, a line needs two
    assert visitor.problems == []


def test_the_figures_of_a_job_that_is_over_are_still_there(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.set_status(STREAMING, JobStatus.FINISHED)
    visitor.go(f"#/jobs/{STREAMING}/streaming")
    expect(page.get_by_role("img", name=re.compile("^State size: size 41.0 MiB"))).to_be_visible()
    assert visitor.problems == []


def test_a_job_without_streaming_queries_has_no_page_of_them(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{RUNNING}")
    parts = visitor.page.get_by_role("navigation", name="Parts of the job")
    expect(parts.get_by_role("link", name="Logs")).to_be_visible()
    expect(parts.get_by_role("link", name="Streaming")).to_have_count(0)
    visitor.go(f"#/jobs/{FAILED}/streaming")
    expect(visitor.page.get_by_text("No streaming query was seen in this job.")).to_be_visible()


def test_actors_are_told_by_process_with_rates_and_dead_letters(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("#/actors")
    tree = page.get_by_role("region", name="Actors by process")
    row = tree.locator("tr", has_text="/user/dispatcher")
    expect(row).to_contain_text("epoch 1795233261917")
    expect(row.locator("td").nth(4)).to_have_text(re.compile(r"^\d+\.\d$"))  # 500 messages more at each look
    process = tree.locator("tr", has=page.get_by_role("rowheader", name="dispatcher", exact=True))
    expect(process.locator("td").last).to_have_text("5")
    expect(tree.locator("tr", has_text="/user/tm-1")).to_contain_text(HOSTILE)
    expect(page.get_by_text("resourcemanager: no answer.")).to_be_visible()
    visitor.go("#/masters")
    expect(page.locator("tr", has_text="dispatcher").first).to_contain_text(re.compile(r"1m 3\ds"))  # since it leads
    assert visitor.problems == []


def test_a_log_level_is_changed_and_said(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go("#/masters/log-levels")
    page.get_by_label("Process", exact=True).select_option("dispatcher")
    page.get_by_label("Level", exact=True).select_option("WARNING")
    page.get_by_role("button", name="Change level").press("Enter")
    expect(page.get_by_role("status")).to_have_text("dispatcher: root is WARNING, it was INFO")
    assert cluster.levels["root"] == "WARNING"
    levels = page.get_by_role("region", name="Log levels")
    expect(levels.locator("tr", has_text="root")).to_contain_text("WARNING")
    expect(page.get_by_label("Process", exact=True)).to_have_value("dispatcher")  # what was chosen stays
    assert visitor.problems == []
    page.get_by_label("Logger").fill("no.such")
    page.get_by_role("button", name="Change level").click()
    expect(page.get_by_role("status")).to_contain_text("no logger 'no.such'")


def test_the_log_of_a_task_executor_grows_and_begins_anew_when_it_is_put_aside(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.component_log = "a line of the log\n" * 500
    visitor.go("#/taskmanagers/tm-1/logs/taskexecutor")
    text = page.get_by_role("region", name="taskexecutor")
    expect(text).to_contain_text("a line of the log")
    cluster.component_log += "the naïve end\n"
    expect(text).to_contain_text("the naïve end")
    assert text.inner_text().rstrip("\n") == cluster.component_log.rstrip("\n")
    assert text.evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight < 8")
    cluster.component_log = "the first line of the next file\n"
    expect(text).to_have_text("the first line of the next file\n")
    assert visitor.problems == []


def test_a_profile_is_taken_when_it_is_asked_for_and_drawn(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{RUNNING}/tasks/{vertex_id('join')}")
    page.get_by_role("link", name="Profile").click()
    expect(page.get_by_text("No profile was taken yet.")).to_be_visible()
    assert cluster.profiled == []
    page.get_by_role("button", name="Take a profile").press("Enter")
    graph = page.get_by_role("img", name=re.compile("^Flame graph of 12 frames"))
    expect(graph).to_be_visible()
    assert cluster.profiled == [("tm-1", ExecutionAttemptID.from_name("made up", "join", "1"))]
    widths = graph.locator("svg").evaluate_all("nodes => nodes.map((node) => node.getAttribute('width'))")
    assert widths[:2] == ["100.00%", "52.63%"]  # 100 of 190, the widest first
    expect(graph).to_contain_text(HOSTILE)
    hottest = page.get_by_role("region", name="Where the threads were most often").locator("tbody tr")
    expect(hottest.first).to_contain_text("wait (lib/threading.py)")
    expect(hottest.first).to_contain_text("52.63%")
    assert visitor.problems == []
