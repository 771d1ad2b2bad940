"""Trying planted faults: one at a time, in a copy of the tree, against the tests that have to notice it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.mutants.model import Mutant, NotApplicable
from tests.named_tests import tests_of

CAUGHT, SURVIVED, HUNG, VOID = "caught", "survived", "hung", "void"
"""The verdicts: all its tests failed; one passed; they did not end in time; the trial shows nothing (the fault does not
apply, a test was skipped or is not there, or fails without the fault too)."""

TIME_LIMIT_S = 60.0
LONG_TIME_LIMIT_S = 1800.0

_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin", "xdist.plugin")
"""Loading all that are installed takes longer than most tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one planted fault.

    Args:
        mutant: the fault.
        verdict: one of the verdicts of this module.
        reason: why it was not caught; empty where it was.
        seconds: how long its tests took.
    """

    mutant: Mutant
    verdict: str
    reason: str
    seconds: float

    def to_dict(self) -> dict[str, object]:
        mutant = self.mutant
        fields = {"name": mutant.name, "area": mutant.area, "file": mutant.file, "guard": mutant.guard}
        return {**fields, "tests": mutant.tests, "verdict": self.verdict, "reason": self.reason}


def words_of(report: str, tests: Iterable[str]) -> dict[str, str]:
    """What pytest's report in JUnit's form says of the named tests. Pure.

    Returns:
        for each test that ran: ``failed`` where one of its cases failed, else ``passed`` where one passed, else
        ``skipped``.
    """
    found: dict[str, set[str]] = {}
    names = {f"tests.{test.replace('/', '.').replace('.py::', '.')}": test for test in tests}
    for case in ET.fromstring(report).iter("testcase"):
        tags = {child.tag for child in case}
        word = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        whole = f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
        for name, test in names.items():
            if f"{whole}.".startswith(f"{name}."):
                found.setdefault(test, set()).add(word)
    return {test: next(word for word in ("failed", "passed", "skipped") if word in has) for test, has in found.items()}


def verdict_of(words: dict[str, str], tests: Iterable[str]) -> tuple[str, str]:
    """The verdict on a fault, and its reason, by what became of its tests. Pure."""
    passed = [test for test in tests if words.get(test) == "passed"]
    if passed:
        return SURVIVED, f"with it passes {', '.join(passed)}"
    absent = [test for test in tests if words.get(test) != "failed"]
    if absent:
        return VOID, f"was not run: {', '.join(absent)}"
    return CAUGHT, ""


@contextlib.contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A copy of the files of the tree *root* that git knows or would take in; it is removed afterwards."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="us-mutants-") as directory:
        tree = Path(directory, "tree")
        for name in names:
            if name and (root / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, tree / name)
        yield tree


class Trial:
    """Trials of planted faults in a copy of the tree.

    Args:
        tree: the copy, which nobody else uses; its parent directory takes what the tests write.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._spoilt: dict[str, str] = {}

    def without_faults(self, mutants: Iterable[Mutant]) -> None:
        """Run all their tests as the product is: a test that does not pass now shows nothing later."""
        limit = sum(LONG_TIME_LIMIT_S if mutant.long else TIME_LIMIT_S for mutant in mutants)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        there = [test for test in tests if self._has(test)]
        words = self._run(there, limit) if there else {}
        for test in tests:
            word = "hung" if words is None else words.get(test, "not found")
            if word != "passed":
                self._spoilt[test] = word

    def _has(self, test: str) -> bool:
        """Whether there is such a test: pytest runs nothing at all where one that it is given is not there."""
        file, _, name = test.partition("::")
        return name in tests_of(self._tree / "tests" / file)

    def of(self, mutant: Mutant) -> Outcome:
        """Try one fault; the copy is as before afterwards."""
        spoilt = [
            f"{self._spoilt[test]} also without the fault: {test}" for test in mutant.tests if test in self._spoilt
        ]
        if spoilt:
            return Outcome(mutant, VOID, "; ".join(spoilt), 0.0)
        try:
            text = mutant.text(self._tree)
        except NotApplicable as error:
            return Outcome(mutant, VOID, str(error), 0.0)
        began = time.monotonic()
        limit = LONG_TIME_LIMIT_S if mutant.long else TIME_LIMIT_S
        with self._written(self._tree / mutant.file, text):
            words = self._run(mutant.tests, limit)
        verdict, reason = (HUNG, f"its tests did not end within {limit:g} s") if words is None else ("", "")
        if words is not None:
            verdict, reason = verdict_of(words, mutant.tests)
        return Outcome(mutant, verdict, reason, time.monotonic() - began)

    @contextlib.contextmanager
    def _written(self, file: Path, text: str) -> Iterator[None]:
        """Other content of a file for a while. Compiled forms go: one of the same second and size would be taken."""
        before = file.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(file)))
        compiled.unlink(missing_ok=True)
        file.write_text(text)
        try:
            yield
        finally:
            file.write_bytes(before)
            compiled.unlink(missing_ok=True)

    def _end_processes(self) -> None:
        """End all that the tests have started and left, as they do where they fail or hang."""
        own, left = str(self._tree.parent), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
                if process.cwd().startswith(own) or process.environ().get("PYTHONPATH") == str(self._tree):
                    process.kill()
                    left.append(process)
        psutil.wait_procs(left)

    def _run(self, tests: Iterable[str], limit: float) -> dict[str, str] | None:
        """What became of the tests; None where they did not end within *limit* seconds and were killed."""
        report = self._tree.parent / "report.xml"
        report.unlink(missing_ok=True)
        options = [f"--junitxml={report}", f"--basetemp={self._tree.parent / 't'}", "--hypothesis-seed=1"]
        options.append("--continue-on-collection-errors")
        plugins = [part for plugin in ("no:cacheprovider", *_PLUGINS) for part in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", *plugins, *options]
        child = subprocess.Popen(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=self._tree,
            env={**os.environ, "PYTHONPATH": str(self._tree), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._end_processes()
            child.wait()
        return words_of(report.read_text(), tests) if report.exists() else {}
