"""Whether what a cluster holds grows while its load stays the same. Pure: samples in, verdicts out.

The figures are of roles, not of processes, for with a nemesis on no process lives long; and what one process gains
while it lives is judged besides, over all that had the role. A slope is the median of those between all pairs of
samples (Theil and Sen), so that single samples, which a fault or a collector of garbage spoils, do not count.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

MB = 1024 * 1024
FEWEST = 8
"""So many samples a slope needs."""


@dataclass(frozen=True)
class ProcessSample:
    """One process at one moment: memory in bytes, numbers of descriptors and of threads."""

    role: str
    pid: int
    rss: int
    uss: int
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """A cluster at one moment, in seconds since the beginning.

    Args:
        redis: its figures by name; empty where it did not answer.
        files: number and bytes of the files below each directory of the cluster.
    """

    at: float
    processes: tuple[ProcessSample, ...] = ()
    redis: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """How much may be gained over the judged time: a part of what there is, or so much, whichever is more."""

    part: float
    least: float

    def of(self, level: float) -> float:
        return max(self.part * level, self.least)


BOUNDS = {
    "rss": Bound(0.10, 24 * MB),
    "uss": Bound(0.10, 24 * MB),
    "descriptors": Bound(0.25, 24),  # who leads has some 15 more than who stands by, and who leads changes
    "threads": Bound(0.10, 6),
    "processes": Bound(0.10, 2),
    "keys": Bound(0.10, 20),
    "redis memory": Bound(0.10, 1 * MB),
    "files": Bound(0.10, 100),
    "bytes": Bound(0.10, 24 * MB),
}
"""Of each kind, over the second half of a run, however long that is: a leak that a long run shows is one."""

LIFE_BOUNDS = {"uss": Bound(0.25, 16 * MB), "descriptors": Bound(0.25, 24), "threads": Bound(0.25, 8)}
"""What one process may gain while it is looked at: that much it does gain when it begins to lead."""

LIFE_FEWEST = 24
"""So many samples of a process in the judged time are worth a look at it alone."""

CEILINGS = {"java": {"rss": 2200 * MB, "uss": 2200 * MB}}
"""The heap of a JVM grows until it is collected: what is bound is how large it becomes (``spark.driver.memory=1g``)."""


@dataclass(frozen=True)
class Verdict:
    """Of one figure: its usual level, what it gained over the judged time, what it may; in the figure's own unit."""

    what: str
    level: float
    growth: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.growth <= self.bound

    def __str__(self) -> str:
        sign = "ok  " if self.holds else "GROWS"
        return (
            f"{sign} {self.what}: about {_short(self.level)}, {_short(self.growth)} more, may be {_short(self.bound)}"
        )

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "holds": self.holds}


Series = Sequence[tuple[float, float]]


def slope(series: Series) -> float:
    """The gain per second: the median over all pairs; 0 where there are fewer than two moments."""
    pairs = itertools.combinations(series, 2)
    slopes = [(late - early) / (then - now) for (now, early), (then, late) in pairs if then > now]
    return median(slopes) if slopes else 0.0


def judge(samples: Sequence[Sample]) -> list[Verdict]:
    """A verdict on every figure that was taken often enough in the second half of the time."""
    if not samples:
        return []
    middle, end = (samples[0].at + samples[-1].at) / 2, samples[-1].at
    late = [sample for sample in samples if sample.at >= middle]
    series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in late:
        for key, value in _figures(sample):
            series[key].append((sample.at, value))
    verdicts = [
        _verdict(f"{kind} {of}", kind, of, found, end - middle)
        for (kind, of), found in sorted(series.items())
        if len(found) >= FEWEST
    ]
    return verdicts + _lives(late)


def _figures(sample: Sample) -> Iterable[tuple[tuple[str, str], float]]:
    by_role: dict[str, list[ProcessSample]] = defaultdict(list)
    for process in sample.processes:
        by_role[process.role].append(process)
    for role, found in by_role.items():
        yield ("processes", role), len(found)
        for kind in ("rss", "uss", "descriptors", "threads"):
            yield (kind, role), max(getattr(process, kind) for process in found)
    if sample.processes:
        yield ("processes", "of all"), len(sample.processes)
    for name, value in sample.redis.items():
        yield (name, "of redis"), value
    for name, (files, size) in sample.files.items():
        yield ("files", name), files
        yield ("bytes", name), size


def _lives(samples: Sequence[Sample]) -> list[Verdict]:
    """What processes gain while they live: of each role the one that gains most, of those that live for long."""
    lives: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for process in sample.processes:
            for kind in LIFE_BOUNDS:
                lives[kind, process.role, process.pid].append((sample.at, getattr(process, kind)))
    found: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for (kind, role, _), series in lives.items():
        if len(series) >= LIFE_FEWEST and role not in CEILINGS:
            level, span = median(value for _, value in series), series[-1][0] - series[0][0]
            bound = LIFE_BOUNDS[kind].of(level)
            found[kind, role].append(Verdict(f"{kind} {role}, while it lives", level, slope(series) * span, bound))
    return [max(verdicts, key=lambda verdict: verdict.growth) for _, verdicts in sorted(found.items())]


def _verdict(what: str, kind: str, of: str, series: Series, span: float) -> Verdict:
    level = median(value for _, value in series)
    ceiling = CEILINGS.get(of, {}).get(kind)
    if ceiling is not None:
        highest = max(value for _, value in series)
        return Verdict(f"{what}, at most", level, highest, ceiling)
    return Verdict(what, level, slope(series) * span, BOUNDS[kind].of(level))


def _short(value: float) -> str:
    return f"{value / MB:.1f} MB" if abs(value) >= 100_000 else f"{value:.1f}"
