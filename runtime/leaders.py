"""Follows the leader of a component, and provides a gateway to it while there is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FencedRpcGateway, FencingToken
from actors.rpc.service import RpcService
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.protocol.leader import LeaderInformation

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=FencedRpcGateway)


class LeaderFollower(Generic[G]):
    """A `LeaderRetrievalListener` that creates a gateway to each new leader.

    It remembers the highest epoch. A leader with an older epoch (Redis has lost writes) is called with the token of the
    highest, which it rejects; so it learns that it needs a higher epoch.

    Args:
        owner: creates the gateways. An endpoint also rejects calls of earlier leaders from then on.
        retrieval: the retrieval service of the component; stopped by `stop`.
        gateway_type: the component's interface.
        on_change: called with the new gateway, or None when there is no leader any more.
    """

    def __init__(
        self,
        owner: RpcService | RpcEndpoint,
        retrieval: LeaderRetrievalService,
        gateway_type: type[G],
        on_change: Callable[[G | None], None] | None = None,
    ) -> None:
        self._owner = owner
        self._retrieval = retrieval
        self._gateway_type = gateway_type
        self._on_change = on_change
        self._known = asyncio.Event()
        self._highest: FencingToken | None = None
        self.leader: LeaderInformation | None = None
        self.gateway: G | None = None

    async def start(self) -> None:
        """Start following."""
        await self._retrieval.start(self)

    async def stop(self) -> None:
        """Stop following."""
        await self._retrieval.stop()

    async def get(self) -> G:
        """Wait for a leader, and return its gateway."""
        while self.gateway is None:
            await self._known.wait()
        return self.gateway

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """Handle a change of the leader; called by the retrieval service."""
        self.leader = leader
        if leader is None:
            self.gateway = None
            self._known.clear()
        else:
            token = FencingToken(leader.epoch, leader.session)
            if self._highest is not None and token.epoch < self._highest.epoch:
                logger.warning(
                    "the leader at %s has epoch %d: %d was seen", leader.address, token.epoch, self._highest.epoch
                )
                token = self._highest
            self._highest = token
            if isinstance(self._owner, RpcEndpoint):
                self._owner.fences.observe(leader.term)
            self.gateway = self._owner.gateway(leader.address, self._gateway_type, token)
            self._known.set()
        if self._on_change is not None:
            self._on_change(self.gateway)

    def handle_error(self, error: Exception) -> None:
        """Handle a fatal error of the retrieval service, which calls this."""
        logger.error("following the %s failed", self._gateway_type.__name__, exc_info=error)
