"""Understudy's own modules by name, whether this process imports them as `actors.x` or as `understudy.actors.x`.

A process that runs a user's code imports them below the package `understudy` (see `understudy.imports`). Names on the
wire leave that package out, so that processes of both kinds understand each other.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_PREFIX = "understudy."
_HERE = __name__.removesuffix("actors.own_modules")
"""Prefix of the names of Understudy's modules in this process: `_PREFIX`, or nothing."""

_PACKAGES = ("actors", "blob", "conf", "runtime")


def wire_name(module: str) -> str:
    """Return the name of a module as other processes know it."""
    return module.removeprefix(_PREFIX)


def loaded_module(name: str) -> ModuleType | None:
    """Return the imported module that a name on the wire means, or None; Understudy's own modules come first."""
    return sys.modules.get(f"{_HERE}{name}") or sys.modules.get(name)


def import_own(name: str) -> ModuleType:
    """Import a module that Understudy's code names: its own, even if a user's module has the same name."""
    return importlib.import_module(f"{_HERE}{name}" if name.partition(".")[0] in _PACKAGES else name)
