"""All planted faults."""

from __future__ import annotations

from tests.mutants import (
    actors,
    blob,
    checkpoint,
    clusters,
    conf_files,
    control,
    deployment,
    ha,
    jobs,
    own_names,
    queues,
    rehearsal,
    rest,
    simulator,
    upgrades,
    users,
    working_directory,
)
from tests.mutants.model import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *actors.MUTANTS,
    *blob.MUTANTS,
    *checkpoint.MUTANTS,
    *clusters.MUTANTS,
    *conf_files.MUTANTS,
    *control.MUTANTS,
    *deployment.MUTANTS,
    *ha.MUTANTS,
    *jobs.MUTANTS,
    *own_names.MUTANTS,
    *queues.MUTANTS,
    *rehearsal.MUTANTS,
    *rest.MUTANTS,
    *simulator.MUTANTS,
    *upgrades.MUTANTS,
    *users.MUTANTS,
    *working_directory.MUTANTS,
)
