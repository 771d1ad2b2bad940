from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import MailboxFull
from actors.event_stream import EventStream, Subscriptions, Table, class_names
from actors.messages import ControlMessage
from actors.ref import ActorRef, Origin
from actors.serialization import message, name_of
from actors.testkit import DeterministicSystem, TestProbe


class Animal:
    pass


class Dog(Animal):
    pass


class Cat(Animal):
    pass


class Puppy(Dog, ControlMessage):
    pass


KINDS: list[type] = [Animal, Dog, Cat, Puppy, ControlMessage, object, str]


class FakeRef(ActorRef):
    """A subscriber that keeps what it is told."""

    def __init__(self, name: str, refuses: bool = False) -> None:
        super().__init__(None, Origin("s", "h", 1), f"/user/{name}", 1)
        self.refuses = refuses
        self.told: list[Any] = []

    def tell(self, message: Any, sender: Any) -> None:
        assert sender is None
        if self.refuses:
            raise MailboxFull(self.name)
        self.told.append(message)

    def __repr__(self) -> str:
        return self.name


def refs(*names: str) -> list[Any]:
    return [FakeRef(name) for name in names]


def test_names_of_a_class() -> None:
    assert class_names(Puppy) == tuple(map(name_of, (Puppy, Dog, Animal, ControlMessage, object)))


def test_by_class_with_subclasses() -> None:
    stream = EventStream()
    all_of_them, dogs, puppies = refs("all", "dogs", "puppies")
    stream.subscribe(all_of_them, Animal)
    stream.subscribe(dogs, Dog)
    stream.subscribe(puppies, Puppy)
    events = [Animal(), Dog(), Cat(), Puppy(), "no animal"]
    for event in events:
        stream.publish(event)
    assert all_of_them.told == events[:4]
    assert dogs.told == [events[1], events[3]]
    assert puppies.told == [events[3]]


def test_each_event_once_in_the_order_of_subscription() -> None:
    stream = EventStream()
    (one,) = refs("one")
    for kind in (Dog, Animal, ControlMessage, Dog):
        stream.subscribe(one, kind)
    puppy = Puppy()
    stream.publish(puppy)
    assert one.told == [puppy]


def test_unsubscribing_from_one_class_or_all() -> None:
    stream = EventStream()
    (one,) = refs("one")
    for kind in (Dog, Cat, str):
        stream.subscribe(one, kind)
    stream.publish("a")
    stream.unsubscribe(one, str)
    stream.unsubscribe(one, ControlMessage)  # it has never subscribed to that, nor to a class derived from it
    dog, cat = Dog(), Cat()
    for event in ("b", dog, cat):
        stream.publish(event)
    stream.unsubscribe(one)
    stream.unsubscribe(one)
    stream.publish(dog)
    assert one.told == ["a", dog, cat]
    assert stream.table == {}


def test_a_class_is_cut_out_of_its_base() -> None:
    stream = EventStream()
    (one,) = refs("one")
    stream.subscribe(one, Animal)
    stream.unsubscribe(one, Dog)
    dog, cat, puppy = Dog(), Cat(), Puppy()
    for event in (dog, cat, puppy):
        stream.publish(event)
    assert one.told == [cat]
    stream.subscribe(one, Puppy)
    for event in (dog, puppy):
        stream.publish(event)
    assert one.told == [cat, puppy]
    stream.subscribe(one, Animal)
    stream.publish(dog)
    assert one.told == [cat, puppy, dog]
    assert stream.table == {one: (name_of(Animal),)}


def test_unsubscribing_from_a_base_ends_the_subscriptions_to_what_is_derived_from_it() -> None:
    stream = EventStream()
    (one,) = refs("one")
    for kind in (Dog, Cat, str):
        stream.subscribe(one, kind)
    stream.unsubscribe(one, Animal)
    for event in (Dog(), Cat(), "x"):
        stream.publish(event)
    assert one.told == ["x"]
    assert stream.table == {one: (name_of(str), f"-{name_of(Animal)}")}


def test_a_subscription_counts_for_the_next_event() -> None:
    stream = EventStream()
    first, second = refs("first", "second")
    stream.subscribe(first, Dog)
    stream.publish(Dog())
    stream.subscribe(second, Animal)
    stream.publish(Dog())
    stream.unsubscribe(first)
    stream.publish(Dog())
    assert (len(first.told), len(second.told)) == (2, 2)


def test_only_classes_can_be_subscribed_to() -> None:
    stream = EventStream()
    (one,) = refs("one")
    with pytest.raises(TypeError, match="by their class; 'Dog' is none"):
        stream.subscribe(one, "Dog")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        stream.unsubscribe(one, Dog())  # type: ignore[arg-type]


def test_changes_are_reported_once_each() -> None:
    tables: list[Table] = []
    stream = EventStream(on_change=tables.append)
    one, other = refs("one", "other")
    stream.subscribe(one, Dog)
    stream.subscribe(one, Dog)
    stream.subscribe(other, Cat)
    stream.unsubscribe(other, Dog)
    stream.unsubscribe(other, Dog)
    stream.unsubscribe(one)
    assert tables == [
        {one: (name_of(Dog),)},
        {one: (name_of(Dog),), other: (name_of(Cat),)},
        {one: (name_of(Dog),), other: (name_of(Cat), f"-{name_of(Dog)}")},
        {other: (name_of(Cat), f"-{name_of(Dog)}")},
    ]


def test_subscriptions_of_other_nodes() -> None:
    tables: list[Table] = []
    stream = EventStream(on_change=tables.append)
    here, there, both = refs("here", "there", "both")
    stream.subscribe(here, Dog)
    stream.subscribe(both, Animal)
    stream.publish(Dog())
    # Names of classes that this process has never seen are carried along.
    stream.replace({there: (name_of(Animal), "far.away:Thing", f"-{name_of(Cat)}"), both: (name_of(Dog),)})
    stream.publish(Cat())
    assert there.told == []
    dog = Dog()
    stream.publish(dog)
    assert [ref.told[-1:] for ref in (here, there, both)] == [[dog]] * 3
    assert len(both.told) == 3
    assert stream.table == {here: (name_of(Dog),), both: (name_of(Animal),)}
    assert len(tables) == 2
    stream.replace({})
    stream.publish(Dog())
    assert there.told == [dog]


def test_a_subscriber_that_refuses_does_not_stop_the_others() -> None:
    refused: list[Any] = []
    stream = EventStream(refused=lambda ref, event, error: refused.append((ref, event, str(error))))
    full: Any = FakeRef("full", refuses=True)
    (other,) = refs("other")
    for ref in (full, other):
        stream.subscribe(ref, str)
    stream.publish("x")
    assert other.told == ["x"]
    assert refused == [(full, "x", "full")]


def test_everything_runs_where_it_is_to_run() -> None:
    posted: list[Any] = []
    stream = EventStream(run=lambda function, *args: posted.append((function, args)))
    (one,) = refs("one")
    stream.subscribe(one, str)
    stream.publish("x")
    stream.unsubscribe(one)
    assert one.told == []
    assert stream.table == {}
    for function, args in posted:
        function(*args)
    assert one.told == ["x"]


def test_many_classes_are_not_remembered_for_ever() -> None:
    stream = EventStream()
    (one,) = refs("one")
    stream.subscribe(one, Animal)
    for number in range(2500):
        stream.publish(type(f"Animal{number}", (Animal,), {})())
    assert len(one.told) == 2500
    assert len(stream._by_type) <= 1000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["subscribe", "unsubscribe", "unsubscribe all", "publish"]),
            st.integers(0, 2),
            st.sampled_from(KINDS),
        ),
        max_size=40,
    )
)
def test_the_stream_against_a_set_of_pairs(steps: list[tuple[str, int, type]]) -> None:
    stream = EventStream()
    subscribers = refs("a", "b", "c")
    model: list[tuple[int, type, bool]] = []  # the last that is about an event's class counts
    expected: list[list[Any]] = [[], [], []]
    for what, number, kind in steps:
        ref = subscribers[number]
        if what == "subscribe":
            stream.subscribe(ref, kind)
            model.append((number, kind, True))
        elif what == "unsubscribe":
            stream.unsubscribe(ref, kind)
            model.append((number, kind, False))
        elif what == "unsubscribe all":
            stream.unsubscribe(ref)
            model = [each for each in model if each[0] != number]
        else:
            event = kind()
            stream.publish(event)
            for each in range(3):
                said = [wanted for who, about, wanted in model if who == each and isinstance(event, about)]
                if said[-1:] == [True]:
                    expected[each].append(event)
    assert [ref.told for ref in subscribers] == expected
    assert all(any(not entry.startswith("-") for entry in entries) for entries in stream.table.values())


def test_subscriptions_alone() -> None:
    table = Subscriptions()
    one, other = refs("one", "other")
    assert table.add(one, ("a", "base"))
    assert not table.add(one, ("a", "base"))
    assert table.add(one, ("b",))
    assert table.add(other, ("b",))
    assert table.matching(frozenset({"a", "b"})) == [one, other]
    assert table.matching(frozenset({"a"})) == [one]
    assert one in table
    assert table.remove(other, ("a", "base"))
    assert not table.remove(other, ("a", "base"))
    assert table.remove(one, ("base",))
    assert table.matching(frozenset({"a", "base"})) == []
    assert table.remove(one)
    assert not table.remove(one)
    assert one not in table
    copy = table.table
    table.remove(other)
    assert copy == {other: ("b", "-a")}


@message
class Happened:
    what: str


@pytest.mark.parametrize("nobody", [None, "akka.tcp://s@h:1/user/a", Happened("x")])
def test_subscribers_are_refs(nobody: Any) -> None:
    stream = EventStream()
    with pytest.raises(TypeError, match=r"subscribers are actor refs; .* is none"):
        stream.subscribe(nobody, Happened)
    with pytest.raises(TypeError, match=r"subscribers are actor refs; .* is none"):
        stream.unsubscribe(nobody)
    assert stream.table == {}


def test_in_a_system() -> None:
    with DeterministicSystem() as system:
        probe = TestProbe(system)
        system.event_stream.subscribe(probe.ref, Happened)
        system.event_stream.publish(Happened("x"))
        probe.expect_msg(Happened("x"))
        assert probe.last_sender == system.dead_letters
        system.event_stream.unsubscribe(probe.ref)
        system.event_stream.publish(Happened("y"))
        probe.expect_no_msg()
