"""The upgrade of a cluster on several hosts, as rules: its order, what stops it, and what a host is sent."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from conf.options import ClusterOptions
from runtime.cluster import upgrade_hosts
from runtime.cluster.documents import ClusterUpgrade
from runtime.cluster.output import to_plain
from runtime.cluster.roles import Role
from runtime.cluster.ssh import HostRole
from runtime.cluster.upgrade import DrainResult
from runtime.cluster.upgrade_hosts import (
    NOT_TRIED,
    HostPlan,
    HostResult,
    Part,
    RemoteHosts,
    carry_out,
    check_hosts,
    check_order,
    check_part,
    order_hosts,
    upgrade_part,
)
from runtime.cluster.upgrade_plan import (
    ClusterState,
    PlannedJob,
    PlannedProcess,
    RunningMaster,
    RunningTaskExecutor,
    Target,
    UpgradeChoices,
    UpgradeRefusedError,
    check_upgrade,
    plan_upgrade,
)
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.feature_level import FeatureLevels, Release
from runtime.ids import JobID

OLD, NEW = Release("0.1.0", FeatureLevels(1, 1)), Release("0.2.0", FeatureLevels(1, 2))
TARGET = Target(NEW, "4.3.0", "/new/bin/python")


def step(process: str = "master", *leads: str) -> PlannedProcess:
    return PlannedProcess(process, 7, "0.1.0", "0.2.0", "", leads)


def master(host: str, *leads: str) -> HostPlan:
    return HostPlan(HostRole(host, Role.MASTER), "", "0.2.0", (step("master", *leads),))


def workers(host: str, jobs: int = 0) -> HostPlan:
    return HostPlan(HostRole(host, Role.TASK_EXECUTOR), "", "0.2.0", (step(f"taskmanager-{host}-0"),), jobs=jobs)


def absent(host: str, role: Role) -> HostPlan:
    return HostPlan(HostRole(host, role), "ssh: refused")


def names(plans: list[HostPlan]) -> list[str]:
    return [f"{plan.target.host} {plan.target.role.value}" for plan in plans]


def results(plans: list[HostPlan], problems: dict[str, str] | None = None) -> tuple[list[HostResult], list[str]]:
    tried: list[str] = []

    def exchange(plan: HostPlan) -> str:
        tried.append(plan.target.host)
        return (problems or {}).get(plan.target.host, "")

    return list(carry_out(plans, exchange, lambda line: None)), tried


def test_standbys_come_first_then_the_leader_then_the_hosts_with_fewest_jobs() -> None:
    plans = [
        master("a", "dispatcher", "rest"),
        absent("b", Role.MASTER),
        master("b2", "resourcemanager"),
        master("c"),
        workers("d", jobs=2),
        absent("e", Role.TASK_EXECUTOR),
        workers("f", jobs=1),
    ]
    order = ["c master", "b2 master", "a master", "b master", "f task-executor", "d task-executor", "e task-executor"]
    assert names(order_hosts(plans)) == order
    assert names(order_hosts(plans, masters_only=True)) == order[:4]
    done = replace(master("g"), steps=(), kept=(step("master", "dispatcher"),))
    assert names(order_hosts([done, master("h")])) == ["h master", "g master"], "a leader that stays still leads"


def test_the_only_master_is_exchanged_only_if_that_is_accepted() -> None:
    alone = [master("a", "dispatcher", "rest"), absent("b", Role.MASTER), workers("d")]
    with pytest.raises(UpgradeRefusedError, match="the master of a is the only one that answers") as refused:
        check_hosts(alone, is_accepted=False)
    assert "--yes" in refused.value.remedy
    check_hosts(alone, is_accepted=True)
    check_hosts([replace(alone[0], steps=()), workers("d")], is_accepted=False)
    check_hosts([*alone, master("c")], is_accepted=False)
    with pytest.raises(UpgradeRefusedError, match="no master answers: ssh: refused"):
        check_hosts([absent("b", Role.MASTER), workers("d")], is_accepted=True)


def test_every_host_is_exchanged_once_and_those_that_are_done_are_not() -> None:
    done, tried = results([replace(master("a"), steps=()), master("b"), workers("c")])
    assert tried == ["b", "c"]
    assert [(each.ok, each.detail) for each in done] == [
        (True, "runs it already"),
        (True, "exchanged"),
        (True, "exchanged"),
    ]


def test_after_a_failure_no_further_host_is_tried() -> None:
    done, tried = results([master("a"), master("b"), workers("c")], {"a": "it does not start"})
    assert tried == ["a"]
    assert [(each.ok, each.detail) for each in done] == [
        (False, "it does not start"),
        (False, NOT_TRIED),
        (False, NOT_TRIED),
    ]


def test_without_a_master_of_the_file_no_task_executor_is_exchanged() -> None:
    done, tried = results([master("a"), absent("b", Role.MASTER), workers("c")])
    assert tried == ["a"]
    assert [each.detail for each in done][1:] == ["ssh: refused", "not tried: the master of b is not exchanged"]
    assert [each.ok for each in done] == [True, False, False]


def test_a_host_of_task_executors_that_does_not_answer_is_left_out() -> None:
    done, tried = results([master("a"), absent("b", Role.TASK_EXECUTOR), workers("c")])
    assert tried == ["a", "c"]
    assert [each.ok for each in done] == [True, False, True]


def test_the_plan_of_a_host_is_read_from_the_document_that_it_prints() -> None:
    steps, kept = (step("taskmanager-a-0"),), (step("taskmanager-a-1", "dispatcher"),)
    jobs = [
        PlannedJob(JobID(digit * 32), "j", "RUNNING", executors, "")
        for digit, executors in (("1", ("taskmanager-a-0", "other")), ("2", ("other",)), ("3", ("taskmanager-a-1",)))
    ]
    document = ClusterUpgrade("c", "0.2.0", "/p", True, steps, kept, tuple(jobs), "", ())
    target = HostRole("a", Role.TASK_EXECUTOR)
    plain: Any = to_plain(document)
    assert HostPlan.decode(target, plain) == HostPlan(target, "", "0.2.0", steps, kept, jobs=2)
    with pytest.raises(KeyError):
        HostPlan.decode(target, {})


def test_task_executors_follow_the_leading_master() -> None:
    check_order(Role.TASK_EXECUTOR, "0.2.0", TARGET)
    check_order(Role.MASTER, "0.1.0", TARGET)
    with pytest.raises(UpgradeRefusedError, match=r"the leading master runs Understudy 0\.1\.0, and not 0\.2\.0") as e:
        check_order(Role.TASK_EXECUTOR, "0.1.0", TARGET)
    assert "--role master" in e.value.remedy


def test_a_part_is_upgraded_where_the_whole_is_refused() -> None:
    leader = RunningMaster("master", 10, OLD, ("dispatcher",))
    executor = RunningTaskExecutor("taskmanager-a-0", 20, OLD, "4.3.0")
    whole = ClusterState(1, (leader,), (executor,), is_member=True)
    with pytest.raises(UpgradeRefusedError, match="several hosts") as refused:
        check_upgrade(whole, TARGET)
    assert "--hosts" in refused.value.remedy
    for role in Role:
        check_part(role, whole, TARGET)
    with pytest.raises(UpgradeRefusedError, match="belong to a cluster on one host"):
        check_part(Role.MASTER, replace(whole, is_member=False), TARGET)
    with pytest.raises(UpgradeRefusedError, match=r"runs Spark 4\.3\.0"):
        check_part(Role.MASTER, whole, replace(TARGET, spark_version="4.4.0"))
    part = replace(whole, is_part=True)
    plan = plan_upgrade(part, TARGET)
    assert plan.warning == "", "masters of other hosts take over"
    assert [each.leads for each in plan.steps] == [("dispatcher",), ()]
    assert "a standby takes over" in plan.steps[0].effect


def test_a_part_has_the_task_executors_of_its_host(tmp_path: Path) -> None:
    configuration = Configuration.from_dict(
        {"taskmanager.count": "2", "taskmanager.resource-id": "tm", "cluster.runtime-dir": str(tmp_path)}
    )
    configuration.write(tmp_path / "configuration.json")
    executors = tuple(RunningTaskExecutor(name, 20, OLD, "4.3.0") for name in ("tm-0", "tm-1", "tm-2", "other-0"))
    whole = ClusterState(1, (RunningMaster("master", 10, OLD),), executors)

    def part(role: Role) -> Part:
        return Part(role, configuration, ClusterDirectory(tmp_path))

    found = part(Role.TASK_EXECUTOR).state_of(whole)
    assert (found.masters, [each.name for each in found.task_executors]) == ((), ["tm-0", "tm-1"])
    assert part(Role.MASTER).state_of(whole) == replace(whole, is_part=True)
    assert found.is_part


def test_a_part_that_does_not_run_is_named(tmp_path: Path) -> None:
    configuration = Configuration().set(ClusterOptions.RUNTIME_DIR, tmp_path)
    with pytest.raises(ClusterNotRunning, match=r"no task-executor of this host runs in .*/task-executor") as refused:
        Part.of(configuration, Role.TASK_EXECUTOR)
    assert "start --role task-executor" in refused.value.remedy


def test_a_part_without_a_redis_of_all_hosts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = Configuration().set(ClusterOptions.RUNTIME_DIR, tmp_path)
    directory = ClusterDirectory(tmp_path)
    directory.configuration_file.parent.mkdir(parents=True, exist_ok=True)
    directory.configuration_file.write_text("")
    monkeypatch.setattr(ClusterDirectory, "is_running", lambda _: True)
    with pytest.raises(UpgradeRefusedError, match=r"redis\.url is not set, as in a cluster on one host") as caught:
        Part.of(configuration, Role.MASTER)
    assert caught.value.remedy.startswith("leave out --role")


def test_a_second_upgrade_of_a_part_is_refused(tmp_path: Path) -> None:
    part = Part(Role.MASTER, Configuration(), ClusterDirectory(tmp_path))
    other = part.claim()
    assert other.try_acquire()
    with pytest.raises(ClusterError, match="another upgrade of the cluster"):
        upgrade_part(part, None, lambda line: None, is_accepted=True, choices=UpgradeChoices())
    other.release()


@pytest.mark.parametrize("second", [True, None])
def test_all_task_executors_of_a_host_stay_drained_until_the_last_one_is(
    monkeypatch: pytest.MonkeyPatch, second: bool | None
) -> None:
    idle, end = DrainResult.IDLE, DrainResult.IDLE if second else DrainResult.GONE
    answers = {"tm-0": [idle, idle], "tm-1": [None, end]}

    class Planned:
        def __init__(self, client: object, step: PlannedProcess, *others: object) -> None:
            self._answers = answers[step.process]

        def advance(self) -> DrainResult | None:
            return self._answers.pop(0)

    monkeypatch.setattr(upgrade_hosts, "Drain", Planned)
    steps = (step("tm-0"), step("tm-1"))
    client: Any = None

    def drain() -> None:
        upgrade_hosts.drain_all(client, steps, 1.0, UpgradeChoices(), lambda line: None)

    if second:
        drain()
    else:
        with pytest.raises(ClusterError, match="tm-1 has ended meanwhile"):
            drain()
    assert answers == {"tm-0": [], "tm-1": []}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "masters").write_text("node1\nme@node2:9001\n")
    (tmp_path / "workers").write_text("node3\n")
    return tmp_path / "config.yaml"


def test_a_host_is_sent_the_command_for_its_role(files: Path) -> None:
    configuration = Configuration.from_dict({"env.ssh.directory": "/srv/a b", "env.ssh.opts": "-p 2222"})
    remote = RemoteHosts(configuration, files, ["cluster.id=x"], ["--to", "/opt/new", "--yes"])
    assert [(each.host, each.role) for each in remote.targets] == [
        ("node1", Role.MASTER),
        ("me@node2", Role.MASTER),
        ("node3", Role.TASK_EXECUTOR),
    ]
    command = remote.command(remote.targets[1], "--dry-run")
    assert command[-7:-1] == [
        "-o",
        "ServerAliveInterval=15",
        "-o",
        "ServerAliveCountMax=4",
        "--",
        "me@node2",
    ]
    prefix, _, rest = command[-1].partition(" && ")
    assert shlex.split(prefix) == ["cd", "/srv/a b"]
    expected = ["exec", sys.executable, "-m", "runtime.cluster", "cluster", "upgrade", "--role", "master", "--json"]
    expected += ["--config", str(files), "-D", "cluster.id=x", "-D", "rest.port=9001"]
    assert shlex.split(rest) == [*expected, "--to", "/opt/new", "--yes", "--dry-run"]
    with pytest.raises(ClusterError, match="would be seen"):
        RemoteHosts(configuration, files, ["spark.my.password=word"], [])


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'error: it is full' >&2; echo 'remedy: x' >&2; exit 1", "it is full"),
        ("echo 'ssh: connect to host: refused' >&2; exit 255", "ssh: connect to host: refused"),
        ("exit 3", "exit status 3"),
        ("echo {}", "its answer cannot be read: KeyError('steps')"),
        ("echo oops", "its answer cannot be read"),
    ],
)
def test_a_host_that_fails_is_named_with_its_reason(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    remote = RemoteHosts(Configuration(), files, [], [])
    assert {plan.problem[: len(problem)] for plan in remote.plans()} == {problem}
    said: list[str] = []
    found = remote.exchange(master("node1"), said.append)
    assert found == (problem if "exit" in script else "")
    assert not any("error" in line for line in said)
