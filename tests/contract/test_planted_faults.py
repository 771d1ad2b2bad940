"""The tool that tries planted faults tells the noticed from the unnoticed, in a project of one function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.mutants import trial
from tests.mutants.__main__ import main
from tests.mutants.model import Mutant
from tests.mutants.trial import HUNG, Trial

GUARDED = """\
def is_allowed(age: int) -> bool:
    return age >= 18
"""
TESTS = """\
import threading

import pytest

from guarded import is_allowed

def test_of_the_grown() -> None:
    assert is_allowed(18)

def test_of_the_young() -> None:
    assert not is_allowed(17)

@pytest.mark.parametrize("age", [5, 30])
def test_of_cases(age: int) -> None:
    assert is_allowed(age) is (age == 30)

def test_that_waits() -> None:
    if is_allowed(17):
        threading.Event().wait()

@pytest.mark.skip
def test_that_is_skipped() -> None:
    pass

def test_that_fails_anyway() -> None:
    raise AssertionError

def test_of_what_compiled_code_leaves() -> None:
    assert is_allowed(19)
"""


def planted(name: str, new: str, *tests: str, old: str = "age >= 18") -> Mutant:
    return Mutant(name, "The young are kept out.", "guarded.py", old, new, tests)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function, with its tests, which git knows."""
    root = tmp_path / "project"
    (root / "tests" / "unit").mkdir(parents=True)
    (root / "guarded.py").write_text(GUARDED)
    (root / "tests" / "__init__.py").touch()
    (root / "tests" / "unit" / "__init__.py").touch()
    (root / "tests" / "unit" / "test_guarded.py").write_text(TESTS)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


YOUNG = "unit/test_guarded.py::test_of_the_young"
CASES = "unit/test_guarded.py::test_of_cases"
GROWN = "unit/test_guarded.py::test_of_the_grown"


def test_a_fault_that_changes_nothing_survives_and_one_that_is_noticed_is_caught(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [
        planted("of-the-same-size", "age >= 20", "unit/test_guarded.py::test_of_what_compiled_code_leaves"),
        planted("of-the-same-size-again", "age >= 21", "unit/test_guarded.py::test_of_what_compiled_code_leaves"),
        planted("changes-nothing", "18 <= age", YOUNG),
        planted("noticed", "age >= 4", YOUNG, CASES),
        planted("noticed-by-one-of-two", "age >= 4", YOUNG, GROWN),
        planted("proved-by-what-is-skipped", "age >= 4", "unit/test_guarded.py::test_that_is_skipped"),
        planted("proved-by-what-fails-anyway", "age >= 4", "unit/test_guarded.py::test_that_fails_anyway"),
        planted("proved-by-nothing", "age >= 4", "unit/test_guarded.py::test_that_is_none"),
        planted("without-a-place", "age >= 4", YOUNG, old="age > 18"),
    ]
    told = project.parent / "told.json"
    assert main(["--json", str(told)], faults, project) == 1
    outcomes = {each["name"]: each["verdict"] for each in json.loads(told.read_text())["mutants"]}
    assert outcomes == {
        "of-the-same-size": "caught",
        "of-the-same-size-again": "caught",
        "changes-nothing": "survived",
        "noticed": "caught",
        "noticed-by-one-of-two": "survived",
        "proved-by-what-is-skipped": "void",
        "proved-by-what-fails-anyway": "void",
        "proved-by-nothing": "void",
        "without-a-place": "void",
    }
    assert json.loads(told.read_text())["figures"] == {"mutants": 9, "caught": 3}
    said = capsys.readouterr().out
    assert f"with it passes {GROWN}" in said
    assert "its text is 0 times in guarded.py, not once" in said
    assert "9 planted faults: 3 caught, 2 survived, 4 void" in said
    assert (project / "guarded.py").read_text() == GUARDED, "faults are planted in a copy"
    assert main(["--only", "noticed"], faults, project) == 0


def test_a_fault_that_hangs_its_tests_is_told_apart(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIME_LIMIT_S", 1.0)
    hanging = planted("hangs", "age >= 4", "unit/test_guarded.py::test_that_waits")
    assert Trial(project).of(hanging).verdict == HUNG


@pytest.mark.parametrize("sign", ["its directory", "its environment"])
def test_what_tests_have_started_and_left_is_ended(project: Path, sign: str) -> None:
    of_ours = {"cwd": project} if sign == "its directory" else {"env": {"PYTHONPATH": str(project)}}
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **of_ours) as left,  # type: ignore[call-overload]
        subprocess.Popen(command, stdin=subprocess.PIPE) as other,
    ):
        Trial(project)._end_processes()
        assert not psutil.pid_exists(left.pid)
        assert other.poll() is None
        other.kill()
    assert (project / "guarded.py").read_text() == GUARDED
