"""Access to the actors and blobs of an embedded cluster for code in Spark's executors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from actors.rpc.gateway import RpcGateway
from actors.rpc.service import RpcConfig
from actors.rpc.tls import TlsConfig
from blob.key import BlobKey, TransientBlobKey
from runtime.client import ClusterClient
from runtime.notebook.cluster import Cluster

if TYPE_CHECKING:
    from runtime.notebook.gateways import SynchronousDispatcherGateway
    from runtime.protocol.dispatcher import DispatcherGateway


class SecretHolder(Protocol):
    """A `pyspark.Broadcast` of the cluster's secret."""

    @property
    def value(self) -> bytes:
        """Return the secret."""


@dataclass(frozen=True)
class ClusterAccess:
    """Access to the cluster for functions that Spark runs; created by `EmbeddedCluster.access`.

    It travels with the function. The secret does not: only the number of a broadcast variable travels, which an
    executor fetches from the driver like any other.

    Args:
        masters: addresses of the cluster's masters.
        secret: see `SecretHolder`.
        frame_size: ``rpc.frame-size`` of the cluster, in bytes.
        tls: its certificates, at the same paths on every machine; None where TLS is off.
    """

    masters: tuple[str, ...]
    secret: SecretHolder
    frame_size: int
    tls: TlsConfig | None = None

    def cluster(self) -> Cluster:
        """Return this process's handle of the cluster, which stays open."""
        key = os.getpid(), self.masters, self.secret.value  # another cluster may follow at the same address
        if key not in _open:
            rpc = RpcConfig(frame_size=self.frame_size, tls=self.tls)
            _open[key] = Cluster(ClusterClient(self.masters, self.secret.value, rpc=rpc))
        return _open[key]

    @overload
    def actor(self, name: str, gateway_type: type[DispatcherGateway]) -> SynchronousDispatcherGateway: ...

    @overload
    def actor(self, name: str, gateway_type: type[RpcGateway]) -> Any: ...

    def actor(self, name: str, gateway_type: type[RpcGateway]) -> Any:
        """Return an actor by its name in the cluster or by its address; see `runtime.notebook.Cluster.actor`."""
        return self.cluster().actor(name, gateway_type)

    def put_blob(self, data: bytes) -> str:
        """Store bytes in the cluster's BlobServer until they are deleted, and return their key."""
        with self.cluster().client.blobs() as blobs:
            return str(blobs.put_bytes(data, TransientBlobKey))

    def get_blob(self, key: str) -> bytes:
        """Return the bytes stored under a key; raises `BlobNotFound`."""
        with self.cluster().client.blobs() as blobs:
            return blobs.get_bytes(BlobKey.parse(key))

    def delete_blob(self, key: str) -> bool:
        """Remove the bytes stored under a key; return whether there were any."""
        parsed = BlobKey.parse(key)
        with self.cluster().client.blobs() as blobs:
            return isinstance(parsed, TransientBlobKey) and blobs.delete(parsed)


_open: dict[tuple[int, tuple[str, ...], bytes], Cluster] = {}
