"""The names of all keys that a cluster has in Redis.

All of them contain the hash tag ``{understudy:<cluster-id>}``. So Redis Cluster keeps them in one slot, and one script
may use several.
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
        """The beginning of every key of the cluster."""
        return f"{{understudy:{self.cluster_id}}}:"

    @property
    def epoch(self) -> str:
        """The highest epoch granted; one counter for the whole cluster, so that latches leave nothing behind."""
        return self.prefix + "epoch"

    @property
    def incarnation(self) -> str:
        """A hash: the incarnation of the server that last received a request for a latch, and when it may grant one."""
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

    @property
    def users(self) -> str:
        """The hash of users and their tokens, which the end of the cluster keeps."""
        return self.prefix + "users"

    @property
    def feature_level(self) -> str:
        """The hash with the cluster's feature level in its one field."""
        return self.prefix + "feature-level"

    def leader(self, component: str) -> str:
        """Return the latch of a component: a hash of owner, epoch and address that expires with the lease."""
        return f"{self.prefix}leader:{checked_name('component', component)}"

    def handles(self, kind: str) -> str:
        """Return the hash of entry name to state handle for one kind of states, for example job graphs."""
        return f"{self.prefix}handles:{checked_name('kind of handles', kind)}"
