"""Checkpoints and savepoints through the REST API: asked for, asked after, forgotten by whoever leads, refused."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from actors.errors import RecipientUnreachable
from conf.configuration import Configuration
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.ids import TriggerID
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.savepoints import SavepointWriter
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus, SnapshotType
from runtime.protocol.execution_state import JobStatus
from runtime.rest import context as context_module
from runtime.rest.errors import RestError
from runtime.rest.handlers.checkpoints import NO_INTERVAL, config, directory_of, place_of
from tests.unit.test_rest_app import Answer, Site
from tests.unit.test_rest_messages import ID, READ, WRITE, graph
from tests.waiting import PATIENCE_S

WANTED = TriggerID("c" * 32)
TRIGGERS = [
    ("savepoints", {}, SnapshotType.SAVEPOINT),
    ("savepoints", {"cancel-job": True}, SnapshotType.SAVEPOINT_CANCEL),
    ("stop", {}, SnapshotType.SAVEPOINT_SUSPEND),
    ("stop", {"drain": True}, SnapshotType.SAVEPOINT_TERMINATE),
    ("checkpoints", {}, SnapshotType.CHECKPOINT),
]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def post(site: Site, target: str, body: Any) -> Answer:
    return await site.ask("POST", target, [json.dumps(body).encode()])


def ended(site: Site, state: OperationState = OperationState.COMPLETED, **figures: Any) -> OperationStatus:
    site.cluster.operations[WANTED] = status = OperationStatus(WANTED, state, **figures)
    return status


@pytest.mark.parametrize(("path", "body", "kind"), TRIGGERS)
async def test_what_is_asked_for_twice_is_asked_for_once(
    site: Site, path: str, body: dict[str, Any], kind: SnapshotType
) -> None:
    for _ in range(2):
        answer = await post(site, f"/v1/jobs/{ID}/{path}", {**body, "triggerId": WANTED})
        assert (answer.status, answer.json) == (202, {"request-id": WANTED})
    ((job_id, trigger),) = site.cluster.triggered
    assert (job_id, trigger.type, trigger.trigger_id, trigger.target) == (ID, kind, WANTED, "")


async def test_what_flinks_client_sends_is_understood(site: Site, tmp_path: Path) -> None:
    savepoint = {"target-directory": f"file://{tmp_path}/s p", "cancel-job": False, "formatType": "CANONICAL"}
    stop = {"targetDirectory": f"file:{tmp_path}/s%20p", "drain": False, "formatType": "CANONICAL"}
    checkpoint = {"checkpointType": "CONFIGURED"}
    for path, body in (("savepoints", savepoint), ("stop", stop), ("checkpoints", checkpoint)):
        answer = await post(site, f"/v1/jobs/{ID}/{path}", {**body, "triggerId": None})
        assert answer.status == 202
        assert TriggerID(answer.json["request-id"]) == site.cluster.triggered[-1][1].trigger_id
    assert [trigger.target for _, trigger in site.cluster.triggered] == [f"{tmp_path}/s p", f"{tmp_path}/s p", ""]


async def test_a_savepoint_is_told_when_it_is_done_and_from_then_on(site: Site) -> None:
    await post(site, f"/jobs/{ID}/savepoints", {"triggerId": WANTED})
    target = f"/jobs/{ID}/savepoints/{WANTED}"
    assert (await site.ask("GET", target)).json["status"] == {"id": "IN_PROGRESS"}
    ended(site, path="/data/savepoint-1")
    for _ in range(2):
        told = await site.ask("GET", target)
        assert told.json == {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/data/savepoint-1"}}
        site.cluster.operations.clear()  # a JobMaster without a memory must not be asked to make it again
    assert len(site.cluster.triggered) == 1
    assert (await site.ask("GET", f"/jobs/{ID}/checkpoints/{WANTED}")).status == 404


async def test_what_was_under_way_is_asked_for_again_after_a_failover(site: Site) -> None:
    await post(site, f"/jobs/{ID}/checkpoints", {"triggerId": WANTED})
    site.cluster.operations.clear()
    target = f"/jobs/{ID}/checkpoints/{WANTED}"
    assert (await site.ask("GET", target)).json["status"] == {"id": "IN_PROGRESS"}
    assert [trigger.trigger_id for _, trigger in site.cluster.triggered] == [WANTED, WANTED]
    ended(site, checkpoint_id=7)
    assert (await site.ask("GET", target)).json["operation"] == {"checkpointId": 7}
    assert (await site.ask("GET", f"/jobs/{ID}/savepoints/{WANTED}")).status == 404


async def test_a_job_goes_back(site: Site, tmp_path: Path) -> None:
    target = f"/jobs/{ID}/rollback"
    for given, meant in (("chk-3", "chk-3"), ("12", "12"), (f"file://{tmp_path}/s", f"{tmp_path}/s")):
        answer = await post(site, target, {"target": given, "newQueryId": True, "triggerId": WANTED})
        assert (answer.status, answer.json) == (200, {"request-id": WANTED, "location": meant})
        assert site.cluster.rolled_back.pop() == (WANTED, meant, True)
    assert (await post(site, target, {"target": "3"})).status == 200
    assert site.cluster.rolled_back.pop()[2] is False
    for body, status in (({}, 400), ({"target": "elsewhere"}, 400), ({"target": ""}, 400), ({"target": "chk-7"}, 409)):
        assert (await post(site, target, body)).status == status, body
    assert (await post(site, f"/jobs/{'9' * 32}/rollback", {"target": "3"})).status == 404


async def test_what_was_asked_for_elsewhere_is_told_too(site: Site) -> None:
    ended(site, path="/data/savepoint-1")
    assert (await site.ask("GET", f"/jobs/{ID}/savepoints/{WANTED}")).json["operation"]["location"]
    assert (await site.ask("GET", f"/jobs/{ID}/checkpoints/{WANTED}")).status == 404
    assert site.cluster.triggered == []


async def test_a_failure_is_told_as_flinks_client_reads_it(site: Site) -> None:
    await post(site, f"/jobs/{ID}/savepoints", {"triggerId": WANTED})
    ended(site, OperationState.FAILED, error="no room on the disk")
    told = (await site.ask("GET", f"/jobs/{ID}/savepoints/{WANTED}")).json
    assert told["status"] == {"id": "COMPLETED"}
    assert "no room on the disk" in told["operation"]["failure-cause"]["stack-trace"]


async def test_a_stop_is_over_when_the_job_is(site: Site) -> None:
    await post(site, f"/jobs/{ID}/stop", {"triggerId": WANTED})
    ended(site, path="/data/savepoint-1")
    target = f"/jobs/{ID}/savepoints/{WANTED}"
    assert (await site.ask("GET", target)).json["status"] == {"id": "IN_PROGRESS"}
    site.cluster.running = graph(JobStatus.FINISHED)
    assert (await site.ask("GET", target)).json["operation"] == {"location": "file:/data/savepoint-1"}


async def test_a_job_that_ends_before_its_savepoint_has_none(site: Site) -> None:
    await post(site, f"/jobs/{ID}/savepoints", {"triggerId": WANTED})
    site.cluster.operations.clear()
    site.cluster.running = graph(JobStatus.CANCELED)
    told = (await site.ask("GET", f"/jobs/{ID}/savepoints/{WANTED}")).json
    assert "is over" in told["operation"]["failure-cause"]["stack-trace"]


async def test_only_so_many_operations_are_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "KEPT", 2)
    ids = [TriggerID(f"{number}" * 32) for number in range(4)]
    for trigger_id in ids:
        await post(site, f"/jobs/{ID}/savepoints", {"triggerId": trigger_id})
        disposal = {"savepoint-path": "/data/savepoint-0", "triggerId": trigger_id}
        assert (await post(site, "/savepoint-disposal", disposal)).status == 200
        await disposed(site, trigger_id)
    site.cluster.operations.clear()
    answers = [(await site.ask("GET", f"/jobs/{ID}/savepoints/{trigger_id}")).status for trigger_id in ids]
    assert answers == [404, 404, 200, 200]
    answers = [(await site.ask("GET", f"/savepoint-disposal/{trigger_id}")).status for trigger_id in ids]
    assert answers == [404, 404, 200, 200]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("savepoints", "[]", "object"),
        ("savepoints", "{", "not JSON"),
        ("savepoints", "[" * 60_000, "not JSON"),
        ("savepoints", '{"targetDirectory": "/data"}', "no field"),
        ("savepoints", '{"cancel-job": "yes"}', "cancel-job must be a boolean"),
        ("savepoints", '{"cancel-job": 1}', "cancel-job must be a boolean"),
        ("savepoints", '{"formatType": "NATIVE"}', "formatType must be one of CANONICAL"),
        ("savepoints", '{"triggerId": "x"}', "not a trigger id"),
        ("savepoints", '{"triggerId": "%s"}' % ("C" * 32), "not a trigger id"),
        ("savepoints", '{"target-directory": "savepoints"}', "absolute"),
        ("savepoints", '{"target-directory": "hdfs://host/savepoints"}', "cannot be named over HTTP"),
        ("savepoints", '{"target-directory": "file://host/savepoints"}', "another machine"),
        ("savepoints", '{"target-directory": "file:savepoints"}', "absolute"),
        ("savepoints", '{"target-directory": "/data/../etc"}', "absolute"),
        ("savepoints", '{"target-directory": "file:/data/%2e%2e/etc"}', "absolute"),
        ("savepoints", '{"target-directory": "/data\\u0000"}', "absolute"),
        ("savepoints", '{"target-directory": "/%s"}' % ("x" * 5000), "absolute"),
        ("savepoints", '{"target-directory": "/\\ud800"}', "cannot be used"),
        ("stop", '{"drain": null, "targetDirectory": 1}', "targetDirectory must be a string"),
        ("checkpoints", '{"checkpointType": "OTHER"}', "checkpointType must be one of"),
    ],
)
async def test_what_is_no_wish_is_refused(site: Site, path: str, body: str, said: str) -> None:
    answer = await site.ask("POST", f"/jobs/{ID}/{path}", [body.encode()])
    assert answer.status == 400
    assert said in answer.error
    assert site.cluster.triggered == []


@pytest.mark.parametrize("path", [f"jobs/{ID}/savepoints", f"jobs/{ID}/stop", "savepoint-disposal"])
async def test_a_body_is_bounded(site: Site, path: str) -> None:
    answer = await site.ask("POST", f"/{path}", [b" " * 70_000])
    assert answer.status == 413
    assert site.cluster.triggered == []


def test_the_clusters_own_directories_are_no_place_for_savepoints(tmp_path: Path) -> None:
    runtime, elsewhere = tmp_path / "runtime", tmp_path / "elsewhere"
    configuration = Configuration.from_dict(
        {"cluster.runtime-dir": str(runtime), "execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    )
    (runtime / "savepoints").mkdir(parents=True)
    elsewhere.symlink_to(runtime)
    for good in (tmp_path / "mine", runtime / "savepoints", runtime / "savepoints" / "mine", elsewhere / "savepoints"):
        assert directory_of(configuration, str(good)) == good.resolve()
    for bad in (runtime, runtime / "ha", runtime / "savepointsx", tmp_path / "checkpoints" / "1", elsewhere / "blobs"):
        with pytest.raises(RestError, match="own directories") as caught:
            directory_of(configuration, str(bad))
        assert caught.value.status == 400


def test_a_url_is_named_over_http_only_below_the_clusters_own(tmp_path: Path) -> None:
    """The cluster connects with its own credentials: a request may not choose where to."""
    url = "s3://bucket/savepoints"
    configuration = Configuration.from_dict({"execution.checkpointing.savepoint-url": f"{url}/"})
    for good in (url, f"{url}/", f"{url}/savepoint-1"):
        assert place_of(configuration, good) == good.rstrip("/")
    assert place_of(configuration, str(tmp_path)) == str(tmp_path)
    assert place_of(configuration, f"file://{tmp_path}") == str(tmp_path)
    for bad in (
        "s3://bucket/savepointsx",
        "s3://bucket",
        "s3://other/savepoints/1",
        "ftp://bucket/savepoints",
        "http://169.254.169.254/latest",
        f"{url}/../other",
        "s3://me:word@bucket/savepoints",
        f"{url}/1?word=1",
        f"simplecache::{url}/1",
    ):
        with pytest.raises(RestError) as caught:
            place_of(configuration, bad)
        assert (caught.value.status, "word" in str(caught.value).replace("password", "")) == (400, False)
    with pytest.raises(RestError, match="savepoint-url, which is not set"):
        place_of(Configuration.from_dict({}), url)


async def disposed(site: Site, trigger_id: TriggerID = WANTED) -> dict[str, Any]:
    """What became of a disposal, once it is over."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            told: dict[str, Any] = (await site.ask("GET", f"/v1/savepoint-disposal/{trigger_id}")).json
            if told["status"] == {"id": "COMPLETED"}:
                return told
            await asyncio.sleep(0)


async def test_a_savepoint_is_disposed_of_once(site: Site) -> None:
    site.cluster.savepoints = {"/data/savepoint-1"}
    request = {"savepoint-path": "file:///data/savepoint-1", "triggerId": WANTED}
    for _ in range(2):
        answer = await post(site, "/v1/savepoint-disposal", request)
        assert (answer.status, answer.json) == (200, {"request-id": WANTED})
        assert await disposed(site) == {"status": {"id": "COMPLETED"}, "operation": {}}
    assert site.cluster.savepoints == set()


@pytest.mark.parametrize(
    ("path", "failure", "said"),
    [
        ("/data/savepoint-2", None, "SavepointError: there is no savepoint /data/savepoint-2"),
        ("/data/precious", None, "SavepointError: /data/precious is not a savepoint"),
        ("/data/savepoint-1", RecipientUnreachable("nobody there"), "RecipientUnreachable: nobody there"),
        ("/data/savepoint-1", ZeroDivisionError("a detail"), "its log says more"),
    ],
)
async def test_why_a_disposal_failed_is_told(site: Site, path: str, failure: Exception | None, said: str) -> None:
    site.cluster.failure = failure
    await post(site, "/savepoint-disposal", {"savepoint-path": path, "triggerId": WANTED})
    cause = (await disposed(site))["operation"]["failure-cause"]
    assert said in cause["stack-trace"]
    assert "a detail" not in json.dumps(cause)


async def test_a_disposal_that_nobody_asks_after_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RestError(404, "it is gone")

    disposals = context_module.Disposals()
    disposals.begin(WANTED, fail())
    task = disposals.find(WANTED)
    assert task is not None
    await asyncio.wait({task})
    del task, disposals
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_disposal_needs_a_path(site: Site) -> None:
    assert "savepoint-path is missing" in (await post(site, "/savepoint-disposal", {})).error
    for path in (None, "", "relative"):
        assert (await post(site, "/savepoint-disposal", {"savepoint-path": path})).status == 400


def test_intervals_are_told_in_milliseconds() -> None:
    for given, told in (({"execution.checkpointing.interval": "1s"}, 1000), ({}, NO_INTERVAL)):
        settings = CheckpointCoordinatorConfiguration.of(Configuration.from_dict(given))
        assert config(settings, "")["interval"] == told


async def test_figures_are_those_of_the_job_and_of_its_tasks(site: Site) -> None:
    assert (await site.ask("GET", f"/jobs/{ID}/checkpoints")).json["counts"]["completed"] == 3
    assert (await site.ask("GET", f"/jobs/{ID}/checkpoints/details/3")).json["is_savepoint"]
    assert (await site.ask("GET", f"/jobs/{ID}/checkpoints/config")).json["state_backend"] == "HashMapStateBackend"
    answer = await site.ask("GET", f"/jobs/{ID}/checkpoints/details/3/subtasks/{READ}")
    assert (answer.status, answer.json["state_size"], len(answer.json["subtasks"])) == (200, 3000, 1)
    other = await site.ask("GET", f"/jobs/{ID}/checkpoints/details/3/subtasks/{WRITE}")
    assert (other.status, "took no part" in other.error) == (404, True)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"execution.checkpointing.interval": "1 s", "state.backend.type": "rocksdb"},
            (1000, "EmbeddedRocksDBStateBackend"),
        ),
        ({"execution.checkpointing.interval": "soon"}, (NO_INTERVAL, "HashMapStateBackend")),
    ],
)
async def test_a_jobs_own_settings_are_shown(
    site: Site, settings: dict[str, str], told: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checkpoints(job_id: str) -> CheckpointStatsSnapshot:
        return CheckpointStatsSnapshot(settings=settings)

    monkeypatch.setattr(site.cluster, "checkpoints", checkpoints)
    shown = (await site.ask("GET", f"/jobs/{ID}/checkpoints/config")).json
    assert (shown["interval"], shown["state_backend"]) == told


def test_a_directory_that_cannot_be_looked_at_holds_no_savepoint(tmp_path: Path) -> None:
    writer = SavepointWriter(JobGraph.for_script("job"), Configuration.from_dict({}))
    assert writer.find(CheckpointTrigger(WANTED, SnapshotType.SAVEPOINT, str(tmp_path / ("x" * 300)))) == ""


async def test_the_document_describes_the_bodies(site: Site) -> None:
    paths = (await site.ask("GET", "/openapi.json")).json["paths"]
    disposal, stop = (
        paths[path]["post"]["requestBody"] for path in ("/v1/savepoint-disposal", "/v1/jobs/{jobid}/stop")
    )
    assert (disposal["required"], stop["required"]) == (True, False)
    (form,) = stop["content"].values()
    assert form["schema"]["properties"].keys() == {"targetDirectory", "drain", "formatType", "triggerId"}
    (trigger,) = paths["/v1/savepoint-disposal/{triggerid}"]["get"]["parameters"]
    assert trigger["schema"]["pattern"] == "^[0-9a-f]{32}$"
