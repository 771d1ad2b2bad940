"""Log-ins through the web endpoint: who is logged in, and what is refused to whom."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from conf.configuration import Configuration
from conf.files import write_private
from runtime.errors import PreflightError
from runtime.ha.errors import HaUnreachableError
from runtime.rest import issuer
from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.issuer import IssuerThreads, client_secret_of
from runtime.rest.page_login import BEGIN, END, FINISH, MOST_ADDRESSES, MOST_BYTES, PER_ADDRESS, PER_MINUTE, RENEW
from runtime.users.code_flow import CLOCKS_MS, MOST_AGE_MS, CodeFlow
from runtime.users.identities import Role
from runtime.users.login import DEVICE_BEGIN, DEVICE_END, DEVICE_RENEW, DEVICE_TOKENS, LoginError
from runtime.users.oidc import REFRESH_S, IssuerAnswerError
from tests.fakes.oidc_provider import SigningKey
from tests.unit.test_rest_app import Answer, Site
from tests.unit.test_rest_oidc import URL, IssuedSite

PAGE = "http://localhost/"
MEDIA = (b"content-type", b"application/json")


class Tab:
    """A tab of the page: its requests, and the issuer's pages that it visits."""

    def __init__(self, site: IssuedSite) -> None:
        self.site = site
        self.verifier = ""
        self.url = ""

    async def post(self, path: str, **form: Any) -> Answer:
        return await self.site.ask("POST", path, [json.dumps({"address": PAGE, **form}).encode()], MEDIA, token=b"")

    async def begin(self) -> Tab:
        answer = await self.post(f"/v1{BEGIN}")
        assert answer.status == 200, answer.body
        assert answer.headers["cache-control"] == "no-store"
        self.verifier, self.url = answer.json["verifier"], answer.json["url"]
        return self

    def visit(self) -> dict[str, str]:
        """Log in at the issuer; return the parameters with which it sends the browser back."""
        query = dict(parse_qsl(urlsplit(self.url).query))
        target = self.site.provider.authorize(query)
        assert target is not None
        assert target.startswith(f"{PAGE}?")
        return dict(parse_qsl(urlsplit(target).query))

    async def finish(self, returned: dict[str, str]) -> Answer:
        return await self.post(FINISH, verifier=self.verifier, **returned)

    async def log_in(self) -> Answer:
        await self.begin()
        return await self.finish(self.visit())


@pytest.fixture
def site(tmp_path: Path) -> IssuedSite:
    return IssuedSite(tmp_path)


@pytest.fixture
def tab(site: IssuedSite) -> Tab:
    return Tab(site)


def refused(answer: Answer, said: str, status: int = 403) -> None:
    """Check that an answer is one printable line, and has no token."""
    assert (answer.status, "token" in answer.json) == (status, False), answer.body
    assert said in answer.error
    assert answer.error.isprintable()


async def test_a_user_logs_in_on_the_page(tab: Tab, site: IssuedSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    returned = (await tab.begin()).visit()
    assert urlsplit(tab.url)._replace(query="").geturl() == f"{URL}/authorize"
    asked = dict(parse_qsl(urlsplit(tab.url).query))
    assert (asked["client_id"], asked["scope"]) == ("understudy", "openid profile email")
    assert tab.verifier not in tab.url, "the issuer and the history of the browser have only its digest"
    answer = await tab.finish(returned)
    assert answer.status == 200, answer.body
    told = answer.json
    assert 3_000_000 < told["expires-in"] <= 3_600_000
    assert answer.headers["cache-control"] == "no-store"
    assert (await site.get(told["token"])).json["user"] == "ada"
    (line,) = site.lines
    assert (line["user"], line["role"], line["action"], line["outcome"]) == ("ada", "user", f"POST {FINISH}", "done")
    logged = caplog.text + site.audit_file.read_text()
    secrets = (told["token"], told["refresh-token"], tab.verifier, returned["code"], returned["state"])
    assert [secret for secret in secrets if secret in logged] == []


async def test_any_master_serves_the_return(tab: Tab, tmp_path: Path) -> None:
    returned = (await tab.begin()).visit()
    (tmp_path / "other").mkdir()
    other = IssuedSite(tmp_path / "other")
    other.provider.codes.update(tab.site.provider.codes)
    tab.site = other
    assert (await tab.finish(returned)).status == 200


async def test_a_return_that_this_tab_has_not_begun_is_refused(tab: Tab, site: IssuedSite) -> None:
    """Log-in CSRF: a link brings the code and the state of the attacker into the tab of another user."""
    attacker = Tab(site)
    brought = (await attacker.begin()).visit()
    await tab.begin()
    refused(await tab.finish(brought), "this log-in was not started in this tab")
    for state in ("", "\ud800", brought["state"][:-1]):
        refused(await tab.finish({**brought, "state": state}), "this log-in was not started in this tab")
    assert site.provider.forms == [], "nothing is asked of the issuer"
    assert (await attacker.finish(brought)).status == 200


async def test_a_code_of_another_log_in_is_refused(tab: Tab, site: IssuedSite) -> None:
    """Code injection: the attacker also knows the state of the tab, and leaves his own code with it."""
    his = (await Tab(site).begin()).visit()
    own = (await tab.begin()).visit()
    refused(await tab.finish({**own, "code": his["code"]}), f"{URL} rejects the code: invalid_grant")
    stolen = Tab(site)  # the other way round: the code of the tab, without its verifier
    his = (await stolen.begin()).visit()
    refused(await stolen.finish({**his, "code": own["code"]}), "rejects the code")


@pytest.mark.parametrize("claims", [{}, {"nonce": None}, {"nonce": "another"}, {"nonce": 7}, {"nonce": "\ud800"}])
async def test_an_id_token_of_another_log_in_is_refused(tab: Tab, site: IssuedSite, claims: dict[str, Any]) -> None:
    """As above, at an issuer that does not check PKCE."""
    site.provider.checks_pkce = False
    site.provider.id_claims = claims
    his = (await Tab(site).begin()).visit()
    own = (await tab.begin()).visit()
    refused(await tab.finish({**own, "code": his["code"]}), "its nonce is that of another log-in")


async def test_a_code_works_once(tab: Tab) -> None:
    returned = (await tab.begin()).visit()
    assert (await tab.finish(returned)).status == 200
    refused(await tab.finish(returned), "rejects the code: invalid_grant: Code not valid")


async def test_a_log_in_ends_in_time(tab: Tab, site: IssuedSite) -> None:
    returned = (await tab.begin()).visit()
    site.later_ms = MOST_AGE_MS + 2 * CLOCKS_MS
    refused(await tab.finish(returned), "took longer than 10 minutes")
    site.later_ms = -2 * CLOCKS_MS
    refused(await tab.finish(returned), "took longer than 10 minutes")
    site.later_ms = 0
    assert (await tab.finish(returned)).status == 200


def test_state_and_nonce_do_not_tell_the_verifier() -> None:
    flow = CodeFlow.begin(PAGE, bytes(32), 1_700_000_000_000)
    assert 43 <= len(flow.verifier) <= 128
    assert len({flow.state, flow.nonce, flow.challenge, flow.verifier}) == 4
    other = CodeFlow.begin(PAGE, b"\1" * 32, 1_700_000_000_000)
    assert {flow.state, flow.nonce, flow.challenge}.isdisjoint({other.state, other.nonce, other.challenge})
    weak = CodeFlow("18bcfe56800-", PAGE)  # no random part, so anyone could derive its state
    with pytest.raises(LoginError, match="not started in this tab"):
        weak.check(weak.state, 1_700_000_000_000)


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "http://evil.example/",
        "https://localhost/",
        "http://localhost:81/",
        "http://localhost",
        "http://localhost.evil.example/",
        "http://localhost@evil.example/",
        "http://evil.example\\@localhost/",
        "http://evil.example#@localhost/",
        "http://localhost/?next=https://evil.example",
        "http://localhost/#x",
        "//localhost/",
        "javascript://localhost/%0aalert(1)",
        "http://localhost/\r\nx",
        "http://localhos\u212a/",
        "",
    ],
)
async def test_the_issuer_sends_the_browser_back_to_this_page_alone(tab: Tab, site: IssuedSite, address: str) -> None:
    for path in (BEGIN, FINISH):
        answer = await tab.post(path, address=address, verifier="", state="", code="x")
        refused(answer, "the address is not that of this endpoint's page", 400)
    assert site.provider.asked == []


async def test_a_code_is_redeemed_for_the_address_that_it_was_given_for(tab: Tab) -> None:
    returned = (await tab.begin()).visit()
    refused(await tab.post(FINISH, verifier=tab.verifier, **returned, address=f"{PAGE}other/"), "rejects the code")


def test_a_page_is_of_an_allowed_name() -> None:
    policy = AccessPolicy(b"t" * 64, ["spark.example.org", "[fd00::1]"], "https", 100, has_issuer=True)

    def status(address: str, *hosts: bytes, origin: bytes | None = None) -> int:
        headers = [(b"host", host) for host in hosts] + ([] if origin is None else [(b"origin", origin)])
        found = policy.check_page(headers, address)
        return found.status if isinstance(found, Refusal) else 200

    assert status("https://spark.example.org:8081/", b"spark.example.org:8081") == 200
    assert status("https://spark.example.org/a/b.html", b"Spark.example.org:443") == 200
    assert status("https://[fd00::1]:8081/", b"[fd00::1]:8081", origin=b"https://[fd00::1]:8081") == 200
    assert status("https://evil.example:8081/", b"evil.example:8081") == 403, "DNS rebinding"
    assert status("https://spark.example.org:8081/", b"spark.example.org:8081", b"spark.example.org:8081") == 403
    assert status("https://spark.example.org:8081/") == 403
    assert status("https://spark.example.org/", b"spark.example.org", origin=b"https://evil.example") == 403
    assert status("https://spark.example.org/", b"spark.example.org", origin=b"null") == 403
    assert status("https://localhost/", b"spark.example.org") == 400


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"aud": "other"}, "it is for 'other', not for understudy"),
        ({"azp": "other"}, "it was issued to 'other'"),
        ({"iss": "https://evil.example"}, "its issuer is"),
        ({"exp": 1}, "has expired"),
    ],
)
async def test_a_token_for_others_logs_nobody_in(tab: Tab, site: IssuedSite, claims: dict[str, Any], said: str) -> None:
    site.provider.id_claims = claims
    refused(await tab.log_in(), said)
    assert site.lines[-1]["user"] == ""


async def test_a_token_of_another_key_logs_nobody_in(tab: Tab, site: IssuedSite) -> None:
    returned = (await tab.begin()).visit()
    site.provider.key = SigningKey("first")
    refused(await tab.finish(returned), "its signature is wrong")


async def test_the_access_token_is_used_where_the_cluster_has_an_audience(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    tab = Tab(IssuedSite(tmp_path / "api", {"security.oidc.audience": "understudy-api"}))
    token = (await tab.log_in()).json["token"]
    assert (await tab.site.get(token)).json["user"] == "ada"
    tab.site.provider.checks_pkce = False  # the nonce is that of the ID token
    his, own = (await Tab(tab.site).begin()).visit(), (await tab.begin()).visit()
    refused(await tab.finish({**own, "code": his["code"]}), "its nonce is that of another log-in")
    other = Tab(IssuedSite(tmp_path, {"security.oidc.audience": "another-api"}))
    refused(await other.log_in(), "the cluster does not accept you")
    assert "it is for 'understudy-api'" in other.site.lines[-1]["reason"]


async def test_a_user_whom_the_cluster_does_not_accept_is_told_in_one_line(
    tab: Tab, site: IssuedSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.provider.user["groups"] = ["left"]
    refused(await tab.log_in(), f"{URL} knows you, and the cluster does not accept you; ask an admin: rest.log has")
    assert "ada is in no group that has a role" in caplog.text
    assert "ada is in no group that has a role" in site.lines[-1]["reason"]
    site.provider.user["groups"] = ["staff"]
    site.add("ada", Role.VIEWER)
    site.clock += 2
    refused(await tab.log_in(), "the cluster does not accept you")
    site.clock += 2
    site.store_failure = HaUnreachableError("Redis is gone", "gone")
    refused(await tab.log_in(), "users cannot be identified at present", 503)


async def test_an_error_of_the_issuer_is_one_line_of_this_log_in(tab: Tab, site: IssuedSite) -> None:
    site.provider.denial = {"error": "access_denied", "error_description": "you\r\n\x1b[2Jmay not" + "x" * 999}
    returned = (await tab.begin()).visit()
    answer = await tab.finish(returned)
    refused(answer, f"{URL} refuses the log-in: access_denied: you\\r\\n\\x1b[2Jmay notxxx")
    assert len(answer.error) < 400
    phishing = {"error": "call", "error_description": "Call 555-evil", "state": "x"}
    answer = await tab.finish(phishing)
    refused(answer, "not started in this tab")
    assert "evil" not in answer.error
    refused(await tab.finish({"state": returned["state"]}), "without a code")
    refused(await tab.finish({"state": returned["state"], "code": "a b"}), "without a code")
    assert site.provider.forms == []


async def test_an_issuer_that_cannot_be_used_is_told_in_one_line(tab: Tab, site: IssuedSite) -> None:
    site.provider.away = True
    refused(await tab.post(BEGIN), f"the issuer cannot be used at present: {URL} answers with HTTP 503", 503)
    site.provider.away = False
    for wrong in ("javascript:alert(1)", "http://id.example.org/authorize", "https://x/#y"):
        site.provider.document["authorization_endpoint"] = wrong
        refused(await tab.post(BEGIN), "has no private address authorization_endpoint", 503)
    site.provider.document["authorization_endpoint"] = ""
    refused(await tab.post(BEGIN), "has no log-in for web pages; paste a token")
    site.clock += 600
    site.provider.document["authorization_endpoint"] = f"{URL}/authorize?tenant=1"
    assert (await tab.begin()).url.startswith(f"{URL}/authorize?tenant=1&response_type=code&")
    asked = len(site.provider.asked)
    await tab.begin()
    assert len(site.provider.asked) == asked, "the document is kept for a while"
    returned = tab.visit()
    site.provider.answers = [(200, {"access_token": "a.b.c"})]
    refused(await tab.finish(returned), "has given no ID token")


async def test_a_token_is_renewed_and_the_log_out_revokes_it(tab: Tab, site: IssuedSite) -> None:
    first = (await tab.log_in()).json
    again = (await tab.post(RENEW, **{"refresh-token": first["refresh-token"]})).json
    assert (await site.get(again["token"])).json["user"] == "ada"
    assert len({first["token"], again["token"], first["refresh-token"], again["refresh-token"]}) == 4
    refused(await tab.post(RENEW, **{"refresh-token": first["refresh-token"]}), "does not renew the login")
    ended = await tab.post(END, **{"refresh-token": again["refresh-token"], "token": again["token"]})
    assert (ended.status, ended.json) == (200, {})
    assert site.provider.refresh_tokens == []
    assert [(line["user"], line["action"], line["outcome"]) for line in site.lines] == [
        ("ada", f"POST {FINISH}", "done"),
        ("ada", f"POST {END}", "done"),
    ]
    site.provider.answers = [(429, {"error": "too_many_requests"})]
    answer = await tab.post(RENEW, **{"refresh-token": again["refresh-token"]})
    refused(answer, f"{URL} answers with HTTP 429", 503)
    site.provider.away = True
    answer = await tab.post(RENEW, **{"refresh-token": again["refresh-token"]})
    refused(answer, f"{URL} answers with HTTP 503", 503)  # no refusal, so the page keeps the refresh token
    answer = await tab.post(END, **{"refresh-token": again["refresh-token"], "token": "nothing"})
    refused(answer, "has not revoked the login", 503)
    logged = site.audit_file.read_text()
    assert [text for text in (*first.values(), *again.values()) if isinstance(text, str) and text in logged] == []


SECRET = "a+secret/with%what: a form &=changes"


def confidential(directory: Path, secret: str = SECRET) -> Tab:
    """Return a tab at a cluster whose client has a secret, and whose issuer demands `SECRET`."""
    file = directory / "issuer-secret"
    write_private(file, secret.encode() + b"\n")
    site = IssuedSite(directory, {"security.oidc.client-secret-file": str(file)})
    site.provider.client_secret = SECRET
    return Tab(site)


@pytest.mark.parametrize("methods", [None, ["client_secret_basic", "client_secret_post"], ["client_secret_post"]])
async def test_a_confidential_client_shows_its_secret_to_the_issuer_alone(
    tmp_path: Path, methods: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    tab = confidential(tmp_path)
    provider = tab.site.provider
    if methods is not None:
        provider.document["token_endpoint_auth_methods_supported"] = methods
    first = await tab.log_in()
    again = await tab.post(RENEW, **{"refresh-token": first.json["refresh-token"]})
    ended = await tab.post(END, **{"refresh-token": again.json["refresh-token"], "token": again.json["token"]})
    assert (first.status, again.status, ended.status) == (200, 200, 200), first.body + again.body + ended.body
    assert provider.refresh_tokens == [], "the issuer has believed the client that revoked it"
    assert [form["grant_type"] for form in provider.forms] == ["authorization_code", "refresh_token"]
    shown = [tab.url, caplog.text, tab.site.audit_file.read_text(), *map(str, (first.body, again.body, ended.body))]
    assert [text for text in shown if SECRET in text or "secret" in text] == []
    assert SECRET not in repr(vars(tab.site))


async def test_an_issuer_that_demands_another_secret_is_told_with_the_remedy(tmp_path: Path) -> None:
    wrong = await confidential(tmp_path, "that of another client").log_in()
    refused(wrong, f"{URL} rejects the code: invalid_client; have security.oidc.client-id and")
    assert "another client" not in wrong.error
    site = IssuedSite(tmp_path)
    site.provider.client_secret = SECRET
    refused(await Tab(site).log_in(), "security.oidc.client-secret-file checked")


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "cannot be read: No such file"),
        (SECRET, 0o644, "others may read it"),
        ("tiny", 0o600, "is shorter than 16 characters"),
        ("a secret of an umläut", 0o600, "has other characters than ASCII"),
    ],
)
def test_a_file_without_a_private_secret_is_refused_at_the_start(
    tmp_path: Path, content: str | None, mode: int, said: str
) -> None:
    file = tmp_path / "issuer-secret"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    configuration = Configuration.from_dict({"security.oidc.client-secret-file": str(file)})
    with pytest.raises(PreflightError, match=said) as refusal:
        client_secret_of(configuration)
    text = f"{refusal.value} {refusal.value.remedy}"
    assert text.startswith("security.oidc.client-secret-file: ")
    assert "security.secret-file" not in text, "the option to change is this one"
    assert content is None or content not in text


def at_a_desk(directory: Path) -> IssuedSite:
    """Return a cluster through which command lines log in, since only it knows the secret of their client."""
    file = directory / "device-secret"
    write_private(file, SECRET.encode())
    settings = {"security.oidc.device-client-secret-file": str(file), "security.oidc.client-secret-file": str(file)}
    site = IssuedSite(directory, settings)
    site.provider.client_secret = SECRET
    return site


async def asked(site: IssuedSite, path: str, *headers: tuple[bytes, bytes], **form: str) -> Answer:
    return await site.ask("POST", path, [json.dumps(form).encode()], MEDIA, *headers, token=b"")


async def test_a_command_line_logs_in_through_the_endpoint_which_keeps_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site = at_a_desk(tmp_path)
    begun = await asked(site, f"/v1{DEVICE_BEGIN}")
    assert (begun.status, begun.json["status"], begun.headers["cache-control"]) == (200, 200, "no-store")
    code = begun.json["answer"]["device_code"]
    wrong = await asked(site, DEVICE_TOKENS, **{"device-code": "x"})
    assert wrong.json == {"status": 400, "answer": {"error": "expired_token"}}
    begun = await asked(site, DEVICE_BEGIN)
    code = begun.json["answer"]["device_code"]
    done = await asked(site, DEVICE_TOKENS, **{"device-code": code})
    assert sorted(done.json["answer"]) == ["access_token", "expires_in", "id_token", "refresh_token"]
    refresh = done.json["answer"]["refresh_token"]
    again = await asked(site, DEVICE_RENEW, **{"refresh-token": refresh})
    ended = await asked(site, DEVICE_END, **{"refresh-token": again.json["answer"]["refresh_token"]})
    assert (again.json["status"], ended.json) == (200, {"status": 200, "answer": {}})
    assert site.provider.refresh_tokens == []
    audited = site.audit_file.read_text()
    shown = [caplog.text, audited, *(str(answer.body) for answer in (begun, done, again, ended))]
    assert [text for text in shown if SECRET in text] == []
    assert refresh not in caplog.text + audited


async def test_the_endpoint_sends_nothing_else_to_the_issuer(tmp_path: Path) -> None:
    site = at_a_desk(tmp_path)
    for _ in range(PER_ADDRESS + 1):
        foreign = await asked(site, DEVICE_BEGIN, (b"origin", b"https://evil.example"))
        refused(foreign, "header Origin")
    refused(await site.ask("POST", DEVICE_BEGIN, [b"{}"], (b"content-type", b"text/plain"), token=b""), "must be", 415)
    refused(await asked(site, DEVICE_TOKENS), "the body has no device-code", 400)
    refused(await asked(site, DEVICE_RENEW, **{"device-code": "x"}), "the body has no refresh-token", 400)
    assert site.provider.asked == ["/.well-known/openid-configuration"]
    site.provider.document["revocation_endpoint"] = ""
    site.clock += REFRESH_S
    refused(await asked(site, DEVICE_END, **{"refresh-token": "x"}), "has no address for this step")
    assert set(site.provider.asked) == {"/.well-known/openid-configuration"}


async def test_without_a_secret_of_their_client_command_lines_ask_the_issuer_themselves(tmp_path: Path) -> None:
    site = IssuedSite(tmp_path)
    for path in (DEVICE_BEGIN, DEVICE_TOKENS, DEVICE_RENEW, DEVICE_END):
        assert (await asked(site, path)).status == 401
    assert "through-cluster" not in (await site.ask("GET", "/v1/login", token=b"")).json
    assert site.provider.asked == []


async def test_pages_of_other_sites_begin_nothing_and_use_nothing_up(tab: Tab, site: IssuedSite) -> None:
    body = [json.dumps({"address": PAGE}).encode()]
    for _ in range(PER_ADDRESS + 1):
        foreign = await site.ask("POST", BEGIN, body, MEDIA, (b"origin", b"https://evil.example"), token=b"")
        refused(foreign, "header Origin")
    plain = await site.ask("POST", BEGIN, body, (b"content-type", b"text/plain"), token=b"")
    refused(plain, "the body must be application/json", 415)
    await tab.begin()


async def test_requests_are_limited_by_address_and_in_all(tab: Tab, site: IssuedSite) -> None:
    page_login = site.app._page_login
    assert page_login is not None
    page_login._now_ms = lambda: 1_700_000_000_000
    body = [json.dumps({"address": PAGE}).encode()]

    async def status(client: str) -> int:
        return (await site.ask("POST", BEGIN, body, MEDIA, token=b"", client=client)).status

    assert [await status("10.0.0.7") for _ in range(PER_ADDRESS + 1)] == [*[200] * PER_ADDRESS, 429]
    assert await status("10.0.0.8") == 200, "others are served"
    refused(await tab.post(FINISH, verifier="", state=""), "not started in this tab")
    statuses = [await status(f"10.1.{number // 250}.{number % 250}") for number in range(PER_MINUTE + MOST_ADDRESSES)]
    assert statuses.count(200) == PER_MINUTE - PER_ADDRESS - 2
    assert len(page_login._by_address) <= MOST_ADDRESSES
    refused(await tab.post(RENEW), "too many log-ins", 429)
    page_login._now_ms = lambda: 1_700_000_060_000
    assert await status("10.0.0.7") == 200


@pytest.mark.parametrize("body", [b"", b"[]", b'{"address": 1}', b"{" * 9999, b"\xff", b"{}"])
async def test_a_body_of_another_form_is_refused(site: IssuedSite, body: bytes) -> None:
    answer = await site.ask("POST", BEGIN, [body], MEDIA, token=b"")
    refused(answer, "the body", 400)
    assert (await site.ask("POST", BEGIN, [b"x" * (MOST_BYTES + 1)], MEDIA, token=b"")).status == 413


async def test_without_an_issuer_there_is_no_log_in(tmp_path: Path) -> None:
    plain = Site(tmp_path)
    for path in (BEGIN, FINISH, RENEW, END):
        assert (await plain.ask("POST", path, [b"{}"], MEDIA, token=b"")).status == 401


async def test_no_other_path_is_reached_without_a_token(site: IssuedSite) -> None:
    for method, path in (("GET", BEGIN), ("POST", f"{BEGIN}/"), ("POST", "/v1/login"), ("POST", "/v1/v1/login/begin")):
        assert (await site.ask(method, path, [b"{}"], MEDIA, token=b"")).status == 401


async def test_an_issuer_that_hangs_keeps_no_thread_of_other_work() -> None:
    log_ins, keys, hangs, default = IssuerThreads(2), IssuerThreads(1), threading.Event(), set[threading.Thread]()
    began = [threading.Event() for _ in range(2)]

    def ask(event: threading.Event) -> str:
        default.add(threading.current_thread())
        event.set()
        hangs.wait()
        return "answered"

    waiting = [asyncio.create_task(log_ins.run(partial(ask, event))) for event in began]
    try:
        await asyncio.sleep(0)
        with pytest.raises(IssuerAnswerError, match="2 requests wait for the issuer's answer already"):
            await log_ins.run(lambda: "late")
        assert await keys.run(lambda: "keys") == "keys"
        for event in began:
            await asyncio.to_thread(event.wait)
        assert all(thread.name.startswith("issuer") for thread in default)
    finally:
        hangs.set()
    assert await asyncio.gather(*waiting) == ["answered"] * 2
    assert await log_ins.run(lambda: "again") == "again"


async def test_a_request_that_was_given_up_keeps_its_place_until_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(issuer, "FETCH_TIMEOUT_S", 0.01)
    threads, hangs = IssuerThreads(1), threading.Event()
    try:
        with pytest.raises(IssuerAnswerError, match=r"no answer within 0\.01 s"):
            await threads.run(hangs.wait)
        with pytest.raises(IssuerAnswerError, match="1 requests wait"):
            await threads.run(hangs.wait)
    finally:
        hangs.set()
