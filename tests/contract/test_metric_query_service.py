"""The MetricQueryService of a process, asked over RPC, and what a process and the components say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from actors.errors import UnknownActor
from actors.rpc.service import RpcConfig, RpcService
from blob.client import BlobClient
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobServerGateway
from blob.key import PermanentBlobKey
from runtime.cluster.blob_server import create as create_blob_server
from runtime.dispatcher.endpoint import DispatcherMetrics
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.metrics.metric import MetricQueryServiceGateway, MetricScope, ScopeCategory
from runtime.metrics.prometheus import exposition
from runtime.metrics.registry import MetricRegistry, beside, serve_metrics
from runtime.metrics.store import MetricStore
from runtime.protocol.diagnostics import TaskManagerMetrics, TaskPoolReport
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import ResourceOverview
from runtime.protocol.queues import QueuesOverview, QueueStatus
from runtime.protocol.slots import SlotReport, SlotStatus
from runtime.resourcemanager.endpoint import resource_manager_metrics
from runtime.taskexecutor.diagnostics import task_executor_metrics
from tests.unit.metric_values import JVM
from tests.unit.test_rest_messages import graph

SECRET = b"s" * 32
WORKER = ResourceID("taskmanager-0")


@pytest_asyncio.fixture
async def services() -> AsyncIterator[tuple[RpcService, RpcService]]:
    """One that listens, and one that asks."""
    loop = asyncio.get_running_loop()
    service, caller = (RpcService(loop, SECRET, RpcConfig()) for _ in range(2))
    await service.listen()
    yield service, caller
    await caller.close()
    await service.close()


async def ask(services: tuple[RpcService, RpcService], registry: MetricRegistry) -> dict[MetricScope, dict[str, Any]]:
    """All values by scope and name, as they arrive at another process."""
    service, caller = services
    await serve_metrics(service, registry)
    address = beside(str(service.address_of("/user/component")))
    dumps = await caller.gateway(address, MetricQueryServiceGateway).query_metrics()
    return {dump.scope: {metric.name: metric.value for metric in dump.metrics} for dump in dumps}


async def test_the_dispatcher_tells_of_jobs_and_of_its_process(services: tuple[RpcService, RpcService]) -> None:
    ended = [graph(status).details() for status in (JobStatus.FINISHED, JobStatus.FINISHED, JobStatus.FAILED)]
    metrics = DispatcherMetrics(services[0], lambda: 2, lambda: ended)
    metrics.submitted(0.25)
    found = await ask(services, metrics.registry)
    cluster = found[MetricScope(ScopeCategory.JOB_MANAGER)]
    assert cluster == {"numRunningJobs": 2, "numFinishedJobs": 2, "numCanceledJobs": 0, "numFailedJobs": 1}
    own = found[MetricScope(ScopeCategory.JOB_MANAGER, component="dispatcher")]
    assert (own["numSubmittedJobs"], own["jobSubmissionTime"]) == (1, 1)
    assert own["numSubmittedJobsPerSecond"] > 0
    process = psutil.Process()
    assert own["Status.Process.Threads.Count"] >= 1
    assert 0 < own["Status.Process.CPU.Time"] <= sum(process.cpu_times()[:2]) * 1e9
    assert 0 < own["Status.Process.FileDescriptor.Open"] <= own["Status.Process.FileDescriptor.Max"]
    assert own["Rpc.numConnections"] == 1
    assert own["Rpc.numMessagesReceived"] >= 1
    assert (own["Rpc.mailboxSize"], own["Rpc.numHandlersRunning"]) == (0, 0)


async def test_a_standby_says_nothing_of_what_it_does_not_know(services: tuple[RpcService, RpcService]) -> None:
    found = await ask(services, DispatcherMetrics(services[0], lambda: None, list).registry)
    assert found[MetricScope(ScopeCategory.JOB_MANAGER)] == {}
    registry = resource_manager_metrics(services[0], lambda: None)
    assert [dump.metrics for dump in registry.snapshot() if not dump.scope.component] == [()]


async def test_the_resource_manager_tells_of_slots(services: tuple[RpcService, RpcService]) -> None:
    found = await ask(services, resource_manager_metrics(services[0], lambda: ResourceOverview(3, 12, 5, 2)))
    assert found[MetricScope(ScopeCategory.JOB_MANAGER)] == {
        "numRegisteredTaskManagers": 3,
        "taskSlotsTotal": 12,
        "taskSlotsAvailable": 5,
        "numPendingSlotRequests": 2,
    }


async def test_the_resource_manager_tells_of_queues(services: tuple[RpcService, RpcService]) -> None:
    etl = QueueStatus("etl", 1.0, 0, 3, None, 2, None, 7, 0.0, memory_mb=3072, cpus=1.5, blob_mb=9)
    registry = resource_manager_metrics(
        services[0], lambda: ResourceOverview(3, 12, 5, 2), lambda: QueuesOverview((etl,))
    )
    found = (await ask(services, registry))[MetricScope(ScopeCategory.JOB_MANAGER)]
    assert (found["Queue.etl.taskSlotsUsed"], found["Queue.etl.numPendingSlotRequests"]) == (3, 7)
    assert (found["Queue.etl.taskMemoryUsedMb"], found["Queue.etl.taskCpusUsed"]) == (3072, 1.5)
    assert found["Queue.etl.blobMb"] == 9


async def test_queues_whose_names_differ_in_punctuation_are_told_apart_by_prometheus(
    services: tuple[RpcService, RpcService],
) -> None:
    names = ["a-b", "a_b", "a.b", "etl"]
    known = QueuesOverview(
        tuple(QueueStatus(name, 1.0, 0, n, None, 2, None, 7, 0.0) for n, name in enumerate(names, start=1))
    )
    registry = resource_manager_metrics(services[0], lambda: ResourceOverview(3, 12, 5, 2), lambda: known)
    store = MetricStore(registry.snapshot())
    told = exposition(store.scopes).splitlines()
    for n, name in enumerate(names, start=1):
        assert f'flink_jobmanager_Queue_taskSlotsUsed{{queue="{name}"}} {n}' in told
        assert store.job_manager[f"Queue.{name}.taskSlotsUsed"] == n, "by HTTP"
    assert "Queue.taskSlotsUsed" not in store.job_manager
    assert "flink_jobmanager_Queue_etl_taskSlotsUsed 4" in told, "an earlier release had this name"
    assert not [line for line in told if "Queue_a_b_" in line], "it would be the figure of one of three"
    assert "flink_jobmanager_numPendingSlotRequests 2" in told


async def test_a_task_executor_tells_of_slots_pool_and_driver(services: tuple[RpcService, RpcService]) -> None:
    slots = SlotReport(
        (SlotStatus(SlotID(WORKER, 0), JobID.random(), AllocationID.random()), SlotStatus(SlotID(WORKER, 1)))
    )
    pool: list[TaskPoolReport] = []
    driver = [900 << 20]

    def sample() -> TaskManagerMetrics:
        jvm = JVM if driver[0] else {}
        return TaskManagerMetrics(1, 2.0, 3, 4, driver[0], 6.5, 1, jvm)

    registry = task_executor_metrics(services[0], WORKER, lambda: slots, sample, lambda: pool[0] if pool else None)
    scope = MetricScope(ScopeCategory.TASK_MANAGER, task_manager=WORKER)
    found = (await ask(services, registry))[scope]
    assert (found["taskSlotsTotal"], found["taskSlotsAvailable"], found["numRunningTasks"]) == (2, 1, 1)
    assert (found["Status.JVM.CPU.Time"], found["Status.JVM.Memory.Resident"]) == (6_500_000_000, 900 << 20)
    assert [found[f"Status.JVM.Memory.Heap.{name}"] for name in ("Used", "Committed", "Max")] == [10, 20, 30]
    assert not [name for name in found if name.startswith("TaskPool")]
    pool.append(TaskPoolReport(4, {"script": 2, "pipeline": 1}, 7, {"empty": 2, "off": 1}, 1))
    driver[0] = 0
    (dump,) = registry.snapshot()
    now = {metric.name: metric.value for metric in dump.metrics}
    assert (now["TaskPool.idle"], now["TaskPool.numHits"], now["TaskPool.numMisses"]) == (3, 7, 3)
    assert now["TaskPool.numMisses.empty"] == 2
    assert not [
        name for name in now if name.startswith("Status.JVM.")
    ]  # the driver is gone: what it takes is not known


async def test_the_blob_servers_process_tells_of_blobs(services: tuple[RpcService, RpcService], tmp_path: Path) -> None:
    service, caller = services
    endpoint = await create_blob_server(
        service,
        BLOB_SERVER,
        directory=str(tmp_path / "blob"),
        store=f"file://{tmp_path}/store",
        host="127.0.0.1",
        port=0,
        options={"disk_reserve": 0},
    )
    await service.start_server(endpoint)
    address = await caller.gateway(endpoint.address, BlobServerGateway).request_address()

    def put() -> None:
        with BlobClient((address.host, address.port), SECRET) as client:
            client.put_bytes(b"content", PermanentBlobKey, JobID.random())

    await asyncio.to_thread(put)
    dumps = await caller.gateway(beside(endpoint.address), MetricQueryServiceGateway).query_metrics()
    (found,) = ({metric.name: metric.value for metric in dump.metrics} for dump in dumps)
    assert (found["Blob.numPuts"], found["Blob.totalBytes"], found["Blob.numOwners"]) == (1, 7, 1)
    assert found["Rpc.numConnections"] == 1


async def test_nobody_answers_where_no_metrics_are_served(services: tuple[RpcService, RpcService]) -> None:
    service, caller = services
    gateway = caller.gateway(beside(service.address_of("/user/x")), MetricQueryServiceGateway)
    with pytest.raises(UnknownActor):
        await gateway.query_metrics()
