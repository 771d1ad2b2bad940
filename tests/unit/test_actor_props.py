"""Props, and the orders by which other processes carry them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import ActorSystemError
from actors.mailbox import BoundedMailbox
from actors.props import CreateOrder, Placement, Props, load_actor_class
from actors.ref import ActorRef
from actors.routing import Pool, RoundRobin
from actors.testkit import DeterministicSystem


class Takes(Actor):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class Plain(Actor):
    class Inner(Actor):
        pass


def test_immutable() -> None:
    props = Props(Takes, 1, key=2)
    changed = props.with_mailbox(BoundedMailbox(3)).with_throughput(7).pinned()
    assert (props.mailbox, props.throughput, props.placement) == (None, None, Placement.DEFAULT)
    assert (changed.mailbox, changed.throughput, changed.placement) == (BoundedMailbox(3), 7, Placement.PINNED)
    assert changed.args == (1,)
    assert changed.kwargs == {"key": 2}
    with pytest.raises(AttributeError, match="immutable"):
        props.mailbox = None


def test_placements() -> None:
    props = Props(Plain)
    assert props.local().placement is Placement.LOCAL
    assert props.shared().placement is Placement.SHARED
    assert props.deploy("akka.tcp://s@h:1").deploy_to == "akka.tcp://s@h:1"
    assert props.deploy("akka.tcp://s@h:1").local().deploy_to is None


def test_class_paths() -> None:
    assert Props(Plain).class_path == f"{__name__}:Plain"
    assert Props(f"{__name__}:Plain.Inner").load_class() is Plain.Inner
    assert repr(Props(Takes, 1, a="b")) == f"Props({__name__}:Takes, 1, a='b')"


@pytest.mark.parametrize("wrong", [Plain(), int, "Plain", None, lambda: Plain()])
def test_no_actor_class(wrong: Any) -> None:
    with pytest.raises(TypeError, match="actor class"):
        Props(wrong)


def test_throughput_is_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Props(Plain).with_throughput(0)


@pytest.mark.parametrize(
    "path", ["no_such_module:Plain", f"{__name__}:Nothing", "__main__:Nothing", "actors.props:Props"]
)
def test_classes_that_cannot_be_loaded(path: str) -> None:
    with pytest.raises(ActorSystemError):
        load_actor_class(path)


def test_orders_travel() -> None:
    with DeterministicSystem() as system:
        parent = system.node.dead_letters
        props = (
            Props(Takes, 1, (2,), name="x").with_mailbox(BoundedMailbox(3)).with_router(Pool(2, RoundRobin())).pinned()
        )
        order = CreateOrder.of(props, "/user/a", 7, parent)
        loaded = system.node.serializer.loads(system.node.serializer.dumps(order))
        assert loaded == order
        again = loaded.props()
        assert again.load_class() is Takes
        assert (again.args, again.kwargs) == ((1, (2,)), {"name": "x"})
        assert (again.mailbox, again.router) == (BoundedMailbox(3), Pool(2, RoundRobin()))
        assert again.placement is Placement.LOCAL


def test_local_classes_cannot_be_ordered() -> None:
    class Local(Actor):
        pass

    with pytest.raises(ActorSystemError, match="inside a function"):
        CreateOrder.of(Props(Local), "/user/a", 1, _nobody())


def _nobody() -> ActorRef:
    with DeterministicSystem() as system:
        return system.node.dead_letters


class Needs(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.start = start


@pytest.mark.parametrize("make", [lambda: Props(Needs), lambda: Props(Needs, 1, 2), lambda: Props(Needs, 1, other=2)])
def test_arguments_that_do_not_fit_the_constructor_are_refused_at_once(make: Callable[[], Props]) -> None:
    with pytest.raises(TypeError, match=r"in Props of .*:Needs, which is made by Needs\(start: .*, step: .* = 1\)"):
        make()


def test_a_class_without_a_constructor_takes_no_arguments() -> None:
    assert Props(Actor).args == ()
    with pytest.raises(TypeError, match=r"is made by Actor\(\)"):
        Props(Actor, 1)


@pytest.mark.parametrize("args", [(1,), (1, 2), (1, 2, 3)])
def test_any_arguments_that_fit_are_taken(args: tuple[int, ...]) -> None:
    class Takes(Actor):
        def __init__(self, first: int, second: int = 0, *others: int, **more: int) -> None:
            pass

    assert Props(Takes, *args, named=1).args == args


def test_a_generator_as_handler_is_refused_with_its_class() -> None:
    with pytest.raises(TypeError, match=r"Yields\.receive is a generator function"):

        class Yields(Actor):
            def receive(self, message: Any) -> Any:
                yield message

    with pytest.raises(TypeError, match=r"YieldsLater\.post_stop is a generator function"):

        class YieldsLater(Actor):
            async def post_stop(self) -> Any:  # type: ignore[override]
                yield 1


def test_what_has_to_be_named_is_missed() -> None:
    class Named(Actor):
        def __init__(self, first: int = 0, *, name: str) -> None:
            pass

    assert Props(Named, 1, name="x").kwargs == {"name": "x"}
    for args in ((), (1,)):
        with pytest.raises(TypeError, match="missing a required argument: 'name'"):
            Props(Named, *args)
