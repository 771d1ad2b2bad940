"""Upgrading a running session cluster on this host: `runtime.cluster.upgrade_plan` carried out.

Each master is ended by SIGTERM, by which it releases its latches, and started again by the `start-master` of the other
installation. So a release is never started by the code of another one.

The claim ``upgrade`` in the runtime directory excludes a second upgrade. It names the master that is exchanged at
present. An upgrade may be interrupted between the end of the old master and the start of the new one. Then the next
upgrade finds the name there, and starts the master.

A TaskExecutor gets no new tasks first: the command repeats `ResourceManagerGateway.drain_task_manager`. If the command
is interrupted, jobs get slots of that TaskExecutor again after `DRAIN_LIFETIME_S`. If it can hand its tasks over, it
does so, and its worker process becomes that of the other release (`HandingOver`). Otherwise its tasks finish or move,
and its worker process ends. Its master starts another one, or the ResourceManager requests one when a job needs it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path

from actors.address import ActorAddress
from actors.errors import ActorError, UnknownActor
from conf.configuration import Configuration
from conf.options import ClusterOptions, DeploymentOptions, ExecutionTarget, ResourceManagerOptions
from conf.values import Duration
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect_locally
from runtime.cluster.host_processes import ClusterStartError, await_condition, fixed_workers, is_member
from runtime.cluster.upgrade_environment import (
    PROBE_S,
    Environment,
    FormerEnvironment,
    Wheel,
    WheelEnvironment,
    remove_unused,
)
from runtime.cluster.upgrade_plan import (
    DEFAULT_CHOICES,
    ClusterState,
    DrainedTaskExecutor,
    DrainStep,
    PlannedProcess,
    RunningJob,
    RunningMaster,
    RunningTaskExecutor,
    Target,
    UpgradeChoices,
    UpgradePlan,
    UpgradeRefusedError,
    check_interruption,
    check_upgrade,
    hand_over_obstacles,
    lasting,
    missing_workers,
    next_drain_step,
    plan_upgrade,
    why_drained,
)
from runtime.environment.claims import Claim
from runtime.environment.context import has_redis
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, ClusterNotRunning
from runtime.ids import JobID, ResourceID, TriggerID
from runtime.process_signals import signal_process
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import (
    GatewayError,
    HandOverRefusedError,
    JobNotReachableError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.hand_over import VERSION, HandOverReport, Obstacle, python_version
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER
from runtime.protocol.master import MASTER, MasterGateway
from runtime.protocol.messages import TaskExecutorRegistration, TaskManagerInfo
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.taskexecutor.worker_files import Successor

Say = Callable[[str], None]

CLAIM = "upgrade"
DRAIN_LIFETIME_S = 10.0
"""Seconds after which jobs get slots of a drained TaskExecutor again if this command does not repeat its call."""
POLL_S = 0.25
HAND_OVER_PATIENCE_S = 60.0
"""Seconds for which a hand-over waits for what passes by itself, such as a checkpoint; then tasks are drained."""
LEAVING_S = 15.0
"""Seconds that a TaskExecutor may take to end after it has accepted the order to leave its tasks.

More than its own `LEAVING_PATIENCE_S`, after which it keeps them.
"""


def preview(
    configuration: Configuration, to: Path | None, say: Say, choices: UpgradeChoices = DEFAULT_CHOICES
) -> tuple[Target, UpgradePlan]:
    """Return what `upgrade` would do now, and with which release; change nothing.

    Args:
        configuration: of the command.
        to: virtual environment or wheel with the other release; None: the environment of this process.
        say: called with what would be installed.
        choices: of the operator.

    Raises:
        UpgradeRefusedError: the cluster cannot be upgraded so.
        ClusterNotRunning: no master of a cluster runs on this host.
    """
    directory = _directory_of(configuration)
    warning = remedy = ""
    if to is not None and _is_wheel(to):
        made = WheelEnvironment.of(Wheel.read(to), directory)
        contents = made.contents()
        target = made.target(contents)
        if made.is_complete(contents):
            say(f"{made.path} has that wheel already")
        else:
            say(f"would make {made.path} with pip install {shlex.join(contents.requirements)}")
            warning, remedy = contents.warning()
    else:
        _, target = choose_target(directory, to, choices)
    with connect_locally(configuration) as client:
        state = observe(client, directory)
    check_upgrade(state, target)
    plan = plan_upgrade(state, target, choices)
    return target, replace(plan, warning=warning, remedy=remedy) if warning else plan


def upgrade(
    configuration: Configuration,
    to: Path | None,
    say: Say,
    *,
    is_accepted: bool = False,
    choices: UpgradeChoices = DEFAULT_CHOICES,
) -> tuple[Target, list[PlannedProcess], UpgradePlan]:
    """Exchange the masters and TaskExecutors that do not run the other release, one after the other.

    An interrupted upgrade is continued by the next one.

    Args:
        configuration: of the command.
        to: virtual environment with the other release, or a wheel of it, for which one is made; None: the environment
            of this process.
        say: called with each step.
        is_accepted: whether the operator accepts the warning of the plan.
        choices: of the operator.

    Returns:
        the release, the steps that were done, and a plan of what is left: its steps are empty.

    Raises:
        UpgradeRefusedError: the cluster cannot be upgraded so.
        ClusterError: a process does not end or start; those that are not exchanged yet keep running.
        ClusterNotRunning: no cluster was started on this host.
    """
    directory = _directory_of(configuration)
    done: list[PlannedProcess] = []
    with exclusive(directory.claim(CLAIM), directory) as claim:
        if to is not None and _is_wheel(to):
            to = install_wheel(configuration, directory, Wheel.read(to), say, choices, is_accepted=is_accepted)
        environment, target = choose_target(directory, to, choices)
        running = Configuration.read(directory.configuration_file)
        masters = Masters(directory, environment, claim, running)
        masters.await_started()
        if _ended_master(directory, claim) and not directory.heads():  # the only one: no other can be asked
            say(f"starting the master that an interrupted upgrade has ended, with {target.release}")
            masters.exchange("")
        with connect_locally(configuration) as client:
            state, has_all = observe(client, directory), choices.masters_only
            workers = Workers(client, directory, running, say, choices, environment, target)
            while True:
                check_upgrade(state, target)
                plan = plan_upgrade(state, target, choices)
                step = plan.steps[0] if plan.steps else None
                if not has_all and (step is None or not _is_master(step, state)):
                    state, has_all = workers.await_registered(state), True
                    continue
                if step is None:
                    break
                check_interruption(plan, is_accepted=is_accepted)
                say(progress(step, len(done) + 1, len(done) + len(plan.steps)))
                if _is_master(step, state):
                    if step.pid:
                        FormerEnvironment.keep(directory, step, state)
                    masters.exchange(step.process if step.pid else "")
                    before, state = state, settled(client, directory, state, masters.start_timeout_s)
                elif workers.exchange(step):
                    before, state = state, settled(client, directory, state, masters.start_timeout_s, step)
                else:
                    time.sleep(POLL_S)  # it registers again
                    state, has_all = observe(client, directory), False
                    continue
                check_exchanged(step, before, state, target, choices)
                done.append(step)
        if choices.rollback and not choices.masters_only:
            directory.upgraded_from.unlink(missing_ok=True)
        remove_unused(directory, say)
        claim.forget()
    return target, done, plan


def _is_wheel(to: Path) -> bool:
    return to.suffix == ".whl" or to.is_file()


def install_wheel(
    configuration: Configuration,
    directory: ClusterDirectory,
    wheel: Wheel,
    say: Say,
    choices: UpgradeChoices,
    *,
    is_accepted: bool,
) -> Path:
    """Return the virtual environment of a wheel, which is made unless it is complete.

    Raises:
        UpgradeRefusedError: the cluster cannot be upgraded to it, or the environment would lack packages.
        ClusterError: the environment cannot be made.
    """
    made = WheelEnvironment.of(wheel, directory)
    contents = made.contents()
    if made.is_complete(contents):
        return made.path
    warning, remedy = contents.warning()
    if warning and not is_accepted:
        raise UpgradeRefusedError(warning, remedy)
    try:
        target = made.target(contents)
    except UpgradeRefusedError as error:
        say(f"the plan is checked after the installation: {error}")
    else:
        if directory.masters():  # refuse before minutes are spent on the installation
            with connect_locally(configuration) as client:
                state = observe(client, directory)
            check_upgrade(state, target)
            check_interruption(plan_upgrade(state, target, choices), is_accepted=is_accepted)
    made.make(directory, contents, say)
    return made.path


def choose_target(
    directory: ClusterDirectory, venv: Path | None, choices: UpgradeChoices
) -> tuple[Environment, Target]:
    """Return the environment whose release is to run, and the release.

    Raises:
        UpgradeRefusedError: there is none.
    """
    if choices.rollback:
        return FormerEnvironment.required(directory)
    environment = Environment.of(venv)
    return environment, environment.target()


def _is_master(step: PlannedProcess, state: ClusterState) -> bool:
    return step.process not in {worker.name for worker in state.task_executors}


def progress(step: PlannedProcess, number: int, total: int) -> str:
    verb = "exchanging" if step.pid else "starting"
    was = f" (process {step.pid}, {step.version or 'unknown version'})" if step.pid else ""
    return f"{number} of {total}: {verb} {step.process}{was}; {step.effect}"


def check_exchanged(
    step: PlannedProcess, before: ClusterState, state: ClusterState, target: Target, choices: UpgradeChoices
) -> None:
    """Raise ClusterError unless fewer processes are left to be exchanged: otherwise the upgrade would not end."""
    left, was = (len(plan_upgrade(each, target, choices).steps) for each in (state, before))
    if left >= was:
        raise ClusterError(
            f"{step.process} was started again, and does not run {target.release}: {target.python} starts another one",
            "check the environment that --to names, then run the upgrade again",
        )


def _directory_of(configuration: Configuration) -> ClusterDirectory:
    """Return the runtime directory of a cluster that was started on this host. Raises ClusterNotRunning."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    if not directory.configuration_file.exists():
        raise ClusterNotRunning(
            f"no cluster was started in {directory.root}", "name another with -D cluster.id=NAME; run this on its host"
        )
    return directory


@contextlib.contextmanager
def exclusive(claim: Claim, directory: ClusterDirectory) -> Iterator[Claim]:
    """Hold the claim of an upgrade in the block. Raises ClusterError: another upgrade holds it."""
    if not claim.try_acquire():
        raise ClusterError(
            f"another upgrade of the cluster in {directory.root} runs", "wait for its end, or interrupt it with Ctrl-C"
        )
    try:
        yield claim
    finally:
        claim.release()


# ----------------------------------------------------------------------- observing


def observe(client: ClusterClient, directory: ClusterDirectory) -> ClusterState:
    """Return the present state of a cluster.

    Raises:
        ClusterError, ActorError: a master or a leader does not answer.
    """
    configuration = Configuration.read(directory.configuration_file)
    overview = client.overview()
    masters = tuple(_master(client, directory, number, address) for number, address in directory.masters().items())
    pids = {master.pid for master in masters}
    jobs = [job for job in client.list_jobs() if not job.status.is_globally_terminal]
    return ClusterState(
        feature_level=overview.feature_level,
        masters=masters,
        task_executors=tuple(_task_executors(client)),
        jobs=tuple(RunningJob(job.job_id, job.name, job.status.value, job.streams) for job in jobs),
        ended_master=_ended_master(directory, directory.claim(CLAIM)),
        is_session=configuration.get(DeploymentOptions.TARGET) is ExecutionTarget.SESSION,
        is_member=any(is_member(pid) for pid in pids),
        has_redis=has_redis(configuration),
        has_fixed_workers=_kept_workers(configuration) > 0,
    )


def _name(number: int) -> str:
    """Return the name of a master, as `status` shows it."""
    return f"master-{number}" if number else "master"


def _claim_of(directory: ClusterDirectory, name: str) -> Claim:
    return directory.claim(name if "-" in name else f"{name}-0")


def _master(client: ClusterClient, directory: ClusterDirectory, number: int, address: str) -> RunningMaster:
    system = ActorAddress.parse(address)
    gateway = client.lookup_address(system.with_path(MASTER), MasterGateway)
    name = _name(number)
    try:
        status = gateway.request_status().result()
    except ActorError as error:
        raise ClusterError(
            f"{name} at {system.host}:{system.port} does not answer: {error}",
            f"see {directory.log}; run the upgrade again once it answers or has ended",
        ) from error
    views = {view.role: view for view in status.processes if view.role == "master"}
    suffix = name.removeprefix("master")
    leads = tuple(
        view.name.removesuffix(suffix) if suffix else view.name
        for view in status.processes
        if view.leadership == "leader"
    )
    return RunningMaster(name, views["master"].pid, status.component.release, leads)


def _task_executors(client: ClusterClient) -> Iterator[RunningTaskExecutor]:
    for view in client.task_managers():
        registration = view.registration
        try:
            info = client.call(
                RESOURCE_MANAGER,
                ResourceManagerGateway,
                lambda manager: manager.request_task_manager_info(registration.resource_id).result(),  # noqa: B023  # called at once
            )
        except UnknownTaskExecutorError:
            continue  # it has left since, or another ResourceManager leads, with which it registers next
        yield RunningTaskExecutor(
            registration.resource_id,
            registration.pid,
            registration.component.release,
            registration.spark_version if registration.spark_master.startswith("local") else "",
            _jobs_of(info),
            registration.slots,
            _hand_over_report(client, registration.address),
        )


def _hand_over_report(client: ClusterClient, address: str) -> HandOverReport | None:
    """Return what a TaskExecutor can hand over; None if its release hands nothing over."""
    try:
        return client.gateway_at(address, TaskExecutorGateway).request_hand_over().result()
    except UnknownActor:
        return None
    except ActorError as error:
        obstacle = Obstacle(f"it does not answer: {error}", passes=True)
        return HandOverReport(VERSION, python_version(), (obstacle,))


def _kept_workers(configuration: Configuration) -> int:
    """Return the number of workers that always run on this host; 0 if unused ones are stopped."""
    stops_unused = configuration.get(ResourceManagerOptions.TASK_MANAGER_TIMEOUT)
    return 0 if stops_unused else fixed_workers(configuration)


def _jobs_of(info: TaskManagerInfo) -> tuple[JobID, ...]:
    """Return the jobs that have slots of a TaskExecutor, each once."""
    return tuple(dict.fromkeys(slot.job_id for slot in info.allocations if slot.job_id is not None))


def _ended_master(directory: ClusterDirectory, claim: Claim) -> str:
    """Return the name of the master that an upgrade has ended and not started again; empty for none."""
    found = claim.noted()
    if found is None or found[0].is_alive() or _claim_of(directory, found[0].role).living() is not None:
        return ""
    return found[0].role


def settled(
    client: ClusterClient,
    directory: ClusterDirectory,
    before: ClusterState,
    timeout_s: float,
    *exchanged: PlannedProcess,
) -> ClusterState:
    """Wait until a leader serves, all TaskExecutors are registered with it, and jobs that ran before run again.

    Args:
        client: of the cluster.
        directory: of the cluster.
        before: its state before the exchange.
        timeout_s: how long to wait.
        exchanged: the TaskExecutors that were exchanged.

    Raises:
        ClusterError: that takes longer than *timeout_s* seconds.
    """
    deadline = time.monotonic() + timeout_s
    ran = {job.job_id: job.name for job in before.jobs if job.state == JobStatus.RUNNING.value}
    while True:
        state = observe(client, directory)
        missing = missing_workers(before, state, *exchanged)
        missing += [f"job {job.name!r}" for job in state.jobs if job.job_id in ran and job.state != "RUNNING"]
        if not missing:
            return state
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the new process serves, but {missing[0]} did not continue within cluster.start-timeout",
                f"see {directory.log}; run the upgrade again, which continues with the other processes",
            )
        time.sleep(0.1)


# ---------------------------------------------------------------------- exchanging


class Masters:
    """Ends and starts the masters of a cluster's runtime directory.

    Args:
        directory: of the cluster.
        environment: in which masters are started.
        claim: of the upgrade, held; names the master that is exchanged.
        configuration: of the cluster.
    """

    def __init__(
        self, directory: ClusterDirectory, environment: Environment, claim: Claim, configuration: Configuration
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._claim = claim
        self.stop_timeout_s = configuration.get(ClusterOptions.STOP_TIMEOUT)
        self.start_timeout_s = configuration.get(ClusterOptions.START_TIMEOUT)

    def await_started(self) -> None:
        """Wait for masters that are just being started, e.g. by an interrupted upgrade.

        Raises:
            ClusterError: one does not serve in time.
        """
        heads = self._directory.heads
        if not await_condition(lambda: set(heads()) == set(heads(serving=True)), self.start_timeout_s):
            raise ClusterError(
                "a master that is being started does not serve within cluster.start-timeout",
                f"see {self._directory.log}/master*.log, and run the upgrade again once it serves or has ended",
            )

    def exchange(self, name: str) -> None:
        """End a master, and start one of the other release; Redis, workers and tasks keep running.

        Args:
            name: of the master; empty to start one only.

        Raises:
            ClusterError: it does not end, or the new one does not start.
        """
        # While another process holds the lock, a master that ends is not the last: it leaves workers and Redis running.
        with self._directory.join():
            if name:
                self._end(name)
            self._start()

    def _end(self, name: str) -> None:
        found = _claim_of(self._directory, name).living()
        if found is None:
            return
        record: ProcessRecord = found[0]
        self._claim.note(replace(record, role=name), found[1])
        signal_process(record.pid, signal.SIGTERM, record.is_alive)
        if not await_condition(lambda: not record.is_alive(), self.stop_timeout_s):
            raise ClusterError(
                f"{name} (process {record.pid}) has not ended within cluster.stop-timeout after SIGTERM",
                f"see {self._directory.log}/{name}.log; end it, and run the upgrade again, which starts it",
            )

    def _start(self) -> None:
        # The master takes its configuration from the runtime directory. The user's file may hold options that the
        # other release does not know.
        options = (
            f"{ClusterOptions.RUNTIME_DIR.key}={self._directory.root}",
            f"{ClusterOptions.START_TIMEOUT.key}={self.start_timeout_s:g}s",
        )
        words = ["-m", "runtime.cluster", "start-master", "--config", os.devnull]
        words += [part for option in options for part in ("-D", option)]
        try:
            done = self._environment.run(words, self.start_timeout_s + PROBE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failure(str(error)) from error
        if done.returncode != 0:
            told = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
            raise self._failure((told or [f"its start ended with status {done.returncode}"])[-1])

    def _failure(self, cause: str) -> ClusterStartError:
        return ClusterStartError(
            f"the new master does not start: {cause}",
            f"see {self._directory.log}/master*.log; then run the upgrade again, or return with `understudy cluster "
            "upgrade --rollback`",
        )


class Workers:
    """Exchanges the TaskExecutors of a cluster's runtime directory.

    Args:
        client: of the cluster.
        directory: of the cluster, or of one host's part.
        configuration: with which that runs.
        say: called with what it waits for.
        choices: of the operator.
        environment: of the other release.
        target: the other release.
    """

    def __init__(
        self,
        client: ClusterClient,
        directory: ClusterDirectory,
        configuration: Configuration,
        say: Say,
        choices: UpgradeChoices,
        environment: Environment,
        target: Target,
    ) -> None:
        self._environment = environment
        self._target = target
        self._client = client
        self._directory = directory
        self._configuration = configuration
        self._start_timeout_s = configuration.get(ClusterOptions.START_TIMEOUT)
        self._stop_timeout_s = configuration.get(ClusterOptions.STOP_TIMEOUT)
        self._say = say
        self._choices = choices
        self._missing_since: dict[str, float] = {}

    def await_registered(self, state: ClusterState) -> ClusterState:
        """Return the state of the cluster once all TaskExecutors that start with it are registered.

        Those of an earlier upgrade may just be starting.

        Raises:
            ClusterError: that takes longer than ``cluster.start-timeout``.
        """
        wanted = _kept_workers(self._configuration)
        deadline = time.monotonic() + self._start_timeout_s
        while len(state.task_executors) < wanted:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"only {len(state.task_executors)} of {wanted} TaskExecutors are registered",
                    f"see {self._directory.log}/taskmanager*.log, and run the upgrade again once all are registered",
                )
            time.sleep(POLL_S)
            state = observe(self._client, self._directory)
        return state

    def exchange(self, step: PlannedProcess) -> bool:
        """Let a TaskExecutor hand its tasks over, or drain it and end its process.

        Args:
            step: names the TaskExecutor.

        Returns:
            False if it has ended by itself before.

        Raises:
            ClusterError: its tasks or its process do not end, or it has no process on this host.
        """
        found = self._directory.claim(step.process).living()
        if found is None:  # it has just ended, and registers again
            since = self._missing_since.setdefault(step.process, time.monotonic())
            if time.monotonic() - since > self._start_timeout_s:
                raise ClusterError(
                    f"{step.process} is registered, and no process of it runs on this host",
                    "run the upgrade on its host, or leave the TaskExecutors with --masters-only",
                )
            return False
        record: ProcessRecord = found[0]
        if self._target.drains and (left := self._vacate(step)) is not DrainResult.IDLE:
            return left is DrainResult.HANDED_OVER
        signal_process(record.pid, signal.SIGTERM, record.is_alive)
        if not await_condition(lambda: not record.is_alive(), self._stop_timeout_s):
            raise ClusterError(
                f"{step.process} (process {record.pid}) has not ended within cluster.stop-timeout after SIGTERM",
                f"see {self._directory.log}/{step.process}-runner.log; end it, and run the upgrade again",
            )
        return True

    def _vacate(self, step: PlannedProcess) -> DrainResult:
        """Wait until no job uses a TaskExecutor, or it has handed its tasks over, or another process has its name."""
        patience_s = self._start_timeout_s
        handing_over = HandingOver(
            self._client, self._directory, self._environment, self._target, step, patience_s, self._say
        )
        drain = Drain(self._client, step, patience_s, self._choices, self._say, handing_over)
        while (result := drain.advance()) is None:
            time.sleep(POLL_S)
        return result


class DrainResult(Enum):
    """Outcome of a drain."""

    IDLE = "idle"
    """No job uses the TaskExecutor."""
    GONE = "gone"
    """Another process has its name."""
    HANDED_OVER = "handed over"
    """The TaskExecutor has ended, and its successor is starting."""


class HandingOver:
    """Lets a TaskExecutor hand its tasks over to its successor, in the same worker process.

    The file `Successor` tells the worker in which environment it continues. It is written before the TaskExecutor gets
    the order, so that a command that is interrupted changes nothing, or everything.

    Args:
        client: of the cluster.
        directory: of the cluster.
        environment: of the other release.
        target: the other release.
        step: names the TaskExecutor.
        patience_s: seconds for which the successor may start.
        say: called with what it waits for.
    """

    def __init__(
        self,
        client: ClusterClient,
        directory: ClusterDirectory,
        environment: Environment,
        target: Target,
        step: PlannedProcess,
        patience_s: float,
        say: Say,
    ) -> None:
        self._client = client
        self._worker = directory.taskmanager(int(step.process.rpartition("-")[2]))
        self._environment = environment
        self._target = target
        self._step = step
        self._patience_s = patience_s
        self._say = say
        self._begun: float | None = None
        self._told = ""

    def advance(self, registration: TaskExecutorRegistration) -> bool | None:
        """Do what is next.

        Returns:
            whether the TaskExecutor has left its tasks to its successor; None if it has to be drained.
        """
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        worker = RunningTaskExecutor(
            registration.resource_id,
            registration.pid,
            registration.component.release,
            report=_hand_over_report(self._client, registration.address),
        )
        obstacles = hand_over_obstacles(worker, self._target)
        if obstacles and (lasting(obstacles) or now - self._begun > HAND_OVER_PATIENCE_S):
            self._tell(f"{self._step.process} is drained: {why_drained(lasting(obstacles) or obstacles)}")
            return None
        if obstacles:
            return False
        return self._order(registration)

    def _order(self, registration: TaskExecutorRegistration) -> bool:
        try:
            leaving = ProcessRecord.of(self._step.process, registration.pid)
        except ProcessLookupError:
            return False
        Successor(registration.pid, str(self._environment.python), self._environment.path).write(self._worker)
        try:
            self._client.gateway_at(registration.address, TaskExecutorGateway).hand_over(self._patience_s).result()
        except HandOverRefusedError as error:
            Successor.file(self._worker).unlink(missing_ok=True)
            self._tell(str(error))
            return False
        except ActorError as error:  # it may have ended, or not have got the order
            self._tell(f"{self._step.process}: {error}")
        if await_condition(lambda: not leaving.is_alive(), LEAVING_S):
            return True
        Successor.file(self._worker).unlink(missing_ok=True)
        return False

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(text)


class Drain:
    """Keeps a TaskExecutor from getting tasks, and moves those that it has.

    Args:
        client: of the cluster.
        step: names the TaskExecutor.
        patience_s: seconds for which tasks that move may take to leave it.
        choices: of the operator.
        say: called with what it waits for.
        handing_over: lets it hand its tasks over instead, if it can; None: it never does.
    """

    def __init__(
        self,
        client: ClusterClient,
        step: PlannedProcess,
        patience_s: float,
        choices: UpgradeChoices,
        say: Say,
        handing_over: HandingOver | None = None,
    ) -> None:
        self._handing_over = handing_over
        self._client = client
        self._step = step
        self._patience_s = patience_s
        self._choices = choices
        self._say = say
        self._begun = time.monotonic()
        self._moved = 0.0
        self._told: frozenset[JobID] = frozenset()
        self._checkpoints = _Checkpoints(client, say)

    def advance(self) -> DrainResult | None:
        """Do what is next; return how the drain has ended, or None if it has not.

        To be repeated within `DRAIN_LIFETIME_S`, until the TaskExecutor has ended.

        Raises:
            ClusterError: tasks do not leave it.
        """
        name = self._step.process
        try:
            info = self._ask(moves_tasks=self._moved > 0)
        except UnknownTaskExecutorError:
            return DrainResult.GONE
        if info.registration.pid != self._step.pid:
            return DrainResult.GONE
        there = _jobs_of(info)
        if there and not self._moved and self._handing_over is not None:
            has_left = self._handing_over.advance(info.registration)
            if has_left is not None:
                return DrainResult.HANDED_OVER if has_left else None
        streaming = self._streaming() & frozenset(there) if there else frozenset()
        drained = DrainedTaskExecutor(
            info.slots.free == info.slots.registered,
            frozenset(there) - streaming,
            streaming,
            self._checkpoints.done,
        )
        now = time.monotonic()
        match next_drain_step(drained, now - self._begun, self._choices.drain_timeout_s):
            case DrainStep.END:
                return DrainResult.IDLE
            case DrainStep.WAIT if drained.batch - self._told:
                self._told |= drained.batch
                limit = Duration().render(self._choices.drain_timeout_s)
                self._say(f"{name}: tasks of {', '.join(sorted(drained.batch))} may finish for {limit}")
            case DrainStep.CHECKPOINT:
                self._checkpoints.advance(streaming)
            case DrainStep.MOVE:
                self._moved = self._moved or now
                if now - self._moved > self._patience_s:
                    raise ClusterError(
                        f"tasks of {', '.join(sorted(there))} did not leave {name} within cluster.start-timeout",
                        f"see {name}.log on its host; cancel the job or end its tasks, and run the upgrade again",
                    )
        return None

    def _ask(self, *, moves_tasks: bool) -> TaskManagerInfo:
        return self._client.call(
            RESOURCE_MANAGER,
            ResourceManagerGateway,
            lambda manager: manager.drain_task_manager(
                ResourceID(self._step.process), DRAIN_LIFETIME_S, moves_tasks
            ).result(),
        )

    def _streaming(self) -> frozenset[JobID]:
        return frozenset(job.job_id for job in self._client.list_jobs() if job.streams)


class _Checkpoints:
    """The checkpoints of jobs before their queries move.

    Attributes:
        done: jobs whose checkpoint is complete or has failed. Then Spark's own checkpointLocation has to do.
    """

    def __init__(self, client: ClusterClient, say: Say) -> None:
        self._client = client
        self._say = say
        self._triggers: dict[JobID, TriggerID] = {}
        self.done: frozenset[JobID] = frozenset()

    def advance(self, jobs: frozenset[JobID]) -> None:
        """Request the checkpoints, or look whether they are complete; idempotent."""
        for job_id in jobs - self.done:
            trigger = self._triggers.setdefault(job_id, TriggerID.random())
            try:
                status = self._client.call(
                    DISPATCHER,
                    DispatcherGateway,
                    lambda dispatcher: dispatcher.trigger_checkpoint(job_id, trigger).result(),  # noqa: B023  # called at once
                )
            except JobNotReachableError:
                continue  # its JobMaster is being replaced
            except GatewayError as error:
                problem = str(error)
            else:
                if status.state is OperationState.IN_PROGRESS:
                    continue
                problem = status.error
            if problem:
                self._say(f"job {job_id} moves without a new checkpoint: {problem}")
            self.done |= {job_id}
