"""Masters, workers and their processes: the real commands `start`, `start-master`, `stop`, `status`, several at once.

Clients run the functions behind the commands, at random times and several at once, beside faults:

- Processes are killed, killed or delayed at a step of their code, asked to end (SIGTERM), stopped and continued.
- Starts are slow or fail. Pids are reused. A worker does not listen to SIGTERM.
- The host is suspended or loses its power and what its disk has not synced. Its wall clock jumps, by which Redis
  measures leases.
- The disk is full or slow. Redis is slow.

Checked are:

- A command ends in time, with a result or with an error that the command line shows as one line.
- At most one cluster runs in a runtime directory, with one process for each worker and one Redis.
- No two masters hold the claim on the same process, and a claim ends with its holder.
- What `status` shows is true: a process that has ended before is not shown with its pid.
- A master or a worker ends only because of a fault or a stop.
- A start that fails leaves no master, and the configuration that it has found. Of several starts one succeeds.
- cluster.json names the masters that serve.
- After the faults the cluster runs again, if need be after `start-master` or `start`: all workers are registered, and
  each accepted job that was not stopped with its cluster is still there, and none that was.
- After each `stop` nothing is left: no process, no zombie, no file of a running cluster, no key in Redis, no lock.
- The last master ends all processes of its cluster; `stop` itself has to end none that a living master was to end.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from actors.errors import ActorError
from blob.errors import BlobError
from conf.configuration import Configuration
from conf.options import (
    ClientOptions,
    ClusterOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    JobOptions,
    RestOptions,
    SparkOptions,
    TaskManagerOptions,
)
from runtime.client import ClusterClient, _run
from runtime.cluster.discovery import connect_locally
from runtime.cluster.session import join_cluster, start_cluster, stop_cluster
from runtime.environment.claims import Claim
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.ha.errors import HaError
from runtime.ids import JobID
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.errors import GatewayError
from runtime.protocol.messages import ClusterStatus
from runtime.spark.errors import SparkError
from tests.simulation import cluster_processes
from tests.simulation.disk import ROOT, Disk, Loss
from tests.simulation.faults import Fault, _log, add_kinds
from tests.simulation.kernel import SimHost, SimProcess
from tests.simulation.processes import Entry, System
from tests.simulation.redis import RedisDeployment
from tests.simulation.world import World

CLUSTER = "c"
LINES = (ActorError, BlobError, ClusterError, GatewayError, HaError, JobGraphError, SparkError, OSError)
"""Errors that the command line shows as one line."""
COMMAND_S = 130.0
"""Longest time of a command."""
VERIFY_S = 25.0
"""Seconds after the faults at which the cluster is verified."""
STOP_GRACE_S = 1.0
"""Seconds from the end of `stop` in which orphans may still end."""
ZOMBIE_S = 20.0
DESCRIBED_S = 10.0
"""Seconds after which cluster.json must name the masters that serve."""
DEAF = 0.15
"""Probability that a worker does not listen to SIGTERM."""
FULL = os.strerror(errno.ENOSPC)
HARMLESS = {"jump", "redis_slow", "slow_locks", "slow_start"}
"""Kinds of faults after which a master still ends its cluster in good order."""
HEADS = ("entrypoint", "host")
WEIGHTS = {
    "signal": 3.0,
    "hit_at_effect": 3.0,
    "delay_at_effect": 2.0,
    "pause": 3.0,
    "fail_start": 1.0,
    "slow_start": 1.0,
    "suspend": 0.3,
    "power_loss": 0.1,
    "disk_full": 0.3,
    "disk_slow": 0.5,
    "redis_slow": 0.5,
}
"""How often each kind of fault happens, relative to the others."""


@dataclass(eq=False)
class Command:
    """A command of a client.

    Attributes:
        began, ended: virtual seconds; *ended* is None while it runs, and if its process was killed.
        outcome: ``ok``, the name of the error, or empty.
        found: whether a start has found the configuration of an earlier cluster.
    """

    verb: str
    host: SimHost
    began: float
    process: SimProcess
    ended: float | None = None
    outcome: str = ""
    error: str = ""
    said: list[str] = field(default_factory=list)
    found: bool = False

    def __repr__(self) -> str:
        return f"{self.verb} ({self.process}, {self.began:.3f} to {self.ended} s): {self.outcome} {self.error}"


@dataclass
class Life:
    """The life of one process."""

    name: str
    pid: int
    host: str
    began: float
    ended: float | None = None


class Supervision:
    """See the module."""

    name: ClassVar[str] = "supervision"
    faults_s = 60.0
    calm_s = 200.0
    stop_s = 60.0
    """A master gives a worker 20 s to end, and `stop` gives the masters 30 s."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = world.kernel
        self.system = System(world.kernel)
        cluster_processes.use(self.system)
        self.kernel.devices["supervision"] = self
        self.rng = self.kernel.random("supervision")
        self.workers = self.rng.choice((1, 1, 2))
        self.commands: list[Command] = []
        self.lives: dict[SimProcess, Life] = {}
        self.jobs: dict[JobID, float] = {}
        self.faulted: dict[SimProcess, None] = {}
        """Processes that a fault has ended."""
        self.verified = False
        self._zombies: dict[Entry, float] = {}
        self._job_numbers = 0
        self._terminated: list[float] = []
        """When masters got SIGTERM from a fault."""

    # ------------------------------------------------------------------ building

    def disks(self) -> None:
        """Add the disks."""
        self.disk: Disk = self.world.add_disk("d")

    def build(self) -> None:
        """Add the host and what happens on it."""
        world = self.world
        assert world.files is not None
        self.system.files = world.files
        before = world.files.before
        assert before is not None

        def pass_time(operation: str, path: str, disk: Disk) -> None:
            before(operation, path, disk)
            if operation == "flock" and self.kernel.thread is not None:
                self.kernel.thread.sleep(0.001)

        world.files.before = pass_time
        self.hosts = world.hosts(1)
        self.deployment = RedisDeployment(self.kernel, world.network, self.hosts[0], persistent=True)
        self.deployment.master.kill()
        self.system.programs["redis-server"] = cluster_processes.redis_server(self.deployment)
        self.kernel.on_start.append(self._began)
        self.system.on_end.append(self._ended)
        self.directory = Path(ROOT) / "d" / "c"
        self.kernel.after(self.faults_s + 0.001, self._continue_all)
        self.kernel.after(self.faults_s + VERIFY_S, self.run_command, self.hosts[0].name, "verify")

    def configuration(self) -> Configuration:
        """Return the configuration of the cluster."""
        return (
            Configuration()
            .set(ClusterOptions.ID, CLUSTER)
            .set(ClusterOptions.RUNTIME_DIR, self.directory)
            .set(ClusterOptions.START_TIMEOUT, 40.0)
            .set(ClusterOptions.STOP_TIMEOUT, 30.0)
            .set(ClientOptions.TIMEOUT, 10.0)
            .set(HighAvailabilityOptions.LEASE, 3.0)
            .set(TaskManagerOptions.COUNT, self.workers)
            .set(JobOptions.SLOT_REQUEST_TIMEOUT, 86400.0)
            .set(SparkOptions.CDS_ENABLED, False)
            .set(SparkOptions.WARM_UP, False)
            .set(RestOptions.ENABLED, False)
            .set(JobManagerOptions.RPC_PORT, 6123)
        )

    # ------------------------------------------------------------------ what happened

    def _began(self, process: SimProcess) -> None:
        self.lives[process] = Life(process.name, process.pid, process.host.name, self.kernel.seconds)

    def _ended(self, entry: Entry) -> None:
        life = self.lives[entry.sim]
        life.ended, life.name = self.kernel.seconds, entry.sim.name
        self._zombies[entry] = self.kernel.seconds
        if entry.sim.name == "admin" and entry.sim in self.faulted and entry.parent is not None:
            self.faulted[entry.parent.sim] = None  # it ends, too
        if entry.sim.name in HEADS and entry.sim not in self.faulted and not self._stops(self.kernel.seconds - 60.0):
            started = [c for c in self.commands if c.verb in ("start", "start2", "join", "verify") and c.ended is None]
            if entry.status != -signal.SIGKILL and not started:
                self.world.fail("a master ends by a fault or a stop", f"{entry} ended with {entry.status}")
        if entry.sim.name == "worker" and entry.status == 0 and not self._may_be_stopped(entry):
            self.world.fail("a worker ends by a fault or a stop", f"{entry} was stopped")

    def _may_be_stopped(self, entry: Entry) -> bool:
        """Return whether a worker may have been told to end: a master that loses its actor system leaves it running."""
        since = self.kernel.seconds - 60.0
        starts = [one for one in self.commands if one.verb in ("start", "start2", "join", "verify")]
        return (
            entry.sim in self.faulted
            or bool(self._stops(since))
            or any(at_s >= since for at_s in self._terminated)
            or any(one.ended is None or (one.outcome != "ok" and one.ended >= since) for one in starts)
        )

    def _stops(self, since: float) -> list[Command]:
        """Return the stops that were under way after a moment."""
        return [
            command
            for command in self.commands
            if command.verb == "stop"
            and (command.ended is None or command.ended >= since)
            and (command.process.alive or command.ended is not None or self._end_of(command) > since - 60.0)
        ]

    def _was_stopped(self, since: float) -> bool:
        """Return whether a stop has succeeded after a moment, with no start beside it and no loss of power after it."""
        starts = [one for one in self.commands if one.verb in ("start", "start2", "join")]
        return "fault power_loss" not in self.world.counts and any(
            command.outcome == "ok"
            and command.began >= since
            and not any(one.began < self._end_of(command) and self._end_of(one) > command.began for one in starts)
            for command in self.commands
            if command.verb == "stop"
        )

    def _end_of(self, command: Command) -> float:
        life = self.lives[command.process]
        return self.kernel.seconds if life.ended is None else life.ended

    def _continue_all(self) -> None:
        self.system.failing.clear()
        self.system.slow.clear()
        for entry in self.system.running():
            self.system.deliver(entry, signal.SIGCONT)

    def boot(self, host: SimHost) -> None:
        """Start a host again, which runs nothing."""
        if not host.up:
            host.boot()
            self.world.network.host_is_up(host)

    # ------------------------------------------------------------------ commands

    def run_command(self, host_name: str, verb: str) -> Command | None:
        """Start the process of a command."""
        host = self.kernel.hosts[host_name]
        if not host.up:
            return None
        made: list[Command] = []
        work: Callable[[Command], object] = getattr(self, f"_{verb}")

        def main() -> None:
            command = made[0]
            thread = self.kernel.thread
            assert thread is not None
            thread.sleep(0.05 + 0.2 * self.rng.random())
            try:
                work(command)
            except LINES as error:
                command.outcome, command.error = type(error).__name__, str(error)
                if verb in ("start", "start2"):
                    self._check_failed_start(command)
            else:
                command.outcome = "ok"
                if verb in ("start", "start2"):
                    self._check_one_start(command)
            command.ended = self.kernel.seconds
            self.world.count(f"{verb} {command.outcome}")
            self.kernel.trace("command", verb, command.outcome)

        try:
            entry = self.system.start(host, f"client-{verb}", main)
        except BlockingIOError:  # no pid is free
            return None
        command = Command(verb, host, self.kernel.seconds, entry.sim)
        made.append(command)
        self.commands.append(command)
        return command

    def _start(self, command: Command) -> None:
        command.found = self._configuration_exists()
        start_cluster(self.configuration(), command.said.append).close()

    def _start2(self, command: Command) -> None:
        command.found = self._configuration_exists()
        start_cluster(self.configuration(), command.said.append, masters=2).close()

    def _join(self, command: Command) -> None:
        join_cluster(self.configuration())

    def _stop(self, command: Command) -> None:
        try:
            stop_cluster(self.configuration(), command.said.append)
        except ClusterNotRunning:
            self.kernel.after(STOP_GRACE_S, self._check_ended_stop, command)
            raise
        self.kernel.after(STOP_GRACE_S, self._check_ended_stop, command)

    def _status(self, command: Command) -> None:
        with connect_locally(self.configuration()) as client:
            began = self.kernel.seconds
            self._check_status(client.status(), began)

    def _submit(self, command: Command) -> None:
        self._job_numbers += 1
        job_id = JobID(f"{self._job_numbers:032x}")
        with connect_locally(self.configuration()) as client:
            _run(client._cluster.submit_graph(JobGraph.for_script("job", job_id=job_id, argv=(), created_ms=1)))
            self.jobs[job_id] = self.kernel.seconds
            self.kernel.trace("accepted", job_id[-4:])

    def _verify(self, command: Command) -> None:
        """Bring the cluster up again if it does not run, and check that all is there."""
        configuration, directory = self.configuration(), ClusterDirectory(self.directory)
        deadline = time.monotonic() + 60.0
        while directory.is_running() and directory.is_held_alone() and time.monotonic() < deadline:
            time.sleep(0.1)  # a command is at work
        how = "it runs"
        if not directory.is_running():
            try:
                how = "start-master"
                join_cluster(configuration)
            except ClusterNotRunning:  # a stop has removed it, or its start was cut off
                how = "start"
                start_cluster(configuration, command.said.append).close()
        self.kernel.trace("verifies", how)
        self.world.count(f"verified after: {how}")
        with connect_locally(configuration) as client:
            self._await_workers(client, how)
            listed = {job.job_id: job.status for job in client.list_jobs()}
            self._check_status(client.status(), self.kernel.seconds)
        self._check_descriptor(directory)
        for job_id, accepted in self.jobs.items():
            if self._was_stopped(accepted) and job_id in listed and not listed[job_id].is_terminal:
                self.world.fail("a stopped job stays stopped", f"{job_id}, accepted at {accepted:.3f} s")
            if self._stops(accepted):
                continue
            self.world.count("jobs verified")
            if job_id not in listed or listed[job_id].is_terminal:
                self.world.fail("no job is lost", f"{job_id}, accepted at {accepted:.3f} s, is {listed.get(job_id)}")
        self.verified = True

    def _await_workers(self, client: ClusterClient, how: str) -> None:
        deadline = time.monotonic() + 50.0
        while True:
            registered = client.overview().task_managers
            if registered >= self.workers:
                return
            if time.monotonic() > deadline:
                self.world.fail("the cluster heals", f"{registered} of {self.workers} workers registered ({how})")
                return
            time.sleep(0.2)

    # ------------------------------------------------------------------ faults

    def plan(self, rng: random.Random) -> list[Fault]:
        """Return commands and faults."""
        host = self.hosts[0].name
        plan: list[Fault] = [Fault(0.1, "command", (host, rng.choice(("start", "start2"))))]
        if rng.random() < 0.3:
            plan.append(Fault(0.1 + rng.random(), "command", (host, "start")))
        verbs = {"start": 2.0, "start2": 0.7, "join": 2.0, "stop": 1.0, "status": 3.0, "submit": 3.0}
        weights = {verb: weight * rng.choice((0.0, 0.5, 1.0, 2.0)) for verb, weight in verbs.items()}
        weights["status"] += 0.1
        at = 4.0
        pause_s = rng.choice((1.0, 3.0, 6.0))
        while at < self.faults_s:
            plan.append(Fault(round(at, 6), "command", (host, rng.choices(list(weights), list(weights.values()))[0])))
            at += -_log(1.0 - rng.random()) * pause_s
        weights = {kind: weight * rng.choice((0.0, 0.3, 1.0, 3.0)) for kind, weight in WEIGHTS.items()}
        weights["signal"] += 0.1
        rate = rng.choice((0.0, 0.05, 0.2, 0.6, 1.5, 3.0))
        at = 0.5 + rng.random()
        while rate and at < self.faults_s:
            kind = rng.choices(list(weights), list(weights.values()))[0]
            plan.append(Fault(round(at, 6), kind, self._arguments(kind, rng, self.faults_s - at)))
            at += -_log(1.0 - rng.random()) / rate
        for _ in range(rng.choice((0, 0, 1, 3))):
            jump_s = rng.choice((rng.uniform(-3600.0, 3600.0), rng.uniform(-5.0, 5.0)))
            plan.append(Fault(round(rng.uniform(1.0, self.faults_s), 6), "jump", (host, round(jump_s, 3))))
        if rng.random() < DEAF:
            plan.append(Fault(round(rng.uniform(1.0, self.faults_s), 6), "deaf", (host, round(rng.random(), 3))))
        return sorted(plan, key=lambda fault: fault.at_s)

    def _arguments(self, kind: str, rng: random.Random, left_s: float) -> tuple[Any, ...]:
        host, where = self.hosts[0].name, round(rng.random(), 6)
        duration = round(min(0.01 * 2000 ** rng.random(), left_s), 4)  # short ones are as frequent as long ones
        match kind:
            case "signal":
                return host, where, int(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
            case "hit_at_effect":
                return host, where, rng.randrange(1, 120)
            case "delay_at_effect":
                return host, where, rng.randrange(1, 120), min(duration, 3.0)
            case "pause":
                return host, where, duration
            case "fail_start":
                return rng.choice(("worker", "entrypoint", "redis-server", "java", "actor")), rng.choice((1, 2))
            case "slow_start":
                return host, rng.choice((3.0, 20.0)), duration
            case "suspend":
                return host, duration
            case "power_loss":
                return host, round(0.1 + 2.0 * rng.random(), 4), rng.choice([loss.value for loss in Loss])
            case "disk_full":
                return "d", min(duration, 5.0)
            case "disk_slow":
                return "d", round(0.001 * 100 ** rng.random(), 4), duration
            case "redis_slow":
                return round(0.001 * 200 ** rng.random(), 4), duration
        raise ValueError(f"unknown fault {kind!r}")

    def victim(self, host: str, where: float, name: str = "") -> Entry | None:
        """Return one of the living processes of a host, of a name if there is one."""
        running = [entry for entry in self.system.running(self.kernel.hosts[host]) if name in ("", entry.sim.name)]
        living = sorted(running, key=lambda entry: (entry.sim.name, entry.pid))
        return living[int(where * len(living))] if living else None

    # ------------------------------------------------------------------ checks

    def _check_status(self, status: ClusterStatus, began: float) -> None:
        for process in status.processes:
            if not process.pid:
                continue
            lives = [life for life in self.lives.values() if life.pid == process.pid]
            if not any(life.ended is None or life.ended >= began - 2.0 for life in lives):
                self.world.fail(
                    "shown states are true", f"{process.name} is shown as process {process.pid}, which ended"
                )
        self.world.count("processes shown", len(status.processes))

    def _check_descriptor(self, directory: ClusterDirectory) -> None:
        """Check that cluster.json names the masters that serve, soon after the last change."""
        deadline = time.monotonic() + DESCRIBED_S
        while (shown := directory.read_descriptor().masters) != (serving := tuple(directory.masters().values())):
            if time.monotonic() > deadline:
                self.world.fail("cluster.json names the masters", f"it names {shown}, and {serving} serve")
                return
            time.sleep(0.2)

    def _check_ended_stop(self, command: Command) -> None:
        """Check that a stop has left nothing, unless a command beside it or after it has begun something.

        So has one that finds nothing to stop; it leaves the files of a start that was cut off.
        """
        if not self._is_undisturbed(command):
            return
        self.world.count("stops checked")
        self._check_no_process()
        if command.outcome == "ok":
            self._check_no_file()
        happened = {what.removeprefix("fault ") for what in self.world.counts if what.startswith("fault ")}
        if happened <= HARMLESS:  # a killed master leaves its processes to `stop`
            self._check_left_behind(command)

    def _check_failed_start(self, command: Command) -> None:
        """Check that a start that fails leaves no master of its own, and what it has found."""
        if not self._is_undisturbed(command):
            return
        self.world.count("failed starts checked")
        mine = [e for e in self.system.running() if e.sim.name in HEADS and self.lives[e.sim].began > command.began]
        if mine:
            self.world.fail("a failed start leaves no master", f"{mine}: {command}")
        if command.found and not self._configuration_exists():
            self.world.fail("a failed start keeps the configuration", f"{command}")

    def _check_one_start(self, command: Command) -> None:
        """Check that a start has found no cluster that another start had started, and that nothing can have ended."""
        if {"fault power_loss", "fault disk_full"} & self.world.counts.keys():  # a master may end with a full disk
            return
        for other in self.commands:
            if other is command or other.verb not in ("start", "start2") or other.outcome != "ok":
                continue
            assert other.ended is not None
            ended = any(
                sim.name in (*HEADS, "admin") and (self.lives[sim].ended or self.kernel.seconds) > other.began
                for sim in self.faulted
            )
            if not ended and not self._stops(other.began):
                self.world.fail("one cluster runs in a directory", f"{command} and {other} have started one")

    def _configuration_exists(self) -> bool:
        return any(path == "c/configuration.json" for path, _ in self.disk.walk())

    def _is_undisturbed(self, command: Command) -> bool:
        """Return whether no other command that starts or stops processes has worked since the begin of this one.

        Nor must the host have lost its power, which brings back names of files that were not synced.
        """
        others = [one for one in self.commands if one.verb not in ("status", "submit") and one is not command]
        return "fault power_loss" not in self.world.counts and not any(
            self._end_of(one) > command.began for one in others
        )

    def check_often(self) -> None:
        """Check what must hold at any time."""
        seen: dict[tuple[str, ...], Entry] = {}
        now = self.kernel.seconds
        for entry in self.system.running():
            name = entry.sim.name
            if name == "java":
                key: tuple[str, ...] = (entry.sim.host.name, name, entry.arguments[1])
            elif name == "redis-server" and entry.sim.local.get("on_freeze") is not None:
                key = (entry.sim.host.name, name)
            else:
                continue
            if key in seen:
                self.world.fail("one process of a kind", f"{seen[key]} and {entry} ({' '.join(key)})")
            seen[key] = entry
        owners: dict[str, Entry] = {}
        for entry in self.system.running():
            for claim in claims_of(entry):
                if claim.held:
                    other = owners.setdefault(claim.path.name, entry)
                    if other is not entry:
                        self.world.fail("one owner for each process", f"{other} and {entry} hold {claim.path.name}")
        if inherited := self.disk.inherited_locks("c/claims"):
            self.world.fail("a claim ends with its holder", f"forked processes have inherited {inherited}")
        for command in self.commands:
            if command.ended is None and command.process.alive and now - command.began > COMMAND_S:
                self.world.fail("a command ends", f"{command}; it said {command.said}")
        for entry, since in list(self._zombies.items()):
            if entry.is_reaped:
                del self._zombies[entry]
            elif now > self.faults_s and now - max(since, self.faults_s) > ZOMBIE_S and not self._stops(now - 60.0):
                parent = entry.parent
                if parent is not None and parent.sim.name != "java":
                    self.world.fail("no zombie stays", f"{entry}, child of {parent}, ended at {since:.3f} s")
                del self._zombies[entry]

    def is_healed(self) -> bool:
        """Return whether all commands have ended and there was time for the checks, so that the run can end."""
        return (
            self.verified
            and self.kernel.seconds > self.faults_s + ZOMBIE_S + 1.0
            and all(command.ended is not None or not command.process.alive for command in self.commands)
        )

    def is_stopped(self) -> bool:
        """Return whether `stop` has ended and orphans had time to end."""
        ended = None if self._final is None else self._final.ended
        return ended is not None and self.kernel.seconds > ended + STOP_GRACE_S

    def check_healed(self) -> None:
        """Check that the verification has succeeded, and that all commands have ended."""
        verification = next(command for command in self.commands if command.verb == "verify")
        if not self.verified:
            self.world.fail("the cluster heals", f"{verification}; it said {verification.said}")
        for command in self.commands:
            if command.ended is None and command.process.alive:
                self.world.fail("a command ends", f"{command}; it said {command.said}")

    def stop(self) -> None:
        """Run `stop`."""
        self._final = self.run_command(self.hosts[0].name, "stop")

    def check_stopped(self) -> None:
        """Check that nothing is left."""
        world, final = self.world, self._final
        # A process may end with any OSError of a full disk: its supervisor or the user starts it again.
        self.kernel.complaints[:] = [text for text in self.kernel.complaints if FULL not in text]
        if final is None or final.outcome != "ok":
            world.fail("a stop ends", f"{final}")
        else:
            self._check_left_behind(final)
        self._check_no_process()
        self._check_no_file()
        if zombies := self.system.zombies():
            world.fail("a stop leaves no zombie", f"{zombies}")
        if keys := [key for key in self.deployment.master.data._live() if CLUSTER in key]:
            world.fail("a stop leaves no key", f"{keys}")
        assert world.files is not None
        if open_files := world.files.open_files():
            world.fail("nothing is left open", str(open_files))

    def _check_left_behind(self, command: Command) -> None:
        if left_behind := [line for line in command.said if "had been left behind" in line]:
            self.world.fail("the last master ends all processes", f"`stop` had to: {left_behind[0]}")

    def _check_no_process(self) -> None:
        mark = str(self.directory)
        left = [
            e
            for e in self.system.running()
            if e.environ.get(CLUSTER_DIR_VARIABLE) == mark or e.sim.name == "redis-server"
        ]
        if left:
            self.world.fail("a stop leaves no process", f"{left}")

    def _check_no_file(self) -> None:
        for name in ("cluster.json", "configuration.json", "cluster.lock", "run", "claims", "checkpoints"):
            if any(path == f"c/{name}" for path, _ in self.disk.walk()):
                self.world.fail("a stop leaves no file", name)


def claims_of(entry: Entry) -> list[Claim]:
    """Return the claims that a process has tried to acquire."""
    owners = [getattr(function, "__self__", None) for function in entry.at_fork]
    return [owner for owner in owners if isinstance(owner, Claim)]


# ------------------------------------------------------------------ kinds of faults
# Plans that were written by hand may name the process; then *where* chooses among those of the name. Random plans have
# no names, and no slow locks.


def _workload(world: World) -> Supervision:
    found: Supervision = world.kernel.devices["supervision"]
    return found


def _command(world: World, host: str, verb: str) -> bool:
    _workload(world).run_command(host, verb)
    return False


def _signal(world: World, host: str, where: float, number: int, name: str = "") -> bool:
    workload = _workload(world)
    entry = workload.victim(host, where, name)
    if entry is None:
        return False
    workload.faulted[entry.sim] = None
    if number == signal.SIGTERM and entry.sim.name in HEADS:
        workload._terminated.append(world.kernel.seconds)
    workload.system.deliver(entry, number)
    world.count(f"killed {entry.sim.name}")
    return True


def _hit_at_effect(world: World, host: str, where: float, count: int, name: str = "") -> bool:
    workload = _workload(world)
    entry = workload.victim(host, where, name)
    if entry is None:
        return False
    workload.faulted[entry.sim] = None
    entry.sim.kill_at_effect(count)
    return True


def _delay_at_effect(world: World, host: str, where: float, count: int, seconds: float, name: str = "") -> bool:
    entry = _workload(world).victim(host, where, name)
    if entry is None:
        return False
    entry.sim.stall_at_effect(count, seconds)
    return True


def _power_loss(world: World, name: str, seconds: float, loss: str) -> bool:
    host = world.kernel.hosts[name]
    if not host.up:
        return False
    workload = _workload(world)
    workload.faulted.update(dict.fromkeys(host.processes))
    host.crash()
    assert world.files is not None
    world.files.crashed(workload.disk, Loss(loss))
    world.kernel.after(seconds, workload.boot, host)
    return True


def _pause(world: World, host: str, where: float, seconds: float, name: str = "") -> bool:
    workload = _workload(world)
    entry = workload.victim(host, where, name)
    if entry is None or entry.sim.frozen:
        return False
    workload.system.deliver(entry, signal.SIGSTOP)
    world.kernel.after(seconds, workload.system.deliver, entry, int(signal.SIGCONT))
    return True


def _deaf(world: World, host: str, where: float) -> bool:
    """Let a worker hang, as far as SIGTERM is concerned, as long as it lives."""
    entry = _workload(world).victim(host, where, "worker")
    if entry is None:
        return False
    entry.sim.local["handlers"] = {}
    entry.sim.local["ignored"] = {int(signal.SIGTERM)}
    return True


def _fail_start(world: World, program: str, count: int) -> None:
    _workload(world).system.failing[program] = count


def _slow_locks(world: World, delay_s: float, seconds: float, name: str = "") -> None:
    """Let processes of a name, or all, stand still before they lock or unlock: steps of others come between."""
    kernel, files = world.kernel, world.files
    assert files is not None

    def wait(path: str) -> None:
        if kernel.thread is not None and name in ("", kernel.thread.process.name):
            kernel.thread.sleep(delay_s)

    files.before_lock = wait
    kernel.after(seconds, setattr, files, "before_lock", bool)


def _slow_start(world: World, host: str, factor: float, seconds: float) -> None:
    slow = _workload(world).system.slow
    slow[host] = factor
    world.kernel.after(seconds, slow.pop, host, None)


add_kinds(
    {
        "command": _command,
        "signal": _signal,
        "hit_at_effect": _hit_at_effect,
        "delay_at_effect": _delay_at_effect,
        "pause": _pause,
        "deaf": _deaf,
        "power_loss": _power_loss,
        "fail_start": _fail_start,
        "slow_start": _slow_start,
        "slow_locks": _slow_locks,
    }
)
