"""`job upgrade --shadow` without Spark: what is refused, which batches are run, the verdict, and what a kill leaves."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from runtime.checkpoint.compatibility import Fit, Verdict
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.metadata_log import entries
from runtime.checkpoint.rehearsal import (
    FIRST_S,
    MOST_BATCHES,
    SETTLE_S,
    Plan,
    PlannedQuery,
    Position,
    RehearsedBatch,
    RehearsedQuery,
    RehearsedState,
    StartedQuery,
    compare,
    decode_plan,
    decode_result,
    encode,
    has_enough,
    kind_of_running,
    last_batches,
    refusal,
    refuse,
    source_problem,
    takes_colour,
)
from runtime.client import ClusterClient
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import RehearsedJob
from runtime.cluster.job_shadow import JobRehearser, _Live
from runtime.cluster.job_upgrade import Version, new_version
from runtime.cluster.job_version_commands import _difference, _differences
from runtime.cluster.rescaling import changing
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.protocol.execution_state import JobStatus
from runtime.spark.task import rehearsal
from runtime.spark.task.rehearsal import SCRIPT, Rehearsal
from runtime.spark.task.streaming import RECORDED, record_calls
from tests.streaming_files import StreamingFiles, write
from tests.unit import test_job_upgrade
from tests.unit.test_job_upgrade import BLUE, FITS, Killed, kept

COUNTS = StartedQuery("counts", "parquet", "repeated", ("file", "rate"))


# -------------------------------------------------------------------- pure


@pytest.mark.parametrize(
    ("queries", "quiet_s", "is_over", "expected"),
    [
        ([(4, 6, 6)], 0, False, False),
        ([(4, 7, 7)], 0, False, True),
        ([(4, 7, 7), (4, 6, 6)], 0, False, False),
        ([(4, 7, 7), (4, 6, 6)], SETTLE_S, False, True),
        ([(4, 7, 7), (4, 6, 7)], 999, False, False),
        ([(4, 4, 4)], SETTLE_S, False, False),
        ([(4, 4, 4)], FIRST_S, False, True),
        ([(4, 4, 5)], 0, True, True),
    ],
)
def test_batches_are_waited_for_while_the_job_commits_some(
    queries: list[tuple[int, int, int]], quiet_s: float, is_over: bool, expected: bool
) -> None:
    found = {str(number): Position(*query) for number, query in enumerate(queries)}
    assert has_enough(found, 3, quiet_s, is_over=is_over) is expected


def test_the_batches_to_run_follow_the_savepoint_and_are_committed() -> None:
    queries = {"busy": Position(4, 9, 10), "slow": Position(-1, 0, 1), "idle": Position(2, 2, 2)}
    assert last_batches(queries, 3) == {"busy": 7, "slow": 0, "idle": 2}
    planned = PlannedQuery("slow", -1, 0, "", "", "", "")
    assert list(planned.batches) == [0]
    with pytest.raises(CheckpointError, match="no batch since the savepoint"):
        last_batches({"idle": Position(2, 2, 2), "rolled back": Position(2, 1, 1)}, 3)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (COUNTS, ""),
        (replace(COUNTS, sink="foreachbatch", trigger="once"), ""),
        (replace(COUNTS, sources=("kafka:clicks", "python", "rate-micro-batch", "")), ""),
        (replace(COUNTS, sources=("file", "socket")), "source 1 of query 'counts' is socket:"),
        (replace(COUNTS, sources=("other",)), "source 0 of query 'counts' is of another kind"),
        (replace(COUNTS, sources=("unknown",)), "source 0 of query 'counts' is of an unknown kind"),
        (replace(COUNTS, trigger="continuous"), "continuous or real-time trigger"),
        (replace(COUNTS, sink="memory"), "memory sink"),
        (replace(COUNTS, problem="reads files with cleanSource"), "query 'counts' reads files with cleanSource"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_with_the_reason(query: StartedQuery, reason: str) -> None:
    assert (refusal(query) == "") == (reason == "")
    assert reason in refusal(query)
    if reason:
        for blue, green in (([query], []), ([], [query])):
            with pytest.raises(CheckpointError, match=re.escape(reason)) as caught:
                refuse(blue, green)
            assert "without --shadow" in caught.value.remedy


def test_triggers_without_batches_are_known() -> None:
    triggers = ({"continuous": "1 second"}, {"realTime": "1 second"}, {"availableNow": True}, {"processingTime": "1 s"})
    kinds = [RECORDED["trigger"](**given)["trigger"] for given in triggers]
    assert kinds == ["continuous", "continuous", "once", "repeated"]


def test_a_new_query_has_no_batches_to_repeat_and_one_may_be_missing() -> None:
    refuse([COUNTS], [COUNTS])
    refuse([COUNTS], [])
    with pytest.raises(CheckpointError, match="query 'more' is new"):
        refuse([COUNTS], [COUNTS, replace(COUNTS, name="more")])


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("file", {}, ""),
        ("file", {"cleanSource": "OFF"}, ""),
        ("file", {"CLEANSOURCE": "delete"}, "cleanSource"),
        ("file", {"cleansource": None}, ""),
        ("kafka:clicks", {"failOnDataLoss": True, "groupIdPrefix": "x"}, ""),
        ("kafka:clicks", {"failOnDataLoss": False}, "failOnDataLoss=false"),
        ("kafka:clicks", {"Kafka.Group.Id": "orders"}, "kafka.group.id"),
        ("python", {"kafka.group.id": "orders", "failondataloss": "false"}, ""),
    ],
)
def test_sources_that_cannot_be_read_again_are_known_by_their_options(
    kind: str, options: dict[str, object], expected: str
) -> None:
    found = source_problem(kind, options)
    assert (expected in found, found == "") == (True, expected == "")


@pytest.mark.parametrize(
    ("kind", "description", "expected"),
    [
        ("file", None, "file"),
        ("file", "FileStreamSource[file:/in]", "file"),
        ("other", None, ""),
        ("other", "Python data source", "python"),
        ("kafka:clicks", "Python data source", "python"),
        ("kafka:clicks", "KafkaV2[Subscribe[clicks]]", "kafka:clicks"),
        ("other", "RatePerMicroBatchStream[rowsPerBatch=10]", "rate-micro-batch"),
        ("rate", "RateStreamV2[rowsPerSecond=1]", "rate"),
        ("rate", "TextSocketV2[host: localhost, port: 9]", "socket"),
        ("other", "Kinesis", "other"),
        ("unknown", "Kinesis", ""),
    ],
)
def test_sources_of_a_running_query_are_known_by_their_descriptions(
    kind: str, description: str | None, expected: str
) -> None:
    assert kind_of_running(kind, description) == expected


BATCH = RehearsedBatch(5, 3, "17", 40)
QUERY = RehearsedQuery("counts", "struct<key:string>", (BATCH,), (RehearsedState(0, "default", 9, "4"),))


def test_state_that_was_not_compared_is_named_and_decides_nothing() -> None:
    unread = "the state of operator 1 was not compared"
    found = compare(QUERY, replace(QUERY, unread=(unread,)))
    assert (found.is_equal, found.notes) == (True, (unread,))
    assert list(_differences(RehearsedJob(BLUE, True, "", (found,)))) == [f"counts: {unread}"]


@pytest.mark.parametrize(
    ("blue", "green", "which"),
    [
        (None, None, ""),
        (True, True, ""),
        (False, True, "the present"),
        (True, False, "the new"),
        (False, False, "either"),
    ],
)
def test_functions_that_were_not_called_are_named(blue: bool | None, green: bool | None, which: str) -> None:
    found = compare(replace(QUERY, is_called=blue), replace(QUERY, is_called=green))
    assert found.is_equal
    assert [note.partition(" version")[0].rpartition("foreachBatch of ")[2] for note in found.notes] == [which] * bool(
        which
    )


def plain(rows: object, batch_id: int) -> None: ...
def other_default(rows: object, batch_id: int, colour: str = "red") -> None: ...
def aware(rows: object, batch_id: int, colour: str | None = None) -> None: ...
def keyword(rows: object, batch_id: int, *, colour: str | None = None) -> None: ...
def any_keyword(rows: object, batch_id: int, **colour: str) -> None: ...


class Aware:
    def __call__(self, rows: object, batch_id: int, colour: str | None = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, False),
        (other_default, False),
        (any_keyword, False),
        (functools.partial(aware, colour="red"), False),
        (print, False),
        (type, False),
        (17, False),
        (aware, True),
        (keyword, True),
        (Aware(), True),
        (functools.partial(aware, batch_id=4), True),
        (lambda rows, batch_id, colour=None: None, True),
    ],
)
def test_a_function_takes_part_only_if_it_has_a_parameter_for_the_colour(function: object, expected: bool) -> None:
    assert takes_colour(function) is expected


def test_versions_with_the_same_rows_are_equal_however_long_they_take() -> None:
    same = replace(QUERY, batches=(replace(BATCH, duration_ms=99),))
    found = compare(QUERY, same)
    assert (found.is_equal, found.problems) == (True, ())
    [batch] = found.batches
    assert (batch.is_equal, batch.duration_ms, batch.new_duration_ms) == (True, 40, 99)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"columns": "struct<key:int>"}, "its columns were struct<key:string> and are struct<key:int>"),
        ({"state": (RehearsedState(0, "default", 8, "4"),)}, "the state of operator 0 had 9 keys and has 8"),
        ({"state": (RehearsedState(0, "default", 9, "5"),)}, "the same number of keys (9) and other keys or values"),
        ({"state": ()}, "the state of operator 0 is only in the present version"),
        (
            {"state": (*QUERY.state, RehearsedState(1, "left", 1, "1"))},
            "the state of operator 1, store left, is only in the new version",
        ),
    ],
)
def test_other_columns_or_state_are_a_difference(changes: dict[str, Any], problem: str) -> None:
    found = compare(QUERY, replace(QUERY, **changes))
    assert not found.is_equal
    assert problem in found.problems[0]


def test_other_rows_are_shown_in_a_line_for_each() -> None:
    other = replace(BATCH, rows=3, digest="18", only_blue=1, only_green=1, blue_samples=("a",), green_samples=("b",))
    found = compare(QUERY, replace(QUERY, batches=(other,)))
    assert (found.is_equal, found.problems) == (False, ())
    assert _difference(found.batches[0]) == "1 rows only before, 1 only in the new version"
    assert list(_differences(RehearsedJob(BLUE, False, "", (found,)))) == [
        "counts, batch 5, only before: a",
        "counts, batch 5, only in the new version: b",
    ]


def test_a_version_that_has_not_run_a_query_differs() -> None:
    found = compare(QUERY, None)
    assert not found.is_equal
    assert _difference(found.batches[0]) == "was not run"
    lines = list(_differences(RehearsedJob(BLUE, False, "ValueError: no", (found,))))
    assert lines == [
        "the new version has not run all batches: ValueError: no",
        "counts: the new version has not run its batches",
    ]


# ------------------------------------------------------------ in the task's process


class Reader:
    def option(self, key: str, value: Any) -> Reader:
        return self

    def options(self, **options: Any) -> Reader:
        return self

    def json(self, path: str = "") -> str:
        return path

    load = orc = parquet = text = csv = xml = table = json

    def format(self, source: str) -> Reader:
        return self


class Registration:
    def register(self, dataSource: type[Any]) -> type[Any]:  # noqa: N803
        return dataSource


class Writer:
    def __init__(self, frame: object = None) -> None:
        self._df = frame

    def format(self, *given: Any, **named: Any) -> Writer:
        return self

    def start(self, path: str | None = None, **options: Any) -> None:
        raise AssertionError("the real sink is written to")

    def toTable(self, tableName: str) -> None:  # noqa: N802, N803
        raise AssertionError("the real table is written to")

    option = options = outputMode = queryName = trigger = foreach = foreachBatch = format  # noqa: N815


@pytest.fixture
def writer() -> type[Any]:
    return recorded(Writer.start)


def recorded(start: Callable[..., Any]) -> type[Any]:
    """A writer class whose calls are recorded, with the methods of PySpark's."""
    made: type[Any] = type("Recorded", (Writer,), {"start": start, "toTable": Writer.toTable})
    for method, record in RECORDED.items():
        record_calls(made, method, record)
    return made


def test_no_query_of_the_task_reaches_its_sink(writer: type[Any], tmp_path: Path) -> None:
    planned = PlannedQuery("counts", 4, 5, "", "", "", str(tmp_path / "result"))
    Rehearsal(Plan("blue", "", (planned,))).install(type("Recorded", (Reader,), {}), writer, Registration)
    with pytest.raises(CheckpointError, match="query 'query-0' is new"):
        writer().start("/sink")
    with pytest.raises(CheckpointError, match="query 'query-1' is new"):
        writer().toTable("rows")
    with pytest.raises(CheckpointError, match="memory sink"):
        writer().format("memory").start()
    with pytest.raises(CheckpointError, match="is new"):
        writer().start(queryName="other")


def planned_in(directory: Path, name: str, last: int) -> PlannedQuery:
    """A query whose last batch in the savepoint is 4."""
    place = directory / name
    for log in ("offsets", "commits"):
        write(place / "location" / log / "4", "v1")
        write(place / "planned" / "5", "v1")
    rows, result = str(place / "rows"), str(place / "result")
    return PlannedQuery(name, 4, last, str(place / "location"), str(place / "planned"), rows, result)


def frame() -> Any:
    return SimpleNamespace(schema=SimpleNamespace(simpleString=lambda: "struct<>"), sparkSession=None)


def test_a_batch_that_spark_does_not_repeat_is_an_error(tmp_path: Path) -> None:
    query = SimpleNamespace(awaitTermination=lambda: None)
    writer = recorded(lambda self, path=None: query)
    Rehearsal(Plan("blue", "", (planned_in(tmp_path, "counts", 5),))).install(
        type("Recorded", (Reader,), {}), writer, Registration
    )
    with pytest.raises(CheckpointError, match=r"batch 5 of query 'counts' was not repeated: .* commits is 4"):
        writer(frame()).queryName("counts").format("parquet").start("/sink")
    assert not (tmp_path / "counts" / "result").exists()


def test_the_code_ends_with_the_start_of_its_last_query(tmp_path: Path) -> None:
    query = SimpleNamespace(awaitTermination=lambda: None)
    writer = recorded(lambda self, path=None: query)
    plan = Plan("blue", "", (planned_in(tmp_path, "one", 4), planned_in(tmp_path, "two", 4)))
    Rehearsal(plan).install(type("Recorded", (Reader,), {}), writer, Registration)
    for _ in range(2):
        assert writer(frame()).queryName("one").start("/sink") is query
    with pytest.raises(SystemExit) as ended:
        writer(frame()).queryName("two").start("/sink")
    assert not ended.value.code
    assert decode_result((tmp_path / "two" / "result").read_bytes()) == RehearsedQuery("two", "struct<>", ())


class Rows:
    def __init__(self, log: list[object]) -> None:
        self._log = log

    def persist(self) -> None:
        self._log.append("persist")

    def unpersist(self) -> None:
        self._log.append("unpersist")


class Batches:
    """A writer class like PySpark's whose queries run the batches of their private offset log, as Spark does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, last: int) -> None:
        self.log: list[object] = []
        self.planned = planned_in(directory, "counts", last)
        write(Path(self.planned.offsets) / "6", "v1")
        batches = self

        def start(self: Any, path: str | None = None) -> Any:
            return SimpleNamespace(awaitTermination=lambda: batches.run(self.function), lastProgress=None)

        def foreach_batch(self: Any, func: Any) -> Any:
            self.function = func
            return self

        monkeypatch.setattr(Writer, "foreachBatch", foreach_batch)
        monkeypatch.setattr(
            rehearsal._Sink, "_record", lambda sink, rows, batch_id: self.log.append(f"recorded {batch_id}")
        )
        monkeypatch.setattr(rehearsal, "_rows", lambda *_: None)
        monkeypatch.setattr(rehearsal, "_figures", lambda _: (3, "17"))
        monkeypatch.setattr(rehearsal, "_state_of", lambda *_: ((), ()))
        self.writer = recorded(start)
        self.rehearsal = Rehearsal(Plan("green", "", (self.planned, replace(self.planned, name="more"))))
        self.rehearsal.install(type("Recorded", (Reader,), {}), self.writer, Registration)

    def run(self, function: Callable[[Any, int], object]) -> None:
        location = Path(self.planned.location)
        batch_id = max(entries(list_names(location / "offsets")))
        if batch_id == 4:  # an idle query: Spark plans a batch of its own
            batch_id = 5
        function(Rows(self.log), batch_id)
        write(location / "commits" / str(batch_id), "v1")

    def start(self, function: Any) -> None:
        self.writer(frame()).queryName("counts").foreachBatch(function).start()

    @property
    def result(self) -> RehearsedQuery:
        return decode_result(Path(self.planned.result).read_bytes())


def test_a_function_that_knows_its_colour_is_called_with_the_rows_that_were_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = Batches(monkeypatch, tmp_path, 6)
    batches.start(lambda rows, batch_id, colour=None: batches.log.append((type(rows), batch_id, colour)))
    assert batches.log == [
        step for number in (5, 6) for step in ("persist", f"recorded {number}", (Rows, number, "green"), "unpersist")
    ]
    assert (batches.result.is_called, len(batches.result.batches)) == (True, 2)


def test_no_other_function_is_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches = Batches(monkeypatch, tmp_path, 6)
    batches.start(lambda rows, batch_id: batches.log.append("called"))
    assert batches.log == ["recorded 5", "recorded 6"]
    assert batches.result.is_called is False


def test_a_batch_of_a_private_copy_alone_calls_no_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches = Batches(monkeypatch, tmp_path, 4)
    batches.start(lambda rows, batch_id, colour=None: batches.log.append("called"))
    assert batches.log == ["recorded 5"]
    assert batches.result.is_called is None


def test_a_function_gets_the_planned_batches_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches = Batches(monkeypatch, tmp_path, 5)
    sink = rehearsal._Sink(batches.planned, lambda rows, batch_id: batches.log.append(batch_id))
    for batch_id in (4, 5, 6):
        sink.take(cast("Any", Rows(batches.log)), batch_id)
    assert [step for step in batches.log if isinstance(step, int)] == [5]


def test_a_function_that_another_sink_replaces_is_not_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batches = Batches(monkeypatch, tmp_path, 6)
    writer = batches.writer(frame()).queryName("counts")
    writer.foreachBatch(lambda rows, batch_id, colour=None: batches.log.append("called")).format("noop").start()
    assert batches.log == ["recorded 5", "recorded 6"]


def test_a_function_that_fails_is_named_with_its_query_and_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = Batches(monkeypatch, tmp_path, 6)

    def fails(rows: object, batch_id: int, colour: str | None = None) -> None:
        raise LookupError(f"no {colour}\nat all")

    with pytest.raises(
        CheckpointError, match="the function of foreachBatch of query 'counts' has failed in batch 5: Look"
    ) as found:
        batches.start(fails)
    assert str(found.value).endswith("LookupError: no green")
    assert batches.log == ["persist", "recorded 5", "unpersist"]
    assert not Path(batches.planned.result).exists()


def test_no_source_of_the_task_removes_its_files(writer: type[Any]) -> None:
    reader = type("Recorded", (Reader,), {})
    Rehearsal(Plan("blue", "", ())).install(reader, writer, type("Recorded", (Registration,), {}))
    assert reader().json("/in") == "/in"
    assert reader().option("cleanSource", "off").json("/in") == "/in"
    for cleaning in (reader().option("cleanSource", "delete"), reader().options(CLEANSOURCE="archive")):
        with pytest.raises(CheckpointError, match="cleanSource"):
            cleaning.json("/in")


class Clicks:
    """A Python data source, which names itself as PySpark's do by default."""

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def streamReader(self, schema: object) -> Any:  # noqa: N802
        raise NotImplementedError

    simpleStreamReader = streamReader  # noqa: N815


def test_only_sources_whose_batches_can_be_repeated_are_read(writer: type[Any]) -> None:
    reader, registration = type("Recorded", (Reader,), {}), type("Recorded", (Registration,), {})
    Rehearsal(Plan("blue", "", ())).install(reader, writer, registration)
    with pytest.raises(CheckpointError, match="because it is of another kind: only files, Kafka"):
        reader().format("Clicks").load()
    registered = registration().register(Clicks)
    assert (registered.name(), registered.__qualname__) == ("Clicks", "Clicks")
    assert (issubclass(registered, Clicks), registered is Clicks) == (True, False)
    for known in ("clicks", "rate", "rate-micro-batch", "json"):
        assert reader().format(known).load() == ""
    assert reader().format("kafka").option("subscribe", "clicks").load() == ""
    for refused, why in (
        (reader().format("socket"), "of another kind"),
        (reader().format("kafka").option("subscribePattern", "c.*"), "of an unknown kind"),
        (reader().format("kafka").options(subscribe="clicks", failOnDataLoss=False), "failOnDataLoss"),
    ):
        with pytest.raises(CheckpointError, match=why):
            refused.load()
    with pytest.raises(CheckpointError, match="of an unknown kind"):
        reader().table("rows")


class Quiet:
    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


class Quieter:
    def commit(self, end: dict[str, int]) -> None:
        return None


class Loud:
    def commit(self, end: dict[str, int]) -> None:
        self.end = end


class Louder:
    commit = print


@pytest.mark.parametrize("method", ["streamReader", "simpleStreamReader"])
@pytest.mark.parametrize(("kind", "is_refused"), [(Quiet, False), (Quieter, False), (Loud, True), (Louder, True)])
def test_no_python_data_source_commits(method: str, kind: type[Any], is_refused: bool) -> None:
    source = type("Clicks", (Clicks,), {method: lambda self, schema: kind()})
    checked = rehearsal._not_committing(source)()
    with pytest.raises(NotImplementedError):
        getattr(checked, "simpleStreamReader" if method == "streamReader" else "streamReader")(None)
    if is_refused:
        with pytest.raises(ValueError, match=f"{kind.__name__} has a method commit"):
            getattr(checked, method)(None)
    else:
        assert type(getattr(checked, method)(None)) is kind


def test_the_job_file_runs_nothing_of_the_job_before_its_queries_are_diverted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        exec(SCRIPT.format(plan=str(tmp_path / "none")), {"__file__": "job.py"})


# ------------------------------------------------------- with files, no processes


class Files(StreamingFiles):
    """A query with a file source and a rate source."""

    def plan(self) -> None:
        super().plan()
        path = self.location / "offsets" / str(self.next_batch)
        write(path, re.sub(r'{"x":(\d+)}$', r"\1", path.read_text()))


class Cluster(test_job_upgrade.Cluster):
    """A cluster whose jobs of a rehearsal write the results that their code says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.files = Files(root / "shadowed")
        self.files.run(2)
        self.scripts: list[str] = []
        self.plans: list[Plan] = []
        self.descriptions: tuple[str, ...] = ()

    @property
    def shadow(self) -> Path:
        return self.root / "savepoints" / ".upgrades" / f"{BLUE}.shadow"

    def call_job(self, job_id: str) -> Any:
        found = super().call_job(job_id)
        for query in found.tasks[0].attempts[0].queries:
            if self.descriptions:
                sources = [SimpleNamespace(description=description) for description in self.descriptions]
                query.progress = SimpleNamespace(sources=sources)
        return found

    @contextlib.contextmanager
    def call_heartbeats(self, _job_id: str, _interval_s: float) -> Iterator[None]:
        yield

    def call_submit(self, graph: JobGraph, main: Path, libraries: object) -> JobID:
        found = re.search(r"begin\('(.+?)'", main.read_text())
        assert found is not None
        plan = decode_plan(Path(found[1]).read_bytes())
        code = Path(plan.code).read_text()
        self.scripts.append(main.name)
        self.plans.append(plan)
        self.graphs[graph.job_id], self.codes[graph.job_id] = graph, code
        self.jobs[graph.job_id] = JobStatus.FINISHED
        assert (graph.savepoint, graph.upgraded_from) == (None, "")
        assert graph.restart_strategy == RestartStrategyConfig.none(), "a second attempt would repeat other batches"
        for query in plan.queries:
            location = Path(query.location)
            assert max(entries(list_names(location / "commits"))) == query.before
            assert max(entries(list_names(location / "offsets"))) == query.before
            assert sorted(entries(list_names(Path(query.offsets)))) == list(query.batches)
            assert {str(number) for number in query.batches} <= set(list_names(location / "sources" / "0"))
            assert (location / "metadata").read_bytes() != (self.files.location / "metadata").read_bytes()
            digest = "2" if "other" in code else "1"
            batches = tuple(RehearsedBatch(number, 4, digest) for number in query.batches)
            if "fail" not in code and "silent" not in code:
                Path(query.result).write_bytes(encode(RehearsedQuery(query.name, "struct<>", batches)))
        if "fail" in code:
            self.failures[graph.job_id] = "division by zero"
            self.jobs[graph.job_id] = JobStatus.FAILED
        if "forever" in code:
            self.jobs[graph.job_id] = JobStatus.RUNNING
        return graph.job_id


@pytest.fixture(autouse=True)
def no_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def rehearse(
    cluster: Cluster,
    code: str = "the same",
    batches: int = 2,
    *,
    new: int = 3,
    verdicts: tuple[Verdict, ...] = FITS,
    started: tuple[StartedQuery, ...] = (COUNTS,),
    pause: Callable[[float], object] = lambda seconds: None,
) -> RehearsedJob:
    ticks = iter(range(10_000))

    def look(_version: Version, _state: Path) -> tuple[tuple[Verdict, ...], tuple[StartedQuery, ...]]:
        cluster.files.run(new)
        return verdicts, started

    file = cluster.root / "green.py"
    file.write_text(f"# {code}")
    rehearser = JobRehearser(
        cast("ClusterClient", cluster),
        cluster.root / "savepoints",
        look,
        (1.0, 9.0),
        note=lambda line: None,
        clock=lambda: float(next(ticks)),
        pause=pause,
    )
    return rehearser.rehearse(BLUE, new_version(file, (), None, (), lambda line: None), batches)


def test_both_versions_run_the_batches_after_the_savepoint_and_blue_runs_on(cluster: Cluster) -> None:
    before = sorted(str(path) for path in cluster.files.root.rglob("*"))
    done = rehearse(cluster, new=0, pause=lambda seconds: cluster.files.run())
    assert (done.is_equal, done.failure) == (True, "")
    assert [batch.batch for batch in done.queries[0].batches] == [2, 3]
    assert [plan.blue for plan in cluster.plans] == [(), cluster.plans[0].queries]
    assert cluster.scripts == ["blue.py", "green.py"]
    blue, green = (graph for job_id, graph in cluster.graphs.items() if job_id != BLUE)
    assert blue.name == "rehearse the present version of clicks"
    assert (green.argv, green.environment, green.client_heartbeat_timeout_s) == (blue.argv, blue.environment, 9.0)
    assert (cluster.running, kept(cluster), cluster.savepoints) == (["# commit blue"], [], [])
    assert set(before) <= {str(path) for path in cluster.files.root.rglob("*")}


@pytest.mark.parametrize(
    ("code", "failure", "problems"),
    [
        ("other rows", "", ()),
        ("fail", "ZeroDivisionError: division by zero", ("the new version has not run its batches",)),
        ("silent", "its job is FINISHED", ("the new version has not run its batches",)),
    ],
)
def test_a_new_version_that_differs_or_fails_is_reported(
    cluster: Cluster, code: str, failure: str, problems: tuple[str, ...]
) -> None:
    done = rehearse(cluster, code)
    assert (done.is_equal, done.failure, done.queries[0].problems) == (False, failure, problems)
    assert (cluster.running, kept(cluster)) == (["# commit blue"], [])


def test_a_version_without_a_query_of_the_job_differs(cluster: Cluster) -> None:
    done = rehearse(cluster, started=())
    assert (done.is_equal, len(cluster.plans)) == (False, 1)


def test_a_job_whose_code_does_not_end_is_ended_after_its_last_batch(cluster: Cluster) -> None:
    assert rehearse(cluster, "runs forever").is_equal
    assert cluster.running == ["# commit blue"]


def test_a_present_version_that_cannot_repeat_its_batches_is_an_error(cluster: Cluster) -> None:
    artifact = replace(cluster.graphs[BLUE].artifacts[0], content=b"# fail")
    cluster.graphs[BLUE] = replace(cluster.graphs[BLUE], artifacts=(artifact,))
    with pytest.raises(ClusterError, match="could not repeat the batches of query 'counts': ZeroDivisionError"):
        rehearse(cluster)
    assert (cluster.running, kept(cluster)) == (["# commit blue"], [])


def test_refusals_start_nothing(cluster: Cluster) -> None:
    misfit = (Verdict("counts", Fit.DOES_NOT_FIT, reasons=("its key",)),)
    loss = (Verdict("counts", Fit.FITS_WITH_LOSS, losses=("a topic",)),)
    for problem, options in {
        "does not fit the state: its key": {"verdicts": misfit},
        "loses state with the new version": {"verdicts": loss},
        "continuous": {"started": (replace(COUNTS, trigger="continuous"),)},
        "has committed no batch since": {"new": 0},
        "0 batches cannot be rehearsed": {"batches": 0},
        "51 batches cannot be rehearsed": {"batches": 51},
    }.items():
        with pytest.raises(ClusterError, match=problem):
            rehearse(cluster, **cast("dict[str, Any]", options))
    graph = cluster.graphs[BLUE]
    for change, problem in (
        ({"is_function": True}, "runs no file"),
        ({"kind": JobKind.PIPELINE}, "queries of a pipeline run in Spark Connect"),
    ):
        cluster.graphs[BLUE] = replace(graph, **cast("dict[str, Any]", change))
        with pytest.raises(ClusterError, match=problem):
            rehearse(cluster)
    cluster.sees_files = False
    with pytest.raises(ClusterError, match="does not see the cluster's files"):
        rehearse(cluster)
    assert (cluster.plans, cluster.running, kept(cluster)) == ([], ["# commit blue"], [])


@pytest.mark.parametrize(
    ("descriptions", "problem"),
    [
        (("FileStreamSource[file:/in]", "Kinesis"), "source 1 of query 'counts' is of another kind"),
        (("FileStreamSource[file:/in]", "Python data source"), ""),
        (("FileStreamSource[file:/in]",), ""),
        ((), ""),
    ],
)
def test_a_source_that_gives_other_rows_again_is_refused(
    cluster: Cluster, descriptions: tuple[str, ...], problem: str
) -> None:
    """A source that Spark does not describe is judged when the code of the job reads it."""
    cluster.files = StreamingFiles(cluster.root / "foreign")
    cluster.files.run(2)
    cluster.descriptions = descriptions
    if problem:
        with pytest.raises(ClusterError, match=problem):
            rehearse(cluster)
        assert cluster.plans == []
    else:
        assert rehearse(cluster).is_equal
    assert kept(cluster) == []


def test_batches_that_were_rolled_back_meanwhile_are_not_compared(cluster: Cluster) -> None:
    def roll_back(_seconds: float) -> None:
        if cluster.files.next_batch < 4:
            cluster.files.run()
        else:
            path = cluster.files.location / "offsets" / "2"
            path.write_bytes(path.read_bytes() + b" ")

    with pytest.raises(ClusterError, match="was rolled back during its rehearsal, and has run batch 2 again"):
        rehearse(cluster, batches=3, new=1, pause=roll_back)
    assert kept(cluster) == []


def test_sources_whose_log_is_compacted_meanwhile_are_copied_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [FileNotFoundError("sources/0/3")] * 2
    original = _Live.copy_sources

    def copy(one: _Live, target: Path) -> None:
        if lost:
            raise lost.pop()
        original(one, target)

    monkeypatch.setattr(_Live, "copy_sources", copy)
    assert rehearse(cluster).is_equal
    lost += [FileNotFoundError("sources/0/3")] * 99
    with pytest.raises(CheckpointError, match=r"the sources' log of query 'counts' .* cannot be copied"):
        rehearse(cluster)


def test_offsets_that_spark_has_removed_are_named(cluster: Cluster) -> None:
    original = cluster.files.run

    def run(batches: int = 1) -> None:
        original(batches)
        cluster.files.purge()

    cluster.files.run = run  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="has removed the offsets of batch 2") as caught:
        rehearse(cluster, new=4)
    assert "fewer --batches" in caught.value.remedy


def test_a_rehearsal_and_an_upgrade_of_one_job_exclude_each_other(cluster: Cluster) -> None:
    with (
        changing(cluster.shadow.with_suffix(".lock"), BLUE),
        pytest.raises(ClusterError, match="rescaled or upgraded at this moment"),
    ):
        rehearse(cluster)
    assert cluster.plans == []


def test_a_kill_at_any_call_leaves_the_job_and_the_next_rehearsal_removes_the_rest(tmp_path: Path) -> None:
    kills = 0
    for number in range(1, 1000, 3):
        cluster = Cluster(tmp_path / str(number))
        cluster.kill_at = number
        with contextlib.suppress(Killed):
            rehearse(cluster, "runs forever")
            break
        kills += 1
        cluster.kill_at = -1
        assert cluster.jobs[BLUE] is JobStatus.RUNNING
        assert rehearse(cluster).is_equal
        assert (cluster.running, kept(cluster)) == (["# commit blue"], [])
    assert kills > 8


def test_jobs_and_files_of_a_command_that_was_killed_are_removed_by_the_next(cluster: Cluster) -> None:
    """A kill runs no code of the command, and its jobs run on until they miss its heartbeats."""
    left, unknown = JobID.random(), JobID.random()
    cluster.jobs[left], cluster.codes[left] = JobStatus.RUNNING, "# left"
    (cluster.shadow / "blue").mkdir(parents=True)
    (cluster.shadow / "blue" / "plan.json").write_text("half")
    write(cluster.shadow / "offsets" / "0" / "2", "of another savepoint")
    (cluster.shadow / "jobs.json").write_text(json.dumps([left, unknown]))
    assert rehearse(cluster).is_equal
    assert (cluster.jobs[left], kept(cluster)) == (JobStatus.CANCELED, [])


def test_results_are_read_as_they_were_written() -> None:
    assert decode_result(encode(QUERY)) == QUERY


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--shadow", BLUE], "--shadow needs the FILE"),
        (["--batches", "2", BLUE, "green.py"], "--batches belongs to --shadow"),
        (["--shadow", "--savepoint", "/tmp", BLUE, "green.py"], "takes no --savepoint"),
        (["--shadow", "--batches", "0", BLUE, "green.py"], f"0 is not in the range 1<=x<={MOST_BATCHES}"),
        (["--shadow", "--batches", str(MOST_BATCHES + 1), BLUE, "green.py"], f"not in the range 1<=x<={MOST_BATCHES}"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], problem: str, tmp_path: Path) -> None:
    file = tmp_path / "green.py"
    file.write_text("")
    given = [str(file) if word == "green.py" else word for word in words]
    done = CliRunner().invoke(cli, ["job", "upgrade", *given])
    assert (done.exit_code, problem in done.output) == (ExitStatus.WRONG_USAGE, True), done.output
