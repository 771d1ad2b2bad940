"""The processes of the cluster, asked of themselves: their actors, and their log levels, which can be changed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from actors.process.diagnostics import INHERITED, LEVELS, ROOT
from runtime.rest.errors import RestError
from runtime.rest.messages import processes as messages
from runtime.rest.messages.common import Json
from runtime.rest.routing import Parameter, Rest, RestRoute, answer, now_ms


async def get_actors(rest: Rest, request: Request) -> Response:
    async def ask() -> Json:
        return messages.actors(await rest.backend.process_actors(), now_ms())

    return answer(await rest.snapshots.get("/actors", ask))


async def get_log_levels(rest: Rest, request: Request) -> Response:
    return answer(messages.log_levels(await rest.backend.log_levels()))


async def set_log_level(rest: Rest, request: Request) -> Response:
    given = request.query_params
    level = given.get("level", "").upper()
    if level not in (*LEVELS, INHERITED):
        raise RestError(400, f"level must be one of {', '.join((*LEVELS, INHERITED))}, not {level[:40]!r}")
    changes = await rest.backend.set_log_level(given.get("process") or None, given.get("logger") or ROOT, level)
    return answer(messages.log_level_changes(changes))


ROUTES = (
    RestRoute("GET", "/actors", get_actors, "The actors of all processes: mailboxes, messages, dead letters"),
    RestRoute("GET", "/log-levels", get_log_levels, "The log levels of all processes"),
    RestRoute(
        "PATCH",
        "/log-levels",
        set_log_level,
        "Change a log level, until the processes end",
        query=(
            Parameter("level", "the level from now on", (*LEVELS, INHERITED), required=True),
            Parameter("logger", "the name of a logger; root unless it is given"),
            Parameter("process", "the name of a process; all that have the logger unless it is given"),
        ),
    ),
)
