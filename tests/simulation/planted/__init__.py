"""Faults planted in the product, by the workload that is to find them.

Each module has two lists. `FROM_CATALOGUE` names faults of `tests.mutants.catalogue`. `OWN` has those that no test of
that catalogue is for; each is a `Mutant` without tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.model import Mutant
from tests.simulation.planted import blobs, cluster, ha, streaming, supervision, upgrade

_MODULES = {
    "ha": ha,
    "cluster": cluster,
    "streaming": streaming,
    "supervision": supervision,
    "blobs": blobs,
    "upgrade": upgrade,
}
CONTROL = "nothing-in-"
"""How the name of a control begins, which plants nothing."""


@dataclass(frozen=True)
class Planted:
    """A fault with the name of the workload that is to find it."""

    workload: str
    mutant: Mutant

    @property
    def name(self) -> str:
        """The fault's name."""
        return self.mutant.name

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault, and not a control."""
        return not self.name.startswith(CONTROL)


def controls() -> list[Planted]:
    """Return a run without a fault for each workload, which must find nothing."""
    nothing = "Nothing is taken out."
    line = "from __future__ import annotations\n"
    return [
        Planted(workload, Mutant(f"{CONTROL}{workload}", nothing, "runtime/alarm.py", line, line, ()))
        for workload in _MODULES
    ]


def catalogue() -> list[Planted]:
    """Return all faults, in the order of the workloads.

    Raises:
        KeyError: `tests.mutants.catalogue` has no fault of a name.
    """
    from tests.mutants.catalogue import MUTANTS

    by_name = {mutant.name: mutant for mutant in MUTANTS}
    return [
        Planted(workload, mutant)
        for workload, module in _MODULES.items()
        for mutant in [*(by_name[name] for name in module.FROM_CATALOGUE), *module.OWN]
    ]
