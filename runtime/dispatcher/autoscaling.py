"""Decides how many partitions the state of a streaming query should have, by the figures of its last batches. Pure.

The policy keeps the busy time of a query near a target. Busy time is the part of the time in which a batch runs. It is
inversely proportional to the number of partitions, as far as Spark has cores for them. A partition is a task of Spark,
which takes a core, so a query gets no more partitions than cores. Four things keep the number from going up and down:

- a band: nothing changes while the busy time is between two limits around the target;
- a pause after each change, longer before a decrease;
- a decrease needs a long quiet time, and is sized by the busiest batch of it;
- one change multiplies or divides the number by a factor at most.

The idea is that of the autoscaler of Flink's Kubernetes operator (FLIP-271), with busy time in place of true rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from conf.configuration import Configuration
from conf.options import AutoscalingOptions
from runtime.checkpoint.description import QueryDescription
from runtime.ids import JobVertexID, ResourceID
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.messages import TaskManagerInfo
from runtime.protocol.rescales import Advice, Rescale, RescaleCause
from runtime.protocol.streaming_query import QueryHistory

_PARTITIONS = "spark.sql.shuffle.partitions"

SATURATED = 0.98
"""Busy time from which it is unknown how much more there is to do: batches follow each other without a pause."""


@dataclass(frozen=True, slots=True)
class AutoscalePolicy:
    """Limits of the decisions.

    Args:
        least: smallest number of partitions.
        most: largest number of partitions.
        target: busy time that a new number aims at.
        above: busy time above which the number grows.
        below: busy time below which the number shrinks.
        lag: largest lag, in the unit of the source's offsets; above it the number grows. None: the lag is not judged.
        window: number of batches that are judged; all of them since the last change.
        quiet_s: seconds whose batches all have to be below `below` before the number shrinks.
        pause_up_s: seconds after a change before the number may grow.
        pause_down_s: seconds after a change before the number may shrink.
        factor: largest factor by which one decision changes the number.
        per_core: most partitions for each core of the driver's Spark, where the cores are known.

    Raises:
        ValueError: the limits contradict each other.
    """

    least: int = 1
    most: int = 64
    target: float = 0.6
    above: float = 0.8
    below: float = 0.35
    lag: int | None = None
    window: int = 5
    quiet_s: float = 900.0
    pause_up_s: float = 120.0
    pause_down_s: float = 1800.0
    factor: float = 2.0
    per_core: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"the numbers of partitions must be from 1 on, in order: {self.least}, {self.most}")
        if not 0 < self.below < self.target < self.above < SATURATED:
            raise ValueError(
                f"the busy times must grow between 0 and {SATURATED}: "
                f"below {self.below}, target {self.target}, above {self.above}"
            )
        if self.factor <= 1 or self.window < 1:
            raise ValueError("factor must be above 1, and window at least 1")
        if self.per_core <= 0:
            raise ValueError("the partitions for each core must be above 0")


@dataclass(frozen=True, slots=True)
class Batch:
    """Figures of a batch: when it ended, in milliseconds since the epoch, busy time, and lag if it is known."""

    at_ms: int
    busy: float
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class DriverShare:
    """The Spark driver of a task, which all tasks of its TaskExecutor share.

    Args:
        task_executor: its TaskExecutor; empty if that is not known.
        cores: tasks of Spark that it can run at once: its cores, or those of its executors. None if that is not known,
            and where Spark adds executors by itself.
        other_jobs: number of other jobs that hold slots of the TaskExecutor.
        is_local: whether Spark's tasks run in the driver itself, and not in executors.
    """

    task_executor: str = ""
    cores: int | None = None
    other_jobs: int = 0
    is_local: bool = True


UNKNOWN_DRIVER = DriverShare()


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision.

    Args:
        partitions: the wanted number; the present one if nothing is to be done.
        reason: why, on one line.
        lacks_cores: whether the number would be larger if Spark had more cores.
    """

    partitions: int
    reason: str
    lacks_cores: bool = False


def batches_of(history: QueryHistory) -> list[Batch]:
    """Return the batches of a history that tell a busy time, the oldest first.

    A batch without rows has none, nor has any batch in the history of a JobMaster of an older release.
    """
    columns = zip(history.at_ms, history.busy, history.lags, strict=bool(history.busy))
    return [Batch(at_ms, busy, lag) for at_ms, busy, lag in columns if busy is not None]


def decide(
    policy: AutoscalePolicy,
    partitions: int,
    batches: Sequence[Batch],
    now_ms: int,
    changed_ms: int | None = None,
    driver: DriverShare = UNKNOWN_DRIVER,
) -> Decision:
    """Decide how many partitions a query should have.

    Args:
        policy: the limits.
        partitions: the present number.
        batches: the last batches, the oldest first.
        now_ms: the time, in milliseconds since the epoch.
        changed_ms: when the tasks last started with another state; None if they never did.
        driver: whose cores bound the number.
    """
    bounded = min(max(partitions, policy.least), policy.most)
    if bounded != partitions:
        return Decision(bounded, f"{partitions} is not between {policy.least} and {policy.most}")
    since = [batch for batch in batches if changed_ms is None or batch.at_ms > changed_ms]
    recent = since[-policy.window :]
    if len(recent) < policy.window:
        return Decision(partitions, f"{len(recent)} of {policy.window} batches with rows since the last change")
    busy = median(batch.busy for batch in recent)
    lags = [batch.lag for batch in recent if batch.lag is not None]
    is_late = policy.lag is not None and bool(lags) and median(lags) > policy.lag
    paused_s = math.inf if changed_ms is None else (now_ms - changed_ms) / 1000
    if busy > policy.above or is_late:
        return _more(policy, partitions, busy, is_late, paused_s, driver)
    quiet = [batch for batch in since if now_ms - batch.at_ms <= policy.quiet_s * 1000]
    has_history = bool(since) and now_ms - since[0].at_ms >= policy.quiet_s * 1000
    busiest = max((batch.busy for batch in quiet), default=1.0)
    if busiest < policy.below:
        return _fewer(policy, partitions, busiest, has_history, paused_s)
    return Decision(partitions, f"{_share(busy)} busy, between {_share(policy.below)} and {_share(policy.above)}")


def _more(
    policy: AutoscalePolicy, partitions: int, busy: float, is_late: bool, paused_s: float, driver: DriverShare
) -> Decision:
    why = f"{_share(busy)} busy, above {_share(policy.above)}"
    if is_late:
        why = f"lag above {policy.lag}, {_share(busy)} busy"
    by_cores = policy.most if driver.cores is None else max(math.floor(driver.cores * policy.per_core), policy.least)
    most = min(policy.most, by_cores)
    if partitions == policy.most <= by_cores:
        return Decision(partitions, f"{why}; {policy.most} is the most allowed")
    no_more = f"{why}; at most {by_cores} partition(s) for {_cores(driver)}: {_remedy(driver)}"
    if partitions >= most:
        return Decision(partitions, no_more, lacks_cores=True)
    if paused_s < policy.pause_up_s:
        return Decision(partitions, f"{why}; changed {paused_s:.0f} s ago, waits {policy.pause_up_s:.0f} s")
    step = math.ceil(partitions * policy.factor)
    by_busy = math.ceil(partitions * busy / policy.target)
    wanted = max(step if is_late or busy >= SATURATED else min(by_busy, step), partitions + 1)
    lacks_cores = wanted > by_cores and most == by_cores
    return Decision(min(wanted, most), no_more if lacks_cores else why, lacks_cores)


def _cores(driver: DriverShare) -> str:
    shared = f", shared with {driver.other_jobs} other job(s)" if driver.other_jobs else ""
    executors = "" if driver.is_local else " of the executors"
    return f"the {driver.cores} core(s){executors} of {driver.task_executor}'s Spark driver{shared}"


def _remedy(driver: DriverShare) -> str:
    remedy = "give it more cores" if driver.is_local else "add executors"
    return f"{remedy}, or run the job on a TaskExecutor with fewer jobs" if driver.other_jobs else remedy


def _fewer(policy: AutoscalePolicy, partitions: int, busiest: float, has_history: bool, paused_s: float) -> Decision:
    why = f"{_share(busiest)} busy at most, below {_share(policy.below)}"
    if partitions == policy.least:
        return Decision(partitions, f"{why}; {policy.least} is the least allowed")
    if not has_history:
        return Decision(partitions, f"{why}, but not yet for {policy.quiet_s:.0f} s")
    if paused_s < policy.pause_down_s:
        return Decision(partitions, f"{why}; changed {paused_s:.0f} s ago, waits {policy.pause_down_s:.0f} s")
    lowest = max(math.ceil(partitions / policy.factor), policy.least)
    wanted = max(math.ceil(partitions * busiest / policy.target), lowest)
    if wanted >= partitions:
        return Decision(partitions, f"{why}; fewer partitions would miss the target of {_share(policy.target)}")
    return Decision(wanted, f"{why} for {policy.quiet_s:.0f} s")


def _share(busy: float) -> str:
    return f"{busy:.0%}"


def task_executors_of(job: ArchivedExecutionGraph) -> list[ResourceID]:
    """Return the TaskExecutors that run the tasks of a job, or ran them last."""
    return sorted({ResourceID(name) for task in job.tasks if (name := task.attempts[-1].task_executor)})


def drivers_of(
    job: ArchivedExecutionGraph, known: Mapping[ResourceID, TaskManagerInfo]
) -> dict[JobVertexID, DriverShare]:
    """Return the Spark driver of each task of a job, as far as it is known.

    Args:
        job: the job.
        known: TaskExecutors by their names.
    """
    found = {}
    for task in job.tasks:
        attempt = task.attempts[-1]
        info = known.get(ResourceID(attempt.task_executor)) if attempt.task_executor else None
        if info is None:
            continue
        application = "" if info.metrics is None else info.metrics.application
        if attempt.spark is not None and application not in ("", attempt.spark.application):
            continue  # a driver of its own, whose cores nothing reports
        others = {slot.job_id for slot in info.allocations} - {None, job.job_id}
        cores = None if info.metrics is None else info.metrics.cores
        is_local = info.registration.spark_master.startswith("local")
        found[task.key] = DriverShare(info.registration.resource_id, cores, len(others), is_local)
    return found


def advise(
    policy: AutoscalePolicy,
    histories: Iterable[QueryHistory],
    saved: Iterable[QueryDescription],
    now_ms: int,
    changed_ms: int | None,
    drivers: Mapping[JobVertexID, DriverShare] = MappingProxyType({}),
) -> list[Advice]:
    """Decide about each query of a job.

    Args:
        policy: the limits.
        histories: figures of the queries' past batches.
        saved: the queries' state in the last checkpoint, which tells the present number of partitions.
        now_ms: as of `decide`.
        changed_ms: as of `decide`.
        drivers: the Spark driver of each task, as far as it is known.
    """
    known = {description.name: description for description in saved}
    return [
        replace(
            _advise(policy, history, known.get(history.name), now_ms, changed_ms, driver),
            cores=driver.cores,
            task_executor=driver.task_executor,
            other_jobs=driver.other_jobs,
            at_ms=now_ms,
        )
        for history in histories
        for driver in (drivers.get(history.task, UNKNOWN_DRIVER),)
    ]


def _advise(
    policy: AutoscalePolicy,
    history: QueryHistory,
    saved: QueryDescription | None,
    now_ms: int,
    changed_ms: int | None,
    driver: DriverShare,
) -> Advice:
    if saved is None:
        return Advice(history.name, None, None, "the last checkpoint has no state under its name")
    if not saved.operators and not saved.sources:
        return Advice(history.name, None, None, "the last checkpoint is from before its first batch: take another one")
    partitions = saved.conf.get(_PARTITIONS, "")
    if not saved.operators or not partitions.isdecimal():
        return Advice(history.name, None, None, "it has no stateful operator, so it has no partitions to change")
    made = decide(policy, int(partitions), batches_of(history), now_ms, changed_ms, driver)
    return Advice(history.name, int(partitions), made.partitions, made.reason, made.lacks_cores)


# ------------------------------------------------------------------ the cluster rescales by itself

LEAST_PAUSE_S, MOST_PAUSE_S = 60.0, 86400.0
"""Shortest and longest time after failed attempts, in seconds, before the next one."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Settings of a job that the cluster rescales by itself.

    Args:
        policy: the limits.
        is_dry_run: whether decisions are only logged.
    """

    policy: AutoscalePolicy
    is_dry_run: bool


def autoscaling_of(configuration: Configuration) -> Autoscaling | None:
    """Return the settings of a job; None if the cluster does not rescale it by itself.

    Args:
        configuration: of the cluster, with the job's own settings over it.
    """
    get = configuration.get
    bounds = get(AutoscalingOptions.PARTITIONS)
    if bounds is None:
        return None
    policy = AutoscalePolicy(
        *bounds,
        per_core=get(AutoscalingOptions.PARTITIONS_PER_CORE),
        lag=get(AutoscalingOptions.MAX_LAG),
        quiet_s=get(AutoscalingOptions.QUIET_TIME),
        pause_up_s=get(AutoscalingOptions.PAUSE_BEFORE_INCREASE),
        pause_down_s=get(AutoscalingOptions.PAUSE_BEFORE_DECREASE),
    )
    return Autoscaling(policy, get(AutoscalingOptions.DRY_RUN))


def changed_at(restored_ms: int | None, rescales: Sequence[Rescale]) -> int | None:
    """Return when the tasks last started with another state, as far as it is known; None if they never did.

    Args:
        restored_ms: time of the last restore that the JobMaster knows.
        rescales: the job's history, the oldest first, which outlives the JobMaster.
    """
    ended = [one.ended_ms for one in rescales if one.state is OperationState.COMPLETED]
    return max((ms for ms in (restored_ms, *ended) if ms is not None), default=None)


def obstacle(policy: AutoscalePolicy, rescales: Sequence[Rescale], now_ms: int) -> str:
    """Return why no rescale may begin now; empty if one may.

    A rescale that is in progress ends first. After failed attempts of the autoscaler it
    pauses, four times as long after each further one.

    Args:
        policy: the limits.
        rescales: the job's history, the oldest first.
        now_ms: the time, in milliseconds since the epoch.
    """
    if any(not one.is_over for one in rescales):
        return "a rescale is in progress"
    failed = 0
    for one in reversed(rescales):
        if one.cause is not RescaleCause.AUTOSCALER or one.state is not OperationState.FAILED:
            break
        failed += 1
    if not failed:
        return ""
    pause_s = min(max(policy.pause_up_s, LEAST_PAUSE_S) * 4.0 ** min(failed - 1, 10), MOST_PAUSE_S)
    last = rescales[-1]
    waited_s = (now_ms - (last.started_ms if last.ended_ms is None else last.ended_ms)) / 1000
    if waited_s >= pause_s:
        return ""
    return f"{failed} attempts have failed, the last one {waited_s:.0f} s ago; waits {pause_s:.0f} s"


def next_change(advice: Iterable[Advice]) -> Advice | None:
    """Return the advice to follow now: a query that needs more partitions comes first. None if nothing is to change.

    One rescale changes one query, and repeats the batches since its savepoint in all of them.
    """
    changes = [one for one in advice if one.wanted is not None and one.partitions not in (None, one.wanted)]
    return min(changes, key=lambda one: (one.wanted or 0) <= (one.partitions or 0), default=None)


def present_state(figures: CheckpointStatsSnapshot, rescales: Sequence[Rescale]) -> str:
    """Return the directory of the saved state that has the present numbers of partitions; empty if none is known.

    It is the newest of three: the last completed checkpoint, the state of the last restore, and the savepoint of the
    last rescale.

    Args:
        figures: of the job's checkpoints.
        rescales: the job's history, the oldest first.
    """
    known = [(one.ended_ms or one.started_ms, one.savepoint) for one in rescales]
    if figures.latest_completed is not None:
        known.append((figures.latest_completed.trigger_timestamp, figures.latest_completed.external_path))
    if figures.latest_restored is not None:
        known.append((figures.latest_restored.restore_timestamp, figures.latest_restored.external_path))
    return max((item for item in known if item[1]), default=(0, ""))[1]
