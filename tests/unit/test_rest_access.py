"""Who may ask the REST API, where it listens, and what it remembers."""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import integers

from conf.configuration import Configuration
from conf.values import is_loopback
from runtime.errors import PreflightError
from runtime.rest.access import AccessPolicy, ConnectionLimits, Refusal, Shown
from runtime.rest.errors import RestError
from runtime.rest.handlers.cluster import OpenLog, list_logs
from runtime.rest.listening import bind_address, check_exposure, exposure_warning, listen, ports
from runtime.rest.snapshots import MAX_SNAPSHOTS, Snapshots
from runtime.users.identities import CLUSTER

TOKEN = b"t" * 32
HOST = (b"host", b"localhost:8081")
BEARER = (b"authorization", b"Bearer " + TOKEN)


def status(method: str, path: str, *headers: tuple[bytes, bytes], token: bytes | None = TOKEN) -> int:
    verdict = AccessPolicy(token, ["spark.example.org", "[fe80::1]"], "http", 1000).check(method, path, headers)
    if isinstance(verdict, Refusal):
        return verdict.status
    assert verdict == CLUSTER
    return 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PATCH", "PUT", "DELETE", "TRACE"])
@pytest.mark.parametrize("path", ["/overview", "/v1/openapi.json", "/", "/jobs/x/yarn-cancel"])
def test_every_verb_and_path_needs_the_token(method: str, path: str) -> None:
    assert status(method, path, HOST) == 401
    assert status(method, path, HOST, BEARER) == 200


@pytest.mark.parametrize(
    "shown",
    [b"", b"Bearer", b"Bearer ", b"Bearer " + TOKEN[:-1], b"Bearer " + TOKEN + b"t", b"Basic " + TOKEN, TOKEN, b"\xff"],
)
def test_what_is_no_token_is_none(shown: bytes) -> None:
    assert status("GET", "/", HOST, (b"authorization", shown)) == 401


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr(hmac, "compare_digest", compared)
    assert status("GET", "/", HOST, BEARER) == 200
    compared.assert_called_once_with(TOKEN, TOKEN)


def test_a_users_token_is_looked_up_and_the_endpoints_own_is_not() -> None:
    policy = AccessPolicy(TOKEN, [], "http", 1000)
    text = b"understudy_" + b"a" * 16 + b"_" + b"b" * 64
    bearer = (b"authorization", b"Bearer " + text)
    assert policy.check("GET", "/", [HOST, bearer]) == Shown(text)
    assert policy.check("GET", "/", [HOST, BEARER]) == CLUSTER
    for headers in ([HOST, bearer, BEARER], [HOST, bearer, bearer], [HOST, (b"authorization", b"Basic " + text)]):
        refused = policy.check("GET", "/", headers)
        assert isinstance(refused, Refusal)
        assert refused.status == 401
    for name, value in ((b"origin", b"http://evil.org"), (b"content-length", b"9999")):
        assert isinstance(policy.check("POST", "/", [HOST, bearer, (name, value)]), Refusal)
    open_to_all = AccessPolicy(None, [], "http", 1000)
    assert open_to_all.check("GET", "/", [HOST, bearer]) == CLUSTER, "without authentication there are no identities"


def test_the_token_is_shown_once() -> None:
    assert status("GET", "/", HOST, BEARER, BEARER) == 401
    assert status("GET", "/", HOST, (b"authorization", b"bearer " + TOKEN)) == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"localhost", 200),
        (b"LOCALHOST:1", 200),
        (b"127.0.0.1:8081", 200),
        (b"[::1]:8081", 200),
        (b"[fe80::1]", 200),
        (b"spark.example.org:80", 200),
        (b"evil.example.org", 403),
        (b"localhost.evil.org", 403),
        (b"localhost@evil.org", 403),
        (b"localhost:80:90", 403),
        (b"localhost:8081.evil.org", 403),
        (b"localhost.:8081", 403),
        (b"me@localhost", 403),
        (b"localhost ", 403),
        (b"localhost/", 403),
        (b"::1", 403),
        (b"[::1", 403),
        (b"[::1].evil.org", 403),
        (b"[0:0:0:0:0:0:0:1]", 403),
        (b"0x7f.1", 403),
        (b"2130706433", 403),
        (b"", 403),
    ],
)
def test_it_is_asked_by_its_own_names(host: bytes, expected: int) -> None:
    assert status("GET", "/", (b"host", host), BEARER) == expected


def test_it_is_asked_by_one_name() -> None:
    assert status("GET", "/", BEARER) == 403
    assert status("GET", "/", HOST, HOST, BEARER) == 403


@pytest.mark.parametrize("origin", [b"http://localhost:8081", b"HTTP://LOCALHOST:8081"])
def test_pages_of_the_endpoint_itself_are_served(origin: bytes) -> None:
    for method in ("GET", "POST"):
        assert status(method, "/", HOST, BEARER, (b"origin", origin)) == 200


@pytest.mark.parametrize(
    "origin",
    [
        b"https://localhost:8081",
        b"http://localhost",
        b"http://evil.org",
        b"null",
        b"",
        # What begins, ends or goes on as the right one does, and is another site.
        b"http://localhost:8081.evil.org",
        b"http://localhost:80812",
        b"http://localhost:808",
        b"http://localhost:08081x",
        b"http://localhost:8081@evil.org",
        b"http://localhost:8081:8081",
        b"http://evil.org/http://localhost:8081",
        b"http://evil.org#http://localhost:8081",
        b"http://evil.localhost:8081",
        b"http://me@localhost:8081",
        b"http://localhost.:8081",
        b"http://localhost:8081/",
        b"http://127.0.0.1:8081",
        b"xhttp://localhost:8081",
        b"localhost:8081",
        b"//localhost:8081",
        b" http://localhost:8081",
        b"http://localhost:8081 http://evil.org",
        b"http://localhost:8081, http://evil.org",
    ],
)
def test_pages_of_other_sites_are_refused(origin: bytes) -> None:
    for method in ("GET", "POST"):
        assert status(method, "/", HOST, BEARER, (b"origin", origin)) == 403


def test_a_port_that_the_scheme_implies_is_the_same_port() -> None:
    for host, origin in (("localhost:80", "http://localhost"), ("localhost", "http://localhost:80")):
        assert status("GET", "/", (b"host", host.encode()), BEARER, (b"origin", origin.encode())) == 200
    policy = AccessPolicy(TOKEN, [], "https", 1000)
    for host, origin in (("localhost", "https://localhost:443"), ("[::1]:443", "https://[::1]")):
        assert policy.check("GET", "/", [(b"host", host.encode()), BEARER, (b"origin", origin.encode())]) == CLUSTER
    for host, origin in (("localhost", "https://localhost:80"), ("[::1]:443", "https://[::1]:80")):
        assert policy.check("GET", "/", [(b"host", host.encode()), BEARER, (b"origin", origin.encode())]) is not None


def test_a_page_has_one_origin() -> None:
    own = (b"origin", b"http://localhost:8081")
    assert status("GET", "/", HOST, BEARER, (b"origin", b"http://evil.org"), own) == 403
    assert status("GET", "/", HOST, BEARER, own, own) == 403


class ConnectionLimitsMachine(RuleBasedStateMachine):
    """Compare the limits with what they promise, whoever comes, shows the token and leaves in which order."""

    AUTHENTICATED, UNAUTHENTICATED = 3, 4

    def __init__(self) -> None:
        super().__init__()
        self.limits = ConnectionLimits[int](self.AUTHENTICATED, self.UNAUTHENTICATED)
        self.waiting: list[int] = []
        self.authenticated: set[int] = set()
        self.gone: list[int] = []
        self.count = 0

    @rule()
    def enter(self) -> None:
        self.count += 1
        full = len(self.waiting) == self.UNAUTHENTICATED
        self.waiting.append(self.count)
        expected = self.waiting.pop(0) if full else None
        assert self.limits.enter(self.count) == expected
        self.gone += [] if expected is None else [expected]

    @rule(number=integers(0, 10))
    def authenticate(self, number: int) -> None:
        known = [*self.waiting, *self.authenticated, *self.gone]
        if not known:
            return
        connection = known[number % len(known)]
        had_place = connection in self.authenticated
        may = connection in self.waiting and len(self.authenticated) < self.AUTHENTICATED
        assert self.limits.authenticate(connection) == (had_place or may)
        if may:
            self.waiting.remove(connection)
            self.authenticated.add(connection)

    @rule(number=integers(0, 10))
    def leave(self, number: int) -> None:
        known = [*self.waiting, *self.authenticated, *self.gone]
        if known:
            connection = known[number % len(known)]
            self.limits.leave(connection)
            self.authenticated.discard(connection)
            self.waiting = [other for other in self.waiting if other != connection]
            self.gone.append(connection)


TestConnectionLimits = ConnectionLimitsMachine.TestCase


def test_connections_with_the_token_are_bounded_too() -> None:
    limits = ConnectionLimits[int](authenticated=2, unauthenticated=5)
    for connection in range(3):
        assert limits.enter(connection) is None
    assert [limits.authenticate(connection) for connection in range(3)] == [True, True, False]
    assert limits.authenticate(0), "it has its place"
    limits.leave(0)
    assert limits.authenticate(2)


def test_without_a_token_a_link_changes_nothing() -> None:
    asked = (b"x-requested-by", b"me")
    for path in ("/jobs/x/yarn-cancel", "/v1/jobs/x/yarn-cancel/", "/jobs/x/yarn-stop"):
        assert status("GET", path, HOST, token=None) == 403
        assert status("GET", path, HOST, asked, token=None) == 200
        assert status("GET", path, HOST, asked, (b"sec-fetch-site", b"cross-site"), token=None) == 403
    assert status("GET", "/jobs/overview", HOST, token=None) == 200
    assert status("PATCH", "/jobs/x", HOST, token=None) == 200
    assert status("PATCH", "/jobs/x", HOST, (b"sec-fetch-site", b"cross-site"), token=None) == 403


@pytest.mark.parametrize(
    ("length", "expected"), [(b"1000", 200), (b"1001", 413), (b"9" * 400, 413), (b"-1", 413), (b"0x1", 413)]
)
def test_what_is_too_long_is_refused_before_it_is_read(length: bytes, expected: int) -> None:
    assert status("POST", "/scripts", HOST, BEARER, (b"content-length", length)) == expected


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"rest.address": "0.0.0.0"}, "security.ssl.rest"),  # refused, which is the point
        ({"rest.bind-address": "10.0.0.7", "rest.authentication.enabled": "false"}, "rest.authentication.enabled"),
        ({"rest.address": "spark.example.org"}, "security.ssl.rest"),
        ({"security.ssl.rest.enabled": "true"}, "security.ssl.rest.certificate"),
        (
            {
                "rest.address": "10.0.0.7",
                "rest.authentication.enabled": "false",
                "security.ssl.rest.enabled": "true",
                "security.ssl.rest.certificate": "/c",
                "security.ssl.rest.key": "/k",
            },
            "rest.authentication.enabled",
        ),
    ],
)
def test_it_does_not_listen_where_others_could_run_code(settings: dict[str, str], remedy: str) -> None:
    with pytest.raises(PreflightError) as caught:
        check_exposure(Configuration.from_dict(settings))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rest.authentication.enabled": "false"},
        {"rest.address": "spark.example.org", "rest.bind-address": "127.0.0.1"},
        {"rest.address": "10.0.0.7", "rest.allow-insecure": "true"},
        {
            "rest.address": "10.0.0.7",
            "security.ssl.rest.enabled": "true",
            "security.ssl.rest.certificate": "/c",
            "security.ssl.rest.key": "/k",
        },
    ],
)
def test_it_listens_where_it_is_safe_or_told_to(settings: dict[str, str]) -> None:
    check_exposure(Configuration.from_dict(settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ""),
        ({"rest.authentication.enabled": "false", "rest.enabled": "false"}, ""),
        ({"rest.authentication.enabled": "false"}, "every user of this machine may run code as "),
        (
            {"rest.authentication.enabled": "false", "rest.address": "10.0.0.7", "rest.allow-insecure": "true"},
            "everyone who reaches 10.0.0.7 may run code as ",
        ),
        ({"rest.address": "10.0.0.7", "rest.allow-insecure": "true"}, "everyone who reaches 10.0.0.7 may read the "),
    ],
)
def test_what_is_open_to_others_is_said_in_one_line(settings: dict[str, str], said: str) -> None:
    warning = exposure_warning(Configuration.from_dict(settings))
    assert warning.startswith("WARNING: ") == bool(said)
    assert said in warning
    assert "\n" not in warning


def test_loopback_is_what_nobody_else_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org")))


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with listen("127.0.0.1", [0], "rest.port") as first:
        taken = first.getsockname()[1]
        with listen("127.0.0.1", [taken, 0], "rest.bind-port") as second:
            assert second.getsockname()[1] not in (0, taken)
        with pytest.raises(PreflightError) as caught:
            listen("127.0.0.1", [taken], "rest.port")
        with pytest.raises(PreflightError, match=rf": the ports {taken}-{taken} of 127.0.0.1 are taken$"):
            listen("127.0.0.1", [taken, taken], "rest.bind-port")
    assert str(caught.value).endswith(f": port {taken} of 127.0.0.1 is taken"), "the name of its holder may follow"
    assert "-D rest.port=PORT" in caught.value.remedy


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([81], ": only root may listen on port 81 of 127.0.0.1"),
        ([81, 82], ": the ports 81-82 of 127.0.0.1 are taken, or only root's"),
    ],
)
def test_a_port_that_only_root_may_use_is_not_called_taken(
    monkeypatch: pytest.MonkeyPatch, wanted: list[int], said: str
) -> None:
    class Denied(socket.socket):
        def bind(self, _: object, /) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Denied)
    with pytest.raises(PreflightError) as caught:
        listen("127.0.0.1", wanted, "rest.port")
    assert str(caught.value).endswith(said)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PreflightError, match="cannot listen on"):
        listen("192.0.2.1", [0], "rest.port")


def test_ports_and_addresses_come_from_the_configuration() -> None:
    assert list(ports(Configuration.from_dict({}))) == [8081]
    assert list(ports(Configuration.from_dict({"rest.bind-port": "9000-9002", "rest.port": 1}))) == [9000, 9001, 9002]
    assert list(ports(Configuration.from_dict({"rest.bind-port": "9000"}))) == [9000]
    for text in ("9001-9000", "1-70000"):
        with pytest.raises(PreflightError):
            ports(Configuration.from_dict({"rest.bind-port": text}))
    assert bind_address(Configuration.from_dict({"rest.address": "a", "rest.bind-address": "b"})) == "b"
    assert bind_address(Configuration.from_dict({"rest.address": "a"})) == "a"


def test_only_listed_plain_files_are_logs(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log" / "master.log").write_bytes(b"x" * 300000)
    (tmp_path / "log" / "taskmanager-0.log").write_text("worker")
    (tmp_path / "log" / "link.log").symlink_to(tmp_path / "secret")
    (tmp_path / "log" / "inner").mkdir()
    assert [(log.name, log.size) for log in list_logs(tmp_path / "log")] == [("master.log", 300000)]
    for name in ("../secret", "link.log", "taskmanager-0.log", "inner", "", ".", str(tmp_path / "secret"), "x\0y"):
        with pytest.raises(RestError) as caught:
            OpenLog(tmp_path / "log", name)
        assert caught.value.status == 404
    log = OpenLog(tmp_path / "log", "master.log")
    with (tmp_path / "log" / "master.log").open("ab") as file:
        file.write(b"written later")
    pieces = list(iter(log.read, b""))
    log.close()
    assert len(pieces) > 1
    assert b"".join(pieces) == b"x" * 300000


def test_a_link_that_takes_a_logs_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "master.log").write_text("x")
    listed = list_logs(tmp_path / "log")
    (tmp_path / "log" / "master.log").unlink()
    (tmp_path / "log" / "master.log").symlink_to(tmp_path / "secret")
    monkeypatch.setattr("runtime.rest.handlers.cluster.list_logs", lambda _: listed)
    with pytest.raises(RestError, match="cannot be read"):
        OpenLog(tmp_path / "log", "master.log")


class Cluster:
    """Counts its questions; the answers come when they are released."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    async def ask(self) -> Any:
        self.asked += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def await_questions(self, count: int) -> None:
        """Let the loop go on until so many were asked."""
        while self.asked < count:  # noqa: ASYNC110  # a test's own loop
            await asyncio.sleep(0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_all_who_ask_at_once_share_one_question() -> None:
    clock, cluster = Clock(), Cluster()
    snapshots = Snapshots(1.0, clock)
    asking = [asyncio.create_task(snapshots.get("jobs", cluster.ask)) for _ in range(5)]
    await cluster.await_questions(1)
    asking[0].cancel()  # who goes away takes the answer from nobody else
    cluster.answers.put_nowait("first")
    assert await asyncio.gather(*asking[1:]) == ["first"] * 4
    clock.now = 0.99
    assert await snapshots.get("jobs", cluster.ask) == snapshots.find("jobs") == "first"
    clock.now = 1.0
    assert snapshots.find("jobs") is None
    cluster.answers.put_nowait("second")
    assert await snapshots.get("jobs", cluster.ask) == "second"
    assert cluster.asked == 2


async def test_an_answer_is_as_old_as_its_question() -> None:
    clock, cluster = Clock(), Cluster()
    snapshots = Snapshots(1.0, clock)
    asking = asyncio.create_task(snapshots.get("jobs", cluster.ask))
    await cluster.await_questions(1)
    clock.now = 5.0
    cluster.answers.put_nowait("old")
    assert await asking == "old"
    assert snapshots.find("jobs") is None


async def test_after_a_change_nothing_older_is_told() -> None:
    clock, cluster = Clock(), Cluster()
    snapshots = Snapshots(10.0, clock)
    before = asyncio.create_task(snapshots.get("jobs", cluster.ask))
    await cluster.await_questions(1)
    snapshots.forget()
    after = asyncio.create_task(snapshots.get("jobs", cluster.ask))
    await cluster.await_questions(2)
    cluster.answers.put_nowait("before")
    assert await before == "before"
    assert snapshots.find("jobs") is None
    cluster.answers.put_nowait("after")
    assert await after == "after"
    assert snapshots.find("jobs") == "after"


async def test_an_error_is_told_to_those_who_asked_and_not_kept() -> None:
    cluster = Cluster()
    snapshots = Snapshots(10.0, Clock())
    cluster.answers.put_nowait(RestError(503, "no"))
    with pytest.raises(RestError):
        await snapshots.get("jobs", cluster.ask)
    cluster.answers.put_nowait("well")
    assert await snapshots.get("jobs", cluster.ask) == "well"


async def test_old_snapshots_make_room() -> None:
    cluster = Cluster()
    snapshots = Snapshots(10.0, Clock())
    for number in range(MAX_SNAPSHOTS + 1):
        cluster.answers.put_nowait(f"{number}")
        await snapshots.get(number, cluster.ask)
    assert snapshots.find(0) is None
    assert snapshots.find(1) == "1"


def test_the_port_is_free_again_when_its_process_was_killed() -> None:
    """A connection that lingers (TIME_WAIT) does not keep the successor from the port."""
    with listen("127.0.0.1", [0], "rest.port") as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            served, _ = first.accept()
            served.close()  # the server closes first, so the lingering end is its own
            assert client.recv(1) == b""
    with listen("127.0.0.1", [port], "rest.port") as second:
        assert second.getsockname()[1] == port
