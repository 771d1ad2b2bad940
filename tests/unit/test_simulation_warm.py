"""Planted faults in loaded functions, and the places of faults that a run reaches."""

from __future__ import annotations

import ast
import builtins
import types
from pathlib import Path

import pytest

from tests.mutants.model import Mutant
from tests.simulation import warm
from tests.simulation.kept import KEPT
from tests.simulation.mutants import trial
from tests.simulation.planted import Planted, catalogue
from tests.simulation.warm import (
    PROBE,
    CannotSwap,
    ChildFailed,
    Ran,
    Run,
    Warm,
    changed_functions,
    first_changed_line,
    in_a_child,
    with_probes,
)

TEXT = """
LIMIT = 3


class Queue:
    size = 0

    def is_full(self, more):
        if more:
            return self.size + more > LIMIT
        elif self.size == 7:
            return True
        return False

    def grow(self):
        def one():
            return 1

        self.size += one()
"""


def code(text: str) -> types.CodeType:
    return compile(text, "queue.py", "exec")


def changed(old: str, new: str) -> list[str]:
    assert TEXT.count(old) == 1
    return [before.co_qualname for before, _ in changed_functions(code(TEXT), code(TEXT.replace(old, new)))]


def test_only_functions_whose_code_differs_are_swapped() -> None:
    assert changed("return False", "return None") == ["Queue.is_full"]
    assert changed("return 1", "return 2") == ["Queue.grow"], "the outer one makes the inner one"
    assert changed("    def grow", "\n\n    def grow") == [], "another line is the same code"


@pytest.mark.parametrize(("old", "new"), [("LIMIT = 3", "LIMIT = 4"), ("size = 0", "size = 1"), ("def grow", "def go")])
def test_a_fault_outside_functions_is_not_swapped(old: str, new: str) -> None:
    with pytest.raises(CannotSwap, match="the body of"):
        changed(old, new)


def mutant(old: str, new: str) -> Mutant:
    return Mutant("name", "guard", "queue.py", old, new, ())


def test_the_place_of_a_fault_is_the_first_line_that_it_changes() -> None:
    lines = TEXT.splitlines()
    deleted = mutant(
        "        if more:\n            return self.size + more > LIMIT\n", "        if more:\n            pass\n"
    )
    assert lines[first_changed_line(deleted, TEXT) - 1] == "            return self.size + more > LIMIT"
    added = mutant("            return True\n", "            return True\n            return None\n")
    assert lines[first_changed_line(added, TEXT) - 1] == "        return False"


def test_a_run_notes_the_places_that_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()
    monkeypatch.setattr(builtins, PROBE, reached.add, raising=False)
    lines = {text.strip(): number for number, text in enumerate(TEXT.splitlines(), 1) if text}
    tree = ast.parse(TEXT)
    outside = with_probes(tree, lines)
    assert outside == {"LIMIT = 3", "size = 0"} | {name for name in lines if name.startswith(("class ", "def "))}
    names: dict[str, type] = {}
    exec(compile(tree, "queue.py", "exec"), names)
    queue = names["Queue"]()
    assert queue.is_full(0) is False
    assert reached == {"if more:", "elif self.size == 7:", "return False"}
    queue.size = 7
    assert queue.is_full(0) is True
    assert queue.is_full(1) is True
    queue.grow()
    assert reached == {*lines} - outside


def test_loaded_functions_of_this_project_are_swapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "queue.py"
    file.write_text(TEXT)
    names: dict[str, type] = {}
    exec(compile(TEXT, str(file), "exec"), names)
    monkeypatch.setattr(warm, "ROOT", tmp_path)
    monkeypatch.setattr("gc.freeze", lambda: None)
    one = Warm([])
    one.swap("queue.py", compile(TEXT.replace("return 1", "return 3"), str(file), "exec"))
    queue = names["Queue"]()
    queue.grow()
    assert queue.size == 3
    file.write_text(f"{TEXT}\n\ndef f():\n    return 1\n")
    with pytest.raises(CannotSwap, match="f is not loaded"):
        one.swap("queue.py", compile(f"{TEXT}\n\ndef f():\n    return 2\n", str(file), "exec"))


def test_a_child_returns_what_it_has_found_or_says_how_it_ended(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_a_child(lambda: {"found": 1}) == {"found": 1}
    with pytest.raises(ChildFailed, match="the run ends with the code 1"):
        in_a_child(lambda: {"found": 1 // 0})
    assert "ZeroDivisionError" in capfd.readouterr().err


class Seeds(Warm):
    """Seeds that reach a fault by their number, of one second of CPU each."""

    def __init__(self, name: str, reaching: set[tuple[str, int]], finding: tuple[str, int]) -> None:
        self.workloads = ["ha", "blobs"]
        self.measured_s = 0.0
        self.ran: list[tuple[str, int]] = []
        self._name, self._reaching, self._finding = name, reaching, finding

    def reached(self, run: Run) -> set[str]:
        self.measured_s += 0.5 * (run.plan is None)
        return {self._name} if (run.workload, run.seed) in self._reaching and run.plan is None else set()

    def run(self, planted: Planted, run: Run) -> Ran:
        self.ran.append((run.workload, run.seed))
        return Ran("a check", (run.workload, run.seed) == self._finding, 1.0)


def test_only_seeds_that_reach_the_place_of_a_fault_run_with_it() -> None:
    planted = next(one for one in catalogue() if one.name == "session-used-again")
    seeds = Seeds(planted.name, {("ha", 1), ("blobs", 0), ("ha", 3), ("ha", 4)}, ("ha", 3))
    found = trial(seeds, planted, 60.0)
    assert seeds.ran == [("ha", 1), ("blobs", 0), ("ha", 3)]
    assert (found.found, found.check, found.seeds, found.cpu_s) == (True, "ha: a check", 3, 4.0)
    spent = trial(Seeds(planted.name, {("ha", 1), ("ha", 3)}, ("ha", 3)), planted, 2.0)
    assert (spent.found, spent.cpu_s) == (False, 2.0)


def test_the_plan_that_was_kept_for_a_fault_runs_first() -> None:
    kept = next(one for one in KEPT if one.planted == "renewal-without-the-address")
    planted = next(one for one in catalogue() if one.name == kept.planted)
    seeds = Seeds(planted.name, set(), (kept.workload, kept.seed))
    found = trial(seeds, planted, 60.0)
    assert (found.check, found.seeds, seeds.measured_s) == ("ha: a check (with a kept plan)", 1, 0.0)
