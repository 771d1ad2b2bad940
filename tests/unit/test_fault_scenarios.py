"""The table of scenarios: its page is true, its tests exist; how the results of a run are read."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.__main__ import Outcome, main, results_of, word_of
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.table import main as table
from tests.named_tests import is_test

REPORT = """<testsuites><testsuite name="pytest">
<testcase name="a"/><testcase name="b"><skipped message="no"/></testcase>{}</testsuite></testsuites>"""


def test_the_page_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert table(["--check"]) == 0, capsys.readouterr().err
    assert table(["--wrong"]) == 2


def test_a_page_that_is_not_true_is_found_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "reliability.md"
    monkeypatch.setattr("tests.faults.table.FILE", page)
    assert table(["--check"]) == 1, "there is none"
    assert table(["--write"]) == 0
    assert table(["--check"]) == 0
    page.write_text(page.read_text().replace("redis-blip", "redis-blop", 1))
    assert table(["--check"]) == 1


def test_there_are_the_sixteen_and_the_tests_of_each_exist() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS) == 16
    assert [test for scenario in SCENARIOS for test in scenario.tests if not is_test(test)] == []
    assert not is_test("unit/test_slot_pool.py::TestNothing")
    modules = {run.split()[0] for scenario in SCENARIOS for run in scenario.runs}
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_what_has_no_test_is_said_not_to_be_covered() -> None:
    assert Scenario("x", "", "", ()).verdict == "not covered"
    assert Scenario("x", "", "", ("unit/a.py::b",)).verdict == "holds"
    assert Scenario("x", "", "", ("unit/a.py::b",), limits="y").verdict == "holds, but see the limits"


def test_of_several_cases_one_that_failed_decides() -> None:
    assert results_of(REPORT.format("")) == Counter(passed=1, skipped=1)
    failed = results_of(REPORT.format('<testcase name="c"><error message="fixture"/></testcase>'))
    assert failed == Counter(passed=1, skipped=1, failed=1)
    assert (word_of(failed), word_of(Counter(passed=1, skipped=1)), word_of(Counter(skipped=2))) == (
        "failed",
        "passed",
        "skipped",
    )
    assert word_of(Counter()) == "failed", "nothing was run"


def test_a_scenario_passes_where_something_was_run_and_nothing_failed() -> None:
    assert Outcome("x", {"a": "passed", "b": "skipped"}).verdict == "pass"
    assert Outcome("x", {"a": "skipped"}).verdict == "not run"
    assert Outcome("x", {"a": "passed", "b": "failed"}).verdict == "fail"
    assert Outcome("x").verdict == "not run"


def test_a_scenario_is_run_and_its_outcome_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = "unit/test_fault_scenarios.py::test_what_has_no_test_is_said_not_to_be_covered"
    missing = "unit/test_fault_scenarios.py::test_that_is_none"
    made_up = (Scenario("good", "", "", (named,)), Scenario("bad", "", "", (named, missing)))
    monkeypatch.setattr("tests.faults.__main__.SCENARIOS", made_up)
    assert main(["list"]) == 0
    assert main(["run", "good", "--seed", "1"]) == 0
    assert main(["run", "all", "--seed", "1", "--json", str(tmp_path / "out.json")]) == 1
    told = json.loads((tmp_path / "out.json").read_text())["scenarios"]
    assert [(item["name"], item["verdict"]) for item in told] == [("good", "pass"), ("bad", "fail")]
    assert told[1]["parts"] == {named: "passed", missing: "failed"}
    assert "fail     bad" in capsys.readouterr().out
