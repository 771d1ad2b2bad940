"""A job's metrics, by Flink's names where Flink has them (``numRestarts``, ``lastCheckpointDuration``). Pure.

They are computed from what the job's pages show, once for each request, so that metrics and pages agree. Flink has the
gauges of all jobs in the JobManager's process; here each job has a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.metrics.metric import MetricScope, ScopeCategory, ScopeDump, Value, gauges
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.streaming_query import BackPressureLevel, OperatorBackPressureStats, StreamingQuery

UNKNOWN = -1
NO_PATH = "n/a"

STATE_TIMES = {
    JobStatus.INITIALIZING: "initializingTime",
    JobStatus.CREATED: "createdTime",
    JobStatus.RUNNING: "runningTime",
    JobStatus.FAILING: "failingTime",
    JobStatus.CANCELLING: "cancellingTime",
    JobStatus.RESTARTING: "restartingTime",
    JobStatus.RECONCILING: "reconcilingTime",
}
_DOWN = (JobStatus.FAILING, JobStatus.RESTARTING)


def job_metrics(graph: ArchivedExecutionGraph, now_ms: int) -> list[ScopeDump]:
    """Return the metrics of a job, its tasks, their vertices and their queries.

    Args:
        graph: the present state of the job.
        now_ms: milliseconds since the epoch.
    """
    failures: dict[str, Value | None] = {f"Failures.{kind}": count for kind, count in graph.failure_counts.items()}
    values = {
        **_times(graph, now_ms),
        "numRestarts": graph.restarts,
        "numFailures": sum(graph.failure_counts.values()),
        **failures,
        **_checkpoints(graph.checkpoints),
    }
    own = MetricScope(ScopeCategory.JOB, job_id=graph.job_id, job_name=graph.name)
    found = [ScopeDump(own, gauges(values))]
    for task in graph.tasks:
        found += _task(graph, task)
    return found


def _times(graph: ArchivedExecutionGraph, now_ms: int) -> dict[str, Value | None]:
    """Return milliseconds in the present state, 0 for the others (Flink's ``CURRENT_TIME``); -1 if the job is over."""
    over, since = graph.status.is_globally_terminal, graph.timestamps.get(graph.status.value, now_ms)
    spent = max(now_ms - since, 0)
    values: dict[str, Value | None] = {
        name: spent if status is graph.status else 0 for status, name in STATE_TIMES.items()
    }
    running = graph.status is JobStatus.RUNNING
    values["deployingTime"] = max(now_ms - _deploying_since(graph, now_ms), 0) if running else 0
    values["allSubTasksRunningOrFinishedTime"] = max(now_ms - _all_run_since(graph, now_ms), 0) if running else 0
    values["uptime"] = UNKNOWN if over else values["runningTime"]
    values["downtime"] = UNKNOWN if over else spent if graph.status in _DOWN else 0
    return values


def _deploying_since(graph: ArchivedExecutionGraph, now_ms: int) -> int:
    """Return since when a task is being deployed; now if none is (Flink's ``deployingTime``)."""
    deploying = (task.attempts[-1] for task in graph.tasks if task.state is ExecutionState.DEPLOYING)
    return min(
        (attempt.timestamps.get(ExecutionState.DEPLOYING.value, now_ms) for attempt in deploying), default=now_ms
    )


def _all_run_since(graph: ArchivedExecutionGraph, now_ms: int) -> int:
    """Return since when all tasks run or have finished; now if some do not."""
    if any(task.state not in (ExecutionState.RUNNING, ExecutionState.FINISHED) for task in graph.tasks):
        return now_ms
    entered = (task.attempts[-1].timestamps.get(ExecutionState.RUNNING.value, now_ms) for task in graph.tasks)
    return max(entered, default=now_ms)


def _checkpoints(stats: CheckpointStatsSnapshot) -> dict[str, Value | None]:
    last, restored = stats.latest_completed, stats.latest_restored
    completed_ms = None if last is None else last.latest_ack_timestamp
    return {
        "totalNumberOfCheckpoints": stats.counts.total,
        "numberOfInProgressCheckpoints": stats.counts.in_progress,
        "numberOfCompletedCheckpoints": stats.counts.completed,
        "numberOfFailedCheckpoints": stats.counts.failed,
        "lastCompletedCheckpointId": UNKNOWN if last is None else last.id,
        "lastCheckpointDuration": UNKNOWN if last is None else last.end_to_end_duration,
        "lastCheckpointSize": UNKNOWN if last is None else last.checkpointed_size,
        "lastCheckpointFullSize": UNKNOWN if last is None else last.state_size,
        "lastCheckpointCompletedTimestamp": UNKNOWN if completed_ms is None else completed_ms,
        "lastCheckpointExternalPath": NO_PATH if last is None or not last.external_path else last.external_path,
        "lastCheckpointRestoreTimestamp": UNKNOWN if restored is None else restored.restore_timestamp,
    }


def _task(graph: ArchivedExecutionGraph, task: TaskInfo) -> list[ScopeDump]:
    attempt = task.attempts[-1]

    def scope(category: ScopeCategory, operator: str = "") -> MetricScope:
        return MetricScope(
            category,
            task_manager=attempt.task_executor,
            job_id=graph.job_id,
            job_name=graph.name,
            task_id=task.key,
            task_name=task.name,
            operator_name=operator,
        )

    own: dict[str, Value | None] = {
        "attempt": attempt.number,
        "numStreamingQueries": len(attempt.queries),
        "initializationTime": _initialization_ms(attempt),
        **_rows(attempt.queries),
        **_back_pressure(attempt.back_pressure),
    }
    found = [ScopeDump(scope(ScopeCategory.TASK), gauges(own))]
    for vertex in graph.vertices:
        if vertex.task == task.key:
            done = vertex.progress
            counts: dict[str, Value | None] = {
                "Spark.numStages": done.stages,
                "Spark.numStagesCompleted": done.stages_completed,
                "Spark.numTasks": done.tasks_total,
                "Spark.numTasksCompleted": done.tasks_completed,
                "Spark.numTasksActive": done.tasks_active,
            }
            found.append(ScopeDump(scope(ScopeCategory.OPERATOR, vertex.name), gauges(counts)))
    found += [
        ScopeDump(scope(ScopeCategory.OPERATOR, query.name or query.id), gauges(_query(query)))
        for query in attempt.queries
    ]
    return found


def _initialization_ms(attempt: AttemptInfo) -> int | None:
    """Return how long it took to prepare the attempt's process for the job's code; None before the code runs."""
    begun, runs = (
        attempt.timestamps.get(state.value) for state in (ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    )
    return None if begun is None or runs is None else max(runs - begun, 0)


def _rows(queries: Sequence[StreamingQuery]) -> dict[str, Value | None]:
    """Return rows per second that arrived at all queries in their last batches; empty if none has reported any."""
    rates = [query.progress.rows_per_second for query in queries if query.progress is not None]
    return {"numRecordsInPerSecond": sum(rates)} if rates else {}


def _back_pressure(stats: OperatorBackPressureStats | None) -> dict[str, Value | None]:
    """Return back pressure by Flink's names, in milliseconds of each second; empty if it is not known."""
    if stats is None:
        return {}
    ratios = stats.ratios or (None, None, None)
    names = ("backPressuredTimeMsPerSecond", "busyTimeMsPerSecond", "idleTimeMsPerSecond")
    parts = {name: None if ratio is None else round(ratio * 1000) for name, ratio in zip(names, ratios, strict=True)}
    return {"isBackPressured": int(stats.level is BackPressureLevel.HIGH), **parts}


def _query(query: StreamingQuery) -> dict[str, Value | None]:
    """Return Spark's figures of a query's last batch, by Flink's names if Flink has them."""
    progress = query.progress
    if progress is None:
        return {"Spark.batchId": query.batch}
    return {
        "Spark.batchId": progress.batch,
        "Spark.batchDuration": progress.duration_ms,
        "Spark.numInputRows": progress.rows,
        "Spark.processedRowsPerSecond": progress.processed_per_second,
        "Spark.stateRows": progress.state_rows,
        "Spark.stateBytes": progress.state_bytes,
        "numRecordsInPerSecond": progress.rows_per_second,
        "pendingRecords": progress.lag,
    }
