"""Walks every gateway of the code base, as Flink's `RpcGatewayCompletenessTest` does: all travels and is served."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from actors.rpc import codec
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import RPC_MARK, FencedRpcGateway, RpcGateway, gateway_methods, gateways_of

PACKAGES = ("actors", "blob", "runtime")
NEEDS_A_SPARK_PROCESS = "runtime.spark."


def _import_everything() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not found.name.endswith("__main__") and not found.name.startswith(NEEDS_A_SPARK_PROCESS):
                importlib.import_module(found.name)


def _subclasses(base: type) -> Iterator[type]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _of_ours(found: Iterator[type]) -> list[type]:
    kept = {
        item for item in found if item.__module__.partition(".")[0] in PACKAGES and "<locals>" not in item.__qualname__
    }
    return sorted(kept, key=lambda item: (item.__module__, item.__qualname__))


_import_everything()
ENDPOINTS = _of_ours(item for item in _subclasses(RpcEndpoint) if item is not FencedRpcEndpoint and gateways_of(item))
GATEWAYS = _of_ours(
    item
    for item in _subclasses(RpcGateway)
    if item is not FencedRpcGateway and not issubclass(item, RpcEndpoint) and gateway_methods(item)
)


def test_there_is_something_to_walk() -> None:
    names = {gateway.__name__ for gateway in GATEWAYS}
    assert {"DispatcherGateway", "ResourceManagerGateway", "JobMasterGateway", "TaskExecutorGateway"} <= names


@pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.__name__)
def test_all_that_a_gateway_declares_can_travel(gateway: type[RpcGateway]) -> None:
    specs = codec.method_specs(gateway)
    assert set(specs) == set(gateway_methods(gateway))
    for name, method in gateway_methods(gateway).items():
        assert inspect.getdoc(method), f"{gateway.__name__}.{name} says nothing of itself"


@pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.__name__)
def test_every_gateway_has_an_endpoint(gateway: type[RpcGateway]) -> None:
    assert any(gateway in gateways_of(endpoint) for endpoint in ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.__name__)
def test_an_endpoint_implements_its_gateways_whole(endpoint: type[RpcEndpoint]) -> None:
    for gateway in gateways_of(endpoint):
        for name, declared in gateway_methods(gateway).items():
            handler = getattr(endpoint, name)
            assert getattr(handler, RPC_MARK, False), f"{endpoint.__name__}.{name} is not marked as an implementation"
            assert list(inspect.signature(handler).parameters) == list(inspect.signature(declared).parameters), name


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.__name__)
def test_fenced_gateways_are_served_by_fenced_endpoints(endpoint: type[RpcEndpoint]) -> None:
    fenced = [gateway for gateway in gateways_of(endpoint) if issubclass(gateway, FencedRpcGateway)]
    assert not fenced or issubclass(endpoint, FencedRpcEndpoint), f"{endpoint.__name__} serves {fenced} unfenced"
