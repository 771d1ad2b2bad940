"""How the tests are shared out among the processes of a parallel run (``pytest --numprocesses auto --dist loadfile``).

The tests of a file run in one process, in their order, so that they share its clusters. Where most tests of a file
start a cluster of their own, each of them runs wherever there is room. What takes longest is begun first.

``--quick`` leaves out the unit tests that took long in the run that was recorded last.
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
"""Seconds by group, and by function for unit tests that are not quick; ``--record-durations`` writes it.

A group that is not in it is taken for one of half a minute, a unit test for a quick one.
"""

MEMORY_PER_PROCESS = 5 << 30
"""What one process needs at most, in bytes: the cluster that its tests share, and two of a test's own."""

EACH_ALONE = ("tests/faults/test_kills.py", "tests/faults/test_masters.py", "tests/integration/test_job_logs.py")
_UNKNOWN_S = 30

UNIT = "tests/unit/"
QUICK_S = 0.2
"""Most seconds of a quick unit test, with all its parameters."""


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


def quick(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests without those that are known to take long, and those."""
    known = _durations()
    parts: tuple[list[pytest.Item], list[pytest.Item]] = [], []
    for item in items:
        parts[function_of(item.nodeid) in known].append(item)
    return parts


def function_of(node_id: str) -> str:
    """Return the name of a test without its parameters."""
    return node_id.split("[")[0]


def record(reports: Iterable[pytest.TestReport]) -> None:
    """Write how long each group or unit test took; what did not run keeps its figure."""
    took: dict[str, float] = {}
    for report in reports:
        name = function_of(report.nodeid) if report.nodeid.startswith(UNIT) else group_of(report.nodeid)
        took[name] = took.get(name, 0.0) + report.duration
    known = {name: seconds for name, seconds in _durations().items() if name not in took}
    for name, seconds in took.items():
        if not name.startswith(UNIT):
            known[name] = round(seconds)
        elif seconds > QUICK_S:
            known[name] = round(seconds, 1)
    DURATIONS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def _durations() -> dict[str, float]:
    return dict(json.loads(DURATIONS.read_text()))
