"""The one retry helper: pauses grow up to a limit and are spread at random, and a repeated failure is logged once.

    await retry(lambda: gateway.register(self.address), ActorError, what="registering", log=self.log)

A pause is an `await` (or, with `pauses`, the caller's own), so cancelling the task also ends the retries.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from actors.supervision import Backoff

T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]

SOON = Backoff(0.1, 0.5)
"""Back-off between components of a cluster: a component that is being replaced is back within a second or two."""

_RNG = random.Random()  # noqa: S311  # spreads retries, hides nothing


def pauses(backoff: Backoff | None = None, rng: random.Random = _RNG) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, without end. The default back-off is `SOON`."""
    for count in itertools.count():
        yield (backoff or SOON).delay(count, rng)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    on: Errors,
    *,
    unless: Errors = (),
    what: str,
    log: logging.Logger,
    level: int = logging.INFO,
    backoff: Backoff | None = None,
    patience_s: float | None = None,
    rng: random.Random = _RNG,
) -> T:
    """Call *attempt* until it succeeds, and return its result.

    Args:
        attempt: called again after each failure. To end the retries, it returns instead of raising.
        on: errors after which it is called again; all others are raised.
        unless: subclasses of those errors that are raised nevertheless.
        what: a noun phrase for the log that names the attempt.
        log: gets the first failure, and each one whose text differs from the one before; others are logged as DEBUG.
        level: of these lines.
        backoff: the pauses. Default: `SOON`.
        patience_s: no attempt begins later than so many seconds from now; then the last error is raised. Default: no
            limit.
        rng: spreads the pauses.
    """
    said = None
    deadline = None if patience_s is None else time.monotonic() + patience_s
    for pause_s in pauses(backoff, rng):
        try:
            return await attempt()
        except unless:
            raise
        except on as error:
            if deadline is not None and time.monotonic() + pause_s > deadline:
                raise
            text = f"{type(error).__name__}: {error}"
            log.log(logging.DEBUG if text == said else level, "%s is tried again: %s", what, error)
            said = text
        await asyncio.sleep(pause_s)
    raise AssertionError("the pauses have no end")
