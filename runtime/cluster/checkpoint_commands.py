"""The commands of ``understudy job`` for checkpoints and savepoints, and for the partitions of a job's state."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conf.configuration import Configuration
from runtime.cluster.command_line import (
    EXAMPLE_ID,
    ExitStatus,
    configured,
    connected_to_job,
    examples,
    job_argument,
    json_option,
    local_directory,
    place,
    saved_state,
    waiting,
)
from runtime.cluster.job_commands import job
from runtime.cluster.output import clean, print_answer, print_document, print_error, print_line, say
from runtime.errors import ClusterError
from runtime.ids import JobID, JobVertexID, ResourceID
from runtime.protocol.places import is_url

if TYPE_CHECKING:
    from runtime.checkpoint.description import QueryDescription
    from runtime.client import ClusterClient
    from runtime.dispatcher.autoscaling import DriverShare
    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
    from runtime.protocol.checkpoints import OperationStatus

_URL = "s3://bucket/savepoints"


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
        f"understudy job savepoint {EXAMPLE_ID} /savepoints", f"understudy job savepoint {EXAMPLE_ID} {_URL}"
    ),
)
@configured
@json_option
@job_argument()
@click.argument("directory", required=False, type=place)
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
    type=place,
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
@click.option(
    "--to",
    "target",
    type=saved_state,
    required=True,
    help="A retained checkpoint (chk-N), or a savepoint's directory or URL.",
)
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
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions of the state from now on.")
@click.option("--undo", is_flag=True, help="Return to the number of partitions before the job's last rescale.")
@click.option("--query", help="Name of the only query whose state is rescaled.  [default: all with state]")
@click.option(
    "--savepoint",
    "directory",
    type=local_directory,
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
@click.option(
    "--per-core", type=float, default=1.0, show_default=True, help="Most partitions for each core of the job's Spark."
)
@click.option("--target", type=float, default=0.6, show_default=True, help="Busy time that a new number aims at.")
@click.option("--above", type=float, default=0.8, show_default=True, help="Busy time above which the number grows.")
@click.option("--below", type=float, default=0.35, show_default=True, help="Busy time below which it shrinks.")
@click.option(
    "--lag", type=click.IntRange(min=0), help="Largest lag, in the unit of the source's offsets.  [default: not judged]"
)
@json_option
@job_argument()
def job_autoscale(
    configuration: Configuration,
    reference: str,
    dry_run: bool,
    least: int,
    most: int,
    per_core: float,
    target: float,
    above: float,
    below: float,
    lag: int | None,
    as_json: bool,
) -> None:
    """Show how many partitions the state of a job's queries should have, and why.

    Judges the busy time of each query's last batches: the part of the time in which a batch runs. With --lag it also
    judges how far they are behind. A query gets no more partitions than its Spark has cores. `understudy job rescale`
    changes the number.
    """
    import time

    from runtime.cluster.views import print_advice
    from runtime.dispatcher.autoscaling import AutoscalePolicy, advise, changed_at

    if not dry_run:
        raise click.UsageError("Missing option '--dry-run': the command only shows decisions, and changes nothing.")
    try:
        policy = AutoscalePolicy(least, most, target, above, below, lag, per_core=per_core)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with connected_to_job(configuration, reference) as (client, job_id):
        if not client.sees_files:
            raise ClusterError(
                "the job's checkpoint tells its number of partitions, and this client does not see the cluster's files",
                "run the command on a machine that sees them",
            )
        histories = client.query_histories(job_id)
        job, saved = _job_and_its_state(client, job_id, bool(histories))
        restored = job.checkpoints.latest_restored
        changed_ms = changed_at(None if restored is None else restored.restore_timestamp, job.rescales)
        advice = advise(policy, histories, saved, round(time.time() * 1000), changed_ms, _drivers_of(client, job))
    if as_json:
        print_document(advice)
        return
    print_advice(advice)


def _drivers_of(client: ClusterClient, job: ArchivedExecutionGraph) -> dict[JobVertexID, DriverShare]:
    """Return the Spark driver of each task of a job, as far as its TaskExecutor is registered."""
    from runtime.dispatcher.autoscaling import drivers_of, task_executors_of
    from runtime.protocol.errors import UnknownTaskExecutorError
    from runtime.protocol.leader import RESOURCE_MANAGER
    from runtime.protocol.messages import TaskManagerInfo
    from runtime.protocol.resource_manager import ResourceManagerGateway

    def info_of(name: ResourceID) -> TaskManagerInfo:
        return client.call(
            RESOURCE_MANAGER, ResourceManagerGateway, lambda manager: manager.request_task_manager_info(name).result()
        )

    known = {}
    for name in task_executors_of(job):
        with contextlib.suppress(UnknownTaskExecutorError):
            known[name] = info_of(name)
    return drivers_of(job, known)


def _job_and_its_state(
    client: ClusterClient, job_id: JobID, has_queries: bool
) -> tuple[ArchivedExecutionGraph, list[QueryDescription]]:
    """Return a job, and what its last saved state holds. A newer checkpoint may replace that while it is read.

    Raises:
        CheckpointError: that state is not whole.
        ClusterError: it has none.
    """
    from runtime.checkpoint.errors import CheckpointError
    from runtime.checkpoint.retained import describe_state
    from runtime.dispatcher.autoscaling import present_state

    failed = ""
    while True:
        job = client.job(job_id)
        state = present_state(job.checkpoints, job.rescales)
        if not state:
            remedy = f"take one with `understudy job checkpoint {job_id}`"
            if job.status.is_globally_terminal:
                remedy = f"give the id of a job that runs; this one is {job.status.value}"
            elif not has_queries:
                remedy = "give the id of a job with a streaming query that has run a batch; this one has none"
            raise ClusterError(f"job {job_id} has no checkpoint, which would tell its number of partitions", remedy)
        try:
            return job, describe_state(Path(state))
        except CheckpointError:
            if state == failed:
                raise
            failed = state


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
