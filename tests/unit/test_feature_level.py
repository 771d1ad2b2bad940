"""The feature level, as pure rules: which versions are written and read, and when a cluster may be raised."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from runtime import feature_level
from runtime.feature_level import (
    VERSIONS,
    Component,
    FeatureLevel,
    FeatureLevels,
    Format,
    Release,
    can_read,
    level_to_begin_with,
    level_to_finalize,
    lowest_level,
    newest_version,
    oldest_version,
    readable_versions,
    supported_levels,
)
from runtime.ha.errors import FeatureLevelUnsupportedError, StateCorruptedError
from runtime.ha.feature_level import checked, decode_level, encode_level


def component(name: str, newest: int, oldest: int = 1) -> Component:
    return Component(name, Release(f"0.{newest}.0", FeatureLevels(oldest, newest)))


@pytest.fixture
def second_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a release that supports two levels, of which the second has a new version of one format."""
    monkeypatch.setitem(VERSIONS, 2, {**VERSIONS[1], Format.EXECUTION: 2})


def test_each_level_names_a_version_of_every_format() -> None:
    for level, versions in VERSIONS.items():
        assert set(versions) == set(Format), level
    assert sorted(VERSIONS) == list(range(min(VERSIONS), max(VERSIONS) + 1))


def test_the_versions_of_formats_do_not_fall_from_level_to_level(second_level: None) -> None:
    levels = sorted(VERSIONS)
    for lower, higher in itertools.pairwise(levels):
        assert all(VERSIONS[higher][of] >= VERSIONS[lower][of] for of in Format)


@dataclasses.dataclass(frozen=True)
class Stored:
    text: str
    format_version: int = 0


def test_what_is_written_follows_the_level_of_the_cluster_and_not_the_release(second_level: None) -> None:
    assert supported_levels() == FeatureLevels(1, 2)
    assert lowest_level() == FeatureLevel(1)
    assert FeatureLevel(1).marked(Stored("a"), Format.EXECUTION) == Stored("a", 1)
    assert FeatureLevel(2).marked(Stored("a"), Format.EXECUTION) == Stored("a", 2)
    assert FeatureLevel(2).version_of(Format.SAVEPOINT) == FeatureLevel(1).version_of(Format.SAVEPOINT)
    assert (oldest_version(Format.EXECUTION), newest_version(Format.EXECUTION)) == (1, 2)


def test_a_release_reads_the_versions_of_all_its_levels(second_level: None) -> None:
    assert [can_read(Format.EXECUTION, version) for version in (0, 1, 2, 3, None)] == [False, True, True, False, False]
    assert readable_versions(Format.EXECUTION) == "1 and 2"
    assert readable_versions(Format.SAVEPOINT) == "1"


def test_a_release_refuses_a_level_that_it_does_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(1) == FeatureLevel(1)
    with pytest.raises(
        FeatureLevelUnsupportedError, match=r"the cluster has feature level 2, and Understudy .* 1:"
    ) as e:
        checked(2)
    assert "finalized" in e.value.remedy
    monkeypatch.setattr(feature_level, "VERSIONS", {3: VERSIONS[1], 4: VERSIONS[1]})
    with pytest.raises(FeatureLevelUnsupportedError, match=r"feature level 1, and Understudy .* supports 3 to 4") as e:
        checked(1)
    assert "understudy cluster finalize" in e.value.remedy
    assert lowest_level() == FeatureLevel(3)


def test_a_new_cluster_begins_at_the_newest_level_of_all_and_another_one_at_the_first(second_level: None) -> None:
    assert level_to_begin_with(True, []) == 2
    assert level_to_begin_with(True, [component("master", 2), component("master-1", 1)]) == 1
    assert level_to_begin_with(True, [component("master", 3)]) == 2
    assert level_to_begin_with(False, [component("master", 2)]) == 1


def test_a_level_is_raised_to_the_highest_that_all_components_support() -> None:
    new, newer, old = component("master", 2), component("master-1", 3), component("tm-1", 1)
    assert level_to_finalize(1, [new, component("tm-1", 2)]) == (2, ())
    assert level_to_finalize(1, [new, newer]) == (2, (new,))
    assert level_to_finalize(1, [new, old, newer]) == (1, (old,))
    assert level_to_finalize(2, [new, new]) == (2, ())
    assert level_to_finalize(1, [old, old]) == (1, ())
    # It is never lowered, even where an old component has slipped in.
    assert level_to_finalize(2, [new, old]) == (2, ())


def test_a_component_says_what_it_supports() -> None:
    assert (
        component("TaskExecutor tm-1", 1).limit() == "TaskExecutor tm-1 runs Understudy 0.1.0, which supports level 1"
    )
    assert component("master", 3).limit() == "master runs Understudy 0.3.0, which supports levels 1 to 3"


def test_the_stored_level_is_a_plain_number() -> None:
    assert decode_level(encode_level(12)) == 12
    for text in ("", "x", "-1", "1.0", "\u0661"):
        with pytest.raises(StateCorruptedError):
            decode_level(text)
