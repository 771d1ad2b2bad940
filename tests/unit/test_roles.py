"""What a host makes of the shared configuration, who is admitted, and when one is cut off."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

import runtime
from actors.address import ActorAddress
from actors.errors import AuthenticationError
from conf.configuration import Configuration
from conf.options import ClusterOptions, HeartbeatOptions, HighAvailabilityOptions, SecurityOptions, TaskManagerOptions
from runtime.cluster import roles
from runtime.cluster.host import RegistrationTimeoutError, all_registered, registrations
from runtime.cluster.roles import Role, check_host, check_role, find_host, role_configuration
from runtime.environment.context import ComponentContext
from runtime.environment.directory import ClusterDirectory
from runtime.environment.shared_directory import mark_shared_directory, shared_directory_mark
from runtime.errors import ClusterError, PreflightError
from runtime.feature_level import FeatureLevels
from runtime.ha.errors import RedisUnreachableError
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import InstanceID, ResourceID
from runtime.protocol.errors import RegistrationRejectedError
from runtime.protocol.messages import TaskExecutorRegistration
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.resourcemanager import endpoint
from runtime.resourcemanager.endpoint import Admission, ResourceManager
from runtime.resourcemanager.instance_manager import InstanceManager
from runtime.taskexecutor.connections import Isolation, IsolationWatch
from runtime.taskexecutor.worker_files import REFUSED, REGISTERED, WAITING, RegistrationState

OTHER = "192.0.2.7"


def shared(tmp_path: Path, **settings: object) -> Configuration:
    """The configuration of all hosts."""
    values = {
        "cluster.runtime-dir": str(tmp_path / "run"),
        "cluster.shared-dir": str(tmp_path / "shared"),
        "security.secret-file": str(tmp_path / "secret"),
        "high-availability.redis.url": "redis://:word@192.0.2.1:6379/0",
        **{key.replace("_", "-"): value for key, value in settings.items()},
    }
    return Configuration.from_dict({key: value for key, value in values.items() if value is not None})


def secret(tmp_path: Path, mode: int = 0o600) -> None:
    path = tmp_path / "secret"
    path.write_text("a" * 32)
    path.chmod(mode)


# ------------------------------------------------------------------ configuration


def test_masters_of_a_cluster_on_one_host_are_not_stopped_as_one_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Mock()
    monkeypatch.setattr(roles, "leave_cluster", left)
    monkeypatch.setattr(ClusterDirectory, "heads", lambda _: [os.getpid()])
    with pytest.raises(ClusterError, match="a cluster on one host") as e:
        roles.stop_role(shared(tmp_path), Role.MASTER, print)
    assert "`understudy stop` stops all of it" in e.value.remedy
    assert not left.called
    roles.stop_role(shared(tmp_path), Role.TASK_EXECUTOR, print)
    monkeypatch.setattr(roles, "is_member", lambda pid: pid == os.getpid())
    roles.stop_role(shared(tmp_path), Role.MASTER, print)
    assert left.call_count == 2


def test_a_master_has_no_workers_and_only_silence_counts(tmp_path: Path) -> None:
    own = role_configuration(shared(tmp_path), Role.MASTER, OTHER)
    assert own.get(TaskManagerOptions.COUNT) == 0
    assert own.get(ClusterOptions.HOST) == OTHER
    assert own.get(HeartbeatOptions.RPC_FAILURE_THRESHOLD) == -1
    assert own.get(TaskManagerOptions.ISOLATION_TIMEOUT) is None


def test_task_executors_have_a_directory_and_names_of_their_own_and_share_the_rest(tmp_path: Path) -> None:
    configuration = Configuration.from_dict({"cluster.runtime-dir": str(tmp_path / "run")})
    own = role_configuration(configuration, Role.TASK_EXECUTOR, OTHER)
    assert own.get(ClusterOptions.RUNTIME_DIR) == tmp_path / "run" / "task-executor"
    assert own.get(ClusterOptions.SHARED_DIR) == tmp_path / "run"
    assert own.get(HighAvailabilityOptions.STORAGE_DIR) == tmp_path / "run" / "ha"
    assert own.get(SecurityOptions.SECRET_FILE) == tmp_path / "run" / "secret"
    assert own.get(TaskManagerOptions.RESOURCE_ID) == f"taskmanager-{OTHER}"
    six = role_configuration(configuration, Role.TASK_EXECUTOR, "2001:db8::7")
    assert six.get(TaskManagerOptions.RESOURCE_ID) == "taskmanager-2001.db8..7"


@pytest.mark.parametrize(("timeout", "interval", "isolation_s"), [("10 s", "1 s", 8.0), ("3 s", "2 s", 1.5)])
def test_who_is_cut_off_ends_before_others_begin(
    tmp_path: Path, timeout: str, interval: str, isolation_s: float
) -> None:
    settings = {"heartbeat.timeout": timeout, "heartbeat.interval": interval}
    own = role_configuration(shared(tmp_path, **settings), Role.TASK_EXECUTOR, OTHER)
    assert own.get(TaskManagerOptions.ISOLATION_TIMEOUT) == isolation_s < own.get(HeartbeatOptions.TIMEOUT)


def test_what_is_set_stays(tmp_path: Path) -> None:
    settings = {
        "heartbeat.rpc-failure-threshold": "5",
        "taskmanager.isolation.timeout": "2 s",
        "taskmanager.resource-id": "mine",
    }
    own = role_configuration(shared(tmp_path, **settings), Role.TASK_EXECUTOR, OTHER)
    assert own.get(HeartbeatOptions.RPC_FAILURE_THRESHOLD) == 5
    assert own.get(TaskManagerOptions.ISOLATION_TIMEOUT) == 2.0
    assert own.get(TaskManagerOptions.RESOURCE_ID) == "mine"


def test_nothing_listens_for_other_hosts_without_a_secret(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="there is no secret") as caught:
        check_role(shared(tmp_path), Role.MASTER, OTHER)
    assert "openssl rand" in caught.value.remedy
    secret(tmp_path, 0o644)
    with pytest.raises(AuthenticationError, match="others may read it"):
        check_role(shared(tmp_path), Role.MASTER, OTHER)
    secret(tmp_path)
    check_role(shared(tmp_path), Role.MASTER, OTHER)


def test_loopback_needs_no_secret(tmp_path: Path) -> None:
    check_role(shared(tmp_path), Role.TASK_EXECUTOR, "127.0.0.1")


@pytest.mark.parametrize(
    ("settings", "role", "words"),
    [
        ({"high-availability.redis.url": None}, Role.MASTER, "no Redis that several hosts could share"),
        (
            {"high-availability.type": "none", "jobmanager.rpc.port": "0"},
            Role.TASK_EXECUTOR,
            "find the master by its port",
        ),
        ({"cluster.shared-dir": None}, Role.MASTER, "cluster.shared-dir is not set"),
        ({"taskmanager.isolation.timeout": "10 s"}, Role.TASK_EXECUTOR, "is not below heartbeat.timeout"),
    ],
)
def test_what_does_not_fit_several_hosts_is_told(
    tmp_path: Path, settings: dict[str, str | None], role: Role, words: str
) -> None:
    secret(tmp_path)
    with pytest.raises(PreflightError, match=words) as caught:
        check_role(shared(tmp_path, **settings), role, OTHER)
    assert caught.value.remedy


# ------------------------------------------------------------------------ address


def test_the_address_is_the_one_towards_redis(tmp_path: Path) -> None:
    near = shared(tmp_path, **{"high-availability.redis.url": "redis://:w@127.0.0.9:6379/0"})
    assert find_host(near, Role.TASK_EXECUTOR) == "127.0.0.1"
    sentinels = shared(tmp_path, **{"high-availability.redis.url": "redis+sentinel://:w@127.0.0.9:1,x:2/m/0"})
    assert find_host(sentinels, Role.MASTER) == "127.0.0.1"
    several = shared(tmp_path, **{"high-availability.redis.url": "redis+sentinel://:w@127.0.0.9:1,[::1]:1,x/m/0"})
    assert find_host(several, Role.MASTER) == "127.0.0.1", "newer releases of Python refuse such a URL"


def test_the_address_that_is_set_comes_first(tmp_path: Path) -> None:
    assert find_host(shared(tmp_path, **{"cluster.host": "h"}), Role.MASTER) == "h"
    own = shared(tmp_path, **{"jobmanager.rpc.address": "127.0.0.2"})
    assert find_host(own, Role.MASTER) == "127.0.0.2"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PreflightError, match="not an address of this machine"):
        check_host(OTHER)


def test_a_name_that_is_loopback_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(roles.socket, "getaddrinfo", lambda *args, **more: found)
    with pytest.raises(PreflightError, match="which no other host reaches"):
        check_host("node1")
    assert check_host("127.0.1.1") == "127.0.1.1"


# ---------------------------------------------------------------------- admission


def registration(host: str, mark: str, version: str = runtime.__version__) -> TaskExecutorRegistration:
    address = f"akka.tcp://understudy@{host}:7/user/tm-0"
    return TaskExecutorRegistration(ResourceID("tm-0"), address, 1, 2, "4", "21", "local", 2, 3, version, mark)


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    configuration = shared(tmp_path, **{"cluster.host": "192.0.2.1"})
    mark_shared_directory(tmp_path / "shared", "default")
    return Admission(configuration)


@pytest.fixture
def mark(admission: Admission, tmp_path: Path) -> str:
    return shared_directory_mark(tmp_path / "shared", "default")


def test_a_fitting_task_executor_is_admitted(admission: Admission, mark: str) -> None:
    assert mark
    admission.check(registration(OTHER, mark), None, 1)
    admission.check(registration("192.0.2.1", ""), None, 1)  # on the master's own machine a path is a path


def test_another_release_is_admitted_if_it_supports_the_feature_level_and_refused_otherwise(
    admission: Admission, mark: str
) -> None:
    earlier = registration(OTHER, mark, "0.0.1")
    admission.check(earlier, None, 1)
    with pytest.raises(RegistrationRejectedError, match=r"runs Understudy 0\.0\.1, which does not support .* level 2"):
        admission.check(earlier, None, 2)
    admission.check(replace(earlier, levels=FeatureLevels(2, 3)), None, 2)
    with pytest.raises(RegistrationRejectedError, match="feature level 1"):
        admission.check(replace(earlier, levels=FeatureLevels(2, 3)), None, 1)


async def test_a_level_that_may_have_been_raised_without_a_message_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "supported_levels", lambda: FeatureLevels(1, 2))
    find = AsyncMock(side_effect=[1, 2])
    manager: Any = SimpleNamespace(_level=None, _ha=Mock(feature_level_store=lambda: Mock(find=find)))
    assert [await ResourceManager._current_level(manager) for _ in range(3)] == [1, 2, 2]
    assert find.await_count == 2, "a level never falls"


def test_another_file_system_is_refused(admission: Admission) -> None:
    with pytest.raises(RegistrationRejectedError, match=f"cluster.shared-dir on {OTHER}"):
        admission.check(registration(OTHER, "another"), None, 1)


def test_a_name_belongs_to_one_host_and_to_its_replaced_process(admission: Admission, mark: str) -> None:
    book = InstanceManager()
    gateway = TaskExecutorGateway.__new__(TaskExecutorGateway)
    first = book.register(InstanceID.random(), registration(OTHER, mark), gateway, 0)
    admission.check(replace(registration(OTHER, mark), pid=9), first, 1)
    with pytest.raises(RegistrationRejectedError, match=f"registered from {OTHER} already"):
        admission.check(registration("192.0.2.8", mark), first, 1)


def test_the_mark_of_a_directory_is_made_once(tmp_path: Path) -> None:
    assert shared_directory_mark(tmp_path / "d", "one") == ""
    mark_shared_directory(tmp_path / "d", "one")
    first = shared_directory_mark(tmp_path / "d", "one")
    mark_shared_directory(tmp_path / "d", "one")
    assert shared_directory_mark(tmp_path / "d", "one") == first != ""
    assert [path.name for path in (tmp_path / "d").iterdir()] == [".understudy-one"]


# ---------------------------------------------------------------------- isolation


def test_one_is_cut_off_after_silence_alone() -> None:
    isolation = Isolation(4.0, 10.0)
    assert not isolation.is_isolated(13.9)
    isolation.heard(13.0)
    isolation.heard(11.0)  # what was asked earlier is answered late
    assert isolation.silent_for(16.9) == pytest.approx(3.9)
    assert not isolation.is_isolated(16.9)
    assert isolation.is_isolated(17.0)


def test_a_registration_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = RegistrationState(tmp_path)
    assert state.read() == (WAITING, "")
    state.write(REFUSED, "why")
    assert RegistrationState(tmp_path).read() == (REFUSED, "why")
    state.forget()
    assert state.read() == (WAITING, "")


# ------------------------------------------------------------------ host process


@pytest.fixture
def context(tmp_path: Path) -> ComponentContext:
    """Of a host with two TaskExecutors, which have a second to be registered."""
    settings = {"taskmanager.count": "2", "taskmanager.registration.timeout": "1 s", "taskmanager.resource-id": "tm"}
    configuration = shared(tmp_path, **settings)
    directory = ClusterDirectory(tmp_path)
    for index in range(2):
        directory.taskmanager(index).mkdir()
    return ComponentContext(configuration, directory, ActorAddress.parse("akka.tcp://understudy@h:1/user/x"))


async def test_a_host_ends_when_one_of_its_task_executors_is_not_registered_in_time(context: ComponentContext) -> None:
    states = registrations(context.configuration, context.directory)
    states["tm-0"].write(REGISTERED)
    states["tm-1"].write(WAITING, "no ResourceManager leads")
    with pytest.raises(
        RegistrationTimeoutError, match=r"^tm-1 was not registered .* \(1 s\): no ResourceManager leads$"
    ):
        await all_registered(context)


async def test_once_registered_they_have_all_the_time(context: ComponentContext) -> None:
    for state in registrations(context.configuration, context.directory).values():
        state.write(REGISTERED)
    await all_registered(context)


class _Store:
    """The store of the leaders, which is reached or not."""

    reached = True

    async def current_leader(self, component: str) -> None:
        if not self.reached:
            raise RedisUnreachableError("redis", "away")


async def test_who_is_cut_off_kills_its_driver_and_itself_only_with_tasks_and_without_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed, store, now = list[int](), _Store(), [0.0]
    tasks = ["one"]
    isolation = Isolation(4.0, 0.0)
    monkeypatch.setattr("runtime.taskexecutor.connections.os.kill", lambda pid, number: killed.append(pid))
    ha = cast("HighAvailabilityServices", store)
    watch = IsolationWatch(ha, 4.0, 1.0, lambda: bool(tasks), 77, lambda: now[0])
    now[0] = 10.0
    await watch.look(isolation)
    assert not killed  # Redis is reached: the master is dead, or being replaced
    store.reached = False
    now[0] = 13.9
    await watch.look(isolation)
    assert not killed
    tasks.clear()
    now[0] = 14.0
    await watch.look(isolation)
    assert not killed  # there is nothing to end
    tasks.append("one")
    await watch.look(isolation)
    assert killed == [77, os.getpid()]
