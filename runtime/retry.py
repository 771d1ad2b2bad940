"""The one way to try again: pauses that grow up to a limit and are spread at random, and one line in the log.

    await retry(lambda: gateway.register(self.address), ActorError, what="registering", log=self.log)

A pause is an `await` (or, with `pauses`, the caller's own): whoever cancels the task ends the retries too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from actors.supervision import Backoff

T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]

SOON = Backoff(0.1, 0.5)
"""How components of a cluster ask each other again: whoever is being replaced is back within a second or two."""

_RNG = random.Random()  # noqa: S311  # spreads retries, hides nothing


def pauses(backoff: Backoff | None = None, rng: random.Random = _RNG) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, without end; `SOON` unless a back-off is given."""
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
    rng: random.Random = _RNG,
) -> T:
    """Return what *attempt* returns, at the first time that it raises none of the errors to be retried.

    Args:
        attempt: called again after each failure. One that is not wanted any more returns instead of raising.
        on: errors after which it is called again; all others are raised.
        unless: kinds of those errors that are raised all the same.
        what: the undertaking, as a noun phrase for the log.
        log: gets the first failure, and every later one of another text; repetitions are logged as DEBUG.
        level: of these lines.
        backoff: the pauses; `SOON` unless it is given.
        rng: spreads the pauses.
    """
    said = None
    for pause_s in pauses(backoff, rng):
        try:
            return await attempt()
        except unless:
            raise
        except on as error:
            text = f"{type(error).__name__}: {error}"
            log.log(logging.DEBUG if text == said else level, "%s is tried again: %s", what, error)
            said = text
        await asyncio.sleep(pause_s)
    raise AssertionError("the pauses have no end")
