"""The OpenAPI document, made of the table of routes, so that it says neither more nor less than is served. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import runtime
from runtime.rest.routing import Parameter, RestRoute

VERSION = "3.1.0"
PREFIX = "/v1"

_PARAMETER = re.compile(r"\{([a-z]+)\}")
_IDS = ("jobid", "applicationid", "triggerid")
_NUMBERS = ("checkpointid",)
_ERROR = {"$ref": "#/components/schemas/Errors"}


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
                    "properties": {"errors": {"type": "array", "items": {"type": "string"}}},
                }
            }
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
        schema = {"type": "string"} if route.media.startswith("text/") else {"type": ["object", "array"]}
        good["content"] = {route.media.partition(";")[0]: {"schema": schema if route.status < 400 else _ERROR}}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{name}",
        "summary": route.summary,
        "parameters": [*map(_path_parameter, _PARAMETER.findall(route.path)), *map(_query_parameter, route.query)],
        "responses": {
            str(route.status): good,
            "default": {"description": "Why not, in one line", "content": {"application/json": {"schema": _ERROR}}},
        },
    }
    if route.body:
        operation["requestBody"] = {
            "required": "required" in (route.form or {}),
            "content": {route.body: {"schema": route.form or {"type": "object"}}},
        }
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in _IDS:
        schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    elif name in _NUMBERS:
        schema = {"type": "integer", "minimum": 0}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.words:
        schema["enum"] = list(parameter.words)
    return {"name": parameter.name, "in": "query", "description": parameter.summary, "schema": schema}
