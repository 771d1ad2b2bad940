"""Two releases call each other, as ``docs/actors/wire.md`` says under "Two releases side by side"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

import pytest

from actors.errors import UnknownActor, WireError
from actors.rpc import connection
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc_sync
from actors.rpc.security import ClientHandshake, Versions
from actors.rpc.service import RpcService
from tests.contract.rpc_harness import SECRET, patient_config


class Colour(Enum):
    RED = "red"


class LaterColour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Shape:
    name: str


@dataclass(frozen=True)
class LaterShape:
    name: str
    sides: int = 4


class EarlierGateway(RpcGateway):
    def draw(self, shape: Shape, scale: int = 1) -> Ask[Shape]: ...

    def paint(self, colour: Colour) -> Ask[Colour]: ...


class LaterGateway(RpcGateway):
    def draw(self, shape: LaterShape, scale: int = 1, title: str = "none") -> Ask[LaterShape]: ...

    def paint(self, colour: LaterColour) -> Ask[LaterColour]: ...

    def erase(self) -> Ask[None]: ...


class Earlier(RpcEndpoint, EarlierGateway):
    @rpc_sync
    def draw(self, shape: Shape, scale: int = 1) -> Shape:
        return Shape(f"{shape.name} x {scale}")

    @rpc_sync
    def paint(self, colour: Colour) -> Colour:
        return colour


class Later(RpcEndpoint, LaterGateway):
    @rpc_sync
    def draw(self, shape: LaterShape, scale: int = 1, title: str = "none") -> LaterShape:
        return LaterShape(f"{shape.name} x {scale}, {title}", shape.sides + 1)

    @rpc_sync
    def paint(self, colour: LaterColour) -> LaterColour:
        return LaterColour.BLUE

    @rpc_sync
    def erase(self) -> None:
        pass


@pytest.fixture
async def client() -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    yield service
    await service.close()


@pytest.fixture
async def server() -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    await service.listen()
    await service.start_server(Earlier(service, "earlier"))
    await service.start_server(Later(service, "later"))
    yield service
    await service.close()


async def test_a_later_client_calls_an_earlier_server(client: RpcService, server: RpcService) -> None:
    later = client.gateway(server.address_of("/user/earlier"), LaterGateway)
    assert await later.draw(LaterShape("square", 5)) == LaterShape("square x 1")  # which has no `sides`, nor reads any
    assert await later.draw(LaterShape("square"), scale=2) == LaterShape("square x 2")
    with pytest.raises(WireError, match=r"draw\(\) takes 2 arguments"):
        await later.draw(LaterShape("square"), title="new")
    assert await later.paint(LaterColour.RED) is LaterColour.RED
    with pytest.raises(WireError, match="'blue' is not a valid Colour"):
        await later.paint(LaterColour.BLUE)
    with pytest.raises(UnknownActor, match="/user/earlier has no method 'erase'"):
        await later.erase()
    assert await later.draw(LaterShape("line")) == LaterShape("line x 1")  # the connection has outlived it all


async def test_an_earlier_client_calls_a_later_server(client: RpcService, server: RpcService) -> None:
    earlier = client.gateway(server.address_of("/user/later"), EarlierGateway)
    assert await earlier.draw(Shape("square")) == Shape("square x 1, none")
    assert await earlier.draw(Shape("square"), 2) == Shape("square x 2, none")
    with pytest.raises(WireError, match="'blue' is not a valid Colour"):
        await earlier.paint(Colour.RED)
    assert await earlier.draw(Shape("line")) == Shape("line x 1, none")


async def test_releases_with_a_common_protocol_version_talk(
    server: RpcService, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = connection.ServerHandshake(SECRET, "rpc", b"")._spoken
    later = partial(ClientHandshake, spoken=Versions(spoken.newest, spoken.newest + 1))
    monkeypatch.setattr(connection, "ClientHandshake", later)
    service = RpcService(asyncio.get_running_loop(), SECRET, patient_config())
    try:
        gateway = service.gateway(server.address_of("/user/later"), LaterGateway)
        assert await gateway.draw(LaterShape("square")) == LaterShape("square x 1, none", 5)
    finally:
        await service.close()
