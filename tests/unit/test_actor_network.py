"""Several nodes and several systems, joined by the testkit's network: what holds between processes, without any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import (
    ActorInitializationError,
    ActorNotFound,
    ActorProcessDied,
    AskTimeout,
    MailboxFull,
    RecipientTerminated,
    RecipientUnreachable,
    RemoteError,
    SerializationError,
)
from actors.mailbox import BoundedMailbox
from actors.messages import Identify, PoisonPill, Terminated
from actors.props import Props
from actors.ref import ActorRef
from actors.serialization import message
from actors.supervision import AllForOneStrategy, Backoff, Directive, OneForOneStrategy, SupervisorStrategy
from actors.testkit import DeterministicSystem, TestProbe


@message
class Order:
    """Make a child."""

    class_path: str
    args: tuple[Any, ...] = ()
    name: str | None = None
    placement: str = "pinned"
    deploy: str | None = None


class Boss(Actor):
    """Makes children, anywhere; answers with their refs and tells the probe of errors that it decides about."""

    def __init__(
        self, probe: ActorRef, directive: str = "RESTART", backoff_s: float = 0.0, all_for_one: bool = False
    ) -> None:
        def decide(error: BaseException) -> Directive:
            probe.tell(("decides", type(error).__name__))
            return Directive[directive]

        kind: type[SupervisorStrategy] = AllForOneStrategy if all_for_one else OneForOneStrategy
        self.supervisor_strategy = kind(
            decide, backoff=Backoff(backoff_s, backoff_s, jitter=0.0) if backoff_s else None
        )
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case Order(class_path, args, name, placement, deploy):
                props = Props(class_path, *args)
                props = props.deploy(deploy) if deploy else getattr(props, placement)()
                self.reply(self.context.actor_of(props, name))
            case "children":
                self.reply(self.context.children)
            case ("watch", ActorRef() as ref):
                self.context.watch(ref)
                self.reply("watching")
            case ("stop", ActorRef() as ref):
                self.context.stop(ref)
            case Terminated(ref, _, by_address):
                self.probe.tell(("terminated", ref, by_address))


class Child(Actor):
    """Says what happens to it."""

    def __init__(self, probe: ActorRef, label: str = "child") -> None:
        self.probe = probe
        self.label = label
        self.count = 0

    def pre_start(self) -> None:
        self.probe.tell((self.label, "started"))

    def post_stop(self) -> None:
        self.probe.tell((self.label, "stopped"))

    async def receive(self, message: Any) -> None:
        match message:
            case "node":
                self.reply(self.context.system.node.uid)
            case "add":
                self.count += 1
                self.reply(self.count)
            case "fail":
                raise ValueError("as told")
            case "hang":
                await asyncio.sleep(1000.0)
            case Order(class_path, args, name, placement, _):
                props = getattr(Props(class_path, *args), placement)()
                self.reply(self.context.actor_of(props, name))
            case ("echo", what):
                self.reply((what, self.sender))


class Unbuildable(Actor):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("no")


CHILD = f"{__name__}:Child"
BOSS = f"{__name__}:Boss"


@pytest.fixture
def system() -> Iterator[DeterministicSystem]:
    with DeterministicSystem(nodes=3) as made:
        yield made


@pytest.fixture
def probe(system: DeterministicSystem) -> TestProbe:
    return TestProbe(system)


def make(system: DeterministicSystem, probe: TestProbe, label: str = "child") -> ActorRef:
    ref = system.actor_of(Props(Child, probe.ref, label).pinned(), label)
    probe.expect_msg((label, "started"))
    return ref


def test_placement(system: DeterministicSystem, probe: TestProbe) -> None:
    root, one, two = (node.uid for node in system.nodes)
    assert [make(system, probe, label).ask("node").result() for label in "abc"] == [one, two, one]
    local = system.actor_of(Props(Child, probe.ref).local())
    shared = system.actor_of(Props(Child, probe.ref).shared())
    default = system.actor_of(Props(Child, probe.ref))
    assert local.ask("node").result() == root
    assert shared.ask("node").result() == one
    assert default.ask("node").result() == two


def test_children_live_with_their_parents(system: DeterministicSystem, probe: TestProbe) -> None:
    parent = make(system, probe)
    child = parent.ask(Order(CHILD, (probe.ref, "kid"), "kid", "local")).result()
    assert child.path == "/user/child/kid"
    assert child.ask("node").result() == parent.ask("node").result()
    assert system.actor_selection("/user/*/k?d").resolve_one().result() == child


def test_messages_are_copies(system: DeterministicSystem, probe: TestProbe) -> None:
    child = make(system, probe)
    sent = [1, (2, {3}), {"four": 5.0}]
    answer, sender = child.ask(("echo", sent)).result()
    assert answer == sent
    assert answer is not sent
    assert sender.is_ask
    probe.send(child, ("echo", child))
    assert probe.receive_one() == (child, probe.ref)
    with pytest.raises(SerializationError):
        child.tell(object())
    with pytest.raises(SerializationError):
        child.ask(object()).result()


def test_errors_travel(system: DeterministicSystem, probe: TestProbe) -> None:
    child = make(system, probe)
    assert child.ask("add").result() == 1
    with pytest.raises(ValueError, match="as told"):
        child.ask("fail").result()
    assert child.ask("add").result() == 1


def test_messages_wait_for_the_creation(system: DeterministicSystem, probe: TestProbe) -> None:
    system.network.delay(system.nodes[0], system.nodes[1], 2.0)
    child = system.actor_of(Props(Child, probe.ref).pinned())
    before = system.now
    assert child.ask("add").result() == 1
    assert system.now - before == 2.0


def test_the_dead_are_known(system: DeterministicSystem, probe: TestProbe) -> None:
    child = make(system, probe)
    probe.watch(child)
    child.tell(PoisonPill())
    probe.expect_msg(("child", "stopped"))
    assert probe.expect_terminated(child) == Terminated(child, True, False)
    with pytest.raises(RecipientTerminated):
        child.ask("add").result()
    probe.watch(child)
    assert probe.expect_terminated(child) == Terminated(child, False, False)
    assert make(system, probe) != child


def test_terminated_comes_behind_the_last_words(system: DeterministicSystem, probe: TestProbe) -> None:
    system.network.delay(system.nodes[1], system.nodes[0], 1.0)
    child = make(system, probe)
    probe.watch(child)
    system.stop(child)
    assert probe.receive_n(2) == [("child", "stopped"), Terminated(child, True, False)]


def test_supervision_from_afar(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESUME").local())
    child = boss.ask(Order(CHILD, (probe.ref,))).result()
    assert child.ask("node").result() == system.nodes[1].uid
    assert child.ask("add").result() == 1
    child.tell("fail")
    assert child.ask("add").result() == 2
    assert probe.receive_n(2) == [("child", "started"), ("decides", "ValueError")]


def test_an_error_that_cannot_be_rebuilt_is_known_by_name(
    system: DeterministicSystem, probe: TestProbe, caplog: pytest.LogCaptureFixture
) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "STOP").local())
    child = boss.ask(Order(f"{__name__}:Odd")).result()
    with pytest.raises(RemoteError, match="OddError"):
        child.ask("x").result()
    probe.expect_msg(("decides", "RemoteError"))
    assert f"{boss.path}: the decider was given a RemoteError in place of {__name__}:OddError" in caplog.text
    assert boss.ask("children").result() == []


class OddError(Exception):
    """It cannot be rebuilt: it holds what does not travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = object()


class Odd(Actor):
    def receive(self, message: Any) -> None:
        raise OddError("odd")


def test_stop_from_afar(system: DeterministicSystem, probe: TestProbe) -> None:
    parent = make(system, probe, "parent")
    kids = [parent.ask(Order(CHILD, (probe.ref, name), name)).result() for name in "ab"]
    assert {kid.ask("node").result() for kid in kids} == {node.uid for node in system.nodes[1:]}
    probe.receive_n(2)
    probe.watch(parent)
    system.stop(parent)
    seen = probe.receive_n(4)
    assert {*seen[:2]} == {("a", "stopped"), ("b", "stopped")}
    assert seen[2:] == [("parent", "stopped"), Terminated(parent, True, False)]


def test_a_creation_that_fails_there(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "STOP").local())
    child = boss.ask(Order(f"{__name__}:Unbuildable")).result()
    assert boss.ask(("watch", child)).result() == "watching"
    seen = probe.receive_n(2)
    assert seen == [("decides", ActorInitializationError.__name__), ("terminated", child, False)]
    assert boss.ask("children").result() == []


def test_a_class_that_is_not_known_there(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "STOP").local())
    child = boss.ask(Order(f"{__name__}:Nothing")).result()
    with pytest.raises(RecipientTerminated):
        child.ask("x").result()
    probe.expect_msg(("decides", ActorInitializationError.__name__))
    assert boss.ask("children").result() == []


def test_arguments_that_cannot_travel(system: DeterministicSystem) -> None:
    with pytest.raises(SerializationError):
        system.actor_of(Props(Child, object()).pinned(), "child")
    assert system.actor_selection("/user/child").anchor.uid == 0
    with pytest.raises(ActorNotFound):
        system.actor_selection("/user/child").resolve_one().result()


# ---------------------------------------------------------------------- death of a process


def test_watchers_and_askers_of_a_dead_process(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "STOP").local())
    child = boss.ask(Order(CHILD, (probe.ref,))).result()
    probe.expect_msg(("child", "started"))
    probe.watch(child)
    ask = child.ask("hang", 100.0)
    system.run_until_idle()
    system.network.kill(system.nodes[1])
    assert set(probe.receive_n(2)) == {Terminated(child, True, True), ("decides", ActorProcessDied.__name__)}
    with pytest.raises(RecipientUnreachable):
        ask.result()
    assert boss.ask("children").result() == []
    probe.watch(child)
    assert probe.expect_terminated(child).address_terminated
    with pytest.raises(RecipientUnreachable):
        child.ask("add").result()


def test_a_child_is_made_again(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESTART", 2.0).local())
    child = boss.ask(Order(CHILD, (probe.ref,), "phoenix")).result()
    probe.expect_msg(("child", "started"))
    assert boss.ask(("watch", child)).result() == "watching"
    system.network.kill(system.nodes[1])
    assert set(probe.receive_n(2)) == {("terminated", child, True), ("decides", ActorProcessDied.__name__)}
    probe.expect_no_msg(1.9)
    probe.expect_msg(("child", "started"))
    (again,) = boss.ask("children").result()
    assert again.path == child.path
    assert again.uid != child.uid
    assert again.ask("node").result() == system.nodes[2].uid
    with pytest.raises(RecipientTerminated):
        child.ask("add").result()


def test_a_lost_child_is_stopped_while_it_is_not_there(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESTART", 5.0).local(), "boss")
    child = boss.ask(Order(CHILD, (probe.ref,))).result()
    system.run_until_idle()
    system.network.kill(system.nodes[1])
    probe.receive_n(2)
    boss.tell(("stop", child))
    assert boss.ask("children").result() == []
    probe.expect_no_msg(20.0)


def test_a_parent_stops_while_its_child_is_lost(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESTART", 5.0).local(), "boss")
    boss.ask(Order(CHILD, (probe.ref,))).result()
    system.run_until_idle()
    system.network.kill(system.nodes[1])
    probe.receive_n(2)
    assert system.graceful_stop(boss, 1.0).result() is True


def test_no_node_is_left(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "STOP").local())
    for node in system.nodes[1:]:
        system.network.kill(node)
    boss.ask(Order(CHILD, (probe.ref,))).result()
    probe.expect_msg(("decides", ActorInitializationError.__name__))
    assert boss.ask("children").result() == []


def test_a_process_that_dies_takes_its_siblings_along(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESTART", 0.0, True).local())
    one = boss.ask(Order(CHILD, (probe.ref, "one"))).result()
    two = boss.ask(Order(CHILD, (probe.ref, "two"))).result()
    assert [kid.ask("add").result() for kid in (one, two)] == [1, 1]
    probe.receive_n(2)
    system.network.kill(system.nodes[1])
    assert set(probe.receive_n(4)) == {
        ("decides", ActorProcessDied.__name__),
        ("two", "stopped"),
        ("two", "started"),
        ("one", "started"),
    }
    assert two.ask("add").result() == 1


def test_an_orphan_stops(system: DeterministicSystem, probe: TestProbe) -> None:
    parent = make(system, probe, "parent")
    kid = parent.ask(Order(CHILD, (probe.ref, "kid"))).result()
    assert kid.ask("node").result() == system.nodes[2].uid
    probe.expect_msg(("kid", "started"))
    system.network.kill(system.nodes[1])
    assert ("kid", "stopped") in probe.receive_n(2)


# ---------------------------------------------------------------------- a network that fails


def test_a_cut(system: DeterministicSystem, probe: TestProbe) -> None:
    child = make(system, probe)
    system.network.cut(system.nodes[0], system.nodes[1])
    with pytest.raises(AskTimeout):
        child.ask("add", 1.0).result()
    system.network.heal(system.nodes[0], system.nodes[1])
    assert child.ask("add").result() == 1


def test_drops(system: DeterministicSystem, probe: TestProbe) -> None:
    child = make(system, probe)
    system.network.drop = lambda ref, message: message == "add"
    with pytest.raises(AskTimeout):
        child.ask("add", 1.0).result()
    assert child.ask(("echo", 1)).result()[0] == 1
    system.network.drop = None
    assert child.ask("add").result() == 1


def test_a_full_mailbox_elsewhere(system: DeterministicSystem, probe: TestProbe) -> None:
    child = system.actor_of(Props(Child, probe.ref).with_mailbox(BoundedMailbox(1)).pinned())
    probe.expect_msg(("child", "started"))
    child.tell("hang")
    system.run_until_idle()
    child.tell(("echo", "kept"))
    with pytest.raises(MailboxFull):
        child.ask("add").result()


# ---------------------------------------------------------------------- several systems


@pytest.fixture
def other(system: DeterministicSystem) -> Iterator[DeterministicSystem]:
    with DeterministicSystem("other", network=system.network, seed=1) as made:
        yield made


def test_two_systems(system: DeterministicSystem, other: DeterministicSystem, probe: TestProbe) -> None:
    echo = other.actor_of(Props(Child, probe.ref).local(), "echo")
    text = str(echo.address)
    assert text == "akka.tcp://other@127.0.0.1:2553/user/echo"
    found = system.actor_selection(text).resolve_one().result()
    assert found == echo
    assert found.ask("add").result() == 1
    probe.receive_one()
    ref = ActorRef.parse(str(echo), system)
    probe.send(ref, ("echo", "x"))
    assert probe.receive_one() == ("x", probe.ref)


def test_a_system_that_is_not_there(system: DeterministicSystem) -> None:
    nowhere = ActorRef.parse("akka.tcp://nowhere@127.0.0.1:9/user/a#1", system)
    with pytest.raises(RecipientUnreachable):
        nowhere.ask("x").result()


def test_deployment(system: DeterministicSystem, other: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, probe.ref, "RESTART").local(), "boss")
    child = boss.ask(Order(CHILD, (probe.ref,), "child", deploy="akka.tcp://other@127.0.0.1:2553")).result()
    probe.expect_msg(("child", "started"))
    assert child.origin.system == "other"
    assert child.path == "/remote/test@127.0.0.1_2552/user/boss/child"
    assert child.ask("node").result() == other.node.uid
    child.tell("fail")
    assert probe.receive_n(3) == [("decides", "ValueError"), ("child", "stopped"), ("child", "started")]
    probe.watch(child)
    system.stop(boss)
    assert set(probe.receive_n(2)) == {("child", "stopped"), Terminated(child, True, False)}


def test_a_deployed_actor_stops_with_its_parents_system(system: DeterministicSystem, probe: TestProbe) -> None:
    other = DeterministicSystem("other", network=system.network, seed=1)
    there = TestProbe(other)
    boss = system.actor_of(Props(Boss, probe.ref).local(), "boss")
    child = boss.ask(
        Order(CHILD, (ActorRef.parse(str(there.ref), system),), "child", deploy=str(other.address))
    ).result()
    there.expect_msg(("child", "started"))
    there.watch(ActorRef.parse(str(child), other))
    system.network.kill(system.node)
    assert there.expect_msg_type(tuple) == ("child", "stopped")
    other.terminate()


def test_selections_cross_processes(system: DeterministicSystem, probe: TestProbe) -> None:
    refs = [make(system, probe, label) for label in ("aa", "ab", "b")]
    kid = refs[0].ask(Order(CHILD, (probe.ref, "kid"), "kid")).result()
    probe.expect_msg(("kid", "started"))
    for path, expected in (
        ("/user/a?", refs[:2]),
        ("/user/*", refs),
        ("/user/*/kid", [kid]),
        ("/user/aa/kid/../../b", refs[2:]),
    ):
        system.actor_selection(path).tell(Identify(path), probe.ref)
        answers = probe.receive_n(len(expected))
        assert {answer.ref for answer in answers} == set(expected)
        probe.expect_no_msg()
    system.actor_selection("/user/nobody").tell(Identify(1), probe.ref)
    assert probe.receive_one().ref is None
