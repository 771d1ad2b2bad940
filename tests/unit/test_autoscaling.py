"""How many partitions a query should have: each rule, and a day and a night of load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.registry import is_job_setting
from runtime.checkpoint.description import OperatorDescription, QueryDescription
from runtime.checkpoint.savepoint import SavepointJob, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.cluster.cli import cli
from runtime.dispatcher.autoscaling import (
    AutoscalePolicy,
    Autoscaling,
    Batch,
    Decision,
    DriverShare,
    advise,
    autoscaling_of,
    batches_of,
    changed_at,
    decide,
    drivers_of,
    next_change,
    obstacle,
    present_state,
    task_executors_of,
)
from runtime.errors import ClusterError
from runtime.ids import InstanceID, JobID, ResourceID, SlotID, TriggerID
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
)
from runtime.protocol.checkpoints import OperationState, SnapshotType
from runtime.protocol.descriptor import SparkWork
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import TaskExecutorRegistration, TaskManagerInfo
from runtime.protocol.rescales import Advice, Rescale, RescaleCause
from runtime.protocol.slots import SlotCounts, SlotStatus
from runtime.protocol.streaming_query import QueryHistory
from tests.day_and_night import POLICY, Replay, replay
from tests.json_output import parsed
from tests.streaming_files import StreamingFiles
from tests.unit.test_jobgraph import vid
from tests.unit.test_rest_messages import graph as job_graph

NOW = 10_000_000


def steady(busy: float, count: int = 200, lag: int | None = None, every_s: float = 10.0) -> list[Batch]:
    """Batches that are so busy, the last one now."""
    return [Batch(NOW - round(1000 * every_s * back), busy, lag) for back in reversed(range(count))]


def decided(
    busy: float, partitions: int = 10, *, lag: int | None = None, changed_s: float | None = None, **limits: float
) -> Decision:
    policy = AutoscalePolicy(**limits)  # type: ignore[arg-type]
    changed_ms = None if changed_s is None else NOW - round(changed_s * 1000)
    return decide(policy, partitions, steady(busy, lag=lag), NOW, changed_ms)


@pytest.mark.parametrize(
    ("busy", "wanted", "why"),
    [
        (0.79, 10, "79% busy, between 35% and 80%"),
        (0.36, 10, "36% busy, between 35% and 80%"),
        (0.9, 15, "90% busy, above 80%"),
        (0.98, 20, "98% busy, above 80%"),  # how much more there is to do is unknown
        (1.3, 20, "130% busy"),
        (0.3, 5, "30% busy at most, below 35% for 900 s"),
        (0.34, 6, "34% busy at most"),
        (0.01, 5, "1% busy at most"),  # one step at a time
    ],
)
def test_the_number_follows_the_busy_time(busy: float, wanted: int, why: str) -> None:
    made = decided(busy)
    assert (made.partitions, why in made.reason) == (wanted, True), made


def test_the_bounds_hold() -> None:
    assert decided(1.0, 10, most=10) == Decision(10, "100% busy, above 80%; 10 is the most allowed")
    assert decided(1.0, 10, most=12).partitions == 12
    assert decided(0.1, 3, least=3) == Decision(3, "10% busy at most, below 35%; 3 is the least allowed")
    assert decided(0.1, 8, least=7).partitions == 7
    assert decided(0.5, 10, most=8) == Decision(8, "10 is not between 1 and 8")
    assert decided(0.5, 1, least=2) == Decision(2, "1 is not between 2 and 64")
    assert decided(0.81, 1).partitions == 2
    assert decided(0.34, 1).partitions == 1


def test_after_a_change_there_is_a_pause_longer_before_a_decrease() -> None:
    assert decided(1.0, changed_s=100) == Decision(10, "100% busy, above 80%; changed 100 s ago, waits 120 s")
    assert decided(1.0, changed_s=121).partitions == 20
    early = decided(0.1, changed_s=1000)
    assert early == Decision(10, "10% busy at most, below 35%; changed 1000 s ago, waits 1800 s")
    assert decided(0.1, changed_s=1801).partitions == 5


TWO_CORES = DriverShare("tm-1", 2)
NO_MORE = "at most 2 partition(s) for the 2 core(s) of tm-1's Spark driver"


def by_cores(partitions: int, busy: float, driver: DriverShare, **limits: float) -> Decision:
    policy = AutoscalePolicy(**limits)  # type: ignore[arg-type]
    return decide(policy, partitions, steady(busy), NOW, None, driver)


def test_a_query_gets_no_more_partitions_than_its_spark_has_cores() -> None:
    assert by_cores(2, 0.9, TWO_CORES) == Decision(
        2, f"90% busy, above 80%; {NO_MORE}: give it more cores", lacks_cores=True
    )
    assert by_cores(1, 0.9, TWO_CORES) == Decision(2, "90% busy, above 80%")
    limited = Decision(6, "100% busy, above 80%; at most 6 partition(s) for the 6 core(s) of tm-1's Spark driver", True)
    found = by_cores(4, 1.0, replace(TWO_CORES, cores=6))
    assert found == replace(limited, reason=f"{limited.reason}: give it more cores")
    assert by_cores(2, 0.9, TWO_CORES, per_core=1.5).partitions == 3
    assert "at most 3 partition(s) for the 2 core(s)" in by_cores(3, 0.9, TWO_CORES, per_core=1.5).reason
    assert by_cores(4, 0.9, TWO_CORES, least=4).partitions == 4
    assert by_cores(4, 0.9, replace(TWO_CORES, cores=None)).partitions == 6, "unknown cores bound nothing"
    assert by_cores(4, 0.9, replace(TWO_CORES, cores=4), most=4).reason == "90% busy, above 80%; 4 is the most allowed"


def test_the_remedy_for_a_lack_of_cores_names_executors_and_other_jobs() -> None:
    shared = by_cores(2, 0.9, replace(TWO_CORES, other_jobs=3)).reason
    assert shared == (
        f"90% busy, above 80%; {NO_MORE}, shared with 3 other job(s): give it more cores, or run the job on a "
        "TaskExecutor with fewer jobs"
    )
    executors = by_cores(2, 0.9, replace(TWO_CORES, is_local=False)).reason
    assert executors.endswith("the 2 core(s) of the executors of tm-1's Spark driver: add executors")


def test_a_query_keeps_partitions_beyond_the_cores_until_it_is_quiet() -> None:
    kept = by_cores(16, 0.9, TWO_CORES)
    assert (kept.partitions, kept.lacks_cores) == (16, True)
    late = decide(AutoscalePolicy(lag=1), 16, steady(0.5, lag=2), NOW, None, TWO_CORES)
    assert (late.partitions, late.reason.startswith("lag above 1, 50% busy; at most 2")) == (16, True)
    assert by_cores(16, 0.1, TWO_CORES).partitions == 8


def test_a_driver_is_shared_by_the_jobs_with_slots_of_its_task_executor() -> None:
    name, other = ResourceID("tm-1"), JobID("b" * 32)
    job = job_graph()
    task, *_ = job.tasks
    attempt = replace(task.attempts[-1], task_executor=name, spark=SparkWork("app-1", "t"))
    job = replace(job, tasks=(replace(task, attempts=(attempt,)),))
    slots = [SlotStatus(SlotID(name, number), each) for number, each in enumerate((job.job_id, other, other, None))]
    registration = TaskExecutorRegistration(name, "rpc://h:1/a", 1, 4, "4", "21", "local[*]", 2, 3)
    metrics = TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7, cores=8, application="app-1")
    info = TaskManagerInfo(registration, InstanceID.random(), SlotCounts(4, 1), tuple(slots), 0, 0, metrics)
    assert task_executors_of(job) == [name]
    assert drivers_of(job, {name: info}) == {task.key: DriverShare("tm-1", 8, 1)}
    elsewhere = replace(info, registration=replace(registration, spark_master="spark://h:7077"), metrics=None)
    assert drivers_of(job, {name: elsewhere}) == {task.key: DriverShare("tm-1", None, 1, is_local=False)}
    own = replace(info, metrics=replace(metrics, application="app-2"))
    assert drivers_of(job, {name: own}) == {}, "the cores of a driver of its own are not known"
    assert drivers_of(job, {}) == {}


def test_batches_from_before_a_change_tell_nothing() -> None:
    assert decided(1.0, changed_s=30) == Decision(10, "3 of 5 batches with rows since the last change")
    assert decide(AutoscalePolicy(), 10, [], NOW) == Decision(10, "0 of 5 batches with rows since the last change")


def test_one_busy_batch_is_enough_against_a_decrease_and_too_little_for_an_increase() -> None:
    batches = steady(0.1)
    batches[-40] = Batch(batches[-40].at_ms, 2.0)
    assert decide(AutoscalePolicy(), 10, batches, NOW).partitions == 10
    batches = steady(0.1)
    batches[-1] = Batch(NOW, 2.0)
    assert decide(AutoscalePolicy(), 10, batches, NOW).partitions == 10


def test_a_decrease_needs_a_long_quiet_time() -> None:
    short = decide(AutoscalePolicy(), 10, steady(0.1, 60), NOW)
    assert short == Decision(10, "10% busy at most, below 35%, but not yet for 900 s")


def test_a_lag_above_its_objective_is_a_reason_alone() -> None:
    policy = AutoscalePolicy(lag=1000)
    assert decide(policy, 10, steady(0.5, lag=1001), NOW) == Decision(20, "lag above 1000, 50% busy")
    assert decide(policy, 10, steady(0.1, lag=1001), NOW).partitions == 20
    assert decide(policy, 10, steady(0.5, lag=1000), NOW).partitions == 10
    assert decide(policy, 10, steady(0.5), NOW).partitions == 10  # it is not known
    assert decide(AutoscalePolicy(), 10, steady(0.5, lag=1001), NOW).partitions == 10


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"least": 0}, "from 1 on"),
        ({"least": 9, "most": 8}, "in order: 9, 8"),
        ({"target": 0.9}, "must grow"),
        ({"below": 0.7}, "must grow"),
        ({"above": 1.0}, "must grow"),
        ({"factor": 1.0}, "factor must be above 1"),
        ({"per_core": 0.0}, "for each core must be above 0"),
        ({"window": 0}, "window at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AutoscalePolicy(**limits)  # type: ignore[arg-type]


def test_only_batches_whose_busy_time_is_known_are_judged() -> None:
    history = QueryHistory(vid("a"), "q", "r", "counts", (1, 2, 3), lags=(7, 8, None), busy=(0.5, None, 1.0))
    assert batches_of(history) == [Batch(1, 0.5, 7), Batch(3, 1.0, None)]
    assert batches_of(replace(history, busy=())) == []  # of a JobMaster that does not tell it


def described(name: str, partitions: str = "10", *, stateful: bool = True) -> QueryDescription:
    operators = (OperatorDescription(0, "dedupe"),) if stateful else ()
    return QueryDescription(name, ("file",), operators, {"spark.sql.shuffle.partitions": partitions})


def history_of(name: str, busy: float) -> QueryHistory:
    batches = steady(busy)
    count = len(batches)
    at_ms = tuple(batch.at_ms for batch in batches)
    return QueryHistory(vid("a"), "q", "r", name, at_ms, lags=(None,) * count, busy=(busy,) * count)


def test_each_query_of_a_job_is_advised_by_its_own_figures_and_state() -> None:
    histories = [
        history_of(name, busy)
        for name, busy in (("counts", 0.9), ("plain", 0.9), ("new", 0.9), ("calm", 0.5), ("early", 0.9))
    ]
    saved = [described("counts"), described("plain", stateful=False), described("calm", "4")]
    saved.append(QueryDescription("early"))  # as of a checkpoint from before its first batch
    expected = [
        Advice("counts", 10, 15, "90% busy, above 80%"),
        Advice("plain", None, None, "it has no stateful operator, so it has no partitions to change"),
        Advice("new", None, None, "the last checkpoint has no state under its name"),
        Advice("calm", 4, 4, "50% busy, between 35% and 80%"),
        Advice("early", None, None, "the last checkpoint is from before its first batch: take another one"),
    ]
    found = advise(AutoscalePolicy(), histories, saved, NOW, None)
    assert found == [replace(one, at_ms=NOW) for one in expected]
    there = advise(AutoscalePolicy(), histories[:1], saved, NOW, None, {vid("a"): DriverShare("tm-1", 12, 1)})
    (first,) = there
    assert (first.wanted, first.lacks_cores) == (12, True)
    assert (first.cores, first.task_executor, first.other_jobs) == (12, "tm-1", 1)
    assert advise(AutoscalePolicy(), histories[:1], saved, NOW, None, {vid("b"): TWO_CORES}) == found[:1]


class Client:
    """A client of a cluster with one job."""

    sees_files = True

    def __init__(self, figures: CheckpointStatsSnapshot) -> None:
        self.figures = figures
        self.rescales: tuple[Rescale, ...] = ()
        self.status = JobStatus.RUNNING
        self.queries = ["counts"]
        self.newer: list[CheckpointStats] = []
        self.cores: int | None = 8

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, job_id: JobID) -> object:
        current = SimpleNamespace(task_executor="tm-1", spark=None)
        task = SimpleNamespace(key=vid("a"), attempts=(current,))
        job = SimpleNamespace(checkpoints=self.figures, rescales=self.rescales, status=self.status, tasks=(task,))
        job.job_id = job_id
        if self.newer:
            self.figures = CheckpointStatsSnapshot(latest_completed=self.newer.pop(0))
        return job

    def call(self, name: str, gateway_type: object, question: Callable[[object], object]) -> object:
        if self.cores is None:
            raise UnknownTaskExecutorError("no TaskExecutor tm-1 is registered")
        info = SimpleNamespace(
            registration=SimpleNamespace(resource_id="tm-1", spark_master="local[2]"),
            metrics=SimpleNamespace(cores=self.cores, application=""),
            allocations=(),
        )
        answer = SimpleNamespace(result=lambda: info)
        return question(SimpleNamespace(request_task_manager_info=lambda name: answer))

    def query_histories(self, job_id: JobID) -> list[QueryHistory]:
        at_ms = tuple(round(time.time() * 1000) for _ in range(200))
        return [replace(history_of(name, 0.9), at_ms=at_ms) for name in self.queries]


def test_the_command_shows_the_decision_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    made = write_savepoint(tmp_path / "s", SavepointJob("a" * 32, "job"), [take_snapshot(files.query, tmp_path / "c")])
    taken = CheckpointStats(
        1, CheckpointStatsStatus.COMPLETED, SnapshotType.CHECKPOINT, 0, None, 1, 1, 0, 0, 0, external_path=made.path
    )
    client = Client(CheckpointStatsSnapshot())
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: client)

    def ran(*options: str) -> Result:
        return CliRunner().invoke(cli, ["job", "autoscale", *options, "a" * 32])

    assert "Missing option '--dry-run'" in ran().stderr
    assert "busy times must grow" in ran("--dry-run", "--target", "0.9").stderr
    for status, queries, remedy in (
        (JobStatus.RUNNING, ["counts"], f"take one with `understudy job checkpoint {'a' * 32}`"),
        (JobStatus.RUNNING, [], "give the id of a job with a streaming query that has run a batch; this one has none"),
        (JobStatus.FAILED, ["counts"], "give the id of a job that runs; this one is FAILED"),
    ):
        client.status, client.queries = status, queries
        refused = ran("--dry-run").exception
        assert f"job {'a' * 32} has no checkpoint" in str(refused)
        assert isinstance(refused, ClusterError)
        assert refused.remedy == remedy
    client.status, client.queries = JobStatus.RUNNING, ["counts"]
    client.figures = CheckpointStatsSnapshot(latest_completed=taken)
    words = ["job", "autoscale", "--dry-run", "--json", "a" * 32]
    (advice,) = parsed(words, ran("--dry-run", "--json").stdout)
    assert {key: advice[key] for key in ("query", "partitions", "wanted", "reason")} == {
        "query": "counts",
        "partitions": 2,
        "wanted": 3,
        "reason": "90% busy, above 80%",
    }
    assert ran("--dry-run").stdout.splitlines()[1].split() == ["counts", "2", "3", "8", "90%", "busy,", "above", "80%"]
    client.cores = 2
    line = ran("--dry-run").stdout.splitlines()[1]
    assert (line.split()[1:4], NO_MORE in line) == (["2", "2", "2"], True)
    assert ran("--dry-run", "--per-core", "2").stdout.splitlines()[1].split()[1:4] == ["2", "3", "2"]
    client.cores = None
    assert ran("--dry-run").stdout.splitlines()[1].split()[1:4] == ["2", "3", "-"]
    # The last checkpoint is of another number, and a rescale has changed it since.
    before = completed(str(tmp_path / "of-other-partitions"), NOW - 1)
    client.figures = CheckpointStatsSnapshot(latest_completed=before)
    client.rescales = tuple(replace(done, savepoint=made.path) for done in rescales(DONE))
    (advice,) = parsed(words, ran("--dry-run", "--json").stdout)
    assert advice["partitions"] == 2

    # A newer checkpoint replaces the last one, which is deleted while the command reads it; or nothing replaces it.
    client.rescales = ()
    client.figures, client.newer = CheckpointStatsSnapshot(latest_completed=before), [taken]
    (advice,) = parsed(words, ran("--dry-run", "--json").stdout)
    assert advice["partitions"] == 2
    client.figures = CheckpointStatsSnapshot(latest_completed=before)
    assert "of-other-partitions" in str(ran("--dry-run").exception)

    client.sees_files = False
    assert "does not see the cluster's files" in str(ran("--dry-run").exception)


# ------------------------------------------------------------------ a day and a night


@pytest.mark.parametrize("seed", [1, 2])
def test_a_day_and_a_night_hold_the_lag_with_less_than_a_static_peak(seed: int) -> None:
    found = replay(seed)
    assert min(found.held, found.held_time) >= 0.99, found
    assert found.slots <= 0.60, found
    assert found.oscillations <= 1, found
    assert 4 <= len(found.changes) <= 40, found


@pytest.mark.parametrize("seed", [1, 2])
def test_partitions_beyond_the_cores_hold_the_lag_no_better(seed: int) -> None:
    found, unbounded = replay(seed, cores=24), replay(seed, cores=24, knows_cores=False)
    assert (found.most, unbounded.most) == (24, POLICY.most)
    assert min(found.held, found.held_time) >= 0.99, found
    assert found.held_time >= unbounded.held_time
    assert found.slots <= 0.60 < unbounded.slots
    assert found.oscillations <= 1, found


def test_a_replay_without_changes_takes_all_slots_and_one_with_too_few_partitions_misses_the_lag() -> None:
    still = replay(1, policy=replace(POLICY, least=32, most=32))
    assert (round(still.slots, 2), still.held, round(still.held_time, 2), still.changes) == (1.0, 1.0, 1.0, [])
    late = replay(1, policy=replace(POLICY, most=12))
    assert late.held_time < 0.9, late
    assert Replay(1.0, 1.0, 1.0, [(0.0, 4), (3599.0, -4), (9000.0, 4), (9001.0, 4)]).oscillations == 1


# ------------------------------------------------------------------ the cluster rescales by itself


def test_a_job_is_rescaled_by_itself_only_where_its_settings_say_so() -> None:
    assert autoscaling_of(Configuration()) is None
    settings = {
        "autoscaling.partitions": "2..16",
        "autoscaling.partitions-per-core": "1.5",
        "autoscaling.max-lag": "500",
        "autoscaling.pause-before-increase": "1 min",
        "autoscaling.pause-before-decrease": "10 min",
        "autoscaling.quiet-time": "5 min",
        "autoscaling.dry-run": "true",
    }
    assert all(map(is_job_setting, settings)), "a job may set them"
    assert not is_job_setting("autoscaling.interval")
    policy = AutoscalePolicy(2, 16, per_core=1.5, lag=500, quiet_s=300.0, pause_up_s=60.0, pause_down_s=600.0)
    assert autoscaling_of(Configuration.from_dict(settings)) == Autoscaling(policy, is_dry_run=True)
    for wrong in ("16..2", "0..2", "2", "2..x", "-1..2"):
        with pytest.raises(ConfigurationError, match="the smaller one first"):
            Configuration().overlaid({"autoscaling.partitions": wrong}, "the job")


def completed(path: str, at_ms: int) -> CheckpointStats:
    return CheckpointStats(
        1, CheckpointStatsStatus.COMPLETED, SnapshotType.CHECKPOINT, at_ms, None, 1, 1, 0, 0, 0, external_path=path
    )


def rescales(*states: OperationState, cause: RescaleCause = RescaleCause.AUTOSCALER) -> tuple[Rescale, ...]:
    """A history whose last entry ended at NOW."""
    return tuple(
        Rescale(
            TriggerID(f"{number:032x}"),
            8,
            cause=cause,
            number=number,
            started_ms=NOW - 1000 * (len(states) - number),
            ended_ms=NOW - 1000 * (len(states) - 1 - number) if state is not OperationState.IN_PROGRESS else None,
            state=state,
            savepoint=f"/s/{number}" if state is OperationState.COMPLETED else "",
        )
        for number, state in enumerate(states)
    )


DONE, LOST, DOING = OperationState.COMPLETED, OperationState.FAILED, OperationState.IN_PROGRESS


def test_the_pause_after_a_rescale_outlives_the_job_master() -> None:
    """The next JobMaster has not restored the tasks, but knows the history."""
    assert changed_at(None, ()) is None
    assert changed_at(5, ()) == 5
    assert changed_at(5, rescales(DONE)) == NOW
    assert changed_at(NOW + 1, rescales(DONE)) == NOW + 1
    assert changed_at(None, rescales(DONE, LOST)) == NOW - 1000
    changed_ms = changed_at(None, rescales(DONE))
    late = [replace(batch, at_ms=batch.at_ms + 100_000) for batch in steady(0.9, 5)]
    made = decide(AutoscalePolicy(), 10, late, NOW + 100_000, changed_ms)
    assert (made.partitions, "changed 100 s ago, waits 120 s" in made.reason) == (10, True)
    made = decide(AutoscalePolicy(), 10, late, NOW + 121_000, changed_ms)
    assert made.partitions == 15


def test_nothing_is_rescaled_while_a_rescale_is_in_progress() -> None:
    policy = AutoscalePolicy()
    assert obstacle(policy, (), NOW) == ""
    assert obstacle(policy, rescales(DONE), NOW) == ""
    for cause in RescaleCause:
        assert obstacle(policy, rescales(DONE, DOING, cause=cause), NOW) == "a rescale is in progress"


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 120), (2, 480), (3, 1920), (6, 86400), (20, 86400)])
def test_failed_attempts_are_repeated_ever_more_rarely(failures: int, pause_s: int) -> None:
    policy, known = AutoscalePolicy(), rescales(DONE, *[LOST] * failures)
    why = obstacle(policy, known, NOW + 1000 * pause_s - 1)
    assert why == f"{failures} attempts have failed, the last one {pause_s:.0f} s ago; waits {pause_s} s"
    assert obstacle(policy, known, NOW + 1000 * pause_s) == ""
    assert obstacle(policy, (*known, *rescales(DONE)), NOW) == "", "one success is a new start"
    assert obstacle(replace(policy, pause_up_s=0.0), known, NOW + 59_999), "without a pause it would try all the time"
    of_user = rescales(*[LOST] * failures, cause=RescaleCause.USER)
    assert obstacle(policy, of_user, NOW) == "", "what a user has tried in vain is not counted"


def test_a_query_that_needs_more_partitions_is_changed_first() -> None:
    calm, none = Advice("calm", 4, 4, ""), Advice("none", None, None, "")
    fewer, more = Advice("fewer", 8, 4, "10% busy"), Advice("more", 4, 8, "90% busy")
    assert next_change([calm, none]) is None
    assert next_change([calm, fewer, none, more]) == more
    assert next_change([calm, fewer]) == fewer


def test_the_present_partitions_are_those_of_the_last_state() -> None:
    """Also before the first checkpoint after a rescale, and under the next JobMaster."""
    checkpoint = completed("/c/7", NOW - 5)
    restored = RestoredCheckpointStats(0, NOW + 1, True, "/s/0")
    figures = CheckpointStatsSnapshot()
    assert present_state(figures, ()) == ""
    figures = replace(figures, latest_completed=checkpoint)
    assert present_state(figures, ()) == "/c/7"
    assert present_state(figures, rescales(DONE)) == "/s/0"
    assert present_state(figures, rescales(LOST)) == "/c/7"
    assert present_state(replace(figures, latest_restored=restored), rescales(DONE)) == "/s/0"
    later = replace(figures, latest_completed=completed("/c/8", NOW + 9), latest_restored=restored)
    assert present_state(later, rescales(DONE)) == "/c/8"
