"""How a cost grows with a size. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Figures = dict[str, float]
Points = Sequence[tuple[float, float]]
BEND = 1.3
"""A doubling that costs more than 2 to the power of this is a bend: noise of processor seconds stays below it."""
LEAST = 0.05
"""Seconds: what costs less is a few of the hundredths that the kernel counts in, and tells nothing of a bend."""


def sizes(most: float) -> list[int]:
    """Four sizes, each twice the one before; never fewer than 16 at the end, of which less could not be said."""
    return [max(round(most), 16) // 2**halvings for halvings in (3, 2, 1, 0)]


def exponent(points: Points) -> float:
    """The slope of the cost against the size, both logarithmic, by least squares.

    Args:
        points: sizes, and what each cost; at least two different sizes, all above 0.
    """
    logs = [(math.log(size), math.log(cost)) for size, cost in points]
    middle = sum(x for x, _ in logs) / len(logs)
    mean = sum(y for _, y in logs) / len(logs)
    return sum((x - middle) * (y - mean) for x, y in logs) / sum((x - middle) ** 2 for x, _ in logs)


def bend(points: Points) -> float:
    """The size from which on a cost grows clearly faster than the size does; 0 where it never does."""
    for before, after in itertools.pairwise(sorted(points)):
        if before[1] >= LEAST and exponent((before, after)) > BEND:
            return before[0]
    return 0.0


def growth(name: str, points: Points) -> Figures:
    """The figures of one cost: its exponent and where it bends, under ``name``."""
    return {f"{name}_growth_exponent": exponent(points), f"{name}_bends_at": bend(points)}
