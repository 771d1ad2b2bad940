"""Has a master's receptionist know who leads, whichever master's component that is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from actors.receptionist import Listing, Receptionist
from actors.rpc.endpoint import USER_ROOT
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.ha.services import HighAvailabilityServices
from runtime.protocol.leader import LeaderInformation, LeaderTerm

log = logging.getLogger(__name__)


class _Entry:
    """Follows the leader of one component."""

    def __init__(
        self,
        receptionist: Receptionist,
        component: str,
        retrieval: LeaderRetrievalService,
        observe: Callable[[LeaderTerm], None],
    ) -> None:
        self._receptionist = receptionist
        self._observe = observe
        self._path = USER_ROOT + component
        self.retrieval = retrieval
        self.leader: LeaderInformation | None = None

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """Called by the retrieval service."""
        if leader is not None:
            self._observe(leader.term)
            self._receptionist.enter(Listing(self._path, leader.address, 0, leader.term.token))
        elif self.leader is not None:
            self._receptionist.deregister(self._path, self.leader.address)
        self.leader = leader

    def handle_error(self, error: Exception) -> None:
        """Called by the retrieval service when it cannot go on."""
        log.error("following the leader of %s failed", self._path, exc_info=error)


class LeaderBoard:
    """The leaders of some components, entered into a receptionist: so every living master answers for all.

    Args:
        receptionist: of this master.
        ha: finds the leaders.
        components: whose.
        observe: called with each leadership that is heard of.
    """

    def __init__(
        self,
        receptionist: Receptionist,
        ha: HighAvailabilityServices,
        components: Iterable[str],
        observe: Callable[[LeaderTerm], None],
    ) -> None:
        self._entries = {
            component: _Entry(receptionist, component, ha.leader_retrieval(component), observe)
            for component in components
        }

    async def start(self) -> None:
        """Begin to follow."""
        for entry in self._entries.values():
            await entry.retrieval.start(entry)

    async def stop(self) -> None:
        """Follow no more."""
        for entry in self._entries.values():
            await entry.retrieval.stop()

    def address_of(self, component: str) -> str:
        """The address of the present leader; empty while there is none."""
        leader = self._entries[component].leader
        return "" if leader is None else leader.address
