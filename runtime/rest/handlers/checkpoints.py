"""Checkpoints and savepoints of a job: their figures, and requests for them (trigger, stop, roll back, dispose).

A request that takes long returns a trigger id, with which the client then polls its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import CheckpointingOptions, ClusterOptions
from conf.options.checkpointing import ExternalizedCheckpointRetention, StateBackend
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import path_of
from runtime.checkpoint.remote_files import checked_url, is_below
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
    StatsSummary,
    TaskStateStats,
)
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus, SnapshotType
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.places import is_url
from runtime.rest import forms
from runtime.rest.context import Rest, job_id_of, read_body
from runtime.rest.errors import RestError, status_of
from runtime.rest.messages import NO_TIME, Json
from runtime.rest.routing import JSON, RestRoute, answer
from runtime.rest.serialized_throwable import serialized_throwable

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 4096
"""Longest path of a directory in a request."""
MOST_OF_A_BODY = 64 * 1024
NO_INTERVAL = (1 << 63) - 1
"""Flink's interval where there are no periodic checkpoints, which its page knows."""
MOST_PARTITIONS = (1 << 31) - 1
"""Largest number of partitions in Spark, a Java int."""
ANY_NUMBER = (1 << 31) - 1
"""Flink's number of failures that are tolerated where all are."""

_NUMBER = re.compile(r"(chk-)?[0-9]{1,18}")
_BACKENDS = {StateBackend.HASHMAP: "HashMapStateBackend", StateBackend.ROCKSDB: "EmbeddedRocksDBStateBackend"}
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_TYPES = {
    SnapshotType.CHECKPOINT: "CHECKPOINT",
    SnapshotType.SAVEPOINT: "SAVEPOINT",
    SnapshotType.SAVEPOINT_SUSPEND: "SYNC_SAVEPOINT",
    SnapshotType.SAVEPOINT_TERMINATE: "SYNC_SAVEPOINT",
    SnapshotType.SAVEPOINT_CANCEL: "SAVEPOINT",
}
_NOTHING_IN_FLIGHT = dict.fromkeys(("alignment_buffered", "processed_data", "persisted_data"), 0)


def statistics(figures: CheckpointStatsSnapshot) -> Json:
    """GET /jobs/:jobid/checkpoints (Flink's `CheckpointingStatistics`)."""
    counts = figures.counts
    done = [stats for stats in figures.history if stats.status is CheckpointStatsStatus.COMPLETED]
    return {
        "counts": {
            "restored": counts.restored,
            "total": counts.total,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": {
            "checkpointed_size": _summary(figures.summary_checkpointed_size, [one.checkpointed_size for one in done]),
            "state_size": _summary(figures.summary_state_size, [one.state_size for one in done]),
            "end_to_end_duration": _summary(figures.summary_duration, [one.end_to_end_duration for one in done]),
            **{name: _summary(StatsSummary(), [0 for _ in done]) for name in _NOTHING_IN_FLIGHT},
        },
        "latest": {
            "completed": _checkpoint(figures.latest_completed),
            "savepoint": _checkpoint(figures.latest_savepoint),
            "failed": _checkpoint(figures.latest_failed),
            "restored": _restored(figures.latest_restored),
        },
        "history": [checkpoint(stats) for stats in figures.history],
    }


def checkpoint(stats: CheckpointStats) -> Json:
    """GET /jobs/:jobid/checkpoints/details/:checkpointid (Flink's `CheckpointStatistics`).

    Checkpoints of Spark contain no data in flight.
    """
    told: Json = {
        "className": stats.status.value.lower(),
        "id": stats.id,
        "status": stats.status.value,
        "is_savepoint": stats.is_savepoint,
        "savepointFormat": "CANONICAL" if stats.is_savepoint else None,
        "trigger_timestamp": stats.trigger_timestamp,
        "latest_ack_timestamp": NO_TIME if stats.latest_ack_timestamp is None else stats.latest_ack_timestamp,
        "checkpointed_size": stats.checkpointed_size,
        "state_size": stats.state_size,
        "end_to_end_duration": stats.end_to_end_duration,
        **_NOTHING_IN_FLIGHT,
        "num_subtasks": stats.num_tasks,
        "num_acknowledged_subtasks": stats.num_acknowledged_tasks,
        "checkpoint_type": _TYPES[stats.type],
        "tasks": {part.task_key: _task(stats, part) for part in stats.tasks},
    }
    if stats.status is CheckpointStatsStatus.COMPLETED:
        told |= {"external_path": uri_of(stats.external_path), "discarded": stats.discarded}
    elif stats.status is CheckpointStatsStatus.FAILED:
        told["failure_timestamp"] = NO_TIME if stats.failure_timestamp is None else stats.failure_timestamp
        told["failure_message"] = stats.failure_message
    return told


def task(stats: CheckpointStats, task_key: str) -> Json | None:
    """GET .../details/:checkpointid/subtasks/:vertexid (Flink's `TaskCheckpointStatisticsWithSubtaskDetails`).

    A task is one subtask. Its queries keep running while their files are linked, so the whole duration is Flink's
    asynchronous part. Return None if the task took no part.
    """
    part = next((part for part in stats.tasks if part.task_key == task_key), None)
    if part is None:
        return None
    acknowledged = part.ack_timestamp is not None
    nothing = statistics_of([0] if acknowledged else [])
    told: Json = {"index": 0, "className": "pending", "status": "pending_or_failed"}
    if acknowledged:
        told = {
            "index": 0,
            "className": "completed",
            "status": "completed",
            "ack_timestamp": part.ack_timestamp,
            "end_to_end_duration": _duration(stats, part),
            "checkpointed_size": part.checkpointed_size,
            "state_size": part.state_size,
            "checkpoint": {"sync": 0, "async": part.duration},
            "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": 0},
            "start_delay": 0,
            "unaligned_checkpoint": False,
            "aborted": False,
        }
    return {
        **_task(stats, part),
        "summary": {
            "checkpointed_size": statistics_of([part.checkpointed_size] if acknowledged else []),
            "state_size": statistics_of([part.state_size] if acknowledged else []),
            "end_to_end_duration": statistics_of([_duration(stats, part)] if acknowledged else []),
            "checkpoint_duration": {"sync": nothing, "async": statistics_of([part.duration] if acknowledged else [])},
            "alignment": dict.fromkeys(("buffered", "processed", "persisted", "duration"), nothing),
            "start_delay": nothing,
        },
        "subtasks": [told],
    }


def _task(stats: CheckpointStats, part: TaskStateStats) -> Json:
    """Flink's `TaskCheckpointStatistics`."""
    return {
        "id": stats.id,
        "status": stats.status.value,
        "latest_ack_timestamp": NO_TIME if part.ack_timestamp is None else part.ack_timestamp,
        "checkpointed_size": part.checkpointed_size,
        "state_size": part.state_size,
        "end_to_end_duration": _duration(stats, part),
        **_NOTHING_IN_FLIGHT,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": int(part.ack_timestamp is not None),
    }


def _duration(stats: CheckpointStats, part: TaskStateStats) -> int:
    """Return the milliseconds from the checkpoint's trigger to the task's acknowledgement; -1 before that."""
    return NO_TIME if part.ack_timestamp is None else max(part.ack_timestamp - stats.trigger_timestamp, 0)


def statistics_of(values: Sequence[int]) -> Json:
    """Return the statistics of some figures (Flink's `StatsSummaryDto`)."""
    return _summary(StatsSummary.of(values), values)


def find(figures: CheckpointStatsSnapshot, checkpoint_id: int) -> CheckpointStats | None:
    """Return the checkpoint of that number, among the remembered ones."""
    latest = (figures.latest_completed, figures.latest_savepoint, figures.latest_failed)
    known = (*figures.history, *(stats for stats in latest if stats is not None))
    return next((stats for stats in known if stats.id == checkpoint_id), None)


def config(settings: CheckpointCoordinatorConfiguration, state_backend: str) -> Json:
    """GET /jobs/:jobid/checkpoints/config (Flink's `CheckpointConfigInfo`); durations in milliseconds."""
    tolerable = settings.tolerable_failures
    return {
        "mode": "exactly_once",
        "interval": NO_INTERVAL if settings.interval_s is None else round(settings.interval_s * 1000),
        "timeout": round(settings.timeout_s * 1000),
        "min_pause": round(settings.min_pause_s * 1000),
        "max_concurrent": settings.max_concurrent,
        "externalization": {
            "enabled": settings.retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
            "delete_on_cancellation": settings.retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
        },
        "state_backend": state_backend,
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": ANY_NUMBER if tolerable is None else tolerable,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        # As Flink has them while its changelog is off.
        "changelog_periodic_materialization_interval": 600_000,
        "changelog_storage": "memory",
    }


def triggered(trigger_id: TriggerID) -> Json:
    """Answer to a request for an operation (Flink's `TriggerResponse`)."""
    return {"request-id": trigger_id}


def in_progress() -> Json:
    """Return the status of an operation in progress (Flink's `AsynchronousOperationResult`)."""
    return {"status": {"id": "IN_PROGRESS"}, "operation": None}


def completed(operation: Json) -> Json:
    """Return the status of an operation that has ended, with success or failure."""
    return {"status": {"id": "COMPLETED"}, "operation": operation}


def savepoint(status: OperationStatus) -> Json:
    """GET /jobs/:jobid/savepoints/:triggerid (Flink's `SavepointInfo`)."""
    return _operation(status, {"location": uri_of(status.path)})


def triggered_checkpoint(status: OperationStatus) -> Json:
    """GET /jobs/:jobid/checkpoints/:triggerid (Flink's `CheckpointInfo`)."""
    return _operation(status, {"checkpointId": status.checkpoint_id}, "failureCause")


def uri_of(path: str) -> str:
    """Return the URI of an absolute path, as Flink spells it (``file:/data/savepoint-1``); leave other texts alone."""
    return f"file:{quote(path)}" if path.startswith("/") else path


def failure(kind: str, message: str, name: str = "failure-cause") -> Json:
    """Return the cause of a failed operation as Flink's client reads it; *name* is Flink's name of the field."""
    trace = f"{kind}: {message}"
    return {
        name: {
            "class": kind,
            "stack-trace": trace,
            "serialized-throwable": serialized_throwable(kind, message, trace),
        }
    }


def _operation(status: OperationStatus, good: Json, failed: str = "failure-cause") -> Json:
    if status.state is OperationState.IN_PROGRESS:
        return in_progress()
    if status.state is OperationState.FAILED:
        return completed(failure("CheckpointException", status.error, failed))
    more: Json = {"notes": list(status.notes)} if status.notes else {}
    return completed({**good, **more} if status.drained else {**good, **more, "drained": False})


def _checkpoint(stats: CheckpointStats | None) -> Json | None:
    return None if stats is None else checkpoint(stats)


def _restored(restored: RestoredCheckpointStats | None) -> Json | None:
    if restored is None:
        return None
    return {
        "id": restored.id,
        "restore_timestamp": restored.restore_timestamp,
        "is_savepoint": restored.is_savepoint,
        "external_path": uri_of(restored.external_path),
    }


def _summary(summary: StatsSummary, values: Sequence[int]) -> Json:
    """Return the statistics of the remembered checkpoints; a missing quantile is ``NaN``, as in Flink."""
    ordered = sorted(values)
    quantiles = {name: _quantile(ordered, share) if ordered else "NaN" for name, share in _QUANTILES.items()}
    return {"min": summary.min, "max": summary.max, "avg": summary.avg, **quantiles}


def _quantile(ordered: Sequence[int], share: float) -> float:
    """Interpolate between the two values around the place (n + 1) * share, as Flink's `DescriptiveStatistics` does."""
    place = share * (len(ordered) + 1)
    below = min(max(int(place), 1), len(ordered))
    above = min(below + 1, len(ordered))
    part = min(max(place - below, 0.0), 1.0)
    return ordered[below - 1] + part * (ordered[above - 1] - ordered[below - 1])


_FLAG = {"type": ["boolean", "null"]}
_PATH = {"type": ["string", "null"], "maxLength": MOST_CHARACTERS, "pattern": "^(/|file:/)"}
_TRIGGER = {"type": ["string", "null"], "pattern": "^[0-9a-f]{32}$"}
_FORMAT = {"type": ["string", "null"], "enum": ["CANONICAL", None]}


def _form(**properties: Mapping[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "-"): schema for name, schema in properties.items()}
    return {"type": "object", "properties": {**named, "triggerId": _TRIGGER}, "additionalProperties": False}


_SAVEPOINT = _form(target_directory=_PATH, cancel_job=_FLAG, formatType=_FORMAT)
_STOP = _form(targetDirectory=_PATH, drain=_FLAG, formatType=_FORMAT)
_CHECKPOINT = _form(checkpointType={"type": ["string", "null"], "enum": ["CONFIGURED", "FULL", "INCREMENTAL", None]})
_ROLLBACK = {**_form(target={**_PATH, "type": "string", "minLength": 1}, newQueryId=_FLAG), "required": ["target"]}
_RESCALE = _form(
    partitions={"type": ["integer", "null"], "minimum": 1, "maximum": MOST_PARTITIONS},
    undo=_FLAG,
    query={"type": ["string", "null"], "maxLength": MOST_CHARACTERS},
    targetDirectory=_PATH,
)
_DISPOSAL = {**_form(savepoint_path={**_PATH, "type": "string", "minLength": 1}), "required": ["savepoint-path"]}
_JOB = "/jobs/{jobid}"
_CHECKPOINTS = _JOB + "/checkpoints"
_DETAILS = _CHECKPOINTS + "/details/{checkpointid}"

_trigger = functools.partial(RestRoute, "POST", status=202, body=JSON, result=forms.TRIGGERED)

ROUTES: list[RestRoute] = []


async def _figures(rest: Rest, request: Request) -> CheckpointStatsSnapshot:
    job_id = job_id_of(request)
    found: CheckpointStatsSnapshot = await rest.snapshots.get(
        ("checkpoints", job_id), lambda: rest.backend.checkpoints(job_id)
    )
    return found


@RestRoute(
    "GET", _CHECKPOINTS, "Figures of a job's checkpoints and savepoints, the newest first", result=forms.CHECKPOINTS
).on(ROUTES)
async def get_statistics(rest: Rest, request: Request) -> Response:
    return answer(statistics(await _figures(rest, request)))


@RestRoute("GET", f"{_CHECKPOINTS}/config", "How a job is checkpointed", result=forms.CHECKPOINT_CONFIG).on(ROUTES)
async def get_config(rest: Rest, request: Request) -> Response:
    configuration = rest.configuration
    with contextlib.suppress(ConfigurationError):  # the job does not start with settings that contradict each other
        configuration = configuration.overlaid((await _figures(rest, request)).settings, "the job")
    settings = CheckpointCoordinatorConfiguration.of(configuration)
    return answer(config(settings, _BACKENDS[configuration.get(CheckpointingOptions.STATE_BACKEND)]))


async def _named_checkpoint(rest: Rest, request: Request) -> CheckpointStats:
    """Return the checkpoint that the path names; raises RestError."""
    shown = request.path_params["checkpointid"]
    if not (shown.isascii() and shown.isdigit() and len(shown) <= 18):
        raise RestError(400, f"the number of a checkpoint is a whole number, not {shown[:40]!r}")
    found = find(await _figures(rest, request), int(shown))
    if found is None:
        raise RestError(404, f"checkpoint {shown} is not remembered; GET /jobs/ID/checkpoints shows those that are")
    return found


@RestRoute("GET", _DETAILS, "A checkpoint or savepoint of a job, while it is remembered", result=forms.CHECKPOINT).on(
    ROUTES
)
async def get_details(rest: Rest, request: Request) -> Response:
    return answer(checkpoint(await _named_checkpoint(rest, request)))


@RestRoute(
    "GET", _DETAILS + "/subtasks/{vertexid}", "A task's part of a checkpoint", result=forms.CHECKPOINT_TASK_DETAILS
).on(ROUTES)
async def get_details_of_task(rest: Rest, request: Request) -> Response:
    named, stats = await rest.task(request), await _named_checkpoint(rest, request)
    told = task(stats, named.key)
    if told is None:
        raise RestError(404, f"vertex {named.key} took no part in checkpoint {stats.id}")
    return answer(told)


def directory_of(configuration: Configuration, text: str) -> Path:
    """Return the directory that a request names: an absolute local path, or a URI of the form ``file:/...`` of one.

    The directory must not be in one of the cluster's own: the runtime directory, the shared directory, or that of the
    checkpoints. The directory of the savepoints is allowed. Symbolic links are resolved before this check. Blocks.

    Raises:
        RestError: of status 400, if the text names no directory, or one that is not allowed.
    """
    shown = repr(text[:100])
    parts = urlsplit(text) if text.startswith("file:") else None
    path = path_of(text) if len(text) <= MOST_CHARACTERS else Path()
    if parts is not None and (parts.netloc not in ("", "localhost") or parts.query or parts.fragment):
        raise RestError(400, f"{shown} is on another machine; give an absolute path of this one")
    if not path.is_absolute() or "\0" in str(path) or ".." in path.parts:
        raise RestError(400, f"{shown} is not an absolute local path; give one without `..`, as /data/savepoints")
    try:
        path = path.resolve()
        savepoints = configuration.get(CheckpointingOptions.SAVEPOINT_DIR).resolve()
        own = (ClusterOptions.RUNTIME_DIR, ClusterOptions.SHARED_DIR, CheckpointingOptions.CHECKPOINTS_DIR)
        is_own = any(path.is_relative_to(configuration.get(option).resolve()) for option in own)
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is none
        raise RestError(400, f"{shown} cannot be used: {error}") from None
    if is_own and not path.is_relative_to(savepoints):
        raise RestError(400, f"{shown} is inside of the cluster's own directories; savepoints are under {savepoints}")
    return path


def place_of(configuration: Configuration, text: str) -> str:
    """Return the place of savepoints that a request names: as `directory_of`, or a URL below the cluster's own.

    The cluster opens connections with its own credentials, so a request may not choose where to. Blocks.

    Raises:
        RestError: of status 400, if the text names no place, or one that is not allowed.
    """
    if not is_url(text):
        return str(directory_of(configuration, text))
    try:
        url = checked_url(text)
    except SavepointError as error:
        raise RestError(400, f"{error}; {error.remedy}") from None
    allowed = configuration.get(CheckpointingOptions.SAVEPOINT_URL)
    if not allowed or not is_below(url, allowed.rstrip("/")):
        below = allowed or "execution.checkpointing.savepoint-url, which is not set"
        raise RestError(400, f"{url!r} cannot be named over HTTP; name a URL below {below}")
    return url


async def _body(request: Request, form: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of the body, each by its schema; an empty body has none. Raises RestError of status 400."""
    data = await read_body(request, MOST_OF_A_BODY)
    try:
        given = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        raise RestError(400, "the body is not JSON") from None
    if not isinstance(given, dict):
        raise RestError(400, "the body must be an object of JSON")
    schemas: Mapping[str, Any] = form["properties"]
    for name, value in given.items():
        if name not in schemas:
            raise RestError(400, f"there is no field {name[:40]!r}; there are {', '.join(schemas)}")
        _require(name, value, schemas[name])
    for name in form.get("required", ()):
        if name not in given:
            raise RestError(400, f"the field {name} is missing")
    return given


def _require(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    kinds = {"string": str, "boolean": bool, "integer": int, "null": type(None)}
    words = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    is_bool = isinstance(value, bool)  # which Python counts as an integer
    if not isinstance(value, tuple(kinds[word] for word in words)) or (is_bool and "boolean" not in words):
        raise RestError(400, f"{name} must be {'an' if words[0] == 'integer' else 'a'} {words[0]}")
    if "minimum" in schema and value is not None and not schema["minimum"] <= value <= schema["maximum"]:
        raise RestError(400, f"{name} must be a whole number from {schema['minimum']} to {schema['maximum']}")
    if "enum" in schema and value not in schema["enum"]:
        raise RestError(400, f"{name} must be one of {', '.join(word for word in schema['enum'] if word)}")


def _trigger_id(text: str | None) -> TriggerID:
    try:
        return TriggerID.random() if text is None else TriggerID(text)
    except ValueError:
        raise RestError(
            400, f"{text[:40] if text else text!r} is not a trigger id: 32 lower-case hexadecimal digits"
        ) from None


async def _begin(rest: Rest, request: Request, kind: SnapshotType, given: Mapping[str, Any], target: Any) -> Response:
    directory = await asyncio.to_thread(place_of, rest.configuration, target) if target else ""
    trigger = CheckpointTrigger(_trigger_id(given.get("triggerId")), kind, directory)
    job_id = job_id_of(request)
    try:
        await rest.operations.begin(rest.backend, job_id, trigger)
    except JobNotFoundError as error:
        raise RestError(404, f"Could not find Flink job ({job_id}): {error}") from error
    finally:
        rest.snapshots.forget()
    return answer(triggered(trigger.trigger_id), 202)


@_trigger(f"{_JOB}/savepoints", "Trigger a savepoint", form=_SAVEPOINT).on(ROUTES)
async def trigger_savepoint(rest: Rest, request: Request) -> Response:
    given = await _body(request, _SAVEPOINT)
    kind = SnapshotType.SAVEPOINT_CANCEL if given.get("cancel-job") else SnapshotType.SAVEPOINT
    return await _begin(rest, request, kind, given, given.get("target-directory"))


@_trigger(f"{_JOB}/stop", "Stop a job with a savepoint", form=_STOP).on(ROUTES)
async def stop(rest: Rest, request: Request) -> Response:
    given = await _body(request, _STOP)
    kind = SnapshotType.SAVEPOINT_TERMINATE if given.get("drain") else SnapshotType.SAVEPOINT_SUSPEND
    return await _begin(rest, request, kind, given, given.get("targetDirectory"))


@_trigger(_CHECKPOINTS, "Trigger a checkpoint", form=_CHECKPOINT).on(ROUTES)
async def trigger_checkpoint(rest: Rest, request: Request) -> Response:
    return await _begin(rest, request, SnapshotType.CHECKPOINT, await _body(request, _CHECKPOINT), None)


@RestRoute(
    "GET", _JOB + "/savepoints/{triggerid}", "What became of a savepoint, or of a stop", result=forms.OPERATION
).on(ROUTES)
async def get_savepoint(rest: Rest, request: Request) -> Response:
    """Answer with the status of a savepoint; one that stops the job is in progress until the job is over."""
    job_id, trigger_id = job_id_of(request), _trigger_id(request.path_params["triggerid"])
    known = rest.operations.find(job_id, trigger_id)
    if known is not None and not known.type.is_savepoint:
        raise _unknown(job_id, trigger_id)
    status = await rest.operations.status(rest.backend, job_id, trigger_id)
    if status.state is OperationState.COMPLETED and known is not None and known.type.ends_the_job:
        rest.snapshots.forget()
        if not (await rest.backend.job(job_id)).status.is_globally_terminal:
            return answer(in_progress())
    return answer(savepoint(status))


@RestRoute("GET", _CHECKPOINTS + "/{triggerid}", "What became of a triggered checkpoint", result=forms.OPERATION).on(
    ROUTES
)
async def get_checkpoint(rest: Rest, request: Request) -> Response:
    job_id, trigger_id = job_id_of(request), _trigger_id(request.path_params["triggerid"])
    known = rest.operations.find(job_id, trigger_id)
    if known is not None and known.type.is_savepoint:
        raise _unknown(job_id, trigger_id)
    status = await rest.operations.status(rest.backend, job_id, trigger_id)
    if status.state is OperationState.COMPLETED and status.checkpoint_id is None:
        raise _unknown(job_id, trigger_id)  # a savepoint that a former JobMaster has written
    return answer(triggered_checkpoint(status))


@RestRoute(
    "POST",
    f"{_JOB}/rollback",
    "Go back to a checkpoint or savepoint",
    body=JSON,
    form=_ROLLBACK,
    result={**forms.TRIGGERED, "location": str},
).on(ROUTES)
async def roll_back(rest: Rest, request: Request) -> Response:
    """Answer when the rollback is decided; the job's tasks restart after that."""
    given = await _body(request, _ROLLBACK)
    target, trigger_id = given["target"], _trigger_id(given.get("triggerId"))
    if not _NUMBER.fullmatch(target):
        target = await asyncio.to_thread(place_of, rest.configuration, target)
    try:
        await rest.backend.roll_back(job_id_of(request), trigger_id, target, bool(given.get("newQueryId")))
    finally:
        rest.snapshots.forget()
    return answer({**triggered(trigger_id), "location": target})


@_trigger(
    f"{_JOB}/rescales",
    "Give the state of a job's queries another number of partitions; a job in a slot does it",
    form=_RESCALE,
    result={**forms.TRIGGERED, "rescale-job": str},
).on(ROUTES)
async def rescale(rest: Rest, request: Request) -> Response:
    """Answer when the job that does it is persisted."""
    given = await _body(request, _RESCALE)
    partitions, query, target = given.get("partitions"), given.get("query") or "", given.get("targetDirectory")
    if bool(given.get("undo")) == (partitions is not None):
        raise RestError(
            400,
            "give either `partitions`, the new number, or `undo: true`, for the number before the last rescale",
        )
    if query and partitions is None:
        raise RestError(400, "undo takes no query: it undoes the whole of the last rescale")
    directory = str(await asyncio.to_thread(directory_of, rest.configuration, target)) if target else ""
    trigger_id, job_id = _trigger_id(given.get("triggerId")), job_id_of(request)
    try:
        doing = await rest.backend.trigger_rescale(job_id, trigger_id, partitions, query, directory)
    finally:
        rest.snapshots.forget()
    return answer({**triggered(trigger_id), "rescale-job": doing}, 202)


@RestRoute("GET", _JOB + "/rescales/{triggerid}", "What became of a rescale", result=forms.OPERATION).on(ROUTES)
async def get_rescale(rest: Rest, request: Request) -> Response:
    """Answer with the status of a rescale; where it is done, with the savepoint from which the tasks have restarted."""
    job_id, trigger_id = job_id_of(request), _trigger_id(request.path_params["triggerid"])
    return answer(savepoint(await rest.backend.rescale_status(job_id, trigger_id)))


def _unknown(job_id: JobID, trigger_id: TriggerID) -> RestError:
    return RestError(404, f"nothing of this kind was asked of job {job_id} with the trigger id {trigger_id}")


@RestRoute(
    "POST", "/savepoint-disposal", "Dispose of a savepoint", body=JSON, form=_DISPOSAL, result=forms.TRIGGERED
).on(ROUTES)
async def dispose(rest: Rest, request: Request) -> Response:
    given = await _body(request, _DISPOSAL)
    trigger_id = _trigger_id(given.get("triggerId"))
    path = await asyncio.to_thread(place_of, rest.configuration, given["savepoint-path"])
    rest.disposals.begin(trigger_id, _dispose(rest, path))
    return answer(triggered(trigger_id))


async def _dispose(rest: Rest, path: str) -> None:
    if not await rest.backend.dispose_savepoint(path):
        raise SavepointError(f"there is no savepoint {path}")


@RestRoute("GET", "/savepoint-disposal/{triggerid}", "What became of a disposal", result=forms.OPERATION).on(ROUTES)
async def get_disposal(rest: Rest, request: Request) -> Response:
    trigger_id = _trigger_id(request.path_params["triggerid"])
    task = rest.disposals.find(trigger_id)
    if task is None:
        raise RestError(404, f"this endpoint knows no disposal of a savepoint with the trigger id {trigger_id}")
    if not task.done():
        return answer(in_progress())
    error = task.exception()
    if not isinstance(error, Exception):
        return answer(completed({}))
    message = str(error)
    if status_of(error) == 500:
        logger.error("the disposal %s failed", trigger_id, exc_info=error)
        message = "the web endpoint failed to dispose of it; its log says more"
    return answer(completed(failure(type(error).__name__, message)))
