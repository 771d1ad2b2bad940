"""The endpoint in the master that keeps latches and handles in memory (``high-availability.type: none``)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.rpc.endpoint import SYSTEM, RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from runtime.ha.fenced import Demand, HashWrite, in_words, refusal
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import AcquireReply
from runtime.ha.standalone_gateway import POLL_S, HighAvailabilityGateway, LeaderChanges, Wanted
from runtime.ha.user_store import UserFile
from runtime.protocol.leader import LeaderInformation, LeaderTerm, boottime


@dataclass(slots=True)
class _Latch:
    session: str
    epoch: int
    expires: float
    address: str = ""


class HaMemory:
    """Latches and maps of one cluster, in the memory of the master. Pure: no I/O.

    It answers like the scripts in Redis. So components are replaced under leases and epochs, and writes of former
    leaders are refused. Its contents are lost with the master.

    Args:
        clock: seconds; also counts while the machine is suspended.
        milliseconds: since 1970; no epoch is below it, so that a later master of the cluster grants higher epochs.
        on_change: called with a component whose leader has changed.
        durable: maps that `clear` keeps, by key.
        keep: called with the key and the new content of such a map, before a write of it takes effect; an exception
            prevents the write.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = boottime,
        milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_change: Callable[[str], None] = lambda component: None,
        durable: Mapping[str, dict[str, str]] | None = None,
        keep: Callable[[str, dict[str, str]], None] = lambda key, content: None,
    ) -> None:
        self._clock = clock
        self._milliseconds = milliseconds
        self._on_change = on_change
        self._latches: dict[str, _Latch] = {}
        self._durable = frozenset(durable or ())
        self._maps = {key: dict(content) for key, content in (durable or {}).items()}
        self._keep = keep
        self._epoch = 0

    # ------------------------------------------------------------------ latches

    def acquire(self, component: str, session: str, lease: float, floor: int) -> AcquireReply:
        """Grant ``session`` the latch for ``lease`` seconds, with an epoch above ``floor``, unless another holds it.

        A session that holds it already gets the rest of its lease, since the reply to its first request was lost.
        """
        held = self._held(component)
        if held is not None and (held.session != session or held.epoch > floor):
            return AcquireReply(held.session == session, held.epoch, held.expires - self._clock())
        self._forget_expired()
        self._epoch = max(self._epoch + 1, floor + 1, self._milliseconds())
        self._latches[component] = _Latch(session, self._epoch, self._clock() + lease)
        return AcquireReply(True, self._epoch, lease)

    def renew(self, term: LeaderTerm, lease: float) -> bool:
        """Begin another lease of ``lease`` seconds; return False if the term no longer holds the latch."""
        held = self._of(term)
        if held is not None:
            held.expires = self._clock() + lease
        return held is not None

    def release(self, term: LeaderTerm) -> bool:
        """Release the latch; return False if the term no longer held it."""
        if self._of(term) is None:
            return False
        del self._latches[term.component]
        self._on_change(term.component)
        return True

    def depose(self, component: str, term: LeaderTerm) -> None:
        """End the current term of ``component`` on behalf of ``term``; raises `LeadershipLostError` if that is over."""
        self._demand_leadership(term)
        if self._latches.pop(component, None) is not None:
            self._on_change(component)

    def confirm(self, term: LeaderTerm, address: str) -> bool:
        """Publish the leader's address; return False if the term no longer holds the latch."""
        held = self._of(term)
        if held is None:
            return False
        held.address = address
        self._on_change(term.component)
        return True

    def leader(self, component: str) -> LeaderInformation | None:
        """Return the confirmed leader; None while there is none."""
        held = self._held(component)
        if held is None or not held.address:
            return None
        return LeaderInformation(component, held.address, held.epoch, held.session)

    def _held(self, component: str) -> _Latch | None:
        latch = self._latches.get(component)
        if latch is not None and latch.expires <= self._clock():
            del self._latches[component]
            return None
        return latch

    def _forget_expired(self) -> None:
        for component in list(self._latches):
            self._held(component)

    def _of(self, term: LeaderTerm) -> _Latch | None:
        held = self._held(term.component)
        return held if held is not None and (held.session, held.epoch) == (term.session, term.epoch) else None

    # --------------------------------------------------------------------- maps

    def get(self, key: str, field: str) -> str | None:
        """Return the value of a field; None if there is none."""
        return self._maps.get(key, {}).get(field)

    def get_all(self, key: str) -> dict[str, str]:
        """Return a whole map."""
        return dict(self._maps.get(key, {}))

    def hset(self, key: str, field: str, value: str, term: LeaderTerm, demand: Demand | str) -> HashWrite:
        """Set a field, if it is as demanded; raises `LeadershipLostError` if the term is over."""
        write = self._compare(key, field, term, demand)
        if write.done:
            self._replace(key, {**self._maps.get(key, {}), field: value})
        return write

    def hdel(self, key: str, field: str, term: LeaderTerm, demand: Demand | str) -> HashWrite:
        """Delete a field, if it is as demanded; raises `LeadershipLostError` if the term is over."""
        write = self._compare(key, field, term, demand)
        if write.done and field in self._maps.get(key, {}):
            self._replace(key, {name: value for name, value in self._maps[key].items() if name != field})
        return write

    def _replace(self, key: str, content: dict[str, str]) -> None:
        if key in self._durable:
            self._keep(key, content)
        self._maps[key] = content

    def clear(self) -> None:
        """Delete all latches and maps, and keep only the last epoch and the durable maps."""
        self._latches.clear()
        self._maps = {key: content for key, content in self._maps.items() if key in self._durable}

    def _demand_leadership(self, term: LeaderTerm) -> None:
        if self._of(term) is None:
            held = self._held(term.component)
            raise refusal("a write", term, None if held is None else held.epoch)

    def _compare(self, key: str, field: str, term: LeaderTerm, demand: Demand | str) -> HashWrite:
        self._demand_leadership(term)
        found = self.get(key, field)
        kind, expected = in_words(demand)
        if (kind == Demand.ABSENT.value and found is not None) or (kind == "equals" and found != expected):
            return HashWrite(False, found)
        return HashWrite(True)


_REMEMBERED = 1024


class ChangeLog:
    """The latest changes of leaders, in order. Pure."""

    def __init__(self) -> None:
        self.version = 0
        self._recent: deque[str] = deque(maxlen=_REMEMBERED)

    def add(self, component: str) -> None:
        """Add a change of the leader of ``component``."""
        self.version += 1
        self._recent.append(component)

    def since(self, version: int) -> LeaderChanges:
        """Return the changes after ``version``; without components if it is too old, or of another master."""
        missed = self.version - version
        if not 0 <= missed <= len(self._recent):
            return LeaderChanges(self.version, None)
        return LeaderChanges(self.version, sorted(set(list(self._recent)[len(self._recent) - missed :])))


class StandaloneHa(RpcEndpoint, HighAvailabilityGateway):
    """Endpoint of `HaMemory` for the components of the cluster, which need the cluster's secret.

    Args:
        service: the RPC service at the system's port.
        keys: of the cluster.
        users: the file of the cluster's users, which outlive the master.

    Raises:
        StateCorruptedError: that file cannot be read.
    """

    parent_path = SYSTEM

    def __init__(self, service: RpcService, keys: ClusterKeys, users: UserFile) -> None:
        super().__init__(service, "high-availability")
        self._memory = HaMemory(
            on_change=self._changed, durable={keys.users: users.read()}, keep=lambda key, content: users.write(content)
        )
        self._changes = ChangeLog()
        self._waiting: dict[asyncio.Future[LeaderChanges], int] = {}

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
