"""Plans of faults that are kept for planted faults, by the workload that runs them.

Each names a planted fault of `tests.simulation.planted`. With that fault the plan has to fail, and without it to pass.
A plan that meets its situation no more, after a change of a workload or of the product, passes with the fault too. Then
the test fails, and another seed or plan has to be found:

    python -m tests.simulation.with_fault renewal-without-the-address shrink --workload ha --seed 7 --short 4

Each module has two lists. The plans of `KEPT` have found a defect of the product, and their planted fault takes its
mend out again. `RARE` has plans for planted faults that random seeds may not find for long. They were no defects.
"""

from __future__ import annotations

from tests.simulation.kept import blobs, cluster, ha, streaming, supervision, upgrade
from tests.simulation.kept.model import ROOT, Kept

__all__ = ["KEPT", "RARE", "ROOT", "Kept"]

_MODULES = (ha, cluster, streaming, supervision, blobs, upgrade)
KEPT = tuple(kept for module in _MODULES for kept in module.KEPT)
RARE = tuple(kept for module in _MODULES for kept in module.RARE)
