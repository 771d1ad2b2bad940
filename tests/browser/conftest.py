"""The web page in a real browser, over the real REST API and server, with a cluster that is made up."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.rest.access import AccessPolicy
from runtime.rest.app import RestApplication
from runtime.rest.listening import listen
from runtime.rest.routing import Rest
from runtime.rest.server import RestServer
from runtime.rest.snapshots import Snapshots
from tests.browser.made_up_cluster import MadeUpCluster

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")

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
TOKEN = "t" * 64
MAX_CONTENT = 1_000_000
PATIENCE_MS = 30_000
REFRESH_MS = 200


class Stage:
    """The REST server of a made-up cluster, on a thread of its own; it can die and come back at the same port."""

    def __init__(self, log_dir: Path) -> None:
        self.cluster = MadeUpCluster()
        self._log_dir = log_dir
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Serve; returns when it does."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE_MS / 1000)

    def stop(self) -> None:
        """Serve no more; returns when every connection is closed."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(PATIENCE_MS / 1000)
            assert not self._thread.is_alive()
        self._loop = self._thread = None

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        configuration = Configuration.from_dict({"web.refresh-interval": f"{REFRESH_MS} ms"})
        listener = listen("127.0.0.1", [self._port], "rest.port")
        self._port = listener.getsockname()[1]
        snapshots = Snapshots(REFRESH_MS / 1000, self._loop.time)
        rest = Rest(self.cluster, snapshots, configuration, self._log_dir, self.url.rstrip("/"))
        policy = AccessPolicy(TOKEN.encode(), [], "http", MAX_CONTENT)
        server = RestServer(RestApplication(rest, policy, MAX_CONTENT, with_token=True), listener, None, 256)
        await server.start()
        ready.set()
        await self._stopped.wait()
        rest.closing.set()
        await server.stop()


class Visitor:
    """A browser window at a stage; remembers everything that went wrong in it."""

    def __init__(self, page: playwright.Page, stage: Stage) -> None:
        self.page = page
        self.stage = stage
        self.problems: list[str] = []
        self.addresses: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: self.addresses.append(request.url))
        page.on("response", self._look_at)
        page.on("requestfailed", self._miss)

    def _hear(self, message: playwright.ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _look_at(self, response: playwright.Response) -> None:
        if response.status >= 400:
            self.problems.append(f"status {response.status}: {response.url}")

    def _miss(self, request: playwright.Request) -> None:
        # What a page no longer wants, because another is shown, it gives up: that is no failure.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")

    def go(self, hash_route: str) -> None:
        """Open a page, and wait until it is shown."""
        self.page.goto(self.stage.url + hash_route)
        hash_route = self.page.evaluate("location.hash")
        playwright.expect(self.page.locator("main:not([aria-busy])")).to_have_attribute("data-route", hash_route)

    def log_in(self) -> None:
        """Show the token, once for this window."""
        self.page.goto(self.stage.url)
        self.page.get_by_label("Token").fill(TOKEN)
        self.page.get_by_role("button", name="Log in").click()
        playwright.expect(self.page.get_by_role("heading", name="Overview")).to_be_visible()
        self.problems.clear()  # the refusals that led to the question


@pytest.fixture(scope="package")
def browser() -> Iterator[playwright.Browser]:
    """One Chromium for all tests of this folder."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        playwright.expect.set_options(timeout=PATIENCE_MS)
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
def open_window(browser: playwright.Browser, stage: Stage) -> Iterator[Callable[..., Visitor]]:
    """Open a window: `open_window(width=..., theme=..., log_in=...)`."""
    contexts = []

    def make(width: int = 1280, theme: str = "light", *, log_in: bool = True) -> Visitor:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        contexts.append(context)
        visitor = Visitor(context.new_page(), stage)
        if log_in:
            visitor.log_in()
        return visitor

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def visitor(open_window: Callable[..., Visitor]) -> Visitor:
    """A window of 1280 px that has shown the token."""
    return open_window()
