"""Logging in on the page at an OpenID Connect provider, in a real browser that goes there and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conf.configuration import Configuration
from runtime.rest.access import AccessPolicy
from runtime.rest.app import RestApplication
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.context import Rest
from runtime.rest.issuer import Issuer, offer_of
from runtime.rest.page_login import PageLogin
from tests.browser.stage import MAX_CONTENT, TOKEN, Stage
from tests.fakes.oidc_provider import Provider, SigningKey, running_provider

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.visitor import Visitor

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: the extra `test`").expect


class IssuerStage(Stage):
    """A stage whose users a provider identifies."""

    def __init__(self, log_dir: Path, provider: Provider) -> None:
        self.provider = provider
        super().__init__(log_dir)

    def _application(self, rest: Rest) -> RestApplication:
        configuration = Configuration.from_dict(
            {
                "security.oidc.issuer": self.provider.issuer,
                "security.oidc.client-id": "understudy",
                "security.oidc.roles.user": "data-engineers",
            }
        )
        issuer = Issuer.of(configuration)
        identities = KnownIdentities(nobody, issuer=issuer)
        policy = AccessPolicy(TOKEN.encode(), [], "http", MAX_CONTENT, has_issuer=True)
        return RestApplication(
            replace(rest, identities=identities),
            policy,
            MAX_CONTENT,
            with_token=True,
            offer=offer_of(configuration),
            page_login=PageLogin.of(configuration, issuer, identities, policy),
        )


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider(SigningKey("first", "ES256")) as found:
        yield found


@pytest.fixture
def stage(tmp_path: Path, provider: Provider) -> Iterator[IssuerStage]:
    stage = IssuerStage(tmp_path, provider)
    provider.redirect_uris = [stage.url]
    yield stage
    stage.stop()


RENEW = """async () => {
    const api = await import("./ui/api.js");
    const login = JSON.parse(sessionStorage.getItem("understudy-login"));
    sessionStorage.setItem("understudy-login", JSON.stringify({ ...login, renewAt: 0 }));
    await Promise.all(["whoami", "overview", "whoami"].map((path) => api.getJson(path)));
}"""
LOG_OUT_WHILE_RENEWING = """async () => {
    const api = await import("./ui/api.js");
    const login = JSON.parse(sessionStorage.getItem("understudy-login"));
    sessionStorage.setItem("understudy-login", JSON.stringify({ ...login, renewAt: 0 }));
    const asked = api.getJson("whoami").catch(() => null);
    await api.logOut();
    await asked;
    return Object.keys(sessionStorage);
}"""


def log_in(page: Page, provider: Provider) -> None:
    page.get_by_role("button", name=f"Log in with {provider.issuer.removeprefix('http://')}").click()


def log_out(page: Page) -> None:
    """Log out, and wait for the page to load anew: it does so once the issuer has answered."""
    with page.expect_navigation():
        page.get_by_role("button", name="Log out").click()


def user_of(page: Page) -> Any:
    """Return the user whom the page's token identifies."""
    return page.evaluate("import('./ui/api.js').then(api => api.getJson('whoami')).then(told => told.user)")


def grants(provider: Provider) -> list[str]:
    return [form["grant_type"] for form in provider.forms]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_a_user_logs_in_at_the_issuer_and_out(
    open_window: Callable[..., Visitor], provider: Provider, width: int, theme: str
) -> None:
    visitor = open_window(width, theme, log_in=False)
    page, url = visitor.page, visitor.stage.url
    page.goto(url + "#/jobs")
    button = page.get_by_role("button", name="Log in with")
    expect(button).to_be_focused()
    box = button.bounding_box()
    assert box is not None
    assert (box["x"] >= 0, box["x"] + box["width"] <= width) == (True, True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, back = (button.evaluate(f"node => getComputedStyle(node).{part}") for part in ("color", "backgroundColor"))
    assert ink != back
    log_in(page, provider)
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert page.url == url + "#/jobs", "where the user was, and no code"
    assert user_of(page) == "ada"
    kept = page.evaluate("JSON.parse(JSON.stringify(sessionStorage))")
    assert sorted(kept) == ["understudy-login", "understudy-token"], "the secret of the log-in is forgotten"
    secrets = [kept["understudy-token"], *provider.refresh_tokens, provider.forms[0]["code_verifier"]]
    assert [address for address in visitor.addresses for secret in secrets if secret in address] == []
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    page.reload()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    log_out(page)
    expect(button).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    assert provider.refresh_tokens == []


def test_what_the_tab_has_not_begun_or_has_used_logs_nobody_in(
    open_window: Callable[..., Visitor], provider: Provider
) -> None:
    """A link with the attacker's code (log-in CSRF), the same with words of his, and a return shown twice."""
    visitor = open_window(log_in=False)
    page, url = visitor.page, visitor.stage.url
    code = provider.authorize({"client_id": "understudy", "response_type": "code", "redirect_uri": url, "state": "x"})
    for link in (code, f"{url}?error=x&error_description=Call+555-evil&state=x"):
        page.goto(str(link))
        expect(page.get_by_role("alert").filter(has_text="this log-in was not started in this tab")).to_be_visible()
        expect(page.get_by_text("evil")).to_have_count(0)
        assert page.url == url
    log_in(page, provider)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    returned = next(address for address in visitor.addresses if "?code=" in address and address != code)
    provider.user["preferred_username"] = "mallory"
    for link in (returned, code):
        page.goto(str(link))
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert (page.url, user_of(page)) == (url, "ada")
    assert grants(provider) == ["authorization_code"]
    provider.denial = {"error": "access_denied", "error_description": "<b>no</b>"}
    log_out(page)
    log_in(page, provider)
    expect(page.get_by_role("alert").filter(has_text="refuses the log-in: access_denied: <b>no</b>")).to_be_visible()
    assert page.url == url


def test_a_token_is_renewed_once_and_what_the_issuer_does_not_end_is_said(
    open_window: Callable[..., Visitor], provider: Provider
) -> None:
    visitor = open_window(log_in=False)
    page = visitor.page
    page.goto(visitor.stage.url)
    log_in(page, provider)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    first = page.evaluate("sessionStorage.getItem('understudy-token')")
    page.evaluate(RENEW)
    assert page.evaluate("sessionStorage.getItem('understudy-token')") != first
    assert grants(provider) == ["authorization_code", "refresh_token"], "three requests at once renew it once"
    assert user_of(page) == "ada"
    assert page.evaluate(LOG_OUT_WHILE_RENEWING) == [], "the renewed token does not come back"
    page.goto(visitor.stage.url)
    log_in(page, provider)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    provider.away = True
    page.get_by_role("button", name="Log out").click()
    told = page.get_by_role("alert").filter(has_text="is logged out, and the issuer was not told")
    expect(told).to_be_visible()
    with page.expect_response("**/login"):  # a request that is refused later asks for a log-in, too
        page.evaluate("location.hash = '#/jobs'")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(told).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
