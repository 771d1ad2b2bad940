"""History of a job's rescales, in the form of Flink 2.3's for its Adaptive scheduler, with fields of ours.

Flink counts tasks and slots; here the state of streaming queries gets another number of partitions. So `vertices`,
`slots` and `schedulerStates` are empty, and `partitions` and `partitionsBefore` have the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from runtime.protocol.checkpoints import OperationState
from runtime.protocol.rescales import Advice, Rescale
from runtime.rest import forms
from runtime.rest.context import Rest
from runtime.rest.errors import RestError
from runtime.rest.handlers.checkpoints import statistics_of, uri_of
from runtime.rest.messages import NO_TIME, Json
from runtime.rest.routing import RestRoute, answer

_RESCALES = "/jobs/{jobid}/rescales"
_REASONS = {OperationState.COMPLETED: "SUCCEEDED", OperationState.FAILED: "EXCEPTION_OCCURRED"}

ROUTES: list[RestRoute] = []


def rescale(one: Rescale) -> Json:
    """GET /jobs/:jobid/rescales/details/:rescaleuuid (Flink's `JobRescaleDetails`)."""
    return {
        "rescaleUuid": one.trigger_id,
        "resourceRequirementsUuid": one.trigger_id,
        "rescaleAttemptId": one.number,
        "vertices": {},
        "slots": {},
        "schedulerStates": [],
        "startTimestampInMillis": one.started_ms,
        "endTimestampInMillis": NO_TIME if one.ended_ms is None else one.ended_ms,
        "terminalState": one.state.value if one.is_over else None,
        "triggerCause": "UPDATE_REQUIREMENT",
        "terminatedReason": _REASONS.get(one.state),
        "partitions": one.partitions,
        "partitionsBefore": dict(one.before),
        "isUndo": one.is_undo,
        "requestedBy": one.cause.value,
        "reason": one.reason,
        "rescaleJob": one.rescale_job,
        "location": uri_of(one.savepoint),
        "failure": one.error,
    }


def history(rescales: Sequence[Rescale]) -> list[Json]:
    """GET /jobs/:jobid/rescales/history (Flink's `JobRescalesHistory`): the newest first."""
    return [rescale(one) for one in reversed(rescales)]


def overview(rescales: Sequence[Rescale]) -> Json:
    """GET /jobs/:jobid/rescales/overview (Flink's `JobRescalesOverview`)."""

    def latest(state: OperationState) -> Json | None:
        return next((rescale(one) for one in reversed(rescales) if one.state is state), None)

    return {
        "rescalesCounts": _counts(rescales),
        "latest": {
            "completed": latest(OperationState.COMPLETED),
            "failed": latest(OperationState.FAILED),
            "ignored": None,
        },
    }


def summary(rescales: Sequence[Rescale]) -> Json:
    """GET /jobs/:jobid/rescales/summary (Flink's `JobRescalesSummary`)."""

    def durations(*states: OperationState) -> Json:
        ended = (one for one in rescales if one.state in states and one.ended_ms is not None)
        return statistics_of([max((one.ended_ms or 0) - one.started_ms, 0) for one in ended])

    return {
        "rescalesCounts": _counts(rescales),
        "rescalesDurationStatsInMillis": durations(OperationState.COMPLETED, OperationState.FAILED),
        "completedRescalesDurationStatsInMillis": durations(OperationState.COMPLETED),
        "ignoredRescalesDurationStatsInMillis": durations(),
        "failedRescalesDurationStatsInMillis": durations(OperationState.FAILED),
    }


def decision(one: Advice) -> Json:
    """GET /jobs/:jobid/rescales/decisions: one of them. Not in Flink."""
    return {
        "query": one.query,
        "partitions": one.partitions,
        "wanted": one.wanted,
        "reason": one.reason,
        "lacksCores": one.lacks_cores,
        "cores": one.cores,
        "taskExecutor": one.task_executor,
        "otherJobs": one.other_jobs,
        "timestamp": one.at_ms,
    }


def _counts(rescales: Sequence[Rescale]) -> Json:
    counts = Counter(one.state for one in rescales)
    return {
        "ignored": 0,
        "inProgress": counts[OperationState.IN_PROGRESS],
        "completed": counts[OperationState.COMPLETED],
        "failed": counts[OperationState.FAILED],
    }


def _serve(part: str, summary_line: str, result: forms.Form, told: Callable[[Sequence[Rescale]], object]) -> None:
    async def handler(rest: Rest, request: Request) -> Response:
        return answer(told((await rest.job(request)).rescales))

    ROUTES.append(RestRoute("GET", f"{_RESCALES}/{part}", summary_line, result=result, handler=handler))


_serve("history", "The last rescales of a job, the newest first", [forms.RESCALE], history)
_serve("overview", "How many rescales a job remembers, and the last ones", forms.RESCALES_OVERVIEW, overview)
_serve("summary", "How long the rescales of a job took", forms.RESCALES_SUMMARY, summary)


@RestRoute(
    "GET", _RESCALES + "/decisions", "The autoscaler's last decision about each query of a job", result=[forms.DECISION]
).on(ROUTES)
async def get_decisions(rest: Rest, request: Request) -> Response:
    """Answer with those of the leading Dispatcher; none for a job that it does not rescale by itself."""
    return answer([decision(one) for one in (await rest.job(request)).advice])


@RestRoute("GET", _RESCALES + "/details/{rescaleuuid}", "One rescale of a job", result=forms.RESCALE).on(ROUTES)
async def get_rescale(rest: Rest, request: Request) -> Response:
    """Answer with the rescale of that trigger id."""
    wanted = request.path_params["rescaleuuid"]
    for one in (await rest.job(request)).rescales:
        if one.trigger_id == wanted:
            return answer(rescale(one))
    raise RestError(404, f"the job remembers no rescale {wanted}; GET /jobs/ID/rescales/history lists those it does")
