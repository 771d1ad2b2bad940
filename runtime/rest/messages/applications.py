"""Applications, which Flink's page of 2.3 is centred on: each job is one, with the job's own id and name."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.execution_state import JobStatus
from runtime.rest.messages.common import NO_TIME, Json, duration
from runtime.rest.messages.jobs import details

_STATUS = {
    JobStatus.INITIALIZING: "CREATED",
    JobStatus.CREATED: "CREATED",
    JobStatus.FAILING: "FAILING",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLING: "CANCELING",  # applications are spelled as tasks are, not as jobs
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
}
_STATES = ("CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED")


def status_of(status: JobStatus) -> str:
    """Flink's `ApplicationState` of a job's; a job that is neither begun nor over is RUNNING."""
    return _STATUS.get(status, "RUNNING")


def overview(jobs: Iterable[JobDetails], now: int) -> Json:
    """GET /applications/overview."""
    return {"applications": [_in_one_line(job, now) for job in jobs]}


def _in_one_line(job: JobDetails, now: int) -> Json:
    end = NO_TIME if job.end_ms is None else job.end_ms
    return {
        "id": job.job_id,
        "name": job.name,
        "start-time": job.start_ms,
        "end-time": end,
        "duration": duration(job.start_ms, end, now),
        "status": status_of(job.status),
        "jobs": {job.status.value: 1},
    }


def application(graph: ArchivedExecutionGraph, now: int) -> Json:
    """GET /applications/:applicationid."""
    line = _in_one_line(graph.details(), now)
    times = dict.fromkeys(_STATES, 0)
    for status, entered in graph.timestamps.items():
        state = status_of(JobStatus(status))
        times[state] = min(times[state] or entered, entered)
    return {**line, "timestamps": times, "jobs": [details(graph.details(), now)]}
