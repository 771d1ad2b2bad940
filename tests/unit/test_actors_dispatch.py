"""What a received message comes to, without sockets: who is not served yet, who is told of an end, what is bounded."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest

from actors.errors import FrameTooLarge
from actors.rpc import wire
from actors.rpc.blocking import Intake
from actors.rpc.connection import HANDSHAKE_TIMEOUT_S, ServerConnection
from actors.rpc.dispatch import Dispatcher
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc
from actors.rpc.service import RpcConfig, RpcService

TURNS = 50
"""Turns of the loop, more than any chain of callbacks here has."""
ASKED = [wire.ASK, 1, "/user/probe", "wait", [], None]


class ProbeGateway(RpcGateway):
    def wait(self) -> Ask[None]: ...


class Probe(RpcEndpoint, ProbeGateway):
    called = 0

    @rpc
    async def wait(self) -> None:
        self.called += 1
        await asyncio.Event().wait()


@pytest.fixture
async def service() -> RpcService:
    return RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig(handlers_in_flight=2))


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def errors_of(connection: Mock) -> list[Any]:
    """The types of the errors that a connection was sent."""
    sent = [msgpack.unpackb(call.args[0][wire.HEADER_SIZE :]) for call in connection.send.call_args_list]
    assert all(message[0] == wire.ERROR for message in sent)
    return [message[2] for message in sent]


def dispatcher_of(service: RpcService) -> Dispatcher:
    return service._dispatcher


async def test_who_is_starting_or_stopping_takes_no_call(service: RpcService) -> None:
    probe, dispatcher, connection = Probe(service, "probe"), dispatcher_of(service), Mock()
    await service.start_server(probe)
    probe.running = False
    dispatcher.dispatch(ASKED, connection)
    await turns()
    assert probe.called == 0
    (error,) = errors_of(connection)
    assert error.endswith("EndpointStateError")


async def test_the_end_of_an_endpoint_answers_who_waits_for_it(service: RpcService) -> None:
    probe, dispatcher, connection = Probe(service, "probe"), dispatcher_of(service), Mock()
    await service.start_server(probe)
    dispatcher.dispatch(ASKED, connection)
    await turns()
    assert probe.called == 1
    ending = asyncio.ensure_future(service.stop_server(probe))
    await turns()
    assert ending.done()
    (error,) = errors_of(connection)
    assert error.endswith("EndpointStateError")


async def test_a_connection_has_a_deadline_until_its_handshake_is_done(service: RpcService) -> None:
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        connection = ServerConnection(service, "a peer")
        before = service.loop.time()
        connection.attach(near, None)
        assert connection._deadline is not None
        assert before <= connection._deadline.when() - HANDSHAKE_TIMEOUT_S <= service.loop.time()
        connection.drop()
        assert connection._deadline is None
    await service.close()


async def test_a_peer_is_not_read_from_while_as_many_of_its_handlers_run_as_may(service: RpcService) -> None:
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        connection = ServerConnection(service, "a peer")
        connection.attach(near, None)
        connection.handler_started()
        assert not connection.paused
        connection.handler_started()
        assert connection.paused
        connection.handler_ended()
        assert not connection.paused
        connection.drop()
    await service.close()


def test_a_threads_connection_refuses_a_frame_over_the_maximum_on_its_header_alone() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall((101).to_bytes(4))
        with pytest.raises(FrameTooLarge, match="a frame of 101 bytes, over 100"):
            Intake(100, Mock()).receive(near, (socket.MSG_DONTWAIT,))
