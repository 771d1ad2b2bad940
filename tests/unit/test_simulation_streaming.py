"""The workload ``streaming`` of the simulator: the same seed does the same, and its checks find what is planted."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulation.mutants import OF_A_PLAN, ROOT, try_each
from tests.simulation.planted import catalogue
from tests.waiting import PATIENCE_S

FOUND = {
    "log-of-the-sink-not-restored": "rows exactly once",
    "query-without-its-lease": "a driver writes with a lease",
    "checkpoint-complete-before-it-is-stored": "a completed checkpoint stays",
}
"""Planted faults, and the check that finds each of them."""


def test_the_same_seed_makes_the_same_trace_whatever_the_hash_seed_and_finds_nothing() -> None:
    command = ["-m", "tests.simulation", "run", "--traces", "--workload", "streaming", "--seed", "8", "--short", "10"]
    traces = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            timeout=PATIENCE_S,
        )
        traces.add(done.stdout)
    (trace,) = traces
    assert trace.startswith("streaming 8 ")


def test_planted_faults_are_found() -> None:
    trials = try_each([planted for planted in catalogue() if planted.name in FOUND])
    found = {trial.name: trial.check.removeprefix("streaming: ").removesuffix(OF_A_PLAN) for trial in trials}
    assert found == FOUND


def test_each_planted_fault_has_a_name_of_its_own_and_a_place() -> None:
    planted = [one.mutant for one in catalogue() if one.workload == "streaming"]
    assert len({mutant.name for mutant in planted}) == len(planted) >= 29
    for mutant in planted:
        mutant.text(ROOT)
