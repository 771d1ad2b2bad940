"""A component that loses its leadership and has it again at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from runtime.leadership import LeaderEndpoint
from runtime.protocol.leader import LeaderTerm
from tests.waiting import PATIENCE_S


class Component(LeaderEndpoint):
    """Only what leads and steps back: no election, no sockets."""

    path = "/user/component"
    fencing_token = None
    log = logging.getLogger("test")

    def __init__(self) -> None:
        self._term = None
        self._stepping_back = None
        self._election = self
        self.done: list[str] = []
        self.may_step_back = asyncio.Event()

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=what)

    async def lead(self, term: LeaderTerm) -> None:
        self.done.append(f"leads {term.epoch}")
        self._term = None  # what follows needs an election

    async def on_revoked(self) -> None:
        await self.may_step_back.wait()
        self.done.append("stepped back")


async def test_what_it_begins_anew_is_not_ended_by_its_own_stepping_back() -> None:
    component = Component()
    component._term = LeaderTerm("component", 1, "a")
    component.revoke_leadership()
    component.grant_leadership(LeaderTerm("component", 2, "b"))
    component.revoke_leadership()
    component.grant_leadership(LeaderTerm("component", 3, "c"))
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for _ in range(10):  # turns of the loop: none of them goes on before it has stepped back
        await asyncio.sleep(0)
    assert component.done == []
    component.may_step_back.set()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert component.done == ["stepped back", "stepped back", "leads 3"]
