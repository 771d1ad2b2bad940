"""A TaskExecutor that is exchanged, and what keeps it from handing its tasks over to its successor."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from runtime.ids import JobID

VERSION = 1
"""Version of the state that a TaskExecutor of this release leaves to its successor."""

READABLE = (1,)
"""Versions that a successor of this release reads. A field with a default may be added without a new version."""


def python_version() -> str:
    """Return the version of this Python without the patch: Spark's workers must have the same as the task's code."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a TaskExecutor cannot hand over a job, or anything.

    Args:
        reason: in words.
        passes: whether it passes by itself within moments, such as a checkpoint that is being taken.
        job_id: the job; None for the TaskExecutor itself.
    """

    reason: str
    passes: bool = False
    job_id: JobID | None = None


@dataclass(frozen=True, slots=True)
class HandOverReport:
    """A TaskExecutor's answer whether it can hand its tasks over.

    Args:
        version: of the state that it writes for its successor.
        python: version of its Python without the patch, such as ``3.12``.
        obstacles: nothing is handed over while there is one.
    """

    version: int
    python: str
    obstacles: tuple[Obstacle, ...] = ()
