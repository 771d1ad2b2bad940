"""Fencing: the leadership that a call addresses, and the leadership under which it acts.

A leader that was suspended or cut off beyond its lease may believe that it still leads, while another one does. Two
checks, each in one place, keep the former leader from changing anything:

1. *At the sender.* The gateways of a leader carry a `Fence`. It checks the clock of the lease before each message, and
   sends nothing once the lease may be over.
2. *At the receiver.* Each endpoint has `Fences`: the highest leadership of each component that it has seen. It rejects
   a call of a lower one before dispatch, with the epoch that it has seen, so that the sender gives up its leadership.
   It also rejects a call to a method `fenced_by` a component without a leadership of that component.

Flink fences only the calls *to* a leader (`FencingToken`). ZooKeeper's recipes and Kafka's controller epochs fence the
calls *of* a leader.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from actors.errors import FencingError, WireError
from actors.rpc.gateway import FencingToken

REMEMBERED = 16384
"""Number of components whose highest leadership is remembered; those with the oldest calls are forgotten first."""

ACTING: ContextVar[Leadership | None] = ContextVar("acting leadership", default=None)
"""The leadership under which the current call acts; None for a call that is not a leader's."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One period of leadership of a component, with the epoch and session of its `FencingToken`."""

    component: str
    epoch: int
    session: str

    @property
    def token(self) -> FencingToken:
        """The token of calls that address this leadership."""
        return FencingToken(self.epoch, self.session)

    def is_of(self, kind: str) -> bool:
        """Return whether its component is *kind*, or *kind* with a suffix such as ``jobmaster-<job id>``."""
        return self.component == kind or self.component.startswith(f"{kind}-")


class Fence:
    """Fencing fields of every call of a leader's gateway.

    Args:
        recipient: the leadership that the calls address; None for an unfenced endpoint.
        leadership: returns the leadership under which to act; raises `FencingError` once its lease may be over.
        refused: called with the `FencingError` of a receiver, which may name a later epoch.
    """

    __slots__ = ("_leadership", "_recipient", "_refused")

    def __init__(
        self,
        recipient: FencingToken | None,
        leadership: Callable[[], Leadership],
        refused: Callable[[FencingError], None],
    ) -> None:
        self._recipient = recipient
        self._leadership = leadership
        self._refused = refused

    def fields(self) -> tuple[Any, ...]:
        """Return the fencing fields of a message; raises `FencingError` when it must not be sent."""
        leader, recipient = self._leadership(), self._recipient
        if recipient is None:
            return None, None, leader.component, leader.epoch, leader.session
        return recipient.epoch, recipient.session, leader.component, leader.epoch, leader.session

    def answered(self, future: asyncio.Future[Any]) -> None:
        """Report a `FencingError` of an ended ask to the leader, whether or not the caller reads it."""
        if not future.cancelled() and isinstance(error := future.exception(), FencingError):
            self._refused(error)


class Fences:
    """The highest leadership of each component that an endpoint has seen."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, FencingToken] = OrderedDict()

    def observe(self, leadership: Leadership) -> None:
        """Record a leadership, for example one reported by the election; ignore one older than the recorded one."""
        known = self._highest.get(leadership.component)
        if known is None or known < leadership.token:
            self._highest[leadership.component] = leadership.token
        self._highest.move_to_end(leadership.component)
        if len(self._highest) > REMEMBERED:
            self._highest.popitem(last=False)

    def check(self, leadership: Leadership) -> None:
        """Record *leadership*; raises `FencingError` when a later one was seen."""
        self.observe(leadership)
        known = self._highest[leadership.component]
        if leadership.token < known:
            raise FencingError(f"the {leadership.component} of epoch {leadership.epoch} leads no more", known.epoch)

    def check_again(self) -> None:
        """Reject the current call if a later leadership was seen since its start.

        Handlers that wait before they change something call this.

        Raises:
            FencingError: the call has become stale.
        """
        leadership = ACTING.get()
        if leadership is not None:
            self.check(leadership)


def received(fields: Any) -> tuple[FencingToken | None, Leadership | None]:
    """Return the leadership that a message addresses, and the one under which it acts; raises `WireError`."""
    if fields is None:
        return None, None
    if isinstance(fields, list):
        kinds = [type(value) for value in fields]
        if kinds == [int, str]:
            return FencingToken(*fields), None
        if kinds[2:] == [str, int, str]:
            leadership = Leadership(*fields[2:])
            if kinds[:2] == [int, str]:
                return FencingToken(*fields[:2]), leadership
            if fields[:2] == [None, None]:
                return None, leadership
    raise WireError("malformed fencing token: neither [epoch, session] nor one followed by a leadership")
