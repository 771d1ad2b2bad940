"""Three hosts, as network namespaces of one machine: a cable is cut in mid-job, and put in again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.rpc.security import load_or_create_secret
from tests.cluster_harness import ROOT, await_value
from tests.fakes.network import Network, why_not
from tests.faults.exactly_once import STREAM, WINDOW_MINUTES
from tests.faults.hosts import Hosts
from tests.job_files import TRIVIAL, write_job
from tests.next_release import VERSION, make_environment, make_next_release
from tests.processes import lives
from tests.streaming_rows import Source, rows_of, rows_so_far
from tests.waiting import PATIENCE_S

SETTINGS = {
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.task-pool.size": "0",
    "taskmanager.spark.warm-up": "false",
    "taskmanager.spark.warm-up-queries": "0",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "heartbeat.interval": "2s",
    "heartbeat.timeout": "10s",
    "task.cancellation.timeout": "20s",
    "cluster.start-timeout": "5min",
    "execution.checkpointing.interval": "1s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100",
    "restart-strategy.fixed-delay.delay": "200ms",
}


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with Network("one", "two", "three") as network:
        yield network


class _Stream:
    """A streaming query whose job runs on the hosts, and what it has to make of its source."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self._hosts = hosts
        self.source = Source(directory / "in", WINDOW_MINUTES)
        self.sink, self._location = directory / "out", directory / "live"
        self.source.write(5)
        script = write_job(directory, STREAM, "stream.py")
        arguments = str(self.source.directory), str(self.sink), str(self._location), "1"
        self.job_id = hosts.run("one", "job", "run", "--detach", str(script), "--", *arguments).stdout.strip()

    def host(self) -> str:
        """Where it runs."""
        free = {name: view["free_slots"] for name, view in self._hosts.task_managers("one").items()}
        return next((name for name, slots in free.items() if slots == 0), "")

    def await_commits(self, number: int) -> int:
        """Wait until batch *number* is committed; returns that of the last one."""

        def look() -> int | None:
            last = max((int(path.name) for path in self._location.glob("commits/[0-9]*")), default=-1)
            return last + 1 if last >= number else None

        return int(await_value(look)) - 1

    def finish(self, by: str = "one") -> None:
        """Let it come to its end, and compare; *by* is the host that asks."""
        self.source.close()
        await_value(lambda: rows_so_far(self.sink).total() >= self.source.expected.total())
        self._hosts.run(by, "job", "cancel", self.job_id)
        found = rows_of(self.sink)
        lost, doubled = self.source.expected - found, found - self.source.expected
        assert not lost, lost
        assert not doubled, doubled


def test_a_host_that_is_cut_off_loses_its_tasks_to_another_and_comes_back(network: Network, tmp_path: Path) -> None:
    hosts = Hosts(network, tmp_path, "one", SETTINGS)
    hosts.start(one="master", two="task-executor", three="task-executor")
    before = hosts.await_task_managers("one", "two", "three")
    stream = _Stream(hosts, tmp_path)
    committed = stream.await_commits(2)
    cut = str(await_value(stream.host))
    other = "three" if cut == "two" else "two"
    registration = before[cut]

    network.cut(cut)
    # It ends by itself what it runs: from here nobody can.
    await_value(lambda: not lives(registration["spark_pid"]) and not lives(registration["pid"]))
    hosts.await_task_managers("one", other)
    stream.source.write(5)
    stream.await_commits(committed + 3)
    await_value(lambda: stream.host() == other)

    network.rejoin(cut)
    after = hosts.await_task_managers("one", "two", "three")
    assert after[cut]["instance_id"] != before[cut]["instance_id"]
    assert after[cut]["pid"] != registration["pid"]
    # A batch job gets the slot that came back, from a host that has neither master nor Redis.
    done = hosts.run(other, "job", "run", str(write_job(tmp_path, TRIVIAL)))
    assert done.stdout == f"sum {sum(range(1000))}\n"
    stream.finish()

    for host, role in (("two", "task-executor"), ("three", "task-executor"), ("one", "master")):
        hosts.run(host, "stop", "--role", role)
    await_value(lambda: not network.processes("two") | network.processes("three"))


@pytest.mark.slow
def test_masters_and_task_executors_are_upgraded_host_by_host_while_a_query_runs(
    network: Network, tmp_path: Path
) -> None:
    hosts = Hosts(network, tmp_path, "one", SETTINGS)
    hosts.start(one="master", two="master", three="task-executor")
    stream = _Stream(hosts, tmp_path)
    stream.await_commits(2)
    to = f"--to={make_environment(tmp_path / 'venv', make_next_release(tmp_path / 'next'))}"
    early = hosts.run("three", "cluster", "upgrade", "--role", "task-executor", to, check=False)
    assert "TaskExecutors follow the masters" in early.stderr

    def is_dispatcher(host: str) -> bool:
        [step] = hosts.json(host, "cluster", "upgrade", "--role", "master", "--dry-run", to)["steps"]
        return "dispatcher" in step["leads"]

    masters = sorted(("one", "two"), key=is_dispatcher)
    assert [is_dispatcher(host) for host in masters] == [False, True]
    for host in masters:  # neither needs --yes
        done = hosts.json(host, "cluster", "upgrade", "--role", "master", to)
        assert [step["process"] for step in done["steps"]] == ["master"]
    job = hosts.json("three", "job", "info", stream.job_id)
    assert (job["state"], job["restarts"]) == ("RUNNING", 0), "its task kept running"
    stream.source.write(5)
    done = hosts.json("three", "cluster", "upgrade", "--role", "task-executor", to)
    assert [step["version"] == VERSION for step in done["steps"]] == [False]
    [executor] = hosts.task_managers("three").values()
    assert executor["version"] == VERSION
    job = hosts.json("three", "job", "info", stream.job_id)
    assert (job["state"], job["restarts"], job["failure_history"]) == ("RUNNING", 0, []), "its task was handed over"
    stream.finish("three")
    for host, role in (("three", "task-executor"), ("two", "master"), ("one", "master")):
        hosts.run(host, "stop", "--role", role)


class _Program:
    """A part of `tests.faults.cut_actors` on a host."""

    def __init__(self, network: Network, name: str, what: str, secret: Path, last: str) -> None:
        command = [sys.executable, "-m", "tests.faults.cut_actors", what, network.addresses[name], str(secret), last]
        self.errors = secret.with_name(f"{what}-{time.monotonic_ns()}.err")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                network.command(name, *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.errors.read_text()
        return line

    def hears(self, line: str = "") -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


def test_an_actor_system_that_was_cut_off_is_in_quarantine_until_it_is_started_anew(
    network: Network, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    load_or_create_secret(secret)
    served = _Program(network, "two", "serve", secret, "0")
    address = served.says()
    watching = _Program(network, "one", "watch", secret, address)
    served.hears(watching.says())
    assert served.says() == "watching"
    network.cut("two")
    assert watching.says() == "terminated"
    network.rejoin("two")
    watching.hears()
    assert watching.says() == "unreachable: Quarantined"
    served.process.kill()
    served.process.wait(PATIENCE_S)
    anew = _Program(network, "two", "serve", secret, address.rpartition(":")[2])
    assert anew.says() == address
    watching.hears()
    assert watching.says() == "again x"
    for program in (anew, watching):
        program.process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_a_master_host_that_is_cut_off_loses_its_leadership_to_a_standby_and_no_task_notices(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if "slow" not in request.config.getoption("markexpr"):
        pytest.skip("a long form: pytest -m slow")
    if reason := why_not():
        pytest.skip(reason)
    with Network("redis", "one", "two", "three") as network_of_four:
        hosts = Hosts(network_of_four, tmp_path, "redis", SETTINGS)
        early = hosts.run("three", "start", "--role", "task-executor")
        assert "waiting to be registered: taskmanager-10.231.0.4-0: no ResourceManager leads" in early.stdout
        hosts.start(one="master")
        hosts.start(two="master")
        before = hosts.await_task_managers("two", "three")["three"]
        stream = _Stream(hosts, tmp_path)
        committed = stream.await_commits(2)

        network_of_four.cut("one")
        stream.source.write(5)
        stream.await_commits(committed + 4)
        after = hosts.await_task_managers("two", "three")["three"]
        assert (after["pid"], after["spark_pid"]) == (before["pid"], before["spark_pid"])
        job = hosts.json("two", "job", "info", stream.job_id)
        assert (job["state"], len(job["tasks"][0]["attempts"])) == ("RUNNING", 1)

        network_of_four.rejoin("one")
        leaders = await_value(lambda: _leaders_of_both(hosts))
        assert set(leaders.values()) == {network_of_four.addresses["two"]}
        stream.finish(by="two")
        for host, role in (("three", "task-executor"), ("one", "master"), ("two", "master")):
            hosts.run(host, "stop", "--role", role)
        await_value(lambda: not any(map(network_of_four.processes, ("one", "two", "three"))))


def _leaders_of_both(hosts: Hosts) -> dict[str, str] | None:
    """The host of each leading component, once both masters say the same; None before that."""
    found: list[dict[str, str]] = []
    for host in ("one", "two"):
        done = hosts.run(host, "status", "--json", check=False)
        if done.returncode != 0:
            return None
        views = json.loads(done.stdout)["cluster"]["processes"]
        found.append({view["name"]: _host_of(view["address"]) for view in views if view["leadership"] == "leader"})
    # A master names the leaders among its own processes: the one that was cut off has none left.
    return found[1] if not found[0] and len(found[1]) == 3 else None


def _host_of(address: str) -> str:
    return address.split("@")[1].split(":")[0]
