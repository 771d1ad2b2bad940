"""What the web page needs of the server beside Flink's API: its files, events, the logs of attempts."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from actors.errors import RecipientUnreachable
from conf.configuration import Configuration
from runtime.protocol.execution_state import JobStatus
from runtime.rest.handlers import events
from runtime.users.identities import CLUSTER
from tests.unit.test_rest_app import Site
from tests.unit.test_rest_messages import ID
from tests.waiting import PATIENCE_S

STATIC = files("runtime.rest") / "static"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_the_pages_files_need_no_token_and_allow_nothing_inline(site: Site) -> None:
    for path, media in (("/", "text/html"), ("/index.html", "text/html"), ("/ui/main.js", "text/javascript")):
        answer = await site.ask("GET", path, token=b"wrong")
        assert answer.status == 200, path
        assert answer.headers["content-type"].startswith(media)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for part in ("frame-ancestors 'none'", "require-trusted-types-for 'script'; trusted-types 'none'"):
            assert part in policy
        again = await site.ask("GET", path, (), (b"if-none-match", answer.headers["etag"].encode()), token=b"wrong")
        assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/ui",
        "/ui/",
        "/ui/../index.html",
        "/ui/../../app.py",
        "/ui/%2e%2e/index.html",
        "//etc/passwd",
        "/ui/main.js/",
        "/ui/pages",
        "/static/index.html",
        "/ui/main.js\0.css",
    ],
)
async def test_nothing_else_is_a_file_of_the_page(site: Site, path: str) -> None:
    assert (await site.ask("GET", path)).status == 404
    assert (await site.ask("GET", path, token=b"wrong")).status == 401


async def test_the_page_has_no_script_or_style_in_its_markup_and_asks_no_other_host(site: Site) -> None:
    page = (await site.ask("GET", "/")).body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://", page) == []
    for name in re.findall(r'(?:src|href)="(ui/[^"]*)"', page):
        assert (await site.ask("GET", "/" + name)).status == 200, name


async def test_modules_exist_and_none_makes_markup_of_text(site: Site) -> None:
    modules = [*(STATIC / "ui").iterdir(), *(STATIC / "ui" / "pages").iterdir()]
    texts = {module.name: module.read_text() for module in modules if module.name.endswith(".js")}
    assert len(texts) > 10
    for name, text in texts.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        for imported in re.findall(r'from "(?:\.\.?/)+(?:pages/)?([^"]+)"', text):
            assert imported in texts, f"{name} imports {imported}"


async def test_events_tell_of_changes_and_end_with_the_server(site: Site) -> None:
    rest = replace(site.app._rest, configuration=Configuration.from_dict({"web.refresh-interval": "1 ms"}))
    stream = events.stream(rest, CLUSTER)

    async def until(wanted: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while wanted not in await anext(stream):
                pass

    await until(b"event: changed")  # at first nothing is known
    await until(b"event: tick")
    site.cluster.running = replace(site.cluster.running, status=JobStatus.FAILING)
    await until(b"event: changed")
    await until(b"event: tick")
    site.cluster.failure = RecipientUnreachable("nobody leads")
    await until(b"event: changed")
    await until(b"event: tick")
    site.cluster.failure = None
    await until(b"event: changed")
    rest.closing.set()
    async with asyncio.timeout(PATIENCE_S):
        assert [event async for event in stream if b"changed" in event] == []


async def test_events_show_that_the_server_lives_while_the_cluster_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = replace(site.app._rest, configuration=Configuration.from_dict({"web.refresh-interval": "1 ms"}))
    answers = asyncio.Event()

    async def ask() -> object:
        await answers.wait()
        return ()

    monkeypatch.setattr(site.cluster, "jobs", ask)
    stream = events.stream(rest, CLUSTER)
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(stream)).startswith(b"event: waiting")
        answers.set()
        while b"event: changed" not in await anext(stream):
            pass
        answers.clear()
        while not (await anext(stream)).startswith(b"event: waiting"):
            pass
        rest.closing.set()
        assert all([event.startswith(b"event: waiting") async for event in stream])


async def test_events_need_the_token(site: Site) -> None:
    assert (await site.ask("GET", "/events", token=b"wrong")).status == 401


async def test_logs_of_attempts_are_listed_and_read_on(site: Site) -> None:
    listed = (await site.ask("GET", f"/jobs/{ID}/logs")).json["logs"]
    assert [(log["task"], log["attempt"], log["name"], log["status"]) for log in listed] == [
        ("read <img>", 1, "stdout", "RUNNING"),
        ("read <img>", 1, "stderr", "RUNNING"),
        ("read <img>", 0, "stdout", "FAILED"),
        ("read <img>", 0, "stderr", "FAILED"),
    ]
    path = f"/jobs/{ID}/logs/{listed[0]['attempt-id']}/stdout"
    whole, rest = await site.ask("GET", path), await site.ask("GET", f"{path}?offset=7")
    assert (whole.body, rest.body) == (b"0123456789", b"789")
    assert whole.headers["x-log-complete"] == "false"
    over = await site.ask("GET", f"/jobs/{ID}/logs/{listed[2]['attempt-id']}/stderr")
    assert over.headers["x-log-complete"] == "true"


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        ("1" * 32 + "/passwd", 404),
        ("9" * 32 + "/stdout", 404),
        ("1" * 32 + "/..%2fstdout", 404),
        ("1" * 32 + "/stdout?offset=-1", 400),
        ("1" * 32 + "/stdout?offset=x", 400),
    ],
)
async def test_other_logs_are_refused(site: Site, rest: str, status: int) -> None:
    answer = await site.ask("GET", f"/jobs/{ID}/logs/{rest}")
    assert answer.status == status
    assert answer.error


async def test_processes_are_told_with_the_epoch_of_who_leads(site: Site) -> None:
    told = (await site.ask("GET", "/processes")).json
    assert told["cluster-id"] == "made-up"
    ((name, leadership, epoch),) = [(p["name"], p["leadership"], p["epoch"]) for p in told["processes"]]
    assert (name, leadership, epoch) == ("dispatcher", "leader", 12)
