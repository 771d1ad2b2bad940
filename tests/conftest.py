"""Fixtures of all tests that need a cluster; how hypothesis behaves on a machine that is busy with other tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster_harness import Cluster, started

# How long an example takes says nothing where real processes run beside it.
settings.register_profile("understudy", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("understudy")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests that leave it as they found it: one TaskExecutor with two slots."""
    yield from started(tmp_path_factory.mktemp("c"))


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start clusters of one's own, with settings; they are stopped at the end of the test."""
    running: list[Iterator[Cluster]] = []

    def make(*settings: str, masters: int = 1) -> Cluster:
        iterator = started(tmp_path / f"c{len(running)}", *settings, masters=masters)
        made = next(iterator)
        running.append(iterator)
        return made

    yield make
    for iterator in running:
        for _ in iterator:
            raise AssertionError("a cluster is stopped once")


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test starts, kills and stops itself; whatever it leaves is stopped after it."""
    cluster = Cluster(tmp_path / "own")
    yield cluster
    cluster.run("stop", check=False)
    assert cluster.processes() == {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long forms are run when they are asked for: ``-m slow``."""
    if "slow" in str(config.getoption("markexpr")):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="a long form: pytest -m slow"))
