"""The OpenAPI document, made of the table of routes, so that it says neither more nor less than is served. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import runtime
from runtime.rest.access import changes_state
from runtime.rest.messages.forms import schema_of
from runtime.rest.routing import JSON, MULTIPART, Parameter, RestRoute

VERSION = "3.1.0"
PREFIX = "/v1"

_PARAMETER = re.compile(r"\{([a-z]+)\}")
_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_NUMBER = {"type": "integer", "minimum": 0}
_PATH_PARAMETERS: Mapping[str, Any] = {
    **dict.fromkeys(("jobid", "applicationid", "triggerid", "attemptid", "rescaleuuid"), _ID),
    **dict.fromkeys(("checkpointid", "subtaskindex", "attempt"), _NUMBER),
    "taskmanagerid": {"type": "string", "pattern": "^[!-~]+$"},
}
_TEXT = {"type": "string", "minLength": 1}
_ERROR = {"$ref": "#/components/schemas/Errors"}
_ERRORS: Mapping[int, str] = {
    308: "What was asked for has been removed; the error names what is there instead",
    400: "What was asked is not well formed",
    401: "The token was not shown",
    403: "The endpoint is not asked by that name, or not by pages of that site",
    404: "There is none of that name",
    408: "The body did not come in time",
    409: "It cannot be done in the state that it is in",
    413: "The body is too long",
    415: "The body is of another media type",
    500: "An error that nobody expected; the endpoint's log says more",
    503: "Nobody leads or answers at present: ask again",
}


def openapi(routes: Iterable[RestRoute], *, with_token: bool) -> dict[str, Any]:
    """The document of these routes.

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
            "required": "required" in (route.form or {}),
            "content": {route.body: {"schema": route.form or {"type": "object"}}},
        }
    return operation


def _errors_of(route: RestRoute) -> list[int]:
    """The statuses of errors that its answers may have."""
    found = {400, 401, 403, 413, 500, 503}
    if "{" in route.path or route.query:
        found.add(404)
    if changes_state(route.method, route.path):
        found |= {408, 409}
    if route.body == MULTIPART:
        found.add(415)
    return sorted(found | set(route.also))


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_PARAMETERS.get(name, _TEXT)}


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "string", "enum": list(parameter.words)} if parameter.words else parameter.schema
    told = {"name": parameter.name, "in": "query", "description": parameter.summary, "schema": schema}
    return {**told, "required": True} if parameter.required else told
