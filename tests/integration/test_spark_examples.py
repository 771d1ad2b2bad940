"""PySpark's own examples pass here wherever they pass by plain Python, and print the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import spark_examples


@pytest.mark.slow
def test_pysparks_own_examples() -> None:
    """``UNDERSTUDY_EXAMPLES`` chooses scripts by a word in their path."""
    only = os.environ.get("UNDERSTUDY_EXAMPLES", "")
    results = list(spark_examples.compare_all([name for name in spark_examples.scripts() if only in name]))
    assert results
    found = [result for result in results if result.plain == 0]
    assert [result for result in found if result.understudy != 0] == []
    different = [result.script for result in found if result.output == "differs"]
    assert sorted(set(different) - spark_examples.DIFFERENT.keys()) == []


def test_the_page_of_the_examples_counts_what_was_run() -> None:
    results = [
        spark_examples.Result("pi.py", 0, 0, "varies", 9.0, 2.0),
        spark_examples.Result("sort.py", 0, 0, "equal", 9.0, 2.0),
        spark_examples.Result("sql/hive.py", 0, 1, "", 9.0, 2.0, "Error: a | b"),
        spark_examples.Result("kmeans.py", 2, None, "", 9.0, 2.0),
    ]
    assert spark_examples.figures(results) == {
        "examples": 4,
        "examples_plain_ok": 3,
        "examples_understudy_ok": 2,
        "examples_output_equal": 1,
        "examples_output_varies": 1,
    }
    page = spark_examples.page(results)
    assert "| `sql/hive.py` | passes | fails (1) |  | `Error: a \\| b` |" in page
    assert "| `kmeans.py` | fails (2) | no end |  |  |" in page


def test_every_example_that_pyspark_brings_is_run_or_left_out_with_a_reason() -> None:
    root = spark_examples.SPARK_HOME / spark_examples.EXAMPLES
    known = {str(path.relative_to(root)) for path in root.rglob("*.py")}
    assert {*spark_examples.ENDLESS, *spark_examples.ARGUMENTS, *spark_examples.DIFFERENT} <= known
    assert len(spark_examples.scripts()) > 100
    assert Path(spark_examples.PAGE).parent.is_dir()
