"""The ExecutionGraph and the SlotPool together, against a world in which anything may happen at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, ExecutionAttemptID, ResourceID, RestartID, SlotID
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor, TaskExecutionState
from runtime.jobmaster.execution_graph import ExecutionGraph
from runtime.jobmaster.execution_state import ErrorInfo, ExecutionState, FailureKind, Instant, JobStatus
from runtime.jobmaster.instructions import (
    CancelSlotRequest,
    CancelTask,
    DeployTask,
    Instruction,
    JobReachedTerminal,
    ReleaseSlot,
    RequestSlot,
    ScheduleRestart,
)
from runtime.jobmaster.restart_strategy import RestartStrategyConfig, create_restart_strategy
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
from tests.unit.test_jobgraph import make_graph

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
        depth_first=st.booleans(),
    )
    def begin(self, links: list[str], restart: RestartStrategyConfig, depth_first: bool) -> None:
        self.depth_first = depth_first
        self.work: deque[Instruction | SlotPoolInstruction] = deque()
        self.working = False
        self.now = 0
        self.pool = SlotPool(50.0, 10.0)
        self.pool.connect_resource_manager()
        self.asked: list[AllocationID] = []
        self.slots: dict[AllocationID, SlotID] = {}
        self.running: dict[ExecutionAttemptID, TaskDeploymentDescriptor] = {}
        self.canceling: set[ExecutionAttemptID] = set()
        self.past: list[ExecutionAttemptID] = []
        self.results: set[str] = set()
        self.restarts: list[RestartID] = []
        self.terminal: list[JobStatus] = []
        self.was_cancelled = False
        self.graph = ExecutionGraph(
            make_graph(*links), create_restart_strategy(restart), self.at(), results_dir="r", jobmaster_address="jm"
        )
        self.do(self.graph.start(self.at()))

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
                assert slot.allocation_id in self.slots
                assert slot in self.pool.allocated_slots
                assert not any(d.allocation_id == slot.allocation_id for d in self.running.values()), "shared slot"
                assert not any(d.task_key == descriptor.task_key for d in self.running.values()), "runs twice"
                assert set(descriptor.blocking_inputs.values()) <= self.results, "deployed without its input"
                self.running[descriptor.attempt_id] = descriptor
            case CancelTask(attempt_id):
                assert attempt_id in self.running
                self.canceling.add(attempt_id)
            case ScheduleRestart(restart_id):
                self.restarts.append(restart_id)
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
                self.results |= set(descriptor.blocking_outputs.values())
        self.do(self.graph.task_state_reported(TaskExecutionState(attempt_id, state, error), self.at()))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), executor=st.sampled_from(["tm-1", "tm-2"]))
    def slot_comes(self, data: st.DataObject, executor: str) -> None:
        allocation_id = data.draw(st.sampled_from(self.asked))
        self.asked.remove(allocation_id)
        slot_id = SlotID(ResourceID(executor), self.now)
        self.slots[allocation_id] = slot_id
        accepted, instructions = self.pool.offer_slot(SlotOffer(allocation_id, slot_id), "addr", float(self.now))
        assert accepted
        self.do(instructions)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), state=st.sampled_from(["INITIALIZING", "RUNNING", "FINISHED", "FINISHED", "FAILED"]))
    def task_reports(self, data: st.DataObject, state: str) -> None:
        attempt_id = data.draw(st.sampled_from(list(self.running)))
        error = ErrorInfo(FailureKind.USER_CODE, "ValueError", "x") if state == "FAILED" else None
        self.report(attempt_id, ExecutionState(state), error)

    @precondition(lambda self: any(descriptor.blocking_inputs for descriptor in self.running.values()))
    @rule(data=st.data())
    def result_is_lost(self, data: st.DataObject) -> None:
        readers = [attempt for attempt, descriptor in self.running.items() if descriptor.blocking_inputs]
        attempt_id = data.draw(st.sampled_from(readers))
        vertex, path = data.draw(st.sampled_from(sorted(self.running[attempt_id].blocking_inputs.items())))
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

    @rule(executor=st.sampled_from(["tm-1", "tm-2"]))
    def executor_dies(self, executor: str) -> None:
        gone = {allocation for allocation, slot in self.slots.items() if slot.resource_id == executor}
        for attempt_id, descriptor in list(self.running.items()):
            if descriptor.allocation_id in gone:
                del self.running[attempt_id]
                self.past.append(attempt_id)
        self.slots = {key: value for key, value in self.slots.items() if key not in gone}
        self.pool.release_task_executor(ResourceID(executor), float(self.now))
        self.do(self.graph.task_executor_lost(ResourceID(executor), "died", self.at()))

    @precondition(lambda self: self.now > 15)
    @rule()
    def cancel(self) -> None:
        self.was_cancelled = True
        self.do(self.graph.cancel(self.at()))

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
                    _, instructions = self.pool.offer_slot(SlotOffer(allocation_id, slot_id), "a", float(self.now))
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
