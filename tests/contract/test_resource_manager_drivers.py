"""What every driver promises that starts workers on demand; then what only pods can suffer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.fencing import Leadership
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from conf.configuration import Configuration
from conf.errors import ConfigurationFileError
from runtime.cluster.supervisor import OnDemandWorkers, own_supervisor
from runtime.environment.context import ComponentContext, rpc_config, system_address
from runtime.environment.directory import ClusterDirectory
from runtime.ids import JobID, ResourceID
from runtime.kubernetes.client import KubernetesApi
from runtime.kubernetes.driver import KubernetesDriver
from runtime.protocol.leader import RESOURCE_MANAGER
from runtime.protocol.master import MasterGateway, WorkerProcess
from runtime.protocol.messages import ClusterStatus
from runtime.protocol.resource_manager_driver import DriverError, ResourceManagerDriver
from runtime.resourcemanager.drivers import ProcessDriver
from tests.acting import ActingEndpoint
from tests.kubernetes_server import NAMESPACE, KubernetesServer
from tests.waiting import PATIENCE_S

SECRET = b"the secret of this test cluster."


@dataclass
class Ends:
    """Which workers ended, and why, as a driver tells it."""

    told: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, resource_id: ResourceID, cause: str) -> None:
        self.told.append((resource_id, cause))

    async def next(self) -> tuple[str, str]:
        """The next one."""
        await until(lambda: bool(self.told))
        return self.told.pop(0)


def state(kind: str, **values: Any) -> dict[str, Any]:
    return {"name": "task-executor", "image": "u:1", "state": {kind: values}}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # the other side is a thread or a process
            await asyncio.sleep(0.02)


@dataclass
class World:
    """A way to make drivers of one kind, and to kill a worker of theirs behind their backs."""

    driver: Callable[..., ResourceManagerDriver]
    kill: Callable[[str], None]


class Master(RpcEndpoint, MasterGateway):
    """The part of a master that has workers."""

    def __init__(self, service: RpcService, context: ComponentContext) -> None:
        super().__init__(service, "master")
        self.supervisor = own_supervisor(lambda child, pid: self.workers.ended(child.name))
        self.workers = OnDemandWorkers(context, self.supervisor)

    @rpc
    async def stop_worker(self, name: str) -> bool:
        return await self.workers.stop(name)

    @rpc
    async def request_worker(self) -> WorkerProcess:
        return await self.workers.start()

    @rpc
    async def request_workers(self) -> list[WorkerProcess]:
        return await self.workers.list()

    @rpc_sync
    def start_worker(self) -> str:
        raise NotImplementedError

    @rpc_sync
    def start_job_master(self, job_id: JobID) -> str:
        raise NotImplementedError

    @rpc_sync
    def stop_job_master(self, job_id: JobID) -> None:
        raise NotImplementedError

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        raise NotImplementedError

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        raise NotImplementedError

    @rpc_sync
    def shut_down_cluster(self) -> None:
        raise NotImplementedError


@pytest.fixture
async def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Real processes and claims of a real master's workers; what they run is only time."""
    program = tmp_path / "worker"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    configuration = Configuration.from_dict({"cluster.runtime-dir": str(tmp_path / "c"), "jobmanager.rpc.port": 0})
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    service = RpcService(asyncio.get_running_loop(), SECRET, rpc_config(configuration, directory))
    await service.listen()
    system = system_address(configuration, service.port)
    master = Master(service, ComponentContext(configuration, directory, system))
    receptionist = Receptionist(service)
    await service.start_server(receptionist)
    await service.start_server(master)
    receptionist.enter(Listing(master.path, str(master.address), os.getpid()))

    def kill(name: str) -> None:
        running = master.supervisor.children[name].running
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)

    owner = ActingEndpoint(service, RESOURCE_MANAGER, Leadership(RESOURCE_MANAGER, 1, "s"))
    yield World(lambda: ProcessDriver(owner, receptionist_of(service, system), system, directory), kill)
    for name in list(master.supervisor.children):
        await master.supervisor.remove(name)
    await service.close()


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    made = KubernetesServer()
    yield made
    made.close()


@pytest.fixture
async def pods(server: KubernetesServer, tmp_path: Path) -> AsyncIterator[World]:
    apis: list[KubernetesApi] = []

    def driver(**settings: Any) -> ResourceManagerDriver:
        configuration = kubernetes_configuration(server, tmp_path, **settings)
        apis.append(KubernetesApi(configuration))
        return KubernetesDriver(configuration, apis[-1])

    yield World(driver, lambda name: server.terminate(name, exitCode=137, signal=9, reason="Error"))
    for api in apis:
        api.close()


def kubernetes_configuration(server: KubernetesServer, tmp_path: Path, **settings: Any) -> Configuration:
    return Configuration.from_dict(
        {
            "cluster.id": "Sales_1",
            "kubernetes.namespace": NAMESPACE,
            "kubernetes.config.file": str(server.kubeconfig(tmp_path / "kubeconfig")),
            "kubernetes.client.request-timeout": "10min",
            **settings,
        }
    )


@pytest.fixture(params=["process", "kubernetes"])
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue("processes" if request.param == "process" else "pods")
    return found


async def test_workers_are_started_told_when_they_end_and_stopped(world: World) -> None:
    driver, ends = world.driver(), Ends()
    assert list(await driver.initialize(ends)) == []
    first, second, third = [await driver.request_resource() for _ in range(3)]
    assert len({first, second, third}) == 3
    world.kill(second)
    name, cause = await ends.next()
    assert name == second
    assert "\n" not in cause
    assert cause
    assert await driver.release_resource(first)
    assert not await driver.release_resource(ResourceID("somebody-else"))
    world.kill(third)
    assert (await ends.next())[0] == third, "nothing was told of the one that was released"
    await driver.stop()


async def test_the_next_leader_finds_the_workers_and_they_are_its_own(world: World) -> None:
    former, ends = world.driver(), Ends()
    await former.initialize(ends)
    names = {await former.request_resource() for _ in range(2)}
    await former.stop()
    driver = world.driver()
    assert set(await driver.initialize(ends)) == names
    assert set(await driver.initialize(ends)) == names, "once more, as after a failure"
    new = await driver.request_resource()
    assert new not in names
    killed, stopped = sorted(names)
    world.kill(killed)
    assert (await ends.next())[0] == killed
    assert await driver.release_resource(stopped)
    assert await driver.release_resource(new)
    await driver.stop()
    assert list(await driver.initialize(ends)) == []
    await driver.stop()
    assert ends.told == []


# ----------------------------------------------------------------------- pods alone


async def begun(pods: World, server: KubernetesServer, **settings: Any) -> tuple[ResourceManagerDriver, Ends]:
    driver, ends = pods.driver(**settings), Ends()
    await driver.initialize(ends)
    await asyncio.to_thread(server.await_watch, 1)
    return driver, ends


async def test_a_pod_is_the_template_with_what_the_options_say(
    pods: World, server: KubernetesServer, tmp_path: Path
) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {labels: {team: data}}\n"
        "spec:\n  tolerations: [{key: spot}]\n  volumes: [{name: shared}]\n"
        "  containers:\n  - {name: sidecar, image: s}\n"
        "  - name: task-executor\n    image: replaced\n    env: [{name: A, value: b}]\n"
        "    volumeMounts: [{name: shared, mountPath: /shared}]\n"
    )
    server.deployments["understudy-master"] = {"metadata": {"name": "understudy-master", "uid": "u-1"}}
    driver, _ = await begun(
        pods,
        server,
        **{
            "kubernetes.pod-template-file": str(template),
            "kubernetes.jobmanager.deployment": "understudy-master",
            "kubernetes.container.image": "registry.example.org/understudy:1",
            "kubernetes.container.image.pull-secrets": "registry-key",
            "kubernetes.taskmanager.service-account": "understudy-worker",
            "kubernetes.taskmanager.cpu.amount": "1.5",
            "kubernetes.taskmanager.memory": "2 gb",
            "kubernetes.taskmanager.node-selector": "disktype=ssd",
            "kubernetes.env.secretKeyRef": "AWS_SECRET_ACCESS_KEY=storage/key",
        },
    )
    name = await driver.request_resource()
    pod = server.pods[name]
    assert pod["metadata"]["labels"] == {
        "team": "data",
        "app.kubernetes.io/name": "understudy",
        "app.kubernetes.io/instance": "Sales_1",
        "app.kubernetes.io/component": "taskmanager",
    }
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Deployment", "understudy-master", "u-1")
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("Never", "understudy-worker")
    assert spec["automountServiceAccountToken"] is False
    assert (spec["tolerations"], spec["nodeSelector"]) == ([{"key": "spot"}], {"disktype": "ssd"})
    assert spec["imagePullSecrets"] == [{"name": "registry-key"}]
    sidecar, container = spec["containers"]
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert container["image"] == "registry.example.org/understudy:1"
    assert container["command"] == ["python", "-m", "runtime.cluster.container", "task-executor"]
    assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
    assert container["resources"]["requests"] == {"cpu": "1500m", "memory": str(2 << 30)}
    assert container["resources"]["limits"] == {"memory": str(2 << 30)}
    env = {item["name"]: item for item in container["env"]}
    assert set(env) == {"A", "POD_NAME", "POD_IP", "AWS_SECRET_ACCESS_KEY"}
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "storage", "key": "key"}}
    assert name.startswith("sales-1-taskmanager-")
    template.write_text("kind: Deployment\n")
    with pytest.raises(ConfigurationFileError, match="is not a pod"):
        pods.driver(**{"kubernetes.pod-template-file": str(template)})
    await driver.stop()


async def test_no_setting_takes_away_what_pods_are_found_by_or_kept_apart(
    pods: World, server: KubernetesServer, tmp_path: Path
) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        "apiVersion: v1\nkind: Pod\n"
        "metadata: {labels: {app.kubernetes.io/component: web, app.kubernetes.io/instance: other}}\n"
        "spec: {restartPolicy: Always}\n"
    )
    driver, ends = await begun(
        pods,
        server,
        **{
            "kubernetes.pod-template-file": str(template),
            "kubernetes.taskmanager.labels": "app.kubernetes.io/name=mine",
        },
    )
    name = await driver.request_resource()
    assert server.pods[name]["spec"]["restartPolicy"] == "Never"
    await driver.stop()
    assert list(await driver.initialize(ends)) == [name]
    await driver.stop()


async def test_a_released_pod_that_takes_its_time_is_no_worker_any_more(pods: World, server: KubernetesServer) -> None:
    driver, ends = await begun(pods, server)
    released, other = [await driver.request_resource() for _ in range(2)]
    with server.changed:  # the server does not come to its deletion yet
        releasing = asyncio.create_task(driver.release_resource(released))
        await until(lambda: not driver._pods.keys() & {released})  # type: ignore[attr-defined]
        server.set_status(released, phase="Running")
    assert await releasing
    pods.kill(other)
    assert (await ends.next())[0] == other
    assert not await driver.release_resource(released)
    await driver.stop()
    assert ends.told == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"phase": "Failed", "containerStatuses": [state("terminated", reason="OOMKilled", exitCode=137)]},
            "took more memory than its limit (OOMKilled); raise kubernetes.taskmanager.memory",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "it was ended by Kubernetes (Evicted): The node was low on resource: memory.",
        ),
        (
            {"phase": "Failed", "containerStatuses": [state("terminated", reason="Error", exitCode=1)]},
            "its container 'task-executor' has ended with exit status 1 (Error)",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [state("waiting", reason="ImagePullBackOff", message="Back-off pulling\nimage")],
            },
            "its image 'u:1' is not available (ImagePullBackOff): Back-off pulling image; "
            "see kubernetes.container.image",
        ),
        (
            {"phase": "Pending", "containerStatuses": [state("waiting", reason="CreateContainerConfigError")]},
            "its container 'task-executor' does not start (CreateContainerConfigError)",
        ),
    ],
)
async def test_why_a_pod_ended_is_told_in_one_line_and_it_is_deleted(
    pods: World, server: KubernetesServer, status: dict[str, Any], words: str
) -> None:
    driver, ends = await begun(pods, server)
    name = await driver.request_resource()
    server.set_status(name, **status)
    told, cause = await ends.next()
    assert told == name
    assert words in cause
    assert "\n" not in cause
    await until(lambda: name not in server.pods)
    await driver.stop()
    assert ends.told == []


async def test_a_pod_without_a_node_is_waited_for_and_says_why(pods: World, server: KubernetesServer) -> None:
    driver, ends = await begun(pods, server)
    name = await driver.request_resource()
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "2 too small"}
    server.set_status(name, phase="Pending", conditions=[unschedulable])
    await until(lambda: driver.hindrance() == f"pod {name} has no node (Unschedulable): 2 too small")
    server.set_status(name, phase="Running")
    await until(lambda: not driver.hindrance())
    assert ends.told == []
    await driver.stop()


async def test_what_happens_while_the_watch_is_broken_or_too_old_is_told_once(
    pods: World, server: KubernetesServer
) -> None:
    driver, ends = await begun(pods, server)
    names = [await driver.request_resource() for _ in range(4)]
    server.cut_watches()
    server.terminate(names[0], exitCode=1, reason="Error")
    assert (await ends.next())[0] == names[0]
    await asyncio.to_thread(server.await_watch, 2)
    with server.changed:  # the next watch begins at a version that is forgotten, and two pods are gone by then
        server.pods[names[1]]["status"] = {"phase": "Failed", "reason": "Evicted"}
        del server.pods[names[2]]
        server.forgotten = server.version + 2
        server.version += 5
        server.events.clear()
        server.cut += 1
        server.changed.notify_all()
    told = dict([await ends.next(), await ends.next()])
    assert told == {names[1]: "it was ended by Kubernetes (Evicted)", names[2]: "its pod was deleted"}
    server.remove(names[3])
    assert await ends.next() == (names[3], "its pod was deleted")
    await driver.stop()
    assert ends.told == []


async def test_a_pod_created_while_the_pods_are_listed_once_more_has_not_ended(
    pods: World, server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, ends = await begun(pods, server)
    assert isinstance(driver, KubernetesDriver)
    api, is_listed = driver._api, asyncio.Event()
    list_pods, create_pod = api.list_pods, api.create_pod
    requesting: list[asyncio.Task[ResourceID]] = []

    async def listed(labels: str) -> tuple[list[dict[str, Any]], str]:
        found = await list_pods(labels)
        is_listed.set()
        await asyncio.gather(*requesting)
        return found

    async def created(manifest: dict[str, Any]) -> dict[str, Any]:
        await is_listed.wait()
        return await create_pod(manifest)

    monkeypatch.setattr(api, "list_pods", listed)
    monkeypatch.setattr(api, "create_pod", created)
    requesting.append(asyncio.create_task(driver.request_resource()))
    await asyncio.sleep(0)
    await driver._list_again()
    assert list(driver._pods) == list(server.pods) == [requesting[0].result()]
    await driver.stop()
    assert ends.told == []


async def test_refusals_say_what_to_do_and_leave_nothing(pods: World, server: KubernetesServer) -> None:
    driver, ends = await begun(pods, server)
    server.refuse("POST", 403, 'pods "x" is forbidden: exceeded quota: jobs, requested: pods=1, limited: pods=1')
    with pytest.raises(DriverError, match=r"refuses \(403\): .*exceeded quota.*slotmanager.number-of-slots.max"):
        await driver.request_resource()
    server.refuse("POST", 403, 'pods is forbidden: User "u" cannot create resource "pods"')
    with pytest.raises(DriverError, match=r"cannot create resource.*service account needs the role"):
        await driver.request_resource()
    server.refuse("POST", 500, "etcd\nis away")
    with pytest.raises(DriverError, match=r"refuses \(500\): etcd is away"):
        await driver.request_resource()
    assert server.pods == {}
    await driver.stop()
    server.refuse("GET", 503, "starting")
    with pytest.raises(DriverError, match="503"):
        await driver.initialize(ends)
    assert list(await driver.initialize(ends)) == []
    await driver.stop()


async def test_a_pod_whose_creation_is_in_doubt_is_there_once(pods: World, server: KubernetesServer) -> None:
    driver, ends = await begun(pods, server)
    server.refuse("POST", after_work=True)  # and its repetition meets 409
    name = await driver.request_resource()
    assert list(server.pods) == [name]
    for _ in range(3):
        server.refuse("POST", after_work=True)
    with pytest.raises(DriverError, match="does not answer"):
        await driver.request_resource()
    await until(lambda: list(server.pods) == [name])
    server.refuse("DELETE")
    with pytest.raises(DriverError, match="does not answer"):
        await driver.release_resource(name)
    assert await driver.release_resource(name), "who asked again has it stopped"
    await driver.stop()
    assert ends.told == []


async def test_a_slow_server_holds_nothing_up_and_a_silent_one_is_given_up(
    pods: World, server: KubernetesServer
) -> None:
    driver, _ = await begun(pods, server)
    with server.changed:  # it does not come to the creation yet
        requesting = asyncio.create_task(driver.request_resource())
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not requesting.done()
    name = await requesting
    driver._api._timeout_s = 0.5  # type: ignore[attr-defined]
    server.delay_s = 5.0
    with pytest.raises(DriverError, match="does not answer"):
        await driver.release_resource(name)
    server.delay_s = 0.0
    await driver.stop()


async def test_pods_of_others_are_left_alone_and_ended_ones_are_swept(pods: World, server: KubernetesServer) -> None:
    driver, ends = await begun(pods, server)
    living, ended = [await driver.request_resource() for _ in range(2)]
    await driver.stop()
    server.terminate(ended, exitCode=0, reason="Completed")
    server.pods["web"] = {"metadata": {"name": "web", "labels": {"app": "web"}}}
    other = pods.driver(**{"cluster.id": "other"})
    assert list(await other.initialize(ends)) == []
    await other.stop()
    driver = pods.driver()
    assert list(await driver.initialize(ends)) == [living]
    await until(lambda: sorted(server.pods) == sorted([living, "web"]))
    assert not await driver.release_resource(ResourceID("web"))
    await driver.stop()


def test_without_a_way_to_kubernetes_it_says_so(server: KubernetesServer, tmp_path: Path) -> None:
    configuration = kubernetes_configuration(server, tmp_path, **{"kubernetes.config.file": str(tmp_path / "none")})
    with pytest.raises(DriverError, match=r"no way to Kubernetes: .*; set kubernetes.config.file, or run in a pod"):
        KubernetesApi(configuration)
