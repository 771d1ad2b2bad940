"""Lines of the audit log for calls with the secret, over real connections: those of clients, and none of components."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.client import ActorClient
from actors.errors import FencingError
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcService
from runtime.environment.call_audit import CallAudit
from runtime.users.audit import AuditEntry, AuditLog
from runtime.users.roles import ANYONE, CALLS
from tests.contract.rpc_harness import (
    SECRET,
    Item,
    Leader,
    LeaderGateway,
    LoopThread,
    Probe,
    ProbeError,
    ProbeGateway,
    ProbeServer,
    patient_config,
)


class Fetches:
    """Offloader of a client, which announces itself with one; nothing here is larger than a frame."""

    def put_blocking(self, data: bytes, /) -> str:
        raise NotImplementedError

    def get_blocking(self, key: str, /) -> bytes:
        raise NotImplementedError

    def release(self, key: str, /) -> None:
        raise NotImplementedError

    def close_blocking(self) -> None:
        pass


class AuditedServer(ProbeServer):
    """A process of a cluster with an audit log."""

    def __init__(self, socket_dir: Path | None, audit: Path) -> None:
        self.audit = audit
        super().__init__(socket_dir)

    async def _start(self, secret: bytes) -> None:
        self.service = RpcService(self.loop, secret, self.config, CallAudit(self.audit))
        await self.service.listen()
        self.probe, self.leader = Probe(self.service, "probe"), Leader(self.service, "leader")
        await self.service.start_server(self.probe)
        await self.service.start_server(self.leader)

    def lines(self) -> list[dict[str, Any]]:
        """End the process, and return the lines that it has written."""
        self.close()
        return [json.loads(line) for line in self.audit.read_text().splitlines()] if self.audit.exists() else []


def client_of(server: ProbeServer, caller: str = "ada") -> ActorClient:
    config = patient_config(socket_dir=server.config.socket_dir, caller=caller)
    return ActorClient(SECRET, config, Fetches())


@pytest.fixture(params=["tcp", "uds"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuditedServer]:
    audit = tmp_path / "audit" / "audit.jsonl"
    with tempfile.TemporaryDirectory(prefix="us-") as short:
        yield AuditedServer(None if request.param == "tcp" else Path(short), audit)


def test_each_call_of_a_client_has_one_line_with_its_outcome(server: AuditedServer) -> None:
    with server.closing(), client_of(server) as client:
        probe = client.gateway(server.address, ProbeGateway)
        assert probe.rename(Item("a"), "b").result() == Item("b", 1)
        assert probe.add_sync(3).result() == 3
        probe.add(4)
        for failing in (probe.fail_sync, probe.fail_async):
            with pytest.raises(ProbeError):
                failing("ProbeError", "first line\nsecond line").result()
        lines = server.lines()
    assert [(line["action"], line["outcome"], line["reason"]) for line in lines] == [
        ("probe/rename", "done", ""),
        ("probe/add_sync", "done", ""),
        ("probe/add", "done", ""),
        ("probe/fail_sync", "failed", "first line"),
        ("probe/fail_async", "failed", "first line"),
    ]
    assert {(line["user"], line["role"]) for line in lines} == {("local:ada", "local")}
    (source,) = {line["source"] for line in lines}
    if server.config.socket_dir is None:
        assert source.startswith("127.0.0.1:")
    else:
        assert source == f"unix:{os.getpid()}"


def test_a_component_has_no_lines_for_its_calls_and_one_that_is_none_has(
    server: AuditedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CALLS, "probe/rename", ANYONE)  # so an unnamed caller has lines too
    other = LoopThread()

    async def call(name: str, recorder: CallAudit | None) -> Item:
        service = RpcService(other.loop, SECRET, RpcConfig(socket_dir=server.config.socket_dir), recorder)
        try:
            return await service.gateway(server.address, ProbeGateway).rename(Item("a"), name)
        finally:
            await service.close()

    try:
        with server.closing():
            assert other.do(call("b", CallAudit(tmp_path / "its.jsonl"))) == Item("b", 1)
            assert other.do(call("c", None)) == Item("c", 1)
            lines = [(line["user"], line["action"]) for line in server.lines()]
        assert lines == [("local:unnamed", "probe/rename")]
    finally:
        other.end()


def test_a_call_for_a_former_leader_has_no_line_since_the_client_repeats_it(server: AuditedServer) -> None:
    with server.closing(), client_of(server) as client:
        address = server.service.address_of("/user/leader")
        with pytest.raises(FencingError):
            client.gateway(address, LeaderGateway, FencingToken(1, "old")).lead().result()
        server.leader.fencing_token = FencingToken(2, "new")
        assert client.gateway(address, LeaderGateway, FencingToken(2, "new")).lead().result() == "led"
        assert [(line["action"], line["outcome"]) for line in server.lines()] == [("leader/lead", "done")]


def test_a_call_is_answered_while_its_line_waits_for_the_disk(
    server: AuditedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = threading.Event(), AuditLog.write

    def slow(log: AuditLog, entry: AuditEntry) -> None:
        disk.wait()
        write(log, entry)

    monkeypatch.setattr(AuditLog, "write", slow)
    with server.closing(), client_of(server) as client:
        probe = client.gateway(server.address, ProbeGateway)
        try:
            assert [probe.add_sync(number).result() for number in range(3)] == [0, 1, 2]
            assert not server.audit.exists()
        finally:
            disk.set()
        assert len(server.lines()) == 3, "the end of the process waits for them"
