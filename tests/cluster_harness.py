"""Real clusters for tests, driven by the command line as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect
from runtime.cluster.documents import Job
from runtime.cluster.output import to_plain
from runtime.ids import JobID
from runtime.protocol.diagnostics import TaskPoolReport
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.messages import ProcessView
from tests.command_server import COMMANDS
from tests.job_files import WAITING, write_job
from tests.json_output import parsed
from tests.waiting import PATIENCE_S

NO_WARM_UP, WARM_UP = (f"taskmanager.spark.warm-up={value}" for value in ("false", "true"))  # 15 s of CPU time
FEW_PARTITIONS = "spark.sql.shuffle.partitions=2"  # of 200 each costs a batch with state a task and a state store
NO_FURTHER_WARM_UP = "taskmanager.spark.warm-up-queries=0"  # tests share the cores, and look at what is at rest
FEWER_READY = "taskmanager.task-pool.size=4"
# More than a busy machine needs, and less than PATIENCE_S: a start that gives up cleans up.
START = ("cluster.start-timeout=9min", "taskmanager.spark.start-timeout=8min")
LEASE = "high-availability.lease=10s"  # no leader of a busy machine, whose disk may stand still, loses its latch
GROUPS = ("job", "cluster", "user", "token", "queue")
"""Commands of two words that need a cluster."""
ROOT = Path(__file__).resolve().parents[1]
GRPC_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
"""Variable that the test processes set for themselves, and no command of theirs."""


def paths_below(directory: Path) -> list[Path]:
    """All files and directories, also while these come and go: `rglob` fails when one goes that it would enter."""
    return [Path(root, name) for root, names, files in os.walk(directory) for name in (*names, *files)]


def attempt_of(pid: int) -> str:
    """The attempt's directory that a process writes its standard output into, for a task; empty for one that ended."""
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink().parent)
    except OSError:
        return ""


@dataclass(frozen=True)
class Cluster:
    """A cluster in a runtime directory; it may be running or not.

    Args:
        directory: the runtime directory.
        settings: options of all commands.
        tree: where the packages are that its commands run, and the processes that they start.
    """

    directory: Path
    settings: tuple[str, ...] = ()
    tree: Path = ROOT

    def with_settings(self, *settings: str) -> Cluster:
        """The same cluster with further options of its commands: those of a job are that job's own."""
        return replace(self, settings=(*self.settings, *settings))

    def command(self, *arguments: str) -> list[str]:
        """The command line of one command; options follow the command's words."""
        words = [word for word in arguments if not word.startswith("-")][: 1 + (arguments[0] in GROUPS)]
        rest = list(arguments[len(words) :])
        options = [
            f"cluster.runtime-dir={self.directory}",
            "jobmanager.rpc.port=0",
            "rest.port=0",
            NO_WARM_UP,
            NO_FURTHER_WARM_UP,
            FEWER_READY,
            LEASE,
            *START,
            *([FEW_PARTITIONS] if words == ["start"] else []),
            *self.settings,
        ]
        flags = [part for option in options for part in ("-D", option)]
        return [sys.executable, "-m", "runtime.cluster", *words, *flags, *rest]

    def run(self, *arguments: str, check: bool = True, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; `job run` in a directory of its own, where its job runs then."""
        cwd = self.tree
        environment = {name: value for name, value in os.environ.items() if name != GRPC_FORK_SUPPORT}
        if self.tree != ROOT:
            environment["PYTHONPATH"] = str(self.tree)
        if arguments[:2] == ("job", "run"):
            cwd = Path(tempfile.mkdtemp(prefix="caller-", dir=self.directory.parent))
        command = self.command(*arguments)
        if self.tree == ROOT:
            done = COMMANDS.run(command[3:], cwd=cwd, env=environment, timeout=timeout)
        else:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment, check=False
            )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}\n{self.logs()}"
            )
        return done

    def json(self, *arguments: str) -> Any:
        """What a command with ``--json`` says, held against its schema."""
        return parsed(arguments, self.run(*arguments, "--json").stdout)

    def submit(self, file: Path, *args: str, options: tuple[str, ...] = ()) -> str:
        """Submit a job detached; returns its id."""
        return self.run("job", "run", "--detach", *options, str(file), "--", *args).stdout.strip()

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as `job info --json` shows it, asked from here: whoever polls starts no process each time."""
        with self.client() as client:
            return dict(json.loads(json.dumps(to_plain(Job.of(client.job(JobID(job_id)))))))

    def await_status(self, job_id: str, *statuses: str, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the job is in one of the states; any other final state is a failure."""
        final = {"FINISHED", "FAILED", "CANCELED"}

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            if job["state"] in statuses:
                return job
            assert job["state"] not in final, f"job is {job['state']}: {job['failure']}\n{self.logs()}"
            return None

        found: dict[str, Any] = await_value(look, timeout)
        return found

    def jobs_left(self, timeout: float = PATIENCE_S) -> list[str]:
        """Jobs that do not end by themselves, by name and id; they are cancelled, and over, for whoever comes next."""
        deadline = time.monotonic() + timeout
        with self.client() as client:

            def unfinished() -> list[Any]:
                return [job for job in client.list_jobs() if not job.status.is_globally_terminal]

            while left := unfinished():
                if time.monotonic() > deadline:
                    for job in left:
                        with contextlib.suppress(JobAlreadyTerminatedError):  # it ended at the same moment
                            client.cancel(JobID(job.job_id))
                    await_value(lambda: not unfinished())
                    break
                time.sleep(0.05)
        return [f"{job.name} ({job.job_id})" for job in left]

    def logs(self) -> str:
        """The ends of all logs, for a failing test."""
        paths = [path for path in sorted((self.directory / "log").glob("*")) if "spark" not in path.name]
        ends = {path.name: path.read_text(errors="replace").splitlines()[-25:] for path in paths if path.is_file()}
        return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in ends.items())

    def processes(self) -> dict[int, str]:
        """Living processes that belong to the cluster: command name by pid."""
        mark = f"UNDERSTUDY_CLUSTER_DIR={self.directory}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (
                    mark in (entry / "environ").read_bytes().split(b"\0")
                    or (entry / "cwd").readlink().is_relative_to(self.directory)
                ):
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:
                continue  # it has ended
        return found

    def pid_of(self, name: str) -> int:
        """The process of a component, as `status` names it, once it is known: a new leader has to be told of all."""

        def look() -> list[int]:
            if not name.startswith("tm:"):
                return [view.pid for view in self._processes() if view.name == name]
            with self.client() as client:
                managers = [view.registration for view in client.task_managers()]
            return [manager.pid for manager in managers if manager.resource_id == name[3:]]

        found: list[int] = await_value(look)
        return found[0]

    def processes_of_master(self, number: int) -> list[int]:
        """A master and its components: what dies with it."""
        suffix = f"-{number}" if number else ""
        views = self._processes()
        own = next(view.pid for view in views if view.name == f"master{suffix}")
        admin = [child.pid for child in psutil.Process(own).children()]
        hosted = [child.pid for pid in admin for child in psutil.Process(pid).children()]
        return [own, *[view.pid for view in views if view.role == "actor" and view.pid in hosted]]

    def tasks_of(self, job_id: str) -> list[int]:
        """The task processes of a job, without what they have started."""
        found = []
        for pid in self.processes():
            try:
                parent = psutil.Process(pid).ppid()
            except psutil.Error:
                continue  # it has ended
            if job_id in attempt_of(pid) and job_id not in attempt_of(parent):
                found.append(pid)
        return found

    def leaders(self) -> dict[str, str]:
        """The name of the process that leads, by component."""
        return {view.name.split("-")[0]: view.name for view in self._processes() if view.leadership == "leader"}

    def _processes(self) -> Sequence[ProcessView]:
        """Its processes, as `status` shows them."""
        with self.client() as client:
            return client.status().processes

    def client(self) -> ClusterClient:
        """A client as a notebook has one."""
        return connect(Configuration.read(self.directory / "configuration.json"))


@dataclass(frozen=True)
class WaitingJob:
    """A job of `tests.job_files.WAITING` or `PAUSED` that has begun, and holds its slot until it is released."""

    job_id: str
    gate: Path

    @classmethod
    def start(
        cls, cluster: Cluster, directory: Path, name: str = "gate", comment: str = "", *, text: str = WAITING
    ) -> WaitingJob:
        """Submit one, and return when its code runs and its state says so; *comment* makes its file larger."""
        gate = directory / name
        file = write_job(directory, text + (f"# {comment}\n" if comment else ""))
        job = cls(cluster.submit(file, str(gate)), gate)
        await_value(lambda: job.starts == 1)
        cluster.await_status(job.job_id, "RUNNING")
        return job

    @property
    def starts(self) -> int:
        """How often its code was begun."""
        began = Path(f"{self.gate}.began")
        return len(began.read_text()) if began.exists() else 0

    def release(self) -> None:
        """Let it go on to its end."""
        self.gate.touch()


def await_value(look: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    """Call *look* until it returns something true, and return that; fails after *timeout* seconds.

    Looks take a twentieth of the time: each costs the cluster as much again, and other tests wait for the cores.
    """
    deadline, began = time.monotonic() + timeout, time.monotonic()
    while not (value := look()):
        now = time.monotonic()
        assert now < deadline, f"nothing came of it within {timeout:g} s: {look}"
        time.sleep(min(max(0.05, 20 * (now - began)), 2.0))
        began = time.monotonic()
    return value


def await_full_task_pool(cluster: Cluster, timeout: float = PATIENCE_S) -> TaskPoolReport:
    """Wait until the TaskExecutors keep as many task processes ready as they may; returns the first one's report."""
    with cluster.client() as client:
        workers = [client.task_executor(view.registration.resource_id) for view in client.task_managers()]

        def look() -> TaskPoolReport | None:
            pools = [worker.request_task_pool().result() for worker in workers]
            return pools[0] if all(sum(pool.idle.values()) == pool.size for pool in pools) else None

        report: TaskPoolReport = await_value(look, timeout)
        return report


def started(directory: Path, *settings: str, masters: int = 1, tree: Path = ROOT) -> Iterator[Cluster]:
    """Start a cluster, and see that it leaves nothing behind when it is stopped."""
    cluster = Cluster(directory, settings, tree)
    cluster.run("start", f"--masters={masters}")
    try:
        yield cluster
    finally:
        cluster.run("stop")
        assert cluster.processes() == {}
        assert not (directory / "cluster.json").exists()
        assert not (directory / "run").exists()
