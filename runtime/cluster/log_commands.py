"""How ``job logs`` shows logs: what is there, what is being written, and those of the TaskExecutors."""

from __future__ import annotations

import json
import sys

from actors.rpc.codec import to_plain
from runtime.client import ClusterClient
from runtime.cluster.render import print_failed_job, print_json, print_line
from runtime.cluster.running import ExitStatus
from runtime.cluster.views import view_of_job
from runtime.ids import JobID, ResourceID
from runtime.job_logs import TASK_LOGS
from runtime.log_follower import LogFollower, LogPiece
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus


def show_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """What the attempts of a job wrote: standard output to ours, standard error to ours."""
    logs = client.logs(job_id)
    if as_json:
        print_json([{**to_plain(log), "text": content.decode(errors="replace")} for log, content in logs])
        return
    for log, content in logs:
        if content and log.name in TASK_LOGS:
            _show(f"{log.task}, attempt {log.attempt + 1}, {log.name}", log.name, content.decode(errors="replace"))


def show_task_executor_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> None:
    """The logs of the TaskExecutors that a job ran on, as far as these are there, and what its attempts kept."""
    job = client.job(job_id)
    kept = [(log, text) for log, text in client.logs(job_id) if log.name not in TASK_LOGS]
    names = sorted({attempt.task_executor for task in job.tasks for attempt in task.attempts if attempt.task_executor})
    found = []
    for name in names:
        try:
            found += client.task_executor_logs(ResourceID(name))
        except UnknownTaskExecutorError as error:
            print_line(f"--- {error}", sys.stderr)
    if as_json:
        print_json([{**to_plain(log), "text": content.decode(errors="replace")} for log, content in [*kept, *found]])
        return
    for attempt_log, content in kept:
        title = f"{attempt_log.name}, while {attempt_log.task}, attempt {attempt_log.attempt + 1}, ran"
        _show(title, "stdout", content.decode(errors="replace"))
    for log, content in found:
        _show(f"{log.resource_id}, {log.name}", "stdout", content.decode(errors="replace"))


def follow_logs(client: ClusterClient, job_id: JobID, as_json: bool) -> int:
    """Show what a job's attempts write until it is over; returns the exit status, as of ``job run``.

    With *as_json* each piece is a JSON object on a line of its own. Ctrl-C ends the following, not the job.
    """
    follower = LogFollower(client)
    title = ""
    try:
        for job in client.watch(job_id):
            for piece in follower.poll(job):
                title = _show_piece(piece, title, as_json)
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    if job.status is not JobStatus.FINISHED:
        print_failed_job(view_of_job(job))
        return 1
    return 0


def _show_piece(piece: LogPiece, last: str, as_json: bool) -> str:
    """Show one, with a title where it is of another log than the last one; returns its title."""
    title = f"{piece.task}, attempt {piece.attempt + 1}, {piece.name}"
    if as_json:
        print_line(json.dumps(to_plain(piece)))
    elif piece.is_note:
        print_line(f"--- {title}: {piece.text}", sys.stderr)
    else:
        _show("" if title == last else title, piece.name, piece.text)
    return title


def _show(title: str, name: str, text: str) -> None:
    if title:
        print_line(f"--- {title}", sys.stderr)
    stream = sys.stderr if name == "stderr" else sys.stdout
    stream.write(text)
    stream.flush()
