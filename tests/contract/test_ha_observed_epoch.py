# ruff: noqa: F811 - fixtures are imported by name
"""The whole way over real sockets: a receiver has seen a higher epoch than the leader's, which then leads above it."""

from __future__ import annotations

import asyncio

import pytest

from actors.errors import FencingError
from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import Ask, FencedRpcGateway, FencingToken, rpc_sync
from actors.rpc.service import RpcService
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.protocol.leader import DISPATCHER, LeaderInformation, LeaderTerm
from tests.fakes.ha_keeper import SECRET, Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import until


class EpochGateway(FencedRpcGateway):
    def epoch(self) -> Ask[int]:
        """The epoch of the leader that answers."""
        raise NotImplementedError


class Leader(LeaderEndpoint, EpochGateway):
    async def lead(self, term: LeaderTerm) -> None:
        pass

    async def on_revoked(self) -> None:
        pass

    @rpc_sync
    def epoch(self) -> int:
        return self.term.epoch


async def test_a_leader_behind_what_receivers_have_seen_steps_down_and_leads_above_it(keeper: Keeper) -> None:
    service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig())
    await service.listen()
    receptionist = Receptionist(service)
    await service.start_server(receptionist)
    ha = keeper.open()
    leader = Leader(service, DISPATCHER, ha.leader_election(DISPATCHER), receptionist_of(service, receptionist.address))
    follower = LeaderFollower(service, ha.leader_retrieval(DISPATCHER), EpochGateway)
    await service.start_server(leader)
    await follower.start()
    first = await (await follower.get()).epoch()

    # The directory knows a later leadership: it refuses the listing, and says which.
    seen = FencingToken(first + 10**9, "later")
    receptionist.enter(Listing(leader.path, "akka.tcp://understudy@127.0.0.1:1/user/dispatcher", 0, seen))
    await until(lambda: leader.fencing_token and leader.fencing_token.epoch > seen.epoch)
    await until(lambda: receptionist.find(leader.path).token == leader.fencing_token)
    second = leader.term.epoch
    await until(lambda: follower.leader and follower.leader.epoch == second)
    assert await (await follower.get()).epoch() == second

    # Who follows it has seen a later one: the call is refused once, and taken under a higher epoch.
    later = LeaderInformation(DISPATCHER, str(leader.address), second + 10**9, "later")
    follower.notify_leader_address(later)
    with pytest.raises(FencingError):
        await (await follower.get()).epoch()
    await until(lambda: follower.leader and follower.leader.epoch > later.epoch)
    assert await (await follower.get()).epoch() == second + 10**9 + 1
    await follower.stop()
    await service.close()
