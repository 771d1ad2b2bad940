"""A cluster that is made up, so that a page can be shown every state at will; what asks it is the real REST API."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from actors.process.diagnostics import ActorInfo, LogLevelError, ProcessActors
from runtime.checkpoint.errors import CheckpointError
from runtime.client import JobFile
from runtime.ids import AllocationID, ExecutionAttemptID, InstanceID, JobID, JobVertexID, ResourceID, SlotID, TriggerID
from runtime.job_logs import LogChunk
from runtime.jobgraph.job_graph import JobGraph, JobKind, VertexRole
from runtime.jobmaster.query_history import QueryHistories
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import (
    ArchivedExecutionGraph,
    AttemptInfo,
    JobDetails,
    TaskInfo,
    VertexInfo,
)
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
)
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus, SnapshotType
from runtime.protocol.descriptor import SparkWork, StageProgress, VertexProgress
from runtime.protocol.diagnostics import LogInfo, TaskManagerMetrics, ThreadDump, ThreadInfo
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotFoundError,
    NoSuchLogError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus
from runtime.protocol.leader import DISPATCHER, LeaderInformation
from runtime.protocol.messages import (
    ClusterOverview,
    ClusterStatus,
    ProcessView,
    TaskExecutorRegistration,
    TaskManagerInfo,
    TaskManagerView,
)
from runtime.protocol.processes import LogLevelChange
from runtime.protocol.queues import LimitedUse, QueuesOverview, QueueStatus, UserInQueue, WaitingRequest
from runtime.protocol.rescales import Advice, Rescale, RescaleCause
from runtime.protocol.slots import SlotCounts, SlotStatus
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryHistory,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from runtime.stack_samples import FoldedStack, StackProfile
from tests.unit.metric_values import JVM

HOSTILE = "<img src=x onerror=document.title='hacked'>\"'&lt;script&gt;"
LONG = "a-name-without-any-space-in-it-" * 5
TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/nightly.py", line 41, in <module>
    main()
  File "/home/ada/nightly.py", line 33, in main
    raise ValueError(f"carrier {code!r} has no name")
ValueError: carrier 'ZZ' has no name
"""
RUNNING, STREAMING, WAITING, FAILED, FINISHED, CANCELED = (JobID(f"{n}" * 32) for n in range(1, 7))
_SLOTS = 4
_STAGES = (
    StageProgress(7, f"count at {HOSTILE}", 40, 40, 0, "COMPLETE"),
    StageProgress(8, "collect at nightly.py:33", 200, 50, 2, "ACTIVE", (7,)),
)
_DONE = {ExecutionState.RUNNING: 13, ExecutionState.FINISHED: 40}
_SYSTEM = "akka.tcp://understudy@127.0.0.1:6123"
_S = ExecutionState


def _now() -> int:
    return time.time_ns() // 1_000_000


def _checkpoints() -> CheckpointStatsSnapshot:
    """One of each kind and state."""
    status, kind, began = CheckpointStatsStatus, SnapshotType, _now() - 60_000
    done = CheckpointStats(
        7, status.COMPLETED, kind.CHECKPOINT, began, began + 40, 1, 1, 9 << 20, 1 << 18, 45, f"/c/{LONG}"
    )
    kept = replace(done, id=8, type=kind.SAVEPOINT, external_path="/savepoints/savepoint-222222-aa")
    lost = replace(done, id=9, status=status.FAILED, external_path="", failure_message=f"no room {HOSTILE}")
    running = replace(done, id=10, status=status.IN_PROGRESS, external_path="", num_acknowledged_tasks=0)
    return CheckpointStatsSnapshot(
        counts=CheckpointStatsCounts(1, 10, 1, 8, 1),
        latest_completed=done,
        latest_savepoint=kept,
        latest_failed=lost,
        latest_restored=RestoredCheckpointStats(6, began, False, ""),
        history=(running, lost, kept, done, replace(done, id=6, discarded=True)),
    )


def vertex_id(name: str) -> JobVertexID:
    return JobVertexID.from_name("made up", name)


def streaming_query(batch: int, level: BackPressureLevel = BackPressureLevel.HIGH) -> StreamingQuery:
    """A query whose figures follow from the number of its last batch."""
    source = SourceProgress(f"KafkaV2[{HOSTILE}]", 100 * batch, 12.5 * batch, 9.0 * batch, 1000 + batch)
    progress = QueryProgress(
        batch, "2026-11-21T18:46:01Z", 10 * batch, 100 * batch, 12.5 * batch, 9.0 * batch, batch, batch << 20, (source,)
    )
    return StreamingQuery("0f1e2d", "3c4b5a", HOSTILE, batch, 1000, progress, BackPressure(level, 1.25))


def _task(name: str, state: ExecutionState, began: int, *, restarted: bool = False) -> TaskInfo:
    attempts = []
    for number in range(2 if restarted else 1):
        is_last = number == int(restarted)
        at = began + 3000 * number
        here = state if is_last else _S.FAILED
        times = {"CREATED": at, "SCHEDULED": at + 50}
        if here is not _S.SCHEDULED:
            times |= {"DEPLOYING": at + 400, "RUNNING": at + 900}
        if here.is_terminal:
            times[here.value] = at + 2900
        error = (
            None
            if is_last
            else ErrorInfo(FailureKind.TASK_PROCESS_LOST, "ProcessDied", "killed by SIGKILL", "", name, at + 2900)
        )
        executor = "" if here is _S.SCHEDULED else "tm-1"
        identity = ExecutionAttemptID.from_name("made up", name, str(number))
        queries = (streaming_query(41),) if name == "main" and here is _S.RUNNING else ()
        ran = name != "count" and "RUNNING" in times
        spark = SparkWork(f"local-{3 + number}", f"understudy-{identity}") if ran else None
        attempts.append(AttemptInfo(identity, number, here, executor, times, error, None, queries=queries, spark=spark))
    waits = "the results of join" if state is _S.SCHEDULED else ""
    return TaskInfo(vertex_id(name), name, (vertex_id(name),), tuple(attempts), waits)


def _rescales(began: int) -> tuple[Rescale, ...]:
    return (
        Rescale(
            TriggerID("a" * 32),
            6,
            {"counts": 4},
            cause=RescaleCause.AUTOSCALER,
            reason=f"90% busy {HOSTILE}",
            rescale_job="9" * 32,
            number=1,
            started_ms=began,
            ended_ms=began + 3000,
            state=OperationState.COMPLETED,
            savepoint="/savepoints/s-6-partitions",
        ),
        Rescale(TriggerID("b" * 32), None, is_undo=True, number=2, started_ms=began + 9000),
    )


def _job(
    job_id: JobID, name: str, status: JobStatus, began: int, **tasks: tuple[ExecutionState, tuple[str, ...]]
) -> Any:
    times = {"INITIALIZING": began, "CREATED": began + 10, "RUNNING": began + 200}
    if status is not JobStatus.RUNNING:
        times[status.value] = began + 6000
    error = ErrorInfo(FailureKind.USER_CODE, "ValueError", "carrier 'ZZ' has no name", TRACEBACK, "join", began + 5900)
    names = {key: HOSTILE if key == "hostile" else key for key in tasks}
    return ArchivedExecutionGraph(
        job_id=job_id,
        name=name,
        kind=JobKind.PIPELINE,
        status=status,
        timestamps=times,
        tasks=tuple(_task(names[key], state, began, restarted=key == "join") for key, (state, _) in tasks.items()),
        vertices=tuple(
            VertexInfo(
                vertex_id(names[key]),
                names[key],
                VertexRole.OPERATOR if inputs else VertexRole.SOURCE,
                vertex_id(names[key]),
                state,
                tuple(vertex_id(names[source]) for source in inputs),
                VertexProgress(
                    vertex_id(names[key]), 2, 1, 40, _DONE.get(state, 0), 2, _STAGES if key == "main" else ()
                ),
            )
            for key, (state, inputs) in tasks.items()
        ),
        failure=error if status is JobStatus.FAILED else None,
        failure_history=(error,) if status is JobStatus.FAILED else (),
        restarts=1,
        restart_strategy="exponential-delay",
    )


def _queues() -> QueuesOverview:
    """A queue with limits, one of a long name without users, and the default one; three waiting requests."""

    def request(number: int, job_id: JobID, name: str, user: str, place: int, why: str) -> WaitingRequest:
        return WaitingRequest(job_id, name, "main", AllocationID(f"{number:032x}"), user, "etl", place, why)

    users = (
        UserInQueue("", 0, 25.0, 1),
        UserInQueue("ada", 2, 75.4, 0, 4096, 1.5),
        UserInQueue(HOSTILE, 1, 0.0, 2, 2048, 1.5),
    )
    return QueuesOverview(
        (
            QueueStatus("etl", 2.5, 0, 3, 4, 2, 8, 3, 125.6, users, 6144, 8192, 3.0, blob_mb=2, blob_mb_limit=5),
            QueueStatus(LONG, 1.0, 10, 0, 2, 0, None, 0, 0.0),
            QueueStatus("default", 1.0, 0, 0, None, 0, None, 0, 0.0),
        ),
        (
            request(1, WAITING, LONG, HOSTILE, 1, f"1 slot for task 'main', 1st in queue etl; {HOSTILE} uses 1 of 1"),
            request(2, RUNNING, "count-flights", "", 2, "1 slot for task 'main', 2nd in queue etl"),
            request(3, STREAMING, HOSTILE, HOSTILE, 3, "1 slot for task 'main', 3rd in queue etl"),
        ),
        (RUNNING, STREAMING),
        limits=(LimitedUse("user", HOSTILE, 1, 1, 1, None, 2048, 4096, 1.5, 2.5), LimitedUse("group", "g", 0, 9, 0, 1)),
    )


class MadeUpCluster:
    """Jobs in every state and two TaskExecutors; tests change it while pages look on, and see what was asked of it."""

    def __init__(self) -> None:
        began = _now() - 60_000
        made = [
            _job(
                RUNNING,
                "count-flights",
                JobStatus.RUNNING,
                began,
                read=(_S.FINISHED, ()),
                hostile=(_S.FINISHED, ()),
                join=(_S.RUNNING, ("read", "hostile")),
                count=(_S.RUNNING, ("read",)),
                write=(_S.SCHEDULED, ("join", "count")),
            ),
            _job(STREAMING, HOSTILE, JobStatus.RUNNING, began - 8_000_000, main=(_S.RUNNING, ())),
            _job(WAITING, LONG, JobStatus.RESTARTING, began, main=(_S.SCHEDULED, ())),
            _job(
                FAILED, "nightly-report", JobStatus.FAILED, began, read=(_S.FINISHED, ()), join=(_S.FAILED, ("read",))
            ),
            _job(FINISHED, "pi", JobStatus.FINISHED, began, main=(_S.FINISHED, ())),
            _job(CANCELED, "abandoned", JobStatus.CANCELED, began, main=(_S.CANCELED, ())),
        ]
        self.graphs: dict[JobID, ArchivedExecutionGraph] = {graph.job_id: graph for graph in made}
        advice = Advice(
            "counts", 6, 6, f"95% busy {HOSTILE}", lacks_cores=True, cores=6, task_executor="tm-1", at_ms=began
        )
        self.graphs[RUNNING] = replace(self.graphs[RUNNING], rescales=_rescales(began), advice=(advice,))
        self.histories = QueryHistories()
        for batch in range(2, 42):  # one each second, the last is that of the graph
            self.histories.add(vertex_id("main"), (streaming_query(batch),), began + 1000 * batch)
        self.log = "counted 1 flight\n"
        self.longest_answer = 1 << 20
        self.cancelled: list[JobID] = []
        self.failure: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.cancel_failure: Exception | None = None
        self.submitted: list[tuple[JobGraph, list[tuple[str, bytes]]]] = []
        self.messages = 0
        self.triggered: list[tuple[JobID, CheckpointTrigger]] = []
        self.operation_state = OperationState.IN_PROGRESS
        self.rolled_back: list[tuple[JobID, str, bool]] = []
        self.rescaled: list[tuple[JobID, TriggerID, int | None]] = []
        self.profiled: list[tuple[ResourceID, ExecutionAttemptID | None]] = []
        self.component_log = f"2026-11-21 18:46:01,123+0000 INFO  a slot was given to job {RUNNING} {HOSTILE}\n" * 200
        self.levels = {"root": "INFO", "runtime.checkpoint": "DEBUG"}
        self.queues_overview = _queues()
        self.waiting_for: dict[JobID, str] = {}

    def add_finished(self, count: int) -> None:
        """So many jobs more, which are over."""
        for number in range(count):
            job_id = JobID.from_name("batch", str(number))
            name = f"batch-{number} of {count}"
            self.graphs[job_id] = _job(job_id, name, JobStatus.FINISHED, _now() - 10_000, main=(_S.FINISHED, ()))

    def add_ended(
        self, job_id: JobID, name: str, hours_ago: float, kind: JobKind = JobKind.SCRIPT, owner: str = ""
    ) -> None:
        """One more job, which ended so long ago."""
        began = _now() - round(hours_ago * 3_600_000)
        graph = _job(job_id, name, JobStatus.FINISHED, began, main=(_S.FINISHED, ()))
        self.graphs[job_id] = replace(graph, kind=kind, owner=owner)

    def add_namesake(self, job_id: JobID) -> None:
        """One more running job called as others are."""
        self.graphs[job_id] = _job(job_id, "namesake", JobStatus.RUNNING, _now(), main=(_S.RUNNING, ()))

    def set_status(self, job_id: JobID, status: JobStatus) -> None:
        """The job has another state from now on."""
        graph = self.graphs[job_id]
        self.graphs[job_id] = replace(graph, status=status, timestamps={**graph.timestamps, status.value: _now()})

    def end_batch(self, batch: int, level: BackPressureLevel) -> None:
        """The streaming job's query has ended one more batch."""
        graph = self.graphs[STREAMING]
        (task,) = graph.tasks
        query = streaming_query(batch, level)
        self.histories.add(task.key, (query,), _now())
        attempt = replace(task.attempts[-1], queries=(query,))
        self.graphs[STREAMING] = replace(graph, tasks=(replace(task, attempts=(*task.attempts[:-1], attempt)),))

    async def jobs(self) -> tuple[JobDetails, ...]:
        await asyncio.to_thread(self.answers.wait)
        if self.failure is not None:
            raise self.failure
        found = (graph.details() for graph in self.graphs.values())
        return tuple(replace(job, waiting_for=self.waiting_for.get(job.job_id, "")) for job in found)

    async def queues(self) -> QueuesOverview:
        return self.queues_overview

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        if job_id not in self.graphs:
            raise JobNotFoundError(f"no job {job_id} is known")
        return self.graphs[job_id]

    async def query_histories(self, job_id: JobID) -> list[QueryHistory]:
        await self.job(job_id)
        return self.histories.all() if job_id == STREAMING else []

    async def cancel(self, job_id: JobID) -> None:
        if self.cancel_failure is not None:
            raise self.cancel_failure
        if (await self.job(job_id)).status.is_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")
        self.cancelled.append(job_id)
        self.set_status(job_id, JobStatus.CANCELLING)

    async def submit(self, graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        self.submitted.append((graph, [(file.name, file.path.read_bytes()) for file in files]))
        self.graphs[graph.job_id] = _job(graph.job_id, graph.name, JobStatus.RUNNING, _now(), main=(_S.RUNNING, ()))
        return graph.job_id

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        await self.job(job_id)
        return _checkpoints() if job_id == STREAMING else CheckpointStatsSnapshot()

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        self.triggered.append((job_id, trigger))
        return OperationStatus(trigger.trigger_id, self.operation_state)

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        self.rolled_back.append((job_id, target, new_query_id))
        if len(self.rolled_back) == 1:
            raise CheckpointError(f"it counts on files that the sink has lost {HOSTILE}")
        return OperationStatus(trigger_id, OperationState.COMPLETED, 10, target)

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        failed = self.operation_state is OperationState.FAILED
        words = f"no room {HOSTILE}" if failed else ""
        return OperationStatus(trigger_id, self.operation_state, 11, "" if failed else "/savepoints/new", words)

    async def trigger_rescale(
        self, job_id: JobID, trigger_id: TriggerID, partitions: int | None, query: str, directory: str
    ) -> JobID:
        if partitions == 2:
            raise CheckpointError(f"its state has 2 partitions already {HOSTILE}")
        self.rescaled.append((job_id, trigger_id, partitions))
        return FINISHED

    async def rescale_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self.operation(job_id, trigger_id)

    async def dispose_savepoint(self, path: str) -> bool:
        raise AssertionError("no page may ask for that")

    async def overview(self) -> ClusterOverview:
        states = [graph.status for graph in self.graphs.values()]
        ended = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)
        running = sum(state not in ended for state in states)
        return ClusterOverview(2, 2 * _SLOTS, 5, 1, running, *(states.count(state) for state in ended))

    def _registration(self, name: str) -> TaskExecutorRegistration:
        address = f"akka.tcp://understudy@127.0.0.1:41223/user/{name}"
        return TaskExecutorRegistration(
            ResourceID(name), address, 4121, _SLOTS, "4.1.0", "21.0.8", "local[2]", 4133, 1 << 31
        )

    async def task_managers(self) -> list[TaskManagerView]:
        heard = _now() - 900
        return [
            TaskManagerView(self._registration(name), InstanceID("1" * 32), free, heard - 60_000, heard, user)
            for name, free, user in (("tm-1", 1, "ada"), ("tm-2", 4, ""))
        ]

    async def task_manager(self, resource_id: ResourceID) -> TaskManagerInfo:
        if resource_id not in ("tm-1", "tm-2"):
            raise UnknownTaskExecutorError(f"no TaskExecutor {resource_id} is registered")
        metrics = TaskManagerMetrics(
            60 << 20,
            12.5,
            9,
            40,
            900 << 20,
            80.0,
            3,
            {**JVM, "Memory.Heap.Used": 300 << 20, "Memory.Heap.Max": 1 << 30},
        )
        heard = _now() - 900
        return TaskManagerInfo(
            self._registration(resource_id),
            InstanceID("1" * 32),
            SlotCounts(_SLOTS, 1),
            (SlotStatus(SlotID(resource_id, 0), RUNNING),),
            heard - 60_000,
            heard,
            metrics,
            "ada" if resource_id == "tm-1" else "",
        )

    async def task_manager_logs(self, resource_id: ResourceID) -> list[LogInfo]:
        return [LogInfo("taskexecutor", 9_000, _now()), LogInfo("spark", 120_000, _now())]

    async def task_manager_log(self, resource_id: ResourceID, name: str) -> bytes:
        if name not in ("taskexecutor", "spark"):
            raise NoSuchLogError(f"there is no log {name!r}")
        return self.component_log.encode()

    async def task_manager_profile(
        self, resource_id: ResourceID, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None
    ) -> StackProfile:
        self.profiled.append((resource_id, attempt_id))
        deep = tuple(f"step_{number} (spark/task.py)" for number in range(6))
        stacks = (
            FoldedStack(("MainThread", "run (spark/task.py)", *deep), 60),
            FoldedStack(("MainThread", "run (spark/task.py)", HOSTILE), 30),
            FoldedStack(("beats", "wait (lib/threading.py)"), 100),
        )
        return StackProfile(4121, samples, interval_ms, stacks)

    async def task_manager_log_from(self, resource_id: ResourceID, name: str, offset: int) -> LogChunk:
        whole = await self.task_manager_log(resource_id, name)
        return LogChunk(whole[offset : offset + self.longest_answer], len(whole))

    async def task_manager_threads(self, resource_id: ResourceID) -> ThreadDump:
        return ThreadDump(
            4121, (ThreadInfo("MainThread", '  File "a.py", line 3, in wait', "WAITING"), ThreadInfo("beats", "  …"))
        )

    async def task_log(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        data = self.log.encode()
        return data[offset : offset + self.longest_answer], attempt.state.is_terminal and offset >= len(data)

    async def metrics(self) -> MetricStore:
        return MetricStore([])

    async def status(self) -> ClusterStatus:
        processes = (
            ProcessView("dispatcher", "dispatcher", 4101, f"{_SYSTEM}/user/dispatcher", 1, "leader"),
            ProcessView("resourcemanager", "resourcemanager", 4102, f"{_SYSTEM}/user/resourcemanager", 0, "standby"),
            ProcessView(f"jobmaster-{RUNNING}", "jobmaster", 4104, f"{_SYSTEM}/user/jobmaster-{RUNNING}", 0, "leader"),
            ProcessView("worker-2", "worker", 0, "", is_stopped=True),
        )
        return ClusterStatus("made-up", "0.1.0", _SYSTEM, _now() - 90_000, processes)

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        self.messages += 500
        leads = ActorInfo("/user/dispatcher", "Dispatcher", True, self.messages, 3, 2, 1795233261917, _now() - 90_000)
        own = ActorInfo("/system/diagnostics", "Diagnostics", True, 12, 0, 0)
        worker = ActorInfo("/user/tm-1", HOSTILE, True, 77, 0, 0)
        return {
            "dispatcher": ProcessActors(4101, 4, 5, (own, leads)),
            "resourcemanager": None,
            f"jobmaster-{RUNNING}": ProcessActors(
                4104, 2, 0, (ActorInfo("/user/jobmaster", "JobMaster", True, 3, 0, 0),)
            ),
            "tm-1": ProcessActors(4121, 2, 0, (own, worker)),
        }

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        return {"dispatcher": dict(self.levels), "resourcemanager": None}

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        if logger not in self.levels:
            raise LogLevelError(f"no logger {logger!r} is in process 4101; runtime.rest is")
        was, self.levels[logger] = self.levels[logger], level
        return [LogLevelChange(process or "dispatcher", logger, level, was)]

    def leaders(self) -> list[LeaderInformation]:
        return [LeaderInformation(DISPATCHER, f"{_SYSTEM}/user/dispatcher", 1795233261917, "s")]

    async def shut_down(self) -> None:
        raise AssertionError("no page may ask for that")
