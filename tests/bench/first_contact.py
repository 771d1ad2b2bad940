"""A newcomer's first hour: PySpark's own examples, the wait for a job's output, the length of README, the public API.

- ``examples_plain_ok``, ``examples_understudy_ok``: how many of PySpark's examples pass by plain `python`, and by
  `understudy job run`. ``examples_output_equal``: how many of those print the same both ways. How many others differ
  between two runs by plain `python`, too, is ``examples_output_varies``. See `tests.spark_examples`.
- ``first_output_s``: seconds from a print, one second after a script began, until a reader of `job run` has the line.
  Median; ``first_output_most_s`` is the longest.
- ``readme_lines``; ``public_names``: names in `understudy.__all__`. ``public_names_documented``: how many of them
  have a docstring and an entry in docs/api.md.

The examples take an hour, so `all` leaves this out. ``--examples FILE`` takes them from an earlier
``python -m tests.spark_examples --json FILE``.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import understudy
from tests import spark_examples
from tests.cluster_harness import Cluster
from tests.generated import documentation

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import time

time.sleep(1)
print(time.time(), flush=True)
"""

Figures = dict[str, float]


def run(rounds: int, examples: str | None = None) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; return the figures and the rows of the table."""
    figures: Figures = {**_examples(examples), **_first_output(rounds)}
    figures["readme_lines"] = len((ROOT / "README.md").read_text().splitlines())
    page = (ROOT / "docs" / "api.md").read_text()
    figures["public_names"] = len(understudy.__all__)
    figures["public_names_documented"] = sum(_is_documented(name, page) for name in understudy.__all__)
    return figures, [
        (name, f"{value:7.3f}" if name.endswith("_s") else f"{value:3d}") for name, value in figures.items()
    ]


def _examples(file: str | None) -> Figures:
    if file is not None:
        told = json.loads(Path(file).read_text())
        return {name: value for name, value in told.items() if name.startswith("examples")}
    return dict(spark_examples.figures(list(spark_examples.compare_all(spark_examples.scripts()))))


def _first_output(rounds: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        script = Path(scratch) / "says.py"
        script.write_text(SCRIPT)
        cluster = Cluster(Path(scratch) / "cluster")
        try:
            cluster.run("start")
            waits = [_wait_for_a_line(cluster.command("job", "run", str(script))) for _ in range(rounds + 1)][1:]
        finally:
            cluster.run("stop", check=False)
    return {"first_output_s": statistics.median(waits), "first_output_most_s": max(waits)}


def _wait_for_a_line(command: list[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seen = time.time()
        _, errors = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{command[:6]} failed with status {process.returncode}:\n{errors}")
    return seen - float(line)


def _is_documented(name: str, page: str) -> bool:
    return (
        bool(documentation(name, getattr(understudy, name)))
        and re.search(rf"^### {re.escape(name)}$", page, re.M) is not None
    )
