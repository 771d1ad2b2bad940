"""Queries that read each other's output: which snapshots fit together, and in what order they are taken."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.checkpoint import alignment
from runtime.checkpoint.alignment import (
    cycle_in,
    downstream_first,
    files_ahead,
    find_misaligned,
    read_sink_log,
    read_source_log,
)
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.snapshot import take_snapshot
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.streaming_files import StreamingFiles, read_log, write


@pytest.fixture
def writer(tmp_path: Path) -> StreamingFiles:
    made = StreamingFiles(tmp_path / "a", name="writer")
    made.run(3)
    return made


@pytest.fixture
def reader(tmp_path: Path, writer: StreamingFiles) -> StreamingFiles:
    made = StreamingFiles(tmp_path / "b", name="reader", upstream=writer)
    made.run()
    return made


def taken(files: StreamingFiles, name: str = "chk-1") -> QuerySnapshot:
    return take_snapshot(files.query, files.root.parent / name / files.name)


def restored(files: StreamingFiles, snapshot: QuerySnapshot) -> StreamingFiles:
    restore_snapshot(snapshot, files.location, files.sink)
    return StreamingFiles(
        files.root,
        query_id=files.query_id,
        next_batch=snapshot.batch_id + 1,
        name=files.name,
        upstream=files.upstream,
    )


def rows_read(reader: StreamingFiles) -> Counter[int]:
    """How often a reader has got the rows of each batch of its writer, also of files that a restore has removed."""
    log = read_log(reader.location / "sources" / "0", reader.next_batch - 1)
    return Counter(int(Path(entry["path"]).name.split("-")[1]) for entry in log)


def test_rows_are_doubled_if_the_writer_goes_back_further_than_its_reader(
    writer: StreamingFiles, reader: StreamingFiles
) -> None:
    """The defect: what `find_misaligned` is for."""
    first = taken(writer)
    writer.run(2)
    reader.run()
    snapshots = [first, taken(reader)]
    writer, reader = restored(writer, snapshots[0]), restored(reader, snapshots[1])
    writer.run(2)
    reader.run()
    assert rows_read(reader) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}


def test_no_row_is_doubled_if_the_reader_goes_back_further(writer: StreamingFiles, reader: StreamingFiles) -> None:
    first = taken(reader)
    writer.run(2)
    snapshots = [taken(writer), first]
    assert find_misaligned(snapshots) == alignment.Alignment((), frozenset({("reader", "writer")}))
    writer.run()
    reader.run()
    writer, reader = restored(writer, snapshots[0]), restored(reader, snapshots[1])
    writer.run()
    reader.run()
    assert rows_read(reader) == dict.fromkeys(range(6), 1)


def test_snapshots_of_which_the_reader_is_ahead_do_not_fit(writer: StreamingFiles, reader: StreamingFiles) -> None:
    first = taken(writer)
    writer.run(2)
    reader.run()
    (found,) = find_misaligned([first, taken(reader)]).misaligned
    assert (found.reader, found.writer, found.batch_id, len(found.files)) == ("reader", "writer", 2, 2)
    assert "query 'reader' has read what query 'writer' wrote after its batch 2: /" in str(found)
    assert alignment.alignment_problems([first, taken(reader)]) == [str(found)]


def test_a_batch_that_is_in_the_sinks_log_and_not_committed_is_not_in_the_snapshot(
    writer: StreamingFiles, reader: StreamingFiles
) -> None:
    """The order of the snapshots alone does not help: Spark commits a batch after it has added it to the log."""
    writer.run()
    writer.delete(writer.location / "commits" / "3")
    reader.run()
    in_order = [taken(reader), taken(writer)]
    (found,) = find_misaligned(in_order, are_running=True).misaligned
    assert found.batch_id == 2


def test_snapshots_fit_also_if_the_logs_were_compacted(writer: StreamingFiles, reader: StreamingFiles) -> None:
    for _ in range(12):
        writer.run()
        reader.run()
    assert not find_misaligned([taken(reader), taken(writer)]).misaligned
    first = taken(writer, "chk-2")
    for _ in range(8):
        writer.run()
        reader.run()
    (found,) = find_misaligned([taken(reader, "chk-2"), first]).misaligned
    assert len(found.files) == 8


def test_a_whole_chain_is_checked(writer: StreamingFiles, reader: StreamingFiles, tmp_path: Path) -> None:
    last = StreamingFiles(tmp_path / "c", name="last", upstream=reader)
    last.run()
    in_order = [taken(last), taken(reader), taken(writer)]
    assert find_misaligned(in_order) == alignment.Alignment((), frozenset({("reader", "writer"), ("last", "reader")}))
    writer.run()
    reader.run()
    last.run()
    mixed = [taken(last, "chk-2"), in_order[1], taken(writer, "chk-2")]
    assert [(found.reader, found.writer) for found in find_misaligned(mixed).misaligned] == [("last", "reader")]


def test_a_file_that_the_log_has_forgotten_is_not_ahead() -> None:
    old, kept, new, other = "/sink/old", "/sink/kept", "/sink/new", "/sinks/other"
    consumed = {old: 10, kept: 20, new: 30, other: 40}
    assert files_ahead(consumed, {kept: 20}, "/sink") == [new]
    assert files_ahead(consumed, {}, "/sink") == [kept, new, old]


def test_a_file_of_another_program_is_not_ahead(writer: StreamingFiles, reader: StreamingFiles) -> None:
    foreign = writer.sink / "foreign.parquet"
    foreign.write_text("rows")
    entry = {"path": f"file://{foreign}".replace(" ", "%20"), "timestamp": 2**60, "batchId": 0}
    log = reader.location / "sources" / "0" / "0"
    write(log, f"{log.read_text()}\n{json.dumps(entry)}")
    snapshots = [taken(reader), taken(writer)]
    assert not find_misaligned(snapshots).misaligned, "the live log does not have it, and it is there"
    writer.plan()
    assert find_misaligned(snapshots, are_running=True).misaligned, (
        "it may be a file of the batch that is being written"
    )
    foreign.unlink()
    assert find_misaligned(snapshots).misaligned, "it may be a file of a batch that a rollback has abandoned"


def test_queries_without_a_reader_are_not_compared(
    writer: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StreamingFiles(tmp_path / "other", name="other")
    other.run(2)
    assert find_misaligned([taken(writer), taken(other)]) == alignment.Alignment()
    monkeypatch.setattr(alignment, "consumed_files", None)
    assert find_misaligned([taken(writer)]) == alignment.Alignment(), "nothing was read for it"


def test_entries_of_other_directories_are_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(alignment, "json", SimpleNamespace(loads=lambda line: parsed.append(line) or json.loads(line)))
    log = [b'v1\n{"path":"file:///in/1","timestamp":1}\n{"path":"file:///d/caf%C3%A9%20out/2","timestamp":2}']
    assert read_source_log(log, ["/d/café out"]) == {"/d/café out/2": 2}
    assert len(parsed) == 1
    assert len(read_source_log(log, ["/d/é"])) == 2, "a name without plain letters says nothing"


def test_the_log_of_another_source_is_none_of_files() -> None:
    other = b'v1\n{"x":0}\nnot JSON\n[1]\n{"path":"x://["}\n'
    assert read_sink_log([other, b"", b'v1\n{"path":"file:///a%20b"}']) == {"/a b": 0}
    assert read_sink_log([b'v1\n{"path":"s3a://b/a%20b","modificationTime":7}']) == {"s3a://b/a b": 7}


def test_readers_come_before_their_writers() -> None:
    chain = {("b", "a"), ("c", "b")}
    assert downstream_first(["a", "b", "c"], chain) == ["c", "b", "a"]
    assert downstream_first(["c", "b", "a"], chain) == ["c", "b", "a"]
    assert downstream_first(["b", "a", "c"], chain) == ["c", "b", "a"]
    assert downstream_first(["a", "b"], set()) == ["b", "a"], "a reader is usually started after its writer"
    assert downstream_first(["one", "in", "other"], {("one", "in"), ("other", "in")}) == ["other", "one", "in"]
    assert downstream_first(["a"], {("a", "a"), ("b", "a")}) == ["a"]


def test_a_query_is_drained_after_those_whose_output_it_reads() -> None:
    assert alignment.upstream_waves(["c", "x", "b", "a"], {("b", "a"), ("c", "b"), ("a", "a")}) == [
        ["x", "a"],
        ["b"],
        ["c"],
    ]
    assert alignment.upstream_waves(["a", "b", "c"], {("a", "b"), ("b", "a")}) == [["c"], ["a", "b"]]
    assert alignment.upstream_waves([], set()) == []


def test_a_cycle_is_found_and_its_queries_are_all_ordered() -> None:
    cycle = {("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("b", "e"), ("f", "f")}
    assert cycle_in(cycle) == ["a", "b", "c"]
    assert sorted(downstream_first(["a", "b", "c", "d", "e"], cycle)) == ["a", "b", "c", "d", "e"]
    assert downstream_first(["a", "b", "c", "d", "e"], cycle)[-1] == "e"
    assert cycle_in({("b", "a"), ("c", "b")}) == []
