"""Jobs: overviews, details, plan, exceptions, result, logs, cancelling (Flink's `runtime.rest.messages.job`).

A vertex of Flink's is a chain of operators in subtasks. Here that is a task: a chain of vertices in one process.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from conf.options import ClusterOptions
from runtime.job_logs import TASK_LOGS
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, JobDetails, TaskInfo
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.protocol.streaming_query import QueryHistory, StreamingQuery
from runtime.rest import forms
from runtime.rest.context import Rest, job_id_of, number_of, offset_of
from runtime.rest.errors import RestError
from runtime.rest.handlers import cluster
from runtime.rest.messages import IO_METRICS, Json, count_states, place, span, span_of
from runtime.rest.routing import FROM_OFFSET, JSON, TEXT, WHOLE_NUMBER, Parameter, RestRoute, answer, now_ms, to_json
from runtime.rest.serialized_throwable import serialized_throwable
from runtime.rest.spark_links import HistoryState, attempts_of, link_of, look

SCHEDULER = "Default"
"""Flink's `SchedulerType` of a scheduler that gives a job either all the slots that it requests or none."""
MAX_EXCEPTIONS = 20
"""How many failures `exceptions` shows by default (as Flink)."""
MOST_EXCEPTIONS = 1000
COMPLETE = "x-log-complete"
"""The header of a task's log that says whether the log is complete after this answer."""


def ids_with_status(jobs: Iterable[JobDetails]) -> Json:
    """GET /jobs."""
    return {"jobs": [{"id": job.job_id, "status": job.status.value} for job in jobs]}


def overview(jobs: Iterable[JobDetails], now: int) -> Json:
    """GET /jobs/overview."""
    return {"jobs": [details(job, now) for job in jobs]}


def details(job: JobDetails, now: int) -> Json:
    """Flink's `JobDetails`."""
    tasks = {state.value.lower(): job.tasks_per_state.get(state.value, 0) for state in ExecutionState}
    return {
        "jid": job.job_id,
        "name": job.name,
        "jobType": job_type(job),
        "kind": kind_of(job),
        "owner": job.owner,
        "schedulerType": SCHEDULER,
        **span(job.start_ms, job.end_ms, now),
        "state": job.status.value,
        "last-modification": job.start_ms if job.end_ms is None else job.end_ms,
        "tasks": {"total": job.tasks_total, **tasks},
        "pending-operators": 0,
        "waiting-for": job.waiting_for,
    }


def job_type(job: ArchivedExecutionGraph | JobDetails) -> str:
    """Return ``STREAMING`` once the job has had a streaming query, else ``BATCH``."""
    return "STREAMING" if job.streams else "BATCH"


def kind_of(job: ArchivedExecutionGraph | JobDetails) -> str:
    """Return the kind of a job: ``script``, ``function`` or ``pipeline``."""
    return "function" if job.is_function else job.kind.value


def job(graph: ArchivedExecutionGraph, now: int) -> Json:
    """GET /jobs/:jobid."""
    return {
        "jid": graph.job_id,
        "application-id": graph.job_id,
        "name": graph.name,
        "isStoppable": False,
        "state": graph.status.value,
        "job-type": job_type(graph),
        "kind": kind_of(graph),
        "owner": graph.owner,
        "trace-id": graph.trace_id,
        "schedulerType": SCHEDULER,
        **span(graph.start_ms, graph.end_ms, now),
        "maxParallelism": -1,
        "now": now,
        "timestamps": {state.value: graph.timestamps.get(state.value, 0) for state in JobStatus},
        "vertices": [_vertex(task, now) for task in graph.tasks],
        "status-counts": count_states(task.state for task in graph.tasks),
        "plan": _plan(graph),
        "pending-operators": 0,
        "waiting-for": {task.key: task.waiting_for for task in graph.tasks if task.waiting_for},
        "spark": {task.key: _spark(graph, task) for task in graph.tasks},
    }


def _spark(graph: ArchivedExecutionGraph, task: TaskInfo) -> Json:
    """Spark's own counts for a task, and its streaming queries; ``batch`` is -1 before the first."""
    counts = [vertex.progress for vertex in graph.vertices if vertex.task == task.key]
    return {
        "stages": sum(count.stages for count in counts),
        "stages-completed": sum(count.stages_completed for count in counts),
        "tasks": sum(count.tasks_total for count in counts),
        "tasks-completed": sum(count.tasks_completed for count in counts),
        "tasks-active": sum(count.tasks_active for count in counts),
        "latest-stages": [
            {
                "id": stage.stage_id,
                "name": stage.name,
                "state": stage.state,
                "tasks": stage.tasks,
                "tasks-completed": stage.completed,
                "tasks-active": stage.active,
                "parents": list(stage.parents),
            }
            for count in counts
            for stage in count.latest_stages
        ],
        "queries": [_query(query) for query in task.attempts[-1].queries],
    }


def _query(query: StreamingQuery) -> Json:
    """Return a streaming query as JSON, without its unknown figures; ``batch`` is -1 before the first."""
    told: Json = {
        "id": query.id,
        "run-id": query.run_id,
        "name": query.name,
        "batch": -1 if query.batch is None else query.batch,
    }
    if query.trigger_interval_ms is not None:
        told["trigger-interval"] = query.trigger_interval_ms
    if query.back_pressure is not None:
        told["backpressure-level"] = query.back_pressure.level.value
        if query.back_pressure.busy is not None:
            told["busy"] = query.back_pressure.busy
    progress = query.progress
    if progress is None:
        return told
    told |= {
        "batch-duration": progress.duration_ms,
        "input-rows": progress.rows,
        "input-rows-per-second": progress.rows_per_second,
        "processed-rows-per-second": progress.processed_per_second,
        "state-rows": progress.state_rows,
        "state-bytes": progress.state_bytes,
        "sources": [
            {
                "description": source.description,
                "input-rows": source.rows,
                "input-rows-per-second": source.rows_per_second,
                "processed-rows-per-second": source.processed_per_second,
                **({} if source.lag is None else {"lag": source.lag}),
            }
            for source in progress.sources
        ],
    }
    return told


def query_histories(histories: Iterable[QueryHistory]) -> Json:
    """GET /jobs/:jobid/queries: columns, since a list of points would be three times as long."""
    return {
        "queries": [
            {
                "vertex-id": history.task,
                "id": history.id,
                "run-id": history.run_id,
                "name": history.name,
                "timestamps": history.at_ms,
                "batches": history.batches,
                "batch-durations": history.durations_ms,
                "input-rows-per-second": history.rows_per_second,
                "processed-rows-per-second": history.processed_per_second,
                "state-rows": history.state_rows,
                "state-bytes": history.state_bytes,
                "lags": history.lags,
            }
            for history in histories
        ]
    }


def _vertex(task: TaskInfo, now: int) -> Json:
    return {
        "id": task.key,
        "slotSharingGroupId": task.key,
        "name": task.name,
        "maxParallelism": 1,
        "parallelism": 1,
        "status": task.state.value,
        **span_of(task.attempts[-1], now),
        "tasks": count_states([task.state]),
        "metrics": dict(IO_METRICS),
    }


def plan(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/plan."""
    return {"plan": _plan(graph)}


def _plan(graph: ArchivedExecutionGraph) -> Json:
    return {
        "jid": graph.job_id,
        "name": graph.name,
        "type": job_type(graph),
        "nodes": [_node(graph, task) for task in graph.tasks],
    }


def _node(graph: ArchivedExecutionGraph, task: TaskInfo) -> Json:
    vertices = {vertex.id: vertex for vertex in graph.vertices}
    own = [vertices[vertex_id] for vertex_id in task.vertices if vertex_id in vertices]
    read = dict.fromkeys(vertices[source].task for vertex in own for source in vertex.inputs)
    node: Json = {
        "id": task.key,
        "parallelism": 1,
        "operator": "",
        "operator_strategy": "",
        # The page shows it as HTML, and names are the user's own.
        "description": "".join(f"{html.escape(vertex.name)} ({vertex.role.value})<br/>" for vertex in own),
        "optimizer_properties": {},
    }
    inputs = [source for source in read if source != task.key]
    if inputs:  # between two tasks a result is materialised, always
        node["inputs"] = [
            {"num": number, "id": source, "ship_strategy": "MATERIALIZED", "exchange": "blocking"}
            for number, source in enumerate(inputs)
        ]
    return node


def config(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/config."""
    return {
        "jid": graph.job_id,
        "name": graph.name,
        "execution-config": {
            "restart-strategy": graph.restart_strategy,
            "job-parallelism": 1,
            "object-reuse-mode": False,
            "user-config": {"kind": graph.kind.value, "restarts": str(graph.restarts)},
        },
    }


def exceptions(graph: ArchivedExecutionGraph, limit: int = MAX_EXCEPTIONS) -> Json:
    """GET /jobs/:jobid/exceptions: the last failures, the newest first, the user's own traceback in each."""
    failures = list(reversed(graph.failure_history))
    if graph.failure is not None and graph.failure not in failures:
        failures.insert(0, graph.failure)
    return {
        "exceptionHistory": {
            "entries": [_exception(graph, error) for error in failures[:limit]],
            "truncated": len(failures) > limit,
        }
    }


def _exception(graph: ArchivedExecutionGraph, error: ErrorInfo) -> Json:
    entry: Json = {
        "exceptionName": error.type,
        "stacktrace": stack_trace(error),
        "timestamp": error.timestamp_ms,
        "failureLabels": {"kind": error.kind.value},
        "concurrentExceptions": [],
    }
    if error.task:
        entry["taskName"] = error.task
        where = _place_of(graph, error)
        if where:
            entry |= {"endpoint": where, "taskManagerId": where}
    return entry


def _place_of(graph: ArchivedExecutionGraph, error: ErrorInfo) -> str:
    for task in graph.tasks:
        for attempt in task.attempts:
            if task.name == error.task and attempt.error == error:
                return place(attempt)
    return ""


def stack_trace(error: ErrorInfo) -> str:
    """Return the traceback of the user's code, or the error in one line if there is none."""
    return error.traceback or str(error)


def execution_result(graph: ArchivedExecutionGraph, *, is_history: bool = False) -> Json:
    """GET /jobs/:jobid/execution-result. In a history a suspended job is over, with an unknown outcome."""
    if not graph.status.is_globally_terminal and not (is_history and graph.status is JobStatus.SUSPENDED):
        return {"status": {"id": "IN_PROGRESS"}}
    result = graph.result()
    told: dict[str, Any] = {
        "id": graph.job_id,
        "name": graph.name,
        "application-status": result.status.value,
        "accumulator-results": {},
        "net-runtime": result.net_runtime_ms,
        "application-id": graph.job_id,
        "start-time": graph.start_ms,
        "end-time": graph.end_ms,
    }
    if result.failure is not None:
        trace = stack_trace(result.failure)
        told["failure-cause"] = {
            "class": result.failure.type,
            "stack-trace": trace,
            "serialized-throwable": serialized_throwable(result.failure.type, str(result.failure), trace),
        }
    return {"status": {"id": "COMPLETED"}, "job-execution-result": told}


def accumulators() -> Json:
    """GET /jobs/:jobid/accumulators: Spark's accumulators stay in the job's own process."""
    return {"job-accumulators": [], "user-task-accumulators": [], "serialized-user-task-accumulators": {}}


_JOB = "/jobs/{jobid}"

ROUTES: list[RestRoute] = []


async def details_of_jobs(rest: Rest) -> tuple[JobDetails, ...]:
    """Return the jobs, from a recent answer of the cluster (`Snapshots`)."""
    found: tuple[JobDetails, ...] = await rest.snapshots.get("jobs", rest.backend.jobs)
    return found


async def encoded_overview(rest: Rest) -> bytes:
    """Return the answer to GET /jobs/overview as JSON text: the most frequent request of clients and pages."""

    async def ask() -> bytes:
        return to_json(overview(await rest.backend.jobs(), now_ms()))

    found: bytes = await rest.snapshots.get("/jobs/overview", ask)
    return found


@RestRoute("GET", "/jobs/overview", "All jobs in one line each, the newest first", result={"jobs": [forms.LINE]}).on(
    ROUTES
)
async def get_overview(rest: Rest, request: Request) -> Response:
    return Response(await encoded_overview(rest), media_type=JSON)


@RestRoute("GET", "/jobs", "Ids and states of all jobs", result={"jobs": [{"id": str, "status": str}]}).on(ROUTES)
async def get_jobs(rest: Rest, request: Request) -> Response:
    return answer(ids_with_status(await details_of_jobs(rest)))


@RestRoute("GET", _JOB, "A job: its tasks, its plan, its states", result=forms.JOB).on(ROUTES)
async def get_job(rest: Rest, request: Request) -> Response:
    return answer(job(await rest.job(request), now_ms()))


@RestRoute(
    "GET",
    f"{_JOB}/queries",
    "The streaming queries of a job with the figures of their past batches, in columns, the oldest first",
    result={"queries": [forms.QUERY_HISTORY]},
).on(ROUTES)
async def get_queries(rest: Rest, request: Request) -> Response:
    job_id = job_id_of(request)
    found = await rest.snapshots.get(("queries", job_id), lambda: rest.backend.query_histories(job_id))
    return answer(query_histories(found))


def spark_work(graph: ArchivedExecutionGraph, state: HistoryState) -> Json:
    """GET /jobs/:jobid/spark: the work of each attempt in Spark, and where Spark's own pages show it."""
    return {
        "history-server": {"url": state.url, "command": state.command},
        "attempts": [_work_of(task, attempt, state) for task, attempt in attempts_of(graph)],
    }


def _work_of(task: TaskInfo, attempt: AttemptInfo, state: HistoryState) -> Json:
    link = link_of(attempt.spark, state)
    return {
        "vertex-id": task.key,
        "task": task.name,
        "attempt": attempt.number,
        "attempt-id": attempt.attempt_id,
        "status": attempt.state.value,
        "application": "" if attempt.spark is None else attempt.spark.application,
        "tag": "" if attempt.spark is None else attempt.spark.tag,
        "url": link.url,
        "note": link.note,
    }


@RestRoute(
    "GET",
    f"{_JOB}/spark",
    "The Spark application and the tag of each attempt, and where Spark's own pages show its work",
    result=forms.SPARK_WORK,
).on(ROUTES)
async def get_spark(rest: Rest, request: Request) -> Response:
    graph = await rest.job(request)
    configuration = await rest.configuration_of(graph.job_id)
    key = ("history server", configuration.get(ClusterOptions.RUNTIME_DIR))
    state = await rest.snapshots.get(key, lambda: asyncio.to_thread(look, configuration))
    return answer(spark_work(graph, state))


@RestRoute("GET", f"{_JOB}/plan", "The tasks of a job and what they read", result={"plan": forms.PLAN}).on(ROUTES)
async def get_plan(rest: Rest, request: Request) -> Response:
    return answer(plan(await rest.job(request)))


@RestRoute(
    "GET", f"{_JOB}/config", "How a job is executed", result={"jid": str, "name": str, "execution-config": dict}
).on(ROUTES)
async def get_config(rest: Rest, request: Request) -> Response:
    return answer(config(await rest.job(request)))


@RestRoute("GET", f"{_JOB}/status", "The state of a job", result={"status": str}).on(ROUTES)
async def get_status(rest: Rest, request: Request) -> Response:
    return answer({"status": (await rest.job(request)).status.value})


@RestRoute(
    "GET",
    f"{_JOB}/exceptions",
    "The last failures of a job, the newest first",
    query=(Parameter("maxExceptions", "how many of them", schema=WHOLE_NUMBER),),
    result=forms.EXCEPTIONS,
).on(ROUTES)
async def get_exceptions(rest: Rest, request: Request) -> Response:
    limit = number_of(request, "maxExceptions", MAX_EXCEPTIONS, MOST_EXCEPTIONS)
    return answer(exceptions(await rest.job(request), limit))


@RestRoute("GET", f"{_JOB}/execution-result", "How a job ended", result=forms.EXECUTION_RESULT).on(ROUTES)
async def get_result(rest: Rest, request: Request) -> Response:
    return answer(execution_result(await rest.job(request), is_history=rest.is_history))


@RestRoute(
    "GET",
    f"{_JOB}/accumulators",
    "Accumulators of a job: none",
    result={"job-accumulators": [dict], "user-task-accumulators": [dict]},
).on(ROUTES)
async def get_accumulators(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(accumulators())


@RestRoute("GET", f"{_JOB}/jobmanager/config", "The cluster's configuration", result=forms.SETTINGS).on(ROUTES)
async def get_configuration(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(cluster.configuration(rest.configuration.to_dict(redacted=True)))


@RestRoute("GET", f"{_JOB}/jobmanager/environment", "What the web endpoint runs on", result=forms.ENVIRONMENT).on(
    ROUTES
)
async def get_environment(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(cluster.environment())


@RestRoute(
    "GET",
    f"{_JOB}/jobmanager/log-url",
    "Where the web page shows the logs of the control plane",
    result={"url": str},
).on(ROUTES)
async def get_log_url(rest: Rest, request: Request) -> Response:
    return answer({"url": f"{rest.url}/#/masters/logs"})


@RestRoute(
    "GET",
    _JOB + "/taskmanagers/{taskmanagerid}/log-url",
    "Where the web page shows the logs of a TaskExecutor",
    result={"url": str},
).on(ROUTES)
async def get_task_manager_log_url(rest: Rest, request: Request) -> Response:
    return answer({"url": f"{rest.url}/#/taskmanagers/{quote(request.path_params['taskmanagerid'], safe='')}/logs"})


@RestRoute("GET", f"{_JOB}/yarn-cancel", "Begin to cancel a job, as Flink's page does", status=202).on(ROUTES)
async def cancel(rest: Rest, request: Request) -> Response:
    """Begin to cancel; the client polls the state. As in Flink, a CANCELED job may be cancelled again."""
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
        rest.snapshots.forget()  # also answers to requests from during the cancellation
    return answer({}, 202)


@RestRoute(
    "PATCH",
    _JOB,
    "Begin to cancel a job",
    status=202,
    query=(Parameter("mode", "how the job is ended", ("cancel",)),),
    also=(308,),
).on(ROUTES)
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


def names_of(attempt: AttemptInfo, *, only_kept: bool = False) -> list[str]:
    """Return the names of an attempt's logs: those that its TaskExecutor writes, and those kept after its end."""
    kept = [log.name for log in attempt.logs]
    written = TASK_LOGS if attempt.task_executor and not only_kept else ()
    return list(dict.fromkeys((*written, *kept)))


def logs(graph: ArchivedExecutionGraph, *, only_kept: bool = False) -> Json:
    """GET /jobs/:jobid/logs: the newest attempts first; a history has *only_kept* logs."""
    attempts = [(task, attempt) for task in graph.tasks for attempt in reversed(task.attempts)]
    return {
        "logs": [
            {
                "name": name,
                "task": task.name,
                "attempt": attempt.number,
                "attempt-id": attempt.attempt_id,
                "status": attempt.state.value,
            }
            for task, attempt in attempts
            for name in names_of(attempt, only_kept=only_kept)
        ]
    }


@RestRoute("GET", f"{_JOB}/logs", "The logs of a job's attempts", result={"logs": [dict]}).on(ROUTES)
async def get_logs(rest: Rest, request: Request) -> Response:
    return answer(logs(await rest.job(request), only_kept=rest.is_history))


@RestRoute(
    "GET",
    _JOB + "/logs/{attemptid}/{log}",
    "A log of an attempt; the header X-Log-Complete says whether more will follow",
    media=TEXT,
    query=(FROM_OFFSET,),
).on(ROUTES)
async def get_log(rest: Rest, request: Request) -> Response:
    graph = await rest.job(request)
    offset = offset_of(request)
    attempt_id, name = request.path_params["attemptid"], request.path_params["log"]
    for task in graph.tasks:
        for attempt in task.attempts:
            if attempt.attempt_id == attempt_id and name in names_of(attempt, only_kept=rest.is_history):
                data, complete = await rest.backend.task_log(graph.job_id, attempt, name, offset)
                return Response(data, media_type=TEXT, headers={COMPLETE: "true" if complete else "false"})
    raise RestError(404, f"job {graph.job_id} has no such log; GET /jobs/{graph.job_id}/logs shows those that it has")
