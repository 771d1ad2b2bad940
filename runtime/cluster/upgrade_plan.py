"""The plan of `understudy cluster upgrade`: which process is exchanged when, and what each running job notices.

Everything here is pure. A plan follows from the present state of the cluster alone. So an interrupted upgrade needs no
record of its progress: the plan of the next command has the steps that are left.

The order is that of a rolling upgrade: standby masters first, the leading one last. Until then the leader is of the
earlier release, which decides everything as before.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import ClusterError
from runtime.feature_level import Release
from runtime.ids import JobID
from runtime.protocol.leader import DISPATCHER

BY_HAND = "follow docs/upgrading.md: stop streaming jobs with savepoints, and start the cluster with the other release"


class UpgradeRefusedError(ClusterError):
    """The cluster cannot be upgraded in this way; nothing was changed."""


@dataclass(frozen=True, slots=True)
class RunningMaster:
    """A master of this host.

    Args:
        name: as `status` shows it.
        pid: its process id.
        release: that it runs.
        leads: names of the elected components that lead in it.
    """

    name: str
    pid: int
    release: Release
    leads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningTaskExecutor:
    """A registered TaskExecutor.

    Args:
        name: its resource id.
        pid: its process id.
        release: that it runs.
        spark_version: of its Spark driver; empty if another machine runs its Spark.
        jobs: those that have slots on it.
    """

    name: str
    pid: int
    release: Release
    spark_version: str = ""
    jobs: tuple[JobID, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that has not ended.

    Args:
        job_id: of the job.
        name: of the job.
        state: its state.
        streams: whether it has streaming queries.
    """

    job_id: JobID
    name: str
    state: str
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The facts of a cluster that an upgrade depends on.

    Args:
        feature_level: that the cluster stores.
        masters: of this host, by their numbers.
        task_executors: the registered ones.
        jobs: those that have not ended.
        ended_master: name of a master that an interrupted upgrade has ended and not started again; empty for none.
        is_session: whether it is a session cluster.
        is_member: whether its masters belong to a cluster on several hosts.
        has_redis: whether Redis keeps its leaders and jobs, and not the one master.
    """

    feature_level: int
    masters: tuple[RunningMaster, ...]
    task_executors: tuple[RunningTaskExecutor, ...] = ()
    jobs: tuple[RunningJob, ...] = ()
    ended_master: str = ""
    is_session: bool = True
    is_member: bool = False
    has_redis: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """The installation that the processes are started with.

    Args:
        release: of Understudy.
        spark_version: of its PySpark.
        python: its interpreter.
    """

    release: Release
    spark_version: str
    python: str


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """A process of the cluster in a plan.

    Attributes:
        process: its name.
        pid: its process id; 0 if it has ended.
        version: of Understudy that it runs; empty if it has ended.
        target_version: of Understudy that it runs after the upgrade.
        effect: what the exchange does to the cluster, or why the process is not exchanged.
    """

    process: str
    pid: int
    version: str
    target_version: str
    effect: str


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A running job in a plan.

    Attributes:
        job_id: of the job.
        name: of the job.
        state: its state.
        task_executors: names of the TaskExecutors that have slots of it.
        effect: what it notices of the upgrade.
    """

    job_id: JobID
    name: str
    state: str
    task_executors: tuple[str, ...]
    effect: str


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The steps of an upgrade, and their effects.

    Attributes:
        steps: the masters to exchange, in this order.
        kept: the processes that stay as they are.
        jobs: the jobs that have not ended.
        warning: what the cluster's users notice; empty for nothing.
        to_do: the work that is left to the operator after the last step.
    """

    steps: tuple[PlannedProcess, ...]
    kept: tuple[PlannedProcess, ...]
    jobs: tuple[PlannedJob, ...]
    warning: str
    to_do: tuple[str, ...]


def check_upgrade(state: ClusterState, target: Target) -> None:
    """Check that a cluster can be upgraded to a release while it runs.

    Raises:
        UpgradeRefusedError: it cannot be.
    """
    if not state.is_session:
        raise UpgradeRefusedError(
            "only session clusters are upgraded while they run: a per-job or application cluster ends with its work",
            "start the next one with the other release",
        )
    if state.is_member:
        raise UpgradeRefusedError(
            "the masters here belong to a cluster on several hosts, and this command upgrades a cluster on one host",
            "on one host after the other run `understudy stop --role master`, then with the other release "
            "`understudy start --role master`",
        )
    if not state.has_redis:
        raise UpgradeRefusedError(
            "high-availability.type is none: the one master keeps the jobs in its memory, and they would be lost",
            BY_HAND,
        )
    levels = target.release.levels
    if state.feature_level not in levels:
        raise UpgradeRefusedError(
            f"the cluster has feature level {state.feature_level}, and {target.release} supports {levels}",
            "name an environment of a release that supports the level with --to: a finalized cluster has no downgrade"
            if state.feature_level > levels.newest
            else "run `understudy cluster finalize` with the release that the cluster runs now, then upgrade again",
        )
    for worker in state.task_executors:
        if worker.spark_version and worker.spark_version != target.spark_version:
            raise UpgradeRefusedError(
                f"TaskExecutor {worker.name} runs Spark {worker.spark_version}, and {target.python} has "
                f"{f'PySpark {target.spark_version}' if target.spark_version else 'no PySpark'}",
                f"install pyspark=={worker.spark_version} there, or {BY_HAND}",
            )


def check_interruption(plan: UpgradePlan, *, is_accepted: bool) -> None:
    """Check that users notice nothing of a plan, or that the operator accepts what they notice.

    Raises:
        UpgradeRefusedError: they notice something, and it is not accepted.
    """
    if plan.warning and not is_accepted:
        raise UpgradeRefusedError(
            plan.warning, "run `understudy start-master` first, which starts a standby, or accept this with --yes"
        )


def plan_upgrade(state: ClusterState, target: Target) -> UpgradePlan:
    """Return the plan for a cluster that `check_upgrade` accepts.

    Args:
        state: of the cluster.
        target: the other installation. A process of its release is not exchanged, even if it runs from elsewhere.
    """
    old = sorted(
        (master for master in state.masters if not _runs(target, master.release)),
        key=lambda master: (DISPATCHER in master.leads, bool(master.leads)),
    )
    is_alone = len(state.masters) == 1 and not state.ended_master
    steps = [_exchange(target, master, is_alone=is_alone) for master in old]
    if state.ended_master:
        effect = "an interrupted upgrade has ended it: it is started"
        steps.insert(0, PlannedProcess(state.ended_master, 0, "", target.release.version, effect))
    kept = [
        PlannedProcess(master.name, master.pid, master.release.version, target.release.version, "runs it already")
        for master in state.masters
        if master not in old
    ]
    for worker in state.task_executors:
        effect = "runs it already" if _runs(target, worker.release) else "stays: this command exchanges masters only"
        kept.append(PlannedProcess(worker.name, worker.pid, worker.release.version, worker.release.version, effect))
    warning = (
        f"{old[0].name} is the only master: while it is exchanged the cluster answers no request; tasks keep running"
        if old and is_alone
        else ""
    )
    jobs = tuple(_job(job, state, target, will_move=bool(steps)) for job in state.jobs)
    return UpgradePlan(tuple(steps), tuple(kept), jobs, warning, _to_do(state, target))


def _runs(target: Target, release: Release) -> bool:
    return release.version == target.release.version


def _exchange(target: Target, master: RunningMaster, *, is_alone: bool) -> PlannedProcess:
    if is_alone:
        effect = "leads, without a standby: nothing leads until it is started again"
    elif DISPATCHER in master.leads:
        effect = "leads: a standby takes over, with the JobMasters of all jobs"
    elif master.leads:
        effect = f"leads as {' and '.join(master.leads)}: a standby takes over"
    else:
        effect = "standby: the leader is not affected"
    return PlannedProcess(master.name, master.pid, master.release.version, target.release.version, effect)


def _job(job: RunningJob, state: ClusterState, target: Target, *, will_move: bool) -> PlannedJob:
    workers = [worker for worker in state.task_executors if job.job_id in worker.jobs]
    if not will_move:
        effect = "not affected"
    elif workers:
        effect = "its tasks keep running"
    else:
        effect = "has no slot: the next leader requests them again"
    if old := [worker.name for worker in workers if not _runs(target, worker.release)]:
        later = "its queries resume from the last checkpoint" if job.streams else "its tasks there run again"
        effect += f"; when {' or '.join(old)} is restarted later, {later}"
    return PlannedJob(job.job_id, job.name, job.state, tuple(worker.name for worker in workers), effect)


def _to_do(state: ClusterState, target: Target) -> tuple[str, ...]:
    found = []
    if old := [worker for worker in state.task_executors if not _runs(target, worker.release)]:
        names = ", ".join(f"{worker.name} ({worker.release.version or 'unknown version'})" for worker in old)
        found.append(
            f"restart the TaskExecutors of another release, one at a time: {names}; `kill PID` with the PID of the "
            "process in `understudy status`"
        )
    if target.release.levels.newest > state.feature_level:
        found.append(
            f"raise the feature level from {state.feature_level} once all components are upgraded, which ends "
            "downgrades: `understudy cluster finalize`"
        )
    return tuple(found)
