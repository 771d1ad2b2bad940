"""Faults planted in the product, and whether the simulator finds them.

`tests.simulation.planted` has the faults, of which each replaces a text of one file. A fault is planted in a process of
its own, in which an import hook changes the text of one module. That process runs seeds of the workload that is to find
the fault, and every eighth seed of another workload, until a check fails or the time is over. The plans that were kept
for the fault (`tests.simulation.kept`) come first.

    python -m tests.simulation mutants --only fence-not-compared

All of them take over an hour on one core. Each verdict is in the file of figures at once, so an interrupted run can be
continued. A first look at all gives each less CPU; those that were not found are tried again with more:

    python -m tests.simulation mutants --minutes 90 --seconds 10 --json out.json
    python -m tests.simulation mutants --minutes 90 --json out.json --resume
"""

from __future__ import annotations

import argparse
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
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
from tests.simulation.planted import CONTROL, Planted, catalogue, controls

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
"""Seconds of CPU for which seeds are run against one fault."""
CONTROL_S = 20.0
"""The same for a control, which has no fault."""
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

    @property
    def is_fault(self) -> bool:
        """Whether it was a fault, and not a control without one."""
        return not self.name.startswith(CONTROL)


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
    from tests.simulation.kept import plans_for
    from tests.simulation.workloads import WORKLOADS
    from tests.simulation.world import run

    warnings.simplefilter("ignore", RuntimeWarning)
    began = time.process_time()
    for number, kept in enumerate(plans_for(planted.name), 1):
        failure = run(WORKLOADS[kept.workload], kept.seed, list(kept.plan), faults_s=kept.faults_s).failure
        if failure is not None:
            check, took = f"{kept.workload}: {failure.check} (with a kept plan)", time.process_time() - began
            return Trial(mutant.name, mutant.file, mutant.guard, True, check, number, took)
    others = [name for name in WORKLOADS if name != planted.workload]
    seeds = 0
    while time.process_time() - began < limit_s:
        name = others[seeds // 8 % len(others)] if seeds % 8 == 7 else planted.workload
        gc.freeze()
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


def find_all(
    wanted: Sequence[Planted],
    minutes: float,
    target: Path | None = None,
    before: Sequence[Trial] = (),
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Plant one fault after another until the time is over; print what finds each, and return the figures.

    Args:
        wanted: the faults. The workloads take turns, so that each has its share of a short time.
        minutes: after which no further fault is planted.
        target: file for the figures, written after each fault.
        before: what came of faults in an earlier run. Those that were found then are not planted again, nor those that
            had as much CPU.
        limit_s: seconds of CPU for which seeds are run against one fault; at most `CONTROL_S` against a control.
    """
    until = time.monotonic() + 60 * minutes
    names = {planted.name for planted in wanted}
    trials = [one for one in before if one.name in names and (one.found or not one.is_fault or one.cpu_s >= limit_s)]
    tried = {one.name for one in trials}
    for planted in in_turns([one for one in wanted if one.name not in tried]):
        if time.monotonic() > until:
            break
        result = try_one(planted, limit_s if planted.is_fault else min(limit_s, CONTROL_S))
        trials.append(result)
        sys.stdout.write(f"{describe(result)}\n")
        sys.stdout.flush()
        if target is not None:
            _write(target, summary(trials))
    return summary(trials)


def describe(result: Trial) -> str:
    """Return one line that says what came of a fault."""
    verdict = f"found by {result.check}" if result.found else f"NOT FOUND {result.check}".rstrip()
    if not result.is_fault and result.found:
        verdict = f"FALSE ALARM of {result.check}"
    elif not result.is_fault:
        verdict = f"NO VERDICT: {result.check}" if result.check else "nothing found, as it should be"
    return f"{result.name}: {verdict}, after {result.seeds} seeds ({result.cpu_s:.0f} s of CPU)"


def in_turns(wanted: Sequence[Planted]) -> list[Planted]:
    """Return the faults in turns: the first of each workload, then the second of each, and so on."""
    by_workload: dict[str, list[Planted]] = {}
    for planted in wanted:
        by_workload.setdefault(planted.workload, []).append(planted)
    rounds = itertools.zip_longest(*by_workload.values())
    return [planted for one_round in rounds for planted in one_round if planted is not None]


def trials_of(target: Path) -> list[Trial]:
    """Return what an earlier run has written to *target*; nothing if there is no such file."""
    try:
        text = target.read_text()
    except FileNotFoundError:
        return []
    return [Trial(**one) for one in json.loads(text)["trials"]]


def _write(target: Path, figures: dict[str, Any]) -> None:
    """Replace *target*, so that an interruption leaves a whole file."""
    part = target.with_name(f"{target.name}.part")
    part.write_text(json.dumps(figures, indent=2) + "\n")
    part.replace(target)


def main(
    minutes: float,
    only: str | None,
    workload: str | None,
    target: Path | None,
    *,
    resume: bool = False,
    limit_s: float = LIMIT_S,
) -> int:
    """Plant faults, and nothing for control; return 0 if enough faults are found, and nothing in the controls.

    Args:
        minutes: after which no further fault is planted.
        only: the name of one fault; default: all.
        workload: the name of the workload of which the faults are planted; default: all.
        target: file for the figures.
        resume: whether the faults that *target* has already are left out.
        limit_s: seconds of CPU for which seeds are run against one fault.
    """
    before = trials_of(target) if resume and target is not None else []

    def chosen(planted: Planted) -> bool:
        return only in (None, planted.name) and workload in (None, planted.workload)

    figures = find_all([one for one in [*controls(), *catalogue()] if chosen(one)], minutes, target, before, limit_s)
    found, planted = figures["mutants_found"], figures["mutants_planted"]
    sys.stdout.write(f"{found} of {planted} are found\n")
    if figures["mutants_false_alarms"]:
        sys.stdout.write(f"{figures['mutants_false_alarms']} controls without a fault fail\n")
    return 0 if not figures["mutants_false_alarms"] and found >= TO_FIND * planted else 1


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the figures of all trials."""
    faults = [one for one in trials if one.is_fault]
    return {
        "mutants_planted": len(faults),
        "mutants_found": sum(one.found for one in faults),
        "mutants_not_found": [one.name for one in faults if not one.found],
        "mutants_false_alarms": sum(one.found for one in trials if not one.is_fault),
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
