"""Contract: refs, incarnations, selections, Identify."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from actors import Actor, ActorAddress, ActorIdentity, ActorRef, DeadLetter, Identify
from actors.errors import ActorNotFound, AddressError
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere
from tests.contract.actors_under_test import Boss, Collector, Echo, Quiet


class Searcher(Actor):
    """Resolves paths as seen from itself."""

    async def receive(self, message: Any) -> None:
        asker = self.sender
        match message:
            case ("resolve", path):
                try:
                    asker.tell(await self.context.actor_selection(path).resolve_one(DEADLINE_S))
                except ActorNotFound as error:
                    asker.tell(f"not found: {error}")
            case ("tell", path, what):
                self.context.actor_selection(path).tell(what)
            case _:
                asker.tell(message)


def family(world: World) -> tuple[ActorRef, list[ActorRef]]:
    boss = world.spawn(Boss, world.probe().ref, "ann", "anna", "bob")
    return boss, world.ask(boss, "children")


@everywhere
def test_equality(world: World) -> None:
    """Akka, Thespian: refs to one incarnation are equal and hash alike, also those that have travelled."""
    echo, other = world.spawn(Quiet, world.probe().ref), world.spawn(Echo)
    travelled = world.ask(echo, "ref")
    assert travelled == echo
    assert hash(travelled) == hash(echo)
    assert {echo: 1}[travelled] == 1
    assert echo != other
    assert echo != str(echo)


def test_order(world: World) -> None:
    """Ours: refs can be sorted."""
    refs = [world.spawn(Echo) for _ in range(5)]
    assert [ref.path for ref in sorted(refs)] == sorted(ref.path for ref in refs)


def test_text(world: World) -> None:
    """Akka: a ref's text names protocol, system, host, port, path and incarnation; it can be read back."""
    echo = world.spawn(Echo)
    text = repr(echo)
    assert text == f"{echo.address}#{echo.uid}"
    assert ActorAddress.parse(str(echo.address)).path == echo.path
    again = ActorRef.parse(text, world.system)
    assert again == echo
    assert world.ask(again, "x") == "x"


@pytest.mark.parametrize("text", ["", "echo", "http://a@b:1/user/x#1", "akka.tcp://a@b:1/user/x#z"])
def test_malformed_text(world: World, text: str) -> None:
    """Akka: what is not a ref's text is refused."""
    with pytest.raises(AddressError):
        ActorRef.parse(text, world.system)


def test_pickle(world: World) -> None:
    """Akka: a ref can be serialised and stays a ref to the same incarnation."""
    echo = world.spawn(Echo)
    assert pickle.loads(pickle.dumps(echo)) == echo


@everywhere
def test_incarnation(world: World) -> None:
    """Akka: a ref to an incarnation that has ended never reaches its successor; its messages are dead letters."""
    probe, letters = world.probe(), world.probe()
    old = world.spawn(Collector, probe.ref)
    world.stop(old)
    new = world.spawn(Collector, probe.ref, name=old.name)
    assert (new.path, new.uid == old.uid) == (old.path, False)
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    old.tell("for the old one")
    new.tell("for the new one")
    probe.expect_msg("for the new one")
    assert world.letter(letters, old).message == "for the old one"
    with pytest.raises(ConnectionError):
        old.ask("x", DEADLINE_S).result()
    probe.expect_no_msg(QUIET_S)


@everywhere
def test_watch_an_old_incarnation(world: World) -> None:
    """Akka: to watch an incarnation that has ended gives Terminated, though another lives under its name."""
    probe = world.probe()
    old = world.spawn(Echo)
    world.stop(old)
    new = world.spawn(Echo, name=old.name)
    probe.watch(old)
    probe.expect_terminated(old)
    assert world.ask(new, "x") == "x"


def test_stop_an_old_incarnation(world: World) -> None:
    """Ours: stopping by an old ref does not stop the successor."""
    old = world.spawn(Echo)
    world.stop(old)
    new = world.spawn(Echo, name=old.name)
    world.system.stop(old)
    world.stop(old)
    assert world.ask(new, "x") == "x"


@everywhere
def test_select_by_path(world: World) -> None:
    """Akka: a selection by path tells the actor that lives there, whichever incarnation that is."""
    probe = world.probe()
    first = world.spawn(Collector, probe.ref)
    selection = world.system.actor_selection(first.path)
    selection.tell("a")
    probe.expect_msg("a")
    world.stop(first)
    world.spawn(Collector, probe.ref, name=first.name)
    selection.tell("b")
    probe.expect_msg("b")


@everywhere
def test_resolve(world: World) -> None:
    """Akka: resolve_one gives the ref behind a selection."""
    boss, (ann, *_) = family(world)
    assert world.system.actor_selection(boss.path).resolve_one(DEADLINE_S).result() == boss
    assert world.system.actor_selection(f"{boss.path}/ann").resolve_one(DEADLINE_S).result() == ann


def test_resolve_by_address(world: World) -> None:
    """Akka: a selection may be a whole address."""
    echo = world.spawn(Echo)
    assert world.system.actor_selection(str(echo.address)).resolve_one(DEADLINE_S).result() == echo


def test_resolve_nobody(world: World) -> None:
    """Akka: resolve_one fails with ActorNotFound, naming the path, when nobody lives there."""
    path = f"/user/{world.name('nobody')}"
    with pytest.raises(ActorNotFound, match=path):
        world.system.actor_selection(path).resolve_one(DEADLINE_S).result()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("*", ["ann", "anna", "bob"]), ("ann*", ["ann", "anna"]), ("?ob", ["bob"]), ("a*a", ["anna"]), ("b?b", ["bob"])],
)
def test_wildcards(world: World, pattern: str, names: list[str]) -> None:
    """Akka: a selection with `*` and `?` in an element tells every actor that matches."""
    probe = world.probe()
    boss, _ = family(world)
    world.system.actor_selection(f"{boss.path}/{pattern}").tell(Identify(pattern), sender=probe.ref)
    found = probe.receive_n(len(names))
    assert {each.message_id for each in found} == {pattern}
    assert sorted(each.ref.name for each in found) == names
    probe.expect_no_msg(QUIET_S)


def test_wildcard_in_the_middle(world: World) -> None:
    """Akka: a wildcard stands for one element anywhere in the path."""
    probe = world.probe()
    boss, (ann, *_) = family(world)
    world.system.actor_selection(f"/user/{boss.name[:-1]}?/ann").tell(Identify(1), sender=probe.ref)
    assert ann in [probe.expect_msg_type(ActorIdentity).ref]


@everywhere
def test_relative(world: World) -> None:
    """Akka: a selection of a context is relative to the actor; `..` is its parent."""
    searcher, echo = world.spawn(Searcher), world.spawn(Echo)
    assert world.ask(searcher, ("resolve", f"../{echo.name}")) == echo
    assert world.ask(searcher, ("resolve", echo.path)) == echo
    assert world.ask(searcher, ("resolve", "no-such-child")).startswith("not found")


def test_relative_tell(world: World) -> None:
    """Akka: what is told through a selection has the teller for its sender."""
    probe = world.probe()
    collector, searcher = world.spawn(Collector, probe.ref), world.spawn(Searcher)
    searcher.tell(("tell", f"../{collector.name}", "x"))
    probe.expect_msg("x")


@everywhere
def test_identify(world: World) -> None:
    """Akka: every actor answers Identify by itself, with its ref and the id of the question."""
    echo = world.spawn(Collector, world.probe().ref)
    assert world.ask(echo, Identify(("id", 7))) == ActorIdentity(("id", 7), echo)


def test_identify_nobody(world: World) -> None:
    """Akka: Identify through a selection that matches nobody is answered with no ref."""
    probe = world.probe()
    world.system.actor_selection(f"/user/{world.name('nobody')}").tell(Identify("q"), sender=probe.ref)
    probe.expect_msg(ActorIdentity("q", None))


def test_guardians(world: World) -> None:
    """Akka: top-level actors live below /user."""
    echo = world.spawn(Echo)
    user = world.system.actor_selection("/user").resolve_one(DEADLINE_S).result()
    assert user.path == "/user"
    assert echo.path.startswith(user.path + "/")
