"""``python -m tests.bench guard``: whether something has become much dearer. The bounds are in bounds.json.

Counts (`tests.bench.costs`) do not depend on the machine: `tests/contract/test_costs.py` holds them in every test run.
Ratios of times, ours over the floor's in the same run, do a little; their bounds are generous, and only this command
looks at them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench import blob, costs, rpc
from tests.bench.comparisons import COMPARISONS, FLOOR

BOUNDS = Path(__file__).with_name("bounds.json")
Figures = dict[str, float]


def bounds() -> dict[str, Figures]:
    """The committed bounds: ``counts`` and ``ratios``."""
    found: dict[str, Figures] = json.loads(BOUNDS.read_text())
    return found


def exceeded(measured: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    """A line for each figure that is beyond its bound, or that nobody has measured. Pure."""
    missing = [f"{name}: bound {bound:g}, not measured" for name, bound in allowed.items() if name not in measured]
    return missing + [
        f"{name}: bound {bound:g}, measured {measured[name]:.4g}"
        for name, bound in allowed.items()
        if name in measured and measured[name] > bound
    ]


def ratios() -> Figures:
    """Ours over the floor's, of messages and of blobs; some minutes."""
    figures = {f"rpc/{name}": value for name, value in rpc.calls(1)[0].items()}
    figures |= {f"blob/{name}": value for name, value in blob.run(1)[0].items()}
    return {
        one.what: ratio
        for one in COMPARISONS
        if one.beside.startswith(FLOOR) and (ratio := one.ratio(figures)) is not None
    }


def main(*, counts_only: bool) -> int:
    """Measure and compare; prints what was measured, and fails with a line for each figure that is beyond its bound."""
    allowed = bounds()
    measured = {"counts": costs.measure()}
    if not counts_only:
        measured["ratios"] = ratios()
    failures = []
    for kind, figures in measured.items():
        for name, value in figures.items():
            print(f"{value:10.4g}  (bound {allowed[kind].get(name, float('inf')):g})  {name}", file=sys.stderr)
        failures += exceeded(figures, allowed[kind])
    for line in failures:
        print(line)
    return 1 if failures else 0
