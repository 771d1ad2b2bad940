# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from runtime.ha.connection import RedisConnection
from runtime.ha.errors import (
    RedisAuthenticationError,
    RedisBinaryNotFoundError,
    RedisInUseError,
    RedisRequirementError,
    RedisServerError,
    RedisSocketPathError,
)
from runtime.ha.redis_process import EmbeddedRedis
from tests.cluster_harness import await_value
from tests.fakes.redis_server import RedisServer, is_begun, redis_server, slow_redis, until  # noqa: F401
from tests.waiting import PATIENCE_S


async def _set(server: EmbeddedRedis, value: str) -> None:
    connection = RedisConnection(server.url, timeout=PATIENCE_S)
    await connection.command("SET", "k", value)
    await connection.close()


async def _get(server: EmbeddedRedis) -> object:
    connection = RedisConnection(server.url, timeout=PATIENCE_S)
    value = await connection.command("GET", "k")
    await connection.close()
    return value


async def test_it_is_private_and_fit(redis_server: RedisServer) -> None:
    assert stat.S_IMODE(redis_server.socket_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(redis_server.directory.stat().st_mode) == 0o700
    for entry in redis_server.directory.iterdir():
        if entry.is_file():
            assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0, entry
    password = redis_server.url.split(":")[2].split("@")[0]
    command_line = Path(f"/proc/{redis_server.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{redis_server.pid}/environ").read_bytes()
    assert password.encode() not in command_line + environment + redis_server.log_path.read_bytes()
    assert password not in repr(redis_server)
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    check = await connection.check()
    assert check.persistent
    assert "fit" in check.verdict
    assert not check.warnings
    for setting in (["port", "0"], ["appendfsync", "always"]):
        assert await connection.command("CONFIG", "GET", setting[0]) == setting
    await connection.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(RedisRequirementError, match="allkeys-lru"):
        await connection.check()
    await connection.close()


@pytest.mark.parametrize("credentials", ["", ":wrong@"])
async def test_nobody_enters_without_the_password(redis_server: RedisServer, credentials: str) -> None:
    connection = RedisConnection(f"unix://{credentials}{redis_server.socket_path}")
    with pytest.raises(RedisAuthenticationError, match="refuses the credentials") as raised:
        await connection.command("PING")
    assert "wrong" not in str(raised.value)
    await connection.close()


async def test_data_and_password_outlive_kill_and_stop(redis_server: RedisServer) -> None:
    url = redis_server.url
    await _set(redis_server, "1")
    redis_server.kill()
    assert redis_server.pid is None
    await redis_server.start_async()
    assert await _get(redis_server) == "1"
    await _set(redis_server, "2")
    await redis_server.stop_async()
    assert not redis_server.socket_path.exists()
    await redis_server.start_async()
    assert await _get(redis_server) == "2"
    assert redis_server.url == url


async def test_its_end_is_noticed(redis_server: RedisServer) -> None:
    waiting = asyncio.create_task(redis_server.wait_ended())
    await asyncio.sleep(0)
    assert not waiting.done()
    redis_server.kill()
    await asyncio.wait_for(waiting, PATIENCE_S)


def test_another_process_attaches_and_stops_it(redis_server: RedisServer) -> None:
    other = EmbeddedRedis(redis_server.directory)
    with pytest.raises(RedisInUseError, match=str(redis_server.pid)):
        other.start()
    assert other.attach()
    assert other.pid == redis_server.pid
    other.stop()
    assert redis_server.pid is None
    assert not other.attach()
    other.stop()


def test_stop_ends_even_one_that_hangs(redis_server: RedisServer) -> None:
    redis_server.pause()
    redis_server.stop(timeout=0.3)
    assert redis_server.pid is None


def test_one_whose_starter_was_killed_is_stopped_before_it_has_written_its_number(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis")
    start = f"EmbeddedRedis(Path({str(server.directory)!r}), binary={str(slow_redis(tmp_path))!r}).start(600)"
    code = f"from pathlib import Path; from runtime.ha.redis_process import EmbeddedRedis; {start}"
    with subprocess.Popen([sys.executable, "-c", code]) as starter:
        await_value(lambda: is_begun(server.directory))
        starter.kill()
    assert server.pid is None
    with ThreadPoolExecutor(1) as stopping:
        stopped = stopping.submit(server.stop)
        assert not wait([stopped], timeout=0.1).done
        (tmp_path / "go").touch()
        stopped.result(PATIENCE_S)
    assert not is_begun(server.directory)


def test_a_socket_in_use_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    with pytest.raises(RedisInUseError, match="another server"):
        EmbeddedRedis(tmp_path / "other", socket_path=redis_server.socket_path).start()
    assert redis_server.attach()


def test_a_long_socket_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RedisSocketPathError, match="shorter path"):
        EmbeddedRedis(tmp_path / ("x" * 100))


def test_no_binary_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RedisBinaryNotFoundError, match=r"not an executable.*redis-server\]"):
        EmbeddedRedis(tmp_path / "r", binary=str(tmp_path / "none")).start()
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisBinaryNotFoundError, match=r"version 5\.0.*high-availability\.redis\.url"):
        EmbeddedRedis(tmp_path / "r").start()


async def test_one_that_does_not_come_up_has_its_log_quoted(redis_server: RedisServer) -> None:
    await _set(redis_server, "1")
    redis_server.stop()
    for file in redis_server.directory.rglob("*.aof"):
        file.write_bytes(b"nonsense")
    with pytest.raises(RedisServerError, match=r"did not come up: it has ended. Its log .*redis.log\) ends: "):
        redis_server.start()
    assert redis_server.pid is None


async def test_a_call_that_is_given_up_does_not_disturb_the_next(redis_server: RedisServer) -> None:
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S, max_connections=1)
    await connection.command("SET", "k", "v")
    redis_server.pause()
    connection.timeout = 0.5
    call = asyncio.create_task(connection.command("ECHO", "old"))
    await until(lambda: call.done())
    assert call.exception() is not None
    connection.timeout = PATIENCE_S
    redis_server.resume()
    assert await connection.command("GET", "k") == "v"
    await connection.close()
