"""The plan of an upgrade, as pure rules: the order of the exchanges, what jobs notice, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.cluster.upgrade_plan import (
    CHECKPOINT_S,
    ClusterState,
    DrainedTaskExecutor,
    DrainStep,
    RunningJob,
    RunningMaster,
    RunningTaskExecutor,
    Target,
    UpgradeChoices,
    UpgradeRefusedError,
    check_interruption,
    check_upgrade,
    hand_over_obstacles,
    lasting,
    missing_workers,
    next_drain_step,
    plan_upgrade,
    why_drained,
)
from runtime.feature_level import FeatureLevels, Release
from runtime.ids import JobID
from runtime.protocol.hand_over import HandOverReport, Obstacle

OLD, NEW = Release("0.1.0", FeatureLevels(1, 1)), Release("0.2.0", FeatureLevels(1, 2))
TARGET = Target(NEW, "4.1.0", "/new/bin/python")
STREAM, BATCH, QUEUED = (JobID(digit * 32) for digit in "123")

LEADER = RunningMaster("master", 10, OLD, ("dispatcher", "resourcemanager", "rest"))
STANDBY, THIRD = RunningMaster("master-1", 11, OLD), RunningMaster("master-2", 12, OLD)
WORKER = RunningTaskExecutor("taskmanager-0", 20, OLD, "4.1.0", (STREAM, BATCH))
JOBS = (
    RunningJob(STREAM, "stream", "RUNNING", streams=True),
    RunningJob(BATCH, "batch", "RUNNING"),
    RunningJob(QUEUED, "queued", "CREATED"),
)
STATE = ClusterState(1, (LEADER, STANDBY), (WORKER,), JOBS)
MASTERS_ONLY = UpgradeChoices(masters_only=True)
OLD_TARGET = Target(OLD, "4.1.0", "/old/bin/python", drains=False)


def order(state: ClusterState, target: Target = TARGET, choices: UpgradeChoices = MASTERS_ONLY) -> list[str]:
    return [step.process for step in plan_upgrade(state, target, choices).steps]


def test_standbys_are_exchanged_first_and_the_leading_dispatcher_last() -> None:
    assert order(STATE) == ["master-1", "master"]
    manager = replace(STANDBY, leads=("resourcemanager",))
    dispatcher = replace(LEADER, leads=("dispatcher",))
    assert order(replace(STATE, masters=(dispatcher, manager, THIRD))) == ["master-2", "master-1", "master"]
    steps = plan_upgrade(STATE, TARGET, MASTERS_ONLY).steps
    assert [(step.pid, step.version, step.target_version) for step in steps] == [
        (11, "0.1.0", "0.2.0"),
        (10, "0.1.0", "0.2.0"),
    ]
    assert "the leader is not affected" in steps[0].effect
    assert "a standby takes over" in steps[1].effect


def test_task_executors_follow_the_masters_and_those_with_fewest_jobs_come_first() -> None:
    idle, used = replace(WORKER, name="taskmanager-1", jobs=()), replace(WORKER, name="taskmanager-2", jobs=(BATCH,))
    state = replace(STATE, task_executors=(WORKER, used, idle))
    assert order(state, choices=UpgradeChoices()) == [
        "master-1",
        "master",
        "taskmanager-1",
        "taskmanager-2",
        "taskmanager-0",
    ]


@pytest.mark.parametrize("leader", range(3))
def test_carried_out_step_by_step_from_the_state_alone_each_process_is_exchanged_once(leader: int) -> None:
    """After each step the plan is computed again, as an upgrade does that is interrupted after every step."""
    masters = [LEADER, STANDBY, THIRD]
    masters = [replace(each, leads=LEADER.leads if index == leader else ()) for index, each in enumerate(masters)]
    workers = (WORKER, replace(WORKER, name="taskmanager-1", pid=21, jobs=()))
    state, done = replace(STATE, masters=tuple(masters), task_executors=workers), []
    while steps := plan_upgrade(state, TARGET).steps:
        name = steps[0].process
        done.append(name)
        if name.startswith("master"):
            was = next(each for each in state.masters if each.name == name)
            others = [each for each in state.masters if each is not was]
            if was.leads:  # another one takes over
                others[0] = replace(others[0], leads=was.leads)
            state = replace(state, masters=(*others, RunningMaster(was.name, was.pid + 100, NEW)))
        else:
            gone = next(each for each in state.task_executors if each.name == name)
            rest = [each for each in state.task_executors if each is not gone]
            rest = [replace(each, jobs=(*each.jobs, *gone.jobs)) for each in rest]
            fresh = replace(gone, pid=gone.pid + 100, release=NEW, jobs=())
            state = replace(state, task_executors=(*rest, fresh))
    assert done[3:] == ["taskmanager-1", "taskmanager-0"]
    assert sorted(done[:3]) == sorted(each.name for each in masters)
    assert done[2] == masters[leader].name
    assert plan_upgrade(state, TARGET).steps == ()


def test_a_master_that_an_interrupted_upgrade_has_ended_is_started_first() -> None:
    plan = plan_upgrade(replace(STATE, masters=(LEADER,), ended_master="master-1"), TARGET, MASTERS_ONLY)
    assert [(step.process, step.pid, step.version) for step in plan.steps] == [
        ("master-1", 0, ""),
        ("master", 10, "0.1.0"),
    ]
    assert plan.warning == ""  # it has a standby by then
    check_interruption(plan, is_accepted=False)


def test_processes_of_the_release_are_kept_and_task_executors_on_demand() -> None:
    upgraded = replace(STANDBY, release=NEW)
    plan = plan_upgrade(replace(STATE, masters=(LEADER, upgraded)), TARGET, MASTERS_ONLY)
    assert [step.process for step in plan.steps] == ["master"]
    assert [(each.process, each.version, each.target_version) for each in plan.kept] == [
        ("master-1", "0.2.0", "0.2.0"),
        ("taskmanager-0", "0.1.0", "0.1.0"),
    ]
    assert "only masters" in plan.kept[1].effect
    new = replace(WORKER, release=NEW)
    assert [each.process for each in plan_upgrade(replace(STATE, task_executors=(new,)), TARGET).kept] == [WORKER.name]


def test_each_job_shows_what_it_notices_if_only_masters_are_exchanged() -> None:
    stream, batch, queued = plan_upgrade(STATE, TARGET, MASTERS_ONLY).jobs
    assert stream.task_executors == ("taskmanager-0",)
    assert stream.effect == (
        "its tasks keep running; when taskmanager-0 is restarted later, its queries resume from the last checkpoint"
    )
    assert batch.effect == "its tasks keep running; when taskmanager-0 is restarted later, its tasks there run again"
    assert (queued.task_executors, queued.effect) == ((), "has no slot: the next leader requests them again")
    all_new = ClusterState(1, (replace(LEADER, release=NEW),), (replace(WORKER, release=NEW),), JOBS)
    assert {job.effect for job in plan_upgrade(all_new, TARGET).jobs} == {"not affected"}


def test_each_job_shows_what_it_notices_of_the_exchange_of_its_task_executor() -> None:
    stream, batch, queued = plan_upgrade(STATE, TARGET, UpgradeChoices(drain_timeout_s=90.0)).jobs
    moves = (
        "when taskmanager-0 is exchanged, its queries move after a checkpoint, without a failure (Understudy 0.1.0 "
        "hands no tasks over)"
    )
    assert stream.effect == f"its tasks keep running; {moves}"
    assert "those that have not after 90 s run again elsewhere, without a failure" in batch.effect
    assert queued.effect == "has no slot: the next leader requests them again"
    upgraded = replace(STATE, masters=(replace(LEADER, release=NEW),))
    assert plan_upgrade(upgraded, TARGET).jobs[0].effect == moves


def test_the_effect_of_a_task_executor_names_its_tasks_and_its_slots() -> None:
    def effect(state: ClusterState, target: Target = TARGET) -> str:
        return plan_upgrade(state, target).steps[-1].effect

    used = replace(WORKER, slots=4)
    assert effect(replace(STATE, task_executors=(used,))) == (
        "is drained (Understudy 0.1.0 hands no tasks over): gets no new task, batch tasks may finish for 10 min, "
        "streaming queries move; its 4 slot(s) are missing until it has restarted"
    )
    assert "batch" not in effect(replace(STATE, task_executors=(replace(used, jobs=(STREAM,)),)))
    assert "streaming" not in effect(replace(STATE, task_executors=(replace(used, jobs=(BATCH,)),)))
    idle = replace(STATE, task_executors=(replace(used, jobs=()),))
    assert effect(idle) == "no job uses it; its 4 slot(s) are missing until it has restarted"
    on_demand = replace(idle, has_fixed_workers=False)
    assert effect(on_demand) == "no job uses it; another one is started when a job needs it"


ADOPTING = replace(TARGET, release=Release("0.3.0", FeatureLevels(1, 2)), python_version="3.12", adopts=(1,))
LEAVING = replace(WORKER, release=NEW, report=HandOverReport(1, "3.12"))


@pytest.mark.parametrize(
    ("worker", "target", "reason"),
    [
        (replace(LEAVING, report=None), ADOPTING, "Understudy 0.2.0 hands no tasks over"),
        (LEAVING, replace(ADOPTING, adopts=()), "Understudy 0.3.0 cannot adopt the tasks of Understudy 0.2.0"),
        (replace(LEAVING, report=HandOverReport(2, "3.12")), ADOPTING, "cannot adopt the tasks"),
        (LEAVING, replace(ADOPTING, python_version="3.13"), "uses Python 3.12, and /new/bin/python is 3.13"),
        (
            replace(LEAVING, report=HandOverReport(1, "3.12", (Obstacle("its Spark is elsewhere"),))),
            ADOPTING,
            "its Spark is elsewhere",
        ),
    ],
)
def test_what_keeps_a_task_executor_from_handing_its_tasks_over(
    worker: RunningTaskExecutor, target: Target, reason: str
) -> None:
    assert hand_over_obstacles(LEAVING, ADOPTING) == ()
    obstacles = hand_over_obstacles(worker, target)
    assert reason in why_drained(lasting(obstacles))
    (step,) = plan_upgrade(ClusterState(1, (), (worker,), JOBS), target).steps
    assert step.effect.startswith("is drained (")
    assert reason in step.effect
    assert hand_over_obstacles(LEAVING, ADOPTING, is_part=True) != ()


def test_jobs_whose_tasks_are_adopted_notice_nothing() -> None:
    state = replace(STATE, masters=(), task_executors=(LEAVING,))
    plan = plan_upgrade(state, ADOPTING)
    adopted = "when taskmanager-0 is exchanged, the successor adopts its tasks there, which run on"
    assert [job.effect for job in plan.jobs[:2]] == [adopted, adopted]
    assert plan.steps[0].effect.startswith("its successor adopts its Spark driver and its tasks, which run on; its 1 ")
    passing = HandOverReport(1, "3.12", (Obstacle("it takes a checkpoint", True, STREAM),))
    assert plan_upgrade(replace(state, task_executors=(replace(LEAVING, report=passing),)), ADOPTING).jobs == plan.jobs
    idle = plan_upgrade(replace(state, task_executors=(replace(LEAVING, jobs=()),)), ADOPTING)
    assert idle.steps[0].effect.startswith("no job uses it")
    assert "tasks there fail" in plan_upgrade(state, OLD_TARGET).jobs[0].effect


def test_one_job_that_cannot_be_adopted_drains_the_others_and_each_is_told_why() -> None:
    own = HandOverReport(1, "3.12", (Obstacle("it has a Spark driver of its own", job_id=BATCH),))
    state = replace(STATE, masters=(), task_executors=(replace(LEAVING, report=own),))
    stream, batch, _ = plan_upgrade(state, ADOPTING).jobs
    assert stream.effect.endswith(f"(job {BATCH} prevents a hand-over: it has a Spark driver of its own)")
    assert batch.effect.endswith("without a failure (it has a Spark driver of its own)")


def test_to_a_release_that_cannot_drain_the_operator_accepts_failed_tasks() -> None:
    masters = tuple(replace(each, release=NEW) for each in (LEADER, STANDBY))
    state = replace(STATE, masters=masters, task_executors=(replace(WORKER, release=NEW),))
    plan = plan_upgrade(state, OLD_TARGET)
    assert plan.steps[-1].effect.startswith("ends without a drain")
    assert "its tasks there fail, and run again if its restart strategy allows it" in plan.jobs[0].effect
    with pytest.raises(
        UpgradeRefusedError, match=r"0\.1\.0 cannot drain TaskExecutors: the tasks on taskmanager-0"
    ) as e:
        check_interruption(plan, is_accepted=False)
    assert "--masters-only" in e.value.remedy
    check_interruption(plan, is_accepted=True)
    assert plan_upgrade(state, OLD_TARGET, MASTERS_ONLY).warning == ""
    idle = replace(state, task_executors=(replace(WORKER, release=NEW, jobs=()),))
    assert plan_upgrade(idle, OLD_TARGET).warning == ""


def drained(batch: int = 0, streaming: int = 0, stored: int = 0) -> DrainedTaskExecutor:
    streams = frozenset({STREAM} if streaming else ())
    return DrainedTaskExecutor(
        not batch and not streaming, frozenset({BATCH} if batch else ()), streams, frozenset({STREAM} if stored else ())
    )


@pytest.mark.parametrize(
    ("found", "waited_s", "step"),
    [
        (drained(), 0.0, DrainStep.END),
        (drained(), 1000.0, DrainStep.END),
        (drained(batch=1), 9.0, DrainStep.WAIT),
        (drained(batch=1), 10.0, DrainStep.MOVE),
        (drained(streaming=1), 0.0, DrainStep.CHECKPOINT),
        (drained(streaming=1, stored=1), 0.0, DrainStep.MOVE),
        (drained(batch=1, streaming=1), 9.0, DrainStep.WAIT),
        (drained(batch=1, streaming=1), 10.0, DrainStep.CHECKPOINT),
        (drained(batch=1, streaming=1, stored=1), 10.0, DrainStep.MOVE),
        (drained(streaming=1), 10.0 + CHECKPOINT_S, DrainStep.MOVE),
        (DrainedTaskExecutor(is_idle=False), 9.0, DrainStep.WAIT),  # a slot on its way to a job
        (DrainedTaskExecutor(is_idle=False), 10.0, DrainStep.MOVE),
    ],
)
def test_batch_tasks_may_finish_and_streaming_queries_move_last(
    found: DrainedTaskExecutor, waited_s: float, step: DrainStep
) -> None:
    assert next_drain_step(found, waited_s, timeout_s=10.0) is step


def test_an_exchanged_task_executor_is_awaited_until_another_process_has_its_name() -> None:
    (step,) = plan_upgrade(replace(STATE, masters=()), TARGET).steps
    assert missing_workers(STATE, STATE) == []
    assert missing_workers(STATE, STATE, step) == ["TaskExecutor taskmanager-0"]
    gone = replace(STATE, task_executors=())
    assert missing_workers(STATE, gone) == missing_workers(STATE, gone, step) == ["TaskExecutor taskmanager-0"]
    assert missing_workers(STATE, replace(gone, has_fixed_workers=False), step) == []
    assert missing_workers(STATE, replace(STATE, task_executors=(replace(WORKER, pid=99),)), step) == []


def test_what_is_left_names_the_task_executors_and_the_feature_level() -> None:
    exchange, finalize = plan_upgrade(STATE, TARGET, MASTERS_ONLY).to_do
    assert "taskmanager-0 (0.1.0); leave out --masters-only" in exchange
    assert "raise the feature level from 1" in finalize
    assert plan_upgrade(STATE, TARGET).to_do == (finalize,)
    upgraded = replace(STATE, task_executors=(replace(WORKER, release=NEW),))
    assert plan_upgrade(upgraded, TARGET, MASTERS_ONLY).to_do == (finalize,)
    assert plan_upgrade(replace(upgraded, feature_level=2), TARGET, MASTERS_ONLY).to_do == ()


def test_the_only_master_is_exchanged_only_if_the_interruption_is_accepted() -> None:
    plan = plan_upgrade(replace(STATE, masters=(LEADER,)), TARGET)
    with pytest.raises(UpgradeRefusedError, match=r"master is the only master: .* answers no request") as e:
        check_interruption(plan, is_accepted=False)
    assert "understudy start-master" in e.value.remedy
    assert "--yes" in e.value.remedy
    check_interruption(plan, is_accepted=True)
    done = plan_upgrade(replace(STATE, masters=(replace(LEADER, release=NEW),)), TARGET, MASTERS_ONLY)
    assert (done.steps, done.warning) == ((), "")


@pytest.mark.parametrize(
    ("state", "target", "says", "remedy"),
    [
        (
            replace(STATE, feature_level=2),
            replace(TARGET, release=OLD),
            "the cluster has feature level 2, and Understudy 0.1.0 supports 1",
            "no downgrade",
        ),
        (
            STATE,
            replace(TARGET, release=Release("0.9.0", FeatureLevels(2, 3))),
            "the cluster has feature level 1, and Understudy 0.9.0 supports 2 to 3",
            "cluster finalize` with the release that the cluster runs now",
        ),
        (
            STATE,
            replace(TARGET, spark_version="4.2.0"),
            "taskmanager-0 runs Spark 4.1.0, and /new/bin/python has PySpark 4.2.0",
            "pyspark==4.1.0",
        ),
        (STATE, replace(TARGET, spark_version=""), "has no PySpark", "pyspark==4.1.0"),
        (replace(STATE, is_session=False), TARGET, "only session clusters", "start the next one"),
        (replace(STATE, is_member=True), TARGET, "several hosts", "--hosts"),
        (replace(STATE, has_redis=False), TARGET, "high-availability.type is none", "docs/upgrading.md"),
    ],
)
def test_an_upgrade_that_cannot_work_is_refused(state: ClusterState, target: Target, says: str, remedy: str) -> None:
    check_upgrade(STATE, TARGET)
    with pytest.raises(UpgradeRefusedError) as e:
        check_upgrade(state, target)
    assert says in str(e.value)
    assert remedy in e.value.remedy


def test_a_spark_of_another_machine_need_not_be_of_the_version_that_is_installed_here() -> None:
    remote = replace(WORKER, spark_version="")
    check_upgrade(replace(STATE, task_executors=(remote,)), replace(TARGET, spark_version="4.2.0"))


def test_an_upgrade_back_is_planned_like_one_forward() -> None:
    masters = tuple(replace(each, release=NEW) for each in (LEADER, STANDBY))
    assert order(replace(STATE, masters=masters), replace(TARGET, release=OLD)) == ["master-1", "master"]
