from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from conf import Configuration
from runtime import retry
from runtime.cluster import preflight
from runtime.cluster.preflight import (
    Check,
    check_disk_space,
    check_file_limit,
    check_port_free,
    check_web_endpoint,
    check_writable,
    examine,
    require,
    standard_checks,
)
from runtime.errors import PreflightError
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import RedisUnreachableError


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def fail() -> str:
    raise PreflightError("no Java", "install one")


def test_a_taken_port_names_its_holder(listener: int) -> None:
    with pytest.raises(PreflightError) as caught:
        check_port_free("127.0.0.1", listener, "jobmanager.rpc.port")
    assert str(caught.value).startswith(f"port {listener} is taken by process {os.getpid()} (")
    assert "-D jobmanager.rpc.port=PORT" in caught.value.remedy


def test_a_taken_port_of_the_web_endpoint_names_its_holder(listener: int) -> None:
    with pytest.raises(PreflightError) as caught:
        check_web_endpoint(Configuration.from_dict({"rest.port": listener}))
    assert f": port {listener} of 127.0.0.1 is taken by process {os.getpid()} (" in str(caught.value)


def test_an_address_of_another_machine_has_no_holder(listener: int) -> None:
    """A process at the same port of another address is not the cause."""
    web = {"rest.port": listener, "rest.bind-address": "192.0.2.1", "rest.allow-insecure": True}
    with pytest.raises(PreflightError, match="cannot listen on") as caught:
        check_web_endpoint(Configuration.from_dict(web))
    assert "by process" not in str(caught.value)


def test_a_taken_port_whose_holder_is_hidden(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def denied(**_: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    with pytest.raises(PreflightError, match=rf"^port {listener} is taken$"):
        check_port_free("127.0.0.1", listener, "k")


def test_a_free_port(listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert check_port_free("127.0.0.1", port, "k") == f"127.0.0.1:{port} is free"
    assert check_port_free("localhost", port, "k")


def test_hosts_that_are_not_here() -> None:
    with pytest.raises(PreflightError, match="not an address of this machine"):
        check_port_free("203.0.113.1", 6123, "k")
    with pytest.raises(PreflightError, match=r"cannot resolve the host 'no.such.host.invalid'"):
        check_port_free("no.such.host.invalid", 6123, "k")


def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_writable(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match="is not a directory"):
        check_writable(tmp_path / "file" / "c")
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write anywhere
    with pytest.raises(PreflightError, match="no permission"):
        check_writable(tmp_path / "a")


def test_disk_space(tmp_path: Path) -> None:
    assert check_disk_space(tmp_path / "not" / "yet", 1).endswith("MB free")
    with pytest.raises(PreflightError, match="are needed"):
        check_disk_space(tmp_path, 1 << 60)


def test_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert check_file_limit(1024) == "1024 allowed"
    assert limits[-1] == (1024, 4096)
    with pytest.raises(PreflightError, match="only 4096 files, 5000 are needed"):
        check_file_limit(5000)
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert check_file_limit(5000) == "no limit"


def test_standard_checks(tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "HEADROOM", 0)
    base = {"cluster.runtime-dir": tmp_path, "blob.disk-reserve": 1, "jobmanager.rpc.port": 0, "rest.port": 0}
    java, redis = (lambda: "Java 21"), (lambda: "redis-server 7")
    results = require(standard_checks(Configuration.from_dict(base), java, redis))
    found = [result.name for result in results]
    assert found == ["runtime directory", "disk space", "open files", "web endpoint", "Java", "Redis"]
    assert all(result.ok for result in results)
    taken = Configuration.from_dict({**base, "blob.server.port": listener})
    with pytest.raises(PreflightError, match=rf"port {listener} is taken"):
        require(standard_checks(taken))
    web = Configuration.from_dict({**base, "rest.port": listener})
    with pytest.raises(PreflightError, match=rf"port {listener} of 127\.0\.0\.1") as caught:
        require(standard_checks(web))
    assert "rest.port=PORT" in caught.value.remedy
    without = standard_checks(Configuration.from_dict({**base, "rest.port": listener, "rest.enabled": False}))
    assert "web endpoint" not in [check.name for check in without]


def test_a_wrong_file_of_queues_is_found_before_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "HEADROOM", 0)
    file = tmp_path / "queues.yaml"
    base = {"cluster.runtime-dir": tmp_path, "blob.disk-reserve": 1, "queues.file": file}
    checks = standard_checks(Configuration.from_dict(base), with_ports=False)
    with pytest.raises(PreflightError, match=r"queues\.yaml: No such file or directory$") as missing:
        require(checks)
    assert missing.value.remedy == "create the file, or unset queues.file"
    file.write_text("queues: {etl: {slots: 0}}")
    with pytest.raises(PreflightError, match=r"queues\.etl\.slots"):
        require(checks)
    file.write_text("queues: {etl: {slots: 1}}")
    assert [result.detail for result in require(checks) if result.name == "queues.file"] == ["etl, default"]


def test_every_finding_at_once() -> None:
    results = examine([Check("a", lambda: "fine"), Check("b", fail), Check("c", lambda: "fine too")])
    assert [(result.name, result.ok, result.remedy) for result in results] == [
        ("a", True, ""),
        ("b", False, "install one"),
        ("c", True, ""),
    ]
    with pytest.raises(PreflightError):
        require([Check("b", fail)])
    with pytest.raises(ZeroDivisionError):
        examine([Check("bug", lambda: str(1 // 0))])


def test_a_start_waits_for_a_redis_that_is_busy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, failures, clock = RedisUnreachableError("127.0.0.1:1", "no reply within 1 s"), [0], [0.0]

    async def check(_: RedisConnection) -> str:
        failures[0] -= 1
        if failures[0] >= 0:
            raise busy
        return "Redis 7"

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(RedisConnection, "check", check)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    configuration = Configuration.from_dict({"high-availability.redis.url": "redis://127.0.0.1:1"})
    for attempts in (0, 3):
        said: list[str] = []
        failures[0] = attempts
        assert preflight.describe_redis(configuration, said.append) == "Redis 7"
        assert said == ["Redis does not answer: trying again for 10 s (no reply within 1 s)"][:attempts]
    clock[0], failures[0] = 0.0, 1000
    with pytest.raises(RedisUnreachableError):
        preflight.describe_redis(configuration, said.append)
    assert 9.0 < clock[0] <= 10.0
    failures[0] = 1
    with pytest.raises(RedisUnreachableError):  # `doctor` shows how it is now
        preflight.describe_redis(configuration)
