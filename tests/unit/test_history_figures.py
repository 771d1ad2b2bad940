"""Figures over time: their lines, their files, and what a chart gets of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runtime.history.figures import (
    FILE,
    FigureFile,
    FigureReader,
    Sample,
    figure_files,
    jobs_with_rows,
    read_samples,
    thinned,
    with_gaps,
)

FULL = Sample(1_000, 2, 8, 3, 1, 4, 500, 900, {"a" * 32: 12.3456, "b" * 32: 0.0})
EVER = 10**14


def points(*times: int) -> list[Sample]:
    return [Sample(at, slots=at) for at in times]


def test_a_line_is_read_as_it_was_written() -> None:
    read = Sample.parse(FULL.to_json().encode())
    assert read == Sample(1_000, 2, 8, 3, 1, 4, 500, 900, {"a" * 32: 12.346, "b" * 32: 0.0})
    assert Sample.parse(Sample(5).to_json().encode()) == Sample(5)
    assert Sample(5).to_json() == '{"at_ms":5}', "an unknown figure takes no room"


def test_a_line_of_another_release_is_read() -> None:
    assert Sample.parse(b'{"at_ms": 7, "slots": 2, "new": {"x": 1}, "heap_used": "many", "rows": [1]}') == Sample(
        7, slots=2
    )


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"slots": 1}', b'{"at_ms": "x"}', b'{"at_ms": true}', b"\xff"])
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        Sample.parse(line)


def test_lines_are_appended_to_a_private_file(tmp_path: Path) -> None:
    directory = tmp_path / "history"
    for number in range(3):
        FigureFile(directory).append(Sample(number, slots=number))
    assert read_samples(directory, 0, EVER) == ([Sample(n, slots=n) for n in range(3)], 0)
    assert (directory.stat().st_mode & 0o777, (directory / FILE).stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_full_file_is_renamed_and_no_line_is_lost(tmp_path: Path) -> None:
    size = len(Sample(1_000, slots=1).to_json()) + 1
    file = FigureFile(tmp_path, most_bytes=3 * size)
    for number in range(10):
        file.append(Sample(1_000 + number, slots=1))
        assert (tmp_path / FILE).stat().st_size <= 3 * size
    assert [path.name for path in figure_files(tmp_path)] == [
        "figures-00000000001003.jsonl",
        "figures-00000000001006.jsonl",
        "figures-00000000001009.jsonl",
        FILE,
    ]
    samples, damaged = read_samples(tmp_path, 0, EVER)
    assert ([sample.at_ms for sample in samples], damaged) == ([1_000 + number for number in range(10)], 0)


def test_a_line_that_was_cut_short_costs_no_other(tmp_path: Path) -> None:
    file = FigureFile(tmp_path)
    file.append(Sample(1))
    with (tmp_path / FILE).open("ab") as cut:
        cut.write(b'{"at_ms":2,"slo')
    file.append(Sample(3))
    assert read_samples(tmp_path, 0, EVER) == ([Sample(1), Sample(3)], 1)


def test_only_the_asked_time_is_read(tmp_path: Path) -> None:
    file = FigureFile(tmp_path)
    for at in range(1, 10):
        file.append(Sample(at))
    assert [sample.at_ms for sample in read_samples(tmp_path, 3, 5)[0]] == [3, 4, 5]
    os.utime(tmp_path / FILE, (0, 0))
    assert read_samples(tmp_path, 3, 5) == ([], 0), "a file whose last line is older is not opened"
    assert read_samples(tmp_path / "none", 0, EVER) == ([], 0)


def test_writers_at_the_same_time_lose_no_line_of_each_other(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        file = FigureFile(tmp_path, most_bytes=100)
        for number in range(50):
            file.append(Sample(number, slots=writer))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples, damaged = read_samples(tmp_path, 0, EVER)
    assert damaged == 0
    assert sorted((s.slots, s.at_ms) for s in samples) == [(w, n) for w in range(3) for n in range(50)]
    assert len(figure_files(tmp_path)) > 30


def test_many_points_become_means_of_neighbours() -> None:
    few = thinned([Sample(at, slots=at, rows={"a": at}) for at in range(100)], 10)
    assert len(few) == 10
    assert few[0] == Sample(9, slots=4, rows={"a": 4.5})
    assert thinned(points(1, 2, 3), 10) == points(1, 2, 3)
    assert thinned([], 10) == []
    assert thinned([Sample(1), Sample(2, slots=3)], 1) == [Sample(2, slots=3)], "the mean of what is known"


def test_a_mean_does_not_span_a_gap() -> None:
    times = [*range(10), *range(1000, 1010)]
    assert [sample.at_ms for sample in thinned(points(*times), 3)] == [6, 9, 1006, 1009]


def test_a_gap_has_a_point_without_figures() -> None:
    assert [(s.at_ms, s.slots) for s in with_gaps(points(0, 10, 20, 30, 1030, 1040))] == [
        (0, 0),
        (10, 10),
        (20, 20),
        (30, 30),
        (530, None),
        (1030, 1030),
        (1040, 1040),
    ]
    assert with_gaps([]) == []


def test_the_rate_of_all_jobs_is_their_sum_or_unknown() -> None:
    assert Sample(1, rows={"a": 1.5, "b": 2.0}).rows_per_second == 3.5
    assert Sample(1).rows_per_second is None
    assert jobs_with_rows([Sample(1, rows={"b": 1}), Sample(2, rows={"a": 1, "b": 2})]) == ["b", "a"]


def test_a_chart_of_a_long_time_reads_full_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, parsed = FigureFile(tmp_path, most_bytes=4_000), list[bytes]()
    for at in range(1_000):
        file.append(Sample(at, slots=at, rows={"a": float(at)}))
    newest = (tmp_path / FILE).read_bytes().splitlines()
    parse = Sample.parse
    monkeypatch.setattr(Sample, "parse", lambda line: parsed.append(line) or parse(line))
    reader = FigureReader(tmp_path)
    exact = with_gaps(thinned(read_samples(tmp_path, 0, EVER)[0], 10))
    parsed.clear()

    points, damaged = reader.points(0, EVER, 10)
    assert damaged == 0
    assert len(points) <= 10
    assert points[-1].at_ms == exact[-1].at_ms
    for one, other in zip(points, exact, strict=False):
        assert one.slots is not None
        assert abs(one.slots - one.at_ms + 50) <= 50, "the mean of what is before it"
        assert one.rows["a"] == pytest.approx(one.slots, abs=1)
        assert other.slots is not None
    assert len(parsed) == 1_000

    parsed.clear()
    assert reader.points(0, EVER, 10) == (points, 0)
    assert parsed == newest, "a full file does not change"


def test_a_chart_of_a_short_time_has_each_sample_and_reads_its_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, parsed = FigureFile(tmp_path, most_bytes=4_000), list[bytes]()
    for at in range(1_000):
        file.append(Sample(at, slots=at))
    reader = FigureReader(tmp_path)
    reader.points(0, EVER, 10)
    parse = Sample.parse
    monkeypatch.setattr(Sample, "parse", lambda line: parsed.append(line) or parse(line))
    assert reader.points(100, 103, 10) == ([Sample(at, slots=at) for at in range(100, 104)], 0)
    assert len(parsed) < 500
    parsed.clear()
    assert reader.points(0, 1, 300) == ([Sample(at, slots=at) for at in range(2)], 0)
    assert len(parsed) < 500, "later files are known to be later"


def test_a_deleted_file_is_forgotten(tmp_path: Path) -> None:
    file, reader = FigureFile(tmp_path, most_bytes=4_000), FigureReader(tmp_path)
    for at in range(1_000):
        file.append(Sample(at, slots=at))
    reader.points(0, EVER, 10)
    for path in figure_files(tmp_path)[:-1]:
        path.unlink()
    left = read_samples(tmp_path, 0, EVER)[0]
    assert reader.points(0, EVER, 1_000) == (left, 0)
    assert not reader._full
