"""How a web endpoint is asked by the components of its own system; users ask it by HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, reads


@dataclass(frozen=True, slots=True)
class RestAddress:
    """Where a web endpoint serves: its URL, and the port of that alone."""

    url: str
    port: int


class WebMonitorGateway(RpcGateway):
    """Not fenced: every instance serves, whichever is the elected one."""

    @reads
    def request_rest_address(self) -> Ask[RestAddress]:
        """Where it serves."""
        raise NotImplementedError
