"""Names of queries as directories."""

from __future__ import annotations

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.names import directory_name

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(NAMES, NAMES)
def test_a_directory_of_its_own_below_its_parent(one: str, other: str) -> None:
    name = directory_name(one)
    assert PurePosixPath("/parent", name).parent == PurePosixPath("/parent")
    assert not name.startswith(".")
    assert (one == other) == (name == directory_name(other))


def test_usual_names_stay_as_they_are() -> None:
    assert [directory_name(name) for name in ("counts", "query-0", "a b/c", "..")] == [
        "counts", "query-0", "a%20b%2Fc", "%2E.",
    ]  # fmt: skip
