"""The commands of ``understudy job`` for another version of a job's code: check, rehearse, upgrade."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from conf.options import CheckpointingOptions, ClientOptions, EnvironmentOptions, SparkOptions
from conf.registry import SPARK_PREFIX
from runtime.cluster.command_line import (
    EXAMPLE_ID,
    JOB_FILE_SETTINGS,
    ExitStatus,
    configured,
    connected_to_job,
    examples,
    job_argument,
    json_option,
    kind_option,
    local_directory,
    pass_job_file,
    pass_optional_job_file,
    py_files_option,
    saved_state,
    waiting,
)
from runtime.cluster.job_commands import job
from runtime.cluster.output import clean, print_answer, print_document, print_line, print_table, say
from runtime.cluster.savepoint_commands import print_verdicts
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.places import is_url

if TYPE_CHECKING:
    from runtime.checkpoint.compatibility import Verdict
    from runtime.checkpoint.rehearsal import ComparedBatch, StartedQuery
    from runtime.client import ClusterClient
    from runtime.cluster.documents import RehearsedJob, UpgradedJob
    from runtime.cluster.job_upgrade import Version
    from runtime.jobgraph.job_graph import JobKind
    from runtime.spark.dry_run import DryRun

_OF_THE_DRIVER = frozenset((SparkOptions.MASTER.key, SparkOptions.DRIVER_MEMORY.key))
"""Settings of a job's driver, which its run without rows does not have. A JVM cannot read a size like ``2 gb``."""


@job.command(
    name="upgrade",
    context_settings=JOB_FILE_SETTINGS,
    epilog=examples(
        f"understudy job upgrade --shadow {EXAMPLE_ID} flight_stream.py",
        f"understudy job upgrade {EXAMPLE_ID} flight_stream.py",
        f"understudy job upgrade {EXAMPLE_ID}",
        f"understudy job upgrade --undo {EXAMPLE_ID}",
    ),
)
@configured
@kind_option
@click.option("--undo", is_flag=True, help="Go back to the version before the job's last upgrade.")
@click.option("--shadow", is_flag=True, help="Only rehearse FILE over batches of the job, and compare its output.")
@click.option(
    "--batches", type=click.IntRange(1, 50), help="Batches of each query that --shadow rehearses.  [default: 3]"
)
@click.option("--yes", "accepts_loss", is_flag=True, help="Accept that the new version loses state, which is shown.")
@click.option(
    "--savepoint",
    "directory",
    type=local_directory,
    help="The directory for the savepoints.  [default: execution.checkpointing.savepoint-dir]",
)
@py_files_option
@json_option
@job_argument()
@pass_optional_job_file
def job_upgrade(
    configuration: Configuration,
    reference: str,
    file: Path | None,
    args: tuple[str, ...],
    kind: JobKind | None,
    undo: bool,
    shadow: bool,
    batches: int | None,
    accepts_loss: bool,
    directory: Path | None,
    py_files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Replace the code of a running streaming job by FILE, and print the id of the job that takes its place.

    First checks FILE against a savepoint of the job, as `job check` does; a version that does not fit is refused, and
    the job runs on. Then stops the job between two batches, and starts FILE from its savepoint: no batch is lost, and
    none is repeated. If FILE fails before it has committed a batch, the former version starts from the savepoint.

    The new version keeps the job's name, arguments, libraries, environment and settings. ARGS replace the arguments,
    and --py-files all former ones.

    Without FILE, finishes an upgrade that was interrupted. --undo goes back to the former version.

    --shadow replaces nothing. In a free slot, both versions run the job's next batches once more, from private copies
    of its state. They write to no sink, and the command shows where their rows differ. Functions of foreachBatch are
    called only if they have a parameter colour=None.

    Exit status: 0 the upgrade, or the undo, is done, or the rehearsed versions are equal; 1 it is refused, the former
    version works again, the new version has FAILED, or the rehearsed versions differ.
    """
    import tempfile

    from runtime.cluster.discovery import running_configuration
    from runtime.cluster.job_upgrade import JobUpgrader, new_version
    from runtime.job_file import pack_py_files

    if file is not None and str(file).startswith("-"):
        raise click.UsageError(f"options come before JOB_ID, and {file} comes after it")
    if file is None and (py_files or kind is not None):
        raise click.UsageError("--py-files and --kind belong to FILE, which is missing")
    if undo and file is not None:
        raise click.UsageError("--undo takes no FILE: the former version is kept")
    if shadow and file is None:
        raise click.UsageError("--shadow needs the FILE of the new version")
    if shadow and directory is not None:
        raise click.UsageError("--shadow makes a savepoint of its own, so it takes no --savepoint")
    if batches is not None and not shadow:
        raise click.UsageError("--batches belongs to --shadow, which is missing")
    max_bytes = configuration.get(ClientOptions.WORKING_DIR_MAX_SIZE)
    with connected_to_job(configuration, reference) as (client, job_id), tempfile.TemporaryDirectory() as scratch:
        running = running_configuration(configuration)
        if shadow and file is not None:
            make = new_version(file, args, kind, pack_py_files(py_files, Path(scratch), max_bytes), say)
            done_so = _rehearse(configuration, running, client, job_id, make, batches, accepts_loss=accepts_loss)
            _print_rehearsal(done_so, as_json)
            return
        upgrader = JobUpgrader(
            client,
            running.get(CheckpointingOptions.SAVEPOINT_DIR),
            lambda version, state: _look_at(running, version, state)[0],
            step=waiting,
            note=lambda line: say(clean(line)),
        )
        if undo:
            done = upgrader.undo(job_id, directory, accepts_loss=accepts_loss)
        elif file is None:
            done = upgrader.finish(job_id)
        else:
            make = new_version(file, args, kind, pack_py_files(py_files, Path(scratch), max_bytes), say)
            done = upgrader.upgrade(job_id, make, directory, accepts_loss=accepts_loss)
        status = _status(client, JobID(done.job_id))
    is_done = undo == (done.outcome == "returned")
    if not as_json:
        say(clean(_told(done, status)))
    print_answer(done, done.job_id, as_json)
    if not is_done or status is JobStatus.FAILED:
        sys.exit(ExitStatus.FAILED)


def _rehearse(
    configuration: Configuration,
    running: Configuration,
    client: ClusterClient,
    job_id: JobID,
    make: Callable[[Version], Version],
    batches: int | None,
    *,
    accepts_loss: bool,
) -> RehearsedJob:
    from runtime.checkpoint.rehearsal import BATCHES
    from runtime.cluster.job_commands import heartbeat_of
    from runtime.cluster.job_shadow import JobRehearser

    rehearser = JobRehearser(
        client,
        running.get(CheckpointingOptions.SAVEPOINT_DIR),
        lambda version, state: _look_at(running, version, state),
        heartbeat_of(configuration),
        step=waiting,
        note=lambda line: say(clean(line)),
    )
    return rehearser.rehearse(job_id, make, BATCHES if batches is None else batches, accepts_loss=accepts_loss)


def _print_rehearsal(done: RehearsedJob, as_json: bool) -> None:
    """Print a rehearsal; exit with 1 if the versions differ."""
    if as_json:
        print_document(done)
    else:
        rows = [
            (
                query.query,
                str(batch.batch),
                str(batch.rows),
                "-" if batch.new_rows is None else str(batch.new_rows),
                "-" if batch.duration_ms is None else str(batch.duration_ms),
                "-" if batch.new_duration_ms is None else str(batch.new_duration_ms),
                _difference(batch),
            )
            for query in done.queries
            for batch in query.batches
        ]
        print_table(("QUERY", "BATCH", "ROWS", "NEW ROWS", "MS", "NEW MS", "RESULT"), rows)
        for line in _differences(done):
            print_line(clean(line))
        how = "are equal" if done.is_equal else "differ"
        say(f"job {done.job_id} runs on: both versions {how} in the batches that were rehearsed")
    if not done.is_equal:
        sys.exit(ExitStatus.FAILED)


def _difference(batch: ComparedBatch) -> str:
    if batch.is_equal:
        return "equal"
    if batch.new_rows is None:
        return "was not run"
    return f"{batch.only_present} rows only before, {batch.only_new} only in the new version"


def _differences(done: RehearsedJob) -> Iterator[str]:
    """Yield a line for each difference that the table does not show."""
    if done.failure:
        yield f"the new version has not run all batches: {done.failure}"
    for query in done.queries:
        for line in (*query.problems, *query.notes):
            yield f"{query.query}: {line}"
        for batch in query.batches:
            for which, samples in (("before", batch.present_samples), ("in the new version", batch.new_samples)):
                for row in samples:
                    yield f"{query.query}, batch {batch.batch}, only {which}: {row}"


def _look_at(configuration: Configuration, version: Version, state: Path) -> tuple[list[Verdict], list[StartedQuery]]:
    """Compare a version of a job with a savepoint, as `job check` does: in the job's directory and environment.

    Returns also the queries that the version starts.
    """
    from runtime.checkpoint.compatibility import check_job
    from runtime.checkpoint.retained import describe_state
    from runtime.jobgraph.job_graph import ArtifactRole

    graph = version.graph
    settings = {
        key: text
        for key, text in graph.configuration.items()
        if key.startswith(SPARK_PREFIX) and key not in _OF_THE_DRIVER
    }
    caller = None if graph.working_directory is None else graph.working_directory.caller
    place = Path("." if caller is None else caller.path)
    libraries = [str(path) for path in version.with_role(ArtifactRole.PY_FILE)]
    named, beside = _place_of_file(version)
    before, environment = list(sys.path), dict(os.environ)
    try:
        sys.path[:0] = libraries
        os.environ.update(graph.environment)
        with contextlib.chdir(place if place.is_dir() else Path()), contextlib.redirect_stdout(sys.stderr):
            code = version.main.read_bytes()
            run = _dry_run(configuration, named, graph.argv, graph.kind, settings, code, beside)
            return check_job(describe_state(state), run.queries), run.started
    finally:
        sys.path[:] = before
        os.environ.clear()
        os.environ.update(environment)


def _place_of_file(version: Version) -> tuple[Path, Path]:
    """Return the path by which the user named the file of a version, and where the modules beside it are.

    The version itself is a private copy of the file, without these modules. A job runs with the same two places.
    """
    place = version.graph.working_directory
    if place is None:
        return Path(version.main.name), version.main.parent
    if place.script is None or not place.script.is_here():
        return Path(place.file), version.main.parent
    return Path(place.file), Path(place.script.path)


def _status(client: ClusterClient, job_id: JobID) -> JobStatus | None:
    """Return the status of a job; None if the cluster has forgotten it, or does not answer: the upgrade is done."""
    from runtime.client import NoAnswerError
    from runtime.protocol.errors import JobNotFoundError

    try:
        return client.job(job_id).status
    except (JobNotFoundError, NoAnswerError):
        return None


def _told(done: UpgradedJob, status: JobStatus | None) -> str:
    """Return the outcome of an upgrade as a line; *status* is that of the job that works now."""
    match done.outcome:
        case "returned":
            return f"job {done.job_id} has the former version: {done.because}"
        case "waiting":
            return (
                f"job {done.job_id} runs, and its sources have no data for a first batch yet; "
                f"`understudy job upgrade {done.upgraded_from}` looks again"
            )
        case _ if status is not None and status.is_globally_terminal:
            return (
                f"job {done.job_id} has committed its first batch, and is {status.value} since, "
                "so it cannot be undone; "
                f"`understudy job run --from {done.savepoint} FILE` repeats all batches since the upgrade"
            )
        case _:
            return (
                f"job {done.job_id} has committed its first batch; "
                f"this undoes it: understudy job upgrade --undo {done.job_id}"
            )


@job.command(name="check", context_settings=JOB_FILE_SETTINGS)
@configured
@kind_option
@click.option(
    "--from",
    "state",
    type=saved_state,
    required=True,
    help="The savepoint or retained checkpoint: a directory, a URL, or JOB_ID/chk-N.",
)
@json_option
@pass_job_file
def job_check(
    configuration: Configuration, file: Path, args: tuple[str, ...], kind: JobKind | None, state: str, as_json: bool
) -> None:
    """Show for each query whether the job FILE with ARGS can start from a state, without running it.

    Runs the file's code here, up to the point where it waits for a query, on a Spark of one core. Its queries read and
    write no rows; everything else in its code takes effect. No cluster is needed.

    Exit status: 0 all queries fit, or fit with loss; 1 at least one does not.
    """
    from runtime.checkpoint.compatibility import check_job, left_behind
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.retained import describe_state, find_state

    place = state if is_url(state) else str(find_state(state, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR)))
    with local_copy(place) as path:
        kept = describe_state(path)
    verdicts = check_job(kept, _dry_run(configuration, file, args, kind).queries)
    print_verdicts(verdicts, as_json)
    known, names = {query.name for query in kept}, {verdict.query for verdict in verdicts}
    if not as_json and names - known and left_behind(verdicts):
        print_line("a query is new and another one is missing: if it was renamed, see --allow-non-restored-state")


def _dry_run(
    configuration: Configuration,
    file: Path,
    args: Sequence[str],
    kind: JobKind | None,
    settings: Mapping[str, str] | None = None,
    content: bytes | None = None,
    beside: Path | None = None,
) -> DryRun:
    """Run a job file without rows, for its queries.

    Args:
        configuration: of the check.
        file: the job file, as the user named it.
        args: the job's arguments.
        kind: script or pipeline. Default: the result of `kind_of`.
        settings: of Spark, of the job itself.
        content: the code that runs. Default: what the file holds.
        beside: the directory of the modules beside it. Default: the file's.

    Raises:
        JobFileError: its code fails.
    """
    import tempfile

    from runtime.checkpoint.errors import CheckpointError
    from runtime.job_file import JobFileError, build_pipeline, kind_of, own_traceback
    from runtime.jobgraph.job_graph import JobKind
    from runtime.spark.dry_run import DryRun, one_core_session
    from runtime.spark.errors import SparkError
    from runtime.taskexecutor.spark_options import state_backend_properties

    is_pipeline = (kind or kind_of(file, say)) is JobKind.PIPELINE
    pipeline = build_pipeline(file, args, content, beside) if is_pipeline else None
    home = configuration.get(EnvironmentOptions.JAVA_HOME)
    conf = {
        **state_backend_properties(configuration.get(CheckpointingOptions.STATE_BACKEND)),
        **configuration.spark_properties(),
        **(settings or {}),
    }
    try:
        with (
            tempfile.TemporaryDirectory(prefix="understudy-check-") as scratch,
            one_core_session(conf, None if home is None else str(home), Path(scratch)) as spark,
        ):
            run = DryRun(spark, Path(scratch))
            try:
                if pipeline is None:
                    run.run_script(file, args, content, beside)
                else:
                    run.run_pipeline(pipeline.run_local)
            except SystemExit as leaving:
                if leaving.code:
                    raise JobFileError(
                        f"{file} ended itself before it waited for a query: {leaving.code}", "fix it, and check again"
                    ) from leaving
            except Exception as error:  # the user's code may raise anything
                if isinstance(error, CheckpointError):
                    raise
                first = str(error).partition("\n")[0]
                raise JobFileError(
                    f"{file} failed in a run without rows: {type(error).__name__}: {first}",
                    "fix it, and check again",
                    own_traceback(error, file),
                ) from error
    except SparkError as error:
        raise ClusterError(str(error), "`understudy doctor` checks whether Spark can start here") from error
    if not run.queries:
        raise JobFileError(f"{file} has started no streaming query", "a state can only be checked against a query")
    return run
