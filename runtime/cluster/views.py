"""Jobs and TaskExecutors as the command line shows them: values, tables, and progress of a running job."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from runtime.cluster.output import (
    STATE_STYLES,
    clean,
    clean_lines,
    format_duration,
    format_moment,
    format_size,
    is_fancy,
    print_error,
    print_facts,
    print_line,
    print_table,
)

if TYPE_CHECKING:  # commands that show none of these do not load them
    from rich.progress import Progress, TaskID

    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails, TaskInfo, VertexInfo
    from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot
    from runtime.protocol.execution_state import ErrorInfo
    from runtime.protocol.messages import TaskManagerView
    from runtime.protocol.rescales import Advice, Rescale
    from runtime.protocol.streaming_query import StreamingQuery


@dataclass(frozen=True, slots=True)
class VertexView:
    """A vertex of a job and its present attempt.

    Attributes:
        id: its id.
        name: its name.
        state: Flink's name of its execution state.
        attempt: 0 for the first attempt.
        started_ms: when its attempt was deployed, in milliseconds since 1970; None before that.
        ended_ms: when it ended; None before that.
        tasks_total: Spark tasks known so far; 0 while none are known.
        tasks_completed: number of completed ones.
        task_manager: name of its TaskExecutor, or empty.
    """

    id: str
    name: str
    state: str
    attempt: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    tasks_total: int = 0
    tasks_completed: int = 0
    task_manager: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job.

    Attributes:
        id: its id.
        name: its name.
        state: Flink's name of its state.
        started_ms: when it was accepted, in milliseconds since 1970.
        ended_ms: when it ended; None before that.
        restarts: number of restarts.
        waiting_for: what it waits for, such as ``2 slots``; else empty.
        vertices: in topological order; empty for a line of a list.
        failure: why it failed or was last restarted.
        failures: the number of failures by their kind.
        queries: its active streaming queries.
        kind: script or pipeline, and whether it streams, in words.
        submitter: name of the user who submitted it, as the client says; empty if it is not known.
        owner: name of the user whose token submitted it; empty if there is none.
        upgraded_from: id of the job whose place it took; empty for any other job.
        cancelled_because: why the cluster cancelled it; empty if a user did.
        spark_applications: ids of the Spark applications that ran its attempts, the first one first.
        trace_id: of its OpenTelemetry trace; empty if it has none.
        rescales: the last changes of the number of partitions of its state, the oldest first.
        advice: the autoscaler's last decision about each of its queries.
    """

    id: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None = None
    restarts: int = 0
    waiting_for: str = ""
    vertices: tuple[VertexView, ...] = ()
    failure: ErrorInfo | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    queries: tuple[StreamingQuery, ...] = ()
    kind: str = ""
    submitter: str = ""
    owner: str = ""
    upgraded_from: str = ""
    cancelled_because: str = ""
    spark_applications: tuple[str, ...] = ()
    trace_id: str = ""
    rescales: tuple[Rescale, ...] = ()
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptInSpark:
    """An attempt's work in Spark.

    Attributes:
        task: name of its task.
        attempt: its number, from 0.
        application: id of the Spark application; empty if none is known.
        url: of the work in Spark's own pages; empty if there is no link.
        note: why there is no link, and what to do; else empty.
    """

    task: str
    attempt: int
    application: str
    url: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class TaskManagerRow:
    """A registered TaskExecutor.

    Attributes:
        id: its resource id.
        address: its gateway's address.
        slots: number of slots.
        free_slots: number of free slots.
        spark_master: master URL of its Spark driver.
        memory_bytes: heap of its Spark driver.
        pid: its process.
        spark_pid: process of its Spark driver.
        last_heartbeat_ms: time of its last heartbeat, in milliseconds since 1970.
        spark_loss: when and why its Spark driver was last replaced; else empty.
        user: the user whose jobs alone it serves at present; else empty.
    """

    id: str
    address: str
    slots: int
    free_slots: int
    spark_master: str
    memory_bytes: int
    pid: int
    spark_pid: int
    last_heartbeat_ms: int
    spark_loss: str = ""
    user: str = ""


def view_of_details(details: JobDetails) -> JobView:
    """Return a job as a line of a list."""
    return JobView(
        id=details.job_id,
        name=details.name,
        state=details.status.value,
        started_ms=details.start_ms,
        ended_ms=details.end_ms,
        kind=_kind_of(details),
        submitter=details.submitter,
        owner=details.owner,
        waiting_for=details.waiting_for,
    )


def view_of_job(job: ArchivedExecutionGraph) -> JobView:
    """Return a job with its vertices, each with the state and times of its task's present attempt."""
    tasks = {task.key: task for task in job.tasks}
    waiting = [task.waiting_for for task in job.tasks if task.state.value == "SCHEDULED" and task.waiting_for]
    if any(task.state.is_deployed for task in job.tasks):
        # The job makes progress, and the other tasks wait for these; or it stands by.
        waiting = [task.waiting_for for task in job.tasks if task.state.is_deployed and task.waiting_for]
    return JobView(
        id=job.job_id,
        name=job.name,
        state=job.status.value,
        started_ms=job.start_ms,
        ended_ms=job.end_ms,
        restarts=job.restarts,
        waiting_for=", ".join(dict.fromkeys(waiting)),
        vertices=tuple(_view_of_vertex(vertex, tasks[vertex.task]) for vertex in job.vertices),
        failure=job.failure,
        failures=job.failure_counts,
        queries=tuple(query for task in job.tasks if not task.state.is_terminal for query in task.attempts[-1].queries),
        kind=_kind_of(job),
        submitter=job.submitter,
        owner=job.owner,
        upgraded_from=job.upgraded_from,
        cancelled_because=job.cancelled_because,
        spark_applications=_applications_of(job),
        trace_id=job.trace_id,
        rescales=job.rescales,
        advice=job.advice,
    )


def print_spark(rows: Iterable[AttemptInSpark], stream: TextIO | None = None) -> None:
    """Print where Spark's own pages show the work of a job's attempts; nothing for a job that has not run in Spark."""
    known = [row for row in rows if row.application]
    if not known:
        return
    print_line("", stream)
    has_links = any(row.url for row in known)
    cells = [(row.task, str(row.attempt + 1), row.application, *([row.url or "-"] * has_links)) for row in known]
    print_table(("TASK", "ATTEMPT", "SPARK APPLICATION", *(["SPARK'S PAGES"] * has_links)), cells, stream)
    for note in dict.fromkeys(row.note for row in known if row.note):
        print_line(clean(note), stream)


def _applications_of(job: ArchivedExecutionGraph) -> tuple[str, ...]:
    attempts = (attempt for task in job.tasks for attempt in task.attempts)
    return tuple(dict.fromkeys(attempt.spark.application for attempt in attempts if attempt.spark is not None))


def _kind_of(job: JobDetails | ArchivedExecutionGraph) -> str:
    return f"{job.kind.value}, streaming" if job.streams else job.kind.value


def view_of_task_manager(view: TaskManagerView) -> TaskManagerRow:
    """Return a TaskExecutor as a line of a list."""
    registration = view.registration
    return TaskManagerRow(
        id=registration.resource_id,
        address=registration.address,
        slots=registration.slots,
        free_slots=view.free_slots,
        spark_master=registration.spark_master,
        memory_bytes=registration.memory_bytes,
        pid=registration.pid,
        spark_pid=registration.spark_pid,
        last_heartbeat_ms=view.last_heartbeat_ms,
        spark_loss=registration.spark_loss,
        user=view.user,
    )


def _view_of_vertex(vertex: VertexInfo, task: TaskInfo) -> VertexView:
    attempt = task.attempts[-1]
    return VertexView(
        id=vertex.id,
        name=vertex.name,
        state=vertex.state.value,
        attempt=attempt.number,
        started_ms=attempt.timestamps.get("DEPLOYING"),
        ended_ms=attempt.end_ms,
        tasks_total=vertex.progress.tasks_total,
        tasks_completed=vertex.progress.tasks_completed,
        task_manager=attempt.task_executor,
    )


# ------------------------------------------------------------------------ tables


def print_jobs(jobs: Sequence[JobView], stream: TextIO | None = None, now_ms: int | None = None) -> None:
    """Print the table of ``job list``."""
    if not jobs:
        print_line("no jobs", stream)
        return
    now = _now_ms() if now_ms is None else now_ms
    rows = [
        (
            job.id,
            job.name,
            job.kind,
            job.owner or job.submitter or "-",
            job.state,
            format_moment(job.started_ms),
            _lasted(job.started_ms, job.ended_ms, now),
        )
        for job in jobs
    ]
    headings = ("ID", "NAME", "KIND", "SUBMITTER", "STATE", "STARTED", "DURATION")
    if any(job.waiting_for for job in jobs):
        with_reasons = [(*row, job.waiting_for) for row, job in zip(rows, jobs, strict=True)]
        print_table((*headings, "WAITS FOR"), with_reasons, stream)
    else:
        print_table(headings, rows, stream)


def print_job(job: JobView, stream: TextIO | None = None, now_ms: int | None = None) -> None:
    """Print the page of ``job info``: the job, its vertices and queries, and why it failed."""
    now = _now_ms() if now_ms is None else now_ms
    facts = {
        "Job": job.id,
        "Name": job.name,
        "Kind": job.kind,
        "Submitter": job.submitter,
        "Owner": job.owner,
        "Upgraded from": job.upgraded_from,
        "State": job.state + (f" (waits for {job.waiting_for})" if job.waiting_for else "") + _because(job),
        "Started": format_moment(job.started_ms),
        "Ended": format_moment(job.ended_ms) if job.ended_ms is not None else "",
        "Duration": _lasted(job.started_ms, job.ended_ms, now),
        "Restarts": str(job.restarts) if job.restarts else "",
        "Failures": ", ".join(f"{count} {kind}" for kind, count in job.failures.items()),
        "Spark": ", ".join(job.spark_applications),
        "Trace": job.trace_id,
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
        print_table(("VERTEX", "STATE", "ATTEMPT", "DURATION", "TASKS", "TASKEXECUTOR"), rows, stream)
    if job.queries:
        print_line("", stream)
        queries = [
            (query.name or "-", query.id, query.run_id, "-" if query.batch is None else str(query.batch))
            for query in job.queries
        ]
        print_table(("STREAMING QUERY", "ID", "RUN ID", "BATCH"), queries, stream)
        _print_progress(job.queries, stream)
    _print_rescales(job.rescales, stream, now)
    if job.advice:
        print_line("", stream)
        print_advice(job.advice, stream)
    if job.failure is not None:
        print_line("", stream)
        where = f" in task {job.failure.task!r}" if job.failure.task else ""
        print_line(clean(f"Failure{where}: {job.failure}"), stream)
        if job.failure.traceback:
            print_line(clean_lines(job.failure.traceback), stream)


def _because(job: JobView) -> str:
    return f" ({clean(job.cancelled_because)})" if job.cancelled_because else ""


def _print_progress(queries: Iterable[StreamingQuery], stream: TextIO | None) -> None:
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


def _print_rescales(rescales: Sequence[Rescale], stream: TextIO | None, now_ms: int) -> None:
    rows = []
    for one in rescales:
        before = ", ".join(str(number) for number in dict.fromkeys(one.before.values())) or "?"
        lasted = "-" if one.is_over and one.ended_ms is None else _lasted(one.started_ms, one.ended_ms, now_ms)
        rows.append(
            (
                f"{one.number}{' (undo)' if one.is_undo else ''}",
                f"{before} -> {'?' if one.partitions is None else one.partitions}",
                one.state.value,
                one.cause.value.lower(),
                format_moment(one.started_ms),
                lasted,
                "; ".join(text for text in (one.reason, one.error or one.savepoint) if text) or "-",
            )
        )
    if rows:
        print_line("", stream)
        print_table(("RESCALE", "PARTITIONS", "STATE", "ASKED BY", "STARTED", "TOOK", "REASON, OUTCOME"), rows, stream)


def print_advice(advice: Iterable[Advice], stream: TextIO | None = None) -> None:
    """Print the autoscaler's decisions as a table."""
    rows = [
        (
            one.query,
            *("-" if number is None else str(number) for number in (one.partitions, one.wanted, one.cores)),
            one.reason,
        )
        for one in advice
    ]
    print_table(("QUERY", "PARTITIONS", "WANTED", "CORES", "REASON"), rows, stream)


def _batch_time(duration_ms: int, interval_ms: int | None) -> str:
    took = format_duration(duration_ms)
    return took if interval_ms is None else f"{took} of {format_duration(interval_ms)}"


_JAVA_FRAME = re.compile(r"\s+(at [\w.$/<>]+\(.*\)|\.\.\. \d+ more)")


def print_ended_job(job: JobView, stream: TextIO | None = None, *, with_traceback: bool = True) -> None:
    """Print how a followed job has ended, to standard error, unless it is FINISHED.

    Frames of Java are left out: ``job exceptions`` prints them.

    Args:
        job: its final state.
        stream: replaces standard error.
        with_traceback: whether to print the user's traceback first; False if the job's own output had it.
    """
    out = stream or sys.stderr
    if job.state == "FINISHED":
        return
    if job.state == "CANCELED":
        print_line(f"job {job.id} ({clean(job.name)}) is CANCELED{_because(job)}", out)
        return
    if with_traceback and job.failure is not None and job.failure.traceback:
        lines = clean_lines(job.failure.traceback).splitlines()
        print_line("\n".join(line for line in lines if not _JAVA_FRAME.fullmatch(line)), out)
    cause, remedy = ("", "") if job.failure is None else (f": {job.failure.cause}", job.failure.kind.remedy)
    verb = "logs" if job.failure is None or job.failure.cause == str(job.failure) else "exceptions"
    what = {"logs": "its output", "exceptions": "all of the failure"}[verb]
    print_error(
        f"job {job.id} ({job.name}) {job.state}{cause}",
        remedy or f"`understudy job {verb} {job.id}` shows {what}",
        out,
    )


def print_task_managers(
    rows: Sequence[TaskManagerRow], stream: TextIO | None = None, now_ms: int | None = None
) -> None:
    """Print the table of TaskExecutors of ``status``."""
    if not rows:
        print_line("no TaskExecutors", stream)
        return
    now = _now_ms() if now_ms is None else now_ms
    of_users = any(row.user for row in rows)
    print_table(
        ("ID", "SLOTS", "FREE", *(["USER"] * of_users), "SPARK", "MEMORY", "PID", "SPARK PID", "HEARD OF", "ADDRESS"),
        [
            (
                row.id,
                str(row.slots),
                str(row.free_slots),
                *([row.user or "-"] * of_users),
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


def print_checkpoints(figures: CheckpointStatsSnapshot) -> None:
    """Print the checkpoints of ``job info``; nothing for a job without any."""
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


def task_counts(vertex: VertexView) -> str:
    """Return a vertex's completed and known Spark tasks as ``3/8``; empty while none are known."""
    return f"{vertex.tasks_completed}/{vertex.tasks_total}" if vertex.tasks_total else ""


def _lasted(started_ms: int | None, ended_ms: int | None, now_ms: int | None = None) -> str:
    if started_ms is None:
        return ""
    end_ms = _now_ms() if now_ms is None else now_ms
    return format_duration((end_ms if ended_ms is None else ended_ms) - started_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)


# ------------------------------------------------------------------------ progress


class JobProgress(AbstractContextManager["JobProgress", None], Protocol):
    """Shows a job while it runs; a context manager that restores the terminal."""

    def update(self, job: JobView) -> None:
        """Show the job's present state."""

    def hide(self) -> None:
        """Free the terminal for other output, until the next update."""


def job_progress(
    stream: TextIO | None = None,
    output: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    states: bool = True,
) -> JobProgress:
    """Return live bars if both streams are terminals, else plain lines.

    Args:
        stream: stream on which to show the job; None: standard error, which leaves standard output to the job.
        output: stream of the job's own output; None: standard output.
        environ: the environment; None: that of the process.
        states: as in `PlainProgress`.
    """
    stream, output = stream or sys.stderr, output or sys.stdout
    if is_fancy(stream, environ) and is_fancy(output, environ):
        return LiveProgress(stream)
    return PlainProgress(stream, states=states)


class PlainProgress:
    """Prints a line whenever the state of the job or of a vertex changes.

    Args:
        stream: stream that receives the lines.
        states: whether to print the states; otherwise only what the job waits for.
    """

    def __init__(self, stream: TextIO, *, states: bool = True) -> None:
        self._stream = stream
        self._states = states
        self._seen: dict[str, tuple[str, int]] = {}
        self._waiting_for = ""
        self._wait_is_told = False

    def update(self, job: JobView) -> None:
        """Print what has changed since the last call."""
        ended = job.ended_ms is not None
        if not ended:
            self._show_job(job)
        for vertex in job.vertices if self._states else ():
            if self._changed(vertex.id, vertex.state, vertex.attempt):
                self._write(f"vertex {clean(vertex.name)}: {vertex.state}{_vertex_notes(vertex)}")
        if ended:  # the last lines of its vertices come first
            self._show_job(job)

    def hide(self) -> None:
        """Do nothing: printed lines stay."""

    def _show_job(self, job: JobView) -> None:
        if self._states and self._changed("", job.state, job.restarts):
            notes = f" after {format_duration(job.ended_ms - job.started_ms)}" if job.ended_ms is not None else ""
            self._write(f"job {job.id} ({clean(job.name)}): {job.state}{notes}")
        if job.waiting_for != self._waiting_for:
            self._waiting_for = job.waiting_for  # every job waits for a moment, so only a longer wait is shown
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

    def __exit__(self, *_: object) -> None:
        self._stream.flush()


class LiveProgress:
    """Draws a bar for the job and, below it, one for each vertex, with Spark's counts of tasks.

    Hidden bars are erased, and drawn again below the output that replaced them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def _bars(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        return Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counts]}", markup=False, justify="right"),
            TextColumn("[{task.fields[style]}]{task.fields[state]}[/]"),
            TextColumn("{task.fields[lasted]}", markup=False, justify="right"),
            console=Console(file=self._stream),
            refresh_per_second=10,
        )

    def hide(self) -> None:
        """Erase the bars until the next update."""
        if self._progress is not None:
            self._progress.live.transient = True
            self._progress.stop()
            self._progress = None  # if restarted, rich would move up by as many lines as it had drawn
            self._rows.clear()

    def update(self, job: JobView) -> None:
        """Redraw the bars."""
        if self._progress is None:
            self._progress = self._bars()
            self._progress.start()
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
        fields: dict[str, Any] = {
            "counts": counts,
            "state": state,
            "style": STATE_STYLES.get(state, "dim"),
            "lasted": lasted,
        }
        assert self._progress is not None
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._progress.add_task(clean(description), total=total, **fields)
        task = self._progress.tasks[self._progress.task_ids.index(row)]
        task.total = total  # update() ignores None, which makes a bar pulse
        self._progress.update(row, description=clean(description), completed=completed, **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def bar_of(vertex: VertexView) -> tuple[int | None, int]:
    """Return total and completed of a vertex's bar.

    The bar is full when the vertex is finished and empty before it runs. It pulses (a total of None) while the vertex
    runs and Spark has reported no tasks.
    """
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
