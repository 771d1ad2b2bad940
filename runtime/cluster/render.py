"""Output of the command line: tables for people, plain ones for pipes, JSON for machines, errors with their remedies.

``rich`` is loaded only where a terminal shows a table, so that every other command starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from runtime.cluster.formatting import (
    clean,
    clean_lines,
    format_duration,
    format_moment,
    format_size,
    to_plain,
    width,
)
from runtime.cluster.preflight import CheckResult
from runtime.cluster.views import JobView, QueryView, TaskManagerRow, VertexView

STATE_STYLES = {
    "RUNNING": "green",
    "FINISHED": "bold green",
    "FAILED": "bold red",
    "FAILING": "red",
    "CANCELED": "yellow",
    "CANCELING": "yellow",
    "CANCELLING": "yellow",
    "RESTARTING": "yellow",
}

_NUMBERS = frozenset(
    {"SLOTS", "FREE", "SPARK", "MEMORY", "TASKS", "PID", "SPARK PID", "RESTARTS", "SIZE", "ATTEMPT", "BATCH"}
)


def is_fancy(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether a stream is a terminal that may be given colours (https://no-color.org is heeded)."""
    variables = os.environ if environ is None else environ
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM", "") not in ("", "dumb")


def print_line(text: str, stream: TextIO | None = None) -> None:
    """One line, as it is."""
    out = stream or sys.stdout
    out.write(text + "\n")
    out.flush()


def print_json(value: object, stream: TextIO | None = None) -> None:
    """A value for machines; dataclasses, enumerations and paths in their plain forms. Raises TypeError for others."""
    print_line(json.dumps(to_plain(value), indent=2), stream)


def print_error(error: BaseException | str, remedy: str = "", stream: TextIO | None = None) -> None:
    """``error: ...`` and, where there is one, ``remedy: ...`` on standard error, each on one line.

    Args:
        error: an exception, whose ``remedy`` attribute is used if it has one, or a text.
        remedy: in place of the exception's own.
        stream: in place of standard error.
    """
    out = stream or sys.stderr
    fancy = is_fancy(out)
    text = str(error) or type(error).__name__
    remedy = remedy or str(getattr(error, "remedy", "") or "")
    for label, style, line in (("error:", "31", text), ("remedy:", "36", remedy)):
        if line:
            head = f"\x1b[1;{style}m{label}\x1b[0m" if fancy else label
            out.write(f"{head} {clean(' '.join(line.split()))}\n")
    out.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], stream: TextIO | None = None) -> None:
    """A table: with colours on a terminal, aligned with spaces and never cut when piped.

    Args:
        columns: headings, in capitals; a column named STATE is coloured, those of numbers stand to the right.
        rows: one text for each column. Texts of others are escaped here.
        stream: in place of standard output.
    """
    out = stream or sys.stdout
    cells = [[clean(cell) for cell in row] for row in rows]
    if is_fancy(out):
        _print_rich_table(columns, cells, out)
        return
    widths = [max(map(width, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, *cells):
        padded = [
            " " * (wide - width(cell)) + cell if heading in _NUMBERS else cell + " " * (wide - width(cell))
            for heading, cell, wide in zip(columns, line, widths, strict=True)
        ]
        out.write("  ".join(padded).rstrip() + "\n")
    out.flush()


def _print_rich_table(columns: Sequence[str], rows: list[list[str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        # an id that is folded in two cannot be copied, so the other columns give way
        table.add_column(
            heading,
            justify="right" if heading in _NUMBERS else "left",
            no_wrap=heading in ("ID", "STATE"),
            overflow="fold",
        )
    for row in rows:
        # Text, not str: a job's name is not markup
        table.add_row(
            *(
                Text(cell, style=STATE_STYLES.get(cell, "") if heading == "STATE" else "")
                for heading, cell in zip(columns, row, strict=True)
            )
        )
    Console(file=out).print(table)


def print_jobs(jobs: Sequence[JobView], stream: TextIO | None = None, now_ms: int | None = None) -> None:
    """The table of ``job list``."""
    if not jobs:
        print_line("no jobs", stream)
        return
    now = _now_ms() if now_ms is None else now_ms
    rows = [
        (job.id, job.name, job.state, format_moment(job.started_ms), _lasted(job.started_ms, job.ended_ms, now))
        for job in jobs
    ]
    print_table(("ID", "NAME", "STATE", "STARTED", "DURATION"), rows, stream)


def print_job(job: JobView, stream: TextIO | None = None, now_ms: int | None = None) -> None:
    """The page of ``job info``: the job, its vertices, why it failed."""
    now = _now_ms() if now_ms is None else now_ms
    facts = {
        "Job": job.id,
        "Name": job.name,
        "State": job.state + (f" (waits for {job.waiting_for})" if job.waiting_for else ""),
        "Started": format_moment(job.started_ms),
        "Ended": format_moment(job.ended_ms) if job.ended_ms is not None else "",
        "Duration": _lasted(job.started_ms, job.ended_ms, now),
        "Restarts": str(job.restarts) if job.restarts else "",
        "Failures": ", ".join(f"{count} {kind}" for kind, count in job.failures.items()),
    }
    print_facts(facts, stream)
    if job.vertices:
        print_line("", stream)
        rows = [
            (
                vertex.name,
                vertex.state,
                str(vertex.attempt + 1),
                _lasted(vertex.started_ms, vertex.ended_ms, now),
                task_counts(vertex),
                vertex.task_manager,
            )
            for vertex in job.vertices
        ]
        print_table(("VERTEX", "STATE", "ATTEMPT", "DURATION", "TASKS", "TASKMANAGER"), rows, stream)
    if job.queries:
        print_line("", stream)
        queries = [
            (query.name or "-", query.id, query.run_id, "-" if query.batch is None else str(query.batch))
            for query in job.queries
        ]
        print_table(("STREAMING QUERY", "ID", "RUN ID", "BATCH"), queries, stream)
        _print_progress(job.queries, stream)
    if job.failure is not None:
        print_line("", stream)
        where = f" in task {job.failure.task!r}" if job.failure.task else ""
        print_line(f"Failure{clean(where)}: {_failure_text(job)}", stream)
        if job.failure.traceback:
            print_line(clean_lines(job.failure.traceback), stream)


def _print_progress(queries: Iterable[QueryView], stream: TextIO | None) -> None:
    rows = [
        (
            query.name or query.id,
            str(progress.rows),
            f"{progress.rows_per_second:.1f}",
            f"{progress.processed_per_second:.1f}",
            "-" if progress.lag is None else str(progress.lag),
            f"{progress.state_rows} rows, {format_size(progress.state_bytes)}",
            _batch_time(progress.duration_ms, query.trigger_interval_ms),
            "-" if query.back_pressure is None else query.back_pressure.level.name,
        )
        for query in queries
        if (progress := query.progress) is not None
    ]
    if rows:
        print_line("", stream)
        heads = ("LAST BATCH OF", "ROWS", "ROWS/S IN", "ROWS/S DONE", "LAG", "STATE", "TOOK", "BACK PRESSURE")
        print_table(heads, rows, stream)


def _batch_time(duration_ms: int, interval_ms: int | None) -> str:
    took = format_duration(duration_ms)
    return took if interval_ms is None else f"{took} of {format_duration(interval_ms)}"


def print_failed_job(job: JobView, stream: TextIO | None = None) -> None:
    """The end of an attached run that failed, on standard error: the user's traceback, then the job's state."""
    out = stream or sys.stderr
    if job.failure is not None and job.failure.traceback:
        print_line(clean_lines(job.failure.traceback), out)
    cause = f": {_failure_text(job)}" if job.failure is not None else ""
    remedy = "" if job.failure is None else job.failure.remedy
    print_error(
        f"job {job.id} ({job.name}) {job.state}{cause}",
        remedy or f"python -m runtime.cluster job logs {job.id} shows its output",
        out,
    )


def print_task_managers(
    rows: Sequence[TaskManagerRow], stream: TextIO | None = None, now_ms: int | None = None
) -> None:
    """The table of TaskManagers of ``status``."""
    if not rows:
        print_line("no TaskManagers", stream)
        return
    now = _now_ms() if now_ms is None else now_ms
    print_table(
        ("ID", "SLOTS", "FREE", "SPARK", "MEMORY", "PID", "SPARK PID", "HEARD OF", "ADDRESS"),
        [
            (
                row.id,
                str(row.slots),
                str(row.free_slots),
                row.spark_master,
                format_size(row.memory_bytes),
                str(row.pid),
                str(row.spark_pid),
                f"{format_duration(now - row.last_heartbeat_ms)} ago",
                row.address,
            )
            for row in rows
        ],
        stream,
    )
    for row in rows:
        if row.spark_loss:
            print_line(clean(f"{row.id}: its Spark driver was replaced; {row.spark_loss}"), stream)


def print_checks(results: Sequence[CheckResult], stream: TextIO | None = None) -> None:
    """The table of ``doctor``."""
    rows = [(result.name, "ok" if result.ok else "FAILED", result.detail, result.remedy) for result in results]
    print_table(("CHECK", "STATE", "FOUND", "REMEDY"), rows, stream)


def print_facts(facts: Mapping[str, str], stream: TextIO | None = None) -> None:
    """Names and values, one pair a line, aligned; pairs without a value are left out."""
    shown = {name: value for name, value in facts.items() if value}
    wide = max(map(width, shown), default=0)
    for name, value in shown.items():
        print_line(f"{name + ':':<{wide + 1}}  {clean(value)}", stream)


def task_counts(vertex: VertexView) -> str:
    """Spark tasks completed and known of a vertex: ``3/8``, or nothing while none are known."""
    return f"{vertex.tasks_completed}/{vertex.tasks_total}" if vertex.tasks_total else ""


def _failure_text(job: JobView) -> str:
    assert job.failure is not None
    return clean(f"{job.failure.type}: {job.failure.message}" if job.failure.message else job.failure.type)


def _lasted(started_ms: int | None, ended_ms: int | None, now_ms: int) -> str:
    return "" if started_ms is None else format_duration((ended_ms if ended_ms is not None else now_ms) - started_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)
