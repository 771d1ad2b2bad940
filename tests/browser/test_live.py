"""What a page does while things happen: it follows them, it says so, and it never shows the past as the present."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from actors.errors import RecipientUnreachable
from runtime.ids import ExecutionAttemptID
from runtime.protocol.checkpoints import OperationState, SnapshotType
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import JobStatus
from tests.browser.made_up_cluster import FAILED, FINISHED, HOSTILE, RUNNING, STREAMING, TRACEBACK
from tests.browser.stage import TOKEN

if TYPE_CHECKING:
    from tests.browser.visitor import Visitor

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect


def test_the_token_is_asked_for_and_goes_into_no_address(open_window: Callable[..., Visitor]) -> None:
    visitor = open_window(log_in=False)
    page = visitor.page
    page.goto(visitor.stage.url + "#/jobs")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("The server refuses this token.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert not any(TOKEN in address for address in visitor.addresses)
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_change_is_shown_and_said_without_losing_focus_or_scroll(open_window: Callable[..., Visitor]) -> None:
    visitor = open_window(360)
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go("#/")
    link = page.get_by_role("link", name="pi", exact=True)
    link.focus()
    page.evaluate("scrollTo(0, 300)")
    before = page.evaluate("scrollY")
    assert before > 0
    page.evaluate("window.sameDocument = true")
    row = page.locator("tr", has=page.get_by_role("link", name="count-flights"))
    expect(row).to_contain_text("RUNNING")
    cluster.set_status(RUNNING, JobStatus.FINISHED)
    expect(row).to_contain_text("FINISHED")
    expect(page.locator("#announcer")).to_contain_text("count-flights is FINISHED")
    assert page.evaluate("window.sameDocument") is True
    assert page.evaluate("document.activeElement.textContent") == "pi"
    assert page.evaluate("scrollY") == before
    assert visitor.problems == []


def test_a_dead_server_is_said_and_what_it_told_is_grey(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("#/")
    expect(page.locator("#connection")).to_have_text("Live")
    visitor.stage.stop()
    expect(page.get_by_role("alert").filter(has_text="No answer from the server since")).to_be_visible()
    expect(page.locator("main")).to_have_class("stale")
    expect(page.locator("#connection")).to_have_text("No answer")
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("heading", name="No answer")).to_be_visible()  # nothing of the past on a new page
    visitor.stage.cluster.set_status(RUNNING, JobStatus.FAILING)
    visitor.stage.start()
    expect(page.locator("tr", has=page.get_by_role("link", name="count-flights"))).to_contain_text("FAILING")
    expect(page.get_by_text("No answer from the server since")).to_have_count(0)
    expect(page.locator("main")).not_to_have_class(re.compile("stale"))


def test_a_server_that_is_gone_before_the_page_has_begun_is_waited_for(visitor: Visitor) -> None:
    page = visitor.page
    page.route("**/config", lambda route: route.abort("connectionrefused"))
    page.goto(visitor.stage.url)
    expect(page.get_by_role("heading", name="No answer")).to_be_visible()
    page.unroute("**/config")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_the_form_for_a_token_stays_when_the_window_changes(visitor: Visitor) -> None:
    """The keyboard of a telephone changes the window as soon as the field for the token has the focus."""
    page = visitor.page
    page.route("**/jobs/overview*", lambda route: route.fulfill(status=503, json={"errors": ["nobody leads"]}))
    page.goto(visitor.stage.url + "#/jobs")
    expect(page.get_by_text("nobody leads")).to_be_visible()
    page.unroute("**/jobs/overview*")
    refusal = {"errors": ["show a token"]}
    for path in ("**/config", "**/jobs/overview*"):
        page.route(path, lambda route: route.fulfill(status=401, json=refusal))
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.evaluate("window.dispatchEvent(new Event('resize'))")
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.get_by_label("Token").count() == 1
    expect(page.get_by_label("Token")).to_have_value(TOKEN)
    for path in ("**/config", "**/jobs/overview*"):
        page.unroute(path)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def test_a_frozen_server_is_taken_for_a_dead_one(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("#/")
    expect(page.locator("#connection")).to_have_text("Live")
    thaw = visitor.stage.freeze()
    try:
        expect(page.get_by_text("No answer from the server since")).to_be_visible()
        expect(page.locator("main")).to_have_class("stale")
    finally:
        thaw.set()
    expect(page.get_by_text("No answer from the server since")).to_have_count(0)
    expect(page.locator("main")).not_to_have_class("stale")


def test_without_events_the_page_asks_by_itself(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    page.route("**/events", lambda route: route.fulfill(status=404, json={"errors": ["no events here"]}))
    visitor.go("#/")
    expect(page.locator("#connection")).to_have_text("Live, by asking")
    cluster.set_status(RUNNING, JobStatus.FINISHED)
    expect(page.locator("tr", has=page.get_by_role("link", name="count-flights"))).to_contain_text("FINISHED")
    visitor.stage.stop()
    expect(page.get_by_text("No answer from the server since")).to_be_visible()
    visitor.stage.start()
    expect(page.locator("#connection")).to_have_text("Live, by asking")


def test_many_jobs_are_shown_by_and_by_and_found_by_their_names(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.add_finished(250)
    visitor.go("#/jobs")
    rows = page.get_by_role("region", name="Ended jobs").locator("tbody tr")
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show 100 more").click()
    expect(rows).to_have_count(200)
    page.get_by_label("Filter by name, id, state or owner").fill("batch-17 of")
    expect(rows).to_have_count(1)
    page.get_by_label("Filter by name, id, state or owner").fill("nothing like it")
    expect(page.get_by_text("No job here has “nothing like it”").first).to_be_visible()


def test_what_is_old_because_nobody_leads_is_grey_too(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go("#/")
    expect(page.get_by_role("link", name="count-flights")).to_be_visible()
    cluster.failure = RecipientUnreachable("nobody leads at present")
    expect(page.get_by_text("This is not the present state: nobody leads at present")).to_be_visible()
    expect(page.locator("main")).to_have_class("stale")
    cluster.failure = None
    expect(page.locator("main")).not_to_have_class("stale")
    cluster.answers.clear()
    expect(page.get_by_text("Waiting for the cluster's answer since")).to_be_visible()
    expect(page.locator("main")).to_have_class("stale")
    cluster.answers.set()
    expect(page.locator("main")).not_to_have_class("stale")
    expect(page.get_by_text("Waiting for the cluster's answer since")).to_have_count(0)


def test_a_job_is_cancelled_after_a_question(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{RUNNING}")
    button = page.get_by_role("button", name="Cancel job")
    button.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("button", name="Leave it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    assert cluster.cancelled == []
    cluster.cancel_failure = JobNotFoundError("no job is known any more")
    button.click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("dialog")).to_contain_text("no job is known any more")
    cluster.cancel_failure = None
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancelling")).to_be_disabled()
    assert cluster.cancelled == [RUNNING]


def test_a_job_goes_back_to_a_checkpoint_or_says_why_not(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    row = page.locator("tr", has=page.get_by_role("link", name="Begin a job from it"))
    row.get_by_role("button", name="Roll back").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("restart from its savepoint file:/savepoints/savepoint-222222-aa")
    assert cluster.rolled_back == []  # nothing happens before the question is answered
    dialog.get_by_role("button", name="Roll back").click()
    expect(dialog.get_by_role("alert")).to_contain_text(f"files that the sink has lost {HOSTILE}")
    dialog.get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Roll back").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("The job goes back to its savepoint")
    target = "/savepoints/savepoint-222222-aa"
    assert cluster.rolled_back == [(STREAMING, target, False), (STREAMING, target, True)]


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), pytest.param(1280, "light", marks=pytest.mark.slow)])
def test_a_job_is_rescaled(open_window: Callable[..., Visitor], width: int, theme: str) -> None:
    visitor = open_window(width, theme)
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    page.get_by_role("button", name="Rescale…").press("Enter")
    dialog = page.get_by_role("dialog")
    number, rescale = dialog.get_by_label("Number of partitions"), dialog.get_by_role("button", name="Rescale")
    expect(number).to_be_focused()
    box = dialog.bounding_box()
    assert box is not None
    assert (box["x"] >= 0, box["x"] + box["width"] <= width) == (True, True)
    for wrong in ("", "0", "1.5"):
        number.fill(wrong)
        rescale.click()
        expect(dialog.get_by_role("alert")).to_have_text("Give a whole number from 1.")
    assert visitor.problems == []
    number.fill("2")
    rescale.click()
    expect(dialog.get_by_role("alert")).to_contain_text(f"has 2 partitions already {HOSTILE}")
    number.fill("8")
    rescale.click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("The rescale is being made…")
    expect(page.get_by_role("link", name="The job that does it")).to_have_attribute("href", f"#/jobs/{FINISHED}")
    cluster.operation_state = OperationState.COMPLETED
    expect(page.get_by_role("status")).to_contain_text("The rescale: file:/savepoints/new")
    ((job, _, partitions),) = cluster.rescaled
    assert (job, partitions) == (STREAMING, 8)
    cluster.operation_state = OperationState.FAILED
    page.get_by_role("button", name="Rescale…").click()
    dialog.get_by_role("button", name="Leave it").click()
    assert len(cluster.rescaled) == 1


def test_savepoints_are_made_and_it_is_said_what_became_of_them(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    visitor.go(f"#/jobs/{STREAMING}/checkpoints")
    page.get_by_role("button", name="Make a savepoint").press("Enter")
    expect(page.get_by_role("status")).to_have_text("The savepoint is being made…")
    expect(page.get_by_role("button", name="Take a checkpoint")).to_be_disabled()
    cluster.operation_state = OperationState.COMPLETED
    expect(page.get_by_role("status")).to_have_text("The savepoint: file:/savepoints/new")
    cluster.operation_state = OperationState.FAILED
    page.get_by_role("button", name="Stop with a savepoint").click()
    assert len(cluster.triggered) == 1  # nothing is stopped before the question is answered
    page.get_by_role("dialog").get_by_role("button", name="Stop with a savepoint").click()
    expect(page.get_by_role("status")).to_contain_text(f"failed: CheckpointException: no room {HOSTILE}")
    cluster.operation_state = OperationState.COMPLETED
    page.get_by_role("button", name="Take a checkpoint").click()
    expect(page.get_by_role("status")).to_have_text("The checkpoint: number 11")
    assert [(job, trigger.type) for job, trigger in cluster.triggered] == [
        (STREAMING, SnapshotType.SAVEPOINT),
        (STREAMING, SnapshotType.SAVEPOINT_SUSPEND),
        (STREAMING, SnapshotType.CHECKPOINT),
    ]
    assert len({trigger.trigger_id for _, trigger in cluster.triggered}) == 3
    page.get_by_role("link", name="Begin a job from it").click()
    expect(page.get_by_label("Savepoint to begin from")).to_have_value("file:/savepoints/savepoint-222222-aa")
    assert visitor.problems == []
    visitor.go(f"#/jobs/{RUNNING}/checkpoints")
    expect(page.get_by_text("This job has no checkpoints.")).to_be_visible()
    expect(page.get_by_role("button", name="Make a savepoint")).to_have_count(0)  # it has no streaming query


def test_a_failed_job_shows_the_users_own_traceback(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go(f"#/jobs/{FAILED}")
    expect(page.get_by_text("ValueError: carrier 'ZZ' has no name")).to_be_visible()
    page.get_by_role("link", name="The whole traceback").click()
    assert page.locator("pre").first.inner_text() == TRACEBACK.rstrip()


def test_a_log_grows_where_one_reads_at_its_end(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    attempt = ExecutionAttemptID.from_name("made up", "join", "1")
    cluster.log = "a line of the log\n" * 500
    visitor.go(f"#/jobs/{RUNNING}/logs")
    page.locator(f'a[href$="{attempt}/stdout"]').click()
    text = page.get_by_role("region", name="stdout")
    expect(text).to_contain_text("a line of the log")
    at_end = "node => node.scrollHeight - node.scrollTop - node.clientHeight < 8"
    assert text.evaluate(at_end)
    cluster.log += "the naïve end\n"
    expect(text).to_contain_text("the naïve end")
    assert text.evaluate(at_end)
    text.evaluate("node => { node.scrollTop = 0; }")
    cluster.log += "what came later\n"
    expect(text).to_contain_text("what came later")
    assert text.evaluate("node => node.scrollTop") == 0
    assert text.inner_text().rstrip("\n") == cluster.log.rstrip("\n")


def test_words_are_found_in_a_log_one_after_the_other(visitor: Visitor) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.log = "".join(f"{n} {'an ERROR (again)' if n % 100 == 7 else 'a line'}\n" for n in range(400))
    attempt = ExecutionAttemptID.from_name("made up", "join", "1")
    visitor.go(f"#/jobs/{RUNNING}/logs/{attempt}/stdout")
    text, words = page.get_by_role("region", name="stdout"), page.get_by_label("Find in the log")
    found = page.locator(".log-tools").get_by_role("status")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    words.fill("error (")
    expect(found).to_have_text("1 of 4")
    in_sight = """words => {
        const box = document.querySelector(".log-view .verbatim"), range = [...CSS.highlights.get("current")][0];
        const [place, frame] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
        return range.toString() === words && place.top >= frame.top && place.bottom <= frame.bottom;
    }"""
    assert page.evaluate(in_sight, "ERROR (")
    words.press("Enter")
    expect(found).to_have_text("2 of 4")
    expect(words).to_be_focused()
    assert page.evaluate(in_sight, "ERROR (")
    words.press("Shift+Enter")
    page.get_by_role("button", name="Previous").press("Enter")
    expect(found).to_have_text("4 of 4")
    page.get_by_role("button", name="Next").press("Enter")
    expect(found).to_have_text("1 of 4")
    cluster.log += "500 an ERROR (again)\n"
    expect(found).to_have_text("1 of 5")
    assert page.evaluate("[...CSS.highlights.get('found')].length") == 5
    page.get_by_label("Only lines with it").check()
    assert text.inner_text().splitlines() == [f"{n} an ERROR (again)" for n in (7, 107, 207, 307, 500)]
    words.fill("nothing like it")
    expect(found).to_have_text("not found")
    words.fill("")
    expect(found).to_have_text("")
    expect(text).to_contain_text("399 a line")
    assert visitor.problems == []


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (f"#/jobs/{RUNNING}/logs/{ExecutionAttemptID.from_name('made up', 'join', '1')}/stdout", "stdout.log"),
        ("#/taskmanagers/tm-1/logs/taskexecutor", "taskexecutor.log"),
        ("#/masters/logs/master.log", "master.log"),
    ],
)
def test_a_whole_log_is_downloaded_with_the_token_in_no_address(visitor: Visitor, address: str, name: str) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    cluster.log = cluster.component_log = "naïve line\n" * 60_000  # more than is shown, and than one answer brings
    visitor.stage.write_master_log(cluster.log)
    cluster.longest_answer = 100_000
    visitor.go(address)
    with page.expect_download() as begun:
        page.get_by_role("button", name="Download").press("Enter")
    assert begun.value.suggested_filename == name
    assert Path(begun.value.path()).read_text() == cluster.log
    expect(page.locator("#announcer")).to_have_text(
        f"{name.removesuffix('.log') if name != 'master.log' else name} is downloaded"
    )
    expect(page.get_by_role("button", name="Download")).to_be_enabled()
    assert not any(TOKEN in address for address in visitor.addresses)
    assert visitor.problems == []


def test_a_log_that_cannot_be_downloaded_is_said(visitor: Visitor) -> None:
    page = visitor.page
    visitor.go("#/masters/logs/master.log")
    answer = {"errors": ["the disk is gone"]}
    page.route("**/master.log?offset=0", lambda route: route.fulfill(status=503, json=answer))
    page.get_by_role("button", name="Download").click()
    expect(
        page.get_by_role("alert").filter(has_text="master.log cannot be downloaded: the disk is gone")
    ).to_be_visible()
    expect(page.get_by_role("button", name="Download")).to_be_enabled()


def test_a_script_is_submitted(visitor: Visitor, tmp_path: Path) -> None:
    page, cluster = visitor.page, visitor.stage.cluster
    script = tmp_path / "report.py"
    script.write_text("print('hello')\n")
    broken = tmp_path / "broken.py"
    broken.write_text("print(\n")
    visitor.go("#/submit")
    page.get_by_label("Arguments").fill("--day\n2026-11-21 and a space")
    page.get_by_label("PySpark script").set_input_files(broken)
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert").filter(has_text="broken.py is not valid Python")).to_be_visible()
    page.get_by_label("PySpark script").set_input_files(script)
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", name="report")).to_be_visible()
    ((graph, files),) = cluster.submitted
    assert files == [("report.py", b"print('hello')\n")]
    assert graph.argv == ("--day", "2026-11-21 and a space")
