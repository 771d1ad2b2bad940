"""What a JobMaster does when the connection to a TaskExecutor breaks, and the TaskExecutor lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from actors.errors import ActorError, AskTimeout, RecipientTerminated, RecipientUnreachable
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, SlotID
from runtime.jobgraph.job_graph import JobKind
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.execution_graph import DeployTask
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.protocol.descriptor import TaskDeployment, TaskDeploymentDescriptor
from runtime.protocol.messages import TaskExecutorRegistration
from tests.waiting import AT_ONCE

JOB = JobID("b" * 32)
WORKER = ResourceID("tm-0")
ADDRESS = "akka.tcp://x@127.0.0.1:2/user/tm-0"
BROKEN = RecipientUnreachable("the connection broke")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)


class Worker:
    """A TaskExecutor: each call takes effect, and then ends with the next of some errors, if any is left."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []
        self.disconnected: list[str] = []
        self.on_call: Any = Mock()

    def _called(self, what: str) -> None:
        self.calls.append(what)
        self.on_call()
        if self.errors:
            raise self.errors.pop(0)

    async def submit_task(self, deployment: TaskDeployment) -> None:
        self._called("submit")

    async def cancel_task(self, attempt_id: ExecutionAttemptID) -> None:
        self._called("cancel")

    async def free_slot(self, allocation_id: AllocationID, reason: str) -> None:
        self._called("free")

    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        assert job_id == JOB
        self.disconnected.append(reason)


class Job:
    """As much of a JobMaster as its deployments need, with one TaskExecutor."""

    log = logging.getLogger("test")
    term = None

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.service: Any = SimpleNamespace(secret=b"secret", connect=Mock())
        self.spawned: list[asyncio.Task[None]] = []
        self._job_id = JOB
        self._heartbeats = Mock()
        self._graph = Mock(has_ended=Mock(return_value=False), task_executor_lost=Mock(return_value=[]))
        self._journal = SimpleNamespace(written=AsyncMock())
        self._checkpoints = Mock(restore=AsyncMock(return_value=None))
        self._pool = Mock()
        self._do = Mock()
        self._task_managers = TaskManagers(
            self,  # type: ignore[arg-type]
            JOB,
            Configuration(),
            BlobAddress("127.0.0.1", 1),
            lambda resource_id: JobMaster._task_manager_unreachable(self, resource_id),  # type: ignore[arg-type]
        )
        self._task_managers.add(TaskExecutorRegistration(WORKER, ADDRESS, 1, 1, "", "", "", 1, 1))

    def gateway(self, address: str, gateway_type: type, term: object) -> Worker:
        assert address == ADDRESS
        return self.worker

    async def run_blocking(self, function: Any, *args: Any) -> Any:
        return function(*args)

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        self.spawned.append(asyncio.get_running_loop().create_task(work))
        return self.spawned[-1]

    def _task_manager_lost(self, resource_id: str, reason: str) -> None:
        JobMaster._task_manager_lost(self, resource_id, reason)  # type: ignore[arg-type]

    def lose(self, reason: str) -> None:
        """The heartbeats' verdict."""
        JobMaster._task_manager_silent(self, WORKER, reason)  # type: ignore[arg-type]

    async def deploy(self) -> None:
        descriptor = TaskDeploymentDescriptor.internal("script", JobKind.SCRIPT)
        await JobMaster._deploy(self, DeployTask(a_slot(), descriptor))  # type: ignore[arg-type]


def a_slot() -> AllocatedSlot:
    return AllocatedSlot(AllocationID("a" * 32), SlotID(WORKER, 0), ADDRESS)


@pytest.mark.parametrize("error", [BROKEN, AskTimeout("no answer within 10 s")])
async def test_a_task_is_sent_again_after_an_error_that_does_not_show_whether_it_runs(error: ActorError) -> None:
    """Seed 2945628787 of the simulator: the job was restarted elsewhere, and its first task ran on."""
    worker = Worker(error, error)
    job = Job(worker)
    await job.deploy()
    assert worker.calls == ["submit"] * 3
    job._graph.task_executor_lost.assert_not_called()
    job._graph.task_failed.assert_not_called()
    assert job._task_managers.address_of(WORKER) == ADDRESS


async def test_the_heartbeats_learn_at_once_of_a_broken_connection() -> None:
    """If the process has ended, its tasks are restarted soon."""
    job = Job(Worker(BROKEN))
    await job.deploy()
    job._heartbeats.ask_now.assert_called_once_with(WORKER)


async def test_a_task_is_not_sent_again_once_its_end_is_known() -> None:
    worker = Worker(BROKEN)
    job = Job(worker)
    worker.on_call = lambda: job._graph.has_ended.configure_mock(return_value=True)
    await job.deploy()
    assert worker.calls == ["submit"]


async def test_a_task_is_not_sent_again_once_the_heartbeats_have_given_its_task_executor_up() -> None:
    worker = Worker(BROKEN)
    job = Job(worker)
    worker.on_call = lambda: job.lose("unreachable 2 times in a row")
    await job.deploy()
    assert worker.calls == ["submit"]
    job._graph.task_executor_lost.assert_called_once()
    job._graph.task_failed.assert_not_called()


async def test_a_task_executor_that_goes_is_lost_at_once() -> None:
    worker = Worker(RecipientTerminated("its zygote has ended"))
    job = Job(worker)
    await job.deploy()
    assert worker.calls == ["submit"]
    job._graph.task_executor_lost.assert_called_once()


async def test_a_task_executor_that_counts_as_lost_ends_its_tasks_if_it_can_be_reached() -> None:
    worker = Worker()
    job = Job(worker)
    job.lose("unreachable 2 times in a row")
    assert worker.disconnected == ["unreachable 2 times in a row"]
    job.lose("again")
    assert worker.disconnected == ["unreachable 2 times in a row"], "it is not known any more"


async def test_a_task_executor_of_a_former_job_master_is_disconnected_too() -> None:
    worker = Worker()
    job = Job(worker)
    job._task_managers.remove(WORKER)
    job._task_managers.expect(WORKER, ADDRESS)
    job.lose("it has not registered")
    assert worker.disconnected == ["it has not registered"]


async def test_a_cancellation_follows_the_deployment_that_is_sent_again() -> None:
    worker = Worker(BROKEN, BROKEN)
    job = Job(worker)
    descriptor = TaskDeploymentDescriptor.internal("script", JobKind.SCRIPT)
    attempt_id = descriptor.attempt.attempt_id

    def cancel_once() -> None:
        if worker.calls == ["submit"]:
            job._task_managers.cancel(attempt_id, WORKER)

    worker.on_call = cancel_once
    restore = AsyncMock(return_value=None)
    await job._task_managers.deploy(WORKER, descriptor, restore, AsyncMock(), lambda: False)
    await asyncio.gather(*job.spawned)
    assert worker.calls == ["submit"] * 3 + ["cancel"]


async def test_a_slot_is_returned_until_the_task_executor_answers() -> None:
    """A job that goes on, and whose heartbeats are heard, would keep the slot from all others until its end."""
    worker = Worker(BROKEN, AskTimeout("no answer within 10 s"))
    job = Job(worker)
    job._task_managers.free_slot(a_slot(), lambda: False)
    await asyncio.gather(*job.spawned)
    assert worker.calls == ["free"] * 3


async def test_a_slot_that_was_offered_again_meanwhile_is_not_returned() -> None:
    worker, held = Worker(BROKEN), Mock(side_effect=[False, True])
    job = Job(worker)
    job._task_managers.free_slot(a_slot(), held)
    await asyncio.gather(*job.spawned)
    assert worker.calls == ["free"]


async def test_a_slot_of_a_lost_task_executor_is_not_returned() -> None:
    worker = Worker(BROKEN)
    job = Job(worker)
    worker.on_call = lambda: job.lose("unreachable 2 times in a row")
    job._task_managers.free_slot(a_slot(), lambda: False)
    await asyncio.gather(*job.spawned)
    assert worker.calls == ["free"]
