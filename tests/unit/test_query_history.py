"""The history of streaming queries' figures: one point for each batch, bounded in points, time and queries."""

from __future__ import annotations

from runtime.ids import JobVertexID
from runtime.jobgraph.codec import decode, encode
from runtime.jobmaster.query_history import MOST_POINTS, MOST_QUERIES, SPAN_MS, QueryHistories
from runtime.protocol.streaming_query import QueryHistory, QueryProgress, SourceProgress, StreamingQuery
from tests.unit.test_jobgraph import vid

TASK = vid("a")


def progress(batch: int, *, lag: int | None = 7) -> QueryProgress:
    source = SourceProgress("rate", 10, 2.5, 5.0, lag)
    return QueryProgress(batch, f"2026-11-24T00:00:{batch}Z", 100 + batch, 10, 2.5, 5.0, 3, 4096, (source,), 0.5)


def query(batch: int | None, query_id: str = "q", run_id: str = "r") -> StreamingQuery:
    return StreamingQuery(query_id, run_id, "counts", batch, progress=None if batch is None else progress(batch))


def recorded(batches: int, interval_ms: int, histories: QueryHistories | None = None) -> QueryHistory:
    histories = histories or QueryHistories()
    for batch in range(batches):
        histories.add(TASK, (query(batch),), batch * interval_ms)
    (history,) = histories.all()
    return history


def test_a_batch_is_one_point_however_often_it_is_reported() -> None:
    histories = QueryHistories()
    for at, batch in enumerate((None, 0, 0, 1, 1, 1)):
        histories.add(TASK, (query(batch),), at)
    assert histories.all() == [
        QueryHistory(
            TASK,
            "q",
            "r",
            "counts",
            at_ms=(1, 3),
            batches=(0, 1),
            rows_per_second=(2.5, 2.5),
            processed_per_second=(5.0, 5.0),
            durations_ms=(100, 101),
            state_rows=(3, 3),
            state_bytes=(4096, 4096),
            lags=(7, 7),
            busy=(0.5, 0.5),
        )
    ]


def test_a_query_that_has_reported_no_batch_is_known_without_points() -> None:
    histories = QueryHistories()
    histories.add(TASK, (query(None),), 5)
    (history,) = histories.all()
    assert (history.id, history.at_ms, history.lags) == ("q", (), ())


def test_the_history_goes_on_when_the_query_is_started_again() -> None:
    histories = QueryHistories()
    histories.add(TASK, (query(0, run_id="first"),), 1)
    histories.add(TASK, (query(1, run_id="second"),), 2)
    (history,) = histories.all()
    assert (history.run_id, history.batches) == ("second", (0, 1))


def test_queries_of_two_tasks_are_two_though_they_have_one_id() -> None:
    histories = QueryHistories()
    histories.add(TASK, (query(0),), 1)
    histories.add(vid("b"), (query(0),), 1)
    assert [history.task for history in histories.all()] == [TASK, vid("b")]


def test_a_fast_query_keeps_its_whole_last_hour_in_fewer_points() -> None:
    batches = SPAN_MS // 1000  # one each second, for an hour
    history = recorded(batches, 1000)
    assert MOST_POINTS // 2 <= len(history.at_ms) <= MOST_POINTS
    assert history.batches[0] == 0
    assert history.batches[-1] == batches - 1  # the newest is always there
    gaps = [later - earlier for earlier, later in zip(history.at_ms, history.at_ms[1:], strict=False)]
    assert max(gaps) <= 2 * SPAN_MS / (MOST_POINTS / 2)  # evenly


def test_what_is_older_than_the_span_goes_when_there_is_no_room() -> None:
    history = recorded(4 * SPAN_MS // 1000, 1000)
    assert len(history.at_ms) <= MOST_POINTS
    covered = history.at_ms[-1] - history.at_ms[0]
    assert SPAN_MS / 2 <= covered <= 2 * SPAN_MS


def test_a_slow_query_keeps_its_last_batches_all() -> None:
    history = recorded(1000, 60_000)
    assert history.batches == tuple(range(1000 - MOST_POINTS, 1000))


def test_the_query_that_was_silent_for_longest_makes_room() -> None:
    histories = QueryHistories()
    for number in range(MOST_QUERIES):
        histories.add(TASK, (query(0, f"q{number}"),), number)
    histories.add(TASK, (query(1, "q0"),), MOST_QUERIES)
    histories.add(TASK, (query(0, "new"),), MOST_QUERIES + 1)
    kept = {history.id for history in histories.all()}
    assert len(kept) == MOST_QUERIES
    assert "q0" in kept
    assert "q1" not in kept


def test_a_full_history_is_small_when_it_travels() -> None:
    history = recorded(MOST_POINTS, 60_000)
    data = encode(history)
    assert decode(data, QueryHistory) == history
    assert len(data) < 60 * MOST_POINTS


def test_a_lag_that_is_not_known_is_none() -> None:
    histories = QueryHistories()
    unknown = StreamingQuery("q", "r", "", 0, progress=progress(0, lag=None))
    histories.add(JobVertexID(TASK), (unknown,), 1)
    (history,) = histories.all()
    assert history.lags == (None,)
    assert decode(encode(history), QueryHistory) == history
