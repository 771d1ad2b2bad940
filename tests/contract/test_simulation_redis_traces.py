"""Traces of real runs on a real redis-server, replayed against the simulator's model of Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runtime.ha import scripts
from tests.contract.redis_traces import Difference, Started, Trace, record, replay
from tests.simulation.redis import RedisData

Wrong = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return asyncio.run(record(tmp_path_factory.mktemp("traces")))


def test_the_model_answers_as_the_server_did(trace: Trace) -> None:
    model = replay(trace)
    assert model.values == {}  # the cluster was cleaned up at the end


def test_the_run_had_all_that_the_model_has(trace: Trace) -> None:
    names = {step.name for step in trace.executed}
    known = {script.name for script in vars(scripts).values() if isinstance(script, scripts.Script)}
    assert names >= known
    assert names >= {"PING", "HGET", "HGETALL", "HKEYS", "SCAN", "UNLINK"}
    assert sum(isinstance(step, Started) for step in trace.steps) == 2
    granted = {step.reply[1] for step in trace.executed if step.name == "acquire" and step.reply[0] == 1}
    assert len(granted) >= 5
    assert any(step.name.startswith("fenced") and step.reply[0] == -1 for step in trace.executed)


def _holds_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisData, "_holds", lambda self, latch, session, epoch: True)


def _never_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisData, "_purge", lambda self, key: None)


def _expires_late(patch: pytest.MonkeyPatch) -> None:
    expire = RedisData._expire
    patch.setattr(RedisData, "_expire", lambda self, key, milliseconds: expire(self, key, 2 * milliseconds))


def _publishes_nothing(patch: pytest.MonkeyPatch) -> None:
    begun = RedisData.__init__
    patch.setattr(RedisData, "__init__", lambda self, clock, info, publish: begun(self, clock, info))


def _counts_epochs(patch: pytest.MonkeyPatch) -> None:
    acquire = RedisData._acquire

    def wrong(self: RedisData, keys: list[str], arguments: list[str]) -> Any:
        found = acquire(self, keys, arguments)
        return [found[0], found[1] + found[0], found[2]]

    patch.setattr(RedisData, "_acquire", wrong)


def _compares_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisData, "_compared", lambda self, keys, arguments: self._refusal(keys[0], arguments))


def _remembers_scripts(patch: pytest.MonkeyPatch) -> None:
    shas = {script.sha for script in vars(scripts).values() if isinstance(script, scripts.Script)}
    run = RedisData._run

    def wrong(self: RedisData, how: str, rest: list[str]) -> Any:
        self.known_scripts |= shas
        return run(self, how, rest)

    patch.setattr(RedisData, "_run", wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        _holds_always,
        _never_expires,
        _expires_late,
        _publishes_nothing,
        _counts_epochs,
        _compares_nothing,
        _remembers_scripts,
    ],
)
def test_a_model_that_is_wrong_is_found(trace: Trace, wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(monkeypatch)
    with pytest.raises(Difference):
        replay(trace)
