"""``log-level`` and ``job exceptions``: what helps who looks for a fault."""

from __future__ import annotations

import sys

from actors.errors import ActorError
from actors.process.diagnostics import INHERITED, LEVELS, ROOT
from actors.rpc.codec import to_plain
from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.cluster.formatting import clean, clean_lines, format_moment
from runtime.cluster.render import print_json, print_line, print_table
from runtime.cluster.running import job_id_of, readable_errors
from runtime.cluster.session import connect
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.processes import chosen, log_level_changes


def job_exceptions(configuration: Configuration, job_id: str | None, as_json: bool) -> None:
    """`understudy job exceptions`."""
    wanted = None if job_id is None else job_id_of(job_id)
    with readable_errors(), connect(configuration) as client:
        show_exceptions(client, wanted, as_json)


def log_level(
    configuration: Configuration, target: str | None, level: str | None, process: str | None, as_json: bool
) -> None:
    """`understudy log-level`."""
    wanted = None if level is None else level_of(level)
    with readable_errors(), connect(configuration) as client:
        if target is None or wanted is None:
            show_log_levels(client, target or process, as_json)
        else:
            sys.exit(change_log_level(client, target, wanted, process, as_json))


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
