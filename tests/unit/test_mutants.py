"""The planted faults apply, and their tests are there; what the tool that tries them makes of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.scenarios import SCENARIOS
from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.model import Mutant, NotApplicable
from tests.mutants.trial import CAUGHT, SURVIVED, VOID, verdict_of, words_of
from tests.named_tests import NAMED, is_test

ROOT = Path(__file__).resolve().parents[2]

GUARDED = """\
def is_allowed(age: int) -> bool:
    return age >= 18
"""


def planted(new: str, old: str = "age >= 18") -> Mutant:
    return Mutant("planted", "The young are kept out.", "guarded.py", old, new, ("unit/test_x.py::test_y",))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_applies_and_its_tests_are_there(mutant: Mutant) -> None:
    assert mutant.text(ROOT) != (ROOT / mutant.file).read_text()
    assert mutant.tests
    assert [test for test in mutant.tests if not is_test(test)] == []
    assert mutant.guard.endswith(".")


def test_there_are_faults_in_every_package() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80
    assert {"actors", "blob", "conf", "runtime/ha", "runtime/rest", "runtime/checkpoint"} <= {m.area for m in MUTANTS}


PAGES = ("security.md", "high-availability.md")
NOBODYS = ("| read `/proc/PID/environ`, `fd` or `mem` of a process | the kernel refuses |",)
"""Promises that no code of ours keeps, by what their rows begin with."""


def promises() -> dict[str, set[str]]:
    """The tests of each row of a table that names any, and of each scenario."""
    lines = [line for page in PAGES for line in (ROOT / "docs" / page).read_text().splitlines()]
    found = {line: set(NAMED.findall(line)) for line in lines if line.startswith("|")}
    return {line: tests for line, tests in found.items() if tests} | {each.name: {*each.tests} for each in SCENARIOS}


def test_behind_every_promise_of_the_documents_is_a_fault_that_its_tests_notice() -> None:
    noticing = {test for mutant in MUTANTS for test in mutant.tests}
    assert len(promises()) > 65
    assert [what for what, tests in promises().items() if not tests & noticing and not what.startswith(NOBODYS)] == []
    assert all(any(what.startswith(each) for what in promises()) for each in NOBODYS)
    named = {test for tests in promises().values() for test in tests}
    assert [test for test in sorted(named) if not is_test(test)] == []


def test_those_of_an_area_or_of_a_name_are_chosen() -> None:
    fault = Mutant("a-name", "It holds.", "runtime/ha/latch.py", "a", "b", ("unit/test_x.py::test_y",))
    assert fault.area == "runtime/ha"
    assert [
        wanted for wanted in ("runtime", "runtime/ha", "a-name", "runtime/h", "blob", "a") if fault.is_of(wanted)
    ] == [
        "runtime",
        "runtime/ha",
        "a-name",
    ]
    assert Mutant("b", "It holds.", "runtime/leadership.py", "a", "b", ()).area == "runtime"
    with pytest.raises(SystemExit):
        main(["--only", "no/such/area"], [fault], ROOT)


def test_a_fault_that_does_not_compile_is_none(tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text(GUARDED)
    with pytest.raises(NotApplicable, match="does not compile"):
        planted("age >=").text(tmp_path)
    with pytest.raises(NotApplicable, match=r"there is no file guarded\.py"):
        planted("age >= 4").text(tmp_path / "elsewhere")
    with pytest.raises(NotApplicable, match="2 times"):
        planted("years", old="age").text(tmp_path)


def test_every_test_has_to_fail_and_one_case_is_enough_for_it() -> None:
    report = """<testsuites><testsuite>
    <testcase classname="tests.unit.test_x" name="test_a[1]"/>
    <testcase classname="tests.unit.test_x" name="test_a[2]"><failure/></testcase>
    <testcase classname="tests.unit.test_x" name="test_ab"/>
    <testcase classname="tests.unit.test_x" name="test_c"><skipped/></testcase>
    <testcase classname="tests.unit.test_x.TestModel" name="runTest"><error/></testcase>
    </testsuite></testsuites>"""
    names = ("test_a", "test_ab", "test_c", "TestModel", "test_none")
    a, ab, c, model, none = tests = [f"unit/test_x.py::{name}" for name in names]
    words = words_of(report, tests)
    assert words == {a: "failed", ab: "passed", c: "skipped", model: "failed"}
    assert verdict_of(words, (a, model)) == (CAUGHT, "")
    assert verdict_of(words, (a, ab)) == (SURVIVED, f"with it passes {ab}")
    assert verdict_of(words, (a, c, none)) == (VOID, f"was not run: {c}, {none}")
