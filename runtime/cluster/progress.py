"""How an attached ``job run`` shows its job: bars on a terminal, lines in a pipe.

Both write to standard error, so that standard output holds what the job prints and nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from runtime.cluster.formatting import clean, format_duration
from runtime.cluster.render import STATE_STYLES, is_fancy, print_line, task_counts
from runtime.cluster.views import JobView, VertexView

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class JobProgress(Protocol):
    """Shows a job as it goes; a context manager that leaves the terminal as it found it."""

    def update(self, job: JobView) -> None:
        """Shows the job as it is now."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def job_progress(
    stream: TextIO | None = None, output: TextIO | None = None, environ: Mapping[str, str] | None = None
) -> JobProgress:
    """Live bars when both streams are a terminal's, else plain lines.

    Args:
        stream: where to show it; None: standard error.
        output: where the job's own output goes; None: standard output.
        environ: the environment; None: that of the process.
    """
    stream, output = stream or sys.stderr, output or sys.stdout
    if is_fancy(stream, environ) and is_fancy(output, environ):
        return LiveProgress(stream)
    return PlainProgress(stream)


class PlainProgress:
    """One line for each change of state of the job and of each of its vertices."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[str, tuple[str, int]] = {}
        self._waiting_for = ""
        self._wait_is_told = False

    def update(self, job: JobView) -> None:
        """Writes what changed since the last time."""
        ended = job.ended_ms is not None
        if not ended:
            self._show_job(job)
        for vertex in job.vertices:
            if self._changed(vertex.id, vertex.state, vertex.attempt):
                self._write(f"vertex {clean(vertex.name)}: {vertex.state}{_vertex_notes(vertex)}")
        if ended:  # its vertices' last lines come before the job's own
            self._show_job(job)

    def _show_job(self, job: JobView) -> None:
        if self._changed("", job.state, job.restarts):
            notes = f" after {format_duration(job.ended_ms - job.started_ms)}" if job.ended_ms is not None else ""
            self._write(f"job {job.id} ({clean(job.name)}): {job.state}{notes}")
        if job.waiting_for != self._waiting_for:
            self._waiting_for = job.waiting_for  # every job waits for a moment: it is told when it lasts
            self._wait_is_told = False
        elif job.waiting_for and not self._wait_is_told:
            self._wait_is_told = True
            self._write(f"job {job.id} waits for {clean(job.waiting_for)}")

    def _changed(self, key: str, state: str, attempt: int) -> bool:
        if self._seen.get(key) == (state, attempt):
            return False
        self._seen[key] = (state, attempt)
        return True

    def _write(self, text: str) -> None:
        print_line(f"{time.strftime('%H:%M:%S')} {text}", self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.flush()


class LiveProgress:
    """A line for the job and, below it, a bar for each vertex with Spark's own counts of tasks."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._rows: dict[str, TaskID] = {}
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counts]}", markup=False, justify="right"),
            TextColumn("[{task.fields[style]}]{task.fields[state]}[/]"),
            TextColumn("{task.fields[lasted]}", markup=False, justify="right"),
            console=Console(file=stream),
            refresh_per_second=10,
        )

    def update(self, job: JobView) -> None:
        """Redraws the bars."""
        finished = sum(vertex.state == "FINISHED" for vertex in job.vertices)
        self._show(
            "",
            description=job.name + (f" (waits for {job.waiting_for})" if job.waiting_for else ""),
            state=job.state,
            total=max(1, len(job.vertices)),
            completed=finished if job.vertices else int(job.state == "FINISHED"),
            counts=f"{finished}/{len(job.vertices)}" if job.vertices else "",
            lasted=_lasted(job.started_ms, job.ended_ms),
        )
        for vertex in job.vertices:
            total, completed = bar_of(vertex)
            self._show(
                vertex.id,
                description=f"  {vertex.name}" + (f" (attempt {vertex.attempt + 1})" if vertex.attempt else ""),
                state=vertex.state,
                total=total,
                completed=completed,
                counts=task_counts(vertex),
                lasted=_lasted(vertex.started_ms, vertex.ended_ms),
            )

    def _show(
        self, key: str, *, description: str, state: str, total: int | None, completed: int, counts: str, lasted: str
    ) -> None:
        style = STATE_STYLES.get(state, "dim")
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._progress.add_task(
                clean(description),
                total=total,
                completed=completed,
                counts=counts,
                state=state,
                style=style,
                lasted=lasted,
            )
        task = self._progress.tasks[self._progress.task_ids.index(row)]
        task.total = total  # update() takes None for "leave it", but None is what makes a bar pulse
        self._progress.update(
            row,
            description=clean(description),
            completed=completed,
            counts=counts,
            state=state,
            style=style,
            lasted=lasted,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


def bar_of(vertex: VertexView) -> tuple[int | None, int]:
    """Total and completed of a vertex's bar: full when it is finished, empty before it runs, a total of None (a pulse)
    while it runs and Spark has said nothing of its tasks."""
    if vertex.state == "FINISHED":
        return 1, 1
    if vertex.tasks_total:
        return vertex.tasks_total, min(vertex.tasks_completed, vertex.tasks_total)
    return (None, 0) if vertex.state == "RUNNING" else (1, 0)


def _vertex_notes(vertex: VertexView) -> str:
    notes = []
    if vertex.attempt:
        notes.append(f"attempt {vertex.attempt + 1}")
    if vertex.ended_ms is not None and vertex.started_ms is not None:
        notes.append(f"after {format_duration(vertex.ended_ms - vertex.started_ms)}")
        if vertex.tasks_total:
            notes.append(f"{task_counts(vertex)} tasks")
    return f" ({', '.join(notes)})" if notes else ""


def _lasted(started_ms: int | None, ended_ms: int | None) -> str:
    if started_ms is None:
        return ""
    return format_duration((ended_ms if ended_ms is not None else int(time.time() * 1000)) - started_ms)
