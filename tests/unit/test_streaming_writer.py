"""What is seen of a query before it starts, on a writer like PySpark's."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.handover import pending_state, write_handover
from runtime.checkpoint.lease import LocationInUseError
from runtime.checkpoint.snapshot import take_snapshot
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import QueryRunsAlreadyError, TaskCancelled
from runtime.spark.messages import Finished, FromTask, Note, QueryRestores, QueryStarts, StandsBy
from runtime.spark.spec import StreamingSpec
from runtime.spark.task.streaming import StreamingQueries
from tests.cluster_harness import await_value
from tests.streaming_files import StreamingFiles
from tests.waiting import PATIENCE_S


class Session:
    """With a driver's settings, or those given; starts queries as Spark does where *active* have that id."""

    def __init__(self, **conf: str) -> None:
        self.settings = {"stopActiveRunOnRestart": "false", **conf}
        self.active: dict[str, str] = {}
        self.conf = SimpleNamespace(
            get=lambda key, default: self.settings.get(key.rsplit(".", 1)[1], default),
            set=lambda key, value: self.settings.update({key.rsplit(".", 1)[1]: value}),
        )

    def start(self, location: str) -> None:
        if (query_id := self.active.get(location)) is not None:
            assert self.settings["stopActiveRunOnRestart"] == "false", "Spark would stop it"
            raise RuntimeError(
                f"java.lang.IllegalStateException: Cannot start query with id {query_id} as another query with same id "
                "is already active. Perhaps you are attempting to restart a query from checkpoint"
            )


class Query:
    """As much of PySpark's `StreamingQuery` as is asked for at its start."""

    id = "id"
    runId = "run"  # noqa: N815
    isActive = True  # noqa: N815
    name = "q"
    lastProgress: Any = None  # noqa: N815

    def exception(self) -> None: ...
    def awaitTermination(self) -> None: ...  # noqa: N802
    def processAllAvailable(self) -> None: ...  # noqa: N802

    def stop(self) -> None:
        self.isActive = False


class Started(Query, tuple[str | None, dict[str, Any]]):
    """What it was started with."""


class Table(Query, str):
    """Its name."""


def writer_class(session: Session) -> Any:
    """A class of its own for each test, for the hook changes it."""

    class Writer:
        _spark = session

        def __init__(self) -> None:
            self.options_set: dict[str, Any] = {}

        def format(self, source: str) -> Writer:
            return self

        def outputMode(self, outputMode: str) -> Writer:  # noqa: N802, N803
            return self

        def queryName(self, queryName: str) -> Writer:  # noqa: N802, N803
            return self

        def option(self, key: str, value: Any) -> Writer:
            self.options_set[key] = value
            return self

        def options(self, **options: Any) -> Writer:
            self.options_set.update(options)
            return self

        def trigger(self, **when: Any) -> Writer:
            return self

        def foreach(self, f: Any) -> Writer:
            return self

        def foreachBatch(self, func: Any) -> Writer:  # noqa: N802
            return self

        def start(
            self,
            path: str | None = None,
            format: str | None = None,
            outputMode: str | None = None,  # noqa: N803
            partitionBy: Any = None,  # noqa: N803
            queryName: str | None = None,  # noqa: N803
            **options: Any,
        ) -> Started:
            session.start(str({**self.options_set, **options}.get("checkpointLocation")))
            return Started((path, {**self.options_set, **options}))

        def toTable(  # noqa: N802
            self,
            tableName: str,  # noqa: N803
            format: str | None = None,
            outputMode: str | None = None,  # noqa: N803
            partitionBy: Any = None,  # noqa: N803
            queryName: str | None = None,  # noqa: N803
            **options: Any,
        ) -> Table:
            return Table(tableName)

    return Writer


class Seen:
    """The hook in a class, and what it told."""

    def __init__(self, directory: Path, begin_with: JobManagerTaskRestore | None = None, **conf: str) -> None:
        self.told: list[QueryLocation] = []
        self.stands_by = 0
        self.restores: list[tuple[str, bool, int]] = []
        self.session = Session(**conf)
        self.writer = writer_class(self.session)
        spec = StreamingSpec(str(directory), "/driver")
        self.leased: list[str] = []
        self.failed: list[tuple[str, BaseException]] = []
        self.notes: list[str] = []
        self.queries = StreamingQueries(
            spec, begin_with, self._tell, self._lease, lambda *failed: self.failed.append(failed)
        )
        self.queries.install(self.writer)

    def _tell(self, message: FromTask) -> None:
        if isinstance(message, QueryStarts):
            self.told.append(message.query)
        elif isinstance(message, QueryRestores):
            self.restores.append((message.name, message.has_failed, len(self.told)))
        elif isinstance(message, Note):
            self.notes.append(message.text)
        elif isinstance(message, StandsBy):
            self.stands_by += 1

    def _lease(self, location: str) -> None:
        if location == "/taken":
            raise LocationInUseError("it is written to by another job")
        self.leased.append(location)


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(tmp_path)


def test_a_named_query_with_a_location_is_left_as_it_is(seen: Seen) -> None:
    writer = seen.writer().queryName("counts").format("parquet").option("checkpointLocation", "/live")
    assert writer.start("/out") == ("/out", {"checkpointLocation": "/live"})
    assert seen.told == [QueryLocation("counts", "/live", "/out")]


def test_what_start_itself_is_given_counts_too(seen: Seen) -> None:
    seen.writer().start("out", "JSON", queryName="q", CHECKPOINTLOCATION="file:///live here/")
    assert seen.told == [QueryLocation("q", "/live here", "/driver/out")]


@pytest.mark.parametrize("begin", ["file:", "file://", "file://localhost", "file:///", ""])
@pytest.mark.parametrize("path", ["/a%20b", "/run#2", "/run?x=1", "/%23/f:1", "/a//b/../c"])
def test_a_location_is_the_directory_that_hadoop_makes_of_its_text(seen: Seen, begin: str, path: str) -> None:
    writer = seen.writer().queryName("q").format("json").option("checkpointLocation", begin + path)
    writer.start(f"{begin}{path}/out")
    location = path.replace("/a//b/../c", "/a/c")
    assert seen.told == [QueryLocation("q", location, f"{location}/out")]


def test_a_query_without_a_location_gets_one_of_the_jobs(seen: Seen, tmp_path: Path) -> None:
    _, options = seen.writer().queryName("a/b").foreachBatch(print).start()
    assert options["checkpointLocation"] == str(tmp_path / "live" / "a%2Fb")
    assert Path(options["checkpointLocation"]).is_dir()
    assert seen.told == [QueryLocation("a/b", options["checkpointLocation"], None)]


def test_unnamed_queries_are_counted_and_keep_their_number_when_they_start_again(seen: Seen) -> None:
    for location in ("/one", "/two", "/one"):
        seen.writer().format("noop").option("checkpointLocation", location).start()
    assert [query.name for query in seen.told] == ["query-0", "query-1", "query-0"]


@pytest.mark.parametrize("sink", ["noop", "memory"])
def test_a_query_that_may_not_start_any_more_is_neither_restored_nor_reported(tmp_path: Path, sink: str) -> None:
    live = StreamingFiles(tmp_path / "live")
    live.run(1)
    taken = take_snapshot(live.query, tmp_path / "chk-1" / live.query.name, None)
    seen = Seen(tmp_path / "own", JobManagerTaskRestore(1, (taken,)))
    seen.queries.gate.hold(1)
    seen.queries.gate.decide(1, stops=True)
    writer = seen.writer().queryName(live.query.name).format(sink).option("checkpointLocation", str(live.location))
    with pytest.raises(TaskCancelled, match="the job is stopped with a savepoint"):
        writer.start()
    assert (seen.told, seen.restores, seen.queries.have_started) == ([], [], False)


def test_a_stop_waits_for_the_restore_and_the_start_of_a_query(seen: Seen) -> None:
    held: list[list[str]] = []
    hold = functools.partial(seen.queries.gate.hold, 1, timeout_s=0.0)
    seen.queries._tell = lambda message: held.append(hold())
    seen.session.start = lambda location: held.append(hold())  # type: ignore[method-assign]
    seen.writer().queryName("counts").format("noop").option("checkpointLocation", "/live").start()
    assert held == [["counts"], ["counts"]], "when it is reported, and in Spark"
    assert hold() == []


def test_spark_lets_no_memory_sink_go_on_unless_it_is_complete(seen: Seen, tmp_path: Path) -> None:
    assert not seen.queries.have_started
    _, options = seen.writer().queryName("m").format("memory").start()
    assert options == {}
    assert seen.told == []
    assert seen.queries.have_started
    _, options = seen.writer().queryName("m").format("memory").outputMode("Complete").start()
    assert options["checkpointLocation"] == str(tmp_path / "live" / "m")


def test_sparks_own_setting_for_locations_is_respected_for_named_queries(tmp_path: Path) -> None:
    seen = Seen(tmp_path, checkpointLocation="/all")
    seen.writer().queryName("q").format("console").start()
    seen.writer().format("console").start()
    assert [query.location for query in seen.told] == ["/all/q", str(tmp_path / "live" / "query-0")]


def test_another_file_system_is_told_as_it_is(seen: Seen) -> None:
    seen.writer().queryName("q").format("noop").option("checkpointLocation", "nosuch://name/live").start()
    assert seen.told == [QueryLocation("q", "nosuch://name/live", None)]


def test_a_table_is_no_file_sink_that_is_known(seen: Seen) -> None:
    assert seen.writer().option("checkpointLocation", "/live").toTable("t", queryName="q") == "t"
    assert seen.told == [QueryLocation("q", "/live", None)]


def test_no_query_starts_before_it_has_the_lease_of_its_location(seen: Seen, tmp_path: Path) -> None:
    seen.writer().format("noop").option("checkpointLocation", "file:///live").start()
    seen.writer().queryName("own").format("noop").start()
    seen.writer().format("noop").option("checkpointLocation", "nosuch://far/away").start()
    assert seen.leased == ["/live", str(tmp_path / "live" / "own"), "nosuch://far/away"]
    told = len(seen.told)
    with pytest.raises(LocationInUseError, match="by another job"):
        seen.writer().format("noop").option("checkpointLocation", "/taken").start()
    assert len(seen.told) == told


def test_a_query_starts_only_when_the_former_job_has_ended(tmp_path: Path) -> None:
    seen = Seen(tmp_path, begin_with=pending_state("/savepoints/one", "b1" * 16, tmp_path / "over" / "state.json"))
    started: list[str] = []

    def start(name: str) -> None:
        seen.writer().queryName(name).format("noop").option("checkpointLocation", str(tmp_path / name)).start()
        started.append(name)

    threads = [threading.Thread(target=start, args=(name,), daemon=True) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    await_value(lambda: seen.stands_by or seen.leased)
    for thread in threads:
        thread.join(0.1)
    assert (seen.leased, seen.told, started) == ([], [], [])
    state = JobManagerTaskRestore(0, (), "/savepoints/one", allow_non_restored_state=True, continues=True)
    write_handover(tmp_path / "over" / "state.json", state)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (sorted(started), len(seen.leased), seen.stands_by) == (["one", "two"], 2, 1)


@pytest.mark.parametrize("stops", ["false", "true"])
def test_the_start_of_a_query_ends_no_other_of_its_id_and_fails_with_the_remedy(tmp_path: Path, stops: str) -> None:
    seen = Seen(tmp_path, stopActiveRunOnRestart=stops)
    seen.session.active["/copied"] = "4711"
    with pytest.raises(QueryRunsAlreadyError) as refused:
        seen.writer().queryName("q").format("noop").option("checkpointLocation", "/copied").start()
    text = str(refused.value)
    assert text.startswith("streaming query q is not started at /copied: a query with its id (4711) runs in this Spark")
    assert "--new-query-id" in text
    assert seen.session.settings["stopActiveRunOnRestart"] == stops, "the session's setting is the user's"


def test_another_error_of_a_start_is_the_codes_own(seen: Seen) -> None:
    seen.session.start = lambda location: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(ZeroDivisionError):
        seen.writer().format("noop").option("checkpointLocation", "/live").start()


@pytest.mark.parametrize(("stops", "goes_on"), [("false", True), ("true", False)])
def test_a_session_that_stops_what_runs_stops_the_tasks_own_query(tmp_path: Path, stops: str, goes_on: bool) -> None:
    seen = Seen(tmp_path, stopActiveRunOnRestart=stops)
    first = seen.writer().format("noop").option("checkpointLocation", "/live").start()
    other = seen.writer().format("noop").option("checkpointLocation", "/other").start()
    seen.writer().format("noop").option("checkpointLocation", "/live").start()
    assert (first.isActive, other.isActive) == (goes_on, True)


@pytest.mark.parametrize(
    ("when", "lost"),
    [({"processingTime": "1 second"}, ["q"]), ({"availableNow": True}, []), ({"once": True}, []), ({}, ["q"])],
)
def test_a_query_that_ends_by_itself_is_lost_unless_its_trigger_ends_it(
    seen: Seen, when: dict[str, Any], lost: list[str]
) -> None:
    writer = seen.writer().queryName("q").format("noop").option("checkpointLocation", "/live")
    query = (writer.trigger(**when) if when else writer).start()
    assert seen.queries.finished() == Finished()
    query.isActive = False
    query.lastProgress = SimpleNamespace(json='{"batchId": 3}')
    report = {"id": "id", "run_id": "run", "name": "q", "json": '{"batchId": 3}'}
    assert seen.queries.finished() == Finished(lost_queries=lost, queries=[report])
    assert seen.queries.failed() == []


def savepoint_of_a(tmp_path: Path) -> JobManagerTaskRestore:
    restored = StreamingFiles(tmp_path / "kept")
    restored.run(1)
    state = take_snapshot(replace(restored.query, name="a", sink=None), tmp_path / "savepoint" / "a")
    return JobManagerTaskRestore(0, (state,), "/savepoints/one")


def test_a_restore_is_reported_before_it_begins(tmp_path: Path) -> None:
    """So that no savepoint is complete without the query."""
    seen = Seen(tmp_path, begin_with=savepoint_of_a(tmp_path))
    with pytest.raises(SavepointError, match="holds no state of query 'b'"):
        seen.writer().queryName("b").format("noop").option("checkpointLocation", str(tmp_path / "b")).start()
    seen.writer().queryName("a").format("noop").option("checkpointLocation", str(tmp_path / "a")).start()
    assert seen.restores == [("b", False, 0), ("b", True, 0), ("a", False, 0)]
    assert [query.name for query in seen.told] == ["a"]


@pytest.mark.parametrize(
    ("location", "sink", "why"),
    [
        ("{}/a", None, r"the checkpointLocation \S+/a leads to hdfs://name:1/ in Spark"),
        (None, None, r"the checkpointLocation \S+/live/a leads to hdfs://name:1/ in Spark"),
        ("file://{}/a", "/out", "the file sink /out leads to hdfs://name:1/ in Spark"),
        ("hdfs:/a", None, "the checkpointLocation hdfs:/a leads to hdfs: in Spark"),
    ],
)
def test_state_is_not_restored_where_spark_does_not_look_for_it(
    tmp_path: Path, location: str | None, sink: str | None, why: str
) -> None:
    seen = Seen(tmp_path, begin_with=savepoint_of_a(tmp_path), defaultFS="hdfs://name:1/")
    writer = seen.writer().queryName("a").format("noop" if sink is None else "json")
    if location is not None:
        writer = writer.option("checkpointLocation", location.format(tmp_path))
    with pytest.raises(SnapshotError, match=why):
        writer.start(sink)
    assert (seen.leased, seen.told) == ([], [])
    other = seen.writer().queryName("b").format("noop").option("checkpointLocation", "/b")
    with pytest.raises(SavepointError, match="holds no state of query 'b'"):
        other.start()


@pytest.mark.parametrize("default", ["hdfs://name:1/", "file:///"])
def test_state_is_restored_to_a_path_that_is_local_for_spark_too(tmp_path: Path, default: str) -> None:
    seen = Seen(tmp_path, begin_with=savepoint_of_a(tmp_path), defaultFS=default)
    location = f"{'file://' if default != 'file:///' else ''}{tmp_path}/a"
    seen.writer().queryName("a").format("noop").option("checkpointLocation", location).start()
    assert [query.location for query in seen.told] == [f"{tmp_path}/a"]


def test_a_query_without_state_starts_wherever_spark_has_its_files(tmp_path: Path) -> None:
    seen = Seen(tmp_path, defaultFS="hdfs://name:1/")
    seen.writer().queryName("a").format("noop").option("checkpointLocation", "/a").start()
    assert seen.told == [QueryLocation("a", "/a", None)]


def test_the_default_file_system_of_a_classic_session_is_the_one_that_spark_uses(tmp_path: Path) -> None:
    seen = Seen(tmp_path, begin_with=savepoint_of_a(tmp_path))
    hadoop = {"fs.defaultFS": "viewfs://all/"}
    state = SimpleNamespace(newHadoopConf=lambda: hadoop)
    seen.session._jsparkSession = SimpleNamespace(sessionState=lambda: state)  # type: ignore[attr-defined]
    writer = seen.writer().queryName("a").format("noop").option("checkpointLocation", "/a")
    with pytest.raises(SnapshotError, match="leads to viewfs://all/ in Spark"):
        writer.start()
