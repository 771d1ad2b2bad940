"""The gateway to the latches and handles of a cluster without Redis, which its master keeps."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway, reads
from runtime.ha.fenced import HashWrite
from runtime.ha.latch import AcquireReply
from runtime.protocol.leader import LeaderInformation, LeaderTerm

PATH = "/system/high-availability"


@dataclass(frozen=True, slots=True)
class LeaderChanges:
    """Changes of leaders since the caller's last call.

    Args:
        version: argument for the next call.
        components: components whose leaders have changed; None: unknown, so read all leaders.
    """

    version: int
    components: list[str] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Condition of a write on the field that it changes.

    Args:
        kind: ``any``, ``absent`` or ``equals``.
        value: the value that the field has to have, for ``equals``; else empty.
    """

    kind: str
    value: str


class HighAvailabilityGateway(RpcGateway):
    """Latches, and maps that are written under a fence; see `runtime.ha.latch` and `runtime.ha.fenced`."""

    def acquire(self, component: str, session: str, lease_s: float, floor: int) -> Ask[AcquireReply]:
        """Take the latch of a component for *lease_s* seconds, with an epoch above *floor*."""
        raise NotImplementedError

    def renew(self, term: LeaderTerm, lease_s: float) -> Ask[bool]:
        """Begin another lease; return False if the term no longer holds the latch."""
        raise NotImplementedError

    def release(self, term: LeaderTerm) -> Ask[bool]:
        """Release the latch; return False if the term no longer held it."""
        raise NotImplementedError

    def confirm(self, term: LeaderTerm, address: str) -> Ask[bool]:
        """Publish the leader's address; return False if the term no longer holds the latch."""
        raise NotImplementedError

    def depose(self, component: str, term: LeaderTerm) -> Ask[None]:
        """End the current term of a component on behalf of *term*.

        Raises:
            LeadershipLostError: *term* is over.
        """
        raise NotImplementedError

    @reads
    def find_leader(self, component: str) -> Ask[LeaderInformation | None]:
        """Return the confirmed leader of a component; None while there is none."""
        raise NotImplementedError

    @reads
    def await_changes(self, version: int) -> Ask[LeaderChanges]:
        """Return the changes since *version*: when there is one, or after `POLL_S` at the latest."""
        raise NotImplementedError

    @reads
    def read_field(self, key: str, field: str) -> Ask[str | None]:
        """Return the value of a field of a map; None if there is none."""
        raise NotImplementedError

    @reads
    def read_map(self, key: str) -> Ask[dict[str, str]]:
        """Return a whole map."""
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
        """Delete all latches and maps; call it at the end of the cluster."""
        raise NotImplementedError


POLL_S = 20.0
"""The longest that `HighAvailabilityGateway.await_changes` waits, in seconds."""
