"""Options of the deployment of jobs to clusters."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice


class ExecutionTarget(Enum):
    """Cluster that runs a job (Flink's ``execution.target``)."""

    SESSION = "session"
    PER_JOB = "per-job"
    APPLICATION = "application"


class DeploymentOptions:
    """The cluster of a job: a running one, or one of its own."""

    TARGET = option(
        "execution.target",
        Choice(ExecutionTarget),
        "session",
        "Cluster in which `understudy job run` runs a job. `session`: the running cluster. `per-job`: a new cluster "
        "for this job, which stops afterwards. `application`: a new cluster for this program, whose main() runs there "
        "and whose jobs form one application. `understudy job run --target` sets it for one command.",
    )
