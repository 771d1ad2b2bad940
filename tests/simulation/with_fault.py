"""A command of the simulator with a fault planted in the product.

python -m tests.simulation.with_fault renewal-without-the-address shrink --workload ha --seed 7 --short 4

The fault, one of `tests.simulation.planted`, is planted before the product is imported. So a plan of faults can be
shrunk for a defect that was mended, and a kept plan can be seen to fail without the mend (`tests.simulation.kept`).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutants.model import Mutant
from tests.simulation.planted import Planted, catalogue

ROOT = Path(__file__).parents[2]


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

        if self._module in sys.modules:
            raise ImportError(f"{self._module} was imported before {mutant.name} could be planted in it")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, _Loader(name, self._path, self._text))


def plant(planted: Planted) -> None:
    """Plant a fault in this process. Raises ImportError: the module is imported already, and would run without it."""
    sys.meta_path.insert(0, _Finder(planted.mutant))


def main(arguments: Sequence[str]) -> int:
    """Plant the fault that the first argument names, and run the command of the others; return its exit code."""
    name, *command = arguments
    plant(next(one for one in catalogue() if one.name == name))
    from tests.simulation.__main__ import main as simulation

    return simulation(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
