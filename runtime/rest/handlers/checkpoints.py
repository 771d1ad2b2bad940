"""The figures of a job's checkpoints and savepoints."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from conf.options import CheckpointingOptions
from conf.options.checkpointing import StateBackend
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot
from runtime.rest.errors import RestError
from runtime.rest.messages import checkpoints as messages
from runtime.rest.messages import forms
from runtime.rest.routing import Rest, RestRoute, answer, job_id_of

_BACKENDS = {StateBackend.HASHMAP: "HashMapStateBackend", StateBackend.ROCKSDB: "EmbeddedRocksDBStateBackend"}


async def _figures(rest: Rest, request: Request) -> CheckpointStatsSnapshot:
    job_id = job_id_of(request)
    found: CheckpointStatsSnapshot = await rest.snapshots.get(
        ("checkpoints", job_id), lambda: rest.backend.checkpoints(job_id)
    )
    return found


async def get_statistics(rest: Rest, request: Request) -> Response:
    return answer(messages.statistics(await _figures(rest, request)))


async def get_config(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    settings = CheckpointCoordinatorConfiguration.of(rest.configuration)
    return answer(messages.config(settings, _BACKENDS[rest.configuration.get(CheckpointingOptions.STATE_BACKEND)]))


async def _checkpoint(rest: Rest, request: Request) -> CheckpointStats:
    """The checkpoint that the path names; raises RestError."""
    shown = request.path_params["checkpointid"]
    if not (shown.isascii() and shown.isdigit() and len(shown) <= 18):
        raise RestError(400, f"the number of a checkpoint is a whole number, not {shown[:40]!r}")
    found = messages.find(await _figures(rest, request), int(shown))
    if found is None:
        raise RestError(404, f"checkpoint {shown} is not remembered; GET /jobs/ID/checkpoints shows those that are")
    return found


async def get_details(rest: Rest, request: Request) -> Response:
    return answer(messages.checkpoint(await _checkpoint(rest, request)))


async def get_details_of_task(rest: Rest, request: Request) -> Response:
    task, checkpoint = await rest.task(request), await _checkpoint(rest, request)
    told = messages.task(checkpoint, task.key)
    if told is None:
        raise RestError(404, f"vertex {task.key} took no part in checkpoint {checkpoint.id}")
    return answer(told)


_CHECKPOINTS = "/jobs/{jobid}/checkpoints"
_DETAILS = _CHECKPOINTS + "/details/{checkpointid}"

ROUTES = (
    RestRoute(
        "GET",
        _CHECKPOINTS,
        get_statistics,
        "Figures of a job's checkpoints and savepoints, the newest first",
        result=forms.CHECKPOINTS,
    ),
    RestRoute(
        "GET",
        f"{_CHECKPOINTS}/config",
        get_config,
        "How a job is checkpointed",
        result=forms.CHECKPOINT_CONFIG,
    ),
    RestRoute(
        "GET",
        _DETAILS,
        get_details,
        "A checkpoint or savepoint of a job, while it is remembered",
        result=forms.CHECKPOINT,
    ),
    RestRoute(
        "GET",
        _DETAILS + "/subtasks/{vertexid}",
        get_details_of_task,
        "A task's part of a checkpoint",
        result=forms.CHECKPOINT_TASK_DETAILS,
    ),
)
