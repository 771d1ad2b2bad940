"""A plan of faults that is kept for a planted fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.faults import Fault

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Kept:
    """A plan of faults to keep.

    Args:
        defect: what it has found.
        planted: name of the planted fault that brings the defect back.
        workload: its name.
        seed: of everything but the plan.
        plan: the faults.
        faults_s: virtual seconds of faults.
        check: what fails without the mend.
    """

    defect: str
    planted: str
    workload: str
    seed: int
    plan: Sequence[Fault]
    faults_s: float
    check: str

    def command(self, *, is_mended: bool) -> list[str]:
        """Return the command that runs the plan, with the mend or without it."""
        module = ["tests.simulation"] if is_mended else ["tests.simulation.with_fault", self.planted]
        return [
            *(sys.executable, "-W", "ignore", "-m", *module, "replay", "--workload", self.workload),
            *("--seed", str(self.seed), "--short", str(self.faults_s), "--faults", repr(list(self.plan))),
        ]

    def start(self, *, is_mended: bool) -> subprocess.Popen[str]:
        """Start the command in a process of its own."""
        return subprocess.Popen(
            self.command(is_mended=is_mended),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
