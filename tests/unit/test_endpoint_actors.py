"""An endpoint is an actor: its calls are messages among others, in the order of its mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors import (
    Actor,
    ActorKilled,
    DeadLetter,
    Directive,
    Identify,
    Kill,
    MailboxFull,
    OneForOneStrategy,
    PoisonPill,
    Props,
    Terminated,
)
from actors.address import ActorAddress
from actors.errors import ActorSystemError, EndpointStateError, UnknownActor
from actors.mailbox import BoundedMailbox
from actors.messages import RpcInvocation
from actors.props import CreateOrder
from actors.remote.gateway import PATH, NodeGateway, NodeId
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcConfig, RpcService
from actors.service_system import start_actor_system
from tests.contract.rpc_harness import until


class NotesGateway(RpcGateway):
    def note(self, text: str) -> None: ...
    def first(self, text: str) -> Ask[None]: ...
    def notes(self) -> Ask[list[str]]: ...
    def fail(self) -> Ask[None]: ...


class Notes(RpcEndpoint, NotesGateway):
    """Notes what it gets. A message ``wait`` is handled until it is let go."""

    def __init__(self, service: RpcService, name: str = "notes") -> None:
        super().__init__(service, name)
        self.taken: list[str] = []
        self.let = asyncio.Event()

    @rpc_tell
    def note(self, text: str) -> None:
        self.taken.append(text)

    @rpc
    async def first(self, text: str) -> None:
        self.taken.append(text)

    @rpc_sync
    def notes(self) -> list[str]:
        return self.taken

    @rpc
    async def fail(self) -> None:
        raise ValueError("as it is told")

    async def receive(self, message: Any) -> None:
        match message:
            case Terminated(actor=actor):
                self.taken.append(f"{actor.name} has stopped")
            case "wait":
                self.taken.append("begun")
                await self.let.wait()
                self.taken.append("ended")
            case _:
                self.taken.append(f"{message} of {self.sender.name}")


class Child(Actor):
    """Has no use for anything."""


class Opened:
    """An event."""


class Patient(Notes):
    """Puts messages aside until it hears of `Opened`, then has one more from a timer. Its children may be killed."""

    supervisor_strategy = OneForOneStrategy({ActorKilled: Directive.RESUME})

    def receive(self, message: Any) -> None:  # type: ignore[override]
        if isinstance(message, Opened):
            self.context.become(self.opened)
            self.context.unstash_all()
            self.timers.start_single_timer("later", "from a timer", 0.01)
        else:
            self.context.stash()

    def opened(self, message: Any) -> None:
        self.taken.append(message)


@pytest.fixture
async def service() -> AsyncIterator[RpcService]:
    made = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    await made.listen()
    await start_actor_system(made)
    yield made
    await made.close()


async def test_a_call_before_the_actor_system_starts_is_refused_and_does_not_keep_it_from_starting() -> None:
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    caller = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    try:
        await service.listen()
        gateway = caller.gateway(service.address_of("/user/notes"), NotesGateway)
        with pytest.raises(UnknownActor, match="no actor /user/notes lives here yet"):
            await gateway.notes()
        await start_actor_system(service)
        await service.start_server(Notes(service))
        assert await gateway.notes() == []
    finally:
        await caller.close()
        await service.close()


@pytest.fixture
async def notes(service: RpcService) -> AsyncIterator[Notes]:
    endpoint = Notes(service)
    await service.start_server(endpoint)
    yield endpoint
    endpoint.let.set()


def gateway_to(endpoint: RpcEndpoint) -> NotesGateway:
    return endpoint.service.gateway(endpoint.address, NotesGateway)


async def test_calls_wait_in_the_mailbox_behind_a_message_that_is_being_handled(notes: Notes) -> None:
    gateway = gateway_to(notes)
    notes.self_ref.tell("wait")
    await until(lambda: notes.taken == ["begun"], "the handler")
    gateway.note("tell")
    asked = gateway.first("coroutine")
    read = gateway.notes()
    other = Notes(notes.service, "other")
    await notes.service.start_server(other)
    assert await gateway_to(other).notes() == []  # by the same connection: the calls before it have been read
    assert notes.taken == ["begun"]
    assert notes.service.statistics().queued == 3
    notes.let.set()
    assert await read == ["begun", "ended", "tell", "coroutine"]
    await asked


async def test_order_holds_between_calls_that_are_tasks_and_those_that_are_not(notes: Notes) -> None:
    gateway, sent = gateway_to(notes), []
    asked = []
    for number in range(300):
        sent.append(str(number))
        if number % 3:
            gateway.note(str(number))
        else:
            asked.append(gateway.first(str(number)))
    assert await gateway.notes() == sent
    await asyncio.gather(*asked)


async def test_the_failure_of_a_call_is_its_callers_and_not_the_actors(notes: Notes) -> None:
    with pytest.raises(Exception, match="as it is told"):
        await gateway_to(notes).fail()
    gateway_to(notes).note("it goes on")
    assert await gateway_to(notes).notes() == ["it goes on"]


async def test_it_has_children_and_is_told_of_their_end(notes: Notes) -> None:
    child = notes.context.actor_of(Props(Child), "child")
    notes.context.watch(child)
    assert child.path == "/user/notes/child"
    child.tell(PoisonPill())
    await until(lambda: "child has stopped" in notes.taken, "the news")


async def test_it_stashes_has_timers_hears_events_and_supervises_by_a_strategy(service: RpcService) -> None:
    patient = Patient(service, "patient")
    await service.start_server(patient)
    service.node.event_stream.subscribe(patient.self_ref, Opened)
    patient.self_ref.tell("early")
    await gateway_to(patient).first("a call")
    service.node.publish(Opened())
    await until(lambda: len(patient.taken) == 3, "the message that was put aside, and that of the timer")
    assert patient.taken == ["a call", "early", "from a timer"]
    child = patient.context.actor_of(Props(Child).local(), "child")
    child.tell(Kill())
    assert (await child.ask(Identify(1))).ref == child, "it was resumed"


async def test_who_is_poisoned_stops_and_answers_what_waits(service: RpcService, notes: Notes) -> None:
    gateway = gateway_to(notes)
    assert await gateway.notes() == []
    notes.self_ref.tell("wait")
    notes.self_ref.tell(PoisonPill())
    await until(lambda: notes.taken == ["begun"], "the handler")
    waiting = gateway.notes()
    await until(lambda: service.statistics().queued == 2, "the call")
    notes.let.set()
    with pytest.raises(EndpointStateError, match="has stopped"):
        await waiting
    await notes.termination
    with pytest.raises(UnknownActor):
        await gateway.notes()
    successor = Notes(service)
    await service.start_server(successor)
    assert await gateway.notes() == []


async def test_a_full_mailbox_refuses_a_call(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = notes.service.node.cells[notes.path]
    monkeypatch.setattr(cell, "mailbox", BoundedMailbox(2).create(notes.path))
    notes.self_ref.tell("wait")
    await until(lambda: notes.taken == ["begun"], "the handler")
    gateway = gateway_to(notes)
    asked = [gateway.first(str(number)) for number in range(3)]
    with pytest.raises(MailboxFull):
        await asked[2]
    notes.let.set()
    await asyncio.gather(*asked[:2])


async def test_a_call_for_nobody_is_a_dead_letter(service: RpcService, notes: Notes) -> None:
    heard: list[Any] = []

    class Hearing(Actor):
        def receive(self, message: Any) -> None:
            heard.append(message)

    listener = notes.context.actor_of(Props(Hearing), "listener")
    service.node.event_stream.subscribe(listener, DeadLetter)
    service.gateway(service.address_of("/user/nobody"), NotesGateway).note("x")
    await until(lambda: bool(heard), "the dead letter")
    assert heard[0].message == RpcInvocation("note")
    assert heard[0].recipient.path == "/user/nobody"
    assert service.statistics().dead_letters == 1


async def test_an_endpoint_lives_once(service: RpcService, notes: Notes) -> None:
    notes.self_ref.tell(PoisonPill())
    await notes.termination
    await until(lambda: notes.path not in service.node.cells, "the stop")
    with pytest.raises(ActorSystemError, match="cannot be made again"):
        await service.start_server(notes)


async def test_the_actor_system_of_a_component_takes_no_orders_and_ends_with_it(service: RpcService) -> None:
    system = service.node.system
    assert system.address == ActorAddress("understudy", "127.0.0.1", service.port, "/user")
    with pytest.raises(ActorSystemError, match="end with the component"):
        system.terminate()
    child = system.actor_of(Props(Child), "child")
    await until(lambda: child.path in service.node.cells, "the child")
    await service.close()
    assert service.node.cells == {}


async def test_no_other_process_has_actors_made_in_a_component_or_ends_it(service: RpcService, notes: Notes) -> None:
    visitor = NodeId("visitor", "127.0.0.1", 1, 5, "127.0.0.1", 1, 5)
    gateway = service.gateway(service.address_of(PATH), NodeGateway)
    order = service.node.serializer.dumps(CreateOrder.of(Props(Child), "/user/planted", 7, notes.self_ref))
    await gateway.associate(visitor)
    with pytest.raises(ActorSystemError, match="takes no orders"):
        await gateway.host(visitor, order)
    with pytest.raises(ActorSystemError, match="takes no actors of other processes"):
        await gateway.create(visitor, order)
    gateway.terminate(visitor.uid)
    assert await gateway_to(notes).notes() == []
    assert "/user/planted" not in service.node.cells
