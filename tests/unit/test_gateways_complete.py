"""Walks every gateway, as Flink's `RpcGatewayCompletenessTest` does: all of it travels, is served, and is fenced."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
from tests.named_tests import is_test

PACKAGES = ("actors", "blob", "runtime")
NEEDS_MORE = ("runtime.spark.", "runtime.airflow.")  # a Spark process; Airflow


class Unfenced(NamedTuple):
    """A method that changes something and that no leadership fences.

    Args:
        reason: why not.
        proof: the test that shows it; empty where no elected component calls the method, which a test here shows.
    """

    reason: str
    proof: str = ""


_A_WRITE = "unit/test_ha_standalone.py::test_a_write_needs_the_leadership_and_what_it_demands"
_A_LATCH = "unit/test_ha_standalone.py::test_a_latch_is_one_sessions_until_it_expires_or_is_released"
_OLD_BLOBS = "contract/test_blob_control.py::test_an_old_leader_deletes_nothing"
_TRANSIENT = "unit/test_blob_contents.py::test_a_transient_blob_lives_from_its_last_use"
_NODE = Unfenced("between the nodes of an actor system, which elects nobody")
UNFENCED = {
    "TaskExecutorGateway.hand_over": Unfenced("the command that upgrades a host is no leader; the tasks stay"),
    "BlobServerGateway.use_job": Unfenced(
        "spares blobs from a sweep for a while, and deletes nothing",
        "unit/test_blob_contents.py::test_what_is_used_between_the_leaders_look_and_the_sweep_is_spared",
    ),
    "BlobServerGateway.cleanup_job": Unfenced(
        "has its leader as an argument: `blob.server` keeps the highest on disk and in the blob store, for BlobServers "
        "to come",
        _OLD_BLOBS,
    ),
    "BlobServerGateway.sweep_orphans": Unfenced("as cleanup_job", _OLD_BLOBS),
    "DiagnosticsGateway.set_log_level": Unfenced("an operator's, to a process that leads or not"),
    "HighAvailabilityGateway.acquire": Unfenced("takes the latch itself", _A_LATCH),
    "HighAvailabilityGateway.renew": Unfenced("compares its term with the latch", _A_LATCH),
    "HighAvailabilityGateway.release": Unfenced("compares its term with the latch", _A_LATCH),
    "HighAvailabilityGateway.confirm": Unfenced(
        "compares its term with the latch",
        "unit/test_ha_standalone.py::test_the_leader_is_known_once_it_is_confirmed_and_while_its_lease_runs",
    ),
    "HighAvailabilityGateway.depose": Unfenced("compares its term with the latch", _A_WRITE),
    "HighAvailabilityGateway.write_field": Unfenced("compares its term with the latch", _A_WRITE),
    "HighAvailabilityGateway.delete_field": Unfenced("compares its term with the latch", _A_WRITE),
    "HighAvailabilityGateway.clear": Unfenced(
        "the master's that keeps the latches, at the end of the cluster; epochs stay above those before",
        "unit/test_ha_standalone.py::test_epochs_pass_the_floor_and_the_clock_and_never_go_back",
    ),
    "MasterGateway.shut_down_cluster": Unfenced(
        "a user's too, where no Dispatcher leads",
        "contract/test_dispatcher_revoked.py::test_amid_a_shutdown_no_master_is_told_to_stop",
    ),
    **dict.fromkeys(
        (
            f"NodeGateway.{name}"
            for name in (
                *("associate", "attach", "deliver", "deliver_system", "ask", "graceful_stop", "create", "host"),
                *("stopped", "node_down", "subscriptions", "terminate"),
            )
        ),
        _NODE,
    ),
    "ReceptionistGateway.register": Unfenced(
        "its listing has the leadership, and the receptionist compares that",
        "contract/test_rpc_threads.py::test_a_listing_of_an_older_leadership_does_not_replace_a_newer",
    ),
    "ReceptionistGateway.deregister": Unfenced(
        "of one that has just stepped down; removes only what is listed at its address",
        "contract/test_rpc_threads.py::test_listings_come_and_go",
    ),
    "TaskExecutorGateway.end_session": Unfenced("a user's, whose session the job keeps open"),
    "TaskExecutorGateway.request_task_logs": Unfenced("uploads copies that expire, for readers of logs", _TRANSIENT),
    "TaskExecutorGateway.request_file_upload": Unfenced("as request_task_logs", _TRANSIENT),
}
"""Exceptions. A call of a former leader is refused here too, see `contract/test_fencing.py`, if the receiver has seen a
later one."""

ELECTED = ("dispatcher", "jobmaster", "resourcemanager")
NO_ACT = {"jobmaster/endpoint.py:prepare": "asks for an overview in a process that is not a JobMaster yet, to be warm"}
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


def test_every_exception_is_shown_to_be_harmless_or_no_leader_makes_the_call() -> None:
    shown = {title for title, exception in UNFENCED.items() if exception.proof}
    assert [UNFENCED[title].proof for title in shown if not is_test(UNFENCED[title].proof)] == []
    assert {title for title in UNFENCED if not _is_called_by_leaders(title)} >= set(UNFENCED) - shown
    # The search does find calls: a Dispatcher makes these.
    for title in ("BlobServerGateway.cleanup_job", "MasterGateway.shut_down_cluster"):
        assert _is_called_by_leaders(title)


def _is_called_by_leaders(title: str) -> bool:
    """Whether a package of elected components calls a method of that name, and names its gateway or is given one."""
    gateway, _, name = title.partition(".")
    texts = [path.read_text() for path in _files_of_leaders()]
    if gateway in ("NodeGateway", "DiagnosticsGateway"):  # with names that others have too
        return any(gateway in text for text in texts)
    return any(re.search(rf"\.{name}\(", text) for text in texts)


def _files_of_leaders() -> list[Path]:
    root = Path(runtime.__file__).parent
    return [path for package in ELECTED for path in (root / package).glob("*.py")]


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
        for path in _files_of_leaders()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("service.gateway")
    }
    assert found == set(NO_ACT)
