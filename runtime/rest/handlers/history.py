"""The figures of a cluster over time, and its audit log; served by the cluster itself and by a history server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from runtime.history.figures import MOST_POINTS, Sample, jobs_with_rows
from runtime.history.reader import ClusterHistory
from runtime.rest import forms
from runtime.rest.context import Rest, number_of
from runtime.rest.errors import RestError
from runtime.rest.messages import Json
from runtime.rest.routing import WHOLE_NUMBER, Parameter, RestRoute, answer, now_ms
from runtime.users.audit import AuditFilter, AuditPage, AuditPlaceError, read_audit

DAY_MS = 24 * 3_600_000
MOST_LINES = 100
"""Lines of a page of the audit log, by default."""
MOST_LINES_EVER = 1000
MOST_POINTS_EVER = 5000
_MOST_DIGITS = 15

ROUTES: list[RestRoute] = []

_TIME = {"type": "integer", "minimum": 0, "maximum": 10**_MOST_DIGITS - 1}
_CLUSTER = Parameter("cluster", "the name of a cluster; the first one unless it is given")
_SINCE = Parameter("since", "the first time, in milliseconds since the epoch", schema=_TIME)
_UNTIL = Parameter("until", "the last time, in milliseconds since the epoch", schema=_TIME)


def figures(cluster: str, samples: Sequence[Sample], damaged: int) -> Json:
    """GET /figures: columns, one value for each time; null where a figure is not known."""
    return {
        "cluster": cluster,
        "damaged": damaged,
        "timestamps": [sample.at_ms for sample in samples],
        "taskmanagers": [sample.task_managers for sample in samples],
        "slots-total": [sample.slots for sample in samples],
        "slots-available": [sample.free_slots for sample in samples],
        "pending-slot-requests": [sample.requests_waiting for sample in samples],
        "jobs-running": [sample.jobs_running for sample in samples],
        "heap-used": [sample.heap_used for sample in samples],
        "heap-max": [sample.heap_max for sample in samples],
        "rows-per-second": [sample.rows_per_second for sample in samples],
        "jobs": [
            {"jid": job_id, "rows-per-second": [sample.rows.get(job_id) for sample in samples]}
            for job_id in jobs_with_rows(samples)
        ],
    }


def audit(cluster: str, page: AuditPage) -> Json:
    """GET /audit."""
    lines = [{name.replace("_", "-"): value for name, value in asdict(entry).items()} for entry in page.entries]
    return {"cluster": cluster, "lines": lines, "next": page.next, "damaged": page.damaged}


def _history_of(rest: Rest, request: Request) -> ClusterHistory | None:
    """Return the history that a request means; None if nothing is kept here. Raises RestError."""
    name = request.query_params.get("cluster")
    if name is None:
        return next(iter(rest.histories), None)
    found = next((history for history in rest.histories if history.name == name), None)
    if found is None:
        shown = ", ".join(history.name for history in rest.histories) or "no cluster"
        raise RestError(404, f"the cluster {name[:80]!r} is not shown here; {shown} is")
    return found


def _time_of(request: Request, name: str) -> int | None:
    shown = request.query_params.get(name)
    if shown is None:
        return None
    if not (shown.isascii() and shown.isdigit() and len(shown) <= _MOST_DIGITS):
        raise RestError(400, f"{name} must be a time in milliseconds since the epoch, not {shown[:40]!r}")
    return int(shown)


@RestRoute(
    "GET",
    "/figures",
    "The main figures of the cluster over time, in columns, the oldest first; by default of the last day",
    query=(
        _CLUSTER,
        _SINCE,
        _UNTIL,
        Parameter("points", "about how many points; each may be the mean of several", schema=WHOLE_NUMBER),
    ),
    result=forms.FIGURES,
).on(ROUTES)
async def get_figures(rest: Rest, request: Request) -> Response:
    history = _history_of(rest, request)
    until_ms = _time_of(request, "until")
    until_ms = now_ms() if until_ms is None else until_ms
    since_ms = _time_of(request, "since")
    since_ms = until_ms - DAY_MS if since_ms is None else since_ms
    points = max(number_of(request, "points", MOST_POINTS, MOST_POINTS_EVER), 1)
    if history is None:
        return answer(figures("", (), 0))

    def read() -> Response:
        return answer(figures(history.name, *history.points(since_ms, until_ms, points)))

    try:
        async with rest.reading:
            return await asyncio.to_thread(read)
    except OSError as error:
        raise RestError(503, f"the figures of {history.name} cannot be read: {error.strerror}") from error


@RestRoute(
    "GET",
    "/audit",
    "Lines of the audit log, the newest first: who changed something, and who was refused",
    query=(
        _CLUSTER,
        Parameter("user", "only lines of this user"),
        Parameter("job", "only lines about the job of this id, or about another object of this name"),
        _SINCE,
        _UNTIL,
        Parameter("limit", "most lines of the answer", schema=WHOLE_NUMBER),
        Parameter("after", "the `next` of the answer before, for the page behind it"),
    ),
    result=forms.AUDIT,
).on(ROUTES)
async def get_audit(rest: Rest, request: Request) -> Response:
    history = _history_of(rest, request)
    given = request.query_params
    chosen = AuditFilter(
        given.get("user", ""), given.get("job", ""), _time_of(request, "since"), _time_of(request, "until")
    )
    most = max(number_of(request, "limit", MOST_LINES, MOST_LINES_EVER), 1)
    if history is None:
        return answer(audit("", AuditPage((), "", 0)))
    try:
        async with rest.reading:
            page = await asyncio.to_thread(read_audit, history.audit_log, chosen, most, given.get("after", ""))
    except AuditPlaceError as error:
        raise RestError(400, str(error)) from error
    except OSError as error:
        raise RestError(503, f"the audit log of {history.name} cannot be read: {error.strerror}") from error
    return answer(audit(history.name, page))
