"""A TaskExecutor tells the ends of its tasks; one that goes tells them with its own, and takes nothing more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from actors.errors import RecipientTerminated, RecipientUnreachable
from actors.process.logs import current_context
from actors.rpc.gateway import FencingToken
from runtime.ids import AllocationID, JobID, JobVertexID, ResourceID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import ExecutionReport, TaskDeploymentDescriptor, TaskExecutionState
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind
from runtime.taskexecutor import task_table
from runtime.taskexecutor.endpoint import TaskExecutor
from runtime.taskexecutor.task_table import TaskTable
from tests.unit.test_trace_context import SPAN, TEXT, TRACE
from tests.waiting import AT_ONCE

JOB = JobID("a" * 32)
GONE = ErrorInfo(FailureKind.TASK_EXECUTOR_LOST, "TaskExecutorLostException", "its zygote has ended")
EPOCH = 7
Tell = Callable[[TaskExecutionState], None]


class FakeTask:
    """Fails when its process is lost."""

    lost = asyncio.Event()
    log_fields: ClassVar[list[dict[str, str]]] = []

    def __init__(self, descriptor: Any, directory: Any, services: Any, on_state: Tell, *rest: Any) -> None:
        self.descriptor = descriptor
        assert rest[-2:] == (EPOCH, None), "the epoch of the JobMaster that has deployed it, and no predecessor"
        self._on_state = on_state
        self.state = TaskExecutionState(descriptor.attempt.attempt_id, ExecutionState.RUNNING)

    async def run(self) -> None:
        self.log_fields.append(current_context())
        await self.lost.wait()
        self.state = TaskExecutionState(self.descriptor.attempt.attempt_id, ExecutionState.FAILED)
        self._on_state(self.state)

    def report(self) -> ExecutionReport:
        return ExecutionReport(self.state, 0, JobVertexID.of("job", "script"), AllocationID.random())


class FakeJobMaster:
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def update_task_execution_state(self, state: TaskExecutionState) -> Awaitable[None]:
        self.told.append(state.state)
        return asyncio.sleep(0)

    def disconnect_task_manager(self, resource_id: ResourceID, cause: ErrorInfo) -> None:
        self.told.append((resource_id, cause))


class FakeEndpoint:
    name = "taskmanager-0"
    log = logging.getLogger(__name__)

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)


@pytest.fixture
def job_master(monkeypatch: pytest.MonkeyPatch) -> FakeJobMaster:
    monkeypatch.setattr(FakeTask, "lost", asyncio.Event())
    monkeypatch.setattr(task_table, "Task", FakeTask)
    return FakeJobMaster()


def script() -> TaskDeploymentDescriptor:
    made = TaskDeploymentDescriptor.internal("script", JobKind.SCRIPT)
    return replace(made, job=replace(made.job, job_id=JOB))


def table_with_a_task(job_master: FakeJobMaster) -> TaskTable:
    connection = SimpleNamespace(gateway=job_master, token=FencingToken(EPOCH, "s"))
    connections = SimpleNamespace(jobs=lambda: [JOB], find=lambda job_id: connection)
    table = TaskTable(cast(Any, FakeEndpoint()), cast(Any, connections))
    table.start(script(), cast(Any, None), cast(Any, None), cast(Any, None))
    return table


async def test_lines_of_an_attempt_have_the_ids_of_its_span(
    job_master: FakeJobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTask, "log_fields", [])
    table = table_with_a_task(job_master)
    traced = script()
    traced = replace(traced, attempt=replace(traced.attempt, traceparent=TEXT))
    table.start(traced, cast(Any, None), cast(Any, None), cast(Any, None))
    FakeTask.lost.set()
    await table.job_ended(JOB)
    without, fields = FakeTask.log_fields
    assert (fields["trace_id"], fields["span_id"], fields["job"]) == (TRACE, SPAN, JOB)
    assert not {"trace_id", "span_id"} & without.keys()


async def test_an_end_is_told_at_once(job_master: FakeJobMaster) -> None:
    table = table_with_a_task(job_master)
    FakeTask.lost.set()
    await table.job_ended(JOB)
    await asyncio.sleep(0)
    assert job_master.told == [ExecutionState.FAILED]


async def test_an_end_is_told_until_the_job_master_knows_it(
    job_master: FakeJobMaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reason why it does not know is logged once: a JobMaster that is gone is tried for minutes."""
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    answers = [*[RecipientUnreachable("it is being replaced")] * 3, RecipientUnreachable("it still is"), None]

    async def update(state: TaskExecutionState) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(job_master, "update_task_execution_state", update)
    table = table_with_a_task(job_master)
    FakeTask.lost.set()
    with caplog.at_level(logging.INFO):
        await table.job_ended(JOB)
        while table._reports:
            await asyncio.wait(table._reports.values())
    assert answers == []
    failures = [line.rpartition(": ")[2] for line in caplog.messages if "telling the JobMaster" in line]
    assert failures == ["it is being replaced", "it still is"]


async def test_the_ends_that_a_task_executor_takes_along_are_told_with_its_own(job_master: FakeJobMaster) -> None:
    """A JobMaster that knew of the failed attempt alone would restart it at the TaskExecutor that goes."""
    table = table_with_a_task(job_master)
    table.hold_ends_back()
    FakeTask.lost.set()
    await table.job_ended(JOB)
    await asyncio.sleep(0)
    assert job_master.told == []
    await table.last_words(GONE, 1.0)
    assert job_master.told == [ExecutionState.FAILED, (ResourceID("taskmanager-0"), GONE)]


async def test_a_task_that_does_not_end_keeps_no_task_executor_from_going(job_master: FakeJobMaster) -> None:
    table = table_with_a_task(job_master)
    table.hold_ends_back()
    await table.last_words(GONE, 0.01)
    assert job_master.told == [(ResourceID("taskmanager-0"), GONE)]
    FakeTask.lost.set()
    await table.job_ended(JOB)


async def test_an_attempt_that_has_ended_is_not_started_again(job_master: FakeJobMaster) -> None:
    """A deployment that was sent again, because its connection broke, may arrive after the JobMaster knows the end."""
    table = table_with_a_task(job_master)
    (attempt,) = table.executions(JOB)
    FakeTask.lost.set()
    await table.job_ended(JOB)
    while table._reports:
        await asyncio.wait(table._reports.values())
    assert table.executions(JOB) == ()
    assert attempt.state.attempt_id in table


async def test_only_the_last_ended_attempts_are_remembered(
    job_master: FakeJobMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "ENDED", 2)
    table = table_with_a_task(job_master)
    FakeTask.lost.set()
    for _ in range(4):
        table.start(script(), cast(Any, None), cast(Any, None), cast(Any, None))
    await table.job_ended(JOB)
    assert len(table._ended) == 2


class Going:
    """As much of a TaskExecutor that is about to end as its gateway looks at before it refuses."""

    name = "taskmanager-0"
    goes = "its zygote (process 7) has ended"
    fences = SimpleNamespace(check_again=lambda: None)
    refuse_if_it_goes = TaskExecutor.refuse_if_it_goes

    def _require_services(self) -> Any:
        return SimpleNamespace(blobs=None)

    async def _read(self, deployment: Any, blobs: Any) -> Any:
        return script()


async def test_who_is_about_to_end_takes_no_task_and_no_slot_request() -> None:
    """The JobMaster takes the error for the loss of the TaskExecutor, and tries its slots no more."""
    going = cast(Any, Going())
    with pytest.raises(RecipientTerminated, match=r"taskmanager-0 ends: its zygote \(process 7\) has ended"):
        await TaskExecutor.submit_task(going, cast(Any, None))
    with pytest.raises(RecipientTerminated):
        await TaskExecutor.request_slot(going, *cast(Any, (None,) * 4))
