from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.dead_letters import DeadLetters, LogSample
from actors.errors import MailboxFull
from actors.messages import DeadLetter
from actors.ref import ActorRef, Origin

ORIGIN = Origin("sys", "host", 1)
RECIPIENT = ActorRef(None, ORIGIN, "/user/gone", 7)
SENDER = ActorRef(None, ORIGIN, "/user/sender", 8)


class ManualLoop:
    """A clock that is set by hand, with its timers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.numbers = itertools.count()
        self.timers: list[tuple[float, int, ManualTimer]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self.timers, (when, next(self.numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, _, timer = heapq.heappop(self.timers)
            if timer.callback is not None:
                timer.callback()
        self.now = end

    @property
    def armed(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self.timers)


class ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def published() -> list[DeadLetter]:
    return []


@pytest.fixture
def letters(loop: ManualLoop, published: list[DeadLetter]) -> DeadLetters:
    return DeadLetters(loop, published.append)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "actors.core.dead_letters"]
    caplog.clear()
    return found


def test_counted_published_and_logged(
    letters: DeadLetters, published: list[DeadLetter], caplog: pytest.LogCaptureFixture
) -> None:
    letters.put({"password": "secret"}, SENDER, RECIPIENT)
    letters.put("x", None, RECIPIENT, MailboxFull("the mailbox of /user/gone is full"))
    assert letters.count == 2
    assert published == [DeadLetter({"password": "secret"}, SENDER, RECIPIENT), DeadLetter("x", None, RECIPIENT)]
    assert lines(caplog) == [
        "dead letter: a message of type dict from /user/sender to akka.tcp://sys@host:1/user/gone#7 was not delivered: "
        "the recipient has stopped, or never was",
        "dead letter: a message of type str from nobody to akka.tcp://sys@host:1/user/gone#7 was not delivered: "
        "the mailbox of /user/gone is full",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_dead_letter_that_is_one_is_not_published_again(letters: DeadLetters, published: list[DeadLetter]) -> None:
    letters.put(DeadLetter("x", None, RECIPIENT), None, RECIPIENT)
    assert letters.count == 1
    assert published == []


def test_ten_lines_a_minute_and_one_for_the_rest(
    letters: DeadLetters, loop: ManualLoop, published: list[DeadLetter], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(25):
        letters.put("x", None, RECIPIENT)
        loop.advance(1.0)
    assert len(lines(caplog)) == 10
    assert loop.armed == 1
    loop.advance(34.9)
    assert lines(caplog) == []
    loop.advance(0.2)
    assert lines(caplog) == ["dead letters: 15 more in the last 60 s; 25 in all"]
    assert loop.armed == 0
    letters.put("x", None, RECIPIENT)
    assert len(lines(caplog)) == 1
    assert letters.count == len(published) == 26


def test_no_timer_while_nothing_is_left_out(letters: DeadLetters, loop: ManualLoop) -> None:
    for _ in range(10):
        letters.put("x", None, RECIPIENT)
    assert loop.armed == 0


def test_a_new_window_opens_though_the_timer_is_late(
    letters: DeadLetters, loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(12):
        letters.put("x", None, RECIPIENT)
    lines(caplog)
    loop.now += 61  # the loop was busy: the timer has not run yet
    letters.put("x", None, RECIPIENT)
    said = lines(caplog)
    assert said[0] == "dead letters: 2 more in the last 60 s; 13 in all"
    assert len(said) == 2
    assert loop.armed == 0


def test_closing_tells_what_was_left_out(
    letters: DeadLetters, loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(12):
        letters.put("x", None, RECIPIENT)
    lines(caplog)
    letters.close()
    assert lines(caplog) == ["dead letters: 2 more in the last 60 s; 12 in all"]
    assert loop.armed == 0
    letters.close()
    assert lines(caplog) == []


def test_silence(letters: DeadLetters, published: list[DeadLetter], caplog: pytest.LogCaptureFixture) -> None:
    letters.silent = True
    for _ in range(20):
        letters.put("x", None, RECIPIENT)
    letters.close()
    assert lines(caplog) == []
    assert letters.count == len(published) == 20


@given(st.lists(st.floats(0, 100), max_size=80), st.integers(1, 5))
def test_no_window_has_more_lines_than_allowed_and_none_is_forgotten(steps: list[float], allowed: int) -> None:
    sample = LogSample(allowed, 60)
    now = left_out = 0.0
    logged: list[float] = []
    for step in steps:
        now += step
        if now >= sample.ends:
            left_out += sample.close()
        if sample.note(now):
            logged.append(now)
    assert len(logged) + left_out + sample.close() == len(steps)
    start = float("-inf")
    in_window = 0
    for when in logged:
        if when >= start + 60:
            start, in_window = when, 0
        in_window += 1
        assert in_window <= allowed


def test_a_message_whose_text_cannot_be_had_is_no_obstacle(letters: DeadLetters) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    message: Any = Hostile()
    letters.put(message, None, RECIPIENT)
    assert letters.count == 1
