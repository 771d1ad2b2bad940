from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterator
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import AskTimeout, MailboxFull, RecipientTerminated, UnhandledMessageError
from actors.mailbox import BoundedMailbox, Overflow
from actors.messages import (
    AddRoutee,
    AdjustPoolSize,
    Broadcast,
    DeadLetter,
    Failure,
    GetRoutees,
    Kill,
    PoisonPill,
    RemoveRoutee,
    Routees,
    Terminated,
)
from actors.props import Props
from actors.ref import ActorRef
from actors.routing import (
    BroadcastAll,
    ConsistentHash,
    Group,
    Pool,
    RoundRobin,
    RouterActor,
    RoutingLogic,
    ScatterGatherFirstCompleted,
    SmallestMailbox,
    mailbox_size,
    routed,
)
from actors.supervision import Directive, OneForOneStrategy
from actors.testkit import DeterministicSystem, TestProbe


class Routee(Actor):
    """Says who it is; waits, fails and counts on order."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe
        self.count = 0

    async def receive(self, message: Any) -> None:
        match message:
            case "name":
                self.reply(self.self_ref.name)
            case "count":
                self.reply(self.count)
            case "add":
                self.count += 1
            case "fail":
                raise ValueError("as ordered")
            case "silence":
                pass
            case ("answer after", dict() as delays):
                asker = self.sender
                await asyncio.sleep(delays.get(self.self_ref.name, 100.0))
                asker.tell(self.self_ref.name)
            case ("fail unless", str(name)):
                if self.self_ref.name != name:
                    raise ValueError("not me")
                asker = self.sender
                await asyncio.sleep(0.5)
                asker.tell(name)
            case ("sleep", float(seconds)):
                self.probe.tell((self.self_ref.name, message))
                await asyncio.sleep(seconds)
            case _:
                self.probe.tell((self.self_ref.name, message), self.sender)


class World:
    def __init__(self) -> None:
        self.system = DeterministicSystem()
        self.probe = TestProbe(self.system)
        self.letters = TestProbe(self.system)

    def pool(self, size: int, logic: RoutingLogic, strategy: OneForOneStrategy | None = None, **props: Any) -> ActorRef:
        made = Props(Routee, self.probe.ref).with_router(Pool(size, logic, strategy))
        return self.system.actor_of(made._with(**props), "router")

    def routee(self, name: str) -> ActorRef:
        return self.system.actor_of(Props(Routee, self.probe.ref), name)

    def ask(self, ref: ActorRef, message: Any) -> Any:
        return ref.ask(message, 10.0).result()

    def routees(self, router: ActorRef) -> list[ActorRef]:
        found = self.ask(router, GetRoutees())
        assert type(found) is Routees
        return list(found.refs)

    def takers(self, count: int) -> list[str]:
        taken = [name for name, _ in self.probe.receive_n(count)]
        self.probe.expect_no_msg()
        return taken

    def dead(self) -> None:
        self.system.event_stream.subscribe(self.letters.ref, DeadLetter)

    def stop(self, ref: ActorRef) -> None:
        assert self.system.graceful_stop(ref, 10.0).result()

    def is_stopped(self, ref: ActorRef) -> bool:
        self.system.run_until_idle()
        return ref.path not in self.system.node.cells


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.system.terminate()


# ---------------------------------------------------------------------------------------------- messages


def test_round_robin_with_the_senders_kept(world: World) -> None:
    router = world.pool(3, RoundRobin())
    sender = TestProbe(world.system)
    for number in range(6):
        router.tell(number, sender.ref)
    assert collections.Counter(world.takers(6)) == {"$a": 2, "$b": 2, "$c": 2}
    assert world.probe.last_sender == sender.ref
    assert [world.ask(router, "name") for _ in range(3)] == ["$a", "$b", "$c"]


def test_broadcasts(world: World) -> None:
    router = world.pool(2, BroadcastAll())
    router.tell("x")
    assert sorted(world.takers(2)) == ["$a", "$b"]
    other = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Pool(2, RoundRobin())))
    other.tell(Broadcast("y"))
    assert world.probe.receive_n(2) == [("$a", "y"), ("$b", "y")]


def test_smallest_mailbox_counts_what_is_being_handled(world: World) -> None:
    router = world.pool(2, SmallestMailbox())
    router.tell(("sleep", 50.0))
    ((busy, _),) = world.probe.receive_n(1)
    for number in range(4):
        router.tell(number)
        world.system.run_until_idle()
    assert set(world.takers(4)) == {"$a", "$b"} - {busy}
    local = world.routees(router)[0]
    assert mailbox_size(local) in (0, 1)
    assert mailbox_size(ActorRef(None, local.origin, "/user/elsewhere", 5)) is None


def test_messages_of_one_key_stay_together(world: World) -> None:
    router = world.pool(3, ConsistentHash(lambda message: message % 5))
    for number in range(40):
        router.tell(number)
    owners = collections.defaultdict(set)
    for name, number in world.probe.receive_n(40):
        owners[number % 5].add(name)
    assert all(len(names) == 1 for names in owners.values())


def test_without_routees_messages_are_dead_letters(world: World) -> None:
    router = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Group([], RoundRobin())))
    world.dead()
    router.tell("x", world.probe.ref)
    letter = world.letters.expect_msg_type(DeadLetter)
    assert (letter.message, letter.sender, letter.recipient) == ("x", world.probe.ref, router)
    with pytest.raises(RecipientTerminated):
        router.ask("x", 5.0).result()


def test_a_routee_that_is_full_does_not_harm_the_router(world: World) -> None:
    router = world.pool(1, RoundRobin(), mailbox=BoundedMailbox(1, Overflow.FAIL))
    world.dead()
    router.tell(("sleep", 5.0))
    world.system.run_until_idle()
    router.tell("fits")
    router.tell("too much")
    letter = world.letters.expect_msg_type(DeadLetter)
    assert (letter.message, letter.recipient.name) == ("too much", "$a")
    with pytest.raises(MailboxFull):
        router.ask("name", 1.0).result()
    assert [message for _, message in world.probe.receive_n(2)] == [("sleep", 5.0), "fits"]
    assert world.ask(router, "name") == "$a"


# ---------------------------------------------------------------------------------------------- scatter, gather


def test_the_first_reply_counts(world: World) -> None:
    router = world.pool(3, ScatterGatherFirstCompleted(5.0))
    world.dead()
    assert world.ask(router, ("answer after", {"$a": 3.0, "$b": 1.0, "$c": 2.0})) == "$b"
    router.tell(("answer after", {"$c": 1.0}), world.probe.ref)
    world.probe.expect_msg("$c")
    world.probe.expect_no_msg(10.0)


def test_no_reply_in_time(world: World) -> None:
    router = world.pool(2, ScatterGatherFirstCompleted(2.0))
    with pytest.raises(AskTimeout, match="none of 2 routees answered within 2 s"):
        router.ask("silence", 5.0).result()
    router.tell("silence", world.probe.ref)
    assert isinstance(world.probe.expect_msg_type(Failure).error, AskTimeout)


def test_a_failure_is_no_reply_unless_there_are_nothing_but_failures(world: World) -> None:
    router = world.pool(3, ScatterGatherFirstCompleted(5.0), OneForOneStrategy())
    assert world.ask(router, ("fail unless", "$b")) == "$b"
    with pytest.raises(ValueError, match="not me"):
        world.ask(router, ("fail unless", "nobody"))


def test_a_tell_without_a_sender_is_only_scattered(world: World) -> None:
    router = world.pool(2, ScatterGatherFirstCompleted(1.0))
    world.dead()
    router.tell("x", None)
    assert sorted(world.takers(2)) == ["$a", "$b"]
    world.letters.expect_no_msg(5.0)


# ---------------------------------------------------------------------------------------------- pools


def test_the_routees_of_a_pool_are_its_children(world: World) -> None:
    router = world.pool(3, RoundRobin())
    assert [ref.path for ref in world.routees(router)] == [f"{router.path}/{name}" for name in ("$a", "$b", "$c")]


def test_growing_and_shrinking(world: World) -> None:
    router = world.pool(2, RoundRobin())
    router.tell(AdjustPoolSize(2))
    four = world.routees(router)
    assert len(four) == 4
    for ref in four:
        ref.tell("queued")
    router.tell(AdjustPoolSize(-3))
    assert world.routees(router) == four[:1]
    assert sorted(world.takers(4)) == sorted(ref.name for ref in four), "what they had is handled"
    assert [world.is_stopped(ref) for ref in four] == [False, True, True, True]
    router.tell(AdjustPoolSize(0))
    router.tell(AdjustPoolSize(-10))
    assert world.routees(router) == []
    assert not world.is_stopped(router)
    router.tell(AdjustPoolSize(1))
    assert len(world.routees(router)) == 1


def test_adding_and_removing(world: World) -> None:
    router = world.pool(1, RoundRobin())
    (own,) = world.routees(router)
    guest = world.routee("guest")
    router.tell(AddRoutee(guest))
    router.tell(AddRoutee(guest))
    assert world.routees(router) == [own, guest]
    assert {world.ask(router, "name") for _ in range(4)} == {own.name, "guest"}
    router.tell(RemoveRoutee(own))
    assert world.routees(router) == [guest]
    assert world.is_stopped(own)
    router.tell(RemoveRoutee(guest))
    assert world.is_stopped(router), "the last one is gone"
    assert world.ask(guest, "name") == "guest", "it was not the router's to stop"


def test_a_routee_that_stops_is_dropped_and_the_pool_stops_with_the_last(world: World) -> None:
    router = world.pool(3, RoundRobin())
    world.probe.watch(router)
    first, *others = world.routees(router)
    world.stop(first)
    assert world.routees(router) == others
    for number in range(4):
        router.tell(number)
    assert collections.Counter(world.takers(4)) == {ref.name: 2 for ref in others}
    router.tell(Broadcast(PoisonPill()))
    assert world.probe.expect_msg_type(Terminated).actor == router


def test_a_poison_pill_is_for_the_router(world: World) -> None:
    router = world.pool(2, RoundRobin())
    routees = world.routees(router)
    router.tell(PoisonPill())
    assert all(world.is_stopped(ref) for ref in (router, *routees))


def test_by_default_a_failure_escalates_and_restarts_all_routees(world: World) -> None:
    """Akka: the router's supervisor decides about the router, whose restart is one of its routees."""
    router = world.pool(2, RoundRobin())
    guest = world.routee("guest")
    router.tell(AddRoutee(guest))
    before = world.routees(router)
    router.tell(Broadcast("add"))
    world.system.run_until_idle()
    before[0].tell("fail")
    world.system.run_until_idle()
    assert world.routees(router) == before
    assert [world.ask(ref, "count") for ref in before] == [0, 0, 1]
    assert {world.ask(router, "name") for _ in range(3)} == {"$a", "$b", "guest"}


def test_the_strategy_of_a_pool(world: World) -> None:
    router = world.pool(2, RoundRobin(), OneForOneStrategy({ValueError: Directive.RESTART, Exception: Directive.STOP}))
    before = world.routees(router)
    router.tell(Broadcast("add"))
    router.tell("fail")
    world.system.run_until_idle()
    assert sorted(world.ask(ref, "count") for ref in before) == [0, 1]
    before[0].tell(Kill())
    world.system.run_until_idle()
    assert world.routees(router) == before[1:]


# ---------------------------------------------------------------------------------------------- groups


def test_a_group_by_paths(world: World) -> None:
    names = ["a", "b"]
    refs = [world.routee(name) for name in names]
    paths = [refs[0].path, str(refs[1].address)]
    router = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Group(paths, RoundRobin())))
    assert [world.ask(router, "name") for _ in range(4)] == names * 2
    assert [ref.path for ref in world.routees(router)] == [ref.path for ref in refs]
    world.stop(router)
    assert world.ask(refs[0], "name") == "a"


def test_a_group_reaches_whoever_lives_at_the_path(world: World) -> None:
    router = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Group(["/user/a"], RoundRobin())))
    world.dead()
    router.tell("too early")
    assert world.letters.expect_msg_type(DeadLetter).message == "too early"
    for _ in range(2):
        ref = world.routee("a")
        assert world.ask(router, "name") == "a"
        world.stop(ref)
    assert not world.is_stopped(router)


def test_a_group_can_be_changed_but_not_grown(world: World) -> None:
    guest = world.routee("guest")
    router = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Group([], RoundRobin())))
    router.tell(AddRoutee(guest))
    assert world.ask(router, "name") == "guest"
    with pytest.raises(UnhandledMessageError):
        world.ask(router, AdjustPoolSize(1))
    world.stop(guest)
    assert world.routees(router) == []
    assert not world.is_stopped(router)


def test_relative_paths_begin_at_the_router(world: World) -> None:
    world.routee("a")
    router = world.system.actor_of(Props(Routee, world.probe.ref).with_router(Group(["../a"], RoundRobin())))
    assert world.ask(router, "name") == "a"


# ---------------------------------------------------------------------------------------------- props


def test_props_of_a_router() -> None:
    plain = Props(Routee, 1)
    assert routed(plain) is plain
    asked = plain.pinned().with_mailbox(BoundedMailbox(3)).with_throughput(7).with_router(Pool(2, RoundRobin()))
    made = routed(asked)
    assert made.actor_class is RouterActor
    assert made.mailbox is None
    (state,) = made.args
    assert state.routee_props.mailbox == BoundedMailbox(3)
    assert state.routee_props.throughput == 7
    assert state.routee_props.router is None
    assert routed(made) is made
