"""A receiver that has seen a higher epoch refuses, and the leader gets to know: it has to take a higher one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock, create_autospec, patch

import pytest

from actors.errors import FencingError
from actors.receptionist import Listing, Receptionist, ReceptionistGateway
from actors.rpc.codec import decode_error, encode_error
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.messages import LeaderAddress
from runtime.ha.election import LeaderElectionService
from runtime.ha.model import DISPATCHER, LeaderInformation, LeaderTerm
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.resourcemanager.endpoint import ResourceManager
from runtime.taskexecutor.endpoint import TaskExecutor

JOB = JobID("0" * 32)
LOW, HIGH = FencingToken(7, "low"), FencingToken(9, "high")


class Component(LeaderEndpoint):
    async def lead(self, term: LeaderTerm) -> None:
        pass

    async def step_back(self) -> None:
        pass


@pytest.fixture
async def service() -> AsyncIterator[RpcService]:
    made = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    yield made
    await made.close()


async def leading(service: RpcService) -> tuple[Component, MagicMock]:
    election = create_autospec(LeaderElectionService, instance=True)
    election.has_leadership.return_value = True
    confirmed = asyncio.Event()
    election.confirm_leadership.side_effect = lambda *_: confirmed.set() or True
    component = Component(service, DISPATCHER, election, create_autospec(ReceptionistGateway, instance=True))
    component.grant_leadership(LeaderTerm(DISPATCHER, LOW.epoch, LOW.session))
    await confirmed.wait()
    return component, election


def test_the_epoch_that_was_seen_travels_with_the_refusal() -> None:
    arrived = decode_error(*encode_error(FencingError("no", 1_790_000_000_000)))
    assert isinstance(arrived, FencingError)
    assert arrived.epoch == 1_790_000_000_000
    assert FencingError("the lease is over").epoch is None


async def test_a_leader_that_is_called_with_a_higher_epoch_refuses_and_learns_it(service: RpcService) -> None:
    component, election = await leading(service)
    component.check_token(LOW)
    for token in (None, FencingToken(5, "old"), FencingToken(7, "other")):
        with pytest.raises(FencingError):
            component.check_token(token)
    election.observe_epoch.assert_not_called()
    with pytest.raises(FencingError):
        component.check_token(HIGH)
    election.observe_epoch.assert_called_once_with(9)


async def test_a_leader_whose_call_is_refused_learns_the_epoch_that_was_seen(service: RpcService) -> None:
    component, election = await leading(service)
    component.refused(FencingError("the lease is over"))
    component.refused(FencingError("of another leadership", 5))
    election.observe_epoch.assert_not_called()
    component.refused(FencingError("a later one leads", 9))
    election.observe_epoch.assert_called_once_with(9)


async def test_a_follower_calls_a_leader_behind_with_the_highest_token_that_it_has_seen() -> None:
    service = create_autospec(RpcService, instance=True)
    retrieval = create_autospec(LeaderRetrievalService, instance=True)
    follower = LeaderFollower(service, retrieval, DispatcherGateway)
    for token in (LOW, HIGH, LOW, FencingToken(12, "higher")):
        follower.notify_leader_address(LeaderInformation(DISPATCHER, "akka://a", token.epoch, token.session))
    used = [call.args[2] for call in service.gateway.call_args_list]
    assert used == [LOW, HIGH, HIGH, FencingToken(12, "higher")]


def test_a_client_calls_a_leader_behind_with_the_highest_token_that_it_has_seen() -> None:
    client = ClusterClient("akka.tcp://understudy@127.0.0.1:1/user/master", b"s" * 32)
    tokens = [LOW, HIGH, LOW]
    with patch.object(client, "_actors") as actors:
        actors.find.side_effect = [Listing("/user/dispatcher", "akka://a", 1, token) for token in tokens]
        for _ in tokens:
            client.lookup("dispatcher", DispatcherGateway)
    assert [call.args[2] for call in actors.gateway.call_args_list] == [LOW, HIGH, HIGH]
    client.close()


async def test_the_receptionist_refuses_an_earlier_leadership_and_says_which_it_knows(service: RpcService) -> None:
    receptionist = Receptionist(service)
    receptionist.register(Listing("/user/d", "akka://a", 1, HIGH))
    with pytest.raises(FencingError) as refused:
        receptionist.register(Listing("/user/d", "akka://b", 2, LOW))
    assert refused.value.epoch == 9
    assert receptionist.enter(Listing("/user/d", "akka://b", 2, LOW)) == HIGH
    assert receptionist.find("/user/d").address == "akka://a"


async def test_a_task_executor_refuses_earlier_leaders_and_says_which_it_has_seen(
    service: RpcService, tmp_path: Path
) -> None:
    driver = AsyncMock()
    driver.info.log_file = str(tmp_path / "spark.log")
    ha = create_autospec(HighAvailabilityServices, instance=True)
    ha.leader_retrieval.return_value = create_autospec(LeaderRetrievalService, instance=True)
    executor = TaskExecutor(
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
    slot, address = SlotID(ResourceID("tm"), 0), "akka.tcp://u@127.0.0.1:1/user/jm"
    allocation = AllocationID("1" * 32)
    await executor.request_slot(slot, JOB, allocation, LeaderAddress(address, HIGH), HIGH)
    with pytest.raises(FencingError, match="ResourceManager") as refused:
        await executor.request_slot(slot, JOB, allocation, LeaderAddress(address, HIGH), LOW)
    assert refused.value.epoch == 9
    with pytest.raises(FencingError, match="JobMaster") as refused:
        executor.heartbeat_from_job_manager(JOB, LeaderAddress(address, LOW))
    assert refused.value.epoch == 9
    assert executor.heartbeat_from_job_manager(JOB, LeaderAddress(address, HIGH)) is not None, (
        "the present one is heard"
    )
    await executor.stop()


async def test_a_resource_manager_refuses_an_earlier_job_master_and_says_which_it_has_seen(service: RpcService) -> None:
    manager = ResourceManager(
        service,
        "resourcemanager",
        create_autospec(HighAvailabilityServices, instance=True),
        create_autospec(ReceptionistGateway, instance=True),
        Configuration.from_dict({}),
        BlobAddress("127.0.0.1", 1),
        service.address_of("/user/master"),
        None,
    )
    address = "akka.tcp://u@127.0.0.1:1/user/jm"
    manager.register_job_manager(JOB, LeaderAddress(address, HIGH))
    with pytest.raises(FencingError) as refused:
        manager.register_job_manager(JOB, LeaderAddress(address, LOW))
    assert refused.value.epoch == 9
