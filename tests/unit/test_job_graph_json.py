"""Job graphs as JSON: what was written is read again, and what is not one is refused in one line."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import (
    Artifact,
    ArtifactRole,
    ExchangeMode,
    JobEdge,
    JobGraph,
    JobKind,
    JobVertex,
    SavepointRestoreSettings,
    ShipStrategy,
    VertexRole,
)
from runtime.jobgraph.json_form import MAX_BYTES, MAX_VERTICES, from_json, to_json

SOURCE, SINK = JobVertexID.of("job", "read"), JobVertexID.of("job", "write")
GRAPH = JobGraph(
    JobID("a" * 32),
    "job",
    JobKind.PIPELINE,
    (
        JobVertex(SOURCE, "read", "m:read", VertexRole.SOURCE, retries=2),
        JobVertex(SINK, "write", "m:write", VertexRole.SINK, parallelism=4),
    ),
    (JobEdge(SOURCE, SINK, ShipStrategy.HASH, ExchangeMode.BLOCKING, ("k",)),),
    parameters={"limits": [1, 2.5, None, {"a": "\u00e9\U0001f600"}]},
    argv=("--x",),
    created_ms=7,
    priority=-3,
    savepoint=SavepointRestoreSettings("/data/savepoint-1", True),
    configuration={"restart-strategy.type": "none"},
)
PLAIN: dict[str, Any] = json.loads(to_json(GRAPH))


def test_what_was_written_is_read_again_without_its_files() -> None:
    assert from_json(to_json(GRAPH).encode()) == GRAPH
    kept = GRAPH.with_artifacts(Artifact("a.py", ArtifactRole.MAIN, "p-1"))
    assert from_json(to_json(kept).encode()) == GRAPH


def test_a_graph_that_is_too_large_is_not_read() -> None:
    whole = to_json(GRAPH).encode()
    assert from_json(whole + b" " * (MAX_BYTES - len(whole))) == GRAPH
    with pytest.raises(JobGraphError, match=f"more than {MAX_BYTES} bytes"):
        from_json(whole + b" " * (MAX_BYTES - len(whole) + 1))


def test_what_is_left_out_has_its_default() -> None:
    short = {key: PLAIN[key] for key in ("name", "kind", "vertices", "edges")}
    first, second = from_json(json.dumps(short).encode()), from_json(json.dumps(short).encode())
    assert first.job_id != second.job_id
    assert first.created_ms > 0
    assert (first.priority, first.argv, first.savepoint) == (0, (), None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 1}, "format 1"),
        ({"format_version": [[]]}, "format"),
        ({"artifacts": [{"name": "a", "role": "main", "blob_key": "p-of-another-job"}]}, "names artifacts"),
        ({"parallelism": 2}, "a field 'parallelism'"),
        ({"vertices": 1}, "must be a list"),
        ({"vertices": [1]}, "must be a list"),
        ({"vertices": [{**PLAIN["vertices"][0], "slots": 1}]}, "vertices[0] has a field 'slots'"),
        ({"edges": [{**PLAIN["edges"][0], "x": 1}]}, "edges[0] has a field 'x'"),
        ({"vertices": [{}] * (MAX_VERTICES + 1)}, f"over {MAX_VERTICES}"),
        ({"job_id": "x"}, "not a valid JobID"),
        ({"kind": "jar"}, "JobKind"),
        ({"priority": "high"}, "expected"),
        ({"name": None}, "expected"),
        ({"name": " "}, "not a valid job name"),
        ({"edges": []}, "goes nowhere"),
        ({"configuration": {"rest.port": "1"}}, "cannot set"),
        ({"parameters": {"x": float("nan")}}, "nan"),
        ({"parameters": {"x": 10**30}}, "64 bits"),
    ],
)
def test_what_is_no_job_graph_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(JobGraphError) as refused:
        from_json(json.dumps({**PLAIN, **changes}).encode())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 5000, b'"x"', b"[]", b"x" * (MAX_BYTES + 1)]
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(JobGraphError):
        from_json(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(key=st.sampled_from(sorted(PLAIN)), value=_JSON)
def test_whatever_a_field_holds_it_is_read_or_refused(key: str, value: Any) -> None:
    with contextlib.suppress(JobGraphError):
        graph = from_json(json.dumps({**PLAIN, key: value}).encode())
        assert from_json(to_json(graph).encode()) == graph
