"""Walks every gateway, as Flink's `RpcGatewayCompletenessTest` does: all of it travels, is served, and is fenced."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtime
from actors.rpc import codec
from actors.rpc.endpoint import FencedRpcEndpoint, RpcEndpoint
from actors.rpc.gateway import (
    FENCING_MARK,
    READS,
    RECIPIENT,
    RPC_MARK,
    FencedRpcGateway,
    RpcGateway,
    gateway_methods,
    gateways_of,
    reads,
)
from runtime.protocol.leader import DISPATCHER, JOB_MASTER, RESOURCE_MANAGER

PACKAGES = ("actors", "blob", "runtime")
NEEDS_MORE = ("runtime.spark.", "runtime.airflow.")  # a Spark process; Airflow

UNFENCED = {
    "TaskExecutorGateway.hand_over": "the command that upgrades a host is no leader; the tasks stay as they are",
    "BlobServerGateway.use_job": "spares blobs from a sweep for a while, and deletes nothing",
    "BlobServerGateway.cleanup_job": "has its leader as an argument: `blob.server` keeps the highest on disk and in "
    "the blob store, for BlobServers to come",
    "BlobServerGateway.sweep_orphans": "as cleanup_job",
    "DiagnosticsGateway.set_log_level": "an operator's, to a process that leads or not",
    "HighAvailabilityGateway.acquire": "takes the latch itself",
    "HighAvailabilityGateway.renew": "compares its term with the latch",
    "HighAvailabilityGateway.release": "compares its term with the latch",
    "HighAvailabilityGateway.confirm": "compares its term with the latch",
    "HighAvailabilityGateway.depose": "compares its term with the latch",
    "HighAvailabilityGateway.write_field": "compares its term with the latch",
    "HighAvailabilityGateway.delete_field": "compares its term with the latch",
    "HighAvailabilityGateway.clear": "the master's that keeps the latches, at the end of the cluster",
    "MasterGateway.shut_down_cluster": "a user's too, where no Dispatcher leads",
    "NodeGateway.associate": "between the nodes of an actor system, which elects nobody",
    "NodeGateway.attach": "as associate",
    "NodeGateway.deliver": "as associate",
    "NodeGateway.deliver_system": "as associate",
    "NodeGateway.ask": "as associate",
    "NodeGateway.graceful_stop": "as associate",
    "NodeGateway.create": "as associate",
    "NodeGateway.host": "as associate",
    "NodeGateway.stopped": "as associate",
    "NodeGateway.node_down": "as associate",
    "NodeGateway.subscriptions": "as associate",
    "NodeGateway.terminate": "as associate",
    "ReceptionistGateway.register": "its listing has the leadership, and the receptionist compares that",
    "ReceptionistGateway.deregister": "of one that has just stepped down; removes only what is listed at its address",
    "TaskExecutorGateway.end_session": "a user's, whose session the job keeps open",
    "TaskExecutorGateway.request_task_logs": "uploads copies that expire, for whoever reads logs",
    "TaskExecutorGateway.request_file_upload": "as request_task_logs",
}
"""Methods that change something and that no leadership fences, each with the reason."""

ELECTED = ("dispatcher", "jobmaster", "resourcemanager")
NO_ACT = {"jobmaster/endpoint.py:prepare": "asks for an overview in a process that is no JobMaster yet, to be warm"}
"""Calls of `service.gateway` in the packages of elected components: such a gateway carries no leadership."""


def _import_everything() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not found.name.endswith("__main__") and not found.name.startswith(NEEDS_MORE):
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


@pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.__name__)
def test_every_method_declares_what_fences_it_or_is_an_exception(gateway: type[RpcGateway]) -> None:
    for name, declared in gateway_methods(gateway).items():
        mark, title = getattr(declared, FENCING_MARK, None), f"{gateway.__name__}.{name}"
        if title in UNFENCED:
            assert mark is None, f"{title} declares {mark!r} and is in the list of exceptions"
            continue
        assert mark is not None, f"{title}: declare it `@reads` or `@fenced_by(...)`, or list it with the reason"
        assert mark in (READS, RECIPIENT, DISPATCHER, JOB_MASTER, RESOURCE_MANAGER), f"{title}: nobody is {mark!r}"
        if mark == RECIPIENT:
            assert issubclass(gateway, FencedRpcGateway), f"{title}: calls to {gateway.__name__} are meant for nobody"


def test_every_exception_is_there() -> None:
    declared = {f"{gateway.__name__}.{name}" for gateway in GATEWAYS for name in gateway_methods(gateway)}
    assert set(UNFENCED) <= declared


def test_a_method_that_declares_nothing_is_found() -> None:
    class Careless(RpcGateway):
        @reads
        def look(self) -> None:
            """Look."""

        def wipe(self) -> None:
            """Change everything."""

    with pytest.raises(AssertionError, match=r"Careless\.wipe: declare it"):
        test_every_method_declares_what_fences_it_or_is_an_exception(Careless)


def test_elected_components_make_gateways_that_carry_their_leadership() -> None:
    root = Path(runtime.__file__).parent
    found = {
        f"{path.relative_to(root)}:{function.name}"
        for package in ELECTED
        for path in (root / package).glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("service.gateway")
    }
    assert found == set(NO_ACT)
