"""Clients, a nemesis, and what both did: ``python -m tests.faults.nemesis [--long] [--seconds N] [--seed N]``.

Three clients submit, watch and cancel jobs while the nemesis kills and stops whatever the cluster is made of. The
history goes to `tests.faults.history.check`. The short form takes some two minutes and a half, the long one an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from actors.errors import ActorError
from blob.errors import BlobError
from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.cluster.job_file import read_job_file
from runtime.environment.context import open_redis_services
from runtime.gateways.errors import GatewayError, JobAlreadyTerminatedError, JobNotFoundError
from runtime.ids import JobID
from tests.cluster_harness import Cluster
from tests.faults.history import (
    FINAL,
    Call,
    Execution,
    History,
    LastState,
    Leadership,
    Operation,
    Outcome,
    check,
)

LEASE_S = 1.0
SETTINGS = (
    f"high-availability.lease={LEASE_S:g}s",
    "heartbeat.interval=200ms",
    "heartbeat.timeout=3s",
    "taskmanager.numberOfTaskSlots=4",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "client.timeout=25s",
    "spark.driver.memory=1g",
)
CLIENTS = 3
SHORT_S = 90.0
LONG_S = 3600.0
CALM_S = 120.0

# Beats while it lives, so that it is known from when to when it ran; ends by itself after its argument's seconds.
JOB = """\
import os, sys, time

path, seconds = sys.argv[1], float(sys.argv[2])
began = time.monotonic()
def note(kind):
    with open(path, "a") as file:
        file.write(f"{kind} {os.getpid()} {time.monotonic()}\\n")
note("began")
while time.monotonic() < began + seconds:
    note("alive")
    time.sleep(0.05)
note("ended")
"""


@dataclass
class Recorder:
    """Notes what clients ask for and are told, from several threads."""

    operations: list[Operation] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, call: Call, job_id: str, action: Callable[[], str]) -> Operation:
        """Do it, and note what came of it."""
        asked = time.monotonic()
        try:
            value, outcome = action(), Outcome.OK
        except (JobNotFoundError, JobAlreadyTerminatedError):
            value, outcome = "", Outcome.REFUSED
        except (ActorError, BlobError, GatewayError, OSError) as error:
            value, outcome = f"{type(error).__name__}: {error}", Outcome.UNKNOWN
        operation = Operation(call, job_id, asked, time.monotonic(), outcome, value)
        with self.lock:
            self.operations.append(operation)
        return operation


class Customer(threading.Thread):
    """A client of the cluster: one job after the other, until it is told to stop."""

    def __init__(self, cluster: Cluster, scratch: Path, recorder: Recorder, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"customer-{seed}")
        self._cluster = cluster
        self._scratch = scratch
        self._recorder = recorder
        self._random = random.Random(seed)
        self._stop_now = stop
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._cluster.client() as client:
                while not self._stop_now.is_set():
                    self._one_job(client)
        except BaseException as error:  # the main thread raises it
            self.failure = error

    def _one_job(self, client: ClusterClient) -> None:
        job_id, file = JobID.random(), self._scratch / "job.py"
        seconds = self._random.choice((0.2, 1.0, 3.0, 6.0))
        arguments = (str(self._scratch / f"{job_id}.run"), f"{seconds}")
        graph = read_job_file(file, arguments, None, job_id)
        submit = lambda: client.submit(graph, file)  # noqa: E731
        submitted = self._recorder.call(Call.SUBMIT, job_id, submit)
        if submitted.outcome is Outcome.UNKNOWN or self._random.random() < 0.3:
            submitted = self._recorder.call(Call.SUBMIT, job_id, submit)  # the same again
        if submitted.outcome is not Outcome.OK:
            return
        cancels = self._random.random() < 0.25
        give_up = time.monotonic() + seconds + 25
        while time.monotonic() < give_up:
            seen = self._recorder.call(Call.STATUS, job_id, lambda: client.status_of(job_id).value)
            if seen.value in FINAL:
                return
            if cancels and self._random.random() < 0.2:
                cancels = False
                self._recorder.call(Call.CANCEL, job_id, lambda: client.cancel(job_id) or "")  # type: ignore[func-returns-value]
            self._stop_now.wait(self._random.uniform(0.05, 0.3))


class Nemesis:
    """Harms the cluster, one thing after the other, and lets it come to itself in between."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    def pause(self) -> None:
        """Let the cluster be, for a while."""
        threading.Event().wait(self._random.uniform(0.5, 4.0))

    def harm(self) -> None:
        """Do one thing."""
        deeds = {
            "kill dispatcher": lambda: self._signal("dispatcher", signal.SIGKILL),
            "kill resourcemanager": lambda: self._signal("resourcemanager", signal.SIGKILL),
            "kill blobserver": lambda: self._signal("blobserver", signal.SIGKILL),
            "kill jobmaster": lambda: self._signal("jobmaster", signal.SIGKILL),
            "kill taskexecutor": self._kill_task_executor,
            "kill redis": lambda: self._signal("redis", signal.SIGKILL),
            "kill master": self._kill_master,
            "stop dispatcher": lambda: self._pause("dispatcher", 2 * LEASE_S),
            "stop jobmaster": lambda: self._pause("jobmaster", 2 * LEASE_S),
            "stop redis briefly": lambda: self._pause("redis", 0.4 * LEASE_S),
            "stop redis": lambda: self._pause("redis", 2 * LEASE_S),
        }
        name = self._random.choice(list(deeds))
        if deeds[name]():
            self.done[name] += 1

    def _pids(self, kind: str) -> list[int]:
        with self._cluster.client() as client:
            views = client.status().processes
        return [view.pid for view in views if view.name.startswith(kind) and view.pid]

    def _signal(self, kind: str, number: signal.Signals) -> bool:
        pids = self._pids(kind)
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(pids), number)
        return bool(pids)

    def _pause(self, kind: str, seconds: float) -> bool:
        pids = self._pids(kind)
        if not pids:
            return False
        pid = self._random.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                threading.Event().wait(seconds)
            finally:
                os.kill(pid, signal.SIGCONT)
        return True

    def _kill_task_executor(self) -> bool:
        with self._cluster.client() as client:
            workers = client.task_managers()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.registration.pid, signal.SIGKILL)
        return bool(workers)

    def _kill_master(self) -> bool:
        done = self._signal("master", signal.SIGKILL)
        threading.Event().wait(self._random.uniform(0.0, 2 * LEASE_S))
        self._cluster.run("master")
        return done


@dataclass
class Result:
    """A run: its history, what is wrong with it, and what was done."""

    history: History
    problems: list[str]
    deeds: Counter[str]
    seed: int

    def summary(self) -> dict[str, object]:
        """In numbers."""
        outcomes = Counter(f"{item.call.value} {item.outcome.value}" for item in self.history.operations)
        return {
            "seed": self.seed,
            "deeds": dict(self.deeds),
            "operations": dict(outcomes),
            "jobs": dict(Counter(last.status for last in self.history.last.values())),
            "unknown because": dict(
                Counter(item.value[:160] for item in self.history.operations if item.outcome is Outcome.UNKNOWN)
            ),
            "executions": len(self.history.executions),
            "leaderships": len(self.history.leaderships),
            "problems": self.problems,
        }


def run(directory: Path, seconds: float, seed: int) -> Result:
    """Start a cluster, let clients and the nemesis at it for that long, let it calm down, and check the history."""
    scratch = directory / "work"
    scratch.mkdir()
    (scratch / "job.py").write_text(JOB)
    cluster = Cluster(directory / "c", SETTINGS)
    cluster.run("start", "--masters=2")
    recorder, nemesis, stop = Recorder(), Nemesis(cluster, seed), threading.Event()
    problems: list[str] = []
    try:
        customers = [Customer(cluster, scratch, recorder, seed + n, stop) for n in range(CLIENTS)]
        for customer in customers:
            customer.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            nemesis.pause()
            with contextlib.suppress(ActorError):  # it meets nobody: somebody else was harmed a moment ago
                nemesis.harm()
        stop.set()
        for customer in customers:
            customer.join()
            if customer.failure is not None:
                raise customer.failure
        jobs = {item.job_id for item in recorder.operations}
        last = _calm_down(cluster, jobs)
        problems += asyncio.run(_leftovers(cluster))
        history = History(recorder.operations, _executions(scratch), _leaderships(cluster.directory / "log"), last)
    finally:
        cluster.run("stop", check=False)
    problems += check(history)
    problems += [f"left running: {name} ({pid})" for pid, name in cluster.processes().items()]
    return Result(history, problems, nemesis.done, seed)


def _calm_down(cluster: Cluster, jobs: set[str]) -> dict[str, LastState]:
    """The last state of all jobs, once all are over, or after a while."""
    deadline = time.monotonic() + CALM_S
    while True:
        with cluster.client() as client:
            found = {job.job_id: job for job in client.list_jobs() if job.job_id in jobs}
            if all(job.status.is_globally_terminal for job in found.values()) or time.monotonic() > deadline:
                return {
                    job_id: LastState(job.status.value, sum(len(task.attempts) for task in client.job(job_id).tasks))
                    for job_id, job in found.items()
                }
        threading.Event().wait(0.5)


async def _leftovers(cluster: Cluster) -> list[str]:
    """Handles and files of jobs that are over; the Dispatcher may still be cleaning up."""
    services = open_redis_services(Configuration.read(cluster.directory / "configuration.json"))
    deadline = time.monotonic() + 20
    try:
        while True:
            problems = []
            for kind in ("jobgraphs", "executions"):
                states = await services.state_handles(kind).get_all()
                problems += [f"the handle {kind}/{name} remains: {state!r:.80}" for name, state in states.items()]
                files = (cluster.directory / "ha").glob(f"*/{kind}/*")
                problems += [f"the file {file} remains" for file in files]
            if not problems or time.monotonic() > deadline:
                return problems
            await asyncio.sleep(0.5)
    finally:
        await services.close()


def _executions(scratch: Path) -> list[Execution]:
    found = []
    for path in scratch.glob("*.run"):
        notes: dict[str, list[tuple[str, float]]] = {}
        for line in path.read_text().splitlines():
            kind, pid, at = line.split()
            notes.setdefault(pid, []).append((kind, float(at)))
        found += [
            Execution(path.stem, lines[0][1], lines[-1][1], ended=lines[-1][0] == "ended") for lines in notes.values()
        ]
    return found


_LEADS = re.compile(r"^(\S+ \S+) .*runtime\.ha\.election - (\S+) leads with epoch (\d+)$", re.MULTILINE)


def _leaderships(logs: Path) -> list[Leadership]:
    return [
        Leadership(component, int(epoch), datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp(), path.name)
        for path in logs.glob("*.log*")
        for at, component, epoch in _LEADS.findall(path.read_text(errors="replace"))
    ]


def main() -> int:
    """Run it once, and print the summary as JSON; the exit status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.nemesis", description=__doc__)
    parser.add_argument("--long", action="store_true", help=f"for {LONG_S / 60:g} minutes")
    parser.add_argument("--seconds", type=float, help=f"for so many seconds (default {SHORT_S:g})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory, with its logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="us-nemesis-"))
    result = run(directory, arguments.seconds or (LONG_S if arguments.long else SHORT_S), arguments.seed)
    sys.stdout.write(json.dumps(result.summary(), indent=2) + "\n")
    if result.problems or arguments.keep:
        sys.stderr.write(f"the cluster's files are in {directory}\n")
    else:
        shutil.rmtree(directory)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
