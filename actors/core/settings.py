"""Settings of an actor system that its nodes share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """How the actors of a node behave. All nodes of a system have the same.

    Args:
        ask_timeout_s: default time allowed for an ask, in seconds.
        throughput: how many messages an actor handles before others have their turn
            (Akka's ``throughput``, which is 5; a turn of the event loop costs more than Akka's).
        stash_capacity: how many messages an actor may put aside.
        pending_capacity: how many messages wait for an actor whose process is not known yet; more are dead letters.
    """

    ask_timeout_s: float = 10.0
    throughput: int = 50
    stash_capacity: int = 10_000
    pending_capacity: int = 10_000
