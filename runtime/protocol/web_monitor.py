"""The gateway of a web endpoint for the components of its own actor system; users call it by HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, reads


@dataclass(frozen=True, slots=True)
class RestAddress:
    """Address of a web endpoint: its URL, and the port in it."""

    url: str
    port: int


class WebMonitorGateway(RpcGateway):
    """Calls to a web endpoint. Not fenced: every instance serves, also those that are not elected."""

    @reads
    def request_rest_address(self) -> Ask[RestAddress]:
        """Return the address at which it serves."""
        raise NotImplementedError
