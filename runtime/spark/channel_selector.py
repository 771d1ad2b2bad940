"""Which partition of its reader a row goes to (Flink's `ChannelSelector`), as part of the reader's Spark plan."""

from __future__ import annotations

from pyspark.sql import DataFrame

from runtime.jobgraph.job_graph import ShipStrategy


def select_channels(
    frame: DataFrame, ship: ShipStrategy, keys: tuple[str, ...] = (), parallelism: int = 0
) -> DataFrame:
    """Divide *frame* among the partitions of a reader.

    Spark must see this in the reader's own plan: only then does it know of the partitioning, and adds no exchange of
    its own before a join or an aggregation by the same keys.

    Args:
        frame: what is read.
        ship: FORWARD leaves the partitions as they are; BROADCAST hints that every partition gets all rows in joins.
        keys: columns of HASH: rows that are equal in them go to one partition.
        parallelism: how many partitions HASH and REBALANCE make; 0 leaves it to Spark, while it runs.
    """
    match ship:
        case ShipStrategy.HASH if parallelism:
            return frame.repartition(parallelism, *keys)
        case ShipStrategy.HASH:
            return frame.repartition(*keys)
        case ShipStrategy.REBALANCE:
            return frame.repartition(parallelism) if parallelism else frame.hint("rebalance")
        case ShipStrategy.BROADCAST:
            return frame.hint("broadcast")
        case ShipStrategy.FORWARD:
            return frame
