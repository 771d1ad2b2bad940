"""A browser window that remembers what went wrong in it."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page, Request, Response, expect

from tests.browser.stage import PATIENCE_MS, Stage


class Window:
    """A browser window; remembers everything that went wrong in it, and every address that was asked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.addresses: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: self.addresses.append(request.url))
        page.on("response", self._look_at)
        page.on("requestfailed", self._miss)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _look_at(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"status {response.status}: {response.url}")

    def _miss(self, request: Request) -> None:
        # What a page no longer wants, because another is shown, it gives up: that is not a failure.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")


class Visitor(Window):
    """A browser window at a stage."""

    def __init__(self, page: Page, stage: Stage) -> None:
        super().__init__(page)
        self.stage = stage

    def look(self, width: int, theme: str) -> None:
        """Give the window another width, and whoever looks at it another theme."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")

    def ground(self) -> int:
        """Return how bright the page's ground is, from 0 to 765."""
        colour: str = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    def go(self, hash_route: str) -> None:
        """Open a page, and wait until it is shown."""
        self.page.goto(self.stage.url + hash_route)
        hash_route = self.page.evaluate("location.hash")
        expect(self.page.locator("main:not([aria-busy])")).to_have_attribute("data-route", hash_route)
