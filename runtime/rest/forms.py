"""The forms of the answers: the parts that each answer has at least, for Flink's client and web page. Pure.

A form is one of these:

- a type, or a tuple of possible types;
- a list of one form: any number of values of that form;
- a dictionary of forms by their keys.

The OpenAPI document is made of the forms, and tests check the messages against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.rest.messages import PASSED

Form = Any

_WORDS: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def schema_of(form: Form) -> dict[str, Any]:
    """Return the JSON schema of a form."""
    if isinstance(form, dict):
        parts = {key: schema_of(part) for key, part in form.items()}
        return {"type": "object", "required": list(parts), "properties": parts}
    if isinstance(form, list):
        return {"type": "array", "items": schema_of(form[0])}
    if isinstance(form, tuple):
        return {"type": [_WORDS[kind] for kind in form]}
    return {"type": _WORDS[form]}


STATES = {state.value: int for state in ExecutionState}
LOWER_STATES = {state.value.lower(): int for state in ExecutionState}
METRICS = {
    **dict.fromkeys(("read-bytes", "write-bytes", "read-records", "write-records"), int),
    **{f"{name}-complete": bool for name in ("read-bytes", "write-bytes", "read-records", "write-records")},
    "accumulated-backpressured-time": int,
    "accumulated-idle-time": int,
    "accumulated-busy-time": float,
}
SPAN = {"start-time": int, "end-time": int, "duration": int}
QUANTILES = dict.fromkeys(("p25", "min", "avg", "median", "max", "sum", "p95", "p75"), int)
AGGREGATED = {
    "metrics": {name: QUANTILES for name in METRICS if not name.endswith("-complete")},
    "status-duration": dict.fromkeys(PASSED, QUANTILES),
}
PLAN = {"jid": str, "name": str, "type": str, "nodes": [dict]}
LINE = {
    "jid": str,
    "name": str,
    "jobType": str,
    "kind": str,
    "owner": str,
    "schedulerType": str,
    **SPAN,
    "state": str,
    "last-modification": int,
    "tasks": {"total": int, **LOWER_STATES},
    "pending-operators": int,
    "waiting-for": str,
}
JOB = {
    "jid": str,
    "application-id": str,
    "name": str,
    "isStoppable": bool,
    "state": str,
    "job-type": str,
    "kind": str,
    "owner": str,
    "trace-id": str,
    "schedulerType": str,
    **SPAN,
    "maxParallelism": int,
    "now": int,
    "timestamps": {state.value: int for state in JobStatus},
    "vertices": [
        {
            "id": str,
            "slotSharingGroupId": str,
            "name": str,
            "maxParallelism": int,
            "parallelism": int,
            "status": str,
            **SPAN,
            "tasks": STATES,
            "metrics": METRICS,
        }
    ],
    "status-counts": STATES,
    "plan": PLAN,
    "pending-operators": int,
}
_COLUMN = [(int, type(None))]
FIGURES = {
    "cluster": str,
    "damaged": int,
    "timestamps": [int],
    **dict.fromkeys(
        (
            "taskmanagers",
            "slots-total",
            "slots-available",
            "pending-slot-requests",
            "jobs-running",
            "heap-used",
            "heap-max",
        ),
        _COLUMN,
    ),
    "rows-per-second": [(float, type(None))],
    "jobs": [{"jid": str, "rows-per-second": [(float, type(None))]}],
}
AUDIT = {
    "cluster": str,
    "lines": [
        {
            "at-ms": int,
            **dict.fromkeys(("user", "role", "token", "action", "target", "source", "outcome"), str),
            "status": int,
            "reason": str,
            "suppressed": int,
        }
    ],
    "next": str,
    "damaged": int,
}
SPARK_WORK = {
    "history-server": {"url": str, "command": str},
    "attempts": [
        {
            "vertex-id": str,
            "task": str,
            "attempt": int,
            "attempt-id": str,
            "status": str,
            "application": str,
            "tag": str,
            "url": str,
            "note": str,
        }
    ],
}
SUBTASK = {
    "subtask": int,
    "status": str,
    "attempt": int,
    "endpoint": str,
    **SPAN,
    "metrics": METRICS,
    "taskmanager-id": str,
    "status-duration": dict.fromkeys(PASSED, int),
    "start_time": int,
}
VERTEX = {
    "id": str,
    "name": str,
    "parallelism": int,
    "maxParallelism": int,
    "now": int,
    "subtasks": [SUBTASK],
    "aggregated": AGGREGATED,
}
TIMES = {"subtask": int, "endpoint": str, "duration": int, "timestamps": STATES}
EXCEPTION = {
    "exceptionName": str,
    "stacktrace": str,
    "timestamp": int,
    "failureLabels": dict,
    "concurrentExceptions": [dict],
}
APPLICATION = {"id": str, "name": str, **SPAN, "status": str}
RESOURCE = {
    "cpuCores": float,
    **dict.fromkeys(("taskHeapMemory", "taskOffHeapMemory", "managedMemory", "networkMemory"), int),
    "extendedResources": dict,
}
WORKER = {
    "id": str,
    "path": str,
    "dataPort": int,
    "jmxPort": int,
    "timeSinceLastHeartbeat": int,
    "user": str,
    "slotsNumber": int,
    "freeSlots": int,
    "assignedTasks": int,
    "totalResource": RESOURCE,
    "freeResource": RESOURCE,
    "hardware": dict.fromkeys(("cpuCores", "physicalMemory", "freeMemory", "managedMemory"), int),
    "memoryConfiguration": dict.fromkeys(
        (
            "frameworkHeap",
            "taskHeap",
            "frameworkOffHeap",
            "taskOffHeap",
            "networkMemory",
            "managedMemory",
            "jvmMetaspace",
            "jvmOverhead",
            "totalFlinkMemory",
            "totalProcessMemory",
        ),
        int,
    ),
}
WORKER_METRICS = {
    **dict.fromkeys(
        (
            "heapUsed",
            "heapCommitted",
            "heapMax",
            "nonHeapUsed",
            "nonHeapCommitted",
            "nonHeapMax",
            "directCount",
            "directUsed",
            "directMax",
            "mappedCount",
            "mappedUsed",
            "mappedMax",
        ),
        int,
    ),
    "garbageCollectors": [dict],
}
SUMMARY = {"min": int, "max": int, "avg": int, **dict.fromkeys(("p50", "p90", "p95", "p99", "p999"), (float, str))}
_SIZES_AND_DURATION = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
)
CHECKPOINT_OF_TASK = {
    "status": str,
    **dict.fromkeys(("id", "latest_ack_timestamp", "num_subtasks", "num_acknowledged_subtasks"), int),
    **dict.fromkeys(_SIZES_AND_DURATION, int),
}
CHECKPOINT = {
    **CHECKPOINT_OF_TASK,
    **dict.fromkeys(("className", "checkpoint_type"), str),
    "trigger_timestamp": int,
    "is_savepoint": bool,
    "savepointFormat": (str, type(None)),
    "tasks": dict,
}
CHECKPOINTS = {
    "counts": dict.fromkeys(("restored", "total", "in_progress", "completed", "failed"), int),
    "summary": dict.fromkeys(_SIZES_AND_DURATION, SUMMARY),
    "latest": dict.fromkeys(("completed", "savepoint", "failed", "restored"), (dict, type(None))),
    "history": [CHECKPOINT],
}
SUMMARY_OF_TASK = {
    **dict.fromkeys(("checkpointed_size", "state_size", "end_to_end_duration", "start_delay"), SUMMARY),
    "checkpoint_duration": {"sync": SUMMARY, "async": SUMMARY},
    "alignment": dict.fromkeys(("buffered", "processed", "persisted", "duration"), SUMMARY),
}
CHECKPOINT_TASK_DETAILS = {**CHECKPOINT_OF_TASK, "summary": SUMMARY_OF_TASK, "subtasks": [dict]}
CHECKPOINT_CONFIG = {
    **dict.fromkeys(("mode", "state_backend", "checkpoint_storage", "changelog_storage"), str),
    **dict.fromkeys(("interval", "timeout", "min_pause", "max_concurrent", "tolerable_failed_checkpoints"), int),
    **dict.fromkeys(("aligned_checkpoint_timeout", "changelog_periodic_materialization_interval"), int),
    **dict.fromkeys(("unaligned_checkpoints", "checkpoints_after_tasks_finish", "state_changelog_enabled"), bool),
    "externalization": {"enabled": bool, "delete_on_cancellation": bool},
}
FEATURES = dict.fromkeys(("web-submit", "web-cancel", "web-rescale", "web-history"), bool)
CONFIG = {
    "refresh-interval": int,
    "timezone-name": str,
    "timezone-offset": int,
    "flink-version": str,
    "flink-revision": str,
    "features": FEATURES,
}
COUNTS = ("taskmanagers", "slots-total", "slots-available")
OVERVIEW = {
    **dict.fromkeys((*COUNTS, "jobs-running", "jobs-finished", "jobs-cancelled", "jobs-failed"), int),
    "flink-version": str,
    "flink-commit": str,
}

SIZES = {
    **dict.fromkeys(("memory_mb", "blob_mb"), int),
    **dict.fromkeys(("memory_mb_limit", "blob_mb_limit"), (int, type(None))),
    "cpus": float,
    "cpus_limit": (float, type(None)),
}
JOB_LIMITS = {
    "slots": int,
    "slots_limit": (int, type(None)),
    "running_jobs": int,
    "running_jobs_limit": (int, type(None)),
}
QUEUES = {
    "queues": [
        {
            "name": str,
            "weight": float,
            "priority": int,
            **JOB_LIMITS,
            "waiting": int,
            "slot_seconds": float,
            "users": [
                {"user": str, "slots": int, "slot_seconds": float, "waiting": int, "memory_mb": int, "cpus": float}
            ],
            **SIZES,
        }
    ],
    "waiting": [
        {
            **dict.fromkeys(("job_id", "job_name", "task_name", "allocation_id", "user", "queue", "reason"), str),
            "place": int,
        }
    ],
    "running": [str],
    "problem": str,
    "has_file": bool,
    "limits": [{"kind": str, "name": str, **JOB_LIMITS, **SIZES}],
}

QUERY_HISTORY = {
    **dict.fromkeys(("vertex-id", "id", "run-id", "name"), str),
    **{name: [int] for name in ("timestamps", "batches", "batch-durations", "state-rows", "state-bytes")},
    **{name: [float] for name in ("input-rows-per-second", "processed-rows-per-second")},
    "lags": [(int, type(None))],
}
TASK = {"id": str, "name": str, "now": int}
SUBTASK_TIMES = {**TASK, "subtasks": [TIMES]}
PLACES = {**TASK, "taskmanagers": [dict]}
EXCEPTIONS = {"exceptionHistory": {"entries": [EXCEPTION], "truncated": bool}}
EXECUTION_RESULT = {"status": {"id": str}}
RESCALE = {
    **dict.fromkeys(("rescaleUuid", "resourceRequirementsUuid", "triggerCause", "requestedBy", "reason"), str),
    **dict.fromkeys(("rescaleJob", "location", "failure"), str),
    **dict.fromkeys(("rescaleAttemptId", "startTimestampInMillis", "endTimestampInMillis"), int),
    **dict.fromkeys(("vertices", "slots", "partitionsBefore"), dict),
    **dict.fromkeys(("terminalState", "terminatedReason"), (str, type(None))),
    "schedulerStates": [dict],
    "partitions": (int, type(None)),
    "isUndo": bool,
}
DECISION = {
    **dict.fromkeys(("query", "reason", "taskExecutor"), str),
    **dict.fromkeys(("partitions", "wanted", "cores"), (int, type(None))),
    **dict.fromkeys(("otherJobs", "timestamp"), int),
    "lacksCores": bool,
}
_RESCALES_COUNTS = {"rescalesCounts": dict.fromkeys(("ignored", "inProgress", "completed", "failed"), int)}
RESCALES_OVERVIEW = {
    **_RESCALES_COUNTS,
    "latest": dict.fromkeys(("completed", "failed", "ignored"), (dict, type(None))),
}
RESCALES_SUMMARY = {
    **_RESCALES_COUNTS,
    **{
        f"{kind}DurationStatsInMillis": SUMMARY
        for kind in ("rescales", "completedRescales", "ignoredRescales", "failedRescales")
    },
}
OPERATION = {"status": {"id": str}, "operation": (dict, type(None))}
TRIGGERED = {"request-id": str}
LOGS = {"logs": [{"name": str, "size": int, "mtime": int}]}
THREADS = {"threadInfos": [{"threadName": str, "stringifiedThreadInfo": str}]}
ENVIRONMENT = {"jvm": {"version": str, "arch": str, "options": [str]}, "classpath": [str]}
SETTINGS = [{"key": str, "value": str}]
METRIC_IDS = [{"id": str}]
"""Ids of metrics; with their values if the request names metrics."""
SUBMITTED = {"jobid": str, "jobUrl": str}
