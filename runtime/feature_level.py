"""The feature level of a cluster: which version of each stored format its components write.

A cluster stores its level (`runtime.ha.feature_level`). While it is upgraded, processes of two releases work in it, and
the level stays that of the older release. So everything that is written can be read by both, and a downgrade works.
``understudy cluster finalize`` raises the level once all components support a higher one, as Kafka's
``upgrade --feature`` and CockroachDB's cluster version do. After that the older release refuses the cluster.

`VERSIONS` has a row for each level that this release supports. To write a new version of a format, a release:

1. adds a row with the next level and the new version,
2. writes the format in the version that `FeatureLevel.version_of` returns,
3. reads each version for which `can_read` is true.

A release drops the row of a level once it need not work beside releases that write it. Everything here is pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


class Format(Enum):
    """A stored format whose values hold their version; ``docs/formats.md`` describes it under this name.

    A format without a stored version has one version at all levels: it only gets new fields with a default.
    """

    JOB_GRAPH = "job-graph"
    EXECUTION = "execution"
    COMPLETED_CHECKPOINT = "completed-checkpoint"
    CHECKPOINT_METADATA = "checkpoint-metadata"
    SAVEPOINT = "savepoint"
    CLUSTER = "cluster"


VERSIONS: dict[int, Mapping[Format, int]] = {
    1: {
        Format.JOB_GRAPH: 2,
        Format.EXECUTION: 1,
        Format.COMPLETED_CHECKPOINT: 1,
        Format.CHECKPOINT_METADATA: 1,
        Format.SAVEPOINT: 1,
        Format.CLUSTER: 1,
    },
}
"""Versions of the formats, by level: each level from the oldest to the newest that this release supports."""

FIRST = 1
"""Level of a cluster that stores none, because it was started before levels were stored."""


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """The levels that a release supports, from `oldest` to `newest`. The defaults are those of the first release."""

    oldest: int = FIRST
    newest: int = FIRST

    def __contains__(self, level: int) -> bool:
        return self.oldest <= level <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Understudy: its version, and the levels that it supports."""

    version: str
    levels: FeatureLevels = FeatureLevels()  # frozen

    def __str__(self) -> str:
        return f"Understudy {self.version or 'of an unknown version'}"


@dataclass(frozen=True, slots=True)
class Component:
    """A running component: its name for users, and its release."""

    name: str
    release: Release

    def limit(self) -> str:
        """Return, in words, which levels it supports."""
        many = self.release.levels.oldest != self.release.levels.newest
        return f"{self.name} runs {self.release}, which supports level{'s' if many else ''} {self.release.levels}"


def supported_levels() -> FeatureLevels:
    """Return the levels that this release supports."""
    return FeatureLevels(min(VERSIONS), max(VERSIONS))


def can_read(of: Format, version: Any) -> bool:
    """Return whether this release reads a version of a format: one that some supported level writes."""
    return version in [versions[of] for versions in VERSIONS.values()]  # of any type: it comes from a stored value


def readable_versions(of: Format) -> str:
    """Return the versions of a format that this release reads, for messages: ``1``, or ``1 and 2``."""
    return " and ".join(str(version) for version in sorted({versions[of] for versions in VERSIONS.values()}))


def newest_version(of: Format) -> int:
    """Return the latest version of a format that this release reads and writes."""
    return VERSIONS[supported_levels().newest][of]


def oldest_version(of: Format) -> int:
    """Return the version of a format that all releases read which this release works beside.

    Writers that do not know the level of the cluster, such as clients, write this version.
    """
    return VERSIONS[supported_levels().oldest][of]


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The level of a cluster, as its writers use it.

    Args:
        number: the level; this release supports it.
    """

    number: int

    def version_of(self, of: Format) -> int:
        """Return the version in which to write a format."""
        return VERSIONS[self.number][of]

    def marked(self, value: T, of: Format) -> T:
        """Return a value to write: it holds the version of this level in its ``format_version``."""
        marked: T = dataclasses.replace(value, format_version=self.version_of(of))  # type: ignore[type-var]
        return marked


def lowest_level() -> FeatureLevel:
    """Return the lowest level of this release, at which all releases beside it can read what it writes."""
    return FeatureLevel(supported_levels().oldest)


def level_to_begin_with(is_new: bool, components: Iterable[Component]) -> int:
    """Return the level of a cluster that stores none.

    Args:
        is_new: whether the cluster has stored nothing yet.
        components: those that run.

    Returns:
        for a new cluster the newest that all components support, otherwise the first.
    """
    if not is_new:
        return FIRST
    return min([supported_levels().newest, *(component.release.levels.newest for component in components)])


def level_to_finalize(level: int, components: Iterable[Component]) -> tuple[int, tuple[Component, ...]]:
    """Return the highest level that all components support, and the components that do not support a higher one.

    Args:
        level: the present level of the cluster. The result is never lower.
        components: those that run, including the leading Dispatcher's master.

    Returns:
        the level; and the components in the way of the newest level that any component supports, in their order.
    """
    known = tuple(components)
    newest = [component.release.levels.newest for component in known]
    reached = max(level, min(newest, default=level))
    wanted = max(newest, default=level)
    return reached, tuple(each for each in known if each.release.levels.newest <= reached < wanted)
