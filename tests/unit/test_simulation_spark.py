"""The model of Spark's streaming: exactly once however it is killed, and files that the product's code understands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.files import make_private, write_private
from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.snapshot import committed_batch, inspect_location, take_snapshot
from runtime.checkpoint.task_restore import is_load_failure
from tests.simulation.disk import ROOT, Disk, Files, Loss, installed
from tests.simulation.spark import QueryFailed, QueryPlan, RowSource, StreamExecution, delete, read_sink, wrong_rows

DATA = Path(ROOT, "data")
CHECKPOINTS = DATA / "checkpoints"
PLAN = QueryPlan("counts", f"{DATA}/live/counts", f"{DATA}/out")


class Died(BaseException):
    """The process was killed."""


class World:
    """A disk whose caller can be killed before its n-th operation that changes something."""

    def __init__(self) -> None:
        self.disk = Disk("data", source=random.Random(1))
        self.files = Files({"data": self.disk}, before=self._before)
        self.operations = 0
        self.dies_at = -1
        self.ids = itertools.count()

    def _before(self, operation: str, path: str, disk: Disk) -> None:
        if operation in ("open", "write", "rename", "unlink", "mkdir"):
            self.operations += 1
            if self.operations == self.dies_at:
                self.dies_at = -1
                raise Died

    def execution(self, source: RowSource) -> StreamExecution:
        execution = StreamExecution(PLAN, source, lambda: f"id-{next(self.ids)}")
        execution.start()
        return execution

    def run(self, source: RowSource) -> None:
        execution = self.execution(source)
        while execution.run_batch():
            pass


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with installed(world.files):
        make_private(CHECKPOINTS, durable=True)
        yield world


def test_each_row_is_written_once_with_the_count_of_its_state(world: World) -> None:
    source = RowSource()
    for available in (1, 2, 20, 41):
        source.available = available
        world.run(source)
        assert wrong_rows(PLAN, read_sink(PLAN), available) == []
    assert inspect_location(PLAN.query) == committed_batch(PLAN.query) > 10


def test_old_files_are_removed_and_enough_are_left(world: World) -> None:
    world.run(RowSource(60))
    location = Path(PLAN.location)
    assert len(list((location / "commits").glob("[0-9]*"))) == PLAN.retained
    assert len(list((location / "state/0/0").glob("[0-9]*"))) < 10
    assert wrong_rows(PLAN, read_sink(PLAN), 60) == []


def test_a_kill_before_any_operation_loses_and_doubles_nothing() -> None:
    """All of them, for a query that is killed once; then for one that is killed again and again."""
    whole = World()
    with installed(whole.files):
        whole.run(RowSource(8))
    for at in [*range(1, whole.operations + 1), *[-at for at in range(2, 20, 3)]]:
        world = World()
        with installed(world.files):
            world.dies_at, deaths = abs(at), 0
            while True:
                try:
                    world.run(RowSource(8))
                    break
                except Died:
                    deaths += 1
                    world.dies_at = world.operations - at + deaths if at < 0 else -1
            world.dies_at = -1
            assert wrong_rows(PLAN, read_sink(PLAN), 8) == [], at


@pytest.mark.parametrize("lost", ["commits", "state", "_spark_metadata", "part"])
def test_what_is_lost_by_hand_is_found(world: World, lost: str) -> None:
    """Positive controls of `wrong_rows` and of the model's reads."""
    source = RowSource(12)
    world.run(source)
    last = committed_batch(PLAN.query)
    match lost:
        case "commits":  # the batch is run again, and the sink knows it: nothing happens to the rows
            delete(Path(PLAN.location, "commits", str(last)))
            source.available = 15
            world.run(source)
            assert wrong_rows(PLAN, read_sink(PLAN), 15) == []
        case "state":
            for path in list(Path(PLAN.location, "state/0/0").iterdir()):
                path.unlink()
            with pytest.raises(QueryFailed) as failed:
                world.run(source)
            assert is_load_failure(str(failed.value))
            with pytest.raises(SnapshotError):
                inspect_location(PLAN.query)
        case "_spark_metadata":
            delete(Path(PLAN.sink, "_spark_metadata", str(last)))
            assert any("lost" in problem for problem in wrong_rows(PLAN, read_sink(PLAN), 12))
            for log in ("offsets", "commits"):
                delete(Path(PLAN.location, log, str(last)))
            for partition in range(2):  # the state stays ahead of the offsets, and the rows get other counts
                state = Path(PLAN.location, f"state/0/{partition}")
                (state / f"{last}.snapshot").write_text("7")
                (state / f".{last}.snapshot.crc").unlink(missing_ok=True)
            world.run(source)
            assert any("another state" in problem for problem in wrong_rows(PLAN, read_sink(PLAN), 12))
        case "part":
            next(Path(PLAN.sink).glob("part-*")).unlink()
            assert any("missing" in problem for problem in wrong_rows(PLAN, read_sink(PLAN), 12))


def test_two_runs_of_one_query_do_not_both_commit(world: World) -> None:
    source = RowSource(3)
    first, second = world.execution(source), world.execution(source)
    assert first.run_batch()
    with pytest.raises(QueryFailed, match="concurrent update"):
        second.run_batch()


def test_a_restored_snapshot_continues_with_each_row_once(world: World) -> None:
    source = RowSource(20)
    world.run(source)
    snapshot = take_snapshot(PLAN.query, DATA / "chk-1")
    source.available = 40
    world.run(source)
    restore_snapshot(snapshot, Path(PLAN.location), Path(PLAN.sink))
    assert committed_batch(PLAN.query) == snapshot.batch_id
    world.run(source)
    assert wrong_rows(PLAN, read_sink(PLAN), 40) == []


def test_a_crash_loses_what_spark_has_not_synced(world: World) -> None:
    world.run(RowSource(20))
    world.files.crashed(world.disk, Loss.EVERYTHING)
    assert list(DATA.iterdir()) == [CHECKPOINTS]


def test_a_source_log_ahead_of_the_offsets_is_used(world: World) -> None:
    """The process dies between the two: the files it has found are in the next batch, once."""
    source = RowSource(2)
    execution = world.execution(source)

    def pause(step: str) -> None:
        if step == "offsets":
            raise Died

    execution._pause = pause
    with pytest.raises(Died):
        execution.run_batch()
    source.available = 9
    world.run(source)
    assert wrong_rows(PLAN, read_sink(PLAN), 9) == []


def test_the_log_needs_all_its_entries(world: World) -> None:
    world.run(RowSource(9))
    Path(PLAN.location, "sources/0/1").unlink()
    with pytest.raises(QueryFailed, match="cannot be read"):
        world.run(RowSource(9))


def test_the_rows_of_a_snapshot_survive_a_crash(world: World) -> None:
    """Spark syncs no file of the sink: a checkpoint that names them would be complete, and could not be restored."""
    source, snapshot = RowSource(), None
    for number in range(1, 12):
        source.available += 5
        world.run(source)
        snapshot = take_snapshot(PLAN.query, CHECKPOINTS / f"chk-{number}", snapshot)
        write_private(CHECKPOINTS / "newest", str(number).encode())
        world.files.crashed(world.disk, Loss.EVERYTHING)
        restore_snapshot(snapshot, Path(PLAN.location), Path(PLAN.sink))
        assert wrong_rows(PLAN, read_sink(PLAN), source.available) == []


def test_only_new_rows_are_synced(world: World) -> None:
    source = RowSource(30)
    world.run(source)
    first = take_snapshot(PLAN.query, CHECKPOINTS / "chk-1")
    synced: list[str] = []
    before = world.files.before
    assert before is not None

    def note(operation: str, path: str, disk: Disk) -> None:
        if operation == "fsync" and "/part-" in path:
            synced.append(path)

    world.files.before = note
    source.available = 33
    world.run(source)
    take_snapshot(PLAN.query, CHECKPOINTS / "chk-2", first)
    assert 1 <= len(synced) <= 2
    source.available = 60  # there is a compacted log since, which names all
    world.run(source)
    take_snapshot(PLAN.query, CHECKPOINTS / "chk-3", first)
    assert len(synced) == len({*synced}) + 2 == len(list(Path(PLAN.sink).glob("part-*"))) - 20 + 2
