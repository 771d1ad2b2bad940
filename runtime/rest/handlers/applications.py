"""Applications: each job is one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.rest.handlers import jobs
from runtime.rest.messages import applications as messages
from runtime.rest.messages import forms
from runtime.rest.routing import Rest, RestRoute, answer, now_ms


async def get_overview(rest: Rest, request: Request) -> Response:
    return answer(messages.overview(await jobs.details_of_jobs(rest), now_ms()))


async def get_application(rest: Rest, request: Request) -> Response:
    return answer(messages.application(await rest.job(request), now_ms()))


_APPLICATION = "/applications/{applicationid}"

ROUTES = (
    RestRoute(
        "GET",
        "/applications/overview",
        get_overview,
        "All jobs as applications",
        result={"applications": [forms.APPLICATION]},
    ),
    RestRoute(
        "GET",
        _APPLICATION,
        get_application,
        "A job as an application",
        result={**forms.APPLICATION, "timestamps": dict, "jobs": [forms.LINE]},
    ),
    RestRoute("POST", f"{_APPLICATION}/cancel", jobs.cancel, "Begin to cancel a job", status=202),
    RestRoute(
        "GET", f"{_APPLICATION}/exceptions", jobs.get_exceptions, "The last failures of a job", result=forms.EXCEPTIONS
    ),
    RestRoute(
        "GET",
        f"{_APPLICATION}/jobmanager/config",
        jobs.get_configuration,
        "The cluster's configuration",
        result=forms.SETTINGS,
    ),
)
