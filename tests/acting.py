"""Calls of a leader that has no election: what a test sends in the name of a leadership."""

from __future__ import annotations

from collections.abc import Callable

from actors.address import ActorAddress
from actors.errors import FencingError
from actors.rpc.endpoint import G, RpcEndpoint
from actors.rpc.fencing import Fence, Leadership
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcService


def acting(
    leadership: Leadership,
    recipient: FencingToken | None = None,
    refused: Callable[[FencingError], None] = lambda error: None,
) -> Fence:
    """What the gateways of the leader of *leadership* carry, whose lease never ends."""
    return Fence(recipient, lambda: leadership, refused)


class ActingEndpoint(RpcEndpoint):
    """An endpoint whose calls act under a leadership."""

    def __init__(self, service: RpcService, name: str, leadership: Leadership) -> None:
        super().__init__(service, name)
        self.leadership = leadership

    def gateway(
        self,
        address: ActorAddress | str,
        gateway_type: type[G],
        token: FencingToken | None = None,
        timeout_s: float | None = None,
    ) -> G:
        """As a leader's."""
        return self.service.gateway(address, gateway_type, acting(self.leadership, token), timeout_s)
