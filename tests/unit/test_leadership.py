"""The base of elected components: whom it serves, and until when."""

from __future__ import annotations

import asyncio
from unittest.mock import create_autospec

import pytest

from actors.errors import FencingError
from actors.receptionist import ReceptionistGateway
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from runtime.ha.election import LeaderElectionService
from runtime.leadership import LeaderEndpoint
from runtime.protocol.leader import LeaderTerm

TERM = LeaderTerm("dispatcher", 7, "s")
TOKEN = FencingToken(TERM.epoch, TERM.session)


class Component(LeaderEndpoint):
    async def lead(self, term: LeaderTerm) -> None:
        pass


async def test_a_call_after_the_lease_is_refused_though_nobody_has_said_that_it_is_over() -> None:
    """As when a process that stood still reads a call before the timer that ends its term has run."""
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    election = create_autospec(LeaderElectionService, instance=True)
    election.has_leadership.side_effect = lambda term: term == TERM
    component = Component(service, "dispatcher", election, create_autospec(ReceptionistGateway, instance=True))
    component.running = True
    with pytest.raises(FencingError, match="not the leader"):
        component.check_token(TOKEN)
    confirmed = asyncio.Event()
    election.confirm_leadership.side_effect = lambda *_: confirmed.set() or True
    component.grant_leadership(TERM)
    await confirmed.wait()
    component.check_token(TOKEN)
    election.has_leadership.side_effect = lambda _: False
    with pytest.raises(FencingError, match="the lease of /user/dispatcher is over"):
        component.check_token(TOKEN)
    component.revoke_leadership()
    await service.close()


async def test_a_term_that_was_not_confirmed_is_given_up() -> None:
    """A renewal may have saved it after all; then it would be nobody's, and nobody could contend."""
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    election = create_autospec(LeaderElectionService, instance=True)
    election.confirm_leadership.return_value = False
    component = Component(service, "dispatcher", election, create_autospec(ReceptionistGateway, instance=True))
    component.running = True
    component.grant_leadership(TERM)
    await asyncio.gather(*component._spawned)
    election.step_down.assert_called_once_with(TERM, "it was not confirmed as the leader")
    component.revoke_leadership()
    await service.close()


async def test_what_began_under_one_leadership_does_not_act_under_the_next() -> None:
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    election = create_autospec(LeaderElectionService, instance=True)
    election.has_leadership.return_value = True
    component = Component(service, "dispatcher", election, create_autospec(ReceptionistGateway, instance=True))
    component.grant_leadership(TERM)
    assert component.may_act(TERM)
    component.revoke_leadership()
    assert not component.may_act(TERM)
    later = LeaderTerm("dispatcher", 8, "t")
    component.grant_leadership(later)
    assert not component.may_act(TERM)
    assert component.act() == later
    election.step_down.assert_not_called()
    component.revoke_leadership()
    await service.close()


async def test_an_act_after_the_term_has_ended_is_refused() -> None:
    """As of a call that was let in, and goes on once the leadership is revoked."""
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    election = create_autospec(LeaderElectionService, instance=True)
    component = Component(service, "dispatcher", election, create_autospec(ReceptionistGateway, instance=True))
    with pytest.raises(FencingError, match="/user/dispatcher does not lead any more; look the leader up again"):
        _ = component.term
    await service.close()
