"""The commands of ``understudy job``; `checkpoint_commands` and `job_version_commands` add theirs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conf.configuration import Configuration
from conf.options import (
    AutoscalingOptions,
    CheckpointingOptions,
    ClientOptions,
    ExecutionTarget,
    JobOptions,
    SparkDriverChoice,
    SparkOptions,
)
from conf.registry import SPARK_PREFIX, is_job_setting
from runtime.cluster.command_line import (
    EXAMPLE_ID,
    JOB_FILE_SETTINGS,
    ExitStatus,
    Interrupts,
    await_or_cancel,
    configured,
    connected,
    connected_to_job,
    environment_option,
    examples,
    files_option,
    is_this_machine,
    job_argument,
    job_id_of,
    json_option,
    kind_option,
    masters_option,
    pass_job_file,
    py_files_option,
    readable_errors,
    saved_state,
    waiting,
)
from runtime.cluster.job_listing import SORTS, JobFilter, moment_of
from runtime.cluster.output import (
    clean,
    clean_lines,
    format_moment,
    print_answer,
    print_document,
    print_line,
    say,
    say_anyway,
)
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.execution_state import JobStatus

if TYPE_CHECKING:
    from runtime.client import ClusterClient
    from runtime.cluster.rescaling import RescaledStart
    from runtime.cluster.views import AttemptInSpark
    from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind, SavepointRestoreSettings
    from runtime.jobgraph.working_directory import WorkingDirectory
    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph


LEAVE_S = 2.0
"""Longest time in seconds that a second Ctrl-C waits for the cluster's answer to the request to keep the job."""


@click.group()
def job() -> None:
    """Explain, run, list, show and cancel jobs.

    JOB_ID is the id of a job, its first digits, its name, or `latest` for the last job that was started.
    """


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
@kind_option
@click.option("--name", help="Name of the job.  [default: the pipeline's own, or the file's]")
@click.option("--job-id", help="32 hexadecimal digits; a job that is submitted twice with the same id runs once.")
@py_files_option
@files_option("--package", "packages", "Wheel or source distribution to install for the job; repeatable.")
@files_option("--requirements", "requirements", "Requirements file to install for the job; repeatable.")
@files_option(
    "--py-archive", "archives", "Packed virtual environment, or archive of modules, to unpack for the job; repeatable."
)
@files_option("--jar", "jars", "Jar for the job; repeatable. A script gets a Spark driver of its own.")
@click.option(
    "--package-coordinates",
    "--packages",
    "coordinates",
    multiple=True,
    metavar="GROUP:ARTIFACT:VERSION,...",
    help="Maven packages for the job's own Spark driver; repeatable. Same as -D spark.jars.packages=...",
)
@click.option(
    "--repositories",
    multiple=True,
    metavar="URL,...",
    help="Further Maven repositories for --packages; repeatable. Same as -D spark.jars.repositories=...",
)
@click.option(
    "--exclude-packages",
    "excludes",
    multiple=True,
    metavar="GROUP:ARTIFACT,...",
    help="Packages to leave out of what --packages depends on; repeatable. Same as -D spark.jars.excludes=...",
)
@click.option(
    "--table-format",
    metavar="FORMAT[:VERSION]",
    help="Set Spark up for Delta Lake or Iceberg: delta:VERSION or iceberg:VERSION; without :VERSION, for a jar that "
    "the job brings. Same as -D spark.table-format=...",
)
@environment_option
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run the job in a copy of this directory, without files that .gitignore names.  [default: the current "
    "directory, or a copy for TaskExecutors elsewhere]",
)
@click.option(
    "--priority",
    type=click.IntRange(-1000, 1000),
    default=0,
    help="Jobs of a higher priority get slots first; the default is 0.",
)
@click.option(
    "--autoscale",
    metavar="MIN..MAX",
    help="Let the cluster choose the number of partitions of its streaming queries' state between these two; same "
    "as -D autoscaling.partitions=MIN..MAX.",
)
@click.option("--queue", metavar="NAME", help="Queue of the job; same as -D job.queue=NAME.")
@click.option(
    "--task-memory",
    metavar="MB",
    type=click.IntRange(min=1),
    help="Memory that each task takes, for the limits of queues; same as -D job.task.memory='MB mb'.",
)
@click.option(
    "--task-cpus",
    metavar="N",
    help="Processors that each task takes, for the limits of queues, such as 1.5; same as -D job.task.cpus=N.",
)
@click.option(
    "--own-driver",
    is_flag=True,
    help="Run a script on its own Spark driver, apart from other jobs; same as -D task.spark-driver=own.",
)
@click.option(
    "--from",
    "savepoint",
    type=saved_state,
    help="Start from this savepoint or retained checkpoint (a directory, a URL, or JOB_ID/chk-N): each streaming query "
    "takes the state that was saved under its name.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --from: start from a copy of the savepoint whose state has N partitions. It is made beside the "
    "savepoint, as <savepoint>-N-partitions, unless it is there.",
)
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="With --from: a query without saved state under its name starts without state.",
)
@click.option(
    "--new-query-id/--same-query-id",
    default=None,
    help="With --from: whether the queries get new ids.  [default: only queries that start in another place while the "
    "job of the saved state runs]",
)
@click.option(
    "--target",
    type=click.Choice([target.value for target in ExecutionTarget]),
    help="session: in the running cluster; per-job: in a cluster that is started for this job, and stops after it; "
    "application: FILE's main() and all jobs that it submits run in one new cluster.  [default: execution.target]",
)
@masters_option("With another target than session: number of masters of its cluster.")
@click.option("--detach", is_flag=True, help="Return once the job is accepted, and print its id.")
@json_option
@pass_job_file
def job_run(
    configuration: Configuration,
    file: Path,
    args: tuple[str, ...],
    kind: JobKind | None,
    name: str | None,
    job_id: str | None,
    priority: int,
    autoscale: str | None,
    queue: str | None,
    task_memory: int | None,
    task_cpus: str | None,
    own_driver: bool,
    coordinates: tuple[str, ...],
    repositories: tuple[str, ...],
    excludes: tuple[str, ...],
    table_format: str | None,
    py_files: tuple[Path, ...],
    environment: dict[str, str],
    working_dir: Path | None,
    savepoint: str | None,
    partitions: int | None,
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

    The job's standard output and standard error appear on the same streams of this command while it runs. With --json
    both appear on standard error, and standard output gets one JSON value, the job. A terminal also shows its progress.
    The exit status is the script's. Ctrl-C, SIGTERM and SIGHUP cancel the job; a second Ctrl-C returns and leaves the
    job to the cluster.

    The following options of -D are passed to the job: restart-strategy.*, task.spark-driver, job.queue, job.task.*,
    execution.checkpointing.* and Spark's settings (spark.*).
    """
    import tempfile
    from dataclasses import replace

    from runtime.cluster.deployment import job_cluster, run_application, target_of
    from runtime.cluster.discovery import connect
    from runtime.cluster.documents import SubmittedJob
    from runtime.job_file import pack_py_files, read_job_file
    from runtime.jobgraph.job_graph import ArtifactRole

    roles = {
        "packages": ArtifactRole.PACKAGE,
        "requirements": ArtifactRole.REQUIREMENTS,
        "archives": ArtifactRole.ARCHIVE,
        "jars": ArtifactRole.JAR,
    }
    libraries = [(Path(path), role) for option, role in roles.items() for path in files[option]]
    if partitions is not None and savepoint is None:
        raise click.UsageError("--partitions needs --from: it changes the state of a savepoint")
    max_bytes = configuration.get(ClientOptions.WORKING_DIR_MAX_SIZE)
    with readable_errors(), contextlib.ExitStack() as stack:
        configuration = with_packages(configuration, coordinates, repositories, excludes, table_format)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-job-")))
        packed = pack_py_files(py_files, scratch, max_bytes)
        libraries = [*((path, ArtifactRole.PY_FILE) for path in packed), *libraries]
        wanted = target_of(configuration, target, masters)
        own_id = None if job_id is None else job_id_of(job_id)
        own = _checked(
            configuration,
            {
                AutoscalingOptions.PARTITIONS.key: ("--autoscale", autoscale),
                JobOptions.TASK_MEMORY.key: ("--task-memory", None if task_memory is None else f"{task_memory} mb"),
                JobOptions.TASK_CPUS.key: ("--task-cpus", task_cpus),
            },
        )
        if wanted is ExecutionTarget.APPLICATION:
            if savepoint is not None or priority or own_driver or queue is not None or own:
                raise ClusterError(
                    "--from, --priority, --queue, --autoscale, --task-memory, --task-cpus and --own-driver are options "
                    "of a job, not of an application",
                    "set them where main() submits the job",
                )
            sys.exit(
                run_application(
                    configuration,
                    file,
                    args,
                    name,
                    own_id,
                    libraries,
                    environment,
                    masters,
                    detach,
                    as_json,
                    kind,
                    working_dir,
                )
            )
        # A new cluster for the job takes seconds to start, so errors of the job are found before.
        client = stack.enter_context(connect(configuration)) if wanted is ExecutionTarget.SESSION else None
        rescaled = _rescaled_start(configuration, client, savepoint, partitions)
        graph = replace(
            read_job_file(file, args, name, own_id, kind=kind, tell=say),
            priority=priority,
            savepoint=_restore_settings(configuration, client, savepoint, allow_non_restored_state, new_query_id),
            configuration={**_job_configuration(configuration, wanted, own_driver, queue), **own},
            environment=environment,
        )
        place, shipped = _working_directory(client, file, working_dir, scratch, max_bytes)
        graph, libraries = replace(graph, working_directory=place), [*libraries, *shipped]
        if rescaled is not None and graph.savepoint is not None:  # takes long, so all that can be refused was
            graph = replace(graph, savepoint=replace(graph.savepoint, path=rescaled.make()))
        client = client or stack.enter_context(job_cluster(configuration, graph.job_id, masters, say))
        if detach:
            submitted = _submit(client, graph, file, libraries)
            print_answer(SubmittedJob(submitted, _show_page(client, submitted)), submitted, as_json)
            return
        heartbeat_s, timeout_s = heartbeat_of(configuration)
        graph = replace(graph, client_heartbeat_timeout_s=timeout_s)
        sys.exit(run_attached(client, graph, file, libraries, heartbeat_s, as_json=as_json))


def with_packages(
    configuration: Configuration,
    coordinates: Sequence[str],
    repositories: Sequence[str],
    excludes: Sequence[str],
    table_format: str | None,
) -> Configuration:
    """Return a configuration with the packages and the table format that a command names, as ``-D`` sets them.

    They are added to lists that ``-D`` sets itself.

    Raises:
        ConfigurationError: coordinates or a table format are malformed.
    """
    given = configuration.given_by("-D")
    lists = {
        SparkOptions.PACKAGES.key: coordinates,
        "spark.jars.repositories": repositories,
        "spark.jars.excludes": excludes,
    }
    values = {key: _joined([given.get(key, ""), *items]) for key, items in lists.items() if items}
    if table_format is not None:
        values[SparkOptions.TABLE_FORMAT.key] = table_format
    return configuration.overlaid(values, "-D") if values else configuration


def _joined(texts: Sequence[str]) -> str:
    """Return the items of several lists by commas, each once; an empty list is not an item."""
    return ",".join(dict.fromkeys(item.strip() for text in texts if text for item in text.split(",")))


def heartbeat_of(configuration: Configuration) -> tuple[float, float]:
    """Return the seconds between two heartbeats of an attached client, and those after which its job ends."""
    interval_s = configuration.get(ClientOptions.HEARTBEAT_INTERVAL)
    timeout_s = configuration.get(ClientOptions.HEARTBEAT_TIMEOUT)
    if timeout_s <= interval_s:
        raise ClusterError(
            f"client.heartbeat.timeout ({timeout_s:g} s) is not longer than client.heartbeat.interval "
            f"({interval_s:g} s)",
            "set a time-out of several intervals",
        )
    return interval_s, timeout_s


def _job_configuration(
    configuration: Configuration,
    target: ExecutionTarget,
    own_driver: bool,
    queue: str | None,
) -> dict[str, str]:
    """Return the options of ``-D`` that are settings of a job; the others are for this command.

    A cluster that is started for the job takes Spark's settings itself.
    """
    own = {key: text for key, text in configuration.given_by("-D").items() if is_job_setting(key)}
    if target is not ExecutionTarget.SESSION:
        own = {key: text for key, text in own.items() if not key.startswith(SPARK_PREFIX)}
    if own_driver:
        own[JobOptions.SPARK_DRIVER.key] = SparkDriverChoice.OWN.value
    if queue is not None:
        own[JobOptions.QUEUE.key] = queue
    return own


def _checked(configuration: Configuration, flags: Mapping[str, tuple[str, str | None]]) -> dict[str, str]:
    """Return the settings of a job that flags of the command give.

    Args:
        configuration: of the command.
        flags: name of the flag, and text given for it, by key of the setting.

    Raises:
        ConfigurationError: a text is not a value of its setting.
    """
    found = {key: text for key, (_, text) in flags.items() if text is not None}
    for key, text in found.items():
        configuration.overlaid({key: text}, flags[key][0])
    return found


def _working_directory(
    client: ClusterClient | None, file: Path, given: Path | None, scratch: Path, max_bytes: int
) -> tuple[WorkingDirectory, list[tuple[Path, ArtifactRole]]]:
    """Return where a job runs, and the directory to ship for it, if any.

    Args:
        client: of the session cluster; None if the job gets a cluster on this machine.
        file: the job's file.
        given: the directory to ship; None: the current one, if TaskExecutors are on other machines.
        scratch: directory in which it is packed.
        max_bytes: most bytes that its files may have together.
    """
    from runtime.job_file import JobFileError, ship_directory
    from runtime.jobgraph.working_directory import WorkingDirectory

    if given is not None:
        place, shipped = ship_directory(given, file, scratch, max_bytes)
        return place, [shipped]
    place = WorkingDirectory.of_caller(file)
    if (
        client is None
        or place.caller is None
        or (client.sees_files and all(map(is_this_machine, client.worker_hosts())))
    ):
        return place, []
    try:
        place, shipped = ship_directory(Path(), file, scratch, max_bytes, place)
    except (JobFileError, OSError) as error:  # the job may not need it
        remedy = getattr(error, "remedy", "")
        say(f"warning: the current directory is not copied to other machines: {error}" + f"; {remedy}" * bool(remedy))
        return place, []
    return place, [shipped]


def _restore_settings(
    configuration: Configuration,
    client: ClusterClient | None,
    savepoint: str | None,
    allow_non_restored_state: bool,
    new_query_id: bool | None,
) -> SavepointRestoreSettings | None:
    """Return the state that a job starts from.

    Raises:
        CheckpointError: it is neither a savepoint nor a checkpoint.
    """
    if savepoint is None:
        return None
    from runtime.checkpoint.remote_savepoint import check_state_at
    from runtime.jobgraph.job_graph import SavepointRestoreSettings

    if client is not None and not client.sees_files:  # the cluster checks it
        return SavepointRestoreSettings(savepoint, allow_non_restored_state, new_query_id)
    # Raises before anything is submitted.
    place = check_state_at(savepoint, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR))
    return SavepointRestoreSettings(place, allow_non_restored_state, new_query_id)


def _rescaled_start(
    configuration: Configuration, client: ClusterClient | None, savepoint: str | None, partitions: int | None
) -> RescaledStart | None:
    """Return the rescaled state that a job starts from, not made yet; None if it starts from another state, or none.

    Raises:
        CheckpointError: the savepoint cannot be rescaled.
        ClusterError: it cannot be seen from here.
    """
    if savepoint is None or partitions is None:
        return None
    from runtime.cluster.rescaling import RescaledStart

    if client is not None and not client.sees_files:
        raise ClusterError(
            "--partitions rescales the savepoint here, and this client does not see the cluster's files",
            "run `understudy savepoint rescale` on a machine that sees them, and start from its result with --from",
        )
    return RescaledStart(configuration, savepoint, partitions)


def run_attached(
    client: ClusterClient,
    graph: JobGraph,
    file: Path,
    libraries: Sequence[tuple[Path, ArtifactRole]] = (),
    heartbeat_s: float | None = None,
    *,
    as_json: bool = False,
) -> int:
    """Submit a job and show its output and progress until it ends; return the command's exit status.

    Args:
        client: of the cluster.
        graph: the job.
        file: the job file.
        libraries: other files that the job's code imports.
        heartbeat_s: seconds between two heartbeats that keep an attached job running; None if it needs none.
        as_json: print the ended job as JSON to standard output, and all else to standard error.
    """
    from runtime.cluster.documents import Job
    from runtime.cluster.logs import JobScreen, LogFollower, end_of_job
    from runtime.cluster.views import job_progress

    with Interrupts() as interrupts:
        submitted = _submit(client, graph, file, libraries)
        say_anyway(f"job {submitted} was submitted")
        _show_page(client, submitted)
        output = sys.stderr if as_json else sys.stdout
        with (
            job_progress(None, output, states=sys.stderr.isatty()) as progress,
            _heartbeats(client, submitted, heartbeat_s),
        ):
            kept = f"the job continues, and `understudy job logs {submitted}` prints its output"
            screen = JobScreen(progress, stdout=output, kept=kept)
            follower = LogFollower(client, screen.write, interrupts.held)

            def wait() -> ArchivedExecutionGraph:
                interrupts.release()
                return follower.follow(submitted, screen.update)

            with _telling_what_becomes_of(graph, submitted, heartbeat_s):
                ended, interrupt = _await_or_cancel(client, submitted, wait, heartbeat_s)
            screen.finish()
            screen.update(ended)
        if as_json:
            print_document(Job.of(ended))
        return end_of_job(ended, interrupt, follower) or (ExitStatus.FAILED if screen.has_lost else ExitStatus.DONE)


def _submit(
    client: ClusterClient, graph: JobGraph, file: Path, libraries: Sequence[tuple[Path, ArtifactRole]]
) -> JobID:
    shown_by = f"`understudy job info {graph.job_id}` shows whether it was submitted"
    with waiting("", f"job {graph.job_id} may have been submitted; {shown_by}"):
        return client.submit(graph, file, libraries=libraries)


def _show_page(client: ClusterClient, job_id: JobID) -> str:
    """Print the address of a job on the cluster's web page to standard error, if there is one, and return it."""
    if page := client.web_page(job_id):
        say_anyway(f"web page: {page}")
    return page


@contextlib.contextmanager
def _telling_what_becomes_of(graph: JobGraph, job_id: JobID, heartbeat_s: float | None) -> Iterator[None]:
    """Say what the cluster does with a job whose command ends with an error, as after its token has expired."""
    from actors.errors import ActorError
    from runtime.client import ClusterStoppedError

    try:
        yield
    except ClusterStoppedError:
        raise
    except ActorError:
        if heartbeat_s is not None and (timeout_s := graph.client_heartbeat_timeout_s) is not None:
            say_anyway(
                f"the cluster cancels job {job_id} {timeout_s:g} s after it has last heard of this command "
                "(client.heartbeat.timeout); --detach submits a job that continues without it"
            )
        else:
            say_anyway(f"job {job_id} continues without this command")
        raise


def _heartbeats(client: ClusterClient, job_id: JobID, interval_s: float | None) -> AbstractContextManager[object]:
    return contextlib.nullcontext() if interval_s is None else client.heartbeats(job_id, interval_s)


def _await_or_cancel(
    client: ClusterClient, job_id: JobID, wait: Callable[[], ArchivedExecutionGraph], heartbeat_s: float | None
) -> tuple[ArchivedExecutionGraph, KeyboardInterrupt | None]:
    """Wait for a job's end; an interrupt cancels it, and a second one leaves it to the cluster."""
    from actors.errors import ActorError
    from runtime.protocol.errors import GatewayError, JobAlreadyTerminatedError

    def cancel() -> None:
        with contextlib.suppress(JobAlreadyTerminatedError):  # it ended at the same moment
            client.cancel(job_id)

    def leave() -> None:
        if heartbeat_s is None:
            return
        try:
            client.detach(job_id, LEAVE_S)
        except (ActorError, GatewayError, KeyboardInterrupt):
            say("the cluster does not answer: without a client it cancels the job after client.heartbeat.timeout")

    return await_or_cancel(f"job {job_id}", wait, cancel, leave)


def _await_end(client: ClusterClient, job_id: JobID) -> ArchivedExecutionGraph:
    *_, job = client.watch(job_id)
    return job


@job.command(
    name="explain",
    context_settings=JOB_FILE_SETTINGS,
    epilog=examples("understudy job explain --format svg examples/flight_delays.py --out /tmp/delays"),
)
@configured
@kind_option
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
def job_explain(
    configuration: Configuration, file: Path, args: tuple[str, ...], kind: JobKind | None, form: str, as_json: bool
) -> None:
    """Show the tasks, vertices and edges of a pipeline FILE with ARGS, without running it.

    Everything after FILE belongs to the job. This command needs no cluster and none of its options.
    """
    from runtime.job_file import read_job_file
    from runtime.jobgraph.explain import explain_dot, explain_plan, explain_text
    from runtime.jobgraph.svg import explain_svg

    with readable_errors():
        with contextlib.redirect_stdout(sys.stderr):  # output of the file is not part of the graph
            graph = read_job_file(file, args, kind=kind, tell=say)
        if as_json:
            print_document(explain_plan(graph))
        else:
            draw = {"text": explain_text, "dot": explain_dot, "svg": explain_svg}[form]
            print_line(draw(graph).rstrip("\n"))


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    try:
        return 0 if value is None else moment_of(value, _now_ms())
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a time such as 2h nor a date such as 2026-03-01") from None


@job.command(
    name="list",
    epilog=examples(
        "understudy job list --state running --state restarting",
        "understudy job list --name 'etl-*' --since 1d --sort duration --limit 10",
        "understudy job list --submitter ada --json",
    ),
)
@configured
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([status.value for status in JobStatus], case_sensitive=False),
    help="Only jobs in this state; repeatable.",
)
@click.option("--name", metavar="GLOB", default="", help="Only jobs whose name matches, such as 'etl-*'.")
@click.option("--submitter", metavar="USER", default="", help="Only jobs that this user owns or has submitted.")
@click.option(
    "--since",
    "since_ms",
    metavar="WHEN",
    callback=_since,
    help="Only jobs that were started within a time (2h, 1d) or since a moment (2026-03-01T14:00).",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="started",
    show_default=True,
    help="Times and durations: the latest or longest first; names and states: in alphabetical order.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=click.IntRange(min=1), help="Show at most this many jobs, the first ones of the order.")
@json_option
def job_list(configuration: Configuration, as_json: bool, **chosen: Any) -> None:
    """List running and finished jobs, the newest first."""
    from runtime.cluster.views import print_jobs, view_of_details

    with connected(configuration) as client:
        jobs = JobFilter(**chosen).apply(client.list_jobs(), _now_ms())
    if as_json:
        from runtime.cluster.documents import JobLine

        print_document([JobLine.of(job) for job in jobs])
    else:
        print_jobs([view_of_details(job) for job in jobs])


@job.command(name="info", epilog=examples("understudy job info latest", f"understudy job info {EXAMPLE_ID}"))
@configured
@json_option
@job_argument()
def job_info(configuration: Configuration, reference: str, as_json: bool) -> None:
    """Show a job: its vertices, attempts, where Spark's own pages show them, and why it failed."""
    from runtime.cluster.views import print_checkpoints, print_job, print_spark, view_of_job

    with connected_to_job(configuration, reference) as (client, job_id):
        job = client.job(job_id)
        spark = [] if as_json else _spark_rows(configuration, job)
    if as_json:
        from runtime.cluster.documents import Job

        print_document(Job.of(job))
    else:
        print_job(view_of_job(job))
        print_spark(spark)
        print_checkpoints(job.checkpoints)


def _spark_rows(configuration: Configuration, job: ArchivedExecutionGraph) -> list[AttemptInSpark]:
    """Return where Spark's own pages show the work of a job, as this machine sees it."""
    from runtime.cluster.discovery import is_remote, running_configuration
    from runtime.cluster.views import AttemptInSpark
    from runtime.rest.spark_links import HistoryState, attempts_of, link_of, look

    if is_remote(configuration):  # the runtime directory here is not the cluster's
        state = HistoryState("", "understudy history-server", "", None)
    else:
        state = look(running_configuration(configuration))
    rows = []
    for task, attempt in attempts_of(job):
        link = link_of(attempt.spark, state)
        application = "" if attempt.spark is None else attempt.spark.application
        rows.append(AttemptInSpark(task.name, attempt.number, application, link.url, link.note))
    return rows


@job.command(name="cancel", epilog=examples(f"understudy job cancel --no-wait {EXAMPLE_ID}"))
@configured
@click.option("--wait/--no-wait", default=True, help="Return once no process of the job runs any more.")
@json_option
@job_argument()
def job_cancel(configuration: Configuration, reference: str, wait: bool, as_json: bool) -> None:
    """Cancel a job."""
    state: str | None = None
    with connected_to_job(configuration, reference) as (client, job_id):
        left = f"job {job_id} is still being cancelled; `understudy job info {job_id}` shows its state"
        with waiting(f"cancelling job {job_id}", left):
            client.cancel(job_id)
            if wait:
                state = _await_end(client, job_id).status.value
    text = f"job {job_id} is {state or 'to be cancelled'}"
    from runtime.cluster.documents import JobState

    print_answer(JobState(job_id, state or "CANCELLING"), text, as_json)


@job.command(name="logs", epilog=examples(f"understudy job logs -f {EXAMPLE_ID}"))
@configured
@json_option
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the logs while the job runs; the exit status is that of the job."
)
@click.option(
    "--task-executors",
    is_flag=True,
    help="Show the logs of its TaskExecutors and of their Spark drivers instead.",
)
@job_argument()
def job_logs(configuration: Configuration, reference: str, follow: bool, task_executors: bool, as_json: bool) -> None:
    """Print the output of a job's tasks: standard output and standard error, each to the same stream."""
    from runtime.cluster.logs import follow_logs, show_logs, show_task_executor_logs

    if follow and task_executors:
        raise ClusterError("the logs of TaskExecutors cannot be followed", "leave out -f, or --task-executors")
    with connected_to_job(configuration, reference) as (client, job_id):
        if follow:
            sys.exit(follow_logs(client, job_id, as_json))
        show = show_task_executor_logs if task_executors else show_logs
        show(client, job_id, as_json)


@job.command(name="exceptions", epilog=examples("understudy job exceptions", "understudy job exceptions --json"))
@configured
@json_option
@job_argument(required=False)
def job_exceptions(configuration: Configuration, reference: str | None, as_json: bool) -> None:
    """Print why a job failed: your own traceback of each failure, the last first.

    Without JOB_ID, show the job that failed last.
    """
    with contextlib.ExitStack() as stack:
        if reference is None:
            client = stack.enter_context(connected(configuration))
            failed = [job for job in client.list_jobs() if job.status.value == "FAILED"]
            if not failed:
                raise ClusterError("no job has failed", "`understudy job list` shows the jobs")
            job_id = max(failed, key=lambda job: job.end_ms or 0).job_id
        else:
            client, job_id = stack.enter_context(connected_to_job(configuration, reference))
        job = client.job(job_id)
    failures = list(reversed(job.failure_history))
    if job.failure is not None and job.failure not in failures:
        failures.insert(0, job.failure)
    if as_json:
        from runtime.cluster.documents import JobFailures

        print_document(JobFailures(job.job_id, job.name, job.status.value, tuple(failures)))
        return
    say(f"job {job.job_id} ({clean(job.name)}) is {job.status.value}")
    if not failures:
        say("nothing in it has failed")
    for failure in failures:
        where = f", task {clean(failure.task)}" if failure.task else ""
        say(f"--- {format_moment(failure.timestamp_ms)}, {failure.kind.value}{where}")
        print_line(clean_lines(failure.traceback).rstrip("\n") if failure.traceback else clean(str(failure)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
