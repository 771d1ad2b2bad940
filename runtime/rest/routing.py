"""The routes of the endpoint, and the OpenAPI document made of them, which describes exactly the served paths."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import runtime
from runtime.protocol.http_gateways import HTTP_GATEWAYS, MSGPACK, OCTETS
from runtime.rest.access import changes_state
from runtime.rest.context import Rest
from runtime.rest.forms import Form, schema_of

JSON = "application/json"
WHOLE_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
"""The schema of numbers that `number_of` reads."""
TEXT = "text/plain; charset=UTF-8"
MULTIPART = "multipart/form-data"
LOG_SIZE = "X-Log-Size"
"""The header with the present size of a log in bytes, of which an answer may be a part."""


VERSION = "3.1.0"
PREFIX = "/v1"

_PARAMETER = re.compile(r"\{([a-z]+)\}")
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_NUMBER = {"type": "integer", "minimum": 0}
_PATH_PARAMETERS: Mapping[str, Any] = {
    **dict.fromkeys(("jobid", "applicationid", "triggerid", "attemptid", "rescaleuuid"), _ID),
    **dict.fromkeys(("checkpointid", "subtaskindex", "attempt"), _NUMBER),
    "taskmanagerid": {"type": "string", "pattern": "^[!-~]+$"},
    "gateway": {"type": "string", "enum": sorted(HTTP_GATEWAYS)},
    "method": {"type": "string", "pattern": "^[a-z_]+$"},
    "key": {"type": "string", "pattern": "^[pt]-[0-9a-f]{64}-[0-9a-f]{32}$"},
}
_TEXT = {"type": "string", "minLength": 1}
_ERROR = {"$ref": "#/components/schemas/Errors"}
_ERRORS: Mapping[int, str] = {
    308: "This request has been removed; the error names its replacement",
    400: "The request is malformed",
    401: "The request has no token, or one that belongs to no user",
    403: "The user's role does not allow it, or the endpoint does not have this name or serve pages of this site",
    404: "There is no object of that name",
    408: "The body did not come in time",
    409: "The present state does not allow the request",
    413: "The body is too long",
    415: "The body has a wrong media type",
    500: "An unexpected error; the endpoint's log says more",
    503: "No component leads or answers at present: retry",
}

Handler = Callable[[Rest, Request], Awaitable[Response]]


async def _no_handler(rest: Rest, request: Request) -> Response:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query.

    Args:
        name: of the parameter.
        summary: description in one line.
        words: its possible values; empty if *schema* describes them.
        schema: its JSON schema.
        required: whether a request has to have it.
    """

    name: str
    summary: str
    words: tuple[str, ...] = ()
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    required: bool = False


FROM_OFFSET = Parameter("offset", "the first byte to return, from 0", schema=WHOLE_NUMBER)


@dataclass(frozen=True, slots=True)
class RestRoute:
    """One route.

    Args:
        method: the HTTP method.
        path: with parameters in braces, without ``/v1``.
        summary: in one line.
        status: of a successful answer.
        media: of a successful answer; empty for none.
        query: the parameters that it reads.
        body: the media type of the request's body; empty for none.
        form: the JSON schema of the body's fields; None for any.
        result: the form (`runtime.rest.forms`) of a successful answer of JSON.
        also: statuses of errors that only this route may have.
        handler: answers requests; `on` sets it.
    """

    method: str
    path: str
    summary: str
    status: int = 200
    media: str = JSON
    query: tuple[Parameter, ...] = ()
    body: str = ""
    form: Mapping[str, Any] | None = None
    result: Form = dict
    also: tuple[int, ...] = ()
    handler: Handler = _no_handler

    def on(self, area: list[RestRoute]) -> Callable[[Handler], Handler]:
        """Return a decorator that makes a function the handler of this route, and adds the route to *area*.

        If two routes of an area match a request, the first one answers.
        """

        def add(handler: Handler) -> Handler:
            area.append(replace(self, handler=handler))
            return handler

        return add


def now_ms() -> int:
    """Return the time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def to_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")


def answer(value: Any, status: int = 200) -> Response:
    """Make an answer of JSON."""
    return Response(to_json(value), status, media_type=JSON)


def text(content: bytes) -> Response:
    """Make an answer of plain text."""
    return Response(content, media_type=TEXT)


def openapi(routes: Iterable[RestRoute], *, with_token: bool) -> dict[str, Any]:
    """Make the document of these routes.

    Args:
        routes: the table.
        with_token: whether requests have to show the token.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    document: dict[str, Any] = {
        "openapi": VERSION,
        "info": {
            "title": "Understudy REST API",
            "version": runtime.__version__,
            "description": "Flink's REST API v1 over PySpark jobs. The same paths are served without /v1.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Errors": {
                    "type": "object",
                    "required": ["errors"],
                    "properties": {"errors": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
                }
            },
            "responses": {
                str(status): {"description": why, "content": {JSON: {"schema": _ERROR}}}
                for status, why in _ERRORS.items()
            },
        },
    }
    if with_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(route: RestRoute) -> dict[str, Any]:
    name = re.sub(r"[^a-zA-Z0-9]+", "_", route.path).strip("_")
    good: dict[str, Any] = {"description": route.summary}
    if route.media:
        schema = schema_of(route.result) if route.media == JSON else {"type": "string"}
        good["content"] = {route.media.partition(";")[0]: {"schema": schema if route.status < 400 else _ERROR}}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{name}",
        "summary": route.summary,
        "parameters": [*map(_path_parameter, _PARAMETER.findall(route.path)), *map(_query_parameter, route.query)],
        "responses": {
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _errors_of(route)},
            str(route.status): good,
        },
    }
    if route.body:
        operation["requestBody"] = {
            "required": route.body in (MSGPACK, OCTETS) or "required" in (route.form or {}),
            "content": {route.body: {"schema": route.form or {"type": "object"}}},
        }
    return operation


def _errors_of(route: RestRoute) -> list[int]:
    """Return the statuses of errors that answers of a route may have."""
    found = {400, 401, 403, 413, 500, 503}
    if "{" in route.path or route.query:
        found.add(404)
    if changes_state(route.method, route.path):
        found |= {408, 409}
    if route.body in (MULTIPART, MSGPACK, OCTETS):
        found.add(415)
    return sorted(found | set(route.also))


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_PARAMETERS.get(name, _TEXT)}


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "string", "enum": list(parameter.words)} if parameter.words else parameter.schema
    told = {"name": parameter.name, "in": "query", "description": parameter.summary, "schema": schema}
    return {**told, "required": True} if parameter.required else told
