"""PySpark's own doctests as a Spark Connect client, at two servers, and the comparison of what passes.

    python -m tests.connect_doctests MODULE FILE

runs the doctests of one module at the server of the variable ``SPARK_CONNECT_TESTING_REMOTE``, and writes the outcome
of each example to a file. The function ``_test`` of PySpark's module chooses the session, the names and the docstrings;
this module gives it another runner.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.cluster_harness import ROOT

REMOTE = "SPARK_CONNECT_TESTING_REMOTE"
"""Variable from which PySpark's ``_test`` takes the URL of the server."""

OUTPUT_LIMIT = 300

MODULES = (
    "pyspark.sql.connect.conf",
    "pyspark.sql.connect.column",
    "pyspark.sql.connect.window",
    "pyspark.sql.connect.observation",
    "pyspark.sql.connect.group",
    "pyspark.sql.connect.tvf",
    "pyspark.sql.types",
    "pyspark.sql.udf",
    "pyspark.sql.udtf",
    "pyspark.sql.connect.catalog",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.readwriter",
    "pyspark.sql.connect.streaming.readwriter",
    "pyspark.sql.connect.streaming.query",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.functions.builtin",
)
"""Modules with doctests, the short ones first."""

LEFT_OUT = {
    "pyspark.sql.connect.avro.functions": "needs a jar that PySpark does not bring",
    "pyspark.sql.connect.protobuf.functions": "needs a jar that PySpark does not bring",
    "pyspark.sql.connect.merge": "has no examples",
    "pyspark.sql.connect.functions.partitioning": "skips each of its examples",
}
"""Modules that are not run, and why."""

WITHOUT_CONNECT_TEST = {"pyspark.sql.types", "pyspark.sql.udf", "pyspark.sql.udtf"}
"""Modules whose ``_test`` has no Connect session: this module gives them one."""

ENDLESS = {
    "pyspark.sql.connect.streaming.query.StreamingQuery.explain": "waits until a source of a row in each second has "
    "no new row, which on a busy machine it always has",
}
"""Docstrings whose examples are not run, and why."""

VARYING = dict.fromkeys(
    (f"pyspark.sql.connect.functions.builtin.{name}" for name in ("listagg_distinct", "string_agg_distinct")),
    "joins values in the order in which the tasks of a shuffle end",
)
"""Docstrings whose examples are run and not compared, and why."""

Key = tuple[str, int, str]
"""Docstring, number of the example in it, and its source."""


@dataclass(frozen=True)
class Outcome:
    """What one run of a module's doctests gave.

    Args:
        examples: for each example that ran, whether it passed.
        got: what a failed example gave, shortened.
    """

    examples: dict[Key, bool] = field(default_factory=dict)
    got: dict[Key, str] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """Return the number of examples that passed."""
        return sum(self.examples.values())

    def dump(self) -> str:
        """Return it as JSON."""
        return json.dumps([[*key, passed, self.got.get(key, "")] for key, passed in self.examples.items()])

    @classmethod
    def load(cls, text: str) -> Outcome:
        """Read what `dump` gave."""
        outcome = cls()
        for name, number, source, passed, got in json.loads(text):
            key = (name, number, source)
            outcome.examples[key] = passed
            if got:
                outcome.got[key] = got
        return outcome


class Recorder(doctest.DocTestRunner):
    """Runs doctests, prints nothing, and records each example."""

    def __init__(self, optionflags: int) -> None:
        super().__init__(verbose=False, optionflags=optionflags)
        self.outcome = Outcome()

    def _record(self, test: doctest.DocTest, example: doctest.Example, passed: bool, got: str = "") -> None:
        key = (test.name, test.examples.index(example), example.source)
        self.outcome.examples[key] = passed
        if not passed:
            self.outcome.got[key] = got[-OUTPUT_LIMIT:]

    def report_start(self, out: Any, test: doctest.DocTest, example: doctest.Example) -> None:
        """Print nothing."""

    def report_success(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        """Record an example that passed."""
        self._record(test, example, True)

    def report_failure(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        """Record an example with another output."""
        self._record(test, example, False, got)

    def report_unexpected_exception(
        self, out: Any, test: doctest.DocTest, example: doctest.Example, exc_info: Any
    ) -> None:
        """Record an example that raised."""
        self._record(test, example, False, f"{exc_info[0].__name__}: {exc_info[1]}")


def differences(directly: Outcome, through: Outcome, varying: Mapping[str, str] | None = None) -> list[str]:
    """Return a line for each example that does not have the same outcome in two runs; empty: the same passes.

    Args:
        directly, through: the runs.
        varying: docstrings whose examples vary between two runs at one server, and why. They are not compared.
    """
    found = []
    for key in directly.examples | through.examples:
        name, _, source = key
        one, other = directly.examples.get(key), through.examples.get(key)
        if one != other and name not in (varying or {}):
            words = {True: "passes", False: "fails", None: "is not run"}
            got = directly.got.get(key) or through.got.get(key) or ""
            found.append(f"{name}: {source.strip()!r} {words[one]} directly, {words[other]} through the door: {got}")
    return found


def run_in_child(module: str, url: str, directory: Path, timeout_s: float) -> Outcome:
    """Run the doctests of a module in a process of their own, whose directory is empty.

    Args:
        module: one of `MODULES`.
        url: of the server, with its token: it is in the environment of the child, and not in its command line.
        directory: a new one is made here.
        timeout_s: seconds after which the child is killed.
    """
    directory.mkdir(parents=True)
    result = directory / "outcome.json"
    home = directory / "home"
    home.mkdir()
    environment = {
        **os.environ,
        REMOTE: url,
        "SPARK_HOME": str(home),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(home),
    }
    with (directory / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.connect_doctests", module, str(result)],
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=timeout_s,
        )
    if not result.exists():
        raise AssertionError(f"{module} ended with {done.returncode}: {(directory / 'log').read_text()[-2000:]}")
    return Outcome.load(result.read_text())


def record(module: str) -> Outcome:
    """Run the doctests of a module in this process, which is a Connect client from then on."""
    outcomes = []

    def testmod(tested: ModuleType, globs: dict[str, Any], optionflags: int = 0, **_: Any) -> doctest.TestResults:
        recorder = Recorder(optionflags)
        for test in doctest.DocTestFinder().find(tested, tested.__name__, globs=globs):
            if test.name not in ENDLESS:
                recorder.run(test, out=lambda _: None)
        outcomes.append(recorder.outcome)
        return doctest.TestResults(0, len(recorder.outcome.examples))

    found = importlib.import_module(module)
    with _replaced(doctest, "testmod", testmod):
        if module in WITHOUT_CONNECT_TEST:
            _test_by_connect(found, testmod)
        else:
            found._test()
    (outcome,) = outcomes
    return outcome


def _test_by_connect(module: ModuleType, testmod: Callable[..., Any]) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(os.environ[REMOTE]).getOrCreate()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    testmod(module, globs={**module.__dict__, "spark": spark}, optionflags=flags)
    spark.stop()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: object) -> Any:
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)


def main(arguments: Collection[str]) -> None:
    """Run one module."""
    module, file = arguments
    Path(file).write_text(record(module).dump())


if __name__ == "__main__":
    main(sys.argv[1:])
