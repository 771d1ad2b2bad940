"""Following the leader of a component: always its present gateway, or none."""

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
    """A `LeaderRetrievalListener` that turns what it hears into gateways.

    It remembers the highest epoch. A leader behind that (Redis has lost writes) is called with the token of the
    highest, which it refuses; so it learns that it has to take a higher one.

    Args:
        owner: makes the gateways. An endpoint also refuses, from then on, the calls of the leaders before the one that
            is heard of.
        retrieval: the retrieval service of the component; stopped with `stop`.
        gateway_type: the component's interface.
        on_change: called with the new gateway, or None when the leader is gone.
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
        """Begin to follow."""
        await self._retrieval.start(self)

    async def stop(self) -> None:
        """Follow no more."""
        await self._retrieval.stop()

    async def get(self) -> G:
        """The leader's gateway, as soon as there is one."""
        while self.gateway is None:
            await self._known.wait()
        return self.gateway

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """Called by the retrieval service."""
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
        """Called by the retrieval service when it cannot go on."""
        logger.error("following the %s failed", self._gateway_type.__name__, exc_info=error)
