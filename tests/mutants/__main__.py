"""Plants faults in a copy of the product, one at a time: ``python -m tests.mutants [--only AREA] [--json FILE]``.

Each takes one guard out (a check, a sync, a limit, the order of a write and its acknowledgement) and names the tests
that have to fail for it. Prints a table; the exit status is 1 where a fault survives, hangs its tests, or shows
nothing because it no longer applies or a test of it does not pass without it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.model import Mutant
from tests.mutants.trial import CAUGHT, Outcome, Trial, copy_of

ROOT = Path(__file__).resolve().parents[2]


def try_all(mutants: Iterable[Mutant], root: Path) -> list[Outcome]:
    """Try planted faults one after another in a copy of the tree *root*, and print a line for each."""
    mutants = list(mutants)
    outcomes = []
    with copy_of(root) as tree:
        trial = Trial(tree)
        trial.without_faults(mutants)
        for mutant in mutants:
            outcomes.append(outcome := trial.of(mutant))
            sys.stdout.write(f"{outcome.verdict:9}{mutant.area:26}{mutant.name:50}{outcome.seconds:6.1f} s\n")
            if outcome.reason:
                sys.stdout.write(f"         {outcome.reason}\n")
            sys.stdout.flush()
    return outcomes


def main(arguments: list[str], mutants: Iterable[Mutant] = MUTANTS, root: Path = ROOT) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="AREA", help="those of one package, such as runtime/ha, or one by its name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the outcomes go, as one JSON object")
    parser.add_argument("--long", action="store_true", help="also those whose tests start Spark or clusters")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants if given.only is None or mutant.is_of(given.only)]
    if not chosen:
        parser.error(
            f"there is no planted fault of {given.only}; areas: {', '.join(sorted({m.area for m in mutants}))}"
        )
    chosen = [mutant for mutant in chosen if given.long or not mutant.long or mutant.name == given.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as an interrupt: the copy is removed
    outcomes = try_all(chosen, root)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    sys.stdout.write(f"{len(outcomes)} planted faults: {said}\n")
    if given.json is not None:
        figures = {"mutants": len(outcomes), "caught": verdicts[CAUGHT]}
        told = {"figures": figures, "mutants": [outcome.to_dict() for outcome in outcomes]}
        given.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0 if verdicts[CAUGHT] == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
