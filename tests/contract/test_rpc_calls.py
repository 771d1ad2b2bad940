"""Asks and tells over real sockets; every test runs over TCP and over the Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.errors import (
    AskTimeout,
    EndpointStateError,
    FencingError,
    FrameTooLarge,
    RecipientUnreachable,
    RemoteError,
    UnknownActor,
    WireError,
)
from actors.rpc import connection as rpc_connection
from actors.rpc.codec import method_specs
from actors.rpc.gateway import Ask, FencingToken
from actors.rpc.service import RpcConfig, RpcService
from tests.contract.rpc_harness import (
    DEADLINE_S,
    SECRET,
    HiddenError,
    Item,
    LeaderGateway,
    Probe,
    ProbeError,
    ProbeGateway,
    ProbeServer,
    patient_config,
    until,
)
from tests.logged import logged


@pytest.fixture(params=["tcp", "uds"])
def socket_dir(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    if request.param == "tcp":
        yield None
        return
    directory = Path(tempfile.mkdtemp(prefix="us-"))  # pytest's own directories are too long for a Unix socket
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def server(socket_dir: Path | None) -> Iterator[ProbeServer]:
    server = ProbeServer(socket_dir, frame_size=1 << 20)
    yield server
    server.close()


def client_config(server: ProbeServer, **options: Any) -> RpcConfig:
    return patient_config(**{"socket_dir": server.config.socket_dir, "frame_size": 1 << 20, **options})


@contextlib.asynccontextmanager
async def calling(server: ProbeServer, **options: Any) -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), SECRET, client_config(server, **options))
    try:
        yield service
    finally:
        await service.close()


@pytest.fixture
async def client(server: ProbeServer) -> AsyncIterator[RpcService]:
    async with calling(server) as service:
        yield service


@pytest.fixture
def probe(server: ProbeServer, client: RpcService) -> ProbeGateway:
    return client.gateway(server.address, ProbeGateway)


# ------------------------------------------------------------------ the plain calls


async def test_the_expected_kind_of_socket_is_used(probe: ProbeGateway, server: ProbeServer) -> None:
    await probe.echo(b"")
    (connection,) = server.call(lambda: list(server.service.connections))
    assert connection.sock is not None
    assert connection.sock.family == (socket.AF_INET if server.config.socket_dir is None else socket.AF_UNIX)


async def test_a_connection_can_be_made_before_the_first_call(
    server: ProbeServer, client: RpcService, probe: ProbeGateway
) -> None:
    client.connect(str(server.address))
    await until(lambda: bool(server.call(lambda: list(server.service.connections))), "the connection")
    connections = server.call(lambda: list(server.service.connections))
    assert await probe.echo(b"x") == b"x"
    assert server.call(lambda: list(server.service.connections)) == connections
    client.connect(ActorAddress("nowhere", "127.0.0.1", 1, "/user/probe"))  # the first call has what is wrong
    with pytest.raises(RecipientUnreachable):
        await client.gateway(ActorAddress("nowhere", "127.0.0.1", 1, "/user/probe"), ProbeGateway).echo(b"")


async def test_asks_return_typed_values(probe: ProbeGateway) -> None:
    assert await probe.echo(b"\x00\xff") == b"\x00\xff"
    assert await probe.rename(Item("a", 1), name="b") == Item("b", 2)
    assert await probe.rename(Item("a")) == Item("default", 1)
    assert await probe.echo(bytes(1_000_000)) == bytes(1_000_000)


async def test_a_gateway_is_made_of_the_text_form_too(server: ProbeServer, client: RpcService) -> None:
    assert await client.gateway(str(server.address), ProbeGateway).echo(b"x") == b"x"


async def test_tells_take_effect_before_a_later_ask(probe: ProbeGateway) -> None:
    for number in range(1000):
        probe.add(number)
    assert await probe.numbers() == list(range(1000))


@pytest.mark.parametrize("seed", range(5))
async def test_messages_of_one_sender_start_in_order_whatever_their_handlers(probe: ProbeGateway, seed: int) -> None:
    choose = random.Random(seed)
    asks: list[Ask[int]] = []
    for number in range(2000):
        kind = choose.choice(["tell", "sync", "async"])
        if kind == "tell":
            probe.add(number)
        else:
            asks.append(probe.add_sync(number) if kind == "sync" else probe.add_async(number))
        if choose.random() < 0.01:
            await asyncio.sleep(0)  # so that it is not all one write, and arrives in several turns of the server
    replies = [await ask for ask in asks]
    assert replies == sorted(replies)
    assert await probe.numbers() == list(range(2000))


async def test_async_handlers_run_concurrently(probe: ProbeGateway) -> None:
    asks = [probe.meet(50) for _ in range(50)]
    assert [await ask for ask in asks] == [50] * 50


async def test_a_waiting_handler_does_not_hold_up_the_others(probe: ProbeGateway) -> None:
    waiting = probe.never()
    assert await probe.echo(b"x") == b"x"
    assert (await probe.rename(Item("a"), "b")).name == "b"
    assert not waiting.done()
    probe.release()
    assert await waiting is None


async def test_replies_find_their_asks_when_they_come_in_another_order(probe: ProbeGateway) -> None:
    late = probe.meet(2)
    assert await probe.echo(b"early") == b"early"
    assert await probe.meet(2) == 2
    assert await late == 2


async def test_many_clients_at_once(server: ProbeServer) -> None:
    async def one(number: int) -> None:
        async with calling(server) as service:
            gateway = service.gateway(server.address, ProbeGateway)
            values = [f"{number}-{count}".encode() for count in range(200)]
            assert list(await asyncio.gather(*map(gateway.echo, values))) == values

    await asyncio.gather(*map(one, range(16)))


async def test_an_endpoint_may_ask_itself_and_a_client_may_serve(server: ProbeServer, client: RpcService) -> None:
    await client.listen()
    await client.start_server(own := Probe(client, "own"))
    ours = client.gateway(own.address, ProbeGateway)
    assert await ours.rename(Item("a"), "b") == Item("b", 1)

    async def ask_from_there() -> bytes:
        return await server.service.gateway(own.address, ProbeGateway).echo(b"there and back")

    there = asyncio.run_coroutine_threadsafe(ask_from_there(), server.loop)
    assert await asyncio.wait_for(asyncio.wrap_future(there), DEADLINE_S) == b"there and back"


# ------------------------------------------------------------------ failures of handlers and values


@pytest.mark.parametrize("method", ["fail_sync", "fail_async"])
@pytest.mark.parametrize("error_type", [ValueError, KeyError, PermissionError, TimeoutError, ProbeError])
async def test_known_exceptions_arrive_as_themselves(
    probe: ProbeGateway, method: str, error_type: type[Exception]
) -> None:
    with pytest.raises(error_type) as caught:
        await getattr(probe, method)(error_type.__name__, "why it failed")
    assert type(caught.value) is error_type
    assert caught.value.args == ("why it failed",)


@pytest.mark.parametrize("method", ["fail_sync", "fail_async"])
async def test_other_exceptions_arrive_with_their_remote_traceback(probe: ProbeGateway, method: str) -> None:
    with pytest.raises(RemoteError, match="HiddenError: why") as caught:
        await getattr(probe, method)("HiddenError", "why")
    assert caught.value.type_name == f"{HiddenError.__module__}.HiddenError"
    assert caught.value.message == "why"
    assert "raise ERRORS[kind](text)" in caught.value.remote_traceback


@pytest.mark.parametrize("method", ["fail_sync", "fail_async"])
@pytest.mark.parametrize("size", [1, 3_000_000], ids=["lone surrogate", "larger than a frame"])
async def test_an_exception_whose_text_cannot_travel_reaches_its_asker_and_nobody_else(
    server: ProbeServer, probe: ProbeGateway, method: str, size: int
) -> None:
    def make_fail(*_: Any) -> Any:
        raise ValueError("\udcff" * size)

    async def make_fail_async(*_: Any) -> Any:
        raise ValueError("\udcff" * size)

    table = server.service._dispatcher.served["/user/probe"].table
    spec, _, is_coroutine = table[method]
    table[method] = (spec, make_fail_async if is_coroutine else make_fail, is_coroutine)
    waiting = probe.never()
    with pytest.raises(ValueError, match="udcff"):
        await asyncio.wait_for(getattr(probe, method)("ValueError", ""), DEADLINE_S)
    assert not waiting.done(), "the connection, and what else is asked over it, goes on"
    probe.release()
    await waiting


async def test_a_failing_tell_is_logged_and_disturbs_nobody(
    probe: ProbeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    probe.fail_tell("told in vain")
    assert await probe.echo(b"x") == b"x"
    (record,) = [record for record in caplog.records if "fail_tell" in record.getMessage()]
    assert "told in vain" in record.getMessage()
    assert record.exc_info is not None


async def test_a_result_of_the_wrong_type_is_an_error_of_the_asker(probe: ProbeGateway) -> None:
    with pytest.raises((RemoteError, TypeError, WireError)):
        await asyncio.wait_for(probe.wrong_result(), DEADLINE_S)
    assert await probe.echo(b"x") == b"x"


async def test_a_result_too_large_is_an_error_of_the_asker(probe: ProbeGateway) -> None:
    waiting = probe.never()
    with pytest.raises(FrameTooLarge, match=r"rpc\.frame-size"):
        await probe.zeros(2 << 20)
    assert not waiting.done()
    probe.release()
    await waiting


async def test_an_argument_too_large_is_refused_before_it_is_sent(
    probe: ProbeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = probe.never()
    with pytest.raises(FrameTooLarge, match=r"rpc\.frame-size"):
        await probe.echo(bytes(2 << 20))
    assert not waiting.done()
    probe.release()
    await waiting
    assert not [record for record in caplog.records if "refused" in record.getMessage()]


async def test_an_argument_of_the_wrong_type_is_refused(probe: ProbeGateway) -> None:
    with pytest.raises(WireError, match="expected"):
        await probe.add_sync("seven")  # type: ignore[arg-type]
    with pytest.raises(WireError, match="cannot be sent"):
        await probe.add_sync(object())  # type: ignore[arg-type]
    assert await probe.numbers() == []


class NewerGateway(ProbeGateway):
    def invented(self) -> Ask[int]: ...

    def invented_tell(self) -> None: ...


async def test_an_unknown_method_is_named(server: ProbeServer, client: RpcService) -> None:
    newer = client.gateway(server.address, NewerGateway)
    newer.invented_tell()
    with pytest.raises(UnknownActor, match="/user/probe has no method 'invented'"):
        await newer.invented()
    assert await newer.echo(b"x") == b"x"


@pytest.mark.parametrize("name", ["__init__", "on_stop", "stop", "schedule", "log", "service"])
async def test_only_what_a_gateway_declares_can_be_called(server: ProbeServer, client: RpcService, name: str) -> None:
    with pytest.raises(UnknownActor, match=f"no method '{name}'"):
        await _ask_by_name(client, server.address, name)


def _ask_by_name(client: RpcService, address: ActorAddress, name: str) -> Ask[Any]:
    spec = dataclasses.replace(method_specs(NewerGateway)["invented"], name=name)
    return client.ask(address, spec, [], None, DEADLINE_S)


async def test_an_unknown_actor_is_named(server: ProbeServer, client: RpcService) -> None:
    nobody = client.gateway(server.address.with_path("/user/nobody"), ProbeGateway)
    nobody.add(1)
    with pytest.raises(UnknownActor, match="no actor /user/nobody lives at 127"):
        await nobody.echo(b"x")


class SlowStarter(Probe):
    def __init__(self, service: RpcService, name: str) -> None:
        super().__init__(service, name)
        self.may_start = asyncio.Event()
        self.may_stop = asyncio.Event()

    async def on_start(self) -> None:
        await self.may_start.wait()

    async def on_stop(self) -> None:
        await self.may_stop.wait()


async def test_calls_before_the_start_and_during_the_stop_are_refused(server: ProbeServer, client: RpcService) -> None:
    slow = server.call(SlowStarter, server.service, "slow")
    starting = asyncio.run_coroutine_threadsafe(server.service.start_server(slow), server.loop)
    gateway = client.gateway(slow.address, ProbeGateway)
    await until(lambda: "/user/slow" in server.service._dispatcher.served, "the registration")
    with pytest.raises(EndpointStateError, match="/user/slow is starting or stopping"):
        await gateway.echo(b"x")
    server.call(slow.may_start.set)
    await asyncio.wrap_future(starting)
    assert await gateway.echo(b"x") == b"x"
    stopping = asyncio.run_coroutine_threadsafe(server.service.stop_server(slow), server.loop)
    await until(lambda: not slow.running, "the stop")
    with pytest.raises(EndpointStateError):
        await gateway.echo(b"x")
    server.call(slow.may_stop.set)
    await asyncio.wrap_future(stopping)
    with pytest.raises(UnknownActor):
        await gateway.echo(b"x")


# ------------------------------------------------------------------ fencing


TOKEN = FencingToken(7, "session-7")


async def test_a_leader_serves_its_own_token_only(server: ProbeServer, client: RpcService) -> None:
    server.leader.fencing_token = TOKEN
    address = server.leader.address
    assert await client.gateway(address, LeaderGateway, TOKEN).lead() == "led"
    for other in (None, FencingToken(6, "session-6"), FencingToken(8, "session-8"), FencingToken(7, "other")):
        with pytest.raises(FencingError, match="another leadership"):
            await client.gateway(address, LeaderGateway, other).lead()


async def test_a_standby_refuses_every_token(server: ProbeServer, client: RpcService) -> None:
    for token in (None, TOKEN):
        with pytest.raises(FencingError, match="not the leader"):
            await client.gateway(server.leader.address, LeaderGateway, token).lead()


async def test_a_stale_tell_has_no_effect(server: ProbeServer, client: RpcService) -> None:
    server.leader.fencing_token = TOKEN
    address = server.leader.address
    client.gateway(address, LeaderGateway, FencingToken(6, "session-6")).note("stale")
    client.gateway(address, LeaderGateway).note("none")
    current = client.gateway(address, LeaderGateway, TOKEN)
    current.note("current")
    assert await current.notes() == ["current"]


async def test_a_leader_that_loses_its_leadership_refuses_the_token_it_served(
    server: ProbeServer, client: RpcService
) -> None:
    server.leader.fencing_token = TOKEN
    gateway = client.gateway(server.leader.address, LeaderGateway, TOKEN)
    assert await gateway.lead() == "led"
    server.leader.fencing_token = None
    with pytest.raises(FencingError):
        await gateway.lead()


# ------------------------------------------------------------------ time and broken connections


async def test_an_ask_that_is_not_answered_in_time(server: ProbeServer, client: RpcService) -> None:
    hasty = client.gateway(server.address, ProbeGateway, timeout_s=0.1)
    patient = client.gateway(server.address, ProbeGateway)
    await patient.echo(b"connected")
    begin = time.monotonic()
    with pytest.raises(AskTimeout, match=r"/user/probe did not answer never\(\) within 0\.1 s"):
        await hasty.never()
    assert time.monotonic() - begin >= 0.09
    hasty.release()  # the late reply belongs to nobody and must not be taken for another ask's
    assert await patient.echo(b"after") == b"after"


async def test_the_time_out_of_the_service_is_the_default(server: ProbeServer) -> None:
    async with calling(server, ask_timeout_s=0.1) as service:
        with pytest.raises(AskTimeout, match=r"0\.1 s"):
            await service.gateway(server.address, ProbeGateway).never()


async def test_a_cancelled_await_leaves_the_connection_in_order(probe: ProbeGateway) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.never(), 0.05)
    probe.release()
    assert await probe.echo(b"after") == b"after"


async def test_a_connection_that_breaks_ends_every_ask_over_it(server: ProbeServer, probe: ProbeGateway) -> None:
    asks = [probe.never() for _ in range(10)]
    await until(lambda: server.probe.waiting == 10, "the arrival of the asks")
    server.break_connections()
    for ask in asks:
        with pytest.raises(RecipientUnreachable, match="the connection broke"):
            await ask
    assert await probe.echo(b"a new connection") == b"a new connection"


async def test_a_gateway_outlives_a_restart_of_its_server(server: ProbeServer, client: RpcService) -> None:
    gateway = client.gateway(server.address, ProbeGateway)
    assert await gateway.echo(b"before") == b"before"
    waiting = gateway.never()
    await until(lambda: server.probe.waiting == 1, "the arrival of the ask")
    server.close()
    with pytest.raises((EndpointStateError, RecipientUnreachable)):
        await waiting
    await until(lambda: not client._peers, "the end of the connection at the client")
    with pytest.raises(RecipientUnreachable, match=rf"nothing can be reached at 127\.0\.0\.1:{server.port}"):
        await gateway.echo(b"between")
    again = ProbeServer(server.config.socket_dir, port=server.port)
    try:
        assert await gateway.echo(b"after") == b"after"
    finally:
        again.close()


async def test_nothing_listens(client: RpcService) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        gateway = client.gateway(ActorAddress("s", "127.0.0.1", port, "/user/a"), ProbeGateway)
        gateway.add(1)  # a tell is never an error to its sender
        with pytest.raises(RecipientUnreachable, match=rf"nothing can be reached at 127\.0\.0\.1:{port}"):
            await gateway.echo(b"x")


async def test_a_host_without_an_address(client: RpcService) -> None:
    gateway = client.gateway("akka.tcp://s@no-such-host.invalid:1/user/a", ProbeGateway)
    with pytest.raises(RecipientUnreachable, match=r"no-such-host\.invalid:1"):
        await gateway.echo(b"x")


async def test_a_peer_that_accepts_and_says_nothing(server: ProbeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
    # As a stopped process does: its kernel accepts.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = ActorAddress("s", "127.0.0.1", deaf.getsockname()[1], "/user/a")
        async with calling(server, socket_dir=None) as client:
            with pytest.raises(RecipientUnreachable, match="no handshake"):
                await client.gateway(address, ProbeGateway).echo(b"x")


async def test_a_peer_that_ends_during_the_handshake_is_unreachable_not_an_impostor(server: ProbeServer) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async with (
        await asyncio.start_server(hang_up, "127.0.0.1", 0) as ending,
        calling(server, socket_dir=None) as client,
    ):
        address = ActorAddress("s", "127.0.0.1", ending.sockets[0].getsockname()[1], "/user/a")
        with pytest.raises(RecipientUnreachable, match="during the handshake"):
            await client.gateway(address, ProbeGateway).echo(b"x")


async def test_what_is_sent_while_connecting_is_sent_in_order_once(server: ProbeServer) -> None:
    async with calling(server) as service:
        gateway = service.gateway(server.address, ProbeGateway)
        asks = []
        for number in range(0, 300, 3):  # not one turn of the loop in between: all of it waits for the handshake
            gateway.add(number)
            asks.append(gateway.add_async(number + 1))
            gateway.add(number + 2)
        await asyncio.gather(*asks)
        assert await gateway.numbers() == list(range(300))
        assert server.call(lambda: len(server.service.connections)) == 1


async def test_the_log_is_silent_on_an_ordinary_day(server: ProbeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with calling(server) as service:
        await service.gateway(server.address, ProbeGateway).echo(b"x")
    server.close()
    assert logged(caplog, "actors") == []


async def test_what_is_no_host_name_is_an_error_at_once(client: RpcService) -> None:
    gateway = client.gateway("akka.tcp://s@master..example.org:6123/user/probe", ProbeGateway)
    with pytest.raises(RecipientUnreachable, match=r"at master\.\.example\.org:6123 \(it is not a host name\)"):
        await gateway.echo(b"")
    assert not client._peers
