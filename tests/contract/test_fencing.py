"""A former leader changes nothing: it sends nothing after its lease, and what it sent is refused by every receiver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest

from actors.address import ActorAddress
from actors.errors import FencingError, WireError
from actors.receptionist import ReceptionistGateway
from actors.rpc import codec
from actors.rpc.config import RpcConfig
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.fencing import Fence, Leadership
from actors.rpc.gateway import Ask, FencedRpcGateway, FencingToken, RpcGateway, fenced_by, rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress
from blob.offload import Inline
from conf.configuration import Configuration
from runtime.ha.changes import ChangeFeed, Wake
from runtime.ha.election import DefaultLeaderElectionService, LatchLeaderElectionDriver
from runtime.ha.latch import AcquireReply, LatchTiming
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, SlotID, SlotRequestID
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.execution_graph import RequestSlot
from runtime.jobmaster.slot_pool import SlotPool
from runtime.leadership import LeaderEndpoint
from runtime.protocol.descriptor import TaskDeployment
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, LeaderInformation, LeaderTerm, boottime, job_master
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import LeaderAddress
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.slots import SlotRequest
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.resourcemanager.endpoint import ResourceManager
from runtime.taskexecutor.endpoint import TaskExecutor
from tests.acting import acting
from tests.unit.test_gateways_complete import GATEWAYS as EVERY_GATEWAY
from tests.unit.test_gateways_complete import UNFENCED
from tests.waiting import PATIENCE_S

SECRET = b"s" * 32
JOB = JobID("0" * 32)
ATTEMPT = ExecutionAttemptID("3" * 32)
OWN = FencingToken(3, "recipient")
COMPONENTS = {"resourcemanager": RESOURCE_MANAGER, "jobmaster": job_master(JOB), "dispatcher": DISPATCHER}
GATEWAYS: list[type[RpcGateway]] = [
    DispatcherGateway,
    JobMasterGateway,
    MasterGateway,
    ResourceManagerGateway,
    TaskExecutorGateway,
]
FENCED = [
    (gateway, name) for gateway in GATEWAYS for name, spec in codec.method_specs(gateway).items() if spec.fenced_by
]


@pytest.fixture
async def service() -> AsyncIterator[RpcService]:
    made = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig())
    await made.listen()
    yield made
    await made.close()


def recorder(gateway: type[RpcGateway], service: RpcService, handled: list[str]) -> RpcEndpoint:
    """An endpoint of any gateway, which notes whose handler ran; it is given no arguments that fit."""

    def handler(name: str, is_ask: bool) -> Any:
        async def ask(self: object, *args: object) -> None:
            handled.append(name)

        def tell(self: object, *args: object) -> None:
            handled.append(name)

        return rpc(ask) if is_ask else rpc_tell(tell)

    specs = codec.method_specs(gateway)
    base = FencedRpcEndpoint if issubclass(gateway, FencedRpcGateway) else RpcEndpoint
    kind = type("Recorder", (base, gateway), {name: handler(name, spec.is_ask) for name, spec in specs.items()})
    endpoint: RpcEndpoint = kind(service, "recorder")
    if isinstance(endpoint, FencedRpcEndpoint):
        endpoint.fencing_token = OWN
    return endpoint


@pytest.mark.parametrize(("gateway", "name"), FENCED, ids=lambda value: getattr(value, "__name__", value))
async def test_a_call_that_changes_something_needs_the_present_leadership(
    gateway: type[RpcGateway], name: str, service: RpcService
) -> None:
    handled: list[str] = []
    endpoint = recorder(gateway, service, handled)
    await service.start_server(endpoint)
    spec = codec.method_specs(gateway)[name]
    own = OWN if isinstance(endpoint, FencedRpcEndpoint) else None
    component = COMPONENTS[str(spec.fenced_by)]

    async def call(token: FencingToken | Fence | None) -> None:
        await service.ask(endpoint.address, spec, [], token, PATIENCE_S)

    with pytest.raises(FencingError, match="no leadership"):
        await call(own)
    with pytest.raises(FencingError, match="the leadership of rest"):
        await call(acting(Leadership("rest", 9, "s"), own))
    endpoint.fences.observe(Leadership(component, 9, "present"))
    with pytest.raises(FencingError) as refused:
        await call(acting(Leadership(component, 7, "former"), own))
    assert refused.value.epoch == 9
    if own is not None:
        with pytest.raises(FencingError, match="another leadership"):
            await call(acting(Leadership(component, 9, "present"), FencingToken(2, "former recipient")))
    assert handled == []
    # The present one comes as far as the handler, or as its arguments, of which it brings none.
    (outcome,) = await asyncio.gather(call(acting(Leadership(component, 9, "present"), own)), return_exceptions=True)
    assert handled == [name] or (isinstance(outcome, WireError) and len(spec.decoders) > len(spec.defaults))


EXCEPTIONS = [
    (gateway, name)
    for gateway in EVERY_GATEWAY
    for name in codec.method_specs(gateway)
    if f"{gateway.__name__}.{name}" in UNFENCED
]


def test_every_exception_is_among_these() -> None:
    assert {f"{gateway.__name__}.{name}" for gateway, name in EXCEPTIONS} == set(UNFENCED)


@pytest.mark.parametrize(("gateway", "name"), EXCEPTIONS, ids=lambda value: getattr(value, "__name__", value))
async def test_a_method_without_a_fence_refuses_a_former_leader_too(
    gateway: type[RpcGateway], name: str, service: RpcService
) -> None:
    """Others may call such a method without a leadership; a leader calls it in the name of its own."""
    handled: list[str] = []
    endpoint = recorder(gateway, service, handled)
    await service.start_server(endpoint)
    spec = codec.method_specs(gateway)[name]
    endpoint.fences.observe(Leadership(DISPATCHER, 9, "present"))
    with pytest.raises(FencingError, match="leads no more") as refused:
        await service.ask(endpoint.address, spec, [], acting(Leadership(DISPATCHER, 7, "former")), PATIENCE_S)
    assert (refused.value.epoch, handled) == (9, [])


class QuietTaskExecutor(TaskExecutor):
    """A TaskExecutor without Spark, a zygote, or registrations of its own."""

    async def on_start(self) -> None:
        pass

    async def on_stop(self) -> None:
        pass


@pytest.fixture
async def executor(service: RpcService, tmp_path: Path) -> QuietTaskExecutor:
    driver = AsyncMock()
    driver.info.pid, driver.info.start_time, driver.is_ours = os.getpid(), 1, True
    driver.info.log_file = str(tmp_path / "spark.log")
    ha = create_autospec(HighAvailabilityServices, instance=True)
    ha.leader_retrieval.side_effect = lambda _: create_autospec(LeaderRetrievalService, instance=True)
    made = QuietTaskExecutor(
        service,
        ResourceID("tm"),
        ha,
        create_autospec(ReceptionistGateway, instance=True),
        Configuration.from_dict({}),
        driver,
        tmp_path,
        False,
        tmp_path / "log",
        1,
    )
    await service.start_server(made)
    return made


async def test_a_former_job_master_cannot_free_the_slot_that_its_successor_uses(
    service: RpcService, executor: QuietTaskExecutor
) -> None:
    former, present = Leadership(job_master(JOB), 7, "former"), Leadership(job_master(JOB), 9, "present")
    address, allocation = "akka.tcp://u@127.0.0.1:1/user/jm", AllocationID("1" * 32)

    def gateway(leadership: Leadership) -> TaskExecutorGateway:
        return service.gateway(executor.address, TaskExecutorGateway, acting(leadership))

    manager = gateway(Leadership(RESOURCE_MANAGER, 5, "m"))
    slot = SlotID(ResourceID("tm"), 0)
    await manager.request_slot(slot, JOB, allocation, LeaderAddress(address, former.token))
    await gateway(former).heartbeat_from_job_manager(JOB, LeaderAddress(address, former.token))
    # The TaskExecutor hears of the successor from the latch alone: that has called nobody yet.
    connection = executor._connections.find(JOB)
    assert connection is not None
    connection.follower.notify_leader_address(LeaderInformation(job_master(JOB), address, 9, "present"))

    for stale in (
        gateway(former).free_slot(allocation, "needed no more"),
        gateway(former).keep_task_logs(JOB, ATTEMPT),
        gateway(former).cancel_task(ATTEMPT),
        gateway(former).heartbeat_from_job_manager(JOB, LeaderAddress(address, former.token)),
    ):
        with pytest.raises(FencingError, match="leads no more") as refused:
            await stale
        assert refused.value.epoch == 9
    gateway(former).disconnect_job_manager(JOB, "the job is over")
    await gateway(present).heartbeat_from_job_manager(JOB, LeaderAddress(address, present.token))  # comes after it
    assert [one.allocation_id for one in executor.slots.of_job(JOB)] == [allocation]
    assert executor._connections.find(JOB) is connection

    # A ResourceManager is known by its heartbeats too, not by its slot requests alone.
    await gateway(Leadership(RESOURCE_MANAGER, 6, "next")).heartbeat_from_resource_manager()
    with pytest.raises(FencingError, match="resourcemanager of epoch 5"):
        await manager.request_slot(
            SlotID(ResourceID("tm"), 1), JOB, AllocationID("2" * 32), LeaderAddress(address, OWN)
        )

    await gateway(present).free_slot(allocation, "needed no more")
    assert executor.slots.of_job(JOB) == []


async def test_a_call_that_becomes_stale_while_its_arguments_are_fetched_changes_nothing(
    service: RpcService, executor: QuietTaskExecutor
) -> None:
    """As a deployment whose descriptor is a large blob: a later JobMaster leads when it is here."""
    former = Leadership(job_master(JOB), 7, "former")
    executor._require_services = lambda: AsyncMock()  # type: ignore[assignment]

    async def read(*_: object) -> Any:
        executor.fences.observe(Leadership(job_master(JOB), 9, "present"))

    executor._read = read  # type: ignore[method-assign]
    gateway = service.gateway(executor.address, TaskExecutorGateway, acting(former))
    with pytest.raises(FencingError, match="leads no more"):
        await gateway.submit_task(TaskDeployment(Inline(b""), Inline(b"")))


# ------------------------------------------------------------------------------------------ the sender


LEASE_S = 30.0


class Clock:
    """The clock of the lease, which is put forward as by a suspend."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return boottime() + self.ahead


class Latch:
    """A latch that is always granted, under the next epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        self.epoch = max(self.epoch, floor) + 1
        return AcquireReply(True, self.epoch, LEASE_S)

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        return term.epoch == self.epoch

    async def release(self, term: LeaderTerm) -> bool:
        return True

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        return True


class NoNews:
    async def listen(self, wake: Wake) -> None:
        await asyncio.Event().wait()


class WorkGateway(RpcGateway):
    @fenced_by("jobmaster")
    def work(self, text: str) -> Ask[None]:
        """Do it."""
        raise NotImplementedError

    @fenced_by("jobmaster")
    def note(self, text: str) -> None:
        """Note it."""
        raise NotImplementedError


class Worker(RpcEndpoint, WorkGateway):
    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "worker")
        self.done: list[str] = []

    @rpc_sync
    def work(self, text: str) -> None:
        self.done.append(text)

    @rpc_tell
    def note(self, text: str) -> None:
        self.done.append(text)


class Leader(LeaderEndpoint):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.serving: asyncio.Queue[LeaderTerm] = asyncio.Queue()
        self.stepped_back = asyncio.Event()

    async def lead(self, term: LeaderTerm) -> None:
        pass

    async def serve(self) -> None:
        self.serving.put_nowait(self.term)

    async def on_revoked(self) -> None:
        self.stepped_back.set()


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def leader(service: RpcService, clock: Clock) -> Leader:
    component, feed = job_master(JOB), ChangeFeed(NoNews())
    driver = LatchLeaderElectionDriver(component, Latch(), feed, LatchTiming(LEASE_S), clock=clock)
    election = DefaultLeaderElectionService(component, driver)
    made = Leader(service, component, election, create_autospec(ReceptionistGateway, instance=True))
    await service.start_server(made)
    return made


async def test_a_thawed_leader_sends_nothing_and_steps_down(service: RpcService, clock: Clock, leader: Leader) -> None:
    worker = Worker(service)
    await service.start_server(worker)
    first = await leader.serving.get()
    lasting, of_the_term = (leader.gateway(worker.address, WorkGateway, term=term) for term in (None, first))
    await lasting.work("before")

    clock.ahead += 2 * LEASE_S  # it stood still; what runs next is a turn of its own, before the election's
    sent = [lasting.work("thawed"), of_the_term.work("thawed")]
    lasting.note("thawed")
    for ask in sent:
        with pytest.raises(FencingError, match="does not act"):
            await ask
    await leader.stepped_back.wait()
    assert not leader.may_act(first)

    second = await leader.serving.get()
    assert second.epoch > first.epoch
    with pytest.raises(FencingError, match="its leadership is over"):
        await of_the_term.work("of the first term")
    await lasting.work("after")
    assert worker.done == ["before", "after"]


async def test_a_leader_that_a_receiver_refuses_leads_above_what_was_seen(service: RpcService, leader: Leader) -> None:
    worker = Worker(service)
    await service.start_server(worker)
    first = await leader.serving.get()
    worker.fences.observe(Leadership(first.component, first.epoch + 1000, "later"))
    with pytest.raises(FencingError, match="leads no more"):
        await leader.gateway(worker.address, WorkGateway).work("stale")
    second = await leader.serving.get()
    assert second.epoch == first.epoch + 1001
    await leader.gateway(worker.address, WorkGateway).work("fresh")
    assert worker.done == ["fresh"]


# ------------------------------------------------------------------------------------------ a former ResourceManager


class Manager(ResourceManager):
    """A ResourceManager that shows when it leads and when no more, and which slots it is asked for."""

    def __init__(self, service: RpcService, clock: Clock) -> None:
        ha = create_autospec(HighAvailabilityServices, instance=True)
        ha.feature_level_store.return_value.find = AsyncMock(return_value=None)
        driver = LatchLeaderElectionDriver(
            RESOURCE_MANAGER, Latch(), ChangeFeed(NoNews()), LatchTiming(LEASE_S), clock=clock
        )
        ha.leader_election.return_value = DefaultLeaderElectionService(RESOURCE_MANAGER, driver)
        self.serving: asyncio.Queue[LeaderTerm] = asyncio.Queue()
        self.stepped_back = asyncio.Event()
        self.asked: asyncio.Queue[SlotRequest] = asyncio.Queue()
        super().__init__(
            service,
            "resourcemanager",
            ha,
            create_autospec(ReceptionistGateway, instance=True),
            Configuration.from_dict({}),
            BlobAddress("127.0.0.1", 1),
            ActorAddress.parse("akka.tcp://system@127.0.0.1:2/user/receptionist"),
            lambda owner: None,
        )

    async def serve(self) -> None:
        self.serving.put_nowait(self.term)

    async def on_revoked(self) -> None:
        await super().on_revoked()
        self.stepped_back.set()

    @rpc_sync
    def request_slot(self, request: SlotRequest) -> str:
        self.asked.put_nowait(request)
        return ResourceManager.request_slot(self, request)  # type: ignore[return-value]  # not an Ask here


async def leading_job_master(service: RpcService, tmp_path: Path) -> Any:
    """A JobMaster that leads, with a graph that notes what becomes of its requests for slots."""
    ha = create_autospec(HighAvailabilityServices, instance=True)
    ha.leader_election.return_value = AsyncMock(has_leadership=Mock(return_value=True))
    ha.leader_retrieval.side_effect = lambda _: create_autospec(LeaderRetrievalService, instance=True)
    receptionist = create_autospec(ReceptionistGateway, instance=True)
    made: Any = JobMaster(
        service, f"jobmaster-{JOB}", JOB, ha, receptionist, Configuration(), tmp_path, BlobAddress("127.0.0.1", 1)
    )
    await service.start_server(made)
    made._term = LeaderTerm(job_master(JOB), OWN.epoch, OWN.session)
    made.fencing_token = OWN
    made._graph = Mock()
    made._checkpoints = Mock(is_idle=True, next_deadline=Mock(return_value=None))
    made._pool = SlotPool(600.0, 600.0)
    job = MagicMock(owner="", configuration={}, largest_memory=0, blob_bytes=0, priority=0)
    job.name = "job"
    made._job = job
    made._resource_manager.register(job)
    return made


async def test_a_deposed_resource_manager_fails_no_slot_request_of_a_job(
    service: RpcService, clock: Clock, tmp_path: Path
) -> None:
    """Its lease still runs by its own clock, and the job has heard of its successor from the latch alone."""
    manager = Manager(service, clock)

    def fail(*_: object) -> list[Any]:
        manager.stepped_back.set()  # the test fails at once, and waits for nothing
        return []

    await service.start_server(manager)
    first = await asyncio.wait_for(manager.serving.get(), PATIENCE_S)
    master = await leading_job_master(service, tmp_path)
    master._graph.slot_unavailable = Mock(side_effect=fail)
    connection = master._resource_manager._leader
    connection.notify_leader_address(
        LeaderInformation(RESOURCE_MANAGER, str(manager.address), first.epoch, first.session)
    )
    request = SlotRequestID.random()
    master._do([RequestSlot(request, "map")])
    asked = await asyncio.wait_for(manager.asked.get(), PATIENCE_S)
    deadline = master._pool.next_deadline()

    nowhere = "akka.tcp://u@127.0.0.1:1/user/resourcemanager"
    present = Leadership(RESOURCE_MANAGER, first.epoch + 1000, "present")
    connection.notify_leader_address(LeaderInformation(RESOURCE_MANAGER, nowhere, present.epoch, present.session))
    manager._start_up_is_over(first)  # there is no TaskExecutor: it refuses the request
    await asyncio.wait_for(manager.stepped_back.wait(), PATIENCE_S)
    assert not master._graph.slot_unavailable.called
    assert (master._pool.request_of(asked.allocation_id), master._pool.next_deadline()) == (request, deadline)
    assert manager._jobs == {}, "it has been refused, and repeats nothing"

    gateway = service.gateway(master.address, JobMasterGateway, acting(present, OWN))
    await gateway.notify_allocation_failure(asked.allocation_id, "no slot")
    assert master._graph.slot_unavailable.call_args.args[:2] == (request, "no slot")
