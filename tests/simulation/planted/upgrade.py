"""Faults planted for the workload `upgrade`: what two releases in one cluster rely on."""

from __future__ import annotations

from tests.mutants.model import Mutant

FROM_CATALOGUE: tuple[str, ...] = ()

OWN: tuple[Mutant, ...] = (
    Mutant(
        "newest-format-at-any-level",
        "A release writes what the level of the cluster says, which the former release reads.",
        "runtime/feature_level.py",
        "        return VERSIONS[self.number][of]\n",
        "        return VERSIONS[max(VERSIONS)][of]\n",
        (),
    ),
    Mutant(
        "level-raised-beside-the-former-release",
        "The level is raised only if all components support it.",
        "runtime/feature_level.py",
        "    reached = max(level, min(newest, default=level))\n",
        "    reached = max([level, *newest])\n",
        (),
    ),
)
