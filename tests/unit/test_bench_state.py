"""The benchmark `state`: how its figures are computed, and that it sees each row that is lost or doubled."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.state import Commits, Keys, Rows, counted_rows, longest_pause, missed_batches, per_million
from tests.faults.rescales import Result


@pytest.mark.parametrize(
    ("small_s", "took_s", "keys", "seconds"),
    [
        (4.0, 10.0, 200_000, 34.0),
        (4.0, 10.0, 1_000_000, 10.0),
        (4.0, 3.0, 200_000, 4.0),  # the keys cost less than the spread
    ],
)
def test_only_the_part_that_the_keys_cost_is_extrapolated(
    small_s: float, took_s: float, keys: int, seconds: float
) -> None:
    assert per_million(small_s, took_s, keys) == pytest.approx(seconds)


def test_the_longest_pause_is_that_after_a_moment() -> None:
    times = [20.0, 0.0, 9.0, 10.0, 13.0, 19.0]
    assert longest_pause(times, 0.0) == 9.0
    assert longest_pause(times, 9.5) == 6.0
    assert longest_pause(times, 12.0) == 6.0
    assert longest_pause(times, 11.0) == 6.0
    assert longest_pause([0.0, 5.0, 6.0], 3.0) == 5.0, "the pause in which the moment is"
    assert longest_pause(times, 20.0) == longest_pause([], 0.0) == 0.0


def test_a_pause_is_counted_in_batches_at_the_usual_pace() -> None:
    assert missed_batches(5.0, 1.0) == 4.0
    assert missed_batches(1.0, 1.0) == missed_batches(0.5, 1.0) == 0.0


def test_commits_are_seen_once_and_again_where_a_rollback_repeats_their_number(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.look()
    assert commits.times == []
    (tmp_path / "commits").mkdir()

    def commit(name: str, at: float) -> None:
        (tmp_path / "commits" / name).touch()
        os.utime(tmp_path / "commits" / name, (at, at))

    for name, at in (("0", 5.0), ("1", 6.0), (".1.crc", 6.5)):
        commit(name, at)
    assert commits.after(0) == commits.after(0) == 2
    (tmp_path / "commits" / "1").unlink()
    assert commits.after(0) == 2
    commit("1", 9.0)
    assert commits.times == [5.0, 6.0]
    assert commits.after(5.0) == 2
    assert commits.times == [5.0, 6.0, 9.0]

    for name, saved in (("original", {"0": 5.0}), ("rescaled", {"0": 5.0, "1": 9.0})):
        (tmp_path / name / "counts" / "commits").mkdir(parents=True)
        for number, at in saved.items():
            commit(f"../{name}/counts/commits/{number}", at)
    commits.forget(tmp_path / "original", tmp_path / "rescaled")
    commits.look()
    assert commits.times == [5.0, 6.0], "no batch was done when the rescale has written its copy"


def sink_of(directory: Path, counts: list[dict[int, int]], logged: list[int]) -> Path:
    """A sink with a file for each batch; its log names those of some batches."""
    (directory / "_spark_metadata").mkdir(parents=True)
    for number, rows in enumerate(counts):
        pq.write_table(pa.table({"key": list(rows), "count": list(rows.values())}), directory / f"{number}.parquet")
    for entry, number in enumerate(logged):
        path = directory / f"{number}.parquet"
        (directory / "_spark_metadata" / str(entry)).write_text(f'v1\n{{"path": "file://{path}"}}')
    return directory


@pytest.mark.parametrize(
    ("planted", "logged", "lost", "doubled"),
    [
        ({}, [0, 1], 0, 0),
        ({0: -1}, [0, 1], 1, 0),
        ({0: 1}, [0, 1], 0, 1),
        ({0: -1, 1: 1}, [0, 1], 1, 1),  # their number is right
        ({7: 2}, [0, 1], 0, 2),  # a key that the source does not have
        ({}, [0], 100, 0),  # a batch is missing
        ({}, [0, 1, 1], 0, 100),  # and one is there twice
    ],
)
def test_planted_rows_that_are_lost_or_doubled_are_counted(
    tmp_path: Path, planted: dict[int, int], logged: list[int], lost: int, doubled: int
) -> None:
    source = Keys(tmp_path / "in", 5)
    source.all()
    first = source.expected
    assert first == Counter(range(5))
    source.some()
    later = source.expected - first
    assert later.total() == 100
    sink = sink_of(tmp_path / "out", [{**first, **{k: first[k] + n for k, n in planted.items()}}, dict(later)], logged)
    source.close()
    assert sum(pq.read_table(file).num_rows for file in source.directory.iterdir()) == 5 + 100 + 1
    rows = Rows()
    rows.compare(source.expected, counted_rows(sink))
    assert (rows.lost, rows.doubled) == (lost, doubled)
    rows.compare(Counter({"a": 1}), Counter({"b": 2}))
    assert (rows.lost, rows.doubled) == (lost + 1, doubled + 2), "those of all queries"


def test_a_run_with_kills_shows_what_became_of_the_rescales() -> None:
    result = Result(1, "rocksdb")
    result.outcomes["undone"] += 1
    result.compare(Counter(a=2, b=1), Counter(a=1, b=2), Counter(a=2, b=1))
    summary = result.summary()
    assert (summary["outcomes"], summary["lost"], summary["doubled"]) == ({"undone": 1}, 1, 1)
    assert len(result.problems) == 2
