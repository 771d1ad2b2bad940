from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtime
from runtime.api import Context, Pipeline, RestartStrategyConfig
from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import (
    DuplicateVertexError,
    EmptyJobGraphError,
    InvalidEdgeError,
    InvalidFunctionError,
    InvalidParameterError,
    InvalidVertexError,
    JobGraphError,
    UnknownVertexError,
)
from runtime.jobgraph.job_graph import ExchangeMode, JobKind, ShipStrategy, VertexRole
from runtime.jobgraph.topology import chains


def read(ctx: Context) -> Any:
    return ctx.spark


def clean(ctx: Context, flights: Any) -> Any:
    return flights


def join(ctx: Context, flights: Any, weather: Any) -> Any:
    return flights, weather


def write(ctx: Context, *inputs: Any) -> None:
    pass


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@logged
def decorated(ctx: Context, rows: Any) -> Any:
    return rows


async def coroutine(ctx: Context) -> None:
    pass


class Holder:
    def method(self, ctx: Context) -> None:
        pass


def test_a_pipeline_becomes_a_valid_graph() -> None:
    p = Pipeline("delays", {"out": "dir"}, RestartStrategyConfig.fixed_delay(2))
    flights = p.source("read-flights", read)
    weather = p.source("read-weather", read, retries=2, memory="64 mb")
    joined = flights.then("clean", clean).then("join", join, weather.broadcast())
    joined.blocking().hash("carrier").sink("write", write)
    graph = p.to_job_graph(JobID("1" * 32), ["--out", "dir"], 5)
    assert (graph.job_id, graph.name, graph.kind) == ("1" * 32, "delays", JobKind.PIPELINE)
    assert (graph.argv, graph.created_ms, graph.parameters) == (("--out", "dir"), 5, {"out": "dir"})
    assert [(v.name, v.role) for v in graph.vertices] == [
        ("read-flights", VertexRole.SOURCE),
        ("read-weather", VertexRole.SOURCE),
        ("clean", VertexRole.OPERATOR),
        ("join", VertexRole.OPERATOR),
        ("write", VertexRole.SINK),
    ]
    assert graph.vertices[2].function == f"{__name__}:clean"
    assert graph.vertices[3].id == JobVertexID.of("delays", "join")
    first, second = graph.inputs_of(graph.vertices[3].id)
    assert (first.source, second.source) == (graph.vertices[2].id, graph.vertices[1].id)
    assert (first.ship_strategy, second.ship_strategy) == (ShipStrategy.FORWARD, ShipStrategy.BROADCAST)
    (last,) = graph.inputs_of(graph.vertices[4].id)
    assert (last.exchange, last.ship_strategy, last.keys) == (ExchangeMode.BLOCKING, ShipStrategy.HASH, ("carrier",))
    assert [chain.name for chain in chains(graph)] == ["read-flights, read-weather -> clean -> join", "write"]


def test_an_inputs_own_setting_goes_before_the_vertexs() -> None:
    p = Pipeline("job")
    a, b = p.source("a", read), p.source("b", read)
    p.sink("c", write, a, b.pipelined().forward(), exchange="blocking", ship="hash", keys="k")
    first, second = p.to_job_graph().edges
    assert (first.exchange, first.ship_strategy, first.keys) == (ExchangeMode.BLOCKING, ShipStrategy.HASH, ("k",))
    assert (second.exchange, second.ship_strategy, second.keys) == (ExchangeMode.PIPELINED, ShipStrategy.FORWARD, ())


def test_one_input_may_be_read_twice() -> None:
    p = Pipeline("job")
    a = p.source("a", read)
    p.sink("w", write, p.operator("j", join, a, a))
    assert len(p.to_job_graph().inputs_of(JobVertexID.of("job", "j"))) == 2


def test_a_sink_alone_is_a_job_and_a_decorated_function_is_found() -> None:
    p = Pipeline("job")
    p.sink("w", write)
    p.source("a", read).then("d", decorated).sink("w2", write)
    assert p.to_job_graph().vertices[2].function == f"{__name__}:decorated"


def test_the_vertex_ids_are_the_same_for_every_submission() -> None:
    def build() -> Pipeline:
        p = Pipeline("job")
        p.sink("w", write)
        return p

    first, second = build().to_job_graph(), build().to_job_graph()
    assert first.job_id != second.job_id
    assert first.vertices == second.vertices


def test_parameters_are_copied() -> None:
    given: dict[str, Any] = {"limits": [1]}
    p = Pipeline("job", given)
    p.sink("w", write)
    given["limits"].append(2)
    assert p.to_job_graph().parameters == {"limits": [1]}
    assert Pipeline("job", {}).parameters == {}


def nested() -> Callable[..., Any]:
    def inner(ctx: Context) -> None:
        pass

    return inner


renamed = nested()
renamed.__qualname__ = "renamed_elsewhere"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ctx: None, "is a lambda"),
        (nested(), "inner, which is nested"),
        (Holder().method, "is a method"),
        (Holder.method, "nested"),
        (functools.partial(read), "is a partial"),
        (print, "is a builtin_function"),
        ("module:read", "is a str"),
        (coroutine, "coroutine"),
        (clean, "does not take the context and 0 input"),
        (renamed, "under a name of its own"),
    ],
)
def test_functions_that_a_task_could_not_find_or_call_are_refused(function: Any, message: str) -> None:
    with pytest.raises(InvalidFunctionError, match=message):
        Pipeline("job").source("read", function)


def test_a_function_of_the_main_file_is_found_by_the_files_name(tmp_path: Any) -> None:
    job = tmp_path / "my_job.py"
    job.write_text(
        "from runtime.api import Pipeline\n"
        "def work(ctx): pass\n"
        "p = Pipeline('job')\n"
        "p.sink('w', work)\n"
        "print(p.to_job_graph().vertices[0].function)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(runtime.__file__).parent.parent)}
    done = subprocess.run([sys.executable, str(job)], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "my_job:work\n"


def test_a_function_that_was_typed_in_is_submitted_by_a_notebook_only() -> None:
    code = (
        "from pathlib import Path\n"
        "from runtime.api import Pipeline\n"
        "from runtime.client import ClusterClient\n"
        "def f(ctx): pass\n"
        "p = Pipeline('job')\n"
        "p.sink('w', f)\n"
        "graph = p.to_job_graph()\n"
        "print(graph.vertices[0].function)\n"
        "with ClusterClient('akka.tcp://understudy@127.0.0.1:1/user/dispatcher', b'0' * 32) as client:\n"
        "    client.submit(graph, Path('job.py'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "typed_in:f\n"
    assert "are from a prompt or notebook, and not in job.py" in done.stderr


def test_importing_the_api_does_not_import_pyspark() -> None:
    code = "import sys, runtime.api; sys.exit(any(name.split('.')[0] in ('pyspark', 'py4j') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def other_pipelines_stream() -> Any:
    return Pipeline("other").source("a", read)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda p: None, EmptyJobGraphError, "at least one sink"),
        (lambda p: p.source("a", read), InvalidVertexError, "goes nowhere"),
        (lambda p: (p.source("a", read), p.source("a", read)), DuplicateVertexError, "named 'a'"),
        (lambda p: p.operator("a", read), InvalidVertexError, "has no inputs"),
        (lambda p: p.sink("a", write, read), UnknownVertexError, "is a function"),
        (lambda p: p.sink("a", write, other_pipelines_stream()), UnknownVertexError, "another pipeline"),
        (
            lambda p: p.sink("w", write, p.source("a", read), exchange="lazy"),
            InvalidEdgeError,
            "'pipelined', 'blocking'",
        ),
        (lambda p: p.sink("w", write, p.source("a", read), ship="hash"), InvalidEdgeError, "hashed by no columns"),
        (lambda p: p.sink("w", write, p.source("a", read).hash()), InvalidEdgeError, "hashed by no columns"),
        (lambda p: p.sink("", write), JobGraphError, "not a valid vertex name"),
    ],
)
def test_bad_pipelines_are_refused_with_a_reason(
    build: Callable[[Pipeline], object], error: type[JobGraphError], message: str
) -> None:
    p = Pipeline("job")
    with pytest.raises(error, match=message):
        (build(p), p.to_job_graph())


def test_a_vertex_that_was_refused_leaves_nothing_behind() -> None:
    p = Pipeline("job")
    a = p.source("a", read)
    with pytest.raises(InvalidFunctionError):
        p.operator("b", join, a)
    a.sink("w", write)
    assert [vertex.name for vertex in p.to_job_graph().vertices] == ["a", "w"]


def test_unknown_settings_and_bad_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="paralelism"):
        Pipeline("job").sink("w", write, paralelism=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidParameterError):
        Pipeline("job", {"a": {1}})
    with pytest.raises(JobGraphError):
        Pipeline("")
