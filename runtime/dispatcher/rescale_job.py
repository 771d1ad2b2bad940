"""The job that gives the state of another job a new number of partitions. Pure.

A rescale needs a Spark, and masters never start one. So the cluster does it in a slot, as a job of the other job's
owner. The job's script is Understudy's own (`runtime.cluster.rescale_task`). It does the steps of
``understudy job rescale`` in the Spark of its TaskExecutor.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.names import rescale_job_id, savepoint_name
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import MAX_NAME_LENGTH
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.rescales import VANISHED, Rescale

FILE_NAME = "rescale.py"

_SCRIPT = b"""\
# Made by the Dispatcher: rescales the state of another job.
from understudy.runtime.cluster.rescale_task import main

main()
"""
_KEPT_SETTINGS = (
    "job.queue",
    "job.task.memory",
    "job.task.cpus",
    "spark.sql.streaming.fileSink.log.compactInterval",
)
"""Settings of the other job that hold for its rescale: whose slots it takes, what they count, and how its file sinks
write.
"""


def rescale_graph(
    job: JobGraph, trigger_id: TriggerID, partitions: int | None, query: str, directory: str, created_ms: int
) -> JobGraph:
    """Return the job that rescales another one.

    It is never restarted: a repeated attempt would rescale a job that may have been rescaled already.

    Args:
        job: the other one, whose owner, submitter, priority and queue it gets.
        trigger_id: of the request; it determines the job's id.
        partitions: the new number; None for the one before the last rescale.
        query: name of the only query to rescale; empty for all with state.
        directory: where the savepoints are made; empty for the cluster's.
        created_ms: the time, in milliseconds since the epoch.

    Raises:
        SavepointError: *partitions* is not a number of partitions, or a query is named for an undo.
    """
    if partitions is not None and partitions < 1:
        raise SavepointError(f"{partitions} is not a number of partitions", "choose 1 or more")
    if partitions is None and query:
        raise SavepointError("one query alone cannot be undone", "an undo is of the whole of the last rescale")
    if "\0" in query or "\0" in directory:
        raise SavepointError("a name with a NUL character is not a name", "name a query of the job, and a directory")
    wanted = ("--undo",) if partitions is None else ("--partitions", str(partitions))
    named = (f"--query={query}",) if query else ()
    placed = (f"--savepoint={directory}",) if directory else ()
    what = "undo the rescale of" if partitions is None else "rescale"
    end = "" if partitions is None else f" to {partitions} partitions"
    shown = job.name[: MAX_NAME_LENGTH - len(what) - len(end) - 1]
    made = JobGraph.for_script(
        f"{what} {shown}{end}",
        job_id=rescale_job_id(job.job_id, trigger_id),
        argv=(*wanted, *named, *placed, f"--trigger-id={trigger_id}", job.job_id),
        restart_strategy=RestartStrategyConfig.none(),
        created_ms=created_ms,
    )
    return replace(
        made,
        artifacts=(Artifact(FILE_NAME, ArtifactRole.MAIN, content=_SCRIPT),),
        priority=job.priority,
        configuration={key: value for key, value in job.configuration.items() if key in _KEPT_SETTINGS},
        submitter=job.submitter,
        owner=job.owner,
    )


def rescale_status(
    job_id: JobID, trigger_id: TriggerID, rescale: ArchivedExecutionGraph, rolled_back_to: str
) -> OperationStatus:
    """Return what became of a rescale.

    The rollback decides, not the end of the job that requested it. That job may be lost after the rollback is recorded.

    Args:
        job_id: the job that is rescaled.
        trigger_id: of the request.
        rescale: the job that rescales it.
        rolled_back_to: directory of the job's last rollback, once *rescale* is over; empty if there is none.
    """
    if not rescale.status.is_globally_terminal:
        return OperationStatus(trigger_id, OperationState.IN_PROGRESS)
    is_done = Path(rolled_back_to).name.startswith(f"{savepoint_name(job_id, trigger_id)}-")
    if is_done or rescale.status is JobStatus.FINISHED:
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=rolled_back_to)
    why = rescale.failure.message if rescale.failure is not None else f"it is {rescale.status.value}"
    error = f"job {rescale.job_id}, which rescales job {job_id}, has not succeeded: {why}"
    return OperationStatus(trigger_id, OperationState.FAILED, error=error)


def settled(rescale: Rescale, *, is_alive: bool, ended: JobDetails | None = None) -> Rescale:
    """Return a rescale of a job as it is to be shown: failed, if nothing does it any more.

    Args:
        rescale: as the JobMaster has recorded it.
        is_alive: whether the job or the process that does it runs.
        ended: the job that has done it; None if it is not remembered, or a process did it.
    """
    if rescale.is_over or is_alive:
        return rescale
    error = VANISHED if ended is None else f"job {ended.job_id}, which rescales it, is {ended.status.value}"
    if ended is not None and ended.error:
        error += f": {ended.error}"
    return replace(rescale, state=OperationState.FAILED, error=error, ended_ms=None if ended is None else ended.end_ms)
