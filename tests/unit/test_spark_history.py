"""The proxy before Spark's History Server: who is served, and what is passed on; and the History Server's settings."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from conf.configuration import Configuration
from runtime.cluster.history_commands import event_log_url, read_users
from runtime.errors import ClusterError
from runtime.ha.errors import HaError, HaUnreachableError
from runtime.ha.user_store import UserFile
from runtime.rest.spark_history import MAX_CONTENT, MAX_LOGINS, HistoryProxy, Logins
from runtime.rest.spark_history import Upstream as Server
from runtime.spark.driver.java import Java
from runtime.spark.driver.ui import LIFETIME_S, token
from runtime.spark.history_server import as_file, command, properties
from runtime.users.audit import REFUSALS_PER_MINUTE, AuditFilter, AuditLog, read_audit
from runtime.users.identities import CLUSTER, Identities, Role, User
from runtime.users.roles import OPERATE, SPARK_HISTORY, may
from tests.unit.test_rest_roles import NAMES, NOW_MS, Users, applied

TOKEN, CODE, PORT = b"t" * 64, "c" * 43, 18080
BEARER = {"authorization": f"Bearer {TOKEN.decode()}"}
COOKIE = f"understudy-history-{PORT}"
LIVE_PATHS = ("/live/app-1", "/live/app-1/jobs/", "/live/app-2/")


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Upstream(ThreadingHTTPServer):
    """A History Server that is made up: it says what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.api: dict[str, bytes] = {}
        """Answers of its own API by their paths without the query; any other path there is unknown."""


class _Answers(BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        heads = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, heads))
        if self.path.startswith("/api/v1/applications/"):
            self.answer_api(self.server.api.get(self.path.partition("?")[0]))
            return
        moved = self.path.startswith("/moved")
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", f"http://{heads['host']}{self.path.removeprefix('/moved')}/jobs/?a=%2F")
        self.send_header("Set-Cookie", "mine=1")
        self.send_header("X-Frame-Options", "SAMEORIGIN")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "200000")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"x" * 200_000)

    do_HEAD = do_GET  # noqa: N815

    def answer_api(self, content: bytes | None) -> None:
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Browser:
    """Sends requests to a proxy, with the connection's place granted or not."""

    proxy: HistoryProxy
    admitted: bool = True

    def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, query: str = "", body: bytes = b""
    ) -> Reply:
        reply = Reply()
        given = {"host": f"localhost:{PORT}", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "state": {"admit": lambda: self.admitted},
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                reply.body += message.get("body", b"")

        asyncio.run(self.proxy(scope, receive, send))
        return reply


@pytest.fixture
def browser(upstream: Upstream) -> Browser:
    numbers = iter(range(1000))
    port = upstream.server_address[1]
    return Browser(
        HistoryProxy(
            Logins(TOKEN, CODE),
            PORT,
            lambda: Server(port, "signed"),
            lambda: f"session-{next(numbers)}",
            live=lambda application: Server(port, "live", "/live/app-1") if application == "app-1" else None,
        )
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer " + "u" * 64},
        {"authorization": "Bearer "},
        {"authorization": "Bearer \xff\xfe"},
        {"authorization": f"Basic {TOKEN.decode()}"},
        {"cookie": f"{COOKIE}=session-0"},
        {"cookie": f"{COOKIE}="},
        {"cookie": f"understudy-history-1={TOKEN.decode()}"},
        {"cookie": "\xff=;;=\x7f"},
    ],
)
def test_without_a_login_nothing_is_passed_on(browser: Browser, upstream: Upstream, headers: dict[str, str]) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS"):
        for path in (
            "/",
            "/api/v1/applications",
            "/static/webui.js",
            "/history/app/jobs/",
            "//",
            "/login/",
            *LIVE_PATHS,
        ):
            reply = browser.send(method, path, headers)
            assert reply.status == 401, (method, path)
            assert TOKEN not in reply.body
    assert upstream.asked == []


def test_pages_of_other_sites_and_other_names_are_refused(browser: Browser, upstream: Upstream) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:9"},
        {"host": "evil.example"},
        {"host": f"evil.example:{PORT}"},
    ):
        for path in ("/", "/login"):
            assert browser.send("GET", path, {**BEARER, **headers}, f"code={CODE}").status == 403
    cross = {"sec-fetch-site": "cross-site"}
    assert browser.send("POST", "/login", cross, body=b"token=" + TOKEN).status == 403
    assert upstream.asked == []
    assert browser.send("GET", "/login", query=f"code={CODE}").status == 303, "the code was not used up"


def test_the_code_works_once(browser: Browser, upstream: Upstream) -> None:
    for query in ("", "code=", "code=d", f"code={CODE}d", "code=%ff"):
        assert browser.send("GET", "/login", query=query).status == 401
    reply = browser.send("GET", "/login", query=f"code={CODE}")
    assert (reply.status, reply.headers["location"]) == (303, "/")
    assert reply.headers["set-cookie"] == f"{COOKIE}=session-0; HttpOnly; Path=/; SameSite=strict"
    assert browser.send("GET", "/login", query=f"code={CODE}").status == 401
    assert browser.send("GET", "/history/app/", {"cookie": f"a=b; {COOKIE}=session-0"}).status == 200
    assert browser.send("GET", "/history/app/", {"cookie": f"{COOKIE}=session-1"}).status == 401


def test_the_token_logs_in(browser: Browser) -> None:
    for body in (b"", b"token=", b"token=%ff", b"token=" + TOKEN + b"t", b"x" * (MAX_CONTENT + 1)):
        assert browser.send("POST", "/login", body=body).status == 401
    long = {"content-length": str(MAX_CONTENT + 1)}
    assert browser.send("POST", "/login", long, body=b"token=" + TOKEN).status == 413
    reply = browser.send("POST", "/login", body=b"token=" + TOKEN)
    assert reply.status == 303
    assert browser.send("GET", "/", {"cookie": reply.headers["set-cookie"].partition(";")[0]}).status == 200
    assert browser.send("GET", "/", BEARER).status == 200
    without = Browser(HistoryProxy(Logins(None, CODE), PORT, lambda: Server(1, ""), lambda: "s"))
    assert without.send("GET", "/", BEARER).status == 401, "a cluster without a token has none to show"
    assert without.send("POST", "/login", body=b"token=").status == 401


def test_the_oldest_of_too_many_logins_ends() -> None:
    logins = Logins(TOKEN, CODE)
    for number in range(MAX_LOGINS + 1):
        logins.open(str(number))
    assert [logins.find(str(number)) for number in (0, 1, MAX_LOGINS)] == [None, CLUSTER, CLUSTER]


def test_requests_are_passed_on_without_what_is_the_proxys(browser: Browser, upstream: Upstream) -> None:
    given = {**BEARER, "cookie": "a=b", "x-forwarded-context": "/evil", "accept": "text/html", "if-none-match": "e"}
    reply = browser.send("GET", "/history/a%20b/", given, "id=1&x=%2F")
    assert (reply.status, reply.body) == (200, b"x" * 200_000)
    ((method, path, headers),) = upstream.asked
    assert (method, path) == ("GET", "/history/a%20b/?id=1&x=%2F")
    assert headers == {
        "host": f"localhost:{PORT}",
        "accept": "text/html",
        "if-none-match": "e",
        "authorization": "Bearer signed",
    }
    assert "set-cookie" not in reply.headers
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["content-type"] == "text/html"
    assert browser.send("GET", "/é/", BEARER, "id=é").status == 200
    assert upstream.asked[-1][1] == "/%C3%A9/?id=%C3%A9", "raw characters are quoted"
    moved = browser.send("GET", "/moved/history/app", BEARER)
    assert moved.headers["location"] == f"http://localhost:{PORT}/history/app/jobs/?a=%2F"
    head = browser.send("HEAD", "/", BEARER)
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "200000")


def test_the_ui_of_a_running_driver_is_below_its_application(browser: Browser, upstream: Upstream) -> None:
    reply = browser.send("GET", "/live/app-1/jobs/job/", {**BEARER, "x-forwarded-context": "/evil"}, "id=1")
    assert reply.status == 200
    ((method, path, headers),) = upstream.asked
    assert (method, path) == ("GET", "/jobs/job/?id=1")
    assert (headers["authorization"], headers["x-forwarded-context"]) == ("Bearer live", "/live/app-1")
    for moved in ("/live/app-1/moved", "/live/app-1/moved/live/app-1"):
        assert browser.send("GET", moved, BEARER).headers["location"] == "/live/app-1/jobs/?a=%2F"
    begun = browser.send("GET", "/live/app-1", BEARER)
    assert (begun.status, begun.headers["location"]) == (302, "/live/app-1/jobs/")


@pytest.mark.parametrize("path", ["/live/", "/live/app-2/jobs/", "/live/app-2", "/live/..%2f/", "/live/" + "a" * 300])
def test_an_application_without_a_ui_is_none_of_the_history_servers(
    browser: Browser, upstream: Upstream, path: str
) -> None:
    reply = browser.send("GET", path, BEARER)
    assert (reply.status, b"it has ended, or its UI is off (spark.ui.enabled)" in reply.body) == (404, True)
    assert upstream.asked == []


def test_an_attempt_on_a_running_driver_is_looked_up_in_its_ui(browser: Browser, upstream: Upstream) -> None:
    upstream.api = {
        "/api/v1/applications/app-1/jobs": b'[{"jobId": 3, "jobTags": ["t"], "stageIds": [4]}]',
        "/api/v1/applications/app-1/sql": b"[]",
        "/api/v1/applications/app-1/stages": b"[]",
    }
    reply = browser.send("GET", "/attempt", BEARER, "application=app-1&tag=t")
    assert (reply.status, b'href="/live/app-1/jobs/job/?id=3"' in reply.body) == (200, True)
    assert {heads["authorization"] for _, _, heads in upstream.asked} == {"Bearer live"}
    found = json.loads(browser.send("GET", "/attempt.json", BEARER, "application=app-1&tag=t").body)
    assert [row["path"] for row in found["jobs"]] == ["/live/app-1/jobs/job/?id=3"]


def test_a_driver_that_does_not_answer_is_named(browser: Browser) -> None:
    proxy = HistoryProxy(
        Logins(TOKEN, CODE), PORT, lambda: Server(1, ""), lambda: "s", live=lambda app: Server(1, "", f"/live/{app}")
    )
    reply = Browser(proxy).send("GET", "/live/app-1/jobs/", BEARER)
    assert (reply.status, b"the Spark driver does not answer" in reply.body) == (502, True)


def test_nothing_is_changed_through_it(browser: Browser, upstream: Upstream) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert browser.send(method, "/history/app/jobs/job/kill/", BEARER).status == 405
    assert upstream.asked == []


def test_a_connection_without_a_place_and_a_server_that_has_gone(browser: Browser) -> None:
    browser.admitted = False
    assert browser.send("GET", "/", BEARER).status == 503
    gone = Browser(HistoryProxy(Logins(TOKEN, CODE), PORT, lambda: Server(1, ""), lambda: "s"))
    reply = gone.send("GET", "/", BEARER)
    assert (reply.status, b"History Server does not answer" in reply.body) == (502, True)


def test_a_token_for_spark_is_signed_and_short_lived() -> None:
    key = bytes(range(32))
    head, claims, signature = token(key, 1000.9).split(".")

    def decoded(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    assert json.loads(decoded(head))["alg"] == "HS256"
    assert json.loads(decoded(claims))["exp"] == 1000 + LIFETIME_S
    assert decoded(signature) == hmac.new(key, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    assert "=" not in head + claims + signature


def test_a_user_cannot_take_the_filter_away() -> None:
    own = {
        "spark.ui.filters": "",
        "spark.history.ui.port": "1",
        "spark.org.apache.spark.ui.JWSFilter.param.secretKey": "known",
        "spark.history.retainedApplications": "3",
        "spark.history.fs.update.interval": "9s",
    }
    settings = properties(own, "file:///logs", b"k" * 32)
    assert settings["spark.ui.filters"] == "org.apache.spark.ui.JWSFilter"
    assert settings["spark.history.ui.port"] == "0"
    assert (
        settings["spark.org.apache.spark.ui.JWSFilter.param.secretKey"] == "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s"
    )
    assert settings["spark.history.retainedApplications"] == "3"
    assert settings["spark.history.fs.update.interval"] == "9s"
    assert settings["spark.history.fs.logDirectory"] == "file:///logs"


def test_a_value_adds_no_line_to_the_file() -> None:
    text = as_file({"spark.a": "x\nspark.ui.filters=", "spark.b c": "#=:\\ é\U0001f600"})
    assert text == (
        "spark.a=x\\u000aspark.ui.filters\\u003d\n"
        "spark.b\\u0020c=\\u0023\\u003d\\u003a\\u005c\\u0020\\u00e9\\ud83d\\ude00\n"
    )


def test_the_key_is_in_no_argument_and_in_a_private_file(tmp_path: Path) -> None:
    java, secret = Java("/opt/jdk", "21.0.8", "option"), "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s"
    line = command(java, [Path("/a.jar")], tmp_path, tmp_path / "log", properties({}, "file:///logs", b"k" * 32))
    assert line == ["/opt/jdk/bin/java", f"@{tmp_path / 'java.args'}"]
    assert secret not in (tmp_path / "java.args").read_text()
    holders = [path for path in tmp_path.iterdir() if path.is_file() and secret in path.read_text()]
    assert [path.name for path in holders] == ["history.properties"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600


def test_the_directory_of_the_logs(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not exist") as caught:
        event_log_url({}, tmp_path / "no cluster")
    assert "taskmanager.spark.event-log.enabled" in str(caught.value.remedy)
    assert "run a job first" in str(caught.value.remedy)
    (tmp_path / "a b" / "spark-events").mkdir(parents=True)
    assert event_log_url({}, tmp_path / "a b") == f"file://{tmp_path}/a%20b/spark-events"
    assert event_log_url({"spark.eventLog.dir": "hdfs://n/logs"}, tmp_path) == "hdfs://n/logs"
    given = {"spark.eventLog.dir": "hdfs://n/logs", "spark.history.fs.logDirectory": str(tmp_path)}
    assert event_log_url(given, tmp_path) == str(tmp_path)


# ---------------------------------------------------------------------- users


PAGES = ("/", "/history/app/jobs/", "/api/v1/applications", "/attempt?application=app&tag=t", "/attempt.json?tag=t")
AS_BROWSER = {"accept": "text/html"}


@pytest.fixture
def users() -> Users:
    return Users()


@pytest.fixture
def with_users(upstream: Upstream, users: Users) -> Browser:
    numbers = iter(range(1000))
    port = upstream.server_address[1]
    upstream.api = {"/api/v1/applications": b"[]", **{f"/api/v1/applications/app/{part}": b"[]" for part in PARTS}}
    return Browser(
        HistoryProxy(
            Logins(TOKEN, CODE),
            PORT,
            lambda: Server(port, "signed"),
            lambda: f"session-{next(numbers)}",
            users.known(),
        )
    )


PARTS = ("jobs", "sql", "stages")


def bearer(token: bytes) -> dict[str, str]:
    return {"authorization": f"Bearer {token.decode()}"}


def cookie_of(reply: Reply) -> dict[str, str]:
    return {"cookie": reply.headers["set-cookie"].partition(";")[0]}


def ask(browser: Browser, path: str, headers: dict[str, str], method: str = "GET") -> Reply:
    path, _, query = path.partition("?")
    return browser.send(method, path, headers, query)


def log_in(browser: Browser, token: bytes, target: str = "/") -> Reply:
    return browser.send("POST", "/login", body=b"next=" + target.encode() + b"&token=" + token)


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_a_users_token_sees_the_pages_if_the_table_says_so(
    with_users: Browser, upstream: Upstream, users: Users, role: Role
) -> None:
    allowed = role in (Role.OPERATOR, Role.ADMIN)  # spelled out beside the table, so that a slip in it is seen
    token = users.tokens[role]
    for path in PAGES[:3]:
        for method in ("GET", "HEAD"):
            reply = ask(with_users, path, bearer(token), method)
            assert reply.status == (200 if allowed else 403), (path, method)
    reply = log_in(with_users, token)
    assert reply.status == (303 if allowed else 403)
    if allowed:
        assert ask(with_users, "/history/app/jobs/", cookie_of(reply)).status == 200
        return
    assert "set-cookie" not in reply.headers
    assert upstream.asked == []
    refused = ask(with_users, "/history/app/jobs/", bearer(token))
    told = json.loads(refused.body)["errors"][0]
    assert told.startswith(
        f"user {NAMES[role]} has the role {role.value}; seeing Spark's own pages needs the role oper"
    )
    assert token not in refused.body


def test_tokens_that_identify_nobody_see_nothing(with_users: Browser, upstream: Upstream, users: Users) -> None:
    good = users.tokens[Role.ADMIN]
    identity, secret = good.rsplit(b"_", 1)
    shown = {
        "another secret": identity + b"_" + secret[::-1],
        "another id": b"understudy_" + b"0" * 16 + b"_" + secret,
        "another's secret": identity + b"_" + users.tokens[Role.VIEWER].rsplit(b"_", 1)[1],
        "cut": good[:-1],
        "longer": good + b"0",
        "upper case": good.upper(),
        "the id alone": identity,
        "none": b"",
    }
    for name, wrong in shown.items():
        for path in PAGES:
            for headers in ({}, AS_BROWSER):
                reply = ask(with_users, path, bearer(wrong) | headers)
                assert reply.status == 401, (name, path)
                assert secret not in reply.body
        assert log_in(with_users, wrong).status == 401, name
    assert ask(with_users, "/", {"cookie": f"{COOKIE}={good.decode()}"}).status == 401, "a token is not a session"
    assert ask(with_users, "/", {"cookie": f"{COOKIE}=session-0"}).status == 401, "no login has opened a session"
    for query in (f"token={good.decode()}", f"code={good.decode()}"):
        assert with_users.send("GET", "/login", query=query).status == 401, "no token in an address"
    assert upstream.asked == []


@pytest.mark.parametrize("loss", ["expired", "revoked", "removed", "demoted", "store down"])
def test_a_login_ends_with_its_token(with_users: Browser, upstream: Upstream, users: Users, loss: str) -> None:
    token = users.tokens[Role.OPERATOR]
    session = cookie_of(log_in(with_users, token))
    others = cookie_of(log_in(with_users, users.tokens[Role.ADMIN]))
    assert ask(with_users, "/history/app/", session).status == 200
    token_id, name = token.decode().split("_")[1], NAMES[Role.OPERATOR]
    known = Identities(users.entries)
    if loss == "expired":
        users.now_ms = NOW_MS + 500
    elif loss == "store down":
        users.failure = HaUnreachableError("Redis does not answer", "timeout")
    elif loss == "demoted":
        applied(users.entries, known.add_user(User(name, Role.VIEWER)))
    else:
        changes = known.revoke_token(token_id) if loss == "revoked" else known.remove_user(name)
        for change in changes:
            del users.entries[change.field]
    users.clock += 2.0  # what an endpoint knows is a second old at most
    asked = len(upstream.asked)
    for path in PAGES:
        assert ask(with_users, path, session).status == 401, path
    status = {"demoted": 403, "store down": 503}.get(loss, 401)
    assert ask(with_users, "/history/app/", bearer(token)).status == status
    assert log_in(with_users, token).status == status
    assert len(upstream.asked) == asked
    alone = loss in ("revoked", "removed", "demoted")
    assert ask(with_users, "/history/app/", others).status == (200 if alone else 401)


def test_the_clusters_token_and_the_link_work_beside_users_also_without_their_store(
    with_users: Browser, users: Users
) -> None:
    for failure in (None, HaUnreachableError("Redis does not answer", "timeout")):
        users.failure = failure
        users.clock += 2.0
        assert ask(with_users, "/", BEARER).status == 200
        assert ask(with_users, "/", cookie_of(log_in(with_users, TOKEN))).status == 200
    assert with_users.send("GET", "/login", query=f"code={CODE}").status == 303


def test_the_form_asks_for_the_token_that_this_cluster_takes(
    browser: Browser, with_users: Browser, users: Users
) -> None:
    asks = ask(with_users, "/", {})
    assert (asks.status, b"your token" in asks.body, b"rest-token" in asks.body) == (401, True, False)
    without = ask(browser, "/", {})
    assert (without.status, b"your token" in without.body, b"rest-token" in without.body) == (401, False, True)
    users.failure, users.clock = HaUnreachableError("Redis does not answer", "timeout"), 2.0
    unknown = ask(with_users, "/", {})
    assert (unknown.status, b"cannot be checked" in unknown.body) == (401, True)
    refused = log_in(with_users, users.tokens[Role.VIEWER])
    assert (refused.status, b"Redis does not answer" in refused.body) == (503, True)


@pytest.mark.parametrize(
    ("given", "leads_to"),
    [
        ("/attempt%3Fapplication=app%26tag=a%252Bb", "/attempt?application=app&tag=a%2Bb"),
        ("/history/app/jobs/", "/history/app/jobs/"),
        ("", "/"),
        ("//evil.example/", "/"),
        ("/%5Cevil.example/", "/"),
        ("%5C%5Cevil.example", "/"),
        ("http://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/%09/evil.example", "/"),
        ("/%0d%0aset-cookie:a=b", "/"),
        ("/%20", "/"),
        ("/" + "a" * 2500, "/"),
    ],
)
def test_a_login_leads_back_to_the_page_and_to_no_other_host(browser: Browser, given: str, leads_to: str) -> None:
    reply = log_in(browser, TOKEN, given)
    assert (reply.status, reply.headers["location"]) == (303, leads_to)


def test_a_browser_that_is_not_logged_in_gets_the_form_with_the_way_back(browser: Browser) -> None:
    reply = ask(browser, '/attempt?application=app&tag="><script>', AS_BROWSER)
    assert reply.status == 401
    assert b"<script" not in reply.body, "an address that no login leads to is not repeated"
    reply = ask(browser, "/attempt?application=app&tag=%22", AS_BROWSER)
    assert b'name="next" value="/attempt?application=app&amp;tag=%22"' in reply.body
    assert ask(browser, "/attempt?application=app&tag=t", {}).headers["content-type"] == "application/json"


def test_the_page_of_an_attempt_lists_what_sparks_own_api_tells(browser: Browser, upstream: Upstream) -> None:
    jobs = [{"jobId": 3, "name": "count", "status": "SUCCEEDED", "jobTags": ["t-1"], "stageIds": [5]}]
    executions = [{"id": 2, "description": "q", "status": "COMPLETED", "successJobIds": [3]}]
    upstream.api = {
        "/api/v1/applications/app/jobs": json.dumps(jobs).encode(),
        "/api/v1/applications/app/sql": json.dumps(executions).encode(),
        "/api/v1/applications/app/stages": b"[]",
    }
    reply = ask(browser, "/attempt?application=app&tag=t", BEARER)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'href="/history/app/jobs/job/?id=3"' in reply.body
    assert b'href="/history/app/SQL/execution/?id=2"' in reply.body
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    assert all(heads["authorization"] == "Bearer signed" for _, _, heads in upstream.asked)
    told = json.loads(ask(browser, "/attempt.json?application=app&tag=t", BEARER).body)
    assert [row["id"] for row in (*told["jobs"], *told["sql-executions"])] == [3, 2]
    assert ask(browser, "/attempt", BEARER, "POST").status == 405


def test_an_attempt_that_the_history_server_does_not_know(browser: Browser, upstream: Upstream) -> None:
    reply = ask(browser, "/attempt?application=gone&tag=t", BEARER)
    assert (reply.status, b"does not know the application" in reply.body) == (404, True)
    reply = ask(browser, "/attempt.json?application=gone&tag=t", BEARER)
    assert (reply.status, json.loads(reply.body)["errors"]) == (
        404,
        ["Spark's History Server does not know the application gone"],
    )
    asked = len(upstream.asked)
    for query in ("", "application=app", "tag=t", "application=&tag=t", "application=..%2Fx&tag=t"):
        assert browser.send("GET", "/attempt", BEARER, query).status == 400, query
    for name in ("..", "a/b", "a%2Fb", "a?b", "a b", "\u00e9", "a" * 201):
        assert browser.send("GET", "/attempt", BEARER, f"application={name}&tag=t").status == 400, name
    assert len(upstream.asked) == asked
    upstream.api = {"/api/v1/applications/app/jobs": b"{}", "/api/v1/applications/bad/jobs": b"<html>"}
    for name in ("app", "bad"):
        assert browser.send("GET", "/attempt", BEARER, f"application={name}&tag=t").status == 502, name


async def test_users_are_read_from_the_clusters_own_store(tmp_path: Path, users: Users) -> None:
    directory = tmp_path / "c"
    directory.mkdir()
    given = {"cluster.runtime-dir": str(directory)}
    with pytest.raises(HaError, match="does not run"):  # its users are in a Redis that it starts itself
        await read_users(Configuration.from_dict(given))
    without = Configuration.from_dict({**given, "high-availability.type": "none"})
    assert (await read_users(without)).users == []
    UserFile(directory / "users.json").write(users.entries)
    assert {user.name for user in (await read_users(without)).users} == set(NAMES.values())
    without.write(directory / "configuration.json")
    assert (await read_users(Configuration.from_dict(given))).users, "the running cluster's configuration counts"
    (directory / "configuration.json").write_text("{")
    with pytest.raises(HaError, match="cannot be read"):
        await read_users(Configuration.from_dict(given))
    (directory / "configuration.json").unlink()
    (directory / "users.json").write_text("{")
    with pytest.raises(HaError, match="not a file of users"):
        await read_users(without)


def test_the_rule_of_the_pages_is_that_of_all_users_logs() -> None:
    assert SPARK_HISTORY is OPERATE
    assert may(CLUSTER, SPARK_HISTORY)


def test_logins_and_refused_users_have_a_line_in_the_audit_log_and_reading_has_none(
    with_users: Browser, upstream: Upstream, users: Users, tmp_path: Path
) -> None:
    log, port = tmp_path / "audit.jsonl", upstream.server_address[1]
    sessions = iter(range(1000))
    browser = Browser(
        HistoryProxy(
            Logins(TOKEN, CODE),
            PORT,
            lambda: Server(port, "signed"),
            lambda: f"session-{next(sessions)}",
            users.known(),
            audit=AuditLog(log),
        )
    )
    operator, viewer = users.tokens[Role.OPERATOR], users.tokens[Role.VIEWER]
    logged_in = cookie_of(log_in(browser, operator))
    for headers in (logged_in, BEARER, bearer(operator), {}, bearer(b"t" * 64)):
        ask(browser, "/history/app/jobs/?secret=x", headers)  # reads, and requests without a valid token
    ask(browser, "/login", {})
    log_in(browser, viewer)
    log_in(browser, b"no token")
    ask(browser, "/history/app/jobs/?secret=x", bearer(viewer))
    ask(browser, "/history/app/jobs/", BEARER, "DELETE")
    for _ in range(2):
        ask(browser, f"/login?code={CODE}", {})
    content = log.read_bytes()
    for secret in (operator, viewer, TOKEN, CODE.encode(), b"session-", b"no token", b"secret"):
        assert secret not in content
    page = read_audit(log, AuditFilter(), 100)
    assert [(line.action, line.user, line.role, line.outcome, line.target) for line in reversed(page.entries)] == [
        ("history-server/login", NAMES[Role.OPERATOR], "operator", "done", ""),
        ("history-server/login", NAMES[Role.VIEWER], "viewer", "refused", ""),
        ("history-server/login", "", "", "refused", ""),
        ("history-server/get", NAMES[Role.VIEWER], "viewer", "refused", "/history/app/jobs/"),
        ("history-server/delete", "", "admin", "rejected", "/history/app/jobs/"),
        ("history-server/login", "", "admin", "done", ""),
        ("history-server/login", "", "", "refused", ""),
    ]
    assert all(line.reason for line in page.entries if line.outcome != "done")


def test_refused_logins_do_not_fill_the_audit_log(tmp_path: Path, users: Users) -> None:
    log = tmp_path / "audit.jsonl"
    browser = Browser(
        HistoryProxy(Logins(TOKEN, CODE), PORT, lambda: Server(1, ""), lambda: "s", users.known(), audit=AuditLog(log))
    )
    for _ in range(2 * REFUSALS_PER_MINUTE + 10):
        log_in(browser, b"no token")
    assert len(log.read_bytes().splitlines()) <= 2 * REFUSALS_PER_MINUTE
    log_in(browser, TOKEN)
    assert b'"done"' in log.read_bytes().splitlines()[-1]
