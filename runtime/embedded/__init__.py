"""A cluster beside a program's own Spark driver: actors, latches and blobs, and checkpoints of its streaming queries.

    from runtime.embedded import EmbeddedCluster

    spark = SparkSession.builder.getOrCreate()
    with EmbeddedCluster(spark) as cluster:
        query = events.writeStream.queryName("counts").option("checkpointLocation", ...).start()
        cluster.savepoint("/savepoints")

It follows Flink's MiniCluster, but with real processes; docs/embedding.md describes its features and limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.embedded.access import ClusterAccess

if TYPE_CHECKING:
    from runtime.embedded.cluster import EmbeddedCluster, EmbeddedClusterError

__all__ = ["ClusterAccess", "EmbeddedCluster", "EmbeddedClusterError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runtime.embedded import cluster  # imported here: an executor that unpickles a ClusterAccess does not need it

    return getattr(cluster, name)
