from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from redis import exceptions as redis_errors

from runtime.ha.connection import RedisConnection, SentinelUrl, assess, describe_url
from runtime.ha.errors import RedisRequirementError, RedisUnreachableError
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch

FIT = {"redis_version": "6.2.14", "maxmemory_policy": "noeviction", "aof_enabled": 1, "role": "master"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "localhost:6379"),
        ("redis://user:s3cret@example.org:7000/2", "example.org:7000/2"),
        ("rediss://:s3cret@[::1]:7000/0", "[::1]:7000"),
        ("redis://host?db=3", "host:6379/3"),
        ("unix://:s3cret@/run/redis.sock", "unix:/run/redis.sock"),
        ("unix:///run/redis.sock?password=s3cret", "unix:/run/redis.sock"),
        ("redis+sentinel://u:s3cret@a:7000,b,[::1]:1/main/2", "main of the Sentinels a:7000,b:26379,[::1]:1/2"),
        ("rediss+sentinel://a/main?sentinel-password=s3cret&ssl_cert_reqs=none", "main of the Sentinels a:26379"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert describe_url(url) == shown
    assert "s3cret" not in repr(RedisConnection(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://:s3cret@host",
        "redis://:s3cret@",
        "redis://:s3c/ret@host:1",
        "redis://h:s3cret",
        "unix://:s3cret@x",
        "redis+sentinel://:s3cret@a:1,b:1",
        "redis+sentinel://:s3cret@a:1,/main",
        "redis+sentinel://:s3c/ret@a:1/main",
        "redis+sentinel://a:1/main/s3cret",
        "redis+sentinel://a:s3cret/main",
        "redis",
    ],
)
def test_an_unusable_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match="Redis URL") as raised:
        describe_url(url)
    assert "s3c" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_the_parts_of_a_url_for_sentinel() -> None:
    url = SentinelUrl.parse("redis+sentinel://me:p%40ss@a:1,b/main/3?sentinel-username=s&sentinel-password=t%26")
    assert url.hosts == (("a", 1), ("b", 26379))
    assert (url.service, url.database, url.tls) == ("main", 3, None)
    assert url.credentials == {"username": "me", "password": "p@ss"}
    assert url.sentinel_credentials == {"username": "s", "password": "t&"}
    assert "p@ss" not in repr(url)
    secure = SentinelUrl.parse("rediss+sentinel://a/main?ssl_ca_certs=/ca.pem")
    assert (secure.tls, secure.credentials, secure.database) == ({"ssl_ca_certs": "/ca.pem"}, {}, 0)


def test_with_sentinel_a_master_that_takes_writes_alone_is_warned_of() -> None:
    assert "min-replicas-to-write" in assess("h:1", FIT, has_sentinels=True).warnings[0]
    assert not assess("h:1", FIT | {"min_slaves_good_slaves": 1}, has_sentinels=True).warnings
    assert not assess("h:1", FIT).warnings


def test_a_fit_server_gets_one_line() -> None:
    check = assess("h:1", FIT)
    assert check.verdict == "Redis 6.2.14 at h:1: fit (noeviction, append-only file)"
    assert check.persistent
    assert not check.warnings


def test_a_server_that_forgets_is_warned_of() -> None:
    check = assess("h:1", FIT | {"aof_enabled": 0})
    assert not check.persistent
    assert "appendonly yes" in check.warnings[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"redis_version": "6.0.16"}, "6.2 or later"),
        ({"redis_version": "5.0.1"}, "6.2 or later"),
        ({"maxmemory_policy": "allkeys-lru"}, "noeviction"),
        ({"role": "slave"}, "replica"),
    ],
)
def test_an_unfit_server_is_refused_with_the_remedy(change: dict[str, str], said: str) -> None:
    with pytest.raises(RedisRequirementError, match=said):
        assess("h:1", FIT | change)


async def test_an_unreachable_server_is_named_with_the_remedy_and_without_the_password() -> None:
    connection = RedisConnection("redis://:s3cret@127.0.0.1:1/0")
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), "dispatcher", 3.0)
    with pytest.raises(RedisUnreachableError, match=r"127\.0\.0\.1:1 cannot be reached.*redis\.url") as raised:
        await latch.acquire("s", 0)
    assert "s3cret" not in str(raised.value)
    await connection.close()


@pytest.mark.parametrize("ended_first", [True, False])
async def test_the_error_of_a_cancelled_call_is_not_reported_as_one_that_nobody_has_seen(
    monkeypatch: pytest.MonkeyPatch, ended_first: bool
) -> None:
    connection, answer = RedisConnection("redis://127.0.0.1:1/0"), asyncio.Event()
    loop, reported = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda loop, context: reported.append(context["message"]))

    async def execute(*arguments: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # redis-py may lose one, too, when a connection breaks
            await answer.wait()
        raise redis_errors.ConnectionError("gone")

    monkeypatch.setattr(connection._client, "execute_command", execute)
    call = asyncio.create_task(connection.command("GET", "key"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if ended_first:  # the request ends, and the caller is cancelled before it hears of that
        answer.set()
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()
    del call  # with its traceback, which holds the request
    await connection.close()
    gc.collect()
    assert reported == []


@pytest.mark.parametrize("name", ["", "a*", "a{b}", "../x", "a b", "x" * 200])
def test_names_that_could_reach_other_keys_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        ClusterKeys(name)
    with pytest.raises(ValueError, match="must be"):
        ClusterKeys("c").leader(name)


def test_all_keys_share_one_hash_tag() -> None:
    keys = ClusterKeys("c-1")
    names = [keys.epoch, keys.changes, keys.running_jobs, keys.leader("rest"), keys.handles("jobgraphs")]
    assert len(set(names)) == len(names)
    assert all(name.startswith("{understudy:c-1}:") for name in names)
