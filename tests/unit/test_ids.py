from __future__ import annotations

import pytest

from runtime.ids import AbstractID, AllocationID, JobID, JobVertexID, ResourceID, SlotID


def test_random_ids_are_well_formed_and_differ() -> None:
    ids = {JobID.random() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(item) == 32 and JobID(item) == item and type(item) is JobID for item in ids)


@pytest.mark.parametrize(
    "text", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "a" * 31 + "\n", "../" + "a" * 29, None, 5]
)
def test_malformed_ids_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid AllocationID"):
        AllocationID(text)


def test_an_id_is_a_plain_string() -> None:
    text = "0123456789abcdef" * 2
    assert AbstractID(text) == text
    assert f"job_{JobID(text)}" == f"job_{text}"
    assert {JobID(text): 1}[JobID(text)] == 1


def test_vertex_ids_are_determined_by_the_names_and_not_by_their_concatenation() -> None:
    assert JobVertexID.of("job", "read") == JobVertexID.of("job", "read")
    # Results and checkpoints of earlier runs are found by this value: changing the digest would orphan them.
    assert JobVertexID.of("job", "read") == "f80238be3006a833772713197573924e"
    assert JobVertexID.of("ab", "c") != JobVertexID.of("a", "bc")


@pytest.mark.parametrize("text", ["", "a b", "a\n", "\x00"])
def test_resource_ids_are_printable_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not a ResourceID"):
        ResourceID(text)


def test_slot_ids_are_shown_by_executor_and_index() -> None:
    assert str(SlotID(ResourceID("tm-1"), 2)) == "tm-1/2"
    assert SlotID(ResourceID("tm-1"), 0) < SlotID(ResourceID("tm-1"), 1) < SlotID(ResourceID("tm-2"), 0)
