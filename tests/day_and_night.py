"""A made-up day and night of load, replayed on the policy of the autoscaler. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from runtime.dispatcher.autoscaling import AutoscalePolicy, Batch, DriverShare, decide

PER_PARTITION = 100.0
"""Rows that a partition processes in a second."""
PEAK = 1_900.0
"""Rows that arrive in a second at noon."""
EVERY_S, OVERHEAD_S, DOWN_S = 10.0, 0.5, 60.0
"""Seconds between triggers; of a batch without rows; of a rescale."""
DAY_S = 86_400.0
POLICY = AutoscalePolicy(lag=round(PEAK * 30))


@dataclass(frozen=True)
class Replay:
    """The outcome of two days.

    Args:
        held: share of the batches whose lag was within the objective.
        held_time: share of the time that these batches took, with the pauses before them. A job that is far behind has
            few batches, and long ones.
        slots: slot time, as a share of that of a job which always has the partitions of the peak.
        changes: second and difference of each change of the number of partitions.
        most: the largest number of partitions that a change has led to; 0 without one.
    """

    held: float
    held_time: float
    slots: float
    changes: Sequence[tuple[float, int]]
    most: int = 0

    @property
    def oscillations(self) -> int:
        """Changes that were taken back within an hour."""
        return sum(
            later - earlier < 3600 for (earlier, one), (later, other) in pairwise(self.changes) if one * other < 0
        )


def load(second: float) -> float:
    """Rows that arrive in a second: a tenth of the peak at night, and a hill from 6 to 22 o'clock."""
    hill = max(0.0, math.sin(math.pi * (second % DAY_S / 3600 - 6) / 16))
    return PEAK * (0.1 + 0.9 * math.pow(hill, 1.5))


def replay(
    seed: int,
    down_s: float = DOWN_S,
    policy: AutoscalePolicy = POLICY,
    cores: int = 1000,
    *,
    knows_cores: bool = True,
) -> Replay:
    """Replay two days; the job starts with the partitions of the peak.

    Args:
        seed: of the noise, a tenth of the load.
        down_s: seconds that a change of the number of partitions takes, in which nothing is processed.
        policy: the limits; it has an objective of the lag.
        cores: of the driver; more partitions than that process no more rows.
        knows_cores: whether the policy knows the cores.
    """
    driver = DriverShare("tm-1", cores if knows_cores else None)
    noise, objective = random.Random(seed), policy.lag
    assert objective is not None
    static = math.ceil(PEAK / PER_PARTITION / policy.target)
    partitions, changed_ms, now, waiting = static, None, 0.0, 0.0
    batches: list[Batch] = []
    changes: list[tuple[float, int]] = []
    slot_seconds, held, held_s, most = 0.0, 0, 0.0, 0
    began = -EVERY_S
    while now < 2 * DAY_S:
        before, at = now, max(now, began + EVERY_S)
        waiting += load(at) * noise.uniform(0.9, 1.1) * (at - now)
        slot_seconds += partitions * (at - now)
        took = OVERHEAD_S + waiting / (min(partitions, cores) * PER_PARTITION)
        lag = load(at) * took
        busy = took / (at + took - now)
        now, began, waiting = at + took, at, lag
        slot_seconds += partitions * took
        batches.append(Batch(round(now * 1000), busy, round(lag)))
        if lag <= objective:
            held += 1
            held_s += now - before
        made = decide(policy, partitions, batches[-240:], round(now * 1000), changed_ms, driver)
        if made.partitions != partitions:
            changes.append((now, made.partitions - partitions))
            waiting += load(now) * down_s
            slot_seconds += partitions * down_s
            now += down_s
            partitions, changed_ms = made.partitions, round(now * 1000)
            most = max(most, partitions)
    return Replay(held / len(batches), held_s / now, slot_seconds / (now * static), changes, most)
