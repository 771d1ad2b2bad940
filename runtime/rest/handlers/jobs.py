"""Jobs: lists, details, cancelling."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError
from runtime.protocol.execution_state import JobStatus
from runtime.rest.errors import RestError
from runtime.rest.messages import cluster as cluster_messages
from runtime.rest.messages import forms
from runtime.rest.messages import jobs as messages
from runtime.rest.routing import (
    JSON,
    WHOLE_NUMBER,
    Parameter,
    Rest,
    RestRoute,
    answer,
    job_id_of,
    now_ms,
    number_of,
    to_json,
)

MOST_EXCEPTIONS = 1000


async def details_of_jobs(rest: Rest) -> tuple[JobDetails, ...]:
    """The jobs as they were a moment ago."""
    found: tuple[JobDetails, ...] = await rest.snapshots.get("jobs", rest.backend.jobs)
    return found


async def encoded_overview(rest: Rest) -> bytes:
    """The answer to GET /jobs/overview, which clients and pages ask for all the time."""

    async def ask() -> bytes:
        return to_json(messages.overview(await rest.backend.jobs(), now_ms()))

    found: bytes = await rest.snapshots.get("/jobs/overview", ask)
    return found


async def get_overview(rest: Rest, request: Request) -> Response:
    return Response(await encoded_overview(rest), media_type=JSON)


async def get_jobs(rest: Rest, request: Request) -> Response:
    return answer(messages.ids_with_status(await details_of_jobs(rest)))


async def get_job(rest: Rest, request: Request) -> Response:
    return answer(messages.job(await rest.job(request), now_ms()))


async def get_plan(rest: Rest, request: Request) -> Response:
    return answer(messages.plan(await rest.job(request)))


async def get_config(rest: Rest, request: Request) -> Response:
    return answer(messages.config(await rest.job(request)))


async def get_status(rest: Rest, request: Request) -> Response:
    return answer({"status": (await rest.job(request)).status.value})


async def get_exceptions(rest: Rest, request: Request) -> Response:
    limit = number_of(request, "maxExceptions", messages.MAX_EXCEPTIONS, MOST_EXCEPTIONS)
    return answer(messages.exceptions(await rest.job(request), limit))


async def get_result(rest: Rest, request: Request) -> Response:
    return answer(messages.execution_result(await rest.job(request)))


async def get_accumulators(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(messages.accumulators())


async def get_configuration(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(cluster_messages.configuration(rest.configuration.to_dict(redacted=True)))


async def get_environment(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(cluster_messages.environment())


async def get_log_url(rest: Rest, request: Request) -> Response:
    return answer({"url": f"{rest.url}/#/masters/logs"})


async def get_task_manager_log_url(rest: Rest, request: Request) -> Response:
    return answer({"url": f"{rest.url}/#/taskmanagers/{quote(request.path_params['taskmanagerid'], safe='')}/logs"})


async def cancel(rest: Rest, request: Request) -> Response:
    """Begin to cancel; the state is asked for afterwards. As in Flink a CANCELED job may be cancelled again."""
    job_id = job_id_of(request)
    rest.snapshots.forget()
    try:
        await rest.backend.cancel(job_id)
    except JobNotFoundError as error:
        raise RestError(404, f"Job could not be found: {error}") from error
    except JobAlreadyTerminatedError as error:
        status = (await rest.backend.job(job_id)).status
        if status is not JobStatus.CANCELED:
            reason = f"the job has already reached another terminal state ({status.value})"
            raise RestError(409, f"Job cancellation failed because {reason}: {error}") from error
    finally:
        rest.snapshots.forget()  # also what was asked for while the cancellation was under way
    return answer({}, 202)


async def patch_job(rest: Rest, request: Request) -> Response:
    mode = request.query_params.get("mode", "cancel")
    if mode == "stop":
        return await refuse_stop(rest, request)
    if mode != "cancel":
        raise RestError(400, f"mode must be cancel, not {mode[:40]!r}")
    return await cancel(rest, request)


async def refuse_stop(rest: Rest, request: Request) -> Response:
    raise RestError(
        308,
        'The termination mode "stop" has been removed. For an ungraceful shutdown, please use "cancel" instead. For a '
        'graceful shutdown, please use "jobs/:jobId/stop" instead.',
    )


_JOB = "/jobs/{jobid}"

ROUTES = (
    RestRoute("GET", "/jobs", get_jobs, "Ids and states of all jobs", result={"jobs": [{"id": str, "status": str}]}),
    RestRoute(
        "GET",
        "/jobs/overview",
        get_overview,
        "All jobs in one line each, the newest first",
        result={"jobs": [forms.LINE]},
    ),
    RestRoute("GET", _JOB, get_job, "A job: its tasks, its plan, its states", result=forms.JOB),
    RestRoute(
        "PATCH",
        _JOB,
        patch_job,
        "Begin to cancel a job",
        status=202,
        query=(Parameter("mode", "how the job is ended", ("cancel",)),),
        also=(308,),
    ),
    RestRoute("GET", f"{_JOB}/yarn-cancel", cancel, "Begin to cancel a job, as Flink's page does", status=202),
    RestRoute("GET", f"{_JOB}/plan", get_plan, "The tasks of a job and what they read", result={"plan": forms.PLAN}),
    RestRoute(
        "GET",
        f"{_JOB}/config",
        get_config,
        "How a job is executed",
        result={"jid": str, "name": str, "execution-config": dict},
    ),
    RestRoute("GET", f"{_JOB}/status", get_status, "The state of a job", result={"status": str}),
    RestRoute(
        "GET",
        f"{_JOB}/exceptions",
        get_exceptions,
        "The last failures of a job, the newest first",
        query=(Parameter("maxExceptions", "how many of them", schema=WHOLE_NUMBER),),
        result=forms.EXCEPTIONS,
    ),
    RestRoute("GET", f"{_JOB}/execution-result", get_result, "How a job ended", result=forms.EXECUTION_RESULT),
    RestRoute(
        "GET",
        f"{_JOB}/accumulators",
        get_accumulators,
        "Accumulators of a job: none",
        result={"job-accumulators": [dict], "user-task-accumulators": [dict]},
    ),
    RestRoute(
        "GET", f"{_JOB}/jobmanager/config", get_configuration, "The cluster's configuration", result=forms.SETTINGS
    ),
    RestRoute(
        "GET",
        f"{_JOB}/jobmanager/log-url",
        get_log_url,
        "Where the web page shows the logs of the control plane",
        result={"url": str},
    ),
    RestRoute(
        "GET",
        _JOB + "/taskmanagers/{taskmanagerid}/log-url",
        get_task_manager_log_url,
        "Where the web page shows the logs of a TaskExecutor",
        result={"url": str},
    ),
    RestRoute(
        "GET",
        f"{_JOB}/jobmanager/environment",
        get_environment,
        "What the web endpoint runs on",
        result=forms.ENVIRONMENT,
    ),
)
