"""Calls by HTTP: which methods clients may call, what is refused, and that errors keep their types."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.errors import AskTimeout, FencingError, RecipientUnreachable, RemoteError, UnknownActor
from actors.rpc.codec import from_plain, method_specs, to_plain
from actors.rpc.gateway import FENCING_MARK, READS, RECIPIENT, gateway_methods
from blob.errors import BlobError, BlobNotFound, BlobServerError, NoSpaceLeft, QuotaExceeded
from blob.key import PermanentBlobKey
from blob.offload import Inline, Offloaded
from runtime.client import NoAnswerError
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.errors import GatewayError, JobAlreadyTerminatedError, JobNotFoundError
from runtime.protocol.http_gateways import HTTP_GATEWAYS, MSGPACK, OCTETS, error_of, error_type
from runtime.protocol.messages import MultipleJobsDetails
from runtime.rest.handlers import gateways
from tests.unit.test_rest_app import BLOB, MAX_CONTENT, TOKEN, UNKNOWN, Answer, Site, site
from tests.unit.test_rest_messages import ID

__all__ = ["site"]

TRIGGER = TriggerID("a" * 32)
KIND = (b"content-type", MSGPACK.encode())
FILE = (b"content-type", OCTETS.encode())


async def call(site: Site, name: str, *arguments: Any, query: str = "") -> Answer:
    body = msgpack.packb([to_plain(argument) for argument in arguments])
    return await site.ask("POST", f"/v1/gateways/{name}{query}", [body], KIND)


def graph_of(savepoint: str | None = None) -> Inline:
    settings = None if savepoint is None else SavepointRestoreSettings(savepoint)
    graph = JobGraph.for_script("job", job_id=JobID("3" * 32), created_ms=1)
    return Inline(encode(replace(graph, savepoint=settings)))


async def test_a_call_is_answered_as_by_rpc(site: Site) -> None:
    answer = await call(site, "dispatcher/request_multiple_job_details")
    assert (answer.status, answer.headers["content-type"]) == (200, MSGPACK)
    told = from_plain(msgpack.unpackb(answer.body), MultipleJobsDetails)
    assert told.jobs == await site.cluster.jobs()
    assert (await call(site, "dispatcher/cancel_job", ID)).status == 200
    assert site.cluster.cancelled == [ID]


async def test_a_job_graph_is_submitted(site: Site) -> None:
    answer = await call(site, "dispatcher/submit_job", graph_of())
    assert (answer.status, msgpack.unpackb(answer.body)) == (200, "3" * 32)
    ((submitted, _),) = site.cluster.submitted
    assert submitted.name == "job"


async def test_what_is_changed_is_seen_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, max_age_s=60.0)
    await site.ask("GET", "/jobs/overview")
    asked = site.cluster.asked
    await call(site, "dispatcher/request_cluster_overview")
    await site.ask("GET", "/jobs/overview")
    assert site.cluster.asked == asked + 1  # the one call: nothing has changed
    await call(site, "dispatcher/cancel_job", ID)
    asked = site.cluster.asked
    await site.ask("GET", "/jobs/overview")
    assert site.cluster.asked == asked + 1


# ------------------------------------------------------------------ what may be called


def test_each_method_on_the_list_is_one_that_others_than_leaders_call() -> None:
    for name, known in HTTP_GATEWAYS.items():
        declared = gateway_methods(known.gateway_type)
        assert known.methods <= declared.keys(), name
        for method in known.methods:
            assert getattr(declared[method], FENCING_MARK, READS) in (READS, RECIPIENT), f"{name}.{method}"
            assert method_specs(known.gateway_type)[method].is_ask, f"{name}.{method}"


FORBIDDEN = [
    f"{name}/{method}"
    for name, known in HTTP_GATEWAYS.items()
    for method in gateway_methods(known.gateway_type)
    if method not in known.methods
]


@pytest.mark.parametrize(
    "name",
    [
        *FORBIDDEN,
        "dispatcher/__class__",
        "dispatcher/__init__",
        "dispatcher/address",
        "dispatcher/no_such_method",
        "jobmaster/cancel",
        "system/shutdown",
    ],
)
async def test_no_other_method_is_called(site: Site, name: str) -> None:
    answer = await call(site, name, query="?address=akka.tcp://u@127.0.0.1:1/user/tm-0")
    assert answer.status == 404
    assert site.cluster.called == []


def test_a_client_cannot_speak_for_a_component() -> None:
    """What these would do: take slots, run tasks and end jobs, in the name of a JobMaster or a TaskExecutor."""
    assert {
        "dispatcher/job_reached_terminal_state",
        "resourcemanager/register_task_executor",
        "resourcemanager/deregister_application",
        "taskexecutor/submit_task",
        "master/start_job_master",
        "master/request_worker",
    } <= set(FORBIDDEN)


@pytest.mark.parametrize(
    "name", ["taskexecutor/request_log_list", "master/request_status", "diagnostics/request_actors"]
)
async def test_no_actor_but_the_clusters_own_is_called(site: Site, name: str) -> None:
    answer = await call(site, name, query="?address=akka.tcp://u@evil.example:1/user/tm-0")
    assert (answer.status, answer.json["type"]) == (503, "actors.errors.UnknownActor")
    for query in ("?address=nonsense", "?address="):
        assert (await call(site, name, query=query)).status == 400
    assert [called for called in site.cluster.called if called[1] != "request_status"] == []
    assert all(where in ("master",) for where, _, _ in site.cluster.called)


async def test_the_clusters_own_actors_are_called(site: Site) -> None:
    site.cluster.answers["request_log_list"] = await site.cluster.task_manager_logs(
        (await site.cluster.task_managers())[0].registration.resource_id
    )
    worker = "akka.tcp://u@127.0.0.1:1/user/tm-0"
    assert (await call(site, "taskexecutor/request_log_list", query=f"?address={worker}")).status == 200
    assert site.cluster.called[-1] == (worker, "request_log_list", ())
    assert (await call(site, "master/request_status")).status == 200
    assert (await call(site, "taskexecutor/request_log_list")).status == 400  # which one?


async def test_a_log_is_uploaded_to_the_clusters_own_blob_server(site: Site) -> None:
    worker = "?address=akka.tcp://u@127.0.0.1:1/user/tm-0"
    answer = await call(
        site, "taskexecutor/request_file_upload", "spark", {"host": "evil.example", "port": 9}, query=worker
    )
    assert answer.status == 200
    _, _, (_, place) = site.cluster.called[-1]
    assert place.host == "blobs.example"


# -------------------------------------------------------------------- what is refused


class Exploit:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


async def test_nothing_is_unpickled(site: Site, tmp_path: Path) -> None:
    pickled = pickle.dumps(Exploit(tmp_path / "made"))
    bodies = [
        pickled,
        msgpack.packb(pickled),
        msgpack.packb([pickled]),
        msgpack.packb([{"data": pickled}]),
        msgpack.packb([msgpack.ExtType(1, pickled)]),
        msgpack.packb([pickled.decode("latin-1")]),
    ]
    for method in ("submit_job", "request_job", "cancel_job"):
        for body in bodies:
            answer = await site.ask("POST", f"/v1/gateways/dispatcher/{method}", [body], KIND)
            assert answer.status == 400, f"{method} {body!r}"
    assert not (tmp_path / "made").exists()
    assert (site.cluster.called, site.cluster.submitted, site.cluster.cancelled) == ([], [], [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 60_000,
        msgpack.packb({"job_id": str(ID)}),
        msgpack.packb([]),
        msgpack.packb([str(ID), 1]),
        msgpack.packb([1]),
        msgpack.packb(["x"]),
        msgpack.packb([[str(ID)]]),
        msgpack.packb([None]),
        msgpack.packb([str(ID)]) + b"more",
        b'["%s"]' % ID.encode(),
    ],
)
async def test_arguments_of_another_form_are_refused(site: Site, body: bytes) -> None:
    answer = await site.ask("POST", "/gateways/dispatcher/cancel_job", [body], KIND)
    assert answer.status == 400
    assert "cancel_job() takes" in answer.error or "arguments of cancel_job()" in answer.error
    assert site.cluster.cancelled == []


@pytest.mark.parametrize("kind", [b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/json"])
async def test_a_call_says_that_it_is_one(site: Site, kind: bytes) -> None:
    """Pages of other sites may send forms and texts without asking; of this media type they may not."""
    body = msgpack.packb([str(ID)])
    answer = await site.ask("POST", "/gateways/dispatcher/cancel_job", [body], (b"content-type", kind))
    assert answer.status == 415
    assert (await site.ask("POST", f"/blobs?job={ID}", [b"x"], (b"content-type", kind))).status == 415
    assert (site.cluster.cancelled, len(site.cluster.blobs.kept)) == ([], 1)


async def test_pages_of_other_sites_call_nothing(site: Site) -> None:
    body, page = msgpack.packb([str(ID)]), (b"origin", b"https://evil.example")
    assert (await site.ask("POST", "/gateways/dispatcher/cancel_job", [body], KIND, page)).status == 403
    assert (await site.ask("POST", f"/blobs?job={ID}", [b"x"], FILE, page)).status == 403
    assert (site.cluster.cancelled, len(site.cluster.blobs.kept)) == ([], 1)


@pytest.mark.parametrize("token", [b"", b"wrong", TOKEN[:-1], TOKEN + b"t"])
async def test_without_the_token_nothing_is_called_or_kept(site: Site, token: bytes) -> None:
    body = msgpack.packb([str(ID)])
    for method, target, kind in (
        ("POST", "/gateways/dispatcher/cancel_job", KIND),
        ("GET", "/gateways", KIND),
        ("POST", f"/blobs?job={ID}", FILE),
        ("GET", f"/blobs/{BLOB}", FILE),
        ("DELETE", f"/blobs/{BLOB}", FILE),
    ):
        assert (await site.ask(method, target, [body], kind, token=token)).status == 401
    assert (site.cluster.called, site.cluster.cancelled, list(site.cluster.blobs.kept)) == ([], [], [BLOB])


async def test_only_a_call_with_a_job_graph_may_be_long(site: Site) -> None:
    body = msgpack.packb([str(ID), "x" * gateways.MOST_OF_SHORT_CALLS])
    for name, methods in ((name, known.methods) for name, known in HTTP_GATEWAYS.items()):
        for method in methods:
            answer = await site.ask("POST", f"/gateways/{name}/{method}", [body], KIND)
            assert answer.status == (400 if method == "submit_job" else 413), method


async def test_a_long_call_is_refused_by_its_bytes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "MOST_OF_SHORT_CALLS", 1000)
    body = msgpack.packb([str(ID), "x" * 1000])
    assert (await site.ask("POST", "/gateways/dispatcher/cancel_job", [body[:500], body[500:]], KIND)).status == 413
    assert (await site.ask("POST", f"/blobs?job={ID}", [b"x" * 60_000] * 2, FILE)).status == 413
    long = (b"content-length", b"%d" % (MAX_CONTENT + 1))
    assert (await site.ask("POST", f"/blobs?job={ID}", [b"x"], FILE, long)).status == 413
    assert (site.cluster.cancelled, list(site.cluster.blobs.kept)) == ([], [BLOB])


@pytest.mark.parametrize("inside", ["runtime", "runtime/checkpoints", "link/x"])
async def test_the_clusters_own_directories_are_no_place_for_savepoints(
    site: Site, tmp_path: Path, inside: str
) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runtime")
    own = str(tmp_path / inside)
    for name, arguments in (
        ("trigger_savepoint", (ID, TRIGGER, own, False)),
        ("trigger_savepoint", (ID, TRIGGER, own)),
        ("stop_with_savepoint", (ID, TRIGGER, own, False)),
        ("roll_back", (ID, TRIGGER, own, False)),
        ("trigger_rescale", (ID, TRIGGER, 8, "", own)),
        ("dispose_savepoint", (own,)),
        ("submit_job", (graph_of(own),)),
    ):
        answer = await call(site, f"dispatcher/{name}", *arguments)
        assert answer.status == 400, name
        assert "inside of the cluster's own directories" in answer.error
    assert (site.cluster.called, site.cluster.rolled_back, site.cluster.submitted) == ([], [], [])


async def test_savepoints_are_asked_for(site: Site, tmp_path: Path) -> None:
    begun = OperationStatus(TRIGGER, OperationState.IN_PROGRESS)
    site.cluster.answers = {"trigger_savepoint": begun, "stop_with_savepoint": begun}
    target = str(tmp_path / "savepoints")
    assert (await call(site, "dispatcher/trigger_savepoint", ID, TRIGGER, target, True)).status == 200
    assert (await call(site, "dispatcher/stop_with_savepoint", ID, TRIGGER, "", True)).status == 200
    assert site.cluster.called == [
        ("dispatcher", "trigger_savepoint", (ID, TRIGGER, target, True)),
        ("dispatcher", "stop_with_savepoint", (ID, TRIGGER, "", True)),
    ]
    assert (await call(site, "dispatcher/roll_back", ID, TRIGGER, "chk-3", False)).status == 200
    assert site.cluster.rolled_back == [(TRIGGER, "chk-3", False)]
    refused = await call(site, "dispatcher/dispose_savepoint", str(tmp_path / "precious"))
    assert (refused.status, refused.json["type"]) == (409, "runtime.checkpoint.errors.SavepointError")
    assert "left alone" in refused.json["message"]


async def test_a_job_graph_is_one_and_begins_from_a_savepoint(site: Site, tmp_path: Path) -> None:
    for message in (Inline(b"\x80"), Inline(b"nonsense"), Offloaded("p-" + "0" * 64 + "-" + "0" * 32, "3" * 32, 9)):
        assert (await call(site, "dispatcher/submit_job", message)).status == 400
    refused = await call(site, "dispatcher/submit_job", graph_of(str(tmp_path / "none")))
    assert (refused.status, refused.json["type"]) == (409, "runtime.checkpoint.errors.SavepointError")
    assert site.cluster.submitted == []


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "error",
    [
        JobNotFoundError(f"no job\n  {UNKNOWN}"),
        JobAlreadyTerminatedError("over"),
        JobGraphError("a cycle"),
        AskTimeout("late"),
        FencingError("another leads"),
        RecipientUnreachable("gone"),
        UnknownActor("gone"),
        ValueError("wrong"),
        RemoteError("theirs.SomeError", "why"),
        BlobNotFound("no blob"),
        QuotaExceeded("full"),
        NoSpaceLeft("no space"),
        BlobServerError("stopping"),
    ],
)
async def test_errors_keep_their_types(site: Site, error: Exception) -> None:
    site.cluster.failure = error
    answer = await call(site, "dispatcher/request_cluster_overview")
    again = error_of(answer.json["type"], answer.json["message"])
    assert type(again) is type(error)
    assert str(again) == str(error) or isinstance(error, RemoteError)
    assert "\n" not in answer.error
    assert answer.status >= 400
    assert "Traceback" not in answer.body.decode()


def test_every_error_of_ours_that_travels_keeps_its_type() -> None:
    def all_of(kind: type[Exception]) -> list[type[Exception]]:
        return [kind, *(found for sub in kind.__subclasses__() for found in all_of(sub))]

    travelling = [kind for base in (BlobError, GatewayError) for kind in all_of(base) if error_type(kind("why"))]
    assert len(travelling) > 25
    for kind in travelling:
        assert type(error_of(error_type(kind("why")) or "", "why")) is kind


@pytest.mark.parametrize(
    ("error", "status"), [(NoAnswerError("nobody leads"), 503), (ZeroDivisionError("hidden"), 500)]
)
async def test_what_does_not_travel_has_no_type(site: Site, error: Exception, status: int) -> None:
    site.cluster.failure = error
    answer = await call(site, "dispatcher/request_cluster_overview")
    assert answer.status == status
    assert "type" not in answer.json
    assert "hidden" not in answer.error


# ----------------------------------------------------------------------------- blobs


async def test_a_blob_comes_and_goes(site: Site) -> None:
    put = await site.ask("POST", f"/blobs?job={ID}", [b"a file ", b"of a job"], FILE)
    assert put.status == 201
    key = put.json["key"]
    assert isinstance(PermanentBlobKey(key), str)
    got = await site.ask("GET", f"/blobs/{key}?job={ID}")
    assert (got.status, got.body, got.headers["content-type"]) == (200, b"a file of a job", OCTETS)
    assert (await site.ask("GET", f"/blobs/{BLOB}")).body == b"a blob"
    assert (await site.ask("DELETE", f"/blobs/{BLOB}")).json == {"deleted": True}
    assert (await site.ask("DELETE", f"/blobs/{BLOB}")).json == {"deleted": False}
    gone = await site.ask("GET", f"/blobs/{BLOB}")
    assert (gone.status, gone.json["type"]) == (404, "blob.errors.BlobNotFound")


async def test_what_is_no_blob_is_refused(site: Site) -> None:
    key = PermanentBlobKey.create(b"0" * 32)
    for method, target, status in (
        ("POST", "/blobs", 400),
        ("POST", "/blobs?job=x", 400),
        ("POST", "/blobs?job=../../x", 400),
        ("GET", "/blobs/x", 400),
        ("GET", f"/blobs/{BLOB}?job=x", 400),
        ("GET", "/blobs/..%2f..%2fsecret", 400),
        ("DELETE", f"/blobs/{key}", 400),
    ):
        answer = await site.ask(method, target, [b"x"], FILE)
        assert answer.status == status, target
    assert list(site.cluster.blobs.kept) == [BLOB]
