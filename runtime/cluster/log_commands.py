"""How ``job logs`` shows logs: what is there, what is being written, and those of the TaskExecutors."""

from __future__ import annotations

import json
import sys

from actors.errors import ActorError
from actors.process.diagnostics import INHERITED, LEVELS, ROOT
from actors.rpc.codec import to_plain
from runtime.client import ClusterClient
from runtime.cluster.formatting import clean, clean_lines, format_moment
from runtime.cluster.render import print_failed_job, print_json, print_line, print_table
from runtime.cluster.views import view_of_job
from runtime.environment.errors import ClusterError
from runtime.gateways.errors import UnknownTaskExecutorError
from runtime.gateways.processes import chosen, log_level_changes
from runtime.ids import JobID, ResourceID
from runtime.job_logs import TASK_LOGS
from runtime.jobmaster.execution_state import JobStatus
from runtime.log_follower import LogFollower, LogPiece

INTERRUPTED = 130


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
        return INTERRUPTED
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


def show_log_levels(client: ClusterClient, process: str | None, as_json: bool) -> None:
    """The log levels of a process, or of all; one that does not answer is said on standard error."""
    found: dict[str, dict[str, str]] = {}
    known = client.diagnostics()
    for name in chosen(known, process):
        try:
            found[name] = known[name].request_log_levels().result()
        except ActorError as error:
            print_line(f"warning: {name} does not answer: {error}", sys.stderr)
    if as_json:
        print_json(found)
        return
    rows = [(name, logger, level) for name, levels in found.items() for logger, level in levels.items()]
    print_table(("PROCESS", "LOGGER", "LEVEL"), rows)


def change_log_level(client: ClusterClient, target: str, level: str, process: str | None, as_json: bool) -> int:
    """Set the level of the logger *target*, or of ``root`` in the process *target*; returns the exit status."""
    known = client.diagnostics()
    logger = target
    if process is None and target in known:
        process, logger = target, ROOT
    asks = {name: known[name].set_log_level(logger, level) for name in chosen(known, process)}
    outcomes: dict[str, str | BaseException] = {}
    for name, ask in asks.items():
        try:
            outcomes[name] = ask.result()
        except ActorError as error:
            outcomes[name] = error
    changes = log_level_changes(outcomes, logger, level)
    if as_json:
        print_json(to_plain(changes))
    for change in changes:
        if change.error:
            print_line(f"warning: {change.process} does not answer: {change.error}", sys.stderr)
        elif not as_json:
            print_line(f"{change.process}: {change.logger} is {change.level}, it was {change.was}")
    return 1 if any(change.error for change in changes) else 0


def level_of(text: str) -> str:
    """A level as it was typed; raises `ClusterError`."""
    level = text.upper()
    if level not in (*LEVELS, INHERITED):
        raise ClusterError(f"{text!r} is no log level", f"give one of {', '.join((*LEVELS, INHERITED))}")
    return level


def show_exceptions(client: ClusterClient, job_id: JobID | None, as_json: bool) -> None:
    """All failures of a job, the last first, each with the user's own traceback; by default of the last that failed."""
    if job_id is None:
        failed = [job for job in client.list_jobs() if job.status is JobStatus.FAILED]
        if not failed:
            raise ClusterError("no job has failed", "`python -m runtime.cluster job list` shows the jobs")
        job_id = max(failed, key=lambda job: job.end_ms or 0).job_id
    job = client.job(job_id)
    failures = list(reversed(job.failure_history))
    if job.failure is not None and job.failure not in failures:
        failures.insert(0, job.failure)
    if as_json:
        print_json({"job_id": job.job_id, "name": job.name, "state": job.status.value, "failures": to_plain(failures)})
        return
    print_line(f"job {job.job_id} ({clean(job.name)}) is {job.status.value}", sys.stderr)
    if not failures:
        print_line("nothing of it has failed", sys.stderr)
    for failure in failures:
        where = f", task {clean(failure.task)}" if failure.task else ""
        print_line(f"--- {format_moment(failure.timestamp_ms)}, {failure.kind.value}{where}", sys.stderr)
        print_line(clean_lines(failure.traceback).rstrip("\n") if failure.traceback else clean(str(failure)))
