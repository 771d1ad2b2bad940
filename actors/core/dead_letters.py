"""Dead letters (Akka's ``DeadLetterActorRef`` and ``DeadLetterListener``): messages that could not be delivered.

They are counted, logged in samples, and published on the event stream as `DeadLetter`. That an ask among them fails at
once, and what is no loss (a `PoisonPill` for a dead actor), is the node's to see to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from actors.messages import DeadLetter
from actors.ref import ActorRef

logger = logging.getLogger(__name__)

LINES = 10
WINDOW_S = 60.0


class LogSample:
    """Which of many events to log: the first few of each window. Pure; times are monotonic seconds.

    Args:
        lines: how many of a window are logged.
        window_s: length of a window, which opens with the first event after the end of the one before.
    """

    def __init__(self, lines: int = LINES, window_s: float = WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._started: float | None = None
        self._seen = 0

    def note(self, now: float) -> bool:
        """An event: whether to log it. Ask `left_out` first when the window has ended."""
        if self._started is None or now >= self._started + self._window_s:
            self._started = now
            self._seen = 0
        self._seen += 1
        return self._seen <= self._lines

    @property
    def left_out(self) -> int:
        """How many of the window were not logged."""
        return max(self._seen - self._lines, 0)

    @property
    def ends(self) -> float:
        """When the window ends; -inf without one."""
        return float("-inf") if self._started is None else self._started + self._window_s

    def close(self) -> int:
        """End the window; returns how many were left out."""
        left_out = self.left_out
        self._started = None
        self._seen = 0
        return left_out


class Timer(Protocol):
    """Result of `Loop.call_at`."""

    def cancel(self) -> None:
        """Do not call."""


class Loop(Protocol):
    """The part of an event loop that is used here."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* at that time."""


class DeadLetters:
    """The dead letters of a node.

    Args:
        loop: the node's loop, on which everything happens.
        publish: publishes a `DeadLetter` on the event stream.
    """

    def __init__(self, loop: Loop, publish: Callable[[DeadLetter], object]) -> None:
        self._loop = loop
        self._publish = publish
        self._sample = LogSample()
        self._timer: Timer | None = None
        self.count = 0
        """How many there have been."""
        self.silent = False
        """Whether nothing is logged: set while the system terminates, when they are to be expected."""

    def put(
        self, message: Any, sender: ActorRef | None, recipient: ActorRef, error: BaseException | None = None
    ) -> None:
        """*message* could not be delivered.

        Args:
            message: the message.
            sender: who sent it, if anybody.
            recipient: whom it was for.
            error: why; default: the recipient has stopped, or never was.
        """
        self.count += 1
        self._log(message, sender, recipient, error)
        if not isinstance(message, DeadLetter):  # else one for a subscriber that has stopped would go round for ever
            self._publish(DeadLetter(message, sender, recipient))

    def close(self) -> None:
        """Log what is left to be told."""
        self._summarise()

    def _log(self, message: Any, sender: ActorRef | None, recipient: ActorRef, error: BaseException | None) -> None:
        if self.silent:
            return
        now = self._loop.time()
        if now >= self._sample.ends:
            self._summarise()
        if self._sample.note(now):
            logger.warning(
                "dead letter: a message of type %s from %s to %s was not delivered: %s",
                type(message).__qualname__,
                "nobody" if sender is None else sender.path,
                recipient,
                "the recipient has stopped, or never was" if error is None else error,
            )
        elif self._timer is None:
            self._timer = self._loop.call_at(self._sample.ends, self._summarise)

    def _summarise(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left_out = self._sample.close()
        if left_out and not self.silent:
            logger.warning("dead letters: %d more in the last %g s; %d in all", left_out, WINDOW_S, self.count)
