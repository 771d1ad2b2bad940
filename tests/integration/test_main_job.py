"""The main job on a real cluster: what it prints and writes equals what DuckDB computes from the same files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster_harness import ROOT, Cluster
from tests.flights import Row, expected_tables, written_tables
from tests.no_java import path_without_java
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return expected_tables(tmp_path_factory.mktemp("flights"))


def _printed_hours(printed: list[list[str]]) -> list[list[str]]:
    header = ["hour", "flights", "calm_dry", "calm_wet", "windy_dry", "windy_wet"]
    return printed[printed.index(header) + 1 :]


def _expected_hours(rows: list[Row]) -> list[list[str]]:
    hours: dict[int, dict[tuple[str, str], Row]] = {}
    for row in rows:
        hours.setdefault(row[0], {})[row[1], row[2]] = row
    shown = []
    for hour, kinds in sorted(hours.items()):
        means = [kinds.get((wind, rain)) for wind in ("calm", "windy") for rain in ("dry", "wet")]
        cells = ["-" if row is None or row[-1] is None else str(row[-1]) for row in means]
        shown.append([str(hour), str(sum(row[3] for row in kinds.values())), *cells])
    return shown


def test_the_ordinary_script_runs_unchanged(cluster: Cluster) -> None:
    done = cluster.run("job", "run", str(ROOT / "examples/word_count.py"))
    assert done.stdout.splitlines()[0] == "4 x and (3 letters)"
    assert "understudy" not in (ROOT / "examples" / "word_count.py").read_text().split('"""', 2)[2].lower()


def test_the_failing_script_shows_its_own_traceback(cluster: Cluster) -> None:
    done = cluster.run("job", "run", str(ROOT / "examples/failing.py"), check=False)
    assert done.returncode == 1
    assert 'File "failing.py", line 10, in share' in done.stderr
    assert "FAILED: ZeroDivisionError: division by zero" in done.stderr


def test_the_main_job_equals_an_independent_computation_on_a_machine_without_java(
    tmp_path: Path, expected: dict[str, list[Row]]
) -> None:
    """`make demo`'s command, with no JAVA_HOME and no java on the path: the wheel's Java does it."""
    tools = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=tools) is None
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": tools}
    settings = ["-D", "jobmanager.rpc.port=0", "-D", "rest.port=0", "-D", f"cluster.runtime-dir={tmp_path / 'demo'}"]
    command = [sys.executable, "-m", "runtime.cluster", "demo", "--out", str(tmp_path / "out"), *settings]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Cluster(tmp_path / "demo").processes() == {}
    assert written_tables(tmp_path / "out") == expected
    printed = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if line.startswith("  ")]
    for name in ("by_carrier", "by_airport"):
        shown = [["-" if value is None else str(value) for value in row] for row in expected[name]]
        start = printed.index(shown[0])
        assert printed[start : start + len(shown)] == shown, name
    assert _printed_hours(printed) == _expected_hours(expected["by_hour"])
    assert "336,776 flights, 8,255 cancelled, 70,774 over 15 minutes late" in done.stdout
