"""Job graphs as JSON, for submissions over HTTP. Pure, except that a job without an id or a time gets a new one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from runtime.feature_level import Format, can_read, oldest_version, readable_versions
from runtime.ids import JobID
from runtime.jobgraph.errors import JobGraphError, JobGraphVersionError
from runtime.jobgraph.job_graph import JobEdge, JobGraph, JobVertex
from runtime.jobgraph.validation import validate

MAX_BYTES = 1 << 20
MAX_VERTICES = 500
MAX_EDGES = 2000


def to_json(graph: JobGraph) -> str:
    """Return a job graph as JSON, without its files, which are sent separately."""
    return json.dumps(to_plain(graph.with_artifacts()), ensure_ascii=False)


def from_json(data: bytes) -> JobGraph:
    """Parse and check a job graph; without ``job_id`` it gets a new id, without ``created_ms`` the present time.

    Raises:
        JobGraphError: or a subclass: it is too large, no JSON, of another version, or breaks a rule; the message names
            the place.
    """
    if len(data) > MAX_BYTES:
        raise JobGraphError(f"the job graph has more than {MAX_BYTES} bytes")
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise JobGraphError("the job graph is not JSON") from None
    if not isinstance(given, dict):
        raise JobGraphError("the job graph must be an object of JSON")
    version = given.get("format_version", oldest_version(Format.JOB_GRAPH))
    if not can_read(Format.JOB_GRAPH, version):
        readable = readable_versions(Format.JOB_GRAPH)
        raise JobGraphVersionError(f"the job graph is in format {version!r:.40}, this version reads {readable}")
    _require_known("the job graph", given, JobGraph)
    if given.get("artifacts"):
        raise JobGraphError("the job graph names artifacts: send the job's files beside it")
    for name, part, most in (("vertices", JobVertex, MAX_VERTICES), ("edges", JobEdge, MAX_EDGES)):
        listed = given.get(name, [])
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise JobGraphError(f"{name} of the job graph must be a list of objects")
        if len(listed) > most:
            raise JobGraphError(f"the job graph has {len(listed)} {name}, over {most}")
        for number, one in enumerate(listed):
            _require_known(f"{name}[{number}]", one, part)
    try:
        graph: JobGraph = from_plain(
            {"job_id": JobID.random(), "created_ms": time.time_ns() // 1_000_000, **given}, JobGraph
        )
    except WireError as error:
        raise JobGraphError(f"the job graph cannot be read: {str(error).partition(': ')[2][:300]}") from None
    validate(graph)
    return graph


def _require_known(where: str, given: Iterable[str], kind: Any) -> None:
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise JobGraphError(f"{where} has a field {name[:40]!r}; there are {', '.join(known)}")
