from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import AsyncMock, Mock

import pytest

from blob.errors import BlobConnectionError
from blob.gateway import BlobAddress
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.offload import Inline, Key, Offloaded
from conf.configuration import Configuration
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, JobVertexID, ResourceID, SlotID, SlotRequestID
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobKind, ShipStrategy
from runtime.jobmaster.deployment import DeploymentOffload, TaskManagers
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.execution_graph import DeployTask
from runtime.jobmaster.slot_pool import AllocatedSlot, SlotLost, SlotPool
from runtime.protocol.descriptor import (
    AttemptInformation,
    JobInformation,
    TaskDeployment,
    TaskDeploymentDescriptor,
    VertexDescriptor,
    VertexInput,
    pack,
    unpack,
)
from runtime.protocol.errors import DeploymentNotFoundError, UnknownTaskExecutorError
from runtime.protocol.messages import TaskExecutorRegistration

T = TypeVar("T")
JOB = JobID("b" * 32)
LARGE = b"x" * 100


class Blobs:
    """A writer in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.uploads = 0
        self.reachable = True

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None) -> Key:
        if not self.reachable:
            raise BlobConnectionError("nobody there")
        assert job_id == JOB
        self.uploads += 1
        key = key_type.create(hashlib.sha256(data).digest())
        self.held[key] = data
        return key

    def delete(self, key: TransientBlobKey, job_id: str | None = None) -> bool:
        assert job_id == JOB
        return self.held.pop(key, None) is not None


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    return await asyncio.to_thread(function, *args)


def offload_to(blobs: Blobs, ttl_s: float = 3600.0) -> DeploymentOffload:
    return DeploymentOffload(blobs, 10, JOB, in_thread, ttl_s)


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def descriptor(number: int) -> TaskDeploymentDescriptor:
    source = JobVertexID.of("job", "source")
    vertex = VertexDescriptor(
        JobVertexID.of("job", "sink"),
        "sink",
        "m:f",
        (VertexInput(source, "/results/source", ShipStrategy.HASH, ("id",)),),
        parallelism=4,
    )
    job = JobInformation(
        job_id=JOB,
        job_name="job",
        kind=JobKind.PIPELINE,
        artifacts=(Artifact("job.py", ArtifactRole.MAIN, str(PermanentBlobKey.create(bytes(32), bytes(16)))),),
        argv=("a", "ü"),
        parameters={"z": 1, "a": [1.5, None, {"b": "c"}]},
    )
    attempt = AttemptInformation(
        attempt_id=ExecutionAttemptID.random(),
        attempt_number=number,
        allocation_id=AllocationID.random(),
        task_key=JobVertexID.of("job", "sink"),
        task_name="sink",
        vertices=(vertex,),
    )
    return TaskDeploymentDescriptor(job, attempt)


def test_a_descriptor_is_the_same_after_its_journey() -> None:
    sent = descriptor(3)
    assert unpack(*pack(sent)) == sent


def test_the_jobs_part_is_the_same_bytes_in_every_attempt_and_for_every_jobmaster() -> None:
    (job, attempt), (again, other) = pack(descriptor(0)), pack(descriptor(1))
    assert job == again
    assert attempt != other


def test_below_the_limit_nothing_is_uploaded() -> None:
    async def body() -> None:
        blobs = Blobs()
        offload = offload_to(blobs)
        async with offload.delivery(b"small", keep=True) as sent:
            assert sent == Inline(b"small")
            assert await offload.lasting(b"small", sent) == Inline(b"small")
        await offload.close()
        assert blobs.uploads == 0

    run(body)


def test_one_upload_serves_all_receivers_and_goes_with_the_last() -> None:
    async def body() -> None:
        blobs = Blobs()
        offload = offload_to(blobs)
        deliveries = [offload.delivery(LARGE) for _ in range(8)]
        sent = await asyncio.gather(*(delivery.__aenter__() for delivery in deliveries))
        assert len(set(sent)) == 1
        assert blobs.uploads == 1
        for delivery in deliveries:
            assert len(blobs.held) == 1
            await delivery.__aexit__(None, None, None)
        assert blobs.held == {}

    run(body)


def test_the_shared_part_is_kept_for_the_next_deployment_until_it_is_released() -> None:
    async def body() -> None:
        blobs = Blobs()
        offload = offload_to(blobs)
        for _ in range(3):
            async with offload.delivery(LARGE, keep=True) as sent:
                assert isinstance(sent, Offloaded)
        assert blobs.uploads == 1
        assert list(blobs.held) == [sent.key]
        async with offload.delivery(LARGE, keep=True):
            await offload.release()
            assert list(blobs.held) == [sent.key], "a TaskExecutor may be about to fetch it"
        await offload.close()
        assert blobs.held == {}

    run(body)


def test_whoever_does_not_find_it_gets_a_permanent_one_uploaded_once() -> None:
    async def body() -> None:
        blobs = Blobs()
        offload = offload_to(blobs)
        for _ in range(2):
            async with offload.delivery(LARGE, keep=True) as sent:
                lasting = await offload.lasting(LARGE, sent, keep=True)
                assert isinstance(lasting, Offloaded)
                assert lasting.job_id == JOB
                PermanentBlobKey(lasting.key)
        assert [key for key in blobs.held if key.startswith("p-")] == [lasting.key]
        await offload.close()
        assert list(blobs.held) == [lasting.key], "it goes with its job"

    run(body)


def test_a_failed_upload_is_the_deployments_failure_and_leaves_nothing() -> None:
    async def body() -> None:
        blobs = Blobs()
        blobs.reachable = False
        offload = offload_to(blobs)
        with pytest.raises(BlobConnectionError):
            async with offload.delivery(LARGE, keep=True):
                raise AssertionError("there is nothing to send")
        blobs.reachable = True
        async with offload.delivery(LARGE, keep=True):
            assert blobs.uploads == 1
        await offload.close()
        assert blobs.held == {}

    run(body)


def test_a_server_that_keeps_nothing_unused_does_not_hinder_a_delivery() -> None:
    async def body() -> None:
        blobs = Blobs()
        offload = offload_to(blobs, ttl_s=0.0)
        async with offload.delivery(LARGE, keep=True) as sent:
            assert isinstance(sent, Offloaded)
        await offload.close()
        assert blobs.held == {}

    run(body)


class Worker:
    """A TaskExecutor that finds permanent blobs only: its BlobServer is another one."""

    def __init__(self) -> None:
        self.offered: list[TaskDeployment] = []

    async def submit_task(self, deployment: TaskDeployment) -> None:
        self.offered.append(deployment)
        if isinstance(deployment.job, Offloaded) and deployment.job.key.startswith("t-"):
            raise DeploymentNotFoundError("not here")


async def no_restore() -> None:
    return None


def test_a_taskexecutor_that_finds_no_blob_is_sent_a_permanent_one() -> None:
    async def body() -> None:
        blobs, worker = Blobs(), Worker()
        endpoint: Any = SimpleNamespace(
            service=SimpleNamespace(secret=b"secret", connect=lambda _address: None),
            gateway=lambda _address, _kind, term: worker,
            term=None,
            run_blocking=in_thread,
            log=logging.getLogger("test"),
        )
        managers = TaskManagers(endpoint, JOB, Configuration(), BlobAddress("127.0.0.1", 1), Mock())
        managers._offload = offload_to(blobs)
        resource = ResourceID("tm-0")
        managers.add(TaskExecutorRegistration(resource, "akka.tcp://x@127.0.0.1:2/user/tm-0", 1, 1, "", "", "", 1, 1))
        written = 0

        async def write() -> None:
            nonlocal written
            written += 1

        sent = descriptor(0)
        await managers.deploy(resource, sent, no_restore, write, lambda: False)
        assert written == 1
        first, second = worker.offered
        assert isinstance(first.job, Offloaded)
        assert isinstance(second.job, Offloaded)
        assert isinstance(second.attempt, Offloaded)
        assert unpack(blobs.held[second.job.key], blobs.held[second.attempt.key]) == sent
        await managers.close()

    run(body)


def test_a_slot_of_a_task_executor_that_has_not_registered_is_given_up() -> None:
    """It had the slot for a former JobMaster, and may never register with this one, though it answers heartbeats.

    A failure of the task alone would have it tried there again and again, until no restart is left.
    """

    async def body() -> None:
        endpoint: Any = SimpleNamespace(
            service=SimpleNamespace(secret=b"secret"), run_blocking=in_thread, log=logging.getLogger("test")
        )
        managers = TaskManagers(endpoint, JOB, Configuration(), BlobAddress("127.0.0.1", 1), Mock())
        pool, done = SlotPool(60.0, 60.0), list[object]()
        slot = AllocatedSlot(AllocationID.random(), SlotID(ResourceID("tm-0"), 1), "akka.tcp://x@127.0.0.1:2/user/tm-0")
        managers.expect(slot.slot_id.resource_id, slot.address)
        pool.adopt_slot(SlotRequestID.random(), slot, 0.0)
        job: Any = SimpleNamespace(
            _journal=Mock(),
            _checkpoints=Mock(restore=AsyncMock(return_value=None)),
            _graph=Mock(),
            _task_managers=managers,
            _pool=pool,
            _do=done.extend,
            log=logging.getLogger("test"),
        )
        await JobMaster._deploy(job, DeployTask(slot, descriptor(0)))
        assert done == [
            SlotLost(slot.allocation_id, "TaskExecutor tm-0 is not registered: it has no slot for this job")
        ]
        job._graph.task_failed.assert_not_called()
        await managers.close()

    run(body)


def test_a_task_executor_that_was_lost_is_told_to_register_again() -> None:
    """It may offer its slots a moment after: any other error would have it wait until its heartbeats time out."""
    endpoint: Any = SimpleNamespace(
        service=SimpleNamespace(secret=b"secret"), run_blocking=in_thread, log=logging.getLogger("test")
    )
    managers = TaskManagers(endpoint, JOB, Configuration(), BlobAddress("127.0.0.1", 1), Mock())
    with pytest.raises(UnknownTaskExecutorError, match="register again"):
        managers.address_of(ResourceID("tm-0"))
