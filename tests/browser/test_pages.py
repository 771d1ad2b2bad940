"""Every page, narrow and wide, light and dark: whole, quiet, safe, and usable without a mouse."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory
from runtime.ids import AllocationID, JobID
from runtime.protocol.execution_state import JobStatus
from tests.browser.made_up_cluster import FAILED, HOSTILE, LONG, RUNNING, STREAMING, WAITING, vertex_id

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.browser.visitor import Visitor

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect

JOB = f"#/jobs/{RUNNING}"
PAGES = {
    "#/": "Overview",
    "#/jobs": "Jobs",
    JOB: "count-flights",
    f"#/jobs/{STREAMING}": HOSTILE,
    f"#/jobs/{STREAMING}/streaming": HOSTILE,
    f"{JOB}/streaming": "count-flights",
    f"#/jobs/{FAILED}": "nightly-report",
    f"{JOB}/timeline": "count-flights",
    f"#/jobs/{FAILED}/exceptions": "nightly-report",
    f"{JOB}/logs": "count-flights",
    f"{JOB}/spark": "count-flights",
    f"#/jobs/{WAITING}/spark": LONG,
    f"{JOB}/checkpoints": "count-flights",
    f"#/jobs/{STREAMING}/checkpoints": HOSTILE,
    f"{JOB}/configuration": "count-flights",
    f"{JOB}/tasks/{vertex_id('join')}": "join",
    f"{JOB}/tasks/{vertex_id(HOSTILE)}": HOSTILE,
    "#/queues": "Queues",
    "#/taskmanagers": "Task executors",
    "#/taskmanagers/tm-1": "tm-1",
    "#/taskmanagers/tm-1/logs": "tm-1",
    "#/taskmanagers/tm-1/logs/spark": "tm-1",
    "#/taskmanagers/tm-1/stdout": "tm-1",
    "#/taskmanagers/tm-1/thread-dump": "tm-1",
    "#/taskmanagers/tm-1/profile": "tm-1",
    f"#/taskmanagers/tm-1/profile/{'1' * 32}": "tm-1",
    "#/masters": "Masters",
    "#/masters/logs": "Masters",
    "#/masters/logs/master.log": "Masters",
    "#/masters/log-levels": "Masters",
    "#/masters/configuration": "Masters",
    "#/masters/thread-dump": "Masters",
    "#/actors": "Actors",
    "#/figures": "Figures",
    "#/audit": "Audit",
    "#/submit": "Submit",
    "#/submit/%2Fsavepoints%2Fone": "Submit",
}


@pytest.mark.parametrize(
    "looks",
    [
        ((360, "dark"), (1280, "light")),  # each page is loaded in the first
        *(
            pytest.param((look,), marks=pytest.mark.slow)
            for look in ((1280, "light"), (360, "dark"), (1280, "dark"), (360, "light"))
        ),
    ],
    ids=lambda looks: "+".join(f"{width}-{theme}" for width, theme in looks),
)
def test_every_page_fits_and_complains_of_nothing(
    open_window: Callable[..., Visitor], looks: tuple[tuple[int, str], ...]
) -> None:
    visitor = open_window(*looks[0])
    for address, title in PAGES.items():
        for number, (width, theme) in enumerate(looks):
            visitor.look(width, theme)
            if number == 0:
                visitor.go(address)
                expect(visitor.page.locator("h1")).to_have_text(title)
            assert (visitor.ground() < 200) == (theme == "dark")
            shown = visitor.page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert shown[0] <= shown[1], f"{address} is wider than {width} px: {shown}"
        assert visitor.page.locator("main img, main script, main iframe").count() == 0, address
        assert "hacked" not in visitor.page.title().replace(HOSTILE, ""), address
    assert visitor.problems == []


@pytest.mark.parametrize(
    "address",
    [
        "#/jobs",
        JOB,
        "#/masters/log-levels",
        "#/submit",
        *(
            pytest.param(address, marks=pytest.mark.slow)
            for address in (
                "#/",
                f"#/jobs/{STREAMING}/streaming",
                f"#/jobs/{FAILED}/exceptions",
                "#/queues",
                "#/taskmanagers/tm-1",
                "#/masters/logs/master.log",
                "#/actors",
            )
        ),
    ],
)
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(visitor: Visitor, address: str) -> None:
    visitor.go(address)
    page = visitor.page
    controls = page.evaluate(
        """() => {
            const found = [...document.querySelectorAll(
                'a[href], button, input, select, textarea, summary, [tabindex="0"]'
            )].filter((node) => node.getClientRects().length && !node.disabled);
            found.forEach((node, i) => (node.testNumber = i));
            return found.length;
        }"""
    )
    assert controls > 8
    page.evaluate("document.activeElement.blur()")
    reached, unseen = set(), []
    for _ in range(3 * controls):
        page.keyboard.press("Tab")
        number, is_seen, what = page.evaluate(
            """() => {
                const node = document.activeElement;
                const own = (each) => getComputedStyle(each);
                const seen = own(node).outlineStyle !== "none"
                    || [...node.querySelectorAll("rect")].some((rect) => parseFloat(own(rect).strokeWidth) >= 3);
                return [node.testNumber ?? null, seen, node.outerHTML.slice(0, 120)];
            }"""
        )
        if number is None:
            continue
        reached.add(number)
        if not is_seen:
            unseen.append(what)
    assert reached == set(range(controls))
    assert unseen == []


def test_names_are_text_whatever_they_are(visitor: Visitor) -> None:
    visitor.go("#/")
    expect(visitor.page.get_by_role("link", name=HOSTILE)).to_be_visible()
    visitor.page.get_by_role("link", name=HOSTILE).click()
    expect(visitor.page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    visitor.go(f"#/jobs/{WAITING}/%E0%A4%A")
    visitor.go("#/jobs/<img src=x onerror=alert(1)>/x/y")
    visitor.go("#/taskmanagers/..%2F..%2Fconfig")
    assert visitor.page.locator("main img").count() == 0


def test_a_graph_tells_states_and_progress_in_words(visitor: Visitor) -> None:
    visitor.go(JOB)
    graph = visitor.page.get_by_role("group", name="Graph of 5 tasks")
    expect(graph.get_by_role("link", name=re.compile(r"^join: RUNNING, .*, 13 of 40 Spark tasks$"))).to_be_visible()
    expect(graph.get_by_role("link", name=re.compile(r"^write: SCHEDULED"))).to_be_visible()
    assert graph.locator(".edge").count() == 5
    visitor.go(f"#/jobs/{STREAMING}")
    expect(visitor.page.get_by_role("region", name="Streaming queries")).to_contain_text("41")
    expect(visitor.page.get_by_role("link", name=re.compile("^main: .*back pressure HIGH$"))).to_be_visible()
    expect(visitor.page.get_by_role("list", name="Back pressure")).to_contain_text("back pressure LOW")


def spark_rows(visitor: Visitor, address: str) -> Locator:
    visitor.go(address)
    return visitor.page.get_by_role("region", name="Attempts in Spark").locator("tbody tr")


def test_each_attempt_links_to_sparks_own_pages_only_where_they_are(visitor: Visitor) -> None:
    rows = spark_rows(visitor, f"{JOB}/spark")
    expect(rows).to_have_count(6)  # `join` has been restarted
    expect(rows.get_by_role("link", name="Jobs and SQL in Spark")).to_have_count(0)
    expect(rows.filter(has_text="no event log of local-3")).to_have_count(3)
    expect(rows.filter(has_text="no Spark application is known")).to_have_count(2)

    directory = ClusterDirectory(visitor.stage.runtime_dir)
    (directory.event_logs / "eventlog_v2_local-4").mkdir(parents=True)
    restarted = rows.filter(has_text="local-4")
    expect(restarted).to_contain_text("run `understudy history-server -D cluster.runtime-dir=")

    claim = directory.history_server_claim()
    assert claim.try_acquire()
    claim.note(ProcessRecord.of("history-server", os.getpid()), "http://127.0.0.1:18999")
    link = restarted.get_by_role("link", name="Jobs and SQL in Spark")
    expect(link).to_have_attribute(
        "href", re.compile(r"^http://127\.0\.0\.1:18999/attempt\?application=local-4&tag=understudy-[0-9a-f]{32}$")
    )
    expect(rows.get_by_role("link", name="Jobs and SQL in Spark")).to_have_count(1)
    visitor.go(f"{JOB}/tasks/{vertex_id('join')}")
    attempts = visitor.page.get_by_role("region", name="Attempts").locator("tbody tr")
    expect(attempts.nth(0).get_by_role("link", name="Jobs and SQL in Spark")).to_be_visible()
    expect(attempts.nth(1)).to_contain_text("local-3")
    expect(attempts.nth(1).get_by_role("link", name="Jobs and SQL in Spark")).to_have_count(0)

    claim.forget()
    rows = spark_rows(visitor, f"{JOB}/spark")
    expect(rows.get_by_role("link", name="Jobs and SQL in Spark")).to_have_count(0)
    assert visitor.problems == []


def test_a_script_shows_the_stages_that_spark_runs_for_it(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{STREAMING}")
    rows = visitor.page.get_by_role("region", name="Spark stages").locator("tbody tr")
    expect(rows).to_have_count(2)  # the newest first
    for row, texts in enumerate(
        (("collect at nightly.py:33", "ACTIVE", "50 of 200 tasks", "8"), (f"count at {HOSTILE}", "COMPLETE", "7"))
    ):
        for text in texts:
            expect(rows.nth(row)).to_contain_text(text)
    drawn = visitor.page.get_by_role("group", name="Graphs of Spark's stages")
    expect(drawn.get_by_role("group", name="Graph of 2 Spark stages").get_by_role("img")).to_have_count(2)
    expect(drawn.get_by_role("img", name="collect at nightly.py:33: ACTIVE, 50 of 200 Spark tasks")).to_be_visible()
    expect(drawn.locator(".edge")).to_have_count(1)
    visitor.go(JOB)
    expect(visitor.page.get_by_role("group", name="Graphs of Spark's stages")).to_have_count(0)
    expect(visitor.page.get_by_role("region", name="Tasks", exact=True)).to_be_visible()
    expect(visitor.page.get_by_role("region", name="Spark stages")).to_have_count(0)
    assert visitor.problems == []


def test_checkpoints_and_savepoints_are_listed_with_what_became_of_them(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    rows = visitor.page.locator("tbody tr")
    expect(rows).to_have_count(5)
    for row, texts in enumerate(
        (("10", "checkpoint"), ("9", "no room", HOSTILE), ("8", "savepoint", "/savepoints/savepoint-222222-aa"), ("7",))
    ):
        for text in texts:
            expect(rows.nth(row)).to_contain_text(text)
    assert visitor.problems == []


def test_the_rescales_of_a_job_are_listed_with_their_origin_and_outcome(visitor: Visitor) -> None:
    visitor.go(f"{JOB}/checkpoints")
    rows = visitor.page.get_by_role("region", name="Rescales").locator("tbody tr")
    expect(rows).to_have_count(2)
    for row, texts in enumerate(
        (
            ("2", "? → ? (undo)", "IN_PROGRESS", "user"),
            ("1", "4 → 6", "COMPLETED", "autoscaler, its job", f"90% busy {HOSTILE}; file:/savepoints/s-6-partitions"),
        )
    ):
        for text in texts:
            expect(rows.nth(row)).to_contain_text(text)
    expect(rows.nth(1).get_by_role("link", name="its job")).to_have_attribute("href", f"#/jobs/{'9' * 32}")
    decided = visitor.page.get_by_role("region", name="Last decisions").locator("tbody tr")
    expect(decided).to_have_count(1)
    for text in ("counts", "6", f"95% busy {HOSTILE}"):
        expect(decided).to_contain_text(text)
    assert visitor.problems == []


def test_a_page_allows_no_script_of_others(visitor: Visitor) -> None:
    answer = visitor.page.goto(visitor.stage.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    blocked = visitor.page.evaluate(
        "() => { try { document.body.innerHTML = '<b></b>'; } catch (e) { return e.name; } }"
    )
    assert blocked == "TypeError"  # trusted types: text never becomes markup


def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    visitor.go("#/jobs/" + "e" * 32)
    expect(visitor.page.get_by_role("heading", name="Not found")).to_be_visible()
    visitor.go("#/nowhere")
    expect(visitor.page.get_by_role("heading", name="There is no such page")).to_be_visible()


def test_a_chosen_theme_stays(visitor: Visitor) -> None:
    def ground() -> str:
        found: str = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    visitor.go("#/")
    light = ground()
    visitor.page.get_by_role("button", name="Theme: auto").click()
    assert ground() == light
    visitor.page.get_by_role("button", name="Theme: light").click()
    dark = ground()
    assert dark != light
    visitor.page.reload()
    expect(visitor.page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert ground() == dark


def test_a_stream_without_an_end_has_no_share_of_a_whole(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{STREAMING}")
    box = visitor.page.get_by_role("link", name=re.compile("^main: .*, 13 Spark tasks done, "))
    expect(box).to_be_visible()
    assert box.locator(".meter-all").count() == 0
    row = visitor.page.get_by_role("region", name="Tasks").locator("tbody tr").first
    expect(row).to_contain_text("13 Spark tasks done")
    assert row.locator(".meter").count() == 0


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_progress_has_one_colour_in_the_graph_and_in_the_table(open_window: Callable[..., Visitor], theme: str) -> None:
    visitor = open_window(theme=theme)
    visitor.go(JOB)
    colour = "node => getComputedStyle(node).fill"
    drawn = visitor.page.locator("a.node", has_text="join").locator("rect").last.evaluate(colour)
    row = visitor.page.get_by_role("region", name="Tasks").locator(
        "tbody tr", has=visitor.page.get_by_role("rowheader", name="join", exact=True)
    )
    assert row.locator(".meter rect").last.evaluate(colour) == drawn


def test_jobs_of_one_name_are_told_apart_by_their_ids(visitor: Visitor) -> None:
    for number in range(2):
        visitor.stage.cluster.add_namesake(JobID(f"{number}abc" * 8))
    visitor.go("#/jobs")
    rows = visitor.page.locator("tr", has_text="namesake")
    expect(rows).to_have_count(2)
    ids = sorted(rows.nth(number).locator("code").inner_text() for number in range(2))
    assert ids == ["0abc0abc", "1abc1abc"]
    visitor.go(f"#/jobs/{'1abc' * 8}")
    expect(visitor.page.get_by_role("navigation", name="Breadcrumb")).to_contain_text("namesake (1abc1abc)")
    visitor.go(f"{JOB}/tasks/{vertex_id('join')}")
    expect(visitor.page.get_by_role("link", name="count-flights (11111111)")).to_be_visible()
    visitor.go("#/taskmanagers/tm-1")
    expect(visitor.page.get_by_role("link", name="count-flights (11111111)")).to_be_visible()


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_the_whole_id_of_a_job_is_copied(visitor: Visitor, *, has_clipboard: bool) -> None:
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    if not has_clipboard:  # as by http from another machine
        page.add_init_script("navigator.clipboard.writeText = () => Promise.reject(new Error('none'))")
    for address in ("#/", "#/jobs", JOB):
        visitor.go(address)
        button = page.get_by_role("button", name=f"Copy the id {RUNNING}")
        button.press("Enter")
        expect(page.locator("#announcer")).to_have_text(f"Copied {RUNNING}")
        assert page.evaluate("navigator.clipboard.readText()") == RUNNING
        expect(button).to_be_focused()
    assert visitor.problems == []


def test_kind_and_owner_of_a_job_are_shown(visitor: Visitor) -> None:
    page = visitor.page
    visitor.stage.cluster.add_ended(JobID("7" * 32), "copy", 0.5)
    visitor.go("#/jobs")
    columns = page.get_by_role("region", name="Running jobs").get_by_role("columnheader")
    expect(columns).to_have_text(["Job", "Kind", "State", "Started", "Duration", "Tasks"])
    row = page.locator("tr", has=page.get_by_role("link", name=HOSTILE))
    expect(row).to_contain_text("pipeline, streaming")
    expect(page.locator("tr", has=page.get_by_role("link", name="copy"))).to_contain_text("script, batch")
    visitor.go(f"#/jobs/{'7' * 32}")
    expect(page.locator(".facts").first).to_contain_text("script, batch")
    visitor.stage.cluster.add_ended(JobID("6" * 32), "owned", 0.5, owner="ada")
    visitor.go("#/jobs")
    ended = page.get_by_role("region", name="Ended jobs")
    expect(ended.get_by_role("columnheader", name="Owner")).to_be_visible()
    expect(ended.locator("tr", has=page.get_by_role("link", name="owned"))).to_contain_text("ada")
    expect(ended.locator("tr", has=page.get_by_role("link", name="copy"))).not_to_contain_text("ada")
    visitor.go(f"#/jobs/{'6' * 32}")
    expect(page.locator(".facts").first).to_contain_text("ada")
    assert visitor.problems == []


def texts_of(row: Locator) -> list[str]:
    """Return the texts of a row, without the ids that may be copied."""
    return [text.split("\n")[0] for text in row.locator("th, td").all_inner_texts()]


def test_queues_their_users_and_waiting_requests_are_shown_in_their_order(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("#/queues")
    expect(page.get_by_role("link", name="Queues", exact=True)).to_have_attribute("aria-current", "page")
    queues = page.get_by_role("region", name="Queues").locator("tbody tr")
    expect(queues).to_have_count(3)
    assert [texts_of(row) for row in queues.all()] == [
        ["etl", "2.5", "0", "3 of 4", "2 of 8", "6,144 of 8,192", "3", "2 of 5", "1", "3"],
        [LONG, "1", "10", "0 of 2", "0", "0", "0", "0", "0", "0"],
        ["default", "1", "0", "0", "0", "0", "0", "0", "0", "0"],
    ]
    users = page.get_by_role("region", name="Users").locator("tbody tr")
    assert [texts_of(row) for row in users.all()] == [
        ["no user", "etl", "0", "0", "0", "1", "25", "20 %"],
        ["ada", "etl", "2", "4,096", "1.5", "0", "75", "60 %"],
        [HOSTILE, "etl", "1", "2,048", "1.5", "2", "0", "0 %"],
    ]
    limits = page.get_by_role("region", name="Limits").locator("tbody tr")
    assert [texts_of(row) for row in limits.all()] == [
        [f"user {HOSTILE}", "1 of 1", "1", "2,048 of 4,096", "1.5 of 2.5", "0"],
        ["group g", "0 of 9", "0 of 1", "0", "0", "0"],
    ]
    waiting = page.get_by_role("region", name="Waiting requests").locator("tbody tr")
    reasons = [f"1 slot for task 'main', 1st in queue etl; {HOSTILE} uses 1 of 1"]
    reasons += [f"1 slot for task 'main', {place} in queue etl" for place in ("2nd", "3rd")]
    assert [texts_of(row)[1:] for row in waiting.all()] == [
        ["main", user, "etl", str(place), reason]
        for user, place, reason in zip((HOSTILE, "no user", HOSTILE), (1, 2, 3), reasons, strict=True)
    ]
    assert page.locator("main img").count() == 0
    waiting.nth(1).get_by_role("link", name="count-flights").click()
    expect(page.locator("h1")).to_have_text("count-flights")
    assert page.evaluate("location.hash") == JOB
    assert visitor.problems == []


def test_a_wrong_file_of_queues_is_said_and_without_a_file_there_is_one_line(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    whole, main = cluster.queues_overview, page.locator("main")
    visitor.go("#/queues")
    expect(main.get_by_role("alert")).to_have_count(0)
    cluster.queues_overview = replace(whole, problem=f"/etc/queues.yaml: {HOSTILE} is not a key of queues.etl")
    expect(main.get_by_role("alert")).to_contain_text("queues.file is wrong")
    expect(main.get_by_role("alert")).to_contain_text(f"/etc/queues.yaml: {HOSTILE} is not a key of queues.etl")
    expect(page.get_by_role("region", name="Queues").locator("tbody tr")).to_have_count(3)
    cluster.queues_overview = replace(whole, has_file=False)
    expect(main.locator("p")).to_have_count(1)
    expect(main).to_contain_text("This cluster has no file of queues")
    expect(main.locator("table")).to_have_count(0)
    assert page.locator("main img").count() == 0
    cluster.queues_overview = replace(whole, waiting=(), queues=(replace(whole.queues[0], users=()),))
    expect(main).to_contain_text("No request waits for a slot.")
    expect(main).to_contain_text("No user holds a slot or waits for one.")
    assert visitor.problems == []


def test_many_waiting_requests_are_shown_step_by_step(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    whole = cluster.queues_overview
    many = [
        replace(whole.waiting[0], allocation_id=AllocationID(f"{n:032x}"), job_name=f"job {n}", place=n)
        for n in range(1, 151)
    ]
    cluster.queues_overview = replace(whole, waiting=tuple(many))
    visitor.go("#/queues")
    rows = page.get_by_role("region", name="Waiting requests").locator("tbody tr")
    expect(page.get_by_role("heading", name="Waiting requests (150)")).to_be_visible()
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show 100 more").click()
    expect(rows).to_have_count(150)
    expect(page.get_by_role("button", name="Show 100 more")).to_have_count(0)
    assert names_of(rows) == [f"job {n}" for n in range(1, 151)]


def test_lists_and_pages_of_jobs_say_what_a_waiting_job_waits_for(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    reason = f"1 slot for task 'main', 1st in queue etl; user {HOSTILE} uses 6 of 6 slots"
    cluster.waiting_for[WAITING] = reason
    for address in ("#/", "#/jobs"):
        visitor.go(address)
        table = page.get_by_role("region", name="Running jobs")
        expect(table.get_by_role("columnheader", name="Waiting for")).to_be_visible()
        row = table.locator("tbody tr", has=page.get_by_role("link", name=LONG))
        expect(row.locator("td[data-title='Waiting for']")).to_have_text(reason)
        other = table.locator("tbody tr", has=page.get_by_role("link", name="count-flights"))
        expect(other.locator("td[data-title='Waiting for']")).to_have_text("\N{EN DASH}")
    cluster.waiting_for.clear()
    expect(table.get_by_role("columnheader", name="Waiting for")).to_have_count(0)
    visitor.go(f"#/jobs/{WAITING}/timeline")
    expect(page.locator(".facts").first).to_contain_text("Waiting for\nthe results of join", use_inner_text=True)
    visitor.go(JOB)  # of which tasks run
    expect(page.locator(".facts").first).not_to_contain_text("Waiting for")
    assert page.locator("main img").count() == 0
    assert visitor.problems == []


def names_of(rows: Locator) -> list[str]:
    return [name.split("\n")[0] for name in rows.locator("th a").all_inner_texts()]


def test_jobs_are_filtered_by_their_states(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go("#/jobs")
    states = page.get_by_role("navigation", name="Jobs by state").get_by_role("link")
    expect(states).to_have_text(["All 6", "RESTARTING 1", "RUNNING 2", "CANCELED 1", "FAILED 1", "FINISHED 1"])
    failed = states.filter(has_text="FAILED")
    failed.press("Enter")
    expect(failed).to_have_attribute("aria-current", "true")
    expect(failed).to_be_focused()
    expect(page.locator("main tbody tr")).to_have_count(1)
    expect(page.get_by_role("heading", name="Running")).to_have_count(0)
    assert page.evaluate("location.hash") == "#/jobs?state=FAILED"
    cluster.set_status(RUNNING, JobStatus.FAILED)
    expect(failed).to_have_text("FAILED 2")
    expect(page.locator("main tbody tr")).to_have_count(2)
    page.reload()
    expect(page.locator("main tbody tr")).to_have_count(2)
    expect(page.get_by_role("link", name="Jobs", exact=True)).to_have_attribute("aria-current", "page")
    page.get_by_role("searchbox").fill("nightly")
    expect(page.locator("main tbody tr")).to_have_count(1)
    expect(states.first).to_have_text("All 1")
    visitor.go("#/")
    page.get_by_role("definition").filter(has=page.locator("a.text-bad")).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert page.evaluate("location.hash") == "#/jobs?state=FAILED"
    assert visitor.problems == []


@pytest.mark.parametrize("width", [360, pytest.param(1280, marks=pytest.mark.slow)])
def test_a_table_is_sorted_by_its_titles(open_window: Callable[..., Visitor], width: int) -> None:
    visitor = open_window(width)
    page = visitor.page
    visitor.go("#/jobs")
    table = page.get_by_role("region", name="Ended jobs")
    title = table.get_by_role("columnheader", name="Job")
    expect(table.get_by_role("columnheader", name="Ended")).to_have_attribute("aria-sort", "descending")
    assert title.get_attribute("aria-sort") is None
    title.get_by_role("link").press("Enter")
    expect(title).to_have_attribute("aria-sort", "ascending")
    expect(title.get_by_role("link")).to_be_focused()
    box = title.bounding_box()
    assert box is not None
    assert 0 < box["x"] < box["x"] + box["width"] < width
    assert names_of(table.locator("tbody")) == ["abandoned", "nightly-report", "pi"]
    title.get_by_role("link").press("Enter")
    expect(title).to_have_attribute("aria-sort", "descending")
    assert names_of(table.locator("tbody")) == ["pi", "nightly-report", "abandoned"]
    assert page.evaluate("location.hash") == "#/jobs?sort=-name"
    page.reload()
    expect(title).to_have_attribute("aria-sort", "descending")
    running = page.get_by_role("region", name="Running jobs")
    expect(running.get_by_role("columnheader", name="Job")).to_have_attribute("aria-sort", "descending")
    page.go_back()
    expect(title).to_have_attribute("aria-sort", "ascending")
    visitor.go("#/taskmanagers?sort=used")
    executors = page.get_by_role("region", name="Task executors")
    assert names_of(executors.locator("tbody")) == ["tm-2", "tm-1"]
    visitor.go("#/taskmanagers?sort=-user")
    assert names_of(executors.locator("tbody")) == ["tm-1", "tm-2"]
    expect(executors.get_by_role("row").filter(has_text="tm-1").get_by_role("cell", name="ada")).to_be_visible()
    visitor.go("#/jobs?sort=nothing-of-that-name")
    expect(table.get_by_role("columnheader", name="Ended")).to_have_attribute("aria-sort", "descending")
    assert visitor.problems == []


def test_ended_jobs_are_those_of_the_last_hour_or_day(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.add_ended(JobID("7" * 32), "this morning", 5)
    cluster.add_ended(JobID("8" * 32), "last week", 170)
    visitor.go("#/jobs")
    rows = page.get_by_role("region", name="Ended jobs").locator("tbody tr")
    within = page.get_by_role("navigation", name="Ended within")
    expect(rows).to_have_count(5)
    within.get_by_role("link", name="last day").click()
    expect(rows).to_have_count(4)
    expect(page.get_by_role("heading", name="Ended (4)")).to_be_visible()
    within.get_by_role("link", name="last hour").click()
    expect(rows).to_have_count(3)
    expect(page.get_by_role("region", name="Running jobs").locator("tbody tr")).to_have_count(3)
    page.reload()
    expect(rows).to_have_count(3)
    within.get_by_role("link", name="all").click()
    expect(rows).to_have_count(5)
    assert visitor.problems == []


def test_the_job_of_a_job_master_is_a_link(visitor: Visitor) -> None:
    for address in ("#/masters", "#/actors"):
        visitor.go(address)
        visitor.page.locator("main").get_by_role("link", name=re.compile(RUNNING)).first.click()
        expect(visitor.page.locator("h1")).to_have_text("count-flights")


def test_the_id_of_a_job_is_its_address_from_each_of_its_parts(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    own = visitor.page.locator("main").get_by_role("link", name=STREAMING, exact=True)
    expect(own).to_have_attribute("href", f"#/jobs/{STREAMING}")
    own.click()
    expect(visitor.page.get_by_role("link", name="Graph", exact=True)).to_have_attribute("aria-current", "page")


def test_it_is_said_why_a_checkpoint_cannot_be_rolled_back_to(visitor: Visitor) -> None:
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    expect(visitor.page.locator("tbody tr").last).to_contain_text("Discarded")
    expect(visitor.page.locator("main")).to_contain_text("execution.checkpointing.num-retained")
    failed = visitor.page.locator("tbody tr").nth(1)
    expect(failed).to_contain_text("Nothing was kept")


def test_nothing_vanishes_where_there_is_little_room(open_window: Callable[..., Visitor]) -> None:
    visitor = open_window(390)
    page = visitor.page

    def in_sight(address: str, *titles: str) -> None:
        """The values of the last row under these titles, each with its title beside it."""
        visitor.go(address)
        for title in titles:
            cell = page.locator(f"tbody tr:last-child td[data-title='{title}']").last
            expect(cell).to_be_visible()
            box = cell.bounding_box()
            assert box is not None, title
            assert 0 <= box["x"] < box["x"] + box["width"] <= 390, (title, box)
            assert cell.evaluate("node => getComputedStyle(node, '::before').content") == f'"{title}"'

    in_sight(f"#/jobs/{STREAMING}/checkpoints", "Triggered", "Duration", "Size", "Path", "Restore")
    in_sight(f"{JOB}/tasks/{vertex_id('join')}", "Started", "Profile", "Duration", "Task executor")
    in_sight("#/jobs", "Started", "Duration", "Tasks")
    in_sight("#/taskmanagers", "Memory", "Last heartbeat")
    in_sight("#/queues", "Slots in use", "Waiting requests", "Share of the queue", "Place", "Waiting for")
    assert visitor.problems == []


def test_a_thread_dump_names_its_process_and_the_state_of_each_thread(visitor: Visitor) -> None:
    visitor.go("#/taskmanagers/tm-1/thread-dump")
    expect(visitor.page.locator("main")).to_contain_text("Process 4121")
    expect(visitor.page.locator("summary").first).to_have_text("MainThread waiting")
    visitor.go("#/masters/thread-dump")
    expect(visitor.page.locator("main")).to_contain_text(f"Process {os.getpid()}")


def test_an_unknown_route_is_connected_too(visitor: Visitor) -> None:
    visitor.go("#/nowhere")
    expect(visitor.page.locator("#connection")).to_have_text("Live")
    assert visitor.problems == []


def test_words_are_those_of_the_field(visitor: Visitor) -> None:
    for address, words in (
        ("#/", ("Recently ended", "Last heartbeat")),
        ("#/taskmanagers/tm-1", ("Last heartbeat", "Task executor memory (resident)", "Spark driver heap")),
        (JOB, ("Waiting for",)),
    ):
        visitor.go(address)
        for text in words:
            expect(visitor.page.locator("main").get_by_text(text, exact=True).first).to_be_visible()
