"""The commands for checkpoints and savepoints: those of a job, and ``savepoint``, which needs no cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    pass_job_file,
    pass_optional_job_file,
    py_files_option,
    waiting,
)
from runtime.cluster.job_commands import job
from runtime.cluster.output import (
    clean,
    format_moment,
    format_size,
    print_answer,
    print_document,
    print_error,
    print_facts,
    print_line,
    print_table,
    say,
)
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.places import is_url

if TYPE_CHECKING:
    from runtime.checkpoint.compatibility import Verdict
    from runtime.checkpoint.manifest import Savepoint, SavepointQuery
    from runtime.checkpoint.rehearsal import ComparedBatch, StartedQuery
    from runtime.client import ClusterClient
    from runtime.cluster.documents import RehearsedJob, UpgradedJob
    from runtime.cluster.job_upgrade import Version
    from runtime.jobgraph.job_graph import JobKind
    from runtime.protocol.checkpoints import OperationStatus
    from runtime.spark.dry_run import DryRun

_SAVEPOINT = "/savepoints/savepoint-0f3c5a-1"
_OF_THE_DRIVER = frozenset((SparkOptions.MASTER.key, SparkOptions.DRIVER_MEMORY.key))
"""Settings of a job's driver, which its run without rows does not have. A JVM cannot read a size like ``2 gb``."""


class _LocalDirectory(click.Path):
    """A local directory; of savepoints in remote file systems, a copy."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and is_url(value):
            self.fail(f"{value} is a URL, and this has to be a local directory: use `understudy savepoint copy`")
        return super().convert(value, param, ctx)


class _Place(click.Path):
    """A local directory, or a URL of one in a remote file system; both are texts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and is_url(value) else super().convert(value, param, ctx)


_directory = _LocalDirectory(file_okay=False, path_type=Path)
_place = _Place(file_okay=False, path_type=str)
_URL_OF_ONE = "s3://bucket/savepoints"


# ------------------------------------------------------------------- of a job


@job.command(name="checkpoint", epilog=examples(f"understudy job checkpoint {EXAMPLE_ID}"))
@configured
@json_option
@job_argument()
def job_checkpoint(configuration: Configuration, reference: str, as_json: bool) -> None:
    """Take a checkpoint of a job's streaming queries now, and print its directory."""
    with connected_to_job(configuration, reference) as (client, job_id):
        with waiting(f"taking a checkpoint of job {job_id}", _continues("checkpoint", job_id)):
            status = client.trigger_checkpoint(job_id)
        _print_operation(status, f"checkpoint of job {job_id}", as_json)


@job.command(
    name="savepoint",
    epilog=examples(
        f"understudy job savepoint {EXAMPLE_ID} /savepoints", f"understudy job savepoint {EXAMPLE_ID} {_URL_OF_ONE}"
    ),
)
@configured
@json_option
@job_argument()
@click.argument("directory", required=False, type=_place)
def job_savepoint(configuration: Configuration, reference: str, directory: str | None, as_json: bool) -> None:
    """Make a savepoint of a job's streaming queries in DIRECTORY, and print the savepoint's own directory.

    DIRECTORY is local, or the URL of one in a remote file system, which the cluster writes. It defaults to
    execution.checkpointing.savepoint-url, or else savepoint-dir.
    """
    with connected_to_job(configuration, reference) as (client, job_id):
        with waiting(f"making a savepoint of job {job_id}", _continues("savepoint", job_id)):
            status = client.trigger_savepoint(job_id, directory)
        _print_operation(status, f"savepoint of job {job_id}", as_json)


@job.command(name="stop", epilog=examples(f"understudy job stop --drain --savepoint /savepoints {EXAMPLE_ID}"))
@configured
@click.option(
    "--savepoint",
    "directory",
    type=_place,
    help="The directory for the savepoint, or its URL.  [default: as of `understudy job savepoint`]",
)
@click.option("--drain", is_flag=True, help="Let the queries first process all data of their sources.")
@json_option
@job_argument()
def job_stop(configuration: Configuration, reference: str, directory: str | None, drain: bool, as_json: bool) -> None:
    """Stop a job's streaming queries between two batches, make a savepoint, and let the job finish.

    A query that commits no batch within task.cancellation.timeout is stopped by force, and a note says so. When it is
    restored, it repeats that batch. If the savepoint fails, the job continues.
    """
    remedy = "see with `understudy job info` if the job still runs, or why it ended; fix the cause and try again"
    with connected_to_job(configuration, reference) as (client, job_id):
        with waiting(f"stopping job {job_id}", _continues("stop", job_id)):
            status, job_status = client.stop_and_await_end(job_id, directory, drain=drain)
        if job_status is not None:
            say(f"job {job_id} is {job_status.value}")
        _print_operation(status, f"savepoint of job {job_id}", as_json, remedy)
        if failure := client.stop_failure(status, job_status):
            print_error(failure, remedy)
            sys.exit(ExitStatus.FAILED)


@job.command(name="rollback")
@configured
@click.option("--to", "target", required=True, help="A retained checkpoint (chk-N), or a savepoint's directory or URL.")
@click.option(
    "--new-query-id",
    is_flag=True,
    help="Give the queries new ids, so that sinks that remember batches by query and number accept them again.",
)
@json_option
@job_argument()
def job_rollback(configuration: Configuration, reference: str, target: str, new_query_id: bool, as_json: bool) -> None:
    """Restart a job from one of its own checkpoints or savepoints.

    Undoes what its queries have written to file sinks since then. If this is not possible, the job continues.
    """
    is_path = not is_url(target) and ("/" in target or Path(target).is_dir())
    place = Path(target) if is_path else target
    with connected_to_job(configuration, reference) as (client, job_id):
        with waiting(f"rolling job {job_id} back", _continues("rollback", job_id)):
            status = client.roll_back(job_id, place, new_query_id=new_query_id)
        if as_json:
            print_document(status)
        else:
            say(f"job {job_id} is rolled back to {status.path}: its tasks restart")


@job.command(
    name="rescale",
    epilog=examples(
        f"understudy job rescale --partitions 8 {EXAMPLE_ID}",
        f"understudy job rescale --undo {EXAMPLE_ID}",
        f"understudy job rescale --detach --partitions 8 {EXAMPLE_ID}",
    ),
)
@configured
@click.option("--partitions", type=int, help="Number of partitions of the state from now on.")
@click.option("--undo", is_flag=True, help="Return to the number of partitions before the job's last rescale.")
@click.option("--query", help="Name of the only query whose state is rescaled.  [default: all with state]")
@click.option(
    "--savepoint",
    "directory",
    type=_directory,
    help="The directory for the two savepoints.  [default: execution.checkpointing.savepoint-dir]",
)
@click.option(
    "--detach",
    "--detached",
    "detach",
    is_flag=True,
    help="Have the cluster do it, as a job in a slot of the job's owner; print that job's id, and return.",
)
@json_option
@job_argument()
def job_rescale(
    configuration: Configuration,
    reference: str,
    partitions: int | None,
    undo: bool,
    query: str | None,
    directory: Path | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Give the state of a running job another number of partitions; print the savepoint from which it restarts.

    Makes a savepoint, rescales a copy of it while the job runs, and restarts the job's tasks from the copy. They repeat
    the batches since the savepoint; the output of these batches is first removed from the file sinks. Jobs with other
    sinks, and state that does not fit, are refused. If a step fails, the job continues as it was.

    With --undo the job gets the number of partitions from before its last rescale, and keeps all that it has done
    since. If it has committed no batch since, it restarts from the savepoint from before.

    With --detach the cluster does the same in the Spark of one of its TaskExecutors. This needs a free slot, and also
    works over HTTP. If a step fails, the job that does it fails with the reason. If that job is cancelled, the other
    one continues as it was.
    """
    from runtime.cluster.documents import SubmittedJob
    from runtime.cluster.rescaling import JobRescaler

    if undo and (partitions is not None or query is not None):
        raise click.UsageError("--undo takes neither --partitions nor --query: it undoes the whole of the last rescale")
    if not undo and partitions is None:
        raise click.UsageError("Missing option '--partitions', or '--undo'.")
    with connected_to_job(configuration, reference) as (client, job_id):
        if detach:
            doing = client.trigger_rescale(job_id, partitions, query or "", directory)
            if not as_json:
                say(f"job {job_id} is rescaled by job {doing}: `understudy job info {doing}` shows what becomes of it")
            print_answer(SubmittedJob(doing, client.web_page(doing)), doing, as_json)
            return
        rescaler = JobRescaler.of_command(configuration, client)
        if partitions is None:
            done = rescaler.undo(job_id, directory)
        else:
            queries = () if query is None else (query,)
            done = rescaler.rescale(job_id, partitions, *queries, directory=directory)
    if not as_json:
        say(clean(f"job {job_id} has {done.partitions} partitions: its tasks restart"))
        if not undo:
            say(clean(f"this undoes it: understudy job rescale --undo {job_id}"))
    print_answer(done, clean(done.savepoint), as_json)


@job.command(name="autoscale", epilog=examples(f"understudy job autoscale --dry-run --most 16 {EXAMPLE_ID}"))
@configured
@click.option("--dry-run", is_flag=True, help="Only show the decision. Required: nothing is changed by this command.")
@click.option("--least", type=int, default=1, show_default=True, help="Smallest number of partitions.")
@click.option("--most", type=int, default=64, show_default=True, help="Largest number of partitions.")
@click.option("--target", type=float, default=0.6, show_default=True, help="Busy time that a new number aims at.")
@click.option("--above", type=float, default=0.8, show_default=True, help="Busy time above which the number grows.")
@click.option("--below", type=float, default=0.35, show_default=True, help="Busy time below which it shrinks.")
@click.option("--lag", type=int, help="Largest lag, in the unit of the source's offsets.  [default: not judged]")
@json_option
@job_argument()
def job_autoscale(
    configuration: Configuration,
    reference: str,
    dry_run: bool,
    least: int,
    most: int,
    target: float,
    above: float,
    below: float,
    lag: int | None,
    as_json: bool,
) -> None:
    """Show how many partitions the state of a job's queries should have, and why.

    Judges the busy time of each query's last batches: the part of the time in which a batch runs. With --lag it also
    judges how far they are behind. `understudy job rescale` changes the number.
    """
    import time

    from runtime.checkpoint.retained import describe_state
    from runtime.dispatcher.autoscaling import AutoscalePolicy, advise, changed_at, present_state

    if not dry_run:
        raise click.UsageError("Missing option '--dry-run': the command only shows decisions, and changes nothing.")
    try:
        policy = AutoscalePolicy(least, most, target, above, below, lag)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with connected_to_job(configuration, reference) as (client, job_id):
        if not client.sees_files:
            raise ClusterError(
                "the job's checkpoint tells its number of partitions, and this client does not see the cluster's files",
                "run the command on a machine that sees them",
            )
        job, histories = client.job(job_id), client.query_histories(job_id)
        state = present_state(job.checkpoints, job.rescales)
        if not state:
            raise ClusterError(
                f"job {job_id} has no checkpoint, which would tell its number of partitions",
                f"take one with `understudy job checkpoint {job_id}`",
            )
        restored = job.checkpoints.latest_restored
        changed_ms = changed_at(None if restored is None else restored.restore_timestamp, job.rescales)
        advice = advise(policy, histories, describe_state(Path(state)), round(time.time() * 1000), changed_ms)
    if as_json:
        print_document(advice)
        return
    rows = [
        (one.query, *("-" if number is None else str(number) for number in (one.partitions, one.wanted)), one.reason)
        for one in advice
    ]
    print_table(("QUERY", "PARTITIONS", "WANTED", "REASON"), rows)


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
@click.option("--batches", type=int, help="Batches of each query that --shadow rehearses.  [default: 3]")
@click.option("--yes", "accepts_loss", is_flag=True, help="Accept that the new version loses state, which is shown.")
@click.option(
    "--savepoint",
    "directory",
    type=_directory,
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
    of its state. They write to no sink, and the command shows where their rows differ.

    Exit status: 0 the upgrade, or the undo, is done, or the rehearsed versions are equal; 1 it is refused, the former
    version works again, or the rehearsed versions differ.
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
    is_done = undo == (done.outcome == "returned")
    if not as_json:
        say(clean(_told(done)))
    print_answer(done, done.job_id, as_json)
    if not is_done:
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
    before, environment = list(sys.path), dict(os.environ)
    try:
        sys.path[:0] = libraries
        os.environ.update(graph.environment)
        with contextlib.chdir(place if place.is_dir() else Path()), contextlib.redirect_stdout(sys.stderr):
            run = _dry_run(configuration, version.main, graph.argv, graph.kind, settings)
            return check_job(describe_state(state), run.queries), run.started
    finally:
        sys.path[:] = before
        os.environ.clear()
        os.environ.update(environment)


def _told(done: UpgradedJob) -> str:
    """Return the outcome of an upgrade as a line."""
    match done.outcome:
        case "returned":
            return f"job {done.job_id} has the former version: {done.because}"
        case "waiting":
            return (
                f"job {done.job_id} runs, and its sources have no data for a first batch yet; "
                f"`understudy job upgrade {done.upgraded_from}` looks again"
            )
        case _:
            return f"job {done.job_id} has committed its first batch: undo with `understudy job upgrade --undo`"


def _continues(what: str, job_id: JobID) -> str:
    return f"the {what} continues; `understudy job info {job_id}` shows its outcome"


def _print_operation(
    status: OperationStatus, what: str, as_json: bool, remedy: str = "the job still runs; fix the cause and try again"
) -> None:
    """Print the directory to standard output and notes to standard error; exit with 1 if the operation failed."""
    completed = status.state.value == "COMPLETED"
    if as_json:
        print_document(status)
    elif completed:
        for note in status.notes:
            say(f"note: {note}")
        print_line(status.path)
    else:
        print_error(f"the {what} failed: {status.error}", remedy)
    if not completed:
        sys.exit(ExitStatus.FAILED)


@job.command(name="check", context_settings=JOB_FILE_SETTINGS)
@configured
@kind_option
@click.option(
    "--from", "state", required=True, help="The savepoint or retained checkpoint: a directory, a URL, or JOB_ID/chk-N."
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
    from runtime.checkpoint.compatibility import check_job
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.retained import describe_state, find_state

    place = state if is_url(state) else str(find_state(state, configuration.get(CheckpointingOptions.CHECKPOINTS_DIR)))
    with local_copy(place) as path:
        kept = describe_state(path)
    verdicts = check_job(kept, _dry_run(configuration, file, args, kind).queries)
    _print_verdicts(verdicts, as_json)
    known, names = {query.name for query in kept}, {verdict.query for verdict in verdicts}
    if not as_json and names - known and any(verdict.losses and verdict.query in known for verdict in verdicts):
        print_line("a query is new and another one is missing: if it was renamed, see --allow-non-restored-state")


def _print_verdicts(verdicts: Sequence[Verdict], as_json: bool) -> None:
    """Print verdicts, query by query; exit with 1 if a query does not fit."""
    from runtime.checkpoint.compatibility import Fit

    if as_json:
        print_document(verdicts)
    else:
        for verdict in verdicts:
            print_line(clean(f"{verdict.query}: {verdict.fit.value}"))
            for line in (*verdict.reasons, *verdict.losses, *verdict.notes):
                print_line(clean(f"  {line}"))
    if any(verdict.fit is Fit.DOES_NOT_FIT for verdict in verdicts):
        sys.exit(ExitStatus.FAILED)


def _dry_run(
    configuration: Configuration,
    file: Path,
    args: Sequence[str],
    kind: JobKind | None,
    settings: Mapping[str, str] | None = None,
) -> DryRun:
    """Run a job file without rows, for its queries. Raises JobFileError if its code fails.

    *settings* are Spark's, of the job itself.
    """
    import tempfile

    from runtime.checkpoint.errors import CheckpointError
    from runtime.job_file import JobFileError, build_pipeline, kind_of, own_traceback
    from runtime.jobgraph.job_graph import JobKind
    from runtime.spark.dry_run import DryRun, one_core_session
    from runtime.spark.errors import SparkError
    from runtime.taskexecutor.spark_options import state_backend_properties

    pipeline = build_pipeline(file, args) if (kind or kind_of(file, say)) is JobKind.PIPELINE else None
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
                run.run_script(file, args) if pipeline is None else run.run_pipeline(pipeline.run_local)
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


# ---------------------------------------------------------------- savepoints


@click.group()
def savepoint() -> None:
    """List, show, verify, copy, rescale and dispose savepoints; no cluster is needed."""


@savepoint.command(name="list", epilog=examples("understudy savepoint list /savepoints"))
@json_option
@click.argument("directory", type=_place)
def savepoint_list(directory: str, as_json: bool) -> None:
    """List the savepoints in DIRECTORY, the newest first, each verified.

    DIRECTORY may be a URL. Of savepoints there, only names and sizes of files are checked.
    """
    from runtime.checkpoint.remote_savepoint import list_at

    listed = list_at(directory)
    if as_json:
        from runtime.cluster.documents import SavepointLine

        print_document([SavepointLine.of(one) for one in listed])
    elif not listed:
        print_line("no savepoints")
    else:
        rows = []
        for one in listed:
            found = one.savepoint
            state = "DAMAGED" if one.problems else "OK"
            if found is None:
                rows.append((Path(one.path).name, state, "", "", "", ""))
            else:
                created, size = format_moment(found.created_ms), format_size(found.bytes)
                rows.append((Path(one.path).name, state, found.job.name, created, str(len(found.queries)), size))
        print_table(("SAVEPOINT", "STATE", "JOB", "CREATED", "QUERIES", "SIZE"), rows)


@savepoint.command(name="info", epilog=examples(f"understudy savepoint info {_SAVEPOINT}"))
@json_option
@click.argument("path", type=_place)
def savepoint_info(path: str, as_json: bool) -> None:
    """Show the savepoint in PATH, which may be a URL: its job, its queries, their offsets and their state."""
    from runtime.checkpoint.remote_savepoint import read_at

    found = read_at(path)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(found))
    else:
        _print_savepoint(found)


@savepoint.command(name="verify", epilog=examples(f"understudy savepoint verify {_SAVEPOINT}"))
@json_option
@click.argument("path", type=_place)
def savepoint_verify(path: str, as_json: bool) -> None:
    """Verify the savepoint or checkpoint in PATH by the digests of all its files; a savepoint may be at a URL.

    Exit status: 0 it is unchanged since it was written; 1 it is not.
    """
    from runtime.checkpoint.remote_savepoint import verify_at

    problems = verify_at(path)
    if as_json:
        from runtime.cluster.documents import Verification

        print_document(Verification(path, not problems, problems))
    else:
        for problem in problems or [f"{path} is unchanged since it was written"]:
            print_line(clean(problem))
    if problems:
        sys.exit(ExitStatus.FAILED)


@savepoint.command(name="dispose", epilog=examples(f"understudy savepoint dispose {_SAVEPOINT}"))
@json_option
@click.argument("path", type=_place)
def savepoint_dispose(path: str, as_json: bool) -> None:
    """Remove the savepoint in PATH, damaged or not; refuse any other directory. PATH may be a URL."""
    from runtime.checkpoint.errors import SavepointError
    from runtime.checkpoint.remote_savepoint import dispose_at

    if not dispose_at(path):
        raise SavepointError(f"there is no savepoint {path}", "`understudy savepoint list DIR` lists savepoints")
    from runtime.cluster.documents import DisposedSavepoint

    print_answer(DisposedSavepoint(path), clean(f"{path} is disposed"), as_json)


@savepoint.command(
    name="copy",
    epilog=examples(
        f"understudy savepoint copy {_SAVEPOINT} {_URL_OF_ONE}",
        f"understudy savepoint copy {_URL_OF_ONE}/savepoint-0f3c5a-1 /savepoints",
    ),
)
@json_option
@click.argument("path", type=_place)
@click.argument("directory", type=_place)
def savepoint_copy(path: str, directory: str, as_json: bool) -> None:
    """Copy the savepoint in PATH into DIRECTORY, and print the copy's own directory.

    At least one of them is a URL of a remote file system. The copy is verified, and complete when it appears.
    """
    from runtime.checkpoint.remote_savepoint import copy_savepoint, read_at

    place = copy_savepoint(path, directory)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(read_at(place)))
    else:
        print_line(place)


@savepoint.command(name="check", epilog=examples(f"understudy savepoint check --query counts {_SAVEPOINT} /tmp/trial"))
@json_option
@click.option("--query", help="Name of the query that OTHER is the checkpointLocation of.")
@click.argument("path", type=_place)
@click.argument("other", type=_directory)
def savepoint_check(path: str, other: Path, query: str | None, as_json: bool) -> None:
    """Show for each query whether a changed job can start from the savepoint in PATH, which may be a URL.

    OTHER describes the job's present queries, and comes from a trial run. It is a savepoint of that run, or the
    checkpointLocation of one of its queries.

    Exit status: 0 all queries fit, or fit with loss; 1 at least one does not.
    """
    from runtime.checkpoint.compatibility import check_job, check_query
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.savepoint import MANIFEST, open_savepoint
    from runtime.checkpoint.snapshot import describe_query
    from runtime.checkpoint.state_choice import choose_query
    from runtime.protocol.query_snapshot import QueryLocation

    with local_copy(path) as local:
        kept = open_savepoint(local)
    if (other / MANIFEST).exists():
        now = open_savepoint(other)
        verdicts = check_job([one.description for one in kept.queries], [one.description for one in now.queries])
    else:
        old = choose_query(kept, query).description
        verdicts = [check_query(old, describe_query(QueryLocation(old.name, str(other.absolute()))))]
    _print_verdicts(verdicts, as_json)


@savepoint.command(
    name="rescale", epilog=examples(f"understudy savepoint rescale --partitions 8 --to /savepoints/of-8 {_SAVEPOINT}")
)
@configured
@json_option
@click.option("--partitions", type=int, required=True, help="Number of partitions of the state from now on.")
@click.option("--to", "target", type=_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the only query to rescale.  [default: all with state]")
@click.argument("path", type=_directory)
def savepoint_rescale(
    configuration: Configuration, path: Path, target: Path, partitions: int, query: str | None, as_json: bool
) -> None:
    """Write a savepoint with the state of the savepoint in PATH in another number of partitions.

    Only RocksDB can be rescaled. PATH is not changed. The result appears when it is whole, and when counts and
    checksums of its state are those of PATH. Start the job from it with `job run --from`.
    """
    from runtime.checkpoint.rescale import plan_rescale
    from runtime.cluster.rescaling import compact_interval_of, java_home_of, run_plan

    interval = compact_interval_of(configuration)
    plan = plan_rescale(path, partitions, target, *(() if query is None else (query,)))
    _print_made(lambda: run_plan(plan, java_home_of(configuration), interval), as_json)


def _print_made(make: Callable[[], Savepoint], as_json: bool) -> None:
    """Print a savepoint that Spark makes, or why it did not."""
    from runtime.spark.errors import SparkError

    try:
        made = make()
    except SparkError as error:
        print_error(error)
        sys.exit(ExitStatus.FAILED)
    if as_json:
        from runtime.cluster.documents import SavepointContent

        print_document(SavepointContent.of(made))
    else:
        print_line(made.path)


@savepoint.command(
    name="edit", epilog=examples(f"understudy savepoint edit --to /savepoints/edited {_SAVEPOINT} drop_closed.py")
)
@configured
@json_option
@click.option("--to", "target", type=_directory, required=True, help="Directory of the result; it must not exist.")
@click.option("--query", help="Name of the only query to edit.  [default: all with state]")
@click.option("--operator", type=click.IntRange(min=0), help="Id of the only operator to edit.  [default: all]")
@click.option("--variable", help="The only state variable of a transformWithState to edit.  [default: all]")
@click.argument("path", type=_directory)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def savepoint_edit(
    configuration: Configuration,
    path: Path,
    file: Path,
    target: Path,
    query: str | None,
    operator: int | None,
    variable: str | None,
    as_json: bool,
) -> None:
    """Write a savepoint with the state that FILE makes of the state of the savepoint in PATH.

    FILE is Python, and defines `def edit(state, part)`. The function gets each part of the state as a DataFrame with
    the columns key, value and partition_id. It returns the DataFrame of the new state: rows may be dropped, changed
    or added. To change nothing, it returns the same DataFrame.

    Only RocksDB can be edited. PATH is not changed. The result appears when it is whole, and when Spark reads from it
    what the function returned. Start the job from it with `job run --from`.
    """
    from runtime.checkpoint.edit import plan_edit
    from runtime.cluster.rescaling import compact_interval_of, java_home_of
    from runtime.spark.state_edit import edit, load_function

    interval = compact_interval_of(configuration)
    plan = plan_edit(path, target, query, operator, variable)
    function = load_function(file.absolute())
    _print_made(lambda: edit(plan, function, java_home_of(configuration), interval), as_json)


@savepoint.command(name="state", epilog=examples(f"understudy savepoint state --limit 5 {_SAVEPOINT}"))
@configured
@json_option
@click.option("--query", help="Name of the query; needed if more than one has state.")
@click.option("--operator", type=click.IntRange(min=0), help="Id of the operator.  [default: the first]")
@click.option("--store", help="Name of the operator's store; joins have several.  [default: the first]")
@click.option("--variable", help="State variable of a transformWithState; needed if it has more than one.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of rows at most.")
@click.argument("path", type=_place)
def savepoint_state(
    configuration: Configuration,
    path: str,
    query: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show keys and values of the state in the savepoint in PATH, which may be a URL.

    Starts a Spark of one core. `runtime.spark.state_reader.read_state` returns the same as a DataFrame.
    """
    from runtime.checkpoint.remote_savepoint import local_copy
    from runtime.checkpoint.savepoint import open_savepoint
    from runtime.checkpoint.state_choice import choose_state
    from runtime.spark.errors import SparkError
    from runtime.spark.state_reader import first_rows

    java_home = configuration.get(EnvironmentOptions.JAVA_HOME)
    try:
        with local_copy(path) as local:
            choice = choose_state(open_savepoint(local), query, operator, store, variable)
            rows = first_rows(choice, limit, str(java_home) if java_home else None)
    except SparkError as error:
        print_error(error)
        sys.exit(ExitStatus.FAILED)
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    if as_json:
        from runtime.cluster.documents import StateRows

        print_document(StateRows(choice.query.snapshot.name, choice.operator, choice.store, plain))
    elif not rows:
        print_line("no rows")
    else:
        columns = [name for name in plain[0] if name != "partition_id"]
        shown = [[str(row["partition_id"]), *(json.dumps(row[name]) for name in columns)] for row in plain]
        print_table(("PARTITION", *(name.upper() for name in columns)), shown)


def _plain(value: object) -> object:
    """Convert a value of Spark's for JSON; times, decimals and bytes become texts."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print_savepoint(found: Savepoint) -> None:

    print_facts(
        {
            "Savepoint": found.path,
            "Job": f"{found.job.id} ({found.job.name})",
            "Owner": found.job.owner,
            "Created": format_moment(found.created_ms),
            "Files": f"{len(found.files)}, {format_size(found.bytes)}",
            "Written by": f"Understudy {found.version}, Spark {found.spark_version}",
            "Rescaled": _origin(found),
            "Edited": f"from {found.edited.path} of {format_moment(found.edited.created_ms)}" if found.edited else "",
        }
    )
    for query in found.queries:
        print_line("")
        print_facts(_facts(query))
        rows = [
            (
                f"{operator.id} {operator.name}",
                store.name,
                str(store.partitions),
                family.name,
                ", ".join(_fields(family.key)),
                ", ".join(_fields(family.value)),
            )
            for operator in query.description.operators
            for store in operator.stores
            for family in store.families
        ]
        if rows:
            print_table(("OPERATOR", "STORE", "PARTITIONS", "FAMILY", "KEY", "VALUE"), rows)


def _origin(found: Savepoint) -> str:
    origin = found.rescaled
    if origin is None:
        return ""
    return f"to {origin.partitions} partitions, from {origin.path} of {format_moment(origin.created_ms)}"


_KINDS = {"other": "custom data source"}
"""Names of kinds of sources, for people. Of a source from elsewhere, Spark's checkpoint has only the offsets."""


def _facts(query: SavepointQuery) -> dict[str, str]:
    from runtime.protocol.query_snapshot import NOTHING_COMMITTED

    snapshot = query.snapshot
    return {
        "Query": snapshot.name,
        "Id": snapshot.query_id,
        "Batch": "none was committed" if snapshot.batch_id == NOTHING_COMMITTED else str(snapshot.batch_id),
        "Watermark": format_moment(query.watermark_ms) if query.watermark_ms else "",
        "Sources": "; ".join(
            f"{_KINDS.get(kind, kind)} at {offset}"
            for kind, offset in zip(query.description.sources, snapshot.offsets, strict=True)
        ),
        "File sink": snapshot.sink or "",
        "Taken of": snapshot.location,
        "Size": f"{snapshot.files} files, {format_size(snapshot.bytes)}",
    }


def _fields(schema: str) -> list[str]:
    from runtime.checkpoint.state_schema import schema_fields

    return [f"{name} {kind}" for name, kind in schema_fields(schema)]
