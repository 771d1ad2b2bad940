"""The commands on a job's checkpoints: ``job checkpoint``, ``job savepoint`` and ``job stop``."""

from __future__ import annotations

import sys
from pathlib import Path

from actors.rpc.codec import to_plain
from runtime.checkpoint.messages import OperationState, OperationStatus
from runtime.checkpoint.statistics import CheckpointStats, CheckpointStatsSnapshot
from runtime.client import ClusterClient
from runtime.cluster.formatting import format_duration, format_moment, format_size
from runtime.cluster.render import print_error, print_facts, print_json, print_line
from runtime.cluster.running import waiting
from runtime.ids import JobID


def take_checkpoint(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """`understudy job checkpoint`."""
    with waiting(f"taking a checkpoint of job {job_id}", _goes_on("checkpoint", job_id)):
        status = client.trigger_checkpoint(job_id)
    _show(status, f"checkpoint of job {job_id}", as_json)


def take_savepoint(client: ClusterClient, job_id: JobID, directory: str | None, as_json: bool) -> None:
    """`understudy job savepoint`."""
    with waiting(f"making a savepoint of job {job_id}", _goes_on("savepoint", job_id)):
        status = client.trigger_savepoint(job_id, None if directory is None else Path(directory))
    _show(status, f"savepoint of job {job_id}", as_json)


def stop_job(
    client: ClusterClient,
    job_id: JobID,
    directory: str | None,
    drain: bool,
    as_json: bool,
) -> None:
    """`understudy job stop`."""
    target = None if directory is None else Path(directory)
    with waiting(f"stopping job {job_id}", _goes_on("stop", job_id)):
        status, job_status = client.stop_and_await_end(job_id, target, drain=drain)
    if job_status is not None:
        print_line(f"job {job_id} is {job_status.value}", sys.stderr)
    _show(status, f"savepoint of job {job_id}", as_json)


def _goes_on(what: str, job_id: JobID) -> str:
    return f"the {what} goes on; `python -m runtime.cluster job info {job_id}` shows what became of it"


def roll_back(client: ClusterClient, job_id: JobID, target: str, new_query_id: bool, as_json: bool) -> None:
    """`understudy job rollback`."""
    place = Path(target) if "/" in target or Path(target).is_dir() else target
    with waiting(f"rolling job {job_id} back", _goes_on("rollback", job_id)):
        status = client.roll_back(job_id, place, new_query_id=new_query_id)
    if as_json:
        print_json(to_plain(status))
    else:
        print_line(f"job {job_id} goes back to {status.path}: its tasks restart", sys.stderr)


def _show(status: OperationStatus, what: str, as_json: bool) -> None:
    """The directory to standard output, what is to be known beside it to standard error."""
    if as_json:
        print_json(to_plain(status))
    elif status.state is OperationState.COMPLETED:
        for note in status.notes:
            print_line(f"note: {note}", sys.stderr)
        print_line(status.path)
    if status.state is not OperationState.COMPLETED:
        if not as_json:
            print_error(f"the {what} failed: {status.error}", "the job goes on; mend the cause and ask again")
        sys.exit(1)


def print_checkpoints(figures: CheckpointStatsSnapshot) -> None:
    """The part of ``job info`` on checkpoints; nothing of a job that has had none."""
    counts = figures.counts
    if not counts.total and figures.latest_restored is None:
        return
    print_line("")
    restored = figures.latest_restored
    print_facts(
        {
            "Checkpoints": f"{counts.completed} completed, {counts.in_progress} in progress, {counts.failed} failed, "
            f"{counts.restored} restored",
            "Latest completed": _stats(figures.latest_completed),
            "Latest savepoint": _stats(figures.latest_savepoint),
            "Latest failed": _failure(figures.latest_failed),
            "Latest restored": ""
            if restored is None
            else f"{restored.external_path}, {format_moment(restored.restore_timestamp)}",
        }
    )


def _stats(stats: CheckpointStats | None) -> str:
    if stats is None:
        return ""
    size = f"{format_size(stats.state_size)}, {format_size(stats.checkpointed_size)} new"
    moment, duration = format_moment(stats.trigger_timestamp), format_duration(stats.end_to_end_duration)
    return f"{stats.id}, {moment}, {duration}, {size}, {stats.external_path}"


def _failure(stats: CheckpointStats | None) -> str:
    if stats is None:
        return ""
    return f"{stats.id}, {format_moment(stats.trigger_timestamp)}: {stats.failure_message}"
