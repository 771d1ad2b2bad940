"""Our modules by name, where they are `actors.x` and where they are `understudy.actors.x`.

A process that runs a user's code has ours below the package `understudy` (see `understudy.imports`). On the wire they
have their names without it, so that processes of both kinds understand each other.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_PREFIX = "understudy."
_HERE = __name__.removesuffix("actors.own_modules")
"""Prefix of the names of our modules in this process: `_PREFIX`, or nothing."""

_PACKAGES = ("actors", "blob", "conf", "runtime")


def wire_name(module: str) -> str:
    """Return the name of a module as other processes know it."""
    return module.removeprefix(_PREFIX)


def loaded_module(name: str) -> ModuleType | None:
    """Return the module that a name on the wire stands for, if this process has imported it; ours comes first."""
    return sys.modules.get(f"{_HERE}{name}") or sys.modules.get(name)


def import_own(name: str) -> ModuleType:
    """Import the module of a name that our own code says: ours, whatever else is called so."""
    return importlib.import_module(f"{_HERE}{name}" if name.partition(".")[0] in _PACKAGES else name)
