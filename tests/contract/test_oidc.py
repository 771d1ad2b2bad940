"""A real provider on loopback: keys by HTTP, and the command line that logs in there, renews and logs out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from actors.errors import AuthenticationError, RecipientUnreachable
from conf.configuration import Configuration
from conf.files import write_private
from runtime import issuer_client
from runtime.cluster import cli as command_line
from runtime.cluster import login_commands, logins
from runtime.cluster.discovery import connect_by_http, web_client
from runtime.cluster.logins import RETRY_MS, IssuerLine, LoginFile, StoredToken
from runtime.errors import ClusterError
from runtime.http_client import WebAddress, WebClient
from runtime.issuer_client import IssuerUnreachableError, ask, fetch, trusted
from runtime.rest.authorization import KnownIdentities
from runtime.rest.issuer import Issuer, device_offer_of
from runtime.rest.page_login import PageLogin
from runtime.rest.server import tls_context
from runtime.users.audit import AuditLog
from runtime.users.identities import Identities, TokenRefusedError
from runtime.users.login import Login
from runtime.users.oidc import IssuerAnswerError
from tests.contract.test_http_client import Served, served
from tests.fakes.certificates import CertificateAuthority
from tests.fakes.oidc_provider import Provider, SigningKey, running_provider
from tests.rest_client import RestClient
from tests.unit.test_rest_app import Site
from tests.waiting import PATIENCE_S

TLS = trusted(None)
KEY = SigningKey("first")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider(KEY) as found:
        yield found


def settings(provider: Provider, **others: str) -> dict[str, str]:
    return {
        "security.oidc.issuer": provider.issuer,
        "security.oidc.client-id": "understudy",
        "security.oidc.roles.user": "data-engineers",
        **{key.replace("_", "."): value for key, value in others.items()},
    }


def issuer_of(configured: dict[str, str]) -> Issuer:
    found = Issuer.of(Configuration.from_dict(configured))
    assert found is not None
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def soon() -> int:
    """Return a time at which a token of 30 s has to be renewed, and has not expired."""
    return now_ms() + 16_000


# ------------------------------------------------------------------------ keys


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_is_checked_with_keys_of_the_issuers_documents(provider: Provider, algorithm: str) -> None:
    provider.rotate(SigningKey("k", algorithm))
    issuer = issuer_of(settings(provider))
    assert (await issuer.identify(provider.token().encode(), now_ms())).shown == f"user ada of {provider.issuer}"
    assert provider.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_an_issuer_that_calls_itself_another_is_not_believed(provider: Provider) -> None:
    provider.document["issuer"] = "https://evil.example"
    with pytest.raises(IssuerAnswerError):
        await issuer_of(settings(provider)).identify(provider.token().encode(), now_ms())
    assert "/keys" not in provider.asked


async def test_keys_are_fetched_by_tls_from_an_issuer_of_a_known_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    tls = authority.issue("127.0.0.1")
    with running_provider(KEY, tls_context(tls.certificate, tls.key)) as provider:
        token = provider.token().encode()
        with pytest.raises(IssuerAnswerError):
            await issuer_of(settings(provider)).identify(token, now_ms())
        assert provider.asked == []
        known = settings(provider) | {"security.oidc.ca-file": str(tls.ca)}
        assert (await issuer_of(known).identify(token, now_ms())).name == "ada"
        with pytest.raises(IssuerAnswerError, match="is not trusted"):
            ask(provider.issuer, TLS)


async def test_the_event_loop_goes_on_while_the_issuer_hangs(provider: Provider) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> bool:
        begun.set()
        return not go_on.wait(PATIENCE_S)

    provider.override = hang
    asked = asyncio.ensure_future(issuer_of(settings(provider)).identify(provider.token().encode(), now_ms()))
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        assert not asked.done()
        go_on.set()
        assert (await asked).name == "ada"


def answering(provider: Provider, answer: bytes | Callable[[BaseHTTPRequestHandler], None]) -> None:
    def override(handler: BaseHTTPRequestHandler) -> bool:
        with contextlib.suppress(OSError):  # the client has left
            if isinstance(answer, bytes):
                handler.wfile.write(answer)
            else:
                answer(handler)
        handler.close_connection = True
        return True

    provider.override = override


def test_an_answer_without_end_is_cut(provider: Provider) -> None:
    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(10_000):
            handler.wfile.write(b" " * 4096)

    answering(provider, flood)
    with pytest.raises(IssuerAnswerError, match="more than 262144 bytes"):
        ask(provider.issuer, TLS)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_an_answer_that_trickles_is_cut(provider: Provider, head: bytes) -> None:
    """Each byte comes in time for the socket's own time-out."""
    ended = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(head)
        while not ended.wait(0.02):
            handler.wfile.write(b"x" if head.endswith(b"\r\n\r\n") or not head else b"a: b\r\n")

    answering(provider, trickle)
    try:
        with pytest.raises(IssuerUnreachableError):
            ask(provider.issuer, TLS, deadline_s=0.5)
    finally:
        ended.set()


def test_a_redirect_is_not_followed_and_a_part_is_no_answer(provider: Provider) -> None:
    answering(provider, f"HTTP/1.0 302 Found\r\nLocation: {provider.issuer}/keys\r\n\r\n".encode())
    with pytest.raises(IssuerAnswerError, match="a redirect"):
        ask(provider.issuer, TLS)
    answering(provider, b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}")
    with pytest.raises(IssuerUnreachableError):
        ask(provider.issuer, TLS)
    answering(provider, b"HTTP/1.0 200 OK\r\n\r\n[1]")
    assert fetch(provider.issuer, TLS) == {}
    assert provider.asked == []


def test_a_dead_issuer_is_told_in_one_line(provider: Provider) -> None:
    with pytest.raises(IssuerUnreachableError, match=r"127\.0\.0\.1:1 cannot be reached"):
        ask("http://127.0.0.1:1/x", TLS)
    with pytest.raises(IssuerAnswerError, match="neither https"):
        ask("http://10.0.0.7/x", TLS)
    with pytest.raises(IssuerUnreachableError, match="HTTP 404"):
        fetch(f"{provider.issuer}/nothing", TLS)
    with pytest.raises(IssuerAnswerError, match=r"security\.oidc\.ca-file"):
        trusted(Path("/nonexistent"))
    assert issuer_client.DEADLINE_S < 25


# ------------------------------------------------------------------------ the command line


class LoginSite(Site):
    """A web endpoint whose users a provider identifies."""

    def __init__(self, directory: Path, configured: dict[str, str]) -> None:
        configuration = Configuration.from_dict(configured)

        async def read() -> Identities:
            return Identities({})

        issuer = Issuer.of(configuration)
        identities = KnownIdentities(read, issuer=issuer)
        self.audit_file = directory / "audit.jsonl"
        super().__init__(
            directory,
            identities=identities,
            audit=AuditLog(self.audit_file),
            offer=device_offer_of(configuration),
            page_login=lambda policy: PageLogin.of(configuration, issuer, identities, policy),
        )


@dataclass
class Desk:
    """A user at a command line, with a provider and a cluster elsewhere."""

    provider: Provider
    cluster: Served
    site: LoginSite
    logins: Path
    sleeps: list[float]

    def run(self, *words: str, url: str | None = None) -> Result:
        environment = {"UNDERSTUDY_URL": url or self.cluster.url, "UNDERSTUDY_TOKEN": "", "XDG_CONFIG_HOME": ""}
        arguments = [*words, "-D", f"client.login-dir={self.logins}"]
        return CliRunner().invoke(command_line.cli, arguments, env=environment)

    @property
    def file(self) -> LoginFile:
        return LoginFile(self.logins, [WebAddress.parse(self.cluster.url)])

    def token(self, clock_ms: Callable[[], int] = now_ms) -> StoredToken:
        return StoredToken(self.file, IssuerLine(None, self.web), clock_ms)

    def web(self) -> WebClient:
        return web_client(Configuration.from_dict({}), self.cluster.url, is_public=True)

    def login(self) -> Login:
        found = self.file.read()
        assert found is not None
        return found


OpenDesk = Callable[[dict[str, str]], Desk]


@pytest.fixture
def open_desk(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenDesk]:
    """Opens a desk at a cluster with these settings."""
    sleeps: list[float] = []
    monkeypatch.setattr(login_commands, "time", SimpleNamespace(sleep=sleeps.append, monotonic=lambda: 0.0))
    with ExitStack() as stack:

        def opened(configured: dict[str, str]) -> Desk:
            site = LoginSite(tmp_path, configured)
            cluster = stack.enter_context(served(tmp_path, site=site))
            return Desk(provider, cluster, site, tmp_path / "config" / "logins", sleeps)

        yield opened


@pytest.fixture
def desk(open_desk: OpenDesk, provider: Provider) -> Desk:
    return open_desk(settings(provider))


@pytest.fixture
def secret_settings(tmp_path: Path, provider: Provider) -> dict[str, str]:
    """Settings of a cluster whose client has a secret."""
    provider.client_secret = "a secret: of+the cluster"
    file = tmp_path / "issuer-secret"
    write_private(file, provider.client_secret.encode())
    return settings(provider, **{"security.oidc.client-secret-file": str(file)})


def test_a_login_serves_all_commands_and_is_private(desk: Desk) -> None:
    done = desk.run("login")
    assert done.exit_code == 0, done.output
    assert f"open {desk.provider.issuer}/enter and enter the code WDJB-MJHT" in done.stderr
    assert "logged in at" in done.stdout
    login = desk.login()
    assert stat.S_IMODE(desk.file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.logins.stat().st_mode) == 0o700
    assert not any(secret in done.output for secret in (login.bearer, login.refresh_token))
    told = json.loads(desk.run("whoami", "--json").stdout)
    assert (told["user"], told["role"], told["issuer"]) == ("ada", "user", desk.provider.issuer)
    assert f"user ada of {desk.provider.issuer}, with the role user, until " in desk.run("whoami").stdout
    listed = desk.run("job", "list")
    assert listed.exit_code == 0, listed.output
    refused = desk.run("job", "cancel", "2" * 32)
    assert refused.exit_code != 0
    assert "has the role user" in refused.stderr
    desk.cluster.stop()  # a line is written after its answer
    lines = [json.loads(line) for line in desk.site.audit_file.read_text().splitlines()]
    assert {line["user"] for line in lines} == {"ada"}
    assert {line["token"].partition(":")[0] for line in lines} == {"oidc"}


def test_command_lines_log_in_by_a_second_client_where_the_clusters_has_a_secret(
    open_desk: OpenDesk, provider: Provider, secret_settings: dict[str, str]
) -> None:
    refused = open_desk(secret_settings).run("login")
    assert isinstance(refused.exception, ClusterError)
    assert "invalid_client" in str(refused.exception)
    assert "security.oidc.device-client-id" in refused.exception.remedy
    provider.device_client = "understudy-cli"
    desk = open_desk({**secret_settings, "security.oidc.device-client-id": "understudy-cli"})
    done = desk.run("login")
    assert done.exit_code == 0, done.output
    assert json.loads(desk.run("whoami", "--json").stdout)["user"] == "ada"
    login = desk.login()
    with desk.file.locked():
        desk.file.write(replace(login, expires_ms=0))
    assert desk.run("whoami").exit_code == 0
    assert desk.login().refresh_token != login.refresh_token, "renewed"
    page = RestClient(desk.cluster.url, "").log_in_on_the_page()
    assert page.status == 200, page.body
    (of_page,) = set(provider.refresh_tokens) - {desk.login().refresh_token}
    assert desk.run("logout").exit_code == 0
    assert provider.refresh_tokens == [of_page]
    assert {form.get("client_id") for form in provider.forms} == {"understudy-cli", None}, "None: in the header"


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_command_lines_log_in_through_the_cluster_where_the_device_flow_needs_a_secret(
    open_desk: OpenDesk, provider: Provider, secret_settings: dict[str, str], method: str
) -> None:
    provider.document["token_endpoint_auth_methods_supported"] = [method]
    file = secret_settings["security.oidc.client-secret-file"]
    desk = open_desk({**secret_settings, "security.oidc.device-client-secret-file": file})
    provider.answers = [(400, {"error": "authorization_pending"}), (400, {"error": "slow_down"})]
    done = desk.run("login")
    assert done.exit_code == 0, done.output
    assert f"open {provider.issuer}/enter and enter the code WDJB-MJHT" in done.stderr
    assert desk.sleeps == [0, 0, 5.0]
    assert json.loads(desk.run("whoami", "--json").stdout)["user"] == "ada"
    login = desk.login()
    assert (login.through_cluster, login.token_url, login.revocation_url) == (True, "", "")
    assert provider.client_secret not in desk.file.path.read_text() + done.output
    with desk.file.locked():
        desk.file.write(replace(login, expires_ms=0))
    assert desk.run("whoami").exit_code == 0
    assert desk.login().refresh_token != login.refresh_token, "renewed"
    assert desk.run("logout").exit_code == 0
    assert provider.refresh_tokens == []
    shown = {form.get("client_secret") for form in provider.forms}
    assert shown == {provider.client_secret if method == "client_secret_post" else None}


def test_a_login_is_renewed_by_the_endpoint_that_answers(
    open_desk: OpenDesk, provider: Provider, secret_settings: dict[str, str]
) -> None:
    file = secret_settings["security.oidc.client-secret-file"]
    desk = open_desk({**secret_settings, "security.oidc.device-client-secret-file": file})
    provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    former = desk.login()
    urls = f"http://127.0.0.1:1,{desk.cluster.url}"
    line = IssuerLine(None, lambda: web_client(Configuration.from_dict({}), urls, is_public=True))
    assert StoredToken(desk.file, line, soon)() != former.bearer


def test_login_and_whoami_ask_the_endpoint_that_answers(desk: Desk) -> None:
    urls = f"http://127.0.0.1:1,{desk.cluster.url}"
    done = desk.run("login", url=urls)
    assert done.exit_code == 0, done.output
    assert json.loads(desk.run("whoami", "--json", url=urls).stdout)["user"] == "ada"
    nowhere = desk.run("login", url="http://127.0.0.1:1,http://127.0.0.1:2")
    assert "http://127.0.0.1:2 cannot be reached" in nowhere.stderr


def test_a_login_through_the_cluster_serves_until_it_expires_while_that_is_away(
    open_desk: OpenDesk, provider: Provider, secret_settings: dict[str, str]
) -> None:
    file = secret_settings["security.oidc.client-secret-file"]
    desk = open_desk({**secret_settings, "security.oidc.device-client-secret-file": file})
    provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    login, now = desk.login(), [soon()]
    token = desk.token(lambda: now[0])
    desk.cluster.stop()
    assert token() == login.bearer
    now[0] = login.expires_ms
    with pytest.raises(RecipientUnreachable, match="has no answer of the issuer"):
        token()


def test_the_client_waits_as_the_issuer_says(desk: Desk) -> None:
    desk.provider.interval = 7
    pending, slow_down = (400, {"error": "authorization_pending"}), (400, {"error": "slow_down"})
    desk.provider.answers = [pending, slow_down, pending]
    assert desk.run("login").exit_code == 0
    assert desk.sleeps == [7, 7, 12, 12]


@pytest.mark.parametrize(
    ("error", "said"),
    [("access_denied", "was denied"), ("expired_token", "has expired"), ("x", "rejects it: x")],
)
def test_a_login_that_is_not_granted_stores_nothing(desk: Desk, error: str, said: str) -> None:
    desk.provider.answers = [(400, {"error": error})]
    done = desk.run("login")
    assert isinstance(done.exception, ClusterError)
    assert said in str(done.exception)
    assert not desk.file.path.exists()


def test_a_login_needs_the_issuer_of_the_cluster_and_that_issuer_only(desk: Desk, tmp_path: Path) -> None:
    done = desk.run("login", "--issuer", "https://id.example.org")
    assert isinstance(done.exception, ClusterError)
    assert f"the cluster's issuer is {desk.provider.issuer}" in str(done.exception)
    assert desk.provider.asked == []
    assert desk.run("login", "--issuer", desk.provider.issuer).exit_code == 0
    with served(tmp_path) as plain:
        done = desk.run("login", url=plain.url)
        assert isinstance(done.exception, ClusterError)
        assert "has no issuer at which to log in" in str(done.exception)
    desk.provider.document["device_authorization_endpoint"] = ""
    assert "has no device flow" in str(desk.run("login").exception)
    desk.provider.document["token_endpoint"] = "http://id.example.org/token"
    assert "has no private address token_endpoint" in str(desk.run("login").exception)


def test_a_token_goes_to_no_other_cluster(desk: Desk, tmp_path: Path) -> None:
    assert desk.run("login").exit_code == 0
    with served(tmp_path) as other:
        for url in (other.url, f"{desk.cluster.url},{other.url}"):
            done = desk.run("whoami", url=url)
            assert done.exit_code == 1
            assert "needs a valid token" in done.stderr
    copied = LoginFile(desk.logins, [WebAddress.parse("https://c:8081")])
    desk.file.path.rename(copied.path)
    assert copied.read() is None, "the file says which cluster it is for"


def test_a_login_that_others_may_read_is_refused(desk: Desk) -> None:
    assert desk.run("login").exit_code == 0
    desk.file.path.chmod(0o644)
    done = desk.run("whoami")
    assert done.exit_code == 1
    assert "others may read it" in done.stderr
    desk.file.path.chmod(0o600)
    desk.file.path.write_text('{"a damaged": "file"}')
    assert "`understudy login` replaces it" in desk.run("whoami").stderr
    assert desk.run("login").exit_code == 0


def test_a_token_is_renewed_before_it_expires_and_the_issuer_may_change_both(desk: Desk) -> None:
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    first = desk.login()
    token = desk.token(soon)
    bearer = token()
    assert bearer != first.bearer
    assert desk.login().refresh_token != first.refresh_token
    desk.provider.lifetime_s = 3600
    latest = token()
    assert len({first.bearer, bearer, latest, token()}) == 3
    assert desk.login().bearer == latest
    assert stat.S_IMODE(desk.file.path.stat().st_mode) == 0o600


def test_clients_at_once_renew_once(desk: Desk) -> None:
    """Else the second one would use a refresh token that the first has used up."""
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    desk.provider.lifetime_s = 3600
    expired_ms = desk.login().expires_ms
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: desk.token(lambda: expired_ms)(), range(16)))
    assert found == {desk.login().bearer}
    assert [form["grant_type"] for form in desk.provider.forms].count("refresh_token") == 1


def test_a_token_serves_until_it_expires_while_the_issuer_is_away(desk: Desk) -> None:
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    login, at = desk.login(), soon()
    desk.provider.away = True
    now = [at]
    token = desk.token(lambda: now[0])
    asked = len(desk.provider.asked)
    assert {token() for _ in range(5)} == {login.bearer}
    assert len(desk.provider.asked) == asked + 1, "it is asked again only later"
    now[0] = login.expires_ms
    with pytest.raises(RecipientUnreachable, match="cannot be renewed"):
        token()
    desk.provider.away = False
    assert token() != login.bearer
    assert RETRY_MS == 30_000


def test_a_login_does_not_end_because_the_issuer_has_too_many_requests(desk: Desk) -> None:
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    token = desk.token(lambda: now_ms() + 60_000)
    desk.provider.answers = [(429, {"error": "too_many_requests"})]
    with pytest.raises(RecipientUnreachable, match="answers with HTTP 429"):
        token()
    assert token() == desk.login().bearer


def test_a_login_that_the_issuer_has_ended_is_told(desk: Desk) -> None:
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    desk.provider.refresh_tokens.clear()
    with pytest.raises(AuthenticationError, match=r"invalid_grant.*`understudy login`"):
        desk.token(lambda: now_ms() + 60_000)()
    desk.file.write(replace(desk.login(), refresh_token=""))
    with pytest.raises(AuthenticationError, match=r"has expired; `understudy login`"):
        desk.token(lambda: now_ms() + 60_000)()


def test_a_logout_removes_and_revokes_the_login(desk: Desk) -> None:
    assert desk.run("login").exit_code == 0
    token = desk.token()
    assert token()
    done = desk.run("logout")
    assert (done.exit_code, "logged out at" in done.stdout) == (0, True)
    assert desk.provider.refresh_tokens == []
    assert not desk.file.path.exists()
    with pytest.raises(AuthenticationError, match="there is no login"):
        desk.token()()
    assert "there was no login" in desk.run("logout").stdout
    assert desk.run("login").exit_code == 0
    desk.provider.away = True
    done = desk.run("logout")
    assert done.exit_code == 0
    assert "has not revoked the login" in done.stderr
    assert not desk.file.path.exists()


def test_a_client_in_python_uses_the_login_and_renews_it(desk: Desk) -> None:
    assert desk.run("login").exit_code == 0
    configuration = Configuration.from_dict({"client.login-dir": str(desk.logins)})
    with connect_by_http(configuration, desk.cluster.url) as client:
        assert len(client.list_jobs()) == 2
        desk.file.write(replace(desk.login(), bearer="a.b.c", refresh_token=""))
        assert len(client.list_jobs()) == 2, "it has read the login"
    with connect_by_http(configuration, desk.cluster.url) as client, pytest.raises(AuthenticationError):
        client.list_jobs()


def renewals(provider: Provider) -> int:
    return [form["grant_type"] for form in provider.forms].count("refresh_token")


def test_a_short_token_serves_for_half_of_its_time(desk: Desk) -> None:
    """An issuer of tokens that last a minute is not asked for each request."""
    desk.provider.lifetime_s = 60
    assert desk.run("login").exit_code == 0
    login, now = desk.login(), [now_ms()]
    token = desk.token(lambda: now[0])
    assert {token() for _ in range(5)} == {login.bearer}
    assert renewals(desk.provider) == 0
    now[0] = login.expires_ms - 29_000
    assert token() != login.bearer
    assert renewals(desk.provider) == 1


def test_a_token_that_the_cluster_refuses_is_renewed_once(desk: Desk) -> None:
    """This machine's clock may be slow, or the issuer has withdrawn the key."""
    assert desk.run("login").exit_code == 0
    configuration = Configuration.from_dict({"client.login-dir": str(desk.logins)})
    desk.file.write(replace(desk.login(), bearer="a.b.c"))
    with connect_by_http(configuration, desk.cluster.url) as client:
        assert len(client.list_jobs()) == 2
        assert renewals(desk.provider) == 1
    desk.file.write(replace(desk.login(), bearer="a.b.c"))
    desk.provider.user["groups"] = []  # so the next token is refused too
    with connect_by_http(configuration, desk.cluster.url) as client:
        for _ in range(3):
            with pytest.raises(AuthenticationError, match="is not accepted; `understudy login` gets another"):
                client.list_jobs()
    assert renewals(desk.provider) == 2


def test_a_token_that_the_cluster_refuses_is_replaced_by_that_of_a_new_login(desk: Desk) -> None:
    assert desk.run("login").exit_code == 0
    token = desk.token()
    former = token()
    assert desk.run("login").exit_code == 0
    assert token() == former
    assert token(former) == desk.login().bearer != former
    assert renewals(desk.provider) == 0


def test_a_login_that_cannot_be_stored_is_not_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A refresh token may work once only, so the stored one is of no more use."""
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    now = [soon()]
    token = desk.token(lambda: now[0])

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(logins, "write_private", full)
        first = token()
        assert "cannot be stored" in caplog.text
        now[0] += 60_000
        desk.provider.lifetime_s = 3600
        second = token()
        assert len({first, second, desk.login().bearer}) == 3
    now[0] += 3_600_000
    assert token() == desk.login().bearer != second


def test_a_login_that_cannot_be_locked_serves_until_it_expires(desk: Desk) -> None:
    desk.provider.lifetime_s = 30
    assert desk.run("login").exit_code == 0
    login, now = desk.login(), [soon()]
    token = desk.token(lambda: now[0])
    lock = desk.file.path.with_suffix(".lock")
    lock.unlink()
    lock.symlink_to("elsewhere")
    assert token() == login.bearer
    now[0] = login.expires_ms
    with pytest.raises(ClusterError, match="cannot be stored"):
        token()


def test_an_access_token_is_used_where_the_cluster_has_an_audience(tmp_path: Path, provider: Provider) -> None:
    site = LoginSite(tmp_path, settings(provider) | {"security.oidc.audience": "understudy-api"})
    with served(tmp_path, site=site) as cluster:
        desk = Desk(provider, cluster, site, tmp_path / "logins", [])
        assert desk.run("login").exit_code == 0
        assert json.loads(desk.run("whoami", "--json").stdout)["user"] == "ada"
    assert len(list(desk.logins.glob("*.json"))) == 1


def test_no_cluster_is_named_in_one_line() -> None:
    done = CliRunner().invoke(command_line.cli, ["login"], env={"UNDERSTUDY_URL": ""})
    assert isinstance(done.exception, ClusterError)
    assert "no cluster is named" in str(done.exception)
    here = CliRunner().invoke(command_line.cli, ["whoami"], env={"UNDERSTUDY_URL": ""})
    assert here.stdout == "the holder of the cluster's secret, with the role admin\n"


async def test_a_refused_token_is_no_error_of_the_issuer(provider: Provider) -> None:
    issuer = issuer_of(settings(provider))
    with pytest.raises(TokenRefusedError):
        await issuer.identify(provider.token(aud="other").encode(), now_ms())
    assert provider.asked.count("/keys") == 1


# ------------------------------------------------------------------------ the web page


def test_a_client_with_a_secret_logs_in_by_http(tmp_path: Path, secret_settings: dict[str, str]) -> None:
    with served(tmp_path, site=LoginSite(tmp_path, secret_settings)) as cluster:
        done = RestClient(cluster.url, "").log_in_on_the_page()
    assert done.status == 200, done.body


def test_the_page_logs_in_by_http(desk: Desk) -> None:
    page = RestClient(desk.cluster.url, "")
    done = page.log_in_on_the_page()
    assert done.status == 200, done.body
    assert RestClient(desk.cluster.url, done.json["token"]).get("/v1/whoami")["user"] == "ada"
    assert [form["grant_type"] for form in desk.provider.forms] == ["authorization_code"]


def test_an_issuer_that_is_not_there_is_one_line_on_the_page(tmp_path: Path, provider: Provider) -> None:
    provider.document["token_endpoint"] = "http://127.0.0.1:1/token"
    with served(tmp_path, site=LoginSite(tmp_path, settings(provider))) as cluster:
        answer = RestClient(cluster.url, "").log_in_on_the_page()
    (line,) = answer.json["errors"]
    assert answer.status == 503
    assert line.startswith("the issuer cannot be used at present: 127.0.0.1:1 cannot be reached: ")
