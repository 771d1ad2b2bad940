"""Triggering checkpoints and savepoints, stopping with one, disposing of them: asked for once, and then asked after."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.checkpoint.errors import SavepointError
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, SnapshotType
from runtime.protocol.errors import JobNotFoundError
from runtime.rest.errors import RestError, status_of
from runtime.rest.messages import checkpoints as messages
from runtime.rest.messages import forms
from runtime.rest.routing import JSON, Rest, RestRoute, answer, job_id_of, read_body
from runtime.rest.savepoint_paths import MOST_CHARACTERS, directory_of

logger = logging.getLogger(__name__)

MOST_OF_A_BODY = 64 * 1024

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
_NUMBER = re.compile(r"(chk-)?[0-9]{1,18}")
_DISPOSAL = {**_form(savepoint_path={**_PATH, "type": "string", "minLength": 1}), "required": ["savepoint-path"]}


async def _body(request: Request, form: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the body, each of which fits its schema; an empty body has none. Raises RestError of status 400."""
    data = await read_body(request, MOST_OF_A_BODY)
    try:
        given = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        raise RestError(400, "the body is no JSON") from None
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
    kinds = {"string": str, "boolean": bool, "null": type(None)}
    words = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not isinstance(value, tuple(kinds[word] for word in words)):
        raise RestError(400, f"{name} must be a {words[0]}")
    if "enum" in schema and value not in schema["enum"]:
        raise RestError(400, f"{name} must be one of {', '.join(word for word in schema['enum'] if word)}")


def _trigger_id(text: str | None) -> TriggerID:
    try:
        return TriggerID.random() if text is None else TriggerID(text)
    except ValueError:
        raise RestError(
            400, f"{text[:40] if text else text!r} is no trigger id: 32 lower-case hexadecimal digits"
        ) from None


async def _begin(rest: Rest, request: Request, kind: SnapshotType, given: Mapping[str, Any], target: Any) -> Response:
    directory = str(await asyncio.to_thread(directory_of, rest.configuration, target)) if target else ""
    trigger = CheckpointTrigger(_trigger_id(given.get("triggerId")), kind, directory)
    job_id = job_id_of(request)
    try:
        await rest.operations.begin(rest.backend, job_id, trigger)
    except JobNotFoundError as error:
        raise RestError(404, f"Could not find Flink job ({job_id}): {error}") from error
    finally:
        rest.snapshots.forget()
    return answer(messages.triggered(trigger.trigger_id), 202)


async def trigger_savepoint(rest: Rest, request: Request) -> Response:
    given = await _body(request, _SAVEPOINT)
    kind = SnapshotType.SAVEPOINT_CANCEL if given.get("cancel-job") else SnapshotType.SAVEPOINT
    return await _begin(rest, request, kind, given, given.get("target-directory"))


async def stop(rest: Rest, request: Request) -> Response:
    given = await _body(request, _STOP)
    kind = SnapshotType.SAVEPOINT_TERMINATE if given.get("drain") else SnapshotType.SAVEPOINT_SUSPEND
    return await _begin(rest, request, kind, given, given.get("targetDirectory"))


async def trigger_checkpoint(rest: Rest, request: Request) -> Response:
    return await _begin(rest, request, SnapshotType.CHECKPOINT, await _body(request, _CHECKPOINT), None)


async def get_savepoint(rest: Rest, request: Request) -> Response:
    """What became of a savepoint; of one that stops the job, once that is over."""
    job_id, trigger_id = job_id_of(request), _trigger_id(request.path_params["triggerid"])
    known = rest.operations.find(job_id, trigger_id)
    if known is not None and not known.type.is_savepoint:
        raise _unknown(job_id, trigger_id)
    status = await rest.operations.status(rest.backend, job_id, trigger_id)
    if status.state is OperationState.COMPLETED and known is not None and known.type.ends_the_job:
        rest.snapshots.forget()
        if not (await rest.backend.job(job_id)).status.is_globally_terminal:
            return answer(messages.in_progress())
    return answer(messages.savepoint(status))


async def get_checkpoint(rest: Rest, request: Request) -> Response:
    job_id, trigger_id = job_id_of(request), _trigger_id(request.path_params["triggerid"])
    known = rest.operations.find(job_id, trigger_id)
    if known is not None and known.type.is_savepoint:
        raise _unknown(job_id, trigger_id)
    status = await rest.operations.status(rest.backend, job_id, trigger_id)
    if status.state is OperationState.COMPLETED and status.checkpoint_id is None:
        raise _unknown(job_id, trigger_id)  # a savepoint that a former JobMaster has written
    return answer(messages.triggered_checkpoint(status))


async def roll_back(rest: Rest, request: Request) -> Response:
    """Answers when it is decided on: the job's tasks restart after that."""
    given = await _body(request, _ROLLBACK)
    target, trigger_id = given["target"], _trigger_id(given.get("triggerId"))
    if not _NUMBER.fullmatch(target):
        target = str(await asyncio.to_thread(directory_of, rest.configuration, target))
    try:
        await rest.backend.roll_back(job_id_of(request), trigger_id, target, bool(given.get("newQueryId")))
    finally:
        rest.snapshots.forget()
    return answer({**messages.triggered(trigger_id), "location": target})


def _unknown(job_id: JobID, trigger_id: TriggerID) -> RestError:
    return RestError(404, f"nothing of this kind was asked of job {job_id} with the trigger id {trigger_id}")


async def dispose(rest: Rest, request: Request) -> Response:
    given = await _body(request, _DISPOSAL)
    trigger_id = _trigger_id(given.get("triggerId"))
    path = str(await asyncio.to_thread(directory_of, rest.configuration, given["savepoint-path"]))
    rest.disposals.begin(trigger_id, _dispose(rest, path))
    return answer(messages.triggered(trigger_id))


async def _dispose(rest: Rest, path: str) -> None:
    if not await rest.backend.dispose_savepoint(path):
        raise SavepointError(f"there is no savepoint {path}")


async def get_disposal(rest: Rest, request: Request) -> Response:
    trigger_id = _trigger_id(request.path_params["triggerid"])
    task = rest.disposals.find(trigger_id)
    if task is None:
        raise RestError(404, f"nothing was disposed of with the trigger id {trigger_id} through this endpoint")
    if not task.done():
        return answer(messages.in_progress())
    error = task.exception()
    if not isinstance(error, Exception):
        return answer(messages.completed({}))
    message = str(error)
    if status_of(error) == 500:
        logger.error("the disposal %s failed", trigger_id, exc_info=error)
        message = "the web endpoint failed to dispose of it; its log says more"
    return answer(messages.completed(messages.failure(type(error).__name__, message)))


_JOB = "/jobs/{jobid}"

ROUTES = (
    RestRoute(
        "POST",
        f"{_JOB}/checkpoints",
        trigger_checkpoint,
        "Trigger a checkpoint",
        202,
        body=JSON,
        form=_CHECKPOINT,
        result=forms.TRIGGERED,
    ),
    RestRoute(
        "GET",
        _JOB + "/checkpoints/{triggerid}",
        get_checkpoint,
        "What became of a triggered checkpoint",
        result=forms.OPERATION,
    ),
    RestRoute(
        "POST",
        f"{_JOB}/savepoints",
        trigger_savepoint,
        "Trigger a savepoint",
        202,
        body=JSON,
        form=_SAVEPOINT,
        result=forms.TRIGGERED,
    ),
    RestRoute(
        "GET",
        _JOB + "/savepoints/{triggerid}",
        get_savepoint,
        "What became of a savepoint, or of a stop",
        result=forms.OPERATION,
    ),
    RestRoute(
        "POST", f"{_JOB}/stop", stop, "Stop a job with a savepoint", 202, body=JSON, form=_STOP, result=forms.TRIGGERED
    ),
    RestRoute(
        "POST",
        f"{_JOB}/rollback",
        roll_back,
        "Go back to a checkpoint or savepoint",
        body=JSON,
        form=_ROLLBACK,
        result={**forms.TRIGGERED, "location": str},
    ),
    RestRoute(
        "POST",
        "/savepoint-disposal",
        dispose,
        "Dispose of a savepoint",
        body=JSON,
        form=_DISPOSAL,
        result=forms.TRIGGERED,
    ),
    RestRoute(
        "GET", "/savepoint-disposal/{triggerid}", get_disposal, "What became of a disposal", result=forms.OPERATION
    ),
)
