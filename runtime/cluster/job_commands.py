"""The commands of ``understudy job``; those on checkpoints are in `checkpoint_commands`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from conf.options import (
    JOB_OPTIONS,
    CheckpointingOptions,
    ClientOptions,
    ExecutionTarget,
    JobOptions,
    SparkDriverChoice,
)
from runtime.cluster.command_line import (
    EXAMPLE_ID,
    JOB_FILE_SETTINGS,
    ExitStatus,
    await_or_cancel,
    configured,
    connected,
    environment_option,
    examples,
    files_option,
    interrupt_kept,
    is_this_machine,
    job_argument,
    job_id_of,
    json_option,
    masters_option,
    pass_job_file,
    py_files_option,
    readable_errors,
    status_of_end,
    waiting,
)
from runtime.cluster.output import clean, clean_lines, format_moment, print_json, print_line, print_result, say
from runtime.errors import ClusterError
from runtime.ids import JobID

if TYPE_CHECKING:
    from runtime.client import ClusterClient
    from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, SavepointRestoreSettings
    from runtime.jobgraph.working_directory import WorkingDirectory
    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph


@click.group()
def job() -> None:
    """Explain, run, list, show and cancel jobs."""


@job.command(
    name="run",
    context_settings=JOB_FILE_SETTINGS,
    epilog=examples(
        "understudy job run examples/flight_delays.py --out /tmp/delays",
        "understudy job run --py-files helpers.py --requirements requirements.txt job.py",
        "understudy job run --detach -D restart-strategy.type=fixed-delay job.py",
        "understudy job run --target per-job --masters 2 job.py",
        "understudy job run --target application examples/application.py 20000",
    ),
)
@configured
@click.option("--name", help="Name of the job.  [default: the pipeline's own, or the file's]")
@click.option("--job-id", help="32 hexadecimal digits; a job that is submitted twice with one id runs once.")
@py_files_option
@files_option("--package", "packages", "Wheel or source distribution to install for the job; repeatable.")
@files_option("--requirements", "requirements", "Requirements file to install for the job; repeatable.")
@files_option(
    "--py-archive", "archives", "Packed virtual environment, or archive of modules, to unpack for the job; repeatable."
)
@files_option("--jar", "jars", "Jar for the session of a pipeline; repeatable.")
@environment_option
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run the job in a copy of this directory, without what its .gitignore names.  [default: the job runs in the "
    "current directory where its TaskExecutor sees that, and else in a copy of it]",
)
@click.option(
    "--priority",
    type=click.IntRange(-1000, 1000),
    default=0,
    help="Jobs of a higher priority get slots first; 0 unless given.",
)
@click.option(
    "--own-driver",
    is_flag=True,
    help="Run a script on a Spark driver of its own, apart from other jobs; as -D task.spark-driver=own.",
)
@click.option(
    "--from",
    "savepoint",
    help="Start from this savepoint or retained checkpoint (a directory, or JOB_ID/chk-N): each streaming query takes "
    "the state that was saved under its name.",
)
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="With --from: a query for whose name no state was saved starts without state.",
)
@click.option(
    "--new-query-id/--same-query-id",
    default=None,
    help="With --from: whether the queries get new ids.  [default: those that start in another place while the job "
    "whose state they take runs]",
)
@click.option(
    "--target",
    type=click.Choice([target.value for target in ExecutionTarget]),
    help="session: in the running cluster; per-job: in a cluster for this job, which ends with it; application: FILE's "
    "main() runs in a cluster of its own, with all jobs that it submits.  [default: execution.target]",
)
@masters_option("With another target than session: how many masters its cluster has.")
@click.option("--detach", is_flag=True, help="Return when the job is accepted; its id goes to standard output.")
@json_option
@pass_job_file
def job_run(
    configuration: Configuration,
    file: Path,
    args: tuple[str, ...],
    name: str | None,
    job_id: str | None,
    priority: int,
    own_driver: bool,
    py_files: tuple[Path, ...],
    environment: dict[str, str],
    working_dir: Path | None,
    savepoint: str | None,
    allow_non_restored_state: bool,
    new_query_id: bool | None,
    target: str | None,
    masters: int,
    detach: bool,
    as_json: bool,
    **files: tuple[str, ...],
) -> None:
    """Run a PySpark script or pipeline FILE on a cluster, with ARGS as its arguments.

    Everything after FILE belongs to the job, options too: `job run --detach job.py --out /tmp/x` detaches and gives
    the job `--out /tmp/x`; `job run job.py --detach` gives the job `--detach`.

    Progress goes to standard error, what the job prints to standard output. Ctrl-C cancels the job; a second Ctrl-C
    returns and leaves the job to the cluster. The job itself gets restart-strategy.*, task.spark-driver and
    execution.checkpointing.* of what -D sets.
    """
    import tempfile
    from dataclasses import replace

    from runtime.cluster.deployment import job_cluster, run_application, target_of
    from runtime.cluster.discovery import connect
    from runtime.job_file import pack_py_files, read_job_file
    from runtime.jobgraph.job_graph import ArtifactRole

    roles = {
        "packages": ArtifactRole.PACKAGE,
        "requirements": ArtifactRole.REQUIREMENTS,
        "archives": ArtifactRole.ARCHIVE,
        "jars": ArtifactRole.JAR,
    }
    libraries = [(Path(path), role) for option, role in roles.items() for path in files[option]]
    max_bytes = configuration.get(ClientOptions.WORKING_DIR_MAX_SIZE)
    with readable_errors(), contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-job-")))
        packed = pack_py_files(py_files, scratch, max_bytes)
        libraries = [*((path, ArtifactRole.PY_FILE) for path in packed), *libraries]
        wanted = target_of(configuration, target, masters)
        own_id = None if job_id is None else job_id_of(job_id)
        if wanted is ExecutionTarget.APPLICATION:
            if savepoint is not None or priority or own_driver or working_dir is not None:
                raise ClusterError(
                    "--from, --priority, --own-driver and --working-dir are a job's",
                    "give them where main() submits the job",
                )
            sys.exit(
                run_application(
                    configuration, file, args, name, own_id, libraries, environment, masters, detach, as_json
                )
            )
        # A cluster of the job's own takes seconds to start: errors of the job are found before.
        client = stack.enter_context(connect(configuration)) if wanted is ExecutionTarget.SESSION else None
        graph = replace(
            read_job_file(file, args, name, own_id),
            priority=priority,
            savepoint=_restore_settings(configuration, savepoint, allow_non_restored_state, new_query_id),
            configuration=_job_configuration(configuration, own_driver),
            environment=environment,
        )
        place, shipped = _working_directory(client, file, working_dir, scratch, max_bytes)
        graph, libraries = replace(graph, working_directory=place), [*libraries, *shipped]
        client = client or stack.enter_context(job_cluster(configuration, graph.job_id, masters, say))
        if not detach and not as_json:
            sys.exit(run_attached(client, graph, file, libraries))
        with interrupt_kept() as release:
            submitted = _submit(client, graph, file, libraries)
            if detach:
                print_result({"job_id": submitted}, submitted, as_json)
                return
            ended, interrupted = _await_or_cancel(client, submitted, lambda _: None, release)
        print_json(ended)
        sys.exit(status_of_end(ended.status.value, interrupted))


def _job_configuration(configuration: Configuration, own_driver: bool) -> dict[str, str]:
    """Return the options that were given with ``-D`` and are a job's to set; the rest is this command's."""
    keys = {option.key for option in JOB_OPTIONS}
    own = {key: text for key, text in configuration.given_by("-D").items() if key in keys}
    return {**own, JobOptions.SPARK_DRIVER.key: SparkDriverChoice.OWN.value} if own_driver else own


def _working_directory(
    client: ClusterClient | None, file: Path, given: Path | None, scratch: Path, max_bytes: int
) -> tuple[WorkingDirectory, list[tuple[Path, ArtifactRole]]]:
    """Return where a job runs, and what is shipped for that.

    Args:
        client: of the session cluster; None where the job gets a cluster on this machine.
        file: the job's file.
        given: the directory to ship; None: the current one, if TaskExecutors are elsewhere.
        scratch: where it is packed.
        max_bytes: how much its files may have together.
    """
    from runtime.job_file import JobFileError, ship_directory
    from runtime.jobgraph.working_directory import WorkingDirectory

    if given is not None:
        place, shipped = ship_directory(given, file, scratch, max_bytes)
        return place, [shipped]
    place = WorkingDirectory.of_caller(file)
    if client is None or place.caller is None or all(map(is_this_machine, client.worker_hosts())):
        return place, []
    try:
        place, shipped = ship_directory(Path(), file, scratch, max_bytes, place)
    except (JobFileError, OSError) as error:  # the job may well do without
        say(f"warning: the current directory does not come along to other machines: {error}")
        return place, []
    return place, [shipped]


def _restore_settings(
    configuration: Configuration, savepoint: str | None, allow_non_restored_state: bool, new_query_id: bool | None
) -> SavepointRestoreSettings | None:
    """Return what a job begins from. Raises `CheckpointError` where that is neither a savepoint nor a checkpoint."""
    if savepoint is None:
        return None
    from runtime.checkpoint.retained import find_state, read_state
    from runtime.jobgraph.job_graph import SavepointRestoreSettings

    path = find_state(savepoint, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR))
    read_state(path)  # before anything is submitted
    return SavepointRestoreSettings(str(path), allow_non_restored_state, new_query_id)


def run_attached(
    client: ClusterClient, graph: JobGraph, file: Path, libraries: Sequence[tuple[Path, ArtifactRole]] = ()
) -> ExitStatus:
    """Submit a job, show its progress until it ends, and print what it wrote to standard output."""
    from runtime.cluster.views import job_progress, print_failed_job, view_of_job

    with interrupt_kept() as release:
        submitted = _submit(client, graph, file, libraries)
        say(f"job {submitted} was submitted")
        with job_progress() as progress:
            ended, interrupted = _await_or_cancel(
                client, submitted, lambda job: progress.update(view_of_job(job)), release
            )
    for log, content in client.logs(submitted):
        if log.name == "stdout" and log.attempt == max(
            task.attempts[-1].number for task in ended.tasks if task.name == log.task
        ):
            sys.stdout.write(content.decode(errors="replace"))
    sys.stdout.flush()
    status = status_of_end(ended.status.value, interrupted)
    if status is ExitStatus.FAILED:
        print_failed_job(view_of_job(ended))
    return status


def _submit(
    client: ClusterClient, graph: JobGraph, file: Path, libraries: Sequence[tuple[Path, ArtifactRole]]
) -> JobID:
    shown_by = f"`understudy job info {graph.job_id}` shows whether it was"
    with waiting("", f"job {graph.job_id} may have been submitted; {shown_by}"):
        return client.submit(graph, file, libraries=libraries)


def _await_or_cancel(
    client: ClusterClient,
    job_id: JobID,
    show: Callable[[ArchivedExecutionGraph], object],
    release: Callable[[], None],
) -> tuple[ArchivedExecutionGraph, bool]:
    """Wait for a job's end; *release* raises a Ctrl-C that was kept while the job was submitted."""
    from runtime.protocol.errors import JobAlreadyTerminatedError

    def cancel() -> None:
        with contextlib.suppress(JobAlreadyTerminatedError):  # it ended at the same moment
            client.cancel(job_id)

    def wait() -> ArchivedExecutionGraph:
        release()
        return _await_end(client, job_id, show)

    return await_or_cancel(f"job {job_id}", wait, cancel)


def _await_end(
    client: ClusterClient, job_id: JobID, show: Callable[[ArchivedExecutionGraph], object]
) -> ArchivedExecutionGraph:
    for job in client.watch(job_id):
        show(job)
    return job


@job.command(
    name="explain",
    context_settings=JOB_FILE_SETTINGS,
    epilog=examples("understudy job explain --format svg examples/flight_delays.py --out /tmp/delays"),
)
@configured
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "dot", "svg"]),
    default="text",
    show_default=True,
    help="As text, in graphviz's language, or as a picture.",
)
@json_option
@pass_job_file
def job_explain(configuration: Configuration, file: Path, args: tuple[str, ...], form: str, as_json: bool) -> None:
    """Show the tasks, vertices and edges of a pipeline FILE with ARGS, without running it.

    Everything after FILE belongs to the job. No cluster is needed, nor any of its options.
    """
    from runtime.job_file import read_job_file
    from runtime.jobgraph.explain import explain_dot, explain_plan, explain_text
    from runtime.jobgraph.svg import explain_svg

    with readable_errors():
        with contextlib.redirect_stdout(sys.stderr):  # output of the file is not part of the picture
            graph = read_job_file(file, args)
        if as_json:
            print_json(explain_plan(graph))
        else:
            draw = {"text": explain_text, "dot": explain_dot, "svg": explain_svg}[form]
            print_line(draw(graph).rstrip("\n"))


@job.command(name="list", epilog=examples("understudy job list", "understudy job list --json"))
@configured
@json_option
def job_list(configuration: Configuration, as_json: bool) -> None:
    """List running and finished jobs, the newest first."""
    from runtime.cluster.views import print_jobs, view_of_details

    with connected(configuration) as client:
        jobs = client.list_jobs()
    if as_json:
        print_json(jobs)
    else:
        print_jobs([view_of_details(job) for job in jobs])


@job.command(name="info", epilog=examples(f"understudy job info {EXAMPLE_ID}"))
@configured
@json_option
@job_argument()
def job_info(configuration: Configuration, job_id: JobID, as_json: bool) -> None:
    """Show a job: its vertices, attempts, and why it failed."""
    from runtime.cluster.views import print_checkpoints, print_job, view_of_job

    with connected(configuration) as client:
        job = client.job(job_id)
    if as_json:
        print_json(job)
    else:
        print_job(view_of_job(job))
        print_checkpoints(job.checkpoints)


@job.command(name="cancel", epilog=examples(f"understudy job cancel --no-wait {EXAMPLE_ID}"))
@configured
@click.option("--wait/--no-wait", default=True, help="Return when no process of the job runs any more.")
@json_option
@job_argument()
def job_cancel(configuration: Configuration, job_id: JobID, wait: bool, as_json: bool) -> None:
    """Cancel a job."""
    left = f"job {job_id} goes on being cancelled; `python -m runtime.cluster job info {job_id}` shows its state"
    state: str | None = None
    with connected(configuration) as client, waiting(f"cancelling job {job_id}", left):
        client.cancel(job_id)
        if wait:
            state = _await_end(client, job_id, lambda _: None).status.value
    text = f"job {job_id} is {state or 'to be cancelled'}"
    print_result({"job_id": job_id, "state": state or "CANCELLING"}, text, as_json)


@job.command(name="logs", epilog=examples(f"understudy job logs -f {EXAMPLE_ID}"))
@configured
@json_option
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the logs while the job runs; the exit status is that of the job."
)
@click.option(
    "--task-executors",
    is_flag=True,
    help="Show the logs of its TaskExecutors and their Spark drivers instead.",
)
@job_argument()
def job_logs(configuration: Configuration, job_id: JobID, follow: bool, task_executors: bool, as_json: bool) -> None:
    """Print what a job's tasks wrote: their standard output, and their standard error to standard error."""
    from runtime.cluster.logs import follow_logs, show_logs, show_task_executor_logs

    if follow and task_executors:
        raise ClusterError("the logs of TaskExecutors cannot be followed", "leave out -f, or --task-executors")
    with connected(configuration) as client:
        if follow:
            sys.exit(follow_logs(client, job_id, as_json))
        show = show_task_executor_logs if task_executors else show_logs
        show(client, job_id, as_json)


@job.command(name="exceptions", epilog=examples("understudy job exceptions", "understudy job exceptions --json"))
@configured
@json_option
@job_argument(required=False)
def job_exceptions(configuration: Configuration, job_id: JobID | None, as_json: bool) -> None:
    """Print why a job failed: your own traceback of each failure, the last first.

    Without JOB_ID, show the job that failed last.
    """
    with connected(configuration) as client:
        if job_id is None:
            failed = [job for job in client.list_jobs() if job.status.value == "FAILED"]
            if not failed:
                raise ClusterError("no job has failed", "`python -m runtime.cluster job list` shows the jobs")
            job_id = max(failed, key=lambda job: job.end_ms or 0).job_id
        job = client.job(job_id)
    failures = list(reversed(job.failure_history))
    if job.failure is not None and job.failure not in failures:
        failures.insert(0, job.failure)
    if as_json:
        print_json({"job_id": job.job_id, "name": job.name, "state": job.status, "failures": failures})
        return
    say(f"job {job.job_id} ({clean(job.name)}) is {job.status.value}")
    if not failures:
        say("nothing of it has failed")
    for failure in failures:
        where = f", task {clean(failure.task)}" if failure.task else ""
        say(f"--- {format_moment(failure.timestamp_ms)}, {failure.kind.value}{where}")
        print_line(clean_lines(failure.traceback).rstrip("\n") if failure.traceback else clean(str(failure)))
