"""Every release reads what this one and earlier ones have stored, and no format changes unnoticed."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from runtime import __version__
from runtime.checkpoint.manifest import digest_of
from runtime.feature_level import Format
from runtime.users.identities import Role
from tests.stored_formats import (
    FORMATS,
    StoredFormat,
    changed_levels,
    changes_without_version,
    current,
    current_levels,
    golden_files,
    problems,
    recorded,
)

GOLDEN = golden_files()
WITH_FIELDS = [item for item in FORMATS if item.name not in ("file-list", "blob-fence", "feature-level")]


def named(value: Any) -> str:
    return value.name if isinstance(value, StoredFormat) else str(value)


def test_shapes_golden_files_and_page_fit_the_code() -> None:
    assert problems() == []


def plain_of(item: StoredFormat, data: bytes) -> Any:
    return json.loads(data) if item.encoding.startswith("JSON") else msgpack.unpackb(data, strict_map_key=False)


def is_within(stored: Any, now: Any) -> bool:
    """Whether a stored value is the present one, but for fields that were added since, and the digest of them all."""
    if isinstance(stored, dict) and isinstance(now, dict):
        return all(key == "digest" or (key in now and is_within(value, now[key])) for key, value in stored.items())
    if isinstance(stored, list) and isinstance(now, list):
        return len(stored) == len(now) and all(map(is_within, stored, now))
    return bool(stored == now)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_release_has_stored_is_read(path: Path) -> None:
    item = GOLDEN[path]
    value = item.read(path.read_bytes())
    assert type(value) is item.kind
    if path.parent.name == __version__:
        assert is_within(plain_of(item, path.read_bytes()), plain_of(item, item.write(item.value)))


@pytest.mark.parametrize("item", [item for item in FORMATS if item.name != "lease"], ids=named)
def test_what_is_cut_off_is_not_read(item: StoredFormat) -> None:
    data = item.write(item.value)
    with pytest.raises(Exception):  # noqa: B017 -- each format has an error of its own
        item.read(data[: len(data) // 2])


def test_a_lease_that_is_cut_off_names_nobody() -> None:
    (lease,) = (item for item in FORMATS if item.name == "lease")
    assert lease.read(lease.write(lease.value)[:20]) is None


@pytest.mark.parametrize("item", WITH_FIELDS, ids=named)
def test_a_field_of_a_later_release_is_ignored(item: StoredFormat) -> None:
    data = item.write(item.value)
    plain = plain_of(item, data)
    plain["of_a_later_release"] = "new"
    if "digest" in plain and item.name in ("savepoint", "checkpoint-metadata"):
        del plain["digest"]
        plain["digest"] = digest_of(plain)
    later = json.dumps(plain).encode() if item.encoding.startswith("JSON") else msgpack.packb(plain)
    assert item.read(later) == item.read(data) is not None


@pytest.mark.parametrize("name", ["job-graph", "archived-job"])
def test_a_job_that_was_stored_before_jobs_had_owners_has_none(name: str) -> None:
    (item,) = (item for item in FORMATS if item.name == name)
    plain = msgpack.unpackb(item.write(item.value), strict_map_key=False)
    assert plain.pop("owner") == "text"
    earlier = item.read(msgpack.packb(plain))
    assert earlier.owner == ""
    assert earlier == dataclasses.replace(item.value, owner="")


def test_a_savepoint_that_was_stored_before_savepoints_had_owners_has_none() -> None:
    (item,) = (item for item in FORMATS if item.name == "savepoint")
    plain = json.loads(item.write(item.value))
    del plain["job"]["owner"], plain["digest"]
    plain["digest"] = digest_of(plain)
    earlier = item.read(json.dumps(plain).encode())
    assert earlier.job == dataclasses.replace(item.value.job, owner="")


def test_each_format_that_holds_its_version_has_one_at_each_level() -> None:
    assert {item.name: item.level_format for item in FORMATS if item.level_format} == {of.value: of for of in Format}


def test_a_new_version_needs_a_new_level() -> None:
    before = current_levels()
    second = {name: version + (name == "execution") for name, version in before["1"].items()}
    (found,) = changed_levels(before, {"1": second})
    assert found == "execution: level 1 wrote version 1, and writes 2"
    assert changed_levels(before, {"1": {}})
    assert changed_levels(before, before | {"2": second}) == []
    assert changed_levels(before | {"2": second}, {"2": second}) == []  # a release need not support the first level


def change(path: str, value: Any) -> dict[str, Any]:
    """Return the current shapes with a change at a path of names; None removes what is there."""
    shapes = copy.deepcopy(current())
    *parents, last = path.split("/")
    place: Any = shapes
    for name in parents:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return shapes


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("job-graph/types/JobVertex/memory_bytes", None, "JobVertex.memory_bytes is gone"),
        ("job-graph/types/JobVertex/name", "int", "JobVertex.name was str, and is int"),
        ("savepoint/types/SavepointJob/team", "str", "SavepointJob.team is new and has no default"),
        ("lease/types/LeaseHolder/host", "str", "LeaseHolder.host has lost its default"),
        ("job-graph/types/JobKind", ["script"], "the values of JobKind were"),
        ("user/types/Role", ["viewer", "user", "operator"], "the values of Role were"),
        ("job-graph/types/JobEdge", None, "JobEdge is gone"),
        ("cluster", None, "the format is gone"),
    ],
)
def test_an_incompatible_change_needs_a_version(path: str, value: Any, problem: str) -> None:
    changed = change(path, value)
    (found,) = changes_without_version(recorded(), changed)
    assert problem in found
    name = path.split("/")[0]
    if name in changed:
        changed[name]["version"] += 1
        assert changes_without_version(recorded(), changed) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("job-graph/types/JobVertex/colour", "str?"),
        ("job-graph/types/JobVertex/name", "str?"),
        ("job-graph/types/Colour", ["red"]),
        ("user/types/Role", ["auditor", *(role.value for role in Role)]),
    ],
)
def test_a_field_with_a_default_needs_none(path: str, value: Any) -> None:
    assert changes_without_version(recorded(), change(path, value)) == []
