"""The components of the streaming workload: JobMasters, TaskExecutors, Spark drivers and task processes.

What is real:

- `JobCheckpoints` with coordinator, stores, counter, `SavepointWriter` and `TaskRestores`;
- the journal, the election and all stores of high availability, over a simulated Redis;
- `TaskCheckpoints` with `CheckpointResponder`, `LocationLeases` and `TaskRestore`;
- all functions that read and write files of checkpoints.

What is a model, which follows `JobMaster`, `TaskTable` and `Task` step by step: the execution graph (one task for each
job), deployment, heartbeats, calls between processes (`Calls`), the task process, and the driver with its
`StreamExecution`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from actors.errors import ActorError, AskTimeout, FencingError, RecipientUnreachable
from conf.configuration import Configuration
from conf.options import CheckpointingOptions
from runtime.checkpoint.coordinator import CheckpointTask, RunningTasks
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.lease import LeaseHolder, lease_file
from runtime.checkpoint.task_restore import TaskRestore
from runtime.ha.errors import HaError, JobAlreadyDoneError, LeadershipLostError
from runtime.ha.services import LatchedHaServices, RedisHaServices
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.checkpointing import JobCheckpoints
from runtime.jobmaster.endpoint import current_instant
from runtime.jobmaster.journal import ExecutionJournal
from runtime.jobmaster.savepoints import Rollback
from runtime.protocol.checkpoints import (
    NO_TOTALS,
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTotals,
    CheckpointTrigger,
    DeclineCheckpoint,
    OperationState,
    OperationStatus,
    TriggerCheckpoint,
)
from runtime.protocol.descriptor import AttemptInformation
from runtime.protocol.errors import GatewayError, JobNotReachableError, NoSuchTaskError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import LeaderTerm, job_master
from runtime.protocol.query_snapshot import QueryLocation
from runtime.retry import retry
from runtime.spark.errors import DriverLostError, SparkError
from runtime.taskexecutor.location_leases import LocationLeases
from runtime.taskexecutor.task_checkpoints import (
    CheckpointResponder,
    NotStoppedError,
    StopOutcome,
    StopReport,
    TaskCheckpoints,
)
from tests.simulation.disk import ROOT, Caller
from tests.simulation.kernel import ProcessKilled, SimHost, SimProcess, SimThread
from tests.simulation.spark import QueryFailed, QueryPlan, RowSource, StreamExecution
from tests.simulation.world import World

CLUSTER = "sim"
LEASE_S = 3.0
RUN = f"{ROOT}/shared/run"
STORAGE = Path(ROOT, "shared", "ha")
RETAINED = 2
SETTINGS = {
    "cluster.runtime-dir": RUN,
    "execution.checkpointing.interval": "3 s",
    "execution.checkpointing.timeout": "12 s",
    "execution.checkpointing.num-retained": str(RETAINED),
}
HEARTBEAT_S = 0.5
SILENCE_S = 5.0
"""Seconds without a heartbeat after which JobMaster and TaskExecutor give each other up."""
PATIENCE_S = 6.0
"""`task.cancellation.timeout`."""
ANSWER_S = 4.0
FENCE_CHECK_S = 0.5
FENCE_CHECKS = 8
"""How often a former attempt may be seen to keep a lease after its time to end."""
RESTART_S = 0.3
ORPHAN_S = 4.0
"""Longest time in seconds that a driver outlives its TaskExecutor."""

logger = logging.getLogger("streaming")


# --------------------------------------------------------------------------------- calls


class Calls:
    """Calls between simulated processes: late, lost when a link is blocked or a process ends, and never repeated.

    Args:
        world: the simulation.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.kernel.random("calls")

    def _delay(self) -> float:
        return 0.0002 + self._random.expovariate(1 / 0.002)

    def send(
        self, target: SimProcess, function: Callable[..., Any], args: tuple[Any, ...], reply: Callable[[Any], object]
    ) -> None:
        """Run a function on the loop of a process, and pass the result or the error to *reply*, in the kernel."""
        kernel = self._world.kernel
        caller = kernel.current
        assert caller is not None
        caller.effect()
        once = [reply]

        def answer(result: Any) -> None:
            if once:
                deliver = once.pop()
                if ended in target.on_end:
                    target.on_end.remove(ended)
                if not self._is_blocked(target, caller):
                    kernel.after(self._delay(), lambda: deliver(result) if caller.alive else None)

        async def run() -> None:
            try:
                result = function(*args)
                if inspect.isawaitable(result):
                    result = await result
            except ProcessKilled:
                raise
            except Exception as error:
                result = error
            answer(result)

        def ended(silent: bool) -> None:
            if not silent and caller.host is target.host:
                answer(RecipientUnreachable(f"{target.name} has ended"))

        def arrive() -> None:
            if not target.alive:
                if caller.host is target.host or target.host.up:
                    answer(RecipientUnreachable(f"nothing listens at {target.name}"))
                return
            if self._is_blocked(caller, target):
                return
            if target.loop is None:  # it has not begun to run
                kernel.after(self._delay(), arrive)
                return
            target.on_end.append(ended)
            target.loop.call_soon_threadsafe(lambda: _started(run()))

        kernel.after(self._delay(), arrive)

    def _is_blocked(self, one: SimProcess, other: SimProcess) -> bool:
        return one.host is not other.host and self._world.network.link(one.host, other.host).blocked

    async def ask(
        self, target: SimProcess | None, function: Callable[..., Any], *args: Any, timeout_s: float | None = ANSWER_S
    ) -> Any:
        """Call a function in another process, and return its result.

        Raises:
            AskTimeout, RecipientUnreachable: there is no answer; the effect is unknown.
        """
        if target is None:
            raise RecipientUnreachable("nobody is there")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def reply(result: Any) -> None:
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(result))

        self.send(target, function, args, reply)
        try:
            async with asyncio.timeout(timeout_s):
                result = await future
        except TimeoutError:
            raise AskTimeout(f"no reply of {target.name} within {timeout_s} s") from None
        if isinstance(result, Exception):
            raise result
        return result

    def ask_blocking(self, target: SimProcess, function: Callable[..., Any], *args: Any) -> Any:
        """As `ask`, in a simulated thread; without a limit of time."""
        thread = self._world.kernel.thread
        assert thread is not None
        answers: list[Any] = []

        def reply(result: Any) -> None:
            answers.append(result)
            thread.unpark()

        self.send(target, function, args, reply)
        while not answers:
            thread.park(f"an answer of {target.name}")
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]


_running: set[asyncio.Task[None]] = set()


def _started(work: Any) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


# ---------------------------------------------------------------------------------- jobs


@dataclass
class Job:
    """A job as its client has submitted it, and what became of it.

    Args:
        graph: with the savepoint that it starts from.
        plans: its queries; sources have the names of the queries.
    """

    graph: JobGraph
    plans: tuple[QueryPlan, ...]
    status: JobStatus | None = None
    failure: str = ""
    archived: dict[str, OperationStatus] = field(default_factory=dict)
    is_ending: bool = False
    """Whether its end is written: from then on its files are removed before their handles."""
    leader: SimProcess | None = None
    master: JobMasterModel | None = None

    @property
    def id(self) -> JobID:
        """Its id."""
        return self.graph.job_id

    @property
    def task_key(self) -> JobVertexID:
        """Key of its one task."""
        return JobVertexID.from_name(self.graph.name, "task")


@dataclass(frozen=True, slots=True)
class Execution:
    """State of a job's task that its next JobMaster needs."""

    number: int = 0
    attempt_id: str = ""
    resource_id: str = ""
    status: str = "RUNNING"
    failure: str = ""
    rollback: Rollback | None = None
    checkpoints: CheckpointTotals = NO_TOTALS


# ------------------------------------------------------------------------------- JobMaster


class JobMasterModel:
    """One contender for the leadership of a job; its `JobCheckpoints` is real.

    Args:
        cluster: the workload.
        job: the job.
        services: high availability.
    """

    log = logging.getLogger("jobmaster")

    def __init__(self, cluster: Any, job: Job, services: LatchedHaServices) -> None:
        self.cluster, self.job, self.services = cluster, job, services
        self.calls: Calls = cluster.calls
        self.process: SimProcess = cluster.world.kernel.current
        self.election = services.leader_election(job_master(job.id))
        self.service = SimpleNamespace(loop=asyncio.get_running_loop())
        self.path = f"jobmaster-{job.graph.name}"
        self.term: LeaderTerm | None = None
        self.execution = Execution()
        self.phase = "CREATED"
        self.checkpoints: JobCheckpoints | None = None
        self.journal: ExecutionJournal | None = None
        self._is_leading = False
        self._work: set[asyncio.Task[Any]] = set()
        self._leading: asyncio.Task[None] | None = None
        self._heard_s = 0.0
        self.ended = asyncio.Event()

    # --- what `JobCheckpoints` and the journal need of a `LeaderEndpoint`

    def act(self, term: LeaderTerm | None = None) -> LeaderTerm:
        """See `LeaderEndpoint.act`."""
        own = self.term
        if own is None or (term is not None and term != own):
            raise FencingError(f"{self.path} does not act: its leadership is over")
        if not self.election.has_leadership(own):
            self.election.step_down(own, "its lease was over when it was about to act")
            raise FencingError(f"{self.path} does not act: its lease may be over")
        return own

    def spawn(self, work: Any, what: str) -> asyncio.Task[Any]:
        """See `RpcEndpoint.spawn`."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._work.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ProcessKilled):
            self.log.error("%s failed: %r", task.get_name(), error, exc_info=error)

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `RpcEndpoint.run_blocking`."""
        return await asyncio.to_thread(function, *args)

    # --- leadership

    def grant_leadership(self, term: LeaderTerm) -> None:
        """Lead the job."""
        self.term = term
        self._leading = self.spawn(self._lead(term), "leading")

    def revoke_leadership(self) -> None:
        """Leave the job to the next leader."""
        self._is_leading = False
        self.term = None
        if self.journal is not None:
            self.journal.close()
        if self.checkpoints is not None:
            self.checkpoints.close()
            self.checkpoints = None
        if self._leading is not None:
            self._leading.cancel()
            self._leading = None

    def handle_error(self, error: Exception) -> None:
        """Report a defect."""
        self.cluster.world.fail("an election does not end by a defect", repr(error))

    async def _lead(self, term: LeaderTerm) -> None:
        try:
            await self._lead_until_over(term)
        except (LeadershipLostError, JobNotReachableError, FencingError) as error:
            self.log.info("%s does not lead any more: %s", self.path, error)
            if self.term == term:
                self.election.step_down(term, str(error))

    async def _lead_until_over(self, term: LeaderTerm) -> None:
        job, store = self.job, self.services.execution_store()

        async def begin() -> tuple[bool, Execution | None]:
            is_new = await self.services.running_jobs_registry().set_running(job.id, term)
            await store.sweep(term)
            data = await store.find(job.id)
            return is_new, None if data is None else decode(data, Execution)

        try:
            is_new, saved = await retry(
                begin, (HaError, OSError), unless=(LeadershipLostError, JobAlreadyDoneError), what="", log=self.log
            )
        except JobAlreadyDoneError:
            # Its end is recorded, and the leader was lost before the rest: the Dispatcher cleans up what is left.
            await self._clean_up(term, None)
            return
        self.execution, self.phase = saved or Execution(), "CREATED"
        self.journal = ExecutionJournal(cast(Any, self), store, job.id, term, self._encoded)
        gateways = SimpleNamespace(gateway=self._gateway)
        settings = Configuration.from_dict(SETTINGS)
        cannot_begin = ""
        while True:
            checkpoints = JobCheckpoints(
                cast(Any, self),
                job.graph,
                term,
                cast(Any, self.services),
                settings,
                cast(Any, gateways),
                current_instant,
                self._fail,
                lambda: self._end(JobStatus.CANCELED),
                self.written,
                self._advance,
            )
            try:
                rollback, totals = (None, NO_TOTALS) if saved is None else (saved.rollback, saved.checkpoints)
                cannot_begin = await checkpoints.recover(rollback, totals, is_new=is_new)
                break
            except LeadershipLostError:
                raise
            except (HaError, OSError) as error:
                self.log.info("%s recovers again: %s", self.path, error)
                await asyncio.sleep(0.3)
        self.checkpoints = checkpoints
        if not await self.election.confirm_leadership(term, self.process.name):
            raise JobNotReachableError("its term was over when it was ready")
        self._is_leading = True
        job.leader, job.master = self.process, self
        self.cluster.leads(job, self)
        if self.execution.status == "RUNNING":
            if cannot_begin:
                self._fail(cannot_begin)
            elif self.execution.attempt_id:
                self.phase, self._heard_s = "RECONCILING", time.monotonic()
        while self.execution.status == "RUNNING":
            await self._step()
            await asyncio.sleep(HEARTBEAT_S)
        await self._finish(term)

    def _encoded(self) -> bytes:
        checkpoints = self.checkpoints
        if checkpoints is not None:
            self.execution = replace(self.execution, rollback=checkpoints.rollback, checkpoints=checkpoints.totals)
        return encode(self.execution)

    async def written(self) -> None:
        """See `JobMaster._written`."""
        if self.journal is None:
            raise JobNotReachableError("it has no journal")
        await self.journal.written()

    # --- the one task

    async def _step(self) -> None:
        """Do what is due: deploy the task, or look after it."""
        if self.phase == "CREATED":
            await self._deploy()
        else:
            await self._heartbeat()
        self._advance()

    async def _deploy(self) -> None:
        checkpoints, journal = self.checkpoints, self.journal
        if checkpoints is None or journal is None:
            return
        worker = self.cluster.choose_worker(self.execution.number)
        if worker is None:
            return
        number = self.execution.number + 1 if self.execution.attempt_id else 0
        attempt_id = ExecutionAttemptID.random()
        restore = await checkpoints.restore(self.job.task_key)
        attempt = AttemptInformation(
            attempt_id, number, AllocationID.random(), self.job.task_key, self.job.graph.name, (), restore=restore
        )
        self.execution = replace(self.execution, number=number, attempt_id=attempt_id, resource_id=worker.name)
        self.phase, self._heard_s = "DEPLOYING", time.monotonic()
        await journal.written()
        self.act()
        try:
            await self.calls.ask(worker.process, worker.deploy, self.job, attempt, self.act())
        except ActorError as error:
            self.log.info("%s attempt %d may not be deployed: %s", self.path, number, error)

    async def _heartbeat(self) -> None:
        attempt_id, worker = self.execution.attempt_id, self.cluster.worker(self.execution.resource_id)
        try:
            if worker is None:
                raise RecipientUnreachable("it is gone")
            found = await self.calls.ask(
                worker.process, worker.heartbeat, self.job.id, attempt_id, self.act(), timeout_s=HEARTBEAT_S * 2
            )
        except (ActorError, GatewayError) as error:
            if time.monotonic() - self._heard_s > SILENCE_S and attempt_id == self.execution.attempt_id:
                self.log.info("%s attempt %d is lost: %s", self.path, self.execution.number, error)
                self.phase = "CREATED"
            return
        if attempt_id != self.execution.attempt_id or self.phase == "CREATED":
            return
        self._heard_s = time.monotonic()
        if found == "UNKNOWN":
            self.phase = "CREATED"
        elif found in ("RUNNING", "DEPLOYING"):
            self.phase = found
        elif self.phase == "RECONCILING":
            self.phase = "ENDED"  # its report comes

    def state_reported(self, attempt_id: str, state: str, failure: str) -> Awaitable[None] | None:
        """See `JobMaster.update_task_execution_state`."""
        self._require()
        if attempt_id == self.execution.attempt_id:
            self.log.info("%s attempt %d is %s: %s", self.path, self.execution.number, state, failure)
            if state == "FINISHED":
                self._end(JobStatus.FINISHED)
            elif state in ("FAILED", "CANCELED") and self.execution.status == "RUNNING":
                self.phase = "CREATED"
            elif state == "RUNNING":
                self.phase = "RUNNING"
            self._advance()
            if state != "RUNNING":
                return self.written()
        return None

    def _end(self, status: JobStatus, failure: str = "") -> None:
        if self.execution.status == "RUNNING":
            self.execution = replace(self.execution, status=status.value, failure=failure)

    def _fail(self, reason: str) -> None:
        self._end(JobStatus.FAILED, reason)

    async def _finish(self, term: LeaderTerm) -> None:
        """End the job: cancel its task, remove what it has, and report the end."""
        status = JobStatus(self.execution.status)
        await self.written()
        self.job.is_ending = True
        worker = self.cluster.worker(self.execution.resource_id)
        while worker is not None and status is not JobStatus.FINISHED and self.execution.attempt_id:
            try:
                if await self.calls.ask(worker.process, worker.cancel_job, self.job.id) == "GONE":
                    break
            except ActorError:
                if worker is not self.cluster.worker(self.execution.resource_id):
                    break
            await asyncio.sleep(HEARTBEAT_S)
        checkpoints = self.checkpoints
        if checkpoints is None:
            return
        await checkpoints.finish(status, self.execution.failure)
        if self.term != term:
            return
        assert self.journal is not None
        self.journal.complete()
        self.job.archived = {str(one.trigger_id): one for one in checkpoints.statistics().operations}
        await self._clean_up(term, {"status": status.value, "failure": self.execution.failure})

    async def _clean_up(self, term: LeaderTerm, result: dict[str, str] | None) -> None:
        """Record the result of the job, unless that was done, remove what it has in the stores, and report its end."""

        async def clean() -> dict[str, Any]:
            registry = self.services.running_jobs_registry()
            if result is not None:
                await registry.set_done(self.job.id, result, term)
            await self.services.checkpoint_recovery_factory().clean_up(self.job.id, term)
            await self.services.execution_store().remove(self.job.id, term)
            entry = await registry.entry(self.job.id)
            assert entry is not None
            assert entry.result is not None
            return dict(entry.result)

        ended = await retry(clean, (HaError, OSError), unless=LeadershipLostError, what="", log=self.log)
        if self.job.status is None:
            self.cluster.ended(self.job, JobStatus(ended["status"]), ended["failure"])
        self.ended.set()

    # --- checkpoints

    def _running(self) -> RunningTasks:
        execution = self.execution
        if execution.status != "RUNNING" or self.phase != "RUNNING":
            return RunningTasks()
        task = CheckpointTask(
            ExecutionAttemptID(execution.attempt_id),
            self.job.task_key,
            self.job.graph.name,
            ResourceID(execution.resource_id),
        )
        return RunningTasks((task,), are_ready=True, are_stateful=True)

    def _advance(self) -> None:
        if self.checkpoints is not None and self._is_leading:
            self.checkpoints.advance(self._running())

    def _gateway(self, resource_id: str) -> Any:
        worker = self.cluster.worker(resource_id)
        return None if worker is None else _WorkerGateway(self, worker)

    def _require(self) -> JobCheckpoints:
        if self.checkpoints is None or not self._is_leading or self.phase == "RECONCILING":
            raise JobNotReachableError(f"{self.path} is being recovered; retry in a moment")
        self.act()
        return self.checkpoints

    async def acknowledge(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        """See `JobMaster.acknowledge_checkpoint`."""
        outcome = await self._require().acknowledge(ack)
        self._advance()
        return outcome

    def decline(self, decline: DeclineCheckpoint) -> None:
        """See `JobMaster.decline_checkpoint`."""
        self.cluster.declined(self.job, decline.reason)
        self._require().decline(decline)
        self._advance()

    async def trigger(self, trigger: CheckpointTrigger) -> OperationStatus:
        """See `JobMaster.trigger_savepoint`."""
        status = await self._require().trigger(trigger)
        self._advance()
        return status

    async def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        """See `JobMaster.roll_back`."""
        checkpoints = self._require()
        if checkpoints.rollback is None or checkpoints.rollback.trigger_id != trigger_id:
            await checkpoints.roll_back(trigger_id, target, new_query_id, self._check_running)
            self.phase = "CREATED"  # the next heartbeat of its new attempt ends the former one
            self._advance()
            await self.written()
        await self.written()
        await checkpoints.rollback_written()
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=target)

    def _check_running(self) -> None:
        if self.execution.status != "RUNNING":
            raise CheckpointError("the job has ended, and cannot be rolled back")

    def cancel(self) -> Awaitable[None]:
        """See `JobMaster.cancel`."""
        self._require()
        self._end(JobStatus.CANCELED)
        return self.written()


class _WorkerGateway:
    """`TaskExecutorGateway`, as far as checkpoints need it."""

    def __init__(self, master: JobMasterModel, worker: Worker) -> None:
        self._master, self._worker = master, worker

    def trigger_checkpoint(self, job_id: JobID, trigger: TriggerCheckpoint) -> Awaitable[None]:
        term = self._master.act()
        return cast(
            Awaitable[None], self._master.calls.ask(self._worker.process, self._worker.trigger, job_id, trigger, term)
        )

    def notify_checkpoint_complete(self, attempt_id: str, checkpoint_id: int) -> None:
        self._master.calls.send(
            self._worker.process, self._worker.notify, (attempt_id, checkpoint_id, True), lambda result: None
        )

    def notify_checkpoint_aborted(self, attempt_id: str, checkpoint_id: int) -> None:
        self._master.calls.send(
            self._worker.process, self._worker.notify, (attempt_id, checkpoint_id, False), lambda result: None
        )


# ---------------------------------------------------------------------------- TaskExecutor


class Worker:
    """A TaskExecutor: its driver, and the attempts that run here.

    Args:
        cluster: the workload.
        name: its resource id.
    """

    def __init__(self, cluster: Any, name: str) -> None:
        self.cluster, self.name = cluster, name
        process = cluster.world.kernel.current
        assert process is not None
        self.process: SimProcess = process
        self.driver = Driver(cluster, self)
        self.tasks: dict[str, TaskModel] = {}
        self._epochs: dict[str, int] = {}

    def _check(self, job_id: str, term: LeaderTerm) -> None:
        """Refuse a leader of an older epoch than one that was seen."""
        seen = self._epochs.get(job_id, 0)
        if term.epoch < seen:
            raise FencingError(f"the JobMaster of {job_id} is not the leader", seen)
        self._epochs[job_id] = term.epoch

    def deploy(self, job: Job, attempt: AttemptInformation, term: LeaderTerm) -> None:
        """Run an attempt; again, nothing."""
        self._check(job.id, term)
        if attempt.attempt_id in self.tasks:
            return
        for task in self.tasks.values():
            if task.job.id == job.id:
                task.cancel()
        task = self.tasks[attempt.attempt_id] = TaskModel(self, job, attempt, term.epoch)
        task.work = _started(task.run())

    def heartbeat(self, job_id: str, attempt_id: str, term: LeaderTerm) -> str:
        """Return the state of an attempt; end other attempts of the job."""
        self._check(job_id, term)
        for task in self.tasks.values():
            if task.job.id == job_id:
                if task.attempt.attempt_id == attempt_id:
                    task.heard_s = time.monotonic()
                else:
                    task.cancel()
        found = self.tasks.get(attempt_id)
        return "UNKNOWN" if found is None else found.state

    def cancel_job(self, job_id: str) -> str:
        """Cancel the attempts of a job; return ``GONE`` if there is none."""
        found = [task for task in self.tasks.values() if task.job.id == job_id]
        for task in found:
            task.cancel()
        return "CANCELLING" if found else "GONE"

    def trigger(self, job_id: str, trigger: TriggerCheckpoint, term: LeaderTerm) -> None:
        """See `TaskExecutorGateway.trigger_checkpoint`."""
        self._check(job_id, term)
        task = self.tasks.get(trigger.attempt_id)
        if task is None or task.state != "RUNNING":
            raise NoSuchTaskError(f"attempt {trigger.attempt_id} does not run here")
        task.checkpoints.trigger(trigger)

    def notify(self, attempt_id: str, checkpoint_id: int, is_complete: bool) -> None:
        """See `TaskExecutorGateway.notify_checkpoint_complete`."""
        task = self.tasks.get(attempt_id)
        if task is not None:
            (task.checkpoints.completed if is_complete else task.checkpoints.aborted)(checkpoint_id)

    async def run(self) -> None:
        """Look after the attempts: end those that their JobMaster has given up, until the driver is lost."""
        while self.driver.alive:
            for task in list(self.tasks.values()):
                if time.monotonic() - task.heard_s > SILENCE_S:
                    task.cancel()
            await asyncio.sleep(HEARTBEAT_S)
        await asyncio.sleep(1.0)  # it ends with its driver, after it has reported the ends of its tasks


class TaskModel:
    """One attempt in its TaskExecutor: as `Task`, from its process to its final state."""

    def __init__(self, worker: Worker, job: Job, attempt: AttemptInformation, epoch: int) -> None:
        self.worker, self.job, self.attempt, self.epoch = worker, job, attempt, epoch
        self.cluster, self.driver = worker.cluster, worker.driver
        self.calls: Calls = worker.cluster.calls
        self.state = "DEPLOYING"
        self.failure = ""
        self.heard_s = time.monotonic()
        self.work: asyncio.Task[None] | None = None
        self._leasing: set[asyncio.Task[str | None]] = set()
        self.is_cancelled = asyncio.Event()
        self._finished = False
        self._ended = asyncio.Event()
        self._process: SimProcess | None = None
        connection = SimpleNamespace(gateway=_MasterGateway(self))
        connections = SimpleNamespace(find=lambda job_id: connection)
        responder = CheckpointResponder(cast(Any, connections), job.id)
        self.checkpoints = TaskCheckpoints(attempt, responder, self._stop_queries)

    def cancel(self) -> None:
        """End it."""
        self.is_cancelled.set()

    async def run(self) -> None:
        """Run the attempt to its end, and report that."""
        host, loop = self.worker.process.host, asyncio.get_running_loop()
        self._process = process = host.start(f"task-{self.job.graph.name}", self._main)
        self.cluster.task_started(self.worker.process, process)

        def ended(silent: bool) -> None:
            loop.call_soon_threadsafe(self._ended.set)

        process.on_end.append(ended)
        watching = [_started(self._end_on_cancel()), _started(self._end_with_driver()), _started(self._end_stopped())]
        await self._ended.wait()
        for watcher in (*watching, *self._leasing):
            watcher.cancel()
        await asyncio.gather(*self._leasing, return_exceptions=True)
        await self.driver.release(self.attempt.attempt_id)
        stop = await self.checkpoints.end()
        if stop is StopOutcome.COMPLETED:
            self.state = "FINISHED"
        elif self.is_cancelled.is_set():
            self.state = "CANCELED"
        elif stop is StopOutcome.FAILED or self.failure or not self._finished:
            self.state = "FAILED"
        else:
            self.state = "FINISHED"
        await self._report()
        del self.worker.tasks[self.attempt.attempt_id]

    async def _report(self) -> None:
        async def tell() -> None:
            await self.ask_master("state_reported", self.attempt.attempt_id, self.state, self.failure)

        if self.state == "RUNNING":
            await tell()
            return
        for _ in range(200):
            if self.job.is_ending:
                return
            try:
                await tell()
                return
            except (ActorError, GatewayError):
                await asyncio.sleep(0.3)

    async def ask_master(self, method: str, *args: Any) -> Any:
        """Call the JobMaster of the job."""
        master = self.job.master
        if master is None:
            raise RecipientUnreachable("the job has no JobMaster")
        return await self.calls.ask(master.process, getattr(master, method), *args)

    async def _end_on_cancel(self) -> None:
        await self.is_cancelled.wait()
        self._kill()

    async def _end_with_driver(self) -> None:
        await self.driver.wait_dead()
        self.failure = self.failure or "the Spark driver has ended"
        self._kill()

    async def _end_stopped(self) -> None:
        await self.checkpoints.stopped.wait()
        await asyncio.sleep(PATIENCE_S)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    # --- what its task process asks for

    def give_up(self, why: str) -> None:
        """End it without a lease."""
        self.failure = self.failure or why
        self._kill()

    async def lease(self, location: str) -> str | None:
        """See `LocationLeases.request`; the end of the task process ends the request, as in `Task`."""
        if self._ended.is_set():
            return "the task process has ended"
        attempt = self.attempt
        holder = LeaseHolder(
            self.job.id,
            self.job.graph.name,
            attempt.task_key,
            attempt.attempt_id,
            attempt.attempt_number,
            self.driver.info.pid,
            self.worker.process.host.name,
            self.epoch,
        )
        leases = LocationLeases(cast(Any, self.driver), holder, PATIENCE_S, logger.info, self.give_up)
        self._leasing.add(asking := asyncio.create_task(leases.request(location)))
        asking.add_done_callback(self._leasing.discard)
        await self._watch_lease(holder, lease_file(location), asking)
        return await asking

    async def _watch_lease(self, holder: LeaseHolder, path: Path, asking: asyncio.Task[str | None]) -> None:
        """Check that an earlier attempt on this host does not keep a lease for long after its time to end."""
        host, files, begun, kept = self.worker.process.host, self.cluster.world.files, time.monotonic(), 0
        while not asking.done():
            await asyncio.wait([asking], timeout=FENCE_CHECK_S)
            try:
                inode = files.inode_of(str(path))
            except FileNotFoundError:
                continue
            named, by = LeaseHolder.decode(bytes(inode.data)), inode.locked_by
            is_former = (
                named is not None
                and by is not None
                and (by.host, by.pid) == (host.name, named.driver_pid)
                and (named.job_id, named.host) == (holder.job_id, holder.host)
                and named.attempt_number < holder.attempt_number
                and by.pid != holder.driver_pid
            )
            is_due = time.monotonic() - begun > PATIENCE_S and not self.driver.process.frozen
            kept = kept + 1 if is_former and is_due and not asking.done() else 0
            if kept > FENCE_CHECKS:
                self.cluster.not_fenced(f"{path.name} is kept by {named}, {holder} waits for it")

    def query_starts(self, query: QueryLocation, batch: int, note: str) -> None:
        """See `QueryStarts`."""
        self.checkpoints.query_started(query, batch, was_restored=bool(note))
        if self._process is not None and self._process.alive:  # a task that has ended meanwhile starts no query
            self.cluster.query_starts(self.job, self.attempt, query, batch, note)

    async def running(self) -> None:
        """See `Running`."""
        self.state = "RUNNING"
        try:
            await self._report()
        except (ActorError, GatewayError) as error:
            logger.info("the JobMaster learns of it by a heartbeat: %s", error)

    def finished(self) -> None:
        """See `Finished`."""
        self._finished = True

    def failed(self, failure: str) -> None:
        """See `Failed`."""
        if not self.checkpoints.is_stopping:
            self.failure = self.failure or failure

    async def _stop_queries(self, drain: bool) -> StopReport:
        if self._ended.is_set() or not self.driver.alive:
            raise NotStoppedError(f"{self.job.graph.name} has no Spark driver any more")
        if self.failure:
            raise NotStoppedError(f"{self.job.graph.name} has failed: {self.failure}")
        undrained = await self.driver.stop_queries(self.attempt.attempt_id, drain)
        return StopReport((), not undrained)

    # --- the task process, a thread of its own process

    def _main(self) -> None:
        calls, executor = self.calls, self.worker.process
        directory = Path(RUN, "checkpoints", self.job.id, "tasks", self.attempt.task_key)
        restore = TaskRestore(directory, self.attempt.restore)
        runs: list[tuple[QueryPlan, QueryLocation, int]] = []
        try:
            for plan in self.job.plans:
                refused = calls.ask_blocking(executor, self.lease, plan.location)
                if refused:
                    raise QueryFailed(refused)
                note = restore.prepare(plan.query)
                batch = restore.began_at(plan.query)
                calls.ask_blocking(executor, self.query_starts, plan.query, batch, note)
                driver = self.driver.process
                calls.ask_blocking(driver, self.driver.start_query, self.attempt.attempt_id, plan)
                runs.append((plan, plan.query, batch))
            calls.ask_blocking(executor, self.running)
            failure = calls.ask_blocking(self.driver.process, self.driver.wait_queries, self.attempt.attempt_id)
            if failure:
                name, text = failure
                for plan, query, batch in runs:
                    if plan.name == name and (note := restore.failed(query, batch, text)):
                        logger.info("%s", note)
                calls.ask_blocking(executor, self.failed, f"streaming query {name} has failed: {text}")
            else:
                calls.ask_blocking(executor, self.finished)
        except (CheckpointError, QueryFailed, ActorError, SparkError, OSError) as error:
            calls.ask_blocking(executor, self.failed, f"{type(error).__name__}: {error}")


class _MasterGateway:
    """`JobMasterGateway`, as far as checkpoints need it."""

    def __init__(self, task: TaskModel) -> None:
        self._task = task

    def acknowledge_checkpoint(self, ack: AcknowledgeCheckpoint) -> Awaitable[CheckpointOutcome]:
        return cast(Awaitable[CheckpointOutcome], self._task.ask_master("acknowledge", ack))

    def decline_checkpoint(self, decline: DeclineCheckpoint) -> Awaitable[None]:
        return cast(Awaitable[None], self._task.ask_master("decline", decline))


# ----------------------------------------------------------------------------- Spark driver


class _Stopped(Exception):
    """The query was stopped in the middle of a batch."""


@dataclass(eq=False)
class QueryRun:
    """One run of a query in a driver."""

    attempt_id: str
    plan: QueryPlan
    execution: StreamExecution
    thread: SimThread | None = None
    is_active: bool = True
    error: str = ""
    stop: str = ""
    """How it is to stop: ``boundary``, ``drain`` or ``force``."""
    fails: bool = False
    hangs_s: float = 0.0


class Driver:
    """A Spark driver in a process of its own, as its TaskExecutor sees it; some methods run in that process."""

    def __init__(self, cluster: Any, worker: Worker) -> None:
        self._cluster = cluster
        self.calls: Calls = cluster.calls
        self._executor = worker.process
        host: SimHost = worker.process.host
        self.runs: list[QueryRun] = []
        self._locks: dict[str, str] = {}
        self._dead = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.process: SimProcess = host.start(f"spark-{worker.name}", self._main)
        self.info = SimpleNamespace(pid=self.process.pid)

        def ended(silent: bool) -> None:
            loop.call_soon_threadsafe(self._dead.set)

        self.process.on_end.append(ended)
        cluster.driver_started(self)

    # --- in the TaskExecutor

    @property
    def alive(self) -> bool:
        """Whether its process lives."""
        return self.process.alive

    async def wait_dead(self) -> None:
        """Wait until its process has ended."""
        await self._dead.wait()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    async def _ask(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = ANSWER_S) -> Any:
        try:
            return await self.calls.ask(self.process, function, *args, timeout_s=timeout_s)
        except RecipientUnreachable as error:
            raise DriverLostError(str(error)) from error
        except AskTimeout as error:
            raise SparkError(str(error)) from error

    async def lock_file(self, path: Path, owner: str) -> bool:
        """See `SparkDriver.lock_file`."""
        return bool(await self._ask(self._lock, str(path), owner, timeout_s=None))

    async def stop_queries(self, attempt_id: str, drain: bool) -> bool:
        """Stop the queries of an attempt between two batches; return whether one was not drained in time."""
        mine = [run for run in self.runs if run.attempt_id == attempt_id]
        undrained = False
        for how, limit_s in (("drain" if drain else "boundary", PATIENCE_S), ("force", PATIENCE_S)):
            await self._ask(self._stop, mine, how)
            deadline = time.monotonic() + limit_s
            while any(run.is_active for run in mine) and time.monotonic() < deadline and self.alive:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if not self.alive:
                raise DriverLostError("the driver has ended while its queries were stopped")
            if not any(run.is_active for run in mine):
                return undrained
            undrained = drain
        raise SparkError("the queries do not stop")

    async def release(self, attempt_id: str) -> None:
        """End what an attempt has left here; if that does not end in time, end the driver."""
        mine = [run for run in self.runs if run.attempt_id == attempt_id]
        deadline = time.monotonic() + PATIENCE_S
        while self.alive and any(run.is_active for run in mine) and time.monotonic() < deadline:
            try:
                await self._ask(self._stop, mine, "force", timeout_s=1.0)
            except SparkError as error:
                logger.info("the driver is asked again: %s", error)
            await asyncio.sleep(0.1)
        try:
            if self.alive and any(run.is_active for run in mine):
                raise SparkError("its queries still run")
            if self.alive:
                await self._ask(self._unlock, attempt_id)
        except SparkError as error:
            logger.info("the driver is killed: %s", error)
            self.kill()

    # --- in its process

    def _lock(self, path: str, owner: str) -> bool:
        holder = self._locks.get(path)
        if holder not in (None, owner):
            return False
        process = self.process
        if self._cluster.world.files.lock_records(path, Caller(process.host.name, process.pid)):
            self._locks[path] = owner
            return True
        return False

    def _unlock(self, owner: str) -> None:
        for path in [path for path, holder in self._locks.items() if holder == owner]:
            del self._locks[path]
            self._cluster.world.files.unlock_records(path, Caller(self.process.host.name, self.process.pid))

    def _stop(self, runs: list[QueryRun], how: str) -> None:
        for run in runs:
            run.stop = how

    def start_query(self, attempt_id: str, plan: QueryPlan) -> None:
        """Start a query."""
        source: RowSource = self._cluster.sources[plan.name]
        random = self.process.random

        def pause(step: str) -> None:
            if run.stop == "force":
                raise _Stopped(step)
            if run.fails:
                run.fails = False
                raise QueryFailed(f"planned failure before {step}")
            if run.hangs_s:
                time.sleep(run.hangs_s)
                run.hangs_s = 0.0
            time.sleep(random.expovariate(1 / 0.01))

        execution = StreamExecution(plan, source, lambda: f"{random.getrandbits(64):016x}", pause)
        run = QueryRun(attempt_id, plan, execution)
        self.runs.append(run)
        run.thread = self.process.start_thread(f"stream execution of {plan.name}", lambda: self._execute(run))

    def _execute(self, run: QueryRun) -> None:
        try:
            self._cluster.load_state(run.plan)
            run.execution.start()
            while not run.stop or run.stop == "drain":
                if not run.execution.run_batch():
                    if run.stop:
                        break
                    time.sleep(0.2)
        except _Stopped as step:
            logger.info("query %s is stopped by force before %s", run.plan.name, step)
        except (QueryFailed, OSError, ValueError, KeyError) as error:
            run.error = str(error) or type(error).__name__
            logger.info("query %s has failed: %s", run.plan.name, run.error)
            self._cluster.query_failed(run)
        finally:
            run.is_active = False

    async def wait_queries(self, attempt_id: str) -> tuple[str, str] | None:
        """Wait until all queries of an attempt have ended, or one has failed; return its name and its error."""
        while True:
            mine = [run for run in self.runs if run.attempt_id == attempt_id]
            for run in mine:
                if run.error:
                    return run.plan.name, run.error
            if not any(run.is_active for run in mine):
                return None
            await asyncio.sleep(0.1)

    async def _main(self) -> None:
        """Live as long as the TaskExecutor, and a while longer."""
        while self._executor.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(self.process.random.uniform(0.0, ORPHAN_S))


def job_services() -> LatchedHaServices:
    """Return the high-availability services of a process."""
    return RedisHaServices("redis://redis:6379/0", CLUSTER, STORAGE, lease=LEASE_S, memory_threshold=400)


def savepoints_dir() -> Path:
    """Return the directory of savepoints."""
    return Configuration.from_dict(SETTINGS).get(CheckpointingOptions.SAVEPOINT_DIR)
