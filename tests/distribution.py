"""How the tests are shared out among the processes of a parallel run (``pytest --numprocesses auto --dist loadfile``).

The tests of a file run in one process, in their order, so that they share its clusters. Where most tests of a file
start a cluster of their own, each of them runs wherever there is room. What takes longest is begun first.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds by group; ``--record-durations`` writes it. A group that is not in it is taken for one of half a minute."""

MEMORY_PER_PROCESS = 5 << 30
"""What one process needs at most, in bytes: the cluster that its tests share, and two of a test's own."""

EACH_ALONE = ("tests/faults/test_kills.py", "tests/faults/test_masters.py", "tests/integration/test_job_logs.py")
_UNKNOWN_S = 30


class GroupScheduling(LoadScopeScheduling):
    """Hands out groups of tests, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def processes() -> int:
    """Return how many test processes this machine can feed.

    Tests wait half of their time, for leases and heartbeats: one process more than there are cores keeps them busy.
    """
    return max(1, min((os.cpu_count() or 1) + 1, psutil.virtual_memory().total // MEMORY_PER_PROCESS))


def group_of(node_id: str) -> str:
    """Return the name of the tests that run in the process of this one."""
    return node_id.split("[")[0] if node_id.startswith(EACH_ALONE) else node_id.split("::")[0]


def sort(items: list[pytest.Item]) -> None:
    """Put the longest groups first."""
    known = _durations()

    def place(item: pytest.Item) -> tuple[int, str]:
        group = group_of(item.nodeid)
        return -known.get(group, _UNKNOWN_S), group

    items.sort(key=place)


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Put the groups into an order of chance: no test may need what another one has left, or has not."""
    groups = sorted({group_of(item.nodeid) for item in items})
    random.Random(seed).shuffle(groups)
    place = {group: number for number, group in enumerate(groups)}
    items.sort(key=lambda item: place[group_of(item.nodeid)])


def record(reports: Iterable[pytest.TestReport]) -> None:
    """Write how long each group took, in whole seconds; groups that did not run keep their figures."""
    took: dict[str, float] = {}
    for report in reports:
        group = group_of(report.nodeid)
        took[group] = took.get(group, 0.0) + report.duration
    known = _durations() | {group: round(seconds) for group, seconds in took.items()}
    DURATIONS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def _durations() -> dict[str, int]:
    return dict(json.loads(DURATIONS.read_text()))
