from __future__ import annotations

import collections
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.errors import MailboxFull, SerializationError
from actors.mailbox import (
    BoundedMailbox,
    ControlAwareMailbox,
    Envelope,
    Mailbox,
    MailboxType,
    Overflow,
    PriorityMailbox,
    UnboundedMailbox,
)
from actors.messages import ControlMessage
from actors.serialization import Serializer, message

SERIALIZER = Serializer(lambda text: None)  # type: ignore[arg-type,return-value]


@message
class Urgent(ControlMessage):
    number: int


def first(value: Any) -> Any:
    return value[0]


def envelopes(*messages: Any) -> list[Envelope]:
    return [Envelope(each, None) for each in messages]


def fill(mailbox: Mailbox, *messages: Any) -> Mailbox:
    for envelope in envelopes(*messages):
        assert mailbox.put(envelope) == ()
    return mailbox


def drained(mailbox: Mailbox) -> list[Any]:
    return [envelope.message for envelope in mailbox.drain()]


KINDS: list[MailboxType] = [UnboundedMailbox(), BoundedMailbox(100), PriorityMailbox(str), ControlAwareMailbox()]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_what_all_have_in_common(kind: MailboxType) -> None:
    mailbox = kind.create()
    assert len(mailbox) == 0
    assert mailbox.get() is None
    assert mailbox.drain() == []
    fill(mailbox, "a", "b", "c")
    assert len(mailbox) == 3
    assert mailbox.get() == Envelope("a", None)
    mailbox.put_first(envelopes("a"))
    assert drained(mailbox) == ["a", "b", "c"]
    assert len(mailbox) == 0
    assert not mailbox.saturated
    assert kind.create() is not mailbox


@given(st.lists(st.one_of(st.integers(), st.none(), st.lists(st.integers(), min_size=1, max_size=3))))
def test_unbounded_is_a_queue(steps: list[Any]) -> None:
    """A number is put, None is a get, a list is put to the front."""
    mailbox = UnboundedMailbox().create()
    model: collections.deque[Any] = collections.deque()
    for step in steps:
        if step is None:
            got = mailbox.get()
            assert (got.message if got is not None else None) == (model.popleft() if model else None)
        elif isinstance(step, list):
            mailbox.put_first(envelopes(*step))
            model.extendleft(reversed(step))
        else:
            fill(mailbox, step)
            model.append(step)
        assert len(mailbox) == len(model)
    assert drained(mailbox) == list(model)


# ---------------------------------------------------------------------------------------------- bounded


def test_fail() -> None:
    mailbox = fill(BoundedMailbox(2).create("/user/a"), 1, 2)
    with pytest.raises(MailboxFull, match=r"mailbox of /user/a is full \(2 messages\), so a message of type int"):
        mailbox.put(Envelope(3, None))
    mailbox.get()
    assert mailbox.put(Envelope(4, None)) == ()
    assert drained(mailbox) == [2, 4]


def test_drop_new() -> None:
    mailbox = fill(BoundedMailbox(2, Overflow.DROP_NEW).create(), 1, 2)
    assert list(mailbox.put(Envelope(3, None))) == envelopes(3)
    assert drained(mailbox) == [1, 2]


def test_drop_old() -> None:
    mailbox = fill(BoundedMailbox(2, Overflow.DROP_OLD).create(), 1, 2)
    assert list(mailbox.put(Envelope(3, None))) == envelopes(1)
    assert drained(mailbox) == [2, 3]


@pytest.mark.parametrize("overflow", Overflow)
def test_unstashed_messages_are_taken_over_the_capacity(overflow: Overflow) -> None:
    mailbox = fill(BoundedMailbox(2, overflow).create(), 1, 2)
    mailbox.put_first(envelopes("a", "b"))
    assert len(mailbox) == 4
    assert drained(mailbox) == ["a", "b", 1, 2]


def test_dropping_the_oldest_of_too_many_does_not_shrink_them() -> None:
    mailbox = fill(BoundedMailbox(1, Overflow.DROP_OLD).create(), 1)
    mailbox.put_first(envelopes("a"))
    assert list(mailbox.put(Envelope(2, None))) == envelopes("a")
    assert drained(mailbox) == [1, 2]


@pytest.mark.parametrize("capacity", [1, 2, 3, 10])
def test_saturation_lasts_until_it_is_half_empty(capacity: int) -> None:
    mailbox = BoundedMailbox(capacity, Overflow.BACKPRESSURE).create()
    for number in range(capacity):
        assert not mailbox.saturated
        fill(mailbox, number)
    assert mailbox.saturated
    with pytest.raises(MailboxFull):
        mailbox.put(Envelope(0, None))
    while len(mailbox) > capacity // 2:
        assert mailbox.saturated
        mailbox.get()
    assert not mailbox.saturated
    if capacity > 3:
        fill(mailbox, "one more")
        assert not mailbox.saturated


def test_relief_is_told_once() -> None:
    mailbox = BoundedMailbox(4, Overflow.BACKPRESSURE).create()
    told: list[str] = []
    mailbox.when_relieved(lambda: told.append("was never full"))
    fill(mailbox, 1, 2, 3, 4)
    mailbox.when_relieved(lambda: told.append("first"))
    mailbox.when_relieved(lambda: mailbox.when_relieved(lambda: told.append("second")))
    mailbox.get()
    assert told == ["was never full"]
    mailbox.get()
    assert told == ["was never full", "first", "second"]
    fill(mailbox, 5, 6)
    mailbox.drain()
    assert len(told) == 3


@pytest.mark.parametrize("overflow", [Overflow.FAIL, Overflow.DROP_NEW, Overflow.DROP_OLD])
def test_only_back_pressure_presses_back(overflow: Overflow) -> None:
    mailbox = fill(BoundedMailbox(1, overflow).create(), 1)
    assert not mailbox.saturated
    told: list[int] = []
    mailbox.when_relieved(lambda: told.append(1))
    assert told == [1]


def test_unstashing_saturates_and_draining_ends_it() -> None:
    mailbox = BoundedMailbox(2, Overflow.BACKPRESSURE).create()
    mailbox.put_first(envelopes(1, 2, 3))
    assert mailbox.saturated
    mailbox.drain()
    assert not mailbox.saturated


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", True, None])
def test_capacity(capacity: Any) -> None:
    with pytest.raises(ValueError, match="positive number of messages"):
        BoundedMailbox(capacity)


class BoundedMachine(RuleBasedStateMachine):
    """A bounded mailbox of each policy, against what it should hold."""

    capacity = 4

    def __init__(self) -> None:
        super().__init__()
        self.boxes = {overflow: BoundedMailbox(self.capacity, overflow).create() for overflow in Overflow}
        self.models: dict[Overflow, list[int]] = {overflow: [] for overflow in Overflow}
        self.next = 0

    @rule()
    def put(self) -> None:
        self.next += 1
        envelope = Envelope(self.next, None)
        for overflow, box in self.boxes.items():
            model = self.models[overflow]
            if len(model) < self.capacity:
                assert box.put(envelope) == ()
                model.append(self.next)
            elif overflow is Overflow.DROP_NEW:
                assert list(box.put(envelope)) == [envelope]
            elif overflow is Overflow.DROP_OLD:
                assert [each.message for each in box.put(envelope)] == [model.pop(0)]
                model.append(self.next)
            else:
                with pytest.raises(MailboxFull):
                    box.put(envelope)

    @precondition(lambda self: self.next > 0)
    @rule(count=st.integers(1, 3))
    def unstash(self, count: int) -> None:
        fresh = range(-self.next - count, -self.next)
        for overflow, box in self.boxes.items():
            box.put_first(envelopes(*fresh))
            self.models[overflow][:0] = fresh

    @rule()
    def get(self) -> None:
        for overflow, box in self.boxes.items():
            got = box.get()
            model = self.models[overflow]
            assert (None if got is None else got.message) == (model.pop(0) if model else None)

    @invariant()
    def same_length(self) -> None:
        for overflow, box in self.boxes.items():
            assert len(box) == len(self.models[overflow])
            if overflow is not Overflow.BACKPRESSURE or len(box) <= self.capacity // 2:
                assert not box.saturated
            elif len(box) >= self.capacity:
                assert box.saturated


TestBounded = BoundedMachine.TestCase


# ---------------------------------------------------------------------------------------------- priority, control


@given(st.lists(st.tuples(st.integers(0, 3), st.integers())))
def test_priority_is_a_stable_sort(messages: list[tuple[int, int]]) -> None:
    assert drained(fill(PriorityMailbox(first).create(), *messages)) == sorted(messages, key=first)


def test_unstashed_messages_come_before_others_of_their_priority() -> None:
    mailbox = fill(PriorityMailbox(first).create(), (1, "x"), (2, "x"))
    mailbox.put_first(envelopes((2, "a"), (1, "b"), (2, "c")))
    mailbox.put_first(envelopes((2, "later")))
    assert drained(mailbox) == [(1, "b"), (1, "x"), (2, "later"), (2, "a"), (2, "c"), (2, "x")]


def test_messages_themselves_are_never_compared() -> None:
    mailbox = fill(PriorityMailbox(lambda value: 0).create(), {"no": "order"}, {"at": "all"}, object)
    assert len(drained(mailbox)) == 3


def test_what_the_priority_function_raises_reaches_the_sender() -> None:
    mailbox = fill(PriorityMailbox(first).create(), (1,))
    with pytest.raises(TypeError):
        mailbox.put(Envelope(3, None))
    assert len(mailbox) == 1


@given(st.lists(st.builds(Urgent, st.integers()) | st.integers()))
def test_control_messages_first(messages: list[Any]) -> None:
    expected = sorted(messages, key=lambda each: not isinstance(each, ControlMessage))
    assert drained(fill(ControlAwareMailbox().create(), *messages)) == expected


def test_unstashed_control_messages() -> None:
    mailbox = fill(ControlAwareMailbox().create(), 1, Urgent(1))
    mailbox.put_first(envelopes("a", Urgent(2), "b", Urgent(3)))
    assert drained(mailbox) == [Urgent(2), Urgent(3), Urgent(1), "a", "b", 1]


# ---------------------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    "kind",
    [
        UnboundedMailbox(),
        ControlAwareMailbox(),
        *(BoundedMailbox(3, overflow) for overflow in Overflow),
        PriorityMailbox(first),
        PriorityMailbox("tests.unit.test_actor_mailbox:first"),
    ],
    ids=repr,
)
def test_configurations_travel(kind: MailboxType) -> None:
    arrived = SERIALIZER.loads(SERIALIZER.dumps(kind))
    assert arrived == kind
    assert hash(arrived) == hash(kind)
    assert isinstance(arrived.create(), Mailbox)


def test_a_priority_function_is_known_by_its_name() -> None:
    assert PriorityMailbox(first) == PriorityMailbox("tests.unit.test_actor_mailbox:first")
    with pytest.raises(SerializationError, match="import path"):
        SERIALIZER.dumps(PriorityMailbox(lambda value: 1))
    with pytest.raises(SerializationError, match="cannot be imported here"):
        PriorityMailbox("nowhere:nothing").create()


@pytest.mark.parametrize("key", ["first", "", 7, None])
def test_a_priority_function_that_is_none(key: Any) -> None:
    with pytest.raises(ValueError):
        PriorityMailbox(key)


def test_a_forged_configuration_is_refused() -> None:
    data = SERIALIZER.dumps(BoundedMailbox(3)).replace(b"\x03", b"\x00")
    with pytest.raises(SerializationError):
        SERIALIZER.loads(data)
