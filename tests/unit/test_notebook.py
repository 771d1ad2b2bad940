"""What a notebook shows and how it asks, without a cluster."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.configuration import Configuration
from runtime.api import Pipeline
from runtime.checkpoint.errors import SavepointError
from runtime.cluster import discovery
from runtime.cluster.views import JobView, TaskManagerRow, VertexView
from runtime.errors import ClusterNotRunning, NotebookError
from runtime.ha.errors import HaError, RedisAuthenticationError, RedisUnreachableError
from runtime.ids import JobID
from runtime.job_logs import FUNCTION_ERROR, FUNCTION_RESULT
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph, JobKind
from runtime.notebook import Cluster
from runtime.notebook.cluster import _any_path, synchronous
from runtime.notebook.html import checkpoints_html, cluster_html, job_html, jobs_html
from runtime.notebook.job import Checkpoints, Job, Logs
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
)
from runtime.protocol.checkpoints import SnapshotType
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.execution_state import ErrorInfo, FailureKind
from runtime.protocol.leader import LeaderInformation
from runtime.protocol.messages import ClusterOverview
from runtime.protocol.streaming_query import StreamingQuery
from runtime.spark.errors import FunctionTaskError
from runtime.spark.function_task import (
    function_file,
    functions_file,
    load_error,
    load_functions,
    load_result,
    run_function,
)

HEAVY = ("asyncssh", "IPython", "numpy", "pandas", "py4j", "pyspark", "redis", "thespian")


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def _job(text: str) -> JobView:
    vertex = VertexView("v", text, text, 1, 0, None, 4, 2, text)
    failure = ErrorInfo(FailureKind.USER_CODE, text, text, text, text)
    query = StreamingQuery(text, text, text, 3)
    return JobView("j", text, "RUNNING", 0, None, 1, text, (vertex,), failure, {}, (query,))


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc"))) | st.just('<script>alert(1)</script>\' onload="x" &amp;')
)
def test_no_text_of_others_becomes_markup(text: str) -> None:
    stats = CheckpointStats(
        1, CheckpointStatsStatus.FAILED, SnapshotType.CHECKPOINT, 0, None, 1, 0, 0, 0, 0, "", False, 0, text
    )
    figures = CheckpointStatsSnapshot(counts=CheckpointStatsCounts(total=1), history=(stats,))
    worker = TaskManagerRow(text, text, 2, 1, text, 1 << 30, 1, 2, 0)
    pages = [
        job_html(_job(text), "QUJD", now_ms=5000),
        jobs_html([_job(text)], now_ms=5000),
        checkpoints_html(figures),
        cluster_html(text, ClusterOverview(1, 2, 1, 0, 1, 0, 0, 0), [worker], [_job(text)]),
        Logs(text)._repr_html_(),
    ]
    for page in pages:
        found = _Elements()
        found.feed(page)
        found.close()
        assert found.tags <= {"table", "tr", "th", "td", "pre", "img", "progress"}
        assert found.attributes <= {"alt", "src", "style", "value", "max"}
        assert text in found.text


def test_a_bar_shows_sparks_counts_or_moves_by_itself() -> None:
    assert '<progress value="2" max="4"></progress>' in job_html(_job("x").__class__(
        "j", "x", "RUNNING", 0, vertices=(VertexView("v", "v", "RUNNING", 0, 0, None, 4, 2),)
    ))  # fmt: skip
    assert "<progress></progress>" in job_html(
        JobView("j", "x", "RUNNING", 0, vertices=(VertexView("v", "v", "RUNNING", 0, 0),))
    )


def test_a_checkpointless_job_shows_none() -> None:
    assert checkpoints_html(CheckpointStatsSnapshot()) == ""
    assert Checkpoints(CheckpointStatsSnapshot())._repr_html_() == "no checkpoints"


class _Dispatcher:
    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.asked.append((name, args)) or f"the answer of {name}"


def test_a_synchronous_gateway_is_typed_and_documented() -> None:
    present = _Dispatcher()
    gateway = synchronous(DispatcherGateway, "the Dispatcher", lambda question: question(present))
    job_id = JobID.random()
    assert gateway.request_job_status(job_id) == "the answer of request_job_status"
    assert present.asked == [("request_job_status", (job_id,))]
    assert {"cancel_job", "request_job", "trigger_savepoint"} <= set(dir(gateway))
    assert inspect.getdoc(gateway.cancel_job) == inspect.getdoc(DispatcherGateway.cancel_job)
    signature = inspect.signature(gateway.request_cluster_overview)
    assert signature.return_annotation is ClusterOverview
    assert list(inspect.signature(gateway.cancel_job).parameters) == ["job_id"]
    assert repr(gateway) == "<the Dispatcher>"


# ------------------------------------------------------------------- functions


def _run(text: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Any:
    monkeypatch.chdir(directory)
    exec(compile(text, "main.py", "exec"), {"__name__": "__main__"})
    return load_result((directory / FUNCTION_RESULT).read_bytes())


def test_a_function_travels_and_so_does_what_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = 5

    def shifted(numbers: list[int], by: int = 1) -> dict[str, list[int]]:
        return {"shifted": [number + by + offset for number in numbers]}

    text = function_file(shifted, ([1, 2],), {"by": 10})
    assert _run(text, monkeypatch, tmp_path) == {"shifted": [16, 17]}
    assert (tmp_path / FUNCTION_RESULT).stat().st_mode & 0o777 == 0o600


def test_what_cannot_travel_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FunctionTaskError, match="cannot be pickled: TypeError"):
        function_file(len, (threading.Lock(),), {})
    with pytest.raises(FunctionTaskError, match=r"what .* returned cannot be pickled"):
        _run(function_file(threading.Lock, (), {}), monkeypatch, tmp_path)
    assert not (tmp_path / FUNCTION_RESULT).exists()
    monkeypatch.setattr("runtime.spark.function_task.FUNCTION_RESULT_MAX_SIZE", 100)
    with pytest.raises(FunctionTaskError, match="and may have 100: write it"):
        _run(function_file(lambda: b"x" * 200, (), {}), monkeypatch, tmp_path)


class _Session:
    """In the place of the task's `SparkSession`."""

    builder = SimpleNamespace(getOrCreate=lambda: "the session")


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "returned"),
    [
        (lambda spark, n: (spark, n), (1000,), {}, ("the session", 1000)),
        (lambda n, spark: (spark, n), (1000,), {}, ("the session", 1000)),
        (lambda n, spark, m: (spark, n, m), (1, 2), {}, ("the session", 1, 2)),
        (lambda n=1, m=2, spark=None: (spark, n, m), (5,), {}, ("the session", 5, 2)),
        (lambda spark, *rest: (spark, rest), (1, 2), {}, ("the session", (1, 2))),
        (lambda n, *, spark: (spark, n), (1,), {}, ("the session", 1)),
        (lambda spark, n: (spark, n), (), {"n": 1}, ("the session", 1)),
        (lambda spark, n: (spark, n), (2,), {"spark": "mine"}, "TypeError"),
        (lambda n, spark: (spark, n), (2,), {"spark": "mine"}, ("mine", 2)),
        (lambda spark: spark, (1,), {}, "TypeError"),
        (lambda **spark: spark, (), {"a": 1}, {"a": 1}),
        (abs, (-3,), {}, 3),
    ],
)
def test_a_parameter_named_spark_takes_no_positional_argument(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    returned: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession", _Session)
    text = function_file(function, args, kwargs)
    if returned == "TypeError":
        with pytest.raises(TypeError):
            _run(text, monkeypatch, tmp_path)
    else:
        assert _run(text, monkeypatch, tmp_path) == returned


class _LimitError(Exception):
    def __init__(self, limit: int, *, at: str) -> None:
        super().__init__(limit)
        self.at = at


def _raised(make: Any, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Exception | None:
    """What the client of a function gets that raises an error; None where nothing of it travels."""

    def fail() -> None:
        raise make()

    with pytest.raises(type(make())):
        _run(function_file(fail, (), {}), monkeypatch, directory)
    assert not (directory / FUNCTION_RESULT).exists()
    file = directory / FUNCTION_ERROR
    if not file.exists():
        return None
    assert file.stat().st_mode & 0o777 == 0o600
    return load_error(file.read_bytes())


def test_an_exception_travels_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _raised(lambda: KeyError("day", 3), monkeypatch, tmp_path)
    assert isinstance(found, KeyError)
    assert found.args == ("day", 3)
    typed_in: dict[str, Any] = {"__name__": "__main__"}
    exec("class Typed(Exception): pass", typed_in)
    assert type(_raised(typed_in["Typed"], monkeypatch, tmp_path)) is typed_in["Typed"]


def test_an_exception_that_cannot_travel_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_constructor_of_its_own() -> Exception:
        return _LimitError(3, at="noon")

    def with_a_lock() -> Exception:
        return ValueError(threading.Lock())

    def too_large() -> Exception:
        return ValueError("x" * 200)

    monkeypatch.setattr("runtime.spark.function_task.FUNCTION_ERROR_MAX_SIZE", 100)
    for make in (with_a_constructor_of_its_own, with_a_lock, too_large):
        assert _raised(make, monkeypatch, tmp_path) is None


def test_an_exception_of_sparks_travels_without_the_jvms_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.captured import AnalysisException as Captured

    class NeedsJvm(Captured):
        def __init__(self) -> None:
            pass

        def __str__(self) -> str:
            return "[TABLE_OR_VIEW_NOT_FOUND] t"

        def getCondition(self) -> str:  # noqa: N802
            return "TABLE_OR_VIEW_NOT_FOUND"

    NeedsJvm.__module__ = Captured.__module__
    found = _raised(NeedsJvm, monkeypatch, tmp_path)
    assert type(found) is AnalysisException
    assert str(found) == "[TABLE_OR_VIEW_NOT_FOUND] t"
    assert found.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps(3), pickle.dumps(SystemExit(1))])
def test_what_is_no_exception_is_none(data: bytes) -> None:
    assert load_error(data) is None


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    function_file(abs, (-1,), {})  # imports what it needs under this Python
    monkeypatch.setattr(sys, "version_info", (3, 7, 1))
    text = function_file(abs, (-1,), {})
    monkeypatch.undo()
    pickled = re.search(r'"""\\\n(.*)"""', text, re.DOTALL)
    assert pickled is not None
    with pytest.raises(FunctionTaskError, match=r"pickled by Python 3\.7 and the cluster runs"):
        run_function(pickled[1])


def test_the_functions_of_a_pipeline_travel() -> None:
    text = functions_file({"double": lambda ctx, x: 2 * x})
    pickled = re.search(r'"""\\\n(.*)"""', text, re.DOTALL)
    assert pickled is not None
    assert load_functions(pickled[1])["double"](None, 4) == 8


# ------------------------------------------------------------------ submission


class _Client:
    sees_files = True

    def __init__(self) -> None:
        self.submitted: list[tuple[JobGraph, str, str, list[tuple[Path, ArtifactRole]]]] = []

    def submit(self, graph: JobGraph, main: Path, libraries: list[tuple[Path, ArtifactRole]]) -> JobID:
        self.submitted.append((graph, main.name, main.read_text(), libraries))
        return graph.job_id


def _source(ctx: Any) -> Any:
    return ctx.spark.range(3)


def _sink(ctx: Any, numbers: Any) -> None:
    numbers.count()


def submit(
    client: Any, work: Any, args: tuple[Any, ...], kwargs: dict[str, Any], settings: dict[str, Any]
) -> tuple[JobGraph, bool]:
    """What the handle of the job knows: its graph, and whether it has a function's return value."""
    job = Cluster(client).options(**settings).submit(work, *args, **kwargs)
    assert job._graph is not None
    return job._graph, job._returns


def test_a_function_is_a_script_of_its_name(tmp_path: Path) -> None:
    client: Any = _Client()
    settings = {"py_files": (tmp_path / "a.py",), "priority": 3, "settings": {"restart-strategy.type": "none"}}
    graph, returns = submit(client, _source, (1,), {}, settings)
    [(submitted, main, text, libraries)] = client.submitted
    assert returns
    assert submitted == graph
    assert (graph.name, graph.kind, graph.is_function, graph.priority) == ("_source", JobKind.SCRIPT, True, 3)
    assert graph.configuration == {"restart-strategy.type": "none"}
    assert main == "_source.py"
    assert "run_function" in text
    assert libraries == [(tmp_path / "a.py", ArtifactRole.PY_FILE)]


def test_a_pipeline_of_a_module_has_its_file_and_one_that_was_typed_in_has_one_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = _Client()
    pipeline = Pipeline("numbers")
    pipeline.source("read", _source).sink("count", _sink)
    _, returns = submit(client, pipeline, (), {}, {})
    assert not returns
    assert client.submitted[0][1] == "test_notebook.py"
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec("def work(ctx): return None", cell)
    monkeypatch.setattr(sys.modules["__main__"], "work", cell["work"], raising=False)
    typed_in = Pipeline("typed")
    typed_in.sink("work", cell["work"])
    graph, _ = submit(client, typed_in, (), {}, {})
    assert graph.vertices[0].function == "typed_in:work"
    assert client.submitted[1][1] == "typed_in.py"
    assert "load_functions" in client.submitted[1][2]


def test_a_file_has_a_command_line(tmp_path: Path) -> None:
    client: Any = _Client()
    script = tmp_path / "job.py"
    script.write_text("print(1)\n")
    graph, returns = submit(client, script, ("--rows", 5), {}, {"name": "other"})
    assert (graph.name, graph.argv, returns) == ("other", ("--rows", "5"), False)


@pytest.mark.parametrize(
    ("work", "args", "kwargs", "settings", "message"),
    [
        (3, (), {}, {}, "a int cannot be submitted"),
        ("job.py", (), {"day": 3}, {}, "no keyword arguments"),
        (Pipeline("p"), (1,), {}, {}, "has its parameters already"),
        (Pipeline("p"), (), {}, {"name": "q"}, "has its name already"),
        (_source, (), {}, {"settings": {"rest.port": "1"}}, "'rest.port' is not a setting of a job"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_submitted(
    work: Any, args: tuple[Any, ...], kwargs: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    client: Any = _Client()
    with pytest.raises(NotebookError, match=message):
        submit(client, work, args, kwargs, settings)
    assert client.submitted == []


def test_a_savepoint_that_is_none_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    client: Any = _Client()
    with pytest.raises(SavepointError):
        submit(client, _source, (), {}, {"from_savepoint": tmp_path / "none"})
    assert client.submitted == []


def test_a_handle_asks_nobody_for_its_repr() -> None:
    nobody: Any = None
    job: Job[Any] = Job(nobody, JobID("0" * 32))
    assert repr(job) == f"<Job {'0' * 32}>"


def test_the_kernel_imports_nothing_that_is_the_clusters_own() -> None:
    code = f"import sys, runtime.notebook; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# ------------------------------------------------------------------ connecting


async def test_redis_is_asked_who_leads_also_while_a_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    configuration = Configuration.from_dict({"security.secret-file": str(secret), "high-availability.lease": "0.1s"})
    leaders: list[LeaderInformation | HaError | None] = [
        None,
        LeaderInformation("dispatcher", "akka.tcp://understudy@127.0.0.1:1/user/dispatcher", 1, "a"),
        RedisUnreachableError("redis", "it is being replaced"),
        LeaderInformation("dispatcher", "akka.tcp://understudy@127.0.0.1:2/user/dispatcher", 2, "b"),
    ]

    async def leader(_: Configuration) -> LeaderInformation | None:
        found = leaders.pop(0)
        if isinstance(found, HaError):
            raise found
        return found

    monkeypatch.setattr(discovery, "_leader", leader)
    monkeypatch.setattr(discovery, "_masters_of", lambda _, leader: (leader.address,))
    client = discovery.connect_by_redis(configuration)
    assert client.system.port == 1
    assert client._link.find_masters() == ()
    assert list(client._link.find_masters()) == ["akka.tcp://understudy@127.0.0.1:2/user/dispatcher"]
    leaders += [None] * 100
    with pytest.raises(ClusterNotRunning, match="Redis has no leader of the cluster 'default'"):
        discovery.connect_by_redis(configuration)
    leaders[:] = [RedisAuthenticationError("redis")]
    with pytest.raises(RedisAuthenticationError):
        discovery.connect_by_redis(configuration)


@pytest.mark.parametrize("address", ["akka.tcp://u@h:1", "akka.tcp://u@h:1/", "akka.tcp://u@h:1/user/dispatcher"])
def test_an_address_may_be_that_of_a_master_alone(address: str) -> None:
    assert _any_path(address) == "akka.tcp://u@h:1/user/dispatcher"


# ----------------------------------------------------------------------- magic


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nonsense", "No such option"),
        ("--name 'a", "No closing quotation"),
        ("--cluster other", "other is not a cluster"),
    ],
)
def test_wrong_usage_of_the_magic_is_said(line: str, message: str) -> None:
    from IPython.core.error import UsageError

    from runtime.notebook.magic import run_magic

    shell: Any = SimpleNamespace(user_ns={"other": 3})
    with pytest.raises(UsageError, match=message):
        run_magic(shell, line, "print(1)")


def test_the_magic_runs_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    from runtime.notebook.magic import run_magic

    jobs: list[tuple[str, tuple[str, ...], str]] = []

    class _Jobs(Cluster):
        def __init__(self) -> None:
            pass

        def options(self, **options: Any) -> Any:
            return SimpleNamespace(submit=functools.partial(self.note, options["name"]))

        def note(self, name: str, work: Any, *args: Any) -> Any:
            jobs.append((Path(work).read_text(), args, name))
            return SimpleNamespace(progress=lambda: None, logs=lambda name: f"its {name}\n", result=lambda: None)

    shell: Any = SimpleNamespace(user_ns={"cluster": _Jobs()})
    assert run_magic(shell, "--name greet --into job -- a 'b c'", "print(1)") is None
    assert jobs == [("print(1)", ("a", "b c"), "greet")]
    assert capsys.readouterr().out == "its stdout\n"
    assert run_magic(shell, "--detach", "print(2)").logs("x") == "its x\n"
    assert shell.user_ns["job"] is not None
