"""Start and stop are safe against each other: one cluster or a clear line, and no job is lost.

The clusters have no TaskExecutor, so that each is started in seconds; a job that was accepted waits for a slot.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from runtime.cluster.command_line import ExitStatus
from runtime.cluster.host_processes import sweep
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.ha.errors import RedisServerError
from runtime.ha.redis_process import EmbeddedRedis
from runtime.spark.driver.java import find_java
from tests.cluster_harness import ROOT, Cluster, await_value
from tests.fakes.redis_server import is_begun, slow_redis
from tests.job_files import TRIVIAL, write_job
from tests.processes import lives
from tests.seeds import printed_seed
from tests.waiting import PATIENCE_S

NO_WORKERS = "taskmanager.count=0"
STEP_MS, UP_TO_MS = 50, 2000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that is not started yet; whatever is left of it is stopped after the test."""
    made = Cluster(tmp_path / "c", (NO_WORKERS,))
    yield made
    made.run("stop", check=False)
    assert made.processes() == {}


def submit(cluster: Cluster, directory: Path) -> str:
    return cluster.submit(write_job(directory, TRIVIAL))


def is_known(cluster: Cluster, job_id: str) -> bool:
    return job_id in [job["job_id"] for job in cluster.json("job", "list")]


def begin(cluster: Cluster, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        cluster.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def clear_line(errors: str) -> str:
    """The one error that a command ends with; it is not a traceback, and has a remedy."""
    assert "Traceback" not in errors, errors
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    return lines[0]


# ------------------------------------------------------------------- the mechanism


def test_a_master_that_is_told_to_end_while_another_joins_leaves_it_the_jobs(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("start")
    job_id = submit(cluster, tmp_path)
    redis, master = cluster.pid_of("redis"), psutil.Process(cluster.pid_of("master"))
    joining = ClusterDirectory(cluster.directory).join()  # all that a joining master has at first
    master.terminate()
    master.wait(PATIENCE_S)
    assert lives(redis), "the joining one needs it"
    joining.hand_over()  # it was killed: another one comes
    cluster.run("master")
    assert cluster.pid_of("redis") == redis
    assert is_known(cluster, job_id)
    with begin(cluster, "job", "run", str(write_job(tmp_path, TRIVIAL, "attached.py"))) as attached:
        await_value(lambda: len(cluster.json("job", "list")) == 2)
        cluster.run("stop")
        _, errors = attached.communicate(timeout=PATIENCE_S)
    assert attached.returncode == 69
    assert "was stopped" in clear_line(errors)
    assert not lives(redis)


@pytest.mark.parametrize("last", ["master", pytest.param("master-1", marks=pytest.mark.slow)])
def test_of_masters_that_are_told_to_end_at_once_the_last_one_ends_all_processes(
    cluster: Cluster, tmp_path: Path, last: str
) -> None:
    """The jobs stay, as at a reboot: only `stop` ends them."""
    cluster.run("start", "--masters=2")
    job_id = submit(cluster, tmp_path)
    redis, slow = cluster.pid_of("redis"), psutil.Process(cluster.pid_of(last))
    masters = [psutil.Process(pid) for pid in ClusterDirectory(cluster.directory).heads()]
    assert len(masters) == 2
    slow.suspend()
    for master in masters:
        master.terminate()
    for master in masters:
        if master != slow:
            master.wait(PATIENCE_S)
    slow.resume()
    slow.wait(PATIENCE_S)
    assert not lives(redis)
    assert cluster.processes() == {}
    cluster.run("start")
    assert is_known(cluster, job_id)
    cluster.run("stop")
    assert not (cluster.directory / "cluster.json").exists()
    assert cluster.processes() == {}


def test_a_start_that_is_refused_ends_no_process_and_changes_nothing(cluster: Cluster) -> None:
    directory = ClusterDirectory(cluster.directory)
    marked = {**os.environ, CLUSTER_DIR_VARIABLE: str(cluster.directory)}
    with directory.acquire(), subprocess.Popen(["sleep", "600"], env=marked) as other:
        refused = cluster.run("start", check=False)
        assert refused.returncode == 1
        assert "another command starts or stops the cluster" in clear_line(refused.stderr)
        refused = cluster.run("master", check=False)
        assert refused.returncode == 69
        assert "no cluster was started" in clear_line(refused.stderr)
        assert other.poll() is None, "it is the other command's"
        other.kill()
    assert not directory.configuration_file.exists()
    cluster.run("start")


def with_driver(cluster: Cluster, directory: Path, command: str) -> Cluster:
    """The cluster, with workers whose Spark driver is that command of the shell: it is given a file of arguments."""
    java = directory / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\ncase "$*" in *@*) {command};; esac\nexec "{find_java(None).executable}" "$@"\n')
    java.chmod(0o755)
    return Cluster(cluster.directory, (f"env.java.home={directory / 'java'}",))


def test_a_start_that_fails_keeps_the_jobs_of_a_killed_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("start")
    job_id = submit(cluster, tmp_path)
    directory = ClusterDirectory(cluster.directory)
    found = directory.configuration_file.read_bytes()
    (master,) = directory.heads()
    os.kill(master, signal.SIGKILL)
    await_value(lambda: not lives(master))
    failed = with_driver(cluster, tmp_path, "exit 1").run("start", check=False)
    assert failed.returncode == 1
    assert "taskmanager-0 does not start" in clear_line(failed.stderr)
    assert cluster.processes() == {}
    assert directory.configuration_file.read_bytes() == found
    cluster.run("start")
    assert is_known(cluster, job_id)


def test_a_cluster_is_stopped_while_it_is_being_started(cluster: Cluster, tmp_path: Path) -> None:
    directory = ClusterDirectory(cluster.directory)
    with begin(with_driver(cluster, tmp_path, "exec sleep 3600"), "start") as starting:
        await_value(directory.heads)
        cluster.run("stop")
        _, errors = starting.communicate(timeout=PATIENCE_S)
    assert starting.returncode in (1, 69)
    line = clear_line(errors)  # by how far it had come: the master did not serve yet, or waited for its workers
    assert [words for words in ("before it served", "was stopped") if words in line], errors
    assert cluster.processes() == {}
    assert not directory.is_running()
    assert not directory.configuration_file.exists()


def test_a_cluster_is_stopped_while_its_redis_is_being_started(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(cluster.directory)
    monkeypatch.setenv("PATH", str(slow_redis(tmp_path).parent), prepend=os.pathsep)
    with begin(cluster, "start") as starting:
        await_value(lambda: is_begun(directory.redis))
        with begin(cluster, "stop") as stopping:
            await_value(lambda: not directory.heads())
            with pytest.raises(subprocess.TimeoutExpired):
                stopping.wait(1)  # it does not end while there may be a redis-server to be ended
            (tmp_path / "go").touch()
            _, errors = stopping.communicate(timeout=PATIENCE_S)
        starting.communicate(timeout=PATIENCE_S)
    assert stopping.returncode == 0, errors
    assert cluster.processes() == {}


def test_a_redis_that_does_not_end_keeps_no_other_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ClusterDirectory(tmp_path / "c")
    directory.create()
    (directory.redis / "redis.conf").touch()

    def refuse(server: EmbeddedRedis, timeout: float = 0.0) -> int:
        raise RedisServerError("it comes no further")

    monkeypatch.setattr(EmbeddedRedis, "find", refuse)
    marked = {**os.environ, CLUSTER_DIR_VARIABLE: str(directory.root)}
    with subprocess.Popen(["sleep", "3600"], env=marked) as left:
        threading.Thread(target=left.wait, daemon=True).start()  # else it stays a zombie, and is found
        try:
            with pytest.raises(RedisServerError):
                sweep(directory)
            assert left.wait(PATIENCE_S) == -signal.SIGTERM, "it was ended, though `sweep` raised"
        finally:
            left.kill()


# ----------------------------------------------------------------------- at any moment


@dataclass
class Run:
    """A few deeds at their moments, and what came of them.

    Args:
        cluster: which is started, stopped and killed.
        deeds: the moment of each in seconds, and what is done then: a command, or a signal to the newest master, or to
            the newest command.
    """

    cluster: Cluster
    deeds: tuple[tuple[float, str], ...]
    commands: list[tuple[str, subprocess.Popen[str]]] = field(default_factory=list)
    signalled: set[int] = field(default_factory=set)

    def play(self) -> None:
        began = time.monotonic()
        for moment, deed in sorted(self.deeds):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            word, _, whom = deed.partition(" ")
            if whom:
                self._signal(signal.Signals[word], whom)
            else:
                self.commands.append((word, begin(self.cluster, word)))

    def _signal(self, number: signal.Signals, whom: str) -> None:
        command = self.commands[-1][1].pid if self.commands else 0
        pid = command if whom == "command" else max(ClusterDirectory(self.cluster.directory).heads(), default=0)
        if pid:
            self.signalled.add(pid)
            os.kill(pid, number)

    def outcomes(self) -> list[tuple[str, str]]:
        """How each command ended: its clear line, empty where it succeeded, or that it was killed."""
        found = []
        for word, process in self.commands:
            _, errors = process.communicate(timeout=PATIENCE_S)
            if process.returncode < 0 or process.returncode == ExitStatus.TERMINATED:
                assert process.pid in self.signalled, f"{word}: {process.returncode}"
                found.append((word, "killed"))
            else:
                assert process.returncode in (0, 1, ExitStatus.UNAVAILABLE), f"{word}: {process.returncode} {errors}"
                found.append((word, clear_line(errors) if process.returncode else ""))
        return found


def serves_one(cluster: Cluster) -> bool:
    """Whether a cluster serves; that `status` says clearly if none does."""
    status = cluster.run("status", check=False)
    if status.returncode != 0:
        clear_line(status.stderr)
    return status.returncode == 0


def two_starts(cluster: Cluster, directory: Path, moment: float) -> None:
    run = Run(cluster, ((0.0, "start"), (moment, "start")))
    run.play()
    outcomes = run.outcomes()
    assert serves_one(cluster), outcomes
    assert sorted(line != "" for _, line in outcomes) == [False, True], outcomes


def start_and_stop(cluster: Cluster, directory: Path, moment: float) -> None:
    run = Run(cluster, ((0.0, "start"), (moment, "stop")))
    run.play()
    outcomes = run.outcomes()
    serves = serves_one(cluster)
    (_, start), (_, stop) = outcomes
    assert serves == (stop != ""), outcomes
    assert not serves or start == "", outcomes
    if stop:
        assert "there is nothing to stop" in stop or "no cluster runs" in stop, outcomes


def stop_and_start(cluster: Cluster, directory: Path, moment: float) -> None:
    cluster.run("start")
    run = Run(cluster, ((0.0, "stop"), (moment, "start")))
    run.play()
    outcomes = run.outcomes()
    assert outcomes[0] == ("stop", ""), outcomes
    assert serves_one(cluster) == (outcomes[1][1] == ""), outcomes


def join_and_sigterm(cluster: Cluster, directory: Path, moment: float) -> None:
    cluster.run("start")
    job_id = submit(cluster, directory)
    run = Run(cluster, ((0.0, "master"), (moment, "SIGTERM master")))
    run.play()
    ((_, joined),) = run.outcomes()
    if not joined:  # whichever of the two was told to end
        assert serves_one(cluster)
        assert is_known(cluster, job_id)


def join_and_sigkill(cluster: Cluster, directory: Path, moment: float) -> None:
    cluster.run("start")
    job_id = submit(cluster, directory)
    run = Run(cluster, ((0.0, "master"), (moment, "SIGKILL master")))
    run.play()
    run.outcomes()
    if not serves_one(cluster):
        cluster.run("master")
    assert is_known(cluster, job_id)


def killed_start(number: str) -> Callable[[Cluster, Path, float], None]:
    def play(cluster: Cluster, directory: Path, moment: float) -> None:
        run = Run(cluster, ((0.0, "start"), (moment, f"{number} command")))
        run.play()
        run.outcomes()
        root = ClusterDirectory(cluster.directory)
        await_value(lambda: not root.is_held_alone())  # its master goes on without it, or ends
        serves = serves_one(cluster)
        again = cluster.run("start", check=False)
        assert (again.returncode == 0) != serves, again.stderr

    return play


def killed_master(number: str) -> Callable[[Cluster, Path, float], None]:
    def play(cluster: Cluster, directory: Path, moment: float) -> None:
        run = Run(cluster, ((0.0, "start"), (moment, f"{number} master")))
        run.play()
        ((_, line),) = run.outcomes()
        if run.signalled:
            await_value(lambda: not lives(max(run.signalled)))
        assert line == "" or run.signalled
        if not serves_one(cluster):
            cluster.run("start")

    return play


PLAYS = {
    "start-start": two_starts,
    "start-stop": start_and_stop,
    "stop-start": stop_and_start,
    "master-SIGTERM": join_and_sigterm,
    "master-SIGKILL": join_and_sigkill,
    "start-SIGTERM-command": killed_start("SIGTERM"),
    "start-SIGKILL-command": killed_start("SIGKILL"),
    "start-SIGTERM-master": killed_master("SIGTERM"),
    "start-SIGKILL-master": killed_master("SIGKILL"),
}


def test_at_a_few_random_moments(tmp_path: Path) -> None:
    """The short form of the next one: one pair, at a moment that its seed chooses."""
    chosen = random.Random(printed_seed())
    for number, name in enumerate(chosen.sample(sorted(PLAYS), 1)):
        _play(name, tmp_path / str(number), chosen.uniform(0.0, UP_TO_MS / 1000))


@pytest.mark.slow
@pytest.mark.parametrize("offset_ms", range(0, UP_TO_MS + 1, STEP_MS))
@pytest.mark.parametrize("name", PLAYS)
def test_at_every_moment(tmp_path: Path, name: str, offset_ms: int) -> None:
    """Each pair at every 50 ms, and a random part of these that is printed."""
    _play(name, tmp_path, (offset_ms + random.Random(printed_seed()).uniform(0, STEP_MS)) / 1000)


def _play(name: str, directory: Path, moment: float) -> None:
    sys.stdout.write(f"{name}: the second at {moment * 1000:.0f} ms\n")
    directory.mkdir(exist_ok=True)
    cluster = Cluster(directory / "c", (NO_WORKERS,))
    try:
        PLAYS[name](cluster, directory, moment)
    finally:
        cluster.run("stop", check=False)
    assert cluster.processes() == {}
    assert not ClusterDirectory(cluster.directory).is_running()
