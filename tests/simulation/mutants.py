"""Faults planted in the product, and whether the simulator finds them.

`tests.simulation.planted` has the faults, of which each replaces a text of one file. A fault is planted in a process of
its own, in which an import hook changes the text of one module. That process runs seeds of the workload that is to find
the fault, and every fourth seed of another workload, until a check fails or the time is over.

    python -m tests.simulation mutants --only fence-not-compared
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.model import Mutant
from tests.simulation.planted import Planted, catalogue, controls

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""Seconds of CPU for which seeds are run against one fault."""
TO_FIND = 0.95
"""Part of the faults that has to be found."""


@dataclass(frozen=True)
class Trial:
    """What came of a fault.

    Args:
        name: of the fault.
        file: in which it was planted.
        guard: what it takes out.
        found: whether a check failed.
        check: which.
        seeds: how many seeds were run.
        cpu_s: seconds of CPU.
    """

    name: str
    file: str
    guard: str
    found: bool
    check: str
    seeds: int
    cpu_s: float


# ------------------------------------------------------------------ in the process with the fault


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with a fault in its text."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self._text, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._module = mutant.file.removesuffix(".py").replace("/", ".")
        self._path = str(ROOT / mutant.file)
        self._text = mutant.text(ROOT)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, _Loader(name, self._path, self._text))


def plant(planted: Planted) -> None:
    """Plant a fault in this process, which must not have imported the product."""
    sys.meta_path.insert(0, _Finder(planted.mutant))


def trial(planted: Planted, limit_s: float) -> Trial:
    """Plant a fault in this process, which must not have imported the product, and run seeds until it is found."""
    mutant = planted.mutant
    plant(planted)
    from tests.simulation.workloads import WORKLOADS
    from tests.simulation.world import run

    warnings.simplefilter("ignore", RuntimeWarning)
    began = time.process_time()
    others = [name for name in WORKLOADS if name != planted.workload]
    seeds = 0
    while time.process_time() - began < limit_s:
        name = others[seeds // 4 % len(others)] if seeds % 4 == 3 else planted.workload
        failure = run(WORKLOADS[name], seeds).failure
        seeds += 1
        if failure is not None:
            took = time.process_time() - began
            return Trial(mutant.name, mutant.file, mutant.guard, True, f"{name}: {failure.check}", seeds, took)
    return Trial(mutant.name, mutant.file, mutant.guard, False, "", seeds, time.process_time() - began)


# ------------------------------------------------------------------ in the process that asks


def try_one(planted: Planted, limit_s: float = LIMIT_S) -> Trial:
    """Try a fault in a process of its own. A process that ends without a verdict has not found it.

    Raises:
        NotApplicable: the text that the fault replaces is not in its file.
    """
    mutant = planted.mutant
    mutant.text(ROOT)
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation.mutants", planted.name, str(limit_s)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20 * limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Trial(mutant.name, mutant.file, mutant.guard, False, "the process stands still", 0, 0.0)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return Trial(**json.loads(line))
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return Trial(mutant.name, mutant.file, mutant.guard, False, f"the process ends: {last[:200]}", 0, 0.0)


def find_all(wanted: Sequence[Planted], minutes: float, target: Path | None = None) -> dict[str, Any]:
    """Plant one fault after another until the time is over; print what finds each, and return the figures."""
    until = time.monotonic() + 60 * minutes
    trials: list[Trial] = []
    for planted in wanted:
        if time.monotonic() > until:
            break
        result = try_one(planted)
        trials.append(result)
        after = f"after {result.seeds} seeds ({result.cpu_s:.0f} s of CPU)"
        verdict = f"found by {result.check}" if result.found else f"NOT FOUND {result.check}"
        sys.stdout.write(f"{result.name}: {verdict}, {after}\n")
        sys.stdout.flush()
        if target is not None:
            target.write_text(json.dumps(summary(trials), indent=2) + "\n")
    return summary(trials)


def main(minutes: float, only: str | None, workload: str | None, target: Path | None) -> int:
    """Plant faults, and nothing for control; return 0 if enough faults are found, and nothing in the controls.

    Args:
        minutes: after which no further fault is planted.
        only: the name of one fault; default: all.
        workload: the name of the workload of which the faults are planted; default: all.
        target: file for the figures.
    """

    def chosen(planted: Planted) -> bool:
        return only in (None, planted.name) and workload in (None, planted.workload)

    false_alarms = find_all([one for one in controls() if chosen(one)], minutes)["mutants_found"]
    figures = find_all([one for one in catalogue() if chosen(one)], minutes, target)
    sys.stdout.write(f"{figures['mutants_found']} of {figures['mutants_planted']} are found\n")
    if false_alarms:
        sys.stdout.write(f"{false_alarms} controls without a fault fail\n")
    return 0 if not false_alarms and figures["mutants_found"] >= TO_FIND * figures["mutants_planted"] else 1


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the figures of all trials."""
    return {
        "mutants_planted": len(trials),
        "mutants_found": sum(one.found for one in trials),
        "trials": [asdict(one) for one in trials],
    }


def _child(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("limit_s", type=float)
    chosen = parser.parse_args(arguments)
    planted = next(one for one in [*controls(), *catalogue()] if one.name == chosen.name)
    sys.stdout.write(json.dumps(asdict(trial(planted, chosen.limit_s))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1:]))
