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
from runtime.ha.model import LeaderTerm
from runtime.leadership import LeaderEndpoint

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
    given_up: asyncio.Future[LeaderTerm] = asyncio.get_running_loop().create_future()
    election.step_down.side_effect = lambda term, _: given_up.set_result(term)
    component = Component(service, "dispatcher", election, create_autospec(ReceptionistGateway, instance=True))
    component.running = True
    component.grant_leadership(TERM)
    assert await asyncio.wait_for(given_up, 30) == TERM
    component.revoke_leadership()
    await service.close()
