"""What a node knows of the other nodes that it has spoken with (Akka's ``Association`` and ``Quarantined``). Pure.

A node is an address and the uid of one incarnation of the process there. Once an incarnation has been declared dead, it
stays so: actors here have been told that its actors are gone, and it must not speak as if they were not. Only a new
incarnation at the address is spoken with again.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)

REMEMBERED = 1000


class State(enum.Enum):
    """What is known of the incarnation that was last seen at an address."""

    ASSOCIATED = "associated"
    UNREACHABLE = "unreachable"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Association:
    """An incarnation of a node.

    Args:
        uid: random number of the incarnation.
        state: what is known of it.
        reason: why it is in quarantine, or "".
    """

    uid: int
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What follows from having heard of a node.

    Args:
        accepted: whether it is to be spoken with; False for one in quarantine.
        superseded: uid of the incarnation that it has taken the place of, which is dead therefore; else None.
        returned: whether it had been unreachable.
    """

    accepted: bool
    superseded: int | None = None
    returned: bool = False


class Associations(Generic[A]):
    """The table of other nodes, by address.

    Args:
        remembered: how many uids in quarantine are remembered; the oldest are forgotten first.

    Raises:
        ValueError: *remembered* is not a positive number.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        if remembered < 1:
            raise ValueError(f"at least one uid has to be remembered, not {remembered!r}")
        self._remembered = remembered
        self._by_address: dict[A, Association] = {}
        self._quarantined: dict[int, str] = {}

    def seen(self, address: A, uid: int) -> Seen:
        """A node with that uid has been heard of at *address*.

        Another incarnation that was known there before is superseded, and in quarantine from now on.
        """
        if uid in self._quarantined:
            return Seen(False)
        known = self._by_address.get(address)
        self._by_address[address] = Association(uid, State.ASSOCIATED)
        if known is None or known.uid in self._quarantined:
            return Seen(True)
        if known.uid == uid:
            return Seen(True, returned=known.state is State.UNREACHABLE)
        self._remember(known.uid, f"another incarnation ({uid}) has taken its address {address}")
        return Seen(True, superseded=known.uid)

    def unreachable(self, address: A) -> bool:
        """Nothing gets through to *address* at the moment; False when that changes nothing."""
        known = self.association(address)
        if known is None or known.state is not State.ASSOCIATED:
            return False
        self._by_address[address] = Association(known.uid, State.UNREACHABLE)
        return True

    def quarantine(self, address: A, uid: int, reason: str) -> bool:
        """The incarnation *uid* at *address* is dead, once and for all; False when that was known."""
        self._by_address.setdefault(address, Association(uid, State.UNREACHABLE))
        if uid in self._quarantined:
            return False
        self._remember(uid, reason)
        return True

    def accept_from(self, uid: int) -> bool:
        """Whether messages of that incarnation are to be taken."""
        return uid not in self._quarantined

    def may_send_to(self, address: A) -> bool:
        """Whether to try: yes, unless the incarnation that was last seen there is in quarantine."""
        known = self._by_address.get(address)
        return known is None or known.uid not in self._quarantined

    def association(self, address: A) -> Association | None:
        """What is known of the node at *address*."""
        known = self._by_address.get(address)
        if known is None or known.uid not in self._quarantined:
            return known
        return Association(known.uid, State.QUARANTINED, self._quarantined[known.uid])

    def reason(self, uid: int) -> str | None:
        """Why that incarnation is in quarantine; None when it is not."""
        return self._quarantined.get(uid)

    def _remember(self, uid: int, reason: str) -> None:
        self._quarantined[uid] = reason
        if len(self._quarantined) > self._remembered:
            oldest = next(iter(self._quarantined))
            del self._quarantined[oldest]
            # An address whose quarantined incarnation is forgotten is an address like any other.
            for address in [each for each, known in self._by_address.items() if known.uid == oldest]:
                del self._by_address[address]
