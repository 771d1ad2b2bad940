"""Clients, a nemesis, and what both did: ``python -m tests.faults.nemesis [--long] [--seconds N] [--seed N]``.

A cluster has two masters and two TaskExecutors. Three clients submit, watch and cancel jobs and a streaming query
counts what its source is given, while the nemesis kills and stops every kind of process, cuts the connections between
them, harms what passes between the cluster and its Redis, and fills its disks. The history goes to
`tests.faults.history.check`, and the query's sink has to have each row once. The short form ends when each kind of deed
was done once, the long one after an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.options import ClusterOptions, HighAvailabilityOptions
from runtime.client import ClusterClient
from runtime.environment.context import open_redis_services
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import HaError
from runtime.ha.keys import ClusterKeys
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.leader import job_master
from tests.cluster_harness import Cluster
from tests.faults import streaming
from tests.faults.customers import JOB, Customer, Recorder, executions
from tests.faults.cuts import why_not as why_not_cut
from tests.faults.deeds import PAUSE_S, STORED, Nemesis, dangling_handles, handles
from tests.faults.full_disk import SmallDisk
from tests.faults.history import Absence, History, LastState, Leadership, Outcome, check
from tests.faults.redis_front import RedisFront
from tests.faults.streaming import Companion, StreamingQuery

LEASE_S = 2.0
MASTERS = 2
TASK_EXECUTORS = 2
SETTINGS = (
    f"high-availability.lease={LEASE_S:g}s",
    "heartbeat.interval=200ms",
    "heartbeat.timeout=3s",
    "taskmanager.numberOfTaskSlots=4",
    "restart-strategy.type=fixed-delay",
    "restart-strategy.fixed-delay.attempts=1000",
    "restart-strategy.fixed-delay.delay=200ms",
    "client.timeout=25s",
    f"taskmanager.count={TASK_EXECUTORS}",
    "spark.driver.memory=1g",
    *streaming.SETTINGS,
    "cluster.start-timeout=9min",
    "blob.disk-reserve=0",
    "jobstore.max-capacity=1000000",
    "jobstore.expiration-time=1d",
)
CLIENTS = 3
SHORT_PAUSE_S = (0.1, 0.5)
LONGEST_S = 1800.0
"""How long the short form tries to do each kind of deed: many times what it takes."""
LONG_S = 3600.0
CALM_S = 600.0
START_S = 600.0
CLOCKS_S = 0.2
"""How far the clock of the logs may have gone from the monotonic one in the course of a run."""
DISKS = ("ha", "blob")
THRESHOLDS = ("0 b", "20 kb")
"""The states of jobs are in files in one run, and in Redis in another."""
_JOB_ID = re.compile(r"[0-9a-f]{32}")
GONE = ("run", "cluster.json", "claims")
STATES = "ha/*/*/*@*"
BLOBS = "ha/*/blob/job_*/*"


@dataclass
class Result:
    """A run: its history, what is wrong with it, and what was done."""

    history: History
    problems: list[str]
    deeds: Counter[str]
    seed: int
    left_out: dict[str, str]
    """Why not, by what the names of deeds begin with for which the machine lacks the means."""
    missing: list[str] = field(default_factory=list)
    """Kinds of deeds that are possible, and were never done."""
    told: dict[str, object] = field(default_factory=dict)
    """What the companion has to say."""

    def summary(self) -> dict[str, object]:
        """In numbers."""
        outcomes = Counter(f"{item.call.value} {item.outcome.value}" for item in self.history.operations)
        return {
            "seed": self.seed,
            "deeds": dict(self.deeds),
            "left out": self.left_out,
            "never done": self.missing,
            **self.told,
            "operations": dict(outcomes),
            "jobs": dict(Counter(last.status for last in self.history.last.values())),
            "unknown because": dict(
                Counter(
                    re.sub(r"[0-9a-f]{32}", "ID", item.value)[:160]
                    for item in self.history.operations
                    if item.outcome is Outcome.UNKNOWN
                )
            ),
            "executions": len(self.history.executions),
            "leaderships": len(self.history.leaderships),
            "terms that wrote": len(self.history.reigns),
            "requests of leaders accepted": sum(reign.requests for reign in self.history.reigns),
            "looks": sum(len(looks) for looks in self.history.looks),
            "absences of a JobMaster": len(self.history.absences),
            "silences of a TaskExecutor": len(self.history.silences),
            "problems": self.problems,
        }


def run(
    directory: Path,
    seconds: float | None,
    seed: int,
    settings: tuple[str, ...] = SETTINGS,
    pause_s: tuple[float, float] = PAUSE_S,
    companion: Companion | None = None,
) -> Result:
    """Start a cluster, let clients and the nemesis at it for that long, let it calm down, and check the history.

    Args:
        directory: for the cluster and the jobs.
        seconds: how long the nemesis is at work; None: until it has done each kind of deed.
        seed: of what it does.
        settings: of the cluster.
        pause_s: the shortest and the longest time between two of its deeds.
        companion: what goes on besides; None: a streaming query.
    """
    scratch = directory / "work"
    scratch.mkdir()
    (scratch / "job.py").write_text(JOB)
    threshold = f"high-availability.memory-threshold={THRESHOLDS[seed % len(THRESHOLDS)]}"
    cluster = Cluster(directory / "c", (*settings, threshold))
    disks = {name: SmallDisk(cluster.directory / name) for name in DISKS}
    try:
        cluster.run("start", f"--masters={MASTERS}", timeout=START_S)
        return _run(cluster, scratch, seconds, seed, disks, pause_s, companion or StreamingQuery(directory))
    finally:
        try:
            cluster.run("stop", check=False, timeout=START_S)
        finally:
            for disk in disks.values():
                disk.close()


def _run(
    cluster: Cluster,
    scratch: Path,
    seconds: float | None,
    seed: int,
    disks: dict[str, SmallDisk],
    pause_s: tuple[float, float],
    companion: Companion,
) -> Result:
    front = RedisFront(cluster.directory, seed)
    usable = {name: disk for name, disk in disks.items() if not disk.why_not}
    recorder, stop = Recorder(), threading.Event()
    logs, led = cluster.directory / "log", set[Leadership]()
    no_cuts = why_not_cut(next(iter(cluster.processes())))
    nemesis = Nemesis(cluster, seed, LEASE_S, front, usable, can_cut=not no_cuts, pause_s=pause_s)
    customers = [Customer(cluster, scratch, recorder, seed + n, stop) for n in range(CLIENTS)]
    try:
        front.begin()
        companion.begin(cluster)
        for customer in customers:
            customer.start()
        end = time.monotonic() + (LONGEST_S if seconds is None else seconds)
        while time.monotonic() < end and (seconds is not None or len(nemesis.turns.done) < len(nemesis.turns.names)):
            nemesis.pause()
            nemesis.harm()
            led |= set(leaderships(logs))  # the logs of a job go when it is forgotten
        stop.set()
        for customer in customers:
            customer.join()
            if customer.failure is not None:
                raise customer.failure
        jobs = {item.job_id for item in recorder.operations}
        last = companion.end() | _calm_down(cluster, jobs)
        problems = nemesis.problems + asyncio.run(_leftovers(cluster, set(last)))
        led |= set(leaderships(logs))
        history = History(
            recorder.operations,
            executions(scratch),
            list(led),
            front.reigns,
            certain(nemesis.absences, led),
            nemesis.looks,
            last,
            nemesis.silences,
        )
    finally:
        stop.set()
        cluster.run("stop", check=False, timeout=START_S)
        if front.is_alive():
            front.end()
    problems += companion.problems + check(history) + remains(cluster)
    left_out = {f"{name} disk full": disk.why_not for name, disk in disks.items() if name not in usable}
    left_out |= {"cut ": no_cuts, "disconnect ": no_cuts} if no_cuts else {}
    missing = sorted(nemesis.turns.missing)
    if seconds is None and missing:
        problems.append(f"not done within {LONGEST_S:g} s: {', '.join(missing)}")
    return Result(history, problems, nemesis.turns.done, seed, left_out, missing, companion.told)


def _calm_down(cluster: Cluster, jobs: set[str]) -> dict[str, LastState]:
    """The last state of all jobs, once all are over, or after a while."""
    deadline = time.monotonic() + CALM_S
    while True:
        try:
            with cluster.client() as client:
                found = {job.job_id: job for job in client.list_jobs() if job.job_id in jobs}
                if all(job.status.is_globally_terminal for job in found.values()) or time.monotonic() > deadline:
                    return {job_id: last_state(client, job) for job_id, job in found.items()}
        except ActorError:
            if time.monotonic() > deadline:
                raise
        threading.Event().wait(0.5)


def last_state(client: ClusterClient, job: JobDetails) -> LastState:
    """What the cluster says of a job that is over, or of one that is not yet."""
    return LastState(job.status.value, sum(len(task.attempts) for task in client.job(job.job_id).tasks))


async def _leftovers(cluster: Cluster, jobs: set[str]) -> list[str]:
    """Handles, entries, files and blobs of jobs that are over; the Dispatcher may still be cleaning up."""
    deadline = time.monotonic() + CALM_S
    while True:
        try:
            problems = await leftovers_now(cluster, jobs)
        except HaError as error:
            problems = [f"what is left behind is not known: {error}"]
        if not problems or time.monotonic() > deadline:
            return problems
        await asyncio.sleep(0.5)


async def leftovers_now(cluster: Cluster, jobs: set[str]) -> list[str]:
    """What is there of jobs that are over, in words."""
    configuration = Configuration.read(cluster.directory / "configuration.json")
    services = open_redis_services(configuration)
    try:
        problems = await dangling_handles(services)
        problems += [f"the handle {name} remains" for name in await handles(services)]
        for job_id, entry in (await services.running_jobs_registry().entries()).items():
            if job_id in jobs and (entry.dirty or entry.status is not JobSchedulingStatus.DONE):
                state = "DONE, to be cleaned up after" if entry.dirty else entry.status.value
                problems.append(f"the registry has job {job_id} as {state}")
        problems += await _entries(configuration, jobs)
    finally:
        await services.close()
    problems += [f"the file {file} remains" for file in cluster.directory.glob(STATES)]
    blobs = cluster.directory.glob(BLOBS)  # what a single BlobServer has beside them is a cache
    return problems + [f"the blob {path} remains" for path in blobs if path.parent.name.removeprefix("job_") in jobs]


async def _entries(configuration: Configuration, jobs: set[str]) -> list[str]:
    """Keys and fields of Redis that name one of the jobs, in words; without the registry and all handles of jobs."""
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    keys = ClusterKeys(configuration.get(ClusterOptions.ID))
    seen_already = {keys.running_jobs, *map(keys.handles, STORED)}
    connection, problems, cursor = RedisConnection(url.reveal()), list[str](), ""
    try:
        while cursor != "0":
            begin = cursor or "0"
            following, found = await connection.command("SCAN", begin, "MATCH", f"{keys.prefix}*", "COUNT", 1000)
            cursor = str(following)
            for key in sorted(set(found) - seen_already):
                if jobs & set(_JOB_ID.findall(key)):
                    problems.append(f"the key {key} remains")
                elif await connection.command("TYPE", key) == "hash":
                    fields = await connection.command("HKEYS", key)
                    problems += [f"the field {field} of {key} remains" for field in sorted(jobs & set(fields))]
    finally:
        await connection.close()
    return problems


def remains(cluster: Cluster) -> list[str]:
    """List the processes and files that a stopped cluster has left, in words."""
    problems = [f"left running: {name} ({pid})" for pid, name in cluster.processes().items()]
    return problems + [f"left behind: {path}" for path in map(cluster.directory.joinpath, GONE) if path.exists()]


_LEADS = re.compile(
    r"^(\S+ \S+) \S+ +\[(\d+)\] runtime\.ha\.election (?:\S+=\S+ )*- (\S+) leads with epoch (\d+)$", re.MULTILINE
)


def leaderships(logs: Path) -> list[Leadership]:
    """Who said in the components' logs that he leads, and when."""
    return [
        Leadership(
            component, int(epoch), datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f%z").timestamp(), path.name, int(pid)
        )
        for path in logs.glob("*.log*")
        for at, pid, component, epoch in _LEADS.findall(path.read_text(errors="replace"))
    ]


def certain(absences: Iterable[Absence], led: Collection[Leadership]) -> list[Absence]:
    """The absences of JobMasters that led, by their logs; each until the next one leads. The others' are left out."""
    offset = time.time() - time.monotonic()
    found = []
    for absence in absences:
        grants = sorted((item.at - offset, item.pid) for item in led if item.component == job_master(absence.job_id))
        before = [pid for at, pid in grants if at < absence.since + CLOCKS_S]
        after = [at for at, _ in grants if at >= absence.since + CLOCKS_S]
        end = min([absence.until, *after]) - CLOCKS_S
        if before and before[-1] in absence.pids and absence.since < end < float("inf"):
            found.append(replace(absence, until=end))
    return found


def main() -> int:
    """Run it once, and print the summary as JSON; the exit status is 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.nemesis", description=__doc__)
    parser.add_argument("--long", action="store_true", help=f"for {LONG_S / 60:g} minutes")
    parser.add_argument("--seconds", type=float, help="for so many seconds (default: until each kind of deed was done)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory, with its logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="us-nemesis-"))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("tests.faults").setLevel(logging.INFO)
    sys.stderr.write(f"seed {arguments.seed}, files in {directory}\n")
    seconds = arguments.seconds or (LONG_S if arguments.long else None)
    result = run(directory, seconds, arguments.seed, pause_s=SHORT_PAUSE_S if seconds is None else PAUSE_S)
    sys.stdout.write(json.dumps(result.summary(), indent=2) + "\n")
    if result.problems or arguments.keep:
        sys.stderr.write(f"the cluster's files are in {directory}\n")
    else:
        shutil.rmtree(directory)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
