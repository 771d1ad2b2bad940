"""Options of how a job comes to a cluster."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice


class ExecutionTarget(Enum):
    """Where a job runs (Flink's ``execution.target``)."""

    SESSION = "session"
    PER_JOB = "per-job"
    APPLICATION = "application"


class DeploymentOptions:
    """Which cluster a job is for: one that runs, or one of its own."""

    TARGET = option(
        "execution.target",
        Choice(ExecutionTarget),
        "session",
        "Where `understudy job run` runs a job: `session`: in the cluster that runs; `per-job`: in a cluster for this "
        "job alone, which ends with it; `application`: in a cluster for this program, whose main() runs there and "
        "whose jobs are one application. `understudy job run --target` says the same for one command.",
    )
