from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.files import path_of, rename_durably, uri_of
from runtime.checkpoint.restore import files_in_log, orphans, relocated

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1).filter(
    lambda s: s not in (".", "..")
)


@given(st.lists(NAMES, min_size=1, max_size=3))
def test_a_path_comes_back_from_its_uri(names: list[str]) -> None:
    path = Path("/", *names)
    assert path_of(uri_of(path)) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:/a%20b/c", "/a b/c"),
        ("file:///a/year=2013/über", "/a/year=2013/über"),
        ("file:///a;b/c%23d%3Fe%25", "/a;b/c#d?e%"),
        ("/plain/a%20b", "/plain/a%20b"),
    ],
)
def test_paths_as_spark_writes_them(text: str, path: str) -> None:
    assert path_of(text) == Path(path)


def test_only_the_path_of_an_entry_is_changed_and_only_of_files_that_were_moved() -> None:
    line = '{"path":"file:///old%20out/k=1/a.parquet","size":683,"isDir":false,"action":"add"}'
    other = line.replace("a.parquet", "b.parquet")
    foreign = line.replace("/old%20out", "/older")
    content = "\n".join(["v1", line, other, foreign]).encode()
    result = relocated(content, Path("/old out"), Path("/new one"), lambda path: path.name == "a.parquet")
    assert result.decode().splitlines() == ["v1", line.replace("old%20out", "new%20one"), other, foreign]


def test_orphans_are_named_by_abandoned_entries_only_and_lie_in_the_sink() -> None:
    def entry(*paths: str) -> bytes:
        return "\n".join(["v1", *(f'{{"path":"file://{path}"}}' for path in paths)]).encode()

    abandoned = [entry("/out/a", "/out/b"), entry("/elsewhere/c", "/out/../d", "/out/k=1/e")]
    assert orphans(abandoned, [entry("/out/a")], Path("/out")) == {Path("/out/b"), Path("/out/k=1/e")}
    for damaged in (b'v1\n{"path":3}', b"v1\n[]", b"v1\n{", b"v1\n\xff"):
        with pytest.raises(ValueError):
            files_in_log([damaged])


def test_a_directory_is_renamed_when_its_names_are_on_the_disk_and_its_own_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part" / "queries" / "0").mkdir(parents=True)
    steps: list[str] = []

    def synced(descriptor: int) -> None:
        assert (tmp_path / "part").exists() == (len(steps) < 3)
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", synced)
    rename_durably(tmp_path / "part", tmp_path / "whole")
    assert steps == ["part", "queries", "0", tmp_path.name]
    assert (tmp_path / "whole" / "queries" / "0").is_dir()


@pytest.mark.parametrize("works", range(2))
def test_a_name_that_may_not_last_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int) -> None:
    (tmp_path / "part").mkdir()
    synced: list[int] = []

    def fail(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > works:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        rename_durably(tmp_path / "part", tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
