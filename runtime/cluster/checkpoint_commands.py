"""The commands on a job's checkpoints: ``job checkpoint``, ``job savepoint``, ``job stop`` and ``job rollback``."""

from __future__ import annotations

import sys
from pathlib import Path

from actors.rpc.codec import to_plain
from conf.configuration import Configuration
from runtime.cluster.formatting import format_duration, format_moment, format_size
from runtime.cluster.render import print_error, print_facts, print_json, print_line
from runtime.cluster.running import job_id_of, readable_errors, waiting
from runtime.cluster.session import connect
from runtime.ids import JobID
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus

_STOP_REMEDY = "`job info` shows whether the job goes on, or why it has ended; mend the cause and ask again"


def job_checkpoint(configuration: Configuration, job_id: str, as_json: bool) -> None:
    """`understudy job checkpoint`."""
    wanted = job_id_of(job_id)
    with readable_errors(), connect(configuration) as client:
        with waiting(f"taking a checkpoint of job {wanted}", _goes_on("checkpoint", wanted)):
            status = client.trigger_checkpoint(wanted)
        _show(status, f"checkpoint of job {wanted}", as_json)


def job_savepoint(configuration: Configuration, job_id: str, directory: str | None, as_json: bool) -> None:
    """`understudy job savepoint`."""
    wanted = job_id_of(job_id)
    with readable_errors(), connect(configuration) as client:
        with waiting(f"making a savepoint of job {wanted}", _goes_on("savepoint", wanted)):
            status = client.trigger_savepoint(wanted, None if directory is None else Path(directory))
        _show(status, f"savepoint of job {wanted}", as_json)


def job_stop(configuration: Configuration, job_id: str, directory: str | None, drain: bool, as_json: bool) -> None:
    """`understudy job stop`."""
    wanted, target = job_id_of(job_id), None if directory is None else Path(directory)
    with readable_errors(), connect(configuration) as client:
        with waiting(f"stopping job {wanted}", _goes_on("stop", wanted)):
            status, job_status = client.stop_and_await_end(wanted, target, drain=drain)
        if job_status is not None:
            print_line(f"job {wanted} is {job_status.value}", sys.stderr)
        _show(status, f"savepoint of job {wanted}", as_json, _STOP_REMEDY)
        if failure := client.stop_failure(status, job_status):
            print_error(failure, _STOP_REMEDY)
            sys.exit(1)


def job_rollback(configuration: Configuration, job_id: str, target: str, new_query_id: bool, as_json: bool) -> None:
    """`understudy job rollback`."""
    wanted = job_id_of(job_id)
    place = Path(target) if "/" in target or Path(target).is_dir() else target
    with readable_errors(), connect(configuration) as client:
        with waiting(f"rolling job {wanted} back", _goes_on("rollback", wanted)):
            status = client.roll_back(wanted, place, new_query_id=new_query_id)
        if as_json:
            print_json(to_plain(status))
        else:
            print_line(f"job {wanted} goes back to {status.path}: its tasks restart", sys.stderr)


def _goes_on(what: str, job_id: JobID) -> str:
    return f"the {what} goes on; `python -m runtime.cluster job info {job_id}` shows what became of it"


def _show(
    status: OperationStatus, what: str, as_json: bool, remedy: str = "the job goes on; mend the cause and ask again"
) -> None:
    """The directory to standard output, what is to be known beside it to standard error."""
    if as_json:
        print_json(to_plain(status))
    elif status.state is OperationState.COMPLETED:
        for note in status.notes:
            print_line(f"note: {note}", sys.stderr)
        print_line(status.path)
    if status.state is not OperationState.COMPLETED:
        if not as_json:
            print_error(f"the {what} failed: {status.error}", remedy)
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
