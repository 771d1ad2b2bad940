"""The page that lists an attempt's Spark jobs and SQL executions, with links to Spark's own pages of each. Pure.

Spark's pages show an application, which several attempts may share, and have no filter by tag. The Spark jobs of an
attempt bear its tag. Its SQL executions are those that have such a Spark job.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

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
class AttemptWork:
    """The work of an attempt in Spark: its Spark jobs and its SQL executions, the newest first."""

    jobs: tuple[SparkRow, ...]
    executions: tuple[SparkRow, ...]


def work_of(jobs: Iterable[Mapping[str, Any]], executions: Iterable[Mapping[str, Any]], tag: str) -> AttemptWork:
    """Return the work of an attempt.

    Args:
        jobs: all Spark jobs of the application, as Spark's own API returns them.
        executions: all its SQL executions, likewise.
        tag: the tag of the attempt's Spark jobs, or the beginning of their tags.
    """
    own = [_job(job) for job in jobs if any(str(each).startswith(tag) for each in job.get("jobTags", ()))]
    known = {job.id for job in own}
    found = [row for row in map(_execution, executions) if known.intersection(row.related)]
    return AttemptWork(tuple(sorted(own, key=lambda row: -row.id)), tuple(sorted(found, key=lambda row: -row.id)))


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


def to_json(application: str, tag: str, work: AttemptWork) -> dict[str, Any]:
    """Return the work of an attempt as JSON, each row with the path of Spark's own page of it."""
    base = _base(application)
    return {
        "application": application,
        "tag": tag,
        "jobs": [{**_fields(row), "stages": list(row.related), "path": _job_path(base, row.id)} for row in work.jobs],
        "sql-executions": [
            {**_fields(row), "jobs": list(row.related), "path": _execution_path(base, row.id)}
            for row in work.executions
        ],
    }


def _fields(row: SparkRow) -> dict[str, Any]:
    return {"id": row.id, "description": row.text, "status": row.status, "submitted": row.submitted}


def page(application: str, tag: str, work: AttemptWork) -> str:
    """Return the page of an attempt as HTML."""
    base = _base(application)
    jobs = [
        (_link(_job_path(base, row.id), row.id), row, [_link(_stage_path(base, stage), stage) for stage in row.related])
        for row in work.jobs
    ]
    executions = [
        (_link(_execution_path(base, row.id), row.id), row, [_link(_job_path(base, job), job) for job in row.related])
        for row in work.executions
    ]
    none = (
        "<p>Spark's event log holds no Spark job of this attempt. It ran none, or Spark has not yet written it: reload "
        "this page. Of an application with many Spark jobs, the History Server shows the newest "
        "(<code>spark.ui.retainedJobs</code>).</p>"
    )
    parts = [
        HEAD,
        "<title>An attempt in Spark</title><body><h1>An attempt in Spark</h1>",
        f'<p>Application <a href="{html.escape(base)}jobs/"><code>{html.escape(application)}</code></a>, which other '
        f"jobs may share; tag <code>{html.escape(tag)}</code></p>",
        _table("Spark jobs", "Stages", jobs) if jobs else none,
        _table("SQL executions", "Spark jobs", executions) if executions else "",
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


def _table(title: str, related: str, rows: Sequence[tuple[str, SparkRow, list[str]]]) -> str:
    cells = "\n".join(
        f"<tr><th scope=row>{link}</th><td>{html.escape(row.text)}</td><td>{html.escape(row.status)}</td>"
        f"<td>{html.escape(row.submitted)}</td><td>{', '.join(links)}</td></tr>"
        for link, row, links in rows
    )
    heads = "".join(f"<th scope=col>{name}</th>" for name in ("Id", "Description", "Status", "Submitted", related))
    return (
        f'<h2>{title}</h2><div tabindex="0" role="region" aria-label="{title}"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{cells}</tbody></table></div>"
    )


def _base(application: str) -> str:
    return f"/history/{quote(application, safe='')}/"


def _job_path(base: str, job: int) -> str:
    return f"{base}jobs/job/?id={job}"


def _stage_path(base: str, stage: int) -> str:
    return f"{base}stages/stage/?id={stage}&attempt=0"


def _execution_path(base: str, execution: int) -> str:
    return f"{base}SQL/execution/?id={execution}"


def _link(path: str, number: int) -> str:
    return f'<a href="{html.escape(path)}">{number}</a>'
