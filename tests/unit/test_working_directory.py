"""Where a job's code runs, and what relative paths mean there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.jobgraph import working_directory
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.jobgraph.working_directory import CallerDirectory, WorkingDirectory, file_system_of, imports_beside
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.spark.spec import JobPlace, TaskSpec, has_own_workers
from runtime.spark.task.working_directory import _Resolver
from runtime.taskexecutor.task import _place_of_caller

# ------------------------------------------------------- the caller's directory


def test_the_same_directory_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    seen = CallerDirectory.of(link)
    assert seen.path == str(tmp_path / "real")
    assert seen.is_here()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("")
    found = WorkingDirectory.of_caller(Path("job.py"))
    assert found == WorkingDirectory(CallerDirectory.of(tmp_path), CallerDirectory.of(tmp_path), "job.py")


def test_another_directory_of_the_same_path_is_not_the_callers(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    caller = CallerDirectory.of(directory)
    assert not replace(caller, inode=caller.inode + 1).is_here()
    assert not replace(caller, device=caller.device + 1).is_here()
    directory.rmdir()
    assert not caller.is_here()


@pytest.mark.parametrize(("kind", "is_here"), [("ext4", False), ("overlay", False), ("nfs4", True), ("cifs", True)])
def test_another_machine_sees_it_on_a_network_file_system_only(
    kind: str, is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = CallerDirectory.of(tmp_path)
    elsewhere = replace(caller, boot_id="another start", device=caller.device + 1)
    major, minor = os.major(caller.device), os.minor(caller.device)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 {major}:{minor} / /mnt rw,noatime shared:1 - {kind} server:/export rw\n")
    monkeypatch.setattr(working_directory, "_MOUNTS", mounts)
    assert elsewhere.is_here() is is_here
    assert not replace(elsewhere, inode=caller.inode + 1).is_here()


def test_a_directory_that_may_not_be_entered_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may enter all
    assert not CallerDirectory.of(tmp_path).is_here()


def test_the_type_of_a_file_system() -> None:
    mounts = "22 1 0:20 / / rw - overlay overlay rw\n23 22 8:1 / /data rw shared:2 master:1 - xfs /dev/sda1 rw\n"
    assert file_system_of(os.makedev(8, 1), mounts) == "xfs"
    assert file_system_of(os.makedev(9, 1), mounts) == ""


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("import helper", True),
        ("import os, helper as h", True),
        ("def f():\n    from package.part import x", True),
        ("from helper import *", True),
        ("import job", False),
        ("import os\nfrom pyspark.sql import SparkSession", False),
        ("import data", False),
        ("# import helper", False),
        ("", False),
    ],
)
def test_whether_a_program_imports_what_lies_beside_it(text: str, is_so: bool, tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").touch()
    job = tmp_path / "job.py"
    job.write_text(text)
    assert imports_beside(job) is is_so


def test_it_travels_with_the_job_and_what_is_secret_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    graph = replace(
        JobGraph.for_script("job"),
        working_directory=WorkingDirectory.of_caller(tmp_path / "job.py"),
        environment={"TOKEN": "s3cret"},
    )
    assert decode(encode(graph), JobGraph) == graph
    assert "s3cret" not in repr(graph)


def test_what_a_task_with_a_place_sees() -> None:
    spec = TaskSpec(TaskDeploymentDescriptor.internal("task", JobKind.SCRIPT, argv=("a",)), "/w/files/job.py", "/w")
    assert (spec.directory, spec.shown_file, spec.argv) == ("/w", "/w/files/job.py", ["/w/files/job.py", "a"])
    assert spec.import_path == ["/w/files"]
    assert not spec.has_own_workers
    place = JobPlace("/home/me", "/home/me/p/job.py", "p/job.py", ("/home/me/p",), ("/home/me/p",))
    spec = replace(spec, place=place, py_files=("/e/one.py",))
    assert (spec.directory, spec.shown_file, spec.argv) == ("/home/me", "/home/me/p/job.py", ["p/job.py", "a"])
    assert spec.import_path == ["/home/me/p", "/e"]
    assert replace(spec, py_files=()).has_own_workers


def test_the_file_of_a_job_is_the_one_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "job.py").write_text("")
    (here := tmp_path / "here").mkdir()
    (here / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    monkeypatch.chdir(here)
    named = Path("link/../job.py")
    assert named.is_file(), "for the file system it is beside the directory that the link leads to"
    place = _place_of_caller(WorkingDirectory.of_caller(named), str(here), Path("/w/files/job.py"), True)
    assert Path(place.file).is_absolute()
    assert Path(place.file).samefile(tmp_path / "elsewhere" / "job.py")
    assert place.argv0 == str(named)


def test_a_job_with_variables_has_workers_of_its_own() -> None:
    task = TaskDeploymentDescriptor.internal("task", JobKind.SCRIPT)
    assert not has_own_workers(task.job, None)
    assert has_own_workers(replace(task.job, environment={"A": "b"}), None)


# --------------------------------------------------------------- paths of Spark


class Reader:
    """As PySpark's: what it was called with, in the end."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def format(self, source: str) -> Reader:
        return self

    def option(self, key: str, value: Any) -> Reader:
        self.said.append((key, value))
        return self

    def options(self, **options: Any) -> Reader:
        self.said += options.items()
        return self

    def load(self, path: Any = None, format: str | None = None, **options: Any) -> list[Any]:
        self.options(**options)
        return [*self.said, path]

    def parquet(self, *paths: str, **options: Any) -> tuple[str, ...]:
        return paths


@pytest.fixture
def reader() -> Any:
    """One whose relative paths count from /home/me."""

    class Own(Reader):
        option, options, format = Reader.option, Reader.options, Reader.format
        load, parquet = Reader.load, Reader.parquet

    resolver = _Resolver("/home/me")
    resolver._record(Own)
    resolver._wrap(Own, "load", "path", resolver.paths, given="format")
    resolver._wrap(Own, "parquet", "paths", resolver.paths)
    resolver._wrap(Own, "nosuch", "path", resolver.path)
    return Own()


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("out", "/home/me/out"),
        ("./in/*.csv", "/home/me/in/*.csv"),
        ("../x/", "/home/me/../x/"),
        ("/abs", "/abs"),
        ("file:/abs", "file:/abs"),
        ("s3a://bucket/key", "s3a://bucket/key"),
        ("a b/c:d", "/home/me/a b/c:d"),
        ("", ""),
        (None, None),
        (7, 7),
    ],
)
def test_only_relative_local_paths_are_resolved(path: Any, resolved: Any) -> None:
    assert _Resolver("/home/me").path(path) == resolved


def test_hadoops_lists_of_paths() -> None:
    split = _Resolver("/d")._comma_separated
    assert split("a,/b,hdfs://c/d") == "/d/a,/b,hdfs://c/d"
    assert split("a{1,2},b") == "/d/a{1,2},/d/b"


def test_files_that_sql_reads(tmp_path: Path) -> None:
    resolve = _Resolver(str(tmp_path))._files_in_sql
    (tmp_path / "rows.csv").touch()
    text = "SELECT * FROM CSV.`rows.csv`, csv.`gone.csv`, csv.`/abs`, db.`rows.csv`, json.`s3a://b/k`, csv.`r*.csv`"
    own = f"{tmp_path}/"
    assert resolve(text) == text.replace("`rows.csv`, csv", f"`{own}rows.csv`, csv").replace("`r*", f"`{own}r*")


def test_paths_of_a_reader(reader: Any) -> None:
    assert reader.parquet("a", "/b") == ("/home/me/a", "/b")
    assert reader.load("a") == ["/home/me/a"]
    assert type(reader)().load(["a", "/b"], format="CSV") == [["/home/me/a", "/b"]]


def test_a_path_of_no_file_system_stays(reader: Any) -> None:
    assert reader.load("dataset.table", format="bigquery") == ["dataset.table"]
    assert type(reader)().format("iceberg").option("path", "db.t").load()[-2:] == [("path", "db.t"), None]


def test_a_path_may_be_an_option_and_come_before_the_format(reader: Any) -> None:
    said = reader.option("PATH", "in").format("json").load()
    assert said[-2:] == [("path", "/home/me/in"), None]
    assert type(reader)().load(path=None, format="json", path_="x")[-1] is None
    said = type(reader)().options(checkpointLocation="ckpt", header=True).load("x")
    assert said == [("checkpointLocation", "/home/me/ckpt"), ("header", True), "/home/me/x"]


def test_wrong_arguments_are_the_methods_own_error(reader: Any) -> None:
    with pytest.raises(TypeError, match=r"load\(\) takes from 1 to 3 positional arguments"):
        reader.load("a", "b", "c")
