"""The masters that serve a cluster, also those on other hosts.

Masters of one host find each other by their claims in the runtime directory. Those of other hosts have runtime
directories of their own. So each master holds a latch of its own, under a new name, for as long as it serves. A master
that is killed disappears with its lease.

The Dispatcher that raises the feature level asks all masters that are listed. A master that is not listed for a moment,
because Redis was away, is not asked. So each reads the level again once it is listed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from runtime.ha.election import LeaderElectionService
from runtime.ha.errors import FeatureLevelUnsupportedError, HaError
from runtime.ha.feature_level import FeatureLevelStore
from runtime.protocol.leader import LeaderTerm

logger = logging.getLogger(__name__)

MASTER_PREFIX = "master-"
"""Prefix of the component names under which masters hold their latches."""


class _Services(Protocol):
    def leader_election(self, component: str) -> LeaderElectionService:
        """Return a new election service for one contender of ``component``."""

    def feature_level_store(self) -> FeatureLevelStore:
        """Return the store of the cluster's feature level."""


class MasterRegistration:
    """Lists one master among those that serve, from `start` to `stop`; use it once.

    Args:
        ha: the high-availability services of the master's process.
        address: of the master's actor system.
        refuse: called if the master, which is listed, must not work for the cluster any more; it calls `stop` then.
    """

    def __init__(self, ha: _Services, address: str, refuse: Callable[[FeatureLevelUnsupportedError], None]) -> None:
        self._election = ha.leader_election(f"{MASTER_PREFIX}{uuid4().hex}")
        self._level = ha.feature_level_store()
        self._address = address
        self._refuse = refuse
        self._entering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the master, once Redis answers; do not wait for it."""
        await self._election.start(self)

    async def stop(self) -> None:
        """Remove the master from the list."""
        await self._election.stop()

    def grant_leadership(self, term: LeaderTerm) -> None:
        """Publish the address, and read the feature level; called by the election."""
        self._entering = asyncio.create_task(self._enter(term))

    async def _enter(self, term: LeaderTerm) -> None:
        if not await self._election.confirm_leadership(term, self._address):
            return
        try:
            await self._level.current()
        except FeatureLevelUnsupportedError as error:
            self._refuse(error)
        except HaError as error:
            self._election.step_down(term, f"the cluster's feature level is not known: {error}")  # it contends again

    def revoke_leadership(self) -> None:
        """Do nothing: the election contends again unless it is stopped."""

    def handle_error(self, error: Exception) -> None:
        """Log the end of the election; called by it."""
        logger.error("masters on other hosts do not find this one any more: %s", error)
