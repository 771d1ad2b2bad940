"""The masters that serve a cluster, also those on other hosts.

Masters of one host find each other by their claims in the runtime directory. Those of other hosts have runtime
directories of their own. So each master holds a latch of its own, under a new name, for as long as it serves. A master
that is killed disappears with its lease.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol
from uuid import uuid4

from runtime.ha.election import LeaderElectionService
from runtime.protocol.leader import LeaderTerm

logger = logging.getLogger(__name__)

MASTER_PREFIX = "master-"
"""Prefix of the component names under which masters hold their latches."""


class _Elections(Protocol):
    def leader_election(self, component: str) -> LeaderElectionService:
        """Return a new election service for one contender of ``component``."""


class MasterRegistration:
    """Lists one master among those that serve, from `start` to `stop`; use it once.

    Args:
        ha: the high-availability services of the master's process.
        address: of the master's actor system.
    """

    def __init__(self, ha: _Elections, address: str) -> None:
        self._election = ha.leader_election(f"{MASTER_PREFIX}{uuid4().hex}")
        self._address = address
        self._confirming: asyncio.Task[bool] | None = None

    async def start(self) -> None:
        """List the master, once Redis answers; do not wait for it."""
        await self._election.start(self)

    async def stop(self) -> None:
        """Remove the master from the list."""
        await self._election.stop()

    def grant_leadership(self, term: LeaderTerm) -> None:
        """Publish the address; called by the election."""
        self._confirming = asyncio.create_task(self._election.confirm_leadership(term, self._address))

    def revoke_leadership(self) -> None:
        """Do nothing: the election contends again unless it is stopped."""

    def handle_error(self, error: Exception) -> None:
        """Log the end of the election; called by it."""
        logger.error("masters on other hosts do not find this one any more: %s", error)
