"""High availability without Redis: the same services in the memory of one process, for tests and embedding.

`EmbeddedHaServices` elects among the contenders of its own process (Flink's ``EmbeddedHaServices``). Leaders in other
processes are announced to it by address (Flink's ``StandaloneHaServices``): the first term of every component is the
same in every process, so that the tokens agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from runtime.ha.checkpoint_recovery import MemoryCheckpointRecoveryFactory
from runtime.ha.election import DefaultLeaderElectionService, LeaderElectionListener
from runtime.ha.errors import LeadershipLostError, StateCorruptedError, StateHandleNotFoundError
from runtime.ha.model import LeaderInformation, LeaderTerm
from runtime.ha.retrieval import LeaderRetrievalListener
from runtime.ha.running_jobs import JobEntry, JobResult, clean, done, pending, running


def first_term(component: str, epoch: int = 1) -> LeaderTerm:
    """The term of the first leader of a component without Redis."""
    return LeaderTerm(component, epoch, f"{epoch:032x}")


class EmbeddedHub:
    """Who contends, leads and listens within one process."""

    def __init__(self) -> None:
        self._contenders: dict[str, list[EmbeddedElectionDriver]] = {}
        self._terms: dict[str, LeaderTerm] = {}
        self._epochs: dict[str, int] = {}
        self._leaders: dict[str, LeaderInformation] = {}
        self._followers: dict[str, list[EmbeddedRetrievalService]] = {}

    def contend(self, driver: EmbeddedElectionDriver) -> None:
        """Add a contender; it leads at once if nobody does."""
        self._contenders.setdefault(driver.component, []).append(driver)
        self._elect(driver.component)

    def withdraw(self, driver: EmbeddedElectionDriver) -> None:
        """Remove a contender; the next one leads if it did."""
        contenders = self._contenders[driver.component]
        leads = contenders[0] is driver and driver.component in self._terms
        contenders.remove(driver)
        if leads:
            self._end_term(driver)

    def rotate(self, driver: EmbeddedElectionDriver) -> None:
        """End the term of a leader and put it at the end of the queue."""
        contenders = self._contenders[driver.component]
        contenders.remove(driver)
        contenders.append(driver)
        self._end_term(driver)

    def raise_epoch(self, component: str, epoch: int) -> None:
        """Hand out no epoch up to ``epoch`` any more."""
        self._epochs[component] = max(self._epochs.get(component, 0), epoch)
        term = self._terms.get(component)
        if term is not None and term.epoch < epoch:
            self.rotate(self._contenders[component][0])

    def holds(self, term: LeaderTerm) -> bool:
        """Whether the term is current."""
        return self._terms.get(term.component) == term

    def require(self, term: LeaderTerm) -> None:
        """Raise `LeadershipLostError` unless the term is current."""
        if not self.holds(term):
            raise LeadershipLostError(
                f"a write by {term.component} of epoch {term.epoch} was refused: its term is over"
            )

    def announce(self, leader: LeaderInformation) -> None:
        """Make a leader known to all who follow the component."""
        self._leaders[leader.component] = leader
        self._tell_followers(leader.component)

    def follow(self, follower: EmbeddedRetrievalService) -> None:
        """Tell ``follower`` of the present leader, if there is one, and of all changes."""
        self._followers.setdefault(follower.component, []).append(follower)
        if follower.component in self._leaders:
            follower.tell(self._leaders[follower.component])

    def unfollow(self, follower: EmbeddedRetrievalService) -> None:
        """Tell it no more."""
        self._followers[follower.component].remove(follower)

    def clear(self) -> None:
        """Forget announced leaders and epochs."""
        self._leaders.clear()
        self._epochs.clear()

    def _elect(self, component: str) -> None:
        contenders = self._contenders[component]
        if component in self._terms or not contenders:
            return
        self._epochs[component] = self._epochs.get(component, 0) + 1
        term = self._terms[component] = first_term(component, self._epochs[component])
        contenders[0].granted(term)

    def _end_term(self, driver: EmbeddedElectionDriver) -> None:
        del self._terms[driver.component]
        driver.revoked()
        if self._leaders.pop(driver.component, None) is not None:
            self._tell_followers(driver.component)
        self._elect(driver.component)

    def _tell_followers(self, component: str) -> None:
        for follower in self._followers.get(component, []):
            follower.tell(self._leaders.get(component))


class EmbeddedElectionDriver:
    """A contender's place in the hub's queue."""

    def __init__(self, hub: EmbeddedHub, component: str) -> None:
        self.component = component
        self._hub = hub
        self._listener: LeaderElectionListener | None = None

    async def start(self, listener: LeaderElectionListener) -> None:
        self._listener = listener
        self._hub.contend(self)

    async def stop(self) -> None:
        if self._listener is not None:
            self._hub.withdraw(self)
            self._listener = None

    def holds(self, term: LeaderTerm) -> bool:
        return self._hub.holds(term)

    async def publish(self, term: LeaderTerm, address: str) -> bool:
        if not self._hub.holds(term):
            return False
        self._hub.announce(LeaderInformation(term.component, address, term.epoch, term.session))
        return True

    def observe_epoch(self, epoch: int) -> None:
        self._hub.raise_epoch(self.component, epoch)

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        # Later, not now: the contender may be asking for it in the middle of its grant.
        asyncio.get_running_loop().call_soon(lambda: self._hub.rotate(self) if self._hub.holds(term) else None)

    def granted(self, term: LeaderTerm) -> None:
        """Tell the contender, in a turn of its own and if it is still true then."""
        asyncio.get_running_loop().call_soon(self._grant, term)

    def revoked(self) -> None:
        """Tell the contender at once."""
        if self._listener is not None:
            self._listener.on_revoke()

    def _grant(self, term: LeaderTerm) -> None:
        if self._listener is not None and self._hub.holds(term):
            self._listener.on_grant(term)


class EmbeddedRetrievalService:
    """Follows a leader in the hub."""

    def __init__(self, hub: EmbeddedHub, component: str) -> None:
        self.component = component
        self._hub = hub
        self._listener: LeaderRetrievalListener | None = None

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if self._listener is not None:
            raise ValueError(f"the retrieval of {self.component} already has a listener")
        self._listener = listener
        self._hub.follow(self)

    async def stop(self) -> None:
        if self._listener is not None:
            self._hub.unfollow(self)
            self._listener = None

    def tell(self, leader: LeaderInformation | None) -> None:
        """Tell the listener, in a turn of its own."""
        asyncio.get_running_loop().call_soon(self._notify, leader)

    def _notify(self, leader: LeaderInformation | None) -> None:
        if self._listener is not None:
            self._listener.notify_leader_address(leader)


class MemoryJobGraphStore:
    """A `JobGraphStore` in memory."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self._hub = hub
        self._graphs: dict[str, bytes] = {}

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._graphs[job_id] = bytes(data)

    async def get(self, job_id: str) -> bytes:
        if job_id not in self._graphs:
            raise StateHandleNotFoundError(f"jobgraphs/{job_id} is not in the store")
        return self._graphs[job_id]

    async def get_all(self) -> dict[str, bytes | StateCorruptedError]:
        return dict(self._graphs)

    async def job_ids(self) -> list[str]:
        return list(self._graphs)

    async def remove(self, job_id: str, term: LeaderTerm) -> bool:
        self._hub.require(term)
        return self._graphs.pop(job_id, None) is not None

    async def sweep(self, term: LeaderTerm) -> int:
        self._hub.require(term)
        return 0


class MemoryExecutionStore:
    """An `ExecutionStore` in memory."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self._hub = hub
        self._states: dict[str, bytes] = {}

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._states[job_id] = bytes(data)

    async def find(self, job_id: str) -> bytes | None:
        return self._states.get(job_id)

    async def remove(self, job_id: str, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._states.pop(job_id, None)

    async def sweep(self, term: LeaderTerm) -> int:
        self._hub.require(term)
        return 0


class MemoryRunningJobsRegistry:
    """A `RunningJobsRegistry` in memory."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self._hub = hub
        self._entries: dict[str, JobEntry] = {}

    async def set_pending(self, job_id: str, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._entries[job_id] = pending(job_id, self._entries.get(job_id))

    async def set_running(self, job_id: str, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._entries[job_id] = running(job_id, self._entries.get(job_id))

    async def set_done(self, job_id: str, result: JobResult, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._entries[job_id] = done(job_id, self._entries.get(job_id), result)

    async def mark_clean(self, job_id: str, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._entries[job_id] = clean(job_id, self._entries.get(job_id))

    async def forget(self, job_id: str, term: LeaderTerm) -> None:
        self._hub.require(term)
        self._entries.pop(job_id, None)

    async def entry(self, job_id: str) -> JobEntry | None:
        return self._entries.get(job_id)

    async def entries(self) -> dict[str, JobEntry]:
        return dict(self._entries)

    async def dirty_results(self) -> dict[str, JobResult]:
        return {job: entry.result for job, entry in self._entries.items() if entry.dirty and entry.result is not None}


class EmbeddedHaServices:
    """`HighAvailabilityServices` in memory.

    Args:
        addresses: of the leaders that run in other processes, by component.
    """

    def __init__(self, addresses: Mapping[str, str] | None = None) -> None:
        self._hub = EmbeddedHub()
        self._graphs = MemoryJobGraphStore(self._hub)
        self._executions = MemoryExecutionStore(self._hub)
        self._jobs = MemoryRunningJobsRegistry(self._hub)
        self._checkpoints = MemoryCheckpointRecoveryFactory(self._hub)
        for component, address in (addresses or {}).items():
            self.announce(component, address)

    async def start(self) -> None:
        """Nothing has to be reached."""

    def announce(self, component: str, address: str) -> None:
        """Make known a leader that runs in another process, in its first term."""
        term = first_term(component)
        self._hub.announce(LeaderInformation(component, address, term.epoch, term.session))

    def leader_election(self, component: str) -> DefaultLeaderElectionService:
        return DefaultLeaderElectionService(component, EmbeddedElectionDriver(self._hub, component))

    def leader_retrieval(self, component: str) -> EmbeddedRetrievalService:
        return EmbeddedRetrievalService(self._hub, component)

    def job_graph_store(self) -> MemoryJobGraphStore:
        return self._graphs

    def execution_store(self) -> MemoryExecutionStore:
        return self._executions

    def running_jobs_registry(self) -> MemoryRunningJobsRegistry:
        return self._jobs

    async def close(self) -> None:
        """Nothing is open."""

    async def cleanup(self) -> None:
        """Forget everything."""
        self._hub.clear()
        self._graphs = MemoryJobGraphStore(self._hub)
        self._executions = MemoryExecutionStore(self._hub)
        self._jobs = MemoryRunningJobsRegistry(self._hub)
        self._checkpoints = MemoryCheckpointRecoveryFactory(self._hub)

    def checkpoint_recovery_factory(self) -> MemoryCheckpointRecoveryFactory:
        return self._checkpoints
