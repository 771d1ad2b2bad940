"""`savepoint ...`, in process: it needs no cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime.checkpoint.edit import EditPlan
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom, Savepoint, SavepointJob
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_evolution import EvolutionPlan
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.output import SCHEMA
from runtime.cluster.savepoint_commands import _facts
from runtime.errors import ClusterError
from tests.json_output import parsed
from tests.streaming_files import StreamingFiles
from tests.waiting import PATIENCE_S


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["savepoint", *words])


@pytest.fixture
def savepoint(tmp_path: Path) -> Savepoint:
    files = StreamingFiles(tmp_path / "live")
    files.run(3)
    snapshot = take_snapshot(files.query, tmp_path / "chk")
    return write_savepoint(tmp_path / "savepoints", SavepointJob("ab" * 16, "flights"), [snapshot])


def test_list(savepoint: Savepoint) -> None:
    directory = Path(savepoint.path).parent
    (directory / "savepoint-broken").mkdir()
    lines = run("list", str(directory)).stdout.splitlines()
    assert lines[0].split() == ["SAVEPOINT", "STATE", "JOB", "CREATED", "QUERIES", "SIZE"]
    assert lines[1].split()[:3] == [Path(savepoint.path).name, "OK", "flights"]
    assert lines[2].split() == ["savepoint-broken", "DAMAGED"]
    good, bad = parsed(("savepoint", "list"), run("list", "--json", str(directory)).stdout)
    assert good == {
        "schema": SCHEMA,
        "path": savepoint.path,
        "ok": True,
        "problems": [],
        "job_id": "ab" * 16,
        "job_name": "flights",
        "created_ms": savepoint.created_ms,
        "queries": ["counts"],
        "bytes": savepoint.bytes,
    }
    assert (bad["ok"], bad["job_id"], len(bad["problems"])) == (False, None, 1)
    assert run("list", str(directory.parent / "live")).stdout == "no savepoints\n"


def test_a_source_from_elsewhere_is_named_for_people(savepoint: Savepoint) -> None:
    (query,) = savepoint.queries
    offsets = replace(query.snapshot, offsets=['{"0": 8}', '{"logOffset": 2}'])
    python = replace(query, snapshot=offsets, description=replace(query.description, sources=("other", "file")))
    assert _facts(python)["Sources"] == 'custom data source at {"0": 8}; file at {"logOffset": 2}'


def test_info(savepoint: Savepoint) -> None:
    text = run("info", savepoint.path).stdout
    for part in (
        "Job:         " + "ab" * 16 + " (flights)",
        "Query:      counts",
        'file at {"logOffset":2}',
        "Batch:      2",
    ):
        assert part in text
    value = parsed(("savepoint", "info"), run("info", "--json", savepoint.path).stdout)
    assert value["queries"][0]["snapshot"]["batch_id"] == 2
    assert set(value["files"]) == set(savepoint.files)
    error = run("info", str(Path(savepoint.path).parent)).exception
    assert isinstance(error, SavepointError)
    assert "is not a savepoint" in str(error)


def test_verify(savepoint: Savepoint) -> None:
    done = run("verify", savepoint.path)
    assert (done.exit_code, done.stdout) == (0, f"{savepoint.path} is unchanged since it was written\n")
    name = sorted(savepoint.files)[-1]
    (Path(savepoint.path) / name).write_bytes(b"")
    done = run("verify", savepoint.path)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{name} has 0 bytes in place of ")
    done = run("verify", "--json", savepoint.path)
    assert done.exit_code == 1
    assert parsed(("savepoint", "verify"), done.stdout)["ok"] is False


def test_check(savepoint: Savepoint, tmp_path: Path) -> None:
    changed = StreamingFiles(tmp_path / "changed", partitions=3)
    changed.run(1)
    done = run("check", savepoint.path, str(changed.location))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "counts: fits",
        "  operator 0 (save) keeps its 2 partitions; the job asks for 3",
        "  spark.sql.shuffle.partitions stays 2, as it was when the query began, and does not become 3",
    ]
    other = StreamingFiles(tmp_path / "other", operators=(("left", "right"),))
    other.run(1)
    job = SavepointJob("cd" * 16, "changed")
    later = write_savepoint(tmp_path / "savepoints", job, [take_snapshot(other.query, tmp_path / "chk-2")])
    done = run("check", "--json", savepoint.path, later.path)
    assert done.exit_code == 1
    [verdict] = parsed(("savepoint", "check"), done.stdout)
    assert (verdict["query"], verdict["fit"]) == ("counts", "does not fit")
    assert verdict["reasons"] == ["operator 0 (save) had the stores default and has left, right"]
    error = run("check", "--query", "x", savepoint.path, str(other.location)).exception
    assert isinstance(error, SavepointError)
    assert str(error) == "the savepoint has no query 'x'"


def test_dispose(savepoint: Savepoint) -> None:
    disposed = parsed(("savepoint", "dispose"), run("dispose", "--json", savepoint.path).stdout)
    assert disposed == {"schema": SCHEMA, "path": savepoint.path, "disposed": True}
    assert not Path(savepoint.path).exists()


@pytest.mark.parametrize("interval", ["0", "-1", "ten"])
def test_a_compact_interval_that_is_no_number_of_batches(savepoint: Savepoint, tmp_path: Path, interval: str) -> None:
    setting = f"spark.sql.streaming.fileSink.log.compactInterval={interval}"
    target = tmp_path / "of-3"
    error = run("rescale", "-D", setting, "--partitions", "3", "--to", str(target), savepoint.path).exception
    assert isinstance(error, ClusterError)
    assert str(error) == f"spark.sql.streaming.fileSink.log.compactInterval: {interval!r} is not a number of batches"
    assert error.remedy == "give a whole number from 1"
    assert not target.exists()


def test_edit(savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "0")  # which the command sets in its process
    file, target = tmp_path / "drop.py", tmp_path / "edited"
    words = ("edit", "--to", str(target), "--query", "counts", "--operator", "1", savepoint.path, str(file))
    planned: list[object] = []

    def plan(path: Path, to: Path, *part: object) -> EditPlan:
        planned.extend((path, to, *part))
        return EditPlan(savepoint, (), to)

    def edit(plan: EditPlan, function: Callable[[int, int], int], _java: str | None, interval: int) -> Savepoint:
        assert (function(2, 3), interval) == (5, 10)
        origin = EditedFrom(savepoint.path, savepoint.created_ms, ("counts",))
        snapshots = [query.snapshot for query in savepoint.queries]
        return write_savepoint(plan.target.parent, savepoint.job, snapshots, name=plan.target.name, edited=origin)

    monkeypatch.setattr("runtime.checkpoint.edit.plan_edit", plan)
    monkeypatch.setattr("runtime.spark.state_edit.edit", edit)
    error = run(*words).exception
    assert isinstance(error, SavepointError)
    assert str(error) == f"{file} cannot be read: No such file or directory"
    file.write_text("def edit(state, part):\n    return state + part\n")
    planned.clear()
    document = parsed(("savepoint", "edit"), run(*words, "--json").stdout)
    assert planned == [Path(savepoint.path), target, "counts", 1, None]
    assert (document["path"], document["edited"]["queries"]) == (str(target), ["counts"])
    assert f"Edited:      from {savepoint.path} of " in run("info", str(target)).stdout
    assert "Edited" not in run("info", savepoint.path).stdout
    run("dispose", str(target))
    assert run(*words).stdout == f"{target}\n"


def test_edit_with_the_schemas_of_a_new_version(
    savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "0")  # which the command sets in its process
    file, target, new = tmp_path / "evolve.py", tmp_path / "evolved", str(tmp_path / "new")
    file.write_text("def edit(state, part, former):\n    return state\n")
    words = ("edit", "--to", str(target), "--query", "counts", "--schemas-from", new, savepoint.path, str(file))
    planned: list[object] = []
    dropped = "query 'counts', operator 1 (dedupe): 7 rows"

    def plan(*given: object) -> EvolutionPlan:
        planned.extend(given)
        return EvolutionPlan(savepoint, savepoint, (), target)

    def evolve(plan: EvolutionPlan, _function: object, _java: str | None, _interval: int) -> Savepoint:
        origin = EditedFrom(savepoint.path, savepoint.created_ms, ("counts",), new, (dropped,))
        snapshots = [query.snapshot for query in savepoint.queries]
        return write_savepoint(plan.target.parent, savepoint.job, snapshots, name=plan.target.name, edited=origin)

    monkeypatch.setattr("runtime.checkpoint.state_evolution.plan_evolution", plan)
    monkeypatch.setattr("runtime.spark.state_evolution.evolve", evolve)
    done = run(*words)
    assert planned == [Path(savepoint.path), Path(new), target, "counts"]
    assert done.stdout == f"{target}\n"
    assert f"note: {dropped}" in done.stderr
    shown = run("info", str(target)).stdout
    assert f"from {new}" in shown
    assert dropped in shown
    for more in (("--operator", "1"), ("--variable", "n")):
        done = run(*words, *more)
        assert done.exit_code == ExitStatus.WRONG_USAGE
        assert "--schemas-from writes all state of a query" in done.stderr


def test_sources_get_names_and_other_offsets(savepoint: Savepoint, tmp_path: Path) -> None:
    named, moved = str(tmp_path / "named"), str(tmp_path / "moved")
    document = parsed(
        ("savepoint", "name-sources"),
        run("name-sources", "--json", "--to", named, savepoint.path, "us", "eu").stdout,
    )
    assert document["queries"][0]["description"]["source_names"] == ["us", "eu"]
    assert "file us at" in run("info", named).stdout
    assert run("set-offsets", "--to", moved, named, 'eu={"x":77}').stdout == f"{moved}\n"
    assert 'eu at {"x":77}' in run("info", moved).stdout
    for words in (["eu"], ["eu=1", "eu=2"]):
        assert "SOURCE=OFFSET" in run("set-offsets", "--to", str(tmp_path / "to"), named, *words).stderr
    done = run("check", savepoint.path, named)
    assert done.exit_code == 1
    assert "  to start it: `understudy savepoint name-sources` gives" in done.stdout


def test_an_error_is_a_line_with_its_remedy(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    rescale = ["rescale", "--partitions", "3", "--to", str(tmp_path / "to"), missing]
    for words in (["info", missing], ["dispose", missing], ["list", missing], rescale):
        done = subprocess.run(
            [sys.executable, "-m", "runtime.cluster", "savepoint", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert missing in done.stderr
        assert "Traceback" not in done.stderr
