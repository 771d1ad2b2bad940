"""The simulator's model of Redis answers as a real redis-server, over generated sequences of our scripts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions as redis_errors

from runtime.ha import scripts
from tests.fakes.redis_server import RedisServer
from tests.simulation.redis import RedisData

LEASE_MS = 600_000
LATCHES, MAPS, SESSIONS = ("latch:a", "latch:b"), ("map:a", "map:b"), ("s1", "s2", "s3")
EPOCH, INCARNATION = "epoch", "incarnation"
HIGH = 2**45
"""Above any clock in milliseconds: so that the two servers grant the same epochs."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    directory: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(directory / "redis")
    server.start()
    found = redis.Redis.from_url(server.url, decode_responses=True)
    yield found
    found.close()
    server.stop()


class Both:
    """A real server and the model, which get the same commands."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client = client
        self.rng = random.Random(seed)
        self.client.flushall()
        self.client.script_flush()
        self.published: list[tuple[str, str]] = []
        info: dict[str, Any] = dict(client.info())
        self.info = {
            name: str(info[name])
            for name in ("run_id", "master_replid", "master_replid2", "uptime_in_seconds", "aof_enabled")
        }
        now = int(client.time()[0]) * 1000
        self.model = RedisData(lambda: now, lambda: self.info, lambda *what: self.published.append(what))
        self.epochs = [HIGH]

    def both(self, *command: str | int) -> Any:
        """Execute a command on both; return the reply, which has to be the same."""
        try:
            real = self.client.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis_errors.NoScriptError:
            real = "NOSCRIPT"
        model = self.model.execute(*command)
        if isinstance(model, redis_errors.NoScriptError):
            model = "NOSCRIPT"
        assert _normal(model) == _normal(real), command
        return real

    def script(self, script: scripts.Script, keys: tuple[str, ...], *arguments: str | int) -> Any:
        """Run a script by its digest, or by its source if it is not known."""
        rest = (len(keys), *keys, *arguments)
        reply = self.both("EVALSHA", script.sha, *rest)
        return self.both("EVAL", script.source, *rest) if reply == "NOSCRIPT" else reply

    def step(self) -> None:
        """Do something."""
        rng = self.rng
        latch, key, session = rng.choice(LATCHES), rng.choice(MAPS), rng.choice(SESSIONS)
        epoch, field, value = rng.choice(self.epochs[-4:]), rng.choice("xyz"), rng.choice(("1", "2"))
        match rng.randrange(12):
            case 0 | 1 | 2:
                floor = rng.choice((HIGH, HIGH, max(self.epochs)))
                reply = self.script(scripts.ACQUIRE, (latch, EPOCH, INCARNATION), session, LEASE_MS, floor)
                if reply[1]:
                    self.epochs.append(int(reply[1]))
            case 3:
                confirmed = rng.choice(((), ("changes", "a", "address"), ("changes", "a", "another")))
                self.script(scripts.RENEW, (latch,), session, epoch, LEASE_MS, *confirmed)
            case 4:
                self.script(scripts.RELEASE, (latch,), session, epoch, "changes", "a")
            case 5:
                self.script(scripts.CONFIRM, (latch,), session, epoch, "changes", "a", "address")
            case 6:
                self.script(scripts.LEADERS, LATCHES)
            case 7:
                self.script(scripts.FENCED_DEL, (latch, rng.choice((LATCHES[0], key))), session, epoch)
            case 8 | 9:
                demand, expected = rng.choice((("any", ""), ("absent", ""), ("equals", "1"), ("equals", "2")))
                self.script(scripts.FENCED_HSET, (latch, key), session, epoch, field, demand, expected, value)
            case 10:
                demand, expected = rng.choice((("any", ""), ("absent", ""), ("equals", "1")))
                self.script(scripts.FENCED_HDEL, (latch, key), session, epoch, field, demand, expected)
            case 11:
                self.both("HGET", key, field)
                self.both("HGETALL", key)
                self.both("HKEYS", key)


def _normal(reply: Any) -> Any:
    """A reply without what differs between two servers: the exact rest of a lease."""
    if isinstance(reply, list) and len(reply) == 3 and isinstance(reply[2], int) and not isinstance(reply[0], list):
        return [reply[0], reply[1], LEASE_MS - 60_000 < reply[2] <= LEASE_MS]
    return reply


def compare(client: redis.Redis, seeds: Iterable[int]) -> int:
    """Give both the same commands; return how many epochs they granted."""
    epochs = 0
    for seed in seeds:
        both = Both(client, seed)
        for _ in range(120):
            both.step()
        epochs += len(both.epochs)
    return epochs


@pytest.mark.parametrize("seed", range(25))
def test_the_model_answers_as_the_server(client: redis.Redis, seed: int) -> None:
    assert compare(client, [seed]) > 3


def test_both_grant_nothing_for_a_lease_after_a_loss(client: redis.Redis) -> None:
    both = Both(client, 1)
    assert both.script(scripts.ACQUIRE, (LATCHES[0], EPOCH, INCARNATION), "s", LEASE_MS, HIGH)[0] == 1
    client.config_set("appendonly", "no")  # only now: a server that forgets, in its first second, would grant nothing
    both.info["aof_enabled"] = "0"
    try:
        client.hset(INCARNATION, "run", "another")
        both.model.values[INCARNATION]["run"] = "another"  # type: ignore[index]
        reply = both.script(scripts.ACQUIRE, (LATCHES[1], EPOCH, INCARNATION), "s", LEASE_MS, HIGH)
        assert reply[:2] == [0, 0]
    finally:
        client.config_set("appendonly", "yes")


def test_both_shorten_what_a_clock_that_was_set_back_has_lengthened(client: redis.Redis) -> None:
    both, hour = Both(client, 2), 3_600_000
    latch = LATCHES[0]
    both.script(scripts.ACQUIRE, (latch, EPOCH, INCARNATION), "s", LEASE_MS, HIGH)
    for _ in range(2):
        client.pexpire(latch, LEASE_MS + hour)
        both.model._expire(latch, LEASE_MS + hour)
        reply = both.script(scripts.ACQUIRE, (latch, EPOCH, INCARNATION), "t", LEASE_MS // 2, HIGH)
        assert LEASE_MS - 60_000 < reply[2] <= LEASE_MS
        client.hdel(latch, "lease")  # as the former release leaves it: then it stays so long
        del both.model._hash(latch)["lease"]
        client.pexpire(latch, LEASE_MS + hour)
        both.model._expire(latch, LEASE_MS + hour)
        assert both.script(scripts.ACQUIRE, (latch, EPOCH, INCARNATION), "t", LEASE_MS // 2, HIGH)[2] > LEASE_MS
        client.hset(latch, "lease", LEASE_MS)
        both.model._hash(latch)["lease"] = str(LEASE_MS)


def test_both_shorten_a_pause_that_a_clock_that_was_set_back_has_lengthened(client: redis.Redis) -> None:
    both = Both(client, 3)
    both.script(scripts.ACQUIRE, (LATCHES[0], EPOCH, INCARNATION), "s", LEASE_MS, HIGH)
    until = str(int(client.time()[0]) * 1000 + LEASE_MS + 3_600_000)
    client.hset(INCARNATION, mapping={"until": until, "pause": LEASE_MS})
    both.model._hash(INCARNATION).update({"until": until, "pause": str(LEASE_MS)})
    for _ in range(2):
        reply = both.script(scripts.ACQUIRE, (LATCHES[1], EPOCH, INCARNATION), "s", LEASE_MS // 2, HIGH)
        assert reply[:2] == [0, 0]
        assert LEASE_MS - 60_000 < reply[2] <= LEASE_MS


def test_a_model_that_is_wrong_is_found(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisData, "_holds", lambda self, latch, session, epoch: True)
    with pytest.raises(AssertionError):
        compare(client, range(5))
