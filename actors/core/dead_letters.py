"""Dead letters (Akka's ``DeadLetterActorRef`` and ``DeadLetterListener``): messages that could not be delivered.

`DeadLetters` counts them, logs a sample, and publishes each on the event stream as `DeadLetter`. The node fails an
undeliverable ask at once, and leaves out messages whose loss does not matter (a `PoisonPill` for a stopped actor).
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
    """Selects events to log: the first few of each window. Pure; times are monotonic seconds.

    Args:
        lines: number of events to log per window.
        window_s: length of a window, which opens with the first event after the end of the one before.
    """

    def __init__(self, lines: int = LINES, window_s: float = WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._started: float | None = None
        self._seen = 0

    def note(self, now: float) -> bool:
        """Count an event; return whether to log it. Read `left_out` before the first event after the window's end."""
        if self._started is None or now >= self._started + self._window_s:
            self._started = now
            self._seen = 0
        self._seen += 1
        return self._seen <= self._lines

    @property
    def left_out(self) -> int:
        """Number of events of the window that were not logged."""
        return max(self._seen - self._lines, 0)

    @property
    def ends(self) -> float:
        """End of the window; -inf without a window."""
        return float("-inf") if self._started is None else self._started + self._window_s

    def close(self) -> int:
        """End the window; return the number of events left out."""
        left_out = self.left_out
        self._started = None
        self._seen = 0
        return left_out


class Timer(Protocol):
    """Result of `Loop.call_at`."""

    def cancel(self) -> None:
        """Cancel the call."""


class Loop(Protocol):
    """The part of an event loop that this module uses."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* at that time."""


class DeadLetters:
    """The dead letters of a node.

    Args:
        loop: the node's loop; call all methods on its thread.
        publish: publishes a `DeadLetter` on the event stream.
    """

    def __init__(self, loop: Loop, publish: Callable[[DeadLetter], object]) -> None:
        self._loop = loop
        self._publish = publish
        self._sample = LogSample()
        self._timer: Timer | None = None
        self.count = 0
        """Number of dead letters so far."""
        self.silent = False
        """Whether to log nothing; set while the system terminates, when dead letters are expected."""

    def put(
        self, message: Any, sender: ActorRef | None, recipient: ActorRef, error: BaseException | None = None
    ) -> None:
        """Count, log and publish a message that could not be delivered.

        Args:
            message: the message.
            sender: its sender, if any.
            recipient: its recipient.
            error: the reason; default: the recipient has stopped, or never existed.
        """
        self.count += 1
        self._log(message, sender, recipient, error)
        if not isinstance(message, DeadLetter):  # else one for a stopped subscriber would loop for ever
            self._publish(DeadLetter(message, sender, recipient))

    def close(self) -> None:
        """Log the number of dead letters that were left out of the sample."""
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
