"""The BlobServer as a component of a cluster: adds metrics, which the blob service itself does not have."""

from __future__ import annotations

from typing import Any

import blob.endpoint
from actors.rpc.service import RpcService
from blob.endpoint import BlobServerEndpoint
from blob.gateway import NAME
from runtime.metrics.metric import MetricScope, ScopeCategory, Value
from runtime.metrics.registry import MetricRegistry, add_process_metrics, serve_metrics


def blob_server_metrics(service: RpcService, server: BlobServerEndpoint) -> MetricRegistry:
    """Return the metric registry of a BlobServer's process."""
    registry = MetricRegistry()
    group = registry.group(MetricScope(ScopeCategory.JOB_MANAGER, component=NAME))

    def figures() -> dict[str, Value | None]:
        stats = server.statistics()
        return {
            "numConnections": stats.connections,
            "totalBytes": stats.total_bytes,
            "numOwners": stats.owners,
            "numParkedUploads": stats.parked_uploads,
            "numPuts": stats.puts,
            "numGets": stats.gets,
            "numDeletes": stats.deletes,
            "numRefusals": stats.refusals,
            "numBytesReceived": stats.bytes_received,
            "numBytesSent": stats.bytes_sent,
        }

    group.gauges("Blob", figures)
    add_process_metrics(group, service)
    return registry


async def create(service: RpcService, name: str, **arguments: Any) -> BlobServerEndpoint:
    """Create the BlobServer in the actor's host; *arguments* are those of `blob.endpoint.create`."""
    server = await blob.endpoint.create(service, name, **arguments)
    await serve_metrics(service, blob_server_metrics(service, server))
    return server
