"""The web page in a real browser, over the real REST API and server, with a cluster that is made up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.stage import PATIENCE_MS, TOKEN, Stage

if TYPE_CHECKING:  # a test module that finds no playwright is skipped, a conftest cannot be
    from playwright.sync_api import Browser

    from tests.browser.visitor import Visitor

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Nothing here is to leave the machine, and the sandbox of the browser's own needs more rights than a container has.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of this folder."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as driver:
        expect.set_options(timeout=PATIENCE_MS)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    (tmp_path / "master.log").write_text("2026-11-21 18:46:01,123 INFO a line\n" * 100)
    stage = Stage(tmp_path)
    yield stage
    stage.stop()


@pytest.fixture
def open_window(browser: Browser, stage: Stage) -> Iterator[Callable[..., Visitor]]:
    """Open a window: `open_window(width=..., theme=..., log_in=...)`."""
    from tests.browser.visitor import Visitor

    contexts = []

    def make(width: int = 1280, theme: str = "light", *, log_in: bool = True) -> Visitor:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        if log_in:  # as the page keeps it; one test shows the token as a user does
            context.add_init_script(f"sessionStorage.setItem('understudy-token', '{TOKEN}')")
        return Visitor(context.new_page(), stage)

    yield make
    for context in contexts:
        for page in context.pages:  # an answer that a test's route fetches would else end within the next test
            page.unroute_all(behavior="wait")
        context.close()


@pytest.fixture
def visitor(open_window: Callable[..., Visitor]) -> Visitor:
    """A window of 1280 px that has shown the token."""
    return open_window()
