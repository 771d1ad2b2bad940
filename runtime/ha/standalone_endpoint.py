"""The endpoint in the master that keeps latches and handles in memory (``high-availability.type: none``)."""

from __future__ import annotations

import asyncio
from collections import deque

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from runtime.gateways.high_availability import PATH, POLL_S, HighAvailabilityGateway, LeaderChanges, Wanted
from runtime.ha.fenced import Demand, HashWrite
from runtime.ha.latch import AcquireReply
from runtime.ha.model import LeaderInformation, LeaderTerm
from runtime.ha.standalone import HaMemory

_REMEMBERED = 1024


class ChangeLog:
    """Which leaders changed of late, in order. Pure."""

    def __init__(self) -> None:
        self.version = 0
        self._recent: deque[str] = deque(maxlen=_REMEMBERED)

    def add(self, component: str) -> None:
        """The leader of ``component`` has changed."""
        self.version += 1
        self._recent.append(component)

    def since(self, version: int) -> LeaderChanges:
        """What changed after ``version``; None for a version that is forgotten, or of another master."""
        missed = self.version - version
        if not 0 <= missed <= len(self._recent):
            return LeaderChanges(self.version, None)
        return LeaderChanges(self.version, sorted(set(list(self._recent)[len(self._recent) - missed :])))


class StandaloneHa(RpcEndpoint, HighAvailabilityGateway):
    """`HaMemory` for the components of the cluster, which reach it with the cluster's secret.

    Args:
        service: the RPC service at the system's port.
    """

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "high-availability")
        self._memory = HaMemory(on_change=self._changed)
        self._changes = ChangeLog()
        self._waiting: dict[asyncio.Future[LeaderChanges], int] = {}

    @property
    def path(self) -> str:
        """It is the system's own, not a user's actor."""
        return PATH

    def _changed(self, component: str) -> None:
        self._changes.add(component)
        self._answer()

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future, version in waiting.items():
            if not future.done():
                future.set_result(self._changes.since(version))

    @rpc_sync
    def acquire(self, component: str, session: str, lease_s: float, floor: int) -> AcquireReply:
        return self._memory.acquire(component, session, lease_s, floor)

    @rpc_sync
    def renew(self, term: LeaderTerm, lease_s: float) -> bool:
        return self._memory.renew(term, lease_s)

    @rpc_sync
    def release(self, term: LeaderTerm) -> bool:
        return self._memory.release(term)

    @rpc_sync
    def confirm(self, term: LeaderTerm, address: str) -> bool:
        return self._memory.confirm(term, address)

    @rpc_sync
    def depose(self, component: str, term: LeaderTerm) -> None:
        self._memory.depose(component, term)

    @rpc_sync
    def find_leader(self, component: str) -> LeaderInformation | None:
        return self._memory.leader(component)

    @rpc_sync
    def await_changes(self, version: int) -> asyncio.Future[LeaderChanges]:
        future: asyncio.Future[LeaderChanges] = self.service.loop.create_future()
        if version != self._changes.version:
            future.set_result(self._changes.since(version))
            return future
        self._waiting[future] = version
        timer = self.schedule_run_async(POLL_S, lambda: self._give_up(future))
        future.add_done_callback(lambda _: timer.cancel())
        return future

    def _give_up(self, future: asyncio.Future[LeaderChanges]) -> None:
        version = self._waiting.pop(future, None)
        if version is not None and not future.done():
            future.set_result(self._changes.since(version))

    @rpc_sync
    def read_field(self, key: str, field: str) -> str | None:
        return self._memory.get(key, field)

    @rpc_sync
    def read_map(self, key: str) -> dict[str, str]:
        return self._memory.get_all(key)

    @rpc_sync
    def write_field(self, key: str, field: str, value: str, term: LeaderTerm, wanted: Wanted) -> HashWrite:
        return self._memory.hset(key, field, value, term, _demand(wanted))

    @rpc_sync
    def delete_field(self, key: str, field: str, term: LeaderTerm, wanted: Wanted) -> HashWrite:
        return self._memory.hdel(key, field, term, _demand(wanted))

    @rpc_sync
    def clear(self) -> None:
        self._memory.clear()


def _demand(wanted: Wanted) -> Demand | str:
    return wanted.value if wanted.kind == "equals" else Demand(wanted.kind)
