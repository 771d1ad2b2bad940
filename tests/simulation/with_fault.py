"""A command of the simulator with a fault planted in the product.

python -m tests.simulation.with_fault renewal-without-the-address shrink --workload ha --seed 7 --short 4

The fault, one of `tests.simulation.planted`, is planted before the product is imported. So a plan of faults can be
shrunk for a defect that was mended, and a kept plan can be seen to fail without the mend (`tests.simulation.kept`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.simulation.mutants import plant
from tests.simulation.planted import catalogue


def main(arguments: Sequence[str]) -> int:
    """Plant the fault that the first argument names, and run the command of the others; return its exit code."""
    name, *command = arguments
    plant(next(one for one in catalogue() if one.name == name))
    from tests.simulation.__main__ import main as simulation

    return simulation(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
