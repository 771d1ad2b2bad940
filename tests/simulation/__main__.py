"""Command line of the simulator.

python -m tests.simulation run --workload ha --seed 7          # one seed, in detail if it fails
python -m tests.simulation run --seeds 50 --json out.json      # seeds 0 to 49 of all workloads
python -m tests.simulation run --minutes 3                     # new random seeds, printed
python -m tests.simulation shrink --workload ha --seed 7       # the least faults that still fail, as a pytest function
python -m tests.simulation replay --workload ha --seed 7 --faults "[Fault(1.5, 'kill', ('contender1',))]"
python -m tests.simulation mutants --minutes 20                # plant faults in the product, and see which are found
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.simulation import mutants
from tests.simulation.faults import Fault
from tests.simulation.shrink import as_pytest_function, shrink
from tests.simulation.workloads import WORKLOADS
from tests.simulation.world import Outcome, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run seeds")
    running.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    how_many = running.add_mutually_exclusive_group()
    how_many.add_argument("--seed", type=int)
    how_many.add_argument("--seeds", type=int, help="run the seeds from 0 on")
    how_many.add_argument("--minutes", type=float, help="run new random seeds for so long")
    running.add_argument("--json", type=Path, help="write the results to a file")
    running.add_argument("--traces", action="store_true", help="print workload, seed and trace hash of each run only")
    running.add_argument("--short", type=float, metavar="SECONDS", help="virtual seconds of faults in each run")
    running.add_argument("--no-shrink", action="store_true", help="do not shrink the faults of a failing seed")
    for name in ("shrink", "replay"):
        one = commands.add_parser(name)
        one.add_argument("--workload", choices=[*WORKLOADS], required=True)
        one.add_argument("--seed", type=int, required=True)
        one.add_argument("--short", type=float, metavar="SECONDS", help="virtual seconds of faults")
        if name == "replay":
            one.add_argument("--faults", default=None, help="a Python list of Fault(...); default: those of the seed")
    planting = commands.add_parser("mutants", help="plant faults in the product")
    planting.add_argument("--minutes", type=float, default=60.0)
    planting.add_argument("--only", help="the name of one")
    planting.add_argument("--workload", choices=[*WORKLOADS], help="only the faults that a workload is to find")
    planting.add_argument("--json", type=Path)
    planting.add_argument(
        "--seconds", type=float, default=mutants.LIMIT_S, help="CPU for each fault (default: %(default)g)"
    )
    planting.add_argument("--resume", action="store_true", help="leave out what the file of --json has already")
    planting.add_argument("--record", action="store_true", help="keep the seeds that find faults")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of killed processes are never awaited
    if chosen.command == "run":
        return _run(chosen)
    if chosen.command == "mutants":
        if chosen.resume and chosen.json is None:
            parser.error("--resume continues a run by its file: give --json FILE, too")
        return mutants.main(
            chosen.minutes,
            chosen.only,
            chosen.workload,
            chosen.json,
            resume=chosen.resume,
            limit_s=chosen.seconds,
            writes_seeds=chosen.record,
        )
    plan = None
    if chosen.command == "replay" and chosen.faults is not None:
        plan = eval(chosen.faults, {"Fault": Fault})
    outcome = run(WORKLOADS[chosen.workload], chosen.seed, plan, faults_s=chosen.short)
    print_outcome(outcome)
    if outcome.failure is None:
        return 0
    if chosen.command == "shrink":
        print_shrunk(outcome, chosen.short)
    return 1


def _seeds(chosen: argparse.Namespace) -> Iterator[int]:
    if chosen.seed is not None:
        yield chosen.seed
    elif chosen.minutes is not None:
        until = time.monotonic() + 60 * chosen.minutes
        source = random.SystemRandom()
        while time.monotonic() < until:
            yield source.randrange(2**32)
    else:
        yield from range(chosen.seeds or 10)


def _run(chosen: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    names = list(WORKLOADS) if chosen.workload == "all" else [chosen.workload]
    for seed in _seeds(chosen):
        if chosen.minutes is not None and not chosen.traces:
            print(f"seed {seed}", flush=True)  # before it runs, so that one that never ends is known
        for name in names:
            gc.freeze()  # what the last run left, the program: the collector need not look through it in each run
            outcome = run(WORKLOADS[name], seed, faults_s=chosen.short)
            outcomes.append(outcome)
            if chosen.traces:
                print(name, seed, outcome.trace, outcome.failure or "", flush=True)
                continue
            verdict = "ok" if outcome.failure is None else f"FAILED {outcome.failure.check}"
            print(
                f"{name} seed {seed}: {verdict}, {outcome.faults} faults in {outcome.virtual_s:.0f} virtual s, "
                f"{outcome.cpu_s:.2f} s of CPU, trace {outcome.trace[:12]}",
                flush=True,
            )
            if outcome.failure is not None:
                print_outcome(outcome)
                if not chosen.no_shrink:
                    print_shrunk(outcome, chosen.short)
    figures = summary(outcomes)
    if not chosen.traces:
        print(json.dumps(figures, indent=2))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed and not chosen.traces:
        print("\n".join(["", *(how_to_replay(outcome, chosen.short) for outcome in failed)]))
    return 1 if failed else 0


def how_to_replay(outcome: Outcome, faults_s: float | None = None) -> str:
    """Return two lines: which check failed with which seed, and the command that runs it again."""
    check = "" if outcome.failure is None else outcome.failure.check
    short = "" if faults_s is None else f" --short {faults_s:g}"
    command = f"python -W ignore -m tests.simulation run --workload {outcome.workload} --seed {outcome.seed}{short}"
    return f"FAILED: {outcome.workload} seed {outcome.seed}: {check}\n    {command}"


def summary(outcomes: Sequence[Outcome]) -> dict[str, dict[str, object]]:
    """Return the figures of some runs, by workload."""
    figures: dict[str, dict[str, object]] = {}
    for name in sorted({outcome.workload for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.workload == name]
        cpu_s = sum(outcome.cpu_s for outcome in mine) or 1.0
        faults = sum(outcome.faults for outcome in mine)
        counts: dict[str, int] = {}
        for outcome in mine:
            for key, value in outcome.counts.items():
                counts[key] = counts.get(key, 0) + value
        figures[name] = {
            "seeds": len(mine),
            "failed": [outcome.seed for outcome in mine if outcome.failure is not None],
            "faults": faults,
            "faults_per_hour_per_core": round(3600 * faults / cpu_s),
            "virtual_s_per_s": round(sum(outcome.virtual_s for outcome in mine) / cpu_s, 1),
            "counts": dict(sorted(counts.items())),
        }
    return figures


def print_outcome(outcome: Outcome) -> None:
    """Print what happened in a run."""
    if outcome.failure is None:
        print(f"{outcome.workload} seed {outcome.seed}: ok, {outcome.faults} faults, trace {outcome.trace}")
        return
    print(f"{outcome.workload} seed {outcome.seed}: {outcome.failure}")
    print("\nThe last lines of the log:\n" + "\n".join(outcome.log))
    print("\nThe last events:\n" + "\n".join(outcome.last_events[-40:]))
    print("\nWhat waits for what, " + outcome.waits)


def print_shrunk(outcome: Outcome, faults_s: float | None = None) -> None:
    """Shrink the faults of a failing run with *faults_s* seconds of faults, and print them as a test."""
    workload = WORKLOADS[outcome.workload]
    plan = shrink(workload, outcome, faults_s=faults_s)
    print(f"\n{len(plan)} of {len(outcome.plan)} faults are enough:\n\n{as_pytest_function(outcome, plan, faults_s)}")


if __name__ == "__main__":
    sys.exit(main())
