"""The table of routes: what the endpoint serves, and what its OpenAPI document says of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from conf.configuration import Configuration
from runtime.ids import JobID
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, TaskInfo
from runtime.protocol.errors import JobNotFoundError
from runtime.rest.backend import Backend
from runtime.rest.errors import RestError
from runtime.rest.messages import vertices
from runtime.rest.messages.forms import Form
from runtime.rest.operations import Disposals, TriggeredOperations
from runtime.rest.snapshots import Snapshots

JSON = "application/json"
WHOLE_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
"""The schema of what `number_of` reads."""
TEXT = "text/plain; charset=UTF-8"
MULTIPART = "multipart/form-data"
BODY_TIMEOUT_S = 120.0
LOG_SIZE = "X-Log-Size"
"""The header that says how many bytes a log has at present, of which an answer may be a part."""

MOST_OFFSET = 10**9
OFFSET = "offset"
FETCHES_AT_ONCE = 4
"""How many logs of TaskExecutors, each of a few MB, are in this process's memory at once."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the handlers work with.

    Args:
        backend: the cluster.
        snapshots: what it said a moment ago.
        configuration: the cluster's.
        log_dir: where the logs of this machine's control plane are.
        url: the endpoint's own address.
        closing: set when the endpoint stops, for streams that have no end of their own.
        fetching: held while a log of a TaskExecutor is in memory.
        operations: checkpoints and savepoints that were asked for here.
        disposals: removals of savepoints that were asked for here.
    """

    backend: Backend
    snapshots: Snapshots
    configuration: Configuration
    log_dir: Path
    url: str
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    fetching: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_AT_ONCE))
    operations: TriggeredOperations = field(default_factory=TriggeredOperations)
    disposals: Disposals = field(default_factory=Disposals)

    async def job(self, request: Request) -> ArchivedExecutionGraph:
        """The job that the path names; raises RestError."""
        job_id = job_id_of(request)
        try:
            found: ArchivedExecutionGraph = await self.snapshots.get(job_id, lambda: self.backend.job(job_id))
        except JobNotFoundError as error:
            raise RestError(404, f"Job {job_id} not found: {error}") from error
        return found

    async def task(self, request: Request) -> TaskInfo:
        """The task that the path names as a vertex; raises RestError."""
        graph, vertex_id = await self.job(request), request.path_params["vertexid"]
        task = vertices.find_task(graph, vertex_id)
        if task is None:
            raise RestError(404, f"job {graph.job_id} has no vertex {vertex_id!r}; GET /jobs/{graph.job_id} shows them")
        return task


Handler = Callable[[Rest, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query: its name, what it is for, the words that it may be or the JSON schema of it, whether it
    has to be there."""

    name: str
    summary: str
    words: tuple[str, ...] = ()
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False


@dataclass(frozen=True, slots=True)
class RestRoute:
    """One route.

    Args:
        method: the HTTP method.
        path: with parameters in braces, without ``/v1``.
        handler: answers.
        summary: in one line.
        status: of a good answer.
        media: of a good answer; empty for none.
        query: the parameters that it looks at.
        body: the media type of the request's body; empty for none.
        form: the JSON schema of the body's fields; None for any.
        result: the form (`runtime.rest.messages.forms`) of a good answer of JSON.
        also: statuses of errors that it alone may have.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    status: int = 200
    media: str = JSON
    query: tuple[Parameter, ...] = ()
    body: str = ""
    form: Mapping[str, Any] | None = None
    result: Form = dict
    also: tuple[int, ...] = ()


def now_ms() -> int:
    """The time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def to_json(value: Any) -> bytes:
    """A value as it travels."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")


def answer(value: Any, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(to_json(value), status, media_type=JSON)


def text(content: bytes) -> Response:
    """An answer of plain text."""
    return Response(content, media_type=TEXT)


def job_id_of(request: Request) -> JobID:
    """The job id in the path; raises RestError of status 400."""
    shown = request.path_params.get("jobid") or request.path_params["applicationid"]
    try:
        return JobID(shown)
    except ValueError as error:
        raise RestError(400, f"{error}; GET /jobs/overview shows the ids of jobs") from None


def number_of(request: Request, name: str, default: int, most: int) -> int:
    """A whole number of the query, at most *most*; raises RestError of status 400."""
    shown = request.query_params.get(name)
    if shown is None:
        return default
    if not (shown.isascii() and shown.isdigit() and 0 < len(shown) <= 9):
        raise RestError(400, f"{name} must be a whole number, not {shown[:40]!r}")
    return min(int(shown), most)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; raises RestError when it has more than *limit* bytes, or takes too long."""
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
