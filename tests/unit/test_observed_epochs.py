"""A receiver that has seen a higher epoch refuses, and the leader gets to know: it has to take a higher one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import MagicMock, create_autospec, patch

import pytest

from actors.errors import FencingError
from actors.receptionist import Listing, Receptionist, ReceptionistGateway
from actors.rpc.codec import decode_error, encode_error
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcService
from runtime.client import ClusterClient
from runtime.ha.election import LeaderElectionService
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.ids import JobID
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, LeaderInformation, LeaderTerm

JOB = JobID("0" * 32)
LOW, HIGH = FencingToken(7, "low"), FencingToken(9, "high")


class Component(LeaderEndpoint):
    async def lead(self, term: LeaderTerm) -> None:
        pass

    async def on_revoked(self) -> None:
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


async def test_a_leader_whose_epoch_another_session_has_takes_a_higher_one(service: RpcService) -> None:
    component, election = await leading(service)
    component.refused(FencingError("a later one leads", LOW.epoch))
    election.observe_epoch.assert_called_once_with(LOW.epoch + 1)


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
    with patch.object(client._link, "actors") as actors:
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
