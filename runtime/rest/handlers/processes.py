"""Actors and log levels of the cluster's processes, requested from each of them; log levels can be changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from actors.process.diagnostics import INHERITED, LEVELS, ROOT, ProcessActors
from runtime.protocol.processes import LogLevelChange
from runtime.rest.context import Rest
from runtime.rest.errors import RestError
from runtime.rest.messages import NO_TIME, Json
from runtime.rest.routing import Parameter, RestRoute, answer, now_ms


def actors(processes: Mapping[str, ProcessActors | None], at_ms: int) -> Json:
    """GET /actors: by process, at *at_ms* (milliseconds since the epoch), so that rates can be made of two answers."""
    return {
        "timestamp": at_ms,
        "processes": [
            {"name": name, "answers": False, "pid": -1, "connections": 0, "dead-letters": 0, "actors": []}
            if process is None
            else {
                "name": name,
                "answers": True,
                "pid": process.pid,
                "connections": process.connections,
                "dead-letters": process.dead_letters,
                "actors": [
                    {
                        "path": actor.path,
                        "kind": actor.kind,
                        "running": actor.is_running,
                        "messages": actor.messages,
                        "mailbox": actor.queued,
                        "handlers": actor.handlers,
                        "epoch": actor.epoch or NO_TIME,
                        "leads-since": actor.leads_since_ms or NO_TIME,
                    }
                    for actor in process.actors
                ],
            }
            for name, process in processes.items()
        ],
    }


def log_levels(processes: Mapping[str, Mapping[str, str] | None]) -> Json:
    """GET /log-levels: by process; empty for a process that does not answer."""
    return {
        "processes": [
            {"name": name, "answers": levels is not None, "levels": dict(levels or {})}
            for name, levels in processes.items()
        ]
    }


def log_level_changes(changes: Iterable[LogLevelChange]) -> Json:
    """PATCH /log-levels: the outcome in each process that has the logger."""
    return {"changes": [asdict(change) for change in changes]}


ROUTES: list[RestRoute] = []


@RestRoute("GET", "/actors", "The actors of all processes: mailboxes, messages, dead letters").on(ROUTES)
async def get_actors(rest: Rest, request: Request) -> Response:
    async def ask() -> Json:
        return actors(await rest.backend.process_actors(), now_ms())

    return answer(await rest.snapshots.get("/actors", ask))


@RestRoute("GET", "/log-levels", "The log levels of all processes").on(ROUTES)
async def get_log_levels(rest: Rest, request: Request) -> Response:
    return answer(log_levels(await rest.backend.log_levels()))


@RestRoute(
    "PATCH",
    "/log-levels",
    "Change a log level, until the processes end",
    query=(
        Parameter("level", "the level from now on", (*LEVELS, INHERITED), required=True),
        Parameter("logger", "the name of a logger; root unless it is given"),
        Parameter("process", "the name of a process; all that have the logger unless it is given"),
    ),
).on(ROUTES)
async def set_log_level(rest: Rest, request: Request) -> Response:
    given = request.query_params
    level = given.get("level", "").upper()
    if level not in (*LEVELS, INHERITED):
        raise RestError(400, f"level must be one of {', '.join((*LEVELS, INHERITED))}, not {level[:40]!r}")
    changes = await rest.backend.set_log_level(given.get("process") or None, given.get("logger") or ROOT, level)
    return answer(log_level_changes(changes))
