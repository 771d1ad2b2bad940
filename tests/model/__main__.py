"""``python -m tests.model``: all checks of the model of the leader latch, and whether they find each planted fault."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.model.spin import BEYOND, CHECKS, FAULTS, missing, run


def main(say: Callable[[str], object] = sys.stdout.write) -> int:
    """Print one line for each search; return 1 where a check fails or a fault is not found, 2 without SPIN."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--trail", action="store_true", help="print the steps to each violation")
    options = parser.parse_args()
    if reason := missing():
        say(f"{reason}\n")
        return 2
    good = True
    for check in CHECKS.values():
        result = run(check)
        good &= result.complete
        outcome = "holds" if result.complete else result.violated or "NOT COMPLETE"
        say(f"{check.name}: {outcome} ({result.states:,} states, {result.seconds:.1f} s): {check.shows}\n")
        if options.trail:
            say(result.trail)
    for fault in (*FAULTS, *BEYOND):
        result = run(CHECKS[fault.check], fault.defines)
        found = fault.finds in result.violated
        good &= found
        beyond = " (not promised)" if fault in BEYOND else ""
        say(f"{fault.defines[0]}{beyond}: {'found' if found else 'NOT FOUND'} by {fault.check}\n")
        if options.trail:
            say(result.trail)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
