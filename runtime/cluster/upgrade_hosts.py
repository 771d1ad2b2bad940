"""Upgrading a cluster on several hosts: one host's part, and all parts over ssh, one after the other.

A part is the master of a host or its TaskExecutors. `upgrade_part` runs on the host itself. It ends a master in good
order, and starts it again from the other environment. The process that keeps the TaskExecutors of a host continues in
the other environment. Then they are exchanged as those of a cluster on one host. `upgrade_hosts` runs it by
ssh on each host that ``masters`` and ``workers`` name: standbys, then the leading master, then the TaskExecutors.

The plan follows from the present state of the hosts. So an interrupted upgrade continues when it is run again.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.configuration import Configuration
from conf.options import ClusterOptions, EnvironmentOptions, HighAvailabilityOptions, TaskManagerOptions
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_by_redis
from runtime.cluster.host import NAME as KEEPER
from runtime.cluster.host import worker_name
from runtime.cluster.host_processes import ClusterStartError, await_condition
from runtime.cluster.roles import Role, role_configuration
from runtime.cluster.session import leave_cluster
from runtime.cluster.ssh import HostRole, refuse_secrets, roles_of_hosts, ssh_command
from runtime.cluster.upgrade import (
    CLAIM,
    POLL_S,
    Drain,
    DrainResult,
    Say,
    Workers,
    check_exchanged,
    choose_target,
    exclusive,
    observe,
    progress,
    settled,
)
from runtime.cluster.upgrade_environment import PROBE_S, Environment, FormerEnvironment
from runtime.cluster.upgrade_plan import (
    ClusterState,
    PlannedProcess,
    Target,
    UpgradeChoices,
    UpgradePlan,
    UpgradeRefusedError,
    check_interruption,
    check_upgrade,
    is_restarted_whole,
    plan_upgrade,
)
from runtime.environment.claims import Claim, is_claimed
from runtime.environment.context import has_redis
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.process_signals import signal_process
from runtime.protocol.leader import DISPATCHER
from runtime.taskexecutor.worker_files import Successor

ANSWER_S = 180.0
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
"""Options of ssh by which a connection ends whose host has gone."""
NOT_TRIED = "not tried: an earlier host failed"


# ------------------------------------------------------------------- one host's part


@dataclass(frozen=True, slots=True)
class Part:
    """One host's part of a cluster on several hosts.

    Args:
        role: of the host.
        configuration: of the part (`role_configuration`).
        directory: its runtime directory. It keeps the former environment until the next upgrade.
        start: arguments of the `start` of the part: ``--config`` and ``-D``.
    """

    role: Role
    configuration: Configuration
    directory: ClusterDirectory
    start: tuple[str, ...] = ()

    @classmethod
    def of(cls, configuration: Configuration, role: Role, start: Sequence[str] = ()) -> Part:
        """Return the part of this host.

        Raises:
            ClusterNotRunning: it does not run.
            UpgradeRefusedError: the cluster has no Redis, or one of its own.
        """
        own = role_configuration(configuration, role)
        directory = ClusterDirectory(own.get(ClusterOptions.RUNTIME_DIR))
        directory.upgraded_from = directory.root / directory.upgraded_from.name  # `stop` removes run/
        if not directory.is_running() or not directory.configuration_file.exists():
            raise ClusterNotRunning(
                f"no {role.value} of this host runs in {directory.root}",
                f"start it with the release that the other hosts run: `understudy start --role {role.value}`",
            )
        if not has_redis(own):
            raise UpgradeRefusedError(
                "high-availability.type is none: the one master keeps the jobs in its memory, and they would be lost",
                "follow docs/upgrading.md: stop streaming jobs with savepoints, and start the hosts with the other "
                "release",
            )
        if own.get(HighAvailabilityOptions.REDIS_URL) is None:
            raise UpgradeRefusedError(
                "high-availability.redis.url is not set, as in a cluster on one host",
                "leave out --role: all of it is upgraded then; or give the -D settings of its start",
            )
        return cls(role, own, directory, tuple(start))

    def claim(self) -> Claim:
        """Return the claim that excludes a second upgrade of the part; `stop` does not remove it."""
        return Claim(self.directory.root / f"{CLAIM}.claim")

    def running(self) -> Configuration:
        """Return the configuration that the part runs with."""
        return Configuration.read(self.directory.configuration_file)

    def state_of(self, whole: ClusterState) -> ClusterState:
        """Return the state of the cluster with the masters, or the TaskExecutors, of this part only."""
        if self.role is Role.MASTER:
            return replace(whole, is_part=True)
        running = self.running()
        names = {worker_name(running, index) for index in range(running.get(TaskManagerOptions.COUNT))}
        here = tuple(worker for worker in whole.task_executors if worker.name in names)
        return replace(whole, masters=(), task_executors=here, is_part=True)

    def choices(self, choices: UpgradeChoices) -> UpgradeChoices:
        """Return the choices for the part: a master's leaves all TaskExecutors."""
        return replace(choices, masters_only=self.role is Role.MASTER)


def check_part(role: Role, whole: ClusterState, target: Target) -> None:
    """Check that one host's part of a cluster can be upgraded to a release while the cluster runs.

    Args:
        role: of the host.
        whole: the state of the cluster, with the masters of the host.
        target: the other installation.

    Raises:
        UpgradeRefusedError: this part cannot be upgraded; the message says why.
    """
    if role is Role.MASTER and not whole.is_member:
        raise UpgradeRefusedError(
            "the masters here belong to a cluster on one host", "leave out --role: all of it is upgraded then"
        )
    check_upgrade(replace(whole, is_part=True), target)


def check_order(role: Role, leading_version: str, target: Target) -> None:
    """Check that TaskExecutors follow the masters, whose ResourceManager has to drain and to accept them.

    Raises:
        UpgradeRefusedError: the leading master runs another release than the target.
    """
    if role is Role.TASK_EXECUTOR and leading_version != target.release.version:
        raise UpgradeRefusedError(
            f"the leading master runs Understudy {leading_version}, and not {target.release.version}: TaskExecutors "
            "follow the masters",
            "exchange the masters first, with --role master on each of their hosts",
        )


def preview_part(part: Part, to: Path | None, choices: UpgradeChoices) -> tuple[Target, UpgradePlan]:
    """Return what `upgrade_part` would do now, and with which release; change nothing.

    Args:
        part: of this host.
        to: virtual environment with the other release; None: that of this process.
        choices: of the operator.

    Raises:
        UpgradeRefusedError: the part cannot be upgraded so.
    """
    _, target = choose_target(part.directory, to, choices)
    with connect_by_redis(part.configuration) as client:
        whole = observe(client, part.directory)
    check_part(part.role, whole, target)
    return target, plan_upgrade(part.state_of(whole), target, part.choices(choices))


def upgrade_part(
    part: Part, to: Path | None, say: Say, *, is_accepted: bool, choices: UpgradeChoices
) -> tuple[Target, tuple[PlannedProcess, ...], UpgradePlan]:
    """Exchange the processes of this host's part, unless they run the other release.

    Args:
        part: of this host.
        to: virtual environment with the other release; None: that of this process.
        say: called with each step.
        is_accepted: whether the operator accepts the warning of the plan.
        choices: of the operator.

    Returns:
        the release, the exchanged processes, and a plan of what is left.

    Raises:
        UpgradeRefusedError: the part cannot be upgraded so.
        ClusterError: it does not end or start.
    """
    with exclusive(part.claim(), part.directory):
        environment, target = choose_target(part.directory, to, choices)
        own = part.choices(choices)
        with connect_by_redis(part.configuration) as client:
            whole = observe(client, part.directory)
            check_part(part.role, whole, target)
            state = part.state_of(whole)
            plan = plan_upgrade(state, target, own)
            steps = plan.steps
            if steps:
                check_order(part.role, client.status().version, target)
                check_interruption(plan, is_accepted=is_accepted)
                FormerEnvironment.keep(part.directory, steps[0], state)
                exchange = _Exchange(client, part, environment, target, choices, say)
                is_whole = part.role is Role.MASTER or is_restarted_whole(state, target)
                after = part.state_of((exchange.together if is_whole else exchange.one_by_one)(whole, steps))
                check_exchanged(steps[-1], state, after, target, own)
                plan = plan_upgrade(after, target, own)
        if choices.rollback and not choices.masters_only:  # else the TaskExecutors follow
            part.directory.upgraded_from.unlink(missing_ok=True)
    return target, steps, plan


def drain_all(
    client: ClusterClient, steps: Sequence[PlannedProcess], patience_s: float, choices: UpgradeChoices, say: Say
) -> None:
    """Wait until no job uses the TaskExecutors. Raises ClusterError: tasks do not leave, or one was replaced."""
    drains = [Drain(client, step, patience_s, choices, say) for step in steps]
    while (results := [drain.advance() for drain in drains]) != [DrainResult.IDLE] * len(drains):
        if DrainResult.GONE in results:
            gone = steps[results.index(DrainResult.GONE)].process
            raise ClusterError(f"{gone} has ended meanwhile", "run the upgrade again once it is registered")
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The exchange of a part's processes; for its arguments see `upgrade_part`."""

    client: ClusterClient
    part: Part
    environment: Environment
    target: Target
    choices: UpgradeChoices
    say: Say

    def together(self, whole: ClusterState, steps: Sequence[PlannedProcess]) -> ClusterState:
        """End all processes of the part, TaskExecutors without tasks, and start them again; return the state after."""
        for number, step in enumerate(steps, 1):
            self.say(progress(step, number, len(steps)))
        running, part = self.part.running(), self.part
        patience_s = running.get(ClusterOptions.START_TIMEOUT)
        if part.role is Role.TASK_EXECUTOR and self.target.drains:
            drain_all(self.client, steps, patience_s, self.choices, self.say)
        _restart(part, self.environment, running, self.say)
        moved = steps if part.role is Role.TASK_EXECUTOR else ()
        return settled(self.client, part.directory, whole, patience_s, *moved)

    def one_by_one(self, whole: ClusterState, steps: Sequence[PlannedProcess]) -> ClusterState:
        """Exchange the TaskExecutors of the part one after the other; return the state after.

        The process that keeps them comes first: it starts one that ends by itself in the other environment.
        """
        running, directory = self.part.running(), self.part.directory
        patience_s = running.get(ClusterOptions.START_TIMEOUT)
        _move_keeper(directory, self.environment, patience_s)
        workers = Workers(self.client, directory, running, self.say, self.choices, self.environment, self.target)
        for number, step in enumerate(steps, 1):
            self.say(progress(step, number, len(steps)))
            while not workers.exchange(step):
                time.sleep(POLL_S)  # it has ended by itself, and registers again
            whole = settled(self.client, directory, whole, patience_s, step)
        return whole


def _move_keeper(directory: ClusterDirectory, environment: Environment, patience_s: float) -> None:
    """Have the process that keeps a host's TaskExecutors continue in another environment; they run on.

    Raises:
        ClusterError: it does not.
    """
    claim = directory.claim(KEEPER)
    found = claim.living()
    remedy = f"see {directory.log / KEEPER}.log, and run the upgrade again"
    if found is None:
        raise ClusterError("the process that keeps the TaskExecutors of this host has just ended", remedy)
    keeper = found[0]
    Successor(keeper.pid, str(environment.python), environment.path).write(directory.root)
    signal_process(keeper.pid, signal.SIGHUP, keeper.is_alive)

    def serves() -> bool:
        return not keeper.is_alive() or (_program_of(keeper.pid) == str(environment.python) and is_claimed(claim.path))

    if not await_condition(serves, patience_s):
        raise ClusterError(
            f"the process that keeps the TaskExecutors of this host ({keeper.pid}) does not continue from "
            f"{environment.python}",
            remedy,
        )
    if not keeper.is_alive():
        raise ClusterStartError(
            f"the process that keeps the TaskExecutors of this host has ended; it was to continue from "
            f"{environment.python}",
            f"see {directory.log / KEEPER}.out; `understudy stop --role task-executor` and `start --role "
            "task-executor` start them again",
        )


def _program_of(pid: int) -> str:
    """Return the first word of a process's command line; empty if it has ended."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
    except OSError:
        return ""


def _restart(part: Part, environment: Environment, running: Configuration, say: Say) -> None:
    """Stop the part, and start it from an environment; raises ClusterError."""
    leave_cluster(part.configuration, say)
    words = ["-m", "runtime.cluster", "start", "--role", part.role.value]
    words += ["--host", running.get(ClusterOptions.HOST), *part.start]
    try:
        done = environment.run(words, running.get(ClusterOptions.START_TIMEOUT) + PROBE_S)
        told = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
        problem = "" if done.returncode == 0 else (told or [f"its start ended with status {done.returncode}"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise ClusterStartError(
            f"the {part.role.value} of this host was stopped, and does not start from {environment.python}: {problem}",
            f"see {part.directory.log}; start it with either release, `understudy start --role {part.role.value}`, and "
            "run the upgrade again",
        )


# ------------------------------------------------------------------------- all hosts


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Plan of one host's part.

    Args:
        target: the host and its role.
        problem: why it does not answer; empty if it does.
        version: of Understudy that it will run.
        steps: the processes to exchange.
        kept: the processes that stay.
        jobs: number of jobs that have slots of its TaskExecutors.
    """

    target: HostRole
    problem: str = ""
    version: str = ""
    steps: tuple[PlannedProcess, ...] = ()
    kept: tuple[PlannedProcess, ...] = ()
    jobs: int = 0

    @property
    def is_master(self) -> bool:
        """True for the part of a master."""
        return self.target.role is Role.MASTER

    @property
    def leads(self) -> tuple[str, ...]:
        """Names of the elected components that lead in its master."""
        return tuple(name for each in (*self.steps, *self.kept) for name in each.leads)

    @classmethod
    def decode(cls, target: HostRole, document: Any) -> HostPlan:
        """Return the plan from the document that the host prints; raises ValueError, KeyError or TypeError."""
        steps, kept = (tuple(_process(each) for each in document[name]) for name in ("steps", "kept"))
        names = {each.process for each in (*steps, *kept)}
        jobs = sum(bool(names.intersection(job["task_executors"])) for job in document["jobs"])
        return cls(target, "", str(document["target_version"]), steps, kept, jobs)


def _process(values: Any) -> PlannedProcess:
    return PlannedProcess(
        str(values["process"]),
        int(values["pid"]),
        str(values["version"]),
        str(values["target_version"]),
        str(values["effect"]),
        leads=tuple(map(str, values["leads"])),
    )


def order_hosts(plans: Sequence[HostPlan], *, masters_only: bool = False) -> list[HostPlan]:
    """Return the plans in the order in which the hosts are upgraded.

    Standby masters come first, and the leading Dispatcher last. Then come TaskExecutors, those with fewest jobs first.
    Hosts that do not answer keep their place in the files, at the end of their role.

    Args:
        plans: of all hosts, in the order of the files.
        masters_only: whether the TaskExecutors stay.
    """
    wanted = [plan for plan in plans if plan.is_master or not masters_only]
    return sorted(
        wanted,
        key=lambda plan: (
            not plan.is_master,
            bool(plan.problem),
            DISPATCHER in plan.leads,
            bool(plan.leads),
            plan.jobs,
        ),
    )


def check_hosts(plans: Sequence[HostPlan], *, is_accepted: bool) -> None:
    """Check that users notice nothing of the exchange of masters, or that the operator accepts it.

    Raises:
        UpgradeRefusedError: no host answers, or the only master would be exchanged.
    """
    masters = [plan for plan in plans if plan.is_master and not plan.problem]
    if not masters:
        problem = next((plan.problem for plan in plans if plan.is_master), "`masters` names none")
        raise UpgradeRefusedError(f"no master answers: {problem}", "start one, or correct `masters`")
    if len(masters) == 1 and masters[0].steps and not is_accepted:
        raise UpgradeRefusedError(
            f"the master of {masters[0].target.host} is the only one that answers: while it is exchanged the cluster "
            "answers no request; tasks keep running",
            "start a standby on another host, or accept this with --yes",
        )


@dataclass(frozen=True, slots=True)
class HostResult:
    """Result of the upgrade of one host's part.

    Args:
        plan: the plan before.
        ok: whether it runs the other release.
        detail: the outcome, or why it failed.
    """

    plan: HostPlan
    ok: bool
    detail: str


def carry_out(plans: Sequence[HostPlan], exchange: Callable[[HostPlan], str], say: Say) -> Iterator[HostResult]:
    """Exchange the parts of hosts one after the other, and yield each result.

    After a failure no further host is tried. Unless all masters run the other release, no TaskExecutor is exchanged.
    TaskExecutors of a host that does not answer are left out.

    Args:
        plans: in their order.
        exchange: exchanges the part of a host; returns why it failed, or nothing.
        say: called with each host.
    """
    stopped = ""
    for plan in plans:
        if plan.problem:
            yield HostResult(plan, ok=False, detail=plan.problem)
            if plan.is_master:
                stopped = stopped or f"not tried: the master of {plan.target.host} is not exchanged"
        elif not plan.steps:
            yield HostResult(plan, ok=True, detail="runs it already")
        elif stopped:
            yield HostResult(plan, ok=False, detail=stopped)
        else:
            say(f"{plan.target.host}: exchanging the {plan.target.role.value}")
            problem = exchange(plan)
            yield HostResult(plan, ok=not problem, detail=problem or "exchanged")
            if problem:
                stopped = NOT_TRIED


class RemoteHosts:
    """The hosts that ``masters`` and ``workers`` name, as `cluster upgrade --hosts` reaches them.

    The Python of this process and the environment of ``--to`` have to be at the same paths there.

    Args:
        configuration: of the command.
        config_file: ``--config`` of the command; None: found by the environment.
        overrides: ``-D`` of the command.
        options: other options of the command, for each host.

    Raises:
        HostFileError: the files cannot be used.
        ClusterError: a secret is among the overrides.
    """

    def __init__(
        self, configuration: Configuration, config_file: Path | None, overrides: Sequence[str], options: Sequence[str]
    ) -> None:
        refuse_secrets(overrides)
        self._configuration = configuration
        self._config_file, groups = roles_of_hosts(config_file)
        self._overrides = overrides
        self._options = options
        self.targets = [target for group in groups for target in group]

    def command(self, target: HostRole, *options: str) -> list[str]:
        """Return the command line that upgrades a host's part."""
        words = [sys.executable, "-m", "runtime.cluster", "cluster", "upgrade", "--role", target.role.value, "--json"]
        words += ["--config", str(self._config_file)]
        words += [word for each in self._overrides for word in ("-D", each)]
        words += [*target.settings, *self._options, *options]
        directory = self._configuration.get(EnvironmentOptions.SSH_DIRECTORY)
        text = f"{f'cd {shlex.quote(str(directory))} && ' if directory else ''}exec {shlex.join(words)}"
        *ssh, end, host, command = ssh_command(self._configuration, target.host, text)
        return [*ssh, *ALIVE, end, host, command]

    def plans(self) -> list[HostPlan]:
        """Return the plans of all hosts, in the order of the files."""
        with ThreadPoolExecutor(self._configuration.get(EnvironmentOptions.SSH_PARALLEL)) as threads:
            return list(threads.map(self._plan, self.targets))

    def _plan(self, target: HostRole) -> HostPlan:
        try:
            done = subprocess.run(
                self.command(target, "--dry-run"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
            )
            if done.returncode != 0:
                return HostPlan(target, _problem(done.stderr, done.returncode))
            return HostPlan.decode(target, json.loads(done.stdout))
        except FileNotFoundError:
            return HostPlan(target, "there is no ssh on this machine: install openssh-client")
        except subprocess.TimeoutExpired:
            return HostPlan(target, f"no answer within {ANSWER_S:g} s")
        except (ValueError, KeyError, TypeError) as error:
            return HostPlan(target, f"its answer cannot be read: {error!r}")

    def exchange(self, plan: HostPlan, say: Say) -> str:
        """Exchange the part of a host, and return why it failed; empty if it did not."""
        told: list[str] = []
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(
                self.command(plan.target),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stderr is not None
            for line in process.stderr:
                told.append(line)
                if not line.startswith(("error: ", "remedy: ")):
                    say(f"{plan.target.host}: {line.rstrip()}")
        return "" if process.returncode == 0 else _problem("".join(told), process.returncode)


def _problem(stderr: str, status: int) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit status {status}"])[-1]
