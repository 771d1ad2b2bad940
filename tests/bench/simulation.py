"""The simulator of the control plane: how many faults it makes, whether seeds repeat, which planted faults it finds.

- ``faults_per_hour_per_core``, ``virtual_s_per_s``: faults and virtual seconds by CPU time, over the seeds of all
  workloads; with the name of a workload at the end, over its own.
- ``seeds_run``, ``seeds_failed``; ``seeds_same_trace``: how many of them have one trace with two hash seeds.
- ``mutants_planted``, ``mutants_found``: see `tests.simulation.planted`. ``mutants_false_alarms``: runs without a fault
  that found one. ``--minutes`` limits them; what is not planted by then does not count. The workloads take turns, so a
  short time plants some faults of each.
- ``bugs_found_in_product``: defects with a kept plan, see `tests.simulation.kept`.
- ``states_explored_by_spin``: states of the model of the leader latch (`tests.model`), all visited; not without SPIN.

How long it takes on one idle core, with the five rounds of the default: 5 minutes for speed and traces, one for SPIN,
and up to ``--minutes`` for the planted faults (60; all of them need more than an hour). A short form:

    python -m tests.bench simulation --rounds 1 --minutes 3 --json out.json

``--trials FILE`` counts the planted faults in a file of ``python -m tests.simulation mutants --json FILE`` too, and
continues it; ``--minutes 0`` plants no more. `all` leaves this benchmark out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.model import spin
from tests.simulation import mutants, planted
from tests.simulation.kept import KEPT
from tests.simulation.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 2
"""Seeds of each workload in a round."""

Figures = dict[str, float]


def run(rounds: int, minutes: float = 60.0, trials: str | None = None) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; return the figures and the rows of the table.

    Args:
        rounds: two seeds of each workload run for each.
        minutes: in which faults are planted.
        trials: file of figures of an earlier run of planted faults, which is continued; None for none.
    """
    figures: Figures = {**_speed(rounds * SEEDS), "seeds_same_trace": _same_traces(rounds * SEEDS)}
    target = None if trials is None else Path(trials)
    before = [] if target is None else mutants.trials_of(target)
    with contextlib.redirect_stdout(sys.stderr):  # the figures may go to standard output
        found = mutants.find_all([*planted.controls(), *planted.catalogue()], minutes, target, before)
    for name in ("mutants_planted", "mutants_found", "mutants_false_alarms"):
        figures[name] = found[name]
    figures["bugs_found_in_product"] = len(KEPT)
    if not spin.missing():
        results = [spin.run(check) for check in spin.CHECKS.values()]
        figures["states_explored_by_spin"] = sum(result.states for result in results if result.complete)
    return figures, [(name, f"{value:14,.0f}") for name, value in figures.items()]


def _simulate(*arguments: str, hash_seed: int = 0) -> str:
    """Run seeds in a process of its own; seeds that fail are part of what it returns."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.simulation", "run", "--no-shrink", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def _speed(seeds: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        target = Path(scratch) / "figures.json"
        _simulate("--seeds", str(seeds), "--json", str(target))
        workloads = json.loads(target.read_text())
    cpu_s = {name: 3600 * one["faults"] / one["faults_per_hour_per_core"] for name, one in workloads.items()}
    virtual_s = {name: one["virtual_s_per_s"] * cpu_s[name] for name, one in workloads.items()}
    figures: Figures = {
        "faults_per_hour_per_core": round(
            3600 * sum(one["faults"] for one in workloads.values()) / sum(cpu_s.values())
        ),
        "virtual_s_per_s": round(sum(virtual_s.values()) / sum(cpu_s.values()), 1),
        "seeds_run": sum(one["seeds"] for one in workloads.values()),
        "seeds_failed": sum(len(one["failed"]) for one in workloads.values()),
    }
    for name, one in workloads.items():
        figures[f"faults_per_hour_per_core_{name}"] = one["faults_per_hour_per_core"]
        figures[f"virtual_s_per_s_{name}"] = one["virtual_s_per_s"]
    return figures


def _same_traces(seeds: int) -> int:
    first, second = (
        _traces(_simulate("--traces", "--short", "6", "--seeds", str(seeds), hash_seed=hash_seed))
        for hash_seed in (1, 2)
    )
    return sum(trace == second.get(seed) for seed, trace in first.items())


def _traces(text: str) -> dict[tuple[str, int], str]:
    """Return the traces that a run has printed, by workload and seed; the texts of failures are left out."""
    fields = [line.split() for line in text.splitlines()]
    return {
        (one[0], int(one[1])): one[2] for one in fields if len(one) >= 3 and one[0] in WORKLOADS and one[1].isdigit()
    }
