"""The page of an attempt: its Spark jobs, streaming queries, SQL executions and slowest stages in Spark. Pure.

Spark's pages show an application, which several attempts may share, and have no filter by tag. The Spark jobs of an
attempt bear its tag. Its SQL executions are those that have such a Spark job. Its streaming queries are those whose
batches have one: Spark describes it by the query's name and ids, and the number of the batch.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

MOST_STAGES = 50
"""Most stages that are listed."""

_ID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BATCH = re.compile(rf"(?:^|\n)id = {_ID}\nrunId = ({_ID})\nbatch = (init|[0-9]{{1,19}})\Z")

STYLE = (
    ":root { color-scheme: light dark } body { font-family: sans-serif; max-width: 70em; margin: 2em auto; "
    "padding: 0 1em } table { border-collapse: collapse } td, th { text-align: left; padding: .3em 1em .3em 0; "
    "vertical-align: top } div { overflow-x: auto } code { overflow-wrap: anywhere }"
)
HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    f"<style>{STYLE}</style>"
)


@dataclass(frozen=True, slots=True)
class SparkRow:
    """A Spark job or an SQL execution, as Spark's history tells of it.

    Args:
        id: its number in the application.
        text: its description, which the job's code may have set.
        status: in Spark's words.
        submitted: when it began, in Spark's words; empty if Spark does not know.
        related: of a Spark job, its stages; of an SQL execution, its Spark jobs.
    """

    id: int
    text: str
    status: str
    submitted: str
    related: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One run of a streaming query.

    Args:
        run_id: Spark's id of the run.
        name: of the query; empty if it has none.
        batch: the last batch that has a Spark job, in Spark's words: a number, or ``init``.
    """

    run_id: str
    name: str
    batch: str


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage attempt that has ended, with Spark's own figures.

    Args:
        id: number of the stage in the application.
        attempt: number of the stage attempt, from 0.
        text: the call that made it.
        status: in Spark's words.
        duration_ms: from its submission to its end.
        tasks: number of its Spark tasks.
        rows: read from tables, files and other sources.
        read_bytes: read from sources and from the output of other stages.
        written_bytes: written for other stages and into tables and files.
        spilled_bytes: written to disk because memory was short.
    """

    id: int
    attempt: int
    text: str
    status: str
    duration_ms: int
    tasks: int
    rows: int
    read_bytes: int
    written_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class AttemptWork:
    """The work of an attempt in Spark.

    Args:
        jobs: its Spark jobs, the newest first.
        executions: its SQL executions, the newest first.
        stages: its stages that have run and ended, the slowest first; at most `MOST_STAGES`.
        queries: the runs of its streaming queries, the latest first.
    """

    jobs: tuple[SparkRow, ...]
    executions: tuple[SparkRow, ...]
    stages: tuple[StageRow, ...] = ()
    queries: tuple[QueryRow, ...] = ()


def work_of(
    jobs: Iterable[Mapping[str, Any]],
    executions: Iterable[Mapping[str, Any]],
    tag: str,
    stages: Iterable[Mapping[str, Any]] = (),
) -> AttemptWork:
    """Return the work of an attempt.

    Args:
        jobs: all Spark jobs of the application, as Spark's own API returns them.
        executions: all its SQL executions, likewise.
        tag: the tag of the attempt's Spark jobs, or the beginning of their tags.
        stages: all its stages, likewise.
    """
    own = [_job(job) for job in jobs if any(str(each).startswith(tag) for each in job.get("jobTags", ()))]
    own.sort(key=lambda row: -row.id)
    known = {job.id for job in own}
    found = [row for row in map(_execution, executions) if known.intersection(row.related)]
    own_stages = {stage for job in own for stage in job.related}
    ended = [row for row in map(_stage, stages) if row is not None and row.id in own_stages]
    return AttemptWork(
        tuple(own),
        tuple(sorted(found, key=lambda row: -row.id)),
        tuple(sorted(ended, key=lambda row: (-row.duration_ms, row.id, row.attempt))[:MOST_STAGES]),
        _queries(own),
    )


def _queries(jobs: Iterable[SparkRow]) -> tuple[QueryRow, ...]:
    """Return the runs of streaming queries that Spark jobs, the newest first, are described by."""
    found: dict[str, QueryRow] = {}
    for job in jobs:
        if match := _BATCH.search(job.text):
            found.setdefault(match[1], QueryRow(match[1], job.text[: match.start()].strip(), match[2]))
    return tuple(found.values())


def _job(job: Mapping[str, Any]) -> SparkRow:
    text = str(job.get("description") or job.get("name") or "")
    stages = tuple(sorted(int(stage) for stage in job.get("stageIds", ())))
    return SparkRow(int(job["jobId"]), text, str(job.get("status", "")), str(job.get("submissionTime", "")), stages)


def _execution(execution: Mapping[str, Any]) -> SparkRow:
    parts = ("runningJobIds", "successJobIds", "failedJobIds")
    related = tuple(sorted(int(job) for part in parts for job in execution.get(part, ())))
    return SparkRow(
        int(execution["id"]),
        str(execution.get("description", "")),
        str(execution.get("status", "")),
        str(execution.get("submissionTime", "")),
        related,
    )


def _stage(stage: Mapping[str, Any]) -> StageRow | None:
    """Return a stage attempt; None if it has not run, as a skipped one, or has not ended."""
    began, ended = (_milliseconds(stage.get(part)) for part in ("submissionTime", "completionTime"))
    if began is None or ended is None:
        return None

    def total(*parts: str) -> int:
        return sum(int(stage.get(part, 0)) for part in parts)

    return StageRow(
        int(stage["stageId"]),
        int(stage.get("attemptId", 0)),
        str(stage.get("name", "")),
        str(stage.get("status", "")),
        max(ended - began, 0),
        total("numTasks"),
        total("inputRecords"),
        total("inputBytes", "shuffleReadBytes"),
        total("outputBytes", "shuffleWriteBytes"),
        total("diskBytesSpilled"),
    )


def _milliseconds(moment: object) -> int | None:
    """Return the milliseconds since the epoch of a time as Spark's own API writes it; None for any other value."""
    try:
        return round(datetime.strptime(str(moment), "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def to_json(application: str, tag: str, work: AttemptWork, base: str) -> dict[str, Any]:
    """Return the work of an attempt as JSON, each row with the path of Spark's own page of it, below *base*."""
    return {
        "application": application,
        "tag": tag,
        "jobs": [{**_fields(row), "stages": list(row.related), "path": _job_path(base, row.id)} for row in work.jobs],
        "queries": [{**_told(row), "path": _query_path(base, row.run_id)} for row in work.queries],
        "sql-executions": [
            {**_fields(row), "jobs": list(row.related), "path": _execution_path(base, row.id)}
            for row in work.executions
        ],
        "stages": [{**asdict(row), "path": _stage_path(base, row.id, row.attempt)} for row in work.stages],
    }


def _told(row: QueryRow) -> dict[str, Any]:
    return {"run-id": row.run_id, "name": row.name, "batch": row.batch}


def _fields(row: SparkRow) -> dict[str, Any]:
    return {"id": row.id, "description": row.text, "status": row.status, "submitted": row.submitted}


def page(application: str, tag: str, work: AttemptWork, base: str) -> str:
    """Return the page of an attempt as HTML; Spark's own pages of its application are below the path *base*."""
    jobs = [
        (_link(_job_path(base, row.id), row.id), row, [_link(_stage_path(base, stage), stage) for stage in row.related])
        for row in work.jobs
    ]
    executions = [
        (_link(_execution_path(base, row.id), row.id), row, [_link(_job_path(base, job), job) for job in row.related])
        for row in work.executions
    ]
    none = (
        "<p>Spark knows no Spark job of this attempt. It ran none, or Spark has not yet written it: reload "
        "this page. Of an application with many Spark jobs, Spark shows the newest "
        "(<code>spark.ui.retainedJobs</code>).</p>"
    )
    parts = [
        HEAD,
        "<title>An attempt in Spark</title><body><h1>An attempt in Spark</h1>",
        f'<p>Application <a href="{html.escape(base)}jobs/"><code>{html.escape(application)}</code></a>, which other '
        f"jobs may share; tag <code>{html.escape(tag)}</code></p>",
        _slowest(base, work.stages),
        _query_table(base, work.queries) if work.queries else "",
        _table("Spark jobs", "Stages", jobs) if jobs else none,
        _table("SQL executions", "Spark jobs", executions) if executions else "",
        _stage_table(base, work.stages) if work.stages else "",
        "</body></html>",
    ]
    return "\n".join(parts)


def unknown(application: str) -> str:
    """Return the page of an attempt whose application the History Server does not know."""
    return "\n".join(
        (
            HEAD,
            "<title>An attempt in Spark</title><body><h1>An attempt in Spark</h1>",
            f"<p>Spark's History Server does not know the application <code>{html.escape(application)}</code>. If its "
            "driver has just started, reload this page in some seconds. Else its event log was deleted, or is in "
            'another directory. <a href="/">All applications</a></p></body></html>',
        )
    )


def _slowest(base: str, stages: Sequence[StageRow]) -> str:
    """Return a sentence that names the slowest stage; empty if none has ended."""
    if not stages:
        return ""
    row = stages[0]
    spilled = f"; it spilled {_size(row.spilled_bytes)} to disk" if row.spilled_bytes else ""
    return (
        f"<p>Slowest stage: {_link(_stage_path(base, row.id, row.attempt), row.id)}, {html.escape(row.text)}, "
        f"{_duration(row.duration_ms)}{spilled}.</p>"
    )


def _table(title: str, related: str, rows: Sequence[tuple[str, SparkRow, list[str]]]) -> str:
    return _tabled(
        title,
        ("Id", "Description", "Status", "Submitted", related),
        (
            (link, *map(html.escape, (row.text, row.status, row.submitted)), ", ".join(links))
            for link, row, links in rows
        ),
    )


def _query_table(base: str, rows: Sequence[QueryRow]) -> str:
    return _tabled(
        "Streaming queries",
        ("Run", "Name", "Last batch"),
        ((_link(_query_path(base, row.run_id), row.run_id), html.escape(row.name), row.batch) for row in rows),
    )


def _stage_table(base: str, rows: Sequence[StageRow]) -> str:
    return _tabled(
        "Stages, the slowest first",
        ("Id", "Description", "Status", "Duration", "Tasks", "Rows read", "Bytes read", "Bytes written", "Spilled"),
        (
            (
                _link(_stage_path(base, row.id, row.attempt), row.id),
                html.escape(row.text),
                html.escape(row.status),
                _duration(row.duration_ms),
                f"{row.tasks:,}",
                f"{row.rows:,}",
                *map(_size, (row.read_bytes, row.written_bytes, row.spilled_bytes)),
            )
            for row in rows
        ),
    )


def _tabled(title: str, heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are markup already; the first cell of a row names it."""
    cells = "\n".join(
        f"<tr><th scope=row>{first}</th>{''.join(f'<td>{cell}</td>' for cell in others)}</tr>"
        for first, *others in rows
    )
    titles = "".join(f"<th scope=col>{name}</th>" for name in heads)
    return (
        f'<h2>{title}</h2><div tabindex="0" role="region" aria-label="{title}"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{cells}</tbody></table></div>"
    )


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:,.1f} s"


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def _job_path(base: str, job: int) -> str:
    return f"{base}jobs/job/?id={job}"


def _stage_path(base: str, stage: int, attempt: int = 0) -> str:
    return f"{base}stages/stage/?id={stage}&attempt={attempt}"


def _execution_path(base: str, execution: int) -> str:
    return f"{base}SQL/execution/?id={execution}"


def _query_path(base: str, run_id: str) -> str:
    return f"{base}StreamingQuery/statistics/?id={run_id}"


def _link(path: str, what: int | str) -> str:
    return f'<a href="{html.escape(path)}">{what}</a>'
