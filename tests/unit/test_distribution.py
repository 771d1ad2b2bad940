"""How the tests are shared out among processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import distribution
from tests.cluster_harness import ROOT


def test_a_file_stays_together_unless_its_tests_have_clusters_of_their_own() -> None:
    assert distribution.group_of("tests/unit/test_ids.py::test_x[a::b]") == "tests/unit/test_ids.py"
    alone = "tests/faults/test_kills.py::test_x"
    assert distribution.group_of(f"{alone}[a]") == distribution.group_of(f"{alone}[b]") == alone


def test_the_longest_come_first_and_a_group_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_durations", lambda: {"short.py": 1, "long.py": 100})
    names = ("short.py::b", "short.py::a", "new.py::x", "long.py::b", "long.py::a")
    items = [SimpleNamespace(nodeid=name) for name in names]
    distribution.sort(items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == ["long.py::b", "long.py::a", "new.py::x", "short.py::b", "short.py::a"]


def test_an_order_of_chance_is_that_of_its_seed_and_a_group_keeps_its_own() -> None:
    names = [f"{file}.py::{test}" for file in "abcdef" for test in "yx"]
    orders = set()
    for seed in range(9):
        items = [SimpleNamespace(nodeid=name) for name in names]
        again = items[::2] + items[1::2]
        for each in (items, again):
            distribution.shuffle(each, seed)  # type: ignore[arg-type]
        assert [item.nodeid for item in items] == [item.nodeid for item in again], "in every process of a run"
        assert [item.nodeid[-1] for item in items] == ["y", "x"] * 6
        orders.add(tuple(item.nodeid for item in items))
    assert len(orders) == 9


def test_what_is_recorded_is_there() -> None:
    recorded = json.loads(distribution.DURATIONS.read_text())
    files = {group.split("::")[0] for group in [*recorded, *distribution.EACH_ALONE]}
    assert [file for file in files if not (ROOT / file).is_file()] == []
    tests = [name.split("::")[:2] for name in recorded if name.startswith(distribution.UNIT)]
    assert [test for file, test in tests if test not in (ROOT / file).read_text()] == []


def test_quick_leaves_out_what_took_long_with_all_its_parameters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(distribution, "DURATIONS", tmp_path / "durations.json")
    distribution.DURATIONS.write_text('{"tests/unit/test_a.py::now_quick": 9.0, "tests/unit/test_a.py::not_run": 9.0}')
    took = {"long[a]": 0.15, "long[b]": 0.15, "now_quick": 0.1, "quick[x::y]": 0.19}
    reports = [SimpleNamespace(nodeid=f"tests/unit/test_a.py::{name}", duration=took[name]) for name in took]
    others = [SimpleNamespace(nodeid=f"tests/contract/test_a.py::{name}", duration=0.7) for name in "xy"]
    distribution.record([*reports, *others])  # type: ignore[list-item]
    assert json.loads(distribution.DURATIONS.read_text()) == {
        "tests/contract/test_a.py": 1,
        "tests/unit/test_a.py::long": 0.3,
        "tests/unit/test_a.py::not_run": 9.0,
    }
    quick, slower = distribution.quick(reports)  # type: ignore[arg-type]
    assert [item.nodeid.partition("::")[2] for item in quick] == ["now_quick", "quick[x::y]"]
    assert [item.nodeid.partition("::")[2] for item in slower] == ["long[a]", "long[b]"]


def test_memory_bounds_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for gigabytes, cores, expected in ((2, 8, 1), (23, 2, 3), (64, 2, 3), (64, 32, 12)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr("psutil.virtual_memory", lambda gigabytes=gigabytes: SimpleNamespace(total=gigabytes << 30))
        assert distribution.processes() == expected
