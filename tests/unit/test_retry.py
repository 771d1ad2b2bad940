"""Trying again: after which errors, with which pauses, and what the log says of it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace

import pytest

from actors.supervision import Backoff
from actors.testkit import VirtualLoop
from runtime.retry import pauses, retry

log = logging.getLogger("retries")
EVEN = Backoff(1.0, 5.0, jitter=0.0)


class Attempts:
    """Fails as the test says; then returns when it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.at: list[float] = []

    async def __call__(self) -> list[float]:
        self.at.append(round(asyncio.get_running_loop().time(), 6))
        if self.errors:
            raise self.errors.pop(0)
        return [at - self.at[0] for at in self.at]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def test_pauses_grow_to_their_limit_and_are_spread() -> None:
    assert list(islice(pauses(EVEN), 5)) == [1.0, 2.0, 4.0, 5.0, 5.0]
    spread = list(islice(pauses(Backoff(1.0, 5.0, jitter=0.5), random.Random(1)), 5))
    again = list(islice(pauses(Backoff(1.0, 5.0, jitter=0.5), random.Random(1)), 5))
    assert spread == again
    for least, pause_s in zip([1.0, 2.0, 4.0, 5.0, 5.0], spread, strict=True):
        assert least < pause_s <= 1.5 * least


def test_what_fails_is_tried_again_until_it_does_not(loop: VirtualLoop) -> None:
    attempt = Attempts(OSError("no"), OSError("no"), OSError("no"), OSError("no"))
    work = retry(attempt, OSError, what="it", log=log, backoff=EVEN)
    assert loop.run_until_complete(work) == pytest.approx([0.0, 1.0, 3.0, 7.0, 12.0])


def test_other_errors_and_exempted_ones_are_raised(loop: VirtualLoop) -> None:
    for error in (ValueError("another"), FileNotFoundError("exempted")):
        attempt = Attempts(OSError("no"), error)
        with pytest.raises(type(error)):
            loop.run_until_complete(retry(attempt, OSError, unless=FileNotFoundError, what="it", log=log, backoff=EVEN))
        assert len(attempt.at) == 2


def test_who_is_cancelled_tries_no_more(loop: VirtualLoop) -> None:
    attempt = Attempts(*[OSError("no")] * 9)
    task = loop.create_task(retry(attempt, OSError, what="it", log=log, backoff=EVEN))
    loop.drive(1.5)
    task.cancel()
    loop.drive(60.0)
    assert task.cancelled()
    assert len(attempt.at) == 2


def test_a_failure_is_logged_once_however_often_it_repeats(loop: VirtualLoop, caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempts(OSError("no"), OSError("no"), OSError("no"), OSError("full"), OSError("full"))
    with caplog.at_level(logging.INFO):
        loop.run_until_complete(retry(attempt, OSError, what="registering", log=log, backoff=EVEN))
    assert caplog.messages == ["registering is tried again: no", "registering is tried again: full"]


def test_who_has_no_more_patience_gets_the_last_error(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.retry.time", SimpleNamespace(monotonic=loop.time))
    attempt = Attempts(*[OSError(f"the error {number}") for number in range(9)])
    work = retry(attempt, OSError, what="it", log=log, backoff=EVEN, patience_s=7.0)
    with pytest.raises(OSError, match="the error 3"):
        loop.run_until_complete(work)
    assert [at - attempt.at[0] for at in attempt.at] == pytest.approx([0.0, 1.0, 3.0, 7.0])
