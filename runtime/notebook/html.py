"""A cluster, its jobs and their checkpoints as HTML, for Jupyter's cells. Pure; all texts are escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from runtime.cluster.output import format_duration, format_moment, format_size
from runtime.cluster.views import JobView, TaskManagerRow, VertexView, bar_of, task_counts
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot
from runtime.protocol.messages import ClusterOverview

_COLOURS = {
    "RUNNING": "#2e7d32",
    "FINISHED": "#1b5e20",
    "COMPLETED": "#1b5e20",
    "FAILED": "#b71c1c",
    "FAILING": "#b71c1c",
    "CANCELED": "#8d6e00",
    "CANCELLING": "#8d6e00",
    "RESTARTING": "#8d6e00",
}


def cluster_html(
    address: str, overview: ClusterOverview, workers: Sequence[TaskManagerRow], jobs: Sequence[JobView]
) -> str:
    """Return a cluster as HTML: its figures, its TaskExecutors, its newest jobs."""
    facts = {
        "Cluster": address,
        "Slots": f"{overview.free_slots} of {overview.slots} free",
        "Jobs": f"{overview.jobs_running} running, {overview.jobs_finished} finished, {overview.jobs_failed} failed, "
        f"{overview.jobs_cancelled} cancelled",
    }
    rows = [
        (row.id, f"{row.free_slots} of {row.slots}", row.spark_master, format_size(row.memory_bytes), row.address)
        for row in workers
    ]
    parts = [_facts(facts), _table(("TaskExecutor", "Free slots", "Spark", "Memory", "Address"), rows)]
    return "".join([*parts, jobs_html(jobs) if jobs else ""])


def jobs_html(jobs: Sequence[JobView], now_ms: int | None = None) -> str:
    """Return jobs as a table, one line each."""
    rows = [
        (job.id, job.name, job.state, format_moment(job.started_ms), _lasted(job.started_ms, job.ended_ms, now_ms))
        for job in jobs
    ]
    return _table(("Job", "Name", "State", "Started", "Duration"), rows) if rows else "no jobs"


def job_html(job: JobView, picture: str = "", now_ms: int | None = None) -> str:
    """Return a job as HTML: its figures, its vertices with bars, its streaming queries, why it failed.

    Args:
        job: its present state.
        picture: its graph, an SVG document in base64; shown as an image, so that its style affects only itself.
        now_ms: the time in milliseconds since the epoch; None: the clock's.
    """
    facts = {
        "Job": f"{job.name} ({job.id})",
        "State": job.state + (f" (waits for {job.waiting_for})" if job.waiting_for else ""),
        "Duration": _lasted(job.started_ms, job.ended_ms, now_ms),
        "Restarts": str(job.restarts) if job.restarts else "",
    }
    parts = [_facts(facts, job.state)]
    if picture:
        parts.append(f'<img alt="the graph of the job" src="data:image/svg+xml;base64,{escape(picture)}"/>')
    parts.append(_vertices(job.vertices, now_ms))
    if job.queries:
        queries = [(query.name or query.id, "" if query.batch is None else str(query.batch)) for query in job.queries]
        parts.append(_table(("Streaming query", "Batch"), queries))
    if job.failure is not None:
        text = job.failure.traceback or f"{job.failure.type}: {job.failure.message}"
        parts.append(f"<pre>{escape(text)}</pre>")
    return "".join(parts)


def checkpoints_html(figures: CheckpointStatsSnapshot) -> str:
    """Return a job's checkpoints as HTML; empty if it has had none."""
    if not figures.counts.total and figures.latest_restored is None:
        return ""
    counts, restored = figures.counts, figures.latest_restored
    facts = {
        "Checkpoints": f"{counts.completed} completed, {counts.in_progress} in progress, {counts.failed} failed",
        "Restored from": "" if restored is None else restored.external_path,
    }
    heads = ("Number", "Type", "State", "Triggered", "Took", "State size", "New", "Directory")
    return _facts(facts) + _table(heads, [_checkpoint(stats) for stats in figures.history])


def _checkpoint(stats: CheckpointStats) -> tuple[str, ...]:
    return (
        str(stats.id),
        stats.type.value.lower(),
        stats.status.value,
        format_moment(stats.trigger_timestamp),
        format_duration(stats.end_to_end_duration),
        format_size(stats.state_size),
        format_size(stats.checkpointed_size),
        stats.external_path or stats.failure_message,
    )


def _vertices(vertices: Iterable[VertexView], now_ms: int | None) -> str:
    rows = [
        "<tr>"
        + _cell(vertex.name + (f" (attempt {vertex.attempt + 1})" if vertex.attempt else ""))
        + f"<td>{_bar(vertex)}</td>"
        + _cell(task_counts(vertex))
        + _cell(vertex.state)
        + _cell(_lasted(vertex.started_ms, vertex.ended_ms, now_ms))
        + "</tr>"
        for vertex in vertices
    ]
    return (
        "<table><tr><th>Vertex</th><th></th><th>Tasks</th><th>State</th><th>Duration</th></tr>"
        + "".join(rows)
        + "</table>"
    )


def _bar(vertex: VertexView) -> str:
    """Return a progress bar, which the browser animates by itself while the progress is not known."""
    total, completed = bar_of(vertex)
    return "<progress></progress>" if total is None else f'<progress value="{completed}" max="{total}"></progress>'


def _facts(facts: Mapping[str, str], state: str = "") -> str:
    rows = [
        f"<tr><th>{escape(name)}</th>{_cell(value, state if name == 'State' else '')}</tr>"
        for name, value in facts.items()
        if value
    ]
    return f"<table>{''.join(rows)}</table>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>"]
    lines += ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _cell(text: str, state: str = "") -> str:
    colour = _COLOURS.get(state or text)
    style = f' style="color:{colour};text-align:left"' if colour else ' style="text-align:left"'
    return f"<td{style}>{escape(text)}</td>"


def _lasted(started_ms: int | None, ended_ms: int | None, now_ms: int | None) -> str:
    if started_ms is None:
        return ""
    now = int(time.time() * 1000) if now_ms is None else now_ms
    return format_duration((now if ended_ms is None else ended_ms) - started_ms)
