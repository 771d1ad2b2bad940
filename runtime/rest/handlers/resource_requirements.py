"""Resource requirements of a job, in the form that Flink's Adaptive scheduler has them (FLIP-291).

Flink's bounds are numbers of subtasks. A task has one here, and the bounds are numbers of partitions of its state: a
new upper bound is a request for a rescale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.ids import TriggerID
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.rescales import VertexResourceRequirements
from runtime.rest.context import Rest, job_id_of, read_body
from runtime.rest.errors import RestError
from runtime.rest.handlers.checkpoints import MOST_OF_A_BODY, MOST_PARTITIONS
from runtime.rest.messages import Json
from runtime.rest.routing import JSON, RestRoute, answer

_PATH = "/jobs/{jobid}/resource-requirements"
_DEFAULT = -1
"""Flink's bound for "the default"."""
_BOUND = {"type": "integer", "minimum": _DEFAULT, "maximum": MOST_PARTITIONS}
_BOUNDS = ("lowerBound", "upperBound")
_FORM = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["parallelism"],
        "properties": {
            "parallelism": {"type": "object", "required": [*_BOUNDS], "properties": dict.fromkeys(_BOUNDS, _BOUND)}
        },
    },
}

ROUTES: list[RestRoute] = []


@dataclass(frozen=True, slots=True)
class Change:
    """A rescale that a request asks for.

    Args:
        partitions: the new number.
        query: name of the only query to rescale; empty for all with state.
    """

    partitions: int
    query: str


def requirements(found: Sequence[VertexResourceRequirements]) -> Json:
    """GET /jobs/:jobid/resource-requirements (Flink's `JobResourceRequirementsBody`)."""
    return {
        one.vertex_id: {"parallelism": {"lowerBound": one.lower_bound, "upperBound": one.upper_bound}} for one in found
    }


def parse(data: bytes) -> dict[str, tuple[int, int]]:
    """Return the lower and the upper bound of each vertex of a request; raises RestError of status 400."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise RestError(400, "the body is not JSON") from None
    if not isinstance(given, dict):
        raise RestError(400, "the body must be an object of JSON, with the id of each vertex")
    return {vertex: _bounds(vertex, value) for vertex, value in given.items()}


def _bounds(vertex: str, value: object) -> tuple[int, int]:
    parallelism = value.get("parallelism") if isinstance(value, dict) else None
    bounds = [parallelism.get(name) if isinstance(parallelism, dict) else None for name in _BOUNDS]
    if not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds):
        form = '{"parallelism": {"lowerBound": NUMBER, "upperBound": NUMBER}}'
        raise RestError(400, f"Malformed request: the requirements of job vertex [{vertex[:40]}] must be {form}")
    return bounds[0], bounds[1]  # type: ignore[return-value]  # checked above


def change_of(found: Sequence[VertexResourceRequirements], given: Mapping[str, tuple[int, int]]) -> Change | None:
    """Return the rescale that a request asks for; None if it changes nothing.

    The messages about bounds are Flink's (`JobResourceRequirements.validate`).

    Args:
        found: what the job has.
        given: as `parse` returns it. -1 stands for the bound that the vertex has.

    Raises:
        RestError: status 400: the requirements are not complete, or no rescale gives a vertex these bounds.
    """
    present = {str(one.vertex_id): one for one in found}
    errors = [f"Job vertex [{vertex[:40]}] was not found in the JobGraph." for vertex in given if vertex not in present]
    changed: dict[str, int] = {}
    for vertex, one in present.items():
        if vertex not in given:
            errors.append(f"The request is incomplete, missing job vertex [{vertex}] resource requirements.")
            continue
        lower, upper = given[vertex]
        lower = one.lower_bound if lower == _DEFAULT else lower
        upper = one.upper_bound if upper == _DEFAULT else upper
        is_other = (lower, upper) != (one.lower_bound, one.upper_bound)
        if lower < 1 or upper < 1:
            errors.append(
                f"Both, the requested lower bound [{lower}] and upper bound [{upper}] for job vertex [{vertex}] must "
                "be greater than zero."
            )
        elif lower > upper:
            errors.append(
                f"The requested lower bound [{lower}] for job vertex [{vertex}] is higher than the upper bound "
                f"[{upper}]."
            )
        elif upper > MOST_PARTITIONS:
            errors.append(
                f"The newly requested parallelism {upper} for the job vertex {vertex} exceeds its maximum parallelism "
                f"{MOST_PARTITIONS}."
            )
        elif is_other and one.fixed_because:
            errors.append(
                f"Job vertex [{vertex}] keeps the bounds {one.lower_bound} and {one.upper_bound}: {one.fixed_because}."
            )
        elif upper != one.upper_bound:
            changed[vertex] = upper
    if errors:
        raise RestError(400, " ".join(errors))
    return _change(present, changed) if changed else None


def _change(present: Mapping[str, VertexResourceRequirements], changed: Mapping[str, int]) -> Change:
    numbers, with_state = set(changed.values()), {vertex for vertex, one in present.items() if one.queries}
    if len(numbers) == 1 and with_state == set(changed):
        return Change(next(iter(numbers)), "")
    if len(changed) > 1:
        raise RestError(
            400,
            "One request changes one vertex, or gives all vertices with state one upper bound: change "
            f"{', '.join(changed)} one after the other",
        )
    ((vertex, partitions),) = changed.items()
    queries = present[vertex].queries
    if len(queries) != 1 or not queries[0]:
        named = ", ".join(query or "one without a name" for query in queries)
        raise RestError(
            400,
            f"Job vertex [{vertex}] has the queries {named} with state: POST /jobs/ID/rescales rescales a query by its "
            "name",
        )
    return Change(partitions, queries[0])


async def _found(rest: Rest, request: Request) -> list[VertexResourceRequirements]:
    job_id = job_id_of(request)
    try:
        found: list[VertexResourceRequirements] = await rest.backend.resource_requirements(job_id)
    except JobNotFoundError as error:
        raise RestError(404, f"Could not find Flink job ({job_id}): {error}") from error
    return found


@RestRoute("GET", _PATH, "How many partitions the state of each task has, and may have").on(ROUTES)
async def get_requirements(rest: Rest, request: Request) -> Response:
    return answer(requirements(await _found(rest, request)))


@RestRoute("PUT", _PATH, "Rescale a job, by new upper bounds of its tasks", body=JSON, form=_FORM).on(ROUTES)
async def update_requirements(rest: Rest, request: Request) -> Response:
    """Answer when the job that rescales the other one is persisted, with Flink's empty object."""
    given: Any = parse(await read_body(request, MOST_OF_A_BODY))
    change = change_of(await _found(rest, request), given)
    if change is not None:
        try:
            await rest.backend.trigger_rescale(
                job_id_of(request), TriggerID.random(), change.partitions, change.query, ""
            )
        finally:
            rest.snapshots.forget()
    return answer({})
