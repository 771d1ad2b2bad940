"""Decisions about the sessions of Spark Connect clients: the job of a session, and what a call needs next. Pure.

The id of a session's job is a digest of its user and of its own id. So every web endpoint finds the job by the request
alone, and submitting it twice has no effect.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from dataclasses import dataclass, replace

from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, JobKind, JobVertex, VertexRole
from runtime.jobgraph.restart_config import RestartStrategyConfig, RestartStrategyKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.execution_state import ExecutionState, JobStatus

SERVICE = "spark.connect.SparkConnectService"
RELEASE = "ReleaseSession"
REPORT = "ReleaseExecute"
"""Reports what the client has read of an answer."""
BEGINNING = frozenset({"ExecutePlan", "AnalyzePlan", "Config", "AddArtifacts", "ArtifactStatus"})
"""Methods that begin a session if there is none, as on a Connect server of Spark."""
METHODS = BEGINNING | {
    RELEASE,
    "Interrupt",
    "ReattachExecute",
    REPORT,
    "FetchErrorDetails",
    "GetStatus",
}
"""Methods that are passed on. CloneSession is not: the clone would be a session without a job."""

BEATS = 10
"""Number of heartbeats within the idle time-out of a session with an open call."""
_REMEMBERED = 4096
_VERTEX = "session"
_FILE = f"""\
# Made by the web endpoint: keeps a Spark Connect session open for a client.
from understudy.runtime.spark.task.client_session import keep_open as {_VERTEX}
"""
_AGAIN = (
    "SparkSession.builder.remote(...).getOrCreate() begins a new one, without the views, cached data and artifacts of "
    "this one"
)
_ENDING = {JobStatus.CANCELLING, JobStatus.CANCELED, JobStatus.FAILING, JobStatus.FAILED, JobStatus.FINISHED}


@functools.lru_cache(_REMEMBERED)
def job_of(user: str, session_id: str) -> JobID:
    """Return the id of the job of a session.

    Args:
        user: name of the session's user; empty for a holder of one of the cluster's own secrets.
        session_id: chosen by the client.
    """
    return JobID.from_name("Spark Connect session", user, session_id)


def session_graph(user: str, session_id: str, created_ms: int, idle_timeout_s: float) -> JobGraph:
    """Return the job of a session.

    Its driver cannot be replaced by another one that knows nothing of the session. So it is never restarted.

    Args:
        user: as for `job_of`; the owner of the job.
        session_id: chosen by the client.
        created_ms: the time, in milliseconds since the epoch.
        idle_timeout_s: seconds without a call of the client after which the job is cancelled.
    """
    name = f"Spark Connect session {session_id.partition('-')[0]}"
    vertex = JobVertex(JobVertexID.of(name, _VERTEX), _VERTEX, f"{_VERTEX}:{_VERTEX}", VertexRole.SINK)
    graph = JobGraph(
        job_of(user, session_id),
        name,
        JobKind.PIPELINE,
        (vertex,),
        restart_strategy=RestartStrategyConfig(RestartStrategyKind.NONE),
        created_ms=created_ms,
    )
    graph = graph.with_artifacts(Artifact(f"{_VERTEX}.py", ArtifactRole.MAIN, content=_FILE.encode()))
    return replace(graph, submitter=user, owner=user, session_id=session_id, client_heartbeat_timeout_s=idle_timeout_s)


@dataclass(frozen=True, slots=True)
class Begin:
    """Submit the session's job."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Look at the job again later: it has no slot yet, or is being taken over by another JobMaster."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Ask a TaskExecutor, which has the session unless it has just ended.

    Args:
        task_executor: its resource id.
    """

    task_executor: str


@dataclass(frozen=True, slots=True)
class Over:
    """Refuse the call: the session is not open.

    Args:
        reason: one line that says why, and what to do.
        is_lost: whether its driver has been lost; if not, its client, a user or the idle time-out has ended it.
    """

    reason: str
    is_lost: bool = False


Step = Begin | Wait | Reach | Over


def next_step(job: ArchivedExecutionGraph | None, user: str, method: str, *, is_begun: bool = False) -> Step:
    """Return what a call needs next.

    Args:
        job: the session's; None if there is none.
        user: as for `job_of`.
        method: of the service.
        is_begun: whether the session has begun already, so that its job is lost if there is none.
    """
    if job is None and is_begun:
        return Over(f"the job of the Spark session is lost; {_AGAIN}", is_lost=True)
    if job is None:
        return Begin() if method in BEGINNING else Over(f"there is no such Spark session; {_AGAIN}")
    if job.owner != user:  # another user has submitted a job under this id
        return Over(f"job {job.job_id} is not a Spark session of this user; {_AGAIN}")
    if job.status in _ENDING:
        is_lost = job.status in (JobStatus.FAILING, JobStatus.FAILED)
        return Over(f"the Spark session has ended: its job {job.job_id} is {_end_of(job)}; {_AGAIN}", is_lost)
    running = (task.attempts[-1] for task in job.tasks if task.state is ExecutionState.RUNNING)
    attempt = next(running, None)
    return Wait() if attempt is None or not attempt.task_executor else Reach(attempt.task_executor)


def _end_of(job: ArchivedExecutionGraph) -> str:
    match job.status:
        case JobStatus.FINISHED:
            why = "its client has released it"
        case JobStatus.CANCELLING | JobStatus.CANCELED:
            why = job.cancelled_because or "a user has cancelled it"
        case _:
            why = "an unknown failure" if job.failure is None else job.failure.cause
    return f"{job.status.value} ({why})"


class Beats:
    """Decides which calls prolong the life of their session: at most one of each interval.

    Args:
        idle_timeout_s: of sessions, in seconds.
    """

    def __init__(self, idle_timeout_s: float) -> None:
        self.interval_s = idle_timeout_s / BEATS
        self._last: OrderedDict[JobID, float] = OrderedDict()

    def is_due(self, job_id: JobID, now: float) -> bool:
        """Return whether to send a heartbeat for a session's job now; *now* is in monotonic seconds."""
        last = self._last.get(job_id)
        if last is not None and now - last < self.interval_s:
            return False
        self._last[job_id] = now
        self._last.move_to_end(job_id)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        return True
