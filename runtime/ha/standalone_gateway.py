"""How the master is asked that keeps the latches and handles of a cluster without Redis."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, reads
from runtime.ha.fenced import HashWrite
from runtime.ha.latch import AcquireReply
from runtime.protocol.leader import LeaderInformation, LeaderTerm

PATH = "/system/high-availability"


@dataclass(frozen=True, slots=True)
class LeaderChanges:
    """What has changed since the asker last asked.

    Args:
        version: to ask with the next time.
        components: whose leaders have changed; None: that cannot be told, look at all.
    """

    version: int
    components: list[str] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a conditional write demands of the field that it changes.

    Args:
        kind: ``any``, ``absent`` or ``equals``.
        value: where it is ``equals``: what it has to be.
    """

    kind: str
    value: str


class HighAvailabilityGateway(RpcGateway):
    """Latches, and maps that are written under a fence; see `runtime.ha.latch` and `runtime.ha.fenced`."""

    def acquire(self, component: str, session: str, lease_s: float, floor: int) -> Ask[AcquireReply]:
        """Take the latch of a component for *lease_s* seconds, with an epoch above *floor*."""
        raise NotImplementedError

    def renew(self, term: LeaderTerm, lease_s: float) -> Ask[bool]:
        """Begin another lease; False where the latch is not the term's any more."""
        raise NotImplementedError

    def release(self, term: LeaderTerm) -> Ask[bool]:
        """Give the latch back; False where it was not the term's any more."""
        raise NotImplementedError

    def confirm(self, term: LeaderTerm, address: str) -> Ask[bool]:
        """Publish the leader's address; False where the latch is not the term's any more."""
        raise NotImplementedError

    def depose(self, component: str, term: LeaderTerm) -> Ask[None]:
        """End the term of a component, whosever it is, in the name of *term*.

        Raises:
            LeadershipLostError: that is over itself.
        """
        raise NotImplementedError

    @reads
    def find_leader(self, component: str) -> Ask[LeaderInformation | None]:
        """The confirmed leader of a component; None while there is none."""
        raise NotImplementedError

    @reads
    def await_changes(self, version: int) -> Ask[LeaderChanges]:
        """Answered when a leader has changed since *version*, or after `POLL_S` in any case."""
        raise NotImplementedError

    @reads
    def read_field(self, key: str, field: str) -> Ask[str | None]:
        """The value of a field of a map."""
        raise NotImplementedError

    @reads
    def read_map(self, key: str) -> Ask[dict[str, str]]:
        """A whole map."""
        raise NotImplementedError

    def write_field(self, key: str, field: str, value: str, term: LeaderTerm, wanted: Wanted) -> Ask[HashWrite]:
        """Set a field, if it is as wanted.

        Raises:
            LeadershipLostError: the term is over.
        """
        raise NotImplementedError

    def delete_field(self, key: str, field: str, term: LeaderTerm, wanted: Wanted) -> Ask[HashWrite]:
        """Delete a field, if it is as wanted.

        Raises:
            LeadershipLostError: the term is over.
        """
        raise NotImplementedError

    def clear(self) -> Ask[None]:
        """Forget all latches and maps; for the end of the cluster."""
        raise NotImplementedError


POLL_S = 20.0
"""The longest that `HighAvailabilityGateway.await_changes` waits, in seconds."""
