"""The names of every key that a cluster has in Redis.

All of them carry the hash tag ``{understudy:<cluster-id>}``, so that Redis Cluster holds them in one slot and one
script may touch several.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.protocol.leader import checked_name


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The keys of one cluster.

    Args:
        cluster_id: letters, digits, dots, dashes and underscores only (it is part of a SCAN pattern).
    """

    cluster_id: str

    def __post_init__(self) -> None:
        checked_name("cluster id", self.cluster_id)

    @property
    def prefix(self) -> str:
        """What every key of the cluster starts with."""
        return f"{{understudy:{self.cluster_id}}}:"

    @property
    def epoch(self) -> str:
        """The highest epoch handed out; one counter for the cluster, so that latches leave nothing behind."""
        return self.prefix + "epoch"

    @property
    def incarnation(self) -> str:
        """A hash: the incarnation of the server that was last asked for a latch, and from when on it may give one."""
        return self.prefix + "incarnation"

    @property
    def changes(self) -> str:
        """The pub/sub channel on which the name of a component is published when its leader changes."""
        return self.prefix + "changes"

    @property
    def running_jobs(self) -> str:
        """The hash of job id to scheduling status and result."""
        return self.prefix + "jobs:status"

    @property
    def checkpoint_ids(self) -> str:
        """The hash of job id to the number of its next checkpoint."""
        return self.prefix + "checkpoint-ids"

    def leader(self, component: str) -> str:
        """The latch of a component: a hash of owner, epoch and address that expires with the lease."""
        return f"{self.prefix}leader:{checked_name('component', component)}"

    def handles(self, kind: str) -> str:
        """A hash of entry name to state handle, for example of the job graphs."""
        return f"{self.prefix}handles:{checked_name('kind of handles', kind)}"
