"""Lines of the audit log for calls with the cluster's secret: which calls get one, and what it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from actors.address import ActorAddress
from actors.errors import AskTimeout, FencingError, WireError
from actors.rpc import wire
from actors.rpc.codec import method_specs
from actors.rpc.dispatch import RecordedCall
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FENCING_MARK, READS, RpcGateway, rpc, rpc_tell
from actors.rpc.service import RpcConfig, RpcService
from blob.offload import Inline
from conf.configuration import Configuration
from runtime.environment.call_audit import CallAudit, action_of, entry_of, is_recorded, status_of_call
from runtime.environment.context import ComponentContext
from runtime.environment.directory import ClusterDirectory
from runtime.ids import JobID
from runtime.protocol.errors import JobNotFoundError
from runtime.users.audit import FREQUENT, REFUSALS_PER_MINUTE
from runtime.users.identities import ApiToken, Role, User
from runtime.users.roles import CALLS
from tests.unit.test_gateways_complete import GATEWAYS

JOB = JobID("a" * 32)
TURNS = 50


def a_call(**others: Any) -> RecordedCall:
    given: dict[str, Any] = {
        "caller": "ada",
        "source": "unix:7",
        "component": "dispatcher",
        "path": "/user/dispatcher",
        "method": "cancel_job",
        "arguments": [JOB],
        "result": None,
        "error": None,
    }
    return RecordedCall(**{**given, **others})


def line(call: RecordedCall) -> tuple[str, str, str, str]:
    entry = entry_of(call, 5, status_of_call(call))
    return entry.action, entry.target, entry.outcome, entry.reason


# ------------------------------------------------------------- which calls get one


class Endpoint(RpcEndpoint):
    """Implements any gateway by errors."""


def implementing(gateway: type[RpcGateway]) -> type[RpcEndpoint]:
    """Return an endpoint with all methods of a gateway; each raises an error."""

    def handler(is_ask: bool) -> Any:
        async def ask(_self: Any, *_values: Any) -> None:
            raise JobNotFoundError("there is none")

        def tell(_self: Any, *_values: Any) -> None:
            raise JobNotFoundError("there is none")

        return rpc(ask) if is_ask else rpc_tell(tell)

    methods = {name: handler(spec.is_ask) for name, spec in method_specs(gateway).items()}
    return type("Walked", (Endpoint, gateway), methods)


@pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.__name__)
async def test_each_method_that_changes_something_has_a_line_and_no_other(gateway: type[RpcGateway]) -> None:
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    await service.start_server(implementing(gateway)(service, "walked"))
    for name, spec in method_specs(gateway).items():
        connection, calls = Mock(), list[RecordedCall]()
        connection.caller, connection.source, connection.recorder.record = "ada", "unix:7", calls.append
        service.dispatch([wire.ASK, 1, "/user/walked", name, [], None], connection)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        reads = getattr(getattr(gateway, name), FENCING_MARK, None) == READS
        assert len(calls) == (0 if reads else 1), f"{gateway.__name__}.{name}"
        assert all(is_recorded(call) or action_of(call) in FREQUENT for call in calls)
        assert all(entry_of(call, 1, status_of_call(call)).outcome != "done" for call in calls)
        assert spec.changes is not reads


def test_the_calls_of_the_table_of_roles_have_lines_under_the_names_of_the_table() -> None:
    """So clients that announce no name have lines too."""
    changing = {
        f"{spec.component}/{name}"
        for gateway in GATEWAYS
        for name, spec in method_specs(gateway).items()
        if spec.changes
    }
    reading = {
        f"{spec.component}/{name}"
        for gateway in GATEWAYS
        for name, spec in method_specs(gateway).items()
        if not spec.changes
    }
    assert set(CALLS) <= changing | reading
    for action in set(CALLS) & changing - FREQUENT:
        component, _, method = action.partition("/")
        assert is_recorded(a_call(component=component, method=method, caller=""))


def test_a_component_of_an_earlier_release_does_not_fill_the_log() -> None:
    its = {"component": "jobmaster", "method": "update_task_progress"}
    assert not is_recorded(a_call(caller="", **its))
    assert is_recorded(a_call(caller="ada", **its))


def test_the_heartbeats_of_a_client_have_no_lines() -> None:
    assert set(CALLS) >= FREQUENT
    assert not is_recorded(a_call(method="report_job_client_heartbeat"))


def test_each_process_of_a_component_writes_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterDirectory, "socket_dir", lambda _: tmp_path)
    system = ActorAddress("understudy", "127.0.0.1", 1, "/user/x")
    spec = ComponentContext(Configuration(), ClusterDirectory(tmp_path), system).host_spec("dispatcher", "a:b")
    assert spec.recorder == (f"{CallAudit.__module__}:CallAudit", tmp_path / "audit" / "audit.jsonl")
    assert spec.spare().recorder == spec.recorder


# ------------------------------------------------------------------ what it says


def test_a_line_says_who_did_what_to_what_from_where() -> None:
    entry = entry_of(a_call(), 5, 200)
    assert (entry.at_ms, entry.user, entry.role, entry.token) == (5, "local:ada", "local", "")
    assert (entry.action, entry.target, entry.source) == ("dispatcher/cancel_job", JOB, "unix:7")
    assert (entry.outcome, entry.status, entry.reason) == ("done", 200, "")
    assert entry_of(a_call(caller=""), 5, 200).user == "local:unnamed"


def test_no_user_can_have_the_name_of_a_local_caller() -> None:
    with pytest.raises(ValueError, match="wrong form"):
        User.from_json(json.dumps({"name": entry_of(a_call(), 5, 200).user, "role": "user"}))


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (JobNotFoundError("there is no job\nTraceback"), "rejected", "there is no job"),
        (
            FencingError("takes start() of a dispatcher that leads"),
            "refused",
            "takes start() of a dispatcher that leads",
        ),
        (WireError("cancel_job() takes 1 arguments"), "rejected", "cancel_job() takes 1 arguments"),
        (AskTimeout("no answer"), "failed", "no answer"),
        (RuntimeError("a defect"), "failed", "a defect"),
        (RuntimeError(), "failed", ""),
    ],
)
def test_an_outcome_is_that_of_the_same_request_by_http(error: Exception, outcome: str, reason: str) -> None:
    assert line(a_call(error=error)) == ("dispatcher/cancel_job", JOB, outcome, reason)


def test_a_target_names_the_object_and_nothing_secret() -> None:
    submitted = a_call(method="submit_job", arguments=[Inline(b"print('secret')")], result=JOB)
    assert line(submitted)[1] == JOB
    token = ApiToken("1" * 16, "bob", "laptop", "d" * 64, 1, None)
    assert line(a_call(method="add_token", arguments=[token]))[1] == f"bob {'1' * 16}"
    assert line(a_call(method="add_user", arguments=[User("bob", Role.ADMIN)]))[1] == "bob admin"
    master = {"component": "jobmaster", "path": f"/user/jobmaster-{JOB}", "method": "cancel", "arguments": []}
    assert line(a_call(**master))[:2] == ("jobmaster/cancel", JOB)
    log = {"component": "taskexecutor", "path": "/user/taskmanager-0", "method": "request_file_upload"}
    assert line(a_call(**log, arguments=["out.log"]))[1] == "taskmanager-0 out.log"


def test_calls_that_changed_nothing_do_not_fill_the_log_and_changes_have_all_their_lines(tmp_path: Path) -> None:
    audit = CallAudit(tmp_path / "audit.jsonl", now_ms=lambda: 60_000)
    for _ in range(REFUSALS_PER_MINUTE + 5):
        audit.record(a_call(error=JobNotFoundError("there is none")))
        audit.record(a_call())
    audit.record(a_call(caller="bob", error=JobNotFoundError("there is none")))
    audit.close()
    written = [json.loads(text) for text in (tmp_path / "audit.jsonl").read_text().splitlines()]
    found = [(each["user"], each["outcome"]) for each in written]
    assert found.count(("local:ada", "done")) == REFUSALS_PER_MINUTE + 5
    assert found.count(("local:ada", "rejected")) == REFUSALS_PER_MINUTE
    assert found.count(("local:bob", "rejected")) == 1


def test_a_line_that_cannot_be_written_is_logged_and_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    audit = CallAudit(tmp_path / "audit.jsonl")
    audit.record(a_call())
    audit.close()
    assert "the audit log misses 'dispatcher/cancel_job' of local:ada" in caplog.text
    audit.record(a_call())  # after its end
    assert caplog.text.count("the audit log misses") == 2
