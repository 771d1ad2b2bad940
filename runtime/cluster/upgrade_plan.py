"""The plan of `understudy cluster upgrade`: which process is exchanged when, and what each running job notices.

Everything here is pure. A plan follows from the present state of the cluster alone. So an interrupted upgrade needs no
record of its progress: the plan of the next command has the steps that are left.

The order is that of a rolling upgrade: standby masters first, the leading one last. Until then the leader is of the
earlier release, which decides everything as before. The TaskExecutors follow, because a master starts them with its own
release, and because its ResourceManager has to know how to drain them (`next_drain_step`).

A TaskExecutor hands its running tasks over to its successor, unless something prevents that (`hand_over_obstacles`).
Otherwise it is drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from conf.values import Duration
from runtime.errors import ClusterError
from runtime.feature_level import Release
from runtime.ids import JobID
from runtime.protocol.hand_over import HandOverReport, Obstacle
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
        slots: number of its slots.
        report: what it can hand over to a successor; None if it is of a release that hands nothing over.
    """

    name: str
    pid: int
    release: Release
    spark_version: str = ""
    jobs: tuple[JobID, ...] = ()
    slots: int = 1
    report: HandOverReport | None = None


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
        has_fixed_workers: whether a TaskExecutor that ends is started again. Otherwise one is started when a job needs
            it.
        is_part: whether the masters and TaskExecutors are one host's of a cluster on several hosts.
    """

    feature_level: int
    masters: tuple[RunningMaster, ...]
    task_executors: tuple[RunningTaskExecutor, ...] = ()
    jobs: tuple[RunningJob, ...] = ()
    ended_master: str = ""
    is_session: bool = True
    is_member: bool = False
    has_redis: bool = True
    has_fixed_workers: bool = True
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """The installation that the processes are started with.

    Args:
        release: of Understudy.
        spark_version: of its PySpark.
        python: its interpreter.
        drains: whether its ResourceManager can drain a TaskExecutor. That of 0.1.0 cannot.
        python_version: of its Python, without the patch.
        adopts: versions of what a TaskExecutor leaves to its successor that it reads. 0.1.0 reads none.
    """

    release: Release
    spark_version: str
    python: str
    drains: bool = True
    python_version: str = ""
    adopts: tuple[int, ...] = ()


DRAIN_TIMEOUT_S = 600.0
CHECKPOINT_S = 60.0
"""Seconds for which streaming queries wait for the checkpoint before they move."""


@dataclass(frozen=True, slots=True)
class UpgradeChoices:
    """The operator's choices.

    Args:
        masters_only: whether the TaskExecutors stay.
        drain_timeout_s: seconds for which the batch tasks of a TaskExecutor may keep it from being exchanged.
        rollback: whether to return to the environment before the last upgrade.
    """

    masters_only: bool = False
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    rollback: bool = False


DEFAULT_CHOICES = UpgradeChoices()


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """A process of the cluster in a plan.

    Attributes:
        process: its name.
        pid: its process id; 0 if it has ended.
        version: of Understudy that it runs; empty if it has ended.
        target_version: of Understudy that it runs after the upgrade.
        effect: what the exchange does to the cluster, or why the process is not exchanged.
        leads: names of the elected components that lead in it.
    """

    process: str
    pid: int
    version: str
    target_version: str
    effect: str
    leads: tuple[str, ...] = ()


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
        steps: the processes to exchange, in this order.
        kept: the processes that stay as they are.
        jobs: the jobs that have not ended.
        warning: what the cluster's users notice; empty for nothing.
        to_do: the work that is left to the operator after the last step.
        remedy: what to do about the warning; empty without one.
    """

    steps: tuple[PlannedProcess, ...]
    kept: tuple[PlannedProcess, ...]
    jobs: tuple[PlannedJob, ...]
    warning: str
    to_do: tuple[str, ...]
    remedy: str = ""


def check_upgrade(state: ClusterState, target: Target) -> None:
    """Check that a cluster can be upgraded to a release while it runs.

    Raises:
        UpgradeRefusedError: the cluster cannot be upgraded so; the message says why.
    """
    if not state.is_session:
        raise UpgradeRefusedError(
            "only session clusters are upgraded while they run: a per-job or application cluster ends with its work",
            "start the next one with the other release",
        )
    if state.is_member and not state.is_part:
        raise UpgradeRefusedError(
            "the masters here belong to a cluster on several hosts, and this command upgrades a cluster on one host",
            "upgrade all hosts with --hosts, or this host's part with --role",
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
        raise UpgradeRefusedError(plan.warning, plan.remedy)


def plan_upgrade(state: ClusterState, target: Target, choices: UpgradeChoices = DEFAULT_CHOICES) -> UpgradePlan:
    """Return the plan for a cluster that `check_upgrade` accepts.

    Args:
        state: of the cluster.
        target: the other installation. A process of its release is not exchanged, even if it runs from elsewhere.
        choices: of the operator.
    """
    old = sorted(
        (master for master in state.masters if not _runs(target, master.release)),
        key=lambda master: (DISPATCHER in master.leads, bool(master.leads)),
    )
    is_alone = len(state.masters) == 1 and not state.ended_master and not state.is_part
    steps = [_exchange(target, master, is_alone=is_alone) for master in old]
    if state.ended_master:
        effect = "an interrupted upgrade has ended it: it is started"
        steps.insert(0, PlannedProcess(state.ended_master, 0, "", target.release.version, effect))
    kept = [
        PlannedProcess(
            master.name,
            master.pid,
            master.release.version,
            target.release.version,
            "runs it already",
            leads=master.leads,
        )
        for master in state.masters
        if master not in old
    ]
    moves_masters = bool(steps)
    workers = [] if choices.masters_only else _old_workers(state, target)
    steps += [_exchange_worker(worker, state, target, choices) for worker in workers]
    for worker in state.task_executors:
        if worker not in workers:
            effect = "runs it already" if _runs(target, worker.release) else "stays: only masters are exchanged"
            version = worker.release.version
            kept.append(PlannedProcess(worker.name, worker.pid, version, version, effect))
    jobs = tuple(_job(job, state, target, choices, moves_masters=moves_masters) for job in state.jobs)
    warning, remedy = _interruption(old if is_alone else [], workers, target)
    return UpgradePlan(tuple(steps), tuple(kept), jobs, warning, _to_do(state, target, choices), remedy)


def runs_from(version: str, state: ClusterState) -> bool:
    """Return whether a process of a cluster runs a version."""
    masters, workers = state.masters, state.task_executors
    return version in {master.release.version for master in masters} | {each.release.version for each in workers}


def _old_workers(state: ClusterState, target: Target) -> list[RunningTaskExecutor]:
    """Return the TaskExecutors of another release: those with fewest jobs first, to which queries of others move."""
    old = [worker for worker in state.task_executors if not _runs(target, worker.release)]
    return sorted(old, key=lambda worker: (len(worker.jobs), worker.name))


def _interruption(alone: list[RunningMaster], workers: list[RunningTaskExecutor], target: Target) -> tuple[str, str]:
    """Return what users notice of an upgrade, and the remedy; both are empty for nothing.

    Args:
        alone: the only master, if it is exchanged.
        workers: the TaskExecutors to exchange.
        target: the other installation.
    """
    if alone:
        return (
            f"{alone[0].name} is the only master: while it is exchanged the cluster answers no request; tasks keep "
            "running",
            "run `understudy start-master` first, which starts a standby, or accept this with --yes",
        )
    if used := [worker.name for worker in workers if worker.jobs and not target.drains]:
        return (
            f"{target.release} cannot drain TaskExecutors: the tasks on {', '.join(used)} fail, and run again if the "
            "restart strategy of their job allows it",
            "stop those jobs with savepoints first, leave the TaskExecutors with --masters-only, or accept this with "
            "--yes",
        )
    return "", ""


def missing_workers(before: ClusterState, state: ClusterState, *exchanged: PlannedProcess) -> list[str]:
    """Return the TaskExecutors that do not serve (again), in words.

    Args:
        before: the state before the exchange.
        state: the present one.
        exchanged: the TaskExecutors that were exchanged.
    """
    here = {worker.name: worker for worker in state.task_executors}
    former = {step.process: step.pid for step in exchanged}
    missing = []
    for name in (worker.name for worker in before.task_executors):
        if name not in former:
            is_missing = name not in here
        else:  # its former process may still be listed, and one that is started on demand need not come back
            is_missing = here[name].pid == former[name] if name in here else state.has_fixed_workers
        if is_missing:
            missing.append(f"TaskExecutor {name}")
    return missing


class DrainStep(Enum):
    """The next step of exchanging a TaskExecutor, whose slots no job gets any more."""

    WAIT = "wait"
    """Let its batch tasks finish."""
    CHECKPOINT = "checkpoint"
    """Take a checkpoint of its streaming jobs, so that little is done again."""
    MOVE = "move"
    """End its tasks, which run again elsewhere without a failure."""
    END = "end"
    """End its process, since no job uses it."""


@dataclass(frozen=True, slots=True)
class DrainedTaskExecutor:
    """A TaskExecutor that is being drained.

    Args:
        is_idle: whether all its slots are free.
        batch: the jobs without streaming queries that have slots of it.
        streaming: the jobs with streaming queries that have slots of it.
        stored: those of *streaming* whose checkpoint is complete, or failed.
    """

    is_idle: bool
    batch: frozenset[JobID] = frozenset()
    streaming: frozenset[JobID] = frozenset()
    stored: frozenset[JobID] = frozenset()


def next_drain_step(found: DrainedTaskExecutor, waited_s: float, timeout_s: float) -> DrainStep:
    """Return the next step of a drain. Streaming queries move last, so that they pause once and shortly.

    Args:
        found: the TaskExecutor.
        waited_s: seconds since the drain began.
        timeout_s: seconds for which batch tasks may finish.
    """
    if found.is_idle:
        return DrainStep.END
    # A slot that belongs to no job yet was given away just before the drain began.
    if waited_s < timeout_s and (found.batch or not found.streaming):
        return DrainStep.WAIT
    if found.streaming - found.stored and waited_s < timeout_s + CHECKPOINT_S:
        return DrainStep.CHECKPOINT
    return DrainStep.MOVE


def is_restarted_whole(state: ClusterState, target: Target) -> bool:
    """Return whether the TaskExecutors of a host are restarted together, with the process that keeps them.

    That of 0.1.0 can neither continue in another environment, nor take over workers that run.

    Args:
        state: of one host's part of a cluster.
        target: the other installation.
    """
    return state.is_part and (not target.adopts or any(worker.report is None for worker in state.task_executors))


def hand_over_obstacles(worker: RunningTaskExecutor, target: Target) -> tuple[Obstacle, ...]:
    """Return what keeps a TaskExecutor from handing its tasks over to one of another installation; empty for nothing.

    Args:
        worker: the TaskExecutor.
        target: the other installation. `check_upgrade` has compared its Spark.
    """
    report = worker.report
    if report is None:
        return (Obstacle(f"{worker.release} hands no tasks over"),)
    if report.version not in target.adopts:
        return (Obstacle(f"{target.release} cannot adopt the tasks of {worker.release}"),)
    if report.python != target.python_version:
        mismatch = f"its Spark driver uses Python {report.python}, and {target.python} is {target.python_version}"
        return (Obstacle(mismatch),)
    return report.obstacles


def lasting(obstacles: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """Return those that do not pass by themselves."""
    return tuple(obstacle for obstacle in obstacles if not obstacle.passes)


def why_drained(obstacles: Sequence[Obstacle], job_id: JobID | None = None) -> str:
    """Return in words why a TaskExecutor is drained, for one of its jobs or for all; empty if it hands its tasks over.

    Args:
        obstacles: those of the TaskExecutor that last.
        job_id: the job whose users read this; None for all.
    """
    if not obstacles:
        return ""
    own = next((each for each in obstacles if each.job_id in (None, job_id)), None)
    if own is not None:
        return own.reason
    return f"job {obstacles[0].job_id} prevents a hand-over: {obstacles[0].reason}"


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
    version, wanted = master.release.version, target.release.version
    return PlannedProcess(master.name, master.pid, version, wanted, effect, leads=master.leads)


def _exchange_worker(
    worker: RunningTaskExecutor, state: ClusterState, target: Target, choices: UpgradeChoices
) -> PlannedProcess:
    streaming = [job for job in state.jobs if job.job_id in worker.jobs and job.streams]
    if not worker.jobs:
        effect = "no job uses it"
    elif not target.drains:
        effect = "ends without a drain"
    elif not (obstacles := _lasting_obstacles(worker, state, target)):
        effect = "its successor adopts its Spark driver and its tasks, which run on"
    else:
        effect = f"is drained ({why_drained(obstacles)}): gets no new task"
        if len(streaming) < len(worker.jobs):
            effect += f", batch tasks may finish for {Duration().render(choices.drain_timeout_s)}"
        if streaming:
            effect += ", streaming queries move"
    effect += (
        f"; its {worker.slots} slot(s) are missing until it has restarted"
        if state.has_fixed_workers
        else "; another one is started when a job needs it"
    )
    return PlannedProcess(worker.name, worker.pid, worker.release.version, target.release.version, effect)


def _lasting_obstacles(worker: RunningTaskExecutor, state: ClusterState, target: Target) -> tuple[Obstacle, ...]:
    if is_restarted_whole(state, target):
        return (Obstacle("0.1.0 restarts the TaskExecutors of a host together"),)
    return lasting(hand_over_obstacles(worker, target))


def _job(
    job: RunningJob, state: ClusterState, target: Target, choices: UpgradeChoices, *, moves_masters: bool
) -> PlannedJob:
    workers = [worker for worker in state.task_executors if job.job_id in worker.jobs]
    if not moves_masters:
        effect = "not affected"
    elif workers:
        effect = "its tasks keep running"
    else:
        effect = "has no slot: the next leader requests them again"
    exchanged = [worker for worker in workers if not _runs(target, worker.release)]
    drained = {worker.name: why_drained(_lasting_obstacles(worker, state, target), job.job_id) for worker in exchanged}
    if old := " or ".join(drained):
        if choices.masters_only:
            later = "its queries resume from the last checkpoint" if job.streams else "its tasks there run again"
            then = f"when {old} is restarted later, {later}"
        elif not target.drains:
            then = f"when {old} is exchanged, its tasks there fail, and run again if its restart strategy allows it"
        elif not any(drained.values()):
            then = f"when {old} is exchanged, the successor adopts its tasks there, which run on"
        else:
            why = next(filter(None, drained.values()))
            if job.streams:
                then = f"when {old} is exchanged, its queries move after a checkpoint, without a failure ({why})"
            else:
                then = (
                    f"{old} is exchanged when its tasks there have finished; those that have not after "
                    f"{Duration().render(choices.drain_timeout_s)} run again elsewhere, without a failure ({why})"
                )
        effect = f"{effect}; {then}" if moves_masters else then
    return PlannedJob(job.job_id, job.name, job.state, tuple(worker.name for worker in workers), effect)


def _to_do(state: ClusterState, target: Target, choices: UpgradeChoices) -> tuple[str, ...]:
    found = []
    if choices.masters_only and (old := _old_workers(state, target)):
        names = ", ".join(f"{worker.name} ({worker.release.version or 'unknown version'})" for worker in old)
        found.append(f"exchange the TaskExecutors of another release: {names}; leave out --masters-only")
    if target.release.levels.newest > state.feature_level:
        found.append(
            f"raise the feature level from {state.feature_level} once all components are upgraded, which ends "
            "downgrades: `understudy cluster finalize`"
        )
    return tuple(found)
