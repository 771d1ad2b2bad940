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

from runtime.cluster.history_commands import event_log_url
from runtime.errors import ClusterError
from runtime.rest.spark_history import MAX_CONTENT, MAX_LOGINS, HistoryProxy, Logins
from runtime.spark.driver.java import Java
from runtime.spark.history_server import LIFETIME_S, as_file, command, properties, token

TOKEN, CODE, PORT = b"t" * 64, "c" * 43, 18080
BEARER = {"authorization": f"Bearer {TOKEN.decode()}"}
COOKIE = f"understudy-history-{PORT}"


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


class _Answers(BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        heads = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, heads))
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", f"http://{heads['host']}/history/app/jobs/")
        self.send_header("Set-Cookie", "mine=1")
        self.send_header("X-Frame-Options", "SAMEORIGIN")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "200000")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"x" * 200_000)

    do_HEAD = do_GET  # noqa: N815

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
        HistoryProxy(Logins(TOKEN, CODE), PORT, lambda: (port, "signed"), lambda: f"session-{next(numbers)}")
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
        for path in ("/", "/api/v1/applications", "/static/webui.js", "/history/app/jobs/", "//", "/login/"):
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
    without = Browser(HistoryProxy(Logins(None, CODE), PORT, lambda: (1, ""), lambda: "s"))
    assert without.send("GET", "/", BEARER).status == 401, "a cluster without a token has none to show"
    assert without.send("POST", "/login", body=b"token=").status == 401


def test_the_oldest_of_too_many_logins_ends() -> None:
    logins = Logins(TOKEN, CODE)
    for number in range(MAX_LOGINS + 1):
        logins.open(str(number))
    assert [logins.is_open(str(number)) for number in (0, 1, MAX_LOGINS)] == [False, True, True]


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
    moved = browser.send("GET", "/moved", BEARER)
    assert moved.headers["location"] == f"http://localhost:{PORT}/history/app/jobs/"
    head = browser.send("HEAD", "/", BEARER)
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "200000")


def test_nothing_is_changed_through_it(browser: Browser, upstream: Upstream) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert browser.send(method, "/history/app/jobs/job/kill/", BEARER).status == 405
    assert upstream.asked == []


def test_a_connection_without_a_place_and_a_server_that_has_gone(browser: Browser) -> None:
    browser.admitted = False
    assert browser.send("GET", "/", BEARER).status == 503
    gone = Browser(HistoryProxy(Logins(TOKEN, CODE), PORT, lambda: (1, ""), lambda: "s"))
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
    (tmp_path / "a b" / "spark-events").mkdir(parents=True)
    assert event_log_url({}, tmp_path / "a b") == f"file://{tmp_path}/a%20b/spark-events"
    assert event_log_url({"spark.eventLog.dir": "hdfs://n/logs"}, tmp_path) == "hdfs://n/logs"
    given = {"spark.eventLog.dir": "hdfs://n/logs", "spark.history.fs.logDirectory": str(tmp_path)}
    assert event_log_url(given, tmp_path) == str(tmp_path)
