"""The plan of an upgrade, as pure rules: the order of the exchanges, what jobs notice, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.cluster.upgrade_plan import (
    ClusterState,
    RunningJob,
    RunningMaster,
    RunningTaskExecutor,
    Target,
    UpgradeRefusedError,
    check_interruption,
    check_upgrade,
    plan_upgrade,
)
from runtime.feature_level import FeatureLevels, Release
from runtime.ids import JobID

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


def order(state: ClusterState, target: Target = TARGET) -> list[str]:
    return [step.process for step in plan_upgrade(state, target).steps]


def test_standbys_are_exchanged_first_and_the_leading_dispatcher_last() -> None:
    assert order(STATE) == ["master-1", "master"]
    manager = replace(STANDBY, leads=("resourcemanager",))
    dispatcher = replace(LEADER, leads=("dispatcher",))
    assert order(replace(STATE, masters=(dispatcher, manager, THIRD))) == ["master-2", "master-1", "master"]
    steps = plan_upgrade(STATE, TARGET).steps
    assert [(step.pid, step.version, step.target_version) for step in steps] == [
        (11, "0.1.0", "0.2.0"),
        (10, "0.1.0", "0.2.0"),
    ]
    assert "the leader is not affected" in steps[0].effect
    assert "a standby takes over" in steps[1].effect


@pytest.mark.parametrize("leader", range(3))
def test_carried_out_step_by_step_from_the_state_alone_each_master_is_exchanged_once(leader: int) -> None:
    """After each step the plan is computed again, as an upgrade does that is interrupted after every step."""
    masters = [LEADER, STANDBY, THIRD]
    masters = [replace(each, leads=LEADER.leads if index == leader else ()) for index, each in enumerate(masters)]
    state, done = replace(STATE, masters=tuple(masters)), []
    while steps := plan_upgrade(state, TARGET).steps:
        done.append(steps[0].process)
        was = next(each for each in state.masters if each.name == steps[0].process)
        others = [each for each in state.masters if each is not was]
        if was.leads:  # another one takes over
            others[0] = replace(others[0], leads=was.leads)
        state = replace(state, masters=(*others, RunningMaster(was.name, was.pid + 100, NEW)))
    assert sorted(done) == sorted(each.name for each in masters)
    assert done[-1] == masters[leader].name
    assert plan_upgrade(state, TARGET).steps == ()


def test_a_master_that_an_interrupted_upgrade_has_ended_is_started_first() -> None:
    plan = plan_upgrade(replace(STATE, masters=(LEADER,), ended_master="master-1"), TARGET)
    assert [(step.process, step.pid, step.version) for step in plan.steps] == [
        ("master-1", 0, ""),
        ("master", 10, "0.1.0"),
    ]
    assert plan.warning == ""  # it has a standby by then
    check_interruption(plan, is_accepted=False)


def test_processes_of_the_release_and_task_executors_are_kept() -> None:
    upgraded = replace(STANDBY, release=NEW)
    plan = plan_upgrade(replace(STATE, masters=(LEADER, upgraded)), TARGET)
    assert [step.process for step in plan.steps] == ["master"]
    assert [(each.process, each.version, each.target_version) for each in plan.kept] == [
        ("master-1", "0.2.0", "0.2.0"),
        ("taskmanager-0", "0.1.0", "0.1.0"),
    ]
    assert "masters only" in plan.kept[1].effect


def test_each_job_shows_what_it_notices() -> None:
    stream, batch, queued = plan_upgrade(STATE, TARGET).jobs
    assert stream.task_executors == ("taskmanager-0",)
    assert stream.effect == (
        "its tasks keep running; when taskmanager-0 is restarted later, its queries resume from the last checkpoint"
    )
    assert batch.effect == "its tasks keep running; when taskmanager-0 is restarted later, its tasks there run again"
    assert (queued.task_executors, queued.effect) == ((), "has no slot: the next leader requests them again")
    all_new = ClusterState(1, (replace(LEADER, release=NEW),), (replace(WORKER, release=NEW),), JOBS)
    assert {job.effect for job in plan_upgrade(all_new, TARGET).jobs} == {"not affected"}


def test_what_is_left_names_the_task_executors_and_the_feature_level() -> None:
    restart, finalize = plan_upgrade(STATE, TARGET).to_do
    assert "taskmanager-0 (0.1.0)" in restart
    assert "raise the feature level from 1" in finalize
    upgraded = replace(STATE, task_executors=(replace(WORKER, release=NEW),))
    assert plan_upgrade(upgraded, TARGET).to_do == (finalize,)
    assert plan_upgrade(replace(upgraded, feature_level=2), TARGET).to_do == ()


def test_the_only_master_is_exchanged_only_if_the_interruption_is_accepted() -> None:
    plan = plan_upgrade(replace(STATE, masters=(LEADER,)), TARGET)
    with pytest.raises(UpgradeRefusedError, match=r"master is the only master: .* answers no request") as e:
        check_interruption(plan, is_accepted=False)
    assert "understudy start-master" in e.value.remedy
    assert "--yes" in e.value.remedy
    check_interruption(plan, is_accepted=True)
    done = plan_upgrade(replace(STATE, masters=(replace(LEADER, release=NEW),)), TARGET)
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
        (replace(STATE, is_member=True), TARGET, "several hosts", "stop --role master"),
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
