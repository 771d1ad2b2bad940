"""What the fault suite makes of a stream's sink: a row that is lost or doubled is seen."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.faults.exactly_once import Result
from tests.faults.streaming import wrong_rows
from tests.streaming_rows import files_of, lost_and_doubled, rows_of

A, B, C = (("2026-01-01T00:00:00", f"key-{n}") for n in range(3))


@pytest.mark.parametrize(
    ("found", "lost", "doubled"),
    [
        ({A: 2, B: 1}, {}, {}),
        ({A: 1, B: 1}, {A: 1}, {}),
        ({A: 2}, {B: 1}, {}),
        ({A: 2, B: 2}, {}, {B: 1}),
        ({A: 2, B: 1, C: 1}, {}, {C: 1}),  # what nobody has written
        ({A: 3, C: 1}, {B: 1}, {A: 1, C: 1}),  # both, which the number of rows does not tell
    ],
)
def test_what_is_lost_and_what_is_doubled(
    found: dict[tuple[str, str], int], lost: dict[tuple[str, str], int], doubled: dict[tuple[str, str], int]
) -> None:
    assert lost_and_doubled(Counter({A: 2, B: 1}), Counter(found)) == (Counter(lost), Counter(doubled))


def test_what_is_wrong_is_named() -> None:
    assert wrong_rows(Counter({A: 2, B: 1}), Counter({A: 2, B: 1})) == []
    assert wrong_rows(Counter({A: 2, B: 1}), Counter({A: 1, B: 3})) == [
        f"of the stream's 3 rows 1 are lost, as of {[(A, 1)]}",
        f"of the stream's 3 rows 2 are doubled, as of {[(B, 2)]}",
    ]


@pytest.mark.parametrize(
    ("found", "undisturbed", "lost", "doubled", "problems"),
    [
        ({A: 2, B: 1}, {A: 2, B: 1}, 0, 0, []),
        ({A: 1, B: 1}, {A: 2, B: 1}, 1, 0, ["lost"]),
        ({A: 2, B: 3}, {A: 2, B: 1}, 0, 2, ["doubled"]),
        ({A: 2, B: 1}, {A: 2, B: 1, C: 1}, 0, 0, ["undisturbed"]),  # what was written is wrong, or the query is
        ({A: 1, C: 1}, {A: 1, C: 1}, 2, 1, ["lost", "doubled", "undisturbed"]),
    ],
)
def test_a_run_with_kills_is_compared_with_what_was_written_and_with_one_without(
    found: dict[tuple[str, str], int],
    undisturbed: dict[tuple[str, str], int],
    lost: int,
    doubled: int,
    problems: list[str],
) -> None:
    result = Result(1, "rocksdb")
    result.compare(Counter({A: 2, B: 1}), Counter(found), Counter(undisturbed))
    assert (result.rows, result.lost, result.doubled) == (3, lost, doubled)
    assert len(result.problems) == len(problems)
    assert all(word in said for word, said in zip(problems, result.problems, strict=True)), result.problems


def add(sink: Path, number: int, name: str, *, compact: tuple[str, ...] | None = None) -> None:
    """A batch that has written one file with one row, and its entry of the log, compacted if so."""
    log = sink / "_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    row = {"start": [datetime(2026, 1, 1)], "key": ["key-0"], "count": [1]}
    pyarrow.parquet.write_table(pyarrow.table(row), sink / name)
    entries = [f'{{"path": "file://{sink / one}"}}' for one in (*(compact or ()), name)]
    suffix = "" if compact is None else ".compact"
    (log / f"{number}{suffix}").write_text("\n".join(["v1", *entries]))


def test_a_file_that_is_there_twice_counts_twice_and_one_that_the_log_does_not_name_does_not(tmp_path: Path) -> None:
    add(tmp_path, 0, "a.parquet")
    add(tmp_path, 1, "b.parquet", compact=("a.parquet",))
    add(tmp_path, 2, "b.parquet")
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(tmp_path / "a.parquet"), tmp_path / "abandoned.parquet")
    assert [Path(path).name for path in files_of(tmp_path)] == ["a.parquet", "b.parquet", "b.parquet"]
    assert rows_of(tmp_path) == Counter({A: 3})
