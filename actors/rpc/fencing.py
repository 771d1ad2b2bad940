"""Fencing: which leadership a call is meant for, and which one it acts under.

Two leaders of one component may believe that they lead at the same time: one of them was stopped, or cut off, beyond
its lease. Two checks keep the former leader from changing anything, each in one place:

1. *At the sender.* The gateways of a leader carry a `Fence`. Before each message it passes the leader's gate, which
   asks the clock of the lease. Once the lease may be over nothing is sent.
2. *At the receiver.* Each endpoint has `Fences`: the highest leadership of each component that it has heard of. A call
   of a lower one is refused before dispatch, with the epoch that was seen, so that its sender steps down. A method that
   its gateway declares `fenced_by` a component is refused without a leadership of that component.

Flink fences the calls *to* a leader only (`FencingToken`); ZooKeeper's recipes and Kafka's controller epochs fence the
calls *of* one.
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
"""Number of components whose highest leadership is remembered; the longest silent ones are forgotten."""

ACTING: ContextVar[Leadership | None] = ContextVar("acting leadership", default=None)
"""The leadership under which the call acts that is being handled; None for calls of others than leaders."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One term of office of one leader: its component, and the epoch and session of its `FencingToken`."""

    component: str
    epoch: int
    session: str

    @property
    def token(self) -> FencingToken:
        """The token of calls that are meant for this leadership."""
        return FencingToken(self.epoch, self.session)

    def is_of(self, kind: str) -> bool:
        """Whether it is of the component *kind*, or of one of that kind, such as ``jobmaster-<job id>``."""
        return self.component == kind or self.component.startswith(f"{kind}-")


class Fence:
    """Fencing fields of every call of a leader's gateway.

    Args:
        recipient: the leadership that the calls are meant for; None for an unfenced endpoint.
        leadership: the gate. Returns the leadership to act under; raises `FencingError` once its lease may be over.
        refused: called with a receiver's refusal, which may name a later epoch.
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
        """The fields of a message that is about to be sent; raises `FencingError` where it may not be."""
        leader, recipient = self._leadership(), self._recipient
        if recipient is None:
            return None, None, leader.component, leader.epoch, leader.session
        return recipient.epoch, recipient.session, leader.component, leader.epoch, leader.session

    def answered(self, future: asyncio.Future[Any]) -> None:
        """An ask is over: the leader learns of a refusal, whether its caller looks at it or not."""
        if not future.cancelled() and isinstance(error := future.exception(), FencingError):
            self._refused(error)


class Fences:
    """The highest leadership of each component that an endpoint has heard of."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, FencingToken] = OrderedDict()

    def observe(self, leadership: Leadership) -> None:
        """A leadership was heard of, for example from whoever keeps the latch; an older one changes nothing."""
        known = self._highest.get(leadership.component)
        if known is None or known < leadership.token:
            self._highest[leadership.component] = leadership.token
        self._highest.move_to_end(leadership.component)
        if len(self._highest) > REMEMBERED:
            self._highest.popitem(last=False)

    def check(self, leadership: Leadership) -> None:
        """Observe *leadership*, and refuse its call where a later one was heard of; raises `FencingError`."""
        self.observe(leadership)
        known = self._highest[leadership.component]
        if leadership.token < known:
            raise FencingError(f"the {leadership.component} of epoch {leadership.epoch} leads no more", known.epoch)

    def check_again(self) -> None:
        """Refuse to go on with the call that is being handled, where a later leadership was heard of meanwhile.

        For handlers that wait before they change something.

        Raises:
            FencingError: the call is stale by now.
        """
        leadership = ACTING.get()
        if leadership is not None:
            self.check(leadership)


def received(fields: Any) -> tuple[FencingToken | None, Leadership | None]:
    """The leadership that a received message is meant for, and the one it acts under; raises `WireError`."""
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
