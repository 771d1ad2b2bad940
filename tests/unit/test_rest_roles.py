"""Every route and every call by every role, against the table: what is denied reaches nothing, what is allowed does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
import pytest

from actors.rpc.codec import to_plain
from blob.key import PermanentBlobKey
from conf.configuration import Configuration
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.savepoint import write_savepoint
from runtime.ha.errors import HaUnreachableError
from runtime.ids import JobID
from runtime.job_logs import logs_owner
from runtime.jobgraph.job_graph import SavepointRestoreSettings
from runtime.jobgraph.json_form import to_json
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.http_gateways import HTTP_GATEWAYS, MSGPACK, OCTETS
from runtime.rest import app, auditing
from runtime.rest.authorization import KnownIdentities
from runtime.rest.handlers import ROUTES as SERVED
from runtime.rest.handlers import events
from runtime.rest.routing import RestRoute
from runtime.users import roles
from runtime.users.audit import AuditLog
from runtime.users.identities import CLUSTER, RANDOM_SIZE, Change, Identities, Principal, Role, User, make_token
from runtime.users.roles import CALLS, HANDED_OUT, OWN, ROUTES, Rule
from tests.stored_formats import example
from tests.unit.test_rest_app import BLOB, TOKEN, Answer, MadeUpCluster, Site, filled
from tests.unit.test_rest_gateways import graph_of
from tests.unit.test_rest_messages import ID, REGISTRATION
from tests.waiting import PATIENCE_S

OTHERS = JobID("2" * 32)
NEW = JobID("3" * 32)
OWN_ARCHIVED = JobID("4" * 32)
NOW_MS = 1000
NAMES = {role: f"a-{role.value}" for role in Role}
RANK = ("metrics", "viewer", "user", "operator", "admin")


def applied(entries: dict[str, str], changes: list[Change]) -> None:
    for change in changes:
        assert change.after is not None
        entries[change.field] = change.after


class Users:
    """A store of users, one for each role, each with a token."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.tokens: dict[Role, bytes] = {}
        self.reads = 0
        self.failure: Exception | None = None
        self.now_ms = NOW_MS
        self.clock = 0.0
        for number, role in enumerate(Role):
            applied(self.entries, Identities(self.entries).add_user(User(NAMES[role], role)))
            text, token = make_token(NAMES[role], "laptop", NOW_MS, 500, bytes([number]) * RANDOM_SIZE)
            applied(self.entries, Identities(self.entries).add_token(token))
            self.tokens[role] = text.encode()

    async def read(self) -> Identities:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return Identities(self.entries)

    def known(self) -> KnownIdentities:
        return KnownIdentities(self.read, lambda: self.clock, lambda: self.now_ms)


class OwnedSite(Site):
    """A site where the running job is *owner*'s, and the finished one another's."""

    def __init__(self, directory: Path, owner: str = "", *, audit: bool = False) -> None:
        (directory / "master.log").write_text("a line\n")
        (directory / "master.out").write_text("")
        self.users = Users()
        self.audit_file = directory / "audit.jsonl"
        log = AuditLog(self.audit_file) if audit else None
        super().__init__(directory, identities=self.users.known(), audit=log)
        self._owner = owner
        self.begin()

    def begin(self) -> None:
        """Forget all that was done to the cluster."""
        MadeUpCluster.__init__(self.cluster)
        self.cluster.running = replace(self.cluster.running, owner=self._owner)
        self.cluster.finished = replace(self.cluster.finished, owner="somebody")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The audit log."""
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]

    @property
    def untouched(self) -> bool:
        """Whether nothing but the list of jobs was asked for."""
        cluster = self.cluster
        return not (
            cluster.called
            or cluster.cancelled
            or cluster.submitted
            or cluster.uploads
            or cluster.uploads_ended
            or cluster.triggered
            or cluster.rolled_back
            or cluster.stopped
            or set(cluster.blobs.kept) != {BLOB}
            or cluster.levels != {"root": "INFO"}
        )


def allows(rule: Rule, role: Role, *, owns: bool) -> bool:
    """The decision again, by the ranks of names alone."""
    rank = RANK.index(role.value)
    return rank >= RANK.index(rule.lowest.value) or (
        owns and rule.own is not None and rank >= RANK.index(rule.own.value)
    )


def form(*parts: tuple[str, str, bytes]) -> tuple[list[bytes], tuple[bytes, bytes]]:
    body = b""
    for name, file_name, content in parts:
        kind = f'; filename="{file_name}"' if file_name else ""
        head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return [body + b"--xyz--\r\n"], (b"content-type", b"multipart/form-data; boundary=xyz")


async def ask(site: OwnedSite, route: RestRoute, role: Role, job_id: JobID = ID) -> Answer:
    """A request of a route that is right but for the role."""
    bodies = {
        "/savepoint-disposal": b'{"savepoint-path": "/data/savepoint-1"}',
        "/jobs/{jobid}/rollback": b'{"target": "chk-3"}',
        "/gateways/{gateway}/{method}": msgpack.packb([]),
    }
    queries = {"/log-levels": "?level=DEBUG", "/blobs": f"?job={NEW}", "/blobs/{key}": f"?job={job_id}"}
    body, kind = [bodies.get(route.path, b"")], (b"content-type", route.body.encode())
    if route.path == "/scripts":
        body, kind = form(("script", "a.py", b"print()"))
    elif route.path == "/graphs":
        graph = replace(example_graph(), owner="somebody")
        body, kind = form(("graph", "g.json", to_json(graph).encode()), ("main", "a.py", b"def f(): pass"))
    query = "" if route.method == "GET" and route.path != "/blobs/{key}" else queries.get(route.path, "")
    target = filled(route.path).replace(ID, job_id) + query
    return await site.ask(route.method, target, body, kind, token=site.users.tokens[role])


def example_graph() -> Any:
    from runtime.jobgraph.codec import decode_job_graph

    return decode_job_graph(graph_of().data)


ALL = [*SERVED, *(route for route in app.ROUTES if route not in SERVED)]


def of_a_job(route: RestRoute) -> bool:
    return "{jobid}" in route.path or "{applicationid}" in route.path


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
@pytest.mark.parametrize("owns", [True, False], ids=["own", "others"])
async def test_each_route_allows_each_role_what_the_table_says(tmp_path: Path, role: Role, owns: bool) -> None:
    site = OwnedSite(tmp_path, NAMES[role] if owns else "somebody")
    for route in ALL:
        site.begin()
        name = f"{route.method} {route.path}"
        rule = HANDED_OUT if name == "GET /blobs/{key}" else ROUTES[name]
        answer = await ask(site, route, role)
        if allows(rule, role, owns=owns and of_a_job(route)):
            assert answer.status not in (401, 403), (name, answer.body)
            assert answer.status < 500 or answer.status == route.status, (name, answer.body)
            continue
        assert answer.status == 403, name
        assert list(answer.json) == ["errors"]
        assert answer.error.startswith(f"user {NAMES[role]} has the role {role.value}; ")
        assert f"the role {rule.lowest.value}" in answer.error
        assert f"understudy user add {NAMES[role]} --role" in answer.error
        assert site.untouched, name


def arguments_of(site: OwnedSite, name: str, method: str, role: Role, job_id: JobID, owns: bool) -> list[Any]:
    """Arguments of the right types, of which the first names the user's own object or another's."""
    owner = role if owns else next(other for other in Role if other is not role)
    if method == "list_tokens":
        return [NAMES[owner]]
    if method == "revoke_token":
        return [site.users.tokens[owner].decode().split("_")[1]]
    declared = getattr(HTTP_GATEWAYS[name].gateway_type, method)
    hints = get_type_hints(declared)
    values = []
    for parameter, hint in hints.items():
        if parameter == "return":
            continue
        if hint is JobID:
            values.append(NEW if method in ("admit_upload", "end_upload") else job_id)
        else:
            values.append(graph_of() if method == "submit_job" else example(hint))
    return [to_plain(value) for value in values]


async def call(site: OwnedSite, action: str, role: Role, job_id: JobID = ID, *, owns: bool = True) -> Answer:
    name, method = action.split("/")
    address = {
        "taskexecutor": f"?address={REGISTRATION.address}",
        "diagnostics": "?address=akka.tcp://u@h:1/system/diagnostics",
    }.get(name, "")
    body = msgpack.packb(arguments_of(site, name, method, role, job_id, owns))
    kind = (b"content-type", MSGPACK.encode())
    return await site.ask("POST", f"/gateways/{action}{address}", [body], kind, token=site.users.tokens[role])


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
@pytest.mark.parametrize("owns", [True, False], ids=["own", "others"])
async def test_each_call_allows_each_role_what_the_table_says(tmp_path: Path, role: Role, owns: bool) -> None:
    site = OwnedSite(tmp_path, NAMES[role] if owns else "somebody")
    for action, rule in CALLS.items():
        site.begin()
        name, method = action.split("/")
        hints = get_type_hints(getattr(HTTP_GATEWAYS[name].gateway_type, method))
        site.cluster.answers[method] = answer_of(hints["return"])
        is_owned = next(iter(hints.values())) is JobID or method in ("list_tokens", "revoke_token")
        answer = await call(site, action, role, owns=owns)
        if allows(rule, role, owns=owns and is_owned):
            assert answer.status not in (401, 403), (action, answer.body)
            continue
        assert answer.status == 403, (action, answer.body)
        may_call = allows(ROUTES["POST /gateways/{gateway}/{method}"], role, owns=False)
        what = f"the call {action}" if may_call else "this request (Call a method"
        assert answer.error.startswith(f"user {NAMES[role]} has the role {role.value}; {what}")
        assert site.untouched, action


def answer_of(hint: Any) -> Any:
    (inner,) = hint.__args__
    return None if inner is type(None) else example(inner)


async def test_a_job_graph_is_not_read_for_a_role_that_submits_none(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path, audit=True)

    def body() -> Iterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    kind, path = (b"content-type", MSGPACK.encode()), "/gateways/dispatcher/submit_job"
    answer = await site.ask("POST", path, body(), kind, token=site.users.tokens[Role.VIEWER])
    assert (answer.status, "needs the role user" in answer.error) == (403, True)
    assert [(line["action"], line["outcome"]) for line in site.lines] == [("dispatcher/submit_job", "refused")]


def test_each_case_is_among_those_that_are_tried() -> None:
    assert {f"{route.method} {route.path}" for route in ALL} | {"GET /openapi.json"} | {
        f"GET {route.path}" for route in events.ROUTES
    } == set(ROUTES)
    assert len(ALL) > 100


@pytest.mark.parametrize("path", ["/openapi.json", "/overview", "/v1/jobs/overview"])
async def test_a_viewer_reads_what_has_no_handler_of_its_own(tmp_path: Path, path: str) -> None:
    site = OwnedSite(tmp_path)
    assert (await site.ask("GET", path, token=site.users.tokens[Role.VIEWER])).status == 200
    assert (await site.ask("HEAD", path, token=site.users.tokens[Role.VIEWER])).status == 200


async def test_a_token_for_metrics_reads_metrics_and_nothing_else(tmp_path: Path) -> None:
    """Whatever it asks for: each route and call, other spellings of paths and methods, and what is its own."""
    site = OwnedSite(tmp_path, NAMES[Role.METRICS])
    token = site.users.tokens[Role.METRICS]
    for path in ("/metrics/prometheus", "/v1/metrics/prometheus"):
        answer = await site.ask("GET", path, token=token)
        assert (answer.status, b"flink_jobmanager_" in answer.body) == (200, True)
        assert (await site.ask("HEAD", path, token=token)).status == 200
    paths = {filled(route.path) for route in (*ALL, *events.ROUTES)} | {"/openapi.json"}
    paths -= {"/metrics/prometheus"}
    for path in sorted(paths):
        for method in ("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"):
            for prefix in ("", "/v1"):
                assert (await site.ask(method, prefix + path, token=token)).status in (403, 405), (method, path)
    for method in ("POST", "PATCH", "DELETE", "PUT"):
        assert (await site.ask(method, "/metrics/prometheus", token=token)).status == 405
    tricks = ("/metrics/prometheus/../../jobs", "/metrics/prometheus/", "//jobs", "/v1/v1/jobs", "/jobs/overview/")
    tricks += ("/jobs/overview?x=/metrics/prometheus", "/JOBS", "/%6aobs", "/jobs;/metrics/prometheus", "/v1")
    for target in tricks:
        assert (await site.ask("GET", target, token=token)).status in (403, 404), target
    for action in CALLS:
        for owns in (True, False):
            assert (await call(site, action, Role.METRICS, owns=owns)).status == 403, action
    assert site.untouched
    assert site.cluster.asked == 2 * 2, "the cluster was asked for metrics alone"


def test_a_route_without_a_rule_is_never_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, RestRoute("GET", "/new", "New")))
    with pytest.raises(LookupError, match="GET /new has no rule"):
        Site(tmp_path)


async def test_the_short_cut_is_under_the_table_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stricter = {**ROUTES, "GET /jobs/overview": Rule(Role.ADMIN)}
    monkeypatch.setattr("runtime.rest.authorization.ROUTES", stricter)
    site = OwnedSite(tmp_path)
    assert (await site.ask("GET", "/jobs/overview", token=site.users.tokens[Role.OPERATOR])).status == 403
    assert (await site.ask("GET", "/jobs/overview", token=site.users.tokens[Role.ADMIN])).status == 200
    assert roles.ROUTES is ROUTES


# ------------------------------------------------------------------ owners


async def test_a_job_belongs_to_the_user_who_submitted_it(tmp_path: Path) -> None:
    """Whatever the client writes into the graph."""
    site = OwnedSite(tmp_path)
    await call(site, "dispatcher/submit_job", Role.USER)
    for route in SERVED:
        if route.path in ("/scripts", "/graphs"):
            assert (await ask(site, route, Role.USER)).status == 202
    assert [graph.owner for graph, _ in site.cluster.submitted] == [NAMES[Role.USER]] * 3
    body = msgpack.packb([to_plain(graph_of())])
    kind = (b"content-type", MSGPACK.encode())
    assert (await site.ask("POST", "/gateways/dispatcher/submit_job", [body], kind, token=TOKEN)).status == 200
    assert site.cluster.submitted[-1][0].owner == "", "the cluster's own token is nobody's"


async def test_no_user_takes_the_id_of_anothers_job(tmp_path: Path) -> None:
    """Its files would be taken for that job's, and its submission for accepted."""
    site = OwnedSite(tmp_path, "somebody")
    octets = (b"content-type", OCTETS.encode())
    for role, status in ((Role.USER, 403), (Role.OPERATOR, 201)):
        answer = await site.ask("POST", f"/blobs?job={ID}", [b"x"], octets, token=site.users.tokens[role])
        assert answer.status == status
        logs = await site.ask("POST", f"/blobs?job={logs_owner(ID)}", [b"x"], octets, token=site.users.tokens[role])
        assert logs.status == status
    body, kind = form(("script", "a.py", b"print()"), ("job-id", "", ID.encode()))
    answer = await site.ask("POST", "/scripts", body, kind, token=site.users.tokens[Role.USER])
    assert (answer.status, site.cluster.submitted) == (403, [])
    assert f"using the id of job {ID} on what belongs to somebody" in answer.error


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.ADMIN], ids=lambda role: role.value)
@pytest.mark.parametrize("owner", ["own", "somebody", ""])
async def test_a_job_starts_from_ones_own_savepoint_alone(tmp_path: Path, role: Role, owner: str) -> None:
    """By each way to submit one. Like a job without an owner, a savepoint of one is not a user's."""
    site = OwnedSite(tmp_path)
    job = SavepointJob("0" * 32, "counts", NAMES[role] if owner == "own" else owner)
    path = write_savepoint(tmp_path / "savepoints", job, []).path
    allowed = owner == "own" or role is not Role.USER
    graph = replace(example_graph(), savepoint=SavepointRestoreSettings(path))
    token, main = site.users.tokens[role], ("main", "a.py", b"def f(): pass")
    script = form(("script", "a.py", b"print()"), ("savepoint", "", path.encode()))
    as_json = form(("graph", "g.json", to_json(graph).encode()), main)
    packed = [msgpack.packb([to_plain(graph_of(path))])], (b"content-type", MSGPACK.encode())
    for target, (body, kind) in (
        ("/scripts", script),
        ("/graphs", as_json),
        ("/gateways/dispatcher/submit_job", packed),
    ):
        answer = await site.ask("POST", target, body, kind, token=token)
        if allowed:
            assert answer.status in (200, 202), (target, answer.body)
            continue
        assert answer.status == 403, (target, answer.body)
        assert f"user a-user has the role user; starting from the savepoint {path}" in answer.error
        assert "the role operator for others'" in answer.error
    assert len(site.cluster.submitted) == 3 * allowed
    assert [graph.savepoint.path for graph, _ in site.cluster.submitted if graph.savepoint] == [path] * 3 * allowed


async def test_a_job_without_an_owner_is_no_users(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path, "")
    assert (await site.ask("PATCH", f"/jobs/{ID}", token=site.users.tokens[Role.USER])).status == 403
    assert (await site.ask("PATCH", f"/jobs/{ID}", token=site.users.tokens[Role.OPERATOR])).status == 202


async def test_a_new_job_is_anothers_before_it_is_in_a_list(tmp_path: Path) -> None:
    """The recent list does not have it yet."""
    users = Users()
    site = Site(tmp_path, max_age_s=60.0, identities=users.known())
    running = site.cluster.running
    site.cluster.running = replace(running, job_id=NEW)
    await site.ask("GET", "/jobs", token=users.tokens[Role.USER])
    site.cluster.running = replace(running, owner="somebody")
    assert (await site.ask("PATCH", f"/jobs/{ID}", token=users.tokens[Role.USER])).status == 403
    site.cluster.running = replace(running, owner=NAMES[Role.USER])
    assert (await site.ask("PATCH", f"/jobs/{ID}", token=users.tokens[Role.USER])).status == 202


async def test_what_does_not_exist_is_told_as_such(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path, "somebody")
    for target in (f"/jobs/{NEW}", f"/applications/{NEW}/cancel", "/jobs/nonsense"):
        method = "POST" if "cancel" in target else "PATCH"
        assert (await site.ask(method, target, token=site.users.tokens[Role.USER])).status == 404
    with pytest.raises(JobNotFoundError):
        await site.cluster.job(NEW)


async def test_files_and_kept_logs_of_a_job_are_its_owners(tmp_path: Path) -> None:
    key = str(PermanentBlobKey.create(hashlib.sha256(b"a file").digest()))
    for owns in (True, False):
        for role in Role:
            site = OwnedSite(tmp_path, NAMES[role] if owns else "somebody")
            site.cluster.blobs.kept[key] = b"a file"
            for job_id in (ID, logs_owner(ID)):
                answer = await site.ask("GET", f"/blobs/{key}?job={job_id}", token=site.users.tokens[role])
                assert answer.status == (200 if allows(OWN, role, owns=owns) else 403)
            answer = await site.ask("GET", f"/blobs/{key}", token=site.users.tokens[role])
            assert answer.status == (200 if allows(OWN, role, owns=False) else 403), "of no job that is named"


# ------------------------------------------------------------------ tokens


async def test_an_expired_or_revoked_token_or_that_of_a_removed_user_is_refused(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    users, token = site.users, site.users.tokens[Role.ADMIN]

    async def answer() -> Answer:
        users.clock += 10.0
        return await site.ask("GET", "/jobs", token=token)

    assert (await answer()).status == 200
    users.now_ms = NOW_MS + 500
    assert ((await answer()).status, (await answer()).error.partition("; ")[2]) == (401, "an admin can issue another")
    users.now_ms = NOW_MS
    kept = dict(users.entries)
    for field in [field for field in users.entries if field.startswith("user:")]:
        del users.entries[field]
    assert "was removed" in (await answer()).error
    users.entries = {field: text for field, text in kept.items() if field.startswith("user:")}
    assert "revoked" in (await answer()).error
    users.entries = kept
    assert (await answer()).status == 200


@pytest.mark.parametrize("is_revoked", [True, False], ids=["revoked", "no-store"])
@pytest.mark.parametrize("path", ["/scripts", "/graphs", "/gateways/dispatcher/submit_job", f"/blobs?job={NEW}"])
async def test_a_body_that_ends_after_its_token_changes_nothing(tmp_path: Path, path: str, is_revoked: bool) -> None:
    site = OwnedSite(tmp_path, audit=True)
    pieces, kind = form(("script", "a.py", b"print()"))
    if path == "/graphs":
        pieces, kind = form(("graph", "g.json", to_json(example_graph()).encode()), ("main", "a.py", b"def f(): pass"))
    elif path.startswith("/gateways"):
        arguments = arguments_of(site, "dispatcher", "submit_job", Role.USER, NEW, True)
        pieces, kind = [msgpack.packb(arguments)], (b"content-type", MSGPACK.encode())
    elif path.startswith("/blobs"):
        pieces, kind = [b"content"], (b"content-type", OCTETS.encode())

    def body() -> Iterator[bytes]:
        yield from pieces
        site.users.clock += 10.0
        if is_revoked:
            site.users.entries = {key: text for key, text in site.users.entries.items() if key.startswith("user:")}
        else:
            site.users.failure = HaUnreachableError("down", "cause")

    answer = await site.ask("POST", path, body(), kind, token=site.users.tokens[Role.USER])
    assert answer.status == (401 if is_revoked else 503), answer.body
    assert site.untouched
    assert [line["outcome"] for line in site.lines] == ["refused" if is_revoked else "failed"]


async def test_a_change_is_seen_within_a_second_and_a_new_token_at_once(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    users = site.users
    for _ in range(20):
        assert (await site.ask("GET", "/jobs", token=users.tokens[Role.USER])).status == 200
    assert users.reads == 1, "one look into the store for many requests"
    text, token = make_token(NAMES[Role.USER], "new", NOW_MS, None, b"z" * RANDOM_SIZE)
    applied(users.entries, Identities(users.entries).add_token(token))
    assert (await site.ask("GET", "/jobs", token=text.encode())).status == 200
    del users.entries[f"token:{token.token_id}"]
    users.clock += 1.0
    assert (await site.ask("GET", "/jobs", token=text.encode())).status == 401


async def test_unknown_tokens_do_not_make_it_read_the_store_without_end(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    unknown = b"understudy_" + b"a" * 16 + b"_" + b"b" * 64
    for _ in range(100):
        assert (await site.ask("GET", "/jobs", token=unknown)).status == 401
    assert site.users.reads <= 2


async def test_without_the_store_nobody_is_identified_and_the_clusters_token_works(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    site.users.failure = HaUnreachableError("Redis is gone", "gone")
    answer = await site.ask("GET", "/jobs", token=site.users.tokens[Role.ADMIN])
    assert (answer.status, site.cluster.asked) == (503, 0)
    assert (await site.ask("GET", "/jobs")).status == 200


async def test_a_user_lists_no_tokens_of_all(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    site.cluster.answers["list_tokens"] = []
    body, kind = [msgpack.packb([""])], (b"content-type", MSGPACK.encode())
    for role, status in ((Role.OPERATOR, 403), (Role.ADMIN, 200)):
        answer = await site.ask("POST", "/gateways/dispatcher/list_tokens", body, kind, token=site.users.tokens[role])
        assert answer.status == status


async def test_a_revoked_token_is_refused_by_the_same_endpoint_at_once(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path)
    site.cluster.answers["revoke_token"] = True
    assert (await call(site, "dispatcher/revoke_token", Role.USER)).status == 200
    token_id = site.users.tokens[Role.USER].decode().split("_")[1]
    del site.users.entries[f"token:{token_id}"]
    assert (await site.ask("GET", "/jobs", token=site.users.tokens[Role.USER])).status == 401


async def revoke(users: Users, token_id: str) -> None:
    del users.entries[f"token:{token_id}"]


async def expire(users: Users, token_id: str) -> None:
    users.now_ms += 500


async def promote(users: Users, token_id: str) -> None:
    applied(users.entries, Identities(users.entries).add_user(User(NAMES[Role.VIEWER], Role.USER)))


async def lose_the_store(users: Users, token_id: str) -> None:
    users.failure = HaUnreachableError("Redis is gone", "gone")


@pytest.mark.parametrize("event", [revoke, expire, promote, lose_the_store], ids=lambda event: event.__name__)
async def test_a_stream_of_events_ends_with_its_token(tmp_path: Path, event: Any) -> None:
    site = OwnedSite(tmp_path)
    users = site.users
    rest = replace(site.app._rest, configuration=Configuration.from_dict({"web.refresh-interval": "1 ms"}))
    token_id = users.tokens[Role.VIEWER].decode().split("_")[1]
    theirs = events.stream(rest, Principal(NAMES[Role.VIEWER], Role.VIEWER, token_id))
    own = events.stream(rest, CLUSTER)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await anext(theirs)
        await event(users, token_id)
        users.clock += 1.0
        further = [await anext(theirs, None) for _ in range(2)]
        assert further[-1] is None
        for _ in range(3):
            await anext(own)
    rest.closing.set()


# ------------------------------------------------------------------ audit


@pytest.fixture
def audited(tmp_path: Path) -> OwnedSite:
    return OwnedSite(tmp_path, NAMES[Role.USER], audit=True)


async def test_each_change_and_each_refusal_has_a_line(audited: OwnedSite) -> None:
    tokens = audited.users.tokens
    await audited.ask("GET", "/jobs", token=tokens[Role.VIEWER])
    assert not audited.audit_file.exists(), "reading is not logged"
    await audited.ask("PATCH", f"/v1/jobs/{ID}", token=tokens[Role.USER])
    await audited.ask("PATCH", f"/jobs/{OTHERS}", token=tokens[Role.USER])
    await audited.ask("GET", f"/jobs/{ID}/yarn-cancel")
    await audited.ask("GET", "/jobmanager/log", token=tokens[Role.VIEWER])
    await audited.ask("DELETE", "/cluster", token=b"wrong")
    shown = [(line["user"], line["action"], line["target"], line["outcome"], line["status"]) for line in audited.lines]
    assert shown == [
        (NAMES[Role.USER], "PATCH /jobs/{jobid}", ID, "done", 202),
        (NAMES[Role.USER], "PATCH /jobs/{jobid}", OTHERS, "refused", 403),
        ("", "GET /jobs/{jobid}/yarn-cancel", ID, "done", 202),
        (NAMES[Role.VIEWER], "GET /jobmanager/log", "", "refused", 403),
        ("", "DELETE /cluster", "", "refused", 401),
    ]
    assert [line["role"] for line in audited.lines] == ["user", "user", "admin", "viewer", ""]
    assert {line["source"] for line in audited.lines} == {"127.0.0.1:5"}
    assert "on what belongs to somebody" in audited.lines[1]["reason"]


async def test_calls_have_lines_by_their_names(audited: OwnedSite) -> None:
    audited.cluster.answers |= {"report_job_client_heartbeat": None, "set_log_level": ""}
    for action in ("request_job", "cancel_job", "report_job_client_heartbeat", "submit_job"):
        await call(audited, f"dispatcher/{action}", Role.USER)
    await call(audited, "dispatcher/report_job_client_heartbeat", Role.VIEWER)
    await call(audited, "dispatcher/cancel_job", Role.USER, NEW)
    shown = [(line["action"], line["target"], line["outcome"]) for line in audited.lines]
    assert shown == [
        ("dispatcher/cancel_job", ID, "done"),
        ("dispatcher/submit_job", NEW, "done"),
        ("dispatcher/report_job_client_heartbeat", ID, "refused"),
        ("dispatcher/cancel_job", NEW, "rejected"),
    ]


async def test_each_route_that_changes_something_has_a_line(tmp_path: Path) -> None:
    site = OwnedSite(tmp_path, audit=True)
    for role in (Role.VIEWER, Role.ADMIN):
        for route in SERVED:
            if route.method == "GET" or route.path == "/gateways/{gateway}/{method}":
                continue
            site.begin()
            site.audit_file.unlink(missing_ok=True)
            answer = await ask(site, route, role)
            (line,) = site.lines
            assert (line["action"], line["status"]) == (f"{route.method} {route.path}", answer.status)
            assert (line["user"], line["outcome"] == "refused") == (NAMES[role], role is Role.VIEWER)


async def test_no_line_holds_a_secret(audited: OwnedSite) -> None:
    audited.cluster.answers |= {"add_token": True, "add_user": True}
    await call(audited, "dispatcher/add_token", Role.ADMIN)
    await call(audited, "dispatcher/add_user", Role.ADMIN)
    assert [line["target"] for line in audited.lines] == ["text text", "text admin"], "and no digest"
    for token in (*audited.users.tokens.values(), TOKEN, b"understudy_" + b"a" * 16 + b"_" + b"b" * 64):
        await audited.ask("DELETE", "/cluster?token=x", token=token)
        await audited.ask("PATCH", f"/jobs/{ID}", token=token)
    text = audited.audit_file.read_text()
    for token in (*audited.users.tokens.values(), TOKEN):
        assert token.rpartition(b"_")[2].decode() not in text
    assert "b" * 64 not in text


async def test_strangers_do_not_fill_the_log(audited: OwnedSite) -> None:
    for _ in range(200):
        await audited.ask("DELETE", "/cluster", token=b"wrong")
    assert 60 <= len(audited.lines) <= 120, "the minute may change in between"


async def test_a_user_fills_the_log_with_no_refusals_and_hides_no_change(
    audited: OwnedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "_now_ms", lambda: 0)
    viewer, user = audited.users.tokens[Role.VIEWER], audited.users.tokens[Role.USER]
    for number in range(200):
        await audited.ask("DELETE" if number % 2 else "PUT", "/cluster", token=viewer)
    assert [(line["user"], line["outcome"]) for line in audited.lines[:2]] == [
        (NAMES[Role.VIEWER], "rejected"),
        (NAMES[Role.VIEWER], "refused"),
    ]
    assert len(audited.lines) == 60
    await audited.ask("DELETE", "/cluster", token=user)
    assert (len(audited.lines), audited.lines[-1]["user"]) == (61, NAMES[Role.USER]), "each user has a limit"
    for _ in range(70):
        await audited.ask("PATCH", f"/jobs/{ID}", token=user)
    assert [line["outcome"] for line in audited.lines[61:]] == ["done"] * 70
    monkeypatch.setattr(auditing, "_now_ms", lambda: 60_000)
    await audited.ask("DELETE", "/cluster", token=viewer)
    assert audited.lines[-1]["suppressed"] == 140


async def test_a_log_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = OwnedSite(tmp_path, audit=True)
    site.audit_file.mkdir()
    assert (await site.ask("PATCH", f"/jobs/{ID}")).status == 202
    assert "the audit log misses 'PATCH" in caplog.text
    assert (await site.ask("PATCH", "/a\nline of one's own", token=b"wrong")).status == 401
    assert "\nline of one's own" not in caplog.text


def test_a_principal_is_shown_by_name_alone() -> None:
    assert re.fullmatch("user ada", Principal("ada", Role.USER, "1" * 16).shown)
