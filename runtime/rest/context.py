"""The context of handlers: requests, the cluster with its recent answers, and operations of this endpoint's clients."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request

from conf.configuration import Configuration
from runtime.history.reader import ClusterHistory
from runtime.ids import JobID, TriggerID
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, TaskInfo
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError, UnknownOperationError
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.backend import ClusterBackend
from runtime.rest.errors import RestError
from runtime.rest.snapshots import Snapshots, noticed

BODY_TIMEOUT_S = 120.0
MOST_OFFSET = 10**9
KEPT = 256
"""How many operations of each kind are remembered."""
FETCHES_AT_ONCE = 4
"""How many logs of TaskExecutors, a few MB each, may be in this process's memory at once."""


@dataclass(slots=True)
class _Triggered:
    trigger: CheckpointTrigger
    ended: OperationStatus | None = None


class TriggeredOperations:
    """Checkpoints and savepoints of jobs, by their trigger ids (Flink's `CompletedOperationCache`).

    The JobMaster knows their status. After it is lost, its successor does not know those that were in progress. When a
    client then polls the status, the endpoint triggers them again under the same id, like a client of the Dispatcher.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[JobID, TriggerID], _Triggered] = OrderedDict()

    async def begin(self, backend: ClusterBackend, job_id: JobID, trigger: CheckpointTrigger) -> None:
        """Send the request to the cluster; the same id again changes nothing."""
        key = (job_id, trigger.trigger_id)
        if key in self._known:
            return
        await backend.trigger(job_id, trigger)
        self._known.setdefault(key, _Triggered(trigger))
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    def find(self, job_id: JobID, trigger_id: TriggerID) -> CheckpointTrigger | None:
        """Return the request with that id; None if it was sent to another endpoint, or long ago."""
        known = self._known.get((job_id, trigger_id))
        return None if known is None else known.trigger

    async def status(self, backend: ClusterBackend, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """Return the present status of a request; raises `UnknownOperationError` for an unknown one."""
        known = self._known.get((job_id, trigger_id))
        if known is None:
            return await backend.operation(job_id, trigger_id)
        if known.ended is not None:
            return known.ended
        try:
            status = await backend.operation(job_id, trigger_id)
        except UnknownOperationError:
            try:
                status = await backend.trigger(job_id, known.trigger)
            except JobAlreadyTerminatedError as error:
                status = OperationStatus(trigger_id, OperationState.FAILED, error=str(error))
        if status.state is not OperationState.IN_PROGRESS and not known.trigger.type.ends_the_job:
            known.ended = status  # a completed stop-with-savepoint may still fail
        return status


class Disposals:
    """Removals of savepoints, by their trigger ids."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TriggerID, asyncio.Task[None]] = OrderedDict()

    def begin(self, trigger_id: TriggerID, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the background; the same id again changes nothing. Raises RestError of status 503."""
        if trigger_id in self._tasks:
            work.close()
            return
        if len(self._tasks) >= KEPT:
            ended = next((key for key, task in self._tasks.items() if task.done()), None)
            if ended is None:
                work.close()
                raise RestError(503, f"{KEPT} savepoints are being disposed of; retry later")
            del self._tasks[ended]
        task = self._tasks[trigger_id] = asyncio.ensure_future(work)
        task.add_done_callback(noticed)  # the client may never ask for the outcome

    def find(self, trigger_id: TriggerID) -> asyncio.Task[None] | None:
        """Return the work; None if the request went to another endpoint, or was long ago."""
        return self._tasks.get(trigger_id)


@dataclass(frozen=True, slots=True)
class Rest:
    """Objects that handlers work with.

    Args:
        backend: the cluster.
        snapshots: its recent answers.
        configuration: of the cluster.
        log_dir: the directory of the logs of this machine's control plane.
        url: the endpoint's own address.
        closing: set when the endpoint stops, for endless streams.
        fetching: held while a log of a TaskExecutor is in memory.
        reading: held while figures or lines of the audit log are read, so that these take one thread at most.
        operations: checkpoints and savepoints that clients requested here.
        disposals: removals of savepoints that clients requested here.
        identities: users and their tokens.
        histories: the history of the cluster; those of several clusters in a history server.
        is_history: whether this is a history server, which serves nothing else.
    """

    backend: ClusterBackend
    snapshots: Snapshots
    configuration: Configuration
    log_dir: Path
    url: str
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_AT_ONCE))
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    operations: TriggeredOperations = field(default_factory=TriggeredOperations)
    disposals: Disposals = field(default_factory=Disposals)
    identities: KnownIdentities = field(default_factory=lambda: KnownIdentities(nobody))
    histories: Sequence[ClusterHistory] = ()
    is_history: bool = False

    async def job(self, request: Request) -> ArchivedExecutionGraph:
        """Return the job that the path names; raises RestError."""
        job_id = job_id_of(request)
        try:
            found: ArchivedExecutionGraph = await self.snapshots.get(job_id, lambda: self.backend.job(job_id))
        except JobNotFoundError as error:
            raise RestError(404, f"Job {job_id} not found: {error}") from error
        return found

    async def configuration_of(self, job_id: JobID) -> Configuration:
        """Return the configuration of the cluster of a job: in a history, of the first cluster that has the job."""
        if self.is_history:
            for history in self.histories:
                if await asyncio.to_thread(history.has, job_id):
                    return history.configuration
        return self.configuration

    async def task(self, request: Request) -> TaskInfo:
        """Return the task that the path names as a vertex; raises RestError."""
        graph, vertex_id = await self.job(request), request.path_params["vertexid"]
        task = next((task for task in graph.tasks if task.key == vertex_id), None)
        if task is None:
            raise RestError(404, f"job {graph.job_id} has no vertex {vertex_id!r}; GET /jobs/{graph.job_id} shows them")
        return task


def job_id_of(request: Request) -> JobID:
    """Return the job id in the path; raises RestError of status 400."""
    shown = request.path_params.get("jobid") or request.path_params["applicationid"]
    try:
        return JobID(shown)
    except ValueError as error:
        raise RestError(400, f"{error}; GET /jobs/overview shows the ids of jobs") from None


def number_of(request: Request, name: str, default: int, most: int) -> int:
    """Return a whole number of the query, at most *most*; raises RestError of status 400."""
    shown = request.query_params.get(name)
    if shown is None:
        return default
    if not (shown.isascii() and shown.isdigit() and 0 < len(shown) <= 9):
        raise RestError(400, f"{name} must be a whole number, not {shown[:40]!r}")
    return min(int(shown), most)


def offset_of(request: Request) -> int:
    """Return the offset in a log from which the client reads; raises RestError of status 400."""
    return number_of(request, "offset", 0, MOST_OFFSET)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the whole body; raises RestError when it has more than *limit* bytes, or takes too long."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                data += piece
                if len(data) > limit:
                    raise RestError(413, f"at most {limit} bytes are taken here")
    except TimeoutError:
        raise RestError(408, f"the request's body did not come within {BODY_TIMEOUT_S:g} s") from None
    return bytes(data)
