"""Runs scenarios and says what became of them: ``python -m tests.faults list``, and ``... run NAME|all``.

The exit status is 1 where a scenario fails, or where nothing of it could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.scenarios import SCENARIOS, Scenario
from tests.named_tests import HERE


@dataclass
class Outcome:
    """What became of a scenario: of each test and long form a word, and the last words of what failed."""

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, or ``not run`` where all was skipped."""
        words = set(self.parts.values())
        if words - {"passed", "skipped"}:
            return "fail"
        return "pass" if "passed" in words else "not run"

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "verdict": self.verdict, "parts": self.parts, "said": self.said}


def results_of(report: str) -> Counter[str]:
    """What pytest's report in JUnit's form says: how many tests passed, failed and were skipped. Pure."""
    found: Counter[str] = Counter()
    for case in ET.fromstring(report).iter("testcase"):
        tags = {child.tag for child in case}
        found["failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"] += 1
    return found


def word_of(found: Counter[str]) -> str:
    """One word for a test that may have several cases: any that failed decides. Pure."""
    return next((word for word in ("failed", "passed", "skipped") if found[word]), "failed")


def run(scenario: Scenario, seed: int, *, long: bool) -> Outcome:
    """Run the tests of a scenario one by one, and its long forms where they are wanted."""
    outcome = Outcome(scenario.name)
    for test in scenario.tests:
        with tempfile.TemporaryDirectory(prefix="us-faults-") as directory:
            report = Path(directory) / "report.xml"
            options = ["-q", f"--junitxml={report}", f"--hypothesis-seed={seed}", "-p", "no:cacheprovider"]
            status, said = _call([sys.executable, "-m", "pytest", *options, str(HERE / test)])
            word = word_of(results_of(report.read_text()) if report.exists() else Counter())
        outcome.parts[test] = word if status == 0 or word == "failed" else "failed"
        if outcome.parts[test] == "failed":
            outcome.said[test] = said
    for module in scenario.runs if long else ():
        status, said = _call([sys.executable, "-m", *module.split(), f"--seed={seed}"])
        outcome.parts[module] = "passed" if status == 0 else "failed"
        if status:
            outcome.said[module] = said
    return outcome


def _call(command: list[str]) -> tuple[int, str]:
    """Its exit status, and its last words."""
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command,
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout[-4000:]


def main(arguments: list[str]) -> int:
    """The command."""
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the scenarios")
    running = commands.add_parser("run", help="run one, or all")
    running.add_argument("name", choices=[*names, "all"], metavar="NAME", help="one of them, or `all`")
    running.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    running.add_argument("--long", action="store_true", help="the long forms too: minutes to hours")
    running.add_argument("--json", type=Path, metavar="FILE", help="where the outcomes go")
    given = parser.parse_args(arguments)
    if given.command == "list":
        for scenario in SCENARIOS:
            sys.stdout.write(f"{scenario.name:24} {scenario.verdict:26} {scenario.done}\n")
        return 0
    sys.stderr.write(f"seed {given.seed}\n")
    outcomes = []
    for scenario in SCENARIOS:
        if given.name in (scenario.name, "all"):
            outcomes.append(outcome := run(scenario, given.seed, long=given.long))
            sys.stdout.write(f"{outcome.verdict:8} {outcome.name}\n")
            for part, word in outcome.parts.items():
                sys.stdout.write(f"    {word:8} {part}\n")
            for part, said in outcome.said.items():
                sys.stdout.write(f"--- {part}\n{said}\n")
            sys.stdout.flush()
    if given.json is not None:
        told = {"seed": given.seed, "scenarios": [outcome.to_dict() for outcome in outcomes]}
        given.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0 if all(outcome.verdict == "pass" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
