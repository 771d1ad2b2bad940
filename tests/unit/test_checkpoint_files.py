from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.files import path_of, uri_of
from runtime.checkpoint.sink_log import files_in_log, orphans, relocated

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
    result = relocated(content, "/old out", "/new one", lambda place: place.endswith("/a.parquet"))
    assert result.decode().splitlines() == ["v1", line.replace("old%20out", "new%20one"), other, foreign]


def test_orphans_are_named_by_abandoned_entries_only_and_lie_in_the_sink() -> None:
    def entry(*paths: str) -> bytes:
        return "\n".join(["v1", *(f'{{"path":"file://{path}"}}' for path in paths)]).encode()

    abandoned = [entry("/out/a", "/out/b"), entry("/elsewhere/c", "/out/../d", "/out/k=1/e")]
    assert orphans(abandoned, [entry("/out/a")], "/out") == {"/out/b", "/out/k=1/e"}
    for damaged in (b'v1\n{"path":3}', b"v1\n[]", b"v1\n{", b"v1\n\xff"):
        with pytest.raises(ValueError):
            files_in_log([damaged])
