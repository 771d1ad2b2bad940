"""The web page of a history server, over made-up archives: read only, whole, narrow and wide, light and dark."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conf.configuration import Configuration
from runtime.cluster.history_commands import open_histories
from runtime.history.directory import HistoryDirectory
from runtime.history.figures import FigureFile, Sample
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.history import history_application
from runtime.rest.listening import listen
from runtime.rest.server import RestServer
from runtime.users.audit import AuditEntry, AuditLog
from tests.browser.made_up_cluster import FAILED, HOSTILE, STREAMING, MadeUpCluster, _checkpoints
from tests.browser.stage import REFRESH_MS, TOKEN, Stage

if TYPE_CHECKING:
    from tests.browser.visitor import Visitor

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect

LINES = 230
SUSPENDED = STREAMING
ENDED = JobID("e" * 32)
TASK = MadeUpCluster().graphs[STREAMING].tasks[0]
PAGES = {
    "#/": "Overview",
    "#/jobs": "Jobs",
    f"#/jobs/{SUSPENDED}": HOSTILE,
    f"#/jobs/{SUSPENDED}/streaming": HOSTILE,
    f"#/jobs/{SUSPENDED}/checkpoints": HOSTILE,
    f"#/jobs/{SUSPENDED}/timeline": HOSTILE,
    f"#/jobs/{SUSPENDED}/logs": HOSTILE,
    f"#/jobs/{SUSPENDED}/spark": HOSTILE,
    f"#/jobs/{SUSPENDED}/configuration": HOSTILE,
    f"#/jobs/{SUSPENDED}/tasks/{TASK.key}": TASK.name,
    f"#/jobs/{FAILED}/exceptions": "nightly-report",
    "#/figures": "Figures",
    "#/figures/hour": "Figures",
    "#/figures/week": "Figures",
    "#/audit": "Audit",
}


class HistoryStage(Stage):
    """The real server of a history, whose cluster was stopped with a job that streamed."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "nightly"
        (self.root / "archive").mkdir(parents=True)
        self._fill()
        super().__init__(directory)

    def _fill(self) -> None:
        now, cluster = time.time_ns() // 1_000_000, MadeUpCluster()
        failed = cluster.graphs[FAILED]
        (self.root / "archive" / f"{FAILED}.job").write_bytes(encode(failed))
        ended = replace(failed, job_id=ENDED, name=HOSTILE, status=JobStatus.FINISHED, failure=None)
        times = {**failed.timestamps, "FINISHED": now}
        (self.root / "archive" / f"{ENDED}.job").write_bytes(encode(replace(ended, timestamps=times)))
        (self.root / "archive" / f"{'d' * 32}.job").write_bytes(b"damaged")
        histories = tuple(cluster.histories.all())
        running = replace(
            cluster.graphs[STREAMING],
            query_histories=histories,
            checkpoints=_checkpoints(),
        )
        assert any(task.state is ExecutionState.RUNNING for task in running.tasks)
        HistoryDirectory(self.root / "history", 1 << 20, 1.0).note_running(running)
        figures = FigureFile(self.root / "history")
        for minute in range(120, 0, -1):
            if not 40 < minute < 60:
                at = now - 60_000 * minute
                figures.append(
                    Sample(at, 2, 8, minute % 8, minute % 3, 2, minute << 20, 1 << 30, {STREAMING: 1.5 * minute})
                )
        log = AuditLog(self.root / "audit" / "audit.jsonl")
        for number in range(LINES):
            user, outcome, reason = ("ada", "done", "") if number % 2 else ("bob", "refused", f"no role {HOSTILE}")
            action, target = "PATCH /jobs/{jobid}", FAILED if number % 2 else HOSTILE
            at = now - 1_000 * (LINES - number)
            log.write(AuditEntry(at, user, "user", "", action, target, "127.0.0.1:5", outcome, 202, reason))

    async def _serve(self, ready: object) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        settings = {"web.refresh-interval": f"{REFRESH_MS} ms", "cluster.runtime-dir": str(self.root)}
        configuration = Configuration.from_dict(settings)
        listener = listen("127.0.0.1", [self._port], "historyserver.web.port", "")
        self._port = listener.getsockname()[1]
        closing = asyncio.Event()
        application = history_application(
            open_histories(configuration, [self.root]),
            configuration,
            self.url.rstrip("/"),
            closing,
            TOKEN.encode(),
            KnownIdentities(nobody),
        )
        server = RestServer(application, listener, None, 256)
        await server.start()
        ready.set()  # type: ignore[attr-defined]
        await self._stopped.wait()
        closing.set()
        await server.stop()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[HistoryStage]:
    stage = HistoryStage(tmp_path)
    yield stage
    stage.stop()


def test_every_page_of_a_history_fits_and_changes_nothing(open_window: Callable[..., Visitor]) -> None:
    """Each page is loaded narrow and dark, and then shown wide and light."""
    visitor = open_window()
    page = visitor.page
    for address, title in PAGES.items():
        for width, theme in ((360, "dark"), (1280, "light")):
            visitor.look(width, theme)
            if theme == "dark":
                visitor.go(address)
                expect(page.locator("h1")).to_have_text(title)
            assert (visitor.ground() < 200) == (theme == "dark")
            shown = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert shown[0] <= shown[1], f"{address} is wider than {width} px: {shown}"
        assert page.locator("main img, main script, main iframe").count() == 0, address
        expect(page.locator("#history")).to_have_text("History of nightly")
        assert page.get_by_role("button", name=re.compile("[Cc]ancel|Stop|Roll|savepoint|checkpoint$")).count() == 0, (
            address
        )
        assert page.locator("main .lasting").count() == 0, f"{address} shows a time that goes on"
        assert page.locator("main a[href^='#/submit'], main a[href^='#/taskmanagers']").count() == 0, address
    assert page.locator("#nav a").all_inner_texts() == ["Overview", "Jobs", "Figures", "Audit"]
    assert visitor.problems == []


def test_a_damaged_archive_and_a_suspended_job_are_said(visitor: Visitor) -> None:
    visitor.go("#/")
    page = visitor.page
    expect(page.get_by_role("alert").filter(has_text="cannot be read and is left out")).to_have_count(1)
    expect(page.locator("tbody tr", has_text="SUSPENDED")).to_have_count(1)
    visitor.go(f"#/jobs/{SUSPENDED}")
    expect(page.locator(".heading .badge")).to_have_text("SUSPENDED")


def test_figures_are_drawn_with_a_gap_where_nobody_led(visitor: Visitor) -> None:
    visitor.go("#/figures")
    page = visitor.page
    slots = page.locator("figure", has_text="Slots")
    expect(slots.locator("polyline.line-two")).to_have_count(2)
    expect(page.locator("figure", has_text="Heap of Spark drivers")).to_have_count(1)
    expect(page.locator("figure", has_text=f"({STREAMING[:8]})")).to_have_count(1)
    visitor.go("#/figures/hour")
    assert int(page.locator("p.small.muted").last.inner_text().split(" ")[0]) < 60


def test_audit_lines_are_filtered_and_the_older_ones_follow(visitor: Visitor) -> None:
    visitor.go("#/audit")
    page = visitor.page
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show 100 older").click()
    expect(rows).to_have_count(200)
    page.get_by_role("button", name="Show 100 older").click()
    expect(rows).to_have_count(LINES)
    expect(page.get_by_role("button", name="Show 100 older")).to_have_count(0)
    page.get_by_label("User").fill("ada")
    page.get_by_role("button", name="Filter").click()
    expect(rows.filter(has_text="bob")).to_have_count(0)
    expect(rows).to_have_count(100)
    page.get_by_label("Job or other target").fill("nothing")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("main")).to_contain_text("No line is about that.")
    assert visitor.problems == []
