"""The copies of files that a script gives to its executors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.spark.task.classic import ClassicAttachment, adds_jar, may_add_files


@pytest.fixture
def attachment(tmp_path: Path) -> Any:
    return SimpleNamespace(_spec=SimpleNamespace(work_dir=str(tmp_path / "attempt")))


@pytest.mark.parametrize(("mode", "kept"), [(0o644, 0o600), (0o755, 0o700), (0o444, 0o600)])
def test_a_copy_is_its_users_alone_and_stays_as_it_was(attachment: Any, tmp_path: Path, mode: int, kept: int) -> None:
    source = tmp_path / "lookup.txt"
    source.write_text("one")
    source.chmod(mode)
    copy = ClassicAttachment._snapshot(attachment, f"file://{source}#alias")
    path, _, alias = copy.partition("#")
    assert (Path(path).name, alias) == ("lookup.txt", "alias")
    assert Path(path).stat().st_mode & 0o777 == kept
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    source.chmod(0o600)
    source.write_text("another")
    assert ClassicAttachment._snapshot(attachment, str(source)) == path
    assert Path(path).read_text() == "one"
    assert [file.name for file in Path(path).parent.iterdir()] == ["lookup.txt"]


@pytest.mark.parametrize("path", ["hdfs://name/lookup.txt", "/no such file"])
def test_what_is_no_local_file_is_left_to_spark(attachment: Any, path: str) -> None:
    assert ClassicAttachment._snapshot(attachment, path) == path


@pytest.mark.parametrize(
    ("statement", "jar", "files"),
    [
        ("ADD JAR /x.jar", True, False),
        ("  add jars /x.jar /y.jar", True, False),
        ("-- of the team\nADD/* a */JAR '/x.jar'", True, False),
        ("CREATE TEMPORARY FUNCTION f AS 'org.example.F' USING JAR '/x.jar'", True, False),
        ("create or replace function f as 'org.example.F'\nusing file '/x.txt', jar '/x.jar'", True, True),
        ("EXECUTE IMMEDIATE 'ADD JAR /x.jar'", True, True),
        ("BEGIN ADD JAR '/x.jar'; END", True, False),
        ("/* a */ own: BEGIN ADD JAR '/x.jar'; END", True, False),
        ("ADD FILE /x.txt", False, True),
        ("/* ADD JAR */ ADD\tARCHIVES '/x.zip'", False, True),
        ("CREATE FUNCTION f AS 'org.example.F' USING ARCHIVE '/x.zip'", False, True),
        ("EXECUTE IMMEDIATE :statement", False, True),
        ("BEGIN ADD FILE '/x.txt'; END", False, True),
        ("SELECT 'ADD JAR /x.jar' AS jar", False, False),
        ("SELECT * FROM a JOIN b USING (jar)", False, False),
        ("ALTER TABLE t ADD COLUMNS (jar STRING)", False, False),
        ("CREATE TABLE jars USING parquet AS SELECT 1", False, False),
        ("DROP FUNCTION f", False, False),
    ],
)
def test_statements_that_add_to_all_of_spark(statement: str, jar: bool, files: bool) -> None:
    assert (adds_jar(statement), may_add_files(statement)) == (jar, files)


def test_a_long_statement_with_many_comments_is_read_at_once() -> None:
    assert not adds_jar("/* a */ " * 10_000 + "SELECT 1")
