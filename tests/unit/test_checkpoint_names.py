"""Names of queries as directories."""

from __future__ import annotations

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.names import directory_name, savepoint_name

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


def test_savepoints_of_counted_ids_have_names_of_their_own() -> None:
    ids = [f"{number:032x}" for number in range(20)]
    names = {savepoint_name(job_id, trigger_id) for job_id in ids for trigger_id in ids}
    assert len(names) == len(ids) ** 2
    assert {len(name) for name in names} == {len("savepoint-012345-0123456789ab")}
