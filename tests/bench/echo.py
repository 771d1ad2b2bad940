"""The endpoint that the RPC benchmark asks."""

from __future__ import annotations

from actors.rpc.endpoint import FencedRpcEndpoint
from actors.rpc.gateway import Ask, FencedRpcGateway, FencingToken, rpc_sync, rpc_tell
from actors.rpc.service import RpcService

TOKEN = FencingToken(1, "bench")


class EchoGateway(FencedRpcGateway):
    """A fenced gateway with a trivial ask and a trivial tell."""

    def echo(self, data: bytes) -> Ask[bytes]:
        """Return *data*."""
        raise NotImplementedError

    def note(self, data: bytes) -> None:
        """Count."""
        raise NotImplementedError

    def noted(self) -> Ask[int]:
        """How many notes came."""
        raise NotImplementedError


class Echo(FencedRpcEndpoint, EchoGateway):
    """Answers under `TOKEN`."""

    async def on_start(self) -> None:
        self.fencing_token = TOKEN
        self._noted = 0

    @rpc_sync
    def echo(self, data: bytes) -> bytes:
        return data

    @rpc_tell
    def note(self, data: bytes) -> None:
        self._noted += 1

    @rpc_sync
    def noted(self) -> int:
        return self._noted


async def create(service: RpcService, name: str) -> Echo:
    """Factory for the actor's host."""
    return Echo(service, name)
