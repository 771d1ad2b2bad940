"""Contract: routers."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from actors import (
    Actor,
    ActorRef,
    AddRoutee,
    AdjustPoolSize,
    Broadcast,
    GetRoutees,
    Kill,
    PoisonPill,
    Props,
    RemoveRoutee,
    Routees,
)
from actors.errors import AskTimeout
from actors.routing import (
    BroadcastAll,
    ConsistentHash,
    Group,
    Pool,
    Random,
    RoundRobin,
    ScatterGatherFirstCompleted,
    SmallestMailbox,
)
from actors.supervision import Directive, OneForOneStrategy
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere
from tests.contract.actors_under_test import Fail, Tagged, Worker


class Routee(Actor):
    """Tells the probe (itself, the message) for each message; answers asks with its name."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        if message == "name":
            self.reply(self.self_ref.name)
        else:
            self.probe.tell((self.self_ref.name, message))


class Sleeper(Routee):
    """Answers when the probe has told it to, where its name begins with slow; the others answer at once."""

    async def receive(self, message: Any) -> None:  # type: ignore[override]
        asker = self.sender
        if self.self_ref.name.startswith("slow"):
            await self.probe.ask("slow", DEADLINE_S)
        if message != "nothing":
            asker.tell(self.self_ref.name)


class Occupied(Actor):
    """Is busy with a long message until the probe has answered."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        if message == "long":
            await self.probe.ask((self.self_ref.name, message), DEADLINE_S)
        else:
            self.probe.tell((self.self_ref.name, message))


def tag_of(message: Any) -> str:
    """What messages are hashed by."""
    return message.tag if isinstance(message, Tagged) else str(message)


HASH = "tests.contract.test_actor_routers:tag_of"


def pool(world: World, size: int, logic: Any, actor: type = Routee, **options: Any) -> tuple[ActorRef, Any]:
    probe = world.probe()
    return world.spawn(Props(actor, probe.ref).with_router(Pool(size, logic, **options))), probe


def takers(probe: Any, count: int) -> list[str]:
    """Who has taken each of some messages."""
    return [name for name, _ in probe.receive_n(count)]


def routees(world: World, router: ActorRef) -> list[ActorRef]:
    found = world.ask(router, GetRoutees())
    assert isinstance(found, Routees)
    return list(found.refs)


@everywhere
def test_round_robin(world: World) -> None:
    """Akka: round robin gives each message to the next routee, in turn."""
    router, probe = pool(world, 3, RoundRobin())
    for number in range(9):
        router.tell(number)
    by_taker = collections.defaultdict(list)
    for name, number in probe.receive_n(9):
        by_taker[name].append(number)
    assert sorted(by_taker.values()) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_random(world: World) -> None:
    """Akka: random gives each message to one routee, all of which get some."""
    router, probe = pool(world, 3, Random(seed=7))
    for number in range(60):
        router.tell(number)
    received = probe.receive_n(60)
    assert sorted(number for _, number in received) == list(range(60))
    assert len({name for name, _ in received}) == 3


@everywhere
def test_broadcast_logic(world: World) -> None:
    """Akka: a broadcast router gives each message to all routees."""
    router, probe = pool(world, 3, BroadcastAll())
    router.tell("x")
    assert len(set(takers(probe, 3))) == 3
    probe.expect_no_msg(QUIET_S)


def test_broadcast_message(world: World) -> None:
    """Akka: a message in Broadcast goes to all routees, whatever the router's logic, without its wrapping."""
    router, probe = pool(world, 3, RoundRobin())
    router.tell(Broadcast("x"))
    received = probe.receive_n(3)
    assert {message for _, message in received} == {"x"}
    assert len({name for name, _ in received}) == 3


def test_smallest_mailbox(world: World) -> None:
    """Akka: smallest mailbox gives messages to the routee that has the fewest waiting."""
    router, probe = pool(world, 2, SmallestMailbox(), Occupied)
    router.tell("long")
    (busy,) = takers(probe, 1)
    waiting = probe.last_sender
    for number in range(3):
        router.tell(number)
        assert takers(probe, 1) != [busy]
    waiting.tell("enough")


def test_scatter_gather(world: World) -> None:
    """Akka: scatter-gather asks all routees, and gives the first answer."""
    probe = world.probe()
    names = [world.name(stem) for stem in ("slow", "fast", "slow")]
    paths = [world.spawn(Sleeper, probe.ref, name=name).path for name in names]
    router = world.spawn(Props(Sleeper, probe.ref).with_router(Group(paths, ScatterGatherFirstCompleted(DEADLINE_S))))
    assert world.ask(router, "who") == names[1]
    for _ in range(2):
        probe.expect_msg("slow")
        probe.reply("enough")


def test_scatter_gather_in_vain(world: World) -> None:
    """Akka: when no routee answers within the time, the asker is told of a timeout."""
    router, _ = pool(world, 2, ScatterGatherFirstCompleted(0.05), Sleeper)
    with pytest.raises(AskTimeout):
        router.ask("nothing", DEADLINE_S).result()


@everywhere
def test_consistent_hash(world: World) -> None:
    """Akka: consistent hashing gives all messages of one key to one routee."""
    router, probe = pool(world, 4, ConsistentHash(HASH))
    for number in range(10):
        for tag in "abcdef":
            router.tell(Tagged(tag, number))
    takers_of = collections.defaultdict(set)
    for name, message in probe.receive_n(60):
        takers_of[message.tag].add(name)
    assert {len(names) for names in takers_of.values()} == {1}
    assert len(set.union(*takers_of.values())) > 1


def test_consistent_hash_over_a_change(world: World) -> None:
    """Akka: when a routee goes, only the keys that were its own move."""
    router, probe = pool(world, 4, ConsistentHash(HASH))
    tags = [f"key-{number}" for number in range(40)]

    def owners() -> dict[str, str]:
        for tag in tags:
            router.tell(Tagged(tag, 0))
        return {message.tag: name for name, message in probe.receive_n(40)}

    before = owners()
    gone = routees(world, router)[0]
    router.tell(RemoveRoutee(gone))
    world.until(lambda: len(routees(world, router)), lambda count: count == 3, "one routee less")
    after = owners()
    assert {tag for tag in tags if before[tag] != after[tag]} == {tag for tag in tags if before[tag] == gone.name}


@everywhere
def test_pool(world: World) -> None:
    """Akka: the routees of a pool are the router's children."""
    router, _ = pool(world, 3, RoundRobin())
    found = routees(world, router)
    assert len(found) == 3
    assert {ref.path.rsplit("/", 1)[0] for ref in found} == {router.path}


def test_group(world: World) -> None:
    """Akka: the routees of a group are actors that exist already, named by their paths."""
    probe = world.probe()
    refs = [world.spawn(Routee, probe.ref) for _ in range(2)]
    router = world.spawn(Props(Routee, probe.ref).with_router(Group([ref.path for ref in refs], RoundRobin())))
    for number in range(4):
        router.tell(number)
    assert collections.Counter(takers(probe, 4)) == {ref.name: 2 for ref in refs}


def test_group_outlives_its_router(world: World) -> None:
    """Akka: a group's routees are not the router's: they go on when it stops."""
    probe = world.probe()
    ref = world.spawn(Routee, probe.ref)
    router = world.spawn(Props(Routee, probe.ref).with_router(Group([ref.path], RoundRobin())))
    world.stop(router)
    assert world.ask(ref, "name") == ref.name


@everywhere
def test_sender_is_kept(world: World) -> None:
    """Akka: a routee sees the original sender, and its answers do not pass through the router."""
    router, _ = pool(world, 2, RoundRobin())
    names = {ref.name for ref in routees(world, router)}
    assert {world.ask(router, "name") for _ in range(4)} == names


def test_order_through_a_router(world: World) -> None:
    """Akka: messages that go through a router to one routee keep their order."""
    router, probe = pool(world, 1, RoundRobin())
    for number in range(100):
        router.tell(number)
    assert [number for _, number in probe.receive_n(100)] == list(range(100))


def test_add_and_remove(world: World) -> None:
    """Akka: routees can be added and removed while the router runs."""
    router, probe = pool(world, 1, RoundRobin())
    extra = world.spawn(Routee, probe.ref)
    router.tell(AddRoutee(extra))
    assert set(routees(world, router)) > {extra}
    router.tell(RemoveRoutee(extra))
    assert extra not in routees(world, router)
    assert world.ask(extra, "name") == extra.name


def test_adjust_pool_size(world: World) -> None:
    """Akka: a pool can be told to grow and to shrink."""
    router, _ = pool(world, 2, RoundRobin())
    router.tell(AdjustPoolSize(2))
    assert len(routees(world, router)) == 4
    router.tell(AdjustPoolSize(-3))
    world.until(lambda: len(routees(world, router)), lambda count: count == 1, "a smaller pool")
    assert world.ask(router, "name") == routees(world, router)[0].name


def test_dead_routee(world: World) -> None:
    """Akka: a pool drops a routee that has stopped; the others take its messages."""
    router, probe = pool(world, 3, RoundRobin())
    dead = routees(world, router)[1]
    world.stop(dead)
    world.until(lambda: len(routees(world, router)), lambda count: count == 2, "a smaller pool")
    for number in range(4):
        router.tell(number)
    assert dead.name not in takers(probe, 4)


def test_last_routee(world: World) -> None:
    """Akka: a pool stops when all its routees have."""
    router, _ = pool(world, 2, RoundRobin())
    router.tell(Broadcast(PoisonPill()))
    world.wait_stopped(router)


def test_poison_pill_for_the_router(world: World) -> None:
    """Akka: a poison pill is for the router itself: it stops, and its pool with it."""
    router, _ = pool(world, 2, RoundRobin())
    first = routees(world, router)[0]
    router.tell(PoisonPill())
    world.wait_stopped(router)
    world.wait_stopped(first)


def test_kill_by_broadcast(world: World) -> None:
    """Akka: Kill in Broadcast reaches the routees; what then becomes of them is for the router's strategy."""
    router, _ = pool(world, 2, RoundRobin(), strategy=OneForOneStrategy({Exception: Directive.RESTART}))
    before = routees(world, router)
    router.tell(Broadcast(Kill()))
    assert {world.ask(router, "name") for _ in range(4)} == {ref.name for ref in before}


def test_strategy_of_a_pool(world: World) -> None:
    """Akka: a pool's supervisor strategy holds for its routees."""
    router, probe = pool(world, 1, RoundRobin(), Worker, strategy=OneForOneStrategy({Exception: Directive.RESUME}))
    for what in ("add", Fail("ValueError"), "add"):
        router.tell(what)
    assert world.ask(router, "count") == 2
    probe.expect_msg(("worker", "pre_start"))
    probe.expect_no_msg(QUIET_S)


def test_failing_routee(world: World) -> None:
    """Akka: without a strategy of its own a pool escalates the failure of a routee: all are restarted."""
    router, _ = pool(world, 2, RoundRobin(), Worker)
    router.tell(Broadcast("add"))
    before = set(routees(world, router))
    router.tell(Fail("ValueError"))
    world.until(
        lambda: sorted(world.ask(ref, "count") for ref in before), lambda counts: counts == [0, 0], "a restart of all"
    )
    assert set(routees(world, router)) == before
