"""The ExecutionGraph and the SlotPool together, against a world in which anything may happen at any time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, ExecutionAttemptID, ResourceID, RestartID, SlotID, SlotRequestID
from runtime.jobgraph.codec import decode, encode
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.execution_graph import (
    CancelSlotRequest,
    CancelTask,
    DeployTask,
    ExecutionGraph,
    Instruction,
    JobReachedTerminal,
    ReleasePartitions,
    ReleaseSlot,
    RequestSlot,
    ScheduleRestart,
)
from runtime.jobmaster.restart_strategy import RestartStrategy, RestartStrategyConfig
from runtime.jobmaster.slot_pool import (
    AskForSlot,
    ReturnSlot,
    SlotLost,
    SlotOffer,
    SlotPool,
    SlotPoolInstruction,
    SlotReady,
    SlotRequestFailed,
    WithdrawSlotRequest,
)
from runtime.protocol.descriptor import ExecutionReport, TaskDeploymentDescriptor, TaskExecutionState
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, Instant, JobStatus
from tests.unit.test_execution_graph import blocking_inputs
from tests.unit.test_jobgraph import make_graph

EXECUTORS = ["tm-1", "tm-2", "tm-3"]

SHAPES = [
    ["a-b"],
    ["a=b", "b=c"],
    ["a=c", "b=c", "c-d"],
    ["a=b", "a=c", "b=d", "c=d"],
    ["a-b", "b=c", "c-d", "b=e", "d=f", "e=f"],
    ["a=b", "a=c", "a=d", "e=f", "e=g"],
]


class JobMachine(RuleBasedStateMachine):
    @initialize(
        links=st.sampled_from(SHAPES),
        restart=st.sampled_from([RestartStrategyConfig.none(), RestartStrategyConfig.fixed_delay(2)]),
        retries=st.integers(0, 2),
        depth_first=st.booleans(),
    )
    def begin(self, links: list[str], restart: RestartStrategyConfig, retries: int, depth_first: bool) -> None:
        self.depth_first = depth_first
        self.work: deque[Instruction | SlotPoolInstruction] = deque()
        self.working = False
        self.now = 0
        self.ids = 0
        self.pool = self.new_pool()
        self.asked: list[AllocationID] = []
        self.slots: dict[AllocationID, SlotID] = {}
        self.running: dict[ExecutionAttemptID, TaskDeploymentDescriptor] = {}
        self.canceling: set[ExecutionAttemptID] = set()
        self.past: list[ExecutionAttemptID] = []
        self.results: set[str] = set()
        self.restarts: list[RestartID] = []
        self.terminal: list[JobStatus] = []
        self.was_cancelled = False
        self.cancel_was_promised = False
        self.failing_over = False
        self.processes = dict.fromkeys(EXECUTORS, 0)
        job = make_graph(*links)
        self.job = replace(job, vertices=tuple(replace(vertex, retries=retries) for vertex in job.vertices))
        self.restart_strategy = restart
        self.graph = self.new_graph()
        self.durable = encode(self.graph.snapshot(self.at()))
        self.do(self.graph.start(self.at()))

    def new_graph(self) -> ExecutionGraph:
        strategy = RestartStrategy(self.restart_strategy)
        return ExecutionGraph(
            self.job,
            strategy,
            self.at(),
            results_dir="r",
            new_attempt_id=lambda: ExecutionAttemptID(self.fresh()),
            new_request_id=lambda: SlotRequestID(self.fresh()),
            new_restart_id=lambda: RestartID(self.fresh()),
        )

    def new_pool(self) -> SlotPool:
        pool = SlotPool(50.0, 10.0, new_allocation_id=lambda: AllocationID(self.fresh()))
        pool.connect_resource_manager()
        return pool

    def fresh(self) -> str:
        """Ids in order: with random ones hypothesis could not repeat what it found."""
        self.ids += 1
        return f"{self.ids:032x}"

    def write_down(self) -> None:
        """What the JobMaster does before it deploys, and before it acknowledges an end or a cancellation."""
        self.durable = encode(self.graph.snapshot(self.at()))

    def at(self) -> Instant:
        self.now += 1
        return Instant(float(self.now), self.now)

    def do(self, instructions: Sequence[Instruction | SlotPoolInstruction]) -> None:
        """Obey, in either order that a JobMaster may choose: what follows from an instruction first, or last."""
        if self.depth_first:
            for item in instructions:
                self.do(self.carry_out(item))
            return
        self.work.extend(instructions)
        if not self.working:
            self.working = True
            while self.work:
                self.work.extend(self.carry_out(self.work.popleft()))
            self.working = False

    def carry_out(self, item: Instruction | SlotPoolInstruction) -> Sequence[Instruction | SlotPoolInstruction]:
        """Carry out one instruction, after comparing it with what is really there."""
        match item:
            case RequestSlot(request_id, name):
                return self.pool.request_slot(request_id, name, float(self.now))
            case CancelSlotRequest(request_id):
                return self.pool.cancel_request(request_id, float(self.now))
            case ReleaseSlot(request_id):
                return self.pool.release_slot(request_id, float(self.now))
            case DeployTask(slot, descriptor):
                self.write_down()
                assert slot.allocation_id in self.slots
                assert slot in self.pool.allocated_slots
                assert not any(d.attempt.allocation_id == slot.allocation_id for d in self.running.values()), (
                    "shared slot"
                )
                assert not any(d.attempt.task_key == descriptor.attempt.task_key for d in self.running.values()), (
                    "runs twice"
                )
                assert set(blocking_inputs(descriptor).values()) <= self.results, "deployed without its input"
                self.running[descriptor.attempt.attempt_id] = descriptor
            case CancelTask(attempt_id):
                # A successor repeats cancellations, also of what has ended meanwhile.
                assert attempt_id in self.running or self.failing_over
                self.canceling.add(attempt_id)
            case ScheduleRestart(restart_id):
                self.restarts.append(restart_id)
            case ReleasePartitions(paths):
                self.write_down()
                needed = {path for descriptor in self.running.values() for path in blocking_inputs(descriptor).values()}
                assert not needed & set(paths), "released while it is read"
                self.results -= set(paths)
            case JobReachedTerminal(status):
                assert not self.running, "over while something runs"
                self.terminal.append(status)
                return self.pool.close()
            case AskForSlot(allocation_id):
                self.asked.append(allocation_id)
            case WithdrawSlotRequest(allocation_id):
                self.asked.remove(allocation_id)
            case SlotReady(request_id, slot):
                return self.graph.slot_assigned(request_id, slot, self.at())
            case SlotRequestFailed(request_id, reason):
                return self.graph.slot_unavailable(request_id, reason, self.at())
            case SlotLost(allocation_id, reason):
                return self.graph.slot_lost(allocation_id, reason, self.at())
            case ReturnSlot(slot):
                del self.slots[slot.allocation_id]
        return []

    def report(self, attempt_id: ExecutionAttemptID, state: ExecutionState, error: ErrorInfo | None = None) -> None:
        if state.is_terminal and attempt_id in self.running:
            descriptor = self.running.pop(attempt_id)
            self.past.append(attempt_id)
            if state is ExecutionState.FINISHED:
                self.results |= set(descriptor.attempt.blocking_outputs.values())
        self.do(self.graph.task_state_reported(TaskExecutionState(attempt_id, state, error), self.at()))
        if state.is_terminal:
            self.write_down()

    @rule(data=st.data())
    def the_job_master_is_replaced(self, data: st.DataObject) -> None:
        """Its successor knows what was written down, and what the TaskExecutors tell it, in any order."""
        self.failing_over = True
        before = {
            task.key for task in self.graph.archive().tasks if task.state is ExecutionState.FINISHED
        } & self.written_as_finished()
        reports: dict[str, list[ExecutionReport]] = {executor: [] for executor in EXECUTORS}
        for attempt_id, descriptor in list(self.running.items()):
            choices = ["RUNNING", "INITIALIZING", "CANCELED" if attempt_id in self.canceling else "FINISHED", "FAILED"]
            state = TaskExecutionState(attempt_id, ExecutionState(data.draw(st.sampled_from(choices))))
            executor = self.slots[descriptor.attempt.allocation_id].resource_id
            reports[executor].append(
                ExecutionReport(state, self.now, descriptor.attempt.task_key, descriptor.attempt.allocation_id)
            )
            if state.state.is_terminal:
                del self.running[attempt_id]
                self.past.append(attempt_id)
                if state.state is ExecutionState.FINISHED:
                    self.results |= set(descriptor.attempt.blocking_outputs.values())
        self.asked, self.restarts, self.terminal = [], [], []
        self.pool, self.graph = self.new_pool(), self.new_graph()
        addresses = {}
        for request_id, slot in self.graph.restore(decode(self.durable, ExecutionGraphSnapshot), self.at()):
            self.pool.adopt_slot(request_id, slot, float(self.now))
            addresses[slot.slot_id.resource_id] = slot.address
        self.do(self.graph.resume(self.at()))
        for name in data.draw(st.permutations(EXECUTORS)):
            executor = ResourceID(name)
            if addresses.get(executor, self.address(name)) != self.address(name):
                self.pool.release_task_executor(executor, float(self.now))
                self.do(self.graph.task_executor_lost(executor, "its process was replaced", self.at()))
            there = [SlotOffer(key, slot) for key, slot in self.slots.items() if slot.resource_id == executor]
            reported = self.graph.executions_reported(executor, reports[name], self.at())
            self.do([*reported, *self.pool.reconcile(executor, there)])
            for offer in there:
                accepted, instructions = self.pool.offer_slot(offer, self.address(name), float(self.now))
                if not accepted:
                    self.slots.pop(offer.allocation_id, None)
                self.do(instructions)
        self.failing_over = False
        after = {task.key for task in self.graph.archive().tasks if task.state is ExecutionState.FINISHED}
        if self.graph.status in (JobStatus.RUNNING, JobStatus.FINISHED):
            assert before <= after, "what had finished runs again"
        assert self.graph.status is not JobStatus.RECONCILING, "everybody has spoken"
        if self.cancel_was_promised:
            assert self.graph.status in (JobStatus.CANCELLING, JobStatus.CANCELED), "a promised cancellation is lost"

    def address(self, executor: str) -> str:
        return f"{executor}#{self.processes[executor]}"

    def written_as_finished(self) -> set[str]:
        saved = decode(self.durable, ExecutionGraphSnapshot)
        return {task.key for task in saved.tasks if task.attempts[-1].state is ExecutionState.FINISHED}

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), executor=st.sampled_from(["tm-1", "tm-2"]))
    def slot_comes(self, data: st.DataObject, executor: str) -> None:
        allocation_id = data.draw(st.sampled_from(self.asked))
        self.asked.remove(allocation_id)
        slot_id = SlotID(ResourceID(executor), self.now)
        self.slots[allocation_id] = slot_id
        offer = SlotOffer(allocation_id, slot_id)
        accepted, instructions = self.pool.offer_slot(offer, self.address(executor), float(self.now))
        assert accepted
        self.do(instructions)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), state=st.sampled_from(["INITIALIZING", "RUNNING", "FINISHED", "FINISHED", "FAILED"]))
    def task_reports(self, data: st.DataObject, state: str) -> None:
        attempt_id = data.draw(st.sampled_from(list(self.running)))
        error = ErrorInfo(FailureKind.USER_CODE, "ValueError", "x") if state == "FAILED" else None
        self.report(attempt_id, ExecutionState(state), error)

    def readers(self) -> list[ExecutionAttemptID]:
        """Who reads a result and would say that it is lost; one that is being cancelled ends, whatever it has met."""
        reads = [attempt for attempt, descriptor in self.running.items() if blocking_inputs(descriptor)]
        return [attempt for attempt in reads if attempt not in self.canceling]

    @precondition(lambda self: self.readers())
    @rule(data=st.data())
    def result_is_lost(self, data: st.DataObject) -> None:
        readers = self.readers()
        attempt_id = data.draw(st.sampled_from(readers))
        vertex, path = data.draw(st.sampled_from(sorted(blocking_inputs(self.running[attempt_id]).items())))
        self.results.discard(path)
        error = ErrorInfo(FailureKind.RESULT_LOST, "PartitionNotFoundException", "gone", lost_result=vertex)
        self.report(attempt_id, ExecutionState.FAILED, error)

    @precondition(lambda self: self.canceling & self.running.keys())
    @rule(data=st.data())
    def cancellation_is_done(self, data: st.DataObject) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.canceling & self.running.keys())))
        self.report(attempt_id, ExecutionState.CANCELED)

    @precondition(lambda self: self.past)
    @rule(data=st.data(), state=st.sampled_from(list(ExecutionState)))
    def late_report(self, data: st.DataObject, state: ExecutionState) -> None:
        before = self.graph.archive()
        self.report(data.draw(st.sampled_from(self.past)), state)
        assert self.graph.archive() == before

    @precondition(lambda self: self.restarts)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.do(self.graph.restart_due(data.draw(st.sampled_from(self.restarts)), self.at()))

    @rule()
    def all_restart(self) -> None:
        instructions = self.graph.restart_all(self.at())
        self.write_down()
        self.do(instructions)

    @rule(executor=st.sampled_from(["tm-1", "tm-2"]))
    def executor_dies(self, executor: str) -> None:
        gone = {allocation for allocation, slot in self.slots.items() if slot.resource_id == executor}
        for attempt_id, descriptor in list(self.running.items()):
            if descriptor.attempt.allocation_id in gone:
                del self.running[attempt_id]
                self.past.append(attempt_id)
        self.slots = {key: value for key, value in self.slots.items() if key not in gone}
        self.processes[executor] += 1
        self.pool.release_task_executor(ResourceID(executor), float(self.now))
        self.do(self.graph.task_executor_lost(ResourceID(executor), "died", self.at()))

    @precondition(lambda self: self.now > 15)
    @rule()
    def cancel(self) -> None:
        self.was_cancelled = True
        self.do(self.graph.cancel(self.at()))
        self.write_down()
        self.cancel_was_promised = self.graph.status in (JobStatus.CANCELLING, JobStatus.CANCELED)

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.do(self.pool.expired(float(self.now)))

    @invariant()
    def the_graph_and_the_world_agree(self) -> None:
        archive = self.graph.archive()
        current = {task.attempts[-1].attempt_id: task for task in archive.tasks}
        deployed = {key for key, task in current.items() if task.state.is_deployed}
        assert deployed == set(self.running)
        held = (*self.pool.allocated_slots, *self.pool.free_slots)
        assert {slot.allocation_id for slot in held} == set(self.slots), "a slot has leaked"
        assert len(self.terminal) == archive.status.is_terminal, "the end is told once"
        if archive.status is JobStatus.FINISHED:
            assert all(task.state is ExecutionState.FINISHED for task in archive.tasks)
        if archive.status is JobStatus.FAILED:
            assert archive.failure is not None
        remembered = Counter(failure.kind.value for failure in archive.failure_history)
        assert all(archive.failure_counts[kind] >= count for kind, count in remembered.items()), "one was not counted"

    @invariant()
    def the_job_is_never_stuck(self) -> None:
        if not self.graph.status.is_terminal:
            assert self.running or self.pool.pending or self.restarts, f"{self.graph.archive()}"

    def teardown(self) -> None:
        """Let all go well from here: the job ends."""
        if not hasattr(self, "graph"):
            return
        for _ in range(200):
            if self.graph.status.is_terminal:
                break
            for restart_id in list(self.restarts):
                self.do(self.graph.restart_due(restart_id, self.at()))
            for allocation_id in list(self.asked):
                if allocation_id in self.asked:
                    self.asked.remove(allocation_id)
                    slot_id = SlotID(ResourceID("tm-3"), self.now)
                    self.slots[allocation_id] = slot_id
                    offer = SlotOffer(allocation_id, slot_id)
                    _, instructions = self.pool.offer_slot(offer, self.address("tm-3"), float(self.now))
                    self.do(instructions)
            for attempt_id in list(self.running):
                if attempt_id in self.running:
                    done = ExecutionState.CANCELED if attempt_id in self.canceling else ExecutionState.FINISHED
                    self.report(attempt_id, done)
        assert self.graph.status.is_globally_terminal
        assert not self.slots
        if self.was_cancelled:
            assert self.graph.status in (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED)


JobMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestJobModel = JobMachine.TestCase
