"""Whether a streaming query keeps up, and the figures from which that is seen."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.rpc.codec import from_plain, to_plain
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    OperatorBackPressureStats,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
    back_pressure_stats,
)
from runtime.spark.driver.api import StreamingQueryInfo
from runtime.taskexecutor.streaming import (
    KEPT,
    WINDOW,
    BackPressureMonitor,
    BusyTime,
    QueryReports,
    SeenQueries,
    query_progress,
    source_lag,
)

OK, LOW, HIGH = BackPressureLevel
INTERVAL = 1000

PROGRESS: dict[str, Any] = {
    "id": "q",
    "runId": "r",
    "name": "counts",
    "timestamp": "2026-01-01T00:00:07.000Z",
    "batchId": 7,
    "batchDuration": 420,
    "durationMs": {"addBatch": 300, "triggerExecution": 410},
    "stateOperators": [
        {"operatorName": "stateStoreSave", "numRowsTotal": 10, "memoryUsedBytes": 2048},
        {"operatorName": "dedupe", "numRowsTotal": 5, "memoryUsedBytes": 1024},
    ],
    "sources": [
        {
            "description": "KafkaV2[Subscribe[clicks]]",
            "startOffset": {"clicks": {"0": 10, "1": 20}},
            "endOffset": {"clicks": {"0": 15, "1": 25}},
            "latestOffset": {"clicks": {"0": 18, "1": 25}},
            "numInputRows": 10,
            "inputRowsPerSecond": 5.0,
            "processedRowsPerSecond": 24.4,
        },
        {
            "description": "RateStreamV2",
            "startOffset": 1,
            "endOffset": "3",
            "latestOffset": 4,
            "numInputRows": 2,
        },
    ],
    "sink": {"description": "memory", "numOutputRows": 4},
}


def batch(number: int, took_ms: int, lag: int | None = None, timestamp: str = "") -> QueryProgress:
    sources = (SourceProgress("s", 1, 1.0, 1.0, lag),)
    return QueryProgress(number, timestamp or str(number), took_ms, 1, 1.0, 1.0, 0, 0, sources)


def judge(*batches: QueryProgress, interval: int | None = INTERVAL) -> BackPressure | None:
    monitor = BackPressureMonitor()
    found = None
    for one in batches:
        found = monitor.observe(one, interval)
    return found


@pytest.mark.parametrize(
    ("took_ms", "level"), [(0, OK), (499, OK), (500, LOW), (1000, LOW), (1001, HIGH), (5000, HIGH)]
)
def test_the_level_follows_from_the_part_of_the_interval_that_a_batch_takes(
    took_ms: int, level: BackPressureLevel
) -> None:
    assert judge(batch(1, took_ms)) == BackPressure(level, took_ms / INTERVAL)


def test_batch_0_tells_nothing() -> None:
    assert judge(batch(0, 9000)) is None
    assert judge(batch(0, 9000), batch(1, 100)) == BackPressure(OK, 0.1)


def test_the_median_of_the_last_batches_counts_so_that_one_slow_one_does_not() -> None:
    quick = [batch(number, 100) for number in range(1, 5)]
    assert judge(*quick, batch(5, 9000)) == BackPressure(OK, 0.1)
    assert judge(*quick, *(batch(number, 2000) for number in range(5, 8))) == BackPressure(HIGH, 2.0)


def test_to_be_told_a_batch_again_changes_nothing_but_a_new_report_of_it_counts() -> None:
    slow, quick = batch(2, 2000), batch(1, 100)
    assert judge(quick, *[slow] * 9) == BackPressure(HIGH, 1.05)
    again = batch(2, 300, timestamp="later")  # a query without new data reports the batch that is to come
    assert judge(quick, slow, again) == BackPressure(OK, 0.3)


def test_a_growing_backlog_is_high_however_quick_the_batches_are() -> None:
    growing = [batch(number, 10, lag=number * 100) for number in range(1, 4)]
    assert judge(*growing[:2]) == BackPressure(OK, 0.01)  # two are no trend
    assert judge(*growing) == BackPressure(HIGH, 0.01)
    assert judge(*growing, batch(4, 10, lag=299)) == BackPressure(OK, 0.01)
    assert judge(*(batch(number, 10, lag=100) for number in range(1, 6))) == BackPressure(OK, 0.01)


def test_without_an_interval_the_backlog_alone_counts() -> None:
    growing = [batch(number, 9000, lag=number) for number in range(1, 4)]
    assert judge(*growing, interval=0) == BackPressure(HIGH)
    assert judge(*reversed(growing), interval=None) == BackPressure(OK)
    assert judge(*growing[:2], interval=None) is None
    assert judge(*(batch(number, 9000) for number in range(1, 9)), interval=None) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000), st.none() | st.integers(0, 9)), max_size=20))
def test_a_level_is_never_better_than_its_figures(batches: list[tuple[int, int, int | None]]) -> None:
    monitor = BackPressureMonitor()
    for count, (number, took, lag) in enumerate(batches):
        found = monitor.observe(batch(number, took, lag, str(count)), INTERVAL)
        if found is not None:
            assert found.busy is not None
            assert found.level is HIGH or found.busy <= 1
            assert found.level is not OK or found.busy < 0.5
    last = [took for number, took, _ in batches if number > 0][-WINDOW:]
    if last and found is not None and found.busy is not None:
        assert min(last) / INTERVAL <= found.busy <= max(last) / INTERVAL


@given(st.none() | st.floats(0, 1000))
def test_the_ratios_are_the_whole_of_the_time(busy: float | None) -> None:
    ratios = OperatorBackPressureStats(OK, 0, busy).ratios
    if busy is None:
        assert ratios is None
    else:
        assert ratios is not None
        assert sum(ratios) == pytest.approx(1)
        assert all(0 <= ratio <= 1 for ratio in ratios)


def test_a_task_is_as_badly_off_as_its_worst_query_and_nothing_is_known_of_nobody() -> None:
    levels = [BackPressure(LOW, 0.9), None, BackPressure(HIGH), BackPressure(OK, 0.1)]
    queries = [StreamingQuery("q", "r", "", 1, back_pressure=level) for level in levels]
    assert back_pressure_stats(3, queries) == OperatorBackPressureStats(HIGH, 3, None)
    assert back_pressure_stats(3, queries[:2]) == OperatorBackPressureStats(LOW, 3, 0.9)
    assert back_pressure_stats(3, queries[1:2]) is None


def test_a_progress_of_sparks_is_read() -> None:
    assert query_progress(json.dumps(PROGRESS)) == QueryProgress(
        batch=7,
        timestamp="2026-01-01T00:00:07.000Z",
        duration_ms=410,
        rows=12,
        rows_per_second=5.0,
        processed_per_second=24.4,
        state_rows=15,
        state_bytes=3072,
        sources=(
            SourceProgress("KafkaV2[Subscribe[clicks]]", 10, 5.0, 24.4, 3),
            SourceProgress("RateStreamV2", 2, 0.0, 0.0, 1),
        ),
    )
    assert query_progress(json.dumps(PROGRESS)).lag == 4


def test_on_connect_the_sources_know_the_rows_that_the_progress_does_not() -> None:
    assert query_progress(json.dumps(PROGRESS | {"numInputRows": None})).rows == 12


def test_a_progress_of_a_query_that_has_read_nothing() -> None:
    found = query_progress(json.dumps({"batchId": 0, "batchDuration": 3, "sources": [], "stateOperators": []}))
    assert (found.duration_ms, found.rows, found.lag, found.sources) == (3, 0, None, ())


@pytest.mark.parametrize("text", ["", "[]", "{}", "nothing"])
def test_what_is_no_progress_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        query_progress(text)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (3, 10, 7),
        ("3", "10", 7),
        (10, 3, 0),
        (None, 10, None),
        (3, None, None),
        ("a", "b", None),
        ({"logOffset": 3}, {"logOffset": 5}, 2),
        ({"offset": 3, "timestamp": 100}, {"offset": 5, "timestamp": 900}, None),
        ({"t": {"0": 1}}, {"t": {"0": 1, "1": 5}}, None),
        ({"t": {"0": 1}}, {"t": {"0": 4}, "u": {"0": 5}}, None),
        ('{"t": {"0": 1}}', '{"t": {"0": 4}}', 3),
        ({}, {}, None),
        ({"t": 1}, {"t": {"0": 4}}, None),
    ],
)
def test_lag_where_it_is_a_number(end: Any, latest: Any, lag: int | None) -> None:
    assert source_lag(end, latest) == lag


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ({"0": 8, "1": 16}, {"0": 10, "1": 16}, 2),
        ({"offset": 8}, {"offset": 9}, 1),
        ({"0": 8}, {"0": 8, "1": 5}, None),
        ({"0": "a"}, {"0": "b"}, None),
        ({"0": 8}, None, None),
        (3, 10, 7),
    ],
)
def test_a_python_data_source_is_named_and_its_partitions_are_summed(end: Any, latest: Any, lag: int | None) -> None:
    for kind in ("PythonMicroBatchStream", "PythonMicroBatchStreamWithAdmissionControl"):
        description = f"org.apache.spark.sql.execution.datasources.v2.python.{kind}@63452da0"
        told = {"batchId": 0, "sources": [{"description": description, "endOffset": end, "latestOffset": latest}]}
        (source,) = query_progress(json.dumps(told)).sources
        assert (source.description, source.lag) == ("Python data source", lag)


def info(run_id: str, number: int | None, took_ms: int = 100, interval: int | None = INTERVAL) -> StreamingQueryInfo:
    told = PROGRESS | {"batchId": number, "timestamp": str(number), "durationMs": {"triggerExecution": took_ms}}
    return StreamingQueryInfo("q", run_id, None, True, number, None if number is None else json.dumps(told), interval)


def test_reports_judge_each_run_by_its_own_batches() -> None:
    reports = QueryReports()
    (first,) = reports.report([info("a", None)])
    assert (first.batch, first.progress, first.back_pressure) == (None, None, None)
    reports.report([info("a", 1, 5000), info("b", 1, 100)])
    slow, quick = reports.report([info("a", 2, 5000), info("b", 2, 100)])
    assert (slow.back_pressure, quick.back_pressure) == (BackPressure(HIGH, 5.0), BackPressure(OK, 0.1))
    reports.report([])
    (again,) = reports.report([info("a", 3, 100)])  # what went before is forgotten with the run
    assert again.back_pressure == BackPressure(OK, 0.1)
    (at_once,) = reports.report([info("c", 3, 100, interval=0)])
    assert (at_once.trigger_interval_ms, at_once.back_pressure) == (None, None)
    (available_now,) = reports.report([info("c", 3, 100, interval=None)])
    assert [query.is_endless for query in (again, at_once, available_now)] == [True, True, False]


def timed(number: int, began_s: float, took_s: float, rows: int = 10) -> QueryProgress:
    began = datetime.fromtimestamp(1_800_000_000 + began_s, UTC).isoformat()
    return QueryProgress(number, began, round(took_s * 1000), rows, 0.0, 0.0, 0, 0)


def test_the_busy_time_of_a_quiet_query_is_small_however_often_it_looks_for_data() -> None:
    busy = BusyTime()
    assert busy.observe([timed(0, 0, 1)]) is None  # it compiles, and there is no batch before it
    assert busy.observe([timed(1, 9, 2)]) == 0.2  # from 1 s to 11 s
    assert busy.observe([timed(2, 11, 10)]) == 1.0
    assert busy.observe([]) is None
    assert busy.observe([timed(3, 10, 1)]) is None  # the clock was set back


def test_batches_without_rows_are_busy_time_of_the_next_with_rows() -> None:
    busy = BusyTime()
    busy.observe([timed(0, 0, 1)])
    assert busy.observe([timed(1, 1, 1, rows=0)]) is None
    assert busy.observe([timed(2, 9, 2), timed(3, 11, 1, rows=0)]) == 0.3  # 1 s and 2 s, from 1 s to 11 s
    assert busy.observe([timed(4, 20, 1)]) == 0.2  # 1 s and 1 s, from 11 s to 21 s


def test_a_batch_whose_report_is_missing_counts_as_long_as_the_next() -> None:
    busy = BusyTime()
    busy.observe([timed(0, 0, 1)])
    assert busy.observe([timed(3, 9, 2)]) == 0.6
    assert busy.observe([timed(4, 12, 2), timed(5, 20, 1)]) == 0.3
    assert busy.observe([QueryProgress(6, "no time", 5, 10, 0.0, 0.0, 0, 0)]) is None


def test_a_report_tells_the_busy_time_of_all_batches_since_the_last_one() -> None:
    reports = QueryReports()

    def told(*batches: tuple[int, int, int]) -> float | None:
        texts = [
            json.dumps(
                PROGRESS
                | {
                    "batchId": number,
                    "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
                    "durationMs": {"triggerExecution": took_ms},
                }
            )
            for number, second, took_ms in batches
        ]
        info = StreamingQueryInfo("q", "r", None, True, batches[-1][0], texts[-1], 0, earlier=tuple(texts[:-1]))
        (query,) = reports.report([info])
        assert query.progress is not None
        return query.progress.busy

    assert told((1, 0, 1000)) is None
    assert told((2, 4, 1000), (3, 9, 2000)) == 0.3
    assert told((3, 9, 2000)) == 0.3  # the same report again
    assert told((4, 20, 1000)) == 0.1


def test_a_progress_that_cannot_be_read_hides_no_query() -> None:
    bad = StreamingQueryInfo("q", "r", "counts", True, 4, "{}", INTERVAL)
    assert QueryReports().report([bad]) == (StreamingQuery("q", "r", "counts", 4, INTERVAL, is_endless=True),)


def test_what_is_told_travels() -> None:
    (query,) = QueryReports().report([info("a", 1)])
    assert from_plain(to_plain(query), StreamingQuery) == query


def test_the_last_figures_of_all_queries_of_an_attempt_are_kept() -> None:
    seen = SeenQueries()
    seen.add([StreamingQuery("q", "r", "counts", 4, INTERVAL), StreamingQuery("other", "r2", "", 1)])
    seen.add([])  # none is active any more
    last = {"id": "q", "run_id": "r", "name": "counts", "json": json.dumps(PROGRESS)}
    seen.add_reports([last, {**last, "id": "short", "run_id": "r3", "name": "short"}, {**last, "json": "none"}])
    progress = query_progress(json.dumps(PROGRESS))
    assert seen.all == (
        StreamingQuery("q", "r", "counts", 7, INTERVAL, progress),
        StreamingQuery("other", "r2", "", 1),
        StreamingQuery("short", "r3", "short", 7, None, progress),
    )
    seen.add([StreamingQuery("q", "r4", "counts", 8)])  # started again
    assert [query.run_id for query in seen.all] == ["r4", "r2", "r3"]
    seen.add(StreamingQuery(str(number), "r", "", 0) for number in range(KEPT))
    assert len(seen.all) == KEPT
    assert seen.all[0].id == "0"
