"""Faults planted in the product, and whether the simulator finds them.

`tests.simulation.planted` has the faults, of which each replaces a text of one file. For each fault some seeds run in
children of a process that has loaded the simulator (`tests.simulation.warm`), until a check fails or the CPU is spent:

1. The plans that were kept for the fault (`tests.simulation.kept`), and the seed that has found it (`SEEDS`).
2. The plans of its workload that were kept for others. They take a tenth of the CPU of a seed.
3. Seeds of its workload, and each fourth of another workload.

Plans for others and seeds that do not reach the place of the fault are left out. One run of each without a fault in the
product tells which places it reaches.

All faults have `FIRST_S` seconds of CPU first. Those that were not found then have more. Each verdict is in the file of
figures at once, so an interrupted run can be continued:

    python -m tests.simulation mutants --only fence-not-compared
    python -m tests.simulation mutants --minutes 60 --json out.json --resume

After a change of a workload or of the product a seed may find another fault, or none. Then the search begins anew, and
`--record` writes what it finds to `SEEDS`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.simulation.kept import KEPT, RARE, ROOT
from tests.simulation.planted import CONTROL, Planted, catalogue, controls
from tests.simulation.warm import Run, Warm

FIRST_S = 10.0
"""Seconds of CPU for which seeds are run against each fault, before any fault has more."""
LIMIT_S = 60.0
"""Seconds of CPU for which seeds are run against one fault in the end."""
CONTROL_S = 20.0
"""The same for a control, which has no fault."""
TO_FIND = 0.95
"""Part of the faults that has to be found."""

OF_A_PLAN = " (with a kept plan)"
OF_A_SEED = " (with a known seed)"
SEEDS = Path(__file__).with_name("seeds.json")
"""Workload and seed that have found a fault, by its name; without those that a kept plan finds."""


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
        workload: of the seed that has found it; empty for a plan.
        seed: which has found it.
    """

    name: str
    file: str
    guard: str
    found: bool
    check: str
    seeds: int
    cpu_s: float
    workload: str = ""
    seed: int = 0

    @property
    def is_fault(self) -> bool:
        """Whether it was a fault, and not a control without one."""
        return not self.name.startswith(CONTROL)


def trial(warm: Warm, planted: Planted, limit_s: float) -> Trial:
    """Run plans and seeds with a fault until one finds it, or the CPU is spent."""
    mutant = planted.mutant
    spent_s, runs = 0.0, 0
    why = ""
    for one in _candidates(planted, warm.workloads, known_seeds()):
        if spent_s >= limit_s and not one.is_for_it:
            break
        before_s = warm.measured_s
        if planted.is_fault and not one.is_for_it and planted.name not in warm.reached(one.run):
            spent_s += warm.measured_s - before_s
            continue
        ran = warm.run(planted, one.run)
        spent_s += ran.cpu_s
        runs += 1
        if ran.found:
            if one.run.plan is not None:
                check = f"{one.run.workload}: {ran.check}{OF_A_PLAN}"
                return Trial(mutant.name, mutant.file, mutant.guard, True, check, runs, spent_s)
            check = f"{one.run.workload}: {ran.check}{OF_A_SEED if one.is_for_it else ''}"
            return Trial(
                mutant.name, mutant.file, mutant.guard, True, check, runs, spent_s, one.run.workload, one.run.seed
            )
        why = ran.check or why
    return Trial(mutant.name, mutant.file, mutant.guard, False, why, runs, spent_s)


@dataclass(frozen=True)
class _Candidate:
    """A run that may find a fault, and whether it was kept for it."""

    run: Run
    is_for_it: bool = False


def known_seeds() -> dict[str, tuple[str, int]]:
    """Return workload and seed that have found a fault, by its name."""
    return {name: (workload, seed) for name, (workload, seed) in json.loads(SEEDS.read_text()).items()}


def record(trials: Sequence[Trial]) -> None:
    """Write the seeds that have found faults to `SEEDS`; those of faults that were not tried stay."""
    tried = {one.name: (one.workload, one.seed) if one.workload else None for one in trials if one.is_fault}
    seeds = {name: seed for name, seed in {**known_seeds(), **tried}.items() if seed is not None}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(seeds[name])}" for name in sorted(seeds))
    SEEDS.write_text(f"{{\n{lines}\n}}\n")


def _candidates(
    planted: Planted, workloads: Sequence[str], known: Mapping[str, tuple[str, int]]
) -> Iterator[_Candidate]:
    """Return runs that may find a fault: those kept for it, plans kept for others, seeds; each fourth elsewhere."""
    plans = [*KEPT, *RARE]
    for kept in plans:
        if kept.planted == planted.name:
            yield _Candidate(Run(kept.workload, kept.seed, tuple(kept.plan), kept.faults_s), is_for_it=True)
    if planted.name in known:
        yield _Candidate(Run(*known[planted.name]), is_for_it=True)
    for kept in plans:
        if kept.planted != planted.name and kept.workload == planted.workload:
            yield _Candidate(Run(kept.workload, kept.seed, tuple(kept.plan), kept.faults_s))
    others = [name for name in workloads if name != planted.workload]
    for seed in itertools.count():
        yield _Candidate(Run(planted.workload, seed))
        if seed % 3 == 2:
            yield _Candidate(Run(others[seed // 3 % len(others)], seed // 3 // len(others)))


def try_each(wanted: Sequence[Planted], limit_s: float = LIMIT_S) -> list[Trial]:
    """Try faults, one after the other, in an interpreter of their own, which loads the simulator once.

    Raises:
        NotApplicable: the text that a fault replaces is not in its file.
    """
    for planted in wanted:
        planted.mutant.text(ROOT)
    names = [planted.name for planted in wanted]
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation.mutants", str(limit_s), *names]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [Trial(**line) for line in map(json.loads, done.stdout.splitlines())]


def find_all(
    wanted: Sequence[Planted],
    minutes: float,
    target: Path | None = None,
    before: Sequence[Trial] = (),
    limit_s: float = LIMIT_S,
    attempt: Callable[[Planted, float], Trial] | None = None,
) -> dict[str, Any]:
    """Plant one fault after another until the time is over; print what finds each, and return the figures.

    Args:
        wanted: the faults. The workloads take turns, so that each has its share of a short time.
        minutes: after which no further fault is planted.
        target: file for the figures, written after each fault.
        before: what came of faults in an earlier run. Those that were found then are not planted again, nor those that
            had as much CPU.
        limit_s: seconds of CPU for which seeds are run against one fault; at most `CONTROL_S` against a control.
        attempt: how a fault is tried; by default in children of this process.
    """
    until = time.monotonic() + 60 * minutes
    names = {planted.name for planted in wanted}
    trials = {one.name: one for one in before if one.name in names}

    def is_over(planted: Planted, seconds: float) -> bool:
        last = trials.get(planted.name)
        return last is not None and (last.found or not last.is_fault or last.cpu_s >= seconds)

    attempt = attempt or functools.partial(trial, Warm(wanted))
    for seconds in sorted({min(FIRST_S, limit_s), limit_s}):
        for planted in in_turns([one for one in wanted if not is_over(one, seconds)]):
            if time.monotonic() > until:
                break
            result = attempt(planted, seconds if planted.is_fault else min(limit_s, CONTROL_S))
            trials[planted.name] = result
            sys.stdout.write(f"{describe(result)}\n")
            sys.stdout.flush()
            if target is not None:
                _write(target, summary(list(trials.values())))
    return summary(list(trials.values()))


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
    writes_seeds: bool = False,
) -> int:
    """Plant faults, and nothing for control; return 0 if enough faults are found, and nothing in the controls.

    Args:
        minutes: after which no further fault is planted.
        only: the name of one fault; default: all.
        workload: the name of the workload of which the faults are planted; default: all.
        target: file for the figures.
        resume: whether the faults that *target* has already are left out.
        limit_s: seconds of CPU for which seeds are run against one fault.
        writes_seeds: whether `SEEDS` gets the seeds that find faults.
    """
    before = trials_of(target) if resume and target is not None else []

    def chosen(planted: Planted) -> bool:
        return only in (None, planted.name) and workload in (None, planted.workload)

    figures = find_all([one for one in [*controls(), *catalogue()] if chosen(one)], minutes, target, before, limit_s)
    found, planted = figures["mutants_found"], figures["mutants_planted"]
    sys.stdout.write(f"{found} of {planted} are found\n")
    if writes_seeds:
        record([Trial(**one) for one in figures["trials"]])
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
    parser.add_argument("limit_s", type=float)
    parser.add_argument("names", nargs="+")
    chosen = parser.parse_args(arguments)
    known = {one.name: one for one in [*controls(), *catalogue()]}
    wanted = [known[name] for name in chosen.names]
    warm = Warm(wanted)
    for planted in wanted:
        sys.stdout.write(json.dumps(asdict(trial(warm, planted, chosen.limit_s))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1:]))
