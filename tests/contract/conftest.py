"""The worlds of the actor contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from actors import ActorSystem
    from tests.contract.actor_harness import World

BOTH = ["deterministic", "deterministic-nodes", "process-shared"]


@pytest.fixture(autouse=True)
def patient_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is given up because its handshake takes long on a busy machine; some tests set a shorter time."""
    monkeypatch.setattr("actors.rpc.connection.HANDSHAKE_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("blob.connection.HANDSHAKE_TIMEOUT", PATIENCE_S)


@pytest.fixture(scope="session")
def process_system() -> Iterator[ActorSystem]:
    """One system of processes for all tests: each of them uses names of its own."""
    from actors import ActorSystem, SystemConfig

    # An answer that comes late on a busy machine is one, and a process that stands still there is alive. The end of a
    # process shows by its connection and its pidfd, not by heartbeats.
    patient = SystemConfig(ask_timeout_s=PATIENCE_S, heartbeat_acceptable_pause_s=PATIENCE_S)
    with ActorSystem("contract", config=patient) as system:
        yield system


@pytest.fixture(params=BOTH)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A system of either kind, with the placement that the parameter names."""
    from actors.testkit import DeterministicSystem
    from tests.contract.actor_harness import World

    system: Any
    if request.param.startswith("deterministic"):
        # With several nodes what is sent between them is encoded and decoded, as between processes.
        nodes = 3 if request.param.endswith("nodes") else 1
        with DeterministicSystem("contract", nodes=nodes) as system:
            yield World(system, "local" if nodes == 1 else "shared")
        return
    made = World(request.getfixturevalue("process_system"), request.param.removeprefix("process-"))
    yield made
    made.close()
