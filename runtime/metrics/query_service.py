"""The actor that tells the metrics of its process to whoever asks (Flink's `MetricQueryService`)."""

from __future__ import annotations

from actors.address import ActorAddress
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from runtime.metrics.dump import ScopeDump
from runtime.metrics.gateway import NAME, PATH, MetricQueryServiceGateway
from runtime.metrics.registry import MetricRegistry


class MetricQueryService(RpcEndpoint, MetricQueryServiceGateway):
    """Reads the registry when it is asked, and only then.

    Args:
        service: the RPC service of the process.
        registry: its metrics.
    """

    def __init__(self, service: RpcService, registry: MetricRegistry) -> None:
        super().__init__(service, NAME)
        self._registry = registry

    @rpc_sync
    def query_metrics(self) -> list[ScopeDump]:
        return self._registry.snapshot()


async def serve_metrics(service: RpcService, registry: MetricRegistry) -> None:
    """Let the metrics of this process be asked for, until its RPC service is closed."""
    await service.start_server(MetricQueryService(service, registry))


def beside(address: ActorAddress | str) -> str:
    """The address of the MetricQueryService in the process of the component at *address*."""
    known = ActorAddress.parse(address) if isinstance(address, str) else address
    return str(known.with_path(PATH))
